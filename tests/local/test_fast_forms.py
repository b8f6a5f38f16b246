"""Whatever form a network is trained in for speed, it is the network: each case is held against a plain loop.

The loop is a module, a torch optimiser and a `for`; it shares nothing with the code under test but the batch order.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unskew.data.batches import plan
from unskew.keys import Key
from unskew.local import dense, kernels
from unskew.local.data import DeviceData
from unskew.local.trainer import LocalTrainer
from unskew.models import LOSS, build
from unskew.models.network import Network
from unskew.protocol import Me, Sgd, SgdConfig
from unskew.tasks.task import Task, make_task
from unskew.tree import Params

CLASSES, SHAPE = 4, (1, 8, 8)
SIZES = (37, 9)


def shared_relu() -> nn.Module:
    """One activation object in two places, as many write it."""
    relu, pool = nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(
        *(nn.Conv2d(1, 3, 3, padding=1), relu, pool, nn.Conv2d(3, 5, 3, padding=1), relu, pool),
        *(nn.Flatten(), nn.Linear(20, CLASSES)),
    )


def shared_relu_of_ours() -> nn.Module:
    layers = list(shared_relu().children())
    relu, pool = nn.ReLU(), nn.MaxPool2d(2)
    return Network(nn.Sequential(layers[0], relu, pool, layers[3], relu, pool, nn.Flatten()), nn.Linear(20, CLASSES))


def padded_pool() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 3, 3), nn.ReLU(inplace=True), nn.MaxPool2d(3, stride=2, padding=1)),
        *(nn.Flatten(), nn.Linear(27, CLASSES)),
    )


class Residual(nn.Module):
    """A forward pass that walks through a Sequential and adds a branch on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.ones(2))  # has no gradient, so weight decay must not move it
        self.parts = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.side, self.head = nn.Linear(192, 48), nn.Linear(48, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        side = torch.zeros(())
        for part in self.parts:
            x = part(x)
            if isinstance(part, nn.ReLU):
                side = self.side(x.flatten(1)) if x.flatten(1).shape[1] == 192 else side
        out: Tensor = self.head(x + side)
        return out


class Tied(nn.Module):
    """A layer under two names, and a last layer that goes by an earlier one's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.head = nn.Linear(64, CLASSES), nn.Linear(CLASSES, 64), nn.Linear(64, CLASSES)
        self.also = self.again
        self.head.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.again(self.first(x.flatten(1)).tanh()) + self.also(x.flatten(1)[:, :CLASSES])
        out: Tensor = self.head(h)
        return out


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "tied": Tied,
    "logistic": lambda: build("logistic", SHAPE, CLASSES),
    "svm": lambda: build("svm", SHAPE, CLASSES),
    "mlp": lambda: build("mlp", SHAPE, CLASSES, hidden=(12,)),
    "mlp, two layers": lambda: build("mlp", SHAPE, CLASSES, hidden=(12, 7)),
    "mlp, no bias in the head": lambda: build("mlp", SHAPE, CLASSES, hidden=(12,), head_bias=False),
    "mlp, nothing hidden": lambda: build("mlp", SHAPE, CLASSES, hidden=()),
    "mlp, dropout": lambda: build("mlp", SHAPE, CLASSES, hidden=(12,), dropout=0.3),
    "hcct_mlp, softmax twice": lambda: build("hcct_mlp", SHAPE, CLASSES, hidden=(8,), dropout=0.0, double_softmax=True),
    "cnn_small": lambda: build("cnn_small", SHAPE, CLASSES),
    "cnn_small, batch": lambda: build("cnn_small", SHAPE, CLASSES, norm="batch"),
    "cnn_small, group": lambda: build("cnn_small", SHAPE, CLASSES, norm="group"),
    "one activation twice": shared_relu,
    "one activation twice, ours": shared_relu_of_ours,
    "padded pooling": padded_pool,
    "a walk": Residual,
    "batch norm of vectors": lambda: nn.Sequential(
        *(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 8)),
        *(nn.BatchNorm1d(8), nn.Linear(8, CLASSES)),
    ),
    "cumulative norm": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8, momentum=None), nn.Linear(8, CLASSES)
    ),
    "recurrent": lambda: build("lstm_rows", SHAPE, CLASSES),
}
CONFIGS = {
    "plain": SgdConfig(0.05, batch_size=8, local_epochs=2),
    "momentum": SgdConfig(0.02, batch_size=8, local_epochs=2, momentum=0.9),
    "everything": SgdConfig(0.02, batch_size=8, local_epochs=2, momentum=0.9, nesterov=True, weight_decay=0.01),
    "clipped": SgdConfig(0.05, batch_size=8, local_steps=7, clip_norm=0.3),
    "whole": SgdConfig(0.1, batch_size=None, local_epochs=3),
    "adam": SgdConfig(0.005, batch_size=8, local_epochs=2, optimizer="adam", weight_decay=0.01),
    "drop last": SgdConfig(0.05, batch_size=8, local_epochs=2, drop_last=True),
    "adamw": SgdConfig(0.005, batch_size=8, local_epochs=2, optimizer="adamw", weight_decay=0.1),
}


@dataclasses.dataclass(frozen=True)
class Pull:
    mu: float = 0.3

    def __call__(self, params: Params, aux: Any) -> Tensor:
        return 0.5 * self.mu * torch.stack([(w - aux["anchor"][n]).square().sum() for n, w in params.items()]).sum()


@dataclasses.dataclass(frozen=True)
class Constant:
    """A term without a gradient, as a method's term may be in its first round."""

    def __call__(self, params: Params, aux: Any) -> Tensor:
        return torch.zeros(())


def task_of(network: str) -> Task:
    x = device_data(torch.float32).x[:4]
    return make_task(NETWORKS[network], CLASSES, loss=LOSS.get(network, "cross_entropy"), examples=x)


def device_data(dtype: torch.dtype) -> DeviceData:
    g = Key(1).generator()
    n = sum(SIZES)
    x, y = torch.randn(n, *SHAPE, generator=g, dtype=dtype), torch.randint(CLASSES, (n,), generator=g)
    rows = torch.split(torch.randperm(n, generator=g), SIZES)
    return DeviceData(x, y, rows, tuple(r[:0] for r in rows))


def me(task: Task, data: DeviceData, client: int) -> Me:
    y = data.y[data.train[client]]
    histogram = torch.bincount(y, minlength=CLASSES)
    return Me(client, len(y), histogram, 1, Key(7) / client, task.layout, task.init(Key(0)), Key(7), Key(7))


def start_of(task: Task, dtype: torch.dtype, seed: int = 5) -> Params:
    return {n: t.to(dtype) for n, t in task.init(Key(seed)).items()}


def by_hand(task: Task, data: DeviceData, client: int, job: Sgd, key: Key, dtype: torch.dtype) -> Params:
    config = job.config
    with Key(99).ambient():
        module = task.build().to(dtype)
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    chosen = task.layout.select(config.trainable)
    with torch.no_grad():
        for name, t in job.start.items():
            own[name].copy_(t)
    trained = [p for n, p in module.named_parameters() if n in chosen]
    optimiser: torch.optim.Optimizer
    if config.optimizer == "sgd":
        optimiser = torch.optim.SGD(
            trained, config.lr, config.momentum, weight_decay=config.weight_decay, nesterov=config.nesterov
        )
    else:
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config.optimizer]
        optimiser = kind(trained, config.lr, config.betas, weight_decay=config.weight_decay)
    rows = data.train[client]
    batches = plan(
        len(rows),
        batch_size=config.batch_size,
        epochs=config.epochs,
        steps=config.local_steps,
        key=key / "shuffle",
        min_batch=2 if task.batch_norm else 1,
        drop_last=config.drop_last,
    )
    module.train()
    for name, part in module.named_modules():
        if isinstance(part, nn.BatchNorm2d) and f"{name}.weight" not in chosen:
            part.eval()
    with key.ambient():
        for pick in batches.steps():
            optimiser.zero_grad()
            value = task.loss(module(data.x[rows[pick]]), data.y[rows[pick]]).mean()
            for term in job.terms:
                value = value + term(dict(module.named_parameters()), job.aux)  # type: ignore[call-arg, operator]
            value.backward()  # type: ignore[no-untyped-call]
            if config.clip_norm is not None:
                nn.utils.clip_grad_norm_(trained, config.clip_norm)
            optimiser.step()
    return {n: own[n].detach() for n in job.start}


def some(*axes: Iterable[Any], of: int) -> list[tuple[Any, ...]]:
    """One in so many cells of a grid, by turns."""
    numbered = itertools.product(*(enumerate(axis) for axis in axes))
    return [tuple(value for _, value in cell) for cell in numbered if sum(i for i, _ in cell) % of == 0]


def close(one: Params, two: Params, dtype: torch.dtype) -> None:
    assert list(one) == list(two)
    exact = {"rtol": 1e-8, "atol": 1e-10} if dtype is torch.float64 else {"rtol": 1e-3, "atol": 2e-5}
    torch.testing.assert_close(one, two, **exact)
    assert all(t.is_contiguous() for t in one.values())


@pytest.mark.parametrize(
    ("network", "config"),
    some(NETWORKS, CONFIGS, of=3),
)
def test_every_form_trains_the_network_it_stands_for(network: str, config: str) -> None:
    task, dtype = task_of(network), torch.float64
    data, start = device_data(dtype), start_of(task, dtype)
    trainer, job = LocalTrainer(task, data, dtype=dtype), Sgd(start, CONFIGS[config])
    for client in (0, 1, 0):
        fitted = trainer.fit(me(task, data, client), job, Key(client))
        close(fitted.params, by_hand(task, data, client, job, Key(client), dtype), dtype)


@pytest.mark.parametrize(
    ("network", "config", "terms"),
    some(["mlp", "cnn_small, batch"], CONFIGS, [(Pull(),), (Constant(),), (Pull(), Constant(), Pull(0.1))], of=4),
)
def test_terms_come_on_top(network: str, config: str, terms: tuple[Any, ...]) -> None:
    task, dtype = task_of(network), torch.float64
    data, start = device_data(dtype), start_of(task, dtype)
    job = Sgd(start, CONFIGS[config], terms, {"anchor": start_of(task, dtype, 8)})
    fitted = LocalTrainer(task, data, dtype=dtype).fit(me(task, data, 0), job, Key(0))
    close(fitted.params, by_hand(task, data, 0, job, Key(0), dtype), dtype)


@pytest.mark.parametrize("trainable", [("head",), ("body",), ("head.bias",)], ids=str)
@pytest.mark.parametrize("network", ["mlp", "mlp, two layers", "cnn_small, batch"])
def test_a_part_of_the_network_may_be_trained_alone(network: str, trainable: tuple[str, ...]) -> None:
    task, dtype = task_of(network), torch.float64
    data, start = device_data(dtype), start_of(task, dtype)
    job = Sgd(start, dataclasses.replace(CONFIGS["everything"], trainable=trainable))
    fitted = LocalTrainer(task, data, dtype=dtype).fit(me(task, data, 0), job, Key(0))
    close(fitted.params, by_hand(task, data, 0, job, Key(0), dtype), dtype)
    chosen = task.layout.select(trainable)
    assert all(torch.equal(fitted.params[n], start[n]) == (n not in chosen) for n in start)


@pytest.mark.parametrize("through_onednn", [False, True])
@pytest.mark.parametrize("network", NETWORKS)
def test_what_is_only_evaluated_takes_the_same_forms(
    network: str, through_onednn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward passes without gradients come in blocks, of 5 here and with one left over: 46 examples are 9 and 1."""
    if through_onednn:
        try:
            dense.onednn(torch.ones(2, 2), torch.ones(2, 2))
        except (AttributeError, RuntimeError):
            pytest.skip("this PyTorch has no private operator mkldnn._linear_pointwise")
        monkeypatch.setattr(kernels, "ONEDNN_FROM", 0)
        monkeypatch.setattr(kernels, "onednn_is_faster", lambda: True)
    task = task_of(network)
    data, start = device_data(torch.float32), start_of(task, torch.float32)
    auto, plain = (LocalTrainer(task, data, kernels=k) for k in ("auto", "plain"))
    auto._block = 5
    torch.testing.assert_close(auto.refer(data.x, start), plain.refer(data.x, start), rtol=1e-4, atol=1e-5)
    (right, loss), (expected, other) = (s.evaluate_on(start, data.x, data.y) for s in (auto, plain))
    assert torch.equal(right, expected)
    torch.testing.assert_close(loss, other, rtol=1e-4, atol=1e-5)
