"""A first look at data: numbers with a known answer, and sentences that name site and column."""

from typing import Any

import numpy as np
import polars
import pytest

import unskew as us
from unskew.data.look import Look

RNG = np.random.default_rng(4)
N = 200
SITE = np.array(["Basel"] * 150 + ["Bern"] * 50)


def table(**columns: Any) -> polars.DataFrame:
    rows = {"site": SITE, "age": RNG.normal(size=N), "sick": np.where(np.arange(N) % 2 == 0, "yes", "no"), **columns}
    return polars.DataFrame({name: list(values) for name, values in rows.items()}, strict=False)


def seen(frame: polars.DataFrame, **more: Any) -> Look:
    return us.describe(frame, **{"target": "sick", "client": "site", **more})


def number(look: Look, name: str) -> Any:
    return next(one for one in look.disagreement if one.name == name)


def test_sizes_count_as_so_many_equal_clients() -> None:
    """Shares .75 and .25: 1 / (.5625 + .0625) = 1.6."""
    sizes = number(seen(table()), "sizes")
    assert (sizes.value, sizes.chance) == (pytest.approx(1.6), 2)
    assert (
        sizes.meaning
        == "by number of rows, the 2 sites are equivalent to 1.6 of equal size; the largest, Basel, has 75% of the rows"
    )


def test_sites_without_a_class_in_common_differ_as_much_as_two_can() -> None:
    """All 150 of Basel yes, all 50 of Bern no: X2 = 200, over 200 rows 1; of alike sites 1 / 199 on average."""
    labels = number(seen(table(sick=np.where(SITE == "Basel", "yes", "no"))), "labels")
    assert (labels.value, labels.chance) == (pytest.approx(1), pytest.approx(1 / 199))
    assert labels.p < 1e-40
    assert labels.meaning == (
        "the target differs between sites by more than chance (p < 0.001): no 100% at Bern, 0% at Basel"
    )


def test_the_share_of_a_numbers_variance_between_sites() -> None:
    """Basel 0 and 2 by turns, Bern 4 and 6: means 1 and 5 about 2; between 150 + 450 = 600, within 200."""
    stay = np.where(np.arange(N) % 2 == 0, 0.5, 2.5) + 4 * (SITE == "Bern")
    look = seen(table(sick=stay))
    assert look.targets[0].classes == ()
    assert number(look, "labels").value == pytest.approx(0.75)
    assert look.targets[0].by_site[1] == pytest.approx((5.5, 1))


def test_a_patient_in_both_parts_is_named() -> None:
    look = seen(table(who=[i // 8 for i in range(N)], part=[int(i == 0) for i in range(N)]), patient="who",
                patient_ids="site", test="part")  # fmt: skip
    (said,) = (note for note in look.notes if "patient" in note)
    assert said.startswith("column 'who': patient 0 is for training in row 1 and for testing in row 0: ")


def test_sites_whose_patients_have_many_rows_differ_as_much_by_chance() -> None:
    """Of 20 patients with ten rows of one class each, 20 rows say as much as 200: sites are alike, and look uneven."""
    sick = ["yes" if i % 3 else "no" for i in range(20) for _ in range(10)]
    frame = table(who=[i for i in range(20) for _ in range(10)], sick=sick, age=[float(i // 10) for i in range(N)])
    frame = frame.with_columns(site=polars.Series([f"{i // 40}" for i in range(N)]))
    by_row, by_patient = (seen(frame, patient=who) for who in (None, "who"))
    assert number(by_row, "labels").value == pytest.approx(number(by_patient, "labels").value)
    assert number(by_row, "labels").p < 0.05 < number(by_patient, "labels").p
    assert number(by_patient, "columns").chance == pytest.approx(4 / 19)
