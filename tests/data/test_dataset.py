"""Data sets of tensors, which a function of one's own returns: what they become, and what is refused."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from unskew.data import Dataset, checked


def rows(n: int) -> Tensor:
    return torch.arange(2.0 * n).reshape(n, 2)


def labels(*values: int) -> Tensor:
    return torch.tensor(values)


def built(**changes: Any) -> Dataset:
    fields = {"x_train": rows(3), "y_train": labels(0, 1, 2), "x_test": rows(2), "y_test": labels(0, 1), **changes}
    return checked("toy", **fields)


def test_a_data_set_knows_its_shape_classes_and_types():
    data = built(x_train=rows(3).double(), x_test=rows(2).double(), y_train=labels(0, 1, 2).to(torch.uint8))
    assert (data.input_shape, data.num_classes, data.classes) == ((2,), 3, ("0", "1", "2"))
    assert (data.x_train.dtype, data.y_train.dtype) == (torch.float32, torch.int64)
    assert built(y_train=labels(0, 2, 2)).num_classes == 3
    assert built(classes=["a", "b", "c", "d"]).num_classes == 4
    ids = built(x_train=torch.zeros(3, 4, dtype=torch.int64), x_test=torch.zeros(2, 4, dtype=torch.int64))
    assert ids.x_train.dtype == torch.int64


def test_domains_and_clients_have_names():
    data = built(domain_train=labels(0, 1, 1), domains=["photo", "sketch"], client_train=labels(0, 1, 1))
    assert data.domains is not None
    assert (data.domains.tolist(), data.domain_names, data.client_names) == ([0, 1, 1], ("photo", "sketch"), ("0", "1"))


def test_the_hash_follows_the_content():
    assert built().sha256 == built().sha256
    assert built().sha256 != built(x_train=rows(3) + 1).sha256
    assert built().sha256 != built(y_train=labels(2, 1, 0)).sha256


def test_many_examples_may_have_many_clients() -> None:
    n = 600
    data = built(x_train=rows(n), y_train=torch.arange(n) % 3, client_train=2 * np.arange(n))
    assert len(data.client_names) == 2 * (n - 1) + 1
