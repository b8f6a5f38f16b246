"""Reductions over clients and the table of results, worked by hand."""

import math
from collections.abc import Mapping
from typing import Any

import pytest

from unskew.record.frame import Numbers
from unskew.run.metrics import Metric, reduce_clients, summarise
from unskew.tasks.measure import ACCURACY, Measure


def by_name(metrics: list[Metric]) -> dict[str, float]:
    return {m.name: m.value for m in metrics}


def test_the_four_reductions_of_two_clients() -> None:
    """(0.5, 30 examples) and (1.0, 10): mean 0.75; weighted (15 + 10) / 40 = 0.625; both deviate by 0.25."""
    found = reduce_clients("personal.accuracy", [0.5, 1.0], [30.0, 10.0], higher=True)
    assert by_name(found) == {
        "personal.accuracy.mean": 0.75,
        "personal.accuracy.weighted": 0.625,
        "personal.accuracy.std": 0.25,
        "personal.accuracy.worst_decile": 0.5,
    }
    assert {m.weight for m in found} == {40.0}
    assert {m.client for m in found} == {None}


def test_the_worst_tenth_is_the_lowest_accuracies_and_the_highest_losses() -> None:
    """Of 0.00, 0.05, ..., 0.95 (20 clients) a tenth is two: mean of 0.00, 0.05 as accuracy, of 0.90, 0.95 as loss."""
    values, ones = [(7 * c % 20) * 0.05 for c in range(20)], [1.0] * 20
    assert by_name(reduce_clients("val.accuracy", values, ones, True))["val.accuracy.worst_decile"] == pytest.approx(
        0.025
    )
    assert by_name(reduce_clients("val.loss", values, ones, False))["val.loss.worst_decile"] == pytest.approx(0.925)


@pytest.mark.parametrize(("clients", "worst"), [(1, 1), (9, 1), (10, 1), (11, 2), (20, 2), (21, 3)])
def test_a_tenth_is_rounded_up(clients: int, worst: int) -> None:
    """Accuracies 0, 1, 2, ...: the mean of the lowest w is (w - 1) / 2."""
    found = by_name(reduce_clients("accuracy", [float(c) for c in range(clients)], [1.0] * clients, True))
    assert found["accuracy.worst_decile"] == (worst - 1) / 2


# ---------------------------------------------------------------- the table
def row(method: str, seed: int, round: int, name: str, value: float, **more: Any) -> dict[str, Any]:
    return {"method": method, "seed": seed, "round": round, "name": name, "value": value, "weight": 1.0, **more}


def accuracies(method: str, seed: int, *values: float) -> list[dict[str, Any]]:
    return [row(method, seed, t, "global.accuracy", v) for t, v in enumerate(values)]


def cell(table: list[dict[str, Any]], method: str, metric: str) -> dict[str, Any]:
    (found,) = [r for r in table if (r["method"], r["metric"]) == (method, metric)]
    return found


def test_last_best_mean_of_last_and_the_paired_difference() -> None:
    """Of six rounds fedavg ends in 0.6 0.5 and 0.4 0.3, other in 0.7 0.8 and 0.2 0.3, under seeds 7 and 9.

    other: last 0.8, 0.3 (mean 0.55, std |0.8 - 0.3| / sqrt 2); best 0.8, 0.3; mean of last two 0.75, 0.25;
    minus fedavg 0.8 - 0.5 = 0.3 and 0.3 - 0.3 = 0, whose mean is 0.15 and whose std is 0.3 / sqrt 2.
    """
    early = [0.1] * 5
    rows = [
        *accuracies("fedavg", 7, *early, 0.6, 0.5),
        *accuracies("other", 7, *early, 0.7, 0.8),
        *accuracies("fedavg", 9, *early, 0.4, 0.3),
        *accuracies("other", 9, *early, 0.2, 0.3),
    ]
    table = summarise(Numbers.of(rows), ["fedavg", "other"], [7, 9], "iid, 2 clients", "fedavg", ACCURACY)
    last = cell(table, "other", "global.accuracy")
    assert last["setting"] == "iid, 2 clients"
    assert last["seeds"] == [0.8, 0.3]
    assert last["mean"] == pytest.approx(0.55)
    assert last["std"] == pytest.approx(0.5 / math.sqrt(2))
    assert cell(table, "fedavg", "global.accuracy.best")["seeds"] == [0.6, 0.4]
    assert cell(table, "other", "global.accuracy.mean_last_fifth")["seeds"] == pytest.approx([0.75, 0.25])
    paired = cell(table, "other", "global.accuracy.minus_fedavg")
    assert paired["seeds"] == pytest.approx([0.3, 0.0])
    assert paired["std"] == pytest.approx(0.3 / math.sqrt(2))
    assert not [r for r in table if r["method"] == "fedavg" and "minus" in r["metric"]]


def test_a_seed_without_the_number_is_left_out_and_pairs_are_kept() -> None:
    """Seed 1 of fedavg is missing: the difference is that of seed 2 alone, 0.5 - 0.2, not of unlike seeds."""
    rows = [*accuracies("m", 1, 0.9), *accuracies("m", 2, 0.5), *accuracies("fedavg", 2, 0.2)]
    table = summarise(Numbers.of(rows), ["fedavg", "m", "absent"], [1, 2], "s", "fedavg", ACCURACY)
    assert cell(table, "m", "global.accuracy")["seeds"] == [0.9, 0.5]
    paired = cell(table, "m", "global.accuracy.minus_fedavg")
    assert (paired["seeds"], paired["undefined"]) == (pytest.approx([0.3]), 1)
    assert not [r for r in table if r["method"] == "absent"]


def test_a_round_in_which_a_metric_is_not_defined_is_no_round_before_it() -> None:
    """AUROC of m is not defined in round 6 under seed 1, though rounds before have it, and never under seed 3.

    What was evaluated is known by the loss.  Of the last two evaluations, 5 and 6, seed 1 has .7 alone.  Seed 2: last
    .9, last two .85; minus fedavg's .6 and .6 that is .3 and .25.
    """
    auroc = Measure("auroc", "AUROC", percent=False)

    def of(method: str, seed: int, values: Mapping[int, float]) -> list[dict[str, Any]]:
        losses = [row(method, seed, t, "global.loss", 1.0) for t in range(7)]
        return [*losses, *(row(method, seed, t, "global.auroc", v) for t, v in values.items())]

    rows = [
        *of("m", 1, {0: 0.1, 1: 0.5, 2: 0.6, 5: 0.7}),
        *of("m", 2, {2: 0.5, 5: 0.8, 6: 0.9}),
        *of("m", 3, {}),
        *(one for seed in (1, 2, 3) for one in of("fedavg", seed, dict.fromkeys(range(7), 0.6))),
    ]
    table = summarise(Numbers.of(rows), ["fedavg", "m"], [1, 2, 3], "s", "fedavg", auroc)
    found = {r["metric"]: (r["seeds"], r.get("undefined", 0)) for r in table if r["method"] == "m"}
    assert found["global.auroc"] == ([0.9], 2)
    assert found["global.auroc.mean_last_fifth"] == (pytest.approx([0.7, 0.85]), 1)
    assert found["global.auroc.minus_fedavg"] == (pytest.approx([0.3]), 2)
    assert found["global.auroc.mean_last_fifth.minus_fedavg"] == (pytest.approx([0.1, 0.25]), 1)
    assert found["global.loss"] == ([1.0, 1.0, 1.0], 0)
