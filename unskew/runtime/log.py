"""The log of a deployment: lines with time and level, on stderr or in a file, as text or as JSON."""

import json
import logging
import sys
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Literal

LOG = logging.getLogger("unskew.deploy")
Format = Literal["text", "json"]
MOST_BYTES, KEPT = 10_000_000, 5
"""Size at which a file of the log is put aside, bytes, and how many of these are kept."""


def log(text: str, level: int = logging.INFO) -> None:
    """Write a line to the log."""
    LOG.log(level, text.rstrip("\n"))


def warn(text: str) -> None:
    """Write a warning to the log."""
    log(text, logging.WARNING)


class _Json(logging.Formatter):
    """A line of JSON: time in UTC, level and text."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        return json.dumps({"time": at, "level": record.levelname.lower(), "text": record.getMessage()})


def show(form: Format = "text", file: Path | None = None) -> None:
    """Show the log on stderr from now on, and with `file` also write it to a rotated file."""
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(RotatingFileHandler(file, maxBytes=MOST_BYTES, backupCount=KEPT, encoding="utf-8"))
    for handler in handlers:
        lines = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%Y-%m-%d %H:%M:%S%z")
        handler.setFormatter(_Json() if form == "json" else lines)
    for old in LOG.handlers:
        old.close()
    LOG.handlers[:] = handlers
    LOG.setLevel(logging.INFO)


def printable(text: str, longest: int = 300) -> str:
    """Text from elsewhere as one line that is safe for a terminal and a log."""
    line = "".join(ch if ch.isprintable() else " " for ch in text[: longest + 1])
    return line if len(line) <= longest else line[: longest - 3] + "..."
