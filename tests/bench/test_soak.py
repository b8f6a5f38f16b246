"""Memory over many rounds: what is refused, and what growth is."""

from typing import Any

import pytest

from unskew.bench import soak
from unskew.errors import ConfigError


@pytest.mark.parametrize(("rounds", "every", "least"), [(20, 50, 5), (199, 50, 49), (4, 2, 1)])
def test_too_few_readings_are_refused_before_any_work(
    rounds: int, every: int, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soak, "Pool", lambda *_: pytest.fail("began"))
    with pytest.raises(ConfigError, match=f"got {rounds} rounds with one every {every}; lower --every to {least} or"):
        soak.measure(rounds, every)


def test_growth_is_the_last_reading_over_the_middle_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """PSS of 100, 110, 120, 132 MB after rounds 1 to 4: from the third on 132 / 120 = 1.1."""
    readings = iter([100.0, 110.0, 120.0, 132.0])
    monkeypatch.setattr(soak, "memory", lambda _: (200.0, next(readings)))
    monkeypatch.setattr(soak, "cores", lambda: 1)
    said: list[str] = []
    rows: list[dict[str, Any]] = soak.measure(4, 1, said.append)
    assert len(said) == 4
    assert [r["value"] for r in rows if r["what"] == "pss"] == [100.0, 110.0, 120.0, 132.0]
    assert rows[-1]["value"] == pytest.approx(1.1)
