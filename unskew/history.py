"""The history of a run: its rows, a table and figures, and its models.

print(history)                      # the table of results; a notebook shows it by itself, with a figure
history.to_frame()                  # every number of every round, a row each
unskew.load_run("runs/digits")      # that of a run that ended, from its folder
"""

import difflib
import html
import importlib
import re
import shutil
import tempfile
import textwrap
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import nn

from unskew.data.manifest import PARTS
from unskew.errors import ConfigError, RunError, shown
from unskew.files import user_path
from unskew.record.doubts import doubts_of
from unskew.record.logs import ADAPTED, SERVED, DivergedRow, RunCard, SummaryCard, document, why_diverged
from unskew.record.logs import rows as recorded
from unskew.record.reader import Part, client_names, client_values, metric_rows, read, rows_of, same_test_rows
from unskew.run.folder import require_done
from unskew.run.metrics import fewer_clients, steadier, summarise, with_spread
from unskew.run.models import Round, load_model
from unskew.tasks.measure import Measure, described
from unskew.words import beginning, counted, listed, of_seeds

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

    from unskew.report.stats import Curve
    from unskew.report.worth import GainRow


def of_all_seeds(values: Mapping[int, Sequence[float]]) -> list[int]:
    """The rounds in which every seed has a value, in order: a mean over fewer seeds says nothing about learning."""
    seeds = max(map(len, values.values()))
    return sorted(t for t, of in values.items() if len(of) == seeds)


class Scratch:
    """A place for a run's folder that is removed with the last reference to this, or when Python ends."""

    def __init__(self) -> None:
        place = tempfile.mkdtemp(prefix="unskew-")
        self.folder = Path(place) / "run"
        self.remove = weakref.finalize(self, shutil.rmtree, place, ignore_errors=True)


@dataclass(frozen=True, eq=False, repr=False)
class History:
    """The numbers of a run; `print` shows their table, a notebook the table and a figure.

    Attributes:
        rows: {"method", "seed", "round", "name", "value", "weight", "client"?}, one per number.
        summary: The table of results, as in summary.json.
        path: The run's folder; None if it was not kept.
        client_names: Names of clients 0, 1, ..., where the data name them.
        doubts: Sentences on what makes the numbers doubtful: data and settings that are hardly what was meant, and
            what the methods warned of.
    """

    rows: list[dict[str, Any]]
    summary: dict[str, Any]
    path: Path | None
    client_names: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    _names: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    _scratch: Scratch | None = None
    _network: nn.Module | Callable[..., nn.Module] | None = None
    _allow_code: bool = False

    @property
    def folder(self) -> Path:
        """The folder of the run's files: `path`, or a temporary folder that is removed together with this history.

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
        return described(self.summary.get("headline"))

    @property
    def methods(self) -> tuple[str, ...]:
        """Labels of the methods, in the run's order."""
        return tuple(dict.fromkeys(row["method"] for row in (*self.summary["rows"], *self.diverged)))

    @property
    def diverged(self) -> list[DivergedRow]:
        """Methods that diverged, {"method", "seed", "round", "reason"}: no result or curve counts that seed of theirs.

        `rows` have the rounds before it.
        """
        return list(self.summary.get("diverged", ()))

    def _lost(self) -> set[tuple[str, int]]:
        return {(row["method"], row["seed"]) for row in self.diverged}

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
            client: Name of the client that uses the model, or its number, from 0, where no client's name is a number;
                by default the global one.
            seed: Seed of the run; by default the smallest.
            round: A round whose global model was kept (`keep_models`), or "best", that with the best validation
                result; by default the last.

        Raises:
            RunError: If there is no such model.
        """
        code = self._allow_code
        return load_model(self.folder, method, client, seed, round=round, network=self._network, allow_code=code)

    def client_values(self, method: str, metric: str | None = None, seed: int | None = None) -> dict[int | str, float]:
        """A metric of each evaluated client after the last round, {client: value}, as `rows_of` has them.

        Clients go by name, or by number where the data name no clients.

        Of more than 10,000 clients it is not in `rows`.

        Args:
            method: Label of the method.
            metric: Its name: the headline, the loss (personal.loss), or one that the run was asked for, such as
                personal.macro_f1; by default the headline of the clients' own models, personal.accuracy.
            seed: Seed of the run; by default the smallest.

        Raises:
            KeyError: If that method has no such metric of single clients under that seed.
            RunError: If the run's files are gone or corrupt.
        """
        seed = min((row["seed"] for row in self.rows), default=0) if seed is None else seed
        metric = metric or f"personal.{self.headline.name}"
        if (method, seed) in self._lost():
            raise self._unknown(method, metric, ())
        cell = (method, seed, metric)
        rows = [r for r in self.rows if "client" in r and (r["method"], r["seed"], r["name"]) == cell]
        if rows:
            return {self._name(row["client"], seed) or row["client"]: row["value"] for row in rows}
        if values := client_values(self.folder, *cell):
            return {self._name(k, seed) or k: value for k, value in values.items()}
        raise KeyError(f"{method}, seed {seed}, has no {metric} of single clients")

    def _name(self, client: int | None, seed: int) -> str | None:
        """The name of the client of that number; None where it is nobody's, or the data name no clients."""
        names = self._names.get(seed, ())
        return None if client is None or client >= len(names) else names[client]

    def rows_of(self, part: Part, seed: int | None = None) -> dict[int | str, npt.NDArray[np.int64]]:
        """The rows of the data with which each client trained, validated or tested, {client: rows}, ascending.

        Rows are counted from 0 in the table or arrays that were given, and, where each client's are given by
        themselves, in these.  Rows of no client's parts are those of the global test set, which was set aside first,
        or were used by none.  Test rows given by `test` are the global test set's, and clients draw theirs from the
        other rows; with `preprocess` they are the clients', and counted in what `test` gave.

        Args:
            part: "train", "val" or "test".
            seed: Seed of the run; by default the smallest.

        Returns:
            Rows by the clients' names, or by their numbers where the data name no clients; those of clients that come
            after training, too.

        Raises:
            ConfigError: If there is no such part.
            RunError: If there is no such seed, the data are no rows, as images in folders are not, or the run's files
                are gone.
        """
        if part not in PARTS:
            raise ConfigError(f"part must be one of {', '.join(PARTS)}, got {part!r}")
        return rows_of(self.folder, part, seed)

    def curve(self, method: str, metric: str | None = None, seed: int | None = None) -> list[tuple[int, float]]:
        """(round, mean over seeds) of a metric in the rounds that every seed reached, by default the global headline.

        Seeds under which the method diverged are not in it: `diverged` has them.

        Args:
            method: Label of the method.
            metric: Its name in `rows`; by default the global model's headline.
            seed: A seed, for its curve alone; by default all.

        Raises:
            KeyError: If that method has no such metric, or the run no such seed.
        """
        curve = self._curve(method, metric or self.headline.shared, seed)
        return [(int(t), mean) for t, mean in zip(curve.x, curve.mean, strict=True)]

    def _curve(self, method: str, name: str, seed: int | None = None) -> "Curve":
        from unskew.report.stats import curve_by_round

        by_seed: dict[int, dict[int, float]] = {}
        for row in self._of_seed(seed):
            lost = (method, row["seed"]) in self._lost()
            if (row["method"], row["name"]) == (method, name) and "client" not in row and not lost:
                by_seed.setdefault(row["seed"], {})[row["round"]] = row["value"]
        curve = curve_by_round(list(by_seed.values()))
        if curve is None:
            known = (row["name"] for row in self.rows if row["method"] == method and "client" not in row)
            raise self._unknown(method, name, known)
        return curve

    def value(self, method: str, metric: str | None = None, seed: int | None = None) -> float:
        """Mean over seeds of a result, by default the global model's headline; see the table of results for names.

        Seeds under which the method diverged are not in it: `diverged` has them.

        Args:
            method: Label of the method.
            metric: Name of the result; by default the global model's headline.
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
        names = "\n".join(row["metric"] for row in self.summary["rows"])
        last, base = re.search(r"\.mean_last_(\d+)", names), re.search(r"\.minus_(.+)", names)
        rows, mean_last = self._of_seed(seed), int(last[1]) if last else None
        diverged = [row for row in self.diverged if row["seed"] == seed]
        return summarise(rows, self.methods, (seed,), "", mean_last, base and base[1], self.headline, diverged)

    def _of_seed(self, seed: int | None) -> list[Any]:
        """The rows of one seed; all of them without one."""
        if seed is None:
            return self.rows
        rows = [row for row in self.rows if row["seed"] == seed]
        if not rows:
            seeds = dict.fromkeys(row["seed"] for row in self.rows)
            raise KeyError(f"no seed {seed!r} in this run; it has {', '.join(map(str, seeds)) or 'no numbers yet'}")
        return rows

    def _unknown(self, method: str, metric: str, known: Iterable[str]) -> KeyError:
        """An error that names the methods there are, or the metrics nearest to the one asked for."""
        if method not in self.methods:
            return KeyError(f"no method {method!r} in this run; it has {', '.join(self.methods) or 'no numbers yet'}")
        if lost := [why_diverged(row) for row in self.diverged if row["method"] == method]:
            return KeyError(f"{metric} of {method} is not known, since it diverged: {'; '.join(lost)}")
        return self._lacking(metric, f"no {metric} of {method}", known)

    def _lacking(self, metric: str, what: str, known: Iterable[str]) -> KeyError:
        """An error that says that a metric was asked for and is not defined, or names the metrics nearest to it."""
        names = list(dict.fromkeys(known))
        part, _, name = metric.partition(".")
        asked = [card["name"] for card in self.summary.get("asked") or ()]
        if name.removesuffix(".mean") in asked and any(known.startswith(f"{part}.") for known in names):
            return KeyError(f"{what}: it was measured, and was not a number (NaN)")
        near = difflib.get_close_matches(metric, names, n=3)
        of_results = [name for name in names if not name.startswith(("bytes.", "seconds"))]
        named = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(sorted(of_results))}"
        return KeyError(what + (f"; {named}" if names else ""))

    def to_frame(self) -> "pandas.DataFrame":
        """Every number of every round as a pandas.DataFrame, one per row.

        Columns: method, seed, round, name, value, weight, client and client_name, which are missing, so that `isna` is
        true, unless the number is per-client; so is client_name where the data name no clients.

        Raises:
            ConfigError: If pandas is not installed.
        """
        try:
            frames = importlib.import_module("pandas")
        except ImportError as error:
            raise ConfigError(
                f"to_frame needs pandas, which cannot be imported ({error}); pip install pandas, or use history.rows"
            ) from error
        columns = ("method", "seed", "round", "name", "value", "weight", "client")
        frame: pandas.DataFrame = frames.DataFrame.from_records(
            [
                [*(row.get(column) for column in columns), self._name(row.get("client"), row["seed"])]
                for row in self.rows
            ],
            columns=[*columns, "client_name"],
        )
        return frame.astype({"client": "Int64"})

    def plot(self, metric: str | None = None, ax: "Axes | None" = None) -> "Axes":
        """Draw a metric by round, a line per method with a band from the lowest to the highest seed.

        The legend says what the band is, under how many seeds a method did not diverge, which methods diverged under
        all, and which have no such metric, as one without a global model.

        Args:
            metric: Name of a metric in `rows`; by default global.accuracy (or whatever the headline is), or
                personal.accuracy.mean where no method has a global model.
            ax: Matplotlib's axes to draw on; by default a new figure, with the legend below its axes.

        Raises:
            KeyError: If no method has that metric.
        """
        from matplotlib import rcParams
        from matplotlib.ticker import MaxNLocator

        metric, curves = self._curves(metric)
        m, labels = self.headline, self._labels(curves)
        lost = [row["method"] for row in self.diverged]
        missing = [method for method in self.methods if method not in curves and method not in lost]
        seeds = max(curve.seeds for curve in curves.values())
        notes = [f"mean of {seeds} seeds, band from lowest to highest"] if seeds > 1 else []
        notes += [f"without {metric}: {listed(missing)}"] if missing else []
        gone = [method for method in dict.fromkeys(lost) if method not in curves]
        notes += [f"diverged: {listed(gone)}"] if gone else []
        title = "\n".join(textwrap.fill(shown(note), LEGEND_WIDE) for note in notes) or None
        place: dict[str, Any] = {}
        if ax is None:
            from matplotlib import pyplot

            columns = 2 if len(curves) > 4 and max(map(len, labels.values())) <= LEGEND_WIDE // 3 else 1
            lines = -(-len(curves) // columns) + (title.count("\n") + 1 if title else 0)
            ax = pyplot.subplots(layout="constrained", figsize=(6.4, 4.3 + 0.22 * lines))[1]
            place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14), "ncols": columns}
        colours = len(rcParams["axes.prop_cycle"])
        for i, (method, curve) in enumerate(curves.items()):
            (line,) = ax.plot(curve.x, curve.mean, label=labels[method])
            if turn := i // colours:  # a colour's second line, and its third, have their own dashes
                line.set_linestyle(("--", ":", "-.")[(turn - 1) % 3])
            if curve.seeds > 1:
                ax.fill_between(curve.x, curve.low, curve.high, color=line.get_color(), alpha=0.16, linewidth=0)
        ax.set_xlabel("round")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_ylabel({m.shared: f"global {m.label}", m.own: f"{m.label} on own test data"}.get(metric, metric))
        ax.legend(title=title, **place)
        return ax

    def _curves(self, metric: str | None) -> tuple[str, dict[str, "Curve"]]:
        """The metric asked for, or else the headline, and the curves of the methods that have it."""
        names = {row["name"] for row in self.rows}
        shared, own = self.headline.shared, self.headline.own
        metric = metric or (own if own in names and shared not in names else shared)
        curves = {}
        for method in self.methods:
            with suppress(KeyError):
                curves[method] = self._curve(method, metric)
        if not curves:
            raise self._lacking(
                metric, f"no method has {metric}", {row["name"] for row in self.rows if "client" not in row}
            )
        return metric, curves

    def _labels(self, curves: Mapping[str, "Curve"]) -> dict[str, str]:
        """The methods' names in a legend, which say under how many seeds one did not diverge."""
        lost = [row["method"] for row in self.diverged]
        return {method: method + of_seeds(curve.seeds, lost.count(method)) for method, curve in curves.items()}

    def gains(self) -> "list[GainRow]":
        """Gains from federation: each method's over local training, with its 95 % interval, as the report has it.

        A row is {"method", "client", "alike", "seed", "gain", "low", "high", "verdict", "why", "seeds", "lost"}, and
        `pandas.DataFrame` makes a table of them.  It is of a client, called as in `client_values`, or where client is
        None of a mean in which "clients" or "test rows" count alike; seed is that of a client that no other seed has,
        as where each divides the data anew.  A gain is the headline of the client's own model on its own test data
        minus that alone, a fraction for accuracies, and above zero where the client is better off.  The verdict is
        gains, loses or open, that of a mean corrected for the number of methods (Holm); `why` says why there is no
        interval or no verdict.  A gain is over `seeds` of the run's seeds, and under `lost` more there is none.

        Raises:
            RunError: If no method of the run trains every client alone, no client has results, or the run's files are
                gone or corrupt.
        """
        from unskew.report import worth

        record = read(self.folder, results_alone=True)
        if worth.alone(record) is None:
            raise RunError(
                "a gain is over local training, and no method of this run trains every client alone; run it with "
                'Independent() ("independent") among the methods, or with bounds=True'
            )
        if not (rows := worth.rows(record)):
            raise RunError(
                worth.verdict(record)
                or f"no client has a result of its own beside that of {worth.alone(record)}; run it with other "
                'methods, and with "personal" in evaluate'
            )
        return rows

    @cached_property
    def _answer(self) -> str:
        """The report's first sentences, on whether federation is worth it; empty where the run cannot tell."""
        from unskew.report import worth

        try:
            trains_alone = any(
                cell.get("bound") == "lower" for cell in document(self.folder / "run.json", RunCard)["cells"]
            )
            return worth.verdict(read(self.folder, results_alone=True)) if trains_alone else ""
        except RunError:  # the table is none the worse without its files
            return ""

    @cached_property
    def _left_out(self) -> str:
        """A sentence on what ± leaves out where all seeds have the same test rows; else empty."""
        from unskew.report.tables import SAME_TEST_ROWS

        try:
            several = len({row["seed"] for row in self.rows}) > 1
            return SAME_TEST_ROWS if several and same_test_rows(self.folder) else ""
        except RunError:  # as of the answer
            return ""

    def report(self, path: str | Path) -> Path:
        """Write the run's report, one HTML file that opens offline, and return its path.

        Raises:
            RunError: If it cannot be written, or the run's files are gone.
        """
        from unskew.report import write_report

        return write_report(self.folder, user_path(path))

    def __str__(self) -> str:
        """The table of results, as text; below it whether federation is worth it, and doubts about the numbers."""
        lines = _table(self.summary)
        width, *widths = (max(map(len, column)) for column in zip(*lines, strict=True))
        wide = [max(15, cell) for cell in widths[:-1]]
        text = ["  ".join([m.ljust(width), *map(str.ljust, cells, wide), f"{mb:>8}"]) for m, *cells, mb in lines]
        for title, (head, *rows) in _asked(self.summary):
            for k in range(1, len(head), ASIDE):
                text += ["", title] if k == 1 else [""]
                wide = [max(15, len(name)) for name in head[k : k + ASIDE]]
                text += [
                    "  ".join([row[0].ljust(width), *map(str.ljust, row[k : k + ASIDE], wide)]).rstrip()
                    for row in (head, *rows)
                ]
        below = [f"diverged: {shown(why_diverged(row))}" for row in self.diverged]
        below += [shown(text) for text in (self._answer, self._left_out) if text]
        below += [f"- {shown(doubt)}" for doubt in self._few_doubts()]
        wrapped = (
            textwrap.fill(line, WIDE, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
            for line in below
        )
        return "\n".join([*text, *([""] if below else []), *wrapped])

    def _few_doubts(self) -> list[str]:
        """The doubts that leave the table in sight, and how many more there are."""
        more = len(self.doubts) - DOUBTS_SHOWN
        return [*self.doubts[:DOUBTS_SHOWN], *([f"{more} more in history.doubts"] if more > 0 else [])]

    def __repr__(self) -> str:
        if not self.rows:
            return "<History of no round: nothing was evaluated yet>"
        methods = ", ".join(self.methods[:4]) + (f" and {len(self.methods) - 4} more" if len(self.methods) > 4 else "")
        rounds, seeds = (len({row[key] for row in self.rows}) for key in ("round", "seed"))
        evaluated = f"{rounds - 1} rounds, {counted(seeds, 'seed')}"
        return f"<History of {shown(methods)}: {evaluated}; print() shows the table>"

    def _repr_html_(self) -> str:
        """The table of results, what stands below it, and the headline by round, as a notebook shows them."""
        tables = [("", _table(self.summary)), *_asked(self.summary)]
        doubts = "".join(f"<li>{html.escape(doubt)}</li>" for doubt in self._few_doubts())
        below = "".join(f"<p>diverged: {html.escape(shown(why_diverged(row)))}</p>" for row in self.diverged)
        below += "".join(f"<p>{html.escape(text)}</p>" for text in (self._answer, self._left_out) if text)
        below += f"<ul>{doubts}</ul>" if doubts else ""
        return f"{''.join(starmap(html_table, tables))}{below}{self._figure()}"

    def _figure(self) -> str:
        """The headline by round as an SVG element; empty where nothing was evaluated."""
        from unskew.report import figures, svg_file
        from unskew.report.section import Chart

        try:
            metric, curves = self._curves(None)
        except KeyError:
            return ""
        measure = self.headline
        title = f"Global {measure.label} by round"
        if metric != measure.shared:
            title = f"{beginning(measure.label)} on clients' own test data by round"
        looks = figures.looks([False] * len(curves))
        labels = self._labels(curves).values()
        lines = [figures.Line(*each) for each in zip(labels, looks, curves.values(), strict=True)]
        seeds = max(curve.seeds for curve in curves.values())
        caption = "Lines: mean over seeds; bands: lowest to highest seed." if seeds > 1 else "One seed: no band."
        svg = figures.lines_chart(
            f"h{self.summary['fingerprint'][:8]}", lines, "round", measure.axis, measure.scale, title
        )
        legend = tuple((line.name, figures.swatch(line.look)) for line in lines)
        return svg_file.document(Chart(title, caption, svg, legend))


def _table(summary: Mapping[str, Any]) -> list[tuple[str, ...]]:
    by = {(r["method"], r["metric"]): r for r in summary["rows"]}
    measure = described(summary.get("headline"))
    columns = {f"global {measure.label}": measure.shared}
    if (steady := steadier(summary["rows"], measure.shared)) is not None:
        columns[steady[1]] = steady[0]
    columns[f"own test data{fewer_clients(summary['rows'], measure.own)}"] = measure.own
    if any(name.startswith(f"{SERVED}.") for _, name in by):
        columns |= {"unseen": f"{SERVED}.{measure.name}.mean", "adapted": f"{ADAPTED}.{measure.name}.mean"}
    lines = [("method", *columns, "MB")]
    lost = (r["method"] for r in summary.get("diverged", ()))
    for m in dict.fromkeys((*(r["method"] for r in summary["rows"]), *lost)):
        total = by.get((m, "bytes.total"))
        cells = (with_spread(by.get((m, name)), measure, unit=True) for name in columns.values())
        lines.append((shown(m), *cells, f"{total['mean'] / 1e6:.2f}" if total else ""))
    return lines


DOUBTS_SHOWN = 8
"""Doubts that stand below a table of results."""

WIDE = 118
"""Characters in a line below a table of results."""

LEGEND_WIDE = 76
"""Characters in a line of a figure's legend."""

ASIDE = 4
"""Further metrics that stand beside each other in text; the next ones stand below."""


def _asked(summary: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, ...]]]]:
    """Tables of the metrics that `evaluate` asks for: title, which says under what name `value` has them, and lines."""
    by = {(r["method"], r["metric"]): r for r in summary["rows"]}
    measures = [described(card) for card in summary.get("asked", ())]
    methods = dict.fromkeys(r["method"] for r in summary["rows"])
    tables = []
    for title, columns in (
        ("last round, global test set (global.NAME)", [(m.shared, m) for m in measures]),
        ("last round, own test data, mean over clients (personal.NAME.mean)", [(m.own, m) for m in measures]),
    ):
        if any((method, name) in by for method in methods for name, _ in columns):
            lines = [
                (shown(method), *(with_spread(by.get((method, name)), m, unit=True) for name, m in columns))
                for method in methods
            ]
            heads = [
                m.name + (m.positive and f" for {m.positive}") + fewer_clients(summary["rows"], name)
                for name, m in columns
            ]
            tables.append((title, [("method", *heads), *lines]))
    return tables


def html_table(title: str, lines: Sequence[Sequence[str]]) -> str:
    """A table for a notebook, whose first line is the head."""
    head, *rows = ([html.escape(cell) for cell in row] for row in lines)
    cells = ["".join(f"<th>{cell}</th>" for cell in head)]
    cells += [f"<th>{row[0]}</th>{''.join(f'<td>{cell}</td>' for cell in row[1:])}" for row in rows]
    caption = f"<caption>{html.escape(title)}</caption>" if title else ""
    return f"<table>{caption}{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def load_run(
    folder: Path | str,
    *,
    network: nn.Module | Callable[..., nn.Module] | None = None,
    allow_code: bool = False,
    unfinished: bool = False,
) -> History:
    """The history of a run that ended: its numbers, figures, report and models, from its folder.

    Args:
        folder: The folder that `simulate(out=...)`, `unskew run` or a deployed run's server wrote, here or elsewhere.
        network: For `History.model`: a network to load the weights into, or a callable that builds one; needed if the
            run was given its network as a value.
        allow_code: For `History.model`: import a network that is named `module:attribute`; never for a folder from
            elsewhere whose code one would not run.
        unfinished: Read a run that was stopped or goes on as well, as far as it came: its table has the seeds of each
            method that came furthest.

    Raises:
        RunError: If the folder is not that of a run, the run has not ended, or a file is damaged.
    """
    folder = user_path(folder).absolute()
    ended = not unfinished or (folder / "summary.json").exists()
    if ended:
        require_done(folder)
    rows = [dict(row) for row in metric_rows(folder)]
    state: tuple[str, ...] = ()
    if ended:
        summary = dict(document(folder / "summary.json", SummaryCard))
    else:
        card, diverged = document(folder / "run.json", RunCard), list[Any](recorded(folder, "diverged"))
        summary = _summary_so_far(card, rows, diverged)
        state = (NO_RESULTS if len(diverged) == len(card["cells"]) else UNFINISHED,)
    doubts = doubts_of(folder)
    seeds = client_names(folder)
    trained = {names for names, _ in seeds.values()}
    return History(
        rows,
        summary,
        folder,
        trained.pop() if len(trained) == 1 else (),
        (*state, *doubts.before, *doubts.during, *_undefined(rows, summary)),
        {seed: (*names, *later) for seed, (names, later) in seeds.items()},
        _network=network,
        _allow_code=allow_code,
    )


UNFINISHED = "This run has not finished: its numbers are those of the rounds that it has come to."
NO_RESULTS = "This run has no results: every method diverged under every seed."


def _summary_so_far(card: Any, rows: Sequence[Mapping[str, Any]], diverged: Sequence[DivergedRow]) -> dict[str, Any]:
    """The content of a summary.json so far, of the seeds of each method that came furthest and did not diverge."""
    without = {(row["method"], row["seed"]) for row in diverged}
    rows = [row for row in rows if (row["method"], row["seed"]) not in without]
    reached: dict[tuple[str, int], int] = {}
    for row in rows:
        reached[row["method"], row["seed"]] = max(row["round"], reached.get((row["method"], row["seed"]), 0))
    furthest: dict[str, int] = {}
    for (method, _), at in reached.items():
        furthest[method] = max(at, furthest.get(method, 0))
    counted_rows: Any = [row for row in rows if reached[row["method"], row["seed"]] == furthest[row["method"]]]
    labels, seeds = (list(dict.fromkeys(cell[key] for cell in card["cells"])) for key in ("method", "seed"))
    measures = card.get("measures", [None])
    return {
        "headline": measures[0],
        "asked": measures[2:],
        "fingerprint": "",
        "rows": summarise(
            counted_rows,
            [m for m in labels if m in furthest],
            seeds,
            card["cells"][0]["setting"],
            None,
            card.get("baseline") or None,
            described(measures[0]),
            diverged,
        ),
        "diverged": list(diverged),
    }


def _undefined(rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> list[str]:
    """Sentences on metrics that were asked for and have no number in any round, so that no table has them."""
    names: dict[str, set[str]] = {}
    for row in rows:
        names.setdefault(row["method"], set()).add(row["name"])
    sentences = []
    for card in summary.get("asked") or ():
        name, headline = card["name"], described(summary.get("headline"))
        missing = [
            (method, where)
            for method, has in names.items()
            for where, own, measured in (
                ("on the global test set", f"global.{name}", headline.shared),
                ("on any client's own test data", f"personal.{name}.mean", headline.own),
            )
            if measured in has and own not in has
        ]
        if missing:
            methods, places = (list(dict.fromkeys(part)) for part in zip(*missing, strict=True))
            sentences.append(
                f"{name} of {listed(methods)} was not a number (NaN) in any round {' or '.join(places)}, so no table "
                "has it there."
            )
    return sentences
