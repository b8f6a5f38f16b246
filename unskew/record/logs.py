"""A run's JSON documents, and words on its rows, which `unskew.record.database` keeps."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypedDict

import pydantic

from unskew import schema
from unskew.errors import DivergedError, RunError, UnskewError
from unskew.files import read_bytes
from unskew.record import database
from unskew.record.database import rows as rows

SCHEMA = 1

LARGE, LARGEST = 1 << 26, {"partition.json": 1 << 30}
"""Bytes that a document may have, and those that may have more: one lists the examples of each client."""

Bound = Literal["lower", "pooled"]


# ---------------------------------------------------------------- rows
class DivergedRow(TypedDict):
    """A method that diverged under a seed: the round, and the reason."""

    method: str
    seed: int
    round: int
    reason: str


def why_diverged(row: Mapping[str, object]) -> str:
    """A method's divergence, as an error says it."""
    return f"{row['method']}, seed {row['seed']}: {row['reason']}"


def require_none_diverged(diverged: Sequence[DivergedRow]) -> None:
    """Refuse a run's results if a method diverged under some seed.

    Raises:
        DivergedError: Of the first that diverged.
    """
    if diverged:
        error = DivergedError(why_diverged(diverged[0]))
        error.where = (diverged[0]["method"], diverged[0]["seed"], diverged[0]["round"])
        raise error


def deployed(folder: Path, command: str) -> bool:
    """True if the run in a folder, begun by `command`, is over a network, where clients hold their own data."""
    if command.startswith("unskew fed"):
        return True
    return (folder / database.FILE).exists() and any(database.rows(folder, "network", "id = 1"))


SERVED, ADAPTED = "unseen", "unseen_adapted"
"""Clients that come after training, as they are served and after adapting: the parts of such metrics' names."""


CLOCK = "seconds"
"""The metric that is no result: another run of the same experiment has another time."""

VIRTUAL_CLOCK = "clock"
"""The metric of simulated seconds, by round; only of a run whose `world` gives clients a pace."""


def gap_name(part: str, measure: str) -> str:
    """Name of the difference between clients that trained and unseen clients of `part`.

    >>> gap_name(SERVED, "accuracy"), gap_name(ADAPTED, "accuracy")
    ('gap.accuracy', 'gap_adapted.accuracy')
    """
    return f"{part.replace('unseen', 'gap')}.{measure}"


# ---------------------------------------------------------------- reading
def document(path: Path) -> dict[str, Any]:
    """A JSON object of a run.

    Raises:
        RunError: If it cannot be read, or is no JSON object.
    """
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise refusal(path, f"it is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise refusal(path, "it is not a JSON object")
    return content


@contextmanager
def understood(folder: Path) -> Iterator[None]:
    """Turn errors from invalid documents into RunError."""
    try:
        yield
    except (LookupError, ArithmeticError, TypeError, ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, UnskewError):
            raise
        what = f"{type(error).__name__}: {error}"
        raise RunError(f"{folder} has invalid documents ({what}); restore it or run again") from None


def read_text(path: Path) -> str:
    """A file of a run as text.

    Raises:
        RunError: If it cannot be read.
    """
    try:
        return read_bytes(path, LARGEST.get(path.name, LARGE)).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: OSError | UnicodeDecodeError) -> RunError:
    """The error for a file that cannot be read."""
    why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
    return RunError(f"{path} cannot be read: {why or error}; restore it or run again")


def refusal(path: Path, what: str) -> RunError:
    """The error for an invalid file of a run."""
    return RunError(f"{path}: {what}; the file is corrupt, restore it or run again")


def sentence(error: pydantic.ValidationError) -> str:
    """The first problem and the field it is in, in words."""
    text = schema.sentence(error, "").replace(" must be a table, got", " must be a JSON object, got")
    return text.lstrip(": ")


def plain(value: object) -> str:
    """A value of a JSON document as readable text: text as it is, the rest as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def described(split: Mapping[str, object]) -> str:
    """A split in words: its name and parameters, but not the number of clients or the least each has.

    >>> described({"name": "dirichlet", "alpha": 0.1, "num_clients": 20})
    'dirichlet(alpha=0.1)'
    >>> described({"name": "natural", "min_samples": 1})
    'the data’s own division'
    """
    name, apart = str(split.get("name", "split")), ("name", "num_clients", "min_samples")
    rest = ", ".join(f"{k}={plain(v)}" for k, v in split.items() if k not in apart and v is not None)
    return "the data’s own division" if name == "natural" else name + f"({rest})" * bool(rest)
