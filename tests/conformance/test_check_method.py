"""The checks that authors run on a method of their own: ours pass, and each kind of mistake is found."""

import random
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
import torch

import unskew as us
from unskew.conformance import check_method
from unskew.errors import ProtocolError
from unskew.protocol import Batch, ClientId, Federation, Me, Plan, SgdConfig, Step, ask, sgd, step
from unskew.tree import Params

LOCAL = SgdConfig(0.1, batch_size=4)


@pytest.mark.parametrize("name", ["centralised", "fedavg+local_dp"])
def test_methods_of_every_kind_pass(name: str) -> None:
    """Of the pooled bound there is one client; LocalDP refuses batch normalisation, and is checked without."""
    check_method(name)


@dataclass(frozen=True)
class Mine:
    """The mean of the clients' models."""

    local: SgdConfig = LOCAL

    def init(self, params: Params, fed: Federation) -> Params:
        return params

    def round(self, state: Params, fed: Federation) -> Plan[Params]:
        replies = yield from ask(self.train, {c: state for c in fed.sample()})
        return {n: torch.stack([r[n] for r in replies.values()]).mean(0) for n in state}

    @step
    def train(self, me: Me, msg: Params, memory: None) -> Step[tuple[Params, None]]:
        return (yield from sgd(msg, self.local)), None

    def serve(self, state: Params, client: ClientId | None) -> Params | None:
        return state


@dataclass(frozen=True)
class Shrink:
    """The mean squared feature, and the squared distance from the anchor."""

    by: float
    sees: Literal["features"] = "features"

    def __call__(self, params: Params, aux: Any, batch: Batch) -> torch.Tensor:
        away = torch.stack([(w - aux["anchor"][n]).square().sum() for n, w in params.items()]).sum()
        each = batch.features.square().mean(1)
        return self.by * ((each * batch.mask).sum() / batch.mask.sum() + away)


def test_a_method_with_terms_added_passes() -> None:
    check_method(us.wrap(us.MOON(), us.AddTerms((Shrink(0.1),))))


@dataclass(frozen=True)
class Counts(Mine):
    """Keeps its own count in a list, which passes from run to run."""

    seen: list[int] = field(default_factory=list, hash=False, compare=False)

    def round(self, state: Params, fed: Federation) -> Plan[Params]:
        mean = yield from super().round(state, fed)
        self.seen.append(1)
        return {n: t / len(self.seen) for n, t in mean.items()}


@dataclass(frozen=True)
class Draws(Mine):
    """Adds noise from PyTorch's global generator."""

    def round(self, state: Params, fed: Federation) -> Plan[Params]:
        mean = yield from super().round(state, fed)
        return {n: t + torch.randn_like(t) for n, t in mean.items()}


@dataclass(frozen=True)
class Explodes(Mine):
    """Divides by zero in the last round."""

    def round(self, state: Params, fed: Federation) -> Plan[Params]:
        mean = yield from super().round(state, fed)
        return {n: t / (fed.round - 3) for n, t in mean.items()}


@dataclass(frozen=True)
class ServesNobody(Mine):
    """Has no model for its clients."""

    def serve(self, state: Params, client: ClientId | None) -> Params | None:
        return None


@dataclass(frozen=True)
class ServesAPart(Mine):
    """Serves a model without its first tensor."""

    def serve(self, state: Params, client: ClientId | None) -> Params | None:
        return dict(list(state.items())[1:])


@dataclass(frozen=True)
class Peeks:
    """A term that looks whether clients train together."""

    def __call__(self, params: Params, aux: dict[str, Any]) -> torch.Tensor:
        size = sum((w**2).sum() for w in params.values())
        together = any(map(torch._C._functorch.is_batchedtensor, params.values()))
        return size * (2.0 if together else 1.0)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class OtherTogether(Mine):
    @step
    def train(self, me: Me, msg: Params, memory: None) -> Step[tuple[Params, None]]:
        return (yield from sgd(msg, self.local, Peeks())), None


@dataclass(frozen=True)
class Extra(Mine):
    """Sends a tensor that the model does not have."""

    @step
    def train(self, me: Me, msg: Params, memory: None) -> Step[tuple[Params, None]]:
        return {**(yield from sgd(msg, self.local)), "norms": torch.ones(2)}, None


@dataclass
class Thawed:
    params: Params


@dataclass(frozen=True)
class SendsThawed(Mine):
    """Replies with a dataclass that is not frozen."""

    @step
    def train(self, me: Me, msg: Params, memory: None) -> Step[tuple[Thawed, None]]:
        return Thawed((yield from sgd(msg, self.local))), None


@dataclass(frozen=True)
class ThroughData(Mine):
    """Changes what it is sent in a way that PyTorch does not count."""

    @step
    def train(self, me: Me, msg: Params, memory: None) -> Step[tuple[Params, None]]:
        for t in msg.values():
            t.data.mul_(0.9)
        return (yield from sgd(msg, self.local)), None


@dataclass(frozen=True)
class Signs(Mine):
    """Sends signs in a table whose type does not say so."""

    @step
    def train(self, me: Me, msg: Params, memory: None) -> Step[tuple[Params, None]]:
        return {n: t.sign().to(torch.int8) for n, t in (yield from sgd(msg, self.local)).items()}, None

    def round(self, state: Params, fed: Federation) -> Plan[Params]:
        replies = yield from ask(self.train, {c: state for c in fed.sample()})
        return {n: t + 0.01 * sum(r[n] for r in replies.values()) for n, t in state.items()}


MOVED: dict[int, Params] = {}


@dataclass(frozen=True)
class KeepsByRound(Mine):
    """Keeps its last move in a module, by round, so that the same run again finds what it looks for."""

    def round(self, state: Params, fed: Federation) -> Plan[Params]:
        new = yield from super().round(state, fed)
        before = MOVED.get(fed.round - 1, {n: torch.zeros_like(t) for n, t in state.items()})
        MOVED[fed.round] = {n: new[n] - t + 0.5 * before[n] for n, t in state.items()}
        return {n: t + MOVED[fed.round][n] for n, t in state.items()}


@dataclass(frozen=True)
class UsesAtRandom(Mine):
    """Gives clients a model that is another at each look."""

    def personalise(self, me: Me, params: Params, memory: None) -> Step[Params]:
        yield from ()
        return {n: t + 1e-5 * random.SystemRandom().random() for n, t in params.items()}


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (
            Counts(),
            "Counts: a second run of the same seed differs from the first, in the server's state after round 1; keep",
        ),
        (KeepsByRound(), "KeepsByRound: a run that is resumed differs, in the server's state after round 3"),
        (
            UsesAtRandom(),
            "UsesAtRandom: a second run .* differs from the first, in the model of client 0 after round 0",
        ),
        (Draws(), "Draws draws from PyTorch's global generator"),
        (Explodes(), "Explodes: the global model is not finite in '0.weight' after round 3"),
        (ServesNobody(), "ServesNobody: client 0 has no model"),
        (ServesAPart(), "ServesAPart: the global model must have the network's 4 tensors .* differs in 0.weight"),
        (SendsThawed(), "SendsThawed: Thawed, which is sent or kept, must be a frozen dataclass"),
        (ThroughData(), "^step 'train' changes its message in place at '0.weight'"),
        (Extra(), "^a deployment would refuse the reply of step 'train': the model has no tensor 'norms'"),
        (Signs(), "would refuse the reply of step 'train': tensor 0.weight must be .* got torch.int8 .* in its type"),
        (OtherTogether(), "OtherTogether: clients that train together, as on a GPU, end round 1 with another"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_a_mistake_is_found_and_named(method: Any, sentence: str) -> None:
    with pytest.raises(ProtocolError, match=sentence):
        check_method(method)
