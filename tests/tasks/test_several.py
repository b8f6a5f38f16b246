"""Several numbers a row, a class for each pixel, and inputs in the form that a network takes."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unskew as us
from unskew.tasks import positions, regression

X = np.random.default_rng(0).normal(size=(60, 1, 6, 6)).astype("float32")
run = partial(us.simulate, "fedavg", split=us.IID(2), rounds=2, progress=False)


def test_errors_of_several_numbers_are_means_over_them() -> None:
    """Errors (1, 3) and (0, 2): squared (1 + 9) / 2 and 4 / 2, absolute 2 and 1; of each number R2 is 1 - e / v."""
    outputs, y = torch.tensor([[1.0, 3.0], [2.0, 2.0]]), torch.tensor([[0.0, 0.0], [2.0, 4.0]])
    assert regression.squared(outputs, y).tolist() == [5, 2]
    assert regression.absolute(outputs, y).tolist() == [2, 1]
    assert regression.r2(outputs.numpy(), y.numpy()) == pytest.approx(((1 - 1 / 2) + (1 - 13 / 8)) / 2)
    assert regression.scale(y, "squared") == ((1.0, 2.0), (1.0, 2.0))


def test_targets_that_are_one_target_twice_are_learned_as_it_is() -> None:
    """The mean over two equal outputs of equal rows is either's: the model of two has the model of one twice."""
    y, runs = X[:, 0, 0, 0] * 30 + 500, []
    for many in (1, 2):
        net = nn.Sequential(nn.Flatten(), nn.Linear(36, many))
        nn.init.zeros_(net[1].weight), nn.init.zeros_(net[1].bias)
        local = us.SgdConfig(lr=0.1 * many)  # each output has its share of the mean
        history = run(data=(X, np.stack([y] * many, 1)), model=net, task="regression", local=local)
        runs.append(np.reshape(us.predict(history.model("fedavg"), X[:5]), (5, many)))
    np.testing.assert_allclose(runs[1], np.repeat(runs[0], 2, 1), rtol=1e-5)


def test_dice_and_pixel_accuracy_by_hand() -> None:
    """2 of 3 found pixels are among 2 true ones: 2 * 2 / (3 + 2); 3 of 4 pixels are right.  No pixel, none found: 1."""
    y = torch.tensor([[[1, 1], [0, 0]], [[0, 0], [0, -100]]])
    found = torch.tensor([[[1, 1], [1, 0]], [[0, 0], [0, 1]]])
    outputs = nn.functional.one_hot(found, 2).double()
    assert positions.dice(outputs, y).tolist() == pytest.approx([4 / 5, 1])
    assert positions.accuracy(outputs, y).tolist() == pytest.approx([3 / 4, 1])


def test_one_logit_a_pixel_is_learned_as_the_difference_of_two() -> None:
    mask, answers = (X[:, 0] > 0.3).astype(int), []
    for given in (mask, 255 * mask):
        one = nn.Conv2d(1, 1, 1)
        nn.init.ones_(one.weight), nn.init.zeros_(one.bias)
        history = run(data=(X, given), model=one, task="segmentation", rounds=20, local=us.SgdConfig(lr=1.0))
        answers.append(us.predict(history.model("fedavg"), X))
    assert np.mean(np.array(answers[0]) == mask) > 0.9
    np.testing.assert_array_equal(*answers)


def test_each_token_has_one_of_the_labels_and_those_left_out_count_nowhere() -> None:
    ids = np.random.default_rng(0).integers(0, 9, (60, 5))
    y = np.where(np.arange(5) < 4, ids > 4, -100)
    net = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2))
    history = run(data=(ids, y), model=net, task="token_classification", rounds=20, local=us.SgdConfig(lr=1.0))
    np.testing.assert_array_equal(np.array(us.predict(history.model("fedavg"), ids)).astype(int), ids > 4)
    with pytest.raises(us.DataError, match=r"row 0 .*is -100 everywhere"):
        run(data=(ids, np.full_like(y, -100)), model=net, task="token_classification")


class Steps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.LSTM(6, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        return self.out(self.rnn(x)[0][:, -1])


@pytest.mark.parametrize("model", [Steps, lambda: nn.Sequential(nn.Conv2d(1, 2, 6), nn.Flatten())])
def test_numbers_of_two_dimensions_are_steps_or_an_image_as_the_network_reads_them(model: Any) -> None:
    history = run(data=(X[:, 0], np.arange(60) % 2), model=model)
    assert len(us.predict(history.model("fedavg"), X[:3, 0])) == 3


@pytest.mark.parametrize("kind", ["int64", "uint8", "bool"])
def test_whole_numbers_are_ids_or_numbers_as_the_network_reads_them(kind: str) -> None:
    x = (np.arange(60)[:, None] * 7 % np.array([5, 9, 4])).astype(kind)
    models = [run(data=(of, np.arange(60) % 2), model="logistic").model("fedavg") for of in (x, x.astype("float32"))]
    assert torch.equal(*(model.head.weight for model in models))
    ids = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 2))
    assert us.predict(run(data=(x, np.arange(60) % 2), model=ids).model("fedavg"), x[:2])
