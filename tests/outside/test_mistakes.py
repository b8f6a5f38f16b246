"""Mistakes that the author of a method or split makes, and the sentences they are met with."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import unskew as us
from unskew.data.split import TrainingExamples, assign
from unskew.errors import ConfigError, ProtocolError, UnskewError
from unskew.keys import Key
from unskew.protocol import ClientId, Examples, Federation, Me, Sgd, Step, ask, sgd, step
from unskew.tree import Params


@dataclass(frozen=True)
class Mine:
    """A method that hands one client's model on; its subclasses are wrong."""

    local: us.SgdConfig = us.SgdConfig(batch_size=500)

    def init(self, params: Params, fed: Federation) -> Params:
        return params

    def round(self, state: Params, fed: Federation) -> Any:
        replies = yield from ask(self.train, {c: state for c in fed.sample()})
        return next(iter(replies.values()))

    @step
    def train(self, me: Me, msg: Params, memory: None) -> Step[tuple[Params, None]]:
        return (yield from sgd(msg, self.local)), None

    def serve(self, state: Params, client: ClientId | None) -> Params:
        return state


class AsksNobody(Mine):
    def round(self, state: Params, fed: Federation) -> Any:
        ask(self.train, {c: state for c in fed.sample()})
        return state


class ReturnsNothing(Mine):
    def round(self, state: Params, fed: Federation) -> Any:
        yield from ask(self.train, {c: state for c in fed.sample()})


class ServesNobody(Mine):
    serve: Any = None


def simulated(method: object) -> us.History:
    return us.simulate(
        {"mine": method},
        data="digits",
        model="logistic",
        split=us.IID(num_clients=2),
        rounds=1,
        progress=False,
    )


def test_the_method_that_the_others_spoil_is_right() -> None:
    assert len(simulated(Mine()).summary["rows"]) > 0


@pytest.mark.parametrize(
    ("method", "error", "text"),
    [
        (AsksNobody(), ProtocolError, 'AsksNobody.round is no generator.*write "replies = yield from ask'),
        (ReturnsNothing(), ProtocolError, "ReturnsNothing.round returned nothing in round 1"),
        (ServesNobody(), ConfigError, "mine: ServesNobody is no method, it lacks serve"),
    ],
)
def test_a_method_with_a_mistake_is_refused_in_a_sentence(method: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        simulated(method)
    assert len(str(caught.value)) < 300, "no model is printed"


class Draws(Mine):
    def round(self, state: Params, fed: Federation) -> Any:
        state = yield from super().round(state, fed)
        return {name: w + 0.01 * torch.randn_like(w) for name, w in state.items()}


def test_numbers_that_nobody_can_draw_again_are_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    for method, warned in ((Draws(), True), (Mine(), False)):
        us.simulate({"mine": method}, data="digits", model="logistic", split=us.IID(num_clients=2), rounds=1)
        assert ("drawn from PyTorch's global generator" in capsys.readouterr().err) is warned


def test_a_split_that_changes_the_labels_it_is_given_changes_not_the_data() -> None:
    @dataclass(frozen=True)
    class BySuperclass:
        num_clients: int = 2

        def assign(self, examples: Any, key: Key) -> Any:
            y = examples.labels
            y %= 2
            return [np.flatnonzero(y == 0), np.flatnonzero(y == 1)]

    labels = np.arange(12) % 4
    even, odd = assign(BySuperclass(), TrainingExamples(labels, 4), Key(0))
    assert (even.tolist(), odd.tolist()) == ([0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11])
    assert labels.tolist() == (np.arange(12) % 4).tolist()


# ---------------------------------------------------------------- steps, states and models
class ForgetsYieldFrom(Mine):
    @step
    def train(self, me: Me, msg: Params, memory: None) -> Step[tuple[Params, None]]:
        trained: Any = sgd(msg, self.local)
        return trained, None
        yield


class TrainsTheState(Mine):
    @step
    def train(self, me: Me, msg: Params, memory: None) -> Step[tuple[Params, None]]:
        state: Any = (msg, 0)
        return (yield from sgd(state, self.local)), None


@dataclass(frozen=True)
class BringsExamples(Mine):
    x: tuple[int, ...] = (5, 1, 8, 8)
    y: int = 0
    rows: int = 5

    @step
    def train(self, me: Me, msg: Params, memory: None) -> Step[tuple[Params, None]]:
        examples = Examples(torch.ones(self.x), torch.full((5,), self.y), torch.arange(self.rows))
        return (yield Sgd(msg, self.local, examples=examples)).params, None


@dataclass(frozen=True)
class TrainsOnRows(Mine):
    """Trains on some of the client's examples, each in its own way."""

    rows: Any = ()

    @step
    def train(self, me: Me, msg: Params, memory: None) -> Step[tuple[Params, None]]:
        rows = torch.arange(me.n) % 2 == 0 if self.rows == "mask" else torch.tensor(self.rows)
        return (yield Sgd(msg, self.local, rows=rows)).params, None


class PersonalisesHalf(Mine):
    def personalise(self, me: Me, params: Params, memory: None) -> Step[Params]:
        yield from ()
        return {"head.weight": params["head.weight"]}


class Plain:
    pass


class HasAPlainState(Mine):
    def init(self, params: Params, fed: Federation) -> Any:
        return Plain()


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (ForgetsYieldFrom(), r"mine, seed 0: .* write yield from before sgd\(...\) \(round 1, step 'train'\)"),
        (TrainsTheState(), r"must be a table of tensors by name, got tuple; .* \(round 1, step 'train'\)"),
        (BringsExamples(y=17), "Examples.y must be classes 0 to 9, got 17"),
        (BringsExamples(rows=9), "Examples.rows must be positions among the examples, .*, from 0 to one below"),
        (TrainsOnRows(rows="mask"), r"Sgd.rows must be positions .*, int64 \(m,\), .* got bool .*mask.nonzero"),
        (PersonalisesHalf(), "lacks head.bias; "),
        (HasAPlainState(), "mine: HasAPlainState.init: the wire cannot build .*Any; annotate with dataclasses, tables"),
    ],
)
def test_a_mistake_in_a_step_or_a_state_is_refused_in_a_sentence(method: object, text: str) -> None:
    with pytest.raises(UnskewError, match=text) as caught:
        simulated(method)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 320


# ---------------------------------------------------------------- splits, rules, channels, data
