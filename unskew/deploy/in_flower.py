"""An experiment as an app of Flower, in a federation that others operate with SuperLink and SuperNodes.

    write_app(experiment, Path("app"), clients=3)                       then:  flwr run app CONNECTION
    flower-supernode ... --node-config 'partition-id=0 data="csv:/srv/own.csv"'

The app holds a pyproject.toml and no code: its two components are names in this module, so unskew is installed where
ServerApp and ClientApps run.  `partition-id` is the site's number, counted from 0; the other keys of its node config
are those of `Site`, and what the site does not name is not read.  Flower starts a process for each message, which opens
the site's data anew; what a site remembers is in files.  One message carries one envelope, as an array of bytes.

Flower knows the sites, and their numbers are what they say.  A reply is in memory before its size is looked at.
"""

import itertools
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tomli_w
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from unskew import schema
from unskew.deploy import guest
from unskew.deploy.channel import encode
from unskew.deploy.settings import Site
from unskew.errors import ConfigError
from unskew.experiment.config import Experiment
from unskew.runtime.client import ClientRuntime
from unskew.runtime.log import log, printable, show
from unskew.runtime.message import Delivery, Envelope, Node

LOOK_S = 0.15
MARGIN_S = 60.0
"""Time beyond our deadline for which Flower keeps a request and its reply, seconds."""
NO_REPLY, GONE = 3, 5
"""Flower's codes for a request whose time is over, and for a site from which no heartbeat comes."""
ENVELOPE, NUMBER = "envelope", "partition-id"


def write_app(experiment: Experiment, folder: Path, clients: int, **settings: Any) -> Path:
    """Write the folder of an app that runs an experiment on so many sites; `settings` are those of an offer."""
    table = {
        "project": {
            "name": "unskew-experiment",
            "version": "1.0.0",
            "description": f"{experiment.name}, an experiment of unskew",
            "license": "Apache-2.0",
            "dependencies": [],  # Flower would install them, from elsewhere, when the app is run
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "unskew",
                    "components": {"serverapp": f"{__name__}:server_app", "clientapp": f"{__name__}:client_app"},
                    "config": guest.offered(experiment, clients, **settings),
                }
            }
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(tomli_w.dumps(table), "utf-8")
    return folder


# ---------------------------------------------------------------- messages
def content_of(data: bytes) -> RecordDict:
    """An encoded envelope as the content of a message; raw bytes, as a header of NumPy's format would name a size."""
    return RecordDict({ENVELOPE: ArrayRecord({ENVELOPE: Array("uint8", (len(data),), "bytes", data)})})


def data_in(message: Message) -> object:
    """Find the encoded envelope in a message from elsewhere; None if there is none."""
    try:
        return message.content[ENVELOPE][ENVELOPE].data
    except Exception:  # Flower checks a record when it is looked at
        return None


# ---------------------------------------------------------------- the server's side
class GridTransport:
    """A transport over Flower's Grid: messages are pushed together, and replies looked for at short intervals."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def nodes(self) -> set[Node]:
        """Nodes that are connected, as far as Flower knows: one that died is listed for up to a minute."""
        return set(self.grid.get_node_ids())

    def exchange(
        self, envelopes: Mapping[Node, Envelope], deadline_s: float, most: int
    ) -> Iterator[tuple[Node, Delivery]]:
        """Send all envelopes together; yield each node's delivery as it comes, of at most `most` bytes."""
        end, down = time.monotonic() + deadline_s, {}
        messages = []
        for node, envelope in envelopes.items():
            data = b"".join(encode(envelope))
            down[node] = len(data) - envelope.payload
            content, ttl = content_of(data), deadline_s + MARGIN_S
            messages.append(Message(content, dst_node_id=node, message_type="query", ttl=ttl))
        waiting: dict[str, Node] = {}
        # Where all together are too large, no identity comes back at all.
        identities = itertools.chain(self.grid.push_messages(messages), itertools.repeat(""))
        for node, identity in zip(envelopes, identities, strict=False):
            if identity:
                waiting[identity] = node
            else:
                yield (
                    node,
                    Delivery(None, "client lost: Flower does not know it, or does not take what is sent", sent=False),
                )
        while waiting:
            last = time.monotonic() >= end
            replies = self._pull(waiting)
            for reply in replies:
                node = waiting.pop(reply.metadata.reply_to_message_id)
                yield node, _delivery(reply, down[node], most)
            if last:
                break
            if not replies:
                time.sleep(max(min(LOOK_S, end - time.monotonic()), 0.0))
        for node in waiting.values():
            yield node, Delivery(None, f"late: no reply within {deadline_s:g} s", down=down[node], late=True)

    def _pull(self, waiting: Mapping[str, Node]) -> list[Message]:
        """Replies that have come; where the network fails now they may come at the next look."""
        try:
            replies = list(self.grid.pull_messages(list(waiting)))
        except Exception as error:  # the network's own errors have no common class
            log(f"Flower hands out no replies for now ({type(error).__name__})")
            return []
        return [reply for reply in replies if reply.metadata.reply_to_message_id in waiting]


def _delivery(reply: Message, down: int, most: int) -> Delivery:
    if reply.has_error():
        code, reason = reply.error.code, printable(reply.error.reason or "no reason was given")
        kind = {NO_REPLY: "late", GONE: "client lost"}.get(code, "client error")
        return Delivery(None, f"{kind}: {reason} (Flower's code {code})", down=down, late=code == NO_REPLY)
    return guest.delivery(data_in(reply), most, down)


server_app = ServerApp()


def serve(grid: Grid, context: Context) -> None:
    """Run the app's experiment on the sites that Flower connects.  Any app may run code here, so its own may, too."""
    show()
    guest.run(GridTransport(grid), context.run_config, allow_code=True)


server_app.main()(serve)


# ---------------------------------------------------------------- a site's side
client_app = ClientApp()


def answer(message: Message, context: Context) -> Message:
    """Answer one request as this site's client."""
    show()

    def opened() -> ClientRuntime:
        settings = dict(context.node_config)
        number = settings.pop(NUMBER, None)
        if type(number) is not int:
            raise ConfigError(f"--node-config must have {NUMBER}, this site's number from 0, got {number!r}")
        settings.pop("num-partitions", None)  # which others' apps read
        site: Site = schema.build(Site, settings, "", "--node-config")
        return guest.opened(context.run_config, number, site)

    return Message(content_of(guest.answer(opened, data_in(message))), reply_to=message)


client_app.query()(answer)
