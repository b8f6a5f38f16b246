"""A client that lies to FedDistr or to Gaussian mixtures, over the network's own messages: alone, and among two.

Each lie is told in a run of its own, since both methods have one round.  What is asked of every method is asked here:
refused and recorded, or harmless; never the end of a run.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("grpc")

import loopback
import toy_prior

from unskew import wire
from unskew.algorithms.feddistr import FedDistr
from unskew.algorithms.fedpft import FedPFT
from unskew.errors import QuorumError
from unskew.info import row
from unskew.local.data import DeviceData
from unskew.local.trainer import LocalTrainer
from unskew.protocol import SgdConfig
from unskew.runtime.in_process import Population
from unskew.runtime.message import REQUESTS, Envelope, StepRequest, read
from unskew.tree import leaves

QUICK = SgdConfig(0.02, local_steps=2, batch_size=16, optimizer="adam")
METHODS: dict[str, Any] = {
    "feddistr": FedDistr(steps=2, images=3, classifier=QUICK),
    "fedpft": FedPFT(images=3, classifier=QUICK),
}
FIRST = {"feddistr": "disentangle", "fedpft": "summarise"}
VECTORS = {"feddistr": ("embeddings",), "fedpft": ("means", "variances")}


@pytest.fixture(autouse=True)
def _toy() -> Iterator[None]:
    with toy_prior.toy():
        yield
    loopback.built.cache_clear()


def first_of(clients: int) -> tuple[Population, LocalTrainer]:
    """The first few of the toy's clients, of which the last is the liar."""
    population, trainer = toy_prior.clients()
    s = trainer.device_data
    device_data = DeviceData(s.x, s.y, s.train[:clients], s.val[:clients], None, s.x_test, s.y_test, s.domains)
    few = LocalTrainer(trainer.task, device_data)
    return dataclasses.replace(population, histograms=population.histograms[:clients], server_trainer=few), few


# ---------------------------------------------------------------- lies
Lie = Callable[[Any], Any]


def each(names: tuple[str, ...], change: Callable[[Tensor], Tensor]) -> Lie:
    return lambda reply: dataclasses.replace(reply, **{n: change(getattr(reply, n)) for n in names})


def many(names: tuple[str, ...], change: Callable[[Tensor], Tensor], number: int) -> Lie:
    """So many vectors of each label."""

    def lie(reply: Any) -> Any:
        vectors = {n: change(getattr(reply, n)[:1].expand(3 * number, -1).clone()) for n in names}
        labels = torch.arange(3).repeat_interleave(number)
        return dataclasses.replace(reply, **vectors, labels=labels, counts=torch.ones_like(labels))

    return lie


def impossible(names: tuple[str, ...]) -> dict[str, Lie]:
    """What no client can have; it has to be refused."""
    return {
        "wider": each(names, lambda t: torch.cat([t, t[:, :1]], 1)),
        "without a width": each(names, lambda t: t[:, :0]),
        "flat": each(names, lambda t: t.flatten()),
        "whole numbers": each(names, lambda t: t.long()),
        "not a number": each(names, lambda t: torch.full_like(t, math.nan)),
        "finite in more bits only": each(names, lambda t: torch.full_like(t, 1e300, dtype=torch.float64)),
        "a label too many": each(("labels",), lambda t: torch.cat([t, t[-1:]])),
        "labels beyond": each(("labels",), lambda t: t + 3),
        "broken labels": each(("labels",), lambda t: t.float()),
        "counts beyond": each(("counts",), lambda t: torch.full_like(t, (1 << 53) + 1)),
        "broken counts": each(("counts",), lambda t: t.double()),
        "hundreds of a label": many(names, torch.zeros_like, 214),
    }


def possible(names: tuple[str, ...]) -> dict[str, Lie]:
    """What might be so, and must not end a run."""
    return {
        "zeros": each(names, torch.zeros_like),
        "all one label": each(("labels",), torch.zeros_like),
        "nothing counted": each(("counts",), torch.zeros_like),
        "everything counted": each(("counts",), lambda t: torch.full_like(t, 1 << 53)),
        "spread, as many as can be": many(names, lambda t: t + torch.arange(len(t))[:, None], 3),
        "none at all": each((*names, "labels", "counts"), lambda t: t[:0]),
    }


def told(lie: Any, step: str, said: list[Any]) -> Callable[[Envelope], Envelope]:
    """A client that answers one step with a lie."""
    there, client = said

    def answer(message: Envelope) -> Envelope:
        honest = there.fresh(client)(message)
        asked, reply = read(message, REQUESTS), honest
        if not isinstance(asked, StepRequest) or asked.step != step or reply.action != "ask":
            return honest
        of = wire.signatures(there.method)[step].reply
        parts = tuple(wire.encode(lie(wire.decode(part, of))) for part in reply.parts)
        return Envelope(reply.action, reply.head, parts)

    return answer


def lived(
    name: str, clients: int, lie: Lie, step: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[Any, dict[str, Any], set[int]]:
    """The state and facts of the round, and whose replies were lost or refused; the last client lies."""
    method = dataclasses.replace(METHODS[name], **options)
    monkeypatch.setattr(loopback, "make", lambda case: method)
    monkeypatch.setattr(loopback, "world", lambda network, pooled: first_of(clients))
    loopback.built.cache_clear()
    # Every client replies, so that on a busy machine none is to be lost for being slow.
    patient = {"deadline_s": 120.0}
    there = loopback.Deployed(name, "perceptron", folder, seed=4, clients_per_round=clients, terms=patient)
    there.runtime.model = dataclasses.replace(there.runtime.model, server_trainer=there.trainer)
    liar = clients - 1
    there.grid.handlers[liar] = told(lie, step, [there, liar])
    try:
        state, trace = there.runtime.round(there.runtime.start(), 1)
    except QuorumError:  # nobody is left
        return None, {}, {liar}
    info = method.info(state)
    json.dumps(row(info), allow_nan=False)
    assert all(bool(t.isfinite().all()) for _, t in leaves(state) if isinstance(t, Tensor) and t.is_floating_point())
    lost = {f.client for f in trace.failures} | {i.client for i in info.ignored}
    assert lost <= {liar}
    there.runtime.round(state, 2)
    return state, info, lost


CASES = [
    pytest.param(name, clients, marks=pytest.mark.slow if clients < 3 else ())
    for name in METHODS
    for clients in (1, 2, 3)
]


@pytest.mark.parametrize(("name", "clients"), CASES)
@pytest.mark.seconds
def test_what_cannot_be_is_refused_and_the_round_goes_on_without(
    name: str, clients: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (what, lie) in enumerate(impossible(VECTORS[name]).items()):
        state, _, lost = lived(name, clients, lie, FIRST[name], tmp_path / str(number), monkeypatch)
        assert lost == {clients - 1}, what
        kept = state and (state.prompts if name == "feddistr" else state.components)
        # The honest ones are in the majority, but alone none of them is left to learn from.
        assert (kept is None) is (clients == 1), what


@pytest.mark.parametrize(("name", "clients"), CASES)
@pytest.mark.seconds
def test_what_might_be_ends_no_run(name: str, clients: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, (what, lie) in enumerate(possible(VECTORS[name]).items()):
        state, _, _ = lived(name, clients, lie, FIRST[name], tmp_path / str(number), monkeypatch)
        assert state is not None or clients == 1, what


# ---------------------------------------------------------------- what lies are worth
@pytest.mark.parametrize("name", METHODS)
def test_a_client_that_counts_countless_examples_counts_for_twice_the_next(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients 0 and 1 have 23 and 20 images; the third says 2 ** 53 of each of its two clusters: 46 in all."""
    lie = each(("counts",), lambda t: torch.full_like(t, 1 << 53))
    state, info, _ = lived(name, 3, lie, FIRST[name], tmp_path, monkeypatch, m=1)
    counts = state.info.uploads.counts if name == "feddistr" else state.components.counts
    assert counts.tolist() == [23, 20, 23, 23]
    assert info.warnings == (
        "client 2 says it has more than twice as many examples as any other, and counts for twice as many",
    )
