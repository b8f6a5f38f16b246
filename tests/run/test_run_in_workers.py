"""A whole run in worker processes: same bits, a worker that dies, and workers that cannot be forked."""

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unskew.errors import WorkerError
from unskew.experiment.config import Experiment
from unskew.local.workers.pool import Pool
from unskew.run import checkpoint, loop
from unskew.run import setup as run_setup
from unskew.run.cell import Cell, Observer
from unskew.run.loop import Interrupted

SETTINGS = ("seeds=[4, 2]", "clients_per_round=3", "eval_every=2", "runtime.checkpoint_every=1")
METHODS = """
[[methods]]
name = "fedavg"
[[methods]]
name = "scaffold"
"""
CELLS, ROUNDS = 4, 3
IN_WORKERS = ("runtime.executor=workers", "runtime.workers=2")


@pytest.fixture(scope="module")
def experiment(tiny: Callable[..., Experiment]) -> Experiment:
    return tiny(*SETTINGS, *IN_WORKERS, methods=METHODS)


@pytest.fixture(scope="module")
def results(tiny: Callable[..., Experiment], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of the same run, one client after the other."""
    return untimed(loop.start(tiny(*SETTINGS, methods=METHODS), tmp_path_factory.mktemp("sequential") / "run"))


def untimed(outcome: loop.RunResult) -> dict[str, Any]:
    """What a run came to, but for clocks."""
    rows = [r for r in outcome.summary["rows"] if r["metric"] != "seconds"]
    return {"fingerprint": outcome.summary["fingerprint"], "rows": rows}


def test_a_run_in_workers_ends_with_the_bits_of_one_in_sequence(
    experiment: Experiment, results: dict[str, Any], tmp_path: Path
) -> None:
    assert untimed(loop.start(experiment, tmp_path / "run")) == results


class Kills(Observer):
    """Kills a worker at the end of round number `after` of the whole run."""

    def __init__(self, pool: list[Pool], after: int) -> None:
        self.pool, self.left = pool, after

    def ended_round(self, cell: Cell) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(self.pool[0].workers[1].process.pid, signal.SIGKILL)


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[Pool]:
    """The pools that runs make, the last one first."""
    made: list[Pool] = []
    genuine = run_setup.pool

    def noted(*args: Any) -> Pool | None:
        pool = genuine(*args)
        assert pool is not None
        made.insert(0, pool)
        return pool

    monkeypatch.setattr(run_setup, "pool", noted)
    return made


@pytest.mark.parametrize("after", [ROUNDS, 2 * ROUNDS + 1])
def test_a_run_whose_worker_is_killed_says_so_and_goes_on_to_the_same_end(
    experiment: Experiment, results: dict[str, Any], pools: list[Pool], tmp_path: Path, after: int
) -> None:
    """`after = ROUNDS` is between two cells: the worker is missed in the first round of the next."""
    said = rf"worker 1 \(process \d+\) is gone .* it was ended by SIGKILL; continue with: unskew run {tmp_path}/run$"
    with pytest.raises(WorkerError, match=said):
        loop.start(experiment, tmp_path / "run", Kills(pools, after))
    assert pools[0].workers == []
    assert not (tmp_path / "run" / "summary.json").exists()
    saved = checkpoint.latest(tmp_path / "run")
    assert saved is not None
    assert saved.cell * ROUNDS + saved.round == after, "no round that was done is done again"
    assert untimed(loop.resume(tmp_path / "run")) == results


class Terminates(Observer):
    """Sends SIGTERM to the whole group at the end of round 1: to the run and to its workers, as `timeout` does."""

    def __init__(self, pool: list[Pool]) -> None:
        self.pool, self.told = pool, False

    def ended_round(self, cell: Cell) -> None:
        if not self.told:
            self.told = True
            for worker in self.pool[0].workers:
                os.kill(worker.process.pid, signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)


def test_a_request_to_terminate_that_reaches_the_workers_too_is_a_polite_stop(
    experiment: Experiment, results: dict[str, Any], pools: list[Pool], tmp_path: Path
) -> None:
    with pytest.raises(Interrupted, match=r"stopped by request after round 1 of .*; continue with: unskew run"):
        loop.start(experiment, tmp_path / "run", Terminates(pools))
    assert untimed(loop.resume(tmp_path / "run")) == results


def test_a_run_whose_workers_cannot_be_begun_says_how_to_go_on(
    experiment: Experiment, results: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fork", refuse)
        with pytest.raises(WorkerError) as caught:
            loop.start(experiment, tmp_path / "run")
    assert str(caught.value).endswith(f"'sequential'; continue with: unskew run {tmp_path}/run")
    assert untimed(loop.resume(tmp_path / "run")) == results
