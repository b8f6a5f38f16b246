"""Files as people have them: CSV, Parquet, folders of either; and what is wrong with them."""

from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
import torch

import unskew as us
from unskew.data import Dataset, load, tables
from unskew.data.dataset import refitted
from unskew.data.preprocess import Preprocess
from unskew.errors import DataError

RNG = np.random.default_rng(7)
ROWS = 60
TABLE = polars.DataFrame(
    {
        "site": ["Basel", "Bern", "Chur"] * (ROWS // 3),
        "age": np.round(RNG.normal(0, 1, ROWS), 3),
        "dose": np.round(RNG.normal(0, 1, ROWS), 3),
        "sick": ["no", "yes", "yes", "no"] * (ROWS // 4),
        "part": (["train"] * 3 + ["test"] * 3) * (ROWS // 6),
    }
)
COLUMNS = {"target": "sick", "client": "site"}


def written(folder: Path, table: polars.DataFrame = TABLE, name: str = "h.csv") -> str:
    table.write_csv(folder / name)
    return f"csv:{folder / name}"


def same(a: Dataset, b: Dataset) -> bool:
    tensors = ("x_train", "y_train", "x_test", "y_test", "owners")
    return all(torch.equal(getattr(a, t), getattr(b, t)) for t in tensors) and (
        (a.classes, a.client_names, a.inputs) == (b.classes, b.client_names, b.inputs)
    )


def exported(folder: Path, *lines: str, separator: str = ",", encoding: str = "utf-8") -> str:
    """A file of 24 rows as spreadsheets write them; the lines take the place of the first ones."""
    rows = [[("Zürich", "Bern")[i % 2], str(i % 7), f"{i % 5}.5", f"k{i // 2 % 2}"] for i in range(24)]
    table = [separator.join(row) for row in [["site", "a", "b", "y"], *rows]]
    (folder / "h.csv").write_text("\n".join([*lines, *table[len(lines) :]]), encoding=encoding)
    return f"csv:{folder / 'h.csv'}"


def test_a_gap_word_is_a_gap_for_the_trained_model_too(tmp_path: Path) -> None:
    path = exported(tmp_path, "site,a,b,y", "Zürich,-99,0.5,k0", "Bern,-99.0,1.5,k0", "Bern,NA,1.5,k0")
    data = load(path, None, {"target": "y", "client": "site", "gaps": ["-99"]}, Preprocess())
    column = data.inputs.columns[0]
    assert (column.name, column.kind, column.gaps) == ("a", "number", True)
    assert max(column.mean) < 7
    assert column.mean[0] > 0
    gap = data.inputs.prepare({"a": [np.nan], "b": [0.5]})
    for written_as_gap in (-99, -99.0, "-99"):
        assert torch.equal(data.inputs.prepare([{"a": written_as_gap, "b": 0.5}]), gap)
    assert torch.equal(data.inputs.prepare(np.array([[-99, 0.5]])), gap)
    kept = refitted(data, np.arange(12), np.arange(12, 16)).inputs
    assert kept.columns != data.inputs.columns
    assert kept.notation.gaps == ("-99",)


# ---------------------------------------------------------------- what is wrong with data
def altered(**columns: Any) -> polars.DataFrame:
    return TABLE.drop("part").with_columns(**{k: polars.Series(v, strict=False) for k, v in columns.items()})


def test_a_row_is_named_by_its_line_in_its_file(tmp_path: Path) -> None:
    """A cell of two lines and a test column before it: the row of number 41 begins in line 44."""
    gap = [None if i == 41 else v for i, v in enumerate(TABLE["sick"])]
    words = ["two\nlines" if i == 3 else "one" for i in range(ROWS)]
    table = altered(sick=gap, words=words, part=TABLE["part"])
    for rules in (None, Preprocess()):
        options = {**COLUMNS, "test": "part", "leave_out": ["words"]}
        with pytest.raises(DataError, match="the first line 44"):
            load(written(tmp_path, table), None, options, rules)
    Path(tmp_path / "sites").mkdir()
    for (name,), rows in table.drop("words").group_by("site", maintain_order=True):
        written(tmp_path / "sites", rows.drop("site"), f"{name}.csv")
    with pytest.raises(DataError, match="the first line 15 of Chur"):
        load(f"csv:{tmp_path / 'sites'}", None, {"target": "sick", "test": "part"})
    written(tmp_path, altered(), "train.csv")
    written(tmp_path, table.drop("words", "part"), "test.csv")
    with pytest.raises(DataError, match="the first line 43"):
        load(f"csv:{tmp_path / 'train.csv'}", None, {**COLUMNS, "test": str(tmp_path / "test.csv")})


def test_rows_that_are_empty_in_every_column_are_left_out(tmp_path: Path) -> None:
    """Two stand within the table and three below it; the line of a later mistake is that of the file."""
    head, *rows = TABLE.write_csv(separator=";").splitlines()
    (tmp_path / "h.csv").write_text("\n".join([head, *rows]) + "\n")
    options = COLUMNS | {"leave_out": ["part"], "separator": ";"}
    whole = load(f"csv:{tmp_path / 'h.csv'}", None, options)
    lines = [head, rows[0], ";;;;", "", *rows[1:], ";;;;", " ;NA;;;", ";;;;"]
    (tmp_path / "h.csv").write_text("\n".join(lines))
    assert same(load(f"csv:{tmp_path / 'h.csv'}", None, options), whole)
    assert us.describe(tmp_path / "h.csv", **COLUMNS, data_options={"separator": ";"}).rows == ROWS
    place = tables.read("csv", tmp_path / "h.csv", tables.TableOptions("", separator=";")).place
    assert [place(row) for row in (0, 1, ROWS - 1)] == ["line 2", "line 5", f"line {ROWS + 3}"]
