import pytest
import torch
from torch import Tensor

from unskew.data.dataset import Dataset, checked
from unskew.errors import DataError


def rows(n: int) -> Tensor:
    return torch.arange(2.0 * n).reshape(n, 2)


def labels(*values: int) -> Tensor:
    return torch.tensor(values)


def built(**changes: object) -> Dataset:
    fields = {"x_train": rows(3), "y_train": labels(0, 1, 2), "x_test": rows(2), "y_test": labels(0, 1)} | changes
    return checked("toy", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "what", ["x_train", "y_train", "x_test", "y_test", "domains", "owners", "own_test", "patients"]
)
def test_arrays_are_refused_with_the_way_to_a_tensor(what: str):
    text = rf"^toy: {what} must be a tensor, got a NumPy array; torch.as_tensor\({what}\) makes one$"
    with pytest.raises(DataError, match=text):
        built(**{what: rows(3).numpy()})
    with pytest.raises(DataError, match=f"^toy: {what} must be a tensor, got a value of type list; "):
        built(**{what: [0, 1, 2]})


def test_a_data_set_knows_its_shape_and_classes():
    data = built(x_train=torch.zeros(3, 1, 4, 5), x_test=torch.zeros(2, 1, 4, 5))
    assert (data.input_shape, data.num_classes, data.classes) == ((1, 4, 5), 3, ("0", "1", "2"))


def test_values_become_float32_and_labels_int64():
    data = built(x_train=rows(3).double(), x_test=rows(2).double(), y_train=labels(0, 1, 2).to(torch.uint8))
    assert (data.x_train.dtype, data.y_train.dtype) == (torch.float32, torch.int64)


def test_one_class_is_enough():
    assert built(y_train=labels(0, 0, 0), y_test=labels(0, 0)).num_classes == 1


def test_classes_without_an_example_count():
    assert built(classes=["a", "b", "c", "d"]).num_classes == 4


def test_token_ids_stay_integers():
    data = built(x_train=torch.ones(3, 7, dtype=torch.int64), x_test=torch.ones(2, 7, dtype=torch.int64))
    assert data.x_train.dtype == torch.int64


def test_domains_are_kept_with_their_names():
    data = built(domains=labels(0, 1, 1), domain_names=["photo", "sketch"])
    assert data.domains is not None
    assert data.domains.tolist() == [0, 1, 1]
    assert data.domain_names == ("photo", "sketch")


def test_the_hash_follows_the_content():
    assert built().sha256 == built().sha256
    assert built().sha256 != built(x_train=rows(3) + 1).sha256
    assert built().sha256 != built(y_train=labels(2, 1, 0)).sha256


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"x_train": torch.tensor([[0.0], [1.0], [float("nan")]]), "x_test": rows(2)[:, :1]},
            r"x_train\[2\] has a NaN",
        ),
        ({"x_test": torch.tensor([[0.0, 1.0], [float("inf"), 0.0]])}, r"x_test\[1\] has a NaN or inf"),
        ({"x_train": torch.tensor([[0.0, 1e300]] * 3, dtype=torch.float64)}, r"x_train\[0\] has a NaN or inf"),
        ({"y_train": labels(0, 1, -1)}, r"y_train\[2\] is -1, must be 0\.\.1"),
        ({"classes": ["a", "b"]}, r"y_train\[2\] is 2, must be 0\.\.1 \(2 classes\)"),
        ({"classes": ["a", "b", "c"], "y_test": labels(0, 7)}, r"y_test\[1\] is 7, must be 0\.\.2"),
        ({"classes": []}, "classes is empty"),
        ({"classes": ["a", "a", "b"]}, "classes must differ"),
        ({"y_train": labels(0, 1)}, "y_train has 2 entries for 3 examples"),
        ({"y_train": torch.tensor([0.0, 1.0, 2.0])}, "y_train must be integers"),
        ({"y_train": labels(0, 1, 2)[:, None]}, "y_train must be integers"),
        ({"x_train": rows(0), "y_train": labels()[:0].long()}, "x_train holds no examples"),
        ({"x_test": rows(0), "y_test": labels()[:0].long()}, "x_test holds no examples"),
        ({"x_train": torch.zeros(3, 0)}, "empty, shape"),
        ({"x_train": torch.zeros(3, 5)}, r"x_test must hold torch.float32 examples of shape \(5,\)"),
        ({"x_train": torch.zeros(3, 1, 2, dtype=torch.uint8)}, "x_train must be floating"),
        ({"x_train": torch.tensor([[1], [-1], [2]])}, r"x_train\[1\] has a negative token"),
        ({"x_train": torch.tensor(1.0)}, "y_train has 3 entries for 0"),
        ({"domains": labels(0, 1)}, "domains has 2 entries for 3"),
        ({"domains": labels(0, 1, 2), "domain_names": ["a", "b"]}, r"domains\[2\] is 2, must be 0\.\.1 \(2 domains\)"),
        ({"domain_names": ["a"]}, "1 domain names, but no domain"),
    ],
)
def test_bad_data_is_refused(changes: dict[str, object], message: str):
    with pytest.raises(DataError, match=message):
        built(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_train": labels(0, 2_000_000_000, 2)}, r"toy: y_train\[1\] is 2000000000, and 5 examples without names"),
        ({"y_test": labels(0, 2_000_000_000)}, r"toy: y_test\[1\] is 2000000000, "),
        ({"domains": labels(2_000_000_000, 0, 0)}, r"toy: domains\[0\] is 2000000000, .* have numbers below 1000; "),
        ({"owners": labels(0, 0, 1000)}, r"toy: clients\[2\] is 1000, "),
    ],
)
def test_one_corrupt_number_does_not_make_a_name_for_each_below_it(changes: dict[str, Tensor], message: str) -> None:
    """A label of 2e9 took 8.7 GB of names."""
    with pytest.raises(DataError, match=message):
        built(**changes)


def test_many_examples_may_have_many_clients() -> None:
    n = 600
    data = built(x_train=rows(n), y_train=torch.arange(n) % 3, owners=2 * torch.arange(n))
    assert len(data.client_names) == 2 * (n - 1) + 1
