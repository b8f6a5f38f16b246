"""Reads a run folder into values.

An invalid file is an error that names it.  An unfinished run is no error.
"""

import functools
import hashlib
import itertools
import json
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pydantic

from unskew import schema
from unskew.data.manifest import Ragged, part_in
from unskew.errors import RunError
from unskew.files import from_toml
from unskew.info import TYPES, Info, adapter, ignored_of, info_type, warnings_of
from unskew.record import database, logs
from unskew.record.database import FILE, metrics, opened, rows
from unskew.record.frame import Numbers, RowResults
from unskew.record.logs import Bound, document, plain, read_text, refusal
from unskew.tasks.measure import ACCURACY, Measure, described
from unskew.words import beginning

AnyInfo = TypeVar("AnyInfo", bound=Info)


@dataclass(frozen=True)
class RecordedCell:
    """A method under one seed.  `bound` marks a reference that does not compete."""

    method: str
    setting: str
    seed: int
    bound: Bound | None


@dataclass(frozen=True)
class DataSplit:
    """One seed's division of the data: clients' sizes, their label counts [client][label], and the skew measures.

    `domains` has one entry per client; empty if clients have several domains, or there are none.  `client_names` and
    `classes` are empty if clients or labels are numbers.  `unseen` are sizes of unseen clients.  `test_counts` and
    `test_patients` are label counts and patients of the clients' test examples, empty if unknown.  `test_sha256` is
    equal for equal test examples.  `in_time` is true if they are each client's latest.  `counted` says what labels are:
    classes, or groups of other targets.
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
    unseen_names: tuple[str, ...] = ()
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
        """All clients' own test examples; None if unknown."""
        return sum(map(sum, self.test_counts)) if self.test_counts else None

    def client(self, number: int) -> str:
        """The client's name, or its number if it has none."""
        return self.client_names[number] if self.client_names else str(number)

    def label(self, number: int) -> str:
        """The class's name, or its number if it has none."""
        return self.classes[number] if self.classes else str(number)


@dataclass(frozen=True, eq=False)
class Record:
    """The content of a run for reports, or of several runs (`unskew.report.together`).

    Attributes:
        card: run.json.
        frame: Every number of every round.
        headline: The metric by which the run's models are compared.
        asked: The metrics that the run reports beside the headline and the loss.
        failures: Rows of clients that did not reply, or whose reply was refused.
        summary: summary.json; None while the run has not finished.
        info: Method -> the types of its info; `info_of` reads the rows.
        ignored: Method -> number of replies that it refused.
        baseline: Label of the method that others are compared with; None without.
        tested_rows: (method, seed) -> results of the clients' own models by test row, if recorded.
        until: The rule of a run that adds seeds until its comparisons are decided; cells are those begun so far.
        notes: Notes on data, settings and methods.
        diverged: Methods that diverged, by seed; `numbers` leaves them out.
        parts: The runs, if several are read as one, by the prefix of their methods' labels.
        comparable: False for several runs that differ in more than their methods.
        for_own: For several runs, methods for clients' own models; None if config.toml has it.
    """

    folder: Path
    name: str
    card: Mapping[str, Any]
    config: str
    cells: tuple[RecordedCell, ...]
    frame: Numbers
    partitions: Mapping[int, DataSplit]
    failures: tuple[Mapping[str, Any], ...]
    summary: Mapping[str, Any] | None
    predicted: Mapping[str, Any] | None = None
    info: Mapping[str, frozenset[str]] = field(default_factory=dict)
    ignored: Mapping[str, int] = field(default_factory=dict)
    baseline: str | None = None
    headline: Measure = ACCURACY
    asked: tuple[Measure, ...] = ()
    tested_rows: Mapping[tuple[str, int], RowResults] = field(default_factory=dict)
    until: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()
    diverged: tuple[logs.DivergedRow, ...] = ()
    parts: "Mapping[str, Record]" = field(default_factory=dict)
    comparable: bool = True
    for_own: frozenset[str] | None = None

    @functools.cached_property
    def numbers(self) -> Numbers:
        """The frame without trainings that diverged."""
        without = {(row["method"], row["seed"]) for row in self.diverged}
        return self.frame.where(lambda n: (n.method, n.seed) not in without) if without else self.frame

    def clients(self, method: str, seed: int, part: str = "personal") -> Mapping[int, float]:
        """{client: headline of its model} in the last round with rows of single clients."""
        return self.numbers.clients(method, seed, f"{part}.{self.headline.name}")

    def tested(self, method: str, seed: int) -> Mapping[int, float]:
        """{client: number of its test examples} of the same clients."""
        return self.numbers.clients(method, seed, f"personal.{self.headline.name}", "weight")

    def names(self, seed: int) -> tuple[str, ...]:
        """Names of the clients or sites; empty if they are numbers."""
        known = self.partitions[seed].client_names if seed in self.partitions else ()
        return known or tuple(self.card.get("client_names", ()))

    @property
    def has_clients(self) -> bool:
        """True if the run has results of single clients."""
        return any(self.clients(c.method, c.seed) for c in self.cells)

    @property
    def finished(self) -> bool:
        """True if the run wrote its summary."""
        return self.summary is not None

    @property
    def deployed(self) -> bool:
        """True if the run's clients had data of their own, which a report must not read."""
        return logs.deployed(self.folder, self.card["command"])

    @property
    def same_test_rows(self) -> bool:
        """True if several seeds have the same test rows, so that seeds do not show the rows' chance."""
        rows = {p.test_sha256 for p in self.partitions.values() if p.tested != 0}
        fixed = self.deployed if not self.partitions else len(rows) == 1 and "" not in rows
        return len(self.partitions or self.seeds) > 1 and fixed

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

    def diverged_seeds(self, method: str) -> frozenset[int]:
        """Seeds under which a method diverged."""
        return frozenset(row["seed"] for row in self.diverged if row["method"] == method)

    def cell(self, method: str) -> RecordedCell:
        """The first cell of a method; all seeds share its setting and bound."""
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


def read(folder: Path) -> Record:
    """The record of a run folder, finished or not; `select` reads traffic and work.

    Raises:
        RunError: If `folder` is not a run folder, or a file in it is missing, corrupt or changed; the message names it.
    """
    folder = Path(folder)
    if not (folder / "run.json").is_file():
        raise RunError(f"{folder} is not a run folder: it has no run.json; give a folder that `unskew run` wrote")
    with logs.understood(folder):
        return _read(folder)


def _read(folder: Path) -> Record:
    card = document(folder / "run.json")
    cells = tuple(RecordedCell(row["method"], row["setting"], row["seed"], row.get("bound")) for row in card["cells"])
    summary = document(folder / "summary.json") if (folder / "summary.json").is_file() else None
    if summary is not None and not {"run", "fingerprint", "seconds", "rows"} <= summary.keys():
        raise refusal(folder / "summary.json", "it is no summary of a run")
    for name in ("config.toml", "partition.json") if summary else ():
        if not (folder / name).is_file():
            raise RunError(f"{folder / name} is missing though the run has a summary.json; restore it or run again")
    with opened(folder) as connection:
        diverged = tuple(cast("Iterator[logs.DivergedRow]", database.select(connection, "diverged")))
        frame = Numbers(metrics(connection, LAST_OF_MANY, 8 * MANY))
        info, warned, ignored = _info(connection)
        without = {(row["method"], row["seed"]) for row in diverged}
        failures = tuple(
            row for row in database.select(connection, "failures") if (row["method"], row["seed"]) not in without
        )
        before = (*map(plain, card.get("notes", ())), *_resumed(connection))
        tested_rows = _tested_rows(connection)
        _require_documents(connection, folder)
    partitions = _partitions(folder) if (folder / "partition.json").is_file() else {}
    if (until := card.get("until")) is not None:
        begun = {*(summary.get("seeds", ()) if summary else (seed for _, seed, _ in frame.keys))} or {until["first"]}
        cells = tuple(c for c in cells if c.seed in begun) or cells
        partitions = {seed: p for seed, p in partitions.items() if seed in begun}
    measures = [described(of) for of in card.get("measures", [None])]
    return Record(
        folder=folder,
        name=card["run"],
        card=card,
        config=read_text(folder / "config.toml") if (folder / "config.toml").is_file() else "",
        cells=cells,
        frame=frame,
        partitions=partitions,
        failures=failures,
        summary=summary,
        predicted=document(folder / "plan.json") if (folder / "plan.json").is_file() else None,
        info=info,
        ignored=ignored,
        baseline=base if (base := card.get("baseline")) in {c.method for c in cells} else None,
        headline=measures[0],
        asked=tuple(measures[2:]),
        tested_rows=tested_rows,
        until=until,
        notes=(*sentences(before, [c.method for c in cells]), *of_warnings(warned)),
        diverged=diverged,
    )


MANY = 10_000
"""Clients up to which a frame has each one's numbers of every round; of more it has those of the last round."""
LAST_OF_MANY = (
    "client IS NULL OR length(client) <= ? OR id IN "
    "(SELECT max(id) FROM metrics WHERE client IS NOT NULL GROUP BY method, seed, name)"
)


def select(record: Record, query: str) -> Iterator[tuple[Any, ...]]:
    """Rows of a query on the database of the run, or of each of several; its first column is the method.

    Raises:
        RunError: If a database is missing or damaged.
    """
    for name, part in (record.parts or {"": record}).items():
        with opened(part.folder) as connection:
            for method, *row in connection.execute(query):
                yield f"{name}/{method}" if name else method, *row


Part = Literal["train", "val", "test"]


class InfoOfRound(NamedTuple, Generic[AnyInfo]):
    """The info that a method reported for one round."""

    seed: int
    round: int
    info: AnyInfo


def info_of(record: Record, method: str, kind: type[AnyInfo]) -> Iterator[InfoOfRound[AnyInfo]]:
    """Info of a type or its subtypes that a method reported, in the order written, without diverged seeds.

    Raises:
        RunError: If a row does not fit the type; the message names the row.
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


def _require_documents(connection: sqlite3.Connection, folder: Path) -> None:
    """Refuse documents that changed since the last checkpoint."""
    for (position,) in connection.execute("SELECT position FROM checkpoint"):
        for name, sha256 in json.loads(position)["documents"].items():
            if hashlib.sha256(read_text(folder / name).encode()).hexdigest() != sha256:
                raise refusal(folder / name, "it changed since it was written")


def part_of(folder: Path, part: Part, seed: int | None = None) -> tuple[dict[str, Any], Ragged]:
    """One seed's division, by default of the smallest seed, and a part's examples of each client that trained.

    Raises:
        RunError: If the folder has no such seed, or is corrupt.
    """
    cards = document(folder / "partition.json")["seeds"]
    if not cards:
        raise RunError(f"{folder} does not say which rows each client has: clients kept them to themselves")
    seed = min(map(int, cards)) if seed is None else seed
    if (card := cards.get(str(seed))) is None:
        raise RunError(f"{folder} has no seed {seed} (seeds: {', '.join(sorted(cards, key=int))})")
    with logs.understood(folder):
        return card, part_in(card["parts"][part])


def _resumed(connection: sqlite3.Connection) -> Iterator[str]:
    """Sentences on where the run was resumed, and what had changed."""
    for row in database.select(connection, "resumed"):
        at = f"round {row['round']} of {row['method']}, seed {row['seed']}"
        how = f"from there on with {'; '.join(row['changed'])}" if row["changed"] else "from there on as it began"
        yield f"resumed at {at}, {how}"


def rows_of(folder: Path, part: Part, seed: int | None) -> dict[int | str, npt.NDArray[np.int64]]:
    """Rows of each client's part in the data as given, by the client's name or number.

    Args:
        folder: The run's folder.
        part: "train", "val" or "test".
        seed: Seed of the run; by default the smallest.

    Raises:
        RunError: If the folder has no such seed, does not have the rows, or is corrupt.
    """
    card, held = part_of(folder, part, seed)
    if (rows := document(folder / "partition.json").get("rows")) is None:
        raise RunError(f"{folder} does not say which rows each client has: its data are no rows of tables or arrays")
    with logs.understood(folder):
        every, given = list(held), np.array(rows)
        names: list[int | str] = [*(card["client_names"] or range(len(held)))]
        if (later := card.get("unseen")) is not None:
            every += part_in(later["parts"][part])
            names += later["client_names"] or range(len(held), len(every))
        return {name: np.sort(given[each.numpy()]) for name, each in zip(names, every, strict=True)}


_Cell = tuple[str, int]


def _tested_rows(connection: sqlite3.Connection) -> dict[_Cell, RowResults]:
    cells: dict[_Cell, RowResults] = {}
    for (method, seed, client, ranked), some in itertools.groupby(
        connection.execute("SELECT method, seed, client, ranked, unit, value FROM tested ORDER BY 1, 2, 3, id"),
        lambda row: row[:4],
    ):
        units, values = zip(*(row[4:] for row in some), strict=True)
        of = cells.setdefault((method, seed), RowResults({}, bool(ranked)))
        of.by_client[client] = np.array(units, np.int64), np.array(values)
    return cells


def _info(
    connection: sqlite3.Connection,
) -> tuple[dict[str, frozenset[str]], list[tuple[str, str, int, int]], dict[str, int]]:
    """Types of info by method, warnings as (method, text, seed, round), and how many replies methods refused."""
    types: dict[str, frozenset[str]] = {}
    warned: list[tuple[str, str, int, int]] = []
    ignored: dict[str, int] = {}
    for row in database.select(connection, "info"):
        method, info = row["method"], row["info"]
        types[method] = types.get(method, frozenset()) | {row["type"]}
        warned += [(method, text, row["seed"], row["round"]) for text in warnings_of(info)]
        if refused := sum(1 for _ in ignored_of(info)):
            ignored[method] = ignored.get(method, 0) + refused
    return types, warned, ignored


def _partitions(folder: Path) -> dict[int, DataSplit]:
    partitions = {}
    for seed, card in sorted((int(seed), card) for seed, card in document(folder / "partition.json")["seeds"].items()):
        stats, later = card.get("stats", {}), card.get("unseen", {})
        content = {**card, **stats, "unseen": later.get("sizes", ())}
        content["unseen_names"] = later.get("client_names")
        known = {f.name: content[f.name] for f in fields(DataSplit) if content.get(f.name) is not None}
        try:
            split: DataSplit = adapter(DataSplit).validate_python(known)
        except pydantic.ValidationError as error:
            raise refusal(folder / "partition.json", f"seeds.{seed}: {logs.sentence(error)}") from None
        if {len(split.classes)} != {*map(len, split.label_counts)}:
            split = replace(split, classes=())
        partitions[seed] = split
    return partitions


# ---------------------------------------------------------------- notes
_NUMBER = re.compile(r"\d+(\.\d+)?%|\d+\.\d+")
"""A measurement: whole numbers may name clients."""


def sentences(texts: Iterable[str], methods: Sequence[str]) -> Iterator[str]:
    """Notes from before a run as sentences; method labels keep their case."""
    labels = tuple(f"{method}: " for method in methods)
    for text in texts:
        sentence = text if text.startswith(labels) else beginning(text)
        yield sentence if text.endswith("?") else f"{sentence}."


def of_warnings(warned: Iterable[tuple[str, str, int, int]]) -> Iterator[str]:
    """Notes of methods, each (method, text, seed, round), merged over methods with the same one.

    Of those that differ only in numbers, as between seeds, only the first is kept.
    """
    alike: dict[tuple[str, str], list[tuple[str, int, int]]] = {}
    for method, text, seed, at in warned:
        alike.setdefault((method, _NUMBER.sub("", text)), []).append((text, seed, at))
    methods: dict[str, list[str]] = {}
    for (method, _), rounds in alike.items():
        text, seed, at = rounds[0]
        when = f"seed {seed}, round {at}"
        when = when if len(rounds) == 1 else f"first at {when}, in {len(rounds):,} rounds of all seeds together"
        when += ", with other numbers elsewhere" * (len({text for text, *_ in rounds}) > 1)
        methods.setdefault(f"{text} ({when})", []).append(method)
    yield from (f"{', '.join(labels)}: {text}" for text, labels in methods.items())
