"""A sweep: one file becomes many, all are checked before one is run, and each goes its own way."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import unskew
from unskew.decide import sweep
from unskew.decide.crew import Here, _answer
from unskew.decide.sweep import Point, expand, run
from unskew.errors import ConfigError

BASE = """
name = "base"
rounds = 3
task = { data = "digits", model = "mlp", model_options = { hidden = [8] } }
split = { name = "dirichlet", num_clients = 4, alpha = 0.5 }
local = { lr = 0.1, batch_size = 128 }
[[methods]]
name = "fedprox"
mu = 0.1
"""


class Fake:
    """A stand-in for runs: one writes its last files, fails, or stays stopped, by its experiment."""

    def __init__(self, out: Path) -> None:
        self.out, self.did = out, list[str]()

    def keep(self, homes: object) -> None:
        """Nothing is kept."""

    def train(self, asked: Mapping[str, Any]) -> Any:
        self.did.append(Path(asked["folder"]).name)
        if "mu = 0.2" in asked["experiment"]:
            raise ConfigError("mu is not to my liking")
        folder = self.out / asked["folder"]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "summary.json").write_text(json.dumps({"rows": [], "seconds": 12.5}))
        (folder / "report.html").write_text("")
        return {"seconds": 12.5}


class Forgiving(Here):
    """This process, where a failure is told as a worker does."""

    def send(self, worker: int, asked: Mapping[str, Any], homes: Any) -> None:
        self.answer = _answer(self.work, asked, homes)

    def receive(self) -> Any:
        return 0, *self.answer


def write(tmp_path: Path, table: str, base: str = BASE) -> Path:
    path = tmp_path / "sweep.toml"
    path.write_text(f"{base}\n[sweep]\n{table}\n")
    return path


def points(tmp_path: Path, table: str) -> tuple[Point, ...]:
    return expand(write(tmp_path, table))[1]


def swept(made: Sequence[Point], out: Path, said: list[str] | None = None, **more: Any) -> tuple[Any, list[str]]:
    """The results of a sweep, and the points that were run now."""
    work = Fake(out)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "Processes", lambda *_, **__: Forgiving(work))
        results = run(made, out, 2, ([] if said is None else said).append, **more)
    return results, work.did


# ---------------------------------------------------------------- from one file to many
def test_a_grid_is_all_combinations_in_the_order_written(tmp_path: Path) -> None:
    name, made = expand(write(tmp_path, 'grid = { "methods.0.mu" = [0.01, 0.1], "split.alpha" = [0.1, 1.0] }'))
    assert name == "base"
    assert [p.name for p in made] == [
        "001-mu=0.01,alpha=0.1",
        "002-mu=0.01,alpha=1.0",
        "003-mu=0.1,alpha=0.1",
        "004-mu=0.1,alpha=1.0",
    ]
    assert [p.experiment.methods[0].options["mu"] for p in made] == [0.01, 0.01, 0.1, 0.1]
    assert made[1].experiment.name == "base mu=0.01,alpha=1.0"


def test_a_point_trains_alone_on_one_thread_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    (plain,) = points(tmp_path, 'grid = { "rounds" = [4] }')
    assert (plain.experiment.runtime.executor, plain.experiment.runtime.threads) == ("sequential", 1)
    (own,) = points(tmp_path, 'list = [{ "runtime.executor" = "workers", "runtime.threads" = 2 }]')
    assert (own.experiment.runtime.executor, own.experiment.runtime.threads) == ("workers", 2)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ("", "is empty: give sweep.grid or sweep.list"),
        ("list = []", "is empty"),
        ("grid = {}", "is empty"),
        ('grid = { "local.lr" = [] }', "sweep.grid.local.lr must have a length of at least 1"),
        ('grid = { "local.lr" = 0.1 }', "local.lr must be a list"),
        ("grid = { local.lr = [0.1] }", "sweep.grid.local must be a list"),
        ("list = [{}]", "sweep.list.0 must have a length"),
        ("list = 3", "sweep.list must be a list"),
        ("list = [{ rounds = 4 }]\nsteps = 3", "unknown key sweep.steps"),
        ('grid = { "rounds" = [4, 4] }', "001-rounds=4 and 002-rounds=4 .* are the same experiment"),
    ],
)
def test_a_sweep_without_points_or_with_nonsense_is_refused(tmp_path: Path, table: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        points(tmp_path, table)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ('grid = { "methods.0.mu" = [0.1, -1.0] }', r"^point 002-mu=-1.0: methods.0.mu must be >= 0, got -1.0"),
        ('grid = { "split.alhpa" = [0.1] }', r"^point 001-alhpa=0.1: unknown key split.alhpa; did you mean alpha"),
        ('grid = { "local.lr" = [1979-05-27] }', r"^point 001-lr=1979-05-27: local.lr must be .*, got .1979-05-27"),
        ('grid = { "methods.3.mu" = [0.1] }', r"^point 001-mu=0.1: .*'3' is not an entry of a list of 1"),
    ],
)
def test_one_impossible_point_refuses_the_sweep_and_is_named(tmp_path: Path, table: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        points(tmp_path, table)
    assert str(caught.value).endswith("; nothing was run")


# ---------------------------------------------------------------- running
MU = 'grid = {{ "methods.0.mu" = [{}] }}'


def test_failures_are_results_and_the_rest_goes_on(tmp_path: Path) -> None:
    said: list[str] = []
    made = points(tmp_path, MU.format("0.1, 0.2, 0.4"))
    results, _ = swept(made, tmp_path / "out", said)
    assert [(r.point, r.status, r.error) for r in results] == [
        ("001-mu=0.1", "done", None),
        ("002-mu=0.2", "failed", "ConfigError: mu is not to my liking"),
        ("003-mu=0.4", "done", None),
    ]
    assert said[1] == "[2/3] 002-mu=0.2: FAILED: ConfigError: mu is not to my liking"


def test_what_is_done_is_left_alone_and_what_failed_or_was_removed_is_tried_again(tmp_path: Path) -> None:
    made, out = points(tmp_path, MU.format("0.1, 0.2, 0.4")), tmp_path / "out"
    swept(made, out)
    (out / "runs" / made[2].name / "report.html").unlink()
    said: list[str] = []
    results, did = swept(made, out, said)
    assert did == [made[1].name, made[2].name]
    assert [r.status for r in results] == ["done", "failed", "done"]
    assert said[0] == "[1/3] 001-mu=0.1: was done already"


@pytest.mark.seconds
@pytest.mark.slow
def test_a_sweep_that_is_stopped_goes_on_to_the_results_of_one_that_was_not(tmp_path: Path) -> None:
    """Two processes of the real thing, asked to stop and then let be; `test_cells` has those that are killed."""
    file = write(tmp_path, MU.format("0.1, 1.0"), BASE.replace("rounds = 3", "rounds = 20\neval_every = 10"))
    env = {**os.environ, "PYTHONPATH": str(Path(unskew.__file__).parents[1])}

    def command(out: str, jobs: int) -> list[str]:
        return [sys.executable, "-m", "unskew", "run", str(file), "--out", out, "--jobs", str(jobs), "--json"]

    def fingerprint(done: "subprocess.CompletedProcess[str]") -> str:
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["fingerprint"])

    until = time.monotonic() + 120
    began = subprocess.Popen(command("out", 2), cwd=tmp_path, env=env, stderr=subprocess.DEVNULL)
    while not any(log.stat().st_size for log in tmp_path.glob("out/logs/*.txt")) and time.monotonic() < until:
        time.sleep(0.02)
    began.send_signal(signal.SIGINT)
    assert began.wait() == 130
    two = subprocess.run(command("out", 2), cwd=tmp_path, env=env, capture_output=True, text=True)
    one = subprocess.run(command("whole", 1), cwd=tmp_path, env=env, capture_output=True, text=True)
    assert fingerprint(two) == fingerprint(one)
    assert "clients" in (tmp_path / "whole" / "logs" / "001-mu=0.1.txt").read_text()
    for folder in (tmp_path / "whole" / "runs").iterdir():
        assert "The forecast and the run" in (folder / "report.html").read_text()
