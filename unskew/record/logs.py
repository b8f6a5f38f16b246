"""Records of a run: the rows of its database and its documents, each with its type.

`METRICS.rows(folder)` gives the rows of a table; `unskew.record.database` says how they are kept.  Documents are JSON;
one that differs from what a run writes is refused by file and field.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NotRequired, TypeVar, cast

import pydantic
from annotated_types import Ge, MinLen
from typing_extensions import TypedDict

from unskew import schema
from unskew.errors import DivergedError, RunError
from unskew.files import read_bytes
from unskew.info import Count, Finite, adapter
from unskew.ledger import Kind
from unskew.record import database
from unskew.tasks.measure import Direction

SCHEMA = 1

LARGE, LARGEST = 1 << 26, {"partition.json": 1 << 30}
"""Bytes that a document may have, and those that may have more: one lists the examples of each client."""

Bound = Literal["lower", "pooled"]

T = TypeVar("T")


# ---------------------------------------------------------------- rows
class MetricRow(TypedDict):
    """A number of a round; of a single client if it has `client`.

    `clients` says over how many clients it is, and of how many, where it is not defined for all.
    """

    method: str
    seed: Count
    round: Count
    name: str
    value: Finite
    weight: NotRequired[Finite]
    client: NotRequired[Count | None]
    clients: NotRequired[list[Count]]


class TransferRow(TypedDict):
    """A message that was sent: bytes from node `src` to node `dst`; node 0 is the server."""

    method: str
    seed: Count
    round: Count
    hop: Count
    src: Count
    dst: Count
    kind: Kind
    bytes: Count


class FailureRow(TypedDict):
    """A client that was asked and did not reply, or whose reply was refused."""

    method: str
    seed: Count
    round: Count
    client: Count
    step: NotRequired[str]
    reason: str


class WorkRow(TypedDict):
    """Local training of a client in an exchange, in examples."""

    method: str
    seed: Count
    round: Count
    hop: Count
    client: Count
    examples: Count


class InfoRow(TypedDict):
    """A method's info for a round, under the name of its type: see `unskew.info`."""

    method: str
    seed: Count
    round: Count
    type: str
    info: dict[str, Any]


class NetworkRow(TypedDict):
    """Bytes of a deployed run as they went over the network; the hop of an evaluation is -1."""

    method: str
    seed: Count
    round: Count
    hop: Annotated[int, Ge(-1)]
    client: Count
    way: str
    what: str
    payload: Count
    framing: Count


class DivergedRow(TypedDict):
    """A method that diverged under a seed: in which round, and how that was noticed."""

    method: str
    seed: Count
    round: Count
    reason: str


class ResumedRow(TypedDict):
    """A change of the environment at a resume: its first round, and what `changed`, as "then -> now" or a setting.

    Where that is nothing, it is the first that was run as the run began, again.
    """

    method: str
    seed: Count
    round: Count
    changed: list[str]


def why_diverged(row: DivergedRow) -> str:
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


def part_of(name: str) -> str:
    """The part that a metric is measured on; all metrics of one part are taken in the same rounds.

    >>> part_of("personal.accuracy.mean")
    'personal'
    """
    return name.partition(".")[0]


def evaluated(curves: Mapping[tuple[str, int, str], Iterable[int]]) -> dict[tuple[str, int, str], set[int]]:
    """The rounds in which each part was evaluated: (method, seed, part) from the rounds of (method, seed, name)."""
    rounds: dict[tuple[str, int, str], set[int]] = {}
    for (method, seed, name), of in curves.items():
        rounds.setdefault((method, seed, part_of(name)), set()).update(of)
    return rounds


def gap_name(part: str, measure: str) -> str:
    """Name of the difference of the clients that trained to those of `part`, which came after training.

    >>> gap_name(SERVED, "accuracy"), gap_name(ADAPTED, "accuracy")
    ('gap.accuracy', 'gap_adapted.accuracy')
    """
    return f"{part.replace('unseen', 'gap')}.{measure}"


@dataclass(frozen=True)
class RowLog(Generic[T]):
    """A table of a run's database, with the type of its rows."""

    name: str
    row: type[T]

    def rows(self, folder: Path) -> Iterator[T]:
        """The rows of a run, in the order written.

        Raises:
            RunError: If the database is none of a run, or is damaged, or, of a finished run, not as it was written.
        """
        return cast("Iterator[T]", database.rows(folder, self.name))

    def fresh(self, folder: Path, after: int) -> tuple[list[T], int]:
        """The rows after so many, and how many there are by now: fewer where a resumed run has removed some."""
        rows, count = database.fresh(folder, self.name, after)
        return cast("list[T]", rows), count


METRICS = RowLog("metrics", MetricRow)
LEDGER = RowLog("transfers", TransferRow)
FAILURES = RowLog("failures", FailureRow)
WORK = RowLog("work", WorkRow)
INFO = RowLog("info", InfoRow)
NETWORK = RowLog("network", NetworkRow)
DIVERGED = RowLog("diverged", DivergedRow)
RESUMED = RowLog("resumed", ResumedRow)

LOGS: dict[str, RowLog[Any]] = {
    log.name: log for log in (METRICS, LEDGER, FAILURES, WORK, INFO, NETWORK, DIVERGED, RESUMED)
}
"""The tables, by name."""


def rows(folder: Path, table: str) -> Iterator[dict[str, Any]]:
    """The rows of a table by its name, as `RowLog.rows`."""
    return database.rows(folder, table)


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


class UntilCard(TypedDict):
    """The rule of a run that adds seeds until its comparisons are decided."""

    until: float
    most: Count
    least: Count
    first: Count
    metric: str


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
    until: NotRequired[UntilCard]
    remarks: NotRequired[list[str]]
    network_sha256: NotRequired[str]
    frozen_sha256: NotRequired[str]
    begun_in: NotRequired[str]
    begun_up: NotRequired[str]
    cells: Annotated[list[RunCell], MinLen(1)]


class SplitStats(TypedDict):
    """Statistics of the clients' training examples, and the classes of their test examples, in partition.json."""

    sizes: NotRequired[list[Count]]
    num_clients: NotRequired[Count]
    labels: NotRequired[list[Count]]
    label_counts: NotRequired[list[list[Count]]]
    test_counts: NotRequired[list[list[Count]]]
    test_patients: NotRequired[list[Count]]
    iid_distance: float
    js: float
    effective_classes: float
    domains: NotRequired[list[Count]]


class UnseenCard(TypedDict):
    """The clients that come after training, in partition.json."""

    sizes: list[Count]
    client_names: NotRequired[list[str] | None]


class SplitCard(TypedDict):
    """One seed's division of the data, in partition.json."""

    dataset: str
    dataset_sha256: str
    n: Count
    split: dict[str, Any]
    sha256: str
    test_sha256: NotRequired[str]
    classes: NotRequired[list[str] | None]
    counted: NotRequired[str]
    client_names: NotRequired[list[str] | None]
    columns: NotRequired[str]
    in_time: NotRequired[bool]
    unseen: NotRequired[UnseenCard]
    stats: SplitStats


class SplitCards(TypedDict):
    """partition.json: the examples of each client, by seed."""

    seeds: dict[str, SplitCard]


class Parts(TypedDict):
    """Indices of a client's examples in the data set."""

    train: list[Count]
    val: list[Count]
    test: list[Count]


class LaterParts(TypedDict):
    """The clients that come after training, with their examples."""

    clients: list[Parts]
    client_names: NotRequired[list[str] | None]


class PartsCard(TypedDict):
    """The part of a seed's division that says which client has which examples in which part."""

    clients: NotRequired[list[Parts]]
    client_names: NotRequired[list[str] | None]
    unseen: NotRequired[LaterParts]


class PartsCards(TypedDict):
    """partition.json, read only for the parts of the clients' examples."""

    seeds: dict[str, PartsCard]


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
    executor_notes: NotRequired[dict[str, Any] | None]


class PlannedBytes(TypedDict):
    """Bytes of one seed by direction, in plan.json."""

    down: float
    up: float
    d2d: float


class PlannedMethod(TypedDict):
    """A plan's forecast for a method."""

    method: str
    bytes: NotRequired[PlannedBytes | None]
    seconds: NotRequired[float | None]
    traffic: NotRequired[str]


class PlannedMemory(TypedDict):
    """Bytes at the peak."""

    peak: float


class PlanCard(TypedDict):
    """plan.json: the forecast of a run."""

    methods: list[PlannedMethod]
    seconds: NotRequired[float | None]
    memory: PlannedMemory


def document(path: Path, kind: type[T]) -> T:
    """A JSON document of a run, checked.

    Raises:
        RunError: If it cannot be read, was written by another version, or is not as a run writes it.
    """
    text = read_text(path)
    try:
        return _document(text, kind, path)
    except pydantic.ValidationError as error:
        if is_json(error):
            raise refusal(path, sentence(error)) from None
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise refusal(path, f"not JSON in line {error.lineno} ({error.msg})") from None
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits
        raise refusal(path, f"not JSON ({error})") from None
    raise refusal(path, "not JSON")


def _document(text: str, kind: type[T], path: Path) -> T:
    version = adapter(_Versioned).validate_json(text).get("schema", SCHEMA)
    if version != SCHEMA:
        raise RunError(
            f"{path}: schema must be {SCHEMA}, got {version!r}; "
            "the folder was written by another version of unskew, read it with that one"
        )
    content: T = adapter(kind).validate_json(text, strict=True)
    return content


class _Versioned(TypedDict):
    schema: NotRequired[Any]


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
    return schema.sentence(error, "").replace(" must be a table, got", " must be a JSON object, got").lstrip()


def is_json(error: pydantic.ValidationError) -> bool:
    """True if the refused text is valid JSON."""
    return all(part["type"] not in ("json_invalid", "string_unicode") for part in error.errors(include_url=False))


def plain(value: object) -> str:
    """A value of a JSON document as readable text: text as it is, the rest as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def described(split: Mapping[str, object]) -> str:
    """A split in words: its name first, then its parameters in the order given.

    >>> described({"name": "dirichlet", "alpha": 0.1, "clients": 20})
    'dirichlet(alpha=0.1, clients=20)'
    """
    name = next((str(split[k]) for k in ("name", "kind", "type") if k in split), "split")
    rest = [f"{k}={plain(v)}" for k, v in split.items() if k not in ("name", "kind", "type") and v is not None]
    return f"{name}({', '.join(rest)})"
