"""What part of a round tests take."""

from typing import Any

import pytest

from unskew.bench import engine
from unskew.bench.toolkit import Workload


def test_a_share_is_of_the_round_and_its_tests_together() -> None:
    """3 s of training and 1 s of tests at the least: a quarter; medians 4 s and 4 s: half."""
    row = engine._share("W1", "one model", [3.0, 4.0, 5.0], [1.0, 4.0, 9.0])
    assert (row["value"], row["median"], row["bar"]) == (0.25, 0.5, 0.5)


def test_tests_are_measured_with_one_model_and_with_own_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of 8 examples are tested on 2 more; the warm-up is evaluated and not counted."""
    monkeypatch.setattr(engine, "TESTED", 50)
    monkeypatch.setattr(engine, "cores", lambda: 1)
    evaluated: list[tuple[str, int]] = []
    evaluate = engine.evaluate

    def noted(sim: Any, state: Any, t: int, eval_set: Any, which: Any, last: bool) -> Any:
        metrics = evaluate(sim, state, t, eval_set, which, last)
        evaluated.append((type(sim.algorithm).__name__, t))
        assert [len(rows) for rows in eval_set.test] == [2, 2, 2]
        assert any(m.name == "personal.accuracy.mean" for m in metrics)
        assert any(m.name == "global.accuracy" for m in metrics) == (evaluated[-1][0] == "FedAvg")
        return metrics

    monkeypatch.setattr(engine, "evaluate", noted)
    rows = engine._tests("tiny", Workload("logistic", (1, 4, 4), 8), 4, 3, 2)
    assert [r["contender"] for r in rows] == ["one model", "own models"]
    assert evaluated == [(name, t) for name in ("FedAvg", "Independent") for t in (1, 2, 3)]
    assert all(0 < r["value"] < 1 for r in rows)
