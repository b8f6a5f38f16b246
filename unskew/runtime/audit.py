"""A participant's audit log: every request that a client answers is a row, on the disk before the answer leaves."""

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from unskew.files import append_row
from unskew.runtime.message import HEAD_BYTES, Envelope


def record(path: Path, request: Envelope, reply: Envelope) -> None:
    """Append a row about a request and its answer to the audit log, on the disk when this returns.

    Raises:
        OSError: If the disk refuses.
    """
    asked, answered = _fields(request), _fields(reply)
    place = asked.get("context")
    row: dict[str, Any] = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "action": request.action[:40],
        **_named(place if isinstance(place, dict) else {}, "run", "cell", "round"),
        **_named(asked, "hop", "step"),
        "bytes_in": len(request.head.encode("utf-8", "replace")) + request.payload,
        "bytes_out": len(reply.head.encode("utf-8", "replace")) + reply.payload,
        "request": _digest(request),
        "reply": _digest(reply),
    }
    if reply.action == "refused":
        row["refused"] = answered.get("reason")
    else:
        row["released"] = _released(reply, answered)
    append_row(path, row)


def _named(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return these fields as far as they are numbers or text, which is cut: they came from elsewhere."""
    plain = ((name, fields[name]) for name in names if type(fields.get(name)) in (int, str))
    return {name: value[:80] if isinstance(value, str) else value for name, value in plain}


def _fields(envelope: Envelope) -> dict[str, Any]:
    if len(envelope.head) > HEAD_BYTES:
        return {}
    try:
        head = json.loads(envelope.head)
    except (ValueError, RecursionError):
        return {}
    return head if isinstance(head, dict) else {}


def _released(reply: Envelope, head: Mapping[str, Any]) -> list[str]:
    """Name what an answer told the server."""
    names = {"hello": "a description of the client", "ask": "the step's reply", "fetch": "held values"}
    metrics = {"examples": "counts of examples", "losses": "training losses", "scores": "test results"}
    released = [names[reply.action]] if reply.action in names else []
    return released + [name for key, name in metrics.items() if head.get(key)]


def _digest(envelope: Envelope) -> str:
    digest = hashlib.sha256(envelope.head.encode("utf-8", "replace"))
    for part in envelope.parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()
