from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from unskew.data.dataset import Dataset
from unskew.data.domains import coloured, join
from unskew.data.sources import load
from unskew.keys import Key


@pytest.fixture(autouse=True)
def no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNSKEW_DATA", raising=False)


def arrays(n: int, n_test: int, size: int, colour: bool, seed: int = 0) -> dict[str, npt.NDArray[Any]]:
    rng = np.random.default_rng(seed)
    shape = (size, size, 3) if colour else (size, size)
    return {
        "x_train": rng.integers(0, 256, (n, *shape), dtype=np.uint8),
        "y_train": np.arange(n) % 10,
        "x_test": rng.integers(0, 256, (n_test, *shape), dtype=np.uint8),
        "y_test": np.arange(n_test) % 10,
    }


SETS = {
    "mnist": arrays(60, 20, 28, False),
    "usps": arrays(40, 30, 16, False),
    "mnist_m": arrays(50, 12, 32, True),
    "svhn": arrays(45, 25, 32, True),
    "synth_digits": arrays(70, 15, 32, True),
}


def folder(path: Path, *names: str) -> Path:
    for name in names:
        np.savez(path / f"{name}.npz", **SETS[name])  # type: ignore[arg-type]
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return load("digit_domains", folder(tmp_path_factory.mktemp("data"), "mnist", "usps", "mnist_m"))


# printed digits


# one layout


def test_mnist_m_is_cut_to_the_mnist_digit_and_others_are_resampled():
    x = SETS["mnist_m"]["x_train"][:4]
    part = x, np.arange(4), x[:2], np.arange(2)
    whole = join({"mnist_m": part, "svhn": part}, Key(0))
    assert np.array_equal(whole["x_train"][:4], x[:, 2:30, 2:30])
    assert np.array_equal(whole["x_train"][4:], coloured(x))


# data sets


def test_five_domains_are_equally_large_and_in_order(small: Dataset):
    """The smallest training part is USPS's 40, the smallest test part MNIST-M's 12."""
    assert small.domain_names == ("mnist", "usps", "mnist_m", "digits", "printed")
    assert (tuple(small.x_train.shape), tuple(small.x_test.shape)) == ((200, 3, 28, 28), (60, 3, 28, 28))
    assert small.domains is not None
    assert small.domains.tolist() == [g for g in range(5) for _ in range(40)]
    assert small.y_train[160:].bincount().tolist() == [4] * 10
    assert small.classes == tuple("0123456789")


def test_a_domain_keeps_its_examples_and_their_labels(small: Dataset):
    """All 40 of USPS stay, in order; of MNIST's 60, 40 do, and each is one of them with its label."""
    x = SETS["usps"]["x_train"]
    where = small.domains == 1
    assert small.y_train[where].tolist() == SETS["usps"]["y_train"].tolist()
    grey = small.x_train[where]
    spread = coloured(x).astype(np.float64)[..., 0]
    assert np.corrcoef(grey[:, 0].numpy().ravel(), spread.ravel())[0, 1] == pytest.approx(1)
    red = small.x_train[small.domains == 0][:, 0].reshape(40, -1).double().numpy()
    theirs = SETS["mnist"]["x_train"].reshape(60, -1).astype(np.float64)
    alike = np.corrcoef(red, theirs)[:40, 40:]
    assert alike.max(1) == pytest.approx(np.ones(40))
    assert SETS["mnist"]["y_train"][alike.argmax(1)].tolist() == small.y_train[small.domains == 0].tolist()


# clients


# real files
