"""A client that answers letters: its half of a deployment, whatever the network.

Nothing is kept in the process, which may live for one letter only: what a client remembers lies in files.

    STATE/                           the client's own disk
        draws.secret                 32 random bytes, from which noise and masks are drawn that the server must not know
        <run>/<cell>/                by the run's random name, and by seed and method
            000012-0001-0003         round 12, first start of the server, hop 3: one answer and all that came of it

An answer is one file: reply, memory from then on, values held for the round.  It is written whole or not at all, so a
client that is killed has either answered or not begun, and an order that comes twice is answered twice with the same
bytes.  The answers of the last two rounds before the present one stay, for a server that goes back to a checkpoint;
what was done for a server that did is no part of the run any more, and is dropped.
"""

import errno
import hashlib
import os
import secrets
import sys
import traceback
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
from unskew.lock import lock
from unskew.protocol import ClientId, Held, Keep, Me, map_held, map_keep, steps_of
from unskew.runtime.message import (
    ASKED,
    Answer,
    Envelope,
    Evaluate,
    Evaluated,
    Fetch,
    Fetched,
    Introduction,
    Order,
    Place,
    Refused,
    read,
    write,
)
from unskew.runtime.validation import Validator, limit_bytes, sizes_of
from unskew.tree import Params

KEPT_ROUNDS = 2


@dataclass(frozen=True, eq=False)
class Desk:
    """What a client has at hand for one seed and method.

    Attributes:
        algorithm: Whose steps are run.
        solo: Meets their requests.
        me: (client, round, key) -> what the client knows about itself.
        initial: The model it can build for itself.
        seed: Root of the run's randomness.
        eval_set: Rows (None is all) of its test or training inputs that it tests itself on, by part.
        keep_model: Writes the model it uses after training into its own folder.
    """

    algorithm: Any
    trainer: LocalTrainer
    me: Callable[[ClientId, int, Key], Me]
    initial: Params
    seed: int
    eval_set: Mapping[str, tuple[Literal["test", "train"], Tensor | None]]
    keep_model: Callable[[Params], None] | None = None


@dataclass(frozen=True, eq=False)
class ClientRuntime:
    """One client.

    Attributes:
        introduction: What it says of itself, without a nonce.
        state: The folder it remembers in.
        open_desk: The desk of a cell, by its number.
        metrics: Whether it says how its training and its own tests went.
        max_norm: Largest L2 norm of a message's floating-point tensors.
    """

    introduction: Introduction
    state: Path
    open_desk: Callable[[int], Desk]
    metrics: bool = True
    max_norm: float = 1e6

    @property
    def client(self) -> ClientId:
        """Its number."""
        return self.introduction.client

    def where(self, error: OSError) -> str:
        """Which file an error is about; of the client's own folder without what lies above it."""
        name = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else self.state
        return str(name.relative_to(self.state.parent) if name.is_relative_to(self.state) else name)

    def answer(self, envelope: Envelope) -> Envelope:
        """The reply to a letter; whatever is wrong with it, there is one."""
        nonce = ""
        try:
            head = read(envelope, ASKED)
            nonce = head.nonce
            if isinstance(head, Order):
                return _order(self, head, envelope.parts)
            if isinstance(head, Fetch):
                return _fetch(self, head)
            if isinstance(head, Evaluate):
                return _examine(self, head, envelope.parts)
            mine = {name: getattr(self.introduction, name) for name in Introduction.__dataclass_fields__}
            return write("hello", Introduction(**{**mine, "nonce": nonce}))
        except UnskewError as error:
            return write("refused", Refused(str(error), nonce))
        except OSError as error:
            text = f"cannot use {self.where(error)}: {error.strerror or type(error).__name__}"
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                text += "; make room on this client's disk, and it takes part again"
            print(f"client {self.client} {text}", file=sys.stderr, flush=True)
            return write("refused", Refused(text, nonce))
        except Exception as error:
            # Its text may quote the client's data: the server gets the kind, the client's own log the rest.
            traceback.print_exc(file=sys.stderr)
            return write("refused", Refused(f"{type(error).__name__}; the client's own log has more", nonce))


# ---------------------------------------------------------------- answers on disk
class _Name(NamedTuple):
    """When an answer was given; ascending is the order they were given in."""

    round: int
    attempt: int
    hop: int

    def __str__(self) -> str:
        return f"{self.round:06d}-{self.attempt:04d}-{self.hop:04d}"


@dataclass(frozen=True)
class _Kept:
    """An answer and all that came of it.

    Attributes:
        order: SHA-256 of what was asked.
        answer, reply: What was answered.
        memory: What the client remembers from then on, encoded.
        held: Values that stay on the client for this round, encoded, by key.
    """

    order: str
    answer: Answer
    reply: bytes
    memory: bytes
    held: dict[str, bytes]


def _folder(runtime: ClientRuntime, place: Place) -> Path:
    if place.config != runtime.introduction.config:
        raise WireError(
            f"the server runs another experiment (SHA-256 {place.config[:12]}, "
            f"here {runtime.introduction.config[:12]}); both sides need the same experiment.toml"
        )
    if not place.run.isalnum() or len(place.run) > 64:
        raise WireError("the name of a run must be up to 64 letters and digits")
    starts = [a for a, _ in place.begun]
    if not starts or starts != sorted(set(starts)) or min(place.cell, place.round, *starts) < 0:
        raise WireError("a letter must say where in the run it belongs")
    return runtime.state / place.run / str(place.cell)


def _names(folder: Path) -> list[_Name]:
    if not folder.is_dir():
        return []
    parts = (p.name.split("-") for p in folder.iterdir())
    return sorted(_Name(*map(int, p)) for p in parts if len(p) == 3 and all(part.isdecimal() for part in p))


def _load(folder: Path, name: _Name) -> _Kept:
    try:
        kept: _Kept = wire.decode((folder / str(name)).read_bytes(), _Kept)
    except WireError as error:
        raise RunError(f"{folder / str(name)} is damaged ({error}); restore it from a copy") from None
    return kept


def _save(folder: Path, name: _Name, kept: _Kept) -> None:
    """Write an answer whole or not at all; on the disk before the server may hear of it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / str(name), wire.encode(kept))


def _tidy(folder: Path, names: list[_Name], now: _Name, place: Place) -> None:
    """Drop what no server can ask for any more; the present round stays whole, it holds values."""
    last = {n.round: n for n in names if n.round < now.round and place.counts(n.round, n.attempt)}
    stay = {last[r] for r in sorted(last)[-KEPT_ROUNDS:]}
    for n in names:
        if n[:2] != now[:2] and n not in stay:
            (folder / str(n)).unlink(missing_ok=True)
    for other in folder.parent.iterdir():  # a server that goes back goes to the cell before this one at most
        if other.name.isdecimal() and int(other.name) < place.cell - 1:
            rmtree(other, ignore_errors=True)


@contextmanager
def _alone(runtime: ClientRuntime) -> Iterator[None]:
    """Let no second process answer for this client at the same time."""
    runtime.state.mkdir(parents=True, exist_ok=True)
    with (runtime.state / ".lock").open("w") as f:
        try:
            lock(f)
        except BlockingIOError:
            raise RunError(f"client {runtime.client} is busy with an earlier letter") from None
        yield


def _latest(folder: Path, names: list[_Name], place: Place, since: int) -> _Kept | None:
    """The last answer that is part of the run, of no later round than this.

    Raises:
        RunError: If the server knows of a later one: the client's memory was lost.
    """
    mine = [n for n in names if place.counts(n.round, n.attempt) and n.round <= place.round]
    if since > (mine[-1].round if mine else 0):
        raise RunError(
            f"what this client remembered of round {since} is gone; put {folder} back as it was, or begin the run anew"
        )
    return _load(folder, mine[-1]) if mine else None


# ---------------------------------------------------------------- Order
def _order(runtime: ClientRuntime, head: Order, parts: tuple[bytes, ...]) -> Envelope:
    place, folder = head.place, _folder(runtime, head.place)
    now = _Name(place.round, place.attempt, head.hop)
    if place.round < max(place.begun[-1][1], 1) or head.hop < 0:
        raise WireError(f"round {place.round} lies before this server began")
    if len(parts) != 1 + len(head.moved):
        raise WireError(f"expected a message and {len(head.moved)} values, got {len(parts)} payloads")
    digest = _digest(head, parts)
    with _alone(runtime):
        names = _names(folder)
        if now in names and (kept := _load(folder, now)).order == digest:
            return _reply(runtime, kept, head.nonce)
        for n in reversed(names):
            if n.attempt > now.attempt or (n.attempt == now.attempt and n >= now):
                raise WireError(
                    f"round {now.round}, hop {now.hop} of start {now.attempt} is over: "
                    f"round {n.round}, hop {n.hop} of start {n.attempt} was answered"
                )
        kept = _work(runtime, head, parts, folder, names, digest)
        _save(folder, now, kept)
        _tidy(folder, names, now, place)
    return _reply(runtime, kept, head.nonce)


def _digest(head: Order, parts: tuple[bytes, ...]) -> str:
    """What an order asks for; the nonce and what the server knows of the client are no part of it."""
    whole = hashlib.sha256(repr((head.step, head.index, head.moved)).encode())
    for part in parts:
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()


def _reply(runtime: ClientRuntime, kept: _Kept, nonce: str) -> Envelope:
    a = kept.answer
    told = (a.n, a.examples, a.losses) if runtime.metrics else (0, 0, ())
    return write("ask", Answer(a.remembers, *told, nonce), kept.reply)


def _work(
    runtime: ClientRuntime, head: Order, parts: tuple[bytes, ...], folder: Path, names: list[_Name], digest: str
) -> _Kept:
    """Do what is asked."""
    place, client = head.place, runtime.client
    desk = runtime.open_desk(place.cell)
    steps, signatures = steps_of(desk.algorithm), wire.signatures(desk.algorithm)
    if head.step not in steps:
        raise WireError(f"there is no step {head.step[:40]!r}; known: {', '.join(steps)}")
    validator, memory_type = _guard(runtime, desk), wire.memory_type(desk.algorithm)
    before = _latest(folder, names, place, head.since)
    mine = None if before is None else wire.decode(before.memory, memory_type)
    message = _message(runtime, head, parts, folder, validator, signatures[head.step].message, desk)
    key = Key(desk.seed) / "round" / place.round / "client" / client / head.index
    me = _me(runtime, desk, place, key, digest)
    done = run_step(desk.trainer, StepJob(head.step, steps[head.step], me, message, mine))
    if not isinstance(done.value, tuple) or len(done.value) != 2:
        raise ProtocolError(f"step {head.step!r} must return (reply, memory), got {type(done.value).__name__}")
    reply, memory = done.value
    held: dict[str, bytes] = {}

    def keep(value: Keep, path: str) -> Held:
        key = f"{head.hop}{path}"
        held[key] = wire.encode(value.value)
        return Held(client, key)

    encoded = wire.encode(map_keep(keep, reply))
    answer = Answer(memory is not None, me.n, done.examples, done.losses, "")
    return _Kept(digest, answer, encoded, wire.encode(memory), held)


def _me(runtime: ClientRuntime, desk: Desk, place: Place, key: Key, what: str) -> Me:
    """What this client knows about itself, with private draws that nobody can repeat.

    They depend on its data and on what it is asked to do.  Two uploads with the same noise tell their difference as it
    is, so only an order that is the same to the byte, on the same data, may draw the same again.
    """
    own = Key(int.from_bytes(_secret(runtime), "big")) / runtime.introduction.data
    asked = own / "ask" / place.run / place.cell / place.round / what
    lasting = own / "lasting" / place.config / place.cell
    return replace(desk.me(runtime.client, place.round, key), private=asked, lasting=lasting)


def _secret(runtime: ClientRuntime) -> bytes:
    """The client's own 32 random bytes, made when they are first asked for.

    Raises:
        RunError: If they are damaged, or anybody but the owner of the file may read it.
    """
    path = runtime.state / "draws.secret"
    name = path.relative_to(runtime.state.parent)
    if not path.exists():
        runtime.state.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
        try:
            write_synced(temporary, secrets.token_bytes(32), PRIVATE)
            with suppress(FileExistsError):  # another process of this client's was first: all go by that one
                os.link(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    if path.stat().st_mode & 0o077:
        raise RunError(f"{name} can be read by others than its owner; chmod 600 it, or remove it and a new one is made")
    secret = path.read_bytes()
    if len(secret) != 32:
        raise RunError(f"{name} must hold 32 bytes, got {len(secret)}; restore it from a copy, or remove it")
    return secret


def _message(
    runtime: ClientRuntime,
    head: Order,
    parts: tuple[bytes, ...],
    folder: Path,
    validator: Validator,
    of: Any,
    desk: Desk,
) -> Any:
    """The message, with the values that were held in it."""
    message = validator.decode(parts[0], of)
    held_type = wire.held_type(desk.algorithm)
    moved = {h: validator.decode(data, held_type) for h, data in zip(head.moved, parts[1:], strict=True)}
    found: list[Held] = []

    def look(h: Held) -> Any:
        found.append(h)
        if h in moved:
            return moved[h]
        if h.owner != runtime.client:
            raise WireError(f"the message needs {h.key[:40]!r} of client {h.owner}, which did not come with it")
        return wire.decode(_held(folder, head.place, h), held_type)

    message = map_held(look, message)
    # A value may stand only where its type may: the whole is built once more from its own bytes.
    return wire.decode(wire.encode(message), of) if found else message


def _guard(runtime: ClientRuntime, desk: Desk) -> Validator:
    # A message may carry a model of everybody, as gossip's and clustered methods' do.
    limit = limit_bytes(desk.initial, 4 + runtime.introduction.num_clients)
    sizes = sizes_of(len(runtime.introduction.classes), desk.trainer.task.layout, desk.initial)
    return Validator(desk.initial, limit, runtime.max_norm, sizes=sizes)


# ---------------------------------------------------------------- Fetch, Examine
def _fetch(runtime: ClientRuntime, head: Fetch) -> Envelope:
    folder = _folder(runtime, head.place)
    return write("fetch", Fetched(head.nonce), *(_held(folder, head.place, h) for h in head.held))


def _held(folder: Path, place: Place, held: Held) -> bytes:
    hop = held.key.partition("/")[0]
    name = _Name(place.round, place.attempt, int(hop)) if hop.isdecimal() and len(hop) < 7 else None
    if name is None or not (folder / str(name)).is_file():
        raise WireError(f"there is no value {held.key[:40]!r}; held values live for one round")
    kept = _load(folder, name)
    if held.key not in kept.held:
        raise WireError(f"there is no value {held.key[:40]!r} in that reply")
    return kept.held[held.key]


def _examine(runtime: ClientRuntime, head: Evaluate, parts: tuple[bytes, ...]) -> Envelope:
    place, folder = head.place, _folder(runtime, head.place)
    if not runtime.metrics and not head.last:
        return write("examine", Evaluated((), head.nonce))
    if len(parts) != int(head.served):
        raise WireError(f"expected {int(head.served)} payloads, got {len(parts)}")
    desk = runtime.open_desk(place.cell)
    model: Params | None = _guard(runtime, desk).decode(parts[0], Params) if head.served else None
    personalise = getattr(desk.algorithm, "personalise", None)
    if personalise is not None:
        kept = _latest(folder, _names(folder), place, head.since)
        mine = None if kept is None else wire.decode(kept.memory, wire.memory_type(desk.algorithm))
        key = Key(desk.seed) / "round" / place.round / "client" / runtime.client / "personalise"
        work = StepJob("personalise", personalise, _me(runtime, desk, place, key, "personalise"), model, mine)
        model = run_step(desk.trainer, work).value
    if head.last and model is not None and desk.keep_model is not None:
        desk.keep_model(model)
    scores = []
    for part in head.parts if runtime.metrics else ():
        where, rows = desk.eval_set.get(part, ("train", torch.empty(0, dtype=torch.int64)))
        if model is not None and (rows is None or len(rows)):
            correct, loss = desk.trainer.evaluate(model, where, rows)
            scores.append((part, float(correct.double().mean()), float(loss.double().mean()), len(correct)))
    return write("examine", Evaluated(tuple(scores), head.nonce))
