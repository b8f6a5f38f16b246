"""A run folder that was damaged, or comes from somebody who means harm, is refused by its file."""

import importlib.util
import json
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import ModuleType

import pytest

from unskew.errors import RunError
from unskew.experiment.config import Experiment
from unskew.record import database, logs
from unskew.record.database import FILE
from unskew.record.logs import document
from unskew.record.reader import read
from unskew.run import loop


def _neighbour(path: str) -> ModuleType:
    """A test module of another folder, for the run folders it makes."""
    file = Path(__file__).parents[1] / path
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pages = _neighbour("report/test_report.py")
make_run, METHODS = pages.make_run, pages.METHODS


def test_rows_of_metrics_and_failures_have_the_time_at_which_they_were_written(tmp_path: Path) -> None:
    began = time.time()
    folder = make_run(tmp_path / "run", METHODS[:1], seeds=[0], rounds=2, failures=True)
    with database.opened(folder) as connection:
        for table in ("metrics", "failures"):
            times = [at for (at,) in connection.execute(f"SELECT at FROM {table} ORDER BY id")]
            assert times == sorted(times)
            assert began <= times[0] <= times[-1] <= time.time()


@pytest.mark.parametrize("name", ["run.json", "partition.json"])
def test_a_document_that_was_changed_is_refused(name: str, tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    folder = loop.start(tiny("rounds=1"), tmp_path / "run").folder
    (folder / name).write_text((folder / name).read_text().replace("1", "2", 1))
    with pytest.raises(RunError, match=rf"{name}: it changed since it was written; the file is corrupt, restore it"):
        read(folder)


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (lambda f: (f / "partition.json").unlink(), r"partition\.json is missing though the run has a summary\.json"),
        (lambda f: (f / "run.json").write_text('{\n"schema": 1,\n'), r"run\.json: it is not JSON: .* line 3"),
        (lambda f: (f / "run.json").write_text("[]"), r"run\.json: it is not a JSON object"),
        (lambda f: (f / "run.json").write_text('{"cells": 3}'), r"has invalid documents \(TypeError"),
        (lambda f: (f / "run.json").write_bytes(b"\xff"), r"run\.json cannot be read"),
        (lambda f: (f / "run.json").unlink(), r"is not a run folder: it has no run\.json"),
    ],
)
def test_a_corrupt_file_is_named(tmp_path: Path, corrupt: Callable[[Path], object], message: str) -> None:
    folder = make_run(tmp_path / "run", METHODS[:1], seeds=[0], rounds=2, failures=True)
    corrupt(folder)
    with pytest.raises(RunError, match=message):
        read(folder)


def harmed(folder: Path, *statements: str) -> None:
    with closing(sqlite3.connect(folder / FILE)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


@pytest.mark.parametrize(
    "statements",
    [
        ["UPDATE metrics SET value = 9e999"],
        ["CREATE VIEW more AS SELECT * FROM metrics"],
        ["DROP TABLE work"],
        ["DROP TABLE work", "CREATE VIEW work AS SELECT * FROM transfers"],
        ["UPDATE metrics SET client = x'00', value = x'00', weight = x'00'"],
        ["UPDATE metrics SET clients = '[1'"],
        ["INSERT INTO info VALUES (1, 'FedAvg', 0, 1, 't', '" + "[" * 100_000 + "')"],
        ["PRAGMA journal_mode = WAL"],
    ],
)
def test_a_record_that_no_run_writes_is_refused(tmp_path: Path, statements: list[str]) -> None:
    folder = make_run(tmp_path / "run", METHODS[:1], seeds=[0], rounds=2, failures=True)
    harmed(folder, *statements)
    with pytest.raises(RunError, match="restore it or run again"):
        read(folder)


def test_a_finished_record_is_the_one_that_was_written(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "record_sha256": database.sha256(folder)}))
    before = read(folder)
    harmed(folder, "UPDATE metrics SET value = 0.5 WHERE id = 3")
    with pytest.raises(RunError, match="its rows are not those that were written"):
        read(folder)
    assert before.frame.numbers


@pytest.mark.parametrize("name", ["config.toml", "run.json", "summary.json", "run.sqlite"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_file_of_a_run_that_is_a_link_or_a_pipe_is_refused(name: str, kind: str, tmp_path: Path) -> None:
    """The report of a run from elsewhere would show the secret, and a pipe would keep it waiting."""
    folder = make_run(tmp_path / "run")
    path, secret = folder / name, tmp_path / "secret"
    path.rename(secret)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(secret)
    of_a_run_under_way = kind == "pipe" and name == "summary.json"  # which has no such file
    with pytest.raises(RunError, match=rf"{name}.* (cannot be read|is missing)|has no {name}"):
        document(path) if of_a_run_under_way else read(folder)


def test_a_run_that_is_reached_by_a_link_is_read(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (tmp_path / "latest").symlink_to(folder)
    assert read(tmp_path / "latest").frame.rows() == read(folder).frame.rows()


def test_documents_and_values_have_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(tmp_path / "run")
    monkeypatch.setattr(database, "LONGEST", 100_000)
    harmed(folder, "INSERT INTO info VALUES (1, 'FedAvg', 0, 1, 't', '{\"a\": \"" + "a" * 100_001 + "\"}')")
    with pytest.raises(RunError, match=r"run\.sqlite cannot be read: string or blob too big"):
        read(folder)
    monkeypatch.setattr(logs, "LARGE", 10)
    with pytest.raises(RunError, match=r"run\.json cannot be read: it has more than 10 bytes; restore it"):
        read(folder)
