"""A participant's audit log: a row for every request, on the disk before the answer leaves."""

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from unskew.files import append_row
from unskew.runtime.message import HEAD_BYTES, Envelope

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
