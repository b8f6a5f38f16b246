import random
from typing import Any

import numpy as np
import pytest
import torch

from unskew.data.batches import PAD, Augment, augmentation, crop, crop_and_flip, flip, unchanged
from unskew.errors import ConfigError
from unskew.keys import Key, drawn_since, global_states


def images(b: int = 64) -> torch.Tensor:
    return torch.arange(1.0, b * 2 * 5 * 7 + 1).reshape(b, 2, 5, 7)


def turned(one: torch.Tensor) -> torch.Tensor:
    """A transform that draws from all three global generators, and works in place."""
    one += random.randrange(5) + 10 * np.random.randint(5) + 100 * torch.randint(5, ())  # noqa: NPY002
    return one


@pytest.mark.parametrize("change", [unchanged, crop, flip, crop_and_flip, augmentation(turned)])
def test_shape_stays_and_the_same_key_gives_the_same_batch(change: Augment):
    x = images()
    a, b, c = (change(x, (Key(0) / i).generator()) for i in (1, 1, 2))
    assert a.shape == x.shape
    assert torch.equal(a, b)
    assert torch.equal(a, c) == (change is unchanged)
    assert torch.equal(x, images())


def test_a_flipped_image_is_its_mirror_and_about_half_are_flipped():
    x = images(1000)
    y = flip(x, Key(0).generator())
    mirrored = (y == x.flip(3)).flatten(1).all(1)
    assert (mirrored | (y == x).flatten(1).all(1)).all()
    assert 420 < int(mirrored.sum()) < 580


def test_a_crop_is_a_window_of_the_padded_image():
    """Each result must equal one of the (2 PAD + 1)^2 windows, the same in every channel, and all corners occur."""
    x = images(600)
    y = crop(x, Key(0).generator())
    padded = torch.nn.functional.pad(x, (PAD,) * 4)
    found = torch.zeros(len(x), dtype=torch.bool)
    corners = set()
    for top in range(2 * PAD + 1):
        for left in range(2 * PAD + 1):
            window = padded[:, :, top : top + 5, left : left + 7]
            same = (window == y).flatten(1).all(1)
            found |= same
            if same.any():
                corners.add((top, left))
    assert found.all()
    assert len(corners) == (2 * PAD + 1) ** 2


def test_each_example_has_its_own_draws_and_nobody_elses_are_disturbed():
    change = augmentation(turned)
    assert change is not None
    states = global_states()
    new = change(torch.zeros(40, 2), Key(0).generator())
    assert drawn_since(states) == []
    assert len(new[:, 0].unique()) > 20
    assert torch.equal(new[:, 0], new[:, 1])


@pytest.mark.parametrize(
    ("transform", "why"),
    [
        (lambda one: one[1:], r"must keep the shape \(2, 5, 7\) of an input, got \(1, 5, 7\)"),
        (lambda one: 1 / 0, "transform failed on a training example: ZeroDivisionError"),
        (lambda one: "words", "transform failed on a training example: TypeError"),
    ],
)
def test_a_transform_that_gives_no_such_input_is_refused(transform: Any, why: str):
    change = augmentation(transform)
    assert change is not None
    with pytest.raises(ConfigError, match=why):
        change(images(3), Key(0).generator())
