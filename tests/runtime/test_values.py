"""Own methods that change what they are given, or make something else than their annotations say."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from recipe import simulator

import unskew as us
from unskew.algorithms.fedavg import ModelMessage, ModelReply
from unskew.errors import ProtocolError
from unskew.local import executor
from unskew.protocol import Federation, Me, Plan, ask, step
from unskew.runtime.values import check_type
from unskew.tree import Marks, Params, marks
from unskew.wrappers.base import wrap
from unskew.wrappers.compression import ClipNorm


@dataclass(frozen=True)
class Plain:
    """The mean of models that every client halves, told to clients that remember what they sent."""

    def init(self, params: Params, fed: Federation) -> Params:
        return params

    def round(self, state: Params, fed: Federation) -> Plan[Params]:
        replies = yield from ask(self.train, {c: ModelMessage(state) for c in fed.sample()})
        return {n: torch.stack([r.params[n] for r in replies.values()]).mean(0) for n in state}

    def serve(self, state: Params, client: int | None) -> Params:
        return state

    @step
    def train(self, me: Me, msg: ModelMessage, memory: Params | None) -> tuple[ModelReply, Params]:
        halved = {n: t * 0.5 for n, t in msg.params.items()}
        return ModelReply(halved, me.n), halved


@dataclass(frozen=True)
class Changes(Plain):
    """Changes one thing in place that it is given; replies are added up in the first, whose client remembers it."""

    what: str = ""

    def init(self, params: Params, fed: Federation) -> Params:
        return zeroed(params) if self.what == "given" else params

    def round(self, state: Params, fed: Federation) -> Plan[Params]:
        replies = yield from ask(self.train, {c: ModelMessage(state) for c in fed.sample()})
        first, *others = (reply.params for reply in replies.values())
        if self.what == "replies":
            for n, t in first.items():
                t.add_(others[0][n])
        return zeroed(state) if self.what == "state" else first

    @step
    def train(self, me: Me, msg: ModelMessage, memory: Params | None) -> tuple[ModelReply, Params]:
        halved = {n: t * 0.5 for n, t in msg.params.items()}
        if self.what == "message":
            zeroed(msg.params)
        if self.what == "memory":
            return ModelReply(msg.params, me.n), zeroed(memory) if memory else halved
        if self.what == "initial" and me.round == 2:  # in the first, the message is that model
            zeroed(me.initial)
        if self.what == "histogram":
            me.histogram.clamp_(min=1)
        return ModelReply(halved, me.n), halved


def zeroed(params: Params) -> Params:
    for t in params.values():
        t.zero_()
    return params


CHANGES = {
    "message": r"step 'train' changes its message in place at 'params/",
    "memory": r"step 'train' changes its client's memory in place",
    "initial": r"step 'train' changes me.initial in place",
    "histogram": r"step 'train' changes me.histogram in place, and others have the same object",
    "state": r"round of Changes.* changes the state it is given in place",
    "replies": r"round of Changes.* changes what client \d remembers of its reply in place",
    "given": r"init of Changes.* changes the model it is given in place",
}


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("what", CHANGES)
def test_what_is_given_stays_as_it_was(what: str, wrapped: bool) -> None:
    """Else clients would train from what others made of a message, in some executors and over no network."""
    method = wrap(Changes(what), ClipNorm(1e9)) if wrapped else Changes(what)
    sim = simulator("fedavg", "perceptron", method=method)
    with pytest.raises(ProtocolError, match=CHANGES[what]):
        played(sim)


def test_few_clients_are_looked_at_and_in_the_first_rounds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else models of some megabytes cost a method with many small exchanges more than its training."""
    looked: list[Any] = []

    def counted(tree: Any, content: bool = False) -> Marks:
        looked.append(tree)
        return marks(tree, content)

    monkeypatch.setattr(executor, "marks", counted)
    sim = simulator("fedavg", "perceptron", method=Plain(), clients_per_round=6)
    state = sim.start()
    for t in range(1, executor.FIRST + 2):
        state, _ = sim.round(state, t)
    each = 4  # message, memory, initial model, histogram
    assert len(looked) == each * executor.WATCHED * executor.FIRST


@dataclass(frozen=True)
class ChangesServed(Plain):
    def personalise(self, me: Me, params: Params, memory: Params | None) -> Params:
        for t in params.values():
            t.mul_(0.5)
        return params


def test_a_personal_model_is_not_made_of_the_served_one_in_place() -> None:
    """All clients are served one object."""
    sim = simulator("fedavg", "perceptron", method=ChangesServed())
    state, _ = sim.round(sim.start(), 1)
    with pytest.raises(ProtocolError, match="step 'personalise' changes the model that it is served in place"):
        sim.own_models(state, [0, 1], 1)


@dataclass(frozen=True)
class ChangesServedState(Plain):
    def serve(self, state: Params, client: int | None) -> Params:
        for t in state.values():
            t.mul_(0.9)
        return state


@dataclass(frozen=True)
class ChangesReportedState(Plain):
    def info(self, state: Params) -> tuple[()]:
        for t in state.values():
            t.mul_(0.9)
        return ()


@pytest.mark.parametrize("method", [ChangesServedState(), ChangesReportedState()], ids=lambda m: type(m).__name__)
def test_serving_and_reporting_leave_the_state_as_it_was(method: Any) -> None:
    """Else what is evaluated, and how often, would decide what is trained."""
    with pytest.raises(ProtocolError, match="serve or info changes the state that it is given in place"):
        us.simulate({"mine": method}, data="digits", model="logistic", rounds=1, progress=False)
    with pytest.raises(ProtocolError, match=r"serve or info of Changes\w+ changes the state that it is given in place"):
        us.check_method(method)


def played(sim: Any) -> None:
    state = sim.start()
    for t in (1, 2, 3):
        state, _ = sim.round(state, t)


class OtherState(Plain):
    def init(self, params: Params, fed: Federation) -> tuple[Params, int]:  # type: ignore[override]
        return params  # type: ignore[return-value]


class OtherMemory(Plain):
    @step
    def train(self, me: Me, msg: ModelMessage, memory: int | None) -> tuple[ModelReply, int | None]:  # type: ignore[override]
        return ModelReply(msg.params, me.n), msg.params  # type: ignore[return-value]


class OtherReply(Plain):
    @step
    def train(self, me: Me, msg: ModelMessage, memory: Params | None) -> tuple[ModelReply, Params | None]:
        return ModelMessage(msg.params), None  # type: ignore[return-value]


class OtherMessage(Plain):
    def round(self, state: Params, fed: Federation) -> Plan[Params]:
        yield from ask(self.train, {c: state for c in fed.sample()})  # type: ignore[misc]
        return state

    @step
    def train(self, me: Me, msg: ModelMessage, memory: Params | None) -> tuple[ModelReply, Params | None]:
        return ModelReply(msg, me.n), None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (OtherState(), "the state that init of OtherState returns is not of the type that is annotated"),
        (OtherMemory(), "the memory that step 'train' returns is not of the type"),
        (OtherReply(), "the reply of step 'train' is not of the type"),
        (OtherMessage(), "the message to step 'train' is not of the type"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_what_is_made_is_of_the_annotated_type(method: Any, sentence: str) -> None:
    """Else the first resumed run, worker process or network would say so, without a name."""
    with pytest.raises(ProtocolError, match=sentence):
        played(simulator("fedavg", "perceptron", method=method))


def test_a_method_is_a_frozen_dataclass() -> None:
    """What it keeps in itself would pass from seed to seed."""

    class NoDataclass:
        init, round, serve, train = Plain.init, Plain.round, Plain.serve, Plain.train

    for method in (NoDataclass(), wrap(NoDataclass(), ClipNorm(1.0))):
        with pytest.raises(ProtocolError, match=r"NoDataclass is no frozen dataclass, .* @dataclass\(frozen=True\)"):
            simulator("fedavg", "perceptron", method=method)


def test_values_that_bytes_bring_back_pass() -> None:
    check_type(ModelMessage({"w": torch.zeros(2)}), ModelMessage, "a message")
    check_type((np.float64(0.5), (1, 2), {3: 0.1}), tuple[float, tuple[int, ...], dict[int, float]], "a state")
    with pytest.raises(ProtocolError, match=r"^a message is not of the type that is annotated, .*expected"):
        check_type(ModelMessage({"w": torch.zeros(2)}), int, "a message")
