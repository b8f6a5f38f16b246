"""Stopped, killed, starved of disk, tampered with: a run goes on to the same bits, or says why it does not."""

import errno
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unskew import wire
from unskew.errors import ConfigError, MemoryShortage, RunError
from unskew.experiment.config import Experiment, load, parse, to_toml
from unskew.local.executor import Columns, EvalJob
from unskew.local.sequential import Sequential
from unskew.local.trainer import LocalTrainer
from unskew.record import database
from unskew.record.logs import rows
from unskew.record.reader import read
from unskew.run import checkpoint, loop, models, more_seeds
from unskew.run import setup as run_setup
from unskew.run.cell import Cell, Observer
from unskew.run.loop import Interrupted, RunResult
from unskew.run.notes import notes
from unskew.signals import handled

# A state alone, a state and what clients keep of it, both with more in them, and client memory alone; two seeds.
SEVERAL = 'methods = ["fedavg", { name = "fedavg", label = "fedper", personal = ["head"] }, "scaffold", "independent"]'
SETTINGS = ("seeds=[0, 1]", "clients_per_round=3", "world.outage.late=0.1", "local.lr_schedule.name=constant")
REMEMBERS, SCAFFOLD = ("rounds=4", "runtime.checkpoint_every=1"), '[[methods]]\nname = "scaffold"\n'


def contents(folder: Path) -> dict[str, Any]:
    """What a run left behind, without clocks."""
    kept = {name: list(rows(folder, name)) for name in ("transfers", "failures", "work", "info")}
    models = {p.name: p.read_bytes() for p in sorted((folder / "models").iterdir())}
    summary = json.loads((folder / "summary.json").read_text())
    return {
        "metrics": [r for r in rows(folder, "metrics") if r["name"] != "seconds"],
        "fingerprint": summary["fingerprint"],
        "stopped": summary["stopped"],
        "rows": [r for r in summary["rows"] if r["metric"] != "seconds"],
        "models": models,
        **kept,
        **{name: (folder / name).read_bytes() for name in ("config.toml", "partition.json")},
    }


def leftovers(folder: Path) -> list[str]:
    """Whatever was only half-written, in the run's folder or beside it."""
    inside = [str(p) for p in folder.rglob("*") if ".tmp" in p.name] if folder.exists() else []
    return inside + [str(p) for p in folder.parent.iterdir() if p.name.startswith(".")]


@pytest.fixture(scope="module")
def several(tiny: Callable[..., Experiment]) -> Experiment:
    return tiny(*SETTINGS, "runtime.checkpoint_every=1", methods=SEVERAL)


@pytest.fixture(scope="module")
def straight(several: Experiment, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return contents(loop.start(several, tmp_path_factory.mktemp("straight") / "run").folder)


class Presses(Observer):
    """Ctrl-C, `times` times, at the end of round number `after` of the whole run."""

    def __init__(self, after: int, times: int = 1, sign: signal.Signals = signal.SIGINT) -> None:
        self.left, self.times, self.sign, self.notes = after, times, sign, list[str]()

    def ended_round(self, cell: Cell) -> None:
        self.left -= 1
        if self.left == 0:
            for _ in range(self.times):
                signal.raise_signal(self.sign)

    def note(self, text: str) -> None:
        self.notes.append(text)


class Death(BaseException):
    """As sudden as a kill, for all the code can know."""


@contextmanager
def dies_in_fit(number: int) -> Iterator[None]:
    """The `number`-th local optimisation from here is the last thing that happens."""
    fit, done = LocalTrainer.fit, [0]

    def counted(self: LocalTrainer, *args: Any) -> Any:
        done[0] += 1
        if done[0] == number:
            raise Death
        return fit(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalTrainer, "fit", counted)
        yield


# ---------------------------------------------------------------- Ctrl-C
@pytest.mark.parametrize(("times", "sign"), [(1, signal.SIGHUP), (2, signal.SIGTERM)])
def test_a_request_to_terminate_is_a_polite_stop(
    several: Experiment, straight: dict[str, Any], tmp_path: Path, times: int, sign: signal.Signals
) -> None:
    """Twice within a moment is once: `timeout` tells the process, and then its group, which it is of."""
    with pytest.raises(Interrupted, match="stopped by request after round 2 of fedavg, seed 0; continue with"):
        loop.start(several, tmp_path / "run", Presses(2, times, sign=sign))
    assert contents(loop.resume(tmp_path / "run").folder) == straight


def test_a_second_ctrl_c_ends_at_once_and_can_be_resumed(
    several: Experiment, straight: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(Interrupted, match="stopped in the middle of a round; continue with: unskew run"):
        loop.start(several, tmp_path / "run", Presses(5, times=2))
    assert contents(loop.resume(tmp_path / "run").folder) == straight


def test_clients_that_share_a_model_share_it_after_a_resume(
    tiny: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of clients in groups of their own one trains a round; all others have one model, which is tested in one pass.

    In a pass for each of them results are rounded otherwise.
    """
    passes: list[int] = []

    measured = Sequential.evaluate

    def counted(executor: Sequential, jobs: Sequence[EvalJob]) -> list[Columns]:
        passes.append(len(jobs))
        return measured(executor, jobs)

    monkeypatch.setattr(Sequential, "evaluate", counted)
    groups = f'[[methods]]\nname = "grouped"\ngroups = {[[i] for i in range(30)]}\n'
    experiment = tiny("split.num_clients=30", "clients_per_round=1", "rounds=4", methods=groups)
    loop.start(experiment, tmp_path / "whole")
    whole = passes.copy()
    passes.clear()
    with pytest.raises(Interrupted):
        loop.start(experiment, tmp_path / "run", Presses(2))
    loop.resume(tmp_path / "run")
    assert passes == whole
    assert 1 < passes[-1] <= 1 + 4


def test_handlers_are_put_back(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    loop.start(tiny("rounds=1"), tmp_path / "run")
    with pytest.raises(Interrupted):
        loop.start(tiny("rounds=2"), tmp_path / "again", Presses(1, times=2))
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_signal_that_comes_as_handlers_are_put_back_is_heard_by_those(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, outside, put = list[int](), list[int](), signal.signal

    def outer(number: int, _frame: Any) -> None:
        outside.append(number)

    def late(number: int, handler: Any) -> Any:
        if handler is outer:
            signal.raise_signal(number)
        return put(number, handler)

    before = put(signal.SIGTERM, outer)
    with handled([signal.SIGTERM], lambda number, _: inside.append(number)):
        monkeypatch.setattr(signal, "signal", late)
    put(signal.SIGTERM, before)
    assert (inside, outside) == ([], [signal.SIGTERM])


# ---------------------------------------------------------------- kill
@pytest.mark.parametrize("number", [10, 50])
def test_a_run_that_died_in_a_round_ends_like_one_that_did_not(
    number: int, several: Experiment, straight: dict[str, Any], tmp_path: Path
) -> None:
    with dies_in_fit(number), pytest.raises(Death):
        loop.start(several, tmp_path / "run")
    assert contents(loop.resume(tmp_path / "run").folder) == straight


# ---------------------------------------------------------------- checkpoints
@pytest.fixture(scope="module")
def stopped_once(tiny: Callable[..., Experiment], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one method that remembers, stopped after round 3 of 4."""
    experiment, folder = tiny(*REMEMBERS, methods=SCAFFOLD), tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(Interrupted):
        loop.start(experiment, folder, Presses(3))
    return folder


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    """A copy of it to be harmed, or gone on with."""
    shutil.copytree(stopped_once, tmp_path / "run", copy_function=shutil.copy)
    return tmp_path / "run"


@pytest.fixture(scope="module")
def unstopped(tiny: Callable[..., Experiment], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    experiment = tiny(*REMEMBERS, methods=SCAFFOLD)
    return contents(loop.start(experiment, tmp_path_factory.mktemp("unstopped") / "run").folder)


def newest(folder: Path) -> Path:
    (place,) = (folder / "checkpoint").iterdir()
    return place


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "harm", "says"),
    [
        ("state.safetensors", truncate, "changed since it was written"),
        ("memory-0000.safetensors", flip, "changed since it was written"),
        ("memory-0000.safetensors", Path.unlink, "cannot be read: No such file"),
    ],
)
def test_a_harmed_checkpoint_is_refused(name: str, harm: Callable[[Path], None], says: str, stopped: Path) -> None:
    path = newest(stopped) / name
    harm(path)
    with pytest.raises(RunError, match=rf"{re.escape(str(path))}.*{says}.*; .*restore it or run again$"):
        loop.resume(stopped)


def test_a_file_that_was_slipped_in_is_not_read(stopped: Path, unstopped: dict[str, Any]) -> None:
    shutil.copy(newest(stopped) / "state.safetensors", newest(stopped) / "memory-0007.safetensors")
    assert contents(loop.resume(stopped).folder) == unstopped


def test_a_half_written_checkpoint_is_passed_over(stopped: Path, unstopped: dict[str, Any]) -> None:
    """A process was killed when the files were there, and not yet the transaction that counts on them."""
    half = stopped / "checkpoint" / str(int(newest(stopped).name) + 1)
    half.mkdir()
    (half / "state.safetensors").write_bytes(b"half")
    (half / "more.safetensors").write_bytes(b"")
    assert contents(loop.resume(stopped).folder) == unstopped
    assert not list((stopped / "checkpoint").glob("*/more.safetensors"))


def moved(folder: Path, **changes: Any) -> None:
    """Change the position of a run's checkpoint."""
    with closing(sqlite3.connect(folder / database.FILE)) as connection:
        (text,) = connection.execute("SELECT position FROM checkpoint").fetchone()
        connection.execute("UPDATE checkpoint SET position = ?", (json.dumps({**json.loads(text), **changes}),))
        connection.commit()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"files": ["state.safetensors"]}, "its position is invalid: files must be"),
        ({"round": "many"}, "its position is invalid: round"),
        ({"marks": {"metrics": [3, "0" * 64]}}, "the rows of metrics are not those that were written"),
        ({"documents": {"run.json": "0" * 64}}, r"run\.json was changed since the run began"),
        ({"number": 99}, "cannot be read: No such file"),
    ],
)
def test_a_position_that_no_run_wrote_is_refused(stopped: Path, changes: dict[str, Any], says: str) -> None:
    moved(stopped, **changes)
    with pytest.raises(RunError, match=says):
        loop.resume(stopped)


def test_a_state_that_is_not_the_method_s_is_refused(stopped: Path) -> None:
    other = wire.encode({"w": torch.zeros(2)})
    (newest(stopped) / "state.safetensors").write_bytes(other)
    moved(stopped, files={"state.safetensors": hashlib.sha256(other).hexdigest()})
    with pytest.raises(RunError, match=r"state\.safetensors does not fit the method that runs now: expected "):
        loop.resume(stopped)


# ---------------------------------------------------------------- the folder
def test_resuming_a_finished_run_gives_its_summary(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    outcome = loop.start(tiny("rounds=1"), tmp_path / "run")
    before = {p: p.read_bytes() for p in outcome.folder.rglob("*") if p.is_file()}
    again = loop.resume(tmp_path / "run")
    assert again.summary == outcome.summary
    assert {p: p.read_bytes() for p in outcome.folder.rglob("*") if p.is_file()} == before


def test_a_run_is_not_resumed_twice_at_once(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    refused: list[str] = []

    class Impatient(Observer):
        def ended_round(self, cell: Cell) -> None:
            with pytest.raises(RunError) as caught:
                loop.resume(tmp_path / "run")
            refused.append(str(caught.value))

    loop.start(tiny("rounds=2"), tmp_path / "run", Impatient())
    assert refused == 2 * [f"{tmp_path / 'run'} is in use by another process; wait for it or stop it"]


def test_a_run_over_a_network_is_not_gone_on_with_in_one_process(stopped: Path, tmp_path: Path) -> None:
    card = json.loads((stopped / "run.json").read_text())
    (tmp_path / "out" / "deploy" / "authority").mkdir(parents=True)
    (stopped / "run.json").write_text(json.dumps({**card, "command": "unskew fed"}))
    for folder in (stopped, tmp_path / "out"):
        with pytest.raises(RunError, match=r"only its server and clients can continue: .*unskew fed run"):
            loop.resume(folder, force=True)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"there is no folder .*nothing; give the command that began its run again"):
        loop.resume(tmp_path / "nothing")
    with pytest.raises(RunError, match=r"is not a run folder: it has no run\.json"):
        loop.resume(tmp_path)
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(RunError, match=r"run\.json: .*; the file is corrupt"):
        loop.resume(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(RunError, match=r"run\.json: .*; the file is corrupt"):
        loop.resume(tmp_path)


def test_a_run_whose_data_have_moved_goes_on_where_they_lie_now_and_with_no_others(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).random((60, 4), np.float32), np.arange(60) % 2
    np.savez(tmp_path / "here.npz", x_train=x, y_train=y)
    raw = {
        "rounds": 4,
        "task": {"data": f"npz:{tmp_path / 'here.npz'}", "model": "logistic"},
        "split": {"name": "iid", "num_clients": 2},
        "methods": [{"name": "fedavg"}],
        "runtime": {"executor": "sequential"},
    }
    whole = loop.start(parse(raw), tmp_path / "whole").summary["fingerprint"]
    run = tmp_path / "run"
    for after in (1, 2):  # moved twice: what was written after the first move counts as the same run's
        begin = partial(loop.start, parse(raw), run) if after == 1 else partial(loop.resume, run)
        with pytest.raises(Interrupted):
            begin(Presses(1))
        text, place = (run / "config.toml").read_text(), "here" if after == 1 else "1"
        (run / "config.toml").write_text(text.replace(f"{place}.npz", f"{after}.npz"))
        (tmp_path / f"{place}.npz").rename(tmp_path / f"{after}.npz")
    np.savez(tmp_path / "other.npz", x_train=x + 1, y_train=y)
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace("2.npz", "other.npz"))
    with pytest.raises(RunError, match=r"the data set of .*, or its split, was changed since the run began"):
        loop.resume(run)
    (run / "config.toml").write_text(text)
    assert loop.resume(run).summary["fingerprint"] == whole
    assert loop.resume(run).summary["fingerprint"] == whole  # now from its summary


def test_a_personal_part_that_the_network_does_not_have_is_noted(tiny: Callable[..., Experiment]) -> None:
    """FedBN on a network without normalisation is FedAvg under another name, and so is what has statistics alone."""

    def said(method: str, **task: Any) -> list[str]:
        experiment = tiny(methods=f"[[methods]]\n{method}\n")
        experiment = replace(experiment, task=replace(experiment.task, **task))
        return list(notes(experiment, run_setup.IN_PROCESS.prepare(experiment), 4))

    for wrapper in ("", '\nwith = ["clip_norm"]'):
        (fedbn,) = said(f'name = "fedbn"{wrapper}')
        assert "personal = ['norm'] selects no tensor of the network (it has no normalisation layer)" in fedbn
    assert said('name = "fedper"') == said('name = "fedavg"') == []
    assert said('name = "fedbn"', model="cnn_small", model_options={"norm": "batch"}) == []


def test_other_surroundings_are_refused_unless_forced(
    stopped: Path, unstopped: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = run_setup.environment
    other = {"torch": "0.0", "executor": "stacked"}
    monkeypatch.setattr(run_setup, "environment", lambda experiment, setup: {**real(experiment, setup), **other})
    with pytest.raises(
        RunError, match=r"was started in another environment \(torch \S+ -> 0\.0; executor sequential -> stacked\)"
    ):
        loop.resume(stopped)
    assert contents(loop.resume(stopped, force=True).folder)["metrics"] == unstopped["metrics"]


def test_the_rest_of_a_run_can_have_other_workers_and_says_so(
    stopped: Path, unstopped: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors that train each client by itself give the same bits, so that this needs no --force."""
    with pytest.raises(RunError, match=r"another environment \(threads 1 -> 2\)"):
        loop.resume(stopped, settings=["runtime.threads=2"])
    with pytest.raises(ConfigError, match=r"only runtime settings may change.*got rounds=9"):
        loop.resume(stopped, settings=["rounds=9"])
    assert not list(rows(stopped, "resumed"))
    settings = ["runtime.executor=workers", "runtime.workers=1"]
    monkeypatch.setattr(run_setup, "cores", lambda: 64)
    assert contents(loop.resume(stopped, settings=settings).folder)["fingerprint"] == unstopped["fingerprint"]
    (row,) = rows(stopped, "resumed")
    assert (row["method"], row["seed"], row["round"]) == ("scaffold", 0, 4)
    assert row["changed"][1:] == ["executor sequential -> workers", "runtime.workers=1"]
    assert 'executor = "sequential"' in (stopped / "config.toml").read_text()
    assert any(note.startswith("Resumed at round 4 of scaffold, seed 0") for note in read(stopped).notes)


def test_a_run_on_several_threads_goes_on_in_workers_of_one_thread_by_force_alone(
    tiny: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums over two threads are rounded otherwise; networks above five million parameters have them by default."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    experiment = tiny("rounds=2", 'runtime.executor="sequential"', "runtime.checkpoint_every=1")
    with pytest.raises(Interrupted):
        loop.start(experiment, tmp_path / "run", Presses(1))
    settings = ["runtime.executor=workers", "runtime.workers=1"]
    with pytest.raises(RunError, match=r"another environment \(executor sequential -> workers\)"):
        loop.resume(tmp_path / "run", settings=settings)
    loop.resume(tmp_path / "run", force=True, settings=settings)
    (row,) = rows(tmp_path / "run", "resumed")
    assert row["changed"] == ["executor sequential -> workers", "runtime.workers=1"]


def test_data_are_found_where_the_run_was_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From another folder, and when both were moved together."""
    home = tmp_path / "home"
    (home / "elsewhere").mkdir(parents=True)
    np.savez(home / "d.npz", x_train=np.random.default_rng(0).random((60, 4), np.float32), y_train=np.arange(60) % 2)
    split = {"name": "iid", "num_clients": 2}
    task = {"data": "npz:d.npz", "model": "logistic"}
    monkeypatch.chdir(home)
    experiment = parse({"rounds": 2, "task": task, "split": split, "methods": ["fedavg"]})
    with pytest.raises(Interrupted):
        loop.start(experiment, home / "run", Presses(1))
    home.rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path / "moved" / "elsewhere")
    assert loop.resume(tmp_path / "moved" / "run").summary["rows"]


def test_code_of_ones_own_that_changed_is_refused_unless_forced(
    tiny: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edited method would leave a run half of the one and half of the other."""
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "my_own_method.py"
    file.write_text("from unskew import FedNova\n\n\nclass Mine(FedNova):\n    pass\n")
    text = to_toml(tiny("rounds=2", methods='[[methods]]\nname = "fedavg"\n[[methods]]\nname = "fednova"\n'))
    (tmp_path / "e.toml").write_text(text.replace('name = "fednova"', 'name = "my_own_method:Mine"'))
    with pytest.raises(Interrupted):
        loop.start(load(tmp_path / "e.toml", allow_code=True), tmp_path / "run", Presses(1))
    file.write_text(file.read_text() + "\n\nOTHER = 1\n")
    with pytest.raises(RunError, match=r"another environment \(code of my_own_method \w{12} -> \w{12}\).*--force"):
        loop.resume(tmp_path / "run", allow_code=True)
    with pytest.raises(RunError, match=r"code of my_own_method"):
        more_seeds.add(tmp_path / "run", tmp_path / "more", partial(more_seeds.longer, seeds=[9]), allow_code=True)
    assert loop.resume(tmp_path / "run", force=True, allow_code=True).summary["rows"]


CHANGES = {
    "a digit": "UPDATE {} SET round = round + 1 WHERE id = 3",
    "a row less": "DELETE FROM {} WHERE id = (SELECT max(id) FROM {})",
    "a row in the middle less": "DELETE FROM {} WHERE id = 2",
    "another table": "CREATE TABLE more (id INTEGER)",
    "a trigger": "CREATE TRIGGER t AFTER DELETE ON {} BEGIN SELECT 1; END",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_record_that_was_changed_is_refused(change: str, stopped: Path) -> None:
    with closing(sqlite3.connect(stopped / database.FILE)) as connection:
        connection.execute(change.replace("{}", "transfers"))
        connection.commit()
    with pytest.raises(RunError, match=r"run\.sqlite cannot be read: .*; restore it or run again"):
        loop.resume(stopped)


@pytest.mark.parametrize("harm", [halve, lambda path: path.write_bytes(b"no database" * 99), Path.unlink])
def test_a_record_that_was_cut_is_refused(harm: Callable[[Path], None], stopped: Path) -> None:
    harm(stopped / database.FILE)
    with pytest.raises(RunError, match=r"run\.sqlite cannot be read: .*; restore it or run again"):
        loop.resume(stopped)


@pytest.mark.parametrize("name", [".lock", "run.sqlite"])
def test_a_link_in_a_run_from_elsewhere_is_not_written_through(stopped: Path, tmp_path: Path, name: str) -> None:
    """What it points at has the very content of the file it stands for, which would be changed."""
    target, place = tmp_path / "bashrc", stopped / name
    target.write_bytes(mine := place.read_bytes())
    place.unlink()
    place.symlink_to(target)
    with pytest.raises(RunError, match="link"):
        loop.resume(stopped)
    assert target.read_bytes() == mine


@pytest.mark.parametrize("name", ["models", "checkpoint", "tensorboard/fedavg"])
def test_a_link_to_another_folder_is_refused_before_anything_is_written_or_removed(
    stopped: Path, tmp_path: Path, name: str
) -> None:
    """A run from elsewhere would write its models there, and remove what is called like one of them."""
    place, target = stopped / name, tmp_path / "mine"
    shutil.rmtree(place, ignore_errors=True)
    target.mkdir()
    for file in ("fedavg-seed0.safetensors", "fedavg-seed0.clients.sqlite"):
        (target / file).write_text("mine")
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(target)
    before = sorted(p.name for p in stopped.iterdir())
    with pytest.raises(RunError, match=rf"{name} is a symbolic link or a device, which no run writes"):
        loop.resume(stopped)
    assert {p.name: p.read_text() for p in target.iterdir()} == {
        "fedavg-seed0.safetensors": "mine",
        "fedavg-seed0.clients.sqlite": "mine",
    }
    assert sorted(p.name for p in stopped.iterdir()) == before


def test_a_runs_folder_is_its_owners_alone(stopped: Path) -> None:
    assert stopped.stat().st_mode & 0o777 == 0o700


def test_rows_after_the_checkpoint_are_removed(stopped: Path, unstopped: dict[str, Any]) -> None:
    with closing(sqlite3.connect(stopped / database.FILE)) as connection:
        connection.execute("INSERT INTO work SELECT NULL, method, seed, 4, hop, client, examples FROM work")
        connection.commit()
    assert contents(loop.resume(stopped).folder) == unstopped


def test_a_reader_is_served_while_the_run_is_written_and_keeps_nobody_waiting(
    tiny: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    class Reads(Observer):
        def ended_round(self, cell: Cell) -> None:
            counts.append(len(list(rows(tmp_path / "run", "metrics"))))
            assert read(tmp_path / "run").summary is None

    monkeypatch.setattr(database, "SHOWN_AFTER_S", 0.0)
    loop.start(tiny("rounds=4"), tmp_path / "run", Reads())
    assert counts == sorted(set(counts))
    assert counts[0]


def test_a_journal_that_names_another_file_is_refused(stopped: Path, tmp_path: Path) -> None:
    """SQLite would remove that file once it had rolled the journal back."""
    mine = tmp_path / "mine"
    mine.write_text("mine")
    name = str(mine).encode()
    tail = len(name).to_bytes(4, "big") + sum(name).to_bytes(4, "big") + bytes.fromhex("d9d505f920a163d7")
    (stopped / f"{database.FILE}-journal").write_bytes(bytes(512) + name + tail)
    with pytest.raises(RunError, match="its journal names another file"):
        loop.resume(stopped)
    assert mine.read_text() == "mine"


@pytest.mark.parametrize(("where", "early"), [("the model", True), ("the state's hash", False)])
def test_memory_that_runs_out_when_a_cell_ends_costs_nothing(
    where: str, early: bool, tiny: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a cell does at its end is done again, once: no hash and no row comes twice."""
    experiment = tiny("stop.megabytes=0.000001") if early else tiny()
    straight = contents(loop.start(experiment, tmp_path / "straight").folder)
    owner, name = (models, "write_atomically") if where == "the model" else (checkpoint, "digest")
    genuine, calls = getattr(owner, name), []

    def once(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            raise MemoryError
        return genuine(*args)

    monkeypatch.setattr(owner, name, once)
    with pytest.raises(MemoryShortage, match=r"unskew run .* goes on"):
        loop.start(experiment, tmp_path / "run")
    assert contents(loop.resume(tmp_path / "run").folder) == straight


@pytest.mark.parametrize("key", ["sha256", "dataset_sha256"])
def test_other_data_are_refused(key: str, stopped: Path) -> None:
    partition = json.loads((stopped / "partition.json").read_text())
    partition["seeds"]["0"][key] = "0" * 64
    (stopped / "partition.json").write_text(json.dumps(partition))
    with pytest.raises(RunError, match=r"the data set of .*, or its split, was changed since the run began"):
        loop.resume(stopped)


# ---------------------------------------------------------------- a disk that fills
@contextmanager
def full(bytes_per_file: int) -> Iterator[None]:
    """No file can grow beyond this; writing more fails with EFBIG, half-way through, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_per_file, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def refused(write: Callable[[], RunResult]) -> str:
    with pytest.raises(RunError) as caught:
        write()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_disk_that_is_full_at_the_start_leaves_nothing(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    with full(3000):
        message = refused(lambda: loop.start(tiny(), tmp_path / "run"))
    assert message.startswith(
        f"cannot make the run folder {tmp_path / 'run'}: File too large; choose another --out, or fix this"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_record_that_finds_no_room_can_be_continued(
    several: Experiment, straight: dict[str, Any], tmp_path: Path
) -> None:
    """The partition needs 10 kB, SCAFFOLD's memory 20 kB, the empty record 40 kB."""
    with full(60_000):
        message = refused(lambda: loop.start(several, tmp_path / "run"))
    assert f"cannot write {tmp_path / 'run'}/" in message
    assert message.endswith(f"continue with: unskew run {tmp_path / 'run'}")
    assert "run.sqlite" in message or "checkpoint" in message
    assert not leftovers(tmp_path / "run")
    assert contents(loop.resume(tmp_path / "run").folder) == straight


@pytest.mark.parametrize("name", ["summary.json", "fedavg-seed0.safetensors", "state.safetensors"])
def test_a_disk_that_fills_at_any_file_is_survived(
    name: str, tiny: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = tiny("rounds=2", "runtime.checkpoint_every=1")
    whole = loop.start(experiment, tmp_path / "whole").summary["fingerprint"]
    fsync, seen = os.fsync, [0]

    def failing(fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if "/run/" in path and path.removesuffix(".tmp").endswith(name):
            seen[0] += 1
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        message = refused(lambda: loop.start(experiment, tmp_path / "run"))
    assert seen == [1]
    assert "No space left on device" in message
    assert message.endswith(f"continue with: unskew run {tmp_path / 'run'}")
    assert not leftovers(tmp_path / "run")
    assert not (tmp_path / "run" / "summary.json").exists()
    assert loop.resume(tmp_path / "run").summary["fingerprint"] == whole
