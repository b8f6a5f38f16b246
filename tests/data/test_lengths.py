"""Words too long to be labels, names or categories, which would make every other word of a column as wide."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unskew.data import own
from unskew.data.arrays import _hashable, _sha256
from unskew.data.lengths import LONGEST
from unskew.data.preprocess import Preprocess
from unskew.data.sources import load
from unskew.errors import DataError

pytest.importorskip("polars")
LONG = "L" * (LONGEST + 1)
OPTIONS = {"target": "y", "client": "site"}


def columns(rows: int = 60, **odd: str) -> dict[str, list[Any]]:
    """A table whose row 3 holds the words of `odd`."""
    table: dict[str, list[Any]] = {
        "a": [i % 7 for i in range(rows)],
        "word": ["no", "yes"] * (rows // 2),
        "y": ["x", "x", "z", "z"] * (rows // 4),
        "site": ["s", "t", "t", "s"] * (rows // 4),
    }
    for column, word in odd.items():
        table[column][3] = word
    return table


@pytest.mark.parametrize("column", ["word", "y", "site"])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_word_of_a_table_that_is_too_long_is_refused_by_its_place(kind: str, column: str, tmp_path: Path) -> None:
    import polars

    path = tmp_path / f"t.{kind}"
    frame = polars.DataFrame(columns(**{column: LONG}))
    frame.write_csv(path) if kind == "csv" else frame.write_parquet(path)
    row = "line 5" if kind == "csv" else "row 3"
    with pytest.raises(DataError, match=rf"column '{column}' holds a text of 1,001 characters in {row}, and .* 1,000;"):
        load(f"{kind}:{path}", data_options=OPTIONS, preprocess=Preprocess())
    if column == "word":
        assert len(load(f"{kind}:{path}", data_options={**OPTIONS, "leave_out": ["word"]}).y_train) == 48


@pytest.mark.parametrize("column", ["word", "y", "site"])
def test_a_word_of_a_dataframe_that_is_too_long_is_refused_by_its_row(column: str) -> None:
    import pandas

    frame = pandas.DataFrame(columns(**{column: LONG}))
    with pytest.raises(DataError, match=r"holds a text of 1,001 characters in row 3"):
        own.dataset(frame, target="y", client="site", preprocess=Preprocess())


def test_labels_and_names_of_arrays_that_are_too_long_are_refused(tmp_path: Path) -> None:
    x, y = np.zeros((4, 2), np.float32), np.array(["a", "b", "a", LONG])
    for arrays, which in (
        ({"y_train": y}, "y_train holds a text of 1,001 characters in row 3"),
        (
            {"y_train": np.arange(4) % 2, "classes": np.array(["a", LONG])},
            "classes holds a text of 1,001 characters in row 1",
        ),
    ):
        np.savez(tmp_path / "a.npz", x_train=x, **arrays)
        with pytest.raises(DataError) as refused:
            load(f"npz:{tmp_path / 'a.npz'}")
        assert which in str(refused.value)
    with pytest.raises(DataError, match="holds a text of 1,001 characters in row 3"):
        own.dataset((x, y.tolist()))


def test_a_word_as_long_as_allowed_is_read(tmp_path: Path) -> None:
    import polars

    path = tmp_path / "t.parquet"
    polars.DataFrame(columns(word=LONG[1:])).write_parquet(path)
    assert len(load(f"parquet:{path}", data_options=OPTIONS, preprocess=Preprocess()).y_train) == 60


READ = """
import sys
from pathlib import Path
from unskew.data.preprocess import Preprocess
from unskew.data.sources import load
from unskew.errors import DataError

def most():
    return next(int(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith("VmHWM"))

before = most()
try:
    load(sys.argv[1], data_options={"target": "y", "client": "site"}, preprocess=Preprocess())
except DataError as error:
    print(most() - before, "KiB", error)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell a process's memory")
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_refusing_long_words_takes_little_memory(kind: str, tmp_path: Path) -> None:
    """Two gigabytes, were words as wide as the longest: 500 labels of a million, or 5,000 words of 100,000."""
    import polars

    path = tmp_path / f"t.{kind}"
    if kind == "csv":
        polars.DataFrame(columns(500, y="L" * 10**6)).write_csv(path)
    else:
        polars.DataFrame({**columns(5_000), "word": ["N" * 10**5] * 5_000}).write_parquet(path)
    said = subprocess.run([sys.executable, "-c", READ, f"{kind}:{path}"], capture_output=True, text=True, timeout=120)
    # A field of a million characters is more than csv counts lines over.
    assert ("in row 3," if kind == "csv" else "in row 0,") in said.stdout, said.stderr
    assert int(said.stdout.split()[0]) < 1_000_000


def test_words_are_hashed_as_one_array_of_text_would_be() -> None:
    words = np.array(["a", None, "längeres Wort", "", "x" * 40, "\U0001f600"] * 2000, object)
    as_text = np.array([word or "" for word in words], np.str_)
    assert _sha256(_hashable({"train": {"word": words}})) == _sha256({"train word": as_text})
    none = np.array([None, None], object)
    assert _sha256(_hashable({"train": {"word": none}})) == _sha256({"train word": np.array(["", ""])})


def test_the_hospitals_keep_their_hash() -> None:
    path = Path(__file__).parents[2] / "examples" / "hospitals.csv"
    data = load(f"csv:{path}", data_options={"target": "diagnosis", "client": "hospital"}, preprocess=Preprocess())
    assert data.sha256 == "eae64b7be1090bac92ef188c8f7fc083b8679ae39efa86d0102d2039cf7b4a2b"
