"""The same plan with its clients in another process: every message crosses as bytes, and the bits must not change."""

import itertools
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from grid import one_network_each
from other_side import receive, send
from recipe import CASES, SEED, make, recorded, world

from unskew import wire
from unskew.keys import Key
from unskew.ledger import totals
from unskew.protocol import Ask, Collect, Federation, Held, Probe, drive, map_held
from unskew.reduction import reduced
from unskew.tree import Params
from unskew.world.channel import Even


class Line:
    """The line to the other process, and what it has carried since the last look."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.out, self.back = process.stdin, process.stdout
        self.down = self.up = 0

    def call(self, do: str, *payloads: bytes, **header: Any) -> bytes:
        send(self.out, {"do": do, **header}, *payloads)
        answer, (reply,) = receive(self.back)
        assert answer["did"] == do
        return reply

    def ask(self, message: bytes, moved: dict[Held, bytes], **header: Any) -> bytes:
        self.down += len(message) + sum(map(len, moved.values()))
        names = [[h.owner, h.key] for h in moved]
        reply = self.call("ask", message, *moved.values(), moved=names, **header)
        self.up += len(reply)
        return reply

    def fetch(self, held: Held) -> bytes:
        value = self.call("fetch", held=[held.owner, held.key])
        self.up += len(value)
        return value


@pytest.fixture(scope="module")
def process() -> Iterator["subprocess.Popen[bytes]"]:
    """One process for all cells: it takes seconds to start."""
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parents[1]), *filter(None, sys.path)])
    child = subprocess.Popen(
        [sys.executable, str(here / "other_side.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        with child:
            yield child
            assert child.stdin is not None
            child.stdin.close()
            assert child.wait(20) == 0
    finally:
        child.kill()


class Server:
    """A second, smaller runtime: it shares no code with the simulator but vocabulary, reductions and codec."""

    def __init__(self, case: str, network: str, seed: int, line: Line) -> None:
        self.algorithm, self.seed, self.line = make(case), seed, line
        pooled = bool(getattr(self.algorithm, "pooled", False))
        self.population, _ = world(network, pooled)
        self.cohort = 1 if pooled else 4
        self.signatures = wire.signatures(self.algorithm)
        line.call("open", case=case, network=network, seed=seed)

    def federation(self, t: int) -> Federation:
        p = self.population
        classes = p.histograms.shape[1]
        return Federation(p.clients, classes, p.layout, t, Key(self.seed) / "server" / t, self.cohort, p.initialise)

    def round(self, state: Any, t: int) -> Any:
        asked: Counter[str] = Counter()
        hop = 0

        def answer(want: Any) -> Any:
            nonlocal hop
            if isinstance(want, Probe):
                nodes = len(self.population.clients) + 1
                return Even().spectral_efficiency(Key(0), 1, 0, nodes)[1:, 1:]
            hop += 1
            if isinstance(want, Collect):
                return [wire.decode(self.line.fetch(h), Params | torch.Tensor) for h in want.held]
            assert isinstance(want, Ask)
            asked[want.step] += 1
            replies = {}
            for c, message in want.to.items():
                moved: dict[Held, bytes] = {}

                def note(held: Held, c: int = c, moved: dict[Held, bytes] = moved) -> Held:
                    if held.owner != c:
                        moved[held] = self.line.fetch(held)
                    return held

                map_held(note, message)
                header = {"client": c, "round": t, "step": want.step, "index": asked[want.step] - 1, "hop": hop - 1}
                reply = self.line.ask(wire.encode(message), moved, **header)
                replies[c] = wire.decode(reply, self.signatures[want.step].reply)
            assert len(replies) >= want.at_least
            return reduced(want.reduce, replies) if want.reduce else replies

        new = drive(self.algorithm.round(state, self.federation(t)), answer)
        self.line.call("commit")
        return new


@one_network_each(CASES, turn=(1, 9))
def test_two_processes_give_the_bits_and_the_bytes_of_the_simulator(
    case: str, network: str, process: "subprocess.Popen[bytes]"
) -> None:
    """A star: the server relays what goes from client to client, so each such byte goes up once and down once."""
    line = Line(process)
    server = Server(case, network, SEED, line)
    state = server.algorithm.init(server.population.initial, server.federation(0))
    for t, (moment, trace) in enumerate(itertools.islice(recorded(case, network).rounds, 2), start=1):
        line.down = line.up = 0
        state = server.round(state, t)
        assert wire.encode(state) == moment.bits["state"]
        # The server relays what devices send each other: each such byte goes up and down.
        sums = totals(trace.transfers)
        assert (line.down, line.up) == (sums["down"] + sums["d2d"], sums["up"] + sums["d2d"])
    for c in server.population.clients:
        assert line.call("memory", client=c) == moment.bits[f"client {c}"]
