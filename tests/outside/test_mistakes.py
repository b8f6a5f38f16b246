"""Mistakes that the author of a method or split makes, and the sentences they are met with."""

import math
import random
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

import unskew as us
from unskew.algorithms.feddw import DW
from unskew.data.assign import assign
from unskew.errors import ConfigError, DataError, DataWarning, DivergedError, ProtocolError, UnskewError
from unskew.keys import Key
from unskew.local.executor import ExecutorKind
from unskew.local.sequential import Sequential
from unskew.protocol import ClientId, Examples, Federation, Me, Sgd, Step, ask, fold, sgd, step
from unskew.reduction import MeanOf
from unskew.tasks.classification import CLASSIFICATION
from unskew.tasks.measure import Measure
from unskew.tree import Params
from unskew.wrappers.base import wrap


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


class InitOfOne(Mine):
    def init(self, params: Params) -> Params:  # type: ignore[override]
        return params


class ServesOne(Mine):
    def serve(self, state: Params) -> Params:  # type: ignore[override]
        return state


class ServesThree(Mine):
    def serve(self, state: Params, client: ClientId | None, round: int) -> Params:  # type: ignore[override]
        return state


class ReportsNothing(Mine):
    def info(self) -> tuple[()]:
        return ()


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
        (
            InitOfOne(),
            ProtocolError,
            r"InitOfOne.init is called as init\(params, fed\), and its own parameters are \(params\): too many "
            r"positional arguments; declare it as init\(self, params, fed\)$",
        ),
        (ServesOne(), ProtocolError, r"called as serve\(state, client\), and its own parameters are \(state\): too"),
        (ServesThree(), ProtocolError, r"parameters are \(state, client, round\): missing .* argument: 'round'"),
        (
            ReportsNothing(),
            ProtocolError,
            r"ReportsNothing.info is called as info\(state\), and its own parameters are \(\)",
        ),
        (ServesNobody(), ConfigError, "mine: ServesNobody is no method, it lacks serve"),
    ],
)
def test_a_method_with_a_mistake_is_refused_in_a_sentence(method: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        simulated(method)
    assert len(str(caught.value)) < 300, "no model is printed"


def test_check_method_refuses_functions_that_cannot_be_called_in_the_same_words() -> None:
    with pytest.raises(ProtocolError, match=r"ServesOne.serve is called as serve\(state, client\)"):
        us.check_method(ServesOne())
    with pytest.raises(ProtocolError, match=r"^ServesOne.serve is called as "):
        us.check_method(wrap(ServesOne(), DW()))


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


@dataclass(frozen=True)
class ShufflesAnew:
    num_clients: int = 2

    def assign(self, examples: Any, key: Key) -> Any:
        order = list(range(len(examples.labels)))
        random.shuffle(order)
        return list(np.array_split(order, self.num_clients))


def test_a_split_that_nobody_can_draw_again_is_warned_of() -> None:
    with pytest.warns(DataWarning, match=r"ShufflesAnew' drew from Python's global generator.*draw from its key"):
        assign(ShufflesAnew(), np.zeros(9, np.int64), 1, Key(0))


class DrawsWhenEvaluated(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.head(x.flatten(1))
        return logits if self.training else logits + 0.1 * torch.randn_like(logits)


class FindsOneClass(DrawsWhenEvaluated):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 50 * torch.eye(10)[0]


def test_both_warnings_of_a_round_are_kept() -> None:
    """In one row: a reader refuses two of one type."""
    at: Any = {"split": us.IID(num_clients=2), "rounds": 1, "local": us.SgdConfig(lr=1e-6), "progress": False}
    doubts = us.simulate("fedavg", data="digits", model=FindsOneClass(), **at).doubts
    assert any("global generator" in one for one in doubts)
    assert any("test examples of class 0 only" in one for one in doubts)


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
        (BringsExamples(x=(5, 63)), r"Examples.x must have the shape \(n, 1, 8, 8\).* got \(5, 63\)"),
        (BringsExamples(y=17), "Examples.y must be classes 0 to 9, got 17"),
        (BringsExamples(rows=9), "Examples.rows must be positions among the examples, from 0 to one below"),
        (TrainsOnRows(rows="mask"), r"Sgd.rows must be positions .*, int64 \(m,\), got bool .*mask.nonzero"),
        (TrainsOnRows(rows=(0.0, 1.0)), r"Sgd.rows must be positions .*, int64 \(m,\), got float32 \(2,\)"),
        (TrainsOnRows(rows=((0, 1),)), r"Sgd.rows must be positions .*, int64 \(m,\), got int64 \(1, 2\)"),
        (FoldsOverTestData(), "over the client's part 'train' or 'val', got 'test'"),
        (WeighsBelowZero(), "weight of client 1 in a MeanOf must be a finite number >= 0, got -1; a sign belongs"),
        (LosesATensor(), r"lacks head.bias; .* \(the model from serve\(state, None\)\)"),
        (PersonalisesHalf(), r"lacks head.bias; .* \(the model from serve or personalise for client 0\)"),
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


def test_examples_of_ones_own_that_fit_are_trained_on() -> None:
    simulated(BringsExamples())


class Extrapolates(Mine):
    """Steps over the clients' model, in the statistics of BatchNorm as well."""

    def round(self, state: Params, fed: Federation) -> Any:
        new = yield from super().round(state, fed)
        return {name: 20.0 * new[name] - 19.0 * w if "running" in name else new[name] for name, w in state.items()}


class Normalises(torch.nn.Sequential):
    def __init__(self) -> None:
        super().__init__(torch.nn.Flatten(), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 10))


def test_a_negative_variance_is_named_where_it_makes_a_loss_nan() -> None:
    with pytest.raises(DivergedError, match=r"variance of a BatchNorm layer negative \(1.running_var .*layout.buffers"):
        us.simulate({"mine": Extrapolates()}, model=Normalises(), split=us.IID(num_clients=2), rounds=1, progress=False)


def undefined(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.full((len(y),), math.nan) * outputs.sum(1)


def detached(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.ones(len(y))


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (undefined, "global.loss is nan before any training, so it is not the learning rate"),
        (detached, r"neither the loss nor a term depends on the parameters, .* \(round 1, step 'train'\)"),
    ],
)
def test_a_loss_that_cannot_be_minimised_is_refused_in_a_sentence(loss: Any, text: str) -> None:
    with pytest.raises(UnskewError, match=text):
        us.simulate({"mine": Mine()}, model="logistic", loss=loss, split=us.IID(2), rounds=1, progress=False)


# ---------------------------------------------------------------- kinds of task, measures, executors
def brier(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (outputs.softmax(1) - torch.nn.functional.one_hot(y, outputs.shape[1])).square().sum(1)


def test_a_measure_with_a_wrong_direction_or_range_is_refused() -> None:
    wrong: Any = "down"
    for measure, text in (
        (Measure("brier", "Brier score", wrong, 0.0, 2.0, each=brier), "must be higher or lower, .* got 'down'"),
        (Measure("brier", "Brier score", "lower", 2.0, 0.0, each=brier), "must have low < high, got 2.0 and 0.0"),
        (Measure("brier", "Brier score", "lower", 0.0, 0.1, each=brier), "brier is 0.9.* at most 0.1; correct low"),
    ):
        with pytest.raises(ConfigError, match=text):
            us.simulate(
                "fedavg", model="logistic", split=us.IID(2), rounds=1, evaluate=["global", measure], progress=False
            )


def test_a_kind_of_task_needs_a_loss_and_a_measure_and_is_named() -> None:
    with pytest.raises(ConfigError, match="the kind of task 'classification' has no measure"):
        replace(CLASSIFICATION, measures=())
    with pytest.raises(ConfigError, match="the kind of task 'classification' has no loss"):
        replace(CLASSIFICATION, losses={})
    task: Any = CLASSIFICATION
    for given in (task, us.TaskConfig(kind=task, model="logistic")):
        with pytest.raises(ConfigError, match="task must be the name of a kind of task, got the TaskKind"):
            us.simulate("fedavg", task=given, rounds=1)


class Loses(Sequential):
    name = "mine"

    def complete(self, jobs: Any) -> Any:
        yield from list(super().complete(jobs))[1:]


class Repeats(Sequential):
    name = "mine"

    def complete(self, jobs: Any) -> Any:
        for one in super().complete(jobs):
            yield from (one, one)


class TakesNone(Sequential):
    name = "mine"

    def window(self, model_bytes: int) -> int:
        return 0


class MeasuresNothing(Sequential):
    name = "mine"

    def evaluate(self, jobs: Any) -> Any:
        return []


LOSES = ExecutorKind("loses", "loses a result", lambda parts: Loses(parts.trainer))
REPEATS = ExecutorKind("repeats", "gives a result twice", lambda parts: Repeats(parts.trainer))
TAKES_NONE = ExecutorKind("takes_none", "takes no client", lambda parts: TakesNone(parts.trainer))
MEASURES_NOTHING = ExecutorKind("measures_nothing", "has no columns", lambda parts: MeasuresNothing(parts.trainer))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("LOSES", "must give one result for each client .*got none for client 0"),
        ("REPEATS", "must give one result for each client .*got a second one for client 0"),
        ("TAKES_NONE", "must say how many clients it takes at a time, an integer >= 1, got 0; correct its `window`"),
        ("MEASURES_NOTHING", "must give a list with the columns of each job, 1 here, got 0; correct its `evaluate`"),
    ],
)
def test_an_executor_that_does_not_do_as_it_should_is_refused(name: str, sentence: str) -> None:
    method = us.FedAvg() if name == "TAKES_NONE" else Mine()  # whose replies are folded, a window at a time
    with pytest.raises(ProtocolError, match=f"the executor 'mine' {sentence}"):
        us.simulate(
            {"mine": method}, model="logistic", split=us.IID(2), rounds=1, progress=False,
            runtime=us.Runtime(executor=f"{__name__}:{name}"),
        )  # fmt: skip


def test_an_executor_is_given_by_its_name() -> None:
    executor: Any = LOSES
    with pytest.raises(ConfigError, match=r"executor must be a name, one of sequential, .* of type ExecutorKind"):
        us.Runtime(executor=executor)


# ---------------------------------------------------------------- splits, rules, channels, data
class PlainSplit:
    num_clients = 2

    def assign(self, examples: Any, key: Key) -> Any:
        return []


class PlainRule:
    def start(self, params: Params) -> Any:
        return None

    def step(self, w: Params, mean: Params, moments: Any) -> Any:
        return mean, moments


def data() -> Any:
    return np.zeros((9, 2)), np.arange(9) % 2


def test_pieces_that_are_no_dataclass_or_inside_a_function_are_said_to_be() -> None:
    split: Any = PlainSplit()
    with pytest.raises(ConfigError, match=r"split must be a frozen dataclass with a field .*PlainSplit"):
        us.simulate("fedavg", split=split, rounds=1)
    rule: Any = PlainRule()
    with pytest.raises(
        ConfigError, match=r"the server rule must be a frozen dataclass with start.params. and .*PlainRule"
    ):
        us.simulate({"mine": us.FedAvg(server=rule)}, rounds=1)

    @dataclass(frozen=True)
    class Local:
        name: str = "local"

        def spectral_efficiency(self, key: Key, round: int, hop: int, nodes: int) -> torch.Tensor:
            return torch.ones(nodes, nodes)

    with pytest.raises(ConfigError, match=r"is made inside a function, .* move it to the top of its module"):
        us.simulate("fedavg", world=us.World(channel=Local()), rounds=1)


def test_a_function_given_as_data_is_to_be_called() -> None:
    with pytest.raises(DataError, match=r"got a function; call it, data=data\(...\)"):
        us.simulate("fedavg", data=data, rounds=1)
