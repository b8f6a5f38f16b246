"""Reads a run folder into values.

Every file is checked as it is read: anything that differs from what a run writes is refused, naming file and line, and
so is a row of a finished run that is not the one it wrote.
Two things are not errors, because a killed run leaves them behind: files that do not exist yet in a run without
`summary.json`, and a last line that was cut short.  Nor is a damaged forecast, on which no result depends.  All are
kept in the record, so that a report can say so.
"""

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, NotRequired, TypeVar

import numpy as np
import numpy.typing as npt
import pydantic
from typing_extensions import TypedDict

from unskew.errors import RunError
from unskew.files import from_toml
from unskew.info import TYPES, Count, Info, adapter, ignored_of, info_type, warnings_of
from unskew.ledger import Direction, Kind, direction_of
from unskew.record import columns, logs
from unskew.record.logs import Bound, document, evaluated, part_of, plain, read_text, refusal
from unskew.tasks.measure import ACCURACY, Measure, described

AnyInfo = TypeVar("AnyInfo", bound=Info)


@dataclass(frozen=True)
class RecordedCell:
    """One training of the run: a method on one seed.  `bound` marks a reference that does not compete."""

    method: str
    setting: str
    seed: int
    bound: Bound | None


@dataclass(frozen=True)
class DataSplit:
    """One seed's division of the data: clients' sizes, their label counts [client][label], and the skew measures.

    `domains` has one entry per client; it is empty if a client has examples of several domains, or the data have none.
    `client_names` and `classes` are empty if clients or labels are known only by number.  `unseen` has the sizes of the
    clients that came after training, of which nothing else here knows.  `test_counts` are label counts of the clients'
    test examples, empty where the folder has none; `test_patients` are the patients in them, empty where not known.
    `test_sha256` is equal where these test examples are; `in_time` is true where they are each client's latest.
    `counted` is what labels are: classes, or groups of targets that are none.
    """

    dataset: str
    dataset_sha256: str
    n: int
    split: Mapping[str, object]
    sha256: str
    sizes: tuple[int, ...]
    label_counts: tuple[tuple[int, ...], ...]
    iid_distance: float
    js: float
    effective_classes: float
    domains: tuple[int, ...] = ()
    client_names: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    unseen: tuple[int, ...] = ()
    test_counts: tuple[tuple[int, ...], ...] = ()
    test_patients: tuple[int, ...] = ()
    test_sha256: str = ""
    in_time: bool = False
    counted: str = "classes"

    @property
    def trained(self) -> int:
        """The clients' training examples in all."""
        return sum(self.sizes)

    @property
    def tested(self) -> int | None:
        """The clients' own test examples in all; None where the folder does not say."""
        return sum(map(sum, self.test_counts)) if self.test_counts else None

    def client(self, number: int) -> str:
        """The client's name, or its number if it has none."""
        return self.client_names[number] if self.client_names else str(number)

    def label(self, number: int) -> str:
        """The class's name, or its number if it has none."""
        return self.classes[number] if self.classes else str(number)


@dataclass(frozen=True)
class Flow:
    """A sum over the ledger: bytes and number of transfers."""

    bytes: int = 0
    transfers: int = 0


@dataclass(frozen=True)
class LostReplyRow:
    """A client that was asked and did not reply."""

    method: str
    seed: int
    round: int
    client: int
    reason: str


@dataclass(frozen=True)
class Warned:
    """A method's warning: its text, the cell and round where it first occurred, and in how many rounds it occurred."""

    method: str
    text: str
    seed: int
    round: int
    times: int


@dataclass(frozen=True)
class Summary:
    """The summary written at the run's end.

    `means` is (method, metric) -> mean over seeds, `peak_rss` is in bytes, `seeds` are those that were run, where a
    rule decided how many.
    """

    fingerprint: str
    seconds: float
    means: Mapping[tuple[str, str], float]
    stopped: Mapping[str, object] | None
    peak_rss: float | None = None
    seeds: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Predicted:
    """The forecast in plan.json.

    Attributes:
        methods: Label -> (bytes of one seed, seconds of one seed); None for a number that was not forecast.
        traffic: Label -> certainty of the forecast bytes.
        seconds: Duration of the whole run.
        peak: Peak memory of the main process, bytes.
    """

    methods: Mapping[str, tuple[float | None, float | None]]
    seconds: float | None
    peak: float
    traffic: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
    """A run's content, as reports need it.

    Attributes:
        series: (method, seed, metric name) -> {round: value}, rounds ascending.
        headline: The metric by which the run's models are compared.
        asked: The metrics that the run reports beside the headline and the loss.
        clients: (method, seed) -> {client: headline} of the last round that has rows for single clients.
        flows: (method, seed, direction, kind) -> sum over the ledger.
        models: (method, seed) -> {round: transfers that carried a model}.
        passes: (method, seed) -> {round: exchanges in which clients trained, one after the other}.
        info: Method -> the types of its rows in info.jsonl; the rows themselves are for `info_of`.
        warned: Warnings of the methods.
        ignored: Method -> number of replies that it refused.
        parameters: Parameters of the network.
        baseline: Label of the method that others are compared with; "" if the run has none, None if it does not say.
        summary: None while the run has not finished.
        cut_short: Names of files whose last line was incomplete and left out.
        newcomers: (method, seed, part) -> {client: headline} of clients that came after training, as `clients`; parts
            are unseen and unseen_adapted.
        few: (method, seed, metric name) -> clients over which the last round's number is, and all that were evaluated,
            where these are more.
        tested: (method, seed) -> {client: number of its test examples}, of the clients in `clients` that have rows.
        tested_rows: (method, seed) -> results by test row of the clients' own models, where the run kept them.
        until: The rule of a run that adds seeds until its comparisons are decided; its cells are those it has begun.
        remarks: Sentences on data and settings that are hardly what was meant, said before the run.
        for_own: Methods that are for the clients' own models, of runs that were merged; None if config.toml says it.
        comparable: False for runs that were merged though they differ in more than their methods.
        left_out: Sentences on files that are damaged and that the results do without.
        run_of: Method -> the name of its run, of runs that were merged.
        runs: Name -> whether it is finished, of runs that were merged.
        diverged: Methods that diverged, each under its seed; no other field has numbers of that training, but
            warnings may be of it.
    """

    folder: Path
    name: str
    created: str
    command: str
    version: str
    environment: Mapping[str, str]
    config_sha256: str
    config: str
    cells: tuple[RecordedCell, ...]
    series: Mapping[tuple[str, int, str], Mapping[int, float]]
    clients: Mapping[tuple[str, int], Mapping[int, float]]
    flows: Mapping[tuple[str, int, Direction, Kind], Flow]
    partitions: Mapping[int, DataSplit]
    failures: tuple[LostReplyRow, ...]
    summary: Summary | None
    cut_short: tuple[str, ...]
    predicted: Predicted | None = None
    models: Mapping[tuple[str, int], Mapping[int, int]] = field(default_factory=dict)
    passes: Mapping[tuple[str, int], Mapping[int, int]] = field(default_factory=dict)
    info: Mapping[str, frozenset[str]] = field(default_factory=dict)
    warned: tuple[Warned, ...] = ()
    ignored: Mapping[str, int] = field(default_factory=dict)
    parameters: int | None = None
    baseline: str | None = None
    headline: Measure = ACCURACY
    asked: tuple[Measure, ...] = ()
    newcomers: Mapping[tuple[str, int, str], Mapping[int, float]] = field(default_factory=dict)
    few: Mapping[tuple[str, int, str], tuple[int, int]] = field(default_factory=dict)
    tested: Mapping[tuple[str, int], Mapping[int, float]] = field(default_factory=dict)
    tested_rows: Mapping[tuple[str, int], columns.RowResults] = field(default_factory=dict)
    until: logs.UntilCard | None = None
    remarks: tuple[str, ...] = ()
    for_own: frozenset[str] | None = None
    comparable: bool = True
    left_out: tuple[str, ...] = ()
    run_of: Mapping[str, str] = field(default_factory=dict)
    diverged: tuple[logs.DivergedRow, ...] = ()
    runs: Mapping[str, bool] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """True if the run wrote its summary."""
        return self.summary is not None

    @property
    def deployed(self) -> bool:
        """True if the run's clients were separate processes, whose data a report must not read."""
        return logs.deployed(self.folder, self.command)

    @property
    def same_test_rows(self) -> bool:
        """True if all of several seeds have the same test rows, so that nothing over seeds tells of their chance."""
        return _same_test_rows(self.partitions)

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods in the order of the run."""
        return tuple(dict.fromkeys(c.method for c in self.cells))

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds, ascending."""
        return tuple(sorted({c.seed for c in self.cells}))

    def reports(self, kind: type[Info]) -> tuple[str, ...]:
        """Methods with info of a type or a subtype of it, in the order of the run."""
        names = {name for name, known in TYPES.items() if issubclass(known, kind)}
        names.add(info_type(kind))
        return tuple(m for m in self.methods if names & self.info.get(m, frozenset()))

    @property
    def foreign(self) -> Mapping[str, tuple[str, ...]]:
        """Types of info that unskew does not define, by method."""
        names = {m: tuple(sorted(self.info.get(m, frozenset()) - TYPES.keys())) for m in self.methods}
        return {m: types for m, types in names.items() if types}

    @functools.cached_property
    def _evaluated(self) -> Mapping[tuple[str, int, str], Collection[int]]:
        return evaluated(self.series)

    def evaluated(self, method: str, seed: int, name: str) -> Collection[int]:
        """The rounds in which the part that a metric is measured on was evaluated, whether it is defined or not."""
        return self._evaluated.get((method, seed, part_of(name)), ())

    def diverged_seeds(self, method: str) -> frozenset[int]:
        """Seeds under which a method diverged."""
        return frozenset(row["seed"] for row in self.diverged if row["method"] == method)

    def cell(self, method: str) -> RecordedCell:
        """The first cell of a method: its setting and bound are those of every seed."""
        return next(c for c in self.cells if c.method == method)


def configured(record: Record) -> dict[str, Any]:
    """The content of config.toml; empty if the run has none.  Its tables are tables, as in every experiment.

    Raises:
        RunError: If the file is not TOML, or has something else in the place of a table.
    """
    path = record.folder / "config.toml"
    try:
        config = from_toml(record.config)
    except (ValueError, RecursionError) as e:
        raise RunError(f"{path} is not TOML: {e}; restore it or run again") from None
    try:
        adapter(_Tables).validate_python(config, strict=True)
    except pydantic.ValidationError as error:
        what = logs.sentence(error).replace("a JSON object", "a table")
        raise RunError(f"{path}: {what}; the file is corrupt, restore it or run again") from None
    return config


class _World(TypedDict):
    channel: NotRequired[dict[str, Any]]


class _Task(TypedDict):
    data_options: NotRequired[dict[str, Any]]


class _Tables(TypedDict):
    """The tables of config.toml that reports read."""

    task: NotRequired[_Task]
    methods: NotRequired[list[dict[str, Any]]]
    world: NotRequired[_World]
    unseen: NotRequired[dict[str, Any]]


def method_tables(record: Record) -> dict[str, dict[str, Any]]:
    """Label -> the method's table in config.toml.

    Raises:
        RunError: If the file is not TOML.
    """
    return {str(m.get("label")): m for m in configured(record).get("methods", [])}


def read(folder: Path, results_alone: bool = False) -> Record:
    """The record of a run folder, finished or not.

    With `results_alone` it is without what was sent and who worked, which are most of a long run: `flows`, `models` and
    `passes` are empty, and their files are not read.

    Raises:
        RunError: If `folder` is not a run folder, or a file in it is missing or corrupt; names file and line.
    """
    folder = Path(folder)
    if not (folder / "run.json").is_file():
        raise RunError(f"{folder} is not a run folder: it has no run.json; give a folder that `unskew run` wrote")
    card = document(folder / "run.json", logs.RunCard)
    cells = _cells(card, folder / "run.json")
    known = {(c.method, c.seed) for c in cells}
    diverged = tuple(row for _, row in _Rows(logs.DIVERGED, folder, known, []))
    without = {(row["method"], row["seed"]) for row in diverged}
    summary = _summary(folder / "summary.json") if (folder / "summary.json").is_file() else None
    # An empty ledger is legitimate (nothing travels in a centralised run); the other files every finished run has.
    for name in ("config.toml", "metrics.jsonl", "partition.json") if summary else ():
        if not (folder / name).is_file():
            raise RunError(f"{folder / name} is missing though the run has a summary.json; restore it or run again")

    cut_short: list[str] = []
    headline = described(card["measures"][0] if "measures" in card else None)
    series, few, client_values, tested = _metrics(_Rows(logs.METRICS, folder, known, cut_short), headline)
    client_values |= _client_columns(folder, known, headline)
    series, client_values, tested = (_kept(of, without) for of in (series, client_values, tested))
    few = _kept(few, without)
    flows, models = _flows(() if results_alone else _Rows(logs.LEDGER, folder, known, cut_short))
    info, warned, ignored = _info(_Rows(logs.INFO, folder, known, cut_short))
    failures = tuple(
        LostReplyRow(row["method"], row["seed"], row["round"], row["client"], row["reason"])
        for _, row in _Rows(logs.FAILURES, folder, known, cut_short)
        if (row["method"], row["seed"]) not in without
    )
    flows, models = _kept(flows, without), _kept(models, without)
    predicted, damage = _predicted(folder / "plan.json")
    partitions = _partitions(folder / "partition.json") if (folder / "partition.json").is_file() else {}
    if (until := card.get("until")) is not None:
        begun = set(summary.seeds or ()) if summary else {seed for _, seed, _ in series}
        begun = begun or {until["first"]}
        cells = tuple(c for c in cells if c.seed in begun) or cells
        partitions = {seed: p for seed, p in partitions.items() if seed in begun}
    return Record(
        folder=folder,
        name=card["run"],
        created=card["created"],
        command=card["command"],
        version=card["unskew"],
        environment={k: plain(v) for k, v in card["environment"].items()},
        config_sha256=card["config_sha256"],
        config=read_text(folder / "config.toml") if (folder / "config.toml").is_file() else "",
        cells=cells,
        series=series,
        clients={(m, seed): values for (m, seed, part), values in client_values.items() if part == "personal"},
        few=few,
        tested=tested,
        tested_rows=_tested_rows(folder, known),
        newcomers={at: values for at, values in client_values.items() if at[2] != "personal"},
        flows=flows,
        partitions=partitions,
        failures=failures,
        summary=summary,
        cut_short=tuple(cut_short),
        predicted=predicted,
        models=models,
        passes=_passes(() if results_alone else _Rows(logs.WORK, folder, known, cut_short)),
        info=info,
        warned=warned,
        ignored=ignored,
        parameters=card.get("parameters"),
        baseline=base if (base := card.get("baseline")) in {"", *(c.method for c in cells)} else None,
        headline=headline,
        asked=tuple(map(described, card.get("measures", [])[2:])),
        until=until,
        remarks=(*map(plain, card.get("remarks", ())), *_resumed(folder)),
        left_out=() if damage is None else (damage,),
        diverged=diverged,
    )


class InfoOfRound(NamedTuple, Generic[AnyInfo]):
    """The info a method reported for one round."""

    seed: int
    round: int
    info: AnyInfo


def info_of(record: Record, method: str, kind: type[AnyInfo]) -> Iterator[InfoOfRound[AnyInfo]]:
    """Info of a type or a subtype of it that a method reported, in the order written, but where it diverged.

    Read from the file each time, because the info of all rounds may be more than a record should hold.

    Raises:
        RunError: If info.jsonl is corrupt; names the line.
    """
    path = logs.INFO.file(record.folder)
    without = {(row["method"], row["seed"]) for row in record.diverged}
    for number, line in logs.written(path):
        try:
            head = adapter(_Head).validate_json(line, strict=True)
        except pydantic.ValidationError as error:
            if not logs.is_json(error) and not line.endswith(b"\n"):
                return
            raise refusal(path, number, logs.sentence(error)) from None
        known: Any = kind if head["type"] == info_type(kind) else TYPES.get(head["type"])
        lost = (head["method"], head["seed"]) in without
        if lost or head["method"] != method or known is None or not issubclass(known, kind):
            continue
        partition = record.partitions.get(head["seed"])
        context = None if partition is None else {"clients": len(partition.sizes)}
        try:
            row = _line(known).validate_json(line, strict=True, context=context)
        except pydantic.ValidationError as error:
            raise refusal(path, number, logs.sentence(error)) from None
        yield InfoOfRound(row["seed"], row["round"], row["info"])


class _Head(TypedDict):
    """A row of info.jsonl without its info."""

    method: str
    seed: Count
    round: Count
    type: str


@functools.cache
def _line(kind: Any) -> pydantic.TypeAdapter[Any]:
    """A row of info.jsonl with info of a type."""

    class InfoLine(TypedDict):
        seed: Count
        round: Count
        info: kind

    return pydantic.TypeAdapter(InfoLine)


def holdings(record: Record, seed: int) -> tuple[tuple[int, ...], ...]:
    """Indices of each client's training examples in the data set; not kept in the record, because they may be many.

    Raises:
        RunError: If partition.json is corrupt or does not have the seed.
    """
    path = record.folder / "partition.json"
    seeds = document(path, logs.PartsCards)["seeds"]
    if str(seed) not in seeds:
        raise refusal(path, None, f"seeds.{seed} is missing")
    clients = seeds[str(seed)].get("clients")
    rows = (
        columns.part_rows(record.folder, seed, "train") if clients is None else (client["train"] for client in clients)
    )
    return tuple(map(tuple, rows))


def _resumed(folder: Path) -> Iterator[str]:
    """Sentences on rounds from which on the run was run otherwise than it began."""
    for row in logs.RESUMED.rows(folder):
        at = f"round {row['round']} of {row['method']}, seed {row['seed']}"
        how = f"otherwise from there on: {'; '.join(row['changed'])}" if row["changed"] else "from there on as it began"
        yield f"resumed at {at}, and run {how}"


_Value = TypeVar("_Value")


def _kept(values: Mapping[Any, _Value], without: Collection[tuple[str, int]]) -> dict[Any, _Value]:
    """Values by (method, seed, ...), without those of some cells."""
    return {at: value for at, value in values.items() if at[:2] not in without}


def metric_rows(folder: Path) -> list[logs.MetricRow]:
    """Every number of every round, in the order written.

    Raises:
        RunError: If `folder` is not a run folder, or a file is corrupt.
    """
    path = folder / "run.json"
    known = {(c.method, c.seed) for c in _cells(document(path, logs.RunCard), path)}
    return [row for _, row in _Rows(logs.METRICS, folder, known, [])]


def remarks_and_warnings(folder: Path) -> tuple[tuple[str, ...], tuple[str, ...], tuple[Warned, ...]]:
    """Labels of a run's methods, the remarks before it, and the methods' warnings.

    Raises:
        RunError: If run.json or info.jsonl is missing or corrupt.
    """
    card = document(folder / "run.json", logs.RunCard)
    cells = _cells(card, folder / "run.json")
    _, warned, _ = _info(_Rows(logs.INFO, folder, {(c.method, c.seed) for c in cells}, []))
    return tuple(dict.fromkeys(c.method for c in cells)), tuple(map(plain, card.get("remarks", ()))), warned


def client_names(folder: Path) -> dict[int, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Names of the clients of each seed that train, and of those that come later; empty if they have none.

    Raises:
        RunError: If partition.json is missing or corrupt.
    """
    seeds = document(folder / "partition.json", logs.SplitCards)["seeds"]
    return {
        int(seed): (tuple(of.get("client_names") or ()), tuple(of.get("unseen", {}).get("client_names") or ()))
        for seed, of in seeds.items()
        if seed.isdecimal()
    }


Part = Literal["train", "val", "test"]


def rows_of(folder: Path, part: Part, seed: int | None) -> dict[int | str, npt.NDArray[np.int64]]:
    """Rows of each client's part of the data as they were given, by its name, or number where clients have no names.

    Args:
        folder: The run's folder.
        part: "train", "val" or "test".
        seed: Seed of the run; None for the smallest.

    Raises:
        RunError: If the folder has no such seed, does not have the rows, or is corrupt.
    """
    path = folder / "partition.json"
    seeds = {int(n): of for n, of in document(path, logs.PartsCards)["seeds"].items() if n.isdecimal()}
    if not seeds or not (folder / columns.ROWS_FILE).is_file():
        why = (
            "its data are no rows of tables or arrays, as images in folders without a table of labels are none, or an "
            "older version ran it"
            if seeds
            else "clients kept them to themselves"
        )
        raise RunError(f"{folder} does not say which rows each client has: {why}")
    if seed is not None and seed not in seeds:
        raise RunError(f"{folder} has no seed {seed} (seeds: {', '.join(map(str, sorted(seeds)))})")
    seed = min(seeds) if seed is None else seed
    card, rows = seeds[seed], columns.given_rows(folder)
    own = card.get("clients")
    held = list(columns.part_rows(folder, seed, part)) if own is None else [client[part] for client in own]
    names: list[int | str] = [*(card.get("client_names") or range(len(held)))]
    if (later := card.get("unseen")) is not None:
        names += later.get("client_names") or range(len(held), len(held) + len(later["clients"]))
        held += [client[part] for client in later["clients"]]
    if len(names) != len(held) or any(max(of, default=0) >= len(rows) or min(of, default=0) < 0 for of in held):
        raise refusal(path, None, "its clients are not those that it names, or have examples that the data have not")
    return {name: np.sort(rows[np.array(of, np.int64)]) for name, of in zip(names, held, strict=True)}


AnyRow = TypeVar("AnyRow")


@dataclass(frozen=True)
class _Rows(Generic[AnyRow]):
    """The rows of a log, each belonging to a cell of the run."""

    log: logs.RowLog[AnyRow]
    folder: Path
    cells: set[tuple[str, int]]
    cut_short: list[str]

    def __iter__(self) -> Iterator[tuple[int, AnyRow]]:
        for number, row in self.log.numbered(self.folder, self.cut_short):
            at = row["method"], row["seed"]  # type: ignore[index]
            if at not in self.cells:
                raise self.refuse(number, f"run.json has no cell for method {at[0]!r}, seed {at[1]}")
            yield number, row

    def refuse(self, number: int, what: str) -> RunError:
        """The error that refuses a line."""
        return refusal(self.log.file(self.folder), number, what)


def _cells(card: logs.RunCard, path: Path) -> tuple[RecordedCell, ...]:
    cells: dict[tuple[str, int], RecordedCell] = {}
    for row in card["cells"]:
        cell = RecordedCell(row["method"], row["setting"], row["seed"], row.get("bound"))
        # Metrics carry method and seed only, so a second such cell would look like the first.
        if (cell.method, cell.seed) in cells:
            raise refusal(path, None, f"cells name {cell.method}, seed {cell.seed}, twice")
        cells[cell.method, cell.seed] = cell
    return tuple(cells.values())


_OfClients = dict[tuple[str, int, str], dict[int, float]]  # (method, seed, part) -> {client: headline}


def _metrics(
    rows: _Rows[logs.MetricRow], headline: Measure
) -> tuple[
    dict[tuple[str, int, str], dict[int, float]],
    dict[tuple[str, int, str], tuple[int, int]],
    _OfClients,
    dict[tuple[str, int], dict[int, float]],
]:
    """All series, over how few clients they are, single clients' last headlines, and their numbers of examples."""
    series: dict[tuple[str, int, str], dict[int, float]] = {}
    few: dict[tuple[str, int, str], tuple[int, int]] = {}
    clients: dict[tuple[str, int, str], dict[int, dict[int, float]]] = {}
    tested: dict[tuple[str, int], dict[int, float]] = {}
    parts = _parts(headline)
    for number, row in rows:
        method, seed, name, at, client = row["method"], row["seed"], row["name"], row["round"], row.get("client")
        if client is None:
            place, key = series.setdefault((method, seed, name), {}), at
            few.pop((method, seed, name), None)
            if len(over := row.get("clients", [])) == 2:
                few[method, seed, name] = over[0], over[1]
        elif name in parts:
            place, key = clients.setdefault((method, seed, parts[name]), {}).setdefault(at, {}), client
            if parts[name] == "personal" and row.get("weight") is not None:
                tested.setdefault((method, seed), {})[client] = float(row["weight"] or 0.0)
        else:
            continue
        if key in place:
            raise rows.refuse(number, f"{name} of {method}, seed {seed}, round {at} is given twice")
        place[key] = row["value"]
    ordered = {k: dict(sorted(v.items())) for k, v in series.items()}
    return ordered, few, {k: dict(sorted(v[max(v)].items())) for k, v in clients.items()}, tested


def _parts(headline: Measure) -> dict[str, str]:
    """The parts that single clients have a headline of, by the name of its metric."""
    return {f"{part}.{headline.name}": part for part in ("personal", logs.SERVED, logs.ADAPTED)}


def _client_columns(folder: Path, known: set[tuple[str, int]], headline: Measure) -> _OfClients:
    clients, parts = {}, _parts(headline)
    for c in columns.client_columns(folder):
        if (c.method, c.seed) not in known:
            raise refusal(folder / columns.FOLDER, None, f"run.json has no cell for method {c.method!r}, seed {c.seed}")
        if c.name in parts:
            clients[c.method, c.seed, parts[c.name]] = dict(zip(c.client.tolist(), c.value.tolist(), strict=True))
    return clients


def _tested_rows(folder: Path, known: set[tuple[str, int]]) -> dict[tuple[str, int], columns.RowResults]:
    of = {(method, seed): rows for method, seed, rows in columns.tested_rows(folder)}
    if strangers := sorted(of.keys() - known):
        method, seed = strangers[0]
        raise refusal(folder / columns.TESTED, None, f"run.json has no cell for method {method!r}, seed {seed}")
    return of


_Counts = dict[tuple[str, int], dict[int, int]]  # (method, seed) -> {round: count}


def _flows(
    rows: Iterable[tuple[int, logs.TransferRow]],
) -> tuple[dict[tuple[str, int, Direction, Kind], Flow], _Counts]:
    sums: dict[tuple[str, int, Direction, Kind], list[int]] = {}
    models: _Counts = {}
    for _, row in rows:
        method, seed, kind = row["method"], row["seed"], row["kind"]
        direction = direction_of(row["src"], row["dst"])
        total = sums.setdefault((method, seed, direction, kind), [0, 0])
        total[0] += row["bytes"]
        total[1] += 1
        if kind == "model":
            by_round, at = models.setdefault((method, seed), {}), row["round"]
            by_round[at] = by_round.get(at, 0) + 1
    return {k: Flow(*v) for k, v in sums.items()}, models


def _passes(rows: Iterable[tuple[int, logs.WorkRow]]) -> _Counts:
    hops: dict[tuple[str, int], dict[int, set[int]]] = {}
    for _, row in rows:
        hops.setdefault((row["method"], row["seed"]), {}).setdefault(row["round"], set()).add(row["hop"])
    return {cell: {t: len(exchanges) for t, exchanges in rounds.items()} for cell, rounds in hops.items()}


class _Common(TypedDict):
    """Fields that info of every type of unskew's may have."""

    warnings: NotRequired[list[str]]
    ignored: NotRequired[list[dict[str, Any]]]


def _info(rows: _Rows[logs.InfoRow]) -> tuple[dict[str, frozenset[str]], tuple[Warned, ...], dict[str, int]]:
    seen: set[tuple[str, int, int, str]] = set()
    types: dict[str, frozenset[str]] = {}
    warned: dict[tuple[str, str], Warned] = {}
    ignored: dict[str, int] = {}
    for number, row in rows:
        method, seed, at, kind, info = row["method"], row["seed"], row["round"], row["type"], row["info"]
        if (method, seed, at, kind) in seen:
            raise rows.refuse(number, f"info {kind} of {method}, seed {seed}, round {at} is given twice")
        seen.add((method, seed, at, kind))
        types[method] = types.get(method, frozenset()) | {kind}
        if kind in TYPES:
            try:
                adapter(_Common).validate_python(info, strict=True)
            except pydantic.ValidationError as error:
                raise rows.refuse(number, f"info.{logs.sentence(error)}") from None
        for text in warnings_of(info):
            before = warned.get((method, text))
            warned[method, text] = (
                Warned(method, text, seed, at, 1) if before is None else replace(before, times=before.times + 1)
            )
        if refused := sum(1 for _ in ignored_of(info)):
            ignored[method] = ignored.get(method, 0) + refused
    return types, tuple(warned.values()), ignored


def same_test_rows(folder: Path) -> bool:
    """Return true if all of several seeds of a run have the same test rows.

    Raises:
        RunError: If partition.json is missing or corrupt.
    """
    return _same_test_rows(_partitions(folder / "partition.json"))


def _same_test_rows(partitions: Mapping[int, DataSplit]) -> bool:
    rows = {p.test_sha256 for p in partitions.values() if p.tested != 0}
    return len(partitions) > 1 and len(rows) == 1 and "" not in rows


def _partitions(path: Path) -> dict[int, DataSplit]:
    partitions = {}
    for seed, card in document(path, logs.SplitCards)["seeds"].items():
        if not seed.isdecimal():
            raise refusal(path, None, f"seeds must be named by whole numbers, got {seed!r}")
        stats = card["stats"]
        if "columns" in card:
            arrays = columns.partition_columns(path.parent, int(seed), stats)
            label_counts, domains = arrays.label_counts.tolist(), arrays.domains.tolist()
            sizes, tested = arrays.label_counts.sum(1).tolist(), arrays.test_counts.tolist()
        elif "sizes" in stats and "label_counts" in stats:
            sizes, label_counts, domains = stats["sizes"], stats["label_counts"], stats.get("domains", [])
            tested = stats.get("test_counts", [])
        else:
            raise refusal(path, None, f"seeds.{seed}.stats must have sizes and label_counts, or seeds.{seed} columns")
        clients, labels = len(sizes), {len(counts) for counts in label_counts}
        if len(label_counts) != clients or len(labels) > 1:
            raise refusal(path, None, f"label_counts must be a table with a row for each of {clients} clients")
        names, classes = card.get("client_names") or [], card.get("classes") or []
        people = stats.get("test_patients", [])
        for what, of in (
            ("domains", domains), ("client_names", names), ("test_counts", tested), ("test_patients", people),
        ):  # fmt: skip
            if len(of) not in (0, clients):
                raise refusal(path, None, f"{what} must have one for each of {clients} clients, got {len(of)}")
        partitions[int(seed)] = DataSplit(
            dataset=card["dataset"],
            dataset_sha256=card["dataset_sha256"],
            n=card["n"],
            split=card["split"],
            sha256=card["sha256"],
            sizes=tuple(sizes),
            label_counts=tuple(map(tuple, label_counts)),
            iid_distance=stats["iid_distance"],
            js=stats["js"],
            effective_classes=stats["effective_classes"],
            domains=tuple(domains),
            client_names=tuple(names),
            classes=tuple(classes) if labels == {len(classes)} else (),
            unseen=tuple(card["unseen"]["sizes"]) if "unseen" in card else (),
            test_counts=tuple(map(tuple, tested)),
            test_patients=tuple(people),
            # A folder that does not say has the same test rows at least where all parts are the same.
            test_sha256=card.get("test_sha256", card["sha256"]),
            in_time=card.get("in_time", False),
            counted=card.get("counted", "classes"),
        )
    return dict(sorted(partitions.items()))


def _summary(path: Path) -> Summary:
    card = document(path, logs.SummaryCard)
    means = {(r["method"], r["metric"]): r["mean"] for r in card["rows"]}
    seeds = tuple(card["seeds"]) if "seeds" in card else None
    return Summary(card["fingerprint"], card["seconds"], means, card.get("stopped"), card.get("peak_rss"), seeds)


def _predicted(path: Path) -> tuple[Predicted | None, str | None]:
    """The forecast, and a sentence if there is one that cannot be read: no result depends on it."""
    if not path.is_file():
        return None, None
    try:
        card = document(path, logs.PlanCard)
    except RunError as error:
        why = str(error).rpartition("; ")[0]  # without the remedy, which would be a new run
        return None, f"The forecast is left out: {why}; remove the file to be told no more."
    methods = {}
    for m in card["methods"]:
        sent = m.get("bytes")
        total = None if sent is None else sent["down"] + sent["up"] + sent["d2d"]
        methods[m["method"]] = (total, m.get("seconds"))
    traffic = {m["method"]: m["traffic"] for m in card["methods"] if "traffic" in m}
    return Predicted(methods, card.get("seconds"), card["memory"]["peak"], traffic), None
