"""Runs an experiment as a Flower app, on SuperLink and SuperNodes.

    write_app(experiment, Path("app"), clients=3)                       then:  flwr run app CONNECTION
    flower-supernode ... --node-config 'partition-id=0 data="csv:/srv/own.csv"'

The app is a pyproject.toml without code; its two components are in this module, so unskew must be installed where
ServerApp and ClientApps run.  `partition-id` is the site's number from 0; the other keys of the node config are those
of `Site`.  Flower starts a process for each message, so the site's memory is in files.  One message carries one
envelope, as an array of bytes.

Flower authenticates the sites, which state their own numbers.  The size of a reply is checked once it is in memory.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from unskew import schema
from unskew.deploy import guest
from unskew.deploy.settings import Site
from unskew.experiment.config import Experiment
from unskew.protocol import ClientId
from unskew.runtime.client import ClientRuntime
from unskew.runtime.log import log, printable, show
from unskew.runtime.message import Envelope, Lost, encode, reply_of

LOOK_S = 0.15
MARGIN_S = 60.0
"""Time beyond our deadline for which Flower keeps a request and its reply, seconds."""
PATIENCE_S = 600.0
"""Time after which a node that did not say who is there is asked again, seconds."""
NO_REPLY, GONE = 3, 5
"""Flower's codes for a request whose time is over, and for a site from which no heartbeat comes."""
ENVELOPE, NUMBER, NOBODY = "envelope", "partition-id", -1


def write_app(experiment: Experiment, folder: Path, clients: int, **settings: Any) -> Path:
    """Write the folder of an app that runs an experiment on `clients` sites; `settings` are those of an offer."""
    components = {"serverapp": f"{__name__}:server_app", "clientapp": f"{__name__}:client_app"}
    app = {"publisher": "unskew", "components": components, "config": guest.offered(experiment, clients, **settings)}
    project = {"name": "unskew-experiment", "version": "1.0.0", "license": "Apache-2.0"}
    # Flower would install dependencies, from elsewhere, when the app is run.
    project |= {"description": f"{experiment.name}, an experiment of unskew", "dependencies": []}  # type: ignore[dict-item]
    table = {"project": project, "tool": {"flwr": {"app": app}}}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(tomli_w.dumps(table), "utf-8")
    return folder


# ---------------------------------------------------------------- messages
def content_of(data: bytes, number: int = NOBODY) -> RecordDict:
    """An encoded envelope as the content of a message; raw bytes, since a NumPy header could claim any size.

    An answer has the number of its site, by which the server knows whom it reaches; b"" asks only for that.
    """
    envelope = ArrayRecord({ENVELOPE: Array("uint8", (len(data),), "bytes", data)})
    return RecordDict({ENVELOPE: envelope, NUMBER: ConfigRecord({NUMBER: number})})


def entry_of(message: Message, name: str) -> Any:
    """The only entry of this record in a message; None if there is none."""
    try:
        return message.content[name][name]
    except Exception:  # Flower checks a record when it is looked at
        return None


# ---------------------------------------------------------------- the server's side
class GridTransport:
    """A transport over Flower's Grid: pushes messages together, and pulls replies at short intervals."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._numbers: dict[int, ClientId] = {}  # by node
        self._again: dict[int, float] = {}  # when each may be asked who is there
        self._waiting: dict[str, tuple[ClientId, int]] = {}  # by message

    def clients(self) -> set[ClientId]:
        """Clients that are connected, according to Flower: a dead one is listed for up to a minute."""
        here, now = {*self.grid.get_node_ids()}, time.monotonic()
        self._numbers = {node: number for node, number in self._numbers.items() if node in here}
        # One that has not said who is there is another's, or is mended and comes back as a new one.
        new = [node for node in here - self._numbers.keys() if now >= self._again.get(node, now)]
        self._again |= dict.fromkeys(new, now + PATIENCE_S)
        asked = [_message(node, b"", 2 * MARGIN_S) for node in new]
        for reply in self.grid.send_and_receive(asked, timeout=2 * MARGIN_S) if asked else ():
            if not reply.has_error():
                node, number = reply.metadata.src_node_id, entry_of(reply, NUMBER)
                self._numbers[node] = number if type(number) is int else NOBODY
                log(f"Flower's node {node} is client {self._numbers[node]}")
        return {*self._numbers.values()}

    def send(self, client: ClientId, envelope: Envelope, deadline_s: float, most: int) -> bool:
        """Push a request."""
        nodes = [node for node, number in self._numbers.items() if number == client]
        pushed = _message(nodes[-1], b"".join(encode(envelope)), deadline_s + MARGIN_S)
        (identity,) = self.grid.push_messages([pushed])
        if identity:  # a request that is too large has none
            self._waiting[identity] = client, most
        return bool(identity)

    def receive(self, seconds: float) -> Iterator[tuple[ClientId, Envelope | Lost]]:
        """Pull replies; those above their size limit are dropped."""
        try:
            replies = list(self.grid.pull_messages(list(self._waiting)))
        except Exception as error:  # its errors have no common class; replies may come at the next look
            log(f"Flower hands out no replies for now ({type(error).__name__})")
            replies = []
        for reply in replies:
            if (waiting := self._waiting.pop(reply.metadata.reply_to_message_id, None)) is not None:
                client, most = waiting
                yield client, _reply(reply, most)
        if not replies:
            time.sleep(min(LOOK_S, seconds))

    def forget(self, client: ClientId, late: str = "") -> None:
        """Stop looking for a client's reply."""
        self._waiting = {identity: waiting for identity, waiting in self._waiting.items() if waiting[0] != client}


def _message(node: int, data: bytes, ttl: float) -> Message:
    return Message(content_of(data), dst_node_id=node, message_type="query", ttl=ttl)


def _reply(reply: Message, most: int) -> Envelope | Lost:
    if not reply.has_error():
        return reply_of(getattr(entry_of(reply, ENVELOPE), "data", None), most)
    code, reason = reply.error.code, printable(reply.error.reason or "no reason was given")
    kind = {NO_REPLY: "late", GONE: "client lost"}.get(code, "client error")
    return Lost(f"{kind}: {reason} (Flower's code {code})", late=code == NO_REPLY)


server_app = ServerApp()


def serve(grid: Grid, context: Context) -> None:
    """Run the app's experiment on the sites that Flower connects; code that it names may be imported."""
    show()
    guest.run(GridTransport(grid), context.run_config, allow_code=True)


server_app.main()(serve)


# ---------------------------------------------------------------- a site's side
client_app = ClientApp()


def answer(message: Message, context: Context) -> Message:
    """Answer one request as this site's client."""
    show()
    settings = dict(context.node_config)
    number = settings.pop(NUMBER, NOBODY)
    if type(number) is not int or number < 0:
        log(f"--node-config must have {NUMBER}, this site's number from 0, got {number!r}")
        number = NOBODY
    settings.pop("num-partitions", None)  # which others' apps read

    def opened(request: Envelope) -> ClientRuntime:
        site: Site = schema.build(Site, settings, "", "--node-config")
        return guest.opened(context.run_config, number, site, request)

    data = getattr(entry_of(message, ENVELOPE), "data", None)
    return Message(content_of(guest.answer(opened, data) if data else b"", number), reply_to=message)


client_app.query()(answer)
