"""Clients trained side by side end where they would have ended one after the other."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest
import torch
from recipe import CASES, NETWORKS, rounds, simulator
from torch import Tensor, nn

from unskew.data.augment import crop_and_flip
from unskew.errors import DataError, DivergedError, ProtocolError
from unskew.keys import Key
from unskew.local.executor import Done, Paper, Sequential, Work
from unskew.local.solo import Shelf, Solo
from unskew.local.stacked import Stacked
from unskew.local.stacked_network import KeyedDropout, scatter, study
from unskew.local.stacked_sgd import Form
from unskew.models import build
from unskew.protocol import Batch, Fitted, Me, SgdConfig, fit, fold, run
from unskew.task import Task, make_task
from unskew.tree import Params, leaves, map_params

CLASSES, SHAPE = 4, (1, 8, 8)
SIZES = (37, 9, 16, 37, 3, 24)
CONFIGS = {
    "plain": SgdConfig(0.05, batch_size=8, local_epochs=2),
    "momentum": SgdConfig(0.05, batch_size=8, local_epochs=2, momentum=0.9),
    "everything": SgdConfig(
        0.02, batch_size=8, local_epochs=2, momentum=0.9, nesterov=True, weight_decay=0.01, clip_norm=0.5
    ),
    "steps": SgdConfig(0.05, batch_size=8, local_steps=5, weight_decay=0.1, drop_last=True),
    "whole": SgdConfig(0.1, batch_size=None, local_epochs=3, momentum=0.5),
    "adam": SgdConfig(0.002, batch_size=8, local_epochs=2, optimizer="adam", weight_decay=0.01),
    "adamw": SgdConfig(0.002, batch_size=8, local_epochs=2, optimizer="adamw", weight_decay=0.1),
}


# ---------------------------------------------------------------- networks
class Own(nn.Module):
    """Keeps statistics by assignment, and has a parameter that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 8), nn.Linear(8, CLASSES)
        self.unused = nn.Parameter(torch.ones(2))
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.body(x.flatten(1)))
        if self.training:
            self.seen = 0.9 * self.seen + 0.1 * h.detach().mean(0)
        out: Tensor = self.head(h - self.seen)
        return out


class Contrast(nn.Module):
    """The examples of a batch see each other, and no layer or buffer shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.body(x.flatten(1)))
        out: Tensor = self.head(h - h.mean(0) if self.training else h)
        return out


class Drawing(Contrast):
    """Random numbers of its own."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.dropout(torch.tanh(self.body(x.flatten(1))), 0.5, self.training)
        out: Tensor = self.head(h)
        return out


def counting() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8, momentum=None), nn.Linear(8, CLASSES))


TOGETHER: dict[str, Callable[[], nn.Module]] = {
    "logistic": lambda: build("logistic", SHAPE, CLASSES),
    "mlp": lambda: build("mlp", SHAPE, CLASSES, hidden=(12, 7)),
    "mlp, no bias in the head": lambda: build("mlp", SHAPE, CLASSES, hidden=(12,), head_bias=False),
    "cnn": lambda: build("cnn_small", SHAPE, CLASSES),
    "cnn, batch norm": lambda: build("cnn_small", SHAPE, CLASSES, norm="batch"),
    "cnn, group norm": lambda: build("cnn_small", SHAPE, CLASSES, norm="group"),
    "own statistics": Own,
    "contrast": Contrast,
}
APART: dict[str, Callable[[], nn.Module]] = {
    "svm": lambda: build("svm", SHAPE, CLASSES),
    "recurrent": lambda: build("lstm_rows", SHAPE, CLASSES),
    "drawing": Drawing,
    "counting": counting,
}


# ---------------------------------------------------------------- a small world
def task_of(network: str, **options: Any) -> Task:
    loss = "multi_margin" if network == "svm" else "cross_entropy"
    return make_task({**TOGETHER, **APART, **DROPOUT}[network], CLASSES, loss=loss, **options)


def shelf(dtype: torch.dtype = torch.float64, sizes: tuple[int, ...] = SIZES, augment: Any = None) -> Shelf:
    g = Key(1).generator()
    n = sum(sizes)
    x, y = torch.randn(n + 50, *SHAPE, generator=g, dtype=dtype), torch.randint(CLASSES, (n + 50,), generator=g)
    rows = torch.split(torch.randperm(n, generator=g), sizes)
    return Shelf(x[:n], y[:n], rows, tuple(r[:5] for r in rows), augment, x[n:], y[n:])


def start_of(task: Task, seed: int = 5, dtype: torch.dtype = torch.float64) -> Params:
    params = {k: v.to(dtype) for k, v in task.init(Key(seed)).items()}
    for i, name in enumerate(task.layout.buffers):
        params[name] = torch.rand(params[name].shape, generator=Key(i).generator(), dtype=dtype) + 0.5
    return params


def work(task: Task, data: Shelf, step: Callable[..., Any], messages: dict[int, Any]) -> dict[int, Work]:
    found = {}
    for c, message in messages.items():
        y = data.y[data.train[c]]
        histogram = torch.bincount(y, minlength=CLASSES)
        who = Me(c, len(y), histogram, 2, Key(7) / "client" / c, task.layout, start_of(task))
        found[c] = Work("train", step, who, message, None)
    return found


class Counting(Solo):
    """Counts what it is asked, so that a test can tell together from alone."""

    asked = 0

    def answer(self, me: Me, index: int, request: object) -> Any:
        self.asked += 1
        return super().answer(me, index, request)


def both(
    task: Task,
    data: Shelf,
    step: Callable[..., Any],
    messages: dict[int, Any],
    *,
    alone: int = 0,
    chunk: int | None = None,
    form: Form | None = None,
) -> tuple[dict[int, Done], dict[int, Done]]:
    """Sequential and stacked; `alone` requests are not shared."""
    dtype = data.x.dtype
    solo = Counting(task, data, dtype=dtype)
    stacked = Stacked(solo, chunk, form)
    many = stacked.complete(work(task, data, step, messages))
    assert solo.asked == alone
    assert bool(stacked.notes) == bool(alone and stacked.notes)
    one = Sequential(Solo(task, data, dtype=dtype, kernels="plain")).complete(work(task, data, step, messages))
    return one, many


def assert_same(one: dict[int, Done], many: dict[int, Done], rtol: float = 1e-9, atol: float = 1e-10) -> None:
    assert list(one) == list(many)
    for c in one:
        assert one[c].losses == pytest.approx(many[c].losses, rel=rtol)
        for (at, a), (where, b) in zip(leaves(one[c].value), leaves(many[c].value), strict=True):
            assert at == where
            if isinstance(a, Tensor):
                torch.testing.assert_close(b, a, rtol=rtol, atol=atol)
            else:
                assert a == pytest.approx(b, rel=rtol)


def training(config: SgdConfig, *terms: Any, **aux: Any) -> Callable[..., Any]:
    def step(me: Me, msg: Any, mine: None) -> Iterator[Any]:
        fitted: Fitted = yield from fit(msg, config, *terms, **aux)
        return fitted.params, fitted.steps, fitted.lr, fitted.loss

    return step


def everybody(task: Task, dtype: torch.dtype = torch.float64, own: bool = True) -> dict[int, Params]:
    """A start for each client, its own or one object for all."""
    common = start_of(task, dtype=dtype)
    return {c: start_of(task, c, dtype) if own else common for c in range(len(SIZES))}


# ---------------------------------------------------------------- every algorithm
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("case", CASES)
def test_every_algorithm_ends_where_it_ends_sequentially(case: str, network: str) -> None:
    """Float64 to 1e-9, float32 to 1e-4 and 1e-5, three rounds: state, losses, messages, personal models."""
    for dtype, rtol, atol in ((torch.float64, 1e-9, 1e-9), (torch.float32, 1e-4, 1e-5)):
        alone, many = simulator(case, network, dtype=dtype), simulator(case, network, dtype=dtype)
        _, solo = alone.executor, many.executor._solo  # type: ignore[attr-defined]
        many.executor = Stacked(solo)
        for (t, one, trace), (_, other, same) in zip(rounds(alone), rounds(many), strict=True):
            for (at, a), (where, b) in zip(leaves(one), leaves(other), strict=True):
                assert at == where
                if isinstance(a, Tensor):
                    torch.testing.assert_close(b, a, rtol=rtol, atol=atol)
                else:
                    assert a == b
            assert trace.transfers == same.transfers
            assert trace.losses == [(n, pytest.approx(loss, rel=10 * rtol)) for n, loss in same.losses]
            mine, theirs = (sim.personal(s, sim.population.clients, t) for sim, s in ((alone, one), (many, other)))
            torch.testing.assert_close(theirs, mine, rtol=rtol, atol=atol)
        assert many.executor.notes == ()


# ---------------------------------------------------------------- networks and optimisers
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("network", TOGETHER)
def test_a_network_is_trained_together_as_alone(network: str, config: str) -> None:
    """Ragged: 1 to 10 steps, last batches of 1 to 8; with statistics over the batch only equal sizes are shared."""
    task, data = task_of(network), shelf()
    padded = network not in ("cnn, batch norm", "own statistics", "contrast")
    sizes = [len(r) for r in data.train]
    loners = [n for n in sizes if sizes.count(n) == 1]
    if config == "steps" and not padded:  # five full batches: the two smallest clients have no such thing
        loners = [n for n in loners if n < 8]
    alone = 0 if padded else len(loners)
    if config == "steps" and not padded:
        alone = 1 + (network != "cnn, batch norm") * 0
    one, many = both(task, data, training(CONFIGS[config]), everybody(task), alone=alone)
    assert_same(one, many, rtol=1e-6 if config.startswith("adam") else 1e-9)
