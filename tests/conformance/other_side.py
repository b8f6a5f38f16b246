"""The clients' side of the two-process test: a process that knows the recipe, its own data, and what it is sent.

Frames on stdin and stdout: four bytes of length, a JSON header, then as many payloads as its "sizes" say.
"""

import json
import sys
from typing import Any, BinaryIO

import torch
from recipe import make, world

from unskew import wire
from unskew.keys import Key
from unskew.local.executor import StepJob
from unskew.local.sequential import Sequential
from unskew.protocol import Held, Keep, Me, map_held, map_keep, steps_of
from unskew.tree import Params


def send(pipe: BinaryIO, header: dict[str, Any], *payloads: bytes) -> None:
    head = json.dumps({**header, "sizes": [len(p) for p in payloads]}).encode()
    pipe.write(b"".join((len(head).to_bytes(4, "big"), head, *payloads)))
    pipe.flush()


def receive(pipe: BinaryIO) -> tuple[dict[str, Any], list[bytes]]:
    size = pipe.read(4)
    if not size:
        return {}, []
    header: dict[str, Any] = json.loads(pipe.read(int.from_bytes(size, "big")))
    return header, [pipe.read(n) for n in header["sizes"]]


class Clients:
    """All clients of one run, each with its own memory and held values."""

    def __init__(self, case: str, network: str, seed: int) -> None:
        self.algorithm = make(case)
        self.population, trainer = world(network, bool(getattr(self.algorithm, "pooled", False)))
        self.executor = Sequential(trainer)
        self.seed = seed
        self.memory: dict[int, bytes] = {}
        self.staged: dict[int, bytes] = {}
        self.held: dict[Held, Any] = {}

    def ask(self, header: dict[str, Any], message: bytes, moved: list[bytes]) -> bytes:
        client, t = header["client"], header["round"]
        signature = wire.signatures(self.algorithm)[header["step"]]
        # The type of a held value is that of a field it may stand in; parameters and tensors are all there is so far.
        brought = {Held(*h): wire.decode(v, Params | torch.Tensor) for h, v in zip(header["moved"], moved, strict=True)}
        of_mine = {h: v for h, v in self.held.items() if h.owner == client}
        msg = map_held(lambda h: {**of_mine, **brought}[h], wire.decode(message, signature.message))
        histogram = self.population.histograms[client]
        key = Key(self.seed) / "round" / t / "client" / client / header["index"]
        layout, initial = self.population.layout, self.population.initial
        me = Me(client, int(histogram.sum()), histogram, t, key, layout, initial, key, key)
        saved = self.staged.get(client, self.memory.get(client, b""))
        mine = wire.decode(saved, wire.memory_type(self.algorithm))
        work = StepJob(header["step"], steps_of(self.algorithm)[header["step"]], me, msg, mine)
        ((_, done),) = self.executor.complete({client: work})
        reply, memory = done.value
        self.staged[client] = wire.encode(memory)

        def keep(kept: Keep, path: str) -> Held:
            held = Held(client, f"{header['hop']}{path}")
            self.held[held] = kept.value
            return held

        return wire.encode(map_keep(keep, reply))

    def commit(self) -> None:
        self.memory.update(self.staged)
        self.staged, self.held = {}, {}


def main() -> None:
    torch.set_num_threads(1)
    clients: Clients | None = None
    while True:
        header, payloads = receive(sys.stdin.buffer)
        answer = b""
        if not header:
            return
        if header["do"] == "open":
            clients = Clients(header["case"], header["network"], header["seed"])
        assert clients is not None
        if header["do"] == "ask":
            answer = clients.ask(header, payloads[0], payloads[1:])
        elif header["do"] == "fetch":
            answer = wire.encode(clients.held[Held(*header["held"])])
        elif header["do"] == "commit":
            clients.commit()
        elif header["do"] == "memory":
            answer = clients.memory.get(header["client"], b"")
        send(sys.stdout.buffer, {"did": header["do"]}, answer)


if __name__ == "__main__":
    main()
