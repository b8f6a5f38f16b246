"""Reads a run folder into values.

What differs from what a run writes is refused, naming the file.  Not yet to be finished is no error, and a damaged
forecast, on which no result depends, is left out and named.
"""

import functools
import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pydantic

from unskew import schema
from unskew.errors import RunError
from unskew.files import from_toml
from unskew.info import TYPES, Info, adapter, ignored_of, info_type, warnings_of
from unskew.ledger import Direction, Kind
from unskew.record import columns, logs
from unskew.record.database import FILE, MetricOfRound, metrics, opened, rows, select
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
    """A client that was asked and did not reply, or whose reply was refused."""

    method: str
    seed: int
    round: int
    client: int
    reason: str
    step: str = ""


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
        info: Method -> the types of its info; the rows themselves are for `info_of`.
        warned: Warnings of the methods.
        ignored: Method -> number of replies that it refused.
        parameters: Parameters of the network.
        baseline: Label of the method that others are compared with; "" if the run has none, None if it does not say.
        summary: None while the run has not finished.
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
    until: Mapping[str, Any] | None = None
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
    """The content of config.toml; empty if the run has none.

    Raises:
        RunError: If the file is not TOML.
    """
    try:
        return from_toml(record.config)
    except (ValueError, RecursionError) as error:
        raise refusal(record.folder / "config.toml", f"it is not TOML: {error}") from None


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
    summary = _summary(folder / "summary.json") if (folder / "summary.json").is_file() else None
    for name in ("config.toml", "partition.json") if summary else ():
        if not (folder / name).is_file():
            raise RunError(f"{folder / name} is missing though the run has a summary.json; restore it or run again")

    headline = described(card["measures"][0] if "measures" in card else None)
    with opened(folder) as connection:
        diverged = tuple(cast("Iterator[logs.DivergedRow]", select(connection, "diverged")))
        without = {(row["method"], row["seed"]) for row in diverged}
        series, few, client_values, tested = _metrics(connection, headline)
        flows, models, passes = ({}, {}, {}) if results_alone else _sums(connection)
        info, warned, ignored = _info(connection)
        failures = tuple(
            LostReplyRow(**row) for row in select(connection, "failures") if (row["method"], row["seed"]) not in without
        )
        remarks = (*map(plain, card.get("remarks", ())), *_resumed(connection))
        tested_rows = _tested_rows(connection)
    series, client_values, tested = (_kept(of, without) for of in (series, client_values, tested))
    few, flows, models = _kept(few, without), _kept(flows, without), _kept(models, without)
    predicted, left_out = _predicted(folder / "plan.json")
    partitions = _partitions(folder) if (folder / "partition.json").is_file() else {}
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
        tested_rows=tested_rows,
        newcomers={at: values for at, values in client_values.items() if at[2] != "personal"},
        flows=flows,
        partitions=partitions,
        failures=failures,
        summary=summary,
        predicted=predicted,
        models=models,
        passes=passes,
        info=info,
        warned=warned,
        ignored=ignored,
        parameters=card.get("parameters"),
        baseline=base if (base := card.get("baseline")) in {"", *(c.method for c in cells)} else None,
        headline=headline,
        asked=tuple(map(described, card.get("measures", [])[2:])),
        until=until,
        remarks=remarks,
        left_out=left_out,
        diverged=diverged,
    )


Part = Literal["train", "val", "test"]


class InfoOfRound(NamedTuple, Generic[AnyInfo]):
    """The info a method reported for one round."""

    seed: int
    round: int
    info: AnyInfo


def info_of(record: Record, method: str, kind: type[AnyInfo]) -> Iterator[InfoOfRound[AnyInfo]]:
    """Info of a type or a subtype of it that a method reported, in the order written, but where it diverged.

    Read each time, because the info of all rounds may be more than a record should hold.

    Raises:
        RunError: If a row is not as the type is; names its place in the table.
    """
    kinds = {**{name: known for name, known in TYPES.items() if issubclass(known, kind)}, info_type(kind): kind}
    without = record.diverged_seeds(method)
    where = f"method = ? AND type IN ({', '.join('?' * len(kinds))})"
    for number, row in enumerate(rows(record.folder, "info", where, method, *kinds), start=1):
        if row["seed"] in without:
            continue
        partition = record.partitions.get(row["seed"])
        context = None if partition is None else {"clients": len(partition.sizes)}
        try:
            # Through JSON, where strict mode takes a list for a tuple.
            info = adapter(kinds[row["type"]]).validate_json(json.dumps(row["info"]), strict=True, context=context)
        except pydantic.ValidationError as error:
            what = f"{row['type']} number {number} of {method}: {schema.sentence(error, 'info')}"
            raise refusal(record.folder / FILE, what) from None
        yield InfoOfRound(row["seed"], row["round"], info)


def holdings(record: Record, seed: int) -> tuple[tuple[int, ...], ...]:
    """Indices of each client's training examples in the data set; not kept in the record, because they may be many.

    Raises:
        RunError: If partition.json is corrupt or does not have the seed.
    """
    _, held = _parts(record.folder, seed, "train")
    return tuple(map(tuple, held))


def _divisions(folder: Path) -> dict[int, dict[str, Any]]:
    return document(folder / "partition.json", logs.Divisions)["seeds"]


def _parts(folder: Path, seed: int | None, part: Part) -> tuple[dict[str, Any], list[list[int]]]:
    """One seed's division, by default the smallest's, and the indices of a part of each client that trained."""
    seeds = _divisions(folder)
    if not seeds:
        raise RunError(f"{folder} does not say which rows each client has: clients kept them to themselves")
    seed = min(seeds) if seed is None else seed
    if seed not in seeds:
        raise RunError(f"{folder} has no seed {seed} (seeds: {', '.join(map(str, sorted(seeds)))})")
    own = seeds[seed].get("clients")
    held = list(columns.part_rows(folder, seed, part)) if own is None else [client[part] for client in own]
    return seeds[seed], held


def _resumed(connection: sqlite3.Connection) -> Iterator[str]:
    """Sentences on rounds from which on the run was run otherwise than it began."""
    for row in select(connection, "resumed"):
        at = f"round {row['round']} of {row['method']}, seed {row['seed']}"
        how = f"otherwise from there on: {'; '.join(row['changed'])}" if row["changed"] else "from there on as it began"
        yield f"resumed at {at}, and run {how}"


_Value = TypeVar("_Value")


def _kept(values: Mapping[Any, _Value], without: Collection[tuple[str, int]]) -> dict[Any, _Value]:
    """Values by (method, seed, ...), without those of some cells."""
    return {at: value for at, value in values.items() if at[:2] not in without}


MANY = 10_000
"""Clients up to which each has a row of its own in `metric_rows`."""


def metric_rows(folder: Path) -> list[dict[str, Any]]:
    """Every number of every round, in the order written, without those of single clients where these are many.

    Raises:
        RunError: If `folder` is not a run folder, or its database is damaged.
    """
    few = "client IS NULL OR length(client) <= ?"
    return list(rows(folder, "metrics", few, 8 * MANY))


def client_values(folder: Path, method: str, seed: int, name: str) -> dict[int, float]:
    """A metric of single clients after the last round that has it, {client: value}; empty if there is none.

    Raises:
        RunError: As `metric_rows`.
    """
    of_clients: dict[int, float] = {}
    with opened(folder) as connection:
        where = "method = ? AND seed = ? AND name = ? AND client IS NOT NULL"
        for m in metrics(connection, where, method, seed, name):
            of_clients = dict(zip(_clients(m), m.value.tolist(), strict=True))
    return of_clients


def _clients(m: MetricOfRound) -> list[int]:
    assert m.client is not None
    clients: list[int] = m.client.tolist()
    return clients


def remarks_and_warnings(folder: Path) -> tuple[tuple[str, ...], tuple[str, ...], tuple[Warned, ...]]:
    """Labels of a run's methods, the remarks before it, and the methods' warnings.

    Raises:
        RunError: If run.json is missing or corrupt, or the database is damaged.
    """
    card = document(folder / "run.json", logs.RunCard)
    cells = _cells(card, folder / "run.json")
    with opened(folder) as connection:
        _, warned, _ = _info(connection)
    return tuple(dict.fromkeys(c.method for c in cells)), tuple(map(plain, card.get("remarks", ()))), warned


def client_names(folder: Path) -> dict[int, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Names of the clients of each seed that train, and of those that come later; empty if they have none.

    Raises:
        RunError: If partition.json is missing or corrupt.
    """
    return {
        seed: (tuple(card.get("client_names") or ()), tuple(card.get("unseen", {}).get("client_names") or ()))
        for seed, card in _divisions(folder).items()
    }


def rows_of(folder: Path, part: Part, seed: int | None) -> dict[int | str, npt.NDArray[np.int64]]:
    """Rows of each client's part of the data as they were given, by its name, or number where clients have no names.

    Args:
        folder: The run's folder.
        part: "train", "val" or "test".
        seed: Seed of the run; None for the smallest.

    Raises:
        RunError: If the folder has no such seed, does not have the rows, or is corrupt.
    """
    card, held = _parts(folder, seed, part)
    if not (folder / columns.ROWS_FILE).is_file():
        raise RunError(f"{folder} does not say which rows each client has: its data are no rows of tables or arrays")
    rows = columns.given_rows(folder)
    names: list[int | str] = [*(card.get("client_names") or range(len(held)))]
    if (later := card.get("unseen")) is not None:
        names += later.get("client_names") or range(len(held), len(held) + len(later["clients"]))
        held += [client[part] for client in later["clients"]]
    return {name: np.sort(rows[np.array(of, np.int64)]) for name, of in zip(names, held, strict=True)}


def _cells(card: logs.RunCard, path: Path) -> tuple[RecordedCell, ...]:
    cells: dict[tuple[str, int], RecordedCell] = {}
    for row in card["cells"]:
        cell = RecordedCell(row["method"], row["setting"], row["seed"], row.get("bound"))
        # Metrics carry method and seed only, so a second such cell would look like the first.
        if (cell.method, cell.seed) in cells:
            raise refusal(path, f"cells name {cell.method}, seed {cell.seed}, twice")
        cells[cell.method, cell.seed] = cell
    return tuple(cells.values())


_Cell = tuple[str, int]
_Part = tuple[str, int, str]


def _metrics(
    connection: sqlite3.Connection, headline: Measure
) -> tuple[
    dict[_Part, dict[int, float]], dict[_Part, tuple[int, int]], dict[_Part, dict[int, float]],
    dict[_Cell, dict[int, float]],
]:  # fmt: skip
    """All series, over how few clients they are, single clients' last headlines, and their numbers of examples."""
    series: dict[_Part, dict[int, float]] = {}
    few: dict[_Part, tuple[int, int]] = {}
    clients: dict[_Part, dict[int, float]] = {}
    tested: dict[_Cell, dict[int, float]] = {}
    parts = {f"{part}.{headline.name}": part for part in ("personal", logs.SERVED, logs.ADAPTED)}
    for m in metrics(connection):
        at = (m.method, m.seed, m.name)
        if m.client is None:
            series.setdefault(at, {})[m.round] = m.value
            few.pop(at, None)
            if m.clients is not None:
                few[at] = m.clients[0], m.clients[1]
        elif part := parts.get(m.name):
            clients[m.method, m.seed, part] = dict(zip(_clients(m), m.value.tolist(), strict=True))
            if part == "personal":
                tested[m.method, m.seed] = dict(zip(_clients(m), m.weight.tolist(), strict=True))
    ordered = {key: dict(sorted(of.items())) for key, of in series.items()}
    return ordered, few, {key: dict(sorted(of.items())) for key, of in clients.items()}, tested


def _tested_rows(connection: sqlite3.Connection) -> dict[_Cell, columns.RowResults]:
    cells: dict[_Cell, list[tuple[int, int, float, int]]] = {}
    for row in select(connection, "tested"):
        of = (row["client"], row["unit"], row["value"], row["ranked"])
        cells.setdefault((row["method"], row["seed"]), []).append(of)
    return {cell: columns.RowResults.of_rows(some) for cell, some in cells.items()}


_Counts = dict[_Cell, dict[int, int]]  # (method, seed) -> {round: count}


def _sums(
    connection: sqlite3.Connection,
) -> tuple[dict[tuple[str, int, Direction, Kind], Flow], _Counts, _Counts]:
    """Sums over what was sent, the models sent in each round, and the exchanges in which clients trained."""
    way = "CASE WHEN src = 0 THEN 'down' WHEN dst = 0 THEN 'up' ELSE 'd2d' END"
    flows: dict[tuple[str, int, Direction, Kind], Flow] = {}
    models: _Counts = {}
    passes: _Counts = {}
    for method, seed, t, direction, kind, sent, count in connection.execute(
        f"SELECT method, seed, round, {way}, kind, sum(bytes), count(*) FROM transfers "
        "GROUP BY 1, 2, 3, 4, 5 ORDER BY min(id)"
    ):
        before = flows.get((method, seed, direction, kind), Flow())
        flows[method, seed, direction, kind] = Flow(before.bytes + sent, before.transfers + count)
        if kind == "model":
            by_round = models.setdefault((method, seed), {})
            by_round[t] = by_round.get(t, 0) + count
    for method, seed, t, count in connection.execute(
        "SELECT method, seed, round, count(DISTINCT hop) FROM work GROUP BY 1, 2, 3"
    ):
        passes.setdefault((method, seed), {})[t] = count
    return flows, models, passes


def _info(
    connection: sqlite3.Connection,
) -> tuple[dict[str, frozenset[str]], tuple[Warned, ...], dict[str, int]]:
    """Types of info by method, what methods warned of, and how many replies they refused."""
    types: dict[str, frozenset[str]] = {}
    warned: dict[tuple[str, str], Warned] = {}
    ignored: dict[str, int] = {}
    for row in select(connection, "info"):
        method, info = row["method"], row["info"]
        types[method] = types.get(method, frozenset()) | {row["type"]}
        for text in warnings_of(info):
            before = warned.get((method, text)) or Warned(method, text, row["seed"], row["round"], 0)
            warned[method, text] = replace(before, times=before.times + 1)
        if refused := sum(1 for _ in ignored_of(info)):
            ignored[method] = ignored.get(method, 0) + refused
    return types, tuple(warned.values()), ignored


def same_test_rows(folder: Path) -> bool:
    """Return true if all of several seeds of a run have the same test rows.

    Raises:
        RunError: If partition.json is missing or corrupt.
    """
    return _same_test_rows(_partitions(folder))


def _same_test_rows(partitions: Mapping[int, DataSplit]) -> bool:
    rows = {p.test_sha256 for p in partitions.values() if p.tested != 0}
    return len(partitions) > 1 and len(rows) == 1 and "" not in rows


def _partitions(folder: Path) -> dict[int, DataSplit]:
    partitions = {}
    for seed, card in sorted(_divisions(folder).items()):
        content = {**card, **card.get("stats", {}), "unseen": card.get("unseen", {}).get("sizes", ())}
        if "columns" in card:
            arrays = columns.partition_columns(folder, seed)
            content |= {name: values.tolist() for name, values in vars(arrays).items()}
            content["sizes"] = arrays.label_counts.sum(1).tolist()
        known = {f.name: content[f.name] for f in fields(DataSplit) if content.get(f.name) is not None}
        # A folder that does not say has the same test rows at least where all parts are the same.
        known.setdefault("test_sha256", content.get("sha256", ""))
        try:
            split: DataSplit = adapter(DataSplit).validate_python(known)
        except pydantic.ValidationError as error:
            raise refusal(folder / "partition.json", f"seeds.{seed}: {logs.sentence(error)}") from None
        if len(split.sizes) != len(split.label_counts):
            raise refusal(folder / "partition.json", f"seeds.{seed} has other clients in sizes than in label_counts")
        if {len(split.classes)} != {*map(len, split.label_counts)}:
            split = replace(split, classes=())
        partitions[seed] = split
    return partitions


def _summary(path: Path) -> Summary:
    card = document(path, logs.SummaryCard)
    means = {(r["method"], r["metric"]): r["mean"] for r in card["rows"]}
    seeds = tuple(card["seeds"]) if "seeds" in card else None
    return Summary(card["fingerprint"], card["seconds"], means, card.get("stopped"), card.get("peak_rss"), seeds)


def _predicted(path: Path) -> tuple[Predicted | None, tuple[str, ...]]:
    """The forecast, or a sentence if there is one that cannot be read: no result depends on it."""
    if not path.is_file():
        return None, ()
    try:
        card = document(path, dict[str, Any])
        given = {
            "methods": {m["method"]: (_total(m.get("bytes")), m.get("seconds")) for m in card["methods"]},
            "seconds": card.get("seconds"),
            "peak": card["memory"]["peak"],
            "traffic": {m["method"]: m["traffic"] for m in card["methods"] if "traffic" in m},
        }
        return adapter(Predicted).validate_python(given), ()
    except (RunError, KeyError, TypeError, AttributeError, pydantic.ValidationError):
        return None, (f"The forecast is left out: {path} is damaged; remove it.",)


def _total(sent: Mapping[str, float] | None) -> float | None:
    return None if sent is None else sent["down"] + sent["up"] + sent["d2d"]
