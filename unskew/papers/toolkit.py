"""Tools that all reproductions share: settings from TOML, published tables from CSV, examples drawn once, runs.

PAPER.toml holds, for all reproductions of a paper and for each of them,

    [experiment]           an experiment as `unskew run` reads it, except that `methods` is a table by label
    [grounds.NAME]         changes for a data set; `draw` is the number of its examples used
    [small], [paper]       changes for a size
    [reproductions.NAME]   changes for a reproduction, with a [small] and [paper] of its own; with `like`, the name of
                           another, they are laid over those of that, and its function makes them

Each is laid over those before it, table by table.
"""

import csv
import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unskew.data import sources
from unskew.data.dataset import Dataset
from unskew.errors import DataError, DivergedError
from unskew.experiment import config
from unskew.history import History, load_run
from unskew.info import ClientGroups
from unskew.keys import Key
from unskew.papers.claims import Claim, decide, paired
from unskew.papers.result import Result, Row, over_seeds
from unskew.protocol import SgdConfig
from unskew.record.logs import require_none_diverged
from unskew.record.reader import info_of
from unskew.report.sections.groups import adjusted_rand, members
from unskew.report.stats import Curve, curve, curve_by_round
from unskew.run.again import complete
from unskew.run.cell import Observer

FOLDER = Path(__file__).parent
SCALES = ("small", "paper")

Settings = dict[str, Any]


@dataclass(frozen=True, eq=False)
class ReproductionRequest:
    """A request to run a reproduction.

    Attributes:
        name: PAPER/REPRODUCTION.
        scale: small or paper.
        folder: Folder for runs and drawn examples.
        data_dir: Folder of named data sets.
        callback: Observer of every run.
        changes: Settings laid over all others.
        notes: Sentences for the result's page, on data that are not the paper's; `load` adds to them.
    """

    name: str
    scale: str
    folder: Path
    data_dir: Path | None
    callback: Observer
    changes: Mapping[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


# ---------------------------------------------------------------- published numbers and settings
def published(table: str) -> dict[str, dict[str, float]]:
    """The numbers of tables/TABLE.csv by row and column, as printed; entries not printed are left out."""
    with (FOLDER / "tables" / f"{table}.csv").open(encoding="utf-8", newline="") as f:
        (_, _, *columns), *lines = csv.reader(f)
    return {
        row: {column: float(cell) for column, cell in zip(columns, cells, strict=True) if cell}
        for _, row, *cells in lines
    }


def share(percent: float | None) -> float | None:
    """A percentage as a fraction."""
    return None if percent is None else percent / 100


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


def settings_of(name: str, scale: str) -> Settings:
    """All settings of a paper, or of one of its reproductions (PAPER/NAME), at a size."""
    paper, _, reproduction = name.partition("/")
    file = config.read_toml(FOLDER / f"{paper}.toml")
    reproductions = file.pop("reproductions")
    own = reproductions.get(reproduction, {})
    layers = [file, reproductions.get(own.get("like"), {}), own]
    out = merged(*(part for layer in layers for part in (layer, layer.get(scale, {}))))
    return {key: value for key, value in out.items() if key not in SCALES}


def settings(request: ReproductionRequest) -> Settings:
    """All settings of a reproduction at its size, with the changes asked for."""
    return merged(settings_of(request.name, request.scale), request.changes)


def experiment(name: str, *layers: Mapping[str, Any], methods: Sequence[str] | None = None) -> config.Experiment:
    """The experiment described by layers of settings, with the methods asked for, in that order."""
    raw = {**merged(*layers), "name": name}
    table = raw["methods"]
    raw["methods"] = labelled({label: table[label] for label in methods or table})
    return config.parse(raw, name)


def labelled(table: Mapping[str, Mapping[str, Any]]) -> list[Settings]:
    """Methods of a table by label, as an experiment lists them; a label is the name where none is given."""
    return [{"name": label, **own, "label": label} for label, own in table.items()]


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


def load(request: ReproductionRequest, source: str) -> Dataset:
    """Load a data set; at the paper's size it must be whole, or miss so little that the result's page says so.

    Raises:
        DataError: If more than a hundredth of it is missing.
    """
    data = sources.load(source, request.data_dir)
    published = SIZES.get(source)
    counts = (len(data.y_train), len(data.y_test))
    if request.scale != "paper" or published is None or counts == published:
        return data
    have, all_ = (f"{train:,} training and {test:,} test examples" for train, test in (counts, published))
    if any(n < ENOUGH * size for n, size in zip(counts, published, strict=True)):
        raise DataError(
            f"--scale paper needs all of {source}, {all_}, got {have}; give --data-dir a folder with the whole set, or "
            "use --scale small"
        )
    note = f"{source} has {have} here, of {all_}."
    if note not in request.notes:
        request.notes.append(note)
    return data


def write_npz(file: Path, arrays: Mapping[str, Any]) -> dict[str, str]:
    """Write arrays to a file; return the task settings that read it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, allow_pickle=False, **arrays)
    return {"data": f"npz:{file.resolve()}"}


def drawn(request: ReproductionRequest, source: str, draw: Mapping[str, Any] | None) -> dict[str, str]:
    """Task settings for a source's examples: the source itself, or a random part of it in a file of its own.

    Args:
        request: Its folder holds the file; the paper's name and the source's key the draw.
        source: The name of a data set.
        draw: `train` and `test` are the numbers of examples drawn, all if left out; with `pixels` images stay uint8.
            None draws nothing.
    """
    if draw is None:
        if request.scale == "paper" and source in SIZES:
            load(request, source)
        folder = {} if request.data_dir is None else {"data_dir": str(Path(request.data_dir).resolve())}
        return {"data": source, **folder}
    data = load(request, source)
    key = Key(0) / request.name.partition("/")[0] / source
    arrays: dict[str, Any] = {}
    for part, x, y in (("train", data.x_train, data.y_train), ("test", data.x_test, data.y_test)):
        rows = torch.randperm(len(y), generator=(key / part).generator())[: draw.get(part)]
        arrays |= {f"x_{part}": pixels(data, x[rows]) if draw.get("pixels") else x[rows].numpy()}
        arrays |= {f"y_{part}": y[rows].numpy()}
    return write_npz(request.folder / "data" / f"{source}.npz", arrays)


def pixels(data: Dataset, x: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Standardised images (n, C, H, W) as uint8 (n, H, W) or (n, H, W, 3), so that a prior can tell black from white.

    Raises:
        DataError: If the source does not have such images.
    """
    if data.inputs.levels is None:
        raise DataError(f"{data.name} was not read from uint8 images; a prior needs to know what black and white are")
    black, white = torch.tensor(data.inputs.levels).T[:, :, None, None]
    bytes_ = (255 * (x - black) / (white - black)).round().clamp(0, 255).to(torch.uint8)
    image: np.ndarray[Any, np.dtype[np.uint8]] = (bytes_[:, 0] if x.shape[1] == 1 else bytes_.movedim(1, 3)).numpy()
    return image


# ---------------------------------------------------------------- runs
@dataclass(eq=False)
class Draft:
    """A reproduction in progress: its settings at its size, and its results so far.

    One without runs has the seeds of its settings, and its time is that since it began.
    """

    request: ReproductionRequest
    settings: Settings
    rows: list[Row] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    curves: Mapping[str, Curve] = field(default_factory=dict)
    figures: list[tuple[str, bytes]] = field(default_factory=list)
    seeds: set[int] = field(default_factory=set)
    seconds: float = 0.0
    ran: dict[str, None] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, request: ReproductionRequest) -> "Draft":
        """Start the reproduction asked for."""
        return cls(request, settings(request))

    def __getitem__(self, name: str) -> Any:
        return self.settings[name]

    def ground(self, name: str) -> Settings:
        """The experiment's settings on a ground, its examples drawn."""
        table = merged(self["experiment"], self["grounds"][name])
        table["task"] |= drawn(self.request, table["task"]["data"], table.pop("draw", None))
        return table

    def grounds(self, names: Iterable[str], read: Callable[[str], Settings] | None = None) -> dict[str, Settings]:
        """The settings of each ground whose data are here; a note on the page says which are not.

        Raises:
            DataError: If there are none.
        """
        tables: dict[str, Settings] = {}
        missing: DataError | None = None
        for name in dict.fromkeys(names):
            try:
                tables[name] = (read or self.ground)(name)
            except DataError as error:
                missing = error
                self.request.notes.append(f"Not run on {name}: {error}.")
        if missing is not None and not tables:
            raise missing
        return tables

    def add(self, method: str, setting: str, metric: str, values: Sequence[float], paper: float | None = None) -> None:
        """Add a row of one value for each seed."""
        self.rows.append(over_seeds(method, setting, metric, values, paper))

    def above(self, text: str, these: Sequence[float], those: Sequence[float], *how: Any, **more: Any) -> None:
        """Add the claim that these values are above those, seed by seed; `decide` takes the other arguments."""
        self.claims.append(decide(text, paired(these, those), *how, **more))

    def experiment(
        self, folder: str, *layers: Mapping[str, Any], methods: Sequence[str] | None = None
    ) -> config.Experiment:
        """The experiment described by layers of settings, named after the reproduction and its run's folder."""
        name = self.request.name.replace("/", "-")
        return experiment("-".join(filter(None, (name, folder))), *layers, methods=methods)

    def run(self, folder: str, *layers: Mapping[str, Any], methods: Sequence[str] | None = None) -> History:
        """The run of an experiment, in a folder of this name."""
        return self.complete(self.experiment(folder, *layers, methods=methods), folder)

    def complete(self, experiment: config.Experiment, folder: str) -> History:
        """The experiment's run, in a folder of this name: started, resumed, or read if it is complete.

        Raises:
            ConfigError, DataError: If the experiment is impossible.
            DivergedError: If a method diverged, once the others are done.
            RunError: If the folder holds another run, or cannot be resumed.
        """
        history = load_run(complete(experiment, self.request.folder / folder, self.request.callback).folder)
        require_none_diverged(history.diverged)
        return self.count(experiment, history)

    def run_survivors(self, name: str, *layers: Mapping[str, Any], methods: Sequence[str] | None = None) -> History:
        """The run in a folder of this name, without results of methods that diverged under a seed: see `diverged`.

        Raises:
            ConfigError, DataError, RunError: As in `complete`.
        """
        compared, folder = self.experiment(name, *layers, methods=methods), self.request.folder / name
        try:
            history = load_run(complete(compared, folder, self.request.callback).folder)
        except DivergedError:
            history = load_run(folder, unfinished=True)
        lost = {row["method"] for row in history.diverged}
        table = [row for row in history.summary["rows"] if row["method"] not in lost]
        record = dataclasses.replace(history.record, frame=history.frame.where(lambda n: n.method not in lost))
        summary = {**history.summary, "rows": table}
        return self.count(compared, dataclasses.replace(history, record=record, summary=summary))

    def count(self, experiment: config.Experiment, history: History) -> History:
        """Add a run's seeds and seconds to the reproduction's, and to its page what was run."""
        self.seeds |= set(experiment.seeds)
        self.seconds += float(history.summary["seconds"])
        every = [method.options.get("local", {}) for method in experiment.methods]
        local = {k: v for k, v in every[0].items() if type(v) in (int, float) and all(one.get(k) == v for one in every)}
        numbers = [f"{k.replace('_', ' ')} {v:g}" for k, v in local.items() if v != getattr(SgdConfig, k)]
        for of in history.record.partitions.values():
            parts = [f"{of.n:,} examples", experiment.task.model, f"{len(of.sizes)} clients"]
            self.ran[f"{of.dataset}: {', '.join([*parts, f'{experiment.rounds} rounds', *numbers])}"] = None
        return history

    def result(self) -> Result:
        """The final result; `about` and `axes` may name settings in braces."""
        x, y = self["axes"]
        ran = f"Run on {'; '.join(self.ran)}." if self.ran else ""
        about = " ".join((self["about"].format(scale=self.request.scale, **self.settings), ran, *self.request.notes))
        return Result(
            name=self.request.name,
            scale=self.request.scale,
            seconds=self.seconds or time.monotonic() - self.began,
            rows=tuple(self.rows),
            claims=tuple(self.claims),
            about=" ".join(about.split()),
            curves=self.curves,
            axes=(x.format(**self.settings), y),
            seeds=tuple(sorted(self.seeds or self.settings.get("seeds", [0]))),
            figures=tuple(self.figures),
        )


# ---------------------------------------------------------------- numbers of a run
def fate(history: History, method: str) -> str:
    """The seed and round in which a method diverged, in words; empty if it did not."""
    rows = (f"diverged in seed {r['seed']}, round {r['round']}" for r in history.diverged if r["method"] == method)
    return next(rows, "")


def final(history: History, method: str, metric: str) -> tuple[float, ...]:
    """A metric's last values, by seed; none if the method does not have that metric."""
    rows = history.summary["rows"]
    return next((tuple(r["seeds"]) for r in rows if (r["method"], r["metric"]) == (method, metric)), ())


def bests(history: History, method: str, metric: str) -> list[float]:
    """The highest of a metric's values on the test set, by seed; optimistic, since it is chosen on that set."""
    curves = (history.frame.curve(method, seed, metric) for seed in history.record.seeds)
    return [max(curve.values()) for curve in curves if curve]


def by_round(history: History, method: str, name: str = "global.accuracy") -> dict[int, list[float]]:
    """A metric by round, with the values of all seeds that reached the round."""
    values: dict[int, list[float]] = {}
    for seed in history.record.seeds:
        for t, value in history.frame.curve(method, seed, name).items():
            values.setdefault(t, []).append(value)
    return values


def rows_of(
    history: History, metrics: Sequence[str], paper: Mapping[tuple[str, str], float] | None = None
) -> tuple[Row, ...]:
    """The chosen metrics of a run as rows; `paper` has published values by method and metric."""
    paper_values = paper or {}
    rows = [(r, (r["method"], r["metric"])) for r in history.summary["rows"] if r["metric"] in metrics]
    return tuple(
        Row(at[0], r["setting"], at[1], paper_values.get(at), r["mean"], r["std"], "seeds", tuple(r["seeds"]))
        for r, at in rows
    )


def groups_found(history: History) -> dict[str, list[float]]:
    """Adjusted Rand index of each method's last groups and the clients' domains, by seed; empty without domains."""
    record, out = history.record, dict[str, list[float]]()
    for method in record.reports(ClientGroups):
        last = {seed: members(info) for seed, _, info in info_of(record, method, ClientGroups)}
        truth = {seed: record.partitions[seed].domains for seed in last}
        if last and all(len(set(of)) > 1 for of in truth.values()):
            out[method] = [adjusted_rand(last[seed], truth[seed]) for seed in sorted(last)]
    return out


def percent(x: Iterable[float], columns: Sequence[Sequence[float]]) -> Curve:
    """A curve in percent from the seeds' fractions at each x."""
    return curve(x, [[100.0 * v for v in column] for column in columns], len(columns[0]))


def curves_of(*runs: History, name: str = "global.accuracy", errors: bool = False) -> dict[str, Curve]:
    """A metric's curves in percent, or one less it, by method, in the rounds that every seed of the runs reached."""
    curves = {}
    for method in dict.fromkeys(method for run in runs for method in run.methods):
        seeds = [run.frame.curve(method, seed, name) for run in runs for seed in run.record.seeds]
        shares = [{t: 100.0 * (1.0 - v if errors else v) for t, v in seed.items()} for seed in seeds if seed]
        if (line := curve_by_round(shares)) is not None:
            curves[method] = line
    return curves
