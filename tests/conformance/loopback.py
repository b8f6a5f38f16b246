"""A federation in one process: a network that calls the clients, with replies out of order.

Every message is encoded and decoded on each way, as on a real network.
"""

import functools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from recipe import make, world

from unskew import wire
from unskew.deploy.channel import GONE
from unskew.keys import Key
from unskew.local.sequential import Sequential
from unskew.local.trainer import LocalTrainer
from unskew.protocol import ClientId, Me
from unskew.runtime.client import ClientRuntime, ClientSetup, _StoredAnswer
from unskew.runtime.in_process import Population
from unskew.runtime.membership import Membership, layout_hash
from unskew.runtime.message import ClientInfo, Envelope, Lost, decode, encode
from unskew.runtime.network import RemoteClients
from unskew.runtime.policy import ServerConfig
from unskew.runtime.round import Driver

Handler = Callable[[Envelope], Envelope]
CLASSES = ("0", "1", "2")


def carried(envelope: Envelope) -> Envelope:
    """The message after its way through the network."""
    return decode(b"".join(encode(envelope)))


class Loopback:
    """Clients, and who answers for each; replies come one by one, in any order.

    Attributes:
        pushed, pulled: Every message that left the server, and every one that came back.
    """

    def __init__(self, handlers: dict[ClientId, Handler]) -> None:
        self.handlers = handlers
        self.pushed: list[tuple[ClientId, Envelope]] = []
        self.pulled: list[tuple[ClientId, Envelope]] = []
        self.waiting: dict[ClientId, tuple[Envelope, float]] = {}
        self._random = random.Random(3)

    def clients(self) -> set[ClientId]:
        return set(self.handlers)

    def send(self, client: ClientId, envelope: Envelope, deadline_s: float, most: int) -> bool:
        if client in self.handlers:
            asked = carried(envelope)
            self.pushed.append((client, asked))
            self.waiting[client] = asked, deadline_s
        return client in self.handlers

    def receive(self, seconds: float) -> Iterator[tuple[ClientId, Envelope | Lost]]:
        client = self._random.choice(sorted(self.waiting))
        yield client, self.answer(client, *self.waiting.pop(client))

    def answer(self, client: ClientId, asked: Envelope, deadline_s: float) -> Envelope | Lost:
        try:
            reply = carried(self.handlers[client](asked))
        except TimeoutError:
            return Lost(f"late: no reply within {deadline_s:g} s", late=True)
        except ConnectionError:
            return Lost(GONE)
        self.pulled.append((client, reply))
        return reply

    def forget(self, client: ClientId, late: str = "") -> None:
        self.waiting.pop(client, None)


# ---------------------------------------------------------------- the small world, deployed
@functools.cache
def built(case: str, network: str, device: str = "cpu") -> tuple[Any, Population, LocalTrainer]:
    """What a client's process builds anew for every message; nothing in it remembers anything."""
    # Tests put worlds of their own in place of `world`, which know no device.
    method, where = make(case), {} if device == "cpu" else {"device": device}
    return method, *world(network, bool(getattr(method, "pooled", False)), **where)


def info(case: str, network: str, client: int, num_clients: int) -> ClientInfo:
    _, population, _ = built(case, network)
    layout = layout_hash(population.initial)
    return ClientInfo(client, num_clients, "0", "small world", CLASSES, layout, "rows", False)


def client_runtime(
    case: str, network: str, seed: int, client: int, num_clients: int, state: Path, device: str = "cpu", **options: Any
) -> ClientRuntime:
    """A client as a fresh process has it: nothing in memory, everything in `state`."""

    def open_setup(cell: int) -> ClientSetup:
        method, population, trainer = built(case, network, device)

        def me(c: int, t: int, key: Key) -> Me:
            assert c == client, "a client was asked about another one's data"
            return population.me(c, t, key)

        rows = trainer.device_data.val[client]
        eval_set = {"personal": ("train", rows), "val": ("train", rows[:1])}
        return ClientSetup(method, trainer, me, population.initial, seed, eval_set)

    return ClientRuntime(info(case, network, client, num_clients), state, open_setup, **options)


class Deployed:
    """A case over the loopback; every message finds its client as a fresh process."""

    def __init__(self, case: str, network: str, folder: Path, seed: int = 0, **options: Any) -> None:
        self.method, self.device = options.pop("method", None) or make(case), options.pop("client_device", "cpu")
        pooled = bool(getattr(self.method, "pooled", False))
        _, self.population, self.trainer = built(case, network)
        self.num_clients = len(self.population.clients)
        self.folder, self.case, self.network, self.seed = folder, case, network, seed
        self.grid = Loopback({c: self.fresh(c) for c in self.population.clients})
        self.begun = 0
        terms = {"deadline_s": 5.0, "own_data": False, **options.pop("terms", {})}
        self.config = ServerConfig(self.num_clients, 1, **terms)
        self.membership = self.greet_clients()
        self.options = {"clients_per_round": 1 if pooled else 4, **options}
        self.runtime = self.start_server()

    def client_runtime(self, client: int) -> ClientRuntime:
        state = self.folder / str(client)
        return client_runtime(self.case, self.network, self.seed, client, self.num_clients, state, self.device)

    def fresh(self, client: int) -> Handler:
        return lambda message: self.client_runtime(client).answer(message)

    def greet_clients(self, run: str = "smallworld", at_least: int | None = None) -> Membership:
        membership = self.meet(run)
        membership.wait(at_least or self.num_clients, wait_s=60.0)
        return membership

    def meet(self, run: str = "smallworld", *of_clients: Any, **options: Any) -> Membership:
        """A membership of this federation, which nobody has joined."""
        expected = options.pop("expected", info(self.case, self.network, 0, self.num_clients))
        config = options.pop("config", self.config)
        return Membership(self.grid, run, expected, config, *of_clients, **options)

    def start_server(self) -> Driver[Any]:
        """A server that knows nothing but what a checkpoint would tell it."""

        def count() -> int:
            self.begun += 1
            return self.begun

        trainer = self.trainer
        model = replace(self.population.model, measures=trainer.task.measures, public=trainer.public)
        clients = RemoteClients(
            self.method,
            model,
            self.membership,
            Sequential(self.trainer),
            count=count,
            key=Key(self.seed),
        )
        return Driver(self.method, model, clients, seed=self.seed, **self.options)

    def remembered(self, client: int) -> bytes:
        """What the client remembers, read from its disk."""
        name = self.runtime.memory.get(client)
        file = self.folder / str(client) / "smallworld" / "0" / str(name)
        return wire.decode(file.read_bytes(), _StoredAnswer).memory if name else wire.encode(None)
