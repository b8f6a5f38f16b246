"""How a client trains: part of an epoch, rates by step, batches in parts, and networks that PyTorch allows."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import unskew as us
from unskew.algorithms.fedprox import Proximal
from unskew.data.batches import num_steps
from unskew.keys import Key
from unskew.local.data import DeviceData
from unskew.local.sequential import Sequential
from unskew.local.trainer import LocalTrainer
from unskew.protocol import Exponential, Fitted, Scheduler, Sgd, SgdConfig
from unskew.runtime.in_process import Population, Simulator
from unskew.tasks.task import make_task

CONFIG = SgdConfig(0.2, batch_size=4)


def clients(network: Any, x: Tensor | None = None) -> tuple[Population, LocalTrainer]:
    """Two clients of 11 and 9 examples of three classes."""
    g = Key(0).generator()
    x = torch.randn(20, 4, generator=g) if x is None else x
    y = torch.randint(3, (20,), generator=g)
    rows = torch.split(torch.arange(20), [11, 9])
    task = make_task(network, 3, examples=x[:4])
    histograms = torch.stack([torch.bincount(y[r], minlength=3) for r in rows])
    trainer = LocalTrainer(task, DeviceData(x, y, rows, tuple(r[:0] for r in rows)))
    return Population(histograms, task.layout, task.init(Key(1)), task.init), trainer


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def fitted(config: SgdConfig, network: Any = perceptron, terms: Any = (), **options: Any) -> Fitted:
    population, trainer = clients(network, **options)
    me = population.me(0, 1, Key(3))
    start = population.initial
    return trainer.answer(me, 0, Sgd(start, config, terms, {"anchor": {n: t + 1.0 for n, t in start.items()}}))


@pytest.mark.parametrize(("part", "steps"), [(0.1, 3), (0.5, 15), (1 / 30, 1), (0.01, 1), (1.1, 33), (2, 60)])
def test_a_part_of_an_epoch_is_its_share_of_the_batches_rounded_up(part: float, steps: int) -> None:
    """An epoch has 30 batches; .1 of 30 is 3, although it is a little more in binary."""
    assert num_steps(120, batch_size=4, epochs=part) == steps


def test_a_part_of_an_epoch_takes_its_first_batches() -> None:
    """11 examples in batches of 4 are 3 batches, of which .5 are 2."""
    half, two = (fitted(dataclasses.replace(CONFIG, **own)) for own in ({"local_epochs": 0.5}, {"local_steps": 2}))
    assert half.steps == two.steps == 2
    assert all(torch.equal(half.params[n], two.params[n]) for n in two.params)


def test_a_method_that_divides_epochs_needs_whole_ones() -> None:
    with pytest.raises(us.ConfigError, match=r"TT-HF divides whole local epochs, got 0.5; set local_steps"):
        us.check_method(us.TTHF(local=SgdConfig(local_epochs=0.5)))


@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize("terms", [(), (Proximal(0.5),)])
def test_a_batch_in_parts_is_the_batch(size: int, terms: Any) -> None:
    """Losses are means over 11 examples, in parts of 1, 3 or 8 and a shorter last one; a term counts once."""
    whole = dataclasses.replace(CONFIG, batch_size=None, local_epochs=3)
    one, parts = fitted(whole, terms=terms), fitted(dataclasses.replace(whole, at_once=size), terms=terms)
    assert parts.loss == pytest.approx(one.loss, rel=1e-5)
    for name, t in one.params.items():
        torch.testing.assert_close(parts.params[name], t, rtol=1e-5, atol=1e-6)


def test_a_rate_by_step_by_hand() -> None:
    """Rates .2, .1, .05 in three steps on all of the data: the same as three optimisations at those rates."""
    config = SgdConfig(0.2, batch_size=None, local_epochs=3, step_schedule=Exponential(0.5))
    population, trainer = clients(perceptron)
    me, w = population.me(0, 1, Key(3)), population.initial
    for rate in (0.2, 0.1, 0.05):
        w = trainer.answer(me, 0, Sgd(w, SgdConfig(rate, batch_size=None))).params
    for name, t in fitted(config).params.items():
        torch.testing.assert_close(t, w[name])


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "rmsprop"])
def test_schedulers_of_torch_give_torchs_rates(optimizer: Any) -> None:
    options = {"max_lr": 3.0, "total_steps": 6}
    one_cycle = Scheduler("OneCycleLR", options)
    solver = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(solver, **options)  # type: ignore[arg-type]
    for step in range(1, 7):
        assert one_cycle(step) == solver.param_groups[0]["lr"]
        solver.step()
        scheduler.step()
    with pytest.raises(us.ConfigError, match="OneCycleLR has no step 9"):
        one_cycle(9)
    steps = dataclasses.replace(CONFIG, optimizer=optimizer, lr=0.01, step_schedule=Exponential(1.0))
    as_step = dataclasses.replace(steps, step_schedule=Scheduler("ConstantLR", {"factor": 1.0}))
    one, two = fitted(steps), fitted(as_step)
    assert all(torch.equal(one.params[n], two.params[n]) for n in one.params)


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.first, self.head, self.reentrant = nn.Linear(4, 6), nn.Linear(6, 3), reentrant

    def forward(self, x: Tensor) -> Tensor:
        if self.reentrant is None:
            return self.head(self.first(x).tanh())
        x = x.clone().requires_grad_(torch.is_grad_enabled())
        return self.head(checkpoint(lambda z: self.first(z).tanh(), x, use_reentrant=self.reentrant))


def test_checkpointing_of_either_kind_changes_nothing() -> None:
    plain, *others = (fitted(CONFIG, lambda kind=kind: Checkpointed(kind)) for kind in (None, True, False))
    for other in others:
        assert all(torch.equal(plain.params[n], other.params[n]) for n in plain.params)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 5, max_norm=1.0), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x).mean(1))


def test_embeddings_with_a_largest_norm_are_trained_and_evaluated_without_changing_the_model() -> None:
    x = torch.randint(9, (20, 4), generator=Key(5).generator())
    population, trainer = clients(Words, x)
    sim = Simulator(us.FedAvg(CONFIG), population, Sequential(trainer))
    state = sim.start()
    before = {n: t.clone() for n, t in state.params.items()}
    trainer.evaluate(state.params, "train")
    assert all(torch.equal(before[n], t) for n, t in state.params.items())
    state, _ = sim.round(state, 1)
    assert not torch.equal(before["embedding.weight"], state.params["embedding.weight"])
