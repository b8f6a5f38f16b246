"""Tiny worlds whose numbers can be worked out by hand."""

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from unskew.keys import Key
from unskew.local.data import DeviceData
from unskew.local.sequential import Sequential
from unskew.local.trainer import LocalTrainer
from unskew.protocol import ClientId
from unskew.runtime import in_process
from unskew.runtime import round as round_driver
from unskew.runtime.in_process import Population, Simulator
from unskew.runtime.round import Trace
from unskew.tasks.task import Task, make_task
from unskew.tree import Params, leaves


@dataclass(frozen=True, eq=False)
class World:
    """Clients with given data, float64, and a common initial model."""

    task: Task
    device_data: DeviceData
    population: Population

    def labelled(self, labels: Sequence[Sequence[int]]) -> "World":
        """The same clients, with these of three labels."""
        y = torch.tensor([c for part in labels for c in part])
        histograms = torch.stack([torch.bincount(torch.tensor(part), minlength=3) for part in labels])
        population = replace(self.population, histograms=histograms)
        return replace(self, device_data=replace(self.device_data, y=y), population=population)

    def beginning(self, *values: float) -> "World":
        """Springs with these initial models: the first is the common one, the others are drawn by their number."""
        models: list[Params] = [{"head.weight": torch.tensor([[v]], dtype=torch.float64)} for v in values]
        population = replace(self.population, initial=models[0], initialise=lambda key: models[int(key.path[-1])])
        return replace(self, population=population)

    def simulator(self, method: Any, **settings: Any) -> Simulator[Any]:
        executor = Sequential(LocalTrainer(self.task, self.device_data, dtype=torch.float64))
        return Simulator(method, self.population, executor, **settings)

    def play(self, method: Any, rounds: int = 3, **settings: Any) -> "Play":
        sim = self.simulator(method, **settings)
        states, traces = [sim.start()], []
        for t in range(1, rounds + 1):
            state, trace = sim.round(states[-1], t)
            states.append(state)
            traces.append(trace)
        return Play(sim, states, traces)


@dataclass(frozen=True, eq=False)
class Play:
    """What some rounds led to: the states from round 0 on, and what happened in each round."""

    sim: Simulator[Any]
    states: list[Any]
    traces: list[Trace]

    @property
    def params(self) -> list[Params]:
        """The global model after each round, the initial one first."""
        return [self.sim.method.serve(s, None) for s in self.states]

    def own(self, client: ClientId) -> Params:
        """What a client would use in the end."""
        model = self.sim.own_models(self.states[-1], [client], len(self.traces)).get(client)
        assert model is not None
        return model

    @property
    def bytes(self) -> list[int]:
        """Sent in each round."""
        return [sum(x.bytes for x in t.transfers) for t in self.traces]


def world(build: Callable[[], nn.Module], loss: Any, x: Sequence[Tensor], y: Sequence[Tensor], classes: int) -> World:
    task = make_task(build, classes, loss=loss, examples=x[0][:4].float())
    rows = torch.split(torch.arange(sum(map(len, y))), [len(part) for part in y])
    empty = tuple(torch.empty(0, dtype=torch.int64) for _ in y)
    device_data = DeviceData(torch.cat(list(x)), torch.cat(list(y)), rows, empty)
    if classes == 1:
        histograms = torch.tensor([[len(part)] for part in y])
    else:
        histograms = torch.stack([torch.bincount(part, minlength=classes) for part in y])

    def initialise(key: Key) -> Params:
        return {n: t.double() for n, t in task.init(key).items()}

    return World(task, device_data, Population(histograms, task.layout, initialise(Key(0)), initialise))


Model = dict[str, Tensor]
"""A model of `classes`, as second programs have it."""


def net(w: Mapping[str, Tensor]) -> nn.Sequential:
    """The network of `classes` with these values, in plain PyTorch."""
    layers: list[tuple[str, nn.Module]] = [("fc", nn.Linear(4, 5))]
    if "bn.weight" in w:
        layers.append(("bn", nn.BatchNorm1d(5)))
    module = nn.Sequential(OrderedDict([*layers, ("act", nn.Tanh()), ("head", nn.Linear(5, 3))])).double()
    module.load_state_dict(dict(w), strict=False)
    return module


def mean(models: Sequence[Model], weights: Sequence[float] | None = None) -> Model:
    shares = [1.0] * len(models) if weights is None else weights
    return {k: sum(a * m[k] for m, a in zip(models, shares, strict=True)) / sum(shares) for k in models[0]}


def half_square(prediction: Tensor, y: Tensor) -> Tensor:
    return 0.5 * (prediction[:, 0] - y).square()


def line(dimensions: int = 1) -> nn.Module:
    """y = w x, started at w = 0."""
    linear = nn.Linear(dimensions, 1, bias=False)
    nn.init.zeros_(linear.weight)
    return nn.Sequential(OrderedDict(head=linear))


@pytest.fixture
def springs() -> Callable[..., World]:
    """Clients F_k(w) = a_k/2 (w - m_k)^2 in one dimension, from w = 0: every example is (sqrt(a_k), sqrt(a_k) m_k)."""

    def make(m: Sequence[float], a: Sequence[float] | None = None, n: Sequence[int] | None = None) -> World:
        slopes = [s**0.5 for s in (a or [1.0] * len(m))]
        sizes = n or [1] * len(m)
        x = [torch.full((k, 1), s, dtype=torch.float64) for s, k in zip(slopes, sizes, strict=True)]
        y = [torch.full((k,), s * mid, dtype=torch.float64) for s, mid, k in zip(slopes, m, sizes, strict=True)]
        return world(line, half_square, x, y, 1)

    return make


@pytest.fixture
def bowls() -> Callable[..., World]:
    """Clients F_k(w) = 1/2 mean_j a_kj (w_j - m_kj)^2 in several dimensions, from w = 0; an example for each."""

    def make(m: Sequence[Sequence[float]], a: Sequence[Sequence[float]]) -> World:
        slopes = torch.tensor(a, dtype=torch.float64).sqrt()
        y = slopes * torch.tensor(m, dtype=torch.float64)
        return world(functools.partial(line, len(m[0])), half_square, [*slopes.diag_embed()], [*y], 1)

    return make


@pytest.fixture
def classes() -> Callable[..., World]:
    """Clients of a three-class problem in four dimensions with a small network, with BatchNorm if asked for."""

    def make(n: Sequence[int] = (8, 8, 8, 8), norm: bool = False, seed: int = 1, same: bool = False) -> World:
        def build() -> nn.Module:
            layers: list[tuple[str, nn.Module]] = [("fc", nn.Linear(4, 5))]
            if norm:
                layers.append(("bn", nn.BatchNorm1d(5)))
            return nn.Sequential(OrderedDict([*layers, ("act", nn.Tanh()), ("head", nn.Linear(5, 3))]))

        x, y = [], []
        for client, k in enumerate(n):
            g = (Key(seed) / "data" / (0 if same else client)).generator()
            x.append(torch.randn(k, 4, generator=g, dtype=torch.float64) + (0 if same else client))
            y.append(torch.randint(0, 3, (k,), generator=g))
        return world(build, "cross_entropy", x, y, 3)

    return make


@pytest.fixture
def equal() -> Callable[..., None]:
    """Two models, or two lists of models, agree within `atol`."""

    def check(a: Any, b: Any, atol: float = 1e-9) -> None:
        if isinstance(a, list):
            assert len(a) == len(b)
            for left, right in zip(a, b, strict=True):
                check(left, right, atol)
            return
        assert list(a) == list(b)
        for name in a:
            torch.testing.assert_close(a[name], b[name], rtol=0.0, atol=atol)

    return check


@pytest.fixture
def value() -> Callable[[Params], float]:
    """The only number of a model in the springs' world."""
    return lambda params: params["head.weight"].item()


@dataclass(frozen=True)
class Cut:
    """An outage that loses given asks, (round, step, how often it was asked before in the round, client)."""

    asks: tuple[tuple[int, str, int, ClientId], ...]
    how: Literal["unreachable", "late"]

    def fate(self, key: Key, step: str, asked: int) -> Literal["unreachable", "late"] | None:
        _, t, _, _, client = key.path
        return self.how if (t, step, asked, client) in self.asks else None


@pytest.fixture
def cut() -> Callable[..., Cut]:
    """Loses the given asks and nothing else."""
    return lambda *asks, how="unreachable": Cut(asks, how)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[list[Any]]]:
    """Collects every message that reaches a client and every reply that reaches the server while it is open."""

    @contextmanager
    def watch() -> Iterator[list[Any]]:
        messages: list[Any] = []
        fates: dict[int, Any] = {}
        fate, job, run = round_driver._Round.fate, in_process._InProcessRound.job, in_process._InProcessRound.run

        def drawn(self: Any, step: str, client: int) -> Any:
            fates[client] = fate(self, step, client)
            return fates[client]

        def down(self: Any, exchange: Any, client: int, *parts: Any, **options: Any) -> Any:
            messages.append(exchange.messages[client])
            return job(self, exchange, client, *parts, **options)

        def up(self: Any, exchange: Any) -> Any:
            for client, answer in run(self, exchange):
                messages.extend([answer.reply] if fates[client] is None else [])
                yield client, answer

        with monkeypatch.context() as patch:
            patch.setattr(round_driver._Round, "fate", drawn)
            patch.setattr(in_process._InProcessRound, "job", down)
            patch.setattr(in_process._InProcessRound, "run", up)
            yield messages

    return watch


@pytest.fixture
def floats() -> Callable[[Any], int]:
    """Numbers in a message's tensors."""
    return lambda message: sum(leaf.numel() for _, leaf in leaves(message) if isinstance(leaf, Tensor))
