"""A look at a table raises the doubts that a run of it raises."""

import re
import warnings
from typing import Any

import numpy as np
import pandas
import pytest

import unskew as us
from unskew import tasks
from unskew.data import own
from unskew.data.preprocess import ColumnRule, Preprocess, far_from_agreed
from unskew.data.units import another_unit, typical
from unskew.errors import DataWarning

N = 240
ROWS = np.arange(N)
RNG = np.random.default_rng(7)
AGE, DOSE = RNG.normal(size=(2, N))
SITE = np.array(["Basel", "Bern", "Chur"])[ROWS % 3]
BERN = SITE == "Bern"
SICK = np.where(RNG.random(N) < 0.5, "yes", "no")

TABLES: dict[str, tuple[dict[str, Any], str]] = {
    "another unit": ({"dose": np.where(BERN, 18, 1) * (5 + DOSE / 9)}, "is it in the same unit there?"),
    "not measured at a site": ({"dose": np.where(BERN, 0, 5 + DOSE / 9)}, "has one value only at Bern (0)"),
    "a number for no value": ({"dose": np.where(ROWS % 9 == 1, -999, DOSE)}, "is -999 in "),
    "numbers of rows": ({"number": ROWS + 100.0}, "column 'number' numbers the rows, and"),
    "numbers of rows at each site": ({"number": ROWS // 3 + 0.0}, "column 'number' numbers the rows of each site, and"),
    "numbers of two identifiers": ({"one": ROWS + 1.0, "two": ROWS[::-1] + 1.0}, "column 'two' numbers the rows"),
    "the target once more": ({"ill": SICK == "yes"}, "column 'ill' and the target determine each other"),
    "the site once more": ({"code": ROWS % 3}, "column 'code' has one value at each client"),
    "the patients": ({"patient": ROWS // 3}, "column 'patient' is an input and seems to say who is in a row"),
    "a large column": ({"dose": DOSE * 5000}, "column 'dose' has a root mean square of "),
    "few rows": ({"site": np.where(ROWS < 3, "Davos", SITE)}, "Davos has fewer than 5 training rows: too few to train"),
    "no test rows": ({"part": np.where(BERN, "train", np.array(["train", "test"])[ROWS // 3 % 2])}, "Bern has no test"),
    "one class": ({"sick": np.where(BERN, "no", SICK)}, "Bern has training rows of one class only"),
    "one class in training": (
        {"sick": np.where(BERN & (ROWS % 5 > 0), "no", np.where(BERN, "yes", SICK))},
        "Bern has training rows of one class only",
    ),
    "a site under two names": ({"site": np.where(ROWS % 2 & BERN, "bern ", SITE)}, "one client under several names?"),
    "copies": (
        {"dose": DOSE[ROWS // 5], "age": AGE[ROWS // 5], "sick": SICK[ROWS // 5]},
        "48 of 48 test rows stand in training, too",
    ),
}
WORDS: dict[str, tuple[dict[str, Any], str]] = {
    "no value at a site": ({"lab": np.where(BERN, np.nan, DOSE)}, "column 'lab' has no value at Bern"),
    "words in two spellings": ({"ward": np.where(BERN, "a", np.array(["A", "B"])[ROWS % 2])}, "'A' (Basel, Chur)"),
    "words coded at a site": ({"ward": np.where(BERN, "1", np.array(["A", "B"])[ROWS % 2])}, "holds numbers at Bern"),
    "numbers with a unit": ({"dose": [f"{n % 60} mg" for n in ROWS]}, "holds numbers with something beside them"),
}


def said(changed: dict[str, Any], preprocess: Preprocess | None) -> tuple[set[str], set[str]]:
    part = np.where(ROWS % 5 == 0, "test", "train")
    frame = pandas.DataFrame({"age": AGE, "sick": SICK, "site": SITE, "part": part} | changed)
    columns: dict[str, Any] = {"target": "sick", "client": "site", "test": "part"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        own.dataset(frame, **columns, preprocess=preprocess)
    look = us.describe(frame, **columns)
    return {str(warning.message) for warning in caught}, {*look.leaks, *look.notes}


@pytest.mark.parametrize("name", [*TABLES, *WORDS])
def test_a_look_says_what_a_run_warns_of_and_in_the_same_words(name: str) -> None:
    changed, text = {**TABLES, **WORDS}[name]
    for preprocess in (Preprocess(), None) if name in TABLES else (Preprocess(),):
        run, look = said(changed, preprocess)
        assert any(text in sentence for sentence in run) or (preprocess and "large" in name), run
        assert run <= look, run - look


def test_what_chance_explains_is_doubted_by_neither() -> None:
    """Numbers all different of 240 by chance, a column of few values, rows alike in two coarse columns."""
    spread = np.random.default_rng(1).permutation(100_000)[:N] + 0.0
    run, look = said({"age": ROWS % 2, "dose": ROWS // 2 % 2, "spread": spread}, Preprocess())
    assert run == set()
    assert not any("numbers the rows" in sentence or "stand in training" in sentence for sentence in look)
    run, look = said({"age": ROWS % 2, "dose": ROWS // 2 % 2}, None)
    assert run == set()
    assert not any("test rows" in sentence for sentence in look)


# ---------------------------------------------------------------- targets that are numbers
def of_numbers(y: Any, site: Any, kind: str = "regression") -> tuple[set[str], set[str]]:
    """What a run and a look say of a target of these numbers, or, of survival, of these times."""
    data = {"age": np.random.default_rng(2).normal(size=len(y)), "y": y, "site": site}
    target: Any = "y"
    if kind == "survival":
        data, target = {**data, "died": np.arange(len(y)) % 2}, ["y", "died"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        targets = tasks.kind_of(kind).targets
        own.dataset(pandas.DataFrame(data), target=target, client="site", targets=targets, test_fraction=0.05)
    look = us.describe(pandas.DataFrame(data), target=target, client="site")
    return {str(warning.message) for warning in caught}, set(look.notes)


SITES = np.repeat([f"s{i}" for i in range(8)], 40)


def lives(seed: int, between: float = 0.4, within: float = 0.8) -> Any:
    """Log-normal numbers, and log-normal medians of sites."""
    rng = np.random.default_rng(seed)
    return 1000 * np.exp(np.repeat(rng.normal(0, between, 8), 40) + within * rng.normal(size=320))


@pytest.mark.parametrize("seed", range(20))
def test_sites_whose_targets_differ_in_themselves_are_not_doubted(seed: int) -> None:
    for y in (lives(seed), lives(seed, 0.4, 1.3), lives(seed) - 1000, np.log(lives(seed)), lives(seed, 0.5)):
        for said_of_it in of_numbers(y, SITES):
            assert not any("same unit" in sentence or "no value" in sentence for sentence in said_of_it), said_of_it


@pytest.mark.parametrize("kind", ["regression", "survival"])
@pytest.mark.parametrize("times", [24, 60, 365.25 / 12, 1000, 1 / 24, 1 / 60, 12 / 365.25, 1 / 1000])
def test_a_site_whose_target_is_in_another_unit_is_doubted(kind: str, times: float) -> None:
    for seed in range(3):
        y = np.where(SITES == "s3", times, 1) * lives(seed, 0.2)
        run, look = of_numbers(y, SITES, kind)
        what = "the time" if kind == "survival" else "the target"
        assert any(f"{what} is about " in one and " at s3 and " in one for one in run), run
        assert any(re.search(r" at the others(, as far .*)?: is it in the same unit there\?$", one) for one in look), (
            look
        )


def test_a_signed_target_and_half_of_the_sites_are_doubted_too() -> None:
    signed = np.random.default_rng(0).normal(size=320)
    (run,) = of_numbers(np.where(SITES < "s2", 60, 1) * signed, SITES)[0]
    assert run.startswith("the target is about 42 at s0, s1 and 0.681 ")
    assert run.endswith(" at the others, as far apart as minutes and hours: is it in the same unit there?")
    (run,) = of_numbers(np.where(SITES[:80] == "s1", 24, 1) * lives(0, 0.1)[:80], SITES[:80])[0]
    assert " at s0 and " in run
    assert run.endswith(": is it in the same unit at both?")


UNITS = {
    "haemoglobin": (13, 1.5, 10.0, 0.0, "g/L and g/dL"),
    "glucose": (5.5, 1.0, 18.016, 0.0, "mg/dL and mmol/L of glucose"),
    "cholesterol": (5.0, 1.0, 38.67, 0.0, "mg/dL and mmol/L of cholesterol"),
    "creatinine": (1.0, 0.2, 88.42, 0.0, "µmol/L and mg/dL of creatinine"),
    "weight": (75, 14, 2.2046, 0.0, "pounds and kilograms"),
    "height": (67, 4, 2.54, 0.0, "centimetres and inches"),
    "stature": (1.7, 0.1, 100.0, 0.0, "centimetres and metres"),
    "fever": (37.2, 0.6, 1.8, 32.0, "degrees Fahrenheit and Celsius"),
    "weather": (12, 6, 1.8, 32.0, "degrees Fahrenheit and Celsius"),
    "outside": (12, 6, 1.0, 273.15, "kelvins and degrees Celsius"),
    "dose": (40, 12, 12.0, 0.0, ""),
}


OF_1200 = np.repeat(np.arange(8), 150)


def of_unit(name: str, larger: list[int], seed: int) -> tuple[Any, str]:
    """Numbers of 150 rows of each of 8 sites, which differ a little, in the larger unit at some sites."""
    around, sd, factor, added, why = UNITS[name]
    rng = np.random.default_rng(seed)
    values = around + sd * (rng.normal(size=1200) + rng.normal(0, 0.15, 8)[OF_1200])
    return np.where(np.isin(OF_1200, larger), factor * values + added, values), why


@pytest.mark.parametrize("name", UNITS)
@pytest.mark.parametrize("larger", [True, False])
@pytest.mark.parametrize("sites", [2, 8])
def test_a_column_in_another_unit_at_a_site_is_doubted_whichever_is_larger(name: str, larger: bool, sites: int) -> None:
    for seed in range(3):
        values, why = of_unit(name, [1] if larger else [i for i in range(8) if i != 1], seed)
        sentence = another_unit("column", typical(values, OF_1200, [f"s{i}" for i in range(sites)]))
        assert " at s1 and " in sentence or (sites == 2 and " at s0 and " in sentence), (name, sentence)
        end = "is it in the same unit at both?" if sites == 2 else "is it in the same unit there?"
        assert sentence.endswith(f": {end}"), sentence
        assert why in sentence.partition(" as far apart as ")[2], sentence


@pytest.mark.parametrize("name", UNITS)
def test_a_column_in_one_unit_is_not_doubted(name: str) -> None:
    """In whichever unit: sites that hardly differ, groups 2 standard deviations apart, log-normal numbers."""
    for seed in range(20):
        values, _ = of_unit(name, list(range(8 * (seed % 2))), seed)
        shifted = values + 2 * UNITS[name][1] * (OF_1200 > 3)
        for of in (values, shifted, np.exp(values / values.std())):
            assert not another_unit("column", typical(of, OF_1200, [f"s{i}" for i in range(8)]))


def test_a_run_a_look_and_a_prediction_doubt_a_column_that_became_smaller() -> None:
    """130 ± 15 beside 13 ± 1.5: 8 standard deviations of the larger numbers only."""
    rng = np.random.default_rng(0)
    hb = rng.normal(130, 15, 320)
    others = {"site": SITES, "y": (hb > 130).astype(int)}
    mixed = pandas.DataFrame({"hb": np.where(SITES == "s2", hb / 10, hb), **others})
    sentence = (
        r"column 'hb' is about 13.* at s2 and 12.* at the others, as far apart as g/L and g/dL: is it in the same"
    )
    settings: dict[str, Any] = {"target": "y", "client": "site", "rounds": 3, "model": "logistic"}
    settings |= {"progress": False, "local": us.SgdConfig(lr=1.0)}
    with pytest.warns(DataWarning, match=sentence):
        us.simulate(us.FedAvg(), data=mixed, preprocess=True, **settings)
    assert any(re.match(sentence, note) for note in us.describe(mixed, target="y", client="site").notes)
    right = pandas.DataFrame({"hb": hb, **others})
    model = us.simulate(us.FedAvg(), data=right, preprocess=True, **settings).model("FedAvg")
    with pytest.warns(DataWarning, match=r"'hb' is about 12.* here, .* in training, as far apart as g/L and g/dL"):
        us.predict(model, right.assign(hb=hb / 10))
    rule = ColumnRule(mean=130.0, sd=15.0)
    assert "was agreed on, as far apart as g/L and g/dL: is it" in far_from_agreed("hb", hb / 10, rule)
    assert not far_from_agreed("hb", hb, rule)


@pytest.mark.parametrize(
    ("stands", "rows", "of", "doubted"),
    [
        (-1, 1, 20_000 + lives(0), True),
        (-9, 2, lives(0), True),
        (-99, 3, np.round(lives(0) / 100), True),
        (-1, 30, np.round(lives(0) / 100), True),
        (999, 3, np.minimum(lives(0) / 100, 90), True),
        (-1, 2, np.floor(lives(0) / 200), False),
        (-1, 1, lives(0) - 900, False),
        (-2, 1, lives(0), False),
    ],
)
def test_a_number_that_stands_for_no_value_in_a_positive_target_is_doubted(
    stands: float, rows: int, of: Any, doubted: bool
) -> None:
    y = np.where(np.arange(320) % 320 < rows, stands, of)
    run, look = of_numbers(np.random.default_rng(4).permutation(y), SITES)
    sentence = f"the target is {stands} in "
    assert any(sentence in one and one.endswith("leave such rows out") for one in run) == doubted, run
    assert any(sentence in one for one in look) == doubted, look


@pytest.mark.parametrize(("around", "doubted"), [(1.6e9, True), (1e6, True), (1e4, False)])
def test_a_target_that_differs_by_less_than_single_precision_keeps_is_doubted(around: float, doubted: bool) -> None:
    """Steps of float32: 128 at 1.6e9, 1/16 at 1e6 and 1/1024 at 1e4, beside a deviation of 5 and of 1."""
    y = around + np.random.default_rng(0).normal(size=320) * (25 if around > 1e9 else 1)
    for said_of_it in of_numbers(y, SITES):
        assert any("networks take float32, which counts in steps" in one for one in said_of_it) == doubted


# ---------------------------------------------------------------- codings
SEX = np.where(RNG.random(N) < 0.45, "M", "F")


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (np.where(BERN & (SEX == "M"), "H", SEX), "holds 'H' at Bern and 'M' at Basel, Chur, and none holds both"),
        (np.where(~BERN & (SEX == "M"), "H", SEX), "holds 'H' at Basel, Chur and 'M' at Bern, and none holds both"),
        (np.where(BERN & (SEX == "M"), "H", np.where(ROWS % 11 == 0, "?", SEX)), "'H' at Bern and 'M' at Basel, Chur"),
        ((SEX == "M") + 1.0 * BERN, "is 0 or 1 at Basel, Chur and 1 or 2 at Bern: if these mean the same"),
        (np.where(BERN, -1.0, 0.0) * (SEX == "F") + (SEX == "M"), "is -1 or 1 at Bern and 0 or 1 at Basel, Chur"),
        ((SEX == "M") + 3.0 * BERN, "is 0 or 1 at Basel, Chur and 3 or 4 at Bern"),
    ],
)
def test_codings_that_overlap_are_doubted(column: Any, says: str) -> None:
    run, look = said({"sex": column}, Preprocess())
    assert any(says in sentence for sentence in run), run
    assert run <= look


@pytest.mark.parametrize("seed", range(10))
def test_codings_that_differ_as_sites_do_are_not_doubted(seed: int) -> None:
    """Words of any shares, a word that one site lacks, or only one has, counts of few kinds and one value only."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(5, 2.0), 3)
    words = np.array([rng.choice(list("ABCDE"), p=shares[i % 3]) for i in ROWS], object)
    columns = {
        "words": words,
        "lacks": np.where(BERN & (SEX == "M"), "F", SEX),
        "more": np.where(BERN & (ROWS % 2 == 0), "X", SEX),
        "rare": np.where(BERN & (ROWS % 30 == 1), "Y", np.where(~BERN & (ROWS % 31 == 2), "Z", SEX)),
        "count": np.minimum(rng.poisson(0.7, N), 3) * 1.0,
        "one": np.where(BERN, 1.0, SEX == "M"),
    }
    for column in columns.values():
        run, _ = said({"sex": column}, Preprocess())
        assert not any("mean the same" in sentence for sentence in run), run
