"""Effects over seeds: Rubin's rules by hand, and what is said of a model that stopped short."""

import math
from dataclasses import replace

import pytest

from unskew.info import Effects
from unskew.report.sections.effects import Z, combined, forest


def effects(estimate: float, error: float | None, ratio: str = "") -> Effects:
    return Effects(names=("age",), estimates=(estimate,), errors=(error,), ratio=ratio, rows=9, step=0.0)  # type: ignore[arg-type]


def test_seeds_are_combined_as_imputations() -> None:
    """Means 1 and 3 with errors 1 and 2: within (1 + 4) / 2, between 2, so 2.5 + 3/2 x 2 = 5.5."""
    (one,) = combined([effects(1.0, 1.0), effects(3.0, 2.0)]).values()
    assert one.value == 2.0
    assert one.high == pytest.approx(2 + Z * math.sqrt(5.5))


def test_a_ratio_is_the_exponential_and_an_effect_without_an_error_has_no_interval() -> None:
    (one,) = combined([effects(math.log(2), 0.1, "odds")]).values()
    assert (one.value, one.low) == (pytest.approx(2), pytest.approx(2 * math.exp(-0.1 * Z)))
    (none,) = combined([effects(1.0, 0.5), effects(1.0, None)]).values()
    assert (none.low, none.high) == (None, None)


def test_odds_are_said_to_be_of_their_class() -> None:
    reports = [replace(effects(1.0, 0.5, "odds"), of="well")]
    assert forest("FedAvg", reports).described.startswith("odds ratio for well: age 2.72 ")
    assert forest("FedAvg", [effects(1.0, 0.5)]).described.startswith("difference in the target: age 1 ")
