"""Should I join?, printed: methods that form groups, by client and in words.

Runs are those of tests/report/sections/test_groups.py, made by hand: 4 clients, of whom hcct's 0, 1, 2 are together in
the end, 3 alone; own accuracy .9, .8, .7, .6, alone .8, .8, .8, .6; utility .9, .8, .7, .4, alone .5, .75, .8, .9.
"""

import importlib.util
import io
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

from unskew.cli.members import clients, should_join
from unskew.report import read
from unskew.report.members import join_summaries

from .conftest import Unskew


def _neighbour(path: str) -> ModuleType:
    """A test module of another folder, for the runs it makes."""
    file = Path(__file__).parent.parent / path
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


made = _neighbour("report/sections/test_groups.py")


def printed(folder: Path, width: int = 80) -> str:
    """What the command prints of a run, white space collapsed within lines."""
    out = io.StringIO()
    console = Console(file=out, width=width)
    for part in should_join(read(folder)):
        console.print(part, highlight=False, markup=False, soft_wrap=isinstance(part, str))
    assert max(map(len, (line for line in out.getvalue().splitlines() if ":" not in line)), default=0) <= width
    return "\n".join(" ".join(line.split()) for line in out.getvalue().splitlines())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found: Path = made.make_run(tmp_path / "made")
    return found


def test_each_client_has_its_group_promise_accuracy_and_gain(folder: Path) -> None:
    lines = printed(folder).splitlines()
    at = lines.index("Should I join? hcct, seed 0, round 3")
    assert lines[at + 2] == "client group utility alone accuracy"
    assert lines[at + 4 : at + 8] == [
        "0 1 0.90 0.50 90.0",
        "1 1 0.80 0.75 80.0",
        "2 1 0.70 0.80 70.0",
        "3 alone 0.40 0.90 60.0",
    ]
    assert "hcct: in round 3 of seed 0, 1 group of two or more, 1 client alone." in lines


def test_a_method_without_utilities_has_no_column_for_them_and_overlapping_groups_are_all_named(folder: Path) -> None:
    lines = printed(folder).splitlines()
    at = lines.index("Should I join? flsc, seed 0, round 3")
    assert lines[at + 2] == "client group accuracy"
    assert lines[at + 5] == "1 1, 2 80.0"


def test_a_client_in_no_group_is_told_from_one_alone(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"groups": [[0, 1], [2]]}]
    lines = printed(made.make_run(tmp_path / "run", {"hcct": rows}, methods=("independent", "hcct"))).splitlines()
    assert [line.split()[:2] for line in lines[4:8]] == [["0", "1"], ["1", "1"], ["2", "alone"], ["3", "–"]]


def test_many_clients_get_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n = 41
    monkeypatch.setitem(made.OWN, "hcct", [0.5] * n)
    monkeypatch.setitem(made.OWN, "independent", [0.25] * n)
    rows = {"hcct": [{"groups": [list(range(n))]}]}
    folder = made.make_run(tmp_path / "run", rows, ("independent", "hcct"), sizes=[20] * n, split={"name": "iid"})
    assert printed(folder, 400) == "hcct: in round 1 of seed 0, 1 group of two or more."


def test_a_long_name_goes_on_below_and_cuts_no_number(folder: Path) -> None:
    (j, *_) = join_summaries(read(folder))
    name = "Regional University Hospital number {} of the northern network"
    named = replace(j, members=tuple(replace(m, name=name.format(m.client)) for m in j.members))
    console = Console(file=(out := io.StringIO()), width=80)
    console.print(clients(named))
    assert "…" not in out.getvalue()
    first = next(line for line in out.getvalue().splitlines() if "0.90" in line)
    assert first.split()[-4:] == ["1", "0.90", "0.50", "90.0"]


def test_a_label_with_brackets_stays_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(made.OWN, "hcct[a]", made.OWN["hcct"])
    folder = made.make_run(tmp_path / "run", {"hcct[a]": made.HCCT}, methods=("independent", "hcct[a]"))
    assert "Should I join? hcct[a], seed 0, round 3" in printed(folder)


def test_a_run_without_groups_has_nothing_to_add(tmp_path: Path) -> None:
    assert should_join(read(made.make_run(tmp_path / "run", info={}))) == []


def test_run_and_compare_answer_should_i_join(unskew: Unskew, here: Path) -> None:
    (here / "groups.toml").write_text(
        (here / "tiny.toml").read_text()
        + '[[methods]]\nname = "hcct"\nalpha = 50.0\n[[methods]]\nname = "independent"\n'
    )
    said = unskew("run", "groups.toml", "--out", "a", "-q", "--no-report")
    assert said.code == 0
    assert "Should I join? hcct, seed 0, round 2" in said.out
    assert "With hcct, " in " ".join(said.out.split())
    assert "Should I join? fedavg" not in said.out
    assert unskew("run", "tiny.toml", "--out", "b", "-q", "--no-report").out.count("join") == 0
    assert "a/hcct: in round 2 of seed 0, " in unskew("compare", "a", "b").out
