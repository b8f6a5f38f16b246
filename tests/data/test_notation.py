"""Numbers of a CSV file are read as declared; where that may be wrong, a note or an error names the option."""

from pathlib import Path
from typing import Any

import pytest

import unskew as us
from unskew.data import tables


def table(tmp_path: Path, *values: str, **options: Any) -> Any:
    body = "\n".join(
        f"{values[i % len(values)]};{'yes' if i % 3 else 'no'};{'007' if i % 2 else '08'}" for i in range(30)
    )
    (tmp_path / "t.csv").write_text(f"dose;ill;site\n{body}\n")
    given = {"target": "ill", "client": "site", "separator": ";", **options}
    return tables.table("csv", tmp_path / "t.csv", tables.TableOptions(**given))


@pytest.mark.parametrize(
    ("values", "options", "read"),
    [
        (("1.234", "567", "12.345"), {}, (1.234, 567, 12.345)),
        (("1.234", "567", "12.345"), {"thousands": "."} | {"decimal": ","}, (1234, 567, 12345)),
        (("1,5", "2,25"), {"decimal": ","}, (1.5, 2.25)),
        (("1,234.5", "-7"), {"thousands": ","}, (1234.5, -7)),
        (("1e3", "-99"), {"gaps": ("-99.0",)}, (1000, None)),
        (("true", "False"), {}, (1, 0)),
    ],
)
def test_numbers_are_read_as_declared(
    tmp_path: Path, values: tuple[str, ...], options: dict[str, Any], read: tuple[float | None, ...]
) -> None:
    got = table(tmp_path, *values, **options).columns["dose"][: len(read)].tolist()
    assert [None if v != v else v for v in got] == list(read)


def test_other_decimals_and_groups_than_the_declared_stay_words(tmp_path: Path) -> None:
    for options in ({"decimal": ","}, {"thousands": ","}):
        assert table(tmp_path, "1.5", "2,5", **options).columns["dose"].dtype.kind == "O"


def test_zeros_before_names_and_labels_stay(tmp_path: Path) -> None:
    read = table(tmp_path, "007", "010")
    assert read.clients == ("007", "08")
    assert read.columns["dose"][0] == 7  # an input is a number
    (tmp_path / "c.csv").write_text("a,code\n" + "\n".join(f"{i},{'01' if i % 2 else '10'}" for i in range(40)))
    assert us.load(f"csv:{tmp_path / 'c.csv'}", data_options={"target": "code"}).classes == ("01", "10")
