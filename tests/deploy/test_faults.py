"""What a federation of real processes does when things go wrong; the table at the end of the run says it in words."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from unskew.deploy import trial
from unskew.errors import RunError
from unskew.experiment.config import Experiment
from unskew.record.logs import rows

from .conftest import Lines, processes_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
RUNNING = Path("experiments", "small", "run")
"""Where a run is in its federation's folder."""
Outcome = Callable[[str, str, str], None]
LONG = ("local.local_steps=10000", "local.batch_size=8")  # a second or so of training in each round


def uplinks(run: Path) -> set[tuple[int, int]]:
    """(round, client) of every transfer to the server that counted."""
    return {(r["round"], r["src"] - 1) for r in rows(run, "transfers") if r["dst"] == 0}


def reasons(run: Path) -> str:
    return "; ".join(dict.fromkeys(f"round {r['round']}: {r['reason'][:70]}" for r in rows(run, "failures")))


class Processes:
    """A server and its sites as processes, each of which may be killed and started again."""

    def __init__(self, experiment: Experiment, folder: Path, **options: float) -> None:
        self.federation, sites = trial.prepare(experiment, 2, folder, options)
        serve = [sys.executable, "-m", "unskew", "fed", "serve", "--folder", str(folder / "deploy"), "--quiet"]
        self.commands = {0: serve, **{1 + i: [sys.executable, "-c", trial.CHILD, str(s)] for i, s in enumerate(sites)}}
        self.running = {who: self.start(who) for who in self.commands}

    def start(self, who: int) -> "subprocess.Popen[bytes]":
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(self.commands[who], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self, *whom: int) -> None:
        for who in whom:
            self.running[who].kill()
            self.running[who].wait()

    def round(self) -> int:
        return int(self.federation.experiment("small")["round"] or 0)

    def until(self, round: int) -> None:
        while self.federation.experiment("small")["state"] in ("queued", "running") and self.round() < round:
            time.sleep(0.2)

    def memory(self) -> list[int]:
        """Resident memory of server and sites, MB."""
        texts = (Path(f"/proc/{process.pid}/status").read_text() for process in self.running.values())
        return [int(text.partition("VmRSS:")[2].split()[0]) // 1000 for text in texts]


def test_twenty_kills_of_either_side_leave_what_a_simulation_comes_to(
    small: Callable[..., Experiment], tmp_path: Path, outcome: Outcome
) -> None:
    experiment = small("rounds=250", 'methods.0.name="scaffold"', "eval_every=50", *LONG)
    moments, kills = random.Random(0), {0: 0, 1: 0, 2: 0}
    federation = Processes(experiment, tmp_path / "run")
    try:
        federation.until(1)
        for k in range(40):
            time.sleep(moments.uniform(0.5, 6.0))
            who = 0 if k % 2 else moments.choice((1, 2))
            federation.kill(who)
            federation.running[who] = federation.start(who)
            kills[who] += 1
        last = federation.round()
        assert last < experiment.rounds, "all were killed in mid-run"
        federation.until(experiment.rounds + 1)
    finally:
        federation.kill(*federation.running)
    run = federation.federation.record("small")
    (found,) = trial.compare(run, trial.simulate(experiment, tmp_path / "simulated"))
    assert (found.max_abs_diff, found.bytes_equal) == (0.0, True)
    killed = f"kill -9: server {kills[0]}, sites {kills[1] + kills[2]} times by round {last}"
    outcome(killed, "went on", reasons(run) or "no reply was lost")


def test_two_thousand_rounds_take_no_more_memory_than_fifty(
    small: Callable[..., Experiment], tmp_path: Path, outcome: Outcome
) -> None:
    federation = Processes(small("rounds=2000", "eval_every=500", "local.local_steps=2"), tmp_path / "run")
    try:
        federation.until(50)
        began, first = time.monotonic(), federation.memory()
        federation.until(1990)
        took, last = time.monotonic() - began, federation.memory()
        federation.until(2001)
    finally:
        federation.kill(*federation.running)
    assert list(rows(federation.federation.record("small"), "failures")) == []
    assert all(after < before + 60 for before, after in zip(first, last, strict=True)), (first, last)
    outcome("2,000 rounds", f"{took / 1940:.3f} s a round", f"MB at round 50 {first}, at 1990 {last}")


def test_a_client_that_never_answers_is_given_up_at_the_deadline(
    small: Callable[..., Experiment], tmp_path: Path, outcome: Outcome
) -> None:
    federation = Processes(small("rounds=12", *LONG), tmp_path / "run", deadline_s=8.0)
    try:
        federation.until(2)
        federation.running[2].send_signal(signal.SIGSTOP)
        federation.until(13)
    finally:
        federation.kill(*federation.running)
    run = federation.federation.record("small")
    assert {(t, 0) for t in range(1, 13)} <= uplinks(run)
    assert (12, 1) not in uplinks(run)
    assert "late: no reply within 8 s" in reasons(run)
    outcome("client that never answers", "went on", reasons(run))


def test_a_site_whose_settings_cannot_be_used_ends_the_trial_with_the_reason(
    small: Callable[..., Experiment], said: Lines, tmp_path: Path
) -> None:
    _, (one, other) = trial.prepare(small(), 2, tmp_path / "run")
    shutil.copy(one / "site.key", other / "site.key")
    with pytest.raises(RunError, match=r"site-1 ended with code 2: .*site\.key is not the key of site\.crt"):
        trial.trial(small(), 2, tmp_path / "run", said)
    assert processes_of(tmp_path) == []


def test_a_client_whose_disk_is_full_says_so_and_takes_part_again_when_there_is_room(
    small: Callable[..., Experiment], said: Lines, tmp_path: Path, outcome: Outcome
) -> None:
    """Its file system has 256 kB, and a file that fills it until two rounds have failed."""
    experiment = small("rounds=8", 'methods.0.name="fedper"', 'methods.0.personal=["head.bias"]', *LONG)
    federation, (_, site) = trial.prepare(experiment, 2, tmp_path / "run")
    state, running = site / "experiments" / "small" / "state", federation.folder / RUNNING
    state.mkdir(mode=0o700, parents=True)
    offer, _ = federation.signed(federation.experiment())[1]  # which is kept there already, as after a restart
    (state.parent / "offer.json").write_bytes(offer)
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs", str(state)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")

    def fill() -> None:
        while not any(state.glob("*/0/000001-*-0000")):
            time.sleep(0.02)
        with suppress(OSError), open(state / "filler", "wb", buffering=0) as f:
            while True:
                f.write(bytes(256))
        while len(list(rows(running, "failures"))) < 2:
            time.sleep(0.02)
        (state / "filler").unlink()

    threading.Thread(target=fill, daemon=True).start()
    try:
        run = trial.trial(experiment, 2, tmp_path / "run", said)
    finally:
        subprocess.run(["umount", "--lazy", str(state)], capture_output=True, check=False)
    assert {(1, 1), (8, 1)} <= uplinks(run)
    assert "No space left on device; make room" in "".join(r["reason"] for r in rows(run, "failures"))
    outcome("disk full on a client", "went on", reasons(run))
