"""The history of a run: its numbers, tables, figures and models.

print(history)                      # the table of results and the verdict; a notebook shows it with figures
history.to_frame()                  # every number of every round, a row each
unskew.load_run("runs/digits")      # that of a run that ended, from its folder
"""

import difflib
import importlib
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from torch import nn

from unskew.data.manifest import PARTS
from unskew.errors import ConfigError, RunError, shown
from unskew.files import user_path
from unskew.record import reader
from unskew.record.frame import COLUMNS, Numbers
from unskew.record.logs import CLOCK, DivergedRow, why_diverged
from unskew.record.reader import Part, Record, read, rows_of
from unskew.run.folder import require_done
from unskew.run.metrics import summarise
from unskew.run.models import Given, Round, load_model
from unskew.tasks.measure import Measure
from unskew.words import listed

if TYPE_CHECKING:
    import altair as alt

    from unskew.report.section import Chart


class Scratch:
    """A temporary run folder, removed with its last reference or when Python ends."""

    def __init__(self) -> None:
        place = tempfile.mkdtemp(prefix="unskew-")
        self.folder = Path(place) / "run"
        self.remove = weakref.finalize(self, shutil.rmtree, place, ignore_errors=True)


@dataclass(frozen=True, eq=False, repr=False)
class History:
    """The numbers of a run; `print` shows their table and the verdict, a notebook also figures.

    Attributes:
        record: The run's record, for `unskew.report`.
        summary: The table of results, as in summary.json.
        path: The run's folder; None if it was not kept.
    """

    record: Record
    summary: dict[str, Any]
    path: Path | None
    _scratch: Scratch | None = None
    _network: Given = None
    _allow_code: bool = False

    @property
    def frame(self) -> Numbers:
        """Every number of every round."""
        return self.record.frame

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """{"method", "seed", "round", "name", "value", "weight", "client"?}, one per number, in the order written.

        Numbers of single clients are in it if there are at most 10,000.
        """
        return self.frame.rows(reader.MANY)

    @property
    def folder(self) -> Path:
        """The folder of the run's files: `path`, or a temporary folder that is removed with this history.

        Raises:
            RunError: If the run's files are gone.
        """
        folder = self.path if self._scratch is None else self._scratch.folder
        if folder is None or not folder.is_dir():
            raise RunError(
                f"the run's files are gone{f' from {folder}' if folder else ''}; run it again with out=FOLDER"
            )
        return folder

    @property
    def headline(self) -> Measure:
        """The metric by which the run's models are compared: its name, label, direction and unit."""
        return self.record.headline

    @property
    def methods(self) -> tuple[str, ...]:
        """Labels of the methods, in the run's order."""
        return self.record.methods

    @property
    def client_names(self) -> tuple[str, ...]:
        """Names of clients 0, 1, ..., where the data name them, the same under every seed."""
        names = {self.record.names(seed) for seed in self.record.partitions or self.record.seeds}
        return names.pop() if len(names) == 1 else ()

    @property
    def diverged(self) -> list[DivergedRow]:
        """Methods that diverged, {"method", "seed", "round", "reason"}; results and curves leave these seeds out."""
        return list(self.record.diverged)

    def model(
        self,
        method: str,
        client: int | str | None = None,
        seed: int | None = None,
        *,
        round: Round | None = None,
    ) -> nn.Module:
        """A trained model, a plain module in evaluation mode; `unskew.predict(model, x)` takes raw inputs.

        Args:
            method: Label of the method.
            client: Name or number (from 0) of the client that uses the model; by default the global one.
            seed: Seed of the run; by default the smallest.
            round: A round whose global model was kept (`keep_models`), or "best" (by validation result); by default the
                last.

        Raises:
            RunError: If there is no such model.
        """
        code = self._allow_code
        return load_model(self.folder, method, client, seed, round=round, network=self._network, allow_code=code)

    def client_values(self, method: str, metric: str | None = None, seed: int | None = None) -> dict[int | str, float]:
        """A metric of each evaluated client after the last round, {client: value}.

        Clients go by name, or by number where the data name no clients.

        Args:
            method: Label of the method.
            metric: Its name, such as personal.macro_f1; by default the headline of the clients' own models.
            seed: Seed of the run; by default the smallest.

        Raises:
            KeyError: If that method has no such metric of single clients under that seed.
        """
        seed = min(self.record.seeds) if seed is None else seed
        metric = metric or f"personal.{self.headline.name}"
        if seed in self.record.diverged_seeds(method):
            raise self._unknown(method, metric, ())
        if values := self.record.numbers.clients(method, seed, metric):
            return {self._name(k, seed) or k: value for k, value in values.items()}
        raise KeyError(f"{method}, seed {seed}, has no {metric} of single clients")

    def _name(self, client: int | None, seed: int) -> str | None:
        """The name of the client of that number; None where it is nobody's, or the data name no clients."""
        of = self.record.partitions.get(seed)
        names = (*of.client_names, *of.unseen_names) if of else ()
        return None if client is None or client >= len(names) else names[client]

    def rows_of(self, part: Part, seed: int | None = None) -> dict[int | str, npt.NDArray[np.int64]]:
        """The rows of the data with which each client trained, validated or tested, {client: rows}, ascending.

        Rows are counted from 0 in the given table or arrays, or in each client's if these were given one by one.
        Unseen clients are included.  Other rows are the global test set's, or unused.

        Args:
            part: "train", "val" or "test".
            seed: Seed of the run; by default the smallest.

        Raises:
            ConfigError: If there is no such part.
            RunError: If there is no such seed, the data are files, or the run's files are gone.
        """
        if part not in PARTS:
            raise ConfigError(f"part must be one of {', '.join(PARTS)}, got {part!r}")
        return rows_of(self.folder, part, seed)

    def curve(self, method: str, metric: str | None = None, seed: int | None = None) -> list[tuple[int, float]]:
        """(round, mean over seeds) of a metric in the rounds that every seed reached, without diverged seeds.

        Args:
            method: Label of the method.
            metric: Its name in `rows`; by default the global model's headline.
            seed: A seed, for its curve alone; by default all.

        Raises:
            KeyError: If that method has no such metric, or the run no such seed.
        """
        from unskew.report.stats import curve_by_round

        name = metric or self.headline.shared
        by_seed = [self.record.numbers.curve(method, s, name) for s in self._of_seed(seed)]
        if (curve := curve_by_round(list(filter(None, by_seed)))) is None:
            raise self._unknown(method, name, self.frame.names(method))
        return [(int(t), mean) for t, mean in zip(curve.x, curve.mean, strict=True)]

    def value(self, method: str, metric: str | None = None, seed: int | None = None) -> float:
        """Mean over seeds of a result, without diverged seeds.

        Args:
            method: Label of the method.
            metric: Name of the result, as in the table of results; by default the global model's headline.
            seed: A seed, for its result alone; by default all.

        Raises:
            KeyError: If that method has no such result, or the run no such seed.
        """
        metric = metric or self.headline.shared
        rows = self.summary["rows"] if seed is None else self._results_of(seed)
        for row in rows:
            if (row["method"], row["metric"]) == (method, metric):
                return float(row["mean"])
        raise self._unknown(method, metric, (r["metric"] for r in rows if r["method"] == method))

    def _results_of(self, seed: int) -> list[dict[str, Any]]:
        """The table of results of one seed: that of all leaves out seeds without saying which."""
        self._of_seed(seed)
        return _results(self.record, self.record.numbers.where(lambda n: n.seed == seed), (seed,))

    def _of_seed(self, seed: int | None) -> tuple[int, ...]:
        """Keep one seed, or all of them without one."""
        seeds = self.record.seeds
        if seed not in (None, *seeds):
            raise KeyError(f"no seed {seed!r} in this run; it has {', '.join(map(str, seeds))}")
        return seeds if seed is None else (seed,)

    def _unknown(self, method: str, metric: str, known: Iterable[str]) -> KeyError:
        """An error that names the methods there are, or the metrics nearest to the one asked for."""
        if method and method not in self.methods:
            return KeyError(f"no method {method!r} in this run; it has {', '.join(self.methods)}")
        if lost := [why_diverged(row) for row in self.diverged if row["method"] == method]:
            return KeyError(f"{metric} of {method} is not known, since it diverged: {'; '.join(lost)}")
        names, what = list(dict.fromkeys(known)), f"no {metric} of {method}" if method else f"no method has {metric}"
        part, _, name = metric.partition(".")
        asked = {m.name for m in self.record.asked}
        if name.removesuffix(".mean") in asked and any(known.startswith(f"{part}.") for known in names):
            return KeyError(f"{what}: it was measured, and was not a number (NaN)")
        near = difflib.get_close_matches(metric, names, n=3)
        of_results = sorted(name for name in names if not name.startswith(("bytes.", CLOCK)))
        named = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(of_results)}"
        return KeyError(f"{what}; {named}" if names else what)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on how the run ended, on its data, settings and methods.

        Raises:
            RunError: If the run's files are gone or corrupt.
        """
        from unskew.report import verdict

        return (*verdict.serious(self.record), *verdict.notes(self.record))

    def table(self) -> Any:
        """The table of results as a DataFrame, unrounded: a row for each method.

        A mean has its standard deviation over seeds as NAME_std, a difference and a gain its interval as NAME_low_95
        and NAME_high_95.  Accuracies are fractions.

        Raises:
            ConfigError: If neither pandas nor Polars is installed.
            RunError: If the run's files are gone or corrupt.
        """
        from unskew.report import results

        return framed(results.frame(self.record))

    def to_frame(self) -> Any:
        """Every number of every round as a DataFrame of pandas (or Polars, if pandas is missing), one per row.

        Columns: method, seed, round, name, value, weight; of single clients client and, if it has one, client_name.

        Raises:
            ConfigError: If neither pandas nor Polars is installed.
        """
        columns = {name: [row.get(name) for row in self.rows] for name in COLUMNS}
        called = [self._name(row.get("client"), row["seed"]) for row in self.rows]
        frame = framed({**columns, "client_name": called})
        return frame.astype({"client": "Int64"}) if hasattr(frame, "astype") else frame

    @property
    def plot(self) -> "Plots":
        """The run's figures, as Altair charts: `history.plot.curves()`, `.differences()`, `.clients()`."""
        return Plots(self)

    def gains(self) -> list[dict[str, Any]]:
        """Each method's gain over training alone, with its 95 % interval, as rows for `pandas.DataFrame`.

        A gain is the headline of the client's own model on its own test data minus that of training alone; above zero
        is better.

        * method, client: Its label, and the client as in `client_values`; None for a mean over clients.
        * alike: What has equal weight in a mean, "clients" or "test rows".
        * seed: The seed of a client that no other seed has.
        * gain, low, high: The gain and its interval, fractions for accuracies.
        * verdict, why: gains, loses or open (for a mean with Holm's correction); and why it is open.
        * seeds, lost: Number of seeds, and of seeds without results.

        Raises:
            RunError: If no method of the run trains every client alone, no client has results, or the run's files are
                gone or corrupt.
        """
        from unskew.report import worth

        if not (rows := worth.rows(self.record)):
            lacks = "no method trains every client alone" if worth.alone(self.record) is None else "no client has both"
            raise RunError(
                f"a gain is a client's result minus that alone, and {lacks}; run it with bounds=True, another method, "
                'and "personal" in evaluate'
            )
        return rows

    def report(self, path: str | Path) -> Path:
        """Write the run's report, one HTML file that opens offline, and return its path.

        Raises:
            RunError: If it cannot be written, or the run's files are gone.
        """
        from unskew.report import write_report

        return write_report(self.folder, user_path(path))

    def __repr__(self) -> str:
        """The table of results, the verdict, and notes."""
        from unskew.report.screen import screen

        if not self.frame.numbers:
            return "<History of no round: nothing was evaluated yet>"
        try:
            return screen(self.record, WIDE, most=8)
        except RunError as error:
            return f"<History of {shown(listed(self.methods))}: {error}>"

    def _repr_html_(self) -> str:
        """The first screen of the run's page."""
        from unskew.report import page

        return page.first_screen(page.of_run(self.record, brief=True))


@dataclass(frozen=True)
class Plots:
    """A run's figures, as Altair charts."""

    history: History

    def curves(self, metric: str | None = None, by: Literal["round", "traffic", "time"] = "round") -> "alt.LayerChart":
        """A metric by round, megabytes sent or time: means over seeds, and bands from lowest to highest.

        Args:
            metric: Its name in `rows`; by default the headline of global models, or of clients' own if more methods
                have it.
            by: The horizontal axis; traffic and time only for the headline.

        Raises:
            KeyError: If no method has that metric.
        """
        from unskew.report import pictures

        h = self.history
        chart = pictures.curve(h.record, by, metric)
        if chart is None:
            raise h._unknown("", metric or h.headline.shared, h.frame.names())
        return _drawing(chart, "")

    def differences(self) -> "alt.LayerChart":
        """Each method's gain over training alone, or its difference to the baseline, with 95 % intervals.

        Raises:
            RunError: If the run has neither.
        """
        from unskew.report import pictures

        lacks = "the run has no two methods to compare; run it with a baseline, or with bounds=True"
        return _drawing(pictures.forest(self.history.record, named=False), lacks)

    def clients(self, method: str | None = None) -> "alt.LayerChart":
        """Each client's gain over training alone with a method, by default the one with the largest mean gain.

        Raises:
            RunError: If no method of the run trains every client alone.
            KeyError: If there is no such method.
        """
        from unskew.report import pictures, worth

        gains = {w.method: w for w in worth.worths(self.history.record)}
        if not gains:
            self.history.gains()
        best = max(gains.values(), key=lambda w: w.whole.mean).method if method is None else method
        if best not in gains:
            raise KeyError(f"no method {best!r} has gains over training alone; there are {', '.join(gains)}")
        return _drawing(pictures.clients(gains[best], self.history.headline), "")

    def effects(self, method: str | None = None) -> "alt.LayerChart":
        """Coefficients of a linear model of a table, with 95 % intervals; ratios on a logarithmic axis.

        Raises:
            RunError: If no method, or not this one, has them.
        """
        from unskew.report.sections import effects

        record = self.history.record
        of = effects.reported(record, record.methods if method is None else [method])
        chart = effects.forest(*next(iter(of.items()))) if of else None
        return _drawing(chart, "no linear model of a table was trained; model='logistic' is one")

    def groups(self, method: str | None = None) -> "alt.LayerChart":
        """Groups by round, of a method that forms them.

        Raises:
            RunError: If there is no such method.
        """
        from unskew.report import pictures

        return _drawing(pictures.groups(self.history.record, method), "no method of this run forms groups of clients")

    def every(self) -> "dict[str, alt.LayerChart]":
        """Every figure of the run's page, by its title."""
        from unskew.report import page

        whole = page.of_run(read(self.history.folder))
        figures = [*whole.pictures, *(chart for section in whole.sections for chart in section.charts)]
        return {chart.title: chart.drawing for chart in figures if not chart.html}


def _drawing(chart: "Chart | None", lacks: str) -> "alt.LayerChart":
    if chart is None:
        raise RunError(lacks)
    drawing: alt.LayerChart = chart.drawing
    return drawing


WIDE = 110
"""Characters in a line of the table of results and below it."""


def framed(columns: Mapping[str, Sequence[Any]]) -> Any:
    """Columns as a DataFrame of pandas, or of Polars where pandas is not installed.

    Raises:
        ConfigError: If neither is installed.
    """
    for library in ("pandas", "polars"):
        with suppress(ImportError):
            return importlib.import_module(library).DataFrame(dict(columns))
    raise ConfigError("a frame needs pandas or Polars; pip install pandas, or use history.rows")


def load_run(
    folder: Path | str,
    *,
    network: Given = None,
    allow_code: bool = False,
    unfinished: bool = False,
) -> History:
    """The history of a finished run, from its folder.

    Args:
        folder: The folder of `simulate(out=...)`, `unskew run` or a deployed run's server, here or copied.
        network: For `History.model`: a network to load the weights into, or a callable that builds one; needed if the
            run was given its network as a value.
        allow_code: For `History.model`: import a network named `module:attribute`; only from people you trust.
        unfinished: Read an unfinished run, too: its table has the seeds that came furthest.

    Raises:
        RunError: If the folder is not a run's, the run has not finished, or a file is damaged.
    """
    folder = user_path(folder).absolute()
    ended = not unfinished or (folder / "summary.json").exists()
    if ended:
        require_done(folder)
    record = read(folder)
    summary = dict(record.summary) if record.summary is not None else _summary_so_far(record)
    return History(record, summary, folder, _network=network, _allow_code=allow_code)


def _summary_so_far(record: Record) -> dict[str, Any]:
    """The content of a summary.json so far, of the seeds of each method that came furthest and did not diverge."""
    from unskew.report.tables import counted_seeds

    counted = {(method, seed) for method in record.methods for seed in counted_seeds(record, method)}
    last = record.numbers.where(lambda n: (n.method, n.seed) in counted)
    return {"fingerprint": "", "seconds": 0.0, "rows": _results(record, last, record.seeds)}


def _results(record: Record, numbers: Numbers, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """The table of results of these numbers."""
    lost = [row for row in record.diverged if row["seed"] in seeds]
    base = record.baseline if record.finished else None  # methods stand in other rounds until then
    return summarise(numbers, record.methods, seeds, record.cells[0].setting, base, record.headline, lost)
