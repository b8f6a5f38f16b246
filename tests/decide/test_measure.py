"""How work is timed."""

import pytest

from unskew.decide.forecast import measure
from unskew.decide.forecast.measure import affine


def test_a_line_is_put_through_one_and_as_many_as_there_is_time_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 s for one, .5 s for each more.  30 s allow 16 (9.5 s; four times that for 64 would be 38 s)."""
    now, asked = [0.0], []

    def once(n: int) -> None:
        asked.append(n)
        now[0] += 1.5 + 0.5 * n

    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])
    assert affine(once, 1000, 30.0) == pytest.approx((2.0, 0.5))
    assert max(asked) == 16


def test_what_is_too_slow_to_be_tried_twice_is_taken_to_cost_as_much_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def once(n: int) -> None:
        now[0] += 5.0 * n

    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])
    assert affine(once, 1000, 1.0) == pytest.approx((5.0, 5.0))
