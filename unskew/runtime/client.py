"""The client's half of a deployment: answers the server's requests, whatever the network.

The process may live for one request only, so a client's memory is in files.

    STATE/                           on the client's own disk
        draws.secret                 32 random bytes: the root of noise and masks that the server must not know
        bound.sqlite                 sums unmasked and models evaluated in each round, over all runs
        <run>/<cell>/                by the run's random name, and the index of seed and method
            000012-4f...-0003        round 12, a go at it, hop 3: one answer and its consequences

An answer is one file, written atomically: the reply, the client's memory from then on, and the values it holds for the
round.  A repeated request gets the same bytes.  A request names the answer whose memory counts, which is an earlier one
after a resume or a lost reply.  So that answer is kept, and the one that counted when its round began.
"""

import errno
import hashlib
import hmac
import math
import os
import secrets
import statistics
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from shutil import rmtree
from typing import Any, Literal

import torch
from torch import Tensor

from unskew import wire
from unskew.errors import RunError, UnskewError, WireError
from unskew.files import PRIVATE, write_atomically
from unskew.keys import Key
from unskew.local.executor import StepJob
from unskew.local.sequential import run_step
from unskew.local.trainer import LocalTrainer
from unskew.lock import lock, lockable
from unskew.protocol import ClientId, Held, Keep, Me, hook, map_held, map_keep, personalise_of, steps_of
from unskew.runtime.accounts import NoisedUpload, bind, charge, record
from unskew.runtime.log import log, printable
from unskew.runtime.message import (
    REQUESTS,
    ClientInfo,
    Envelope,
    EvaluationReply,
    EvaluationRequest,
    FetchReply,
    FetchRequest,
    Hello,
    Refusal,
    RoundContext,
    StepReply,
    StepRequest,
    read,
    write,
)
from unskew.runtime.policy import Rules
from unskew.runtime.validation import Validator, limit_bytes, sizes_of, taken_apart
from unskew.tree import Params, moved
from unskew.words import counted

SECRET = "draws.secret"
"""File of a client's own secret, in its folder of memory."""


def reason_of(error: Exception, folder: Path) -> str:
    """What the server may know of an error, which may quote the client's data; the client's log has all of it."""
    if isinstance(error, UnskewError):
        return str(error)
    if isinstance(error, OSError):
        name = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else folder
        where = name.relative_to(folder.parent) if name.is_relative_to(folder) else name
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        room = "; make room on this client's disk, and it takes part again" if full else ""
        return f"cannot use {where}: {error.strerror or type(error).__name__}{room}"
    log(traceback.format_exc())
    return f"{type(error).__name__}; the client's own log has more"


@dataclass(frozen=True, eq=False)
class ClientSetup:
    """A client's objects for one seed and method.

    Attributes:
        method: Method whose steps are run.
        trainer: Does the local training that steps request.
        me: (client, round, key) -> the client's view of itself.
        initial: Initial model, which the client can build by itself.
        seed: Root of the run's randomness.
        eval_set: Rows (None is all) of the test or training inputs to evaluate on, by part.
        keep_model: Writes the final model, and the one that the server served, if any, into the client's folder; None
            keeps no model.
        name: Label of the method, for the lines about progress.
    """

    method: Any
    trainer: LocalTrainer
    me: Callable[[ClientId, int, Key], Me]
    initial: Params
    seed: int
    eval_set: Mapping[str, tuple[Literal["test", "train"], Tensor | None]]
    keep_model: Callable[[Params, Params | None], None] | None = None
    name: str = ""


@dataclass(frozen=True, eq=False)
class ClientRuntime:
    """One client of a deployment.

    Attributes:
        info: The client's description of itself; the hash of its data is keyed before it leaves.
        state: Folder for its memory.
        open_setup: Makes the setup of a cell from its index.
        rules: The participant's.
        audit: File of the audit log; None keeps none.
        privacy: Record of noised uploads, across runs; by default in `state`.
        account: Name of the data in that record; by default `info.data`.
        rounds: Number of rounds; later steps are refused.  None is no limit.
        said: The refusals that the log had last.
    """

    info: ClientInfo
    state: Path
    open_setup: Callable[[int], ClientSetup]
    rules: Rules = Rules()
    audit: Path | None = None
    privacy: Path | None = None
    account: str = ""
    rounds: int | None = None
    said: deque[str] = field(default_factory=lambda: deque(maxlen=8))

    @property
    def client(self) -> ClientId:
        """Number of the client."""
        return self.info.client

    def tell(self, text: str) -> None:
        """Write a line into this client's own log."""
        log(f"client {self.client}: {text}")

    def answer(self, envelope: Envelope) -> Envelope:
        """Reply to a request; errors become replies, too.  The reply is in the audit log before it leaves."""
        reply = self._answer(envelope)
        if self.audit is not None:
            try:
                record(self.audit, envelope, reply)
            except OSError as error:
                text = f"cannot write the audit log {self.audit.name}: {error.strerror}; make room, or mend its rights"
                self.tell(text)
                return write("refused", Refusal(text))
        return reply

    def _answer(self, envelope: Envelope) -> Envelope:
        try:
            head = read(envelope, REQUESTS)
            if isinstance(head, Hello):
                return self._introduce(head)
            if isinstance(head, StepRequest):
                return _Cell(self, head.context).run_step(head, envelope.parts)
            if isinstance(head, FetchRequest):
                return _Cell(self, head.context).fetch(head.held)
            return _Cell(self, head.context).evaluate(head, envelope.parts)
        except Exception as error:
            text = reason_of(error, self.state)
        if text not in self.said:  # each round has the same, as a rule
            self.said.append(text)
            self.tell(f"does not answer a request ({envelope.action[:40]!r}): {printable(text)}")
        return write("refused", Refusal(text))

    def _introduce(self, head: Hello) -> Envelope:
        if head.refused:
            self.tell(f"the server refuses it: {printable(head.refused)}; correct it, and start again")
        if self.info.sums:
            self.tell(f"tells the server the sums of its columns, so that all agree: {', '.join(self.info.sums)}")
        # The server need only see that the data stay the same: without the key it could try out what is in them.
        data = hmac.new(own_secret(self.state), f"data {self.info.data}".encode(), "sha256").hexdigest()
        return write("hello", replace(self.info, data=data))


# ---------------------------------------------------------------- answers on disk
@dataclass(frozen=True)
class _StoredAnswer:
    """An answer with its consequences, as it lies on disk.

    Attributes:
        request: SHA-256 of the request.
        before: The answer whose memory counted when the round began.
        answer, reply: Head and payload of the answer.
        memory: The client's memory from then on, encoded.
        held: Values that stay on the client for this round, encoded, by key.
    """

    request: str
    before: str
    answer: StepReply
    reply: bytes
    memory: bytes
    held: dict[str, bytes]


class _Cell:
    """A client in one round of one seed and method of its own experiment, with the answers that it has given."""

    def __init__(self, runtime: ClientRuntime, context: RoundContext) -> None:
        self.runtime, self.context, self.rules = runtime, context, runtime.rules
        if context.config != runtime.info.config:
            raise WireError(
                f"the server runs another experiment (SHA-256 {context.config[:12]}, "
                f"here {runtime.info.config[:12]}); both sides need the same experiment.toml"
            )
        if not all(name.isalnum() and len(name) <= 64 for name in (context.run, context.attempt or "none")):
            raise WireError("the names of a run and of its rounds must be up to 64 letters and digits")
        if min(context.cell, context.round) < 0:
            raise WireError("a request must say where in the run it belongs")
        if runtime.rounds is not None and context.round > runtime.rounds:
            raise WireError(f"round {context.round} lies behind the experiment's last, {runtime.rounds}")
        self.folder = runtime.state / context.run / str(context.cell)

    @cached_property
    def answers(self) -> set[str]:
        """Names of the answers on disk; to be read when it is locked, if one is to be added."""
        return {path.name for path in self.folder.glob("*-*-????")}

    @cached_property
    def setup(self) -> ClientSetup:
        """Parts that the client needs for this seed and method."""
        return self.runtime.open_setup(self.context.cell)

    @cached_property
    def validator(self) -> Validator:
        """Bounds on messages; one may carry one model for each client, as those of gossip and clustered methods do."""
        setup = self.setup
        limit = limit_bytes(setup.initial, 4 + self.runtime.info.num_clients)
        task, public = setup.trainer.task, setup.trainer.public
        return Validator(setup.initial, limit, sizes=sizes_of(task.num_classes, task.layout, setup.initial, public))

    @property
    def reports(self) -> bool:
        """True if counts, losses and test results may leave: they have no noise, so not where a method adds some."""
        return self.rules.policy.metrics and not hook(self.setup.method, "has_dp_noise")

    def tell(self, text: str) -> None:
        """Write a line about progress into the client's own log."""
        self.runtime.tell(f"{self.setup.name}, seed {self.setup.seed}: {text}")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make sure that no second process answers for this client at the same time."""
        self.runtime.state.mkdir(parents=True, exist_ok=True)
        with lockable(self.runtime.state / ".lock") as f:
            try:
                lock(f)
            except BlockingIOError:
                raise RunError("it is busy with an earlier request") from None
            yield

    def load(self, name: str) -> _StoredAnswer:
        """Read an answer; RunError if it is gone, and with it the client's memory, or damaged."""
        if name not in self.answers:
            raise RunError(
                f"what this client remembered is gone ({name[:80]}); restore {self.folder}, or start a new run"
            )
        try:
            kept: _StoredAnswer = wire.decode((self.folder / name).read_bytes(), _StoredAnswer)
        except WireError as error:
            raise RunError(f"{self.folder / name} is damaged ({error}); restore it from a copy") from None
        return kept

    def save(self, now: str, kept: _StoredAnswer, since: str) -> None:
        """Write an answer, whole, on the disk before the server sees it; drop those that no server can need any more.

        Those of the current round stay: they hold values.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / now, wire.encode(kept))
        for name in self.answers - {since, self.load(since).before if since else ""}:
            if name[:-4] != now[:-4]:
                (self.folder / name).unlink(missing_ok=True)
        for other in self.folder.parent.iterdir():  # a server that goes back goes to the cell before this one at most
            if other.name.isdecimal() and int(other.name) < self.context.cell - 1:
                rmtree(other, ignore_errors=True)

    def memory(self, since: str) -> bytes:
        """The client's memory, encoded, after an answer; empty if there is none."""
        return self.load(since).memory if since else b""

    def held(self, held: Held) -> bytes:
        """A value that this client holds, encoded; refuse one that it does not."""
        hop = held.key.partition("/")[0]
        name = self.context.answer(int(hop)) if hop.isdecimal() and len(hop) < 7 else ""
        kept = self.load(name).held if name in self.answers else {}
        if held.key not in kept:
            raise WireError(f"there is no value {held.key[:40]!r}; held values live for one round")
        return kept[held.key]

    # ------------------------------------------------------------ a step
    def run_step(self, head: StepRequest, parts: tuple[bytes, ...]) -> Envelope:
        """Answer with the step's reply; a request that was answered gets the same answer again."""
        if head.refused:
            self.runtime.tell(f"the server refused its last reply: {printable(head.refused)}")
        if not 0 <= head.hop < 10_000 or not self.context.round or not self.context.attempt:
            raise WireError("an exchange must be one of a round")
        now = self.context.answer(head.hop)
        if len(parts) != 1 + len(head.moved):
            raise WireError(f"expected a message and {len(head.moved)} values, got {len(parts)} payloads")
        # What the server knows of the client is no part of it.
        whole = hashlib.sha256(repr((head.step, head.index, head.moved)).encode())
        for part in parts:
            whole.update(hashlib.sha256(part).digest())
        digest = whole.hexdigest()
        with self.locked():
            if now in self.answers and (kept := self.load(now)).request == digest:
                return write("ask", kept.answer, kept.reply)
            began, minutes = time.monotonic(), self.folder.parent / "minutes"
            spent = float(minutes.read_text("utf-8")) if minutes.exists() else 0.0
            most, allowed = self.rules.policy.max_minutes, self.rules.policy.max_bytes
            if most is not None and spent >= most:
                raise self.rules.forbid("max_minutes", f"this experiment's steps have taken {spent:.1f} minutes here")
            earlier = {name: self.load(name) for name in self.answers if name[:6] == now[:6]}
            before = next((k.before for name, k in earlier.items() if name[:-4] == now[:-4]), head.since)
            kept = replace(self.compute(head, parts, digest), before=before)
            size = sum(len(k.reply) + sum(map(len, k.held.values())) for k in (kept, *earlier.values()))
            if allowed is not None and size > allowed:
                raise self.rules.forbid("max_bytes", f"{size} bytes would leave this client in one round")
            self.save(now, kept, head.since)
            if most is not None:
                write_atomically(minutes, repr(spent + (time.monotonic() - began) / 60.0))
        return write("ask", kept.answer, kept.reply)

    def compute(self, head: StepRequest, parts: tuple[bytes, ...], digest: str) -> _StoredAnswer:
        """Run the requested step."""
        context, client, setup = self.context, self.runtime.client, self.setup
        steps, signatures = steps_of(setup.method), wire.signatures(setup.method)
        if head.step not in steps:
            raise WireError(f"there is no step {head.step[:40]!r}; known: {', '.join(steps)}")
        before = self.memory(head.since)
        mine = wire.decode(before, wire.memory_type(setup.method)) if before else None
        message = self.resolve(head, parts, signatures[head.step].message)
        key = Key(setup.seed) / "round" / context.round / "client" / client / head.index
        # A request refers to held values by name: the same request may mean others after a new start of the server.
        # And the server says which memory counts: from another one, the same noise would show how both replies differ.
        hashes = (hashlib.sha256(part).digest() for part in (wire.encode(message), before))
        what = hashlib.sha256(b"".join((digest.encode(), *hashes))).hexdigest()
        me = self.me(key, what)
        self.charge(head, message, what)
        began = time.monotonic()
        given = moved((message, mine), setup.trainer.device)
        done = run_step(setup.trainer, StepJob(head.step, steps[head.step], me, *given))
        reply, memory = taken_apart(head.step, done.value, me.n)
        binding = hook(setup.method, "binding")
        if binding is not None and (to := binding(head.step, message)) is not None:
            # By cell and round alone: a server that says it is another run, or began anew, gets nothing else either.
            bind(self.runtime.state / "bound.sqlite", f"{context.cell}/{context.round}", to)
        held: dict[str, bytes] = {}

        def keep(value: Keep, path: str) -> Held:
            key = f"{head.hop}{path}"
            held[key] = wire.encode(value.value)
            return Held(client, key)

        encoded = wire.encode(map_keep(keep, reply))
        reported = (me.n, done.examples, done.losses) if self.reports else (0, 0, ())
        loss = f", loss {statistics.fmean(done.losses):.4f} on {counted(me.n, 'example')}" if done.losses else ""
        self.tell(f"round {context.round}, step {head.step}: {time.monotonic() - began:.1f} s{loss}")
        return _StoredAnswer(
            digest, head.since, StepReply(memory is not None, *reported), encoded, wire.encode(memory), held
        )

    def resolve(self, head: StepRequest, parts: tuple[bytes, ...], of: Any) -> Any:
        """Decode the message, with held values in place of their references."""
        message = self.validator.decode(parts[0], of)
        held_type = wire.held_type(self.setup.method)
        came = {h: self.validator.decode(data, held_type) for h, data in zip(head.moved, parts[1:], strict=True)}
        references: list[Held] = []

        def value(h: Held) -> Any:
            references.append(h)
            if h in came:
                return came[h]
            if h.owner != self.runtime.client:
                raise WireError(f"the message needs {h.key[:40]!r} of client {h.owner}, which did not come with it")
            return wire.decode(self.held(h), held_type)

        message = map_held(value, message)
        # A held value may only stand where its type may: the message is decoded once more from its own bytes.
        return wire.decode(wire.encode(message), of) if references else message

    def me(self, key: Key, what: str) -> Me:
        """The client's view of itself, with private keys whose draws no one else can repeat.

        They depend on its data and memory, the experiment and the request.  Two uploads with the same noise would
        reveal their exact difference.  So only a byte-identical request, of the same experiment on the same data and
        memory, may draw the same noise again.
        """
        runtime, context = self.runtime, self.context
        own = Key(int.from_bytes(own_secret(runtime.state), "big")) / runtime.info.data
        asked = own / "ask" / context.config / context.run / context.cell / context.round / what
        lasting = own / "lasting" / context.config / context.cell
        me = self.setup.me(runtime.client, context.round, key)
        return replace(me, private=asked, private_fixed=lasting)

    def charge(self, head: StepRequest, message: Any, what: str) -> None:
        """Record what the reply costs of the client's privacy budget; refuse it if that is spent."""
        spending = hook(self.setup.method, "spending")
        if spending is None:
            return
        runtime, context = self.runtime, self.context
        # Another folder has another secret, so that the same request draws other noise there: it is another upload.
        drawn = hashlib.sha256(b"account" + own_secret(runtime.state)).hexdigest()
        request = (drawn, context.config, context.run, context.cell, context.round, head.step, what)
        place = hashlib.sha256(repr(request).encode()).hexdigest()
        upload = NoisedUpload(runtime.account or runtime.info.data, context.config, context.cell, place)
        charge(runtime.privacy or runtime.state / "privacy.sqlite", upload, spending(head.step, message), self.rules)

    # ------------------------------------------------------------ held values, evaluation
    def fetch(self, held: tuple[Held, ...]) -> Envelope:
        """Hand values over that this client holds."""
        if not self.rules.policy.relay:
            raise self.rules.forbid("relay", "this client hands over no value for other clients")
        if len({*held}) < len(held):  # one request would take any memory here
            raise WireError("a value was asked for twice in one request")
        return write("fetch", FetchReply(), *map(self.held, held))

    def evaluate(self, head: EvaluationRequest, parts: tuple[bytes, ...]) -> Envelope:
        """Evaluate the client's own model on its own data, and keep it after the last round."""
        runtime, context, setup = self.runtime, self.context, self.setup
        if not self.reports and not head.last:
            return write("evaluate", EvaluationReply(()))
        if len(parts) > 1:
            raise WireError(f"expected a model at most, got {len(parts)} payloads")
        served: Params | None = self.validator.decode(parts[0], Params) if parts else None
        model, memory = served, b""
        personalise = personalise_of(setup.method)
        if personalise is not None:
            memory = self.memory(head.since)
            mine = wire.decode(memory, wire.memory_type(setup.method)) if memory else None
            key = Key(setup.seed) / "round" / context.round / "client" / runtime.client / "personalise"
            me, given = self.me(key, "personalise"), moved((model, mine), setup.trainer.device)
            model = run_step(setup.trainer, StepJob("personalise", personalise, me, *given)).value
        if head.last and model is not None and setup.keep_model is not None:
            setup.keep_model(model, served)
        if head.last:
            self.tell(f"training has ended after {counted(context.round, 'round')}")
        if model is None or not self.reports:
            return write("evaluate", EvaluationReply(()))
        # Scores of a few models of the server's choice give away the labels: of each round there are those of one.
        asked = repr((head.parts, [hashlib.sha256(part).hexdigest() for part in (*parts, memory)]))
        scored = f"scores of model {hashlib.sha256(asked.encode()).hexdigest()[:32]}"
        bind(runtime.state / "bound.sqlite", f"scores {context.cell}/{context.round}", scored)
        scores = []
        for part in head.parts:
            where, rows = setup.eval_set.get(part, ("train", torch.empty(0, dtype=torch.int64)))
            if rows is None or len(rows):
                columns = setup.trainer.evaluate(model, where, rows)
                values = tuple(None if math.isnan(v) else v for v in setup.trainer.task.values(columns))
                scores.append((part, values, len(columns[0])))
        return write("evaluate", EvaluationReply(tuple(scores)))


def own_secret(state: Path) -> bytes:
    """Read a client's own 32 random bytes in its folder of memory; they are made at the first use."""
    path = state / SECRET
    if not path.exists():
        state.mkdir(parents=True, exist_ok=True)
        write_atomically(path, secrets.token_bytes(32), PRIVATE)
    secret = path.read_bytes()
    if len(secret) != 32:
        raise RunError(f"{SECRET} must hold 32 bytes, got {len(secret)}; restore it from a copy, or remove it")
    return secret
