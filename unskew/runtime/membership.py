"""Membership: tells which node of the network is which client.

A node introduces itself when it connects.  Nodes come and go: a client that was restarted may be a new node, so a
client's number belongs to a node only as long as that node is connected.
"""

import hashlib
import json
import math
import re
import secrets
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import itemgetter

from unskew.data.inputs import FAR_BEYOND, Column, Inputs
from unskew.errors import QuorumError, WireError
from unskew.protocol import ClientId
from unskew.runtime.message import (
    COUNT,
    REPLIES,
    ClientInfo,
    Delivery,
    Envelope,
    Hello,
    Node,
    Note,
    Refusal,
    Transport,
    Waiting,
    read,
    write,
)
from unskew.tree import Params

# A node that was too late to answer is greeted again after ten times the time it was given.
PATIENCE = 10.0
LATE_ROUNDS = 3
"""Rounds in a row in which a client may be late before it is left out for a while."""
HELLO_BYTES = 1 << 22
"""Largest size of an introduction."""
HELLO_S = 60.0
"""Longest time that a round waits for new nodes to introduce themselves, seconds."""
WAITING_S = 2.0
"""Time after which a client is greeted again whose people have yet to accept the experiment, seconds."""
AGAIN_S = 60.0
"""Time after which a client that was refused and told why, or failed, may introduce itself again, seconds."""


@dataclass(frozen=True)
class Expected:
    """Properties that every client must have in common with the server.

    Attributes:
        num_clients: Number of clients in the run.
        library: Version of unskew; another one is told of, since its numbers may differ.
        config: SHA-256 of the resolved experiment.
        classes: Names of the task's classes.
        layout: `layout_hash` of the model.
        columns: `columns_hash` of the input columns; empty if the server's data have no names for them.
        images: `images_told` of the server's images; empty if its data are none.
        frozen: `tensors_hash` of the network's frozen tensors; empty if it has none.
    """

    num_clients: int
    library: str
    config: str
    classes: tuple[str, ...]
    layout: str
    columns: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    frozen: str = ""

    def differs(self, received: ClientInfo) -> str | None:
        """Describe the first difference from what is expected; None if there is none."""
        if not 0 <= received.client < self.num_clients:
            return f"it says it is client {received.client}, there are clients 0 to {self.num_clients - 1}"
        # The model last: it follows from the data, of which the others say in words what differs.
        for name in sorted((f.name for f in fields(self)), key=("layout", "frozen").__contains__):
            ours, theirs = getattr(self, name), getattr(received, name)
            if name == "library":
                continue
            if name == "columns":
                if wrong := _other_columns(theirs, ours, "the server's data"):
                    return wrong
            elif name == "images":
                if wrong := _other_images(theirs, ours, "the server's", known=True):
                    return wrong
            elif name == "frozen" and ours != theirs:
                return (
                    f"{_WHAT[name]} must be {_short(ours) or 'none'}, got {_short(theirs) or 'none'}; make the network "
                    "with the server's pretrained weights"
                )
            elif ours != theirs:
                return f"{_WHAT[name]} must be {_short(ours)}, got {_short(theirs)}"
        return None


_WHAT = {
    "num_clients": "the number of clients",
    "config": "the experiment (SHA-256 of its resolved form)",
    "classes": "the classes of its data",
    "layout": "the model (SHA-256 of its tensors' names and shapes)",
    "frozen": "the model's frozen parameters, which never travel (SHA-256)",
    "columns": "the input columns of its data",
    "images": "the images of its data",
}
COLUMNS = _WHAT["columns"]
"""Words with which a refusal over a client's columns begins, to which the client adds their names."""


def _short(value: object) -> str:
    return printable(", ".join(value) if isinstance(value, tuple) else str(value), 60)


def layout_hash(model: Params) -> str:
    """SHA-256 of a model's tensor names, shapes and element types."""
    table = [[name, str(t.dtype), list(t.shape)] for name, t in model.items()]
    return hashlib.sha256(json.dumps(table).encode()).hexdigest()


def columns_hash(columns: Sequence[Column]) -> tuple[str, ...]:
    """SHA-256 of the input columns' names and kinds, in any order and in theirs; empty if there are none.

    Names themselves stay where they are: both sides need only learn whether they have the same.
    """
    rows = [[c.name, c.kind, list(c.features)] for c in columns]
    return tuple(hashlib.sha256(json.dumps(r).encode()).hexdigest() for r in (sorted(rows), rows)) if rows else ()


def _other_columns(theirs: tuple[str, ...], ours: tuple[str, ...], whose: str) -> str | None:
    """Describe how a client's columns differ from others by their hashes; None if not, or if either has no names."""
    if theirs and not (len(theirs) == 2 and all(re.fullmatch("[0-9a-f]{64}", one) for one in theirs)):
        return f"{COLUMNS} must be two SHA-256, got {_short(theirs)}"
    if theirs == ours or not theirs or not ours:
        return None
    how = (
        f"the same as in {whose}, in another order; put them into one order"
        if theirs[0] == ours[0]
        else f"others than in {whose}, by name or kind; bring the same ones, in one order"
    )
    return f"{COLUMNS} are {how}"


def images_told(inputs: Inputs, scale: bool = True) -> tuple[str, ...]:
    """Description of images: "bytes" or "floats", the shape of one, and the scale of floats; empty of other data.

    The scale is the exponent of the power of two next to the largest absolute value: nothing else of a pixel is told.
    Bytes have one scale, and are standardised.

    Args:
        inputs: The way from the images to the network.
        scale: False leaves the scale out, a number from the data without noise.
    """
    if not inputs.are_images:
        return ()
    kind, shape = ("bytes" if inputs.kind == "images" else "floats"), " x ".join(map(str, inputs.shape))
    if kind == "bytes" or not inputs.largest or not scale:
        return kind, shape
    return kind, shape, str(round(math.log2(inputs.largest)))


def _other_images(theirs: tuple[str, ...], ours: tuple[str, ...], whose: str, known: bool = False) -> str | None:
    """Describe how a client's images differ from others; None if not.

    Args:
        theirs, ours: `images_told` of both.
        whose: Whose the others are, as in "client 3's".
        known: The client may read the others' scale.
    """
    patterns = ("bytes|floats", r"\d{1,9}( x \d{1,9}){2}", r"-?\d{1,3}")
    fits = len(theirs) in (0, 2, 3) and all(re.fullmatch(*pair) for pair in zip(patterns, theirs, strict=False))
    what = _WHAT["images"]
    if not fits:
        return f"{what} must be described by kind, shape and scale, got {_short(theirs)}"
    if theirs[:2] != ours[:2]:
        mine, others = (f"{told[0]} of {told[1]}" if told else "none" for told in (theirs, ours))
        return f"{what} must be {others}, as {whose} are, got {mine}; bring images of that kind and shape"
    if len(theirs) < 3 or len(ours) < 3 or abs(int(theirs[2]) - int(ours[2])) <= math.log2(FAR_BEYOND):
        return None
    others = f", and {whose} about {2.0 ** int(ours[2]):g}" if known else f", far from {whose}"
    return f"{what} reach about {2.0 ** int(theirs[2]):g}{others}; divide all by the same number"


@dataclass(frozen=True)
class DataIdentity:
    """A client's data as it described them when it first connected.

    Attributes:
        data: What `ClientInfo.data` was, keyed with the client's own secret.
        own: True if the client declared data of its own.
        examples: Number of its training examples by seed; empty if it kept them to itself.
        columns: `columns_hash` of its input columns.
        images: `images_told` of its images.
    """

    data: str
    own: bool
    examples: tuple[int, ...] = field(default=(), compare=False)
    columns: tuple[str, ...] = field(default=(), compare=False)
    images: tuple[str, ...] = field(default=(), compare=False)


def _unlike(mine: DataIdentity, others: DataIdentity, whose: str) -> str | None:
    """Describe how a client's columns or images differ from another's; None if not, or if either has told none."""
    wrong = _other_columns(mine.columns, others.columns, whose)
    return wrong or (_other_images(mine.images, others.images, whose) if mine.images and others.images else None)


class Membership:
    """The clients that are connected, and the nodes they are connected as.

    Args:
        transport: The network.
        run: Random name of the run.
        expected: Properties that clients must have in common.
        registered: Client that each node's key belongs to, if keys were registered; other nodes are then rejected.
        known: Data of the clients that connected before; those that connect now are added, and those that may not
            connect any more are dropped.
        note: Called once for every node that is accepted or rejected, with the reason.
        max_examples: Largest number of examples that a client may declare.
        own: True if clients have data of their own, False if they divide the experiment's; None takes both.
        examples: By client, its numbers of examples in the experiment's split, by seed.
    """

    def __init__(
        self,
        transport: Transport,
        run: str,
        expected: Expected,
        registered: Mapping[Node, ClientId] | None = None,
        known: dict[ClientId, DataIdentity] | None = None,
        note: Note = lambda text: None,
        max_examples: int = COUNT,
        own: bool | None = None,
        examples: Mapping[ClientId, tuple[int, ...]] = {},
    ) -> None:
        self.transport, self.run, self.expected, self.registered, self.note = transport, run, expected, registered, note
        self.known: dict[ClientId, DataIdentity] = {} if known is None else known
        if registered is not None:  # the word of a client that was taken out must not decide about the others
            for client in self.known.keys() - {*registered.values()}:
                del self.known[client]
        self._told = dict(self.known)
        self.max_examples = max_examples
        self.own, self._examples = own, examples
        self._node: dict[ClientId, Node] = {}
        self._refused: dict[Node, tuple[ClientId, str]] = {}
        self._again: dict[Node, float] = {}
        self._late: dict[ClientId, int] = {}  # rounds in a row, abandoned ones not counted
        self._left_out: dict[Node, ClientId] = {}
        self._noted: set[tuple[Node, str]] = set()
        self._unreported: list[tuple[ClientId, str]] = []

    @property
    def present(self) -> tuple[ClientId, ...]:
        """Clients that are connected, ascending, as of the last `call`."""
        return tuple(sorted(self._node))

    def refused(self) -> list[tuple[ClientId, str]]:
        """Return (client, reason) for nodes rejected since the last call, if they had given a client's number."""
        rejected, self._unreported = self._unreported, []
        return rejected

    def call(self, deadline_s: float = HELLO_S) -> None:
        """Drop nodes that are gone, greet new ones, and tell those that were refused why.

        A client that was refused may have been mended, as the same node: it is greeted again now and then.
        """
        here = self.transport.nodes()
        for client, node in list(self._node.items()):
            if node not in here:
                del self._node[client]
                self._late.pop(client, None)
                self.note(f"client {client} is gone")
        for node in [n for n in self._left_out if n not in here]:  # when it comes back, it is another process
            client = self._left_out.pop(node)
            self._late.pop(client, None)
            self._again.pop(node, None)
            self.note(f"client {client}, which was left out, is gone")
        for node in [n for n in self._refused if n not in here]:
            client, _ = self._refused.pop(node)
            if self.registered is not None and self.registered.get(node) == client:
                self.note(f"client {client}, which was refused, is gone")
            self._again.pop(node, None)
            self._noted = {(n, reason) for n, reason in self._noted if n != node}
        now = time.monotonic()
        new = [n for n in sorted(here - {*self._node.values()}) if self._again.get(n, 0.0) <= now]
        hello = {
            n: Hello(self.run, self.expected.config, secrets.token_hex(16), self._refused.get(n, (n, ""))[1])
            for n in new
        }
        if not hello:
            return
        envelopes = {n: write("hello", head) for n, head in hello.items()}
        for node, delivery in sorted(self.transport.exchange(envelopes, deadline_s, HELLO_BYTES), key=itemgetter(0)):
            self._admit(node, delivery, hello[node].nonce, deadline_s)

    def _against(self, client: ClientId) -> dict[ClientId, str]:
        """Clients whose columns or images do not go with those of this one, and how its own differ from them."""
        mine = self._told[client]
        wrong = {c: _unlike(mine, told, f"client {c}'s") for c, told in self._told.items() if c != client}
        return {c: reason for c, reason in wrong.items() if reason is not None}

    def _odd(self, client: ClientId, now: DataIdentity) -> str | None:
        """Describe how a client's data differ from those of others that it cannot outvote; None if they do not.

        The first to come must not keep out all others: one that goes with fewer than half of those met, refused ones
        too, and with fewer than a new client does, is refused in its place.  Else the one met first stays.
        """
        self._told[client] = now
        mine = self._against(client)
        theirs = {c: self._against(c) for c in mine if c in self.known}
        for other, against in theirs.items():
            if len(against) <= len(mine) or 2 * len(against) <= len(self._told) - 1:
                return (
                    f"{mine[other]} (it was met first; if client {other} is the odd one, remove it from the federation "
                    "and run the experiment again)"
                )
        for other, against in theirs.items():
            del self.known[other]
            if other in self._node:
                few = f"it does not go with {len(against)} of {len(self._told) - 1} others"
                self._reject(self._node.pop(other), other, f"{against[client]}; {few}")
        if theirs:  # those who were refused because of them need not wait
            self._again |= dict.fromkeys(self._refused, 0.0)
        return None

    def examples(self, client: ClientId, seed: int) -> int | None:
        """Return the number of examples that a client declared for the seed with this index; None if it did not."""
        declared = self.known[client].examples if client in self.known else ()
        return declared[seed] if seed < len(declared) else None

    def _other_count(self, client: ClientId, declared: tuple[int, ...]) -> str | None:
        """Describe what is wrong with the numbers of examples that a client declares; None if nothing is."""
        if not declared:
            return None
        if not all(0 <= n <= self.max_examples for n in declared):
            return f"it declares {max(declared)} examples, and max_examples = {self.max_examples} allows fewer"
        ours = self._examples.get(client, declared)
        return None if declared == ours else f"it declares {declared} examples, the experiment's split gives it {ours}"

    def wait(self, at_least: int, wait_s: float, pause_s: float = 0.5) -> None:
        """Greet nodes until `at_least` clients are connected.

        Raises:
            QuorumError: If they are not after `wait_s` seconds.
        """
        end = time.monotonic() + wait_s
        before: tuple[ClientId, ...] | None = None
        while True:
            self.call(min(HELLO_S, max(end - time.monotonic(), 1.0)))
            if len(self._node) >= at_least:
                return
            left = end - time.monotonic()
            if left <= 0.0:
                why = "".join(f"; {self._refusal(node, c)}: {reason}" for node, (c, reason) in self._refused.items())
                raise QuorumError(
                    f"{len(self._node)} of {self.expected.num_clients} clients are connected after {wait_s:g} s, "
                    f"{at_least} needed; present: {', '.join(map(str, self.present)) or 'none'}{why}"
                )
            now = tuple(sorted([*self.present, *(c for c, _ in self._refused.values())]))
            if now != before:  # a client that was refused can still be mended, so its refusal does not end the run
                before = now
                self.note(
                    f"{len(self._node)} of {self.expected.num_clients} clients take part, {at_least} needed; "
                    f"waiting for {left:.0f} s more"
                )
            time.sleep(pause_s)

    def exchange(
        self, envelopes: Mapping[ClientId, Envelope], deadline_s: float, most: int
    ) -> Iterator[tuple[ClientId, Delivery]]:
        """Send each client its envelope; yield each delivery as it comes, of at most `most` bytes."""
        clients = {self._node[c]: c for c in envelopes if c in self._node}
        for c in envelopes:
            if c not in self._node:
                yield c, Delivery(None, f"client lost: {self._why_absent(c)}", sent=False)
        if clients:
            for node, delivery in self.transport.exchange(
                {n: envelopes[c] for n, c in clients.items()}, deadline_s, most
            ):
                yield clients[node], delivery

    def _why_absent(self, client: ClientId) -> str:
        if client not in self._left_out.values():
            return "it is not connected"
        return f"it was late in {self._late[client]} rounds in a row and is left out for a while"

    def count_round(self, late: Collection[ClientId], in_time: Collection[ClientId], deadline_s: float) -> None:
        """Count a round for the clients that were late in it, and leave out for a while those that are so always.

        A client that is left out is greeted again after the deadline, and takes part as soon as it answers that.  If it
        is late again, it is left out for two deadlines, four, and at most ten.

        Args:
            late: Clients that did not reply to a request of this round in time.
            in_time: Clients that replied to all of theirs.
            deadline_s: Time that they had.
        """
        for client in in_time:
            self._late.pop(client, None)
        for client in sorted(late):
            rounds = self._late[client] = self._late.get(client, 0) + 1
            if rounds < LATE_ROUNDS or client not in self._node:
                continue
            node, pause_s = self._node.pop(client), deadline_s * min(2.0 ** (rounds - LATE_ROUNDS), PATIENCE)
            self._left_out[node], self._again[node] = client, time.monotonic() + pause_s
            text = f"client {client} was late in {rounds} rounds in a row and is left out for {pause_s:.0f} s or more"
            if rounds == LATE_ROUNDS:
                text += (
                    "; rounds go on without it, and it is asked again from time to time: see to its machine, or give "
                    "all clients more time (--deadline)"
                )
            self.note(text)

    def _admit(self, node: Node, delivery: Delivery, nonce: str, waited_s: float) -> None:
        owner = -1 if self.registered is None else self.registered.get(node, -1)
        if delivery.reply is None:
            # A late node is busy with an old message, or died and is still listed; one that fails may be mended soon.
            wait_s = PATIENCE * waited_s if delivery.late else min(AGAIN_S, PATIENCE * waited_s)
            self._again[node] = time.monotonic() + wait_s
            self._reject(node, owner, f"it does not answer ({delivery.lost})", for_now=True)
            return
        try:
            head = read(delivery.reply, {k: REPLIES[k] for k in ("hello", "refused", "waiting")})
        except WireError as error:
            self._reject(node, owner, f"its introduction cannot be read: {error}")
            return
        if isinstance(head, Waiting):
            self._again[node] = time.monotonic() + WAITING_S
            self._reject(node, owner, head.reason, for_now=True)
            return
        if isinstance(head, Refusal):
            self._reject(node, owner, f"it refuses: {printable(head.reason)}")
            return
        wrong = self.expected.differs(head)
        if head.nonce != nonce:
            wrong = "its introduction answers another request"
        elif self.registered is not None and self.registered.get(node) != head.client:
            wrong = f"it says it is client {head.client}, its key is " + (
                "not registered" if owner < 0 else f"client {owner}'s"
            )
        elif head.client in self._node:
            # The earlier node may be dead and still listed, for up to a minute.
            self._reject(node, head.client, f"client {head.client} is connected already, as another node", True)
            self._again[node] = time.monotonic() + 1.0
            return
        now = DataIdentity(head.data, head.own, head.examples, head.columns, head.images)
        if wrong is None and self.own is (not head.own):
            mine, asked = (
                ("no data of its own", "their own") if self.own else ("data of its own", "their part of its split")
            )
            wrong = f"it has {mine}, and clients of this experiment have {asked}"
        wrong = wrong or self._other_count(head.client, head.examples)
        before = self.known.get(head.client, now)
        if wrong is None and before != now:
            wrong = (
                f"client {head.client} had other data, or another folder state/, when it was met first: put them back, "
                "or have the coordinator run the experiment under another name"
            )
        if wrong is None and before.examples != now.examples:
            wrong = f"client {head.client} declared other numbers of examples when it was met first: {before.examples}"
        wrong = wrong or self._odd(head.client, now)
        if wrong is not None:
            self._reject(node, head.client, wrong)
            return
        self._refused.pop(node, None)
        self._left_out = {n: c for n, c in self._left_out.items() if c != head.client}
        self._node[head.client] = node
        self.known[head.client] = now
        other = f", with unskew {printable(head.library, 40)} where the server has {self.expected.library}"
        self.note(f"client {head.client} is here{other if head.library != self.expected.library else ''}")

    def _reject(self, node: Node, client: ClientId, reason: str, for_now: bool = False) -> None:
        reason = printable(reason)
        if not for_now:
            # The next greeting says why.  After it a node waits whatever it answers: one with a new reason each time
            # must not fill the log.
            told = node in self._refused
            self._again[node] = time.monotonic() + AGAIN_S if told else 0.0
            self._refused[node] = (client, reason)
        if (node, reason) not in self._noted:
            self._noted.add((node, reason))
            if client in range(self.expected.num_clients):
                self._unreported.append((client, reason))
            self.note(f"{self._refusal(node, client, for_now)}: {reason}{'; it is asked again' if for_now else ''}")

    def _refusal(self, node: Node, client: ClientId, for_now: bool = False) -> str:
        """Name a refused node by its client's number, unless the number is what it is refused for."""
        own = {node: client} if self.registered is None else self.registered
        proven = client in range(self.expected.num_clients) and own.get(node) == client
        if for_now:
            return f"{f'client {client}' if proven else 'a node'} takes no part for now"
        return f"client {client} is refused" if proven else "a node is rejected"


def printable(text: str, longest: int = 300) -> str:
    """Turn text from elsewhere into one line that is safe for a terminal and a log."""
    line = "".join(ch if ch.isprintable() else " " for ch in text[: longest + 1])
    return line if len(line) <= longest else line[: longest - 3] + "..."
