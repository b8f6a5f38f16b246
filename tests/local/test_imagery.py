"""A prior at work on a task's inputs, examples that are not the client's own, and the server's own local work."""

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from toy_prior import Toy, clients, images, toy

from unskew.algorithms.fedavg import FedAvg
from unskew.keys import Key
from unskew.local import imagery
from unskew.local.executor import StepJob
from unskew.local.imagery import TaskImagery
from unskew.local.stacked.executor import Stacked
from unskew.local.trainer import LocalTrainer
from unskew.protocol import Examples, Me, Sgd, SgdConfig, Step
from unskew.runtime.in_process import Simulator

LOCAL = SgdConfig(0.1, local_epochs=2, batch_size=5)


@pytest.fixture(autouse=True)
def _toy() -> Iterator[Toy]:
    with toy() as made:
        yield made


# ---------------------------------------------------------------- imagery
def test_standardised_images_are_what_they_were() -> None:
    """(x - m) / s with m = .4 and s = .5: black has become -.8, white 1.2."""
    x = images(1, 0, 6, Key(0))
    plain = TaskImagery(Toy(), "toy", (1, 4, 4), None, None)
    standard = TaskImagery(Toy(), "toy", (1, 4, 4), ((-0.8, 1.2),), None)
    assert torch.allclose(plain.encode(x), standard.encode((x - 0.4) / 0.5), atol=1e-6)
    assert torch.allclose(standard.decode(standard.encode((x - 0.4) / 0.5)), (x - 0.4) / 0.5, atol=1e-6)
    v = torch.randn(3, 16, generator=Key(1).generator())
    made, same = plain.sample(v, 4, Key(2)), standard.sample(v, 4, Key(2))
    assert made.shape == (3, 4, 1, 4, 4)
    assert torch.allclose((made - 0.4) / 0.5, same, atol=1e-6)


def test_images_of_another_size_and_colour_come_back_in_their_own() -> None:
    made = imagery.of("toy", torch.device("cpu"), (3, 8, 8), ((0.0, 1.0),) * 3)
    assert made.changes == "images of 3 x 8 x 8 are made grey and resized, to 1 x 4 x 4"
    assert made.encode(torch.rand(5, 3, 8, 8)).shape == (5, 1, 4, 4)
    assert made.sample(torch.zeros(2, 16), 3, Key(0)).shape == (2, 3, 3, 8, 8)


# ---------------------------------------------------------------- examples that are not the client's own
def examples_of(trainer: LocalTrainer, client: int) -> Examples:
    rows = trainer.device_data.train[client]
    return Examples(trainer.device_data.x[rows], trainer.device_data.y[rows], torch.arange(len(rows)))


@pytest.mark.parametrize("network", ["perceptron", "convolution"])
def test_training_on_handed_examples_is_training_on_ones_own(network: str) -> None:
    """The same examples in the same order, so the same bits; whoever is asked."""
    population, trainer = clients(network)
    me = population.me(1, 1, Key(5))
    own = trainer.answer(me, 0, Sgd(population.initial, LOCAL))
    handed = trainer.answer(me, 0, Sgd(population.initial, LOCAL, examples=examples_of(trainer, 1)))
    other = trainer.answer(
        dataclasses.replace(me, id=2), 0, Sgd(population.initial, LOCAL, examples=examples_of(trainer, 1))
    )
    assert own.examples == handed.examples == 40
    for name, t in own.params.items():
        assert torch.equal(t, handed.params[name])
        assert torch.equal(t, other.params[name])


def test_handed_labels_may_be_shares_of_the_classes_or_left_out() -> None:
    """Shares of one are the classes themselves; what is labelled -100 has no loss: of 20 examples 19 move the model."""
    population, trainer = clients("perceptron")
    me, given = population.me(1, 1, Key(5)), examples_of(trainer, 1)
    classes = trainer.task.num_classes
    shares = dataclasses.replace(given, y=torch.nn.functional.one_hot(given.y, classes).to(trainer.dtype))
    own, handed = (trainer.answer(me, 0, Sgd(population.initial, LOCAL, examples=e)) for e in (given, shares))
    for name, t in own.params.items():
        torch.testing.assert_close(handed.params[name], t)
    whole = SgdConfig(lr=0.1, local_steps=1, batch_size=None)
    without = dataclasses.replace(given, rows=given.rows[1:])
    left_out = dataclasses.replace(given, y=torch.cat([torch.tensor([-100]), given.y[1:]]))
    one, other = (trainer.answer(me, 0, Sgd(population.initial, whole, examples=e)) for e in (without, left_out))
    for name, t in one.params.items():
        start = population.initial[name]
        torch.testing.assert_close(other.params[name] - start, (t - start) * 19 / 20)


@pytest.mark.parametrize("stacked", [False, True])
def test_training_on_some_of_ones_rows_is_training_on_those_examples(stacked: bool) -> None:
    population, trainer = clients()
    me, rows = population.me(1, 1, Key(5)), torch.tensor([0, 3, 5, 6, 9])
    some = dataclasses.replace(examples_of(trainer, 1), rows=rows)
    handed = trainer.answer(me, 0, Sgd(population.initial, LOCAL, examples=some))
    if stacked:
        sim = Simulator(FedAvg(LOCAL), population, Stacked(trainer))
        job = StepJob("train", lambda me, *_: _by_rows(me, rows), me, None, None)
        ((_, done),) = sim.executor.complete({1: job})
        own = done.value
    else:
        own = trainer.answer(me, 0, Sgd(population.initial, LOCAL, rows=rows))
    assert own.examples == 2 * len(rows)
    for name, t in handed.params.items():
        assert torch.equal(t, own.params[name])


def _by_rows(me: Me, rows: Tensor) -> Step[object]:
    return (yield Sgd(me.initial, LOCAL, rows=rows))


def test_rows_say_how_often_an_example_is_met_and_its_augmentation_is_its_own() -> None:
    population, trainer = clients()
    met: list[Tensor] = []

    def watch(x: Tensor, generator: torch.Generator) -> Tensor:
        met.append(x)
        return x

    x = torch.arange(3.0)[:, None, None, None].expand(3, 1, 4, 4)
    given = Examples(x, torch.zeros(3, dtype=torch.int64), torch.tensor([0, 2, 2, 2]), watch)
    trainer.answer(population.me(0, 1, Key(0)), 0, Sgd(population.initial, LOCAL, examples=given))
    assert sorted(torch.cat(met)[:, 0, 0, 0].tolist()) == [0.0] * 2 + [2.0] * 6
