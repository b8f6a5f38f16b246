"""The tables of a run, or of several as one: each is built here once, for the terminal, papers and pages.

A column's values are spreads over seeds, or differences with their intervals; a table has them written for people, and
unrounded in its frame: accuracies as fractions, and nothing where a number was not measured.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from markupsafe import Markup

from unskew.errors import ConfigError, RunError, did_you_mean
from unskew.ledger import DIRECTIONS, KINDS
from unskew.record.logs import ADAPTED, SERVED, gap_name
from unskew.record.reader import Flow, Record
from unskew.report import tables, worth
from unskew.report.gain import Gain
from unskew.report.section import Frame, Table, TableRow, table
from unskew.report.section import columns as columns_of
from unskew.report.stats import Spread, interval, welch
from unskew.report.tables import BOUNDS, Difference, amount, bracket, count, counted_seeds, last_words, with_spread
from unskew.run.metrics import last_value, mean_of_last
from unskew.tasks.measure import Measure
from unskew.units import MB
from unskew.words import beginning, counted, of_seeds

Value = Spread | Difference | Gain
POINTS = "points, "
Swatches = Mapping[str, Markup]
"""A method's mark in figures."""


@dataclass(frozen=True)
class TableColumn:
    """A column of the table of results: title, unit, each method's value and how it is written, and who leads."""

    title: str
    unit: str
    values: Mapping[str, Value]
    write: Callable[[Any], str]
    leader: str | None = None


# ---------------------------------------------------------------- the table of results
def columns(record: Record) -> dict[str, TableColumn]:
    """Every column that the run can have, by the names that `headline` takes."""
    m, methods = record.headline, record.methods
    seeds = {method: counted_seeds(record, method) for method in methods}
    base, alone = tables.reference(record), worth.alone(record)

    def of_each(value: Callable[[str], Value | None]) -> dict[str, Value]:
        return {method: v for method in methods if (v := value(method)) is not None}

    def last(
        title: str, unit: str, metric: str, pick: tables.Pick = last_value, of: Measure = m, lead: bool = False
    ) -> TableColumn:
        values = of_each(lambda method: tables.results(record, method, seeds[method], metric, pick))
        unit = ", ".join(filter(None, (unit, of.unit))) + tables.fewer_clients(record, metric)
        leader = tables.leader(record, metric) if lead else None
        return TableColumn(title, unit, values, partial(with_spread, measure=of), leader)

    def total(title: str, unit: str, names: Sequence[str], scale: float) -> TableColumn:
        def value(method: str) -> Spread | None:
            by_seed = [[record.series.get((method, s, name), {}) for name in names] for s in seeds[method]]
            if not by_seed or not all(any(rows) for rows in by_seed):
                return None
            return Spread(tuple(math.fsum(v for row in rows for v in row.values()) / scale for rows in by_seed))

        return TableColumn(title, unit, of_each(value), lambda spread: amount(spread.mean))

    def apart(title: str, metric: str, pick: tables.Pick = last_value) -> TableColumn:
        values = {d.method: d for d in tables.paired(record, metric, base, pick)}
        return TableColumn(title, f"{POINTS * m.percent}95 %", values, bracket)

    def mean_of_clients(part: str, unit: str) -> TableColumn:
        return last("unseen clients", unit, f"{part}.{m.name}.mean")

    tail = tables.steadier(record)
    planned = {method: sum(c.method == method for c in record.cells) for method in methods}
    all_columns = {
        "seeds": TableColumn(
            "seeds", "", {k: Spread((float(len(s)),), planned[k] - len(s)) for k, s in seeds.items()},
            lambda s: f"{s.mean:.0f}" + f" of {s.mean + s.undefined:.0f}" * bool(s.undefined),
        ),
        "round": TableColumn(
            "last round", "",
            {k: Spread(tuple(float(tables.reached(record, k, s)) for s in of)) for k, of in seeds.items() if of},
            tables.span,
        ),
        "global": last(f"global {m.label}", "", m.shared, lead=True),
        "tail": last(f"mean of {last_words(record)}", "", m.shared, tail),
        "best": last("best on test", "optimistic", m.shared, lambda v, _: m.best(v.values()) if v else None),
    }  # fmt: skip
    if base is not None:
        all_columns["difference"] = apart(f"minus {base}", m.shared)
        all_columns["difference_tail"] = apart(f"mean of {last_words(record)} minus {base}", m.shared, tail)
        if _decided_by_tail(record):
            all_columns["difference_by_rule"] = apart(f"mean of last fifth minus {base}", m.shared, mean_of_last)
    all_columns["personal"] = last(f"own {m.label}", "", m.own, lead=True)
    if base is not None:
        all_columns["personal_difference"] = apart(f"own, minus {base}", m.own)
    if alone is not None and record.clients and record.comparable:
        gains = {w.method: w for w in worth.worths(record)}
        all_columns["gain"] = TableColumn(
            "gain over alone", f"{POINTS * m.percent}95 %", {k: w.whole for k, w in gains.items()},
            partial(worth.bracket, m=m),
        )  # fmt: skip
    all_columns |= {
        "worst_decile": last(f"own {m.label}", "worst tenth of clients", m.worst, lead=True),
        "spread_over_clients": TableColumn(
            "spread over clients", "points" if m.percent else "",
            of_each(lambda k: tables.results(record, k, seeds[k], m.across)), lambda s: m.show(s.mean),
        ),
        "unseen": mean_of_clients(SERVED, "as served"),
        "unseen_adapted": mean_of_clients(ADAPTED, "adapted"),
        **{f"mb_{d}": total(d if d != "d2d" else "device to device", "MB", [f"bytes.{d}"], MB) for d in DIRECTIONS},
        "mb": total("sent", "MB", [f"bytes.{d}" for d in DIRECTIONS], MB),
        "seconds": total("time", "s", ["seconds"], 1.0),
    }  # fmt: skip
    for other in record.asked:
        all_columns[f"global_{other.name}"] = last(f"global {other.label}", "", other.shared, of=other)
        all_columns[f"personal_{other.name}"] = last(f"own {other.label}", "", other.own, of=other)
    for other in (m, *record.asked):
        name = f"personal_on_global.{other.name}.mean"
        all_columns[f"own_on_global_{other.name}"] = last(
            f"own models, {other.label}", "global test set", name, of=other
        )
    return all_columns


ALWAYS = ("seeds", "round", "global", "personal", "worst_decile")
BRIEF = ("global", "personal", "gain", "difference", "unseen", "unseen_adapted")
"""Columns that a terminal has; the difference only where there is no gain over training alone."""


def headline(record: Record, names: Sequence[str] = (), swatches: Swatches | None = None, brief: bool = False) -> Table:
    """The table of results: a row for each method, in the run's order.

    Args:
        record: The run.
        names: Columns beside the method, in the order given; by default all that have a number.
        swatches: The methods' marks in figures.
        brief: True for the columns that fit into a terminal.

    Raises:
        ConfigError: If there is no such column.
    """
    every = columns(record)
    if unknown := [name for name in names if name not in every]:
        raise ConfigError(
            f"the table of {record.name} has the columns {', '.join(every)}; got {unknown[0]!r}"
            f"{did_you_mean(unknown[0], every)}"
        )
    some = {name: c for name, c in every.items() if c.values or name in ALWAYS}
    shown = dict(some) if not names else {name: every[name] for name in names}
    if brief and not names:
        left_out = "difference" if "gain" in some else ""
        shown = {name: some[name] for name in BRIEF if name in some and name != left_out}
    elif not names:
        hidden = {"difference_tail", "difference_by_rule", "mb"} & shown.keys()
        hidden |= {name for name in shown if name.startswith(("global_", "own_on_global_"))}
        hidden |= {f"personal_{other.name}" for other in record.asked} & shown.keys()
        hidden |= {"personal_difference"} - ({"personal_difference"} if _by_own(record) else set())
        shown = {name: c for name, c in shown.items() if name not in hidden}
    return _table(record, shown, some, f"{record.name}", _note(record, shown), swatches)


def _by_own(record: Record) -> bool:
    return bool({d.method for d in tables.paired(record, record.headline.own)} & tables.for_own_models(record))


def _table(
    record: Record, shown: Mapping[str, TableColumn], data: Mapping[str, TableColumn], caption: str, note: str,
    swatches: Swatches | None = None,
) -> Table:  # fmt: skip
    """A row of these columns for each method, and the frame of all of `data`."""
    marks, several = tables.bounds(record), len({c.setting for c in record.cells}) > 1
    rows = []
    for method in record.methods:
        cells = tuple(c.write(c.values[method]) if method in c.values else "–" for c in shown.values())
        below = ", ".join(filter(None, (marks.get(method), record.cell(method).setting if several else "")))
        bold = frozenset(k for k, c in enumerate(shown.values()) if c.leader == method)
        rows.append(TableRow(method, cells, (swatches or {}).get(method, Markup()), below, bold))
    head = (("method", ""), *((c.title, c.unit) for c in shown.values()))
    return Table(caption, head, tuple(rows), note, data=frame(record, data))


def frame(record: Record, of: Mapping[str, TableColumn] | None = None) -> Frame:
    """The table of results unrounded: a row for each method.

    A mean has its standard deviation over seeds beside it as NAME_std, a difference its interval as NAME_low_95 and
    NAME_high_95.
    """
    methods = record.methods
    of = {name: c for name, c in columns(record).items() if c.values} if of is None else of
    several = [len(counted_seeds(record, k)) > 1 for k in methods]
    out: dict[str, list[Any]] = {
        "run": [record.run_of.get(k, record.name) for k in methods],
        "method": list(methods),
        "setting": [record.cell(k).setting for k in methods],
        "bound": [record.cell(k).bound for k in methods],
        "finished": [record.runs.get(record.run_of.get(k, ""), record.finished) for k in methods],
        "same_test_rows": [record.same_test_rows if more else None for more in several],
        "compared_with": [tables.reference(record)] * len(methods),
    }
    for name, column in of.items():
        values = [column.values.get(k) for k in methods]
        if name == "seeds":
            out[name] = [int(v.mean) if v else None for v in values]
            continue
        out[name] = [v.mean if v else None for v in values]
        if any(isinstance(v, Spread) for v in values) and name not in ("seconds", "mb"):
            out[f"{name}_std"] = [v.std if isinstance(v, Spread) else None for v in values]
        elif any(isinstance(v, Difference | Gain) for v in values):
            out[f"{name}_low_95"] = [v.low if isinstance(v, Difference | Gain) else None for v in values]
            out[f"{name}_high_95"] = [v.high if isinstance(v, Difference | Gain) else None for v in values]
    return out


def _note(record: Record, shown: Mapping[str, TableColumn]) -> str:
    """Notes on the numbers in these columns."""
    kind = "95 % interval" if record.until is None else "95 % confidence sequence"
    sentences = ["Last round; mean ± standard deviation over seeds."]
    if "tail" in shown and shown["tail"].values:
        sentences.append(f"Beside it the mean of the {last_words(record)} of evaluations, which is steadier.")
    if "best" in shown:
        sentences.append("Best on test was picked on the test data.")
    if any(c.leader for c in shown.values()):
        sentences.append(f"Bold: better than every other federated method, by the {kind} of paired differences.")
    if not record.comparable:
        sentences.append("These runs are not comparable, so no differences are given and nothing is bold.")
    unfinished = [name for name, done in record.runs.items() if not done]
    unfinished = unfinished or ([] if record.finished else [record.name])
    sentences += [tables.left_out(record), f"Not finished: {', '.join(unfinished)}." if unfinished else ""]
    return " ".join(filter(None, sentences))


def further(record: Record, swatches: Swatches | None = None) -> list[Table]:
    """Tables of the metrics that the run was asked for beside its headline, by where they were taken."""
    every = columns(record)
    parts = (
        ("global test set", [f"global_{m.name}" for m in record.asked]),
        ("clients’ own test data", [f"personal_{m.name}" for m in record.asked]),
        ("own models on the global test set", [f"own_on_global_{m.name}" for m in (record.headline, *record.asked)]),
    )
    return [
        _table(record, shown, shown, f"Further metrics, {where}", "", swatches)
        for where, names in parts
        if any((shown := {name: every[name] for name in names})[name].values for name in names)
    ]


# ---------------------------------------------------------------- differences and gains
READING = {"level": "level", "undecided": "cannot be told apart", "no interval": "no interval possible"}


def differences(record: Record, base: str | None = None, swatches: Swatches | None = None) -> list[Table]:
    """Paired differences to `base`, by default the run's baseline: by the last round, steadier, and of own models."""
    base = tables.reference(record) if base is None else base
    if base is None:
        return []
    m, last = record.headline, last_words(record)
    kinds = [
        (f"Global {m.label} minus {base}’s, last round", tables.paired(record, base=base)),
        (f"The same, mean of the {last} of evaluations", tables.paired_tails(record, base=base)),
        (f"Own {m.label}, mean over clients, minus {base}’s", tables.paired(record, m.own, base)),
    ]
    if _decided_by_tail(record):
        by_rule = tables.paired(record, base=base, pick=mean_of_last)
        kinds.insert(2, ("The same, mean of the last fifth of evaluations, which decided the seeds", by_rule))
    return [_differences(record, what, rows, swatches or {}) for what, rows in kinds if rows]


def _decided_by_tail(record: Record) -> bool:
    """True if seeds were added by the mean of the last fifth, where the run's own mean is of another number."""
    return record.until is not None and record.until["metric"] != "last_round" and tables.last_k(record) is not None


def _differences(record: Record, what: str, differences: Sequence[Difference], swatches: Swatches) -> Table:
    m = record.headline
    number, stands = tables.standing([d for d in differences if d.bound is None])

    def row(d: Difference) -> TableRow:
        mean = m.signed(d.mean, (d.high or 0.0) - (d.low or 0.0))
        ends = m.interval(d.low, d.high) if d.low is not None and d.high is not None else "–"
        corrected = "–" if d.p is None or d.bound else "yes" if d.method in stands else "no"
        each = "  ".join(m.signed(v) for v in d.values)
        cells = (mean, ends, READING.get(d.verdict) or m.directed(d.verdict), corrected, str(len(d.seeds)), each)
        return TableRow(d.method, cells, swatches.get(d.method, Markup()), BOUNDS[d.bound] if d.bound else "")

    head = ["method", f"mean | {m.points}", f"95 % interval | {m.points}", f"reading | {m.way}",
            f"stands corrected | Holm, {number} comparisons", "seeds", "seed by seed"]  # fmt: skip
    kind = "Student’s t" if record.until is None else "a confidence sequence, which pays for a look after every seed"
    note = f"Seed by seed on the same division of the data; intervals are {kind}, each method by itself."
    note += f" {tables.SAME_TEST_ROWS}" if record.same_test_rows else ""
    data = [
        {"method": d.method, "difference": d.mean, "low_95": d.low, "high_95": d.high, "p": d.p, "verdict": d.verdict,
         "seeds": len(d.seeds)}
        for d in differences
    ]  # fmt: skip
    return table(what, head, map(row, differences), note, [3, 4, 6], columns_of(data))


def gains(record: Record, swatches: Swatches | None = None) -> list[Table]:
    """Gains over training alone: each method's, and each client's with each method; empty where there are none."""
    m, alone = record.headline, worth.alone(record)
    worths = worth.worths(record) if alone is not None and record.comparable else ()
    if not worths:
        return []
    by_row, rows = {w.method: w for w in worth.per_row(worths)}, worth.rows(record)
    why = {(r["method"], r["alike"]): r["why"] for r in rows if r["client"] is None}
    reading = {"gains": "better off", "loses": "worse off", "open": "undecided"}

    def row(w: worth.Worth) -> TableRow:
        cells = (
            worth.bracket(w.whole, m) + of_seeds(w.seeds, w.lost),
            worth.bracket(w.whole.per_row, m) if w.method in by_row else "–", reading[w.verdict], w.over or "–",
            f"{w.count('gains')} of {len(w.clients)}", str(w.count("loses")), why[w.method, "clients"] or "–",
        )  # fmt: skip
        below = "" if w.bound is None else BOUNDS[w.bound]
        return TableRow(w.method, cells, (swatches or {}).get(w.method, Markup()), below)

    head = ["method", f"mean gain | {m.points}", f"per test row | {m.points}",
            f"reading | Holm, {len(worth.competing(worths))} methods", "interval over", "better off | clients",
            "worse off | clients", "why not"]  # fmt: skip
    known = sum(c.gain.low is not None for c in max(worths, key=lambda w: w.seeds).clients)
    by_chance = f"Of {known} clients about {0.05 * known:.2g} would gain or lose by chance alone. " * (known > 1)
    note = (
        f"{beginning(m.label)} on the client’s own test data minus that under {alone}{m.turned}, last round. "
        "A client is better or worse off if its 95 % interval excludes zero. "
        f"{by_chance}The best of many methods looks better than it is."
    )
    whole = table(f"Gain over training alone ({alone})", head, map(row, worths), note, [3, 4, 7], columns_of(rows))
    return [whole, *([_client_gains(record, worths)] if worth.named(worths[0].clients) else [])]


MOST_CLIENTS = 100
"""Clients that a table for people has at most; its frame has all."""


def _most(clients: int) -> str:
    """A sentence on clients that a table leaves out; empty if it has all."""
    return f"The {MOST_CLIENTS} of {clients:,} clients with the most test rows; csv has all." * (clients > MOST_CLIENTS)


def _client_gains(record: Record, worths: Sequence[worth.Worth]) -> Table:
    """A row for each client, those with the most test rows where they are many."""
    m = record.headline
    by_client: dict[tuple[Any, Any], dict[str, worth.ClientGain]] = {}
    for w in worths:
        for c in w.clients:
            by_client.setdefault((c.label, c.seed), {})[w.method] = c
    clients = list(by_client.values())
    if len(clients) > MOST_CLIENTS:
        clients.sort(key=lambda by: -next(iter(by.values())).telling)
    rows = []
    for by in clients[:MOST_CLIENTS]:
        first = next(iter(by.values()))
        gained = (worth.bracket(by[w.method].gain, m) if w.method in by else "–" for w in worths)
        rows.append(TableRow(first.name, (str(first.examples or "–"), *gained)))
    head = ["client", "test rows", *(f"{w.method} | {m.points}" for w in worths)]
    return table("Gain of each client over training alone, with its 95 % interval", head, rows, _most(len(clients)))


# ---------------------------------------------------------------- clients
@dataclass(frozen=True)
class ClientResult:
    """A method's result at a client, and by seed its number of test rows, 0 if not known."""

    method: str
    client: worth.Client
    tested: Mapping[int, int]
    spread: Spread


def client_results(record: Record) -> list[ClientResult]:
    """Each method's results of its clients, in the run's order; empty if the run has none of single clients."""
    same, out = worth.lasting(record), []
    for method in record.methods:
        by_client: dict[tuple[str | int, int | None], dict[int, int]] = {}
        seeds = counted_seeds(record, method)
        for seed in seeds:
            names = record.partitions[seed].client_names if seed in record.partitions else ()
            for c in record.clients.get((method, seed), {}):
                by_client.setdefault((names[c] if names else c, None if same else seed), {})[seed] = c
        planned = len(seeds) + len(record.diverged_seeds(method)) if same else 1
        for numbers in by_client.values():
            tested = {seed: round(record.tested.get((method, seed), {}).get(c, 0)) for seed, c in numbers.items()}
            values = tuple(record.clients[method, seed][c] for seed, c in numbers.items())
            client = worth.client_of(record, next(iter(numbers.values())), list(numbers), min(tested.values()))
            out.append(ClientResult(method, client, tested, Spread(values, planned - len(values))))
    return out


def by_client(record: Record) -> Table:
    """A row for each client with each method's result, of many those that are tested most; its frame has all.

    Raises:
        RunError: If the run has no results of single clients.
    """
    every, m = client_results(record), record.headline
    if not every:
        raise RunError(
            f'{record.folder} has no results of single clients; run it with "personal" in evaluate, or leave '
            "--by-client out"
        )
    by_label: dict[tuple[str | int, int | None], dict[str, ClientResult]] = {}
    for r in every:
        by_label.setdefault((r.client.label, r.client.seed), {})[r.method] = r
    clients = [(next(iter(by.values())).client, by) for by in by_label.values()]
    if len(clients) > MOST_CLIENTS:
        # Not those with the worst results: of many clients these are the ones with a test row or two.
        clients.sort(key=lambda row: -row[0].telling)
    methods = [k for k in record.methods if any(k in by for _, by in clients)]
    patients, classes = any(c.patients for c, _ in clients), any(c.rarest for c, _ in clients)
    head = ["client", "test rows", *["patients | tested"] * patients]
    head += [f"{'events' if m.of_events else 'rarest class'} | test rows"] * classes
    head += [f"{k} | {', '.join(filter(None, (tables.bounds(record).get(k), '%' * m.percent)))}" for k in methods]
    rows = []
    for c, by in clients[:MOST_CLIENTS]:
        tested = next(iter(by.values())).tested.values()
        cells = [tables.span(Spread(tuple(map(float, tested)))) if all(tested) else "–"]
        cells += [f"{c.patients:,}" if c.patients else "–"] * patients
        cells += [": ".join(filter(None, (c.rarest[1], f"{c.rarest[0]:,}"))) if c.rarest else "–"] * classes
        cells += [with_spread(by[k].spread if k in by else None, m) for k in methods]
        rows.append(TableRow(c.name, tuple(cells)))
    caption = f"{beginning(m.label)} of each client’s own model on its own test data{', ' * bool(m.way)}{m.way}"
    note = _client_note(record, [c for c, _ in clients])
    return table(caption, head, rows, note, data=_client_frame(record, every))


def _client_note(record: Record, clients: Sequence[worth.Client]) -> str:
    m, few = record.headline, [c for c in clients if 0 < c.telling < worth.FEW]
    sentences = ["Last round; mean ± standard deviation over seeds."]
    if record.same_test_rows:
        sentences.append("Every seed has the same test rows, whose chance ± leaves out.")
    if few:
        rarest = f" {worth.few_of(m)}" if few[0].rarest else ""
        which = f"{len(few)} of {counted(len(clients), 'client')} {'have' if len(few) > 1 else 'has'}"
        sentences.append(f"{which} fewer than {worth.FEW} test examples{rarest}: {worth.fewest(few, m)}.")
    if names := worth.unjudged(record):
        sentences.append(f"{worth.unmeasured(names, m)}.")
    return " ".join(filter(None, (*sentences, _most(len(clients)))))


def _client_frame(record: Record, every: Sequence[ClientResult]) -> Frame:
    gained = worth.rows(record) if record.comparable else []
    gains = {(g["method"], g["client"], g["seed"]): g for g in gained if g["client"] is not None}
    rows = []
    for r in every:
        tested, gain = list(r.tested.values()), gains.get((r.method, r.client.label, r.client.seed))
        number = tested[0] if len(set(tested)) == 1 else statistics.fmean(tested)
        row = {
            "run": record.run_of.get(r.method, record.name), "method": r.method, "bound": record.cell(r.method).bound,
            "client": r.client.label, "seed": r.client.seed, "test_rows": number if all(tested) else None,
            "seeds": len(r.spread.values), record.headline.name: r.spread.mean,
            f"{record.headline.name}_std": r.spread.std,
            "same_test_rows": record.same_test_rows if len(r.spread.values) > 1 else None,
        }  # fmt: skip
        ends = (gain["gain"], gain["low"], gain["high"]) if gain else (None, None, None)
        rows.append({**row, **dict(zip(("gain", "gain_low_95", "gain_high_95"), ends, strict=True))})
    return columns_of(rows)


# ---------------------------------------------------------------- clients that came after training
@dataclass(frozen=True)
class Gap:
    """Clients that trained minus unseen ones: of each seed, and 95 % intervals over seeds and over clients.

    That over clients says how far the mean of so few can be trusted: Welch's, of the clients' values in each seed,
    averaged over the seeds.  Clients that have names are the same people under another seed, so that more seeds do not
    make it narrower.
    """

    spread: Spread
    seeds: tuple[float, float] | None
    clients: tuple[float, float] | None


def gap(record: Record, method: str, part: str) -> Gap | None:
    """The gap of a method as unseen clients are served, or after adapting; None if the run has none."""
    seeds = counted_seeds(record, method)
    last = tables.results(record, method, seeds, gap_name(part, record.headline.name))
    if last is None:
        return None
    values = [(record.clients.get((method, s), {}), record.newcomers.get((method, s, part), {})) for s in seeds]
    pairs = [(tuple(trained.values()), tuple(later.values())) for trained, later in values]
    named = any(split.client_names for split in record.partitions.values())
    over_clients = welch(pairs, drawn_anew=not named or len(pairs) < 2)
    return Gap(last, interval(last.values, sequential=record.until is not None), over_clients)


def newcomers(record: Record, swatches: Swatches | None = None) -> Table | None:
    """Clients that trained beside unseen ones, as served and adapted; None for a run without these."""
    m, every = record.headline, columns(record)
    if not every["unseen"].values:
        return None
    rows, data = [], []
    for method, served in every["unseen"].values.items():
        means = (every[name] for name in ("personal", "unseen", "unseen_adapted"))
        cells = [column.write(v) if (v := column.values.get(method)) else "–" for column in means]
        row: dict[str, Any] = {"method": method, "unseen": served.mean}
        for part in (SERVED, ADAPTED):
            apart = gap(record, method, part)
            both = (None, None) if apart is None else (apart.seeds, apart.clients)
            cells += [m.signed(apart.spread.mean) if apart else "–"]
            cells += ["–" if ends is None else m.interval(*ends) for ends in both]
            row[f"{part}_gap"] = apart.spread.mean if apart else None
        rows.append(TableRow(method, tuple(cells), (swatches or {}).get(method, Markup())))
        data.append(row)
    head = ["method", *(f"{what} | {m.unit}" for what in ("trained", "unseen, as served", "unseen, adapted"))]
    for how in ("as served", "adapted"):
        head += [f"gap {how} | {m.points}", "over seeds | 95 %", "over clients | 95 %"]
    note = (
        f"Gap: {m.label} of clients that trained minus that of unseen ones, each on its own test data. As served: what "
        "a method gives to a client it never met; adapted: that after training on the client’s own data."
    )
    return table(f"{beginning(m.label)} of unseen clients", head, rows, note, data=columns_of(data))


# ---------------------------------------------------------------- what was sent, lost and foretold
def traffic(record: Record, swatches: Swatches | None = None) -> Table | None:
    """The ledger by method and kind of message, the mean over the counted seeds; None if nothing was sent."""
    data: list[dict[str, Any]] = []
    for method in record.methods:
        seeds = counted_seeds(record, method)
        for kind in KINDS if seeds else ():
            row: dict[str, Any] = {"method": method, "kind": kind}
            for d in DIRECTIONS:
                flows = [record.flows.get((method, s, d, kind), Flow()) for s in seeds]
                row[f"mb_{d}"] = sum(f.bytes for f in flows) / len(seeds) / MB
                row[f"transfers_{d}"] = sum(f.transfers for f in flows) / len(seeds)
            data += [row] if any(row[f"transfers_{d}"] for d in DIRECTIONS) else []
    if not data:
        return None
    rows = []
    for row in data:
        sent = (cell for d in DIRECTIONS for cell in (amount(row[f"mb_{d}"]), count(row[f"transfers_{d}"])))
        rows.append(TableRow(row["method"], (row["kind"], *sent), (swatches or {}).get(row["method"], Markup())))
    head = ["method", "kind"]
    for d in DIRECTIONS:
        head += [f"{'device to device' if d == 'd2d' else d} | MB", f"{'' if d == 'd2d' else d} | transfers"]
    note = "Model: messages with parameters, and all that travels in them; control: the others, as losses and counts."
    return table("Mean over seeds, whole run: encoded messages", head, rows, note, [1], columns_of(data))


def lost(record: Record) -> Table | None:
    """Clients that were asked and did not reply, by method and reason, all seeds together; None if all replied."""
    groups: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for f in record.failures:
        groups.setdefault((f.method, f.reason), []).append((f.round, f.client))
    if not groups:
        return None
    rows = [
        TableRow(method, (reason, str(len(at)), str(len({c for _, c in at})), f"{min(at)[0]}–{max(at)[0]}"))
        for (method, reason), at in groups.items()
    ]
    note = "; ".join(f"{method} ignored {n:,} replies that could not be right" for method, n in record.ignored.items())
    head = ["method", "reason", "times", "clients", "rounds"]
    return table("Clients that did not reply", head, rows, f"{note}." if note else "", [1])


SURE = {
    "exact": "exact",
    "extrapolated": "from the rounds driven",
    "estimated": "estimate: training decides",
    "unknown": "not known",
}
"""How certain a method's forecast bytes are, by the word that plan.json uses."""


def forecast(record: Record) -> Table | None:
    """The forecast in plan.json beside the run; None without one, or for an unfinished run: it is for the whole."""
    plan, summary = record.predicted, record.summary
    if plan is None or summary is None:
        return None
    every, few = columns(record), "from a few steps"
    facts: list[tuple[str, str, float | None, float, str]] = []
    for method in record.methods:
        sent, seconds = plan.methods.get(method, (None, None))
        if (mb := every["mb"].values.get(method)) is not None:
            sure = SURE.get(plan.traffic.get(method, ""), "–")
            facts.append((method, "MB", None if sent is None else sent / MB, mb.mean, sure))
        if (time := every["seconds"].values.get(method)) is not None:
            facts.append((method, "s", seconds, time.mean, few))
    # The forecast is of all the seeds there may be; of those that a decision left out nothing was spent.
    share = 1.0 if record.until is None else len(record.seeds) / record.until["most"]
    facts.append(("whole run", "s", None if plan.seconds is None else share * plan.seconds, summary.seconds, few))
    if summary.peak_rss is not None:
        peak = "peak memory of the main process"
        facts.append((peak, "MB", plan.peak / MB, summary.peak_rss / MB, "a sum of parts"))
    rows = [
        TableRow(
            what,
            (unit, "–" if foretold is None else amount(foretold), amount(actual),
             f"{foretold / actual:.2f}" if foretold and actual else "–", sure),
        )
        for what, unit, foretold, actual, sure in facts
    ]  # fmt: skip
    head = ["what", "unit", "predicted", "actual", "ratio", "the prediction is"]
    note = "Predicted before the first round, without training; of a method the mean over seeds."
    data = dict(zip(("what", "unit", "predicted", "actual", "sure"), map(list, zip(*facts, strict=True)), strict=True))
    return table("The forecast and the run", head, rows, note, [1, 5], data)


# ---------------------------------------------------------------- what a run costs on the air
SENT = {"down | MB": "megabytes.down", "device to device | MB": "megabytes.d2d", "up | MB": "megabytes.up",
        "sent | MB": "megabytes"}  # fmt: skip
ON_AIR = {"bandwidth | MHz·s": "hz_s", "sub-frames": "subframes", "on air | s": "seconds",
          "sending | J": "joules.transmit", "computing | J": "joules.compute"}  # fmt: skip


def costs(
    rows: Sequence[Mapping[str, Any]], measures: Sequence[Measure], ledger: str, channel: str, target: str | None
) -> list[Table]:
    """Tables of the rows of a price (`unskew.pricing.summary`): what was sent, on the air, and up to the target."""
    aim, prefix = f"until {' and '.join(m.label for m in measures)} {target}", "to_target."
    scales = {m.name: m.scale for m in measures} | {"hz_s": 1e-6}
    parts = {
        ledger: {f"{m.label} | {'%' * m.percent}": m.name for m in measures} | SENT,
        f"on the air, {channel}": ON_AIR,
        aim: {"rounds": f"{prefix}rounds"} | {title: prefix + name for title, name in SENT.items()},
        f"{aim}, on the air": {title: prefix + name for title, name in ON_AIR.items()},
    }
    by = {(row["method"], row["metric"]): row for row in rows}
    tables_of_parts = []
    for caption, some in parts.items():
        few = [row for row in rows if row["metric"] in some.values()]
        entries = []
        for method in dict.fromkeys(row["method"] for row in rows) if few else ():
            counts = {name: len(row["seeds"]) for (k, name), row in by.items() if k == method}
            trained = max(counts.values())
            reached = max((n for name, n in counts.items() if name in some.values()), default=trained)
            cells = (
                _cost(by.get((method, name)), scales.get(name.removeprefix(prefix), 1.0)) for name in some.values()
            )
            # Under the other seeds a target was not reached.
            entries.append(TableRow(method + of_seeds(reached, trained - reached), tuple(cells)))
        if few:
            data = columns_of([{k: row[k] for k in ("method", "metric", "mean", "std")} for row in few])
            caption = f"{caption}: mean ± standard deviation over seeds"
            tables_of_parts.append(table(caption, ["method", *some], entries, data=data))
    return tables_of_parts


def _cost(row: Mapping[str, Any] | None, scale: float) -> str:
    return "–" if row is None else tables.quantity(row["mean"] * scale, (row["std"] or 0.0) * scale)
