"""Membership: tells which node of the network is which client.

A node introduces itself when it connects.  Nodes come and go: a client that was restarted may be a new node, so a
client's number belongs to a node only as long as that node is connected.
"""

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter

from unskew.data.inputs import FAR_BEYOND
from unskew.errors import QuorumError, WireError
from unskew.protocol import ClientId
from unskew.runtime.log import printable
from unskew.runtime.message import (
    REPLIES,
    ClientInfo,
    Delivery,
    Envelope,
    Hello,
    Node,
    Note,
    Refusal,
    Transport,
    read,
    write,
)
from unskew.runtime.policy import ServerConfig
from unskew.tree import Params

# A node that was too late to answer is greeted again after ten times the time it was given.
PATIENCE = 10.0
LATE_ROUNDS = 3
"""Rounds in a row in which a client may be late before it is left out for a while."""
HELLO_BYTES = 1 << 22
"""Largest size of an introduction."""
HELLO_S = 60.0
"""Longest time that a round waits for new nodes to introduce themselves, seconds."""
WAITING_S, PAUSE_S = 2.0, 0.5
"""Time after which a client is greeted again whose people have yet to accept the experiment, and of a look, seconds."""
AGAIN_S = 60.0
"""Time after which a client that was refused and told why, or failed, may introduce itself again, seconds."""
# The model last: it follows from the data, of which the others say in words what differs.
_SHARED = {
    "num_clients": ("the number of clients", ""),
    "config": ("the experiment (SHA-256 of its resolved form)", ""),
    "classes": ("the classes of its data", ""),
    "columns": ("the input columns of its data (SHA-256)", "; bring the same ones, of the same kinds, in one order"),
    "images": ("the images of its data", "; bring images of that kind and shape"),
    "layout": ("the model (SHA-256 of its tensors' names and shapes)", ""),
    "frozen": ("the model's frozen parameters, which never travel (SHA-256)", "; load the server's pretrained weights"),
}


def differs(expected: ClientInfo, received: ClientInfo, others: Iterable[ClientInfo] = ()) -> str | None:
    """Describe the first difference from what is expected; None if there is none.

    What the server does not say itself, most of the `others` do: the client that came first must not keep out all
    others.
    """
    if not 0 <= received.client < expected.num_clients:
        return f"it says it is client {received.client}, there are clients 0 to {expected.num_clients - 1}"
    others = list(others)
    for name, (what, remedy) in _SHARED.items():
        ours, theirs = getattr(expected, name), getattr(received, name)
        votes = Counter(value for other in others if (value := getattr(other, name)))
        usual = ours or next((value for value, _ in votes.most_common(1)), ours)
        if usual and theirs != usual and (theirs or name != "columns"):  # arrays have no names to compare
            whose = "" if ours else ", as those of other clients are"
            return f"{what} must be {_short(usual)}{whose}, got {_short(theirs) or 'none'}{remedy}"
    theirs, scales = received.scale, [expected.scale] if expected.scale is not None else [o.scale for o in others]
    known = [scale for scale in scales if scale is not None]
    if theirs is not None and known and not _near(theirs, max(known, key=lambda n: sum(_near(n, m) for m in known))):
        return f"the images of its data reach about 2**{theirs}, far from those of others; divide all by one number"
    return None


def _near(one: int, other: int) -> bool:
    return abs(one - other) <= math.log2(FAR_BEYOND)


def _short(value: object) -> str:
    return printable(", ".join(value) if isinstance(value, tuple) else str(value), 60)


def layout_hash(model: Params) -> str:
    """SHA-256 of a model's tensor names, shapes and element types."""
    table = [[name, str(t.dtype), list(t.shape)] for name, t in model.items()]
    return hashlib.sha256(json.dumps(table).encode()).hexdigest()


@dataclass
class Standing:
    """State of a node in the run: "new", "here", or "refused" until it is mended.

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
        expected: The server's own description, with which clients' must agree; what is empty in it accepts any.
        config: The server's terms.
        registered: Client that each node's key belongs to, if keys were registered; other nodes are then rejected.
        known: Introductions of the clients that connected before; those that connect now are added, and those that may
            not connect any more are dropped.
        note: Called once for every node that is accepted or rejected, with the reason.
    """

    def __init__(
        self,
        transport: Transport,
        run: str,
        expected: ClientInfo,
        config: ServerConfig,
        registered: Mapping[Node, ClientId] | None = None,
        known: dict[ClientId, ClientInfo] | None = None,
        note: Note = lambda text: None,
    ) -> None:
        self.transport, self.run, self.expected, self.config = transport, run, expected, config
        self.registered, self.note = registered, note
        self.known: dict[ClientId, ClientInfo] = {} if known is None else known
        if registered is not None:  # the word of a client that was taken out must not decide about the others
            for client in self.known.keys() - {*registered.values()}:
                del self.known[client]
        self._met = dict(self.known)  # refused ones, too
        self._examples: Mapping[ClientId, tuple[int, ...]] = {}
        self._nodes: dict[Node, Standing] = {}
        self._late: dict[ClientId, int] = {}  # rounds in a row, abandoned ones not counted
        self._unreported: list[tuple[ClientId, str]] = []

    @property
    def present(self) -> tuple[ClientId, ...]:
        """Clients that are connected, ascending, as of the last `call`."""
        return tuple(sorted(self._here()))

    def _here(self) -> dict[ClientId, Node]:
        return {standing.client: node for node, standing in self._nodes.items() if standing.state == "here"}

    def refused(self) -> list[tuple[ClientId, str]]:
        """Return (client, reason) for nodes rejected since the last call, if they had given a client's number."""
        rejected, self._unreported = self._unreported, []
        return rejected

    def expect(self, expected: ClientInfo, examples: Mapping[ClientId, tuple[int, ...]] = {}) -> None:
        """Require more of clients from now on, also of those that are here.

        Args:
            expected: As of the constructor.
            examples: By client, its numbers of examples in the experiment's split, by seed.
        """
        self.expected, self._examples = expected, examples
        self._send_away(self._here())

    def _send_away(self, clients: Iterable[ClientId]) -> bool:
        """Reject those of the clients that differ by now; True if there were any."""
        odd = {c: why for c in [*clients] if (why := differs(self.expected, self.known[c], self._met.values()))}
        for client, why in odd.items():
            del self.known[client]
            if (node := self._here().get(client)) is not None:
                self._reject(node, why)
        return bool(odd)

    def call(self, deadline_s: float = HELLO_S) -> None:
        """Drop nodes that are gone, greet new ones, and tell those that were refused why.

        A client that was refused may have been mended, as the same node: it is greeted again now and then.
        """
        here, now = self.transport.nodes(), time.monotonic()
        for node in self._nodes.keys() - here:
            left = self._nodes.pop(node)
            late = self._late.pop(left.client, 0)  # when it comes back, it is another process
            if left.state == "here" or late >= LATE_ROUNDS:
                self.note(f"client {left.client} is gone")
        envelopes = {}
        for node in sorted(here):
            standing = self._nodes.setdefault(node, Standing(self._owner(node)))
            if standing.state != "here" and standing.again <= now:
                envelopes[node] = write("hello", Hello(self.run, self.expected.config, standing.reason))
        if envelopes:
            for node, came in sorted(self.transport.exchange(envelopes, deadline_s, HELLO_BYTES), key=itemgetter(0)):
                self._admit(node, came, deadline_s)

    def examples(self, client: ClientId, seed: int) -> int | None:
        """Return the number of examples that a client declared for the seed with this index; None if it did not."""
        declared = self.known[client].examples if client in self.known else ()
        return declared[seed] if seed < len(declared) else None

    def wait(self, at_least: int, wait_s: float) -> None:
        """Greet nodes until `at_least` clients are connected.

        Raises:
            QuorumError: If they are not after `wait_s` seconds.
        """
        end = time.monotonic() + wait_s
        before: object = None
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
            if (now := (present, *refused)) != before:  # who was refused can be mended, so that does not end the run
                before = now
                self.note(f"{so_many} take part, {at_least} needed; waiting for {left:.0f} s more")
            time.sleep(PAUSE_S)

    def exchange(
        self, envelopes: Mapping[ClientId, Envelope], deadline_s: float, most: int
    ) -> Iterator[tuple[ClientId, Delivery]]:
        """Send each client its envelope; yield each delivery as it comes, of at most `most` bytes."""
        here = self._here()
        clients = {here[c]: c for c in envelopes if c in here}
        for c in envelopes:
            if c not in here:
                late = f"it was late in {self._late.get(c)} rounds in a row and is left out for a while"
                why = late if self._late.get(c, 0) >= LATE_ROUNDS else "it is not connected"
                yield c, Delivery(None, f"client lost: {why}", sent=False)
        if clients:
            asked = {node: envelopes[c] for node, c in clients.items()}
            for node, delivery in self.transport.exchange(asked, deadline_s, most):
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
        here = self._here()
        for client in sorted(late):
            rounds = self._late[client] = self._late.get(client, 0) + 1
            if rounds >= LATE_ROUNDS and client in here:
                pause_s = deadline_s * min(2.0 ** (rounds - LATE_ROUNDS), PATIENCE)
                standing = self._nodes[here[client]]
                standing.state, standing.again = "new", time.monotonic() + pause_s
                self.note(
                    f"client {client} was late in {rounds} rounds in a row and is left out for {pause_s:.0f} s or "
                    "more; see to its machine, or give all clients more time (--deadline)"
                )

    def _admit(self, node: Node, delivery: Delivery, waited_s: float) -> None:
        if delivery.reply is None:
            # A late node is busy with an old message, or died and is still listed; one that fails may be mended soon.
            again_s = PATIENCE * waited_s if delivery.late else min(AGAIN_S, PATIENCE * waited_s)
            self._pause(node, f"it does not answer ({delivery.lost})", again_s)
            return
        try:
            head = read(delivery.reply, {k: REPLIES[k] for k in ("hello", "refused", "waiting")})
        except WireError as error:
            head = Refusal(f"its introduction cannot be read: {error}")
        standing = self._nodes[node]
        if delivery.reply.action == "waiting":
            self._pause(node, head.reason, WAITING_S)
        elif isinstance(head, Refusal):
            self._reject(node, f"it refuses: {printable(head.reason)}")
        elif self._owner(node) in (-1, head.client) and head.client in self._here():
            standing.client = head.client  # the earlier node may be dead and still listed, for up to a minute
            self._pause(node, f"client {head.client} is connected already, as another node", 1.0)
        else:
            wrong, standing.client = self._wrong(node, head), head.client
            if wrong:
                self._reject(node, wrong)
                return
            standing.state, standing.reason, self.known[head.client] = "here", "", head
            version = f", with unskew {printable(head.library, 40)} where the server has {self.expected.library}"
            self.note(f"client {head.client} is here{version if head.library != self.expected.library else ''}")

    def _wrong(self, node: Node, info: ClientInfo) -> str | None:
        """Describe what keeps a client out; None if nothing does."""
        client, before, most = info.client, self.known.get(info.client, info), self.config.max_examples
        if self.registered is not None and (owner := self._owner(node)) != client:
            key = "not registered" if owner < 0 else f"client {owner}'s"
            return f"it says it is client {client}, its key is {key}"
        if wrong := differs(self.expected, info):
            return wrong
        if info.own != self.config.own_data:
            has, asked = ("data", "their part of its split") if info.own else ("no data", "their own")
            return f"it has {has} of its own, and clients of this experiment have {asked}"
        if not all(0 <= n <= most for n in info.examples):
            return f"it declares {max(info.examples)} examples, and max_examples = {most} allows fewer"
        if info.examples and info.examples != (ours := self._examples.get(client, info.examples)):
            return f"it declares {info.examples} examples, the experiment's split gives it {ours}"
        if before.data != info.data:
            return (
                f"client {client} had other data, or another folder state/, when it was met first: put them back, "
                "or have the coordinator run the experiment under another name"
            )
        if before.examples != info.examples:
            return f"client {client} declared other numbers of examples when it was met first: {before.examples}"
        self._met[client] = info
        wrong = differs(self.expected, info, self._met.values())
        if self._send_away(self.known):  # whom it outvotes, together with those before it
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
