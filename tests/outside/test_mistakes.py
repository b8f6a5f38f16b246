"""Mistakes that the author of a method or split makes, and the sentences they are met with."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import unskew as us
from unskew.data.assign import assign
from unskew.errors import ConfigError, DataError, ProtocolError
from unskew.keys import Key
from unskew.protocol import ClientId, Federation, Me, Step, ask, sgd, step
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


class NamesTheStep(Mine):
    def round(self, state: Params, fed: Federation) -> Any:
        step: Any = "train"
        yield from ask(step, {c: state for c in fed.sample()})
        return state


class SendsAList(Mine):
    def round(self, state: Params, fed: Federation) -> Any:
        messages: Any = [state]
        yield from ask(self.train, messages)
        return state


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
        (NamesTheStep(), ProtocolError, "ask takes the step itself, as in ask.self.train, .*got 'train'"),
        (
            SendsAList(),
            ProtocolError,
            "ask takes a message for each client, .*got list; to send one message to the cohort",
        ),
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


class DrawsWhenEvaluated(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.head(x.flatten(1))
        return logits if self.training else logits + 0.1 * torch.randn_like(logits)


def test_a_network_that_draws_while_it_is_evaluated_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    """Trained as it should be, it has other metrics each time."""
    us.simulate("fedavg", data="digits", model=DrawsWhenEvaluated(), split=us.IID(num_clients=2), rounds=1)
    said = capsys.readouterr().err
    assert "numbers were drawn from PyTorch's global generator while models were evaluated" in said
    assert "draw from fed.key" not in said


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (
            {0: np.arange(3), 1: np.arange(3, 6)},
            "must return a list of arrays of indices, one for each client, got dict",
        ),
        (None, "must return a list of arrays of indices, one for each client, got NoneType"),
        ([3, 4], "must give each client an array of at least one index .* got int64 of shape .. for client 0"),
    ],
)
def test_a_split_with_a_mistake_is_refused_in_a_sentence(made: Any, text: str) -> None:
    @dataclass(frozen=True)
    class Split:
        num_clients: int = 2

        def assign(self, examples: Any, key: Key) -> Any:
            return made

    with pytest.raises(DataError, match=text):
        assign(Split(), np.zeros(9, np.int64), 1, Key(0))


def test_a_split_that_changes_the_labels_it_is_given_changes_not_the_data() -> None:
    @dataclass(frozen=True)
    class BySuperclass:
        num_clients: int = 2

        def assign(self, examples: Any, key: Key) -> Any:
            y = examples.labels
            y %= 2
            return [np.flatnonzero(y == 0), np.flatnonzero(y == 1)]

    labels = np.arange(12) % 4
    even, odd = assign(BySuperclass(), labels, 4, Key(0))
    assert (even.tolist(), odd.tolist()) == ([0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11])
    assert labels.tolist() == (np.arange(12) % 4).tolist()
