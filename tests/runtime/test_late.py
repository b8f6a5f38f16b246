"""Clients that are late: how often a round waits for one, when it is left out, and how it comes back."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from recipe import simulator

from unskew import wire

pytest.importorskip("grpc")

from loopback import Deployed

from unskew.runtime import membership
from unskew.runtime.message import Envelope
from unskew.runtime.network import Limits

NETWORK, DEADLINE_S = "perceptron", 100.0
LATE = f"late: no reply within {DEADLINE_S:g} s"
EARLIER = "late: it has not replied to an earlier request of this round"
LEFT_OUT = "client lost: it was late in {} rounds in a row and is left out for a while"


class Slow(Deployed):
    """All six clients take part in every round of FedAvg; a handler per client says who answers.

    Attributes:
        now: Time that has passed, seconds: only waiting takes any.
        said: Notes for whoever watches the server.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self.pass_time)
        for module in (membership,):
            monkeypatch.setattr(module, "time", clock)
        super().__init__("fedavg", NETWORK, folder, 4, clients_per_round=6, limits=Limits(deadline_s=DEADLINE_S))
        self.said: list[str] = []
        self.membership.note = self.said.append
        self.state = self.runtime.start()

    def pass_time(self, seconds: float) -> None:
        self.now += max(seconds, 0.05)

    def silence(self, *clients: int) -> None:
        def silent(message: Envelope) -> Envelope:
            raise TimeoutError

        self.grid.handlers |= {self.node(c): silent for c in clients}

    def revive(self, client: int) -> None:
        self.grid.handlers[self.node(client)] = self.fresh(client)

    def round(self, t: int) -> tuple[dict[tuple[int, str], str], float]:
        """Train and evaluate: why replies were lost, by client and step, and how long it took."""
        began = self.now
        self.state, trace = self.runtime.attempt(self.state, t)
        self.runtime.evaluate_on_clients(self.state, t, ["personal"])
        failures, _ = self.runtime.drain_records()
        return {(f.client, f.step): f.reason for f in [*trace.failures, *failures]}, self.now - began


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slow:
    return Slow(tmp_path, monkeypatch)


def test_a_round_waits_once_for_a_client_that_is_late_in_it(there: Slow) -> None:
    """It is still at what it was asked first, so it is not asked to evaluate."""
    there.silence(1)
    lost, took = there.round(1)
    assert lost == {(1, "train"): LATE, (1, "evaluate"): EARLIER}
    assert took == pytest.approx(DEADLINE_S, abs=1.0)


def test_a_client_that_is_late_in_three_rounds_is_left_out_and_named(there: Slow) -> None:
    """Rounds then take as long as without it, and their result is that of a client that is not there."""
    there.silence(1)
    for t in (1, 2, 3):
        there.round(t)
    lost, took = there.round(4)
    assert lost == dict.fromkeys([(1, "train"), (1, "evaluate")], LEFT_OUT.format(3))
    assert took < 1.0
    [said] = there.said
    assert said.startswith("client 1 was late in 3 rounds in a row and is left out for 100 s or more; rounds go on")
    assert said.endswith("see to its machine, or give all clients more time (deadline_s in server.toml)")


def test_rounds_without_a_client_that_is_left_out_are_those_of_a_simulation_that_loses_it(there: Slow) -> None:
    class Without(type(simulator("fedavg", NETWORK).outage)):  # type: ignore[misc]
        def fate(self, key: Any, step: str = "", asked: int = 0) -> Any:
            return "unreachable" if key.path[-1] == 1 else None

    sim = simulator("fedavg", NETWORK, seed=4, outage=Without(), clients_per_round=6)
    there.silence(1)
    expected = sim.start()
    for t in range(1, 6):
        there.round(t)
        expected, _ = sim.round(expected, t)
        assert wire.encode(there.state) == wire.encode(expected)


def test_a_client_that_answers_again_takes_part_again(there: Slow) -> None:
    there.silence(1)
    for t in (1, 2, 3, 4):
        there.round(t)
    there.revive(1)
    assert (1, "train") in there.round(5)[0], "its time is not over"
    there.now += DEADLINE_S
    assert there.round(6)[0] == {}
    assert there.said[1:] == ["client 1 is here"]


def test_a_client_that_greets_and_is_late_again_is_left_out_for_longer_each_time(there: Slow) -> None:
    """At the most for ten deadlines: one that is always slow costs its rounds a tenth of their time."""
    pauses = []
    for _ in range(8):
        there.membership.count_round({1}, (), DEADLINE_S)
        if 1 not in there.membership.present:
            pauses.append(there.membership._again[there.node(1)] - there.now)
            there.now += pauses[-1]
            there.membership.call()
    assert pauses == [100.0, 200.0, 400.0, 800.0, 1000.0, 1000.0]
    assert there.said[-2:] == [
        "client 1 was late in 8 rounds in a row and is left out for 1000 s or more",
        "client 1 is here",
    ]


def test_a_client_that_was_started_anew_is_greeted_at_once(there: Slow) -> None:
    there.silence(1)
    for t in (1, 2, 3, 4):
        there.round(t)
    del there.grid.handlers[there.node(1)]
    assert there.round(5)[0] == dict.fromkeys([(1, "train"), (1, "evaluate")], "client lost: it is not connected")
    there.revive(1)
    assert there.round(6)[0] == {}
    assert there.said[1:] == ["client 1, which was left out, is gone", "client 1 is here"]


def test_rounds_that_a_late_client_was_needed_for_do_not_count(there: Slow) -> None:
    """Without it they would have no result either, so nothing is won by leaving it out."""
    there.silence(*range(6))
    for t in range(1, 6):
        there.round(t)
    assert there.membership.present == tuple(range(6))
    assert there.said == []


def test_a_reply_in_time_begins_the_count_anew(there: Slow) -> None:
    for t, late in enumerate([True, True, False, True, True], 1):
        (there.silence if late else there.revive)(1)
        there.round(t)
    there.revive(1)
    assert there.round(6)[0] == {}
    assert there.said == []
