"""Windows of sensors are spoken of as such, by site and channel, in a run and in a look."""

import warnings
from typing import Any

import numpy as np
import pytest

import unskew as us
from unskew.data import own
from unskew.errors import DataError
from unskew.tasks.targets import NUMBER

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


def test_windows_as_they_should_be_are_not_doubted_and_each_channel_is_described() -> None:
    data = windows((6, 16), "Eagle", 1, 1)
    assert said(data) == ([], [])
    names = [column.name for column in us.describe(data).columns]
    assert names == [f"channel {c} {what}" for c in range(6) for what in ("mean", "spread")]


@pytest.mark.parametrize("part", ["data", "test"])
def test_what_is_not_finite_is_named_by_client_row_and_channel(part: str) -> None:
    data = windows((6, 16), "Delta", 2, np.nan)
    given = {"data": windows((6, 16), "Delta", 2, 1), "test": windows((6, 16), "Delta", 2, 1), part: data}
    who = "Delta, test" if part == "test" else "Delta"
    with pytest.raises(DataError, match=rf"^client {who}: x\[0\], channel 2, has a NaN .* \(20 of 20 examples\)$"):
        own.dataset(**given)
    data["Delta"][0][:, :] = 0
    data["Delta"][0][7, :, 3] = np.inf
    with pytest.raises(DataError, match=rf"^client {who}: x\[7\] has a NaN or infinite value; clean .* out$"):
        own.dataset(**given)


def test_targets_and_labels_are_named_by_client_and_row_too() -> None:
    data = windows((6, 16), "Delta", 2, 1)
    numbers: Any = {
        name: (x, np.where(np.arange(20) == 5, np.nan, 1.5) if name == "Eagle" else y) for name, (x, y) in data.items()
    }
    with pytest.raises(DataError, match=r"^arrays: the target of row 5 of Eagle has no value; leave the row out$"):
        own.dataset(numbers, targets=NUMBER)
    with pytest.raises(DataError, match="the target of row 5 of Eagle, test has no value"):
        own.dataset(data, test=numbers, targets=NUMBER)
    words: Any = {name: (x, ["a", None] * 10 if name == "Eagle" else ["a", "b"] * 10) for name, (x, _) in data.items()}
    with pytest.raises(DataError, match="client Eagle: the label of row 1 is missing"):
        own.dataset(words)


def test_windows_are_no_images_in_sentences() -> None:
    data = windows((6, 16), "Eagle", 1, 1)
    data["Delta"] = (data["Delta"][0], np.zeros(20, int))
    for sentences in said(data):
        assert any(one.startswith("Delta has training examples of one class only") for one in sentences)
