"""Wrappers of uploads around methods that send several tables of tensors, or ask for several uploads in a round."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

import pytest
import torch
from recipe import simulator

import unskew as us
from unskew.algorithms.fedavg import FedAvg, ModelMessage, ModelReply
from unskew.errors import ConfigError, ProtocolError, WireError
from unskew.protocol import Federation, Me, Model, Plan, SampleCount, Step, Update, ask, step
from unskew.reduction import MeanOf
from unskew.tree import Params, flat, map_params
from unskew.wrappers.uploads import Names, UploadWrapper


@dataclass(frozen=True)
class GradientReply:
    gradient: Update
    n: SampleCount


@dataclass(frozen=True)
class TwoAsks:
    """Asks for a vector of hundreds, which it ignores, and then for the model that it sends."""

    def init(self, params: Params, fed: Federation) -> Params:
        return params

    def round(self, state: Params, fed: Federation) -> Plan[Params]:
        to = {c: ModelMessage(state) for c in fed.sample()}
        yield from ask(self.measure, to, reduce=MeanOf("gradient", weight="n"))
        got = yield from ask(self.train, to, reduce=MeanOf("params", weight="n"))
        new: Params = got.value
        return new

    def serve(self, state: Params, client: int | None) -> Params:
        return state

    @step
    def measure(self, me: Me, msg: ModelMessage, memory: None) -> tuple[GradientReply, None]:
        return GradientReply({n: torch.full_like(t, 100.0) for n, t in msg.params.items()}, me.n), None

    @step
    def train(self, me: Me, msg: ModelMessage, memory: None) -> tuple[ModelReply, None]:
        return ModelReply(msg.params, me.n), None


def test_what_one_step_leaves_out_is_not_sent_by_another() -> None:
    """A tenth of the hundreds travels in each round; the model, which no client changes, stays as it is."""
    sim = simulator("fedavg", "perceptron", method=us.wrap(TwoAsks(), us.TopK(0.1)))
    first = state = sim.start()
    for t in (1, 2, 3):
        state, _ = sim.round(state, t)
    torch.testing.assert_close(state.of, first.of, rtol=0, atol=0)
    for memory in sim.memory.at(3).values():
        assert float(flat(memory.residual["measure"]).max()) in (100.0, 200.0, 300.0)
        assert not flat(memory.residual["train"]).any()


@dataclass(frozen=True)
class Marked:
    velocity: Params
    params: Model


@dataclass(frozen=True)
class Unmarked:
    params: Params
    velocity: Params


@dataclass(frozen=True)
class Told(FedAvg):
    """FedAvg whose clients are sent zeros, too."""

    def round(self, state: Any, fed: Federation) -> Plan[Any]:
        zeros = {n: torch.zeros_like(t) for n, t in state.params.items()}
        to = {c: Marked(zeros, state.params) for c in fed.sample()}
        got = yield from ask(self.train_from, to, reduce=MeanOf("params"))
        return replace(state, params=got.value)

    @step
    def train_from(self, me: Me, msg: Marked, memory: Params | None) -> Step[tuple[ModelReply, Params | None]]:
        return (yield from self.train(me, ModelMessage(msg.params), memory))


@dataclass(frozen=True)
class Ambiguous(Told):
    """The same with a message that does not say which of both is the model."""

    def round(self, state: Any, fed: Federation) -> Plan[Any]:
        zeros = {n: torch.zeros_like(t) for n, t in state.params.items()}
        to = {c: Unmarked(state.params, zeros) for c in fed.sample()}
        got = yield from ask(self.train_either, to, reduce=MeanOf("params"))
        return replace(state, params=got.value)

    @step
    def train_either(self, me: Me, msg: Unmarked, memory: Params | None) -> Step[tuple[ModelReply, Params | None]]:
        return (yield from self.train(me, ModelMessage(msg.params), memory))


WRAPPERS = [
    us.ClipNorm(0.1),
    us.NormBound(0.1),
    us.TopK(0.1),
    us.LocalDP(clip=0.1, noise_multiplier=1e-9),
    us.CentralDP(clip=0.1, noise_multiplier=1e-9, delta=1e-5),
]


@pytest.mark.parametrize("by", WRAPPERS, ids=lambda by: type(by).__name__)
def test_updates_are_differences_from_the_table_that_is_marked(by: Any) -> None:
    methods = (FedAvg(weighting="uniform"), Told(weighting="uniform"))
    plain, told = (simulator("fedavg", "perceptron", method=us.wrap(method, by)) for method in methods)
    models = []
    for sim in (plain, told):
        state, _ = sim.round(sim.start(), 1)
        models.append(sim.method.serve(state, None))
    moved = map_params(torch.sub, models[0], plain.population.initial)
    assert float(flat(moved).norm()) > 1e-3
    torch.testing.assert_close(models[1], models[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("by", [*WRAPPERS, us.SecureSum()], ids=lambda by: type(by).__name__)
def test_two_tables_without_a_mark_are_refused_before_any_work(by: Any) -> None:
    """Taken by their order, the same method would train otherwise if the two fields changed places."""
    sim = simulator("fedavg", "perceptron", method=us.wrap(Ambiguous(weighting="uniform"), by))
    with pytest.raises(ConfigError, match=r"'train_either' .*several tables.* Model"):
        sim.start()


@dataclass(frozen=True)
class InPlace(UploadWrapper):
    """Halves updates where they stand: what is sent would be taken for what was not changed."""

    def encode(self, me: Me, updates: Params, residual: Params | None) -> tuple[Params, Params]:
        for t in updates.values():
            t.mul_(0.5)
        return updates, {}


@dataclass(frozen=True)
class Partial(UploadWrapper):
    """Returns the first update alone: the others would be sent as they are."""

    def encode(self, me: Me, updates: Params, residual: Params | None) -> tuple[Params, Params]:
        return {"0/0.bias": updates["0/0.bias"] * 0.5}, {}


@dataclass(frozen=True)
class Means(UploadWrapper):
    """Sends each tensor's mean over rows, which would be stretched to the tensor's shape."""

    def encode(self, me: Me, updates: Params, residual: Params | None) -> tuple[Params, Params]:
        return {n: t.mean(0) for n, t in updates.items()}, {}


M = TypeVar("M")


@dataclass(frozen=True)
class Coded(Generic[M]):
    of: M
    names: Names
    sent: dict[str, float]


@dataclass(frozen=True)
class MeansDecoded(UploadWrapper):
    """Sends one number for each tensor, and forgets to fill the tensor with it."""

    Reply: ClassVar[Any] = Coded

    def encode(self, me: Me, updates: Params, residual: Params | None) -> tuple[dict[str, float], Params]:
        return {n: float(t.mean()) for n, t in updates.items()}, {}

    def decode(self, sent: dict[str, float], like: Params) -> Params:
        return {n: torch.tensor(mean) for n, mean in sent.items()}


@pytest.mark.parametrize(
    ("by", "sentence"),
    [
        (
            Means(),
            r"encode of Means must return updates of the shapes .*: 0/0.bias is float32 \(.+\), got float32 \(\)",
        ),
        (
            MeansDecoded(),
            r"decode of MeansDecoded must return updates of the shapes of `like`: 0/0.bias is .* got float32 \(\)",
        ),
    ],
    ids=["means", "means decoded"],
)
def test_updates_keep_their_shapes_and_types(by: UploadWrapper, sentence: str) -> None:
    sim = simulator("fedavg", "perceptron", method=us.wrap(FedAvg(), by))
    with pytest.raises((ProtocolError, WireError), match=sentence):
        sim.round(sim.start(), 1)


@pytest.mark.parametrize(
    ("by", "sentence"),
    [
        (InPlace(), "encode of InPlace changes the updates it is given in place at '0/"),
        (Partial(), r"encode of Partial must return an update for each .* differs in 0/0.weight, 0/2.bias, 0/2.weight"),
    ],
    ids=["in place", "partial"],
)
def test_every_update_is_returned_and_none_is_changed_in_place(by: UploadWrapper, sentence: str) -> None:
    sim = simulator("fedavg", "perceptron", method=us.wrap(FedAvg(), by))
    with pytest.raises(ProtocolError, match=sentence):
        sim.round(sim.start(), 1)
