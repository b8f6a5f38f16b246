"""What is wrong with arrays is named by their own rows, and labels are what people have."""

from typing import Any

import numpy as np
import pytest

from unskew.data import arrays, build
from unskew.data.dataset import Dataset
from unskew.data.federated import federate
from unskew.data.split import Natural
from unskew.errors import DataError
from unskew.keys import Key

N = 40


def made(x: Any, y: Any, **more: Any) -> Dataset:
    return build.dataset(arrays.table("mine", {"x_train": x, "y_train": y, **more}, own=False))


def numbers() -> Any:
    return np.arange(2.0 * N, dtype=np.float32).reshape(N, 2)


# ---------------------------------------------------------------- rows
@pytest.mark.parametrize("row", range(N))
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.nan, "a NaN or infinite value; clean the data or "),
        (-np.inf, "a NaN or infinite value; clean the data or "),
        (-1e300, r"the value -1e\+300, and networks take float32"),
    ],
)
def test_a_value_that_is_no_number_is_named_by_its_row_as_given(row: int, value: float, text: str) -> None:
    """A fifth of the rows is set aside for the test part, here any of them: the row is the user's all the same."""
    x = numbers().astype(np.float64)
    x[row, 1] = value
    with pytest.raises(DataError, match=rf"row {row} has {text}"):
        made(x, np.arange(N) % 4)


# ---------------------------------------------------------------- labels
def test_labels_far_apart_are_classes_by_their_own_names() -> None:
    """{1, 999} are two classes, not a thousand."""
    y = np.array([1, 999] * (N // 2))
    data = made(numbers(), y)
    assert data.classes == ("1", "999")
    plain = made(numbers(), (y == 999).astype(np.int64))
    assert data.y_train.equal(plain.y_train)
    assert data.x_test.equal(plain.x_test)


def test_words_are_labels_in_alphabetical_order_or_in_that_of_the_classes() -> None:
    y = np.array(["dog", "cat", "ape", "dog"] * (N // 4))
    assert made(numbers(), y).classes == ("ape", "cat", "dog")
    data = made(numbers(), y, classes=np.array(["dog", "ape", "cat", "cow"]))
    assert data.classes == ("dog", "ape", "cat", "cow")
    assert data.y_train.bincount(minlength=4).tolist() == [16, 8, 8, 0]
    with pytest.raises(DataError, match=r"'dog' in row 0, none of the 3 classes; did you mean dogs\?"):
        made(numbers(), y, classes=np.array(["ape", "cat", "dogs"]))


# ---------------------------------------------------------------- shares of a client
@pytest.mark.parametrize("seed", range(20))
def test_a_client_s_few_events_are_in_every_part_that_has_room_for_one(seed: int) -> None:
    """5 events of 100 at each client: .2 of them is 1 to test; of the 4 of 80 left .25 is 1 to validate, 3 train."""
    y, client = np.arange(300) % 20 == 7, np.arange(300) // 100
    given = {"x_train": np.zeros((300, 1), np.float32), "y_train": y.astype(np.int64), "client_train": client}
    data = build.dataset(arrays.table(f"draw {seed}", given, own=False, apart=True))
    fed = federate(data, Natural(), Key(seed), val_fraction=0.25)
    labels = data.y_train.numpy()
    for of in fed.clients:
        sizes, events = zip(*[(len(part), labels[part].sum()) for part in (of.test, of.val, of.train)], strict=True)
        assert (sizes, events) == ((20, 20, 60), (1, 1, 3))
