"""Data as a user has them in Python: every form becomes the same table, and what cannot be meant is refused."""

import warnings
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pandas
import polars
import pytest
import torch
from torch.utils.data import IterableDataset

import unskew as us
from unskew.data import own
from unskew.data.dataset import Dataset
from unskew.data.preprocess import Preprocess
from unskew.data.rows import as_tensor
from unskew.errors import DataError

RNG = np.random.default_rng(7)
X, Y = RNG.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3
COLUMNS = {
    "a": X[:, 0],
    "b": X[:, 1],
    "kind": np.array(["cat", "cow", "dog"])[Y],
    "town": np.repeat(["Ost", "West"], 30),
}
FRAMES = [pandas.DataFrame, polars.DataFrame]


def same(one: Dataset, other: Dataset) -> bool:
    """Equal tensors, classes and clients."""
    tensors = [(as_tensor(d.x_train), d.y_train, as_tensor(d.x_test), d.y_test) for d in (one, other)]
    return all(torch.equal(a, b) for a, b in zip(*tensors, strict=True)) and (
        one.classes,
        one.client_names,
        one.sha256,
    ) == (other.classes, other.client_names, other.sha256)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# ---------------------------------------------------------------- arrays
def test_a_share_is_set_aside_of_each_class_and_the_same_in_every_call() -> None:
    """20 rows of each of 3 classes: .25 of them are 5."""
    one, other = (own.dataset((X, Y), test_fraction=0.25) for _ in range(2))
    assert same(one, other)
    assert np.bincount(one.y_test.numpy()).tolist() == [5, 5, 5]


@pytest.mark.parametrize("frame", FRAMES)
def test_a_lone_column_of_vectors_is_an_array_of_them(frame: Any) -> None:
    data = own.dataset(frame({"x": list(X), "kind": Y}), target="kind")
    assert torch.equal(as_tensor(data.x_train), as_tensor(own.dataset((X, Y)).x_train))


def test_a_test_part_is_taken_as_it_is() -> None:
    given = own.dataset((X[:50], Y[:50]), test=(X[50:], Y[50:]))
    assert torch.equal(given.x_test, torch.from_numpy(X[50:]))
    assert len(own.dataset((X, Y), test=given).y_test) == 10


# ---------------------------------------------------------------- labels
@pytest.mark.parametrize("make", FRAMES)
def test_codes_of_a_table_are_names(make: Any) -> None:
    frame = make({"a": X[:, 0], "kind": Y % 2 + 1})
    data = own.dataset(frame, target="kind")
    assert (data.classes, data.label_type) == (("1", "2"), "integer")
    assert own.dataset(frame, target="kind", classes=("2", "1")).classes == ("2", "1")
    with pytest.raises(DataError, match=r"is 2 in row 1, none of the 2 classes"):
        own.dataset(frame, target="kind", classes=("1", "3"))


def test_declared_classes_may_not_occur_and_keep_their_order() -> None:
    data = own.dataset((X, np.array(["b", "a", "c"])[Y]), classes=("c", "b", "a", "d"))
    assert (data.classes, data.ordered) == (("c", "b", "a", "d"), True)


# ---------------------------------------------------------------- frames
@pytest.mark.parametrize("make", FRAMES)
def test_a_frame_of_each_client_is_one_table_with_their_names(make: Any) -> None:
    frame = pandas.DataFrame({**COLUMNS, "ward": np.array(["n", "s"])[Y % 2]})
    parts = {town: make(of.drop(columns="town").to_dict("list")) for town, of in frame.groupby("town")}
    whole = own.dataset(make(frame.to_dict("list")), target="kind", client="town", preprocess=Preprocess())
    assert same(whole, own.dataset(parts, target="kind", preprocess=Preprocess()))


def test_clients_numbers_are_sorted_by_size_and_decimals_are_numbers() -> None:
    frame = pandas.DataFrame({"a": [Decimal("1.5"), Decimal(2)] * 30, "y": Y, "site": [10, 9, 100] * 20})
    data = own.dataset(frame, target="y", client="site")
    assert data.client_names == ("9", "10", "100")
    assert sorted(set(data.x_train.flatten().tolist())) == [1.5, 2.0]


# ---------------------------------------------------------------- other libraries
class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([(X[0], 0)])


# ---------------------------------------------------------------- roles of rows
def test_a_row_is_named_where_its_owner_finds_it() -> None:
    frame = pandas.DataFrame({"a": np.where(np.arange(30) == 4, np.nan, 1.0), "y": Y[:30]})
    with pytest.raises(DataError, match="row 4 of West"):
        own.dataset({"Ost": frame.fillna(0.0), "West": frame}, target="y")
    with pytest.raises(DataError, match="row 4 of the test rows"):
        own.dataset(frame.fillna(0.0), target="y", test=frame)


def refusals() -> dict[str, tuple[Callable[[], object], str]]:
    frame, kind = pandas.DataFrame(COLUMNS), {"target": "kind"}
    shuffled = pandas.Series(Y).sample(frac=1, random_state=0)
    return {
        "one column for two roles": (lambda: own.dataset(frame, target="town", client="town"), "'town' is named twice"),
        "a lazy frame": (lambda: own.dataset(polars.DataFrame({"a": X[:, 0], "kind": Y}).lazy(), **kind), "collect"),
        "no label": (lambda: own.dataset((X, [None, *Y[1:].tolist()])), "row 0"),
        "files": (lambda: own.dataset(([f"{i}.png" for i in range(60)], Y)), "names of image files"),
        "a missing text": (lambda: own.dataset((["a b", None, *["c"] * 58], Y)), "row 1"),
        "patients at one client only": (
            lambda: own.dataset({"a": (X, Y, Y), "b": (X, Y)}),
            "whether patients are named",
        ),
        "other index": (lambda: own.dataset((pandas.DataFrame(X), shuffled)), "another order"),
        "an unknown test client": (lambda: own.dataset({"a": (X, Y), "b": (X, Y)}, test={"c": (X, Y)}), "client 'c'"),
        "a stream": (lambda: own.dataset(Stream()), "no fixed examples"),
        "channels last": (lambda: own.dataset((RNG.random((60, 8, 8, 4)).astype("f"), Y)), "channels last"),
    }


@pytest.mark.parametrize("name", refusals())
def test_what_cannot_be_meant_is_refused(name: str) -> None:
    call, says = refusals()[name]
    with pytest.raises(us.UnskewError, match=says):
        call()


def test_a_list_of_data_sets_is_one_a_client_by_number() -> None:
    halves = [(X[:30], Y[:30]), (X[30:], Y[30:])]
    named = own.dataset(dict(enumerate(halves)))
    sets = [torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y)) for x, y in halves]
    for given in (halves, sets, [torch.utils.data.DataLoader(one, batch_size=7) for one in sets]):
        data = own.dataset(given)
        assert (data.sha256, data.client_names) == (named.sha256, ("0", "1"))
    pair = own.dataset([X, Y])  # a list of arrays is no list of clients
    assert pair.sha256 == own.dataset((X, Y)).sha256


def test_train_and_test_are_parts_and_no_clients_in_any_form() -> None:
    halves = {"train": (X[:40], Y[:40]), "test": (X[40:], Y[40:])}
    sets = {name: torch.utils.data.TensorDataset(*map(torch.tensor, of)) for name, of in halves.items()}
    for data in (own.dataset(halves), own.dataset(sets)):
        assert (len(data.x_train), len(data.x_test), data.client_names) == (40, 20, ())


def test_a_column_of_texts_that_is_the_only_input_is_texts() -> None:
    notes = [f"{what} since {day} days" for what in ("a cough", "no fever", "chest pain") for day in range(20)]
    table = pandas.DataFrame({"note": notes, "kind": np.resize(["a", "b"], 60), "few": np.resize(["x", "y"], 60)})
    data = own.dataset(table[["note", "kind"]], target="kind")
    assert data.inputs.kind == "texts"
    assert data.sha256 == own.dataset((notes, table["kind"])).sha256
    with pytest.raises(DataError, match="column 'few' holds words"):
        own.dataset(table[["few", "kind"]], target="kind")
