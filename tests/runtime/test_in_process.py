from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unskew import wire
from unskew.algorithms.fedavg import ModelMessage
from unskew.errors import ProtocolError, WireError
from unskew.keys import Key
from unskew.ledger import SERVER, Transfer, node, totals
from unskew.local.data import DeviceData
from unskew.local.sequential import Sequential
from unskew.local.trainer import LocalTrainer
from unskew.protocol import (
    Ask,
    Carried,
    ClientId,
    Federation,
    Held,
    Keep,
    Me,
    Plan,
    SgdConfig,
    Step,
    ask,
    collect,
    probe,
    run,
    sgd,
    step,
)
from unskew.reduction import weighted_mean
from unskew.runtime.in_process import Population, Simulator
from unskew.runtime.round import LostReply
from unskew.tasks.task import make_task
from unskew.tree import Params
from unskew.world.pace import Outage

N, CLASSES = 5, 3
CONFIG = SgdConfig(0.1, batch_size=4, local_epochs=2)


def population() -> tuple[Population, Sequential]:
    g = Key(0).generator()
    x, y = torch.randn(60, 4, generator=g), torch.randint(CLASSES, (60,), generator=g)
    rows = torch.split(torch.arange(60), [12, 3, 20, 15, 10])
    task = make_task(lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, CLASSES)), CLASSES, head="2")
    histograms = torch.stack([torch.bincount(y[r], minlength=CLASSES) for r in rows])
    device_data = DeviceData(x, y, rows, tuple(r[:0] for r in rows))
    return Population(histograms, task.layout, task.init(Key(0)), task.init), Sequential(
        LocalTrainer(task, device_data)
    )


def simulator(method: Any, **options: Any) -> Simulator[Any]:
    return Simulator(method, *population(), **options)


# ---------------------------------------------------------------- a toy that moves models from client to client
@dataclass(frozen=True)
class Parcel:
    model: Carried
    note: int


@dataclass(frozen=True)
class Relay:
    """The model goes from each client to the next, and the server sees it at the end only."""

    local: SgdConfig = CONFIG
    hops: int = 1
    trail: list[tuple[ClientId, int]] = field(default_factory=list, compare=False)

    def init(self, params: Params, fed: Federation) -> ModelMessage:
        return ModelMessage(params)

    def round(self, state: ModelMessage, fed: Federation) -> Plan[ModelMessage]:
        replies = yield from ask(self.train, {c: Parcel(state.params, 0) for c in fed.clients})
        for hop in range(1, self.hops + 1):
            moved = {(c + 1) % len(fed.clients): Parcel(replies[c].model, hop) for c in fed.clients}
            replies = yield from ask(self.train, dict(sorted(moved.items())))
        models = yield from collect([r.model for r in replies.values()])
        return ModelMessage(weighted_mean(models, [1.0] * len(models)))

    @step
    def train(self, me: Me, msg: Parcel, memory: int | None) -> Step[tuple[Parcel, int | None]]:
        assert isinstance(msg.model, dict)  # a held value has arrived
        self.trail.append((me.id, msg.note))
        w = yield from sgd(msg.model, self.local)
        return Parcel(Keep(w), msg.note), (memory or 0) + 1

    def serve(self, state: ModelMessage, client: ClientId | None) -> Params:
        return state.params


@pytest.mark.parametrize("codec", [False, True])
def test_the_ledger_of_a_relay(codec: bool) -> None:
    """Hop 0: model down, handle up.  Hop 1: handle down, model from the neighbour, handle up.  Hop 2: models up."""
    sim = simulator(Relay(), codec=codec)
    state = sim.start()
    _, trace = sim.round(state, 1)
    clients = range(N)
    model = len(wire.encode(state.params))
    first = len(wire.encode(Parcel(state.params, 0)))
    handle = {(c, hop): len(wire.encode(Parcel(Held(c, f"{hop}/model"), hop))) for c in clients for hop in (0, 1)}
    shown = {c: len(wire.encode(Parcel(Held((c - 1) % N, "0/model"), 1))) for c in clients}
    expected = [Transfer(1, 0, SERVER, node(c), "model", first) for c in clients]
    expected += [Transfer(1, 0, node(c), SERVER, "control", handle[c, 0]) for c in clients]
    for c in clients:
        expected.append(Transfer(1, 1, SERVER, node(c), "control", shown[c]))
        expected.append(Transfer(1, 1, node((c - 1) % N), node(c), "model", model))
    expected += [Transfer(1, 1, node(c), SERVER, "control", handle[c, 1]) for c in clients]
    expected += [Transfer(1, 2, node(c), SERVER, "model", model) for c in clients]
    assert trace.transfers == expected
    assert totals(trace.transfers)["d2d"] == N * model
    assert [sim.memory.get(c) for c in clients] == [2] * N


@dataclass(frozen=True)
class Pair:
    """One model as a start and one to refer to."""

    start: Params | Held
    reference: Params | Held


@pytest.mark.parametrize("codec", [False, True])
def test_a_value_that_a_message_names_twice_travels_once(codec: bool) -> None:
    """As in a deployment."""

    @dataclass(frozen=True)
    class Doubled(Relay):
        def round(self, state: ModelMessage, fed: Federation) -> Plan[ModelMessage]:
            replies = yield from ask(self.train, {2: Parcel(state.params, 0)})
            held = replies[2].model
            yield from ask(self.look, {0: Pair(held, held)})
            return state

        @step
        def look(self, me: Me, msg: Pair, memory: int | None) -> Step[tuple[Parcel, int | None]]:
            yield from ()
            assert isinstance(msg.start, dict)
            assert isinstance(msg.reference, dict)
            assert msg.start.keys() == msg.reference.keys()
            return Parcel(Keep(msg.start), 0), memory

    _, trace = (sim := simulator(Doubled(), codec=codec)).round(sim.start(), 1)
    assert [(t.src, t.dst, t.kind) for t in trace.transfers if t.hop == 1] == [
        (SERVER, 1, "control"),
        (3, 1, "model"),
        (1, SERVER, "control"),
    ]


def test_a_value_kept_for_a_round_only_is_gone_in_the_next() -> None:
    @dataclass(frozen=True)
    class Stale(Relay):
        def round(self, state: ModelMessage, fed: Federation) -> Plan[ModelMessage]:
            if fed.round == 1:
                replies = yield from ask(self.train, {2: Parcel(state.params, 0)})
                kept.append(replies[2].model)
                return state
            yield from collect(kept)
            return state

    kept: list[Any] = []
    sim = simulator(Stale())
    state, _ = sim.round(sim.start(), 1)
    with pytest.raises(
        ProtocolError, match=r"round 2: client 2 holds no value '0/model'; held values live for one round"
    ):
        sim.round(state, 2)


# ---------------------------------------------------------------- lost clients
@pytest.mark.parametrize("codec", [False, True])
def test_an_unreachable_client_is_sent_nothing_does_nothing_and_is_not_heard(codec: bool) -> None:
    method = Relay(hops=0)
    sim = simulator(method, outage=Outage(unreachable=0.5), codec=codec, seed=2)
    state = sim.start()
    _, trace = sim.round(state, 1)
    lost = {f.client for f in trace.failures}
    assert 0 < len(lost) < N
    assert {f.reason for f in trace.failures} == {"unreachable"}
    assert all(f == LostReply(1, f.client, "train", "unreachable") for f in trace.failures)
    assert {c for c, _ in method.trail} == set(range(N)) - lost
    assert {c for c in range(N) if sim.memory.get(c)} == set(range(N)) - lost
    assert not {node(c) for c in lost} & {n for t in trace.transfers for n in (t.src, t.dst)}


def test_a_late_client_was_sent_the_message_and_remembers_but_is_not_heard() -> None:
    method = Relay(hops=0)
    sim = simulator(method, outage=Outage(late=0.5), seed=1)
    _, trace = sim.round(sim.start(), 1)
    late = {f.client for f in trace.failures}
    assert 0 < len(late) < N
    assert {f.reason for f in trace.failures} == {"late"}
    assert len(trace.losses) == N - len(late)  # the loss of a round is of the replies that count
    assert {c for c, _ in method.trail} == set(range(N))
    assert [sim.memory.get(c) for c in range(N)] == [1] * N
    assert {t.dst for t in trace.transfers if t.src == SERVER} == {node(c) for c in range(N)}
    assert {t.src for t in trace.transfers if t.dst == SERVER} == {node(c) for c in range(N) if c not in late}


# ---------------------------------------------------------------- plans and steps that break the contract
def breaking(plan: Any) -> Any:
    class Breaking(Relay):
        def round(self, state: ModelMessage, fed: Federation) -> Plan[ModelMessage]:
            yield from plan(self, state, fed)
            return state

        def secret(self, me: Me, msg: Parcel, memory: int | None) -> Step[tuple[Parcel, int | None]]:
            yield from ()
            return msg, memory

    return Breaking()


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (lambda a, s, f: ask(a.train, {0: Parcel(s.params, 0), 7: Parcel(s.params, 0)}), r"no such client: \[7\]"),
        (lambda a, s, f: ask(a.train, {-1: Parcel(s.params, 0)}), r"no such client: \[-1\]"),
        (lambda a, s, f: ask(a.train, {"0": Parcel(s.params, 0)}), r"no such client: \['0'\]"),
        (
            lambda a, s, f: ask(a.secret, {0: Parcel(s.params, 0)}),
            r"'secret', which is not marked @step; known: \['train'\]",
        ),
        (lambda a, s, f: iter([Ask("__init__", {0: None})]), "'__init__', which is not marked @step"),
        (lambda a, s, f: iter([probe()]), 'not generator: write "yield from"'),
        (lambda a, s, f: iter([3]), "a plan may yield Ask, AsTheyCome, Collect or Probe, not int"),
        (lambda a, s, f: collect([Held(9, "x")]), "client 9 holds no value 'x'"),
    ],
)
def test_a_plan_that_asks_for_what_is_not_there_is_refused(plan: Any, text: str) -> None:
    sim = simulator(breaking(plan))
    with pytest.raises(ProtocolError, match=text):
        sim.round(sim.start(), 1)
    assert sim.memory.round == 0


@dataclass(frozen=True)
class Failing(Relay):
    """The last client fails, after the others have written."""

    why: str = "raises"

    def round(self, state: ModelMessage, fed: Federation) -> Plan[ModelMessage]:
        yield from ask(self.train, {c: Parcel(state.params, c) for c in fed.clients[:-1]})
        yield from ask(self.train, {c: Parcel(state.params, c) for c in fed.clients})
        return state

    @step
    def train(self, me: Me, msg: Parcel, memory: int | None) -> Step[tuple[Parcel, int | None]]:
        if me.id == N - 1 and me.round == 2:
            if self.why == "raises":
                raise ZeroDivisionError("in a step")
            if self.why == "yields":
                yield probe()  # type: ignore[misc]
            if self.why == "returns":
                return Parcel({}, 1)  # type: ignore[return-value]
            if self.why == "sends":
                return Parcel({"w": {1, 2}}, 1), memory  # type: ignore[dict-item]
        yield from ()
        return Parcel({}, me.id), (memory or 0) + 1


@pytest.mark.parametrize(
    ("why", "error", "text"),
    [
        ("raises", ZeroDivisionError, "in a step"),
        ("yields", ProtocolError, 'a step may yield Sgd, Fold or Run, not generator: write "yield from"'),
        ("returns", ProtocolError, r"step 'train' must return \(reply, memory\), got Parcel"),
        ("sends", WireError, r"set cannot travel \(at model/w\)"),
    ],
)
def test_a_failure_in_a_step_leaves_memory_as_it_was(why: str, error: type[Exception], text: str) -> None:
    sim = simulator(Failing(why=why))
    state, _ = sim.round(sim.start(), 1)
    before = dict(sim.memory.at(1))
    assert before == {0: 2, 1: 2, 2: 2, 3: 2, 4: 1}
    with pytest.raises(error, match=text):
        sim.round(state, 2)
    assert sim.memory.round == 1
    assert sim.memory.at(1) == before
    assert [sim.memory.get(c) for c in range(N)] == [2, 2, 2, 2, 1]


def test_a_step_that_is_asked_again_in_a_round_finds_what_it_wrote() -> None:
    sim = simulator(Failing(why="never"))
    state, _ = sim.round(sim.start(), 1)
    sim.round(state, 2)
    assert [sim.memory.get(c) for c in range(N)] == [4, 4, 4, 4, 2]


# ---------------------------------------------------------------- probes, keys, personal models
@dataclass(frozen=True)
class Asymmetric:
    """Link [i, j] carries 10 i + j, and a little more that only the key knows."""

    def spectral_efficiency(self, key: Key, round: int, hop: int, nodes: int) -> Tensor:
        i = torch.arange(nodes, dtype=torch.float64)
        return 10 * i[:, None] + i + torch.rand((), generator=(key / round / hop).generator(), dtype=torch.float64)


def test_a_probe_shows_the_links_between_clients_without_the_server() -> None:
    seen: list[Tensor] = []

    def plan(a: Any, s: Any, f: Federation) -> Any:
        for hop in (0, 1, 0):
            seen.append((yield from probe(hop)))

    sim = simulator(breaking(plan), channel=Asymmetric())
    state, trace = sim.round(sim.start(), 1)
    sim.round(state, 2)
    assert all(g.shape == (N, N) for g in seen)
    assert int(seen[0][1, 3]) == 10 * node(1) + node(3)
    assert torch.equal(seen[0], seen[2])  # the same hop is the same channel
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[3])
    assert trace.transfers == []


def test_every_ask_of_a_client_has_its_own_key_whatever_its_step_is_called_and_its_own_noise() -> None:
    """Equal noise on two uploads would reveal their exact difference."""
    seen: dict[str, list[tuple[int, int]]] = {}

    @dataclass(frozen=True)
    class Drawing:
        names: tuple[str, str]

        def init(self, params: Params, fed: Federation) -> ModelMessage:
            return ModelMessage(params)

        def round(self, state: ModelMessage, fed: Federation) -> Plan[ModelMessage]:
            for name in self.names:
                yield from ask(getattr(self, name), {c: None for c in fed.clients})
            return state

        @step
        def one(self, me: Me, msg: None, memory: None) -> Step[tuple[None, None]]:
            key = yield from run(lambda local: local.key.number())
            seen.setdefault("".join(self.names), []).append((key, me.private.number()))
            return None, None

        @step
        def two(self, me: Me, msg: None, memory: None) -> Step[tuple[None, None]]:
            return (yield from self.one(me, msg, memory))

        def serve(self, state: ModelMessage, client: ClientId | None) -> Params:
            return state.params

    for names in (("one", "one"), ("two", "two"), ("one", "two")):
        sim = simulator(Drawing(names))
        state = sim.start()
        for t in (1, 2):
            state, trace = sim.round(state, t)
            assert trace.transfers == []  # nothing said, nothing charged
    keys, noises = ({name: [pair[i] for pair in drawn] for name, drawn in seen.items()} for i in (0, 1))
    assert len(set(keys["oneone"])) == len(set(noises["oneone"])) == 2 * 2 * N
    assert keys["oneone"] == keys["twotwo"]
    assert keys["onetwo"][:N] == keys["onetwo"][N : 2 * N], "steps of one round draw the same batches"
    assert len(set(noises["onetwo"])) == 2 * 2 * N, "and other noise"
