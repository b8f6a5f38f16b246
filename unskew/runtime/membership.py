"""Membership: which clients are connected and take part.

The network identifies clients (`message.Transport`).  Each is greeted when it connects, and introduces itself; it takes
part if its data and model match those of the others.
"""

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

from unskew.data.inputs import FAR_BEYOND
from unskew.data.preprocess import ColumnRule, impossible
from unskew.errors import QuorumError, WireError
from unskew.protocol import ClientId
from unskew.runtime.log import printable
from unskew.runtime.message import (
    AWAY,
    REPLIES,
    ClientInfo,
    Envelope,
    Hello,
    Lost,
    Note,
    Refusal,
    Transport,
    read,
    write,
)
from unskew.runtime.policy import ServerConfig
from unskew.tree import Params

PATIENCE = 10.0
"""Times the time that a client had to answer a greeting, after which it is greeted again."""
LATE_ROUNDS = 3
"""Rounds in a row in which a client may be late before it is left out for a while."""
HELLO_BYTES = 1 << 22
"""Largest size of an introduction."""
HELLO_S = 60.0
"""Longest time that a round waits for new clients to introduce themselves, seconds."""
WAITING_S, PAUSE_S = 2.0, 0.5
"""Time after which a client is greeted again whose people have yet to accept the experiment, and of a look, seconds."""
AGAIN_S = 60.0
"""Time after which a client that was refused and told why, or failed, may introduce itself again, seconds."""
# The model last: it follows from the data, of which the others say in words what differs.
_SHARED = {
    "num_clients": ("the number of clients", ""),
    "config": ("the experiment (SHA-256 of its resolved form)", ""),
    "classes": ("the classes of its data", ""),
    "columns": ("the input columns of its data", "; bring the same ones, of the same kinds, in one order"),
    "images": ("the images of its data", "; bring images of that kind and shape"),
    "layout": ("the model (SHA-256 of its tensors' names and shapes)", ""),
    "frozen": ("the model's frozen parameters, which never travel (SHA-256)", "; load the server's pretrained weights"),
}


def differs(expected: ClientInfo, received: ClientInfo, others: Iterable[ClientInfo] = ()) -> str | None:
    """The first difference from what is expected, in words; None if there is none.

    What the server does not expect, the majority of `others` decides, so that the first client cannot keep out all
    others.
    """
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


class Requests:
    """Pending requests, at most one to a client."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self._ends: dict[ClientId, tuple[float, Lost]] = {}  # until when each is waited for, and what becomes of it
        self._soonest = math.inf  # end of the first of them
        self._came: dict[ClientId, Envelope | Lost] = {}  # in the order in which they came

    def send(
        self, envelopes: Mapping[ClientId, Envelope], deadline_s: float, most: int, here: Container[ClientId]
    ) -> None:
        """Send envelopes to clients that are here; a reply has at most `most` bytes."""
        end = time.monotonic() + deadline_s, Lost(f"late: no reply within {deadline_s:g} s", late=True)
        self.forget(envelopes)
        self._soonest = min(self._soonest, end[0])
        for client, envelope in envelopes.items():
            if client in here and self.transport.send(client, envelope, deadline_s, most):
                self._ends[client] = end
            else:
                self._came[client] = Lost(AWAY, sent=False)

    def next(self, among: Container[ClientId]) -> tuple[ClientId, Envelope | Lost]:
        """Wait for the next reply of one of these clients, or until one of them is late."""
        while (first := next((client for client in self._came if client in among), None)) is None:
            self._look()
        return first, self._came.pop(first)

    def waits_for(self, client: ClientId) -> bool:
        """True if a client's reply has not been read yet."""
        return client in self._ends or client in self._came

    def settle(self) -> None:
        """Wait for all replies; `next` returns them."""
        while self._ends:
            self._look()

    def _look(self) -> None:
        now, due = time.monotonic(), dict[ClientId, Lost]()
        if now >= self._soonest:
            due = {client: lost for client, (end, lost) in self._ends.items() if end <= now}  # it may have come by now
            self._soonest = min((end for end, _ in self._ends.values() if end > now), default=math.inf)
        for client, came in self.transport.receive(0.0 if due else self._soonest - now):
            if self._ends.pop(client, None) is not None:
                self._came[client] = came
        for client in due.keys() & self._ends.keys():
            del self._ends[client]
            self.transport.forget(client, due[client].reason)
            self._came[client] = due[client]

    def forget(self, clients: Iterable[ClientId]) -> None:
        """Stop waiting for replies of these clients."""
        for client in clients:
            self._came.pop(client, None)
            if self._ends.pop(client, None) is not None:
                self.transport.forget(client)

    def exchange(
        self, envelopes: Mapping[ClientId, Envelope], deadline_s: float, most: int
    ) -> dict[ClientId, Envelope | Lost]:
        """Send all envelopes together, and return all replies in the order of arrival."""
        replies: dict[ClientId, Envelope | Lost] = {}
        try:
            self.send(envelopes, deadline_s, most, envelopes)
            while waiting := envelopes.keys() - replies.keys():
                replies |= [self.next(waiting)]
        finally:
            self.forget(envelopes)
        return replies


@dataclass
class Standing:
    """State of a connected client.

    Attributes:
        here: True if it takes part.
        reason: Why it is refused; empty if it is not.
        again: Time from which it is greeted again.
        late: Consecutive rounds in which it was late.
        hurried: True if its last request had another deadline than the deployment's.
        noted: Noted reasons why it takes no part.
    """

    here: bool = False
    reason: str = ""
    again: float = 0.0
    late: int = 0
    hurried: bool = False
    noted: set[str] = field(default_factory=set)


@dataclass(eq=False)
class Membership:
    """The connected clients, and which of them take part.

    Attributes:
        transport: The network.
        run: Random name of the run.
        expected: The server's own description, which clients' must match; empty fields accept any.
        config: The server's terms.
        clients: Clients that may take part; by default all.
        known: Introductions of the clients so far.
        note: Called once for every client that is accepted or rejected, with the reason.
        agreed: Rules of a table's columns that clients have agreed on; None without.
    """

    transport: Transport
    run: str
    expected: ClientInfo
    config: ServerConfig
    clients: Collection[ClientId] | None = None
    known: dict[ClientId, ClientInfo] = field(default_factory=dict)
    note: Note = lambda text: None
    agreed: dict[str, ColumnRule] | None = None

    def __post_init__(self) -> None:
        self.requests = Requests(self.transport)
        self._may = frozenset(range(self.config.num_clients) if self.clients is None else self.clients)
        for client in self.known.keys() - self._may:  # their word must not decide about the others
            del self.known[client]
        self._met = dict(self.known)  # refused ones, too
        self._standing: dict[ClientId, Standing] = {}
        self._unreported: list[tuple[ClientId, str]] = []

    @property
    def present(self) -> tuple[ClientId, ...]:
        """Clients that take part, ascending, as of the last `call`."""
        return tuple(c for c, standing in sorted(self._standing.items()) if standing.here)

    def refused(self) -> list[tuple[ClientId, str]]:
        """(client, reason) of those rejected since the last call."""
        rejected, self._unreported = self._unreported, []
        return rejected

    def expect(self, expected: ClientInfo) -> None:
        """Require more of clients, also of those that are here; `expected` is as in the constructor."""
        self.expected = expected
        self._send_away(self.present)

    def _send_away(self, clients: Iterable[ClientId]) -> bool:
        """Reject those of the clients that differ by now; True if there were any."""
        odd = {c: why for c in [*clients] if (why := differs(self.expected, self.known[c], self._met.values()))}
        for client, why in odd.items():
            del self.known[client]
            if client in self.present:
                self._reject(client, why)
        return bool(odd)

    def call(self, deadline_s: float = HELLO_S) -> None:
        """Drop clients that are gone, greet new ones, and tell refused ones why.

        Refused clients are greeted again now and then, as they may have been corrected.
        """
        here, now = self.transport.clients() & self._may, time.monotonic()
        for client in self._standing.keys() - here:
            left = self._standing.pop(client)
            if left.here or left.late:
                self.note(f"client {client} is gone")
        envelopes = {}
        for client in sorted(here):
            standing = self._standing.setdefault(client, Standing())
            if standing.here:
                standing.late = 0
            elif standing.again <= now:
                envelopes[client] = write("hello", Hello(self.run, self.expected.config, standing.reason, self.agreed))
        for client, came in sorted(self.requests.exchange(envelopes, deadline_s, HELLO_BYTES).items()):
            self._admit(client, came, deadline_s)

    def wait(self, at_least: int, wait_s: float) -> None:
        """Greet clients until `at_least` take part.

        Raises:
            QuorumError: After `wait_s` seconds, or if too many are refused.
        """
        end = time.monotonic() + wait_s
        before: object = None
        for standing in self._standing.values():
            if standing.late:  # whoever is needed is asked again, however often it was late
                standing.again = 0.0
        while True:
            self.call(min(HELLO_S, max(end - time.monotonic(), 1.0)))
            present, refused = self.present, {c: s for c, s in self._standing.items() if s.reason}
            if len(present) >= at_least:
                return
            left, so_many = end - time.monotonic(), f"{len(present)} of {self.expected.num_clients} clients"
            final = sum(s.again > time.monotonic() for s in refused.values())  # those that were told
            if left <= 0.0 or final > len(self._may) - at_least:
                why = "".join(f"; client {c} is refused: {s.reason}" for c, s in refused.items())
                raise QuorumError(
                    f"{so_many} are connected after {wait_s - max(left, 0.0):.3g} s, {at_least} needed; "
                    f"present: {', '.join(map(str, present)) or 'none'}{why}"
                )
            if (now := (present, *refused)) != before:
                before = now
                self.note(f"{so_many} take part, {at_least} needed; waiting for {left:.0f} s more")
            time.sleep(PAUSE_S)

    def send(self, envelopes: Mapping[ClientId, Envelope], timeout_s: float | None, most: int) -> None:
        """Send envelopes to clients that take part; `next` has the replies, of at most `most` bytes."""
        deadline_s = self.config.deadline_s if timeout_s is None else timeout_s
        self.requests.send(envelopes, deadline_s, most, {*self.present})
        for client in envelopes.keys() & self._standing.keys():
            self._standing[client].hurried = timeout_s is not None

    def next(self, among: Container[ClientId]) -> tuple[ClientId, Envelope | Lost]:
        """Wait for the next reply of one of these clients.

        A client that misses the deployment's deadline is greeted before it is asked again.  After three late rounds in
        a row it is left out for as long as the others have waited for it.
        """
        client, came = self.requests.next(among)
        standing = self._standing.get(client, Standing())  # it may be gone by now
        if isinstance(came, Lost) and came.late and not standing.hurried:
            standing.here, standing.late = False, standing.late + 1
            if standing.late >= LATE_ROUNDS:
                pause_s = standing.late * self.config.deadline_s
                standing.again = time.monotonic() + pause_s
                self.note(
                    f"client {client} was late in {standing.late} rounds in a row and is left out for "
                    f"{pause_s:.0f} s or more; see to its machine, or give all clients more time (--deadline)"
                )
        return client, came

    def _admit(self, client: ClientId, came: Envelope | Lost, waited_s: float) -> None:
        if isinstance(came, Lost):
            # A late one is busy with an old message, or died and is still listed; one that fails may be mended soon.
            again_s = PATIENCE * waited_s if came.late else min(AGAIN_S, PATIENCE * waited_s)
            self._pause(client, f"it does not answer ({came.reason})", again_s)
            return
        try:
            head = read(came, {k: REPLIES[k] for k in ("hello", "refused", "waiting")})
        except WireError as error:
            head = Refusal(f"its introduction cannot be read: {error}")
        if came.action == "waiting":
            self._pause(client, head.reason, WAITING_S)
            return
        if isinstance(head, Refusal):
            self._reject(client, f"it refuses: {printable(head.reason)}")
            return
        if head.sums is not None:  # which tell the columns
            head = replace(head, columns=", ".join(sorted(head.sums)))
        if wrong := self._wrong(client, head):
            self._reject(client, wrong)
            return
        standing = self._standing[client]
        standing.here, standing.reason, self.known[client] = True, "", head
        version = f", with unskew {printable(head.library, 40)} where the server has {self.expected.library}"
        state = "is here" if head.sums is None else "has sent the sums of its columns"
        self.note(f"client {client} {state}{version if head.library != self.expected.library else ''}")

    def _wrong(self, client: ClientId, info: ClientInfo) -> str | None:
        """Describe what keeps a client out; None if nothing does."""
        before, most = self.known.get(client, info), self.config.max_examples
        if info.client != client:
            return f"it says it is client {info.client}, and is client {client}"
        if wrong := differs(self.expected, info) or impossible(info.sums or {}) or None:
            return wrong
        if info.own != self.config.own_data:
            has, asked = ("data", "their part of its split") if info.own else ("no data", "their own")
            return f"it has {has} of its own, and clients of this experiment have {asked}"
        declared = [*info.examples, *(of.n for of in (info.sums or {}).values())]
        if not all(0 <= n <= most for n in declared):
            return f"it declares {max(declared)} examples, and max_examples = {most} allows fewer"
        if before.data != info.data:
            return (
                f"client {client} had other data, or another folder state/, when it was met first: put them back, "
                "or have the coordinator run the experiment under another name"
            )
        self._met[client] = info
        wrong = differs(self.expected, info, self._met.values())
        if self._send_away(self.known):  # whom it outvotes, together with those before it
            for standing in self._standing.values():  # those who were refused because of them need not wait
                standing.again = 0.0 if standing.reason else standing.again
        return wrong

    def _pause(self, client: ClientId, reason: str, again_s: float) -> None:
        """Leave a client alone for some seconds; it may take part then."""
        self._standing[client].again = time.monotonic() + again_s
        self._note(client, "takes no part for now", reason, "; it is asked again")

    def _reject(self, client: ClientId, reason: str) -> None:
        standing = self._standing[client]
        # The next greeting says why.  After it a client waits whatever it answers: one with a new reason each time must
        # not fill the log.
        standing.again = time.monotonic() + AGAIN_S if standing.reason else 0.0
        standing.here, standing.reason = False, printable(reason)
        self._note(client, "is refused", reason)

    def _note(self, client: ClientId, what: str, reason: str, then: str = "") -> None:
        noted, reason = self._standing[client].noted, printable(reason)
        if reason not in noted:
            noted.add(reason)
            self._unreported.append((client, reason))
            self.note(f"client {client} {what}: {reason}{then}")
