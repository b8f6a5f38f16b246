"""A look at a table makes the notes that a run of it raises."""

import warnings
from typing import Any

import numpy as np
import pandas
import pytest

import unskew as us
from unskew import tasks
from unskew.data import own
from unskew.data.preprocess import Preprocess

N = 240
ROWS = np.arange(N)
RNG = np.random.default_rng(7)
AGE, DOSE = RNG.normal(size=(2, N))
SITE = np.array(["Basel", "Bern", "Chur"])[ROWS % 3]
BERN = SITE == "Bern"
SICK = np.where(RNG.random(N) < 0.5, "yes", "no")

TABLES: dict[str, tuple[dict[str, Any], str]] = {
    "far from the others": ({"dose": np.where(BERN, 18, 1) * (5 + DOSE / 9)}, "is it in the same unit there?"),
    "not measured at a site": ({"dose": np.where(BERN, 0, 5 + DOSE / 9)}, "has one value only at Bern (0)"),
    "a number for no value": ({"dose": np.where(ROWS % 9 == 1, -999, DOSE)}, "is -999 in "),
    "numbers of rows": ({"number": ROWS + 100.0}, "column 'number' numbers or names the rows"),
    "numbers of rows at each site": ({"number": ROWS // 3 + 0.0}, "column 'number' numbers or names the rows"),
    "two identifiers": ({"one": ROWS + 1.0, "two": ROWS[::-1] + 1.0}, "column 'one', 'two' numbers or names the rows"),
    "the site once more": ({"code": ROWS % 3}, "column 'code' tells the site by itself"),
    "the target once more": ({"ill": SICK == "yes"}, "column 'ill' tells the target by itself"),
    "the patients": ({"patient": ROWS // 3}, "column 'patient' seems to say who is in a row"),
    "a large column": ({"dose": DOSE * 5000}, "column 'dose' has a root mean square of "),
    "few rows": ({"site": np.where(ROWS < 3, "Davos", SITE)}, "Davos has fewer than 5 training rows: too few to train"),
    "no test rows": ({"part": np.where(BERN, "train", np.array(["train", "test"])[ROWS // 3 % 2])}, "Bern has no test"),
    "one class": ({"sick": np.where(BERN, "no", SICK)}, "Bern has training rows of one class only"),
    "one class in training": (
        {"sick": np.where(BERN & (ROWS % 5 > 0), "no", np.where(BERN, "yes", SICK))},
        "Bern has training rows of one class only",
    ),
    "a site under two names": (
        {"site": np.where(ROWS % 2 & BERN, "bern ", SITE)},
        "clients differ in case, accents or spaces alone",
    ),
    "copies": (
        {"dose": DOSE[ROWS // 5], "age": AGE[ROWS // 5], "sick": SICK[ROWS // 5]},
        "48 of 48 test rows stand in training, too",
    ),
}
WORDS: dict[str, tuple[dict[str, Any], str]] = {
    "no value at a site": ({"lab": np.where(BERN, np.nan, DOSE)}, "column 'lab' has no value at Bern"),
    "words in two spellings": ({"ward": np.where(BERN, "a", np.array(["A", "B"])[ROWS % 2])}, "'A', 'a'"),
}


def said(changed: dict[str, Any], preprocess: Preprocess | None) -> tuple[set[str], set[str]]:
    part = np.where(ROWS % 5 == 0, "test", "train")
    frame = pandas.DataFrame({"age": AGE, "sick": SICK, "site": SITE, "part": part} | changed)
    columns: dict[str, Any] = {"target": "sick", "client": "site", "test": "part"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        own.dataset(frame, **columns, preprocess=preprocess)
    look = us.describe(frame, **columns)
    return {str(warning.message) for warning in caught}, set(look.notes)


@pytest.mark.parametrize("name", [*TABLES, *WORDS])
def test_a_look_says_what_a_run_warns_of_and_in_the_same_words(name: str) -> None:
    changed, text = {**TABLES, **WORDS}[name]
    for preprocess in (Preprocess(), None) if name in TABLES else (Preprocess(),):
        run, look = said(changed, preprocess)
        assert any(text in sentence for sentence in run) or (preprocess and "large" in name), run
        assert run <= look, run - look


def test_what_chance_explains_is_noted_by_neither() -> None:
    """Numbers all different of 240 by chance, a column of few values, rows alike in two coarse columns."""
    spread = np.random.default_rng(1).permutation(100_000)[:N] + 0.0
    run, look = said({"age": ROWS % 2, "dose": ROWS // 2 % 2, "spread": spread}, Preprocess())
    assert run == set()
    assert not any("numbers or names the rows" in sentence or "stand in training" in sentence for sentence in look)
    run, look = said({"age": ROWS % 2, "dose": ROWS // 2 % 2}, None)
    assert run == set()
    assert not any("test rows" in sentence for sentence in look)


@pytest.mark.parametrize("column", ["ward", "who"])
def test_rows_alike_in_numbers_are_no_copies_where_words_or_patients_differ(column: str) -> None:
    """Other people are of one age and dose; only a row of the same words and patient is a copy."""
    copied = TABLES["copies"][0]
    frame = pandas.DataFrame({"age": AGE, "site": SITE} | copied | {"part": np.where(ROWS % 5, "train", "test")})
    columns: dict[str, Any] = {"target": "sick", "client": "site", "test": "part"}
    patient = {"patient": "who", "patient_ids": "network"} if column == "who" else {}
    assert any("stand in training" in note for note in us.describe(frame, **columns).notes)
    frame[column] = [f"w{i}" for i in (ROWS if column == "who" else ROWS % 5)]
    assert not any("stand in training" in note for note in us.describe(frame, **columns, **patient).notes)


# ---------------------------------------------------------------- targets that are numbers
SITES = np.repeat([f"s{i}" for i in range(8)], 40)


def lives(seed: int, between: float = 0.4, within: float = 0.8) -> Any:
    """Log-normal numbers, and log-normal medians of sites."""
    rng = np.random.default_rng(seed)
    return 1000 * np.exp(np.repeat(rng.normal(0, between, 8), 40) + within * rng.normal(size=320))


def test_a_site_without_an_event_is_named_and_one_without_censoring_is_not() -> None:
    """Of eight sites s0 has no event, and all of s1 have theirs: only the first tells a loss nothing."""
    died = np.where(SITES == "s0", 0, np.where(SITES == "s1", 1, np.arange(320) % 2))
    frame = pandas.DataFrame(
        {"age": np.random.default_rng(2).normal(size=320), "y": lives(0), "d": died, "site": SITES}
    )
    targets = tasks.kind_of("survival").targets
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        own.dataset(frame, target=["y", "d"], client="site", targets=targets)
    said = [str(warning.message) for warning in caught if "event" in str(warning.message)]
    assert said == ["s0 has no event among the training rows: a loss learns nothing there"]
