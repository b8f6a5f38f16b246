"""The log of a deployment: lines with time and level, on stderr or in a file, as text or as JSON.

What a line is about goes beside its text as fields: `log("refused", site="Basel")`.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Literal

LOG = logging.getLogger("unskew.deploy")
Format = Literal["text", "json"]
MOST_BYTES, KEPT = 10_000_000, 5
"""Size at which a file of the log is put aside, bytes, and how many of these are kept."""


def log(text: str, level: int = logging.INFO, **fields: Any) -> None:
    """Write a line to the log."""
    LOG.log(level, text.rstrip("\n"), extra={"fields": fields})


def warn(text: str, **fields: Any) -> None:
    """Write a warning to the log."""
    log(text, logging.WARNING, **fields)


class _Lines(logging.Formatter):
    """A line of text: time with its difference to UTC, level, what it is about, and what is said."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created).astimezone().isoformat(" ", "seconds")
        about = "".join(f" {name}={value}" for name, value in getattr(record, "fields", {}).items())
        return f"{at} {record.levelname.lower():7}{about} {record.getMessage()}"


class _Json(logging.Formatter):
    """A line of JSON: time in UTC, level, text and fields."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = {
            k: v if isinstance(v, str | int | float) else str(v) for k, v in getattr(record, "fields", {}).items()
        }
        return json.dumps({"time": at, "level": record.levelname.lower(), "text": record.getMessage(), **fields})


def show(form: Format = "text", file: Path | None = None) -> None:
    """Show the log on stderr from now on, and write it to a file that is rotated, if one is given.

    Raises:
        OSError: If the file cannot be written.
    """
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(RotatingFileHandler(file, maxBytes=MOST_BYTES, backupCount=KEPT, encoding="utf-8"))
    for handler in handlers:
        handler.setFormatter(_Json() if form == "json" else _Lines())
    for old in LOG.handlers:
        old.close()
    LOG.handlers[:] = handlers
    LOG.setLevel(logging.INFO)


def printable(text: str, longest: int = 300) -> str:
    """Turn text from elsewhere into one line that is safe for a terminal and a log."""
    line = "".join(ch if ch.isprintable() else " " for ch in text[: longest + 1])
    return line if len(line) <= longest else line[: longest - 3] + "..."
