"""What cannot be meant, by form of the data: the words that the refusal must have."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas
import pytest

from unskew.data import load, own
from unskew.errors import DataError

X, Y = np.zeros((60, 2)) + np.arange(60)[:, None], np.arange(60) % 2
FRAME = pandas.DataFrame({"age": X[:, 0], "site": ["Basel", "Bern", "Chur"] * 20, "y": Y})
SITES = {"target": "y", "client": "site"}
CASES: Mapping[str, tuple[Any, dict[str, Any], tuple[str, ...]]] = {
    "labels under another index": ((FRAME[["age"]], FRAME["y"][::-1]), {}, ("index of y", "another order")),
    "slices of one table": ((FRAME[["age"]][:30], FRAME["y"][30:]), {}, ("index of y", "other labels")),
    "a blank client": (FRAME.assign(site=[" ", *FRAME["site"][1:]]), SITES, ("'site'", "row 0")),
    "dates for clients": (FRAME.assign(site=pandas.Timestamp("2020-01-01")), SITES, ("'site'", "a date", "row 0")),
    "a long client": (FRAME.assign(site=["L" * 1001, *FRAME["site"][1:]]), SITES, ("client", "1,001")),
    "one client's table": ({"Bern": FRAME[["age", "y"]]}, {"target": "y"}, ("Bern", "only one client")),
    "too many columns": (pandas.DataFrame(np.zeros((2, 65_537))), {"target": "0"}, ("65,537", "65,536")),
    "patients that are halves": ((X, Y, [0.5, *range(59)]), {}, ("row 0", "0.5")),
}


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_meant_is_refused_with_its_place(case: str) -> None:
    data, settings, words = CASES[case]
    with pytest.raises(DataError) as refused:
        own.dataset(data, **settings)
    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_a_csv_file_of_too_many_columns_is_refused_by_its_first_line(tmp_path: Any) -> None:
    (tmp_path / "wide.csv").write_text(",".join(f"g{i}" for i in range(200_000)) + "\n1,2\n")
    with pytest.raises(DataError, match="200,000 columns, and a table has 65,536 at most"):
        load(f"csv:{tmp_path / 'wide.csv'}", data_options={"target": "g0"})
