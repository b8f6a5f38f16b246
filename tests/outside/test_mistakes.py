"""Mistakes that the author of a method or split makes, and the sentences they are met with."""

import math
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import unskew as us
from unskew.data.assign import assign
from unskew.errors import ConfigError, ProtocolError, UnskewError
from unskew.keys import Key
from unskew.protocol import ClientId, Examples, Federation, Me, Sgd, Step, ask, fold, sgd, step
from unskew.reduction import MeanOf
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


class DrawsByNumPy(Mine):
    @step
    def train(self, me: Me, msg: Params, memory: None) -> Step[tuple[Params, None]]:
        trained = yield from sgd(msg, self.local)
        return {name: w + float(np.random.rand()) for name, w in trained.items()}, None  # noqa: NPY002


class DrawsByPython(Mine):
    def round(self, state: Params, fed: Federation) -> Any:
        state = yield from super().round(state, fed)
        return {name: w + random.random() for name, w in state.items()}


@pytest.mark.parametrize(("method", "whose"), [(DrawsByNumPy(), "NumPy's"), (DrawsByPython(), "Python's")])
def test_draws_of_numpy_and_python_are_warned_of_as_well(
    method: object, whose: str, capsys: pytest.CaptureFixture[str]
) -> None:
    us.simulate({"mine": method}, data="digits", model="logistic", split=us.IID(num_clients=2), rounds=1)
    said = capsys.readouterr().err
    assert f"drawn from {whose} global generator" in said
    assert "(me.key / 'start').numpy().random(3)" in said
    assert said.count("global generator") == 1


class DrawsWhenEvaluated(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.head(x.flatten(1))
        return logits if self.training else logits + 0.1 * torch.randn_like(logits)


@pytest.mark.parametrize("executor", ["sequential", "workers"])
def test_a_network_that_draws_while_it_is_evaluated_is_warned_of(
    executor: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trained as it should be, it has other metrics each time."""
    at: Any = {"split": us.IID(num_clients=2), "rounds": 1, "runtime": us.Runtime(executor=executor)}
    us.simulate("fedavg", data="digits", model=DrawsWhenEvaluated(), **at)
    said = capsys.readouterr().err
    assert "numbers were drawn from PyTorch's global generator while models were evaluated" in said
    assert "draw from fed.key" not in said


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


# ---------------------------------------------------------------- steps, states and models
@dataclass(frozen=True)
class Sum:
    """A loss term that looks for what it is given, or not."""

    key: str = "anchor"

    def __call__(self, params: Params, aux: Any) -> torch.Tensor:
        return torch.stack([(w - aux[self.key][name]).square().sum() for name, w in params.items()]).sum()


@dataclass(frozen=True)
class TakesTheBatch:
    def __call__(self, params: Params, aux: Any, batch: Any) -> torch.Tensor:
        return batch.loss.mean()


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


class TrainsByADictionary(Mine):
    @step
    def train(self, me: Me, msg: Params, memory: None) -> Step[tuple[Params, None]]:
        settings: Any = {"lr": 0.1}
        return (yield from sgd(msg, settings)), None


class MisspellsAux(Mine):
    @step
    def train(self, me: Me, msg: Params, memory: None) -> Step[tuple[Params, None]]:
        return (yield from sgd(msg, self.local, Sum("anchr"), anchor=msg)), None


class SeesNoBatch(Mine):
    @step
    def train(self, me: Me, msg: Params, memory: None) -> Step[tuple[Params, None]]:
        return (yield from sgd(msg, self.local, TakesTheBatch())), None


class MisspellsAField(Mine):
    def round(self, state: Params, fed: Federation) -> Any:
        mean = yield from ask(self.train, {c: state for c in fed.sample()}, reduce=MeanOf("parms"))
        return mean.value


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


class FoldsOverTestData(Mine):
    @step
    def train(self, me: Me, msg: Params, memory: None) -> Step[tuple[Params, None]]:
        part: Any = "test"
        yield from fold(lambda total, batch: total + batch.loss.sum(), msg, torch.zeros(()), part)
        return msg, None


class WeighsBelowZero(Mine):
    def round(self, state: Params, fed: Federation) -> Any:
        mean = MeanOf(lambda c, r: r, lambda c, r: -1.0 if c else 3.0)
        return (yield from ask(self.train, dict.fromkeys(fed.sample(), state), reduce=mean)).value


class LosesATensor(Mine):
    def round(self, state: Params, fed: Federation) -> Any:
        state = yield from super().round(state, fed)
        return {"head.weight": state["head.weight"]}


class PersonalisesHalf(Mine):
    def personalise(self, me: Me, params: Params, memory: None) -> Step[Params]:
        yield from ()
        return {"head.weight": params["head.weight"]}


class Plain:
    pass


class HasAPlainState(Mine):
    def init(self, params: Params, fed: Federation) -> Any:
        return Plain()


class AsksInInit(Mine):
    def init(self, params: Params, fed: Federation) -> Any:
        yield from ask(self.train, {})


SETTINGS: Any = {"lr": 0.1}


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (ForgetsYieldFrom(), r"mine, seed 0: .* write yield from before sgd\(...\) \(round 1, step 'train'\)"),
        (TrainsTheState(), r"must be a table of tensors by name, got tuple; .* \(round 1, step 'train'\)"),
        (TrainsByADictionary(), r"takes its settings from an SgdConfig, got {'lr': 0.1}.*\(round 1, step 'train'\)"),
        (MisspellsAux(), r"the loss term Sum looks for 'anchr', which is neither .* \(given: anchor\)"),
        (SeesNoBatch(), r"the loss term TakesTheBatch must take \(params, aux\): .* the attribute sees = \"features\""),
        (MisspellsAField(), r"takes the field 'parms' of every reply, and a reply of type dict has the fields none"),
        (BringsExamples(y=17), "Examples.y must be classes 0 to 9, got 17"),
        (BringsExamples(rows=9), "Examples.rows must be positions among the examples, .*, from 0 to one below"),
        (TrainsOnRows(rows="mask"), r"Sgd.rows must be positions .*, int64 \(m,\), .* got bool .*mask.nonzero"),
        (TrainsOnRows(rows=(0.0, 1.0)), r"Sgd.rows must be positions .*, int64 \(m,\), .* got float32 \(2,\)"),
        (TrainsOnRows(rows=((0, 1),)), r"Sgd.rows must be positions .*, int64 \(m,\), .* got int64 \(1, 2\)"),
        (FoldsOverTestData(), "over the client's part 'train' or 'val', got 'test'"),
        (WeighsBelowZero(), "weight of client 1 in a MeanOf must be a finite number >= 0, got -1; a sign belongs"),
        (LosesATensor(), "lacks head.bias; "),
        (PersonalisesHalf(), "lacks head.bias; "),
        (HasAPlainState(), "mine: HasAPlainState.init: the wire cannot build .*Any; annotate with dataclasses, tables"),
        (AsksInInit(), "mine: init of AsksInInit has a yield in it and may ask nobody"),
        (Mine(local=SETTINGS), r'mine.local must be SgdConfig\(...\) in Python, got a dict: {"lr": 0.1}'),
    ],
)
def test_a_mistake_in_a_step_or_a_state_is_refused_in_a_sentence(method: object, text: str) -> None:
    with pytest.raises(UnskewError, match=text) as caught:
        simulated(method)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 320


def undefined(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.full((len(y),), math.nan) * outputs.sum(1)


def detached(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.ones(len(y))


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (undefined, "global.loss is nan before any training: look at the loss"),
        (detached, r"neither the loss nor a term depends on the parameters, .* \(round 1, step 'train'\)"),
    ],
)
def test_a_loss_that_cannot_be_minimised_is_refused_in_a_sentence(loss: Any, text: str) -> None:
    with pytest.raises(UnskewError, match=text):
        us.simulate({"mine": Mine()}, model="logistic", loss=loss, split=us.IID(2), rounds=1, progress=False)


# ---------------------------------------------------------------- splits, rules, channels, data
def data() -> Any:
    return np.zeros((9, 2)), np.arange(9) % 2
