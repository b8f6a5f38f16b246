"""Mean and deviation of images that were agreed on, in place of those of the training images."""

from pathlib import Path

import numpy as np
import pytest
import torch

from unskew.data.rows import as_tensor
from unskew.data.sources import load

RNG = np.random.default_rng(3)
GREY = {"mean": [0.5], "std": [0.25]}


def saved(folder: Path, x: np.ndarray, name: str = "mine") -> str:
    y = np.arange(len(x)) % 2
    np.savez(folder / f"{name}.npz", x_train=x[:-4], y_train=y[:-4], x_test=x[-4:], y_test=y[-4:])
    return f"npz:{folder / name}.npz"


def test_pixels_are_standardised_by_the_numbers_given(tmp_path: Path) -> None:
    """Levels 0, 51 and 255 are 0, .2 and 1, so (0 - .5) / .25 = -2, -1.2 and 2, whatever else is in the images."""
    x = RNG.integers(0, 255, (12, 5, 5), np.uint8)
    x[[0, -1], 0, :3] = 0, 51, 255
    for source in (saved(tmp_path, x), saved(tmp_path, np.concatenate([x[:6], x // 2 + 1, x[6:]]), "darker")):
        data = load(source, None, GREY)
        assert as_tensor(data.x_train)[0, 0, 0, :3].tolist() == pytest.approx([-2.0, -1.2, 2.0])
        assert as_tensor(data.x_test)[-1, 0, 0, :3].tolist() == pytest.approx([-2.0, -1.2, 2.0])
        assert (data.inputs.mean, data.inputs.std, data.inputs.levels) == ((0.5,), (0.25,), ((-2.0, 2.0),))
    assert not torch.equal(
        as_tensor(load(saved(tmp_path, x)).x_train), as_tensor(load(saved(tmp_path, x), None, GREY).x_train)
    )
