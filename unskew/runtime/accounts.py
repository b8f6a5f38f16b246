"""A client's own accounts: a log of every request, and what its noised uploads have cost of its privacy.

The audit log has a row for every request, on the disk before the answer leaves.

Notation   z      noise multiplier of an upload: standard deviation of its noise over its L2 sensitivity
           q      share: probability that an example is in the upload's sample, 1 if all are
All uploads from one data set are composed, over all experiments (`unskew.server.privacy.composed_epsilon`).

They are recorded in a database outside the run's folder, by data set, so that a new run or federation does not reset
it.  The same request, on the same data in the same run, draws the same noise, so answering it again costs nothing.
"""

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from unskew.errors import RunError, WireError
from unskew.files import PRIVATE, append_row
from unskew.protocol import Spending
from unskew.runtime.message import HEAD_BYTES, Envelope
from unskew.runtime.policy import Rules
from unskew.server import privacy

# ---------------------------------------------------------------- the audit log
_RELEASED = {"hello": "a description of the client", "ask": "the step's reply", "fetch": "held values"}
_REPORTED = {"examples": "counts of examples", "losses": "training losses", "scores": "test results", "sums": "sums"}


def append(path: Path, action: str, **row: Any) -> None:
    """Append a row to the audit log, synced to the disk; OSError if the disk refuses."""
    append_row(path, {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "action": action[:40], **row})


def record(path: Path, request: Envelope, reply: Envelope) -> None:
    """Append a row on a request and its answer, synced to the disk; OSError if the disk refuses."""
    asked, answered = _head(request), _head(reply)
    context = asked.get("context")
    place = {**(context if isinstance(context, dict) else {}), **asked}
    row = {name: place.get(name) for name in ("run", "cell", "round", "hop", "step")}  # from elsewhere
    row = {name: v[:80] if isinstance(v, str) else v for name, v in row.items() if type(v) in (int, str)}
    for name, envelope in (("in", request), ("out", reply)):
        row[f"bytes_{name}"] = len(envelope.head.encode("utf-8", "replace")) + envelope.payload
    for name, envelope in (("request", request), ("reply", reply)):
        digest = hashlib.sha256(envelope.head.encode("utf-8", "replace"))
        for part in envelope.parts:
            digest.update(hashlib.sha256(part).digest())
        row[name] = digest.hexdigest()
    if reply.action == "refused":
        row["refused"] = answered.get("reason")
    else:
        reports = [name for key, name in _REPORTED.items() if answered.get(key)]
        row["released"] = [_RELEASED[reply.action], *reports] if reply.action in _RELEASED else reports
    append(path, request.action, **row)


def _head(envelope: Envelope) -> dict[str, Any]:
    """The head of an envelope that may be anything."""
    try:
        head = json.loads(envelope.head) if len(envelope.head) <= HEAD_BYTES else None
    except (ValueError, RecursionError):
        head = None
    return head if isinstance(head, dict) else {}


# ---------------------------------------------------------------- the privacy that uploads cost
LOCKED_WITHIN_S = 30.0
_TABLES = (
    "CREATE TABLE IF NOT EXISTS uploads (at TEXT DEFAULT CURRENT_TIMESTAMP, data TEXT, experiment TEXT, cell INTEGER, "
    "request TEXT, purpose TEXT, z REAL CHECK (z > 0), n INTEGER CHECK (n > 0), q REAL CHECK (q > 0 AND q <= 1))",
    "CREATE TABLE IF NOT EXISTS bound (place TEXT PRIMARY KEY, what TEXT)",
)


class NoisedUpload(NamedTuple):
    """The identity of a noised upload.

    Attributes:
        data: SHA-256 of its data.
        experiment: SHA-256 of the resolved experiment.
        cell: Index of the seed and method.
        request: SHA-256 of run, cell, round and request: the noise is drawn from it.
    """

    data: str
    experiment: str
    cell: int
    request: str


def charge(path: Path, upload: NoisedUpload, spending: Sequence[Spending], rules: Rules) -> None:
    """Record a noised upload, on the disk before it leaves.

    Args:
        path: The record.
        upload: The upload.
        spending: Its cost, by purpose.
        rules: The participant's, with the greatest epsilon of all uploads from the data.

    Raises:
        WireError: If it would cost more than the experiment or the participant's policy allows.
        RunError: If the record cannot be used.
    """
    if not spending:
        return
    with _opened(path) as db:
        if db.execute("SELECT 1 FROM uploads WHERE data = ? AND request = ?", (upload.data, upload.request)).fetchone():
            return
        for s in spending:
            query = "SELECT total(n) FROM uploads WHERE data = ? AND experiment = ? AND cell = ? AND purpose = ?"
            before = int(db.execute(query, (*upload[:3], s.purpose)).fetchone()[0])
            if s.most is not None and before + s.mechanisms > s.most:
                raise WireError(
                    f"the privacy budget of this experiment is spent: {before} of {s.most} noised releases about this "
                    f"client's data were made ({s.purpose}), and another one was asked for"
                )
            row = (*upload, s.purpose, s.multiplier, s.mechanisms, s.share)
            columns = "data, experiment, cell, request, purpose, z, n, q"
            db.execute(f"INSERT INTO uploads ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        _check(db, upload.data, (), rules, "with this upload")


def check_planned(path: Path, data: str, spending: Sequence[Spending], rules: Rules) -> None:
    """Refuse an experiment before its first upload, if all its uploads would cost more than the policy allows."""
    with _opened(path) as db:
        _check(db, data, spending, rules, "after this experiment")


def _check(db: sqlite3.Connection, data: str, more: Sequence[Spending], rules: Rules, when: str) -> None:
    if (most := rules.policy.max_epsilon) is not None:
        query = "SELECT z, q, sum(n) FROM uploads WHERE data = ? GROUP BY z, q ORDER BY z, q"
        uploads = [((z, q), n) for z, q, n in db.execute(query, (data,))]
        uploads += [((s.multiplier, s.share), s.mechanisms) for s in more]
        epsilon = privacy.composed_epsilon(tuple(uploads), rules.policy.delta)
        if epsilon > most:
            raise rules.forbid("max_epsilon", f"{when} epsilon would be {epsilon:.4g} about this client's data")


def bind(path: Path, place: str, what: str) -> None:
    """Record a client's commitment in a place, before its reply leaves; a different one there is refused."""
    with _opened(path) as db:
        db.execute("INSERT OR IGNORE INTO bound VALUES (?, ?)", (place, what))
        (bound,) = db.execute("SELECT what FROM bound WHERE place = ?", (place,)).fetchone()
        if bound != what:
            raise WireError(f"this client has given {bound} in this round already")


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A transaction, whole or not at all; no other client of this machine uses the record meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(PRIVATE)
    try:
        with closing(sqlite3.connect(path, timeout=LOCKED_WITHIN_S, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            for table in _TABLES:
                db.execute(table)
            yield db
            db.execute("COMMIT")
    except sqlite3.Error as error:
        raise RunError(
            f"{path} cannot be used ({error}); it records what this client has disclosed about its data; if it is "
            "damaged, restore it from a copy"
        ) from None
