"""Whether federation is worth it: gains by hand, their intervals, and the words for them."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import by_hand
import numpy as np
import pytest
import torch
from scipy.special import stdtrit

import unskew as us
from unskew.cli import leave_out as command
from unskew.decide import leave_out, sweep
from unskew.decide.crew import Here
from unskew.decide.leave_out import contributions
from unskew.errors import RunError
from unskew.experiment.config import Experiment
from unskew.record.frame import RowResults
from unskew.record.logs import DivergedRow
from unskew.record.reader import DataSplit, Record, read
from unskew.report import results, verdict, worth
from unskew.report.stats import UNCORRECTED, interval
from unskew.report.worth import Chance, chance_in_mean, gain, over_all_rows
from unskew.run.final import below, of_constants
from unskew.tasks.classification import CLASSIFICATION
from unskew.tasks.measure import ACCURACY, Measure
from unskew.tasks.odds import BINARY
from unskew.tasks.regression import REGRESSION

ERROR = Measure("mae", "mean absolute error", "lower", 0.0, None, percent=False)
SITES = ("Basel", "Bern", "Genf")


def record(
    results: Mapping[str, Mapping[int, tuple[float, ...]]],
    names: tuple[str, ...] = SITES,
    n: tuple[int, ...] = (100, 100, 16),
    headline: Measure = ACCURACY,
) -> Record:
    """A finished run whose clients have these results, by method and seed; "alone" trains every client by itself."""
    seeds = next(iter(results.values()))
    split = DataSplit("d", "", 9, {"name": "natural"}, "", n, ((1,),) * len(n), 0.0, 0.0, 1.0, client_names=names)
    clients = {(m, s, "personal"): dict(enumerate(values)) for m, of in results.items() for s, values in of.items()}
    return by_hand.record(
        {(m, s, headline.own): {1: 0.0} for m, s, _ in clients}, {"alone": "lower"}, False, clients=clients,
        partitions=dict.fromkeys(seeds, split), headline=headline, name="r", folder=Path(),
        tested={at: dict(enumerate(map(float, n))) for at in clients},
    )  # fmt: skip


def kept(
    r: Record, rows: Mapping[tuple[str, int], tuple[object, ...]], units: tuple[object, ...] = (), ranked: bool = False
) -> Record:
    """The run with the results of each test row of its clients, by method and seed, and what these rows are of."""
    tested = {}
    for at, values in rows.items():
        of = [np.asarray(v, np.float64) for v in values]
        unit = [np.asarray(u) for u in units] or [np.arange(len(v)) for v in of]
        tested[at] = RowResults(dict(enumerate(zip(unit, of, strict=True))), ranked)
    clients = {
        (*at, "personal"): {c: float(np.mean(v)) for c, v in enumerate(map(np.asarray, values))}
        for at, values in rows.items()
    }
    return by_hand.changed(r, clients_of=clients, tested_rows=tested)


def rows_of(right: int, n: int) -> list[int]:
    return [1] * right + [0] * (n - right)


def test_a_client_s_interval_is_over_its_test_rows_too_which_are_the_same_under_every_seed() -> None:
    """Basel has 100 rows: 70 right alone, and 72, 74 and 73 of them with m, each of the 70 among them.

    Seeds: .02, .04, .03, variance .0001 over 3.  Rows, the mean over seeds: 1, 1, 2/3 and 1/3 of 100, so 3 of sum and
    2.556 of squares, with two rows more 3.556 / 102 - (3 / 102)^2 over 102, about the middle 3 / 102.  The squares
    of both half widths are added.  Seeds alone would say from +.005 to +.055, and that Basel gains.
    """
    names, n = ("Basel",), (100,)
    r = record({"alone": dict.fromkeys(range(3), (0.7,)), "m": dict.fromkeys(range(3), (0.7,))}, names, n)
    alone = {("alone", s): (rows_of(70, 100),) for s in range(3)}
    (of,) = worth.worths(kept(r, alone | {("m", s): (rows_of(k, 100),) for s, k in enumerate((72, 74, 73))}))
    basel, seeds, rows = of.clients[0].gain, 0.0001 / 3, ((3 / 102) ** 2 * -1 + (1 + 1 + 4 / 9 + 1 / 9 + 1) / 102) / 102
    half = math.sqrt(stdtrit(2, 0.975) ** 2 * seeds + 1.959964**2 * rows)
    assert (basel.mean, basel.low, basel.high) == pytest.approx((0.03, 3 / 102 - half, 3 / 102 + half))
    assert (basel.over, basel.verdict) == ("test examples", "open")
    few = {("m", s): (rows_of(k, 100),) for s, k in enumerate((82, 84, 83))}
    assert worth.worths(kept(r, alone | few))[0].clients[0].gain.verdict == "gains"


def test_rows_that_each_seed_draws_anew_count_once_each_as_a_patient_s_do() -> None:
    """Two seeds test 40 rows each: the same 40, or 80; and 40 patients of whom each seed tests another row."""
    r = record({"alone": dict.fromkeys(range(2), (0.5,)), "m": dict.fromkeys(range(2), (0.5,))}, ("Basel",), (40,))
    rows = {("alone", s): (rows_of(20, 40),) for s in range(2)} | {("m", s): (rows_of(28, 40),) for s in range(2)}
    same = kept(r, rows)
    tested = {
        at: replace(of, by_client={c: (unit + 40 * at[1], v) for c, (unit, v) in of.by_client.items()})
        for at, of in same.tested_rows.items()
    }
    widths = [
        g.high - g.low
        for g in (worth.worths(of)[0].clients[0].gain for of in (same, replace(same, tested_rows=tested)))
        if g.low is not None and g.high is not None
    ]
    assert widths[0] == pytest.approx(2 * 1.96 * math.sqrt((9 / 42 - (8 / 42) ** 2) / 42), abs=1e-4)
    assert widths[1] == pytest.approx(2 * 1.96 * math.sqrt((17 / 82 - (16 / 82) ** 2) / 82), abs=1e-4)


def noise(rng: np.random.Generator, gain: float, seeds: int = 6) -> Record:
    """Six clients of 60 rows whose labels no model knows: each row is right or wrong by its own, and a little by seeds.

    With `gain` a share of the wrong rows is right with m.
    """
    r = record({m: dict.fromkeys(range(seeds), (0.0,) * 6) for m in ("alone", "m")}, tuple("ABCDEF"), (60,) * 6)
    rows = {}
    for m in ("alone", "m"):
        own = rng.random((6, 60)) < 0.5
        own |= (rng.random((6, 60)) < gain) & (m == "m")
        for s in range(seeds):
            drawn = rng.random((6, 60))
            rows[m, s] = tuple(np.where(drawn < 0.1, rng.random((6, 60)) < 0.5, own).astype(float))
    return kept(r, rows)


def test_the_interval_of_the_mean_adds_up_the_clients_variances() -> None:
    """Halves of .1188, .1262 (.7 and .7) and .3267 (.5 and .5 of 16): root of the sum of squares, a third: .1233; from
    .0980 / 3 = .0327 down, and from the mean .1 / 3 up."""
    r = record({"alone": {0: (0.7, 0.7, 0.5)}, "m": {0: (0.8, 0.7, 0.5)}})
    whole = worth.worths(r)[0].whole
    assert whole.mean == pytest.approx(0.1 / 3)
    assert whole.low == pytest.approx(0.0327 - 0.1233, abs=1e-4)
    assert whole.high == pytest.approx(0.1 / 3 + 0.1233, abs=1e-4)


def test_of_the_mean_over_clients_a_single_test_row_decides_nothing() -> None:
    """One row won, and 40 of each of three others that all agree.

    The row: middle 1/3, variance (2/3 - 1/9) / 3 = .1852; of 40 that agree (1/42) / 42 = .00057.  The mean's: variance
    (.1852 + 3 * .00057) / 16, whose root is .1081; it ends as around 1/12 below, and as around the mean 1/4 above.
    """
    chance = over_all_rows([np.ones(1), *[np.zeros(40)] * 3], share=True)
    assert chance.variance == pytest.approx(0.1081**2, abs=1e-5)
    assert 0.25 + chance.shift - chance.beyond == pytest.approx(1 / 12)
    assert 0.25 + chance.shift + chance.beyond == pytest.approx(1 / 4)
    assert gain([0.25], chance, share=True).verdict == "open"


@pytest.mark.parametrize(("clients", "rows"), [(20, 3), (20, 8), (100, 10)])
def test_the_interval_of_a_mean_over_many_clients_of_few_rows_holds_the_true_mean(clients: int, rows: int) -> None:
    """A gain of one half: every client's middle shifted by 2 / (rows + 2) of it left out 60 % to all of 200 draws."""
    rng, within = np.random.default_rng(0), 0
    for _ in range(200):
        each = [rng.choice([-1.0, 0.0, 1.0], size=rows, p=[0.05, 0.4, 0.55]) for _ in range(clients)]
        of = gain([float(np.mean(each))], over_all_rows(each, share=True), share=True)
        assert of.low is not None
        assert of.high is not None
        assert of.low < of.mean < of.high
        within += of.low <= 0.5 <= of.high
    assert within >= 185  # 190 are expected of an interval of 95 %, with a deviation of 3


def test_of_two_seeds_the_squares_of_both_half_widths_are_added() -> None:
    """Seeds .1 and .3: variance .02 / 2, t of one degree of freedom 12.706; rows: variance .0004, a normal's 1.960.

    12.706^2 .01 + 1.960^2 .0004 = 1.6160, whose root is 1.2712; Welch's 1.08 degrees of freedom would make it narrower.
    """
    of = gain([0.1, 0.3], Chance(0.0004), share=False)
    assert (of.low, of.high) == (pytest.approx(0.2 - 1.2712, abs=1e-4), pytest.approx(0.2 + 1.2712, abs=1e-4))


def test_where_seeds_are_added_one_by_one_both_half_widths_are_added_on_either_side() -> None:
    """The rows' half-width is 1.960 times .02."""
    seeds = (0.1, 0.3, 0.2, 0.25, 0.15, 0.2, 0.1, 0.3)
    low, high = interval(seeds, sequential=True) or (math.nan, math.nan)
    of = gain(seeds, Chance(0.0004), share=False, sequential=True)
    assert of.low == pytest.approx(0.2 - math.hypot(0.2 - low, 0.0392), abs=1e-4)
    assert of.high == pytest.approx(0.2 + math.hypot(high - 0.2, 0.0392), abs=1e-4)


def test_of_other_measures_the_mean_has_the_larger_of_pooled_and_own_variances() -> None:
    """Rows 3 and -3 have the variance 18, and their mean 9.

    With four equal rows of another client, 18 / 4 pooled are 4.5 (1/2 + 1/4) = 3.375: 9 counts, over 2^2 clients.
    With one row, which has no variance of its own, 18 pooled are 18 (1/2 + 1) = 27, on a single degree of freedom.
    """
    apart = np.array([3.0, -3.0])
    of = over_all_rows([apart, np.ones(4)], share=False)
    assert (of.variance, of.freedom, of.shift) == (pytest.approx(9 / 4), 4, 0.0)
    of = over_all_rows([apart, np.ones(1)], share=False)
    assert (of.variance, of.freedom, of.shift) == (pytest.approx(27 / 4), 1, 0.0)


def test_an_interval_of_all_right_and_none_right_has_a_width() -> None:
    """16 of 16 against 16 of 16: 17 of 18 each, 1.96 sqrt(2 (17 / 18) (1 / 18) / 18) = .1496; 2 of 2 against none of 2
    cannot be told: .75 and .25, .5 -+ 1.96 sqrt(.375 / 4) = .6001."""
    r = record({"alone": {0: (0.7, 0.7, 1.0)}, "m": {0: (0.8, 0.7, 1.0)}})
    genf = worth.worths(r)[0].clients[2].gain
    assert (genf.low, genf.mean, genf.high) == pytest.approx((-0.1496, 0.0, 0.1496), abs=1e-4)
    two = record({"alone": {0: (0.0, 0.7, 1.0)}, "m": {0: (1.0, 0.7, 1.0)}}, n=(2, 100, 16))
    assert worth.worths(two)[0].clients[0].gain.verdict == "open"


RANKED = Measure("auroc", "AUROC", percent=False)


def ranked(counts: tuple[tuple[int, int], ...], seeds: int = 4) -> Record:
    """Sites that gain .1 of AUROC under every seed, all but the last; their test examples of "no" and "yes"."""
    of = {
        "alone": {s: (0.7, 0.7 + s / 1000, 0.6) for s in range(seeds)},
        "fed": {s: (0.8 - s / 1000, 0.8, 0.6) for s in range(seeds)},
    }
    r = record(of, n=tuple(sum(c) for c in counts), headline=RANKED)
    split = replace(r.partitions[0], classes=("no", "yes"), label_counts=((1, 1),) * 3, test_counts=counts)
    return replace(r, partitions=dict.fromkeys(range(seeds), split))


def test_a_site_with_too_few_test_examples_of_a_class_is_open_and_if_most_have_so_the_mean_has_no_interval() -> None:
    of = worth.worths(ranked(((98, 2), (90, 10), (45, 30))))[0]
    assert [c.gain.verdict for c in of.clients] == ["open", "open", "open"]
    assert of.whole.low is not None
    r = ranked(((98, 2), (91, 9), (45, 30)))
    assert worth.worths(r)[0].whole.low is None
    assert worth.few(of.clients, r.headline) == "Basel has 2 of class yes"
    assert worth.rows(r)[2]["why"] == "it has 2 test examples of class yes, fewer than 10"


def test_a_concordance_index_hangs_on_the_events_however_few_are_censored() -> None:
    """Test examples that are censored, and that have an event."""
    r = by_hand.changed(
        ranked(((98, 2), (1, 90), (45, 30))), headline=Measure("concordance", "concordance index", percent=False)
    )
    of = worth.worths(r)[0]
    assert [c.telling for c in of.clients] == [2, 90, 30]
    assert of.whole.low is not None
    assert [g["why"] for g in worth.rows(r)][2] == "it has 2 test examples with an event, fewer than 10"
    table = results.by_client(r)
    assert table.head[2] == ("events", "test rows")
    assert [row.cells[:2] for row in table.entries] == [("100", "2"), ("91", "90"), ("75", "30")]
    assert "1 client of 3 with fewer than 30 test examples that count: Basel has 2 with an event." in table.note


@pytest.mark.parametrize(("positives", "verdict"), [(6, "open"), (7, "gains")])
def test_the_mean_of_many_sites_counts_where_they_have_enough_test_examples_together(
    positives: int, verdict: str
) -> None:
    """240 positives are enough for the mean of 40 sites, though none of them says anything by itself."""
    n, names = 40, tuple(f"s{i}" for i in range(40))
    alone = {s: tuple(0.6 + s / 1000 + c / 1000 for c in range(n)) for s in range(3)}
    of = {"alone": alone, "fed": {s: (0.8,) * n for s in range(3)}}
    r = record(of, names=names, n=(50,) * n, headline=RANKED)
    counts = ((50 - positives, positives),) * (n - (positives == 6)) + ((45, 5),) * (positives == 6)
    r = replace(r, partitions=dict.fromkeys(range(3), replace(r.partitions[0], test_counts=counts)))
    (got,) = worth.worths(r)
    assert got.whole.verdict == verdict
    assert {c.gain.verdict for c in got.clients} == {"open"}


def test_where_lower_is_better_a_gain_is_still_above_zero() -> None:
    r = record({"alone": {0: (6.0, 6.0, 6.0)}, "m": {0: (5.0, 6.0, 7.5)}}, headline=ERROR)
    basel, _, genf = (c.gain for c in worth.worths(r)[0].clients)
    assert (basel.mean, genf.mean) == (1.0, -1.5)
    assert (basel.low, basel.over) == (None, "")
    note = results.gains(r).note
    assert "with the sign reversed so that positive is better" in note
    assert "Mean absolute error" in note


STEADY = {s: (0.7 + s / 1000, 0.7 - s / 1000, 0.5) for s in range(4)}
BETTER = {s: (0.9, 0.7, 0.05 + s / 500) for s in range(4)}


def ended(r: Record, rounds: Mapping[tuple[str, int], int]) -> Record:
    """The run, finished, with these last rounds by method and seed."""
    series = {(m, s, name): {rounds[m, s]: 0.0} for m, s, name in r.frame.keys}
    return by_hand.changed(r, series, summary=by_hand.SUMMARY)


def test_seeds_count_whenever_each_training_ended_early() -> None:
    """FedAvg stopped at 13, 22, 14 and 7, and alone at 7 under every seed: three seeds were left out, or all four."""
    r = record({"alone": STEADY, "fed": BETTER})
    rounds = {("fed", 0): 13, ("fed", 1): 22, ("fed", 2): 14, ("fed", 3): 7, **{("alone", s): 7 for s in range(4)}}
    (of,) = worth.worths(ended(r, rounds))
    assert (of.seeds, of.lost) == (4, 0)
    assert of.whole == worth.worths(r)[0].whole


def test_a_run_says_whose_models_are_worse_than_a_constant() -> None:
    """Targets lie near 1,000, where two rounds of a low rate do not come: R² is far below 0 with every method."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3)).astype(np.float32)
    data = {site: (x[at], 1000 + x[at, 0]) for site, at in (("Bern", slice(0, 40)), ("Chur", slice(40, 80)))}
    methods = {"alone": us.Independent(), "FedAvg": us.FedAvg()}
    as_is = us.TaskConfig(kind="regression", target_scale=False)
    history = us.simulate(
        methods, data=data, model="mlp", task=as_is, local=us.SgdConfig(lr=1e-6), rounds=1,
        progress=False,
    )  # fmt: skip
    of = worth.worths(read(history.folder))[0]
    assert of.whole.why == worth.USELESS
    assert {c.gain.why for c in of.clients} == {worth.USELESS}
    assert "FedAvg and alone are on average worse than a constant prediction" in " ".join(
        verdict.notes(read(history.folder))
    )
    good = us.TaskConfig(kind="regression", target_scale=(1000, 1))
    history = us.simulate(
        methods, data=data, model="mlp", task=good, local=us.SgdConfig(lr=0.1), rounds=20,
        progress=False,
    )  # fmt: skip
    assert not any(w.whole.why == worth.USELESS for w in worth.worths(read(history.folder)))


def test_the_constant_prediction_is_that_of_a_client_s_own_training_targets() -> None:
    """Training targets 1, 3 and test targets 2, 4: the root of (0 + 4) / 2.  Classes 0, 0, 1 and 0, 1: a half."""

    def division(y: list[float], dtype: torch.dtype) -> Any:
        parts = SimpleNamespace(train=[torch.arange(len(y) - 2)], test=[torch.arange(len(y) - 2, len(y))])
        outputs = ("a",) if dtype.is_floating_point else ("a", "b")
        data = SimpleNamespace(y_train=torch.tensor(y, dtype=dtype), outputs=outputs)
        return SimpleNamespace(dataset=data, clients=parts, num_clients=1)

    numbers, classes = division([1, 3, 2, 4], torch.float32), division([0, 0, 1, 0, 1], torch.int64)
    assert of_constants(REGRESSION, REGRESSION.headline, numbers) == {0: pytest.approx(2**0.5)}
    assert of_constants(CLASSIFICATION, CLASSIFICATION.headline, classes) == {0: 0.5}
    assert of_constants(BINARY, BINARY.headline, classes) == {0: 0.5}
    worse = below({0: 2.5, 1: 1.0}, {0: 2.0, 1: 3.0}, REGRESSION.headline)
    assert worse is not None
    assert (worse.clients, worse.mean) == ((0,), False)
    assert below({0: 0.5}, {0: 0.5}, ACCURACY) is None


def test_beside_the_mean_over_clients_stands_that_in_which_each_test_row_counts_alike() -> None:
    """Gains of 10, 10 and −20 points at 100, 100 and 800 rows: a mean of 0, and (1000 + 1000 − 16000) / 1000 = −14."""
    n = (100, 100, 800)
    r = record({"alone": {0: (0.5,) * 3}, "fed": {0: (0.6, 0.6, 0.3)}}, n=n)
    (of,) = worth.worths(r)
    assert of.whole.per_row is not None
    assert (of.whole.mean, of.whole.per_row.mean) == pytest.approx((0.0, -0.14))
    assert (of.whole.verdict, of.whole.per_row.verdict) == ("open", "loses")
    table = results.gains(r)
    assert table.entries[0].cells[:2] == tuple(worth.bracket(g, ACCURACY) for g in (of.whole, of.whole.per_row))
    sites, by_row = (row for row in worth.rows(r) if row["client"] is None)
    assert (sites["alike"], by_row["alike"]) == ("clients", "test rows")
    assert (by_row["gain"], by_row["low"]) == (of.whole.per_row.mean, of.whole.per_row.low)


def test_a_mean_per_row_has_the_variance_of_its_rows() -> None:
    """Per row it is that of all rows together, divided by their number; of sites alike the few rows weigh most."""
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=k) for k in (1000, 10)]
    together = np.concatenate([r - r.mean() for r in rows]).var(ddof=2)
    _, (alike, per_row) = chance_in_mean(rows, [None, None], [0.0, 0.0], [1000, 10], ERROR)
    assert alike is not None
    assert per_row is not None
    assert per_row.variance == pytest.approx(together / 1010, rel=0.05)
    assert alike.variance > 20 * per_row.variance


# ---------------------------------------------------------------- on noise, and of real runs
def test_on_noise_about_one_client_in_twenty_gains_or_loses_and_gains_are_found() -> None:
    """240 clients: 12 by chance, fewer than 22 in 99 of 100 trials; by seeds alone it would be 100 and more."""
    rng = np.random.default_rng(0)
    null = [w for _ in range(40) for w in worth.worths(noise(rng, 0.0))]
    verdicts = [c.gain.verdict for w in null for c in w.clients]
    assert 2 <= len(verdicts) - verdicts.count("open") <= 21
    assert sum(w.whole.verdict != "open" for w in null) <= 6
    some = [w for _ in range(10) for w in worth.worths(noise(rng, 0.7))]
    assert sum(w.count("gains") for w in some) >= 50
    assert all(w.whole.verdict == "gains" for w in some)
    assert "Of 6 clients about 0.3 would gain or lose by chance alone." in results.gains(noise(rng, 0.0)).note


def test_a_run_keeps_the_results_of_test_rows_and_gains_have_intervals_by_them(tmp_path: Path) -> None:
    """DeLong's values of an AUROC have it as their mean, by row and by patient; none without training alone."""
    rng = np.random.default_rng(1)
    x, who = rng.normal(size=(240, 2)), np.arange(240) // 2
    y = (x[:, 0] + rng.normal(size=240) > 0).astype(np.int64)
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y, patient_train=who, client_train=who % 2)
    times = np.stack([rng.exponential(np.exp(-x[:, 0])), y], 1)
    np.savez(tmp_path / "t.npz", x_train=x, y_train=times, patient_train=who, client_train=who % 2)
    for task, file in (("classification", "d"), ("binary", "d"), ("survival", "t")):
        history = us.simulate(["fedavg", "independent"], data=f"npz:{tmp_path / file}.npz", model="logistic", rounds=1,
                              seeds=(0, 1), test_fraction=0.5, task=task, progress=False)  # fmt: skip
        r = read(history.folder)
        assert set(r.tested_rows) == {at[:2] for at in by_hand.clients(r)}
        for at, of in r.tested_rows.items():
            assert {c: v.mean() for c, (_, v) in of.by_client.items()} == pytest.approx(r.clients(*at))
        (got,) = worth.worths(r)
        assert all(c.gain.low is not None for c in got.clients)
        assert got.over == f"seeds and {'test examples' if task == 'classification' else 'clients'}"


def test_of_an_accuracy_without_its_rows_the_interval_is_bounded_by_that_of_independent_errors() -> None:
    """.8 against .7 of 100, with a right and a wrong one more 81 and 71 of 102: .0980 -+ .1188, which is
    1.96 sqrt((.1635 + .2116) / 102); seeds that agree do not make it narrower."""
    for seeds in (1, 3):
        r = record({"alone": dict.fromkeys(range(seeds), (0.7, 0.7, 0.5)),
                    "m": dict.fromkeys(range(seeds), (0.8, 0.7, 0.5))})  # fmt: skip
        basel = worth.worths(r)[0].clients[0].gain
        assert (basel.mean, basel.high) == pytest.approx((0.1, 0.0980 + 0.1188), abs=1e-4)
        assert (basel.over, basel.verdict) == ("test examples", "open")
        assert any("One seed says nothing" in note for note in verdict.notes(r)) == (seeds == 1)


def test_an_interval_over_test_examples_counts_a_patient_once() -> None:
    """100 examples of 10 patients at Basel: the interval is that of .8 against .7 of 10."""
    of = {"alone": {0: (0.7, 0.7, 0.5)}, "m": {0: (0.8, 0.7, 0.5)}}
    r, ten = record(of), record(of, n=(10, 100, 16))
    r = replace(r, partitions={0: replace(r.partitions[0], test_patients=(10, 100, 4))})
    basel, of_ten = (worth.worths(one)[0].clients[0] for one in (r, ten))
    assert (basel.gain, basel.examples) == (of_ten.gain, 100)
    assert "Few test rows: Genf has 16, which are of 4 patients." in verdict.notes(r)


def test_of_auroc_a_site_whose_test_rows_are_not_known_has_no_interval_and_the_mean_is_over_sites() -> None:
    """Gains .0985, .0985 and 0 of three sites: .0657 -+ 4.30 * .0328, and a little for seeds."""
    r = ranked(((60, 40), (40, 40), (45, 31)))
    (of,) = worth.worths(r)
    assert [c.gain.low for c in of.clients] == [None] * 3
    assert of.whole.low == pytest.approx(0.0657 - 4.303 * 0.0328, abs=0.002)
    assert of.over == "seeds and clients"
    assert verdict.verdict(r).startswith(
        "Undecided: no method is clearly better than training alone; best is fed, +0.066 in"
    )
    few = ranked(((60, 40), (40, 40), (45, 29)))
    assert "Few test rows: Genf has 29 of class yes." in verdict.notes(few)


# ---------------------------------------------------------------- verdicts
def test_of_many_methods_those_are_worth_it_that_are_when_corrected_for_their_number() -> None:
    """A gains .10, .11, .12, p = .0027; B .02, .03, .035, p = .0233; the others nothing on average.

    Of six, .0027 counts six times, and then .0233 five times: .117.
    """
    gains = {"alone": (0.0,) * 3, "A": (0.1, 0.11, 0.12), "B": (0.02, 0.03, 0.035)}
    gains |= {f"C{i}": (0.0, 0.01, -0.01) for i in range(5)}

    def run(*methods: str) -> Record:
        return record({m: {s: (0.5 + gains[m][s],) * 3 for s in range(3)} for m in ("alone", *methods)}, (), (100,) * 3)

    many = ["C0", "C1", "C2", "C3"]
    only, crowded, both = run("B"), run("B", *many, "C4"), run("A", "B", *many)
    assert verdict.verdict(only).startswith("Federation is worth it: B gains +2.83 points (95 % +0.94 to +4.73)")
    assert verdict.verdict(crowded).startswith(
        "Undecided: no method is clearly better than training alone; best is B, "
    )
    assert "Corrected for the number of methods (Holm), the gain of B is undecided." in verdict.notes(crowded)
    assert verdict.verdict(both).startswith("Federation is worth it: A gains +11.00 points")
    means = {row["method"]: (row["verdict"], row["why"]) for row in worth.rows(both) if row["client"] is None}
    assert (means["A"], means["B"]) == (("gains", ""), ("open", UNCORRECTED))
    table = results.gains(both)
    assert table.head[3] == ("reading", "corrected (Holm)")
    assert [row.cells[2] for row in table.entries[:2]] == ["better off", "undecided"]


def test_a_method_that_diverged_under_a_seed_is_not_said_to_gain_by_the_others() -> None:
    """Under four of five seeds "bold" diverged; under the fifth it gains 20 points, as "fed" does under all."""
    of = {"alone": {s: (0.5 + s / 1000,) * 3 for s in range(5)}, "bold": {s: (0.7,) * 3 for s in range(5)}}
    for names in (SITES, ()):
        r = record(of | {"fed": of["bold"]}, names, (100,) * 3)
        gone = {("bold", s) for s in range(1, 5)}
        lost = tuple(DivergedRow(method=m, seed=s, round=2, reason="x") for m, s in sorted(gone))
        r = ended(replace(r, diverged=lost), {at[:2]: 3 for at in r.frame.keys})
        bold, fed = worth.worths(r)
        assert (bold.seeds, bold.lost, bold.whole.verdict, fed.whole.verdict) == (1, 4, "open", "gains")
        assert {c.gain.verdict for c in bold.clients} == {"open"}
        assert verdict.verdict(r).startswith("Federation is worth it: fed gains")
        assert (bold.whole.low is None) == (not names)  # clients that each seed draws anew: one seed tells nothing
        assert results.gains(r).entries[0].cells[0].endswith(" (1 of 5 seeds)")
        mean = worth.rows(r)[0]
        assert (mean["seeds"], mean["lost"]) == (1, 4)
        assert not names or mean["why"] == worth.DIVERGED
        assert "Gains leave out seeds without a result: bold (1 of 5 seeds)." in verdict.notes(r)


def test_an_unfinished_run_compares_equal_rounds_and_says_which_seeds_it_leaves_out() -> None:
    r = record({"alone": STEADY, "fed": BETTER}, n=(100,) * 3)
    behind = replace(ended(r, {at[:2]: 2 if at[:2] == ("fed", 3) else 3 for at in r.frame.keys}), summary=None)
    (of,) = worth.worths(behind)
    assert (of.seeds, of.lost) == (3, 1)
    assert results.gains(behind).entries[0].cells[0].endswith("] (3 of 4 seeds)")
    assert "Gains leave out seeds without a result: fed (3 of 4 seeds)." in verdict.notes(behind)
    nowhere = replace(ended(r, {at[:2]: 2 if at[0] == "fed" else 3 for at in r.frame.keys}), summary=None)
    assert results.gains(nowhere) is None


@pytest.mark.parametrize(
    ("curve", "head", "says"),
    [
        ({1: 0.5, 2: 0.6, 3: 0.7}, "Federation is ahead so far", "(60.0 % after round 2, 70.0 % after round 3)"),
        ({1: 0.7, 2: 0.95, 3: 0.7}, "Federation is ahead so far", "(95.0 % after round 2, 70.0 % after round 3)"),
        ({1: 0.5, 2: 0.69, 3: 0.7}, "Federation is worth it", ""),
        ({1: 0.5, 9: 0.7, 12: 0.7}, "Federation is worth it", ""),
        ({3: 0.7}, "Federation is worth it", ""),
    ],
)
def test_a_gain_over_local_training_that_had_not_settled_is_ahead_so_far(
    curve: dict[int, float], head: str, says: str
) -> None:
    """300 test examples at 70 %: a standard error is 2.6 points."""
    r = record({"alone": {0: (0.7,) * 3}, "fed": {0: (0.9,) * 3}}, n=(100,) * 3)
    r = by_hand.changed(r, {at: curve if at[0] == "alone" else dict.fromkeys(curve, 0.9) for at in r.frame.keys})
    assert verdict.verdict(r).startswith(head)
    assert says in verdict.unsettled(r)
    assert bool(verdict.unsettled(r)) == bool(says)


def test_a_site_without_test_rows_is_named_and_has_no_verdict() -> None:
    r = record({"alone": STEADY, "fed": BETTER}, names=(*SITES, "Davos"), n=(100, 100, 16, 1))
    assert "No verdict on Davos: no test rows from which accuracy can be measured." in verdict.notes(r)
    some = replace(r, config="evaluate_clients = 2")  # others were not asked for
    assert "Davos" not in " ".join(verdict.notes(some))


# ---------------------------------------------------------------- results by client
def test_each_client_has_a_row_with_every_method_s_result() -> None:
    """Two sites of three seeds; under "fed" Bern has no result in the last: .75 +- .0707 of 2 of 3 seeds."""
    r = record(
        {"alone": {s: (0.5, 0.6) for s in range(3)}, "fed": {0: (0.9, 0.7), 1: (0.8, 0.8), 2: (0.7,)}}, SITES[:2]
    )
    table = results.by_client(r)
    assert table.head[:4] == (("client", ""), ("test rows", ""), ("alone", "training alone, %"), ("fed", "%"))
    assert table.head[4:] == (("fed gain", "percentage points"),)
    assert [(row.name, *row.cells[:3]) for row in table.entries] == [
        ("Basel", "100", "50.0 ± 0.0", "80.0 ± 10.0"),
        ("Bern", "100", "60.0 ± 0.0", "75.0 ± 7.1 (2 of 3 seeds)"),
    ]


# ---------------------------------------------------------------- leave one out
def test_what_a_site_is_worth_to_the_others_by_hand() -> None:
    """With Basel the others have .7 and .5, without it .6 and .5: worth .05; Basel itself .8 against .75 adapted."""
    whole = record({"fed": {0: (0.8, 0.7, 0.5)}})
    without = record({"fed": {0: (0.6, 0.5)}}, names=("Bern", "Genf"), n=(100, 16))
    came = {("fed", 0, "unseen"): {2: 0.4}, ("fed", 0, "unseen_adapted"): {2: 0.75}}
    without = by_hand.changed(without, clients_of=by_hand.clients(without) | came)
    (of,) = contributions(whole, {"Basel": without})
    got = [of[what]["seeds"] for what in ("to_others", "to_itself", "unadapted")]
    assert got == [pytest.approx([0.05]), pytest.approx([0.05]), pytest.approx([0.4])]
    assert worth.uncovered(whole).endswith("test examples: Genf has 16, so that one more right is 6.2 points")


def test_clients_known_by_number_are_matched_although_they_are_renumbered() -> None:
    """Without client 1, client 2 is number 1: .5 with it and .3 without; client 0 has .8 and .8."""
    whole = record({"fed": {0: (0.8, 0.7, 0.5)}}, names=())
    without = record({"fed": {0: (0.8, 0.3)}}, names=(), n=(100, 16))
    (of,) = contributions(whole, {"1": without})
    assert of["to_others"]["seeds"] == pytest.approx([0.1])


def test_leave_one_out_runs_each_site_once_and_goes_on(
    tiny: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undrawn: None
) -> None:
    experiment = tiny("rounds=1", "split.num_clients=3", methods='[[methods]]\nname = "fedavg"\n')
    of = leave_out.points(experiment)
    assert [*of] == [None, "0", "1", "2"]
    monkeypatch.setattr(sweep, "Processes", lambda work, *_, **__: Here(work))
    some = [*of.values()]
    sweep.run(some[:2], tmp_path, 1, print)
    log = tmp_path / "runs" / "without-0" / "run.sqlite"
    before = log.stat().st_mtime_ns
    results = sweep.run(some, tmp_path, 1, print)
    assert log.stat().st_mtime_ns == before
    from unskew.report import read

    records = {client: read(result.folder) for client, result in zip(of, results, strict=True)}
    got = contributions(records[None], {k: v for k, v in records.items() if k is not None})
    assert [c["client"] for c in got] == ["0", "1", "2"]
    assert all(len(c["to_itself"]["seeds"]) == 1 for c in got)
    assert json.dumps(got)
    other = leave_out.points(replace(experiment, rounds=2))
    with pytest.raises(RunError, match="another experiment"):
        sweep.run([*other.values()], tmp_path, 1, print)
    assert "4 runs: one with all clients" in command._cost(of)
