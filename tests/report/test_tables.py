"""The arithmetic of a report, on records made by hand."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from by_hand import record
from hypothesis import given
from hypothesis import strategies as st
from records import rewrite
from scipy import stats

from unskew.record import database
from unskew.record.logs import DivergedRow
from unskew.report import results, verdict
from unskew.report.stats import UNCORRECTED, Spread, corrected, interval
from unskew.report.tables import counted_seeds, curve, difference, paired, quantity, steadier
from unskew.report.together import merge
from unskew.tasks.measure import Measure


def accuracies(**by_method: list[list[float]]) -> dict[tuple[str, int, str], dict[int, float]]:
    """`method=[[round 0, round 1, ...] of seed 0, ...]`."""
    return {
        (m, s, "global.accuracy"): dict(enumerate(rounds))
        for m, seeds in by_method.items()
        for s, rounds in enumerate(seeds)
    }


def test_accuracy_by_traffic_counts_rounds_without_an_evaluation():
    """Evaluated at rounds 0 and 2 only, 1 MB a round in each of two directions: x = 0 and 4 MB."""
    series = {("A", 0, "global.accuracy"): {0: 0.1, 2: 0.5}}
    series |= {("A", 0, f"bytes.{d}"): {1: 1e6, 2: 1e6} for d in ("up", "d2d")}
    found = curve(record(series), "A", "global.accuracy", "traffic")
    assert found is not None
    assert found.x == (0.0, 4.0)
    assert found.mean == (0.1, 0.5)
    assert curve(record({("A", 0, "global.accuracy"): {0: 0.1}}), "A", "global.accuracy", "traffic") is None


def test_accuracy_by_time_counts_the_seconds_up_to_a_round_as_a_mean_over_seeds():
    """Round 1 takes 1 s and 3 s, round 2 takes 2 s twice; evaluated at rounds 0 and 2: x = 0 and (3 + 5) / 2."""
    series = {("A", s, "global.accuracy"): {0: 0.1, 2: 0.5} for s in (0, 1)}
    series |= {("A", 0, "seconds"): {1: 1.0, 2: 2.0}, ("A", 1, "seconds"): {1: 3.0, 2: 2.0}}
    found = curve(record(series), "A", "global.accuracy", "time")
    assert found is not None
    assert found.x == (0.0, 4.0)
    assert found.mean == (0.1, 0.5)
    assert curve(record({("A", 0, "global.accuracy"): {0: 0.1}}), "A", "global.accuracy", "time") is None


def test_a_curve_keeps_to_the_rounds_that_every_seed_has():
    found = curve(record(accuracies(A=[[0.1, 0.2, 0.9], [0.3, 0.4]])), "A", "global.accuracy")
    assert found is not None
    assert found.x == (0.0, 1.0)
    assert found.mean == (pytest.approx(0.2), pytest.approx(0.3))
    assert (found.low, found.high, found.seeds) == ((0.1, 0.2), (0.3, 0.4), 2)


def test_a_paired_difference_has_students_interval():
    """d = (.01, .02, .03): mean .02, s .01, t_{.975, 2} = 4.3027, half width 4.3027 * .01 / sqrt(3) = .024842."""
    (d,) = paired(record(accuracies(FedAvg=[[0.5], [0.6], [0.7]], B=[[0.51], [0.62], [0.73]])))
    assert d.mean == pytest.approx(0.02)
    assert d.low == pytest.approx(0.02 - 0.024842, abs=1e-6)
    assert d.high == pytest.approx(0.02 + 0.024842, abs=1e-6)
    assert d.verdict == "open"


def test_what_cannot_have_an_interval_has_none():
    assert interval([0.1]) is None
    assert interval([0.1, math.nan]) is None
    assert interval([0.02, 0.02, 0.02]) is None, "equal differences show the resolution of the test set, not certainty"
    assert interval([0.0, 0.0]) == (0.0, 0.0), "two methods that are the same cannot be told apart"
    assert difference("A", {0: 0.1}).why == "no interval possible"


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=12))
def test_the_interval_is_scipys(values: list[float]):
    found = interval(values)
    if np.std(values) > 1e-9:
        test = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
        assert found == (pytest.approx(test.low), pytest.approx(test.high))


def test_an_unfinished_run_counts_the_seeds_that_came_furthest():
    made = record(accuracies(FedAvg=[[0.1, 0.5], [0.1, 0.6], [0.1]], B=[[0.1, 0.7], [0.1], [0.1]]), finished=False)
    assert counted_seeds(made, "FedAvg") == (0, 1)
    assert counted_seeds(made, "B") == (0,)
    assert [d.seeds for d in paired(made)] == [(0, 2)], "pairs stand at the same round"


@given(st.floats(1e-6, 1e9))
def test_a_quantity_keeps_three_figures(value: float):
    assert float(quantity(value).replace(",", "")) == pytest.approx(value, rel=0.006)


def test_the_headline_is_the_last_round_and_the_best_is_kept_apart():
    """Seeds end at .6 and .8: mean .7, std sqrt(.02) = .1414; best .9 and .8; last two (.9 + .6)/2 and (.7 + .8)/2."""
    made = record(accuracies(FedAvg=[[*[0.1] * 5, 0.9, 0.6], [*[0.1] * 5, 0.7, 0.8]]))
    every = {name: column.values.get("FedAvg") for name, column in results.columns(made).items()}
    assert every["global"] == Spread((0.6, 0.8))
    assert every["best"] == Spread((0.9, 0.8))
    assert every["tail"] == Spread((pytest.approx(0.75), pytest.approx(0.75)))
    assert every["round"] == Spread((6.0, 6.0))
    assert (every["personal"], every["mb"]) == (None, None)
    frame = results.frame(made)
    assert (frame["global"], frame["seeds"]) == ([pytest.approx(0.7)], [2])
    assert frame["global_std"] == [pytest.approx(0.141421, abs=1e-6)]


def test_traffic_of_a_run_is_the_sum_over_its_rounds(tmp_path: Path):
    """1 MB down in round 1, 2 MB in round 2; the ledger has 3 MB in 4 transfers over two seeds: 1.5 MB in 2 each."""
    series = {**accuracies(A=[[0.1, 0.2, 0.3], [0.1, 0.2, 0.3]])}
    series |= {("A", s, "bytes.down"): {1: 1e6, 2: 2e6} for s in (0, 1)}
    sent = {"method": "A", "round": 1, "hop": 0, "src": 0, "dst": 1, "kind": "model", "bytes": 750_000}
    database.write(tmp_path, {"transfers": [{**sent, "seed": s} for s in (0, 0, 1, 1)]})
    made = record(series, folder=tmp_path)
    assert results.frame(made)["mb_down"] == [3.0]
    table = results.traffic(made)
    assert [(row.name, *row.cells[:5]) for row in table.entries] == [("A", "model", "1.50", "2", "0", "0")]
    lost = DivergedRow(method="A", seed=1, round=1, reason="x")
    table = results.traffic(replace(made, diverged=(lost,)))
    assert table.entries[0].cells[1:3] == ("1.50", "2")  # of the other seed
    rewrite(tmp_path, transfers=())
    assert not results.traffic(made).entries


@pytest.mark.parametrize(("until", "reading"), [(5.0, "level"), (4.8, "open")])
def test_a_narrow_interval_that_ended_a_run_is_level(until: float, reading: str) -> None:
    """B is 0.00 [−2.44, +2.44] points apart."""
    values = accuracies(FedAvg=[[0.5]] * 6, B=[[0.5 + d] for d in (0.01, -0.01, 0.01, -0.01, 0.01, -0.01)])
    rule: dict[str, Any] = {"until": until, "most": 9, "least": 6, "first": 0, "metric": "last_round"}
    made = replace(record(values), until=rule)
    assert [d.verdict for d in paired(made)] == [reading]
    assert verdict.verdict(made).startswith({"level": "Level", "open": "Undecided"}[reading])


def test_methods_that_are_clearly_worse_are_named_where_none_is_better() -> None:
    beside = (0.01, -0.01, 0.01, -0.01, 0.01, -0.01)
    values = accuracies(FedAvg=[[0.5]] * 6, B=[[0.5 + d] for d in beside], C=[[0.3 + d] for d in beside])
    said = verdict.verdict(record(values))
    assert said.startswith("Undecided: no method is clearly better than FedAvg, and C is worse; B ")


def test_differences_are_taken_of_the_last_fifth_too():
    """Of ten rounds the last two count: A is .10, .11, .12 above in the last round and .0, .01, -.01 in the mean."""
    flat, gains = [0.5] * 11, (0.1, 0.11, 0.12)
    tails = (0.0, 0.01, -0.01)
    seeds = [[*[0.5] * 9, 0.5 + 2 * t - g, 0.5 + g] for g, t in zip(gains, tails, strict=True)]
    made = replace(record(accuracies(FedAvg=[flat] * 3, A=seeds)), config="")
    (last,), (tail,) = paired(made), paired(made, pick=steadier(made))
    assert last.values == pytest.approx(gains)
    assert tail.values == pytest.approx(tails)
    assert (last.verdict, tail.verdict) == ("gains", "open")


@pytest.mark.parametrize(("rounds", "last"), [(5, None), (6, 0.75), (1, None)])
def test_the_mean_of_one_evaluation_is_left_out(rounds: int, last: float | None):
    """A fifth of six is two, rounded up: .5 and 1.; a fifth of five is the last round, which is the headline."""
    flat = [[0.5] * (rounds + 1)] * 2
    made = record(accuracies(FedAvg=flat, A=[[*one[:-1], 1.0] for one in flat]))
    made = replace(made, config="")
    assert results.frame(made).get("tail", [None, None])[1] == last
    assert len(paired(made, pick=steadier(made))) == (last is not None)


def test_differences_that_stand_when_corrected_for_their_number_are_marked():
    """A is .10, .11, .12 above, t = 19.05, p = .0027; B .02, .03, .035, t = 6.4, p = .0233; the others zero on average.

    Of two, .0027 counts twice and .0233 once; of six, .0027 counts six times and .0233 five times: .117.
    """
    a, b, none = [[0.6], [0.61], [0.62]], [[0.52], [0.53], [0.535]], [[0.5], [0.51], [0.49]]
    made = record(accuracies(FedAvg=[[0.5]] * 3, A=a, B=b))
    assert [d.verdict for d in paired(made)] == ["gains", "gains"]
    assert [d.verdict for d in corrected({d.method: d.at for d in paired(made)}).values()] == ["gains", "gains"]
    crowded = record(accuracies(FedAvg=[[0.5]] * 3, A=a, B=b, **{f"C{i}": none for i in range(4)}))
    after = corrected({d.method: d.at for d in paired(crowded)})
    shown = [(after[k].verdict, after[k].why) for k in ("A", "B", "C0")]
    assert shown == [("gains", ""), ("open", UNCORRECTED), ("open", "")]
    table = results.differences(crowded)[0]
    assert table.head[4] == ("significant", "corrected (Holm), 6 comparisons")
    assert [row.cells[3] for row in table.entries[:2]] == ["yes", "no"]
    assert verdict.verdict(crowded) == "A is better than FedAvg by +11.00 points (95 % +8.52 to +13.48)."


def test_of_runs_with_two_headlines_no_number_stands_in_the_others_column() -> None:
    """The second run's clients have an AUROC alone, and the columns are of the first run's accuracy."""
    auroc = Measure("auroc", "AUROC", percent=False)
    first = record({("x", 0, "global.accuracy"): {1: 0.9}})
    second = record({("y", 0, "global.auroc"): {1: 0.8}}, headline=auroc)
    table = results.headline(merge([first, second], ["a", "b"]))
    column = [title for title, _ in table.head].index("global accuracy") - 1
    assert [row.cells[column] for row in table.entries] == ["90.0", "–"]
