"""The pictures of a run: each from its record, with its words and a text for who cannot see it."""

from collections.abc import Callable, Mapping

from unskew.info import ClientGroups
from unskew.record.reader import DataSplit, Record
from unskew.report import charts, tables, verdict, worth
from unskew.report.gain import Gain
from unskew.report.section import Chart, columns
from unskew.report.sections.group_history import grouping, places
from unskew.report.stats import Curve
from unskew.report.tables import Difference
from unskew.report.worth import Worth
from unskew.tasks.measure import Measure
from unskew.words import beginning, counted, of_seeds


def colours(record: Record) -> dict[str, str]:
    """The methods' colours."""
    return charts.colours(record.methods, list(tables.bounds(record)))


def groups(record: Record, method: str | None = None) -> Chart | None:
    """Groups by round, by default under the first method that forms groups; None if there is none."""
    of = record.reports(ClientGroups)
    method = method or next(iter(of), None)
    history = grouping(record, method, None) if method in of and method is not None else None
    if history is None:
        return None
    cells = [
        {
            "row": history.called(c),
            "column": str(seen.round),
            "group": str(numbers[0] + 1) if numbers[0] >= 0 else "alone",
        }
        for seen in history.seen
        for c, numbers in places(seen.groups, seen.numbers).items()
    ]
    title = f"Groups of {method} by round"
    chart = charts.groups(columns(cells), "round", "client")
    last = len({g for g in history.last.groups if len(g) > 1})
    return Chart(title, "A colour is a group.", chart, f"{title}: {counted(last, 'group')} in the last round.")


def spread(record: Record) -> Chart | None:
    """Results of single clients, by method; None where the run has none."""
    m, values = record.headline, {k: tables.client_accuracies(record, k) for k in record.methods}
    parts = [(k, m.scale * v) for k, of in values.items() for v in of]
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
    m = record.headline
    of = [w for w in worth.worths(record) if w.bound is None] if record.comparable else []
    unit = f", {m.points}" if m.points else ""
    if of:
        best = max(of, key=lambda w: (w.whole.low is not None, w.whole.mean))
        if named and worth.named(best.clients):
            return clients(best, m)
        rows: list[tuple[str, Gain | Difference, str]]
        rows = [(w.method, w.whole, w.verdict) for w in sorted(of, key=lambda w: -w.whole.mean)]
        title, what = "Gain over training alone", f"gain in own {m.label}{unit}"
    else:
        base = tables.reference(record)
        by_global, own = verdict.compared(record, base)
        names = {"higher": "gains", "lower": "loses"} if m.higher else {"higher": "loses", "lower": "gains"}
        by_mean = sorted([*by_global, *own], key=lambda d: -d.mean if m.higher else d.mean)
        rows = [(d.method, d, names.get(d.verdict, "open")) for d in by_mean]
        title, what = f"Difference to {base}", f"{m.label} minus {base}{m.apart}"
    if not rows:
        return None
    data = [charts.interval(name, g, m.scale, kind=kind) for name, g, kind in rows]
    alt = "; ".join(f"{name} {m.with_interval(g.mean, g.low, g.high)}" for name, g, _ in rows)
    caption = "Mean and 95 % interval. Clear of zero is a difference."
    return Chart(title, caption, charts.forest(data, what), f"{title}: {alt}.")


def clients(w: Worth, m: Measure) -> Chart:
    """Each client's gain over training alone, sorted, its mark as large as its test rows are many; the mean below."""
    ordered = sorted(w.clients, key=lambda c: -c.judged.mean)
    many, most = len(ordered) > charts.MOST_ROWS, max((c.examples for c in ordered), default=0) or 1
    data = [charts.interval(c.name, c.judged, m.scale, kind=c.verdict, size=c.examples or most) for c in ordered]
    if not many:
        data.append(charts.interval("mean over clients", w.whole, m.scale, kind="mean", size=most))
    told = f"Gain with {w.method}: {w.count('gains')} of {len(ordered)} clients gain, {w.count('loses')} lose, "
    told += f"{w.count('open')} undecided"
    if not many:
        told += ": " + "; ".join(f"{c.name} {worth.bracket(c.judged, m)}" for c in ordered)
    caption = (
        "A point a client, with quantiles at 10, 50 and 90 %." if many else "Mark: as large as test rows are many."
    )
    drawn = (charts.strip if many else charts.forest)(data, f"gain in {m.label}{', ' * bool(m.points)}{m.points}")
    return Chart(f"Each client’s gain with {w.method}", caption, drawn, f"{told}.")


def curve(record: Record, by: str, metric: str | None = None, y: str = "") -> Chart | None:
    """A metric, by default the headline, by round, traffic or time; None where nobody has it."""
    m = record.headline
    shared = any(name == m.shared for _, _, name in record.series)
    metric = metric or (m.shared if shared else m.own)
    y = y or ("global " if metric == m.shared else "own ") + m.axis
    scale = 1.0 if metric.endswith("loss") else m.scale
    x = {"round": "round", "traffic": "sent so far, MB", "time": "time so far, s"}[by]
    of: Mapping[str, Callable[[Record, str], Curve | None]] = {
        "round": lambda record, method: tables.curve(record, method, metric),
        "traffic": tables.cost_curve,
        "time": tables.time_curve,
    }
    lines = {method: c for method in record.methods if (c := of[by](record, method)) is not None}
    if not lines or (by != "round" and not shared):
        return None
    data = charts.of_curves(lines, scale)
    title = f"{beginning(y.partition(',')[0])} by {by}"
    lost = {method: len(record.diverged_seeds(method)) for method in lines}
    ends = "; ".join(
        f"{method}{of_seeds(c.seeds, lost[method])} from {scale * c.mean[0]:.3g} to {scale * c.mean[-1]:.3g} at "
        f"{by} {c.x[-1]:.4g}"
        for method, c in lines.items()
    )
    several = max(c.seeds for c in lines.values()) > 1
    caption = "Mean over seeds; band: lowest to highest." if several else "One seed."
    caption += " By the clock of the machine that ran it." if by == "time" else ""
    return Chart(title, caption, charts.curves(data, colours(record), x, y), f"{title}: {ends}.")


MOST_COLUMNS = 100


def labels(first: DataSplit) -> Chart | None:
    """The share of each label at each client, darker where it is more."""
    if not first.label_counts or len(first.label_counts[0]) < 2:
        return None
    cells = []
    for k, counts in enumerate(first.label_counts[:MOST_COLUMNS]):
        total = sum(counts) or 1
        client = f"{first.client(k)} ({first.sizes[k]:,})" if len(first.sizes) <= 30 else first.client(k)
        cells += [
            {"column": client, "row": first.label(i), "value": n / total, "shown": n} for i, n in enumerate(counts)
        ]
    what, clients = first.counted, len(first.sizes)
    some = f", the first {MOST_COLUMNS} of {clients:,}" if clients > MOST_COLUMNS else ""
    title = f"{beginning(what)} by client"
    sizes = f"{min(first.sizes):,} to {max(first.sizes):,} examples"
    alt = f"Shares of {len(first.label_counts[0])} {what} at {counted(clients, 'client')} of {sizes}."
    chart = charts.matrix(columns(cells), "client (training examples)", what, "share")
    return Chart(title, f"Darker: a larger share of the client’s examples{some}.", chart, alt, wide=True)
