"""A prior that can be worked out by hand, and clients with images for it.

The latent of an image x of 4 x 4 pixels is 2 x - 1, an embedding has its 16 numbers, and the noise that the prior
predicts is the one that would be right if the latent were the embedding.  So the loss of a cluster is least where the
embedding is the mean of its latents, and what is sampled is the embedding with a little noise.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from recipe import bits
from torch import Tensor, nn

from unskew import priors, wire
from unskew.keys import Key
from unskew.local import imagery
from unskew.local.data import DeviceData
from unskew.local.sequential import Sequential
from unskew.local.trainer import LocalTrainer
from unskew.runtime.in_process import Population, Simulator
from unskew.runtime.round import Trace
from unskew.tasks.task import Task, make_task

CLASSES = 3


@dataclass(frozen=True)
class Toy(priors.Prior):
    """The prior."""

    name: str = "toy"
    width: int = 16
    latent_shape: tuple[int, int, int] = (1, 4, 4)
    image_shape: tuple[int, int, int] = (1, 4, 4)
    alpha_bar: Tensor = torch.linspace(0.9, 0.1, 10)
    lr: float = 0.05
    at_once: int = 64
    device: torch.device = torch.device("cpu")

    def encode(self, images: Tensor) -> Tensor:
        return 2 * priors.fitted(images, self.image_shape) - 1

    def decode(self, latents: Tensor) -> Tensor:
        return ((latents + 1) / 2).clamp(0, 1)

    def start(self, noun: str | None = None) -> Tensor:
        return torch.zeros(16)

    def denoised(self, z: Tensor, v: Tensor | None, times: Tensor) -> Tensor:
        a = self.alpha_bar[times][:, None, None, None]
        point = torch.zeros_like(z) if v is None else v.reshape(z.shape)
        return (z - a.sqrt() * point) / (1 - a).sqrt()

    def sample(
        self, embeddings: Tensor, count: int, key: Key, guidance: float | None = None, steps: int | None = None
    ) -> Tensor:
        noise = torch.stack([torch.randn(count, 16, generator=(key / k).generator()) for k in range(len(embeddings))])
        latents = embeddings[:, None] + 0.1 * noise
        return ((latents + 1) / 2).clamp(0, 1).reshape(len(embeddings), count, 1, 4, 4)


@contextmanager
def toy() -> Iterator[Toy]:
    """Whatever prior is asked for, it is the toy."""
    made = Toy()
    imagery._made.cache_clear()
    with mock.patch.object(imagery, "_loaded", return_value=made):
        yield made
    imagery._made.cache_clear()


# ---------------------------------------------------------------- clients
def images(label: int, style: int, n: int, key: Key) -> Tensor:
    """A bright row (style 0) or column (style 1) whose place is the label, on grey, with some noise; in [0, 1]."""
    x = torch.full((n, 1, 4, 4), 0.3)
    if style == 0:
        x[:, :, label, :] = 0.9
    else:
        x[:, :, :, label] = 0.9
    return (x + 0.04 * torch.randn(n, 1, 4, 4, generator=key.generator())).clamp(0, 1)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, CLASSES))


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))


NETWORKS = {"perceptron": perceptron, "convolution": convolution}
HOLDINGS = (((0, 0, 14), (0, 1, 9)), ((1, 0, 20),), ((2, 0, 13), (1, 0, 11)), ((2, 0, 17), (2, 1, 15)))
"""(label, style, how many) of each client: labels 1 and 2 in style 0 are held by two."""


def task(network: str = "perceptron") -> Task:
    return make_task(NETWORKS[network], CLASSES, examples=torch.rand(4, 1, 4, 4, generator=Key(1).generator()))


def clients(network: str = "perceptron", seed: int = 0) -> tuple[Population, LocalTrainer]:
    """The clients of `HOLDINGS`, graded on images of all labels and styles."""
    x, y, groups, rows = [], [], [], []
    for c, held in enumerate(HOLDINGS):
        at = sum(map(len, y))
        for label, style, n in held:
            x.append(images(label, style, n, Key(seed) / c / label / style))
            y.append(torch.full((n,), label))
            groups.append(torch.full((n,), style))
        rows.append(torch.arange(at, sum(map(len, y))))
    labels, made = torch.cat(y), task(network)
    kinds = sorted({(label, style) for held in HOLDINGS for label, style, _ in held})
    x_test = torch.cat([images(*kind, 10, Key(seed) / "test" / i) for i, kind in enumerate(kinds)])
    y_test = torch.cat([torch.full((10,), label) for label, _ in kinds])
    device_data = DeviceData(
        torch.cat(x), labels, tuple(rows), tuple(r[:0] for r in rows), None, x_test, y_test, torch.cat(groups)
    )
    histograms = torch.stack([torch.bincount(labels[r], minlength=CLASSES) for r in rows])
    trainer = LocalTrainer(made, device_data)
    return Population(histograms, made.layout, made.init(Key(3)), made.init, trainer), trainer


def simulator(method: object, network: str = "perceptron", **options: object) -> Simulator[object]:
    """A run on these clients, about to begin."""
    population, trainer = clients(network)
    return Simulator(method, population, Sequential(trainer), **options)  # type: ignore[arg-type]


def played(method: object, rounds: int = 1, **options: Any) -> tuple[Simulator[Any], list[Any], list[Trace]]:
    """A run on these clients: the simulator, the states from the initial one on, and the trace of each round."""
    sim: Simulator[Any] = simulator(method, **options)
    states, traces = [sim.start()], []
    for t in range(1, rounds + 1):
        state, trace = sim.round(states[-1], t)
        states.append(state)
        traces.append(trace)
    return sim, states, traces


def same_deployed(name: str, method: object, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over Flower's messages, every client a fresh process: the bits and the bytes of the simulator, for two rounds."""
    pytest.importorskip("grpc")
    import loopback

    monkeypatch.setattr(loopback, "make", lambda case: method)
    monkeypatch.setattr(loopback, "world", lambda network, pooled: clients(network))
    loopback.built.cache_clear()
    there = loopback.Deployed(name, "perceptron", folder, seed=11)
    there.runtime.model = dataclasses.replace(there.runtime.model, server_trainer=there.trainer)
    sim, states, traces = played(method, rounds=2, seed=11)
    state = there.runtime.start()
    for t in (1, 2):
        state, trace = there.runtime.round(state, t)
        assert wire.encode(state) == wire.encode(states[t])
        assert trace.transfers == traces[t - 1].transfers
        assert trace.work == traces[t - 1].work
    for c in sim.population.clients:
        assert there.remembered(c) == bits(sim, states[-1])[f"client {c}"]
    loopback.built.cache_clear()
