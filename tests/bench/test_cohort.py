"""Peak memory of a round by its number of clients: the rows, and that what is folded is not kept."""

import pytest

from unskew.bench.cohort import measure


def test_each_case_is_set_beside_the_smallest_cohort_of_its_kind() -> None:
    said: list[str] = []
    rows = measure([2, 3], width=4, say=said.append)
    assert [r["case"] for r in rows] == [
        f"{pair}/m{m}"
        for pair in ("FedAvg/sequential", "FedAvg/workers", "FedAvg/stacked", "FedFA/sequential")
        for m in (2, 3)
    ]
    assert all(r["value"] > 0 for r in rows)
    assert [r["ratio"] for r in rows[::2]] == [1.0] * 4
    assert rows[1]["ratio"] == pytest.approx(rows[1]["value"] / rows[0]["value"])
    assert len(said) == 8
