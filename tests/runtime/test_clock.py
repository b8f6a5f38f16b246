"""The virtual clock of a simulation, and replies as they come on it."""

import threading
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
from recipe import LOCAL as CONFIG
from recipe import simulator as simulator_of

from unskew import wire
from unskew.algorithms.fedavg import FedAvg, ModelMessage, ModelReply
from unskew.errors import ConfigError
from unskew.experiment.config import parse
from unskew.keys import Key
from unskew.ledger import node
from unskew.protocol import (
    AsTheyCome,
    ClientId,
    Federation,
    Plan,
    UnderWay,
    ask,
)
from unskew.record.logs import rows
from unskew.run import loop, models
from unskew.run.cell import Cell, Observer
from unskew.run.loop import Interrupted
from unskew.tree import Params
from unskew.world.pace import Errand


@dataclass(frozen=True)
class Given:
    """Client c trains for so many seconds; a byte from a client takes `up` seconds."""

    training: tuple[float, ...] = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    up: float = 0.0
    deadline_s: float | None = None
    name: str = "given"

    def seconds(self, key: Key, errand: Errand) -> float:
        return self.training[errand.client] * (errand.examples > 0) + self.up * errand.up


def simulator(method: Any, **options: Any) -> Any:
    """All six clients take part."""
    return simulator_of("", "perceptron", method=method, clients_per_round=None, **options)


# ---------------------------------------------------------------- a round's end
def test_a_round_takes_as_long_as_its_slowest_client() -> None:
    sim = simulator(FedAvg(CONFIG), pace=Given())
    assert sim.round(sim.start(), 1)[1].clock == 6.0


def test_a_clock_changes_no_number_of_a_run() -> None:
    timed, plain = simulator(FedAvg(CONFIG), pace=Given()), simulator(FedAvg(CONFIG))
    (one, trace), (two, without) = timed.round(timed.start(), 1), plain.round(plain.start(), 1)
    assert wire.encode(one) == wire.encode(two)
    assert (trace.transfers, without.clock) == (without.transfers, 0.0)


def test_after_the_deadline_replies_are_late_and_the_round_is_over() -> None:
    """Clients 3 to 5 take 4 s and more: they have trained and been sent the model, and their replies do not count."""
    sim = simulator(FedAvg(CONFIG), pace=Given(deadline_s=3.5))
    state, trace = sim.round(sim.start(), 1)
    assert trace.clock == 3.5
    assert [(f.client, f.reason) for f in trace.failures] == [(3, "late"), (4, "late"), (5, "late")]
    assert sorted({x.src for x in trace.transfers}) == [0, 1, 2, 3]
    assert len({w.client for w in trace.work}) == 6
    three = simulator(ThreeClients(CONFIG))
    assert wire.encode(state) == wire.encode(three.round(three.start(), 1)[0])


@dataclass(frozen=True)
class ThreeClients(FedAvg):
    """FedAvg of the first three clients."""

    def round(self, state: Any, fed: Federation) -> Plan[Any]:
        return (yield from self.meet((0, 1, 2), state, fed))


def test_a_round_that_nobody_ends_in_time_is_abandoned_at_the_deadline() -> None:
    sim = simulator(FedAvg(CONFIG), pace=Given(deadline_s=0.5))
    _, trace = sim.attempt(sim.start(), 1)
    assert (trace.clock, trace.abandoned) == (
        0.5,
        "round 1, step 'train': 0 of 6 clients replied, 1 needed; lost: 0, 1, 2, 3, 4, 5 (client 0: late)",
    )


def test_the_deadline_of_a_plan_comes_before_that_of_the_world() -> None:
    @dataclass(frozen=True)
    class Patient(FedAvg):
        def round(self, state: Any, fed: Federation) -> Plan[Any]:
            yield from ask(self.train, dict.fromkeys(fed.clients, ModelMessage(state.params)), timeout_s=4.5)
            return state

    sim = simulator(Patient(CONFIG), pace=Given(deadline_s=0.5))
    _, trace = sim.round(sim.start(), 1)
    assert (trace.clock, [f.client for f in trace.failures]) == (4.5, [4, 5])


# ---------------------------------------------------------------- as they come
@dataclass(frozen=True)
class FlowState:
    params: Params
    under_way: dict[ClientId, UnderWay[ModelReply]] = field(default_factory=dict)
    came: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Flow(FedAvg):
    """Keeps all clients at work and notes who came in a round, and with what stamp."""

    as_they_come: ClassVar[bool] = True
    first: int = 2

    def init(self, params: Params, fed: Federation) -> FlowState:  # type: ignore[override]
        return FlowState(params)

    def round(self, state: Any, fed: Federation) -> Plan[Any]:
        to = {c: ModelMessage(state.params) for c in fed.clients if c not in state.under_way}
        arrived = yield AsTheyCome("train", to, state.under_way, self.first, stamp=fed.round)
        return FlowState(state.params, arrived.under_way, tuple((c, r.stamp) for c, r in arrived.replies.items()))


def flow(rounds: int, method: Any = None, **options: Any) -> tuple[list[Any], list[Any]]:
    sim = simulator(method or Flow(CONFIG), **options)
    states, traces = [sim.start()], []
    for t in range(1, rounds + 1):
        state, trace = sim.round(states[-1], t)
        states.append(state)
        traces.append(trace)
    return states[1:], traces


def test_replies_come_in_the_order_of_the_clock() -> None:
    """Clients need 1 to 6 s.  At 2 s come 0 and 1; asked again, they are due at 3 and 4 s.

    At 3 s comes 0, and 2, asked in round 1; asked again, they are due at 4 and 6 s.  At 4 s 0, 1 and 3 are there, of
    which two come; 4 and 5 are due at 5 and 6 s, in 1 and 2.
    """
    states, traces = flow(3, pace=Given())
    assert states[0].came == ((0, 1), (1, 1))
    assert sorted(states[1].came) == [(0, 2), (2, 1)]
    assert {*states[2].came} < {(0, 3), (1, 2), (3, 1)}
    assert [t.clock for t in traces] == [2.0, 1.0, 1.0]
    assert [states[2].under_way[c].left_s for c in (4, 5)] == [1.0, 2.0]


def test_for_replies_that_are_late_a_buffer_waits_until_the_deadline() -> None:
    """Of six that are waited for three are late at 3.5 s; the three that come first do not wait for them."""
    for first, clock in ((6, 3.5), (3, 3.0)):
        assert flow(1, Flow(CONFIG, first=first), pace=Given(deadline_s=3.5))[1][0].clock == clock


def test_the_ledger_has_every_model_sent_and_each_reply_where_it_came() -> None:
    """Six models go down in round 1, two in each later round; two replies a round come up."""
    states, traces = flow(3, pace=Given())
    downs = [sum(x.direction == "down" for x in t.transfers) for t in traces]
    assert downs == [6, 2, 2]
    for state, trace in zip(states, traces, strict=True):
        assert {x.src for x in trace.transfers if x.direction == "up"} == {node(c) for c, _ in state.came}
        assert len(trace.losses) == 2
    assert sum(len(t.work) for t in traces) == sum(downs)


# ---------------------------------------------------------------- a run
TOML = """
rounds = 4
seeds = [3]
clients_per_round = 3
eval_every = 2
[[methods]]
name = "fedbuff"
buffer = 2
[[methods]]
name = "fedasync"
[task]
data = "digits"
[split]
name = "dirichlet"
alpha = 0.3
num_clients = 6
[world.pace]
name = "devices"
spread = 1.0
jitter = 0.2
"""


class Stop(Observer):
    """Asks to stop after so many rounds."""

    def __init__(self, after: int) -> None:
        self.stop, self.left = threading.Event(), after

    def ended_round(self, cell: Cell) -> None:
        self.left -= 1
        if self.left == 0:
            self.stop.set()


def test_a_run_with_clients_under_way_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    experiment = parse(tomllib.loads(TOML))
    whole = loop.start(experiment, tmp_path / "whole").summary
    for after in (1, 3, 6):
        folder, observer = tmp_path / str(after), Stop(after)
        with pytest.raises(Interrupted):
            loop.start(experiment, folder, observer, stop=observer.stop)
        assert loop.resume(folder).summary["fingerprint"] == whole["fingerprint"]
    clocks = [r["value"] for r in rows(tmp_path / "whole", "metrics") if r["name"] == "clock"]
    assert len(clocks) == 8
    assert min(clocks) > 0.0
    assert models.load_model(tmp_path / "whole", "fedbuff") is not None


def test_a_deployment_refuses_a_pace() -> None:
    from unskew.run.setup import played

    experiment = parse(tomllib.loads(TOML))
    with pytest.raises(ConfigError, match=r"world\.pace is for simulations"):
        played(experiment, experiment.methods[0], 0, 6, simulated=False)
