"""Raw inputs become what was trained on, to the bit."""

from pathlib import Path

import numpy as np
import pytest
import torch

from unskew.data.inputs import Inputs, tokens, vocabulary
from unskew.data.sources import load


def npz(path: Path, x: np.ndarray) -> str:
    y = np.arange(len(x)) % 2
    np.savez(path, x_train=x, y_train=y, x_test=x[:2], y_test=y[:2])
    return f"npz:{path}"


@pytest.mark.parametrize("shape", [(12, 5, 4), (12, 5, 4, 3), (12, 3, 5, 4), (12, 1, 5, 4), (12, 3, 5, 3)])
def test_images_become_the_very_tensors_that_were_trained_on(shape: tuple[int, ...], tmp_path: Path):
    x = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    dataset = load(npz(tmp_path / "x.npz", x))
    for raw in (x, torch.from_numpy(x), x.astype(np.float64), x.astype(np.int32)):
        assert torch.equal(dataset.inputs.prepare(raw), dataset.x_train)


@pytest.mark.parametrize("shape", [(12, 5, 4), (12, 5, 4, 3), (12, 5, 4, 1), (12, 3, 5, 4), (12, 2, 5, 4)])
def test_images_of_floats_become_the_very_tensors_that_were_trained_on(shape: tuple[int, ...], tmp_path: Path):
    x = np.random.default_rng(0).random(shape)
    dataset = load(npz(tmp_path / "x.npz", x))
    for raw in (x, torch.from_numpy(x), dataset.x_train):
        assert torch.equal(dataset.inputs.prepare(raw), dataset.x_train)


def test_texts_become_the_ids_of_the_words_that_were_trained_on():
    texts = ["a good film", "a bad film", "a film"]
    inputs = Inputs("texts", vocabulary=tuple(vocabulary(texts)))
    assert torch.equal(inputs.prepare(["a good play"]), tokens(["a good play"], vocabulary(texts)))
