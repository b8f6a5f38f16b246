"""Raw inputs become what was trained on, to the bit."""

from pathlib import Path

import numpy as np
import pytest
import torch

from unskew.data.inputs import Inputs
from unskew.data.sources import load
from unskew.data.text import tokens, vocabulary
from unskew.errors import DataWarning


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


def test_numbers_stay_as_they_are(tmp_path: Path):
    x = np.random.default_rng(0).normal(size=(12, 3))
    dataset = load(npz(tmp_path / "x.npz", x))
    assert torch.equal(dataset.inputs.prepare(x), dataset.x_train)


def test_texts_become_the_ids_of_the_words_that_were_trained_on():
    texts = ["a good film", "a bad film", "a film"]
    inputs = Inputs("texts", vocabulary=tuple(vocabulary(texts)))
    assert torch.equal(inputs.prepare(["a good play"]), tokens(["a good play"], vocabulary(texts)))


TRAINED = {
    "grey": (np.arange(12 * 6 * 6) % 256).astype(np.uint8).reshape(12, 6, 6),
    "colour": np.linspace(0, 1, 12 * 6 * 5 * 3).reshape(12, 6, 5, 3),
    "row": np.linspace(-1, 1, 36).reshape(12, 3),
    "ids": np.arange(48).reshape(12, 4),
}


def test_whole_numbers_in_a_row_of_floats_are_floats_and_token_ids_may_be_fewer(tmp_path: Path):
    row, ids = (load(npz(tmp_path / "x.npz", TRAINED[name])).inputs for name in ("row", "ids"))
    assert torch.equal(row.prepare([[1, 2, 3]]), torch.tensor([[1.0, 2.0, 3.0]]))
    assert torch.equal(ids.prepare([[1, 2]]), torch.tensor([[1, 2]]))


@pytest.mark.parametrize(
    ("trained", "factor", "text"),
    [
        ("colour", 255.0, "pixels reach 255, and those of training 1; scale them as those were"),
        ("colour", 0.01, "pixels reach 0.01, and those of training 1"),
        ("grey", 1 / 255, "pixels reach 1, and those of training 255"),
    ],
)
def test_pixels_on_another_scale_than_in_training_are_warned_of(trained: str, factor: float, text: str, tmp_path: Path):
    x = TRAINED[trained]
    inputs = load(npz(tmp_path / "x.npz", x)).inputs
    with pytest.warns(DataWarning, match=text):
        inputs.prepare((x * factor).astype(x.dtype))
    inputs.prepare(np.zeros_like(x))
