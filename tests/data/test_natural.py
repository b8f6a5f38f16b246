"""Data sets whose clients are really there: whose rows, whose test rows, scaled by which numbers."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from unskew.data import load
from unskew.data.federated import federate
from unskew.data.preprocess import Preprocess
from unskew.data.split import Natural
from unskew.keys import Key

RNG = np.random.default_rng(2)


def test_heart_comes_with_its_hospitals_and_flambys_test_patients() -> None:
    """Train and test patients of each hospital, and those with the disease, as the paper's table has them."""
    data = load("heart")
    fed = federate(data, Natural(), Key(0))
    assert fed.client_names == ("Cleveland", "Hungary", "Switzerland", "Long Beach V.A.")
    assert [(len(c.train), len(c.test)) for c in fed.clients] == [(199, 104), (172, 89), (30, 16), (85, 45)]
    assert [int(data.y_train[c.train].sum()) for c in fed.clients] == [91, 65, 30, 66]
    assert [int(data.y_train[c.test].sum()) for c in fed.clients] == [48, 33, 15, 35]
    assert len(data.y_test) == 254
    assert data.classes == ("no disease", "disease")


def test_heart_is_scaled_by_each_hospitals_training_patients_as_flamby_does() -> None:
    """(x - mean) / (sd + 1e-9), sd with n - 1; Switzerland's cholesterol is 0 throughout and stays so."""
    raw, data = load("heart", preprocess=Preprocess("none")), load("heart")
    assert data.owners is not None
    assert data.own_test is not None
    for centre in range(4):
        mine = data.owners == centre
        train = raw.x_train[mine & ~data.own_test].double()
        wanted = (raw.x_train[mine].double() - train.mean(0)) / (train.std(0) + 1e-9)
        assert torch.allclose(data.x_train[mine].double(), wanted, atol=1e-5)
    chol = [c.name for c in data.inputs.columns].index("chol")
    assert data.x_train[data.owners == 2, chol].unique().tolist() == [0.0]


def saved(folder: Path, name: str, **arrays: Any) -> None:
    np.savez(folder / f"{name}.npz", **arrays)


def test_writers_of_the_test_images_come_after_training(tmp_path: Path) -> None:
    """Two writers train, two others wrote the test images; their images are theirs to adapt with and to test on."""
    images = {f"x_{part}": RNG.integers(0, 255, (20, 4, 4), np.uint8) for part in ("train", "test")}
    saved(tmp_path, "mnist", **images, y_train=np.arange(20) % 10, y_test=np.arange(20) % 10)
    writer = np.repeat([5, 2100], 10).astype(np.uint16)
    hsf = np.repeat([0, 4], 10).astype(np.uint8)
    saved(tmp_path, "mnist_writers", writer_train=writer, writer_test=writer + 300, hsf_train=hsf, hsf_test=hsf)
    data = load("mnist_writers", tmp_path)
    assert data.never_train == ("writer 305", "writer 2400")
    fed = federate(data, Natural(), Key(0))
    assert (fed.client_names, fed.domains) == (("writer 5", "writer 2100"), [0, 1])
    assert fed.unseen is not None
    assert (fed.unseen.client_names, fed.unseen.domains) == (data.never_train, [0, 1])
    assert [(len(c.train), len(c.test)) for c in fed.unseen.clients] == [(8, 2), (8, 2)]
    # Brightness is brought to one scale by the images that are trained on.
    one = load("mnist_writers", tmp_path).inputs
    bright = {**images, "x_test": np.full((20, 4, 4), 255, np.uint8)}
    saved(tmp_path, "mnist", **bright, y_train=np.arange(20) % 10, y_test=np.arange(20) % 10)
    assert load("mnist_writers", tmp_path).inputs == one
    assert len(data.y_test) == 20
