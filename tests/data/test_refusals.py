"""What cannot be meant, by form of the data: the words that the refusal must have."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas
import pytest

from unskew.data import own
from unskew.errors import DataError

X, Y = np.zeros((60, 2)) + np.arange(60)[:, None], np.arange(60) % 2
FRAME = pandas.DataFrame({"age": X[:, 0], "site": ["Basel", "Bern", "Chur"] * 20, "y": Y})
SITES = {"target": "y", "client": "site"}
CASES: Mapping[str, tuple[Any, dict[str, Any], tuple[str, ...]]] = {
    "a blank client": (FRAME.assign(site=[" ", *FRAME["site"][1:]]), SITES, ("'site'", "row 0")),
    "patients that are halves": ((X, Y, [0.5, *range(59)]), {}, ("row 0", "0.5")),
}


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_meant_is_refused_with_its_place(case: str) -> None:
    data, settings, words = CASES[case]
    with pytest.raises(DataError) as refused:
        own.dataset(data, **settings)
    assert all(word in str(refused.value) for word in words), str(refused.value)
