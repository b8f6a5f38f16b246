"""Tensors kept as one, against the tensors themselves."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unskew.data.manifest import Ragged

LISTS = st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=12)


@given(LISTS, st.randoms(use_true_random=False))
def test_each_tensor_comes_back(lists: list[list[int]], random) -> None:
    ragged = Ragged.of([torch.tensor(values, dtype=torch.int64) for values in lists])
    assert [t.tolist() for t in ragged] == lists
    assert len(ragged) == len(lists)
    chosen = [i for i in range(len(lists)) if random.random() < 0.5]
    random.shuffle(chosen)
    assert [t.tolist() for t in ragged.take(np.array(chosen, np.int64))] == [lists[i] for i in chosen]


def test_numbers_beyond_the_last_tensor_are_refused() -> None:
    ragged = Ragged.of([torch.tensor([3, 5]), torch.tensor([1])])
    assert ragged[-1].tolist() == [1]
    with pytest.raises(IndexError):
        ragged[2]
