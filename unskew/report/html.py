"""Writes one HTML page for a run, or for several runs side by side: offline, self-contained, printable.

The page is made from run folders only and written in one step, so a reader never sees half of one.
"""

import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from unskew.errors import RunError
from unskew.files import write_atomically
from unskew.info import RecallByClass, info_type
from unskew.ledger import DIRECTIONS, KINDS
from unskew.record import doubts
from unskew.record.logs import described, plain
from unskew.record.reader import DataSplit, Record, configured, read
from unskew.registry import OURS
from unskew.report import by_client, figures, newcomers, summary_text, tables, worth
from unskew.report.forecast_check import check_forecast
from unskew.report.section import SECTIONS, Chart, Section, SectionKind, Table, TableRow, folding, on_pages
from unskew.report.sections import cost
from unskew.report.stats import Curve
from unskew.tasks.measure import Measure
from unskew.words import beginning, counted, of_seeds, separate_classes, spelling_variants

_Marks = Mapping[str, figures.LineStyle]

MOST_INTRODUCED = 6
"""Runs up to which a comparison opens with a paragraph on each."""

_BAND = "The line is the mean over seeds, the band runs from the lowest to the highest seed."


@dataclass(frozen=True)
class LostClients:
    """Failures of one method for one reason."""

    method: str
    reason: str
    times: int
    clients: int
    rounds: str


def write_report(run: Path | Record, out: Path | None = None) -> Path:
    """Write the report of one run, finished or not, and return its path: `out`, or `report.html` in the run's folder.

    Args:
        run: The run's folder, or its record.
        out: The page.

    Raises:
        RunError: If the folder cannot be read or the page cannot be written; an older page then stays as it was.
    """
    record = run if isinstance(run, Record) else read(run)
    return write(page("report.html", _run_view(record)), record.folder / "report.html" if out is None else Path(out))


def write_comparison(folders: Sequence[Path], out: Path, names: Sequence[str] | None = None, remark: str = "") -> Path:
    """Write one page that sets several runs side by side, and return `out`.

    Args:
        folders: Folders of the runs.
        out: The page.
        names: Distinct names of the runs; by default those of their experiments.
        remark: A sentence on these runs, for the head of the page.

    Raises:
        RunError: With fewer than two folders, or as in `write_report`.
    """
    if len(folders) < 2:
        raise RunError(f"a comparison needs at least two run folders, got {len(folders)}; for one run use its report")
    view = {**_comparison_view([read(f) for f in folders], names), "remark": remark}
    return write(page("comparison.html", view), Path(out))


def page(template: str, view: Mapping[str, object]) -> str:
    """The page that a template makes of a view."""
    return _environment().get_template(template).render(view)


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("unskew.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., object]] = {
        "amount": tables.amount,
        "bracket": tables.bracket,
        "span": tables.span,
        "breakable": _breakable,
        "count": tables.count,
        "described": described,
        "folding": folding,
        "on_pages": on_pages,
    }
    environment.filters.update(filters)
    environment.globals.update(bounds=tables.BOUNDS, directions=DIRECTIONS, kinds=KINDS)
    return environment


def _breakable(name: str) -> Markup:
    """A method's name that may break before its parameters, so that a narrow column does not cut a number in two."""
    return Markup(escape(name).replace("(", Markup("<wbr>(")))


def write(text: str, out: Path) -> Path:
    """Write a page, and return its path.

    Raises:
        RunError: If it cannot be written.
    """
    try:
        write_atomically(out, text)
    except OSError as e:
        raise RunError(f"{out} cannot be written: {e.strerror or e}; give another place for the page") from e
    return out


def _run_view(record: Record) -> dict[str, object]:
    rows = tables.headline(record)
    marks = dict(zip(record.methods, figures.looks([r.bound is not None for r in rows]), strict=True))
    base = tables.reference(record)
    series = [(record, m, m, marks[m]) for m in record.methods]
    first = next(iter(record.partitions.values()), None)
    priced = cost.priced(record) if _of_rounds(record) else None
    return {
        "record": record,
        "what": summary_text.what(record),
        "worth": worth.words(record),
        "found": summary_text.found(record),
        "notes": [*_notes(record), *filter(None, [summary_text.set_apart([record])])],
        "warnings": doubts.during_it(record.warned),
        "rows": rows,
        "newcomers": any(r.unseen for r in rows),
        "leader": tables.leader(record),
        "measure": record.headline,
        "left_out": tables.left_out(record),
        "asked": _asked(record, marks),
        "show_setting": len({r.setting for r in rows}) > 1,
        "last_words": tables.last_words(record),
        "swatches": {m: figures.swatch(look) for m, look in marks.items()},
        "base": base,
        **_differences(record, marks, base),
        "curves": [*_curves(series), *_by_price(series, priced)],
        "spread": _spread(record, marks),
        "join": worth.section(record, marks),
        "by_client": by_client.section(record),
        "sections": _sections(record, marks, priced),
        "labels": _labels(first),
        "classed": _classed(record),
        "called": _named(first),
        "label_key": [(share, f"{figures.opacity(share / 100):.2f}") for share in (0, 25, 50, 75, 100)],
        "traffic": tables.traffic(record),
        "failures": _failures(record),
        "forecast": check_forecast(record),
    }


def _asked(record: Record, marks: _Marks) -> list[Table]:
    """The metrics that `evaluate` asks for, which would make the headline's table too wide."""
    return [
        Table(
            f"Last round, {table.where}",
            (
                ("Method", ""),
                *((beginning(m.label) + few, m.unit) for m, few in zip(table.measures, table.clients, strict=True)),
            ),
            tuple(
                TableRow(
                    method,
                    tuple(tables.with_spread(v, m) for v, m in zip(values, table.measures, strict=True)),
                    figures.swatch(marks[method]),
                )
                for method, values in table.rows
            ),
        )
        for table in tables.asked(record)
    ]


def _comparison_view(records: Sequence[Record], chosen: Sequence[str] | None) -> dict[str, object]:
    names = _names(records) if chosen is None else chosen
    parts = [
        (name, record, row) for name, record in zip(names, records, strict=True) for row in tables.headline(record)
    ]
    marks = figures.looks([row.bound is not None for _, _, row in parts])
    labels = [row.method if row.method == name else f"{name} / {row.method}" for name, _, row in parts]
    of = {(name, row.method): label for (name, _, row), label in zip(parts, labels, strict=True)}
    looks = dict(zip(labels, marks, strict=True))
    differing = tables.incomparable(records, names)
    called = [{m: of[name, m] for m in record.methods} for name, record in zip(names, records, strict=True)]
    together, base = tables.together(records, called)
    leader = None if differing else tables.leader(together)
    series = [(record, row.method, label, m) for (_, record, row), label, m in zip(parts, labels, marks, strict=True)]
    return {
        "names": names,
        "few": len(names) <= MOST_INTRODUCED,
        "records": records,
        "differing": differing,
        "together": "" if base is None else summary_text.found(together, base),
        "notes": [
            *(
                f"{name}: {note}"
                for name, record in zip(names, records, strict=True)
                for note in (*_notes(record), *doubts.during_it(record.warned))
            ),
            *filter(None, [summary_text.set_apart(records, called), tables.evaluated_otherwise(records, names)]),
        ],
        "found": [
            (name, f"{summary_text.what(r)} {summary_text.found(r)}" if differing else summary_text.what(r))
            for name, r in zip(names, records, strict=True)
        ],
        "rows": [
            ("" if name == row.method else name, row, figures.swatch(m), label == leader)
            for (name, _, row), m, label in zip(parts, marks, labels, strict=True)
        ],
        "newcomers": any(row.unseen for _, _, row in parts),
        "leader": leader,
        "measure": records[0].headline,
        "left_out": tables.left_out(together),
        "base": base,
        "swatches": {label: figures.swatch(look) for label, look in looks.items()},
        **({"differences": []} if base is None else _differences(together, looks, base)),
        "spread": _spread(together, looks),
        "traffic": tables.traffic(together),
        "failures": _failures(together),
        "ignored": together.ignored,
        "forecasts": [(name, rows) for name, r in zip(names, records, strict=True) if (rows := check_forecast(r))],
        "environment": _environments(dict(zip(names, records, strict=True))),
        "last_words": " or ".join(sorted({tables.last_words(r) for r in records})),
        "curves": _curves(series),
    }


def _environments(runs: Mapping[str, Record]) -> dict[str, object]:
    """The environment that all runs share, and by run the entries that differ."""
    keys = dict.fromkeys(key for r in runs.values() for key in r.environment)
    values = {key: {name: r.environment.get(key, "–") for name, r in runs.items()} for key in keys}
    alike = {key: next(iter(by.values())) for key, by in values.items() if len(set(by.values())) == 1}
    return {"common": alike, "own": {key: by for key, by in values.items() if key not in alike}}


def _differences(record: Record, marks: _Marks, base: str | None) -> dict[str, object]:
    differences, label = tables.paired(record, base=base), record.headline.label
    kinds = (
        (f"Global {label} minus {base}’s, last round", differences),
        (
            f"Global {label} minus {base}’s, mean of the {tables.last_words(record)} of evaluations",
            tables.paired_tails(record, base=base),
        ),
        *tables.paired_by_rule(record, base),
        (
            f"Personal {label}, mean over clients, minus {base}’s, last round",
            tables.paired(record, record.headline.own, base),
        ),
    )
    return {
        "differences": [(what, rows) for what, rows in kinds if rows],
        "intervals": "" if base is None else summary_text.intervals(record, base),
        "here": " on these rows" if record.same_test_rows else "",
        "differences_charts": _differences_charts(record, differences, marks, base),
    }


def _names(records: Sequence[Record]) -> list[str]:
    """Distinct names: the runs' own, else with their folders, else with their places in the list."""
    own = [r.name for r in records]
    foldered = [f"{r.name} ({r.folder})" for r in records]
    counted = [f"{name}, {i}" for i, name in enumerate(own, start=1)]
    return next((names for names in (own, foldered) if len(set(names)) == len(names)), counted)


def _notes(record: Record) -> tuple[str, ...]:
    notes = []
    if record.summary is None:
        behind = [
            f"{c.method} seed {c.seed} at round {tables.reached(record, c.method, c.seed)}"
            for c in record.cells
            if c.seed not in tables.counted_seeds(record, c.method)
        ]
        left = f" Left out of the means, because behind or not started: {', '.join(behind)}." if behind else ""
        notes.append(
            "This run has not finished: there is no summary.json. What follows is what it had written so far; "
            f"rows count the seeds that came as far as the furthest of their method.{left}"
        )
    elif record.summary.stopped is not None:
        why = ", ".join(f"{k}: {plain(v)}" for k, v in record.summary.stopped.items())
        notes.append(f"This run stopped before its last round ({why}); “last round” means the last one reached.")
    notes += tables.diverged(record)
    remarks = doubts.before_it(record.remarks, record.methods)
    return (*notes, *remarks, *_label_variants(record), *tables.discrepancies(record))


def _label_variants(record: Record) -> list[str]:
    """A note on labels that differ in case, accents or spaces alone, as long as nobody has said that they are meant."""
    partition = next(iter(record.partitions.values()), None)
    found = "" if partition is None else separate_classes(spelling_variants(partition.classes))
    if not found:
        return []
    try:
        named = "classes" in configured(record).get("task", {}).get("data_options", {})
    except RunError:  # a report is written without its config.toml, too
        named = False
    return [] if named else [doubts.as_sentence(found)]


def _of_rounds(record: Record) -> bool:
    """True if there is other info than what global models find of each class, which nearly every run has."""
    return any(types - {info_type(RecallByClass)} for types in record.info.values())


def _sections(record: Record, marks: _Marks, priced: cost.Priced | None) -> list[Section]:
    """Sections on costs and on the methods' info, in this order; costs of a run whose methods report of rounds."""
    sections: list[Section | None] = [newcomers.section(record, marks)]
    if _of_rounds(record):
        sections.append(cost.section(record, marks, cost.quantities(record), priced))
    drawn: set[str] = set()
    for entry in SECTIONS.entries():
        try:
            kind: SectionKind = SECTIONS.resolve(entry.name)
            methods = [m for m in record.methods if any(m in record.reports(of) for of in kind.types)]
            sections += [kind.draw(record, methods, marks)] if methods else []
            drawn.update(info_type(of) for of in kind.types)
        except Exception as error:
            if entry.owner == OURS:
                raise
            # A stranger's code, which raises what it likes; the rest of the report is none the worse.
            sections.append(Section(entry.name, f"This section of {entry.owner} could not be drawn: {error}"))
    undrawn = {m: [t for t in types if t not in drawn] for m, types in record.foreign.items()}
    kinds_of = "; ".join(f"{method}: {', '.join(types)}" for method, types in undrawn.items() if types)
    if kinds_of:
        sections.append(Section("Info of other types", f"Kept in the record and drawn by no section. {kinds_of}."))
    return [s for s in sections if s is not None]


_Series = Sequence[tuple[Record, str, str, figures.LineStyle]]


def _curves(series: _Series) -> list[Chart]:
    """The headline metric by round, by MB and by seconds, losses by round; a figure without data is left out."""
    m = _measure(series)
    y = f"global test {m.axis}"

    def by_round(name: str, metric: str, what: str, y: str, scale: float) -> Chart | None:
        lines = _lines(series, lambda record, method: tables.curve(record, method, metric))
        return _lines_chart(name, lines, f"{what} by round", "round", y, scale)

    sent = _lines(series, tables.cost_curve)
    silent = [s for s in series if tables.cost_curve(*s[:2]) is None]
    level = _lines(silent, lambda record, method: tables.curve(record, method, record.headline.shared))
    last = f" Level: the last {m.label} of {', '.join(line.name for line in level)}, which sends nothing." * bool(level)
    clock = " By the clock of the machine that ran it: no measure of a real network."
    time, x_time = f"Global {m.label} by time", "training and evaluation up to that round, s"
    traffic, x_traffic = f"Global {m.label} by traffic", "sent up to that round (down + up + d2d), MB"
    # A likelihood's; the squared errors of a regression have no unit of their own.
    nat = "" if series[0][0].partitions and not _classed(series[0][0]) else ", nat"
    charts = [
        by_round(m.name, m.shared, f"Global {m.label}", y, m.scale),
        _lines_chart("traffic", sent, traffic, x_traffic, y, m.scale, last, level),
        _lines_chart("time", _lines(series, tables.time_curve), time, x_time, y, m.scale, clock),
        by_round("personal", m.own, f"Personal {m.label}", f"mean personal {m.axis}", m.scale),
        by_round("loss", "global.loss", "Global test loss", f"global test loss{nat}", 1.0),
        by_round("train", "train.loss", "Training loss", f"training loss{nat}", 1.0),
    ]
    return [c for c in charts if c is not None]


def _by_price(series: _Series, priced: cost.Priced | None) -> list[Chart]:
    """The headline metric against sub-frames and joules; bounds are left out, whose traffic is not a method's."""
    if priced is None:
        return []
    charts, m, methods = [], _measure(series), [s for s in series if s[0].cell(s[1]).bound is None]
    for spent in (q for q in priced.quantities if q.name in ("Sub-frames", "Energy")):
        lines, by = _lines(methods, partial(cost.curve, spent=spent)), spent.name.lower()
        title, x = f"Global {m.label} by {by}", f"{by} up to that round, {spent.unit}"
        note = f" {priced.words}"
        charts.append(_lines_chart(f"price-{by}", lines, title, x, f"global test {m.axis}", m.scale, note))
    return [c for c in charts if c is not None]


def _measure(series: _Series) -> Measure:
    """The headline metric of the first run: runs of different tasks are not comparable, and the page says so."""
    return series[0][0].headline


def _lines(series: _Series, curve: Callable[[Record, str], Curve | None]) -> list[figures.Line]:
    """The curves that there are; where a method diverged under some seeds, its name says of how many its curve is."""
    curves = [
        (label, len(record.diverged_seeds(method)), look, curve(record, method))
        for record, method, label, look in series
    ]
    return [
        figures.Line(label + of_seeds(by.seeds, lost), look, by) for label, lost, look, by in curves if by is not None
    ]


def _lines_chart(
    name: str,
    lines: Sequence[figures.Line],
    title: str,
    x: str,
    y: str,
    scale: float,
    note: str = "",
    level: Sequence[figures.Line] = (),
) -> Chart | None:
    """Lines and their legend; None without lines.  Those that have no place on the horizontal axis are drawn level."""
    if not lines:
        return None
    shown = [*lines, *level]
    svg = figures.lines_chart(name, lines, x, y, scale, _alt(title, lines, scale, x, level), level)
    return Chart(title, f"{_band(lines)}{note}", svg, _legend(shown))


def _band(lines: Sequence[figures.Line]) -> str:
    seeds = sorted({line.curve.seeds for line in lines})
    text = _BAND if seeds[-1] > 1 else "One seed: no band."
    most = max(len(line.curve.x) for line in lines)
    return text if most <= figures.MOST_POINTS else f"{text} Drawn at {figures.MOST_POINTS} of {most} evaluations."


def _alt(title: str, lines: Sequence[figures.Line], scale: float, x: str, level: Sequence[figures.Line] = ()) -> str:
    def end(at: float) -> str:
        return f"{x} {at:g}" if x == "round" else f"{at:.3g} {x.rpartition(', ')[2]}"

    ends = [
        f"{line.name} from {scale * line.curve.mean[0]:.3g} to {scale * line.curve.mean[-1]:.3g} at "
        f"{end(line.curve.x[-1])}"
        for line in lines
    ]
    ends += [f"{line.name} level at {scale * line.curve.mean[-1]:.3g}" for line in level]
    return f"{title}, mean over seeds: {'; '.join(ends)}."


def _legend(lines: Sequence[figures.Line]) -> tuple[tuple[str, Markup], ...]:
    return tuple((line.name, figures.swatch(line.look)) for line in lines)


def _differences_charts(
    record: Record, differences: Sequence[tables.Difference], marks: _Marks, base: str | None
) -> list[Chart]:
    """Differences of global models, and of own models where a method is for these."""
    own = [d for d in tables.paired(record, record.headline.own, base) if d.method in tables.for_own_models(record)]
    named, label = {d.method for d in own}, record.headline.label
    charts = (
        _differences_chart("diff", f"Global {label}", [d for d in differences if d.method not in named], marks, base),
        _differences_chart("diff-own", f"Personal {label}, mean over clients,", own, marks, base),
    )
    return [c for c in charts if c is not None]


def _differences_chart(
    name: str, what: str, rows: Sequence[tables.Difference], marks: _Marks, base: str | None
) -> Chart | None:
    rows = [d for d in rows if d.bound is None]  # bounds lie so far off that they would hide the rest
    alike = [d.method for d in rows if not any(d.values)]
    rows = [d for d in rows if any(d.values)]
    if not rows or base is None:
        return None
    alt = f"{what} minus {base}{rows[0].measure.apart}: {'; '.join(f'{d.method} {tables.bracket(d)}' for d in rows)}."
    caption = "Marker: mean; bar: 95 % interval, where there is one; ticks: seeds. A bar clear of zero is a difference."
    caption += f" Left out, since equal to {base} in every seed: {', '.join(alike)}." if alike else ""
    return Chart(f"{what} minus {base}", caption, figures.differences_chart(name, rows, marks, base, alt))


def _spread(record: Record, marks: _Marks) -> Chart | None:
    rows = [(m, marks[m], a) for m in record.methods if (a := tables.client_accuracies(record, m))]
    if not rows:
        return None
    title, measure = "Spread over clients, last round", record.headline
    worst = min if measure.higher else max
    description = "; ".join(
        f"{m} median {measure.with_unit(statistics.median(a))}, worst {measure.with_unit(worst(a))}" for m, _, a in rows
    )
    dots = "; dots: clients, all seeds" if sum(len(a) for _, _, a in rows) <= figures.MOST_DOTS else ""
    caption = (
        f"Box: middle half, with the median; line: 10th to 90th percentile{dots}. "
        "This spread is over clients, not seeds."
    )
    return Chart(title, caption, figures.spread_chart("spread", rows, f"{title}: {description}.", measure))


def _classed(record: Record) -> bool:
    """True if the data have classes, of which a client may have more than of others."""
    parts = [of for of in record.partitions.values() if of.counted == "classes"]
    return any(len(counts) > 1 for of in parts for counts in of.label_counts)


def _labels(partition: DataSplit | None) -> Chart | None:
    if partition is None or not partition.label_counts or len(partition.label_counts[0]) < 2:
        return None
    clients, labels = len(partition.sizes), len(partition.label_counts[0])
    drawn = min(clients, figures.MOST_CLIENTS)
    what = partition.counted
    alt = (
        f"Shares of {labels} {what} at {counted(drawn, 'client')}, which hold {min(partition.sizes):,} to "
        f"{max(partition.sizes):,} training examples."
    )
    some = f" The first {drawn} of {clients:,} clients are drawn." if drawn < clients else ""
    caption = (
        "Each column is a client: above its number of training examples, below their shares of the "
        f"{labels} {what}.{some}"
    )
    svg = figures.labels_chart("labels", partition.label_counts, alt, partition.client, partition.label)
    return Chart(f"{beginning(what)} by client", caption, svg, wide=True)


def _named(partition: DataSplit | None) -> list[tuple[str, str]]:
    """Numbers of clients and labels with their names, where they have any."""
    if partition is None:
        return []
    named = (("Clients", partition.client_names), (beginning(partition.counted), partition.classes))
    plain = [str(k) for k in range(len(partition.classes))]
    return [
        (what, ", ".join(f"{k} {name}" for k, name in enumerate(names)))
        for what, names in named
        if names and list(names) not in (plain, ["all"]) and len(names) <= figures.MOST_CLIENTS
    ]


def _failures(record: Record) -> list[LostClients]:
    groups: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for f in record.failures:
        groups.setdefault((f.method, f.reason), []).append((f.round, f.client))
    return [
        LostClients(method, reason, len(at), len({c for _, c in at}), f"{min(at)[0]}–{max(at)[0]}")
        for (method, reason), at in groups.items()
    ]
