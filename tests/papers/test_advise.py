"""The synthetic situations of `advise/situations`: what they hold, which kind of answer is right, how answers count."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from unskew import papers
from unskew.advice import Advice
from unskew.advice.race import FOLD_SEEDS
from unskew.advice.training import Scores
from unskew.errors import DivergedError
from unskew.experiment import config
from unskew.papers import advise, toolkit
from unskew.papers.advise import SITUATIONS, groups_are, groups_within, keeps_off
from unskew.papers.toolkit import Draft, ReproductionRequest
from unskew.run.callbacks import NoCallback
from unskew.tasks.measure import ACCURACY

W = np.random.default_rng(0).normal(size=(advise.COLUMNS, advise.CLASSES))


def answer(verdict: str = "join", family: str = "groups", **more: Any) -> Advice:
    """An answer of this kind; the rest of an advice does not matter."""
    method = SimpleNamespace(name=more.pop("name", "grouped"))
    return cast(Advice, SimpleNamespace(verdict=verdict, family=family, method=method, **{"groups": (), **more}))


def test_there_are_twelve_situations_with_names_of_their_own() -> None:
    assert len({s.name for s in SITUATIONS}) == len(SITUATIONS) == 12


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda s: s.name)
def test_a_situation_is_drawn_from_its_seed_alone(situation: advise.Situation) -> None:
    a, b = (situation.make(W, np.random.default_rng(5)) for _ in range(2))
    assert len(a) >= 4
    for (x, y), (x_again, y_again) in zip(a, b, strict=True):
        assert x.dtype == np.float32
        assert x.shape == (len(y), advise.COLUMNS)
        assert np.array_equal(x, x_again)
        assert np.array_equal(y, y_again)


def test_in_opposite_halves_the_same_teacher_labels_the_other_way_round() -> None:
    for k, (x, y) in enumerate(advise.opposite_halves(W, np.random.default_rng(1))):
        teacher = (x @ W).argmax(1)
        assert np.array_equal(y, teacher if k % 2 == 0 else 3 - teacher)


def test_the_turned_site_is_wrong_in_every_row_and_has_half_of_them() -> None:
    *honest, (x, y) = advise.one_turned(W, np.random.default_rng(1))
    assert len(y) == sum(len(labels) for _, labels in honest)
    assert not ((x @ W).argmax(1) == y).any()


def test_groups_are_right_if_exact_pure_or_without_the_liar() -> None:
    exact = answer(groups=((0, 2), (1, 3)))
    fine = answer(groups=((0,), (2,), (1, 3)))
    mixed = answer(groups=((0, 1), (2, 3)))
    kinds = [0, 1, 0, 1]
    assert [groups_are(kinds)(of) for of in (exact, fine, mixed)] == [True, False, False]
    assert [groups_within(kinds)(of) for of in (exact, fine, mixed)] == [True, True, False]
    assert groups_within(kinds)(answer(family="own models"))
    assert not groups_within(kinds)(answer(family="one model"))
    assert not groups_are(kinds)(_undecided(exact))
    assert [keeps_off(3)(of) for of in (exact, answer(groups=((0, 1, 2), (3,))))] == [False, True]
    assert keeps_off(3)(answer(family="one model", name="fedavg+median"))
    assert not keeps_off(3)(answer(family="one model", name="fedavg"))


def _undecided(of: Advice) -> Advice:
    return answer("undecided", of.family, groups=of.groups)


def test_answers_are_counted_by_situation_and_by_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two situations, asked under two seeds: one is right in both, the other in the first only: 2 and 1 of 2."""
    first, second = SITUATIONS[:2]
    verdicts = {(first.name, 100): True, (first.name, 101): True, (second.name, 100): True, (second.name, 101): False}
    monkeypatch.setattr(advise, "SITUATIONS", tuple(
        dataclasses.replace(s, right=lambda of, s=s: verdicts[s.name, of.seed]) for s in (first, second)
    ))  # fmt: skip
    asked = []

    def ask(situation: advise.Situation, seed: int, *size: int) -> Any:
        asked.append(size)
        return answer(seed=seed)

    monkeypatch.setattr(advise, "ask", ask)
    changes = {"seeds": [100, 101], "rounds": 2}
    result = papers.reproduce("advise/situations", "small", tmp_path, None, NoCallback(), changes)
    assert asked == [(2, 3, 2)] * 4
    assert [c.holds for c in result.claims] == [False, True, False]
    assert "2, 1 of 2 under seeds 100, 101" in result.claims[0].evidence
    assert [r.seeds for r in result.rows] == [(1.0, 1.0), (1.0, 0.0)]
    assert result.seeds == (100, 101)


def test_a_situation_is_asked_with_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def advise_experiment(experiment: Any, minutes: float, **options: Any) -> Any:
        seen.update(options, experiment=experiment)

    monkeypatch.setattr(advise, "advise_experiment", advise_experiment)
    (situation,) = [s for s in SITUATIONS if s.name == "one round only"]
    advise.ask(situation, 7, 8, 3, 2)
    assert (seen["max_rounds"], seen["most_seeds"], seen["most_folds"]) == (1, 3, 2)
    assert (seen["experiment"].rounds, seen["experiment"].seeds) == (8, (7,))


@pytest.mark.slow
def test_a_made_situation_gets_the_right_kind_of_answer() -> None:
    (situation,) = [s for s in SITUATIONS if s.name == "one site's labels all wrong"]
    assert situation.right(advise.ask(situation, 101, 8, 2, 1))


# ---------------------------------------------------------------- natural suites
def test_a_method_is_compared_at_the_local_rate_that_validation_rows_prefer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rates 1, 3.16 and .316 times the own one the second is best on validation rows, and goes on to test rows."""
    trained: list[tuple[float, int]] = []

    class Stub:
        def __init__(self, method: Any, sites: Any, rounds: int, seed: int, fed: Any) -> None:
            self.rate = method.options["local"]["lr"]
            trained.append((self.rate, seed))

        def go_on(self, rounds: int) -> None:
            if self.rate < 0.1:
                raise DivergedError("diverged")

        def scores(self, rows: Any) -> Any:
            return SimpleNamespace(mean=self.rate)

    monkeypatch.setattr(advise, "Training", Stub)
    parts = SimpleNamespace(clients=SimpleNamespace(val=None, test=None))
    sites = SimpleNamespace(
        experiment=SimpleNamespace(rounds=2, seeds=(0,)), folds=[parts], fed=parts, measure=ACCURACY
    )
    method = config.method("fedavg", {"local": {"lr": 0.2}})
    scores = advise.at_best_rate(cast(Any, sites), method, (1, 2))
    assert [s.mean for s in scores] == pytest.approx([0.632, 0.632])
    assert [seed for _, seed in trained] == [FOLD_SEEDS] * 3 + [1, 2]


@pytest.mark.parametrize(
    ("best", "verdict", "holds"),
    [(0.905, "join", True), (0.95, "join", False), (0.95, "undecided", True)],
)
def test_a_choice_is_held_against_the_best_of_all(
    best: float, verdict: str, holds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The choice has 90 % of 10,000 rows at each of two sites under two seeds: a point is allowed, five are not."""
    asked = []

    def scores(value: float) -> Any:
        rows = (np.arange(10_000) < 10_000 * value).astype(float)
        return Scores(dict.fromkeys(range(2), value), dict.fromkeys(range(2), rows))

    def advise_experiment(experiment: Any, *rest: Any, **options: Any) -> Any:
        asked.append(experiment.name)
        check = SimpleNamespace(seeds=(1, 2), results={"FedAvg": (scores(0.9),) * 2})
        return SimpleNamespace(
            verdict=verdict, method=SimpleNamespace(label="FedAvg"), margin=0.01, check=check,
            sites=SimpleNamespace(measure=ACCURACY),
        )  # fmt: skip

    values = {"FedAvg": 0.9, "Ditto": best}
    monkeypatch.setattr(advise, "advise_experiment", advise_experiment)
    monkeypatch.setattr(advise, "at_best_rate", lambda sites, method, seeds: (scores(values[method.label]),) * 2)
    request = ReproductionRequest("advise/natural", "small", tmp_path, None, NoCallback(), {})
    settings = toolkit.settings(request)
    settings["methods"] = {"FedAvg": {"name": "fedavg"}, "Ditto": {"name": "ditto"}}
    settings["suites"] = {"heart": settings["suites"]["heart"]}
    monkeypatch.setattr(Draft, "of", lambda request: Draft(request, settings))
    for _ in range(2):  # the second time it is read
        result = advise.natural(request)
        assert [c.holds for c in result.claims] == [holds, holds]
        assert f"best: Ditto {100 * best:.1f} %" in result.claims[1].evidence
    assert asked == ["heart"]
