"""A run folder, read into values.

Every file is checked as it is read: what is not as the run wrote it is refused with its file and line.  Two things are
not errors, because a run that was killed leaves them behind: files that do not exist yet in a run without
`summary.json`, and a last line that was cut short.  Both are kept as facts of the record, so that a report can say so.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from unskew.errors import RunError

Bound = Literal["lower", "upper", "pooled"]
Kind = Literal["model", "control"]
Direction = Literal["down", "up", "d2d"]

SCHEMA = 1
SERVER = 0  # node 0 of the ledger


@dataclass(frozen=True)
class Cell:
    """One training of the run: a method on one seed.  `bound` marks what is not a competitor."""

    method: str
    setting: str
    seed: int
    bound: Bound | None


@dataclass(frozen=True)
class Partition:
    """How one seed divided the data: clients' sizes, their label counts [client][label], and the skew measures.

    `domains` has one of each client, and none where a client has examples of several, or the data no domains.
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


@dataclass(frozen=True)
class Flow:
    """A sum over the ledger: bytes and number of transfers."""

    bytes: int = 0
    transfers: int = 0


@dataclass(frozen=True)
class Failure:
    """A client that was asked and did not reply."""

    method: str
    seed: int
    round: int
    client: int
    reason: str


@dataclass(frozen=True)
class Warned:
    """A sentence that a method had for the user: the cell and round it came first, and in how many rounds it came."""

    method: str
    text: str
    seed: int
    round: int
    times: int


@dataclass(frozen=True)
class Summary:
    """What the run wrote when it ended; `means` is (method, metric) -> mean over seeds, `peak_rss` is in bytes."""

    fingerprint: str
    seconds: float
    means: Mapping[tuple[str, str], float]
    stopped: Mapping[str, object] | None
    peak_rss: float | None = None


@dataclass(frozen=True)
class Predicted:
    """What plan.json foretold.

    Attributes:
        methods: Label -> (bytes of one seed, seconds of one seed); None for what was not foretold.
        traffic: Label -> how sure the bytes were.
        seconds: Of the whole run.
        peak: Of the main process, bytes.
    """

    methods: Mapping[str, tuple[float | None, float | None]]
    seconds: float | None
    peak: float
    traffic: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
    """Everything a report needs to know about one run.

    Attributes:
        series: (method, seed, metric name) -> {round: value}, rounds ascending.
        clients: (method, seed) -> {client: accuracy} of the last round that has rows for single clients.
        flows: (method, seed, direction, kind) -> sum over the ledger.
        models: (method, seed) -> {round: transfers that carried a model}.
        passes: (method, seed) -> {round: exchanges in which clients trained, one after the other}.
        facts: Method -> the names that each of its rows in info.jsonl has; the rows themselves are for `info_of`.
        ever: Method -> the names that any of them has.
        warned: What methods had for the user to know.
        ignored: Method -> replies that it refused.
        summary: None while the run has not finished.
        cut_short: Names of files whose last line was incomplete and left out.
    """

    folder: Path
    name: str
    created: str
    command: str
    version: str
    environment: Mapping[str, str]
    config_sha256: str
    config: str
    cells: tuple[Cell, ...]
    series: Mapping[tuple[str, int, str], Mapping[int, float]]
    clients: Mapping[tuple[str, int], Mapping[int, float]]
    flows: Mapping[tuple[str, int, Direction, Kind], Flow]
    partitions: Mapping[int, Partition]
    failures: tuple[Failure, ...]
    summary: Summary | None
    cut_short: tuple[str, ...]
    predicted: Predicted | None = None
    models: Mapping[tuple[str, int], Mapping[int, int]] = field(default_factory=dict)
    passes: Mapping[tuple[str, int], Mapping[int, int]] = field(default_factory=dict)
    info: Mapping[str, frozenset[str]] = field(default_factory=dict)
    ever: Mapping[str, frozenset[str]] = field(default_factory=dict)
    warned: tuple[Warned, ...] = ()
    ignored: Mapping[str, int] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether the run wrote its summary."""
        return self.summary is not None

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods in the order of the run."""
        return tuple(dict.fromkeys(c.method for c in self.cells))

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds, ascending."""
        return tuple(sorted({c.seed for c in self.cells}))

    def cell(self, method: str) -> Cell:
        """The first cell of a method: its setting and bound are those of every seed."""
        return next(c for c in self.cells if c.method == method)


def configured(record: Record) -> dict[str, Any]:
    """What config.toml says; nothing where there is none.

    Raises:
        RunError: If the file is not TOML.
    """
    try:
        return tomllib.loads(record.config)
    except tomllib.TOMLDecodeError as e:
        raise RunError(f"{record.folder / 'config.toml'} is not TOML: {e}; restore it or run again") from None


def read(folder: Path) -> Record:
    """The record of a run folder, finished or not.

    Raises:
        RunError: If `folder` is not a run folder, or a file in it is missing or corrupt; names file and line.
    """
    folder = Path(folder)
    if not (folder / "run.json").is_file():
        raise RunError(f"{folder} is not a run folder: it has no run.json; give a folder that `unskew run` wrote")
    run = _document(folder / "run.json")
    environment = run.mapping("environment")
    cells = _cells(run)
    summary = _summary(folder / "summary.json") if (folder / "summary.json").is_file() else None
    # An empty ledger is legitimate (nothing travels in a centralised run); the other files every finished run has.
    for name in ("config.toml", "metrics.jsonl", "partition.json") if summary else ():
        if not (folder / name).is_file():
            raise RunError(f"{folder / name} is missing though the run has a summary.json; restore it or run again")

    cut_short: list[str] = []
    series, clients = _metrics(_rows(folder / "metrics.jsonl", cut_short), cells)
    flows, models = _flows(_rows(folder / "ledger.jsonl", cut_short), cells)
    info, ever, warned, ignored = _facts(_rows(folder / "info.jsonl", cut_short), cells)
    return Record(
        folder=folder,
        name=run.text("run"),
        created=run.text("created"),
        command=run.text("command"),
        version=run.text("unskew"),
        environment={k: plain(v) for k, v in environment.items()},
        config_sha256=run.text("config_sha256"),
        config=_text(folder / "config.toml") if (folder / "config.toml").is_file() else "",
        cells=cells,
        series=series,
        clients=clients,
        flows=flows,
        partitions=_partitions(folder / "partition.json") if (folder / "partition.json").is_file() else {},
        failures=tuple(_failures(_rows(folder / "failures.jsonl", cut_short), cells)),
        summary=summary,
        cut_short=tuple(cut_short),
        predicted=_predicted(folder / "plan.json") if (folder / "plan.json").is_file() else None,
        models=models,
        passes=_passes(_rows(folder / "work.jsonl", cut_short), cells),
        info=info,
        ever=ever,
        warned=warned,
        ignored=ignored,
    )


def info_of(record: Record, method: str) -> Iterator[tuple[int, int, "Row"]]:
    """(seed, round, facts) of a method, in the order written.

    Streamed anew, because what a method has to show of each round may be more than a record should hold.

    Raises:
        RunError: If info.jsonl is corrupt; names the line.
    """
    for row in _rows(record.folder / "info.jsonl", []):
        if row.text("method") == method:
            yield row.whole("seed"), row.whole("round"), row.inner("info")


def holdings(record: Record, seed: int) -> tuple[tuple[int, ...], ...]:
    """Numbers of each client's training examples in the data set; read anew, because they may be many.

    Raises:
        RunError: If partition.json is corrupt or does not have the seed.
    """
    clients = _document(record.folder / "partition.json").inner("seeds").inner(str(seed)).rows("clients")
    return tuple(client.counts("train", client.items("train")) for client in clients)


class Row(NamedTuple):
    """A JSON object and where it stands, so that a wrong field can be named with its place.

    A tuple, because a ledger has millions of rows and no record is cheaper to make.
    """

    values: Mapping[str, object]
    file: Path
    line: int | None = None

    def refuse(self, what: str) -> RunError:
        """The error that names this row's place."""
        place = f"{self.file}, line {self.line}" if self.line else f"{self.file}"
        return RunError(f"{place}: {what}; the file is corrupt, restore it or run again")

    def _get(self, key: str, expected: str) -> object:
        try:
            return self.values[key]
        except KeyError:
            raise self.refuse(f"{key} is missing, {expected} expected") from None

    def text(self, key: str) -> str:
        """The text under `key`."""
        value = self._get(key, "text")
        if not isinstance(value, str):
            raise self.refuse(f"{key} must be text, got {value!r}")
        return value

    def whole(self, key: str) -> int:
        """The whole number >= 0 under `key`."""
        value = self._get(key, "a whole number >= 0")
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.refuse(f"{key} must be a whole number >= 0, got {value!r}")
        return value

    def number(self, key: str) -> float:
        """The number under `key`."""
        value = self._get(key, "a number")
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.refuse(f"{key} must be a number, got {value!r}")
        return float(value)

    def mapping(self, key: str) -> Mapping[str, object]:
        """The object under `key`."""
        value = self._get(key, "an object")
        if not isinstance(value, dict):
            raise self.refuse(f"{key} must be an object, got {value!r}")
        return value

    def inner(self, key: str) -> "Row":
        """The object under `key` as a row of its own."""
        return Row(self.mapping(key), self.file, self.line)

    def items(self, key: str) -> list[object]:
        """The list under `key`."""
        value = self._get(key, "a list")
        if not isinstance(value, list):
            raise self.refuse(f"{key} must be a list, got {value!r}")
        return value

    def rows(self, key: str) -> list["Row"]:
        """The list of objects under `key`, as rows."""
        found = []
        for item in self.items(key):
            if not isinstance(item, dict):
                raise self.refuse(f"{key} must hold objects, got {item!r}")
            found.append(Row(item, self.file, self.line))
        return found

    def counts(self, key: str, items: object) -> tuple[int, ...]:
        """`items` as whole numbers >= 0; `key` names them in the error."""
        whole = isinstance(items, list) and all(
            isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in items
        )
        if not isinstance(items, list) or not whole:
            raise self.refuse(f"{key} must hold whole numbers >= 0, got {items!r:.60}")
        return tuple(items)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise RunError(f"{path} cannot be read: {e}") from e


def _document(path: Path) -> Row:
    try:
        value = json.loads(_text(path))
    except json.JSONDecodeError as e:
        raise RunError(f"{path}, line {e.lineno}: not JSON ({e.msg}); the file is corrupt, restore it") from e
    if not isinstance(value, dict):
        raise RunError(f"{path}: must hold one JSON object, got {value!r:.60}; the file is corrupt, restore it")
    row = Row(value, path)
    if "schema" in value and value["schema"] != SCHEMA:
        raise RunError(
            f"{path}: schema must be {SCHEMA}, got {value['schema']!r}; "
            "the folder was written by another version of unskew, read it with that one"
        )
    return row


def _rows(path: Path, cut_short: list[str]) -> Iterator[Row]:
    """The rows of a JSON-lines file, streamed.  A torn last line ends the file and is noted in `cut_short`."""
    if not path.exists():
        return
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    value = json.loads(line.decode())
                except ValueError as e:
                    # Only the last line can lack its newline, and only there a crash can have cut a row.
                    if not line.endswith(b"\n"):
                        cut_short.append(path.name)
                        return
                    raise RunError(f"{path}, line {number}: not JSON ({e}); the file is corrupt, restore it") from e
                if not isinstance(value, dict):
                    raise RunError(f"{path}, line {number}: must be a JSON object, got {value!r:.60}; restore the file")
                yield Row(value, path, number)
    except OSError as e:
        raise RunError(f"{path} cannot be read: {e}") from e


def _cells(run: Row) -> tuple[Cell, ...]:
    cells: dict[tuple[str, int], Cell] = {}
    for row in run.rows("cells"):
        bound = row.values.get("bound")
        if bound is not None and bound not in get_args(Bound):
            raise row.refuse(f"bound must be null, lower, upper or pooled, got {bound!r}")
        cell = Cell(row.text("method"), row.text("setting"), row.whole("seed"), bound)  # type: ignore[arg-type]
        # Metrics carry method and seed only, so a second such cell could not be told from the first.
        if (cell.method, cell.seed) in cells:
            raise row.refuse(f"cells name {cell.method}, seed {cell.seed}, twice")
        cells[cell.method, cell.seed] = cell
    if not cells:
        raise run.refuse("cells must name at least one method, got none")
    return tuple(cells.values())


def _known(row: Row, cells: set[tuple[str, int]]) -> tuple[str, int]:
    where = (row.text("method"), row.whole("seed"))
    if where not in cells:
        raise row.refuse(f"run.json has no cell for method {where[0]!r}, seed {where[1]}")
    return where


def _metrics(
    rows: Iterator[Row], cells: tuple[Cell, ...]
) -> tuple[dict[tuple[str, int, str], dict[int, float]], dict[tuple[str, int], dict[int, float]]]:
    known = {(c.method, c.seed) for c in cells}
    series: dict[tuple[str, int, str], dict[int, float]] = {}
    clients: dict[tuple[str, int], dict[int, dict[int, float]]] = {}
    for row in rows:
        method, seed = _known(row, known)
        name, at, value = row.text("name"), row.whole("round"), row.number("value")
        if row.values.get("client") is None:
            place, key = series.setdefault((method, seed, name), {}), at
        elif name == "personal.accuracy":
            place, key = clients.setdefault((method, seed), {}).setdefault(at, {}), row.whole("client")
        else:
            continue
        if key in place:
            raise row.refuse(f"{name} of {method}, seed {seed}, round {at} is given twice")
        place[key] = value
    ordered = {k: dict(sorted(v.items())) for k, v in series.items()}
    return ordered, {k: dict(sorted(v[max(v)].items())) for k, v in clients.items()}


_Counts = dict[tuple[str, int], dict[int, int]]  # (method, seed) -> {round: count}


def _flows(
    rows: Iterator[Row], cells: tuple[Cell, ...]
) -> tuple[dict[tuple[str, int, Direction, Kind], Flow], _Counts]:
    known = {(c.method, c.seed) for c in cells}
    sums: dict[tuple[str, int, Direction, Kind], list[int]] = {}
    models: _Counts = {}
    for row in rows:
        method, seed = _known(row, known)
        kind = row.text("kind")
        if kind not in get_args(Kind):
            raise row.refuse(f"kind must be model or control, got {kind!r}")
        src, dst = row.whole("src"), row.whole("dst")
        direction: Direction = "down" if src == SERVER else "up" if dst == SERVER else "d2d"
        total = sums.setdefault((method, seed, direction, kind), [0, 0])  # type: ignore[arg-type]
        total[0] += row.whole("bytes")
        total[1] += 1
        if kind == "model":
            by_round, at = models.setdefault((method, seed), {}), row.whole("round")
            by_round[at] = by_round.get(at, 0) + 1
    return {k: Flow(*v) for k, v in sums.items()}, models


def _passes(rows: Iterator[Row], cells: tuple[Cell, ...]) -> _Counts:
    known = {(c.method, c.seed) for c in cells}
    hops: dict[tuple[str, int], dict[int, set[int]]] = {}
    for row in rows:
        hops.setdefault(_known(row, known), {}).setdefault(row.whole("round"), set()).add(row.whole("hop"))
    return {cell: {t: len(found) for t, found in rounds.items()} for cell, rounds in hops.items()}


def _facts(
    rows: Iterator[Row], cells: tuple[Cell, ...]
) -> tuple[dict[str, frozenset[str]], dict[str, frozenset[str]], tuple[Warned, ...], dict[str, int]]:
    known = {(c.method, c.seed) for c in cells}
    seen: set[tuple[str, int, int]] = set()
    names: dict[str, frozenset[str]] = {}
    ever: dict[str, frozenset[str]] = {}
    warned: dict[tuple[str, str], Warned] = {}
    ignored: dict[str, int] = {}
    for row in rows:
        (method, seed), at, info = _known(row, known), row.whole("round"), row.inner("info")
        if (method, seed, at) in seen:
            raise row.refuse(f"facts of {method}, seed {seed}, round {at} are given twice")
        seen.add((method, seed, at))
        names[method] = names.get(method, frozenset(info.values)) & frozenset(info.values)
        ever[method] = ever.get(method, frozenset()) | frozenset(info.values)
        for text in info.items("warnings") if "warnings" in info.values else ():
            if not isinstance(text, str):
                raise row.refuse(f"warnings must hold text, got {text!r:.60}")
            before = warned.get((method, text))
            warned[method, text] = (
                Warned(method, text, seed, at, 1) if before is None else replace(before, times=before.times + 1)
            )
        if refused := len(info.items("ignored")) if "ignored" in info.values else 0:
            ignored[method] = ignored.get(method, 0) + refused
    return names, ever, tuple(warned.values()), ignored


def _partitions(path: Path) -> dict[int, Partition]:
    seeds = _document(path).inner("seeds")
    found = {}
    for seed in seeds.values:
        if not seed.isdecimal():
            raise seeds.refuse(f"seeds must be named by whole numbers, got {seed!r}")
        row = seeds.inner(seed)
        stats = row.inner("stats")
        sizes = stats.counts("sizes", stats.items("sizes"))
        labels = tuple(stats.counts("label_counts", counts) for counts in stats.items("label_counts"))
        if len(labels) != len(sizes) or len({len(counts) for counts in labels}) > 1:
            raise stats.refuse(f"label_counts must be a table with a row for each of {len(sizes)} clients")
        domains = stats.counts("domains", stats.items("domains")) if "domains" in stats.values else ()
        if len(domains) not in (0, len(sizes)):
            raise stats.refuse(f"domains must have one for each of {len(sizes)} clients, got {len(domains)}")
        found[int(seed)] = Partition(
            dataset=row.text("dataset"),
            dataset_sha256=row.text("dataset_sha256"),
            n=row.whole("n"),
            split=row.mapping("split"),
            sha256=row.text("sha256"),
            sizes=sizes,
            label_counts=labels,
            iid_distance=stats.number("iid_distance"),
            js=stats.number("js"),
            effective_classes=stats.number("effective_classes"),
            domains=domains,
        )
    return dict(sorted(found.items()))


def _failures(rows: Iterator[Row], cells: tuple[Cell, ...]) -> Iterator[Failure]:
    known = {(c.method, c.seed) for c in cells}
    for row in rows:
        method, seed = _known(row, known)
        yield Failure(method, seed, row.whole("round"), row.whole("client"), row.text("reason"))


def _summary(path: Path) -> Summary:
    row = _document(path)
    row.text("run")  # the command's table is called by it
    stopped = row.mapping("stopped") if row.values.get("stopped") is not None else None
    means = {}
    for r in row.rows("rows"):
        means[r.text("method"), r.text("metric")] = r.number("mean")
        r.items("seeds")  # these two the command's table wants
        if r.values.get("std", 0.0) is not None:
            r.number("std")
    peak = row.number("peak_rss") if "peak_rss" in row.values else None
    return Summary(row.text("fingerprint"), row.number("seconds"), means, stopped, peak)


def _predicted(path: Path) -> Predicted:
    row = _document(path)
    methods = {}
    for m in row.rows("methods"):
        sent = m.inner("bytes") if m.values.get("bytes") is not None else None
        total = None if sent is None else sum(sent.number(d) for d in get_args(Direction))
        methods[m.text("method")] = (total, m.number("seconds") if m.values.get("seconds") is not None else None)
    seconds = row.number("seconds") if row.values.get("seconds") is not None else None
    traffic = {m.text("method"): m.text("traffic") for m in row.rows("methods") if "traffic" in m.values}
    return Predicted(methods, seconds, row.inner("memory").number("peak"), traffic)


def plain(value: object) -> str:
    """A value of a JSON document for people to read: text as it is, the rest as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def described(split: Mapping[str, object]) -> str:
    """A split in words: its name first, then its parameters in the order given.

    >>> described({"name": "dirichlet", "alpha": 0.1, "clients": 20})
    'dirichlet(alpha=0.1, clients=20)'
    """
    name = next((str(split[k]) for k in ("name", "kind", "type") if k in split), "split")
    rest = [f"{k}={plain(v)}" for k, v in split.items() if k not in ("name", "kind", "type") and v is not None]
    return f"{name}({', '.join(rest)})"
