"""The remote clients of a run: a server reaches them by messages, whatever the network.

The driver of rounds (`round.py`) answers a plan's requests as in one process, with the same keys, the same hops and the
same rows in the ledger.  The network is a star: a value held by one client and sent to another is fetched and passed
on.  The ledger records what the plan meant (device to device); what really went up and down is recorded beside it, as
`NetworkTransfer` rows.

A reply counts if it answers this very request, has the type that the step declares and can be a message of this run
(`validation.py`).  Any other reply is a failure of that client, like a reply that never came.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any

import torch

from unskew import wire
from unskew.errors import ConfigError, DivergedError, WireError
from unskew.keys import Key
from unskew.local.executor import Executor, answer_untrained
from unskew.protocol import (
    SERVER_ID,
    ClientId,
    Fold,
    Held,
    Keep,
    Layout,
    Me,
    Method,
    drive,
    held_at,
    hook,
    map_held,
    map_keep,
    steps_of,
)
from unskew.runtime.counts import check_count, counts_in, heavy_share
from unskew.runtime.log import printable
from unskew.runtime.membership import HELLO_S, Membership
from unskew.runtime.memory import Memory
from unskew.runtime.message import (
    REPLIES,
    Delivery,
    Envelope,
    EvaluationReply,
    EvaluationRequest,
    FetchReply,
    FetchRequest,
    NetworkTransfer,
    Refusal,
    RoundContext,
    Score,
    StepReply,
    StepRequest,
    read,
    write,
)
from unskew.runtime.round import Answer, Exchange, HeldValue, Lost, LostReply, ServerModel, Size
from unskew.runtime.validation import (
    Outline,
    Validator,
    by_path,
    heavy_ones,
    limit_bytes,
    odd_ones,
    outline,
    sizes_of,
    table_norms,
)
from unskew.tree import Params
from unskew.units import Bytes

ReplyCheck = Callable[[str, Any, Params, Layout], None]
"""A method's own check of a reply to a step, given the initial model and its layout; it raises WireError."""
NO_HOP = -1
SPOOL = 1 << 28
"""Bytes of replies that wait in memory until all have come; what is more waits in a file."""
HEAD_BYTES = 1 << 20
"""Largest size of a reply beyond its messages."""
MODELS = 8
"""Number of models that a reply may carry (see `limit_bytes`)."""
GROWTH = 10.0
"""Growth of the global model in one round from which on it counts as diverged."""
MOST_LOSSES = 100
"""Most training losses in a reply: a step has one for each time it trains, and all weigh in the loss of the round."""


class RemoteClients:
    """Clients that are reached over a network.

    Client memory stays with the clients.  The server only keeps, by client, the last round after which it remembered
    something; a client that has lost its memory refuses to take part and says so.

    Args:
        method: Method whose steps they run.
        model: Task and model it is run on.
        membership: Clients that are connected, and the server's terms.
        executor: Evaluates the global model; trains nothing.
        begin: (first round) -> server processes that have worked on this cell, including this one:
            `RoundContext.starts`.  It is called again when a round is run again.
        count: Counts a round that begins, for good, and returns how many have begun on this cell.
        key: Root of all randomness, as the driver's.
        cell: Index of seed and method, counted from 0.
        seed_index: Place of the seed among the experiment's.
        spool: Folder for replies that wait; None is the system's for temporary files.

    Raises:
        ProtocolError: If a step's annotations do not say what it receives, returns and keeps.
        ConfigError: If the method pools all data in one place.
    """

    remote = True

    def __init__(
        self,
        method: Method[Any],
        model: ServerModel,
        membership: Membership,
        executor: Executor,
        *,
        begin: Callable[[int], tuple[tuple[int, int], ...]],
        count: Callable[[], int],
        key: Key,
        cell: int = 0,
        seed_index: int = 0,
        spool: Path | None = None,
    ) -> None:
        self.config = membership.config
        if hook(method, "pooled") and self.config.num_clients > 1:
            raise ConfigError("a method that pools all clients' data cannot be deployed: data stay where they are")
        wire.memory_type(method)
        self.model, self.membership, self.executor = model, membership, executor
        self.ids = tuple(range(self.config.num_clients))
        self.key, self.cell, self.seed_index, self.spool = key, cell, seed_index, spool
        self.memory, self.memory_type = Memory(), int
        self.steps, self.signatures = steps_of(method), wire.signatures(method)
        self.held_type = wire.held_type(method)
        sizes = sizes_of(model.num_classes, model.layout, model.initial, model.public)
        self.validator = Validator(model.initial, limit_bytes(model.initial, MODELS), self.config.max_norm, 0, sizes)
        self.validate_reply: ReplyCheck | None = hook(method, "validate_reply")
        self._begin, self._count, self.rounds_begun = begin, count, 0
        self._begun: tuple[tuple[int, int], ...] = ()
        self.weighs_examples = hook(method, "weighting") != "uniform"
        self._counts: dict[ClientId, int] = {}
        self._scored: dict[tuple[ClientId, str], int] = {}
        self._warnings: list[str] = []
        self._late: set[ClientId] = set()  # in this round, by the deployment's own deadline
        self._replied: set[ClientId] = set()
        self._abandoned = False
        self._failures: list[LostReply] = []
        self.refused: dict[ClientId, str] = {}  # why the last reply of a client was, which it is yet to be told
        self._sent: list[NetworkTransfer] = []

    def gather(self) -> None:
        """Wait until enough clients are connected for a round."""
        self.membership.wait(self.config.min_clients, self.config.wait_s)

    def begin(self, t: int) -> "_RemoteRound":
        """Open round `t`: clients that have come since the last one take part from now on."""
        if not self._abandoned:  # a round that has no result without them must wait for them
            self.membership.count_round(self._late, self._replied - self._late, self.config.deadline_s)
        self._late, self._replied, self._abandoned = set(), set(), False
        self.membership.call(min(HELLO_S, self.config.deadline_s))
        self.rounds_begun = self._count()
        return _RemoteRound(self, t)

    def own_models(
        self, served: Mapping[ClientId, Params | None], personalise: Callable[..., Any] | None, t: int
    ) -> dict[ClientId, Params]:
        """Return none: clients' models stay with them."""
        return {}

    def evaluate(
        self, served: Mapping[ClientId, Params | None], t: int, parts: Sequence[str], last: bool
    ) -> dict[str, dict[ClientId, Score]]:
        """Let each client evaluate its own model on its own data; after the last round it keeps the model.

        Who has come since the last round began is asked then, too: there is no other time to get a model.
        """
        if last:
            self.membership.call(min(HELLO_S, self.config.deadline_s))
        context = self.context(t, t + 1)
        envelopes = {}
        for c, model in served.items():
            head = EvaluationRequest(context, tuple(parts), self.known(c), last)
            envelopes[c] = write("evaluate", head, *([] if model is None else [wire.encode(model)]))
        by_part: dict[str, dict[ClientId, Score]] = {part: {} for part in parts}
        silent = []
        for c, delivery in sorted(self.transport("evaluate", t, NO_HOP, envelopes, None), key=itemgetter(0)):
            try:
                head = self.open_reply(delivery, "evaluate", EvaluationReply, 0)
                self.validator.check(head)
                if not {part for part, _, _ in head.scores} <= set(parts):
                    raise WireError(f"scores must be of {', '.join(parts)}, got another part")
                scores = {part: self.score(c, part, values, n) for part, values, n in head.scores}
            except WireError as error:
                self._failures.append(LostReply(t, c, "evaluate", printable(str(error))))
                silent += [c] if delivery.reply is None else []
                continue
            for name, score in scores.items():
                by_part[name][c] = score
        if last and silent:
            self._warnings.append(
                f"no model is in the folder of client {', '.join(map(str, silent))}, which did not answer when training"
                " had ended. Send it the global model, which is in models/ of this run's folder"
            )
        return by_part

    def score(self, client: ClientId, part: str, values: Sequence[float | None], n: int) -> Score:
        """A client's report on its own model.

        Raises:
            WireError: If it has not a value of each measure, in its range, on at least one example; or on another
                number of them than before.
        """
        measures = self.model.measures
        if len(values) != len(measures) or n < 1:
            names = ", ".join(m.name for m in measures)
            raise WireError(f"scores of {part} must be {names} on at least one example, got {len(values)} on {n}")
        for measure, value in zip(measures, values, strict=True):
            if not measure.allows(value):
                raise WireError(f"{measure.name} of {part} must be {measure.range}, got {value}")
        try:
            check_count([n], self._scored.get((client, part)), self.config.max_examples)
        except WireError as error:
            raise WireError(f"refused: {error}") from None
        self._scored[client, part] = n
        return Score(tuple(math.nan if value is None else float(value) for value in values), float(n))

    def drain_records(self) -> tuple[list[LostReply], list[NetworkTransfer]]:
        """Return failures outside the plan, and all network transfers, since the last call."""
        failures, sent = self._failures, self._sent
        self._failures, self._sent = [], []
        return failures, sent

    def drain_warnings(self) -> tuple[str, ...]:
        """Return sentences for the user since the last call."""
        warnings, self._warnings = tuple(self._warnings), []
        return warnings

    def examples(self, client: ClientId) -> int | None:
        """Return the number of examples that a client declared, or gave in its first reply; None if it never did."""
        return self._counts.get(client, self.membership.examples(client, self.seed_index))

    def check_examples(self, client: ClientId, counts: Iterable[int]) -> None:
        """Refuse numbers of examples that are not those the client declared.

        Raises:
            WireError: If so, or if they are too large.
        """
        n = check_count(counts, self.examples(client), self.config.max_examples)
        if n is not None:
            self._counts[client] = n

    def warn_of_share(self, cohort: Iterable[ClientId]) -> None:
        """Warn of a client that says it has most of its cohort's examples, if the method weights clients by these."""
        if not self.weighs_examples:
            return
        warning = heavy_share({c: self._counts[c] for c in cohort if c in self._counts}, self.config.warn_share)
        if warning is not None:
            self._warnings.append(warning)

    # ------------------------------------------------------------------ messages
    def transport(
        self,
        what: str,
        t: int,
        hop: int,
        envelopes: Mapping[ClientId, Envelope],
        timeout_s: float | None,
        messages: int = 0,
    ) -> Iterator[tuple[ClientId, Delivery]]:
        """Send envelopes, yield each delivery as it comes, and record what went to and fro.

        A client that was late in this round is not asked again in it: it has yet to come to what it was asked first.
        A reply may carry `messages` messages of this run, and the head around them.
        """
        self._failures.extend(LostReply(t, c, "hello", reason) for c, reason in self.membership.refused())
        sent: dict[ClientId, list[NetworkTransfer]] = {c: [] for c in envelopes}
        for c in [c for c in envelopes if c in self._late]:
            yield c, Delivery(None, "late: it has not replied to an earlier request of this round", sent=False)
        try:
            for c, delivery in self.membership.exchange(
                {c: envelope for c, envelope in envelopes.items() if c not in self._late},
                self.config.deadline_s if timeout_s is None else timeout_s,
                HEAD_BYTES + messages * self.validator.max_bytes,
            ):
                if delivery.sent:
                    sent[c].append(NetworkTransfer(t, hop, c, "down", what, envelopes[c].payload, delivery.down))
                    if delivery.late and timeout_s is None:
                        self._late.add(c)
                if delivery.reply is not None:
                    self._replied.add(c)
                    sent[c].append(NetworkTransfer(t, hop, c, "up", what, delivery.reply.payload, delivery.up))
                yield c, delivery
        finally:
            for c in envelopes:
                self._sent.extend(sent[c])

    def open_reply(self, delivery: Delivery, action: str, of: type, parts: int) -> Any:
        """Decode the head of the reply to a request.

        Raises:
            WireError: If there is no reply, or it is a refusal.
        """
        if delivery.reply is None:
            raise WireError(delivery.lost)
        head = read(delivery.reply, {action: of, "refused": REPLIES["refused"]})
        if isinstance(head, Refusal):
            raise WireError(f"client error: {printable(head.reason)}")
        if len(delivery.reply.parts) != parts:
            raise WireError(f"refused: expected {parts} payloads, got {len(delivery.reply.parts)}")
        return head

    def known(self, client: ClientId) -> int:
        """Last round after which the client is known to remember something; 0 is none."""
        return int(self.memory.get(client) or 0)

    def restart(self, t: int) -> None:
        """Begin round `t` again: to the clients it is as if another server process went on from there."""
        self._abandoned = True
        self._begun = self._begin(t)

    def context(self, t: int, first: int) -> RoundContext:
        """Place a request in the run; `first` is the first round of this server process."""
        if not self._begun:
            self._begun = self._begin(first)
        return RoundContext(self.membership.run, self.membership.expected.config, self.cell, self._begun, t)


class _RemoteRound:
    """The clients during one round."""

    def __init__(self, clients: RemoteClients, t: int) -> None:
        self.clients, self.t = clients, t
        self.context = clients.context(t, t)
        self.sketched: dict[str, Any] = {}
        self.counted: set[ClientId] = set()  # clients in whose replies there were numbers of examples
        self.norms: list[dict[ClientId, dict[str, float]]] = []  # of the replies to each request, and of fetched values
        self.scale = _norm(clients.model.initial)  # norm of the largest model sent so far

    def run(self, exchange: Exchange) -> Iterator[tuple[ClientId, Answer | Lost]]:
        """Run the step on every client, all at once.

        Replies can only be compared when all have come.  Until then those that are folded wait as bytes: beyond
        `SPOOL` of them in a file.
        """
        clients = self.clients
        encoded = {i: wire.encode(m) for i, m in {id(m): m for m in exchange.messages.values()}.items()}
        envelopes = {}
        for c, m in exchange.messages.items():
            moved = exchange.moving[c]
            place = (self.context, exchange.step, exchange.hop, exchange.index, clients.known(c), moved)
            head = StepRequest(*place, clients.refused.pop(c, ""))
            envelopes[c] = write("ask", head, encoded[id(m)], *(exchange.values[h].data for h in moved))
        answers: dict[ClientId, Answer | Lost] = {}
        outlines: dict[ClientId, Outline] = {}
        norms: dict[ClientId, dict[str, float]] = {}
        places: dict[ClientId, tuple[int, int]] = {}
        with SpooledTemporaryFile(SPOOL, dir=None if clients.spool is None else str(clients.spool)) as spool:
            for c, delivery in clients.transport("ask", self.t, exchange.hop, envelopes, exchange.timeout_s, 1):
                try:
                    answer = self.receive(exchange, c, delivery)
                except WireError as error:
                    answers[c] = Lost(printable(str(error)), delivery.sent)  # it may quote the client
                    if str(error).startswith("refused: "):
                        clients.refused[c] = str(error)[len("refused: ") :]
                    continue
                outlines[c], norms[c] = outline(answer.reply), table_norms(answer.reply)
                if exchange.folds:
                    assert delivery.reply is not None
                    places[c] = spool.tell(), spool.write(delivery.reply.parts[0])
                    answer = replace(answer, reply=None)
                answers[c] = answer
                del delivery, answer
            odd = self.odd_ones(exchange, outlines, norms)
            clients.refused |= odd
            for c in exchange.messages:
                checked = answers.pop(c)
                if isinstance(checked, Answer) and c in odd:
                    checked = replace(checked, refused=odd[c])
                elif isinstance(checked, Answer) and exchange.folds:
                    at, size = places[c]
                    spool.seek(at)
                    reply = wire.decode(spool.read(size), clients.signatures[exchange.step].reply)
                    checked = replace(checked, reply=reply)
                    del reply
                yield c, checked
                del checked

    def receive(self, exchange: Exchange, client: ClientId, delivery: Delivery) -> Answer:
        """Check a reply and the client's report of its work.

        Raises:
            WireError: If the reply is lost or refused, with the reason.
        """
        clients = self.clients
        head = clients.open_reply(delivery, "ask", StepReply, 1)
        assert delivery.reply is not None
        (data,) = delivery.reply.parts
        try:
            clients.validator.check(head)
            reply = clients.validator.decode(data, clients.signatures[exchange.step].reply)
            for path, held in held_at(reply).items():
                if held != Held(client, f"{exchange.hop}{path}"):  # its own, from this exchange, in its own field
                    raise WireError(
                        f"client {client} claims to hold {held.key[:40]!r} of client {held.owner} (at {path or 'top'})"
                    )
            if clients.validate_reply is not None:
                clients.validate_reply(exchange.step, reply, clients.model.initial, clients.model.layout)
            counts = list(counts_in(reply))
            clients.check_examples(client, [*counts, *([head.n] if head.n else [])])
            if counts:
                self.counted.add(client)
            if len(head.losses) > MOST_LOSSES:
                raise WireError(
                    f"it reports {len(head.losses)} training losses of a step, expected at most {MOST_LOSSES}"
                )
        except WireError as error:
            raise WireError(f"refused: {error}") from None
        remembered = self.t if head.remembers else clients.memory.get(client)
        size = Size(Bytes(len(data)), wire.kind(reply))
        return Answer(reply, size, remembered, head.n, head.examples, head.losses)

    def odd_ones(
        self, exchange: Exchange, outlines: Mapping[ClientId, Outline], norms: Mapping[ClientId, dict[str, float]]
    ) -> Mapping[ClientId, str]:
        """Find replies whose structure or size differs from the others'; the reason by client."""
        came = [c for c in exchange.messages if c in outlines]
        if not came:
            return {}
        message = next(iter(exchange.messages.values()))
        odd = odd_ones({c: outlines[c] for c in came}, outline(self.sketch(exchange, message)))
        norms = {c: norms[c] for c in came if c not in odd}
        self.scale = max([self.scale, *table_norms(message).values()])
        heavy = heavy_ones(norms, self.clients.config.max_ratio, self.scale)
        self.norms.append({c: of_client for c, of_client in norms.items() if c not in heavy})
        self.clients.warn_of_share([c for c in came if c in self.counted and c not in odd and c not in heavy])
        return odd | heavy

    def suspects(self, before: Params | None, after: Params | None) -> dict[ClientId, str]:
        """Find clients whose replies made the global model diverge; empty if it did not.

        It diverged if it is not finite or `GROWTH` times larger than it was and than the median reply; suspects
        are those whose tensors were the first to be `GROWTH` times larger than the median.

        Raises:
            DivergedError: If the model is not finite and no reply stands out.
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
        model = self.clients.model
        classes = model.num_classes
        key = self.clients.key / "sketch"
        histogram = torch.ones(classes, dtype=torch.int64)
        me = Me(SERVER_ID, classes, histogram, self.t, key, model.layout, model.initial, key, key)
        try:
            message = map_held(lambda h: self.sketched[h.key], message)
            step = self.clients.steps[exchange.step]
            reply, _ = drive(step(me, message, None), partial(_untrained, round=self.t))
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
        many = max(map(len, by_owner.values()))
        deliveries = dict(self.clients.transport("fetch", self.t, hop, envelopes, timeout_s, many))
        values: dict[Held, HeldValue | Lost] = {}
        for c, own in by_owner.items():
            try:
                self.clients.open_reply(deliveries[c], "fetch", FetchReply, len(own))
                reply = deliveries[c].reply
                assert reply is not None
                checked = {h: self.checked(data) for h, data in zip(own, reply.parts, strict=True)}
            except WireError as error:
                values.update(dict.fromkeys(own, Lost(printable(str(error)))))
            else:
                values.update(checked)
        values.update(self.odd_values(values))
        return values

    def checked(self, data: bytes) -> HeldValue:
        try:
            value = self.clients.validator.decode(data, self.clients.held_type)
        except WireError as error:
            raise WireError(f"refused: {error}") from None
        return HeldValue(value, Size(Bytes(len(data)), wire.kind(value)), data)

    def odd_values(self, values: Mapping[Held, HeldValue | Lost]) -> dict[Held, Lost]:
        """Find values whose structure or size differs from those in the same field of other clients' replies."""
        fields: dict[str, dict[int, Any]] = {}
        sketches: dict[str, Any] = {}
        for i, (h, v) in enumerate(values.items()):
            if isinstance(v, HeldValue):
                field = h.key.partition("/")[2]
                fields.setdefault(field, {})[i] = v.value
                sketches[field] = self.sketched.get(h.key)
        handles = list(values)
        refused: dict[Held, Lost] = {}
        for field, alike in fields.items():
            odd = odd_ones({i: outline(value) for i, value in alike.items()}, outline(sketches[field]))
            norms: dict[ClientId, dict[str, float]] = {}  # one vote an owner, however many of its values are fetched
            for i, value in alike.items():
                if i not in odd:
                    of_owner = norms.setdefault(handles[i].owner, {})
                    of_owner |= {path: max(n, of_owner.get(path, 0.0)) for path, n in table_norms(value).items()}
            # The model has a vote too: often the values of a single client are fetched.
            model = {SERVER_ID: dict.fromkeys(by_path(norms), self.scale)}
            heavy = heavy_ones(norms | model, self.clients.config.max_ratio, self.scale)
            odd |= {i: heavy[handles[i].owner] for i in alike if i not in odd and handles[i].owner in heavy}
            refused |= {handles[i]: Lost(f"refused: {reason}") for i, reason in odd.items()}
            self.norms.append({c: of_owner for c, of_owner in norms.items() if c not in heavy})
        return refused


def _norm(params: Params) -> float:
    return next(iter(table_norms(params).values()), 0.0)


def _untrained(request: Any, round: int) -> Any:
    return request.init if isinstance(request, Fold) else answer_untrained(request, round)
