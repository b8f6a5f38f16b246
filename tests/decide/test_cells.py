"""One runner for many cells: the same results here, in processes and on Ray, stopped and killed or not."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import unskew
from unskew.decide.cells import Failure, Queue, QueuedCell, queue, run
from unskew.decide.crew import Here, OnRay, crew
from unskew.errors import ConfigError, RunError, WorkerError


class Adding:
    """Adds up whole numbers below one, and keeps sums to go on from; notes in a file what it does."""

    def __init__(self, log: str = "", slow: float = 0.0) -> None:
        self.log, self.slow = log, slow
        self.sums: dict[int, tuple[int, int]] = {}
        self.homes: set[str] = set()

    def keep(self, homes: Collection[str]) -> None:
        self.homes = set(homes)
        self.sums = {start: of for start, of in self.sums.items() if str(start) in homes}

    def train(self, asked: Mapping[str, Any]) -> Any:
        start, until = asked["start"], asked["until"]
        if until < 0:
            raise ConfigError(f"no sum below {until}")
        if until > 10**6:
            os.kill(os.getpid(), signal.SIGKILL)
        at, total = self.sums.get(start, (start, 0))
        time.sleep(self.slow)
        self.sums[start] = until, total + sum(range(at, until))
        if self.log:
            with Path(self.log).open("a") as log:
                log.write(f"{start} {at} {until}\n")
        return {"sum": self.sums[start][1]}


def cell(start: int, until: int) -> QueuedCell:
    return QueuedCell({"start": start, "until": until}, str(start))


def halving(starts: Sequence[int], until: int = 10) -> Generator[Sequence[QueuedCell], Sequence[Any], list[int]]:
    """The better half goes on for twice as long."""
    told: list[int] = []
    while starts:
        outcomes = yield [cell(start, until) for start in starts]
        told += [of["sum"] for of in outcomes]
        best = sorted(zip(outcomes, starts, strict=True), key=lambda of: -of[0]["sum"])
        starts, until = [start for _, start in best[: len(starts) // 2]], 2 * until
    return told


def results(kept: Queue, at_work: Any) -> tuple[list[int], ...]:
    return run([halving([0, 1, 2, 3]), halving([4, 5]), halving([])], kept, at_work)


@pytest.fixture(scope="module")
def expected() -> tuple[list[int], ...]:
    return results(Queue(), Here(Adding()))


def test_plans_get_what_they_asked_for_in_their_order(expected: tuple[list[int], ...]) -> None:
    below = [sum(range(s, 10)) for s in range(6)]
    assert expected == (
        [*below[:4], sum(range(20)), sum(range(1, 20)), sum(range(40))],
        [*below[4:], sum(range(4, 20))],
        [],
    )


def test_two_processes_come_to_the_results_of_one(expected: tuple[list[int], ...]) -> None:
    with crew(Adding(slow=0.01), 2) as two:
        assert results(Queue(), two) == expected


def test_a_worker_goes_on_from_what_it_has(tmp_path: Path) -> None:
    """Nobody begins a sum anew, and what no cell goes on from is dropped."""
    log = tmp_path / "log"
    with crew(Adding(str(log), 0.01), 2) as two:
        results(Queue(), two)
    lines = log.read_text().splitlines()
    assert [line for line in lines if line.startswith("0 ")] == ["0 0 10", "0 10 20", "0 20 40"]
    assert len(lines) == len(set(lines))
    here = Adding()
    results(Queue(), Here(here))
    assert here.homes <= {"0", "4"}


@pytest.mark.network
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_ray_comes_to_the_results_of_one_process(expected: tuple[list[int], ...]) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'unskew[ray]'")
    with contextlib.closing(OnRay(Adding(), "local", 2)) as on_ray:
        assert results(Queue(), on_ray) == expected


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from decide.test_cells import Adding, crew, queue, results
from pathlib import Path
with queue(Path("queue.sqlite"), "sums") as kept, crew(Adding("log", 0.1), int(sys.argv[1])) as at_work:
    print(results(kept, at_work))
"""


@pytest.mark.seconds
def test_a_runner_that_is_killed_in_mid_queue_goes_on_to_the_same_results(
    expected: tuple[list[int], ...], tmp_path: Path
) -> None:
    """kill -9 after a few cells: nothing that ended is done again, and its workers end with it."""
    tests, log = Path(__file__).parents[1], tmp_path / "log"
    (tmp_path / "script.py").write_text(SCRIPT.format(tests=str(tests)))
    command = [sys.executable, "script.py", "2"]
    env = {**os.environ, "PYTHONPATH": f"{Path(unskew.__file__).parents[1]}:{tests}"}

    def lines() -> int:
        return len(log.read_text().splitlines()) if log.exists() else 0

    process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while lines() < 4 and process.poll() is None and time.monotonic() < until:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(0.8)  # its workers look every half second whether it is there
    with contextlib.closing(Queue(tmp_path / "queue.sqlite", "sums")) as kept:
        ended = len(kept.known)
    assert 0 < ended < 11
    with queue(tmp_path / "queue.sqlite", "sums") as kept, crew(Adding(), 2) as at_work:
        assert results(kept, at_work) == expected
        assert len(kept.known) == 10


def test_outcomes_of_something_else_do_not_count(tmp_path: Path, expected: tuple[list[int], ...]) -> None:
    for about in ("one", "other"):
        with queue(tmp_path / "q", about) as kept:
            assert not kept.known
            assert results(kept, Here(Adding())) == expected


def one(asked: QueuedCell) -> Generator[Sequence[QueuedCell], Sequence[Any], Any]:
    return (yield [asked])


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failure_is_the_error_it_was_and_is_tried_again(workers: int, tmp_path: Path) -> None:
    with queue(tmp_path / "q") as kept, crew(Adding(), workers) as at_work:
        with pytest.raises(ConfigError, match=r"^no sum below -1$"):
            run([one(cell(0, -1))], kept, at_work)
        assert not kept.known


def test_a_plan_may_hear_of_failures_and_of_workers_that_are_lost(tmp_path: Path) -> None:
    with queue(tmp_path / "q") as kept, crew(Adding(), 2) as at_work:
        asked = [one(cell(0, -1)), one(cell(0, 10**6 + 1)), one(cell(0, 3))]
        ((bad,), (lost,), (good,)) = run(asked, kept, at_work, lenient=True)
        assert str(bad) == "ConfigError: no sum below -1"
        assert isinstance(lost, Failure)
        assert "is lost, with exit code -9; the system kills processes if memory runs out" in lost.text
        assert good == {"sum": 3}
        assert sorted(kept.failed.values()) == sorted(map(str, (bad, lost)))
        with pytest.raises(WorkerError, match="is lost"):
            run([one(cell(0, 10**6 + 1))], kept, at_work)


def test_a_queue_has_one_writer_and_may_be_read(tmp_path: Path) -> None:
    with queue(tmp_path / "q") as kept:
        kept.put(cell(0, 1), {"sum": 0})
        with pytest.raises(RunError, match="is in use by another process"), queue(tmp_path / "q"):
            pass
        with contextlib.closing(Queue(tmp_path / "q")) as read:
            assert read.known == kept.known


@pytest.mark.parametrize("damage", ["no database", "no outcome"])
def test_a_damaged_queue_is_refused_and_named(damage: str, tmp_path: Path) -> None:
    with queue(tmp_path / "q") as kept:
        results(kept, Here(Adding()))
    if damage == "no database":
        (tmp_path / "q").write_bytes(b"not SQLite" * 1000)
    with contextlib.suppress(sqlite3.DatabaseError), contextlib.closing(sqlite3.connect(tmp_path / "q")) as file:
        file.execute("UPDATE cells SET outcome = ?", ("{",))
        file.commit()
    with (
        pytest.raises(RunError, match=r"/q has no outcomes to go on from \(.*\); delete it"),
        queue(tmp_path / "q") as kept,
    ):
        results(kept, Here(Adding()))
