"""An operator's day with real processes: three homes as three sites, six commands, and what comes after them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

pytest.importorskip("grpc", reason="a federation needs the extra [deploy]")

from unskew.deploy.federation import FederationFolder
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

    def start(self, *words: object, who: str = "coordinator") -> subprocess.Popen[bytes]:
        with (self.place / f"{who}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "unskew", *map(str, words)],
                cwd=self.place,
                env=self.environment(who),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.started.append(process)
        return process

    def invite(self, *sites: str, **options: object) -> None:
        out = self("fed", "invite", *sites, *(word for k, v in options.items() for word in (f"--{k}", v)))
        self.tokens |= {line.partition(":")[0]: line.rpartition(" ")[2] for line in out.splitlines()}

    def join(self, site: str) -> subprocess.Popen[bytes]:
        return self.start("site", "join", self.tokens[site], "--data", f"npz:{self.place / site}.npz", who=site)

    def status(self) -> dict[str, Any]:
        return FederationFolder(self.place / "federation").status()

    def log(self, who: str) -> str:
        return (self.place / f"{who}.log").read_text()

    def until(self, what: Any, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < end, self.log("coordinator")
            time.sleep(0.2)


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    digits = load_digits()
    x, y = digits.images.astype(np.uint8), digits.target
    for c, name in enumerate(("a", "b", "c", "d")):
        np.savez(tmp_path / f"{name}.npz", x_train=x[c:1600:4], y_train=y[c:1600:4])
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


def test_three_sites_from_nothing_in_six_commands_and_a_second_experiment(operator: Operator, tmp_path: Path) -> None:
    began = time.monotonic()
    operator("fed", "init", "--port", free_port())
    operator.invite("a", "b", "c")
    sites = {name: operator.join(name) for name in "abc"}
    results = json.loads(operator("fed", "run", "x.toml", "--json"))
    assert time.monotonic() - began < 120.0
    assert {row["metric"] for row in results["rows"]} >= {"global.accuracy", "personal.accuracy.mean"}
    operator("fed", "pull", "first", "--out", "pulled")
    assert trained(tmp_path / "pulled") == {(t, c) for t in (1, 2, 3) for c in range(3)}
    place = tmp_path / "a" / ".local/state/unskew/sites/a/experiments/first"
    np.save(tmp_path / "new.npy", np.load(tmp_path / "b.npz")["x_train"][:5])
    assert len(json.loads(operator("predict", place, "new.npy", "--json", who="a"))["rows"]) == 5
    assert load_model(place / "models" / "fedavg-seed0.shared.safetensors").unskew.client is None

    # A resident server, another site, and one that is taken out while the second experiment runs.
    server = operator.start("fed", "serve")
    operator.until(lambda: sum(s["since"] is not None for s in operator.status()["sites"]) == 3)
    operator.invite("d")
    operator.join("d")
    operator.until(lambda: operator.status()["sites"][3]["since"] is not None)
    slow = ("--set", "name=second", "--set", "rounds=400", "--set", "local.local_steps=2000")
    following = operator.start("fed", "run", "x.toml", *slow)

    def round() -> int:
        return int((operator.status()["experiments"][1:] or [{}])[0].get("round") or 0)

    operator.until(round)
    sites["b"].send_signal(signal.SIGKILL)
    operator.start("site", "start", who="b")
    operator("fed", "remove", "c")
    operator.until(lambda: "none of this federation's sites" in operator.log("c"))
    then = round()
    run = tmp_path / "federation/experiments/second/run"
    operator.until(lambda: any(t > then + 2 and client == 1 for t, client in trained(run)))
    operator("fed", "stop")
    assert following.wait(60.0) == 2
    assert "second stopped: stopped by request; the same command goes on with it" in operator.log("coordinator")
    operator("fed", "pull", "second", "--out", "again")
    record = trained(tmp_path / "again")
    last = max(t for t, _ in record)
    at_last = {c for t, c in record if t == last}  # `then` is what the status said, which rounds may be ahead of
    assert at_last >= {0, 3}
    assert 2 not in at_last
    assert "client 2 (c) is gone" in operator("fed", "logs")
    assert server.poll() is None, "it waits for the next experiment"
