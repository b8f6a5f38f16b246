"""Documents of a run, each with its type, and words on its rows, which `unskew.record.database` keeps.

A document is JSON; one that differs from what a run writes is refused by file and field.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypeVar

import pydantic
from annotated_types import MinLen
from typing_extensions import TypedDict

from unskew import schema
from unskew.errors import DivergedError, RunError
from unskew.files import read_bytes
from unskew.info import Count, adapter
from unskew.record import database
from unskew.record.database import rows as rows
from unskew.tasks.measure import Direction

SCHEMA = 1

LARGE, LARGEST = 1 << 26, {"partition.json": 1 << 30}
"""Bytes that a document may have, and those that may have more: one lists the examples of each client."""

Bound = Literal["lower", "pooled"]

T = TypeVar("T")


# ---------------------------------------------------------------- rows
class DivergedRow(TypedDict):
    """A method that diverged under a seed: in which round, and how that was noticed."""

    method: str
    seed: Count
    round: Count
    reason: str


def why_diverged(row: Mapping[str, object]) -> str:
    """A method's divergence as an error says it."""
    return f"{row['method']}, seed {row['seed']}: {row['reason']}"


def require_none_diverged(diverged: Sequence[DivergedRow]) -> None:
    """Refuse a run's results where they are needed of every method under every seed.

    Raises:
        DivergedError: Of the first that diverged.
    """
    if diverged:
        error = DivergedError(why_diverged(diverged[0]))
        error.where = (diverged[0]["method"], diverged[0]["seed"], diverged[0]["round"])
        raise error


def deployed(folder: Path, command: str) -> bool:
    """True if the run in a folder, begun by `command`, is one over a network, whose clients hold data of their own."""
    if command.startswith("unskew deploy"):
        return True
    return (folder / database.FILE).exists() and any(database.rows(folder, "network", "id = 1"))


SERVED, ADAPTED = "unseen", "unseen_adapted"
"""Clients that come after training, as they are served and after adapting: the parts of such metrics' names."""


CLOCK = "seconds"
"""The metric that is no result: another run of the same experiment has another time."""


def part_of(name: str) -> str:
    """The part that a metric is measured on; all metrics of one part are taken in the same rounds.

    >>> part_of("personal.accuracy.mean")
    'personal'
    """
    return name.partition(".")[0]


def evaluated(curves: Mapping[tuple[str, int, str], Iterable[int]]) -> dict[tuple[str, int, str], set[int]]:
    """The rounds in which each part was evaluated: (method, seed, part) from the rounds of (method, seed, name)."""
    rounds: dict[tuple[str, int, str], set[int]] = {}
    for (method, seed, name), curve in curves.items():
        rounds.setdefault((method, seed, part_of(name)), set()).update(curve)
    return rounds


def gap_name(part: str, measure: str) -> str:
    """Name of the difference of the clients that trained to those of `part`, which came after training.

    >>> gap_name(SERVED, "accuracy"), gap_name(ADAPTED, "accuracy")
    ('gap.accuracy', 'gap_adapted.accuracy')
    """
    return f"{part.replace('unseen', 'gap')}.{measure}"


# ---------------------------------------------------------------- documents
class RunCell(TypedDict):
    """One training of the run, in run.json."""

    method: str
    setting: str
    seed: Count
    bound: NotRequired[Bound | None]


class MeasureCard(TypedDict):
    """A metric of the run's task, as `unskew.tasks.measure.Measure` has it."""

    name: str
    label: str
    direction: Direction
    low: float | None
    high: float | None
    percent: bool
    positive: NotRequired[str]


class RunCard(TypedDict):
    """run.json: methods, machine, versions and data of the run."""

    run: str
    created: str
    command: str
    unskew: str
    environment: dict[str, Any]
    config_sha256: str
    portable_sha256: NotRequired[str]
    parameters: NotRequired[Count]
    baseline: NotRequired[str]
    measures: NotRequired[Annotated[list[MeasureCard], MinLen(1)]]
    until: NotRequired[dict[str, Any]]
    remarks: NotRequired[list[str]]
    network_sha256: NotRequired[str]
    begun_in: NotRequired[str]
    cells: Annotated[list[RunCell], MinLen(1)]


class Divisions(TypedDict):
    """partition.json: the examples of each client, by seed, as `unskew.data.federated.to_manifest` writes them."""

    seeds: dict[int, dict[str, Any]]


class ResultRow(TypedDict):
    """A row of the table of results: a method's metric, its mean and standard deviation over seeds."""

    method: str
    setting: NotRequired[str]
    metric: str
    mean: float
    std: NotRequired[float | None]
    seeds: list[float]
    undefined: NotRequired[Count]
    clients: NotRequired[list[Count]]


class SummaryCard(TypedDict):
    """summary.json: what a run wrote when it ended."""

    run: str
    fingerprint: str
    record_sha256: NotRequired[str]
    seconds: float
    peak_rss: NotRequired[float]
    headline: NotRequired[MeasureCard]
    asked: NotRequired[list[MeasureCard]]
    rows: list[ResultRow]
    seeds: NotRequired[list[Count]]
    diverged: NotRequired[list[DivergedRow]]
    stopped: NotRequired[dict[str, Any] | None]


class _Versioned(TypedDict):
    schema: NotRequired[Literal[1]]


def document(path: Path, kind: type[T]) -> T:
    """A JSON document of a run, checked.

    Raises:
        RunError: If it cannot be read, was written by another version, or is not as a run writes it.
    """
    text = read_text(path)
    try:
        adapter(_Versioned).validate_json(text)
        content: T = adapter(kind).validate_json(text, strict=True)
    except pydantic.ValidationError as error:
        raise refusal(path, sentence(error)) from None
    return content


# ---------------------------------------------------------------- reading
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
    """The error for a file that no run writes so."""
    return RunError(f"{path}: {what}; the file is corrupt, restore it or run again")


def sentence(error: pydantic.ValidationError) -> str:
    """The first problem and the field it is in, in words."""
    text = schema.sentence(error, "").replace(" must be a table, got", " must be a JSON object, got")
    return text.lstrip(": ")


def plain(value: object) -> str:
    """A value of a JSON document as readable text: text as it is, the rest as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def described(split: Mapping[str, object]) -> str:
    """A split in words: its name, and its parameters but for the number of clients and the least that each has.

    >>> described({"name": "dirichlet", "alpha": 0.1, "num_clients": 20})
    'dirichlet(alpha=0.1)'
    >>> described({"name": "natural", "min_samples": 1})
    'the data’s own division'
    """
    name, apart = str(split.get("name", "split")), ("name", "num_clients", "min_samples")
    rest = ", ".join(f"{k}={plain(v)}" for k, v in split.items() if k not in apart and v is not None)
    return "the data’s own division" if name == "natural" else name + f"({rest})" * bool(rest)
