"""Draws the pictures of README and guides into docs/pictures:  python docs/pictures.py [FOLDER]

The page and its figures are those of a run of the demo, by default demo/ (`make demo`); two small runs, half a minute
of CPU, give the others.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

import unskew as us
from unskew.world.attack import SignFlip

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
LARGEST = 60_000
"""Bytes of a figure; the page's screenshot may have twice as many."""


def save(chart: Any, name: str) -> None:
    """A still by vl-convert, on white, since a page may be dark; a tenth of a pixel is enough."""
    path = PICTURES / f"{name}.svg"
    chart.properties(background="white").save(path)
    text = re.sub(r"\d+\.\d{2,}", lambda m: f"{float(m[0]):.1f}", path.read_text("utf-8"))
    first = min(map(int, re.findall(r"clip(\d+)", text)), default=0)  # it counts on from picture to picture
    path.write_text(re.sub(r"clip(\d+)", lambda m: f"clip{int(m[1]) - first}", text), "utf-8")
    assert path.stat().st_size <= LARGEST, path


def screenshot(
    page: Path, name: str, width: int = 1200, dark: bool = False, section: str = "", high: int = 800
) -> None:
    """A page's first screen, or one of its sections alone, by Chromium, in few colours."""
    if section:
        text, alone = page.read_text("utf-8"), page.with_name(f"{section}.html")
        alone.write_text(
            text.replace(f'<details id="{section}">', f'<details id="{section}" open>')
            + f"<style>nav, main > :not(#{section}) {{ display: none }} body {{ display: block }}</style>",
            "utf-8",
        )
        page = alone
    browser, path = shutil.which("chromium") or shutil.which("google-chrome"), PICTURES / f"{name}.png"
    if browser is None:
        sys.exit("There is no Chromium here, so screenshots of the page stay as they were.")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=6000"]
    flags += [f"--window-size={width},{high}", *["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] * dark]
    subprocess.run([browser, *flags, f"--screenshot={path}", page.resolve().as_uri()], check=True)
    Image.open(path).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE).save(path, optimize=True)
    assert path.stat().st_size <= 2 * LARGEST, path


def page_of(run: us.History) -> Path:
    """The page of a run that is kept."""
    return run.report(run.folder / "report.html")


def methods() -> None:
    """The picture of each method, by the code on its page."""
    for page in sorted((ROOT / "docs" / "algorithms").glob("*.md")):
        scope: dict[str, Any] = {}
        for block in re.findall(r"^```python drawn\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S):
            exec(compile(block, str(page), "exec"), scope)
            save(scope["chart"], f"methods/{page.stem}")


def kinds_of_sites() -> dict[str, tuple[Any, Any]]:
    """Eight sites of two kinds: the last four call a digit d what the first four call 9 - d."""
    digits = load_digits()
    rows = np.random.default_rng(0).permutation(len(digits.target))[: 8 * 120].reshape(8, 120)
    return {
        f"site {i + 1}": (
            digits.images[of].astype(np.uint8) * 15,
            digits.target[of] if i < 4 else 9 - digits.target[of],
        )
        for i, of in enumerate(rows)
    }


def main(demo: Path) -> None:
    """Draw all of them."""
    plot = us.load_run(demo).plot
    save(plot.curves(), "curves")
    save(plot.differences(), "gains")
    save(plot.clients(), "clients")
    methods()
    noise = {f"noise {z}": us.wrap(us.FedAvg(), us.CentralDP(clip=1.0, noise_multiplier=z)) for z in (0.3, 1.0)}
    save(us.simulate({"no noise": us.FedAvg(), **noise}, rounds=10, seeds=range(3)).plot.curves(), "noise")
    means, even = {"mean": us.FedAvg(), "median": us.wrap(us.FedAvg(), us.Median())}, us.Dirichlet(1.0, num_clients=10)
    liars = us.World(attack=SignFlip(fraction=0.2, scale=3.0))
    save(us.simulate(means, split=even, rounds=10, seeds=range(3), world=liars).plot.curves(), "liars")
    table = {"data": ROOT / "examples/hospitals.csv", "target": "diagnosis", "client": "hospital", "preprocess": True}
    one = us.simulate(us.FedAvg(), **table, task="binary", model="logistic", rounds=20, seeds=range(3))
    save(one.plot.effects(), "effects")
    three = ROOT / "examples" / "hospitals.toml"
    with tempfile.TemporaryDirectory() as folder:
        for command in (["advise"], ["tune", "--trials", "8"]):
            out = f"{folder}/{command[0]}"
            subprocess.run(
                [sys.executable, "-m", "unskew", command[0], three, *command[1:], "--out", out], check=True, cwd=ROOT
            )
        screenshot(Path(folder) / "advise" / "advice.html", "advice")
        screenshot(Path(folder) / "advise" / "advice.html", "advice-narrow", width=360)
        screenshot(Path(folder) / "tune" / "tuning.html", "tuning", dark=True)
        heart = {"alone": us.Independent(), "FedAvg": us.FedAvg(), "Ditto": us.Ditto()}
        own = {"data": "heart", "task": "binary", "model": "logistic", "rounds": 20, "seeds": range(5)}
        page = page_of(us.simulate(heart, **own, out=f"{folder}/heart"))
        screenshot(page, "heart")
        screenshot(page, "heart-narrow-dark", width=360, dark=True)
        cell = us.World(channel=us.Radio())
        uneven = {"split": us.Dirichlet(0.1, num_clients=10), "rounds": 8, "seeds": range(2)}
        hops = us.simulate({"FedAvg": us.FedAvg(), "FedDif": us.FedDif()}, **uneven, world=cell, out=f"{folder}/feddif")
        screenshot(page_of(hops), "feddif", section="diffusion", high=860)
        local = us.SgdConfig(lr=0.1, local_epochs=3)
        kinds = {"data": kinds_of_sites(), "rounds": 6, "seeds": range(2), "local": local}
        groups = us.simulate({"FedAvg": us.FedAvg(), "HCCT": us.HCCT()}, **kinds, out=f"{folder}/hcct")
        screenshot(page_of(groups), "hcct", section="groups", high=395)
    report = demo / "report.html"
    screenshot(report, "page")
    screenshot(report, "page-narrow", width=360)
    screenshot(report, "page-dark", dark=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "demo")
