"""The made situations of `advise/situations`: what they hold, and which answers are wrong."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import unskew as us
from unskew import api, papers
from unskew.decide.scores import Scores
from unskew.papers import advise, toolkit
from unskew.papers.advise import RECIPES, Place, Situation
from unskew.papers.toolkit import Draft, ReproductionRequest
from unskew.run.cell import Observer
from unskew.tasks.measure import ACCURACY


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("kind", sorted(set(advise.KINDS)))
def test_a_situation_is_drawn_from_its_seed_alone(recipe: Callable[[Any], list[Place]], kind: str) -> None:
    a, b = ([p.rows(draw, kind) for p in recipe(draw)] for draw in (np.random.default_rng(5), np.random.default_rng(5)))
    assert len(a) >= 4
    for (x, y), (x_again, y_again) in zip(a, b, strict=True):
        assert x.shape == (len(y), advise.COLUMNS)
        assert x.dtype == np.float32
        assert np.array_equal(x, x_again)
        assert np.array_equal(y, y_again)


@pytest.mark.parametrize(
    ("verdict", "gain", "best", "wrong"),
    [
        ("join", 0.0, 2.0, (True, False)),
        ("join", 0.1, 2.0, (False, False)),
        ("alone", -3.0, 1.0, (False, True)),
        ("alone", -3.0, 0.9, (False, False)),
        ("undecided", -3.0, 9.0, (False, False)),
    ],
)
def test_an_answer_is_wrong_by_the_truth(verdict: str, gain: float, best: float, wrong: tuple[bool, bool]) -> None:
    outcome = Situation(verdict, "m", gain, gain, 0.0, best)
    assert (outcome.wrong_join, outcome.wrong_alone) == wrong


def test_wrong_answers_are_counted_and_kept_where_a_reproduction_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two recipes under two seeds: one of four answers is wrong; the choice is 1 or 2 points above FedAvg."""
    asked = []

    def ask(recipe: Any, seed: int, **size: int) -> Situation:
        asked.append((recipe, seed, size))
        wrong = (recipe, seed) == ("shifted", 101)
        return Situation("join", "Ditto", -1.0 if wrong else 2.0, 3.0 if wrong else 2.0, 1.0, 5.0)

    monkeypatch.setattr(advise, "RECIPES", {name: RECIPES[name] for name in ("alike", "shifted")})
    monkeypatch.setattr(advise, "ask", ask)
    changes = {"seeds": [100, 101], "rounds": 2}
    for _ in range(2):  # the second time outcomes are read
        result = papers.reproduce("advise/situations", "small", tmp_path, None, Observer(), changes)
        assert [c.holds for c in result.claims] == [False, True]
        assert result.claims[0].evidence == "of 4: 1 wrong join, 0 wrong alone, 0 undecided"
        assert (
            "over FedAvg +1.25 [+0.45, +2.05] points; worse by a point or more in 0 of 4" in result.claims[1].evidence
        )
        assert {r.metric: r.seeds for r in result.rows if r.method == "shifted"}["wrong join"] == (0.0, 1.0)
    size = {"rounds": 2, "final_seeds": 3, "folds": 2}
    assert asked == [(name, seed, size) for seed in (100, 101) for name in ("alike", "shifted")]


# ---------------------------------------------------------------- natural suites


@pytest.mark.parametrize(
    ("best", "verdict", "holds"),
    [(0.905, "join", True), (0.95, "join", False), (0.95, "undecided", True)],
)
def test_a_choice_is_held_against_the_best_of_all(
    best: float, verdict: str, holds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The choice has 90 % of 10,000 rows at each of two sites under two seeds: a point is allowed, five are not."""

    def scores(value: float) -> Any:
        rows = (np.arange(10_000) < 10_000 * value).astype(float)
        return Scores(dict.fromkeys(range(2), value), dict.fromkeys(range(2), (np.arange(len(rows)), rows)))

    def advise_experiment(experiment: Any, **options: Any) -> Any:
        check = SimpleNamespace(seeds=(1, 2), results={"FedAvg": (scores(0.9),) * 2})
        return SimpleNamespace(
            verdict=verdict, method=SimpleNamespace(label="FedAvg"), margin=0.01, check=check,
            sites=SimpleNamespace(measure=ACCURACY),
        )  # fmt: skip

    values = {"FedAvg": 0.9, "Ditto": best}
    monkeypatch.setattr(advise, "advise_experiment", advise_experiment)
    monkeypatch.setattr(advise, "_played", lambda *_: {label: (scores(value),) * 2 for label, value in values.items()})
    request = ReproductionRequest("advise/natural", "small", tmp_path, None, Observer(), {})
    settings = toolkit.settings(request)
    settings["methods"] = {"FedAvg": {"name": "fedavg"}, "Ditto": {"name": "ditto"}}
    settings["suites"] = {"heart": settings["suites"]["heart"]}
    monkeypatch.setattr(Draft, "of", lambda request: Draft(request, settings))
    result = advise.natural(request)
    assert [c.holds for c in result.claims] == [holds, holds]
    assert f"best: Ditto {100 * best:.1f} %" in result.claims[1].evidence


@pytest.mark.filterwarnings("ignore")
def test_methods_are_compared_at_their_best_rates_and_one_that_diverges_is_left_out(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    sites = {f"site {k}": p.rows(draw, "classification") for k, p in enumerate(advise.alike(draw))}
    local = us.SgdConfig(lr=0.1, batch_size=16)
    methods = {"FedAvg": us.FedAvg(local=local), "wild": us.FedProx(mu=0.3, local=us.SgdConfig(lr=1e38))}
    experiment, inputs = api.described(methods, {"rounds": 2}, data=sites, model="logistic")
    of = advise.sites_of(experiment, inputs)
    plan = advise._at_best_rates(of, experiment.methods, (7, 8))
    assert {label: len(scores) for label, scores in advise._played(of, plan, tmp_path / "x.sqlite").items()} == {
        "FedAvg": 2
    }
    assert advise._played(of, advise._under_seeds(of, experiment.methods, (7,))).keys() == {"FedAvg"}
