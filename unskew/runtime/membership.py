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
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from unskew.data.inputs import FAR_BEYOND, Column, Inputs
from unskew.errors import QuorumError, WireError
from unskew.protocol import ClientId
from unskew.runtime.log import printable
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
    """Properties that every client must share with the server; None accepts any.

    Attributes:
        num_clients: Number of clients in the run.
        library: Version of unskew; a client with another one is noted, since its numbers may differ.
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
    classes: tuple[str, ...] | None = None
    layout: str | None = None
    columns: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    frozen: str | None = None

    def differs(self, received: ClientInfo, others: Iterable[ClientInfo] = ()) -> str | None:
        """Describe the first difference from what is expected; None if there is none.

        What the server's own data do not say of columns and images, most of the `others` do: the client that came
        first must not keep out all others.
        """
        if not 0 <= received.client < self.num_clients:
            return f"it says it is client {received.client}, there are clients 0 to {self.num_clients - 1}"
        for name, what in _WHAT.items():
            ours, theirs = getattr(self, name), getattr(received, name)
            if name == "columns":
                wrong = _other_columns(theirs, ours, [other.columns for other in others])
            elif name == "images":
                wrong = _other_images(theirs, ours, [other.images for other in others])
            else:
                remedy = "; make the network with the server's pretrained weights" if name == "frozen" else ""
                text = f"must be {_short(ours) or 'none'}, got {_short(theirs) or 'none'}{remedy}"
                wrong = None if ours in (None, theirs) else text
            if wrong is not None:
                return f"{what} {wrong}"
        return None


COLUMNS = "the input columns of its data"
"""Words with which a refusal over a client's columns begins, to which the client adds their names."""
# The model last: it follows from the data, of which the others say in words what differs.
_WHAT = {
    "num_clients": "the number of clients",
    "config": "the experiment (SHA-256 of its resolved form)",
    "classes": "the classes of its data",
    "columns": COLUMNS,
    "images": "the images of its data",
    "layout": "the model (SHA-256 of its tensors' names and shapes)",
    "frozen": "the model's frozen parameters, which never travel (SHA-256)",
}


def _short(value: object) -> str:
    return printable(", ".join(value) if isinstance(value, tuple) else str(value), 60)


def _most(values: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """The most frequent value, the first of several; empty if there is none."""
    counts = Counter(value for value in values if value)
    return counts.most_common(1)[0][0] if counts else ()


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


def _other_columns(theirs: tuple[str, ...], ours: tuple[str, ...], others: Sequence[tuple[str, ...]]) -> str | None:
    """Describe how a client's columns differ by their hashes; None if not, or if there are no names to compare."""
    if theirs and not (len(theirs) == 2 and all(re.fullmatch("[0-9a-f]{64}", one) for one in theirs)):
        return f"must be two SHA-256, got {_short(theirs)}"
    usual, whose = (ours, "the server's") if ours else (_most(others), "other clients'")
    if theirs == usual or not theirs or not usual:
        return None
    if theirs[0] == usual[0]:
        return f"are the same as in {whose} data, in another order; put them into one order"
    return f"are others than in {whose} data, by name or kind; bring the same ones, in one order"


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


def _other_images(theirs: tuple[str, ...], ours: tuple[str, ...], others: Sequence[tuple[str, ...]]) -> str | None:
    """Describe how a client's images differ; None if not.  Nobody learns the scale of another's."""
    patterns = ("bytes|floats", r"\d{1,9}( x \d{1,9}){2}", r"-?\d{1,3}")
    if len(theirs) not in (0, 2, 3) or not all(re.fullmatch(*pair) for pair in zip(patterns, theirs, strict=False)):
        return f"must be described by kind, shape and scale, got {_short(theirs)}"
    usual = ours[:2] or _most(image[:2] for image in others)
    if theirs[:2] != usual and (ours or (theirs and usual)):
        mine, wanted = (" of ".join(image[:2]) or "none" for image in (theirs, usual))
        whose = "the server's" if ours else "other clients'"
        return f"must be {wanted}, as {whose} are, got {mine}; bring images of that kind and shape"
    scales = [int(image[2]) for image in ([ours] if len(ours) == 3 else others) if len(image) == 3]
    if len(theirs) < 3 or not scales:
        return None

    def fits(one: int, other: int) -> bool:
        return abs(one - other) <= math.log2(FAR_BEYOND)

    if fits(int(theirs[2]), max(scales, key=lambda one: sum(fits(one, other) for other in scales))):
        return None
    return f"reach about {2.0 ** int(theirs[2]):g}, far from those of others; divide all by the same number"


@dataclass
class Standing:
    """State of a node in the run: "new", "here", "refused" until it is mended, or "left out" for being late.

    Attributes:
        client: Client that it says it is, or whose key it has; -1 if neither is known.
        reason: Why it was refused.
        again: Time from which it is greeted again.
        noted: Reasons for which it takes no part that were noted.
    """

    client: ClientId = -1
    state: str = "new"
    reason: str = ""
    again: float = 0.0
    noted: set[str] = field(default_factory=set)


class Membership:
    """The clients that are connected, and the nodes they are connected as.

    Args:
        transport: The network.
        run: Random name of the run.
        expected: Properties that clients must have in common.
        registered: Client that each node's key belongs to, if keys were registered; other nodes are then rejected.
        known: Introductions of the clients that connected before; those that connect now are added, and those that may
            not connect any more are dropped.
        note: Called once for every node that is accepted or rejected, with the reason.
        max_examples: Largest number of examples that a client may declare.
        own: True if clients have data of their own, False if they divide the experiment's; None takes both.
    """

    def __init__(
        self,
        transport: Transport,
        run: str,
        expected: Expected,
        registered: Mapping[Node, ClientId] | None = None,
        known: dict[ClientId, ClientInfo] | None = None,
        note: Note = lambda text: None,
        max_examples: int = COUNT,
        own: bool | None = None,
    ) -> None:
        self.transport, self.run, self.expected, self.registered, self.note = transport, run, expected, registered, note
        self.known: dict[ClientId, ClientInfo] = {} if known is None else known
        if registered is not None:  # the word of a client that was taken out must not decide about the others
            for client in self.known.keys() - {*registered.values()}:
                del self.known[client]
        self._met = dict(self.known)  # refused ones, too
        self.max_examples = max_examples
        self.own: bool | None = own
        self._examples: Mapping[ClientId, tuple[int, ...]] = {}
        self._nodes: dict[Node, Standing] = {}
        self._late: dict[ClientId, int] = {}  # rounds in a row, abandoned ones not counted
        self._unreported: list[tuple[ClientId, str]] = []

    @property
    def present(self) -> tuple[ClientId, ...]:
        """Clients that are connected, ascending, as of the last `call`."""
        return tuple(sorted(self._in("here")))

    def _in(self, state: str) -> dict[ClientId, Node]:
        return {standing.client: node for node, standing in self._nodes.items() if standing.state == state}

    def refused(self) -> list[tuple[ClientId, str]]:
        """Return (client, reason) for nodes rejected since the last call, if they had given a client's number."""
        rejected, self._unreported = self._unreported, []
        return rejected

    def expect(self, expected: Expected, examples: Mapping[ClientId, tuple[int, ...]] = {}) -> None:
        """Require more of clients from now on, also of those that are here.

        Args:
            expected: Properties that clients must have in common.
            examples: By client, its numbers of examples in the experiment's split, by seed.
        """
        self.expected, self._examples = expected, examples
        for client, node in self._in("here").items():
            if wrong := expected.differs(self.known[client], self._met.values()):
                del self.known[client]
                self._reject(node, wrong)

    def call(self, deadline_s: float = HELLO_S) -> None:
        """Drop nodes that are gone, greet new ones, and tell those that were refused why.

        A client that was refused may have been mended, as the same node: it is greeted again now and then.
        """
        here, now = self.transport.nodes(), time.monotonic()
        for node in self._nodes.keys() - here:
            left, proven = self._nodes[node], self._name(node) != "a node"
            if left.state in ("here", "left out") or (left.state == "refused" and proven):
                self._late.pop(left.client, None)  # when it comes back, it is another process
                self.note(f"client {left.client}{'' if left.state == 'here' else f', which was {left.state},'} is gone")
            del self._nodes[node]
        hello = {}
        for node in sorted(here):
            standing = self._nodes.setdefault(node, Standing(self._owner(node)))
            if standing.state != "here" and standing.again <= now:
                hello[node] = Hello(self.run, self.expected.config, secrets.token_hex(16), standing.reason)
        if not hello:
            return
        envelopes = {n: write("hello", head) for n, head in hello.items()}
        for node, delivery in sorted(self.transport.exchange(envelopes, deadline_s, HELLO_BYTES), key=itemgetter(0)):
            self._admit(node, delivery, hello[node].nonce, deadline_s)

    def examples(self, client: ClientId, seed: int) -> int | None:
        """Return the number of examples that a client declared for the seed with this index; None if it did not."""
        declared = self.known[client].examples if client in self.known else ()
        return declared[seed] if seed < len(declared) else None

    def wait(self, at_least: int, wait_s: float, pause_s: float = 0.5) -> None:
        """Greet nodes until `at_least` clients are connected.

        Raises:
            QuorumError: If they are not after `wait_s` seconds.
        """
        end = time.monotonic() + wait_s
        before: tuple[ClientId, ...] | None = None
        while True:
            self.call(min(HELLO_S, max(end - time.monotonic(), 1.0)))
            present, refused = self.present, {n: s for n, s in self._nodes.items() if s.state == "refused"}
            if len(present) >= at_least:
                return
            left, so_many = end - time.monotonic(), f"{len(present)} of {self.expected.num_clients} clients"
            if left <= 0.0:
                why = "".join(f"; {self._name(node)} is refused: {s.reason}" for node, s in refused.items())
                raise QuorumError(
                    f"{so_many} are connected after {wait_s:g} s, {at_least} needed; "
                    f"present: {', '.join(map(str, present)) or 'none'}{why}"
                )
            now = tuple(sorted([*present, *(s.client for s in refused.values())]))
            if now != before:  # a client that was refused can still be mended, so its refusal does not end the run
                before = now
                self.note(f"{so_many} take part, {at_least} needed; waiting for {left:.0f} s more")
            time.sleep(pause_s)

    def exchange(
        self, envelopes: Mapping[ClientId, Envelope], deadline_s: float, most: int
    ) -> Iterator[tuple[ClientId, Delivery]]:
        """Send each client its envelope; yield each delivery as it comes, of at most `most` bytes."""
        here, left_out = self._in("here"), self._in("left out")
        clients = {here[c]: c for c in envelopes if c in here}
        for c in envelopes:
            if c not in here:
                late = f"it was late in {self._late.get(c)} rounds in a row and is left out for a while"
                yield c, Delivery(None, f"client lost: {late if c in left_out else 'it is not connected'}", sent=False)
        if clients:
            for node, delivery in self.transport.exchange(
                {n: envelopes[c] for n, c in clients.items()}, deadline_s, most
            ):
                yield clients[node], delivery

    def count_round(self, late: Collection[ClientId], in_time: Collection[ClientId], deadline_s: float) -> None:
        """Count a round for clients that were late, and leave out for a while those that always are.

        A client that is left out is greeted again after the deadline, and takes part as soon as it answers that.  If it
        is late again, it is left out for two deadlines, four, and at most ten.

        Args:
            late: Clients that did not reply to a request of this round in time.
            in_time: Clients that replied to all of theirs.
            deadline_s: Time that they had.
        """
        for client in in_time:
            self._late.pop(client, None)
        here = self._in("here")
        for client in sorted(late):
            rounds = self._late[client] = self._late.get(client, 0) + 1
            if rounds < LATE_ROUNDS or client not in here:
                continue
            pause_s = deadline_s * min(2.0 ** (rounds - LATE_ROUNDS), PATIENCE)
            standing = self._nodes[here[client]]
            standing.state, standing.again = "left out", time.monotonic() + pause_s
            text = f"client {client} was late in {rounds} rounds in a row and is left out for {pause_s:.0f} s or more"
            if rounds == LATE_ROUNDS:
                text += (
                    "; rounds go on without it, and it is asked again from time to time: see to its machine, or give "
                    "all clients more time (--deadline)"
                )
            self.note(text)

    def _admit(self, node: Node, delivery: Delivery, nonce: str, waited_s: float) -> None:
        if delivery.reply is None:
            # A late node is busy with an old message, or died and is still listed; one that fails may be mended soon.
            again_s = PATIENCE * waited_s if delivery.late else min(AGAIN_S, PATIENCE * waited_s)
            self._pause(node, f"it does not answer ({delivery.lost})", again_s)
            return
        try:
            head = read(delivery.reply, {k: REPLIES[k] for k in ("hello", "refused", "waiting")})
        except WireError as error:
            self._reject(node, f"its introduction cannot be read: {error}")
            return
        if isinstance(head, Waiting):
            self._pause(node, head.reason, WAITING_S)
        elif isinstance(head, Refusal):
            self._reject(node, f"it refuses: {printable(head.reason)}")
        elif head.nonce == nonce and self._owner(node) in (-1, head.client) and head.client in self._in("here"):
            self._nodes[node].client = head.client  # the earlier node may be dead and still listed, for up to a minute
            self._pause(node, f"client {head.client} is connected already, as another node", 1.0)
        elif wrong := self._wrong(node, head, nonce):
            self._nodes[node].client = head.client
            self._reject(node, wrong)
        else:
            for left_out in [n for n, s in self._nodes.items() if s.client == head.client and n != node]:
                self._nodes[left_out].state = "new"
            self._nodes[node] = Standing(head.client, "here", noted=self._nodes[node].noted)
            self.known[head.client] = head
            other = f", with unskew {printable(head.library, 40)} where the server has {self.expected.library}"
            self.note(f"client {head.client} is here{other if head.library != self.expected.library else ''}")

    def _wrong(self, node: Node, info: ClientInfo, nonce: str) -> str | None:
        """Describe what keeps a client out; None if nothing does."""
        client, before = info.client, self.known.get(info.client, info)
        if info.nonce != nonce:
            return "its introduction answers another request"
        if self.registered is not None and (owner := self._owner(node)) != client:
            key = "not registered" if owner < 0 else f"client {owner}'s"
            return f"it says it is client {client}, its key is {key}"
        if wrong := self.expected.differs(info):
            return wrong
        if self.own is (not info.own):
            has, asked = ("no data", "their own") if self.own else ("data", "their part of its split")
            return f"it has {has} of its own, and clients of this experiment have {asked}"
        if not all(0 <= n <= self.max_examples for n in info.examples):
            most = f"max_examples = {self.max_examples} allows fewer"
            return f"it declares {max(info.examples)} examples, and {most}"
        if info.examples and info.examples != (ours := self._examples.get(client, info.examples)):
            return f"it declares {info.examples} examples, the experiment's split gives it {ours}"
        if (before.data, before.own) != (info.data, info.own):
            return (
                f"client {client} had other data, or another folder state/, when it was met first: put them back, "
                "or have the coordinator run the experiment under another name"
            )
        if before.examples != info.examples:
            return f"client {client} declared other numbers of examples when it was met first: {before.examples}"
        self._met[client] = info
        wrong = self.expected.differs(info, self._met.values())
        for other, theirs in list(self.known.items()):  # whom it outvotes, together with those before it
            if odd := self.expected.differs(theirs, self._met.values()):
                del self.known[other]
                if (place := self._in("here").get(other)) is not None:
                    self._reject(place, odd)
                for standing in self._nodes.values():  # those who were refused because of them need not wait
                    standing.again = 0.0 if standing.state == "refused" else standing.again
        return wrong

    def _pause(self, node: Node, reason: str, again_s: float) -> None:
        """Leave a node alone for some seconds; it may take part then."""
        self._nodes[node].again = time.monotonic() + again_s
        self._note(node, "takes no part for now", reason, "; it is asked again")

    def _reject(self, node: Node, reason: str) -> None:
        standing = self._nodes[node]
        # The next greeting says why.  After it a node waits whatever it answers: one with a new reason each time must
        # not fill the log.
        standing.again = time.monotonic() + AGAIN_S if standing.state == "refused" else 0.0
        standing.state, standing.reason = "refused", printable(reason)
        self._note(node, "is refused", reason)

    def _note(self, node: Node, what: str, reason: str, then: str = "") -> None:
        standing, reason = self._nodes[node], printable(reason)
        if reason not in standing.noted:
            standing.noted.add(reason)
            if standing.client in range(self.expected.num_clients):
                self._unreported.append((standing.client, reason))
            self.note(f"{self._name(node)} {what}: {reason}{then}")

    def _owner(self, node: Node) -> ClientId:
        return -1 if self.registered is None else self.registered.get(node, -1)

    def _name(self, node: Node) -> str:
        """A node's client, unless that is what it is refused for."""
        client = self._nodes[node].client
        proven = self.registered is None or self._owner(node) == client
        return f"client {client}" if proven and client in range(self.expected.num_clients) else "a node"
