"""Secure sums: what the server sees, what it learns, who may leave, and what is refused."""

import dataclasses
import functools
import itertools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from recipe import LOCAL, simulator
from torch import Tensor

import unskew as us
from unskew.algorithms.fedavg import FedAvg, ModelMessage, ModelReply
from unskew.errors import ConfigError, DivergedError, ProtocolError, QuorumError
from unskew.protocol import ClientId, Federation, Fitted, Me, Model, Plan, Step, ask, drive, sgd, step
from unskew.reduction import Each, MeanOf
from unskew.tree import Params
from unskew.wrappers.secure_sum import (
    KEYS,
    SHARES,
    UNMASK,
    Begin,
    Everybody,
    PublicKeys,
    Revealed,
    SecureMessage,
    SecureSum,
    SumOfVectors,
    Unmask,
    _is_secret,
    _part,
    _together,
    agreed_key,
    opened,
    private_key,
    split_secret,
)
from unskew.wrappers.uploads import uploads_of

METHODS = {
    "by examples": FedAvg(local=LOCAL),
    "own head": FedAvg(local=LOCAL, weighting="uniform", personal=("head",)),
    "two vectors": us.SCAFFOLD(local=LOCAL),
    "a mean and what moved": us.FedDyn(local=LOCAL),
    "a weighted mean and what moved": us.FedDyn(local=LOCAL, weighting="samples"),
    "movements of some tensors": us.FedDC(local=LOCAL),
}
ALL = {"clients_per_round": 6}


def played(method: Any, rounds: int = 1, **options: Any) -> tuple[Params, list[Any]]:
    """The model that client 0 is served after some rounds, and their traces."""
    sim = simulator("fedavg", "perceptron", method=method, **{**ALL, **options})
    state, traces = sim.start(), []
    for t in range(1, rounds + 1):
        state, trace = sim.round(state, t)
        traces.append(trace)
    served: Params = sim.method.serve(state, 0)
    return served, traces


@pytest.mark.parametrize("name", METHODS)
def test_a_secure_sum_is_the_sum_up_to_the_rounding_of_fixed_point(name: str) -> None:
    """Each entry is wrong by 2^-25 = 3e-8 at most; beside it there is float32's own rounding."""
    plain, _ = played(METHODS[name])
    secure, _ = played(us.wrap(METHODS[name], SecureSum()), codec=True)
    torch.testing.assert_close(secure, plain, rtol=1e-5, atol=1e-6)


def test_no_vector_that_arrives_and_no_sum_of_some_is_anything_but_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """An update below 8, times at most 12 examples, in steps of 2^-24 is below 2^31; so are all unmasked sums of six.

    Of 2^64 values a masked number is below 2^40 in size once in 8 million.
    """
    arrived: list[Tensor] = []
    add = SumOfVectors.add

    def seen(self: SumOfVectors, partial: Any, client: int, reply: Any) -> Any:
        assert not reply.of.params
        arrived.append(reply.masked.clone())
        return add(self, partial, client, reply)

    monkeypatch.setattr(SumOfVectors, "add", seen)
    played(us.wrap(FedAvg(local=LOCAL), SecureSum()))
    assert len(arrived) == 6
    for number in range(1, 7):  # all six together still have every client's own mask
        some = torch.stack(arrived[:number]).sum(0)
        assert int((some.abs() < 2**40).sum()) == 0


class Gone(us.Outage):
    """Client 2's trained reply is lost."""

    def fate(self, key: Any, step: str, asked: int) -> Any:
        return "late" if (step, key.path[-1]) == ("train", 2) else None


def test_clients_that_leave_after_they_shared_their_keys_are_taken_out_of_the_masks() -> None:
    """One upload of six is lost; the mean is that of the five that came, as without masks."""
    plain, _ = played(FedAvg(local=LOCAL), outage=Gone())
    secure, traces = played(us.wrap(FedAvg(local=LOCAL), SecureSum()), outage=Gone())
    torch.testing.assert_close(secure, plain, rtol=1e-5, atol=1e-6)
    assert [(f.client, f.step) for f in traces[0].failures] == [(2, "train")]


@dataclass(frozen=True)
class Lost(us.Outage):
    """In round 2, client 2 and two others do not answer one of the four exchanges."""

    step: str = KEYS

    def fate(self, key: Any, step: str, asked: int) -> Any:
        return "late" if step == self.step and key.path[1] == 2 and key.path[-1] in (0, 2, 4) else None


@pytest.mark.parametrize(
    ("name", "step"),
    [("by examples", KEYS), ("two vectors", SHARES), ("movements of some tensors", "train"), ("two vectors", UNMASK)],
)
def test_a_round_without_a_sum_has_no_effect_and_the_run_goes_on(name: str, step: str) -> None:
    """Three of six stay, five are needed: all go on as if round 2 had not been, also where they remember."""
    sim = simulator("fedavg", "perceptron", method=METHODS[name], **ALL)
    state = sim.start()
    for t in (1, 3):
        state, _ = sim.round(state, t)
    secure = us.wrap(METHODS[name], SecureSum())
    lossy = simulator("fedavg", "perceptron", method=secure, outage=Lost(step=step), **ALL)
    states, traces = [lossy.start()], []
    for t in (1, 2, 3):
        after, trace = lossy.attempt(states[-1], t)
        states.append(after)
        traces.append(trace)
    torch.testing.assert_close(lossy.method.serve(states[3], 0), sim.method.serve(state, 0), rtol=1e-5, atol=1e-6)
    assert states[2] is states[1]
    assert [(f.client, f.step) for f in traces[1].failures] == [(c, step) for c in (0, 2, 4)]
    assert [bool(trace.abandoned) for trace in traces] == [False, True, False]


class Forging(SecureSum):
    """A secure sum in which client 2 adds something else than its vector, before the masks."""

    def __init__(self, forge: Any) -> None:
        super().__init__()
        object.__setattr__(self, "forge", forge)

    def vector(self, fields: Any, reply: Any, msg: Any) -> Tensor:
        vector = super().vector(fields, reply, msg)
        return self.forge(vector) if reply.n == FORGER else vector  # type: ignore[attr-defined]


FORGER = 2
"""Number of examples of the client that lies."""


@pytest.mark.parametrize(
    ("forge", "says"),
    [
        (torch.zeros_like, "no vector of its examples"),
        (lambda v: torch.cat([v[:1] * 2, v[1:]]), "no vector of its examples"),
        (lambda v: torch.cat([v[:-1], torch.tensor([1 << 40])]), "numbers beyond 128"),
        (lambda v: torch.randint(-(1 << 62), 1 << 62, v.shape), "no vector of its examples"),
    ],
    ids=["zeros", "another weight", "too large", "noise"],
)
def test_a_sum_that_no_vectors_have_is_no_model(forge: Any, says: str) -> None:
    """Nobody can tell whose vector it was, but the model of before stays."""
    with pytest.raises(QuorumError, match=f"round 1 has no secure sum of clients .*: one of them sent .*{says}"):
        played(us.wrap(FedAvg(local=LOCAL), Forging(forge)))


def test_sums_that_could_exceed_their_whole_numbers_are_refused() -> None:
    """2^31 examples of a cohort times an entry of 2^7 / 2^-24 = 2^31 are 2^62: twice as many would have no room."""
    model, by = {"w": torch.zeros(2)}, SecureSum()
    reply = ModelReply({"w": torch.full((2,), 128.0)}, 2**30)
    send = functools.partial(by.vector, uploads_of(FedAvg(local=LOCAL), "train"), reply)
    assert send(SecureMessage(ModelMessage(model), (0, 1), (("params", "n"),))).tolist() == [2**30, 1, 2**61, 2**61]
    with pytest.raises(
        ProtocolError, match=f"{2**30} examples of one of 3 clients are more than a secure sum has room"
    ):
        send(SecureMessage(ModelMessage(model), (0, 1, 2), (("params", "n"),)))


@pytest.mark.parametrize("odd", [128.1, -200.0, float("inf"), float("nan")])
def test_no_entry_is_cut_unseen(odd: float) -> None:
    reply = ModelReply({"w": torch.tensor([1.0, odd])}, 4)
    message = SecureMessage(ModelMessage({"w": torch.zeros(2)}), (0, 1, 2), (("params", "n"),))
    with pytest.raises(DivergedError, match="NaN or moves w by more than 128"):
        SecureSum().vector(uploads_of(FedAvg(local=LOCAL), "train"), reply, message)


def test_a_secret_is_put_together_without_the_shares_of_liars() -> None:
    secret = bytes(range(32))
    shares = dict(enumerate(split_secret(secret, 3, 6)))
    for liars in (set[int](), {1}, {0, 4}, {1, 2, 5}):
        told = shares | {c: shares[c][:4] + shares[c][:3:-1] for c in liars}
        assert _together(told, 3, lambda s: s == secret) == (secret, liars)
    too_many = shares | {c: shares[c][::-1] for c in range(4)}
    assert _together(too_many, 3, lambda s: s == secret) == (None, set())


def test_fewer_clients_than_the_threshold_make_no_secret_of_another() -> None:
    """Of five clients four are the threshold: what three of them can decrypt is one share short, beside the owner."""
    by = SecureSum()
    clients = range(5)
    least = by.least(len(clients))
    sim = simulator("fedavg", "perceptron")
    me = {c: sim.population.me(c, 1, sim.key) for c in clients}
    begun = {c: by._keys(me[c], Begin(tuple(clients), 0), None) for c in clients}
    keys = {c: public for c, (public, _) in begun.items()}
    shares, _ = by._shares(me[0], Everybody(keys, least), begun[0][1])
    halves = {}
    for c in clients:
        mine = private_key(_part(bytes.fromhex(begun[c][1].root), "shares"))
        both = opened(agreed_key(mine, keys[0].shares), shares.to[c].encode())
        assert both is not None
        halves[c] = (both[: len(both) // 2], both[len(both) // 2 :])
    for half, own in ((0, True), (1, False)):
        right = functools.partial(_is_secret, keys[0], own=own)
        for coalition in itertools.combinations(range(1, 5), least - 1):
            assert _together({c: halves[c][half] for c in coalition}, 1, right)[0] is None
        assert _together({c: halves[c][half] for c in range(1, 5)}, least, right)[0] is not None


def test_nobody_is_blamed_where_one_of_those_who_revealed_shares_may_have_lied() -> None:
    """Of three shares of client 0, three are needed, and client 2 alters its own: client 0 gave right ones."""
    keys = {0: PublicKeys("", "", "")}
    shares = dict(zip((0, 1, 2), split_secret(bytes(range(32)), 3, 3), strict=True))
    revealed = {c: Revealed({0: share.hex()}, {}) for c, share in shares.items()}
    revealed[2] = Revealed({0: shares[2][::-1].hex()}, {})
    with pytest.raises(QuorumError, match=r"clients \[0\] .*, or a client that revealed them"):
        SecureSum().masks(keys, (0,), (), revealed, 3, 3)


class Cohort:
    """Six clients in the exchanges of round 1, and what client 0 is asked, by a server that may lie to it."""

    def __init__(self) -> None:
        self.sim = simulator("fedavg", "perceptron", method=us.wrap(FedAvg(local=LOCAL), SecureSum()), **ALL)
        self.steps = self.sim.method.wrapped_steps
        begun = {c: self.steps[KEYS](self.me(c), Begin(tuple(range(6)), 0), None) for c in range(6)}
        self.keys = {c: keys for c, (keys, _) in begun.items()}
        self.memory = begun[0][1]

    def me(self, client: int = 0, round: int = 1) -> Me:
        return self.sim.population.me(client, round, self.sim.key)

    def share(self, keys: dict[int, PublicKeys] | None = None, threshold: int = 5) -> None:
        _, self.memory = self.steps[SHARES](self.me(), Everybody(keys or self.keys, threshold), self.memory)

    def upload(self, *members: int, round: int = 1) -> None:
        message = SecureMessage(ModelMessage(self.sim.population.initial), members, (("params", "n"),))
        trained = self.steps["train"](self.me(round=round), message, self.memory)
        fitted = Fitted(self.sim.population.initial, 1, 0.1, 0.0)
        _, self.memory = drive(trained, lambda request: fitted)

    def unmask(self, *present: int) -> None:
        _, self.memory = self.steps[UNMASK](self.me(), Unmask(present, {}), self.memory)


def test_a_client_shares_its_secrets_once_and_with_enough_whose_keys_are_others() -> None:
    """Of n clients more than 2/3 make a secret, and three at least: it takes neither threshold nor keys on trust."""
    there = Cohort()
    own, keys = there.keys[0], there.keys
    for few, threshold in ((keys, 4), (keys, 7), ({0: own}, 1), ({c: keys[c] for c in range(2)}, 2)):
        with pytest.raises(ProtocolError, match="; the least is "):
            there.share(few, threshold)
    for others in (
        dict.fromkeys(range(6), own),
        {**keys, 4: dataclasses.replace(keys[4], masks=keys[3].masks)},
        {**keys, 0: dataclasses.replace(own, own=keys[1].own[::-1])},
        {c: keys[c] for c in range(1, 6)},
    ):
        with pytest.raises(ProtocolError, match="twice, or among repeated keys"):
            there.share(others)
    there.share()
    with pytest.raises(ProtocolError, match="twice, or among repeated keys"):
        there.share()


def test_a_client_sends_one_vector_and_to_members_it_shared_its_secrets_with() -> None:
    """Two vectors under the same masks tell their difference, those to few members a single one."""
    there = Cohort()
    with pytest.raises(ProtocolError, match="a sum that does not match its keys"):
        there.upload(*range(6))
    there.share()
    for members in ((0,), (0, 1, 2, 3), (1, 2, 3, 4, 5), (0, 1, 2, 3, 77), (0, 0, 0, 1, 2)):
        with pytest.raises(ProtocolError, match="a sum that does not match its keys"):
            there.upload(*members)
    with pytest.raises(ProtocolError, match="no sum in progress"):  # of another round, to which the server went back
        there.upload(*range(6), round=2)
    there.upload(*range(5))
    with pytest.raises(ProtocolError, match="a sum that does not match its keys"):
        there.upload(*range(5))


def test_a_client_unmasks_a_sum_once_and_not_without_enough_of_its_members() -> None:
    there = Cohort()
    there.share()
    for present in ((0, 1, 2, 3, 4), (0,)):  # before its vector
        with pytest.raises(ProtocolError, match="a sum of fewer than 5 clients"):
            there.unmask(*present)
    there.upload(*range(6))
    for present in ((0, 1, 2, 3), (1, 2, 3, 4, 5), (0, 0, 1, 2, 3), (0, 1, 2, 3, 77)):
        with pytest.raises(ProtocolError, match="a sum of fewer than 5 clients"):
            there.unmask(*present)
    there.unmask(*range(5))
    with pytest.raises(ProtocolError, match="each has new keys, and is unmasked once"):
        there.unmask(*range(5))


@dataclass(frozen=True)
class Inner:
    tables: tuple[Params, ...]


@dataclass(frozen=True)
class Shows:
    params: Model
    raw: Each[Inner | None]


@dataclass(frozen=True)
class Leak:
    """Sends each model twice: into a mean, and marked Each."""

    def init(self, params: Params, fed: Federation) -> Params:
        return params

    def round(self, state: Params, fed: Federation) -> Plan[Params]:
        return (yield from ask(self.train, dict.fromkeys(fed.sample(), state), reduce=MeanOf("params"))).value

    @step
    def train(self, me: Me, msg: Params, memory: None) -> Step[tuple[Shows, None]]:
        new = yield from sgd(msg, LOCAL)
        return Shows(new, Inner((new,))), None

    def serve(self, state: Params, client: ClientId | None) -> Params:
        return state


def test_no_table_of_tensors_is_shown_beside_the_sum() -> None:
    with pytest.raises(ConfigError, match="a table of tensors of each client in the field 'raw', marked Each; leave"):
        simulator("fedavg", "perceptron", method=us.wrap(Leak(), SecureSum()), **ALL).start()
