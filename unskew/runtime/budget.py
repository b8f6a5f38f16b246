"""A client's own record of the noised uploads it has made, across runs, and its refusal to make more than are paid for.

Notation   z      noise multiplier of an upload: standard deviation of its noise over its L2 sensitivity
           Gaussian mechanisms of multipliers z_i are together one of multiplier (sum 1 / z_i^2)^(-1/2), exactly (1)

A server says how often it asks; this record says how often the client answered.  It lies outside the run's folder and
is kept by data set, so that neither a new run nor a new federation starts from nothing.  The same request, on the same
data in the same run, draws the same noise: answering it again tells nothing new and costs nothing.
"""

import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from unskew.errors import RunError, WireError
from unskew.lock import lock, lockable
from unskew.protocol import Spending
from unskew.runtime.policy import Rules, append
from unskew.server import privacy

LOCKED_WITHIN_S = 30.0


@dataclass(frozen=True)
class Upload:
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


FIELDS = {f.name for f in fields(Upload)}


def charge(path: Path, upload: Upload, spending: Sequence[Spending], rules: Rules) -> None:
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
    with _locked(path):
        _drop_torn_line(path)
        rows = [row for row in _rows(path) if row["data"] == upload.data]
        if any(row["request"] == upload.request for row in rows):
            return
        same = [r for r in rows if (r["experiment"], r["cell"]) == (upload.experiment, upload.cell)]
        for s in spending:
            before = sum(n for r in same for purpose, _, n in r["spending"] if purpose == s.purpose)
            if s.most is not None and before + s.mechanisms > s.most:
                raise WireError(
                    f"the privacy budget of this experiment is spent: {before} of {s.most} noised releases about this "
                    f"client's data were made ({s.purpose}), and another one was asked for"
                )
        most = rules.policy.max_epsilon
        if most is not None:
            inverse = sum(n / z**2 for r in rows for _, z, n in r["spending"])
            inverse += sum(s.mechanisms / s.multiplier**2 for s in spending)
            epsilon = privacy.epsilon(1.0 / math.sqrt(inverse), 1, rules.policy.delta)  # (1)
            if epsilon > most:
                raise rules.forbid(
                    "max_epsilon", f"with this upload epsilon would be {epsilon:.4g} about this client's data"
                )
        now = datetime.now(UTC).isoformat(timespec="seconds")
        costs = [[s.purpose, s.multiplier, s.mechanisms] for s in spending]
        append(path, {"time": now, **asdict(upload), "spending": costs})  # one row: it is written whole or not at all


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
            if not all(math.inf > z > 0.0 and n > 0 for _, z, n in row["spending"]) or not row.keys() >= FIELDS:
                raise ValueError
        except (ValueError, TypeError, KeyError, RecursionError):
            raise RunError(
                f"line {number} of {path} is damaged; it records what this client has told about its data, restore it "
                "from a copy"
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
