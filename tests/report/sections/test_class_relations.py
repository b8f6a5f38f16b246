"""The report's part about FedDW's term, from a run folder made by hand: 2 classes, 3 clients, 4 rounds, 2 seeds.

Clients hold 30 + 0, 0 + 10 and 30 + 10 examples of the classes: shares .75 and .25.
SL is the identity and CR [[.5, .5], [.5, .5]], so that ||SL - CR|| = sqrt(4 * .25) = 1.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import by_hand
import pytest
from records import rewrite

from unskew.report import charts, read
from unskew.report.section import Chart, Section
from unskew.report.sections import class_relations

Info = dict[str, Any]
Rows = Callable[[Chart], list[dict[str, Any]]]
SEEN = {"server": "each participant's class counts", "clients": "the mean predictions by class"}
OPEN: Info = {"epsilon": "no guarantee", **SEEN}
COVERED: Info = {"epsilon": 2.5, "delta": 1e-5, "uploads": 4, "covers": "soft labels; not the models", **SEEN}


def info(t: int, told: Info = OPEN, world: bool = True) -> Info:
    found: Info = {
        "sl": [[1.0, 0.0], [0.0, 1.0]],
        "counts": [60.0, 20.0],
        "privacy": told,
        "warnings": [],
        "ignored": [],
    }
    if world:
        found |= {"cr": [[0.5, 0.5], [0.5, 0.5]], "distance": 1.0 / t, "class_norms": [3.0, 1.0]}
    return found


def make_run(
    folder: Path, methods: dict[str, Callable[[int, int], Info]] | None = None, rounds: int = 4,
    seeds: Sequence[int] = (0, 1), counts: Sequence[Sequence[int]] = ((30, 0), (0, 10), (30, 10)),
) -> Path:  # fmt: skip
    """A run's folder; `methods` give the facts of a seed and round."""
    methods = {"fedavg+dw": lambda s, t: info(t)} if methods is None else methods
    metrics, kept = [], []
    for seed in seeds:
        for m, told in methods.items():
            for t in range(1, rounds + 1):
                at = {"method": m, "seed": seed, "round": t}
                metrics.append({**at, "name": "global.accuracy", "value": 0.5, "weight": 1.0})
                reported = told(seed, t)
                kind = "ClassRelations" if "privacy" in reported else "dict"
                kept.append({**at, "type": kind, "info": reported})
    by_hand.write(folder, list(methods), seeds, counts)
    rewrite(folder, metrics=metrics, info=kept)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("feddw") / "run")


# ---------------------------------------------------------------- over a run
def test_the_distance_is_by_round_over_seeds(tmp_path: Path, rows: Rows) -> None:
    """Seed 0 has 1/t and seed 1 twice that: means 1.5/t."""
    folder = make_run(tmp_path / "run", {"fedavg+dw": lambda s, t: {**info(t), "distance": (1 + s) / t}})
    drawn = {
        r["x"]: (r["mean"], r["low"], r["high"]) for r in rows(_section(folder, "fedavg+dw").charts[0]) if "x" in r
    }
    assert drawn == {t: pytest.approx((1.5 / t, 1 / t, 2 / t), rel=1e-4) for t in (1, 2, 3, 4)}


def test_the_weakest_guarantee_of_the_seeds_is_given(tmp_path: Path) -> None:
    """Seed 1 has epsilon 2.5 + 1 in the last round."""

    def guarantee(name: str, told: Callable[[int], Info]) -> str:
        folder = make_run(tmp_path / name, {"fedavg+dw": lambda s, t: info(t, told(s))})
        return _section(folder, "fedavg+dw").tables[0].entries[0].cells[0]

    assert guarantee("run", lambda s: {**COVERED, "epsilon": 2.5 + s}) == (
        "ε = 3.5 at δ = 1e-05 after 4 uploads of the client asked most often. Covers soft labels; not the models."
    )
    assert guarantee("mixed", lambda s: COVERED if s else OPEN) == "No guarantee."


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        ((1.0, 2.0, 3.0), (2.0, 4.0, 6.0), 1.0),
        ((1.0, 2.0, 3.0), (1.0, 0.0, 1.0), 0.0),
        ((0.1,) * 3, (1.0, 2.0, 3.0), None),
        ((1.0, 2.0, 3.0), (0.0, 0.0, 0.0), None),
    ],
)
def test_correlation_is_pearsons_and_none_where_nothing_varies(
    x: tuple[float, ...], y: tuple[float, ...], expected: float | None
) -> None:
    assert class_relations.correlation(x, y) == (None if expected is None else pytest.approx(expected))


# ---------------------------------------------------------------- the section
def _section(folder: Path, *methods: str) -> Section:
    section = class_relations.section(read(folder), methods, charts.colours(methods))
    assert section is not None
    return section


def test_a_method_without_a_global_model_has_soft_labels_alone(tmp_path: Path, rows: Rows) -> None:
    section = _section(make_run(tmp_path / "run", {"hcct+dw": lambda s, t: info(t, world=False)}), "hcct+dw")
    (matrices,) = section.charts
    assert {r["panel"] for r in rows(matrices)} == {"SL, round 1", "SL, round 2", "SL, round 4"}
    assert section.lead == "No class relations for hcct+dw: no global model."
