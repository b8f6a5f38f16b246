"""The made situations of `advise/situations`: what they hold, and which answers are wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unskew import papers
from unskew.decide.training import Training
from unskew.papers import Result, advise
from unskew.papers.advise import RECIPES, Place
from unskew.run.cell import Observer


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
    ("verdict", "gained", "best", "wrong"),
    [
        ("join", 0.0, 2.0, (True, False)),
        ("join", 0.1, 2.0, (False, False)),
        ("alone", -3.0, 1.0, (False, True)),
        ("alone", -3.0, 0.9, (False, False)),
        ("undecided", -3.0, 9.0, (False, False)),
    ],
)
def test_an_answer_is_wrong_by_the_truth(verdict: str, gained: float, best: float, wrong: tuple[bool, bool]) -> None:
    shown = advise.judged(verdict, gained, 0.0, best)
    assert (shown["wrong join"], shown["wrong alone"]) == wrong


def situations(folder: Path, **changes: Any) -> Result:
    return papers.reproduce("advise/situations", "small", folder, None, Observer(), changes)


@pytest.mark.parametrize(
    ("spread", "no_worse", "gain"),
    [(0.0, True, "+1.25 points, 95 % interval [+0.45, +2.05]"), (3.0, None, "-0.25 points, 95 % interval ")],
)
def test_wrong_answers_are_counted(
    spread: float, no_worse: bool | None, gain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two recipes under two seeds: one of four answers is wrong; the choice is 1 or 2 points above FedAvg.

    Three points less under a seed and the interval reaches below half a point: that says nothing, and it said no.
    """

    def ask(_: Any, recipe: Any, seed: int) -> tuple[dict[str, float], float]:
        wrong = (recipe, seed) == ("shifted", 101)
        return advise.judged("join", -1.0 if wrong else 2.0, 1.0, 5.0), 1.0 + wrong - spread * (seed - 100)

    monkeypatch.setattr(advise, "RECIPES", {name: RECIPES[name] for name in ("alike", "shifted")})
    monkeypatch.setattr(advise, "ask", ask)
    result = situations(tmp_path, seeds=[100, 101])
    assert [c.holds for c in result.claims] == [False, no_worse]
    assert result.claims[0].evidence == "of 4: 1 wrong join, 0 wrong alone, 0 undecided"
    assert result.claims[1].evidence.startswith(gain)
    assert f" over 4 situations; worse by a point or more in {2 * bool(spread)} of 4" in result.claims[1].evidence
    assert {r.metric: r.seeds for r in result.rows if r.method == "shifted"}["wrong join"] == (0.0, 1.0)


@pytest.mark.seconds
def test_situations_go_on_where_they_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time nothing is trained: advice and truth are kept in the situation's folder."""
    changes = {"seeds": [2], "rounds": 1, "final_seeds": 2, "true_rows": 50}
    monkeypatch.setattr(advise, "RECIPES", {"alike": RECIPES["alike"]})
    before = situations(tmp_path, **changes)
    assert {r.metric: r.seeds for r in before.rows}.keys() >= {"join", "true gain, points"}
    monkeypatch.setattr(Training, "go_on", lambda *_: pytest.fail("it trains again"))
    assert situations(tmp_path, **changes).rows == before.rows
