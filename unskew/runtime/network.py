"""The remote clients of a run, reached by messages over any network.

The driver of rounds (`round.py`) answers a plan's requests as in one process, with the same keys, the same hops and the
same rows in the ledger.  The network is a star: a value held by one client and sent to another is fetched and passed
on.  The ledger records the plan's transfers (device to device); the real ones, up and down, are `NetworkTransfer` rows.

A reply counts if it answers this request, has the declared type and passes `validation.py`.  Any other reply is a
failure of that client, like a missing one.
"""

import math
import secrets
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any, NamedTuple, TypeVar

import torch

from unskew import wire
from unskew.errors import DivergedError, WireError
from unskew.keys import Key
from unskew.local.executor import Executor, answer_untrained
from unskew.protocol import (
    SERVER_ID,
    ClientId,
    Fold,
    Held,
    Keep,
    Me,
    Method,
    drive,
    held_at,
    hook,
    map_held,
    map_keep,
    steps_of,
)
from unskew.runtime.log import printable
from unskew.runtime.membership import HELLO_S, Membership
from unskew.runtime.memory import Memory
from unskew.runtime.message import (
    HEAD_BYTES,
    REPLIES,
    Envelope,
    EvaluationReply,
    EvaluationRequest,
    FetchReply,
    FetchRequest,
    Lost,
    NetworkTransfer,
    Refusal,
    RoundContext,
    Score,
    StepReply,
    StepRequest,
    read,
    write,
)
from unskew.runtime.round import Answer, Clients, Exchange, HeldValue, LostReply, ServerModel, Size
from unskew.runtime.validation import (
    Outline,
    Validator,
    by_path,
    check_count,
    counts_in,
    heavy_ones,
    limit_bytes,
    odd_ones,
    outline,
    sizes_of,
    table_norms,
)
from unskew.tree import Params
from unskew.units import Bytes

SPOOL = 1 << 28
"""Bytes of replies that wait in memory until all have come; what is more waits in a file."""
MODELS = 8
"""Number of models that a reply may carry (see `limit_bytes`)."""
GROWTH = 10.0
"""Growth of the global model in one round from which on it counts as diverged."""
MOST_LOSSES = 100
"""Most training losses in a reply: a step has one for each time it trains, and all weigh in the loss of the round."""


R = TypeVar("R")
K = TypeVar("K")


class Profile(NamedTuple):
    """Structure of a client's value and norms of its tables, for comparison with others."""

    owner: ClientId
    outline: Outline
    norms: dict[str, float]


@dataclass(eq=False)
class RemoteClients(Clients):
    """Clients that are reached over a network.

    Client memory stays with the clients.  The server keeps the name of the answer after which each remembers something;
    a client that has lost its memory refuses to take part.

    Attributes:
        method: Method whose steps they run; its annotations say what each step receives, returns and keeps.
        model: Task and model it is run on.
        membership: Clients that are connected, and the server's terms.
        executor: Evaluates the global model; trains nothing.
        count: Records that a round begins, and returns how many have begun on this cell.
        key: Root of all randomness, as the driver's.
        cell: Index of seed and method, counted from 0.
        seed_index: Index of the seed among the experiment's.
        spool: Folder for waiting replies; None is the system's for temporary files.
        before: Transfers before the first round, for its record.
        refused: Why the last reply of a client was refused, to be sent to it.
    """

    method: Method[Any]
    model: ServerModel
    membership: Membership
    executor: Executor
    count: Callable[[], int]
    key: Key
    cell: int = 0
    seed_index: int = 0
    spool: Path | None = None
    before: Sequence[NetworkTransfer] = ()
    refused: dict[ClientId, str] = field(default_factory=dict)
    remote = True
    memory_type = str

    def __post_init__(self) -> None:
        method, model, self.config = self.method, self.model, self.membership.config
        wire.memory_type(method)
        self.ids, self.memory = tuple(range(self.config.num_clients)), Memory()
        self.steps, self.signatures = steps_of(method), wire.signatures(method)
        self.held_type = wire.held_type(method)
        sizes = sizes_of(model.num_classes, model.layout, model.initial, model.public)
        self.validator = Validator(model.initial, limit_bytes(model.initial, MODELS), self.config.max_norm, 0, sizes)
        self.validate_reply = hook(method, "validate_reply")
        self.rounds_begun = 0
        self._counts: dict[ClientId, int] = {}
        self._scored: dict[tuple[ClientId, str], int] = {}
        self._warnings: list[str] = []
        self._failures: list[LostReply] = []
        self._sent: list[NetworkTransfer] = []
        self.under_way: dict[ClientId, Callable[..., Any]] = {}

    def gather(self) -> None:
        """Wait until enough clients are connected for a round."""
        self.membership.wait(self.config.min_clients, self.config.wait_s)

    def begin(self, t: int) -> "_RemoteRound":
        """Open round `t`: clients that connected since the last one now take part."""
        self.membership.call(min(HELLO_S, self.config.deadline_s))
        waits = self.membership.requests.waits_for  # not for those that have come back as another process
        self.under_way = {c: take for c, take in self.under_way.items() if waits(c)}
        if t == 1:
            self._sent, self.before = [*self._sent, *self.before], ()
        self.rounds_begun = self.count()
        self.now = _RemoteRound(self, t)
        return self.now

    def evaluate(
        self, served: Mapping[ClientId, Params | None], t: int, parts: Sequence[str], last: bool
    ) -> dict[str, dict[ClientId, Score]]:
        """Let each client evaluate its own model on its own data; after the last round it keeps the model.

        Clients that connected during the round are asked, too, as there is no other time to get a model.
        """
        self.membership.requests.settle()  # a client does one thing at a time
        if last:
            self.membership.call(min(HELLO_S, self.config.deadline_s))
        context = self.context(t)
        envelopes = {}
        for c, model in served.items():
            head = EvaluationRequest(context, tuple(parts), self.memory.get(c) or "", last)
            envelopes[c] = write("evaluate", head, *([] if model is None else [wire.encode(model)]))
        asked = self.ask("evaluate", t, -1, envelopes, None, lambda *reply: self.scores(parts, *reply))
        came = dict(sorted(asked, key=lambda answer: answer[0]))
        lost = {c: answer.reason for c, answer in came.items() if isinstance(answer, Lost)}
        self._failures.extend(LostReply(t, c, "evaluate", reason) for c, reason in lost.items())
        if last and lost:
            self._warnings.append(
                f"no model is in the folder of client {', '.join(map(str, lost))}, which did not answer when training"
                " had ended. Send it the global model, which is in models/ of this run's folder"
            )
        scored = [(c, own) for c, own in came.items() if not isinstance(own, Lost)]
        return {part: {c: own[part] for c, own in scored if part in own} for part in parts}

    def scores(self, parts: Sequence[str], c: ClientId, head: EvaluationReply, payload: object) -> dict[str, Score]:
        """A client's report on its own model, by part, with measures in range and as many examples as before."""
        measures, scores = self.model.measures, dict[str, Score]()
        for part, values, n in head.scores:
            if part not in parts or len(values) != len(measures) or n < 1:
                raise WireError(
                    f"scores must be {len(measures)} of a known part on an example, got {len(values)} on {n}"
                )
            for measure, value in zip(measures, values, strict=True):
                if not measure.allows(value):
                    raise WireError(f"{measure.name} of {part} must be {measure.range}, got {value}")
            check_count([n], self._scored.get((c, part)), self.config.max_examples)
            self._scored[c, part] = n
            scores[part] = Score(tuple(math.nan if value is None else float(value) for value in values), float(n))
        return scores

    def drain_records(self) -> tuple[list[LostReply], list[NetworkTransfer]]:
        """Failures outside the plan, and all network transfers, since the last call."""
        failures, sent = self._failures, self._sent
        self._failures, self._sent = [], []
        return failures, sent

    def drain_warnings(self) -> tuple[str, ...]:
        """Notes for the user since the last call."""
        warnings, self._warnings = tuple(self._warnings), []
        return warnings

    # ------------------------------------------------------------------ messages
    def ask(
        self,
        action: str,
        t: int,
        hop: int,
        envelopes: Mapping[ClientId, Envelope],
        timeout_s: float | None,
        check: Callable[[ClientId, Any, tuple[bytes, ...]], R],
        payloads: Mapping[ClientId, int] = {},
        first: int | None = None,
    ) -> Iterator[tuple[ClientId, R | Lost]]:
        """Send envelopes, yield the result of each reply as it comes, and record the transfers.

        Args:
            action: Action of the envelopes, and of replies that are no refusal.
            t, hop: The exchange.
            envelopes: Requests by client.
            timeout_s: Longest time; None is the deployment's own.
            check: (client, head, payloads) -> the result; it raises WireError for an invalid reply.
            payloads: Number of payloads of a reply by client, by default none.
            first: Number of replies to wait for among all pending ones, of earlier exchanges, too; None waits for all
                of these.
        """
        self._failures.extend(LostReply(t, c, "hello", reason) for c, reason in self.membership.refused())
        most = HEAD_BYTES + max(payloads.values(), default=0) * self.validator.max_bytes

        def take(c: ClientId, came: Envelope | Lost) -> R | Lost:
            if not isinstance(came, Lost) or came.sent:
                down = envelopes[c]
                self._sent.append(NetworkTransfer(t, hop, c, "down", action, down.payload, down.framing))
            if isinstance(came, Lost):
                return replace(came, reason=printable(came.reason))
            self._sent.append(NetworkTransfer(t, hop, c, "up", action, came.payload, came.framing))
            try:
                head = read(came, {name: REPLIES[name] for name in (action, "refused")})
                if isinstance(head, Refusal):
                    return Lost(printable(f"client error: {head.reason}"))
                self.validator.check(head)
                if len(came.parts) != payloads.get(c, 0):
                    raise WireError(f"expected {payloads.get(c, 0)} payloads, got {len(came.parts)}")
                return check(c, head, came.parts)
            except WireError as error:
                self.refused[c] = printable(str(error))  # it may quote the client
                return Lost(f"refused: {self.refused[c]}")

        takes: dict[ClientId, Callable[[ClientId, Envelope | Lost], Any]] = dict.fromkeys(envelopes, take)
        if first is not None:
            self.under_way |= takes
            takes = self.under_way
        left = math.inf if first is None else first
        try:
            self.membership.send(envelopes, timeout_s, most)
            while takes and left > 0:
                c, came = self.membership.next(takes)
                answer: R | Lost = takes.pop(c)(c, came)
                del came  # of replies that are dropped as they come
                left -= not isinstance(answer, Lost)
                yield c, answer
        finally:
            if first is None:
                self.membership.requests.forget(takes)

    def restart(self, t: int) -> None:
        """Begin round `t` again, or continue without it; the next request tells clients to forget it."""
        self.membership.requests.forget(self.under_way)
        self.under_way = {}

    def context(self, t: int) -> RoundContext:
        """A request's place in the run."""
        return RoundContext(self.membership.run, self.membership.expected.config, self.cell, t)


class _RemoteRound:
    """The clients during one round."""

    def __init__(self, clients: RemoteClients, t: int) -> None:
        self.clients, self.t = clients, t
        self.context = replace(clients.context(t), attempt=secrets.token_hex(8))
        self.sketched: dict[str, Any] = {}
        self.norms: list[dict[ClientId, dict[str, float]]] = []  # of the replies to each request, and of fetched values
        self.scale = _norm(clients.model.initial)  # norm of the largest model sent so far

    def run(self, exchange: Exchange) -> Iterator[tuple[ClientId, Answer | Lost]]:
        """Run the step on every client, all at once.

        Replies can only be compared when all have come.  Until then they wait as bytes: beyond `SPOOL` of them in a
        file.  Those that may come in a later round are compared with the model.
        """
        clients = self.clients
        encoded = {i: wire.encode(m) for i, m in {id(m): m for m in exchange.messages.values()}.items()}
        envelopes = {}
        for c, m in exchange.messages.items():
            moved = exchange.moving[c]
            place = (self.context, exchange.step, exchange.hop, exchange.index, clients.memory.get(c) or "", moved)
            head = StepRequest(*place, clients.refused.pop(c, ""))
            envelopes[c] = write("ask", head, encoded[id(m)], *(exchange.values[h].data for h in moved))
        of_exchange = self.t, exchange.hop, envelopes, exchange.timeout_s
        answers: dict[ClientId, Answer | Lost] = {}
        looks: dict[ClientId, Profile] = {}
        places: dict[ClientId, tuple[int, int]] = {}
        with SpooledTemporaryFile(SPOOL, dir=None if clients.spool is None else str(clients.spool)) as spool:

            def take(c: ClientId, head: StepReply, parts: tuple[bytes, ...]) -> Answer:
                answer = self.received(exchange, c, head, parts)
                looks[c] = Profile(c, outline(answer.reply), table_norms(answer.reply))
                if exchange.first is not None:  # perhaps in a later round
                    model, now = self.sketch(exchange, exchange.messages[c]), clients.now
                    if odd := now.odd({c: looks[c]}, model, {SERVER_ID: now.scale}):
                        raise WireError(odd[c])
                    return answer
                places[c] = spool.tell(), spool.write(parts[0])
                return replace(answer, reply=None)

            came = clients.ask("ask", *of_exchange, take, dict.fromkeys(envelopes, 1), exchange.first)
            if exchange.first is not None:
                yield from came
                return
            answers |= came
            odd: dict[ClientId, str] = {}
            if looks:
                message = next(iter(exchange.messages.values()))
                self.scale = max([self.scale, *table_norms(message).values()])
                odd = self.odd({c: looks[c] for c in exchange.messages if c in looks}, self.sketch(exchange, message))
            clients.refused |= odd
            for c in exchange.messages:
                checked = answers.pop(c)
                if isinstance(checked, Answer):
                    at, size = places[c]
                    spool.seek(at)
                    reply = wire.decode(spool.read(size), clients.signatures[exchange.step].reply)
                    checked = replace(checked, reply=reply, refused=odd.get(c, ""))
                    del reply
                yield c, checked
                del checked

    def received(self, exchange: Exchange, client: ClientId, head: StepReply, parts: tuple[bytes, ...]) -> Answer:
        """Take a reply and the client's report of its work; refuse what cannot be of this run."""
        clients, model = self.clients, self.clients.model
        reply = clients.validator.decode(parts[0], clients.signatures[exchange.step].reply)
        for path, held in held_at(reply).items():
            if held != Held(client, f"{exchange.hop}{path}"):  # its own, from this exchange, in its own field
                raise WireError(
                    f"client {client} claims to hold {held.key[:40]!r} of client {held.owner} (at {path or 'top'})"
                )
        if clients.validate_reply is not None:
            clients.validate_reply(exchange.step, reply, model.initial, model.layout)
        counts = clients.membership.known[client].examples  # by seed; empty if it keeps them to itself
        declared = clients._counts.get(client, counts[clients.seed_index] if counts else None)
        n = check_count([*counts_in(reply), *([head.n] if head.n else [])], declared, clients.config.max_examples)
        if n is not None:
            clients._counts[client] = n
        if len(head.losses) > MOST_LOSSES:
            raise WireError(f"it reports {len(head.losses)} training losses of a step, expected at most {MOST_LOSSES}")
        remembered = self.context.answer(exchange.hop) if head.remembers else None
        size = Size(Bytes(len(parts[0])), wire.kind(reply))
        return Answer(reply, size, remembered, head.n, head.examples, head.losses)

    def odd(self, looks: Mapping[K, Profile], sketch: Any, of_model: Mapping[ClientId, float] = {}) -> dict[K, str]:
        """Find values of one kind that are unlike the others; the reasons.

        Args:
            looks: How they look.
            sketch: What the step would make if training changed nothing; None if that is not known.
            of_model: The model's own vote on sizes, if it has one.
        """
        odd = odd_ones({k: look.outline for k, look in looks.items()}, outline(sketch))
        norms: dict[ClientId, dict[str, float]] = {}  # one vote an owner, however many of its values there are
        for k, look in looks.items():
            if k not in odd:
                own = norms.setdefault(look.owner, {})
                own |= {path: max(n, own.get(path, 0.0)) for path, n in look.norms.items()}
        model = {c: dict.fromkeys(by_path(norms), scale) for c, scale in of_model.items()}
        heavy = heavy_ones(norms | model, self.clients.config.max_ratio, self.scale)
        self.norms.append({c: n for c, n in norms.items() if c not in heavy})
        return odd | {k: heavy[look.owner] for k, look in looks.items() if k not in odd and look.owner in heavy}

    def suspects(self, before: Params | None, after: Params | None) -> dict[ClientId, str]:
        """Find clients whose replies made the global model diverge; empty if it did not.

        It diverged if it is not finite, or `GROWTH` times larger than before and than the median reply.  Suspects are
        those whose tensors were the first to be `GROWTH` times larger than the median.  DivergedError if there are none
        and the model is not finite.
        """
        if after is None:
            return {}
        size = _norm(after)
        medians = [statistics.median_low(s.values()) for norms in self.norms for s in by_path(norms).values()]
        scale = max(_norm(before or {}), _norm(self.clients.model.initial))
        if size <= GROWTH * max([scale, *medians]):
            return {}
        # Only those of the first such request: others may have trained the model that these handed on.
        suspects = next((heavy for norms in self.norms if (heavy := heavy_ones(norms, GROWTH, scale))), {})
        if not suspects and not math.isfinite(size):
            raise DivergedError(f"round {self.t}: the global model became NaN or infinite, and no reply stands out")
        return suspects

    def sketch(self, exchange: Exchange, message: Any) -> Any:
        """Make the reply that the step would give if training changed nothing; None if that cannot be done here.

        None of its numbers are used: it only tells which tensors such a reply has.
        """
        model, key = self.clients.model, self.clients.key / "sketch"
        histogram = torch.ones(model.num_classes, dtype=torch.int64)
        me = Me(SERVER_ID, model.num_classes, histogram, self.t, key, model.layout, model.initial, key, key)
        try:
            message = map_held(lambda h: self.sketched[h.key], message)
            step = self.clients.steps[exchange.step]
            reply, _ = drive(
                step(me, message, None), lambda r: r.init if isinstance(r, Fold) else answer_untrained(r, self.t)
            )
        except Exception:
            # The step runs code on data or memory that is not here: only the other replies can be compared then.
            return None

        def keep(value: Keep, path: str) -> Held:
            key = f"{exchange.hop}{path}"
            self.sketched[key] = value.value
            return Held(SERVER_ID, key)

        return map_keep(keep, reply)

    # ------------------------------------------------------------------ held values
    def fetch(self, held: Sequence[Held], hop: int, timeout_s: float | None) -> Mapping[Held, HeldValue | Lost]:
        """Fetch held values, from all owners at once."""
        by_owner: dict[ClientId, list[Held]] = {}
        for h in held:
            by_owner.setdefault(h.owner, []).append(h)
        envelopes = {c: write("fetch", FetchRequest(self.context, tuple(own))) for c, own in by_owner.items()}

        def take(c: ClientId, head: FetchReply, parts: tuple[bytes, ...]) -> dict[Held, HeldValue]:
            return {h: self.value(data) for h, data in zip(by_owner[c], parts, strict=True)}

        many = {c: len(own) for c, own in by_owner.items()}
        came = dict(self.clients.ask("fetch", self.t, hop, envelopes, timeout_s, take, many))
        values: dict[Held, HeldValue | Lost] = {}
        for c, own in by_owner.items():
            answer = came[c]
            values |= dict.fromkeys(own, answer) if isinstance(answer, Lost) else answer
        fields: dict[str, dict[Held, Any]] = {}  # values in the same field of clients' replies are alike
        for h, v in values.items():
            if isinstance(v, HeldValue):
                fields.setdefault(h.key.partition("/")[2], {})[h] = v.value
        for alike in fields.values():
            looks = {h: Profile(h.owner, outline(value), table_norms(value)) for h, value in alike.items()}
            *_, last = alike
            # The model has a vote too: often the values of a single client are fetched.
            odd = self.odd(looks, self.sketched.get(last.key), {SERVER_ID: self.scale})
            values |= {h: Lost(f"refused: {reason}") for h, reason in odd.items()}
        return values

    def value(self, data: bytes) -> HeldValue:
        value = self.clients.validator.decode(data, self.clients.held_type)
        return HeldValue(value, Size(Bytes(len(data)), wire.kind(value)), data)


def _norm(params: Params) -> float:
    return next(iter(table_norms(params).values()), 0.0)
