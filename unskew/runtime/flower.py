"""Deployments over Flower: the server's Grid and the clients' apps.  The only module that imports Flower.

A generated Flower app consists of two names in this module:

    [tool.flwr.app.components]
    serverapp = "unskew.runtime.flower:server_app"
    clientapp = "unskew.runtime.flower:client_app"
    [tool.flwr.app.config]
    folder = "/abs/server"
    force = false                    # go on though versions or machine have changed

Folders, written by `unskew.deploy` and read here:

    SERVER/                          context.run_config["folder"], an absolute path
        experiment.toml              the experiment
        server.toml                  deadline_s = 600.0    longest time for an exchange unless the plan sets its own
                                     min_clients = 2       clients that must be connected before the first round ...
                                     wait_s = 300.0        ... within so many seconds
                                     max_norm = 1e6        largest L2 norm of a reply's tensors
                                     max_ratio = 100.0     largest norm of a reply's model, in medians of the round
                                     num_clients = 3       clients that were packed, taken out since or not
        nodes.json                   optional: {"0": "node id", ...}, the node that each client's key was registered
                                     for; a node that claims another number, or has no key here, is rejected
        failures.jsonl               written here: clients that were refused, with the reason
        logs/notes.log               written here: who came, left or was refused, for whoever watches the server
        deployment.json              written here: the run's random name and how often a server was started
        run/                         the run folder, as of a simulation; if there is one, its run is continued
    CLIENT/                          context.node_config["folder"], an absolute path
        client.toml                  client = 0            its number, 0 .. num_clients - 1
                                     num_clients = 3
                                     own_data = true       it must name data of its own when it is started
        state/                       written here: the client's memory, by run and round; keep it over restarts
        resident.json                optional: socket of the client's resident process, which then answers

Without data of its own a client takes its part of the experiment's own split, by its number: `--local`.

Both sides compare library version, resolved experiment, classes and model layout in the first exchange ("hello"); a
client that differs is rejected, is told why, and the reason is in failures.jsonl, here and in the run.

An envelope is one Flower message: an ArrayRecord with one array, the payloads' bytes one after another, and a
ConfigRecord with the action, the head as JSON and the payloads' lengths.  Flower's own deadline (TTL) is longer than
ours; a reply that is not there when we look after ours is dropped.

Flower imports this module anew for each message, so at its top it imports nothing that loads PyTorch.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from unskew.errors import ConfigError, WireError
from unskew.runtime import resident
from unskew.runtime.resident import Frame

if TYPE_CHECKING:
    from unskew.runtime.client import ClientRuntime
    from unskew.runtime.message import Delivery, Envelope, Node

# These modules lie above this layer, so they are named and not imported.
SERVER = "unskew.deploy.server:serve"
CLIENT = "unskew.deploy.client:open_client"

POLL_S = 0.15
MARGIN_S = 240.0
"""Time beyond our deadline for which Flower keeps a request and its reply, seconds.

One look for replies may take 180 s and a little more, after which Flower gives up an upload that broke off."""
HELLO_MARGIN_S = 30.0
"""The same for greetings: their answers are small, and old greetings must not pile up at a client that is away."""
NO_REPLY = 3
"""Flower's code for a request whose time was over before there was a reply."""
GONE = 5
"""Flower's code for a client from which no heartbeat has come for twice its interval."""
UNREADABLE = "its reply cannot be read"
TOO_LARGE = "its reply is larger than any of this run can be"
HEAD, BODY, PAYLOAD = "head", "body", "payload"
# Raw bytes: an array in NumPy's format would carry a header that says how much memory to allocate.
STYPE = "bytes"


# ---------------------------------------------------------------- envelopes as Flower's records
def pack(envelope: "Envelope") -> RecordDict:
    """Turn an envelope into the content of a Flower message."""
    return content_of(frame_of(envelope))


def unpack(content: RecordDict) -> "Envelope":
    """Find the envelope in the content of a Flower message from elsewhere.

    Raises:
        WireError: If there is none.
    """
    return envelope_of(frame_in(content))


def content_of(frame: Frame) -> RecordDict:
    """Turn a frame into the content of a Flower message."""
    payload = Array("uint8", (len(frame.payload),), STYPE, frame.payload)
    head = ConfigRecord({"action": frame.action, "json": frame.head, "sizes": frame.sizes})
    return RecordDict({BODY: ArrayRecord({PAYLOAD: payload}), HEAD: head})


def frame_in(content: RecordDict) -> Frame:
    """Find the frame in the content of a Flower message from elsewhere.

    Raises:
        WireError: If there is none.
    """
    body, head = content.get(BODY), content.get(HEAD)
    if not isinstance(body, ArrayRecord) or not isinstance(head, ConfigRecord) or set(content) != {BODY, HEAD}:
        from unskew.runtime.membership import printable

        raise WireError(f"a message must hold {BODY} and {HEAD}, got {printable(str(sorted(content)), 80)}")
    if set(body) != {PAYLOAD} or body[PAYLOAD].stype != STYPE or set(head) != {"action", "json", "sizes"}:
        raise WireError("a message must hold one array of bytes, and an action, a head and lengths")
    action, text, sizes = head["action"], head["json"], head["sizes"]
    if not isinstance(action, str) or not isinstance(text, str) or not isinstance(sizes, str) or len(sizes) > 1 << 16:
        raise WireError("action, head and lengths of a message must be text")
    if not (action and text and sizes):  # Flower cannot count the bytes of an empty one
        raise WireError("action, head and lengths of a message must not be empty")
    return Frame(action, text, sizes, body[PAYLOAD].data)


def frame_of(envelope: "Envelope") -> Frame:
    """Turn an envelope into a frame."""
    return Frame(envelope.action, envelope.head, json.dumps([len(p) for p in envelope.parts]), b"".join(envelope.parts))


def envelope_of(frame: Frame) -> "Envelope":
    """Turn a frame back into an envelope.

    Raises:
        WireError: If the lengths are not those of its payloads.
    """
    from unskew.runtime.message import Envelope, split

    try:
        lengths = json.loads(frame.sizes)
    except (ValueError, RecursionError):
        lengths = None
    if not isinstance(lengths, list) or not all(type(n) is int for n in lengths):
        raise WireError("the lengths of a message's payloads must be a list of whole numbers")
    return Envelope(frame.action, frame.head, split(frame.payload, lengths))


def framing(content: RecordDict, envelope: "Envelope") -> int:
    """Bytes of a message's records beyond the payloads; the bytes that HTTP and TLS add are not known here."""
    return sum(record.count_bytes() for record in content.values()) - envelope.payload


# ---------------------------------------------------------------- the server's side
class FlowerTransport:
    """Sends envelopes over a Grid: pushed together, polled for at short intervals, given up at our own deadline."""

    def __init__(self, grid: Grid, poll_s: float = POLL_S) -> None:
        self.grid, self.poll_s = grid, poll_s

    def nodes(self) -> "set[Node]":
        """Nodes that are connected, as far as Flower knows: one that died is listed for up to a minute."""
        return set(self.grid.get_node_ids())

    def exchange(
        self, envelopes: "Mapping[Node, Envelope]", deadline_s: float, most: int
    ) -> "Iterator[tuple[Node, Delivery]]":
        """Send all envelopes together; yield each node's delivery as it comes, of at most `most` bytes."""
        from unskew.runtime.message import Delivery

        end = time.monotonic() + deadline_s
        contents = {n: pack(envelope) for n, envelope in envelopes.items()}
        messages = [
            Message(content, dst_node_id=n, message_type=_type_of(envelopes[n]), ttl=deadline_s + _margin(envelopes[n]))
            for n, content in contents.items()
        ]
        down = {n: framing(content, envelopes[n]) for n, content in contents.items()}
        try:
            ids = list(self.grid.push_messages(messages))
        except Exception as error:  # the network's own errors have no common class
            gone = Delivery(None, f"client lost: nothing could be sent ({type(error).__name__})", sent=False)
            yield from dict.fromkeys(envelopes, gone).items()
            return
        ids += [""] * (len(messages) - len(ids))  # none at all come back if all together were too large
        for n in (n for i, n in zip(ids, envelopes, strict=True) if not i):
            yield n, Delivery(None, "client lost: the network does not know it", sent=False)
        waiting = {i: n for i, n in zip(ids, envelopes, strict=True) if i}
        broken: dict[str, str] = {}
        while waiting:
            # Taken before the look: one may be held up for minutes by a client that died in mid-upload, and the others'
            # replies that came meanwhile are there at the next.
            last = time.monotonic() >= end
            with _untrusted_replies(self.grid, most):
                came = self._pull(set(waiting), broken)
            for message_id, reply in came.items():
                node = waiting.pop(message_id)
                yield node, _outcome(reply, down[node])
            if last and not came:
                break
            if not came:
                time.sleep(max(min(self.poll_s, end - time.monotonic()), 0.0))
        for message_id, node in waiting.items():
            unread = f"refused: {UNREADABLE} ({broken[message_id]})" if message_id in broken else None
            lost = unread or f"late: no reply within {deadline_s:g} s"
            yield node, Delivery(None, lost, down=down[node], late=not unread)

    def _pull(self, ids: set[str], broken: dict[str, str]) -> dict[str, Message]:
        """Pull the replies that have come, by the message they answer; one that fails now may come at the next poll."""
        try:
            came = {m.metadata.reply_to_message_id: m for m in self.grid.pull_messages(ids)}
            for i in ids:  # an earlier failure was the network's, not that of a reply
                broken.pop(i, None)
        except Exception as error:
            if len(ids) == 1:
                broken.update(dict.fromkeys(ids, type(error).__name__))
                return {}
            # One reply that cannot be unpacked must not take the others with it.
            return {k: v for i in sorted(ids) for k, v in self._pull({i}, broken).items()}
        return {i: m for i, m in came.items() if i in ids}


@contextmanager
def _untrusted_replies(grid: Any, most: int) -> Iterator[None]:
    """Let Flower's Grid answer for a reply that takes more than `most` bytes, or cannot be read, with an error.

    Flower pulls a reply piece by piece and joins pieces to arrays, which may name the same one many times.  If it fails
    in that, all replies that came with this one are lost: the network hands out each only once.
    """
    # Private to Flower, and the same in 1.40, 1.41 and 1.42.
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

    http_grid: Any = import_module("flwr.superlink.grid.http_grid")
    pull_all, inflate = http_grid.pull_objects, http_grid.inflate_object_from_contents
    ready: list[Message] = []

    def pull(object_ids: list[str], pull_object_fn: Callable[[str], bytes], **options: Any) -> dict[str, bytes]:
        size, counting = 0, threading.Lock()

        def pull_one(object_id: str) -> bytes:
            nonlocal size
            content = pull_object_fn(object_id)
            with counting:
                size += len(content)
            if size > most:
                raise ObjectPullError(object_id, TOO_LARGE)
            return content

        def refused(reason: str) -> ObjectPullError:
            """The network keeps pieces until it hears that they have come; if it does not, until they are old."""
            with suppress(Exception):
                come = ConfirmMessageReceivedRequest(node=grid.node, run_id=grid.run.run_id, message_object_id=whole)
                grid._runtime_client.ConfirmMessageReceived(come)
            return ObjectPullError(whole, reason)

        whole = object_ids[-1]  # each object comes after those that it is made of
        try:
            contents = pull_all(object_ids, pull_one, **options)
        except ObjectPullError as error:
            raise (refused(TOO_LARGE) if size > most else error) from None
        try:
            if _joined(contents) > most:
                raise refused(TOO_LARGE)
            message = inflate(whole, contents)
        except ObjectPullError:
            raise
        except Exception as error:
            raise refused(f"{UNREADABLE} ({type(error).__name__})") from error
        if not isinstance(message, Message):
            raise refused(f"{UNREADABLE} (it is no message)")
        ready.append(message)
        return {}

    http_grid.pull_objects, http_grid.inflate_object_from_contents = pull, lambda *_: ready.pop()
    try:
        yield
    finally:
        http_grid.pull_objects, http_grid.inflate_object_from_contents = pull_all, inflate


def _joined(contents: Mapping[str, bytes]) -> int:
    """Bytes of a reply's arrays when their pieces are joined.

    Raises:
        ValueError: If an array is made of something else than pieces, such as arrays.
    """
    from flwr.supercore.inflatable import inflatable_object

    heads = {i: inflatable_object.get_object_head_values_from_object_content(c) for i, c in contents.items()}
    size = 0
    for i, (kind, pieces, _) in heads.items():
        if kind == Array.__qualname__:
            if not all(heads[piece][0] == "ArrayChunk" for piece in pieces):
                raise ValueError("an array is made of pieces only")
            places = json.loads(inflatable_object.get_object_body(contents[i], Array))["arraychunk_ids"]
            size += sum(len(contents[pieces[place]]) for place in places)
    return size


def _type_of(envelope: "Envelope") -> str:
    return "query.hello" if envelope.action == "hello" else "query.step"


def _margin(envelope: "Envelope") -> float:
    return HELLO_MARGIN_S if envelope.action == "hello" else MARGIN_S


def _outcome(reply: Message, down: int) -> "Delivery":
    from unskew.runtime.membership import printable
    from unskew.runtime.message import Delivery

    if reply.has_error():
        code, reason = reply.error.code, reply.error.reason or ""
        for ours in (TOO_LARGE, UNREADABLE):
            if ours in reason:
                return Delivery(None, f"refused: {ours}{printable(reason.partition(ours)[2])}", down=down)
        return Delivery(None, _lost(code, reason), down=down, late=code == NO_REPLY)
    try:
        envelope = unpack(reply.content)
        return Delivery(envelope, down=down, up=framing(reply.content, envelope))
    except WireError as error:
        return Delivery(None, f"refused: {error}", down=down)
    except Exception as error:  # Flower checks records when they are looked at
        return Delivery(None, f"refused: {UNREADABLE} ({type(error).__name__})", down=down)


def _lost(code: int, reason: str) -> str:
    """Describe one of Flower's error codes."""
    from unskew.runtime.membership import printable

    if code == GONE:
        return "client lost: it no longer answers the network; its process, its machine or the line to it is down"
    kind = {NO_REPLY: "late", 8: "client lost"}.get(code, "client error")
    return f"{kind}: {printable(reason) or 'no reason was given'} (Flower's code {code})"


server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment of the server's folder on the clients that Flower connects."""
    _end_with_parent()
    serve = resolve_name(SERVER)
    force = bool(context.run_config.get("force", False))
    serve(FlowerTransport(grid), _folder_of(context.run_config, "run_config"), force=force)


def _end_with_parent() -> None:
    """End this process when its parent is gone: a run must never have two servers.

    Flower looks for its parent by process number, which a dead process keeps if nobody waits for it (in containers).
    """
    parent, never = os.getppid(), threading.Event()

    def watch() -> None:
        while os.getppid() == parent:
            never.wait(1.0)
        os._exit(1)  # nothing is lost that the last checkpoint does not have

    threading.Thread(target=watch, daemon=True).start()


# ---------------------------------------------------------------- the client's side
client_app = ClientApp()


@client_app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """Answer with this client's description of itself."""
    return _reply(message, context)


@client_app.query("step")
def step(message: Message, context: Context) -> Message:
    """Answer a request."""
    return _reply(message, context)


def _reply(message: Message, context: Context) -> Message:
    """Let the client's resident process answer if it has one, else this process."""
    path = resident.where(_folder_of(context.node_config, "node_config"))
    if path is None:
        return answer(message, _client_of(context))
    return Message(content_of(resident.ask(path, _frame_or_complaint(message))), reply_to=message)


def answer(message: Message, client_runtime: "ClientRuntime") -> Message:
    """Answer a message as this client."""
    return Message(content_of(answer_frame(client_runtime, _frame_or_complaint(message))), reply_to=message)


def answer_frame(client_runtime: "ClientRuntime", frame: Frame) -> Frame:
    """Answer a frame as this client; a frame without a valid envelope gets an answer too."""
    try:
        envelope = envelope_of(frame)
    except WireError as error:
        envelope = envelope_of(_complaint(error))
    return frame_of(client_runtime.answer(envelope))


def _frame_or_complaint(message: Message) -> Frame:
    try:
        return frame_in(message.content)
    except WireError as error:
        return _complaint(error)


def _complaint(error: WireError) -> Frame:
    """Make a frame with an unknown action, so that the answer is a refusal with this text."""
    return Frame(f"unreadable: {error}", "", "[]", b"")


def _client_of(context: Context) -> "ClientRuntime":
    client_runtime: ClientRuntime = resolve_name(CLIENT)(_folder_of(context.node_config, "node_config"))
    return client_runtime


def _folder_of(config: Mapping[str, Any], name: str) -> Path:
    folder = config.get("folder")
    if not isinstance(folder, str) or not Path(folder).is_absolute():
        raise ConfigError(
            f"{name} must name a folder by its absolute path, got {folder!r}; start it with unskew deploy"
        )
    return Path(folder)
