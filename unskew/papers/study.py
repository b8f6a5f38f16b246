"""A study: methods on data sets (grounds) and in settings, published numbers beside ours, and claims about them.

PAPER.toml holds, for all reproductions of a paper and for each of them,

    [experiment]           an experiment as `unskew run` reads it, except that `methods` is a table by label
    [grounds.NAME]         changes for a data set; `draw` says which of its examples are used
    [settings.NAME]        changes for a setting, such as how uneven labels are
    [small], [paper]       changes for a size
    [reproductions.NAME]   changes for a reproduction, with a [small] and [paper] of its own; with `like`, the name of
                           another, they are laid over those of that

Each is laid over those before it, table by table.  A reproduction is a function, `make`; the default uses

    on = ["cifar10, hard"] a run for each ground and setting; by default one of the experiment as it is
    compare = ["fedavg"]   the methods, by default all
    metrics = [...]        the rows that are made of each run, where {headline} is its task's measure; `adjusted Rand`
                           is how far groups that were found are the domains of the data
    axes = ["x", "y"]      of the figure, by default of accuracies by round
    along = {...}          the figure is of `metrics` by the place of the `methods` that fit, a line for each run
    where = "..."          what rows call the run, which may name its settings in braces; by default its name, and where
                           that is empty as its division is called
    published = {...}      `table`, whose rows are methods and columns runs, and the `metric` it prints; for methods of
                           which it prints another that stands in `printed_as`
    [[claims]]             what is claimed about rows, each a `Comparison`
"""

import contextlib
import csv
import dataclasses
import hashlib
import inspect
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from unskew import schema
from unskew.data import sources
from unskew.data.dataset import Dataset
from unskew.data.named import NAMED, arrays_of
from unskew.errors import DataError, DivergedError
from unskew.experiment import config
from unskew.history import History, load_run
from unskew.info import ClientGroups
from unskew.keys import Key
from unskew.papers.claims import Claim, Comparison, Row, decide, fits, over_seeds, paired
from unskew.papers.result import Result
from unskew.protocol import SgdConfig
from unskew.record.logs import require_none_diverged
from unskew.report import tables
from unskew.report.section import Chart
from unskew.report.sections.groups import adjusted_rand, members
from unskew.report.stats import Curve, curve, curve_by_round
from unskew.run.again import complete
from unskew.run.cell import Observer
from unskew.tasks.measure import ACCURACY, Measure

FOLDER = Path(__file__).parent
SCALES = ("small", "paper")
RAND = "adjusted Rand"

Settings = dict[str, Any]


# ---------------------------------------------------------------- published numbers and settings
def published(table: str) -> dict[str, dict[str, float]]:
    """The numbers of tables/TABLE.csv by row and column, as printed; empty entries are left out."""
    with (FOLDER / "tables" / f"{table}.csv").open(encoding="utf-8", newline="") as f:
        (_, _, *columns), *lines = csv.reader(f)
    return {
        row: {column: float(cell) for column, cell in zip(columns, cells, strict=True) if cell}
        for _, row, *cells in lines
    }


def merged(*layers: Mapping[str, Any]) -> Settings:
    """Merge tables: tables of the same name are merged in turn, otherwise the last value wins."""
    out: Settings = {}
    for layer in layers:
        for key, value in layer.items():
            below = out.get(key)
            if isinstance(value, Mapping):
                value = merged(below if isinstance(below, Mapping) else {}, value)
            out[key] = value
    return out


def layers_of(reproductions: Mapping[str, Settings], name: str) -> list[Settings]:
    """A reproduction's settings, and below them those of the one that it is like."""
    own = reproductions.get(name, {})
    return [*layers_of(reproductions, own["like"]), own] if "like" in own else [own]


def settings_in(file: Settings, name: str, scale: str) -> Settings:
    """All settings of one of a file's reproductions at a size; of the file alone where it has none of this name."""
    layers = [file, *layers_of(file.get("reproductions", {}), name)]
    out = merged(*(part for layer in layers for part in (layer, layer.get(scale, {}))))
    return {key: value for key, value in out.items() if key not in (*SCALES, "reproductions")}


def settings_of(name: str, scale: str) -> Settings:
    """All settings of a reproduction of ours, PAPER/NAME, at a size; none for that of another package."""
    paper, _, reproduction = name.partition("/")
    path = FOLDER / f"{paper}.toml"
    return settings_in(config.read_toml(path) if path.exists() else {}, reproduction, scale)


# ---------------------------------------------------------------- data
SIZES = {
    "mnist": (60_000, 10_000),
    "fashion_mnist": (60_000, 10_000),
    "usps": (7_291, 2_007),
    "cifar10": (50_000, 10_000),
    "cifar100": (50_000, 10_000),
    "imdb": (25_000, 25_000),
}
"""Training and test examples of data sets as they were published."""

ENOUGH = 0.99
"""Smallest share of them that a result at the paper's size may be made with."""


def load(draft: "Draft", source: str) -> Dataset:
    """Load a data set; at the paper's size it must be complete, or lack so little that the result's page says so.

    Raises:
        DataError: If more than a hundredth of it is missing.
    """
    data = sources.load(source, draft.data_dir)
    published = SIZES.get(source)
    counts = (len(data.y_train), len(data.y_test))
    if draft.scale != "paper" or published is None or counts == published:
        return data
    have, all_ = (f"{train:,} training and {test:,} test examples" for train, test in (counts, published))
    if any(n < ENOUGH * size for n, size in zip(counts, published, strict=True)):
        raise DataError(
            f"--scale paper needs all of {source}, {all_}, got {have}; give --data-dir a folder with the whole set, or "
            "use --scale small"
        )
    draft.notes.append(f"{source} has {have} here, of {all_}.")
    return data


def write_npz(file: Path, arrays: Mapping[str, Any]) -> dict[str, str]:
    """Write arrays to a file; return the task settings that read it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(f".{os.getpid()}.npz")  # another process may draw the same
    np.savez(part, allow_pickle=False, **arrays)
    part.replace(file)
    return {"data": f"npz:{file.resolve()}"}


def drawn(draft: "Draft", source: str, draw: Mapping[str, Any] | None) -> dict[str, str]:
    """Task settings for a source's examples: the source itself, or a random part of it in a file of its own.

    Args:
        draft: Its folder holds the file; the paper's name and the source's key the draw.
        source: The name of a data set.
        draw: `train` and `test` are the numbers of examples drawn, by default all; `subclasses` takes those of some
            classes alone (`superclasses`).  With either of `pixels` and `subclasses` images stay as they were read, on
            which a prior can tell black from white; `plain` takes everything so.  None draws nothing.

    Raises:
        DataError: If the source is missing.
    """
    if draw is None:
        if source in SIZES:
            load(draft, source)
        elif source in NAMED:
            arrays_of(source, draft.data_dir)
        folder = {} if draft.data_dir is None else {"data_dir": str(Path(draft.data_dir).resolve())}
        return {"data": source, **folder}
    paper = draft.name.partition("/")[0]
    digest = hashlib.sha256(json.dumps([paper, draw], sort_keys=True).encode()).hexdigest()
    file = draft.folder / "data" / f"{source}-{digest[:8]}.npz"
    if draw.get("plain"):
        return write_npz(file, arrays_of(source, draft.data_dir))
    data = load(draft, source)
    if "subclasses" in draw:
        return write_npz(file, superclasses(arrays_of(source, draft.data_dir), draw["subclasses"]))
    key = Key(0) / paper / source
    as_read = arrays_of(source, draft.data_dir) if draw.get("pixels") else {}
    arrays: dict[str, Any] = {}
    for part, x, y in (("train", data.x_train, data.y_train), ("test", data.x_test, data.y_test)):
        rows = torch.randperm(len(y), generator=(key / part).generator())[: draw.get(part)]
        arrays |= {f"x_{part}": as_read[f"x_{part}"][rows.numpy()] if as_read else x[rows].numpy()}
        arrays |= {f"y_{part}": y[rows].numpy()}
    return write_npz(file, arrays)


def superclasses(arrays: Mapping[str, Any], subclasses: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Images of some classes, as many in each group: the label is the group, the domain the class's place in it."""
    of = {fine: (coarse, j) for coarse, group in enumerate(subclasses) for j, fine in enumerate(group)}
    out: dict[str, Any] = {"domains": np.array([f"subclass {j + 1}" for j in range(len(subclasses[0]))])}
    for part in ("train", "test"):
        rows = np.flatnonzero(np.isin(arrays[f"y_{part}"], [*of]))
        out[f"y_{part}"], place = np.array([of[fine] for fine in arrays[f"y_{part}"][rows].tolist()]).T
        out |= {f"x_{part}": arrays[f"x_{part}"][rows], **({"domain_train": place} if part == "train" else {})}
    return out


# ---------------------------------------------------------------- a reproduction
@dataclass(eq=False)
class Draft:
    """A reproduction in progress: what is asked for, and its results so far.

    Attributes:
        name: PAPER/REPRODUCTION.
        scale: small or paper.
        folder: Folder for runs and drawn examples.
        data_dir: Folder of named data sets.
        callback: Observer of every run.
        changes: Changes laid over its settings.
        settings: All its settings at its size.
        notes: Notes for its page, on data that differ from the paper's.
    """

    name: str
    scale: str
    folder: Path
    data_dir: Path | None
    callback: Observer
    changes: InitVar[Mapping[str, Any]] = MappingProxyType({})
    settings: Settings = field(init=False)
    notes: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    curves: Mapping[str, Curve] = field(default_factory=dict)
    figures: list[Chart] = field(default_factory=list)
    seeds: set[int] = field(default_factory=set)
    seconds: float = 0.0
    ran: dict[str, None] = field(default_factory=dict)
    measures: dict[str, tuple[Measure, ...]] = field(default_factory=dict)
    drawn: dict[str, Settings] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self, changes: Mapping[str, Any]) -> None:
        self.settings = merged(settings_of(self.name, self.scale), changes)

    def __getitem__(self, name: str) -> Any:
        return self.settings[name]

    # ------------------------------------------------------------ runs
    def tables(self, names: Iterable[str]) -> dict[str, Settings]:
        """The settings of each run, by GROUND or "GROUND, SETTING", before its examples are drawn."""
        out = {}
        for name in names:
            ground, _, setting = name.partition(", ")
            own = self["grounds"][ground] if ground else {"draw": self.settings.get("draw")}
            out[name] = merged(self["experiment"], own, self["settings"][setting] if setting else {})
        return out

    def with_data(self, table: Settings) -> Settings:
        """The settings of a run with its examples drawn."""
        asked = table["task"]["data"], table.pop("draw", None)
        if (key := json.dumps(asked, sort_keys=True)) not in self.drawn:
            self.drawn[key] = drawn(self, *asked)
        return merged(table, {"task": self.drawn[key]})

    def ground(self) -> Settings:
        """The experiment's settings with its examples drawn."""
        return self.with_data(self.tables([""])[""])

    def on(self, names: Iterable[str]) -> dict[str, Settings]:
        """Settings of each run whose data are here, by GROUND or "GROUND, SETTING"; the page says which are missing.

        Raises:
            DataError: If there are none.
        """
        tables, out = self.tables(names), dict[str, Settings]()
        missing: dict[str, DataError] = {}
        for name, table in tables.items():
            try:
                out[name] = self.with_data(table)
            except DataError as error:
                missing[name.partition(", ")[0]] = error
        if missing and not out:
            raise next(iter(missing.values()))
        self.notes.extend(f"Not run on {k}: {str(e).partition(';')[0]}." for k, e in missing.items())
        return out

    def experiment(
        self, folder: str, *layers: Mapping[str, Any], methods: Sequence[str] | None = None
    ) -> config.Experiment:
        """The experiment of merged layers of settings, with these methods, named after the run's folder."""
        table = merged(*layers)
        name = f"{self.name.replace('/', '-')}-{folder}"
        every = table["methods"]
        listed = [{"name": label, **every[label], "label": label} for label in methods or every]
        return config.parse({**table, "methods": listed, "name": name}, name)

    def run(self, folder: str, *layers: Mapping[str, Any], methods: Sequence[str] | None = None) -> History:
        """The run of an experiment in a folder of this name: started, resumed, or read if it is complete.

        Raises:
            ConfigError, DataError: If the experiment is impossible.
            DivergedError: If a method diverged, once the others are done.
            RunError: If the folder holds another run, or cannot be resumed.
        """
        history = self.complete(self.experiment(folder, *layers, methods=methods), folder)
        require_none_diverged(history.diverged)
        return history

    def complete(self, experiment: config.Experiment, folder: str) -> History:
        """The experiment's run, as from `run`; its seeds and seconds are added, and the page says what was run.

        Methods that diverged have no results: see `diverged`.
        """
        place = self.folder / folder
        with contextlib.suppress(DivergedError):
            complete(experiment, place, self.callback)
        history = load_run(place, unfinished=True)
        lost = {row["method"] for row in history.diverged}
        kept = [row for row in history.summary["rows"] if row["method"] not in lost]
        record = dataclasses.replace(history.record, frame=history.frame.where(lambda n: n.method not in lost))
        self.seeds |= set(experiment.seeds if experiment.until is None else history.record.seeds)
        self.seconds += float(history.summary["seconds"])
        every = [method.options.get("local", {}) for method in experiment.methods]
        local = {k: v for k, v in every[0].items() if type(v) in (int, float) and all(one.get(k) == v for one in every)}
        numbers = [f"{k.replace('_', ' ')} {v:g}" for k, v in local.items() if v != getattr(SgdConfig, k)]
        for of in history.record.partitions.values():
            parts = [f"{of.n:,} examples", experiment.task.model, f"{len(of.sizes)} clients"]
            self.ran[f"{of.dataset}: {', '.join([*parts, f'{experiment.rounds} rounds', *numbers])}"] = None
        return dataclasses.replace(history, record=record, summary={**history.summary, "rows": kept})

    # ------------------------------------------------------------ rows and claims
    def printed(self, run: str) -> dict[tuple[str, str], float]:
        """The published numbers of a run, by method and metric; percentages as fractions."""
        if (of := self.settings.get("published")) is None:
            return {}
        metric, table = self.settings.get("printed_as", {}), published(of["table"])
        return {(m, metric.get(m, of["metric"])): row[run] / 100 for m, row in table.items() if run in row}

    def add(self, method: str, setting: str, metric: str, values: Sequence[float], *more: Any, **named: Any) -> None:
        """Add a row of one value for each seed; further arguments are those of `over_seeds`."""
        self.rows.append(over_seeds(method, setting, metric, values, *more, **named))

    def values(self, method: str, setting: str, metric: str) -> tuple[float, ...]:
        """The values of a row by seed; none if there is no such row."""
        at = (method, setting, metric)
        return next((r.seeds for r in self.rows if (r.method, r.setting, r.metric) == at), ())

    def above(self, text: str, these: Sequence[float], those: Sequence[float], *how: Any, **more: Any) -> None:
        """Add the claim that these values are above those, seed by seed; further arguments are those of `decide`."""
        self.claims.append(decide(text, paired(these, those), *how, **more))

    def along(self, metrics: Sequence[str], methods: str = "*") -> dict[str, Curve]:
        """Metrics by the place of the methods that fit a pattern, a line for each run."""
        rows = [r for r in self.rows if r.metric in metrics and r.seeds and fits(r.method, methods)]
        places, out = [*dict.fromkeys(r.method for r in rows)], dict[str, Curve]()
        for where, metric in dict.fromkeys((r.setting, r.metric) for r in rows):
            by = {places.index(r.method): r.seeds for r in rows if (r.setting, r.metric) == (where, metric)}
            out[f"{where}: {metric}" if len(metrics) > 1 else where] = percent(by, [*by.values()])
        return out

    def comparisons(self) -> list[Comparison]:
        """The claims of the file."""
        return [schema.build(Comparison, of, "claims", owner="a claim") for of in self.settings.get("claims", ())]

    def pairs(self) -> dict[tuple[Comparison, str], list[tuple[Row, Row]]]:
        """The rows that each of the file's claims compares, by the claim and its text."""
        comparisons = self.comparisons()
        said: dict[tuple[Comparison, str], list[tuple[Row, Row]]] = {}
        for where in dict.fromkeys(r.setting for r in self.rows):
            for c in (one.about(self.measures.get(where, (ACCURACY,))) for one in comparisons):
                for pair in c.pairs(self.rows, where):
                    said.setdefault((c, c.said(*pair)), []).append(pair)
        return said

    def judge(self) -> None:
        """Put the file's claims about the rows before those that are there."""
        self.claims[:0] = [c.of(text, pairs) for (c, text), pairs in self.pairs().items()]

    def result(self) -> Result:
        """The final result; in `about` and `axes` settings in braces are filled in."""
        x, y = self.settings.get("axes", Result.axes)
        ran = f"Run on {'; '.join(self.ran)}." if self.ran else ""
        about = " ".join((self["about"].format(scale=self.scale, **self.settings), ran, *dict.fromkeys(self.notes)))
        return Result(
            name=self.name,
            scale=self.scale,
            seconds=self.seconds or time.monotonic() - self.began,
            rows=tuple(self.rows),
            claims=tuple(self.claims),
            about=" ".join(about.split()),
            curves=self.curves,
            axes=(x.format(**self.settings), y),
            seeds=tuple(sorted(self.seeds or self.settings.get("seeds", ()))),
            figures=tuple(self.figures),
        )


def made(draft: Draft, make: Callable[[Draft], object]) -> Result:
    """The result of a reproduction: what its function adds to a draft, and the file's claims."""
    draft.settings.setdefault("about", inspect.getdoc(make) or "")  # of one that no file of ours describes
    make(draft)
    if "along" in draft.settings:
        draft.curves = draft.along(**draft["along"])
    draft.judge()
    return draft.result()


# ---------------------------------------------------------------- a study that is runs
def compared(draft: Draft, tables: Mapping[str, Settings] | None = None) -> dict[str, History]:
    """The runs of `on`, or of these settings, by their names in rows; rows and curves are added to the draft."""
    runs = {}
    for name, table in (draft.on(draft.settings.get("on", [""])) if tables is None else tables).items():
        methods = table.pop("compare", draft.settings.get("compare"))
        folder = name.replace(", ", "-") or "run"
        history = draft.complete(draft.experiment(folder, table, methods=methods), folder)
        called = draft.settings.get("where", "{name}").format(name=name, **table)
        where = called or history.summary["rows"][0]["setting"]
        metrics = [metric.format(headline=history.headline.name) for metric in draft["metrics"]]
        draft.rows += rows_of(history, metrics, where, draft.printed(name))
        for method, indices in (groups_found(history) if RAND in metrics else {}).items():
            draft.add(method, where, RAND, indices)
        draft.curves = draft.curves or curves_of(history)
        runs[where], draft.measures[where] = history, (history.headline,)
    return runs


# ---------------------------------------------------------------- numbers of a run
def rows_of(
    history: History,
    metrics: Sequence[str],
    where: str = "",
    paper: Mapping[tuple[str, str], float] | None = None,
) -> tuple[Row, ...]:
    """The chosen metrics of a run as rows.

    A method that diverged has one row, without a value.

    Args:
        history: The run.
        metrics: The metrics.
        where: Name of the run in rows; by default its setting.
        paper: Published values by method and metric.
    """
    printed = paper or {}
    rows = []
    for r in history.summary["rows"]:
        if (name := r["metric"]) in metrics:
            note = f"undefined in {r['undefined']} seeds" if "undefined" in r else ""
            at = r["method"], where or r["setting"], name
            rows.append(over_seeds(*at, r["seeds"], printed.get((r["method"], name)), note))
    for method, first in {r["method"]: r for r in reversed(history.diverged)}.items():
        metric = next((metric for m, metric in printed if m == method), metrics[0])
        why = f"diverged in seed {first['seed']}, round {first['round']}"
        rows.append(over_seeds(method, where, metric, (), printed.get((method, metric)), why))
    return tuple(rows)


def final(history: History, method: str, metric: str) -> tuple[float, ...]:
    """A metric's last values, by seed; none if the method does not have that metric."""
    rows = history.summary["rows"]
    return next((tuple(r["seeds"]) for r in rows if (r["method"], r["metric"]) == (method, metric)), ())


def groups_found(history: History) -> dict[str, list[float]]:
    """Adjusted Rand index of each method's last groups and the domains, by seed; empty without domains."""
    out: dict[str, list[float]] = {}
    for method in history.record.reports(ClientGroups):
        last = tables.last(history.record, method, ClientGroups)
        truth = {seed: history.record.partitions[seed].domains for seed in sorted(last)}
        if last and all(len(set(of)) > 1 for of in truth.values()):
            out[method] = [adjusted_rand(members(last[seed]), of) for seed, of in truth.items()]
    return out


def percent(x: Iterable[float], columns: Sequence[Sequence[float]]) -> Curve:
    """A curve in percent from the seeds' fractions at each x."""
    return curve(x, [[100.0 * v for v in column] for column in columns], len(columns[0]))


def curves_of(history: History, name: str = "global.accuracy", errors: bool = False) -> dict[str, Curve]:
    """A metric's curves in percent (or one less it), by method, in the rounds that every seed reached."""
    curves = {}
    for method in history.methods:
        seeds = [history.frame.curve(method, seed, name) for seed in history.record.seeds]
        shares = [{t: 100.0 * (1.0 - v if errors else v) for t, v in seed.items()} for seed in seeds if seed]
        if (line := curve_by_round(shares)) is not None and len(line.x) > 2:  # two points are no curve
            curves[method] = line
    return curves
