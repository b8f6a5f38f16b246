"""Every method over a deployment's messages: the bits and the bytes of the simulator."""

import itertools
from collections import Counter
from pathlib import Path

import pytest
from grid import one_network_each
from recipe import DEPLOYED, SEED, recorded

from unskew import wire
from unskew.ledger import SERVER, Transfer, node

pytest.importorskip("grpc")

from loopback import Deployed

from unskew.runtime.message import REPLIES, REQUESTS, Envelope, NetworkTransfer, StepRequest, read


def payloads(messages: list[tuple[int, Envelope]]) -> list[tuple[str, int]]:
    """(action, payload bytes) of every message, as it travels."""
    return sorted((envelope.action, envelope.payload) for _, envelope in messages)


def expected_down(rows: list[Transfer], hop: int, client: int) -> list[int]:
    """Payloads of one ask: the message, then each value another client held; what is empty has no row."""
    return [r.bytes for r in rows if r.hop == hop and r.dst == node(client)]


@one_network_each(DEPLOYED, turn=(0, 3))
def test_a_deployed_run_is_the_simulated_one(case: str, network: str, tmp_path: Path) -> None:
    """Bit for bit in state, memory, work and losses; and every ask and reply weighs what the ledger says it does."""
    there = Deployed(case, network, tmp_path, seed=SEED)
    state = there.runtime.start()
    for t, (moment, trace) in enumerate(itertools.islice(recorded(case, network).rounds, 2), start=1):
        there.grid.pushed.clear()
        there.grid.pulled.clear()
        state, found = there.runtime.round(state, t)
        assert wire.encode(state) == moment.bits["state"]
        assert found.transfers == trace.transfers
        assert found.work == trace.work
        assert found.losses == trace.losses
        failures, sent = there.runtime.drain_records()
        assert not found.failures
        assert not failures
        on_the_wire(there, trace.transfers, sent)
    for c in there.population.clients:
        assert there.remembered(c) == moment.bits[f"client {c}"]


def on_the_wire(there: Deployed, rows: list[Transfer], sent: list[NetworkTransfer]) -> None:
    """What lay in the messages, against the ledger, message by message."""
    for at, envelope in there.grid.pushed:
        head = read(envelope, REQUESTS)
        if isinstance(head, StepRequest):
            assert [len(p) for p in envelope.parts if p] == expected_down(rows, head.hop, at)
    up = Counter((r.hop, r.src, r.bytes) for r in rows if r.dst == SERVER)
    asked = Counter((s.hop, node(s.client), s.payload) for s in sent if s.what == "ask" and s.way == "up" and s.payload)
    assert asked <= up
    # What else went up went because a client was sent it or the plan collected it; once, for whomever it was.
    carried = up - asked + Counter((r.hop, r.src, r.bytes) for r in rows if SERVER not in (r.src, r.dst))
    fetches = {
        c: [s.hop for s in sent if (s.what, s.way, s.client) == ("fetch", "up", c)] for c in there.population.clients
    }
    fetched: Counter[tuple[int, int, int]] = Counter()
    for client, envelope in there.grid.pulled:
        if envelope.action == "fetch":
            hop = fetches[client].pop(0)
            fetched.update((hop, node(client), len(part)) for part in envelope.parts)
    assert fetched <= carried
    assert set(fetched) == set(carried)
    assert payloads(there.grid.pushed) == sorted((s.what, s.payload) for s in sent if s.way == "down")
    assert payloads(there.grid.pulled) == sorted((s.what, s.payload) for s in sent if s.way == "up")
    for _, envelope in there.grid.pulled:
        read(envelope, REPLIES)
    assert all(s.framing > 0 for s in sent)
