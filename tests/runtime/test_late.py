"""Clients that are late: how often a round waits for one, when it is left out, and how it comes back."""

from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("grpc")

from loopback import Deployed

from unskew.runtime import membership
from unskew.runtime.message import Envelope

NETWORK, DEADLINE_S = "perceptron", 100.0
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
        super().__init__("fedavg", NETWORK, folder, 4, clients_per_round=6, terms={"deadline_s": DEADLINE_S})
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


def test_a_client_that_is_late_in_three_rounds_is_left_out_and_named(there: Slow) -> None:
    """Rounds then take as long as without it, and their result is that of a client that is not there."""
    there.silence(1)
    for t in (1, 2, 3):
        there.round(t)
    lost, took = there.round(4)
    assert lost == dict.fromkeys([(1, "train"), (1, "evaluate")], LEFT_OUT.format(3))
    assert took < 1.0
    [said] = there.said
    assert said.startswith("client 1 was late in 3 rounds in a row and is left out for 100 s or more; see to its")


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
