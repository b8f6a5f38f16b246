from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from unskew.errors import DivergedError
from unskew.keys import Key
from unskew.local.data import DeviceData
from unskew.local.trainer import LocalTrainer
from unskew.models import build
from unskew.protocol import Batch, Fold, Me, Run, Sgd, SgdConfig
from unskew.tasks.task import Task, make_task
from unskew.tree import Params, map_params

CLASSES = 3
SIZES = (23, 7, 40, 1, 9)


# ---------------------------------------------------------------- networks
def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES))


def conv() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, CLASSES))


def batch_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(48, 8),
        nn.BatchNorm1d(8),
        nn.Linear(8, CLASSES),
    )


def cumulative_norm() -> nn.Module:
    """BatchNorm that averages over all batches needs its integer counter."""
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.BatchNorm1d(8, momentum=None), nn.Linear(8, CLASSES))


def group_norm() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, CLASSES))


def dropout() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, CLASSES))


def recurrent() -> nn.Module:
    return build("lstm_rows", (1, 6, 6), CLASSES)


class Hidden(nn.Module):
    """Draws in its own forward pass, keeps statistics by assignment, and has a parameter that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(36, 8), nn.Linear(8, CLASSES)
        self.unused = nn.Parameter(torch.ones(2))
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.dropout(self.body(x.flatten(1)), 0.5, self.training)
        if self.training:
            self.seen = 0.9 * self.seen + 0.1 * h.detach().mean(0)
        out: Tensor = self.head(h - self.seen)
        return out


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    f.__name__: f for f in (linear, conv, batch_norm, cumulative_norm, group_norm, dropout, recurrent, Hidden)
}


# ---------------------------------------------------------------- a small world
def device_data(
    dtype: torch.dtype = torch.float32, sizes: tuple[int, ...] = SIZES, augment: Any = None, val: int = 0
) -> DeviceData:
    g = Key(1).generator()
    n = sum(sizes) + val
    x = torch.randn(n, 1, 6, 6, generator=g, dtype=dtype)
    y = torch.randint(CLASSES, (n,), generator=g)
    rows = torch.split(torch.randperm(n, generator=g), [*sizes, val])
    return DeviceData(x, y, rows[:-1], tuple(rows[-1] for _ in sizes), augment)


def me(task: Task, client: int = 0, round: int = 1, data: DeviceData | None = None) -> Me:
    data = data or device_data()
    y = data.y[data.train[client]]
    key = Key(7) / "round" / round / "client" / client / 0
    return Me(
        client, len(y), torch.bincount(y, minlength=CLASSES), round, key, task.layout, task.init(Key(0)), key, key
    )


def make(name: str, **options: Any) -> Task:
    return make_task(NETWORKS[name], CLASSES, examples=device_data().x[:4], **options)


def start_of(task: Task, seed: int = 5, dtype: torch.dtype = torch.float32) -> Params:
    """Initial values with statistics that are not those of a fresh layer."""
    params = {k: v.to(dtype) for k, v in task.init(Key(seed)).items()}
    for i, name in enumerate(task.layout.buffers):
        params[name] = torch.rand(params[name].shape, generator=Key(i).generator(), dtype=dtype) + 0.5
    return params


def copies(params: Params) -> Params:
    return map_params(torch.clone, params)


def assert_bits(one: Params, two: Params) -> None:
    assert list(one) == list(two)
    for name in one:
        assert torch.equal(one[name], two[name]), name


CONFIGS = {
    "plain": SgdConfig(lr=0.1, batch_size=8, local_epochs=2),
    "everything": SgdConfig(lr=0.05, batch_size=6, local_epochs=3, momentum=0.9, nesterov=True, weight_decay=0.01),
    "steps": SgdConfig(lr=0.1, batch_size=8, local_steps=5, momentum=0.5, clip_norm=0.5),
    "full batch": SgdConfig(lr=0.1, batch_size=None, local_epochs=4),
    "adam": SgdConfig(lr=0.01, batch_size=8, local_epochs=2, optimizer="adam", weight_decay=0.01),
    "adamw": SgdConfig(lr=0.01, batch_size=8, local_epochs=2, optimizer="adamw", weight_decay=0.1),
    "drop last": SgdConfig(lr=0.1, batch_size=8, local_epochs=2, drop_last=True),
}


# ---------------------------------------------------------------- Sgd against a plain loop
def test_bfloat16_rounds_what_goes_through_the_network_and_nothing_else() -> None:
    """One input of 1 + 2^-9 and a 2 x 1 weight W of zeros: both logits are 0, dL/dW = (p - onehot) x = (-.5, +.5) x.

    bfloat16 has eight binary digits, so it computes with x = 1: after a step at rate 1 W is (.5, -.5) to the last bit,
    where float32 has .5 x.  Evaluated, that W makes .5 x of the same input, as its product in float32 is.
    """
    x, y, rows = torch.full((1, 1), 1 + 2**-9), torch.zeros(1, dtype=torch.int64), (torch.arange(1),)
    data = DeviceData(x, y, rows, rows)
    task = make_task(lambda: nn.Sequential(nn.Linear(1, 2, bias=False)), 2)
    key, start = Key(0), {"0.weight": torch.zeros(2, 1)}
    who = Me(0, 1, torch.tensor([1, 0]), 1, key, task.layout, start, key, key)
    trained = {
        precision: LocalTrainer(task, data).fit(who, Sgd(start, SgdConfig(lr=1.0, precision=precision)), key).params
        for precision in ("float32", "bfloat16")
    }
    assert trained["float32"]["0.weight"].flatten().tolist() == [0.5 + 2**-10, -0.5 - 2**-10]
    assert trained["bfloat16"]["0.weight"].flatten().tolist() == [0.5, -0.5]
    assert trained["bfloat16"]["0.weight"].dtype is torch.float32
    _, logits = LocalTrainer(task, data).refer(x, trained["bfloat16"])
    assert logits.flatten().tolist() == [0.5 + 2**-10, -0.5 - 2**-10]


# ---------------------------------------------------------------- what must not happen beside it
@pytest.mark.parametrize("network", NETWORKS)
def test_a_fit_leaves_its_inputs_the_data_and_the_global_generator_alone(network: str) -> None:
    task, data = make(network), device_data()
    trainer, start = LocalTrainer(task, data), start_of(make(network))
    anchor = start_of(task, seed=6)
    before, x, y, anchored = copies(start), data.x.clone(), data.y.clone(), copies(anchor)
    rng = torch.get_rng_state()
    first = trainer.fit(me(task), Sgd(start, CONFIGS["everything"], (Pull(0.1),), {"anchor": anchor}), Key(1))
    assert torch.equal(torch.get_rng_state(), rng)
    assert_bits(start, before)
    assert_bits(anchor, anchored)
    assert torch.equal(data.x, x)
    assert torch.equal(data.y, y)
    kept = copies(first.params)
    trainer.fit(me(task, 2), Sgd(first.params, CONFIGS["plain"]), Key(2))
    assert_bits(first.params, kept)  # the workspace's memory is not handed out
    assert all(not t.requires_grad and type(t) is Tensor for t in first.params.values())


# ---------------------------------------------------------------- terms
@dataclass(frozen=True)
class Pull:
    mu: float

    def __call__(self, params: Params, aux: Any) -> Tensor:
        return 0.5 * self.mu * torch.stack([(w - aux["anchor"][n]).square().sum() for n, w in params.items()]).sum()


@dataclass(frozen=True, eq=False)
class Look:
    """Writes down what it sees; no part of the loss."""

    other: Params
    seen: list[Any]
    sees: Literal["features"] = "features"

    def __call__(self, params: Params, aux: Any, batch: Batch) -> Tensor:
        features, logits = batch.forward(self.other)
        self.seen.append((map_params(torch.clone, params), batch, features, logits, aux))
        return torch.zeros(())


@pytest.mark.parametrize("network", ["batch_norm", "dropout", "Hidden"])
def test_a_term_sees_the_heads_input_and_reference_models_without_disturbing_anything(network: str) -> None:
    options = {"head": "head"} if network == "Hidden" else {}
    task, data = make(network, **options), device_data()
    start, other = start_of(task), start_of(task, 9)
    before = copies(other)
    config = replace(CONFIGS["everything"], local_epochs=2)
    look = Look(other, [])
    watched = LocalTrainer(task, data).fit(me(task), Sgd(start, config, (look,), {"tag": 1}), Key(1))
    plain = LocalTrainer(task, data).fit(me(task), Sgd(start, config), Key(1))
    assert_bits(watched.params, plain.params)
    assert watched.loss == plain.loss
    assert_bits(other, before)
    module = task.module().eval()
    head = module.get_submodule(task.head[0])
    for params, batch, features, logits, aux in look.seen:
        assert set(params) == set(task.layout.trainable)
        assert aux == {"tag": 1}
        w, b = (params[f"{task.head[0]}.{n}"] for n in ("weight", "bias"))
        torch.testing.assert_close(batch.features @ w.t() + b, batch.logits)
        assert batch.features.requires_grad
        torch.testing.assert_close(batch.loss, nn.functional.cross_entropy(batch.logits, batch.y, reduction="none"))
        assert torch.equal(batch.mask, torch.ones(len(batch.y)))
        caught: list[Tensor] = []
        handle = head.register_forward_pre_hook(lambda _m, inputs, caught=caught: caught.append(inputs[0]))
        expected = functional_call(module, other, (batch.x,), strict=False)
        handle.remove()
        torch.testing.assert_close(logits, expected)
        torch.testing.assert_close(features, caught[0])
        assert not features.requires_grad


# ---------------------------------------------------------------- evaluation, folds, local code
def test_a_fold_passes_over_all_data_once_in_order_and_in_evaluation_mode() -> None:
    task, data = make("batch_norm"), device_data(sizes=(2100,))
    params, who = start_of(task), me(task, data=data)
    trainer = LocalTrainer(task, data)

    def collect(carry: tuple[Any, ...], batch: Batch) -> tuple[Any, ...]:
        assert not batch.logits.requires_grad
        return (*carry, (batch.x, batch.y, batch.logits, batch.loss, batch.mask))

    carry = trainer.fold(who, Fold(collect, params, ()))
    rows = data.train[0]
    x, y, logits, loss, mask = (torch.cat(parts) for parts in zip(*carry, strict=True))
    assert torch.equal(x, data.x[rows])
    assert torch.equal(y, data.y[rows])
    assert len(mask) == mask.sum() == 2100
    _, expected = trainer.evaluate_on(params, data.x[rows], data.y[rows])
    torch.testing.assert_close(loss, expected)
    assert not torch.equal(logits[0], logits[1])


@pytest.mark.parametrize(("network", "n"), [("batch_norm", 23), ("Hidden", 23), ("conv", 2100)])
def test_the_gradient_is_that_of_the_mean_loss_over_all_data(network: str, n: int) -> None:
    options = {"head": "head"} if network == "Hidden" else {}
    task, data = make(network, **options), device_data(torch.float64, sizes=(n,))
    params = start_of(task, dtype=torch.float64)
    before = copies(params)
    gradient = LocalTrainer(task, data, dtype=torch.float64).answer(
        me(task, data=data), 0, Run(lambda local, p: local.gradient(p), (params,))
    )
    leaves = {k: v.clone().requires_grad_(k in task.layout.trainable) for k, v in params.items()}
    rows = data.train[0]
    logits = functional_call(task.module().double().eval(), leaves, (data.x[rows],), strict=False)
    nn.functional.cross_entropy(logits, data.y[rows]).backward()
    assert tuple(gradient) == task.layout.trainable
    for name, g in gradient.items():
        expected = leaves[name].grad
        torch.testing.assert_close(g, torch.zeros_like(g) if expected is None else expected, rtol=1e-9, atol=1e-12)
        assert not g.requires_grad
    assert_bits(params, before)


# ---------------------------------------------------------------- divergence
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_divergence_names_round_and_client(optimizer: Literal["sgd", "adam"]) -> None:
    task, data = make("conv"), device_data()
    config = SgdConfig(1e25, batch_size=4, local_epochs=2, optimizer=optimizer)
    with pytest.raises(DivergedError, match=r"round 4, client 2: .* within 20 steps at learning rate 1e\+25; lower lr"):
        LocalTrainer(task, data).fit(me(task, 2, round=4), Sgd(start_of(task), config), Key(0))


def test_an_overflow_in_the_last_step_is_noticed() -> None:
    """A single step from a finite loss: only the parameters are beyond what a float can hold."""
    task, data = make("linear"), device_data()
    data.x.mul_(100.0)
    with pytest.raises(DivergedError, match=r"round 1, client 0: the loss or a parameter became"):
        LocalTrainer(task, data).fit(me(task), Sgd(start_of(task), SgdConfig(3e38, batch_size=None)), Key(0))
