"""An operator's day with real processes: three homes as three sites, and six commands."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from unskew.deploy.trial import free_port
from unskew.record.logs import rows
from unskew.run.models import load_model

from .conftest import processes_of

pytestmark = [pytest.mark.network, pytest.mark.timeout(240)]
ROOT = Path(__file__).parents[2]
EXPERIMENT = """
name = "first"
rounds = 3
task = { data = "npz:all.npz", model = "logistic" }
local = { lr = 0.05, local_steps = 4, batch_size = 32 }
evaluate = ["global", "personal"]
[[methods]]
name = "fedavg"
"""


class Operator:
    """Gives commands, each in the home of somebody."""

    def __init__(self, place: Path) -> None:
        self.place, self.started, self.tokens = place, list[subprocess.Popen[bytes]](), dict[str, str]()

    def environment(self, who: str) -> dict[str, str]:
        home = self.place / who
        home.mkdir(exist_ok=True)
        gone = ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "UNSKEW_POLICY")
        return {**{k: v for k, v in os.environ.items() if k not in gone}, "HOME": str(home), "PYTHONPATH": str(ROOT)}

    def __call__(self, *words: object, who: str = "coordinator", code: int = 0) -> str:
        command = [sys.executable, "-m", "unskew", *map(str, words)]
        done = subprocess.run(
            command, cwd=self.place, env=self.environment(who), capture_output=True, text=True, timeout=120
        )
        assert done.returncode == code, done.stderr
        return done.stdout + (done.stderr if code else "")

    def invite(self, *sites: str) -> None:
        out = self("fed", "invite", *sites)
        self.tokens |= {line.partition(":")[0]: line.rpartition(" ")[2] for line in out.splitlines()}

    def join(self, site: str) -> None:
        command = [sys.executable, "-m", "unskew", "site", "join", self.tokens[site]]
        with (self.place / f"{site}.log").open("ab") as log:
            process = subprocess.Popen(
                [*command, "--data", f"npz:{self.place / site}.npz"],
                cwd=self.place,
                env=self.environment(site),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.started.append(process)


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    digits = load_digits()
    x, y = digits.images.astype(np.uint8), digits.target
    for c, name in enumerate("abc"):
        np.savez(tmp_path / f"{name}.npz", x_train=x[c:1600:3], y_train=y[c:1600:3])
    np.savez(tmp_path / "all.npz", x_train=x[1600:1610], y_train=y[1600:1610], x_test=x[1600:], y_test=y[1600:])
    (tmp_path / "x.toml").write_text(EXPERIMENT)
    operator = Operator(tmp_path)
    yield operator
    for process in operator.started:
        process.terminate()
    for process in operator.started:
        with suppress(subprocess.TimeoutExpired):
            process.wait(10.0)
        process.kill()
    assert processes_of(tmp_path) == []


def trained(folder: Path) -> set[tuple[int, int]]:
    return {(r["round"], r["client"]) for r in rows(folder, "work")}


def test_three_sites_from_nothing_in_six_commands(operator: Operator, tmp_path: Path) -> None:
    began = time.monotonic()
    operator("fed", "init", "--port", free_port())
    operator.invite("a", "b", "c")
    for name in "abc":
        operator.join(name)
    results = json.loads(operator("fed", "run", "x.toml", "--json"))
    assert time.monotonic() - began < 120.0
    assert {row["metric"] for row in results["rows"]} >= {"global.accuracy", "personal.accuracy.mean"}
    operator("fed", "pull", "first", "--out", "pulled")
    assert trained(tmp_path / "pulled") == {(t, c) for t in (1, 2, 3) for c in range(3)}
    place = tmp_path / "a" / ".local/state/unskew/sites/a/experiments/first"
    np.save(tmp_path / "new.npy", np.load(tmp_path / "b.npz")["x_train"][:5])
    assert len(json.loads(operator("predict", place, "new.npy", "--json", who="a"))["rows"]) == 5
    assert load_model(place / "models" / "fedavg-seed0.shared.safetensors").unskew.client is None
