"""Raw inputs become what was trained on, to the bit."""

from pathlib import Path

import numpy as np
import pytest
import torch

from unskew.data.inputs import Inputs
from unskew.data.sources import load
from unskew.data.text import tokens, vocabulary
from unskew.errors import DataError


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


def test_a_constant_channel_stays_0(tmp_path: Path):
    dataset = load(npz(tmp_path / "x.npz", np.full((12, 5, 4), 7, np.uint8)))
    assert (dataset.inputs.mean, dataset.inputs.std) == ((7 / 255,), (0.0,))
    assert torch.equal(dataset.inputs.prepare(np.full((1, 5, 4), 200)), torch.zeros(1, 1, 5, 4))


def test_numbers_stay_as_they_are(tmp_path: Path):
    x = np.random.default_rng(0).normal(size=(12, 3))
    dataset = load(npz(tmp_path / "x.npz", x))
    assert torch.equal(dataset.inputs.prepare(x), dataset.x_train)


def test_texts_become_the_ids_of_the_words_that_were_trained_on():
    texts = ["a good film", "a bad film", "a film"]
    inputs = Inputs("texts", vocabulary=tuple(vocabulary(texts)))
    assert torch.equal(inputs.prepare(["a good play"]), tokens(["a good play"], vocabulary(texts)))


@pytest.mark.parametrize(
    ("inputs", "x", "text"),
    [
        (Inputs("images", (0.5,), (0.1,)), np.zeros((2, 4, 4, 3)), r"shape \(N, H, W\), like .* got \(2, 4, 4, 3\)"),
        (Inputs("images", (0.5,) * 3, (0.1,) * 3), np.zeros((2, 5, 4, 4)), r"shape \(N, H, W, 3\)"),
        (Inputs("images", (0.5,), (0.1,)), np.full((2, 4, 4), 0.3), "whole values from 0 to 255"),
        (Inputs("images", (0.5,), (0.1,)), np.full((2, 4, 4), -1), "whole values from 0 to 255"),
        (Inputs(), ["a text"], "a batch of numbers"),
        (Inputs(), np.zeros(4), r"a batch of numbers, got float64 of shape \(4,\)"),
        (Inputs("texts", vocabulary=("a",)), "a text", "a list of texts, got str"),
    ],
)
def test_what_are_no_such_inputs_is_refused(inputs: Inputs, x: object, text: str):
    with pytest.raises(DataError, match=text):
        inputs.prepare(x)
