"""A run folder that was damaged is refused with file and line; one that was cut short is read as far as it goes."""

import importlib.util
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest

from unskew.errors import RunError
from unskew.record import logs
from unskew.record.logs import METRICS, RunCard, document
from unskew.record.reader import configured, read
from unskew.report import write_report


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


def _corrupt_line(name: str, number: int, new: str) -> Callable[[Path], None]:
    def corrupt(folder: Path) -> None:
        lines = (folder / name).read_text().splitlines()
        lines[number - 1] = new
        (folder / name).write_text("\n".join(lines) + "\n")

    return corrupt


def _edit(name: str, edit: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    def corrupt(folder: Path) -> None:
        value = json.loads((folder / name).read_text())
        edit(value)
        (folder / name).write_text(json.dumps(value))

    return corrupt


def _repeat_first_metric(folder: Path) -> None:
    text = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(text.splitlines()[0] + "\n" + text)


_METRIC = '{"method": "FedAvg", "seed": 0, "round": 1, "name": "x", "value": 1, "weight": 1}'
_TRANSFER = '{"method": "FedAvg", "seed": 0, "round": 1, "hop": 0, "src": 0, "dst": 1, "kind": "model", "bytes": 1}'
_LOST = '{"method": "FedX", "seed": 0, "round": 1, "client": 2, "step": "train", "reason": "late"}'


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (_corrupt_line("metrics.jsonl", 3, '{"method": "FedA'), r"metrics\.jsonl, line 3: not JSON"),
        (_corrupt_line("metrics.jsonl", 3, "[1]"), r"metrics\.jsonl, line 3: must be a JSON object, got \[1\]"),
        (
            _corrupt_line("metrics.jsonl", 4, _METRIC.replace("1,", '"1",')),
            r"line 4: round must be an integer",
        ),
        (
            _corrupt_line("metrics.jsonl", 4, _METRIC.replace('"value": 1', '"value": null')),
            r"value must be a number",
        ),
        (_corrupt_line("metrics.jsonl", 4, _METRIC.replace('"value"', '"v"')), r"line 4: value is required"),
        (_corrupt_line("metrics.jsonl", 4, _METRIC.replace("FedAvg", "FedX")), r"no cell for method 'FedX'"),
        (_repeat_first_metric, r"metrics\.jsonl, line 2: global\.accuracy of FedAvg, seed 0, round 0 is given twice"),
        (
            _corrupt_line("ledger.jsonl", 2, _TRANSFER.replace("model", "m")),
            r"kind must be one of 'model' or 'control'",
        ),
        (
            _corrupt_line("ledger.jsonl", 2, _TRANSFER.replace('"bytes": 1', '"bytes": -1')),
            r"bytes must be >= 0, got",
        ),
        (_edit("run.json", lambda v: v.update(schema=2)), r"run\.json: schema must be 1, got 2"),
        (_edit("run.json", lambda v: v.update(cells=[])), r"run\.json: cells must have a length of at least 1, got 0"),
        (_edit("run.json", lambda v: v.update(cells=v["cells"] * 2)), r"cells name FedAvg, seed 0, twice"),
        (
            _edit("run.json", lambda v: v["cells"][0].update(bound="top")),
            r"bound must be one of '\w+' or '\w+', got \"top\"",
        ),
        (
            _edit("partition.json", lambda v: v["seeds"].update(a=v["seeds"]["0"])),
            r"seeds must be named by whole numbers, got 'a'",
        ),
        (_edit("partition.json", lambda v: v["seeds"]["0"]["stats"]["sizes"].pop()), r"a row for each of 19 clients"),
        (_corrupt_line("failures.jsonl", 1, _LOST), r"failures\.jsonl, line 1: .* no cell for method 'FedX'"),
        (_edit("summary.json", lambda v: v["rows"][0].pop("seeds")), r"summary\.json: rows\.0\.seeds is required"),
        (
            _edit("summary.json", lambda v: v["rows"][0].update(std="much")),
            r"rows\.0\.std must be a number",
        ),
        (_edit("summary.json", lambda v: v.pop("fingerprint")), r"summary\.json: fingerprint is required"),
        (lambda f: (f / "partition.json").unlink(), r"partition\.json is missing though the run has a summary\.json"),
        (lambda f: (f / "run.json").write_text('{\n"schema": 1,\n'), r"run\.json, line 3: not JSON"),
        (lambda f: (f / "run.json").write_bytes(b"\xff"), r"run\.json cannot be read"),
        (lambda f: (f / "run.json").unlink(), r"is not a run folder: it has no run\.json"),
    ],
)
def test_a_corrupt_file_is_named_with_its_line(tmp_path: Path, corrupt: Callable[[Path], object], message: str) -> None:
    folder = make_run(tmp_path / "run", METHODS[:1], seeds=[0], rounds=2, failures=True)
    corrupt(folder)
    with pytest.raises(RunError, match=message):
        read(folder)


@pytest.mark.parametrize("name", ["metrics.jsonl", "ledger.jsonl", "failures.jsonl"])
def test_a_torn_last_line_is_left_out_wherever_it_was_cut(tmp_path: Path, name: str) -> None:
    folder = make_run(tmp_path / "run", METHODS[:1], seeds=[0], rounds=2, failures=True)
    whole = (folder / name).read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    before = len(whole) - len(last)
    for cut in (1, len(last) // 2, len(last) - 2):
        (folder / name).write_bytes(whole[: before + cut])
        assert read(folder).cut_short == (name,)
    (folder / name).write_bytes(whole[:-1])
    assert read(folder).cut_short == (), "a row that only lacks its newline is complete"


@pytest.mark.parametrize(("digits", "why"), [(400, r"value must be a finite number, got 1111"), (5000, "not JSON")])
def test_a_number_that_is_too_long_is_refused_by_its_line(digits: int, why: str, tmp_path: Path) -> None:
    row = f'{{"method": "a", "seed": 0, "round": 0, "name": "x", "value": {"1" * digits}}}\n'
    METRICS.file(tmp_path).write_text(row)
    with pytest.raises(RunError, match=rf"metrics\.jsonl, line 1: {why}"):
        list(METRICS.rows(tmp_path))
    (tmp_path / "run.json").write_text(f'{{"parameters": {"1" * digits}}}')
    with pytest.raises(RunError, match=r"run\.json: (not JSON \(Exceeds|run is required)"):
        document(tmp_path / "run.json", RunCard)


@pytest.mark.parametrize("name", ["config.toml", "run.json", "summary.json", "metrics.jsonl", "ledger.jsonl"])
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
        document(path, dict) if of_a_run_under_way else read(folder)


def test_a_run_that_is_reached_by_a_link_is_read(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (tmp_path / "latest").symlink_to(folder)
    assert read(tmp_path / "latest").series == read(folder).series


def test_documents_and_rows_have_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(tmp_path / "run")
    monkeypatch.setattr(logs, "LONGEST", 100_000)
    with (folder / "info.jsonl").open("a") as f:
        f.write(" " * 100_001)
    with pytest.raises(RunError, match=r"info\.jsonl, line \d+: it has more than 100,000 bytes"):
        read(folder)
    monkeypatch.setattr(logs, "LARGE", 10)
    with pytest.raises(RunError, match=r"run\.json cannot be read: it has more than 10 bytes; restore it"):
        read(folder)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("methods = 3", "methods must be"),
        ('methods = ["a"]', r"methods\.0 must be"),
        ("task = 3", "task must be"),
        ("task = { data_options = 3 }", r"task\.data_options must be"),
        ("world = 3", "world must be"),
        ("world = { channel = 3 }", r"world\.channel must be"),
        ("unseen = 3", "unseen must be"),
        ("a = " + "9" * 5000, "is not TOML"),
        (".".join("a" * 20_000) + " = 1", "is not TOML: it is nested too deeply"),
    ],
)
def test_a_configuration_of_another_form_is_refused(text: str, said: str, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "config.toml").write_text(text)
    record = read(folder)
    with pytest.raises(RunError, match=rf"config\.toml:? {said}.*restore it or run again"):
        configured(record)
    with suppress(RunError):  # and nothing else
        write_report(folder)
