"""Data that people have at hand, in every form, become one `Dataset`."""

import math
import random
import warnings
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pandas
import polars
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset
from torch.utils.data import Dataset as TorchDataset

from unskew import tasks
from unskew.data import FromManifest, Natural, federate, load, own, tables, to_manifest
from unskew.data.dataset import Dataset
from unskew.data.describe import describe
from unskew.data.images import as_tensor
from unskew.data.own.clients import one_table
from unskew.data.own.values import truths
from unskew.data.preprocess import ColumnRule, Preprocess
from unskew.data.saved import save
from unskew.data.split import IID
from unskew.errors import DataError, DataWarning
from unskew.keys import Key

# The towns have one class each, which is warned of.
pytestmark = pytest.mark.filterwarnings("ignore::unskew.errors.DataWarning")
RNG = np.random.default_rng(1)
X = RNG.normal(size=(60, 4)).astype(np.float32)
Y = np.arange(60) % 3
PIXELS = RNG.integers(0, 256, (60, 6, 5), dtype=np.uint8)
TOWNS = np.array(["Chur", "Basel", "Bern"])[np.arange(60) % 3]
TABLE = {**{f"m{i}": X[:, i].tolist() for i in range(4)}, "town": TOWNS.tolist(), "kind": [f"k{y}" for y in Y]}


def equal(a: Dataset, b: Dataset) -> bool:
    pairs = ((getattr(a, part), getattr(b, part)) for part in ("x_train", "y_train", "x_test", "y_test"))
    return all(p.dtype == q.dtype and torch.equal(p, q) for p, q in pairs)


class Part:
    """As much of a Hugging Face dataset as is used: column_names, features, and columns by name."""

    def __init__(self, columns: Mapping[str, Sequence[Any]], names: Mapping[str, list[str]] = {}) -> None:
        self._columns, self.column_names = columns, list(columns)
        self.features = {c: SimpleNamespace(names=names[c]) if c in names else object() for c in columns}

    def __getitem__(self, column: str) -> Sequence[Any]:
        return self._columns[column]


# ---------------------------------------------------------------- forms
def test_arrays_tensors_lists_and_frames_are_the_same_data_as_a_file(tmp_path: Path) -> None:
    """One set of rules: what a file gets, arrays get, the part that is set aside included."""
    np.savez(tmp_path / "a.npz", x_train=X, y_train=Y)
    from_file = load(f"npz:{tmp_path / 'a.npz'}")
    for pair in (
        (X, Y),
        (torch.from_numpy(X), torch.from_numpy(Y)),
        [X.tolist(), Y.tolist()],
        (X.astype(np.float64), Y.astype(np.float64)),
        (torch.from_numpy(X).double().requires_grad_(), Y[:, None]),
        (pandas.DataFrame(X), pandas.Series(Y)),
    ):
        assert equal(own.dataset(pair), from_file)


def test_images_are_scaled_the_same_however_they_are_laid_out(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x_train=PIXELS, y_train=Y)
    from_file = load(f"npz:{tmp_path / 'a.npz'}")
    assert from_file.input_shape == (1, 6, 5)
    assert float(from_file.x_train.mean()) == pytest.approx(0, abs=1e-5)
    for x in (PIXELS, PIXELS.astype(np.int64), PIXELS[..., None], PIXELS[:, None], torch.from_numpy(PIXELS)):
        given = own.dataset((x, Y))
        assert equal(given, from_file)
        assert (given.levels, given.inputs) == (from_file.levels, from_file.inputs)


def test_images_of_floats_keep_their_values_and_get_channels_first() -> None:
    grey = PIXELS.astype(np.float32) / 255
    colour = np.stack([grey, 2 * grey, 3 * grey], axis=3)
    assert equal(own.dataset((grey, Y)), own.dataset((grey[:, None], Y)))
    given = own.dataset((colour, Y))
    assert given.input_shape == (3, 6, 5)
    assert torch.allclose(given.x_train[:, 1], 2 * given.x_train[:, 0])


def test_whole_numbers_in_two_dimensions_are_token_ids() -> None:
    given = own.dataset((np.arange(120).reshape(60, 2).astype(np.int32), Y))
    assert given.x_train.dtype == torch.int64


def test_a_test_part_that_is_given_is_the_global_test_set() -> None:
    given = own.dataset((X[:50], Y[:50]), test=(X[50:], Y[50:]))
    assert torch.equal(given.x_test, torch.from_numpy(X[50:]))
    assert len(given.x_train) == 50
    known = own.dataset((X, Y), test=given)  # a data set of ours gives its test part
    assert torch.equal(known.x_test, given.x_test)


def test_without_one_a_share_of_each_class_is_set_aside_the_same_in_every_call() -> None:
    """60 rows of 3 classes: at .25 there are 5 of each class aside."""
    first, second = (own.dataset((X, Y), test_fraction=0.25) for _ in range(2))
    assert first.y_test.bincount().tolist() == [5, 5, 5]
    assert equal(first, second)
    rows = {tuple(row) for row in X.tolist()}
    assert {tuple(r) for r in first.x_train.tolist()} | {tuple(r) for r in first.x_test.tolist()} == rows


def test_clients_given_by_name_hold_their_own_rows_and_keep_their_names() -> None:
    """30, 20 and 10 rows: a fifth of each client's is set aside for all, 6, 4 and 2."""
    data = {"Basel": (X[:30], Y[:30]), 7: (X[30:50], Y[30:50]), "Chur": (X[50:], Y[50:])}
    given = own.dataset(data)
    assert given.client_names == ("Basel", "7", "Chur")
    assert given.owners is not None
    assert given.owners.bincount().tolist() == [24, 16, 8]
    fed = federate(given, Natural(), Key(3))
    assert fed.client_names == ("Basel", "7", "Chur")
    theirs = {tuple(row) for row in X[30:50].tolist()}
    for part in (fed.clients[1].train, fed.clients[1].test):
        assert {tuple(row) for row in given.x_train[part].tolist()} <= theirs
    held_out = {tuple(row) for row in given.x_test.tolist()}
    assert not held_out & {tuple(row) for row in given.x_train.tolist()}


def test_names_stand_in_the_manifest_and_a_manifest_brings_them_back(tmp_path: Path) -> None:
    import json

    given = own.dataset(pandas.DataFrame(TABLE), target="kind", client="town")
    fed = federate(given, Natural(), Key(0))
    manifest = to_manifest(fed)
    assert manifest["classes"] == ["k0", "k1", "k2"]
    assert manifest["client_names"] == ["Basel", "Bern", "Chur"]
    (tmp_path / "m.json").write_text(json.dumps(manifest))
    again = federate(given, FromManifest(str(tmp_path / "m.json")), Key(1))
    assert (again.client_names, again.sha256) == (fed.client_names, fed.sha256)


def test_clients_of_one_domain_are_named_after_it() -> None:
    from unskew.data import ByGroup
    from unskew.data.dataset import checked

    domains = torch.arange(60) % 2
    parts = torch.from_numpy(X), torch.from_numpy(Y)
    given = checked("d", *parts, *parts, domains=domains, domain_names=("mnist", "usps"))
    assert federate(given, ByGroup(), Key(0)).client_names == ("mnist", "usps")
    assert federate(given, ByGroup(clients_per_group=2), Key(0)).client_names == (
        "mnist 1",
        "mnist 2",
        "usps 1",
        "usps 2",
    )
    assert federate(given, IID(num_clients=3), Key(0)).client_names is None


@pytest.mark.parametrize("frame", [pandas.DataFrame(TABLE), polars.DataFrame(TABLE)], ids=["pandas", "polars"])
def test_a_table_has_measurements_labels_and_clients_by_column(frame: Any) -> None:
    given = own.dataset(frame, target="kind", client="town")
    assert given.classes == ("k0", "k1", "k2")
    assert given.client_names == ("Basel", "Bern", "Chur")  # by name; of {client: (x, y)} as given
    assert given.input_shape == (4,)
    row = X.tolist().index(given.x_train[0].tolist())
    assert given.classes[int(given.y_train[0])] == TABLE["kind"][row]
    assert given.owners is not None
    assert given.client_names[int(given.owners[0])] == TOWNS[row]
    alone = own.dataset(frame.drop(["town"], axis=1) if hasattr(frame, "iloc") else frame.drop("town"), target="kind")
    assert alone.owners is None


def test_columns_of_whole_numbers_and_truths_are_measurements_and_clients_are_ordered_by_number() -> None:
    frame = pandas.DataFrame({"age": Y + 30, "smokes": Y > 1, "y": Y, "site": [10, 9, 2] * 20})
    given = own.dataset(frame, target="y", client="site")
    assert given.x_train.dtype == torch.float32
    assert given.client_names == ("2", "9", "10")


@pytest.mark.parametrize("make", [pandas.DataFrame, polars.DataFrame], ids=["pandas", "polars"])
@pytest.mark.parametrize("rules", [None, Preprocess()], ids=["raw", "preprocess"])
def test_decimals_as_databases_give_them_are_numbers(make: Any, rules: Preprocess | None) -> None:
    ages = [Decimal(30 + label) / 4 for label in Y.tolist()]
    exact = {"age": ages, "stay": [Decimal(i) for i in range(60)], "y": list(map(Decimal, Y.tolist()))}
    floats = {"age": list(map(float, ages)), "stay": list(range(60)), "y": Y.tolist()}
    sites = [10, 9, 2] * 20
    given = own.dataset(make(exact | {"site": list(map(Decimal, sites))}), target="y", client="site", preprocess=rules)
    assert equal(given, own.dataset(make(floats | {"site": sites}), target="y", client="site", preprocess=rules))
    assert given.client_names == ("2", "9", "10")


def test_a_decimal_that_is_no_number_is_a_gap() -> None:
    ages = [Decimal("NaN"), *(Decimal(30 + label) for label in Y[1:].tolist())]
    with pytest.raises(DataError, match=r"column 'age' has no value in row 0; fill it"):
        own.dataset(pandas.DataFrame({"age": ages, "y": Y}), target="y")


def test_a_tables_test_part_has_the_same_columns_in_any_order() -> None:
    frame = pandas.DataFrame(TABLE)
    given = own.dataset(
        frame[:50], target="kind", client="town", test=frame[50:][frame.columns[::-1]].drop(columns="town")
    )
    assert given.x_test.tolist() == X[50:].tolist()


def test_a_torch_dataset_is_read_item_by_item() -> None:
    class Pictures(TorchDataset[Any]):
        classes = ("cat", "dog", "cow")

        def __len__(self) -> int:
            return 60

        def __getitem__(self, i: int) -> tuple[Image.Image, int]:
            return Image.fromarray(PIXELS[i]), int(Y[i])

    given = own.dataset(Pictures())
    assert (given.name, given.classes) == ("Pictures", ("cat", "dog", "cow"))
    assert equal(given, own.dataset((PIXELS, Y)))
    assert own.dataset(Subset(Pictures(), range(30))).classes == ("cat", "dog", "cow")
    tensors = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    assert equal(own.dataset(tensors), own.dataset((X, Y)))


def test_a_test_part_that_names_its_own_classes_is_read_by_their_names() -> None:
    """Its numbers are an order of its own: one that lacks a class, or has them in another order, shifts no label."""

    class Animals(TorchDataset[Any]):
        def __init__(self, *classes: str, labels: Sequence[int] = tuple(range(3)) * 20) -> None:
            self.classes, self.labels = list(classes), labels

        def __len__(self) -> int:
            return len(self.labels)

        def __getitem__(self, i: int) -> tuple[np.ndarray[Any, Any], int]:
            return X[i], self.labels[i]

    known = ("cat", "dog", "owl")
    words = np.array(known * 20)
    lacking = Animals("cat", "owl", labels=[0, 1] * 10)
    of_load = own.dataset((X, np.array(["cat", "owl"] * 30)))
    for train, classes in ((Animals(*known), None), ((X, Y), known), ((X, words), known), ((X, words), None)):
        for test, labels in ((lacking, [0, 2] * 10), (of_load, (2 * of_load.y_test).tolist())):
            given = own.dataset(train, test=test, classes=classes)
            assert (given.classes, given.y_test.tolist()) == (known, labels)
    numbered = own.dataset((X, 1 + Y), test=Animals("2", "3", labels=[0, 1] * 10), classes=("1", "2", "3"))
    assert (numbered.classes, numbered.y_test.tolist()) == (("1", "2", "3"), [1, 2] * 10)
    columns = {"m": X[:, 0].tolist(), "ill": (np.arange(60) % 2).tolist()}
    parts = {"train": Part(columns, {"ill": ["neg", "pos"]}), "test": Part(columns, {"ill": ["pos", "neg"]})}
    for train, test in ((parts, None), (parts["train"], parts["test"])):
        assert own.dataset(train, target="ill", test=test).y_test.tolist() == [1, 0] * 30
    with pytest.raises(
        DataError, match=r"the test part names its classes cat, fox, and the training part cat, dog, owl; "
    ):
        own.dataset(Animals(*known), test=Animals("cat", "fox", labels=[0, 1] * 10))
    with pytest.raises(
        DataError, match=r"label of row 1 of the test part is -1, and its 2 classes \(cat, owl\) are numbered"
    ):
        own.dataset(Animals(*known), test=Animals("cat", "owl", labels=[0, -1] * 10))
    unnamed = own.dataset((X, Y))
    assert own.dataset(Animals(*known), test=unnamed).y_test.tolist() == unnamed.y_test.tolist()


def test_a_hugging_face_dataset_has_its_image_column_decoded_and_its_class_names_kept() -> None:
    images = [Image.fromarray(p) for p in PIXELS]
    columns = {"id": list(range(60)), "image": images, "label": Y.tolist(), "writer": TOWNS.tolist()}
    names = {"label": ["zero", "one", "two"]}
    given = own.dataset(Part(columns, names), target="label", client="writer")
    assert (given.classes, given.client_names) == (("zero", "one", "two"), ("Basel", "Bern", "Chur"))
    assert given.input_shape == (1, 6, 5)
    halves = {
        "train": Part({k: v[:40] for k, v in columns.items()}, names),
        "test": Part(late := {k: v[40:] for k, v in columns.items()}, names),
    }
    split = own.dataset(halves, target="label")
    assert (len(split.y_train), split.y_test.tolist()) == (40, Y[40:].tolist())
    theirs = own.dataset(halves, target="label", client="writer")
    assert theirs.own_test is not None
    assert (theirs.own_test.tolist(), theirs.y_test.tolist()) == ([False] * 40 + [True] * 20, Y[40:].tolist())
    nobodys = halves | {"test": Part({k: v for k, v in late.items() if k != "writer"}, names)}
    assert own.dataset(nobodys, target="label", client="writer").own_test is None
    numbers = own.dataset(Part({"a": X[:, 0].tolist(), "b": X[:, 1].tolist(), "y": Y.tolist()}), target="y")
    assert numbers.input_shape == (2,)


def test_what_load_returns_is_taken_as_it_is() -> None:
    digits = load("digits")
    assert own.dataset(digits) is digits


def test_truths_are_two_classes_with_names() -> None:
    given = own.dataset((X, Y == 1))
    assert given.classes == ("False", "True")
    assert set(given.y_train.tolist()) == {0, 1}


# ---------------------------------------------------------------- what a run's folder keeps
@pytest.mark.parametrize(
    "data",
    [{"a": (X[:30], Y[:30]), "b": (X[30:], Y[30:])}, (PIXELS, np.array(["x", "y", "z"])[Y])],
    ids=["rows", "images"],
)
def test_a_saved_data_set_is_equal_to_the_last_bit(data: Any, tmp_path: Path) -> None:
    given = own.dataset(data)
    save(given, tmp_path / "data.npz")
    again = load("run:data.npz", tmp_path)
    assert equal(again, given)
    for field in ("name", "classes", "client_names", "sha256", "levels", "inputs"):
        assert getattr(again, field) == getattr(given, field)
    assert (again.owners is None) == (given.owners is None)
    (tmp_path / "data.npz").unlink()
    with pytest.raises(DataError, match=r"the run's data are gone: there is no file .*data\.npz"):
        load("run:data.npz", tmp_path)


# ---------------------------------------------------------------- refusals
class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(())


class Sizes(TorchDataset[Any]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(i + 1), 0


COLUMNS = {"target": "kind", "client": "town"}
FRAME = pandas.DataFrame(TABLE)
REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "one array": (X, {}, r"data must be \(x, y\) or .* got one array of shape \(60, 4\)"),
    "four arrays": ((X, Y, Y, Y), {}, "got a tuple of 4"),
    "a number": (3, {}, "got an int"),
    "lengths": ((X, Y[:9]), {}, "x has 60 examples, y has 9 labels"),
    "one-hot": ((X, np.eye(3)[Y]), {}, r"one label per example, got shape \(60, 3\)"),
    "a regression": ((X, Y + 0.5), {}, r"the label of row 0 is 0\.5; labels are classes"),
    "a label missing": ((X, [None, *Y[1:].tolist()]), {}, "the label of row 0 is missing"),
    "words as inputs": ((X.astype(str), Y), {}, "x of data must hold numbers"),
    "names of images as inputs": (
        {"a": (["a/ill/0.png", "a/well/1.PNG", "a/ill/2.dcm"], [1, 0, 1])}, {},
        "x of client a holds the names of image files, such as 'a/ill/0.png', and not what is in them",
    ),
    "paths as inputs": (([Path("ill/0.png"), Path("well/1.png")], [1, 0]), {}, "x of data holds the names of image"),
    "ragged inputs": (([[1], [1, 2]], [0, 1]), {}, "x of data is not an array of numbers"),
    "no clients": ({}, {}, "has no client"),
    "a client that is no pair": ({"a": X}, {}, r"client a must be \(x, y\), or \(x, y, patients\), got one array"),
    "clients of two shapes": ({"a": (X, Y), "b": (X[:, :2], Y)}, {}, r"client b have shape \(2,\), those of client a"),
    "clients of one name": ({1: (X, Y), "1": (X, Y)}, {}, "clients 1 and '1' have one name when written out"),
    "numbers and words": (
        {"a": (X, Y), "b": (X, np.array(["well", "sick"])[Y % 2])}, {},
        "labels of client a are numbers, such as .*, those of client b words, such as",
    ),
    "numbers as words": (
        {"a": (X, Y.astype(float)), "b": (X, Y.astype(str))}, {}, "of client a are numbers.* of client b words"
    ),
    "truths and words": (
        {"a": (X, Y > 0), "b": (X, list(map(str, Y > 0)))}, {}, "of client a are true or false.* of client b words"
    ),
    "truths and codes": (
        {"a": (X, Y > 0), "b": (X, (Y > 0) + 1)}, {}, "of client a are true or false.* of client b numbers"
    ),
    "pixels of two scales": (
        {"a": (PIXELS, Y), "b": (PIXELS / 255, Y)}, {},
        r"client a are whole numbers \(uint8\) from 0 to 255, those of client b numbers \(float64\) from 0 to 1;",
    ),
    "flat pixels of two scales": (
        {"a": (X, Y), "b": (X.astype(np.uint8), Y)}, {}, "client a are numbers .* of client b whole numbers"
    ),
    "an empty client": ({"a": (X, Y), "b": (X[:0], Y[:0])}, {}, "client b has no examples"),
    "a target of arrays": ((X, Y), {"target": "y"}, "name columns of a table, and a tuple of 2 has none"),
    "no test part": ((X, Y), {"test_fraction": 0.0}, "no test part and test_fraction is 0"),
    "a table without target": (FRAME, {}, r"must name the column of the labels, as in target='kind' \(columns: m0"),
    "a target misspelt": (FRAME, {"target": "kin"}, "there is no column 'kin'; did you mean kind?"),
    "a client misspelt": (FRAME, {"target": "kind", "client": "twn"}, "there is no column 'twn'; did you mean town?"),
    "words in a column": (FRAME, {"target": "kind"}, "column 'town' holds words, such as 'Chur' in row 0"),
    "a value missing": (FRAME.assign(m1=[1.0] * 59 + [None]), COLUMNS, "'m1' has no value in row 59"),
    "a null in Polars": (
        polars.DataFrame({"a": [1, None], "y": [0, 1]}), {"target": "y"}, "column 'a' has no value in row 1"
    ),
    "a nullable integer": (
        pandas.DataFrame({"a": pandas.array([1, None], dtype="Int64"), "y": [0, 1]}), {"target": "y"}, "in row 1"
    ),
    "infinity": (pandas.DataFrame({"a": [1, np.inf], "y": [0, 1]}), {"target": "y"}, "column 'a' is infinite in row 1"),
    "dates": (
        pandas.DataFrame({"a": pandas.to_datetime(["2020-01-01"] * 2), "y": [0, 1]}), {"target": "y"},
        "column 'a' holds a date in row 0",
    ),
    "intervals": (
        pandas.DataFrame({"a": pandas.arrays.IntervalArray.from_breaks([0, 1, 2]), "y": [0, 1]}), {"target": "y"},
        "column 'a' holds an Interval in row 0",
    ),
    "nobody's row": (FRAME.assign(town=[None] * 60), COLUMNS, "names no client in row 0"),
    "only labels": (FRAME[["kind"]], {"target": "kind"}, "no column is left to learn from beside 'kind'"),
    "a lazy frame": (polars.DataFrame(TABLE).lazy(), {"target": "kind"}, r"collect\(\) it first"),
    "an iterable": (Endless(), {}, "Endless has no fixed examples"),
    "a loader": (DataLoader(TensorDataset(torch.from_numpy(X))), {}, "DataLoader has no fixed examples"),
    "no pairs": (TensorDataset(torch.from_numpy(X)), {}, r"item 0 of TensorDataset must be a pair \(input, label\)"),
    "items of two sizes": (Sizes(), {}, r"item 1 of Sizes has shape \(2,\), item 0 has \(1,\)"),
    "parts without train": ({"validation": Part({"a": [1]})}, {"target": "a"}, "the data have the parts validation"),
    "a test of another shape": ((X, Y), {"test": (X[:, :2], Y)}, "x_test must hold"),
    "a test of a data set": (load("digits"), {"test": (X, Y)}, "a data set with its own labels and test part"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_data_is_refused_in_one_sentence(case: str) -> None:
    data, settings, message = REFUSED[case]
    with pytest.raises(DataError, match=message) as caught:
        own.dataset(data, **settings)
    assert "\n" not in str(caught.value)


def test_data_with_clients_are_not_divided_again_and_others_have_no_natural_split() -> None:
    given = own.dataset({"a": (X[:30], Y[:30]), "b": (X[30:], Y[30:])})
    with pytest.raises(DataError, match="comes with its 2 clients, so it is not divided again: leave split out"):
        federate(given, IID(num_clients=3), Key(0))
    with pytest.raises(DataError, match="the data have 2 clients, but num_clients is 3"):
        federate(given, Natural(num_clients=3), Key(0))
    with pytest.raises(DataError, match="at least 40 are needed"):
        federate(given, Natural(min_samples=40), Key(0))
    with pytest.raises(DataError, match="a natural split needs data that come with their clients"):
        federate(own.dataset((X, Y)), Natural(), Key(0))


def test_a_file_may_come_with_its_clients(tmp_path: Path) -> None:
    owner = np.repeat([1, 0], [20, 40])
    np.savez(tmp_path / "a.npz", x_train=X, y_train=Y, client_train=owner, clients=np.array(["Bern", "Chur"]))
    given = load(f"npz:{tmp_path / 'a.npz'}")
    assert given.client_names == ("Bern", "Chur")
    assert given.owners is not None
    assert given.owners.bincount().tolist() == [32, 16]
    folder = tmp_path / "a"
    folder.mkdir()
    for key, array in {"x_train": X, "y_train": Y, "client_train": owner}.items():
        np.save(folder / f"{key}.npy", array)
    (folder / "clients.txt").write_text("Bern\nChur\n")
    assert load(f"folder:{folder}").client_names == ("Bern", "Chur")


@pytest.mark.parametrize("codes", [(1, 2), (-1, 1), (0, 5)])
def test_codes_of_a_table_without_clients_are_names_of_classes(codes: tuple[int, int]) -> None:
    frame = polars.DataFrame({"dose": [float(i) for i in range(40)], "kind": [codes[i % 2] for i in range(40)]})
    names = tuple(map(str, codes))
    for classes, expected in ((None, names), (names, names), (names[::-1], names[::-1])):
        data = own.dataset(frame, target="kind", classes=classes)
        assert data.classes == expected
        doses = as_tensor(data.x_train)[:, 0].long().tolist()
        assert [expected[y] for y in data.y_train.tolist()] == [names[dose % 2] for dose in doses]


def test_codes_that_occur_in_the_test_part_only_are_classes_too() -> None:
    frame = polars.DataFrame({"dose": [float(i) for i in range(40)], "kind": [1 + i % 2 for i in range(40)]})
    data = own.dataset(frame, target="kind", test=frame.with_columns(kind=polars.lit(3)))
    assert data.classes == ("1", "2", "3")


def test_declared_names_that_are_words_go_by_their_order() -> None:
    frame = polars.DataFrame({"dose": [float(i) for i in range(40)], "kind": [i % 2 for i in range(40)]})
    assert own.dataset(frame, target="kind", classes=("well", "ill")).classes == ("well", "ill")
    with pytest.raises(DataError, match="is '0', none of the 2 classes"):
        own.dataset(frame, target="kind", classes=("1", "2"))


def test_a_client_that_lacks_a_class_goes_by_the_declared_names() -> None:
    frame = polars.DataFrame({"dose": [float(i) for i in range(40)], "kind": [2] * 40})
    data = own.dataset(frame, target="kind", classes=("1", "2"), one_client=True)
    assert set(data.y_train.tolist()) == {1}
    assert own.dataset(frame.with_columns(kind=polars.Series([1, 2] * 20)), target="kind", one_client=True).classes == (
        "0",
        "1",
        "2",
    )


def numbered(*labels: int, test: tuple[int, ...] = (), **more: Any) -> tuple[str, ...]:
    def part(of: tuple[int, ...], seed: int) -> Any:
        return np.random.default_rng(seed).normal(size=(len(of), 3)), np.array(of)

    return own.dataset(part(labels * 10, 0), test=part(test or labels, 1), **more).doubts


def test_classes_that_are_only_numbers_between_others_are_doubted() -> None:
    """Before, labels 0, 10 and 20 gave a network 21 outputs, and nobody said so."""
    assert numbered(1, 2, 3) == (
        "there are classes 0 to 3, and 0 never occur: number those that do 0, 1, ..., or give words as labels, unless "
        "these are classes, too",
    )
    (doubt,) = numbered(0, 10, 20)
    assert "classes 0 to 20, and 1, 2, 3, 4, 5 and 13 more never occur: " in doubt


def test_classes_without_a_row_are_not_doubted_where_they_may_be_meant() -> None:
    assert numbered(0, 1, 2, test=(0, 2)) == ()
    assert numbered(0, 2, test=(1,)) == ()
    assert numbered(1, 999) == ()
    assert numbered(0, 2, classes=("a", "b", "c")) == ()
    assert numbered(0, 2, one_client=True) == ()


def test_labels_below_zero_are_told_how_classes_are_numbered() -> None:
    with pytest.raises(
        DataError, match=r"y_train\[0\] is -1, and classes are numbered from 0; number the 3 that occur"
    ):
        numbered(-1, 0, 1)


def test_pixels_that_were_scaled_otherwise_at_one_site_are_doubted() -> None:
    x = np.random.default_rng(0).uniform(size=(40, 6, 6)).astype(np.float32)
    sites = {"bern": (x[:20], np.arange(20) % 2), "chur": (x[20:] * 255, np.arange(20) % 2)}
    doubt = own.dataset(sites).doubts[0]
    assert doubt.startswith("the brightness has the mean 12")
    assert " at chur, and 0." in doubt
    assert own.dataset({**sites, "chur": (x[20:], np.arange(20) % 2)}).doubts == ()


def test_bytes_of_0_and_1_at_one_site_are_doubted() -> None:
    x, y = np.random.default_rng(0).integers(0, 256, (40, 6, 6), np.uint8), np.arange(20) % 2
    doubts = own.dataset({"bern": (x[:20], y), "chur": ((x[20:] / 255).round().astype(np.uint8), y)}).doubts
    assert any("the contrast has the mean" in doubt and "in the same unit there?" in doubt for doubt in doubts)


@pytest.mark.parametrize(("factor", "doubted"), [(255, True), (4095, True), (16, False)])
def test_floats_far_beyond_1_are_doubted(factor: int, doubted: bool) -> None:
    doubts = own.dataset((np.random.default_rng(0).random((40, 6, 6)) * factor, np.arange(40) % 2)).doubts
    assert any("most networks train badly on such numbers; divide all" in doubt for doubt in doubts) == doubted


def test_frames_of_clients_whose_columns_stand_in_another_order_are_refused() -> None:
    """Beside labels only places count, so that one client's age would be another's weight."""
    frame = pandas.DataFrame({"age": [60.0, 70, 50, 40], "weight": [80.0, 70, 60, 75]})
    y = [0, 1, 0, 1]
    own.dataset({"Basel": (frame, y), "Bern": (frame, y)})
    with pytest.raises(DataError, match="column 0 of client Bern is 'weight', and of client Basel 'age'; give all"):
        own.dataset({"Basel": (frame, y), "Bern": (frame[["weight", "age"]], y)})


@pytest.mark.parametrize("name", ["Patient", "patient_id", "PatNr", "MRN"])
def test_a_column_that_seems_to_say_who_is_in_a_row_is_doubted_where_no_patients_are_named(name: str) -> None:
    """Sixty rows of thirty people: its numbers would be an input, and people stand in both parts."""
    frame = pandas.DataFrame(
        {name: np.arange(60) // 2 + 0.0, "age": np.random.default_rng(0).normal(size=60), "y": np.arange(60) % 2}
    )
    with pytest.warns(DataWarning, match=f"column {name!r} is an input and seems to say who .* patient = {name!r}, so"):
        own.dataset(frame, target="y", preprocess=Preprocess())
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        own.dataset(frame, target="y", patient=name, preprocess=Preprocess())
        own.dataset(frame.assign(**{name: frame[name] // 10}), target="y", preprocess=Preprocess())  # three kinds


def test_a_word_where_numbers_are_needed_is_shown_as_it_is_written() -> None:
    frame = pandas.DataFrame({"sex": [np.str_("m"), None, np.str_("w")], "y": [0, 1, 1]})
    with pytest.raises(DataError, match="holds words, such as 'm' in row 0"):
        own.dataset(frame, target="y")


def test_a_word_that_is_none_of_the_named_classes_is_refused_by_its_row() -> None:
    """Rows are numbered as they were given, whatever part they are in."""
    kinds = ["ill" if y else "well" for y in Y.tolist()]
    kinds[40] = "Well "
    frame = pandas.DataFrame({"age": X[:, 0], "kind": kinds, "later": [i >= 30 for i in range(60)]})
    with pytest.raises(DataError, match=r"column 'kind' is 'Well ' in row 40, none of the 2 classes; did you"):
        own.dataset(frame, target="kind", test="later", classes=("well", "ill"))


@pytest.mark.parametrize("rules", [None, Preprocess()])
@pytest.mark.parametrize("kind", ["survival", "multi_label", "regression"])
def test_rows_of_any_form_of_target_are_copies_only_with_the_same_target(kind: str, rules: Preprocess | None) -> None:
    rng = np.random.default_rng(0)
    table = pandas.DataFrame(rng.normal(size=(60, 2)), columns=["a", "b"])
    columns = ["u", "v"] if kind != "regression" else "u"
    table["u"], table["v"] = rng.integers(0, 2, 60), rng.integers(0, 2, 60)
    table["site"] = ["A", "B"] * 30
    settings: dict[str, Any] = {
        "target": columns, "client": "site", "preprocess": rules, "targets": tasks.kind_of(kind).targets
    }  # fmt: skip
    with pytest.warns(DataWarning, match="10 of 10 test rows stand in training"):
        own.dataset(table, test=table.head(10), **settings)
    others = table.head(10).assign(u=1 - table["u"].head(10))
    assert own.dataset(table, test=others, **settings).doubts == ()


@pytest.mark.parametrize("kind", ["survival", "multi_label"])
def test_data_of_several_targets_can_be_looked_at(kind: str) -> None:
    rng = np.random.default_rng(0)
    y = np.c_[rng.integers(1, 9, 60), rng.integers(0, 2, 60)]
    y = y if kind == "survival" else y % 2
    x = rng.normal(size=(60, 2))
    data = own.dataset({"A": (x[:30], y[:30]), "B": (x[30:], y[30:])}, targets=tasks.kind_of(kind).targets)
    assert describe(data).classes == (("censored", "event") if kind == "survival" else ())


@pytest.mark.parametrize("rules", [None, Preprocess()])
@pytest.mark.parametrize("library", [pandas, polars])
def test_columns_of_a_frame_with_labels_beside_it_keep_their_names(library: Any, rules: Preprocess | None) -> None:
    frame, other = (
        library.DataFrame({c: X[:, i] for i, c in order}) for order in (((0, "a"), (1, "b")), ((1, "b"), (0, "a")))
    )
    data = own.dataset((frame, Y), preprocess=rules)
    assert [column.name for column in data.inputs.columns] == ["a", "b"]
    assert torch.equal(data.inputs.prepare(frame), data.inputs.prepare(other))
    assert torch.equal(data.inputs.prepare(frame), data.inputs.prepare(X[:, :2]))
    tested = own.dataset((frame, Y), test=(other, Y), preprocess=rules)
    assert torch.equal(as_tensor(tested.x_train), as_tensor(tested.x_test))
    with pytest.raises(DataError, match="the columns of data have names and those of test have none"):
        own.dataset((frame, Y), test=(X[:, :2], Y), preprocess=rules)
    with pytest.raises(DataError, match="the columns of test have names and those of data have none"):
        own.dataset((X[:, :2], Y), test=(frame, Y), preprocess=rules)


def test_words_of_clients_frames_with_labels_beside_them_are_preprocessed() -> None:
    frames = {
        "A": (pandas.DataFrame({"dose": [1.0, 2.0, 3.0] * 4, "sex": ["f", "m", None] * 4}), Y[:12]),
        "B": (pandas.DataFrame({"dose": [3, 4, 5] * 4, "sex": [np.nan] * 12}), Y[:12]),
    }
    data = own.dataset(frames, preprocess=Preprocess())
    assert [(c.name, c.values) for c in data.inputs.columns] == [("dose", ()), ("sex", ("f", "m"))]
    assert data.client_names == ("A", "B")
    assert [column.name for column in describe({k: (f[["dose"]], y) for k, (f, y) in frames.items()}).columns] == [
        "dose"
    ]
    with pytest.raises(DataError, match="columns of client A have names and those of client C have none"):
        own.dataset({"A": (frames["A"][0][["dose"]], Y[:12]), "C": (X[:12, :1], Y[:12])})
    with pytest.raises(DataError, match="as \\{client: \\(x, y\\)\\}, too, or leave test out"):
        own.dataset(frames, test=frames["A"], preprocess=Preprocess())


def test_numbers_that_are_names_of_columns_are_names_in_predictions_too() -> None:
    frame = pandas.DataFrame(X)
    data = own.dataset((frame, Y))
    assert [column.name for column in data.inputs.columns] == ["0", "1", "2", "3"]
    assert torch.equal(data.inputs.prepare(frame[[3, 2, 1, 0]]), data.inputs.prepare(X))


def test_two_columns_of_one_name_are_refused() -> None:
    frame = pandas.DataFrame(X[:, :2], columns=["a", "a"])
    with pytest.raises(DataError, match="there are 2 columns 'a'; rename or remove all but one"):
        own.dataset((frame, Y))
    with pytest.raises(DataError, match="there are 2 columns 'a'; rename or remove all but one"):
        own.dataset(frame.assign(kind=Y), target="kind")


def test_a_category_of_numbers_holds_words() -> None:
    stages = np.arange(60) % 3 + 1
    table = pandas.DataFrame({"stage": pandas.Categorical(stages), "dose": X[:, 0], "kind": Y})
    data = own.dataset(table, target="kind", preprocess=Preprocess())
    assert data.inputs.columns[0].values == ("1", "2", "3")
    assert torch.equal(data.inputs.prepare(table), data.inputs.prepare(table.assign(stage=stages)))
    assert describe(table, target="kind").columns[0].kind == "words"
    halves = {name: table.iloc[rows] for name, rows in (("A", slice(30)), ("B", slice(30, 60)))}
    halves["B"] = halves["B"].assign(stage=pandas.Categorical(stages[30:] + 1))
    joined, client = one_table(halves, None)
    assert own.dataset(joined, target="kind", client=client, preprocess=Preprocess()).inputs.columns[0].values == (
        "1", "2", "3", "4",
    )  # fmt: skip
    numbers = own.dataset(table.assign(stage=stages), target="kind", preprocess=Preprocess()).inputs
    assert torch.equal(numbers.prepare(table), numbers.prepare(table.assign(stage=stages)))
    with pytest.warns(DataWarning, match="column stage is a category of numbers, and taken as numbers"):
        own.dataset(table, target="kind")


@pytest.mark.parametrize("library", [pandas, polars])
def test_many_whole_numbers_as_words_are_refused_unless_they_are_codes(library: Any, tmp_path: Path) -> None:
    """Codes are those that would lose a zero, and those of a category, be it declared by its type at one client."""
    ages = [str(20 + i % 15) for i in range(60)]
    table = {"age": ages, "dose": X[:, 0], "kind": Y}
    with pytest.raises(DataError, match="column 'age' holds numbers as words, such as '20': correct it, or"):
        own.dataset(library.DataFrame(table), target="kind", preprocess=Preprocess())
    (note,) = (n for n in describe(library.DataFrame(table), target="kind").notes if "as words" in n)
    assert "declare preprocess.columns.age.kind = 'category'" in note
    coded = Preprocess(columns={"age": ColumnRule(kind="category")})
    assert not any("as words" in n for n in describe(library.DataFrame(table), target="kind", preprocess=coded).notes)
    zeros = library.DataFrame(table | {"age": [f"{int(age) - 20:02}" for age in ages]})
    listed = polars.DataFrame(table).with_columns(polars.col("age").cast(polars.Categorical))
    listed.write_parquet(tmp_path / "t.parquet")
    options = tables.TableOptions("kind", test="other.parquet")
    assert len(tables.training_sums("parquet", tmp_path / "t.parquet", options, Preprocess())["age"].words or ()) == 15
    typed: Any = pandas.DataFrame(table).astype({"age": "category"}) if library is pandas else listed
    assert not any("as words" in n for n in describe(typed, target="kind").notes)
    halves = {"A": typed[:30], "B": library.DataFrame(table)[30:]}
    joined, client = one_table(halves, None)
    read = partial(own.dataset, target="kind")
    for data in (
        read(library.DataFrame(table), preprocess=coded),
        read(zeros, preprocess=Preprocess()),
        read(typed, preprocess=Preprocess()),
        read(joined, client=client, preprocess=Preprocess()),
        own.dataset((typed[["age", "dose"]], Y), preprocess=Preprocess()),
    ):
        assert [(column.kind, len(column.values)) for column in data.inputs.columns] == [
            ("category", 15),
            ("number", 0),
        ]


def test_columns_of_several_labels_name_them() -> None:
    table = pandas.DataFrame(X, columns=list("abcd")).assign(cough=Y % 2, fever=Y // 2)
    targets = tasks.kind_of("multi_label").targets
    assert own.dataset(table, target=["cough", "fever"], targets=targets).outputs == ("cough", "fever")
    named = own.dataset(table, target=["cough", "fever"], targets=targets, classes=("Husten", "Fieber"))
    assert named.outputs == ("Husten", "Fieber")
    times = own.dataset(table, target=["fever", "cough"], targets=tasks.kind_of("survival").targets)
    assert times.outputs == ("risk",)


def test_the_column_of_clients_is_not_the_target() -> None:
    table = pandas.DataFrame(TABLE)
    with pytest.raises(DataError, match="column 'town' is both the target and that of the clients"):
        own.dataset(table, target="town", client="town")
    with pytest.raises(DataError, match="column 'town' is both the target and that of the clients"):
        describe(table, target="town", client="town")


def test_a_column_that_names_the_client_is_doubted() -> None:
    table = pandas.concat([pandas.DataFrame(TABLE)] * 4, ignore_index=True)  # of few rows nothing is said
    drawn = {f"m{i}": RNG.normal(size=240) for i in range(4)}
    table = table.assign(**drawn, kind=RNG.integers(0, 3, 240), city=[f"city of {town}" for town in table.town])
    said = "column 'city' tells the site by itself"
    data = own.dataset(table, target="kind", client="town", preprocess=Preprocess())
    assert [doubt for doubt in data.doubts if said in doubt]
    assert [note for note in describe(table, target="kind", client="town").notes if said in note]
    shared = table.assign(city=np.where(table.town == "Chur", "mountain", "plain"))  # two towns have it in common
    data = own.dataset(shared, target="kind", client="town", preprocess=Preprocess())
    assert not [doubt for doubt in data.doubts if "tells the site" in doubt]


def test_numbers_as_names_of_columns_are_refused_where_a_column_is_named() -> None:
    table = pandas.DataFrame(X).assign(kind=Y).rename(columns={"kind": 4})
    with pytest.raises(DataError, match="target must name a column by a word, got 4; rename the columns"):
        own.dataset(table, target=4)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="target: column 4 is called by a number and not by a word; rename"):
        own.dataset(table, target="4")


def test_a_column_of_structs_and_a_lazy_frame_are_refused_by_what_they_are() -> None:
    table = polars.DataFrame({"a": X[:, 0], "b": X[:, 1], "kind": Y})
    with pytest.raises(DataError, match="column 's' holds several values in a row; make a column of each"):
        own.dataset(table.with_columns(s=polars.struct("a", "b")), target="kind", preprocess=Preprocess())
    with pytest.raises(DataError, match="lazy frame; collect\\(\\) it first"):
        describe(table.lazy(), target="kind")
    with pytest.raises(DataError, match="lazy frame; collect\\(\\) it first"):
        own.dataset(table, target="kind").inputs.prepare(table.lazy())


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (pandas.DataFrame({"a": [], "y": []}), " has no rows"),
        (pandas.DataFrame(index=range(3)), " has no columns"),
        (pandas.DataFrame([[1.0, 2.0, 0]] * 3, columns=["a", "a", "y"]), ": there are 2 columns 'a'; rename or remove"),
    ],
    ids=["no rows", "no columns", "twice"],
)
def test_a_table_of_which_nothing_can_be_read_is_refused_in_a_sentence(frame: Any, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        describe(frame)
    with pytest.raises(DataError, match=f"x of data{sentence}"):
        own.dataset((frame, [0, 1, 0]))


def test_a_lazy_frame_beside_its_labels_is_refused() -> None:
    lazy = polars.LazyFrame({"a": [1.0, 2.0]})
    with pytest.raises(DataError, match=r"x of data is a lazy frame; collect\(\) it first"):
        own.dataset((lazy, [0, 1]))


def test_labels_beyond_64_bits_are_refused_by_row() -> None:
    labels = np.array([0, 1, 2**63] * 4, dtype=np.uint64)
    with pytest.raises(DataError, match=r"the label of row 2 is 9223372036854775808, which no 64-bit whole number"):
        own.dataset((np.zeros((12, 2)), labels))


def test_a_number_to_learn_that_is_missing_is_named_by_its_row_in_the_table() -> None:
    """Not by its place among the training rows, which nobody sees."""
    frame = polars.DataFrame({"x": [float(i) for i in range(20)], "y": [1.5] * 20, "part": [1] * 10 + [0] * 10})
    for value, state in ((None, "has no value"), (math.inf, "is infinite")):
        frame[15, "y"] = value
        with pytest.raises(DataError, match=f"column 'y': the target of row 15 {state}; leave the row out"):
            own.dataset(frame, target="y", test="part", targets=tasks.kind_of("regression").targets)


# ---------------------------------------------------------------- labels of rows, and of classes in their order
def test_targets_whose_rows_are_labelled_in_another_order_are_refused() -> None:
    x, y = pandas.DataFrame(X), pandas.Series(Y)
    shuffled = y.sample(frac=1, random_state=0)
    with pytest.raises(DataError, match=r"another order .*give y\.loc\[x\.index\], or both with \.reset_index"):
        own.dataset((x, shuffled))
    with pytest.raises(DataError, match=r"client A: the index of y has the labels of that of x in another order"):
        own.dataset({"A": (x, shuffled), "B": (x, y)})
    with pytest.raises(DataError, match=r"other labels than that of x \(100 beside 7\).*both with"):
        own.dataset((x.set_index(x.index + 7), y.set_axis(y.index + 100)))
    with pytest.raises(DataError, match=r"the index of patients has the labels"):
        own.dataset((x, y, shuffled))
    expected = own.dataset((x, y))
    assert equal(expected, own.dataset((x, shuffled.loc[x.index])))
    assert equal(expected, own.dataset((x.set_index(x.index + 7), y.set_axis(y.index + 7))))


def test_two_slices_of_one_table_are_not_paired() -> None:
    x, y = pandas.DataFrame(np.tile(X, (2, 1))), pandas.Series(np.tile(Y, 2))
    for one, other in ((slice(60), slice(60, 120)), (slice(60), slice(1, 61)), (slice(0, 120, 2), slice(60))):
        with pytest.raises(DataError, match=r"the index of y has other labels .*both with \.reset_index"):
            own.dataset((x[one], y[other]))
        own.dataset((x[one].reset_index(drop=True), y[other].reset_index(drop=True)))


def test_rows_that_were_numbered_anew_have_no_labels() -> None:
    """As those of a frame that is made of scaled numbers, beside a target whose rows were drawn from a larger table."""
    drawn = np.random.default_rng(0).permutation(500)[: len(Y)]
    expected = own.dataset((X, Y))
    for labels in (drawn, np.sort(drawn), [f"patient {i}" for i in drawn]):
        numbered = own.dataset((pandas.DataFrame(X), pandas.Series(Y, index=labels)))
        np.testing.assert_array_equal(numbered.y_train, expected.y_train)


CASES = np.where(Y == 0, "case", "control")


def _ordered(words: Any, *order: Any) -> pandas.Categorical:
    return pandas.Categorical(words, order, ordered=True)


@pytest.mark.parametrize("rules", [None, Preprocess()])
def test_an_ordered_category_has_its_classes_in_its_order(rules: Preprocess | None) -> None:
    """By the alphabet `control` would be the second class; a word that no row has is no class."""
    order = ("control", "unsure", "case")
    table = {"a": X[:, 0], "b": X[:, 1], "town": TOWNS}
    frames = [
        pandas.DataFrame(table).assign(y=_ordered(CASES, *order)),
        polars.DataFrame(table).with_columns(polars.Series("y", CASES.tolist(), polars.Enum(order))),
    ]
    for frame in frames:
        given = own.dataset(frame, target="y", client="town", preprocess=rules)
        assert given.classes == ("control", "case")
        assert int(given.y_train.sum()) < len(given.y_train) / 2  # one in three is a case
        halves = {"A": frame[:30], "B": frame[30:]}
        joined, client = one_table(halves, None, "y")
        assert own.dataset(joined, target="y", client=client, preprocess=Preprocess()).classes == ("control", "case")
    assert own.dataset((X, _ordered(CASES, *order))).classes == ("control", "case")
    assert own.dataset((X, pandas.Categorical(CASES, order))).classes == ("case", "control")  # it has no order


def test_training_and_test_part_have_one_order_of_classes() -> None:
    train, test = ((X[of], CASES[of]) for of in (slice(40), slice(40, 60)))
    for one, other in (
        (train, (test[0], _ordered(test[1], "control", "case"))),
        ((train[0], _ordered(train[1], "control", "case")), test),
    ):
        given = own.dataset(one, test=other)
        assert (given.classes, given.ordered) == (("control", "case"), True)
    frame = pandas.DataFrame({"a": X[:, 0], "town": TOWNS, "y": _ordered(CASES, "control", "case")})
    opposite = frame.assign(y=_ordered(CASES, "case", "control"))
    with pytest.raises(
        DataError,
        match=r"category of control, case in the training part, and of case, control in the test part; give all the",
    ):
        own.dataset(frame[:40], target="y", client="town", test=opposite[40:])
    unknown = np.where(CASES == "case", "Case", CASES)[40:]
    with pytest.raises(
        DataError, match=r"y is 'Case' in the test part, none of the ordered categories in the training"
    ):
        own.dataset((X, _ordered(CASES, "control", "case")), test=(X[40:], unknown))
    listed = own.dataset(frame[:40], target="y", client="town", test=opposite[40:], classes=("case", "control"))
    assert listed.classes == ("case", "control")  # who lists them decides


@pytest.mark.parametrize(("codes", "names"), [((1, 0), ("1", "0")), ((True, False), ("True", "False"))])
def test_an_ordered_category_of_numbers_has_its_classes_in_its_order(codes: Any, names: tuple[str, ...]) -> None:
    labels = np.where(Y == 0, codes[1], codes[0])  # one in three
    y = _ordered(labels, *codes)
    halves = {k: pandas.DataFrame({"a": X[of, 0], "y": y[of]}) for k, of in (("A", slice(30)), ("B", slice(30, 60)))}
    joined, client = one_table(halves, None, "y")
    for given in (own.dataset((X, y)), own.dataset(joined, target="y", client=client)):
        assert (given.classes, given.ordered) == (names, True)
        assert given.label_type == ("boolean" if codes[0] is True else "integer")
        labelled = np.array(names)[given.y_train.numpy()]
        assert int((labelled == names[1]).sum()) < len(labelled) / 2
    rising = own.dataset((X, _ordered(labels, *codes[::-1])))
    assert (rising.classes, rising.ordered) == (names[::-1], False)
    own.dataset((X, _ordered(labels, *codes)), targets=tasks.kind_of("regression").targets)


def test_sites_whose_categories_of_numbers_rise_need_not_have_the_same() -> None:
    halves = {"A": (X[:30], _ordered(Y[:30], 0, 1, 2)), "B": (X[30:], _ordered(Y[30:] + 1, 1, 2, 3))}
    assert own.dataset(halves).classes == ("0", "1", "2", "3")
    halves["B"] = (X[30:], _ordered(Y[30:], 2, 1, 0))
    with pytest.raises(DataError, match=r"category of 0, 1, 2 at client A, and of 2, 1, 0 at client B; give all"):
        own.dataset(halves)


def test_clients_whose_ordered_categories_contradict_each_other_are_refused() -> None:
    one, other = _ordered(CASES, "control", "case"), _ordered(CASES, "case", "control")
    with pytest.raises(DataError, match=r"control, case at client A, and of case, control at client B; give all"):
        own.dataset({"A": (X, one), "B": (X, other)})
    with pytest.raises(DataError, match=r"column 'y' is an ordered category of control, case at client A"):
        one_table({k: pandas.DataFrame({"a": X[:, 0], "y": y}) for k, y in (("A", one), ("B", other))}, None, "y")
    with pytest.raises(DataError, match=r"y is 'Case' at client B, none of the ordered categories at client A"):
        own.dataset({"A": (X, one), "B": (X, np.where(Y == 0, "Case", "control"))})
    assert own.dataset({"A": (X, one), "B": (X, CASES)}).classes == ("control", "case")


# ---------------------------------------------------------------- arrays of further dimensions
def test_volumes_of_floats_are_taken_as_they_are() -> None:
    x = np.random.default_rng(0).normal(size=(60, 2, 4, 5, 6)).astype("float32")
    given = own.dataset((x, Y))
    assert given.input_shape == (2, 4, 5, 6)


@pytest.mark.parametrize(
    ("x", "way"),
    [
        (
            np.zeros((60, 8, 8, 4), np.uint8),
            r"drop the alpha channel, as x\[\.\.\., :3\], or give floats with the channels first, "
            r"np\.moveaxis\(x, 3, 1\)\.astype\('float32'\)$",
        ),
        (np.zeros((60, 4, 8, 8), np.uint8), r"drop the alpha channel, as x\[:, :3\], or give floats$"),
        (np.zeros((60, 8, 8), bool), r"got bool of shape \(\d+, 8, 8\); give x\.astype\('float32'\)$"),
        (np.zeros((60, 1, 4, 4, 4), np.uint8), r"\(N, C, D, H, W\).* got uint8 of shape .*; give floats$"),
    ],
)
def test_arrays_that_are_nearly_images_are_refused_with_what_to_do(x: Any, way: str) -> None:
    with pytest.raises(DataError, match=way):
        own.dataset((x, Y))


def test_images_with_an_alpha_channel_are_taken_as_they_are_advised() -> None:
    x = np.zeros((60, 8, 9, 4), np.uint8)
    assert own.dataset((np.moveaxis(x, 3, 1).astype("float32"), Y)).input_shape == (4, 8, 9)


def test_texts_that_end_in_the_name_of_an_image_now_and_then_are_texts() -> None:
    texts = [f"see scan{i}.png" if i % 3 == 0 else f"no scan of patient {i}" for i in range(30)]
    assert own.dataset((texts, [0, 1] * 15)).inputs.kind == "texts"


def test_clients_of_arrays_are_doubted_as_those_of_a_table_are(tmp_path: Path) -> None:
    x, y = RNG.integers(0, 256, (20, 4, 4), np.uint8), np.arange(20) % 2
    words = np.where(y, "yes", "no")
    with pytest.warns(DataWarning, match="'Bern', 'bern' differ in case, accents or spaces alone") as caught:
        data = own.dataset({"Bern": (x[:10], words[:10]), "bern": (x[10:], y[10:].astype(str))})
    assert len(caught) == len(data.doubts) == 1
    refused = tasks.kind_of("binary").check(data.y_train.numpy(), data.outputs, "cross_entropy")
    assert refused.startswith("needs a target of two values, got 4 (0, 1, no, yes); write each in one way")
    arrays = {"x_train": x, "y_train": y, "client_train": y, "clients": np.array(["Bern", "bern "])}
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.warns(DataWarning, match="'Bern', 'bern ' differ") as caught:
        data = load(f"npz:{tmp_path / 'own.npz'}")
    assert [str(one.message) for one in caught] == [*data.doubts]


def test_names_in_two_forms_of_unicode_are_one(tmp_path: Path) -> None:
    composed, apart = "Z\u00fcrich", "Zu\u0308rich"
    frame = pandas.DataFrame({"x": X[:40, 0], "y": [composed, apart] * 20, "site": [apart, composed, "B", "C"] * 10})
    frame["y"] = np.where(np.arange(40) % 3, frame["y"], "no")
    data = own.dataset(frame, target="y", client="site")
    assert (data.classes, data.client_names) == ((composed, "no"), ("B", "C", composed))
    look = describe(frame, target="y", client="site")
    assert [site.name for site in look.sites] == ["B", "C", composed]
    with pytest.raises(DataError, match="have one name when written out"):
        own.dataset({composed: (X[:20], Y[:20]), apart: (X[20:40], Y[20:40])})
    np.savez(tmp_path / "own.npz", x_train=X[:40], y_train=frame["y"].to_numpy(np.str_))
    assert load(f"npz:{tmp_path / 'own.npz'}").classes == (composed, "no")


def test_a_site_without_an_event_is_doubted() -> None:
    """A has eight rows, all censored; B an event; C one row, which is few and not doubted for its events, too."""
    x, event = RNG.normal(size=(17, 2)).astype(np.float32), np.array([0.0] * 8 + [0.0, 1.0] * 4 + [0.0])
    table = pandas.DataFrame(x, columns=["a", "b"]).assign(time=np.arange(1.0, 18.0), event=event)
    table["site"] = [*"A" * 8, *"B" * 8, "C"]
    with pytest.warns(DataWarning) as caught:
        own.dataset(table, target=["time", "event"], client="site", targets=tasks.kind_of("survival").targets)
    (of_events,) = [str(one.message) for one in caught if "no event" in str(one.message)]
    assert of_events.startswith("A has no event among the training rows")


def test_names_labels_and_words_that_differ_in_accents_alone_are_doubted() -> None:
    frame = pandas.DataFrame({"x": X[:60, 0], "ward": ["\u00e9t\u00e9", "hiver"] * 30, "site": [*"ABC"] * 20})
    frame = frame.assign(y=["d\u00e9c\u00e9d\u00e9", "vivant", "vivant"] * 20)
    own.dataset(frame, target="y", client="site", preprocess=Preprocess())  # says nothing yet
    frame.loc[::7, "ward"], frame.loc[::5, "site"] = "ete", "Gen\u00e8ve"
    frame.loc[::11, "site"], frame.loc[::6, "y"] = "Geneve", "decede"
    with pytest.warns(DataWarning) as caught:
        own.dataset(frame, target="y", client="site", preprocess=Preprocess())
    doubts = [str(one.message) for one in caught]
    alike = [doubt for doubt in doubts if "differ in case, accents or spaces alone" in doubt]
    assert [doubt.split()[0] for doubt in alike] == ["clients", "labels", "column"]
    notes = describe(frame, target="y", client="site").notes
    assert {"'Geneve', 'Gen\u00e8ve'" in note for note in notes if note.startswith("clients")} == {True}


@pytest.mark.parametrize("words", [("oui", "non"), ("VRAI", "FAUX"), ("Yes", "no"), ("ja", "nein"), ("WAHR", "FALSCH")])
def test_test_rows_are_said_by_words_for_yes_and_no(words: tuple[str, str]) -> None:
    flags = truths([words[0], words[1], words[1]], "part")
    assert flags.tolist() == [True, False, False]
    with pytest.raises(DataError, match="true or false, yes or no, or 1 or 0, got 'peut-"):
        truths([*words, "peut-\u00eatre"], "part")


def test_events_in_words_are_refused_by_how_they_are_written() -> None:
    table = pandas.DataFrame({"x": X[:20, 0], "time": np.arange(1.0, 21.0), "event": ["oui", "non"] * 10})
    refusal = r"has the event 'oui', must be 1 \(it happened\) or 0 \(censored\)"
    with pytest.raises(DataError, match=refusal):
        own.dataset(table, target=["time", "event"], targets=tasks.kind_of("survival").targets)


@pytest.mark.parametrize("empty", [pandas.DataFrame(), pandas.DataFrame({"x": [], "y": []})])
def test_a_client_without_rows_is_named_whatever_its_columns(empty: pandas.DataFrame) -> None:
    frame = pandas.DataFrame({"x": np.arange(20.0), "y": np.arange(20) % 2})
    with pytest.raises(DataError, match=r"^client Bern has no rows; leave it out$"):
        one_table({"Basel": frame, "Bern": empty}, None)


# ---------------------------------------------------------------- masked arrays
HIDDEN = np.arange(40) == 5
"""The row of whose values one is masked."""


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
def test_what_is_masked_is_missing(dtype: type) -> None:
    x = np.ma.array(np.arange(80).reshape(40, 2).astype(dtype), mask=np.stack([HIDDEN, HIDDEN & False], 1))
    y = np.arange(40) % 2
    gaps = np.where(np.ma.getmaskarray(x), np.nan, x.data)
    assert equal(own.dataset((x, y), preprocess=Preprocess()), own.dataset((gaps, y), preprocess=Preprocess()))
    with pytest.raises(DataError, match=r"x_train\[5\] has a NaN"):
        own.dataset((list(x), y))
    assert equal(own.dataset((np.ma.array(x.data), y)), own.dataset((x.data, y)))


@pytest.mark.parametrize("labels", [np.arange(40) % 2, np.where(np.arange(40) % 2, "ill", "well")])
def test_a_masked_label_is_missing(labels: np.ndarray) -> None:
    with pytest.raises(DataError, match="label of row 5 is missing"):
        own.dataset((np.ones((40, 2)), np.ma.array(labels, mask=HIDDEN)))


def test_a_masked_pixel_is_missing_at_its_client() -> None:
    images = np.zeros((40, 4, 4), np.uint8)
    masked = np.ma.array(images, mask=np.broadcast_to(HIDDEN[:, None, None], images.shape))
    labels = np.arange(40) % 2
    with pytest.raises(DataError, match=r"client Bern: x\[5\] has a NaN"):
        own.dataset({"Bern": (masked, labels), "Basel": (masked, labels)})


# ---------------------------------------------------------------- data that draw, and channels last
class Turned(TorchDataset[Any]):
    """Items that a transform changes; `draw` says by how much."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return 90

    def __getitem__(self, i: int) -> Any:
        return torch.full((3,), float(i)) + self.draw(i), i % 3


OWN = np.random.default_rng(0)


@pytest.mark.parametrize(
    "draw",
    [
        lambda i: torch.randn(()),
        lambda i: random.random(),
        lambda i: np.random.normal(),  # noqa: NPY002
        lambda i: OWN.normal(),
        lambda i: (i == 89) * random.random(),
    ],
    ids=["torch", "python", "numpy", "own", "rare"],
)
@pytest.mark.parametrize("form", [Turned, lambda draw: Subset(Turned(draw), range(90))])
def test_a_data_set_that_draws_is_referred_to_a_transform(form: Any, draw: Any) -> None:
    with pytest.raises(DataError, match=r"items of (Turned|Subset) are others each time .* transform="):
        own.dataset(form(draw))
    with pytest.raises(DataError, match="transform="):
        own.dataset((X[:, :3], Y), test=form(draw))


def test_a_data_set_that_draws_alike_each_time_is_taken() -> None:
    def draw(i: int) -> Any:
        torch.manual_seed(i)
        return torch.randn(())

    assert own.dataset(Turned(draw)).x_train.shape == (72, 3)


def test_a_data_set_that_changes_its_items_in_place_is_refused() -> None:
    rows = torch.full((90, 3), 8.0)

    class Halves(Turned):
        def __getitem__(self, i: int) -> Any:
            return rows[i].div_(2), i % 3

    with pytest.raises(DataError, match="others each time"):
        own.dataset(Halves(None))


def test_hugging_faces_transforms_are_looked_at_too() -> None:
    class Changed(Part):
        format: ClassVar = {"type": "custom"}

        def __getitem__(self, column: str) -> Sequence[Any]:
            rows = super().__getitem__(column)
            return [np.clip(one + np.uint8(random.randrange(99)), 0, 255) for one in rows] if column == "x" else rows

    columns = {"x": list(PIXELS), "kind": [f"k{y}" for y in Y]}
    with pytest.raises(DataError, match="transform="):
        own.dataset(Changed(columns), target="kind")


@pytest.mark.parametrize("shape", [(8, 8, 2), (8, 6, 4), (8, 8, 6), (5, 5, 5, 1)])
def test_floats_with_their_channels_last_are_refused_with_the_remedy(shape: tuple[int, ...]) -> None:
    x = RNG.normal(size=(60, *shape))
    way = r"channels last.*give np\.moveaxis\(x, -1, 1\)"
    for form in ((x, Y), (torch.from_numpy(x), Y), TensorDataset(torch.from_numpy(x), torch.from_numpy(Y))):
        with pytest.raises(DataError, match=way):
            own.dataset(form)
    with pytest.raises(DataError, match=way):
        own.dataset({"Bern": (x[:30], Y[:30]), "Basel": (x[30:], Y[30:])})
    given = own.dataset((np.moveaxis(x, -1, 1), Y))
    assert given.input_shape == (shape[-1], *shape[:-1])


@pytest.mark.parametrize("shape", [(4, 8, 8), (2, 8, 6), (16, 4, 4), (64, 1, 9), (1, 5, 5, 5), (64, 7, 7)])
def test_floats_with_their_channels_first_are_taken(shape: tuple[int, ...]) -> None:
    assert own.dataset((RNG.normal(size=(60, *shape)), Y)).input_shape == shape
