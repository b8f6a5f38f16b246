"""Who is with whom: the clients of methods that form groups, and what these promised each.

Runs are those of tests/report/sections/test_groups.py, made by hand: 4 clients, of whom hcct's 0, 1, 2 are together in
the end, 3 alone; own accuracy .9, .8, .7, .6; utility .9, .8, .7, .4, alone .5, .75, .8, .9.
"""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from unskew.info import ClientGroups
from unskew.report import charts, read
from unskew.report.section import Table
from unskew.report.sections import groups


def _neighbour(path: str) -> ModuleType:
    """A test module of another folder, for the runs it makes."""
    file = Path(__file__).parent / path
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


made = _neighbour("sections/test_groups.py")


def tables(folder: Path) -> list[Table]:
    """The tables of members of every method that forms groups."""
    record = read(folder)
    section = groups.section(record, record.reports(ClientGroups), charts.colours(record.methods))
    assert section is not None
    return [table for table in section.tables if table.head[0][0] == "client"]


def test_each_client_has_its_group_promise_and_accuracy(tmp_path: Path) -> None:
    hcct, flsc = tables(made.make_run(tmp_path / "made"))
    assert hcct.caption == "hcct, seed 0, round 3"
    assert [title for title, _ in hcct.head] == ["client", "group", "utility", "utility", "accuracy", "gain over alone"]
    assert [(row.name, *row.cells) for row in hcct.entries] == [
        ("0", "1", "0.90", "0.50", "90.0", "+10.00"),
        ("1", "1", "0.80", "0.75", "80.0", "0.00"),
        ("2", "1", "0.70", "0.80", "70.0", "−10.00"),
        ("3", "alone", "0.40", "0.90", "60.0", "0.00"),
    ]
    assert [title for title, _ in flsc.head] == [
        "client",
        "group",
        "accuracy",
        "gain over alone",
    ]  # it has no utilities
    assert flsc.entries[1].cells == ("1, 2", "80.0", "0.00")  # groups may overlap


def test_a_client_in_no_group_is_told_from_one_alone(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"groups": [[0, 1], [2]]}]
    (table,) = tables(made.make_run(tmp_path / "run", {"hcct": rows}, methods=("independent", "hcct")))
    assert [row.cells[0] for row in table.entries] == ["1", "1", "alone", "–"]
