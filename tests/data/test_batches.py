import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unskew.data.batches import num_steps, plan
from unskew.errors import DataError
from unskew.keys import Key

key = Key(0)
sizes = st.none() | st.integers(2, 20)


@given(st.integers(2, 90), sizes, st.integers(1, 4), st.integers(1, 2), st.booleans())
def test_an_epoch_is_every_example_once(n: int, batch_size: int | None, epochs: int, min_batch: int, drop_last: bool):
    made = plan(n, batch_size=batch_size, epochs=epochs, key=key, min_batch=min_batch, drop_last=drop_last)
    parts = list(made.epochs())
    assert len(parts) == epochs
    for order, held in parts:
        assert len(order) == sum(held)
        assert len(set(order.tolist())) == len(order)
        assert set(order.tolist()) <= set(range(n))
        dropped = n % batch_size if drop_last and batch_size is not None and n > batch_size else 0
        assert len(order) == n - dropped
    assert min(made.sizes) >= min_batch
    assert batch_size is None or max(made.sizes) < batch_size + min_batch


@given(st.integers(2, 90), sizes, st.integers(1, 50), st.booleans(), st.integers(1, 2), st.booleans())
def test_the_count_agrees_with_the_plan(
    n: int, batch_size: int | None, amount: int, by_steps: bool, min_batch: int, drop_last: bool
):
    much = {"steps": amount} if by_steps else {"epochs": amount}
    made = plan(n, batch_size=batch_size, key=key, min_batch=min_batch, drop_last=drop_last, **much)
    count = num_steps(n, batch_size=batch_size, min_batch=min_batch, drop_last=drop_last, **much)
    assert count == len(made.sizes) == len(made.steps())
    assert sum(made.sizes) == len(made.order)
    assert not by_steps or count == amount


def test_a_full_batch_keeps_the_original_order():
    made = plan(4, batch_size=None, epochs=2, key=key)
    assert made.order.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert made.sizes == (4, 4)


def test_each_epoch_is_a_shuffle_of_its_own_and_does_not_depend_on_how_many_follow():
    two, three = (plan(50, batch_size=7, epochs=e, key=key) for e in (2, 3))
    first, second = (order for order, _ in two.epochs())
    assert not torch.equal(first, second)
    assert torch.equal(two.order, three.order[:100])
    assert not torch.equal(two.order, plan(50, batch_size=7, epochs=2, key=Key(1)).order)


def test_steps_are_the_beginning_of_as_many_epochs():
    """n 10 in batches of 4: 4, 4, 2 an epoch; 5 steps are one epoch and 4, 4 of the next."""
    made = plan(10, batch_size=4, steps=5, key=key)
    assert made.sizes == (4, 4, 2, 4, 4)
    assert torch.equal(made.order, plan(10, batch_size=4, epochs=2, key=key).order[:18])
    assert [held for _, held in made.epochs()] == [(4, 4, 2), (4, 4)]


@pytest.mark.parametrize(
    ("n", "min_batch", "drop_last", "sizes"),
    [
        (9, 1, False, (4, 4, 1)),
        (9, 2, False, (4, 5)),
        (10, 2, False, (4, 4, 2)),
        (9, 1, True, (4, 4)),
        (9, 2, True, (4, 4)),
        (3, 1, True, (3,)),
        (3, 2, False, (3,)),
        (8, 2, True, (4, 4)),
    ],
)
def test_the_last_batch(n: int, min_batch: int, drop_last: bool, sizes: tuple[int, ...]):
    """Batches of 4: a rest of 1 stays, joins the one before it (min_batch 2) or is dropped; an only batch never is."""
    assert plan(n, batch_size=4, epochs=1, key=key, min_batch=min_batch, drop_last=drop_last).sizes == sizes


@pytest.mark.parametrize(("n", "min_batch"), [(0, 1), (1, 2)])
@pytest.mark.parametrize("batch_size", [None, 4])
def test_a_client_with_too_little_data_is_refused(n: int, min_batch: int, batch_size: int | None):
    with pytest.raises(DataError, match=f"a client has {n} training examples, a batch needs at least {min_batch}"):
        plan(n, batch_size=batch_size, epochs=1, key=key, min_batch=min_batch)
