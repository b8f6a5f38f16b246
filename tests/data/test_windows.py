"""Windows of sensors are spoken of as such, by site and channel, in a run and in a look."""

import warnings
from typing import Any

import numpy as np
import pytest

import unskew as us
from unskew.data import own

SITES = ("Coast", "Delta", "Eagle")
SHAPES = {"channels first": (6, 16), "channels last": (16, 6), "read before": (1, 6, 16)}


def windows(shape: tuple[int, ...], site: str, channel: int, factor: float, offset: float = 0.0) -> dict[str, Any]:
    """20 windows of each site, one channel of which is changed at one site."""
    rng = np.random.default_rng(0)
    data = {name: (rng.uniform(-3, 3, (20, *shape)), np.arange(20) % 2) for name in SITES}
    x = data[site][0]
    own_channel = (Ellipsis, channel) if shape == (16, 6) else (Ellipsis, channel, slice(None))
    x[own_channel] = x[own_channel] * factor + offset
    return data


def said(data: Any) -> tuple[list[str], list[str]]:
    """What a run and a look say."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        own.dataset(data)
    return [str(warning.message) for warning in caught], list(us.describe(data).notes)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
@pytest.mark.parametrize(("factor", "offset"), [(1000, 0), (1, 273)])
def test_a_channel_in_another_unit_is_named_with_its_site(shape: tuple[int, ...], factor: float, offset: float) -> None:
    for sentences in said(windows(shape, "Eagle", 2, factor, offset)):
        (far,) = (one for one in sentences if "channel 2 mean" in one and "in the same unit" in one)
        assert " at Eagle, and " in far


def test_a_channel_that_a_site_does_not_measure_is_named() -> None:
    for sentences in said(windows((6, 16), "Coast", 4, 0)):
        assert "the channel 4 mean has one value only at Coast (0): not measured there?" in sentences


def test_windows_as_they_should_be_make_no_note_and_each_channel_is_described() -> None:
    data = windows((6, 16), "Eagle", 1, 1)
    assert said(data) == ([], [])
    names = [column.name for column in us.describe(data).columns]
    assert names == [f"channel {c} {what}" for c in range(6) for what in ("mean", "spread")]
