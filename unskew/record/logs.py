"""The logs and documents of a run folder, each with the type of its content.

A log is a file of JSON lines, one row a line; `METRICS.rows(folder)` gives the rows of metrics.jsonl, checked.  A row
that differs from what a run writes is refused by file, line and field.  Rows are dictionaries with declared keys: a
ledger has millions of them, and pydantic reads these faster than `json.loads` reads any.
"""

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NotRequired, TypeVar

import pydantic
from annotated_types import Ge, MinLen
from typing_extensions import TypedDict

from unskew import schema
from unskew.errors import DivergedError, RunError
from unskew.files import read_bytes, readable
from unskew.info import Count, Finite, adapter
from unskew.ledger import Kind
from unskew.tasks.measure import Direction

SCHEMA = 1

LARGE, LARGEST = 1 << 26, {"partition.json": 1 << 30}
"""Bytes that a document may have, and those that may have more: one lists the examples of each client."""
LONGEST = 1 << 28
"""Bytes that a row of a log may have: a method may report on each pair of clients."""

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
    return command.startswith("unskew deploy") or (folder / "network.jsonl").exists()


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
    """A log: its name, which is also its file's, and the type of its rows."""

    name: str
    row: Any

    def file(self, folder: Path) -> Path:
        """Its place in a run folder."""
        return folder / f"{self.name}.jsonl"

    def rows(self, folder: Path, cut_short: list[str] | None = None) -> Iterator[T]:
        """The rows of a run, in the order written; none if the run has no such log.

        Args:
            folder: The run's folder.
            cut_short: Gets the file's name if the last line was cut short by a crash; such a line is left out.

        Raises:
            RunError: If a row is not as a run writes it, or, of a finished run, not as this one wrote it.
        """
        return (row for _, row in self.numbered(folder, cut_short))

    def numbered(self, folder: Path, cut_short: list[str] | None = None) -> Iterator[tuple[int, T]]:
        """Rows with their line numbers, from 1; arguments as in `rows`."""
        path = self.file(folder)
        for number, line in written(path):
            try:
                row: T = adapter(self.row).validate_json(line, strict=True)
            except pydantic.ValidationError as error:
                if not is_json(error):
                    if not line.endswith(b"\n"):  # only there can a crash have cut a row
                        if cut_short is not None:
                            cut_short.append(path.name)
                        return
                    raise refusal(path, number, "not JSON") from None
                raise refusal(path, number, sentence(error)) from None
            yield number, row

    def fresh(self, folder: Path, start: int) -> tuple[list[T], int]:
        """The complete rows from byte `start` on, and the byte where the next begins."""
        with readable(self.file(folder)) as file:
            file.seek(start)
            complete = file.read().rpartition(b"\n")[0]
        rows = [adapter(self.row).validate_json(line, strict=True) for line in complete.splitlines()]
        return rows, start + len(complete) + 1 if complete else start


METRICS: RowLog[MetricRow] = RowLog("metrics", MetricRow)
LEDGER: RowLog[TransferRow] = RowLog("ledger", TransferRow)
FAILURES: RowLog[FailureRow] = RowLog("failures", FailureRow)
WORK: RowLog[WorkRow] = RowLog("work", WorkRow)
INFO: RowLog[InfoRow] = RowLog("info", InfoRow)
NETWORK: RowLog[NetworkRow] = RowLog("network", NetworkRow)
DIVERGED: RowLog[DivergedRow] = RowLog("diverged", DivergedRow)

RESUMED: RowLog[ResumedRow] = RowLog("resumed", ResumedRow)


LOGS: dict[str, RowLog[Any]] = {log.name: log for log in (METRICS, LEDGER, FAILURES, WORK, INFO, NETWORK, DIVERGED)}
"""The logs, by name."""


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a log given by its file, checked as in `RowLog.rows`."""
    return LOGS[path.stem].rows(path.parent)


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
            raise refusal(path, None, sentence(error)) from None
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise refusal(path, error.lineno, f"not JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits
        raise refusal(path, None, f"not JSON ({error})") from None
    raise refusal(path, None, "not JSON")


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
def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a log with their numbers, from 1; none if there is no such file.

    Raises:
        RunError: If it cannot be read, or has a line of more than `LONGEST` bytes.
    """
    try:
        with readable(path) as file:
            for number in itertools.count(1):
                line = file.readline(LONGEST + 1)
                if len(line) > LONGEST:
                    raise refusal(path, number, f"it has more than {LONGEST:,} bytes")
                if not line:
                    return
                yield number, line
    except FileNotFoundError:
        return
    except OSError as error:
        raise unreadable(path, error) from None


CHECKSUMS = "checksums.json"
"""The file with the SHA-256 of each log of a finished run, by the log's name."""


def written(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a log as in `lines`; a log of a finished run must be as it was written.

    Raises:
        RunError: As in `lines`, or if it is not.
    """
    if (path.parent / "summary.json").is_file() and (expected := checksums(path.parent).get(path.stem)):
        actual = hashlib.sha256()
        for _, line in lines(path):
            actual.update(line)
        if actual.hexdigest() != expected:
            raise refusal(path, None, "its rows are not those that were written")
    return lines(path)


def checksums(folder: Path) -> dict[str, str]:
    """SHA-256 of each log of a finished run, by the log's name; empty if the folder does not have them.

    Raises:
        RunError: If their file is corrupt.
    """
    path = folder / CHECKSUMS
    try:
        return adapter(dict[str, str]).validate_json(read_text(path)) if path.is_file() else {}
    except pydantic.ValidationError as error:
        raise refusal(path, None, sentence(error)) from None


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


def refusal(path: Path, line: int | None, what: str) -> RunError:
    """The error that names the file and line of a problem."""
    place = f"{path}, line {line}" if line else f"{path}"
    return RunError(f"{place}: {what}; the file is corrupt, restore it or run again")


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
