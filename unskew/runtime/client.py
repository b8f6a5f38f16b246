"""The client's half of a deployment: answers the server's requests, whatever the network.

Nothing is kept in the process, which may live for one request only: what a client remembers is in files.

    STATE/                           on the client's own disk
        draws.secret                 32 random bytes: the root of noise and masks that the server must not know
        evaluated.all/<cell>/<round> what was evaluated in a round, by whatever run, and the scores
        bound.jsonl                  whose sum was unmasked in each round, which no server can have undone
        <run>/<cell>/                by the run's random name, and by the index of seed and method
            000012-0001-0003         round 12, first server process, hop 3: one answer and its consequences

An answer is one file: the reply, the client's memory from then on, and the values it holds for the round.  The file is
written atomically, so a client that is killed has either answered or not begun, and a request that comes twice gets the
same bytes twice.  The answers of the last two rounds before the current one are kept for a server that resumes from a
checkpoint; work for a server that did not finish its round is no longer part of the run, and is dropped.
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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from unskew import wire
from unskew.errors import ProtocolError, RunError, UnskewError, WireError
from unskew.files import PRIVATE, write_atomically, write_synced
from unskew.keys import Key
from unskew.local.executor import StepJob
from unskew.local.sequential import run_step
from unskew.local.trainer import LocalTrainer
from unskew.lock import lock, lockable
from unskew.protocol import ClientId, Held, Keep, Me, hook, map_held, map_keep, personalise_of, steps_of
from unskew.runtime.audit import record
from unskew.runtime.budget import NoisedUpload, bind, charge
from unskew.runtime.counts import check_own_count
from unskew.runtime.log import log, printable
from unskew.runtime.membership import COLUMNS
from unskew.runtime.message import (
    REPLIES,
    REQUESTS,
    ClientInfo,
    Envelope,
    EvaluationReply,
    EvaluationRequest,
    FetchReply,
    FetchRequest,
    Refusal,
    RoundContext,
    StepReply,
    StepRequest,
    read,
    write,
)
from unskew.runtime.policy import Rules
from unskew.runtime.validation import Validator, limit_bytes, sizes_of
from unskew.tree import Params, moved
from unskew.words import counted

SECRET = "draws.secret"
"""File of a client's own secret, in its folder of memory."""
KEPT_ROUNDS = 2


@dataclass(frozen=True, eq=False)
class ClientSetup:
    """Objects a client needs for one seed and method.

    Attributes:
        method: Method whose steps are run.
        trainer: Does the local training that steps request.
        me: (client, round, key) -> the client's view of itself.
        initial: Initial model, which the client can build by itself.
        seed: Root of the run's randomness.
        eval_set: Rows (None is all) of the test or training inputs to evaluate on, by part.
        keep_model: Writes the final model, and the one that the server served it, if any, into the client's own folder;
            None keeps no model.
    """

    method: Any
    trainer: LocalTrainer
    me: Callable[[ClientId, int, Key], Me]
    initial: Params
    seed: int
    eval_set: Mapping[str, tuple[Literal["test", "train"], Tensor | None]]
    keep_model: Callable[[Params, Params | None], None] | None = None


@dataclass(frozen=True, eq=False)
class ClientRuntime:
    """One client of a deployment.

    Attributes:
        info: The client's description of itself, without a nonce.
        state: Folder for all that it remembers.
        open_setup: Makes the setup of a cell from its index.
        metrics: True to report training losses and own evaluations to the server; never under differential privacy.
        max_norm: Largest L2 norm allowed for a message's floating-point tensors.
        rules: The participant's own.
        audit: File of the audit log; None keeps none.
        privacy: Record of noised uploads, across runs; by default in `state`.
        account: Name of the data in that record, which no experiment changes; by default `info.data`.
        columns: Names of its input columns, which it tells its own user where the server refuses them.
        rounds: Rounds of the experiment, beyond which it answers no step; None knows of no end.
        cells: Names of the experiment's seeds and methods, by cell, for the lines about progress.
        until: True if the run may end before the last of these cells.
    """

    info: ClientInfo
    state: Path
    open_setup: Callable[[int], ClientSetup]
    metrics: bool = True
    max_norm: float = 1e6
    rules: Rules = Rules()
    audit: Path | None = None
    privacy: Path | None = None
    account: str = ""
    columns: tuple[str, ...] = ()
    rounds: int | None = None
    cells: tuple[str, ...] = ()
    until: bool = False

    @property
    def client(self) -> ClientId:
        """Number of the client."""
        return self.info.client

    def tell(self, context: RoundContext, text: str) -> None:
        """Write a line on the progress of a run into this client's own log."""
        cell = self.cells[context.cell] if 0 <= context.cell < len(self.cells) else f"cell {context.cell}"
        log(f"client {self.client}: {cell}: {text}")

    def where(self, error: OSError) -> str:
        """Name the file an error is about, relative to the client's folder if it is in there."""
        name = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else self.state
        return str(name.relative_to(self.state.parent) if name.is_relative_to(self.state) else name)

    def answer(self, envelope: Envelope) -> Envelope:
        """Reply to a request; whatever is wrong with it, there is a reply.  It is in the audit log before it leaves."""
        reply = self._answer(envelope)
        if self.audit is not None:
            try:
                record(self.audit, envelope, reply)
            except OSError as error:
                text = f"cannot write the audit log {self.audit.name}: {error.strerror}; make room, or mend its rights"
                log(f"client {self.client} {text}")
                return write("refused", Refusal(text, read(reply, REPLIES).nonce))
        return reply

    def _answer(self, envelope: Envelope) -> Envelope:
        nonce = ""
        try:
            head = read(envelope, REQUESTS)
            nonce = head.nonce
            if isinstance(head, StepRequest):
                if head.refused:
                    log(f"client {self.client}: the server refused its last reply: {printable(head.refused)}")
                return _run_step(self, head, envelope.parts)
            if isinstance(head, FetchRequest):
                return _fetch(self, head)
            if isinstance(head, EvaluationRequest):
                return _evaluate(self, head, envelope.parts)
            if head.refused:
                text = f"the server refuses it: {printable(head.refused)}; mend that, and start it again"
                if COLUMNS in head.refused:
                    text += f" (its columns, in order: {printable(', '.join(self.columns))})"
                log(f"client {self.client}: {text}")
            # The server need only see that the data stay the same: without the key it could try out what is in them.
            data = hmac.new(own_secret(self.state), f"data {self.info.data}".encode(), "sha256").hexdigest()
            return write("hello", replace(self.info, data=data, nonce=nonce))
        except UnskewError as error:
            log(f"client {self.client} does not answer a request ({envelope.action[:40]!r}): {printable(str(error))}")
            return write("refused", Refusal(str(error), nonce))
        except OSError as error:
            text = f"cannot use {self.where(error)}: {error.strerror or type(error).__name__}"
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                text += "; make room on this client's disk, and it takes part again"
            log(f"client {self.client} {text}")
            return write("refused", Refusal(text, nonce))
        except Exception as error:
            # The error's text may quote the client's data: only its type is sent, the client's own log has the rest.
            log(traceback.format_exc())
            return write("refused", Refusal(f"{type(error).__name__}; the client's own log has more", nonce))


# ---------------------------------------------------------------- answers on disk
class _AnswerId(NamedTuple):
    """Position of an answer in the run; answers were given in ascending order."""

    round: int
    attempt: int
    hop: int

    def __str__(self) -> str:
        return f"{self.round:06d}-{self.attempt:04d}-{self.hop:04d}"


@dataclass(frozen=True)
class _StoredAnswer:
    """An answer with its consequences, as it lies on disk.

    Attributes:
        request: SHA-256 of the request.
        answer, reply: Head and payload of the answer.
        memory: The client's memory from then on, encoded.
        held: Values that stay on the client for this round, encoded, by key.
    """

    request: str
    answer: StepReply
    reply: bytes
    memory: bytes
    held: dict[str, bytes]


def _cell_folder(runtime: ClientRuntime, context: RoundContext) -> Path:
    if context.config != runtime.info.config:
        raise WireError(
            f"the server runs another experiment (SHA-256 {context.config[:12]}, "
            f"here {runtime.info.config[:12]}); both sides need the same experiment.toml"
        )
    if not context.run.isalnum() or len(context.run) > 64:
        raise WireError("the name of a run must be up to 64 letters and digits")
    starts = [a for a, _ in context.starts]
    if not starts or starts != sorted(set(starts)) or min(context.cell, context.round, *starts) < 0:
        raise WireError("a request must say where in the run it belongs")
    if runtime.rounds is not None and context.round > runtime.rounds:
        raise WireError(f"round {context.round} lies behind the experiment's last, {runtime.rounds}")
    return runtime.state / context.run / str(context.cell)


def _answer_ids(folder: Path) -> list[_AnswerId]:
    if not folder.is_dir():
        return []
    parts = (p.name.split("-") for p in folder.iterdir())
    return sorted(_AnswerId(*map(int, p)) for p in parts if len(p) == 3 and all(part.isdecimal() for part in p))


def _load(folder: Path, name: _AnswerId) -> _StoredAnswer:
    try:
        kept: _StoredAnswer = wire.decode((folder / str(name)).read_bytes(), _StoredAnswer)
    except WireError as error:
        raise RunError(f"{folder / str(name)} is damaged ({error}); restore it from a copy") from None
    return kept


def _save(folder: Path, name: _AnswerId, kept: _StoredAnswer) -> None:
    """Write an answer atomically; it is on the disk before the server sees it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / str(name), wire.encode(kept))


def _drop_old_answers(folder: Path, names: list[_AnswerId], now: _AnswerId, context: RoundContext) -> None:
    """Remove answers that no server can need any more; those of the current round stay, they hold values."""
    last = {n.round: n for n in names if n.round < now.round and context.counts(n.round, n.attempt)}
    stay = {last[r] for r in sorted(last)[-KEPT_ROUNDS:]}
    for n in names:
        if n[:2] != now[:2] and n not in stay:
            (folder / str(n)).unlink(missing_ok=True)
    for other in folder.parent.iterdir():  # a server that goes back goes to the cell before this one at most
        if other.name.isdecimal() and int(other.name) < context.cell - 1:
            rmtree(other, ignore_errors=True)


@contextmanager
def _locked(runtime: ClientRuntime) -> Iterator[None]:
    """Make sure that no second process answers for this client at the same time."""
    runtime.state.mkdir(parents=True, exist_ok=True)
    with lockable(runtime.state / ".lock") as f:
        try:
            lock(f)
        except BlockingIOError:
            raise RunError(f"client {runtime.client} is busy with an earlier request") from None
        yield


def _latest_answer(folder: Path, names: list[_AnswerId], context: RoundContext, since: int) -> _StoredAnswer | None:
    """Load the last answer that is part of the run and not later than the request's round.

    Raises:
        RunError: If the server knows of a later one, so the client's memory was lost.
    """
    mine = [n for n in names if context.counts(n.round, n.attempt) and n.round <= context.round]
    if since > (mine[-1].round if mine else 0):
        raise RunError(f"what this client remembered of round {since} is gone; restore {folder}, or start a new run")
    return _load(folder, mine[-1]) if mine else None


# ---------------------------------------------------------------- running a step
def _run_step(runtime: ClientRuntime, head: StepRequest, parts: tuple[bytes, ...]) -> Envelope:
    context, folder = head.context, _cell_folder(runtime, head.context)
    now = _AnswerId(context.round, context.attempt, head.hop)
    if context.round < max(context.starts[-1][1], 1) or head.hop < 0:
        raise WireError(f"round {context.round} lies before this server began")
    runtime.rules.check(step=head.step)
    if len(parts) != 1 + len(head.moved):
        raise WireError(f"expected a message and {len(head.moved)} values, got {len(parts)} payloads")
    digest = _digest(head, parts)
    with _locked(runtime):
        names = _answer_ids(folder)
        if now in names and (kept := _load(folder, now)).request == digest:
            return _reply(runtime, kept, head.nonce)
        for n in reversed(names):
            if n.attempt > now.attempt or (n.attempt == now.attempt and n >= now):
                raise WireError(
                    f"round {now.round}, hop {now.hop} of start {now.attempt} is over: "
                    f"round {n.round}, hop {n.hop} of start {n.attempt} was answered"
                )
        began, spent = time.monotonic(), _minutes(folder.parent)
        runtime.rules.check(minutes=spent)
        kept = _compute(runtime, head, parts, folder, names, digest)
        this_round = [kept, *(_load(folder, n) for n in names if n.round == now.round)]
        runtime.rules.check(size=sum(len(k.reply) + sum(map(len, k.held.values())) for k in this_round))
        _save(folder, now, kept)
        if runtime.rules.policy.max_minutes is not None:
            write_atomically(folder.parent / "minutes", repr(spent + (time.monotonic() - began) / 60.0))
        _drop_old_answers(folder, names, now, context)
    return _reply(runtime, kept, head.nonce)


def _minutes(run: Path) -> float:
    """Minutes that the steps of a run have taken here."""
    path = run / "minutes"
    return float(path.read_text("utf-8")) if path.exists() else 0.0


def _digest(head: StepRequest, parts: tuple[bytes, ...]) -> str:
    """Hash a request without its nonce and without what the server knows of the client."""
    whole = hashlib.sha256(repr((head.step, head.index, head.moved)).encode())
    for part in parts:
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()


def _reply(runtime: ClientRuntime, kept: _StoredAnswer, nonce: str) -> Envelope:
    a = kept.answer
    metrics = (a.n, a.examples, a.losses) if runtime.metrics else (0, 0, ())
    return write("ask", StepReply(a.remembers, *metrics, nonce), kept.reply)


def _compute(
    runtime: ClientRuntime,
    head: StepRequest,
    parts: tuple[bytes, ...],
    folder: Path,
    names: list[_AnswerId],
    digest: str,
) -> _StoredAnswer:
    """Run the requested step."""
    context, client = head.context, runtime.client
    setup = runtime.open_setup(context.cell)
    steps, signatures = steps_of(setup.method), wire.signatures(setup.method)
    if head.step not in steps:
        raise WireError(f"there is no step {head.step[:40]!r}; known: {', '.join(steps)}")
    validator, memory_type = _validator(runtime, setup), wire.memory_type(setup.method)
    before = _latest_answer(folder, names, context, head.since)
    mine = None if before is None else wire.decode(before.memory, memory_type)
    message = _resolve_message(runtime, head, parts, folder, validator, signatures[head.step].message, setup)
    key = Key(setup.seed) / "round" / context.round / "client" / client / head.index
    # A request refers to held values by name: the same request may mean others after a new start of the server.  And
    # the server says which memory counts: from another one, the same noise would show the difference of both replies.
    memory_now = b"" if before is None else before.memory
    hashes = (hashlib.sha256(part).digest() for part in (wire.encode(message), memory_now))
    what = hashlib.sha256(b"".join((digest.encode(), *hashes))).hexdigest()
    me = _me(runtime, setup, context, key, what)
    _charge(runtime, setup, head, message, what)
    began = time.monotonic()
    given = moved((message, mine), setup.trainer.device)
    done = run_step(setup.trainer, StepJob(head.step, steps[head.step], me, *given))
    if not isinstance(done.value, tuple) or len(done.value) != 2:
        raise ProtocolError(f"step {head.step!r} must return (reply, memory), got {type(done.value).__name__}")
    reply, memory = done.value
    check_own_count(head.step, reply, me.n)
    binding = hook(setup.method, "binding")
    if binding is not None and (to := binding(head.step, message)) is not None:
        # By cell and round alone: a server that says it is another run, or began anew, gets nothing else either.
        bind(runtime.state / "bound.jsonl", f"{context.cell}/{context.round}", to)
    held: dict[str, bytes] = {}

    def keep(value: Keep, path: str) -> Held:
        key = f"{head.hop}{path}"
        held[key] = wire.encode(value.value)
        return Held(client, key)

    encoded = wire.encode(map_keep(keep, reply))
    reported = (me.n, done.examples, done.losses) if _metrics(runtime, setup) else (0, 0, ())
    answer = StepReply(memory is not None, *reported, "")
    of = "" if runtime.rounds is None else f" of {runtime.rounds}"
    loss = f", loss {statistics.fmean(done.losses):.4f} on {counted(me.n, 'example')}" if done.losses else ""
    runtime.tell(context, f"round {context.round}{of}, step {head.step}: {time.monotonic() - began:.1f} s{loss}")
    return _StoredAnswer(digest, answer, encoded, wire.encode(memory), held)


def _metrics(runtime: ClientRuntime, setup: ClientSetup) -> bool:
    """True if counts, losses and test results may be reported: they have no noise, so not where a method adds some."""
    return runtime.metrics and not hook(setup.method, "has_dp_noise")


def _charge(runtime: ClientRuntime, setup: ClientSetup, head: StepRequest, message: Any, what: str) -> None:
    """Record what the reply costs of the client's privacy budget.

    Raises:
        WireError: If the budget is spent.
    """
    spending = hook(setup.method, "spending")
    if spending is None:
        return
    context = head.context
    # Another folder has another secret, so that the same request draws other noise there: it is another upload.
    drawn = hashlib.sha256(b"account" + own_secret(runtime.state)).hexdigest()
    request = (drawn, context.config, context.run, context.cell, context.round, head.step, what)
    place = hashlib.sha256(repr(request).encode()).hexdigest()
    upload = NoisedUpload(runtime.account or runtime.info.data, context.config, context.cell, place)
    charge(runtime.privacy or runtime.state / "privacy.jsonl", upload, spending(head.step, message), runtime.rules)


def _me(runtime: ClientRuntime, setup: ClientSetup, context: RoundContext, key: Key, what: str) -> Me:
    """The client's view of itself, with private keys whose draws no one else can repeat.

    They depend on its data and memory, the experiment and the request.  Two uploads with the same noise would reveal
    their exact difference, so only a request that is the same to the byte, of the same experiment on the same data and
    memory, may draw the same noise again.
    """
    own = Key(int.from_bytes(own_secret(runtime.state), "big")) / runtime.info.data
    asked = own / "ask" / context.config / context.run / context.cell / context.round / what
    lasting = own / "lasting" / context.config / context.cell
    return replace(setup.me(runtime.client, context.round, key), private=asked, private_fixed=lasting)


def own_secret(state: Path) -> bytes:
    """Read a client's own 32 random bytes in its folder of memory; they are made at the first use.

    Raises:
        RunError: If they are damaged, or users other than the owner can read the file.
    """
    path = state / SECRET
    name = path.relative_to(state.parent)
    if not path.exists():
        state.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
        try:
            write_synced(temporary, secrets.token_bytes(32), PRIVATE)
            with suppress(FileExistsError):  # another process of this client was first: its secret counts
                os.link(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    if path.stat().st_mode & 0o077:
        raise RunError(f"{name} can be read by others than its owner; chmod 600 it, or remove it and a new one is made")
    secret = path.read_bytes()
    if len(secret) != 32:
        raise RunError(f"{name} must hold 32 bytes, got {len(secret)}; restore it from a copy, or remove it")
    return secret


def _resolve_message(
    runtime: ClientRuntime,
    head: StepRequest,
    parts: tuple[bytes, ...],
    folder: Path,
    validator: Validator,
    of: Any,
    setup: ClientSetup,
) -> Any:
    """Decode the message, with held values in place of their references."""
    message = validator.decode(parts[0], of)
    held_type = wire.held_type(setup.method)
    moved = {h: validator.decode(data, held_type) for h, data in zip(head.moved, parts[1:], strict=True)}
    references: list[Held] = []

    def resolve(h: Held) -> Any:
        references.append(h)
        if h in moved:
            return moved[h]
        if h.owner != runtime.client:
            raise WireError(f"the message needs {h.key[:40]!r} of client {h.owner}, which did not come with it")
        return wire.decode(_held(folder, head.context, h), held_type)

    message = map_held(resolve, message)
    # A held value may only stand where its type may: the message is decoded once more from its own bytes.
    return wire.decode(wire.encode(message), of) if references else message


def _validator(runtime: ClientRuntime, setup: ClientSetup) -> Validator:
    # A message may carry one model for each client, as those of gossip and clustered methods do.
    limit = limit_bytes(setup.initial, 4 + runtime.info.num_clients)
    task, public = setup.trainer.task, setup.trainer.public
    sizes = sizes_of(task.num_classes, task.layout, setup.initial, public)
    return Validator(setup.initial, limit, runtime.max_norm, sizes=sizes)


# ---------------------------------------------------------------- held values, evaluation
def _fetch(runtime: ClientRuntime, head: FetchRequest) -> Envelope:
    runtime.rules.check(relay=True)
    twice = next((h for h, n in Counter(head.held).items() if n > 1), None)
    if twice is not None:
        raise WireError(f"a value was asked for twice in one request: {twice.key[:40]!r}")
    folder = _cell_folder(runtime, head.context)
    return write("fetch", FetchReply(head.nonce), *(_held(folder, head.context, h) for h in head.held))


def _held(folder: Path, context: RoundContext, held: Held) -> bytes:
    hop = held.key.partition("/")[0]
    name = _AnswerId(context.round, context.attempt, int(hop)) if hop.isdecimal() and len(hop) < 7 else None
    if name is None or not (folder / str(name)).is_file():
        raise WireError(f"there is no value {held.key[:40]!r}; held values live for one round")
    kept = _load(folder, name)
    if held.key not in kept.held:
        raise WireError(f"there is no value {held.key[:40]!r} in that reply")
    return kept.held[held.key]


def _evaluate(runtime: ClientRuntime, head: EvaluationRequest, parts: tuple[bytes, ...]) -> Envelope:
    context, folder = head.context, _cell_folder(runtime, head.context)
    setup = runtime.open_setup(context.cell)
    if not _metrics(runtime, setup) and not head.last:
        return write("evaluate", EvaluationReply((), head.nonce))
    if len(parts) != int(head.served):
        raise WireError(f"expected {int(head.served)} payloads, got {len(parts)}")
    served: Params | None = _validator(runtime, setup).decode(parts[0], Params) if head.served else None
    model = served
    memory = b""
    personalise = personalise_of(setup.method)
    if personalise is not None:
        kept = _latest_answer(folder, _answer_ids(folder), context, head.since)
        memory = b"" if kept is None else kept.memory
        mine = None if kept is None else wire.decode(memory, wire.memory_type(setup.method))
        key = Key(setup.seed) / "round" / context.round / "client" / runtime.client / "personalise"
        me, given = _me(runtime, setup, context, key, "personalise"), moved((model, mine), setup.trainer.device)
        model = run_step(setup.trainer, StepJob("personalise", personalise, me, *given)).value
    if head.last and model is not None and setup.keep_model is not None:
        setup.keep_model(model, served)
    if head.last:
        runtime.tell(context, f"training has ended after {counted(context.round, 'round')}")
        if context.cell == len(runtime.cells) - 1 and not runtime.until:
            log(f"client {runtime.client}: the run has ended")
    if model is None or not _metrics(runtime, setup):
        return write("evaluate", EvaluationReply((), head.nonce))
    asked = repr((head.parts, [hashlib.sha256(part).hexdigest() for part in (*parts, memory)]))
    path = runtime.state / "evaluated.all" / str(context.cell) / str(context.round)
    with _locked(runtime):
        # Scores of a few models of the server's choice give away the labels: of each round there are those of one.
        if path.exists():
            before, _, scored = path.read_text("utf-8").partition("\n")
            if before != asked:
                raise WireError(f"round {context.round} was evaluated already, with another model")
            return write("evaluate", replace(read(Envelope("evaluate", scored), REPLIES), nonce=head.nonce))
        scores = []
        for part in head.parts:
            where, rows = setup.eval_set.get(part, ("train", torch.empty(0, dtype=torch.int64)))
            if rows is None or len(rows):
                columns = setup.trainer.evaluate(model, where, rows)
                values = tuple(None if math.isnan(v) else v for v in setup.trainer.task.values(columns))
                scores.append((part, values, len(columns[0])))
        reply = write("evaluate", EvaluationReply(tuple(scores), head.nonce))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, f"{asked}\n{reply.head}")
    return reply
