"""The pictures of a run, each with a caption and an alternative text."""

from collections.abc import Mapping, Sequence

from unskew.info import ClientGroups
from unskew.record.logs import CLOCK
from unskew.record.reader import DataSplit, Record
from unskew.report import charts, tables, verdict, worth
from unskew.report.section import Chart, columns
from unskew.report.sections.groups import grouping, rounds_chart
from unskew.report.stats import Difference
from unskew.report.worth import Worth
from unskew.tasks.measure import Measure
from unskew.words import beginning, counted, of_seeds


def colours(record: Record) -> dict[str, str]:
    """The methods' colours."""
    return charts.colours(record.methods, list(tables.bounds(record)))


def groups(record: Record, method: str | None = None) -> Chart | None:
    """Groups by round, by default of the first method that forms groups; None if there is none."""
    forming = record.reports(ClientGroups)
    method = method or next(iter(forming), "")
    history = grouping(record, method, None) if method in forming else None
    return None if history is None else rounds_chart(history)


def spread(record: Record) -> Chart | None:
    """Results of single clients, by method; None if the run has none."""
    m = record.headline
    values = {
        k: [v for s in tables.counted_seeds(record, k) for v in record.clients(k, s).values()] for k in record.methods
    }
    parts = [(k, m.scale * v) for k, own in values.items() for v in own]
    if not parts:
        return None
    data = dict(zip(("method", "value"), map(list, zip(*parts, strict=True)), strict=True))
    few = {k: c for k, c in colours(record).items() if values[k]}
    worst = min if m.higher else max
    alt = "; ".join(f"{k} worst {m.with_unit(worst(v))}, best {m.with_unit(m.best(v))}" for k, v in values.items() if v)
    caption = "Line: a client in a seed; box: the middle half."
    return Chart("Spread over clients", caption, charts.spread(data, few, f"own {m.axis}"), f"Clients: {alt}.")


def forest(record: Record, named: bool = True) -> Chart | None:
    """The first picture: named clients' gains, methods' gains over training alone, or differences to the baseline."""
    m, worths = record.headline, worth.rivals(record)
    unit = f", {m.points}" if m.points else ""
    if worths:
        best = worth.best(worths)
        if named and worth.named(best.clients):
            return clients(best, m)
        rows = {w.method: w.whole for w in sorted(worths, key=lambda w: -w.whole.mean)}
        title, what = "Gain over training alone", f"gain in own {m.label}{unit}"
    else:
        by_mean = sorted(verdict.compared(record), key=lambda d: -d.mean if m.higher else d.mean)
        rows = {d.method: d for d in by_mean}
        title, what = f"Difference to {record.baseline}", f"{m.label} minus {record.baseline}{m.apart}"
    if not rows:
        return None
    return intervals(title, "Mean and uncorrected 95 % interval.", what, rows, m)


def intervals(title: str, caption: str, what: str, rows: Mapping[str, Difference], m: Measure) -> Chart:
    """Differences, a row each."""
    data = [charts.interval(name, d, m.scale, kind=d.verdict) for name, d in rows.items()]
    alt = "; ".join(f"{name} {worth.bracket(d, m)}" for name, d in rows.items())
    return Chart(title, caption, charts.forest(data, what), f"{title}: {alt}.")


def gains(title: str, rows: Mapping[str, Difference], m: Measure) -> Chart | None:
    """A gain in each row; None without rows."""
    what = f"gain in {m.label}{', ' * bool(m.points)}{m.points}"
    return intervals(title, "Mean and 95 % interval.", what, rows, m) if rows else None


def clients(w: Worth, m: Measure) -> Chart:
    """Each client's gain over training alone, sorted; larger marks have more test rows, and the mean stands below."""
    ordered = sorted(w.clients, key=lambda c: (c.gain.low is None, -c.gain.mean))
    many, most = len(ordered) > charts.MOST_ROWS, max((c.examples for c in ordered), default=0) or 1
    data = [charts.interval(c.name, c.gain, m.scale, kind=c.gain.verdict, size=c.examples or most) for c in ordered]
    if not many:
        data.append(charts.interval("mean over clients", w.whole, m.scale, kind="mean", size=most))
    text = f"Gain with {w.method}: {w.count('gains')} of {len(ordered)} clients gain, {w.count('loses')} lose, "
    text += f"{w.count('open')} undecided"
    if not many:
        text += ": " + "; ".join(f"{c.name} {worth.bracket(c.gain, m)}" for c in ordered)
    caption = "A point a client, with quantiles at 10, 50 and 90 %." if many else "Larger marks: more test rows."
    caption += " Hollow: too few for an interval." * (not many and ordered[-1].gain.low is None)
    drawn = (charts.strip if many else charts.forest)(data, f"gain in {m.label}{', ' * bool(m.points)}{m.points}")
    return Chart(f"Each client’s gain with {w.method}", caption, drawn, f"{text}.")


def curve(record: Record, by: tables.By, metric: str | None = None) -> Chart | None:
    """A metric by round, traffic or time; None if no method has it.

    By default it is the headline, of global models or of clients' own: whichever more methods have.
    """
    m = record.headline
    have = {name: sum(name in record.numbers.names(k) for k in record.methods) for name in (m.shared, m.own)}
    metric = metric or max(have, key=have.__getitem__)
    what, where, of = tables.in_words(record, metric)
    y, scale = ", ".join(filter(None, (what, where, of.unit))), of.scale
    x = {"round": "round", "traffic": "sent so far, MB", "time": "time so far, s"}[by]
    lines = {method: c for method in record.methods if (c := tables.curve(record, method, metric, by)) is not None}
    if not lines:
        return None
    data = charts.of_curves(lines, scale)
    title = f"{beginning(what)} by {by}"
    ends = "; ".join(
        f"{method}{of_seeds(c.seeds, len(record.diverged_seeds(method)))} from {scale * c.mean[0]:.3g} to "
        f"{scale * c.mean[-1]:.3g} at {by} {c.x[-1]:.4g}"
        for method, c in lines.items()
    )
    band = "; band: lowest to highest" * (len(lines) <= charts.MOST_LABELLED)
    caption = f"Mean over seeds{band}." if max(c.seeds for c in lines.values()) > 1 else "One seed."
    caption += " Each client’s own model on its own test data." * (metric == m.own)
    if by == "time":
        machine = tables.clock_of(record) == CLOCK
        caption += " By the clock of the machine that ran it." if machine else " Simulated time."
    return Chart(title, caption, charts.curves(data, colours(record), x, y), f"{title}: {ends}.")


MOST_COLUMNS = 100
"""Clients of a picture that has a column for each."""


def labels(first: DataSplit) -> Chart | None:
    """The share of each label at each client, as shades."""
    if not first.label_counts or len(first.label_counts[0]) < 2:
        return None
    clients = [
        (first.client(k), n, counts) for k, (n, counts) in enumerate(zip(first.sizes, first.label_counts, strict=True))
    ]
    names = [first.label(i) for i in range(len(first.label_counts[0]))]
    return shares(f"{beginning(first.counted)} by client", clients, names, "client", first.counted)


def shares(
    title: str, sites: Sequence[tuple[str, int, Sequence[float]]], classes: Sequence[str], site: str, what: str
) -> Chart:
    """The share of each class at each site, as shades.

    Args:
        title: The chart's title.
        sites: Name of each site, its rows, and its rows of each class.
        classes: Their names.
        site, what: Names for a site, and for the classes.
    """
    cells = [
        {"column": f"{name} ({rows:,})", "row": label, "value": n / (sum(counts) or 1)}
        for name, rows, counts in sites[:MOST_COLUMNS]
        for label, n in zip(classes, counts, strict=True)
    ]
    some = f", the first {MOST_COLUMNS} of {len(sites):,}" if len(sites) > MOST_COLUMNS else ""
    sizes = [rows for _, rows, _ in sites]
    text = f"Shares of {len(classes)} {what} at {counted(len(sites), site)} of {min(sizes):,} to {max(sizes):,} rows."
    chart = charts.matrix(columns(cells), f"{site} (rows)", what, "share")
    return Chart(title, f"Stronger colour: a larger share of the {site}’s rows{some}.", chart, text, wide=True)
