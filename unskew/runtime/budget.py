"""A client's own record of the noised uploads it has made, across runs, and its refusal to make more than are paid for.

Notation   z      noise multiplier of an upload: standard deviation of its noise over its L2 sensitivity
           q      share: probability that an example is in what the upload is about, 1 if all are
All uploads about one data set are composed, of whatever experiment (`unskew.server.privacy.composed_epsilon`).

A server says how often it asks; this record says how often the client answered.  It lies outside the run's folder and
is kept by data set, so that neither a new run nor a new federation starts from nothing.  The same request, on the same
data in the same run, draws the same noise: answering it again tells nothing new and costs nothing.
"""

import json
import math
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from unskew.errors import RunError, WireError
from unskew.files import append_row
from unskew.lock import lock, lockable
from unskew.protocol import Spending
from unskew.runtime.policy import Rules
from unskew.server import privacy

LOCKED_WITHIN_S = 30.0


@dataclass(frozen=True)
class NoisedUpload:
    """The place of a noised upload.

    Attributes:
        data: SHA-256 of the data it is about.
        experiment: SHA-256 of the resolved experiment.
        cell: Index of the seed and method.
        request: SHA-256 of run, cell, round and request: the noise is drawn from it.
    """

    data: str
    experiment: str
    cell: int
    request: str


FIELDS = {f.name for f in fields(NoisedUpload)}


def charge(path: Path, upload: NoisedUpload, spending: Sequence[Spending], rules: Rules) -> None:
    """Record a noised upload before it leaves.

    Args:
        path: The record.
        upload: The upload.
        spending: What it costs, by purpose.
        rules: Those of the participant: the greatest epsilon of all uploads about the data.

    Raises:
        WireError: If it would cost more than the experiment or the participant's policy allows.
        RunError: If the record is damaged.
    """
    if not spending:
        return
    costs = [[s.purpose, s.multiplier, s.mechanisms, s.share] for s in spending]
    with _locked(path):
        _drop_torn_line(path)
        rows = [row for row in _rows(path) if row["data"] == upload.data]
        if any(row["request"] == upload.request for row in rows):
            return
        same = [r for r in rows if (r["experiment"], r["cell"]) == (upload.experiment, upload.cell)]
        for s in spending:
            before = sum(n for r in same for purpose, _, n, _ in r["spending"] if purpose == s.purpose)
            if s.most is not None and before + s.mechanisms > s.most:
                raise WireError(
                    f"the privacy budget of this experiment is spent: {before} of {s.most} noised releases about this "
                    f"client's data were made ({s.purpose}), and another one was asked for"
                )
        most = rules.policy.max_epsilon
        if most is not None:
            made = Counter[tuple[float, float]]()
            for _, z, n, share in (cost for row in (*rows, {"spending": costs}) for cost in row["spending"]):
                made[z, share] += n
            epsilon = privacy.composed_epsilon(tuple(sorted(made.items())), rules.policy.delta)
            if epsilon > most:
                raise rules.forbid(
                    "max_epsilon", f"with this upload epsilon would be {epsilon:.4g} about this client's data"
                )
        now = datetime.now(UTC).isoformat(timespec="seconds")
        # One row: it is written whole or not at all.
        append_row(path, {"time": now, **asdict(upload), "spending": costs})


def bind(path: Path, place: str, what: str) -> None:
    """Record what a client commits itself to in a place, before its reply leaves.

    Raises:
        WireError: If it is bound to something else there.
    """
    _drop_torn_line(path)
    lines = path.read_bytes().splitlines() if path.exists() else ()
    bound: dict[str, str] = {k: v for line in lines for k, v in json.loads(line).items()}
    if bound.setdefault(place, what) != what:
        raise WireError(f"this client has given {bound[place]} in this round, and gives no other one")
    append_row(path, {place: what})


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """Read the record.

    Raises:
        RunError: If a line is damaged.
    """
    if not path.exists():
        return
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            row = json.loads(line)
            row["spending"] = [tuple(cost) for cost in row["spending"]]
            sound = (math.inf > z > 0.0 and n > 0 and 0.0 < share <= 1.0 for _, z, n, share in row["spending"])
            if not all(sound) or not row.keys() >= FIELDS:
                raise ValueError
        except (ValueError, TypeError, KeyError, RecursionError):
            raise RunError(
                f"line {number} of {path} is damaged; it records what this client has disclosed about its data; "
                "restore it from a copy"
            ) from None
        yield row


def _drop_torn_line(path: Path) -> None:
    """Cut off a last line that a power cut tore: its upload had not left."""
    if path.exists() and not (data := path.read_bytes()).endswith(b"\n"):
        os.truncate(path, data.rfind(b"\n") + 1)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Wait until no other client of this machine uses the record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + LOCKED_WITHIN_S
    with lockable(path.with_name(f"{path.name}.lock")) as f:
        while True:
            try:
                lock(f)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise RunError(f"{path} is in use by another process of this machine") from None
                time.sleep(0.02)
        yield
