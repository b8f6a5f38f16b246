"""Digits of five domains in one layout: the same ten classes, seen in five ways.

`digit_domains` needs three files only.  `digit_five` is the set of X. Li et al., "FedBN", ICLR 2021, that HCCT's Digit
is taken from: all five from files.

Every domain has as many training and test examples as the smallest, drawn under a fixed key.  Images are 28x28 RGB:
grey ones have three equal channels, other sizes are resampled bilinearly, and MNIST-M, which has a border of two
pixels, is cropped.

Departures FedBN evens out the training parts only: its test parts have the sizes of their sources.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from unskew.data.fonts import SIZE, printed
from unskew.keys import Key

_Images = npt.NDArray[np.uint8]
_Ints = npt.NDArray[np.int64]


Part = tuple[_Images, _Ints, _Images, _Ints]
"""One domain: uint8 images (N, H, W) or (N, H, W, 1 or 3) and their labels, for training and then for testing."""


def join(parts: Mapping[str, Part | None], key: Key) -> dict[str, npt.NDArray[Any]]:
    """The domains one after the other, of equal size, in the plain layout of `unskew.data.arrays`.

    Without a part, digits are printed, as many as the others allow.  Draws of one domain do not depend on the others.
    """
    read = {name: part for name, part in parts.items() if part is not None}
    n, n_test = (min(len(part[i]) for part in read.values()) for i in (1, 3))
    columns = [
        _printed(n, n_test, key / name) if part is None else _drawn(name, part, n, n_test, key / name)
        for name, part in parts.items()
    ]
    keys = ("x_train", "y_train", "x_test", "y_test")
    return {
        **{key: np.concatenate([column[i] for column in columns]) for i, key in enumerate(keys)},
        "domain_train": np.repeat(np.arange(len(parts)), n),
        "domains": np.array(list(parts), dtype=np.str_),
    }


def _drawn(name: str, part: Part, n: int, n_test: int, key: Key) -> Part:
    x, y, x_test, y_test = part
    train = np.sort((key / "train").numpy().permutation(len(y))[:n])
    test = np.sort((key / "test").numpy().permutation(len(y_test))[:n_test])
    return coloured(_cut(name, x[train])), y[train], coloured(_cut(name, x_test[test])), y_test[test]


def _printed(n: int, n_test: int, key: Key) -> Part:
    y, y_test = np.arange(n, dtype=np.int64) % 10, np.arange(n_test, dtype=np.int64) % 10
    x = printed(np.concatenate([y, y_test]), key)
    return x[:n], y, x[n:], y_test


def _cut(name: str, x: _Images) -> _Images:
    return x[:, 2:-2, 2:-2] if name == "mnist_m" and x.shape[1:3] == (SIZE + 4, SIZE + 4) else x


def coloured(x: _Images) -> _Images:
    """Images (N, H, W) or (N, H, W, 1 or 3) of any size as RGB (N, 28, 28, 3); halves are rounded up.

    Bilinear between pixel centres, in integer arithmetic: the same on every machine.

    >>> coloured(np.full((1, 8, 8), 77, np.uint8))[0, 3, 5]
    array([77, 77, 77], dtype=uint8)
    """
    x = x[..., None] if x.ndim == 3 else x
    if x.shape[1:3] != (SIZE, SIZE):
        # Whole numbers below 2^53: exact as floats, whatever the order of the sums.
        down, across = _weights(x.shape[1]), _weights(x.shape[2])
        mixed = np.einsum("ai,bj,nijc->nabc", down, across, x.astype(np.float64), optimize=True).astype(np.int64)
        unit = (2 * SIZE) ** 2
        x = ((2 * mixed + unit) // (2 * unit)).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(x, (*x.shape[:3], 3)))


def _weights(size: int) -> npt.NDArray[np.float64]:
    """Shares of `size` pixels in 28, (28, size), times 56; beyond the outer centres only the outer pixel counts."""
    place = np.clip((2 * np.arange(SIZE) + 1) * size - SIZE, 0, 2 * SIZE * (size - 1))
    share: npt.NDArray[np.float64] = np.maximum(2.0 * SIZE - np.abs(place[:, None] - 2 * SIZE * np.arange(size)), 0.0)
    return share
