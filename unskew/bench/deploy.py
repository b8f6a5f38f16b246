"""Seconds of an exchange over a network on this machine: our channel, and a plain app of Flower and job of NVFlare.

The server sends the same random bytes to all sites at once and waits until each has sent them back.  Contenders are
those that are installed, one after the other, each started with its own tools, with processes for each site; Flower's
lines are without TLS.  CPU is that of all its processes for an exchange, memory their largest together.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from unskew.bench import systems
from unskew.bench.echo import PLAN, TIMED
from unskew.bench.toolkit import BenchRow, Say, chosen, seconds_row
from unskew.experiment import config
from unskew.experiment.config import Experiment

SIZES = {"200kB": 200_000, "20MB": 20_000_000}
SITES = (3, 12)
LIMIT_S = 900.0


def measure(
    clients: int | None = None, repeats: int = 5, only: tuple[str, ...] = (), say: Say = print
) -> list[BenchRow]:
    """Measure all contenders, as rows of the benchmark's JSON; ratios are times the first's.

    Args:
        clients: Number of sites; by default 3 and 12, one after the other.
        repeats: Exchanges that are timed, after one to warm up.
        only: Contenders that are measured; by default those that are installed.
        say: Called with a line for each measurement.

    Raises:
        ConfigError: If a contender in `only` is not installed, or none.
    """
    here = [name for name, (module, _) in CONTENDERS.items() if find_spec(module)]
    contenders = chosen(only, dict.fromkeys(here, ()), "bench deploy")
    measured: list[BenchRow] = []
    for sites in SITES if clients is None else (clients,):
        first: dict[str, float] = {}
        for name in contenders:
            for (size, _), result in zip(SIZES.items(), _results(CONTENDERS[name][1], sites, repeats), strict=True):
                of, seconds = {"case": f"{size}/{sites}", "contender": name}, result["seconds"]
                ratio = min(seconds) / first.setdefault(size, min(seconds))
                measured += [
                    seconds_row(what="exchange", seconds=seconds, **of, ratio=ratio, against=contenders[0]),
                    {**of, "what": "cpu", "value": result["cpu"], "unit": "s"},
                    {**of, "what": "memory", "value": result["memory"] / 1e6, "unit": "MB"},
                ]
                say(f"{size}/{sites}, {name}: {min(seconds):.4f} s, {result['cpu']:.2f} s of CPU")
    return measured


def _results(run: Callable[[Path, int], None], sites: int, turns: int) -> list[dict[str, Any]]:
    """Read what a contender's server writes of each size."""
    with tempfile.TemporaryDirectory(prefix="unskew-bench-") as folder:
        place = Path(folder)
        plan = {"sites": sites, "bytes": [*SIZES.values()], "turns": turns, "port": systems.free_port()}
        (place / PLAN).write_text(json.dumps(plan))
        run(place, sites)
        results: list[dict[str, Any]] = json.loads((place / TIMED).read_text())
        return results


# ---------------------------------------------------------------- contenders
def _unskew(place: Path, sites: int) -> None:
    from unskew.deploy import certificates

    signer = certificates.authority("bench")
    certificates.save_authority(signer, place)
    certificates.issue_server(signer, [], place)
    with systems.Programs(place) as programs:
        for site in range(sites):
            key = certificates.new_key()
            (place / f"{site}.key").write_bytes(certificates.private_pem(key))
            (place / f"{site}.crt").write_bytes(certificates.issue_site(signer, f"{site}", key.public_key()))
            programs.start(f"{site}", sys.executable, "-c", f"from unskew.bench.echo import site; site({site})")
        programs.call(sys.executable, "-c", "from unskew.bench.echo import serve; serve()")


def _flower(place: Path, sites: int) -> None:
    from unskew.deploy.in_flower import write_app

    app = write_app(_experiment(), place / "app", sites)
    _replace(app, "unskew.deploy.in_flower", "unskew.bench.echo_flower")
    with systems.flower(place, sites) as run:
        run(app, LIMIT_S)


def _nvflare(place: Path, sites: int) -> None:
    from unskew.deploy.in_nvflare import write_job

    job = write_job(_experiment(), place / "job", [f"site-{k + 1}" for k in range(sites)])
    for ours, plain in (("PlanController", "EchoController"), ("ClientExecutor", "EchoExecutor")):
        _replace(job, f"unskew.deploy.in_nvflare.{ours}", f"unskew.bench.echo_nvflare.{plain}")
    with systems.nvflare(place, sites) as run:
        run(job, LIMIT_S)


CONTENDERS = {"unskew": ("grpc", _unskew), "flower": ("flwr", _flower), "nvflare": ("nvflare", _nvflare)}
"""Module that each needs, and what runs it."""


def _experiment() -> Experiment:
    """Only its place in an app or a job is needed; both name what answers, which is replaced."""
    return config.parse(
        {"name": "echo", "rounds": 1, "task": {"data": "digits", "model": "logistic"}, "methods": ["fedavg"]}
    )


def _replace(folder: Path, old: str, new: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            path.write_text(path.read_text("utf-8").replace(old, new), "utf-8")
