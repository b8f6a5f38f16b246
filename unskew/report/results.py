"""The tables of a run, or of several as one, for the terminal, papers and pages.

Values of a column are spreads over seeds, or differences with their intervals.  Cells are text; the frame has unrounded
numbers, accuracies as fractions, and None where nothing was measured.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from unskew.errors import ConfigError, RunError, did_you_mean
from unskew.ledger import DIRECTIONS, KINDS
from unskew.record.logs import ADAPTED, SERVED, VIRTUAL_CLOCK, gap_name
from unskew.record.reader import Record, select
from unskew.report import tables, worth
from unskew.report.section import Columns, Table, TableRow, table
from unskew.report.section import columns as columns_of
from unskew.report.stats import READING, Difference, Spread, corrected, interval, welch
from unskew.report.tables import BOUNDS, Pick, counted_seeds, quantity, with_spread
from unskew.report.worth import Client
from unskew.run.metrics import last_value
from unskew.tasks.measure import Measure
from unskew.units import MB
from unskew.words import beginning, counted, of_clients, of_seeds

Value = Spread | Difference


@dataclass(frozen=True)
class TableColumn:
    """A column of the table of results: title, unit, each method's value and its format, and who leads."""

    title: str
    unit: str
    values: Mapping[str, Value]
    write: Callable[[Any], str]
    leader: str | None = None


# ---------------------------------------------------------------- the table of results
def columns(record: Record) -> dict[str, TableColumn]:
    """Every possible column of the run, by the names that `headline` takes."""
    m, methods = record.headline, record.methods
    seeds = {method: counted_seeds(record, method) for method in methods}
    base, tail, ends = record.baseline, tables.steadier(record), "points, " * m.percent + "95 %"

    def each(value: Callable[[str], Value | None]) -> dict[str, Value]:
        return {method: v for method in methods if (v := value(method)) is not None}

    def end(metric: str, title: str = "", unit: str = "", pick: Pick = last_value, lead: bool = False) -> TableColumn:
        values = each(lambda method: tables.results(record, method, seeds[method], metric, pick))
        what, where, of = tables.in_words(record, metric)
        unit = ", ".join(filter(None, (unit or where, of.unit))) + of_clients(record.numbers.few(metric))
        leader = tables.leader(record, metric) if lead else None
        return TableColumn(title or what, unit, values, partial(with_spread, measure=of), leader)

    def total(title: str, unit: str, scale: float, *names: str) -> TableColumn:
        def value(method: str) -> Spread | None:
            spent = [[record.numbers.curve(method, s, name) for name in names] for s in seeds[method]]
            sums = tuple(math.fsum(v for row in rows for v in row.values()) / scale for rows in spent)
            return Spread(sums) if spent and all(any(rows) for rows in spent) else None

        return TableColumn(title, unit, each(value), lambda spread: quantity(spread.mean))

    def apart(title: str, metric: str, pick: Pick = last_value) -> TableColumn:
        values = {d.method: d for d in tables.paired(record, metric, base, pick)} if base is not None else {}
        return TableColumn(title, ends, values, partial(worth.bracket, m=m))

    planned = {method: sum(c.method == method for c in record.cells) for method in methods}
    reached = {k: Spread(tuple(float(record.numbers.reached(k, s)) for s in of)) for k, of in seeds.items() if of}
    gains = {w.method: w.whole for w in worth.worths(record)} if record.comparable else {}
    across = each(lambda k: tables.results(record, k, seeds[k], m.across))
    names = {d: "device to device" if d == "d2d" else d for d in DIRECTIONS}
    further = {
        f"{part}_{other.name}": end(metric)
        for other in (m, *record.asked)
        for part, metric in (
            ("global", other.shared), ("personal", other.own),
            ("own_on_global", f"personal_on_global.{other.name}.mean"),
        )
        if other is not m or part == "own_on_global"
    }  # fmt: skip
    return {
        "seeds": TableColumn(
            "seeds", "", {k: Spread((float(len(s)),), planned[k] - len(s)) for k, s in seeds.items()},
            lambda s: f"{s.mean:.0f}" + f" of {s.mean + s.undefined:.0f}" * bool(s.undefined),
        ),
        "round": TableColumn("last round", "", reached, tables.span),
        "global": end(m.shared, lead=True),
        "tail": end(m.shared, "mean of last fifth", pick=tail),
        "best": end(m.shared, "best on test", "optimistic", lambda v, _: m.best(v.values()) if v else None),
        "difference": apart(f"minus {base}", m.shared),
        "difference_tail": apart(f"mean of last fifth minus {base}", m.shared, tail),
        "personal": end(m.own, lead=True),
        "personal_difference": apart(f"own, minus {base}", m.own),
        "gain": TableColumn("gain over alone", ends, gains, partial(worth.bracket, m=m)),
        "worst_decile": end(m.worst, lead=True),
        "spread_over_clients": TableColumn(
            "spread over clients", "points" if m.percent else "", across, lambda s: m.show(s.mean)
        ),
        "unseen": end(f"{SERVED}.{m.name}.mean", "unseen clients", "as served"),
        "unseen_adapted": end(f"{ADAPTED}.{m.name}.mean", "unseen clients", "adapted"),
        **{f"mb_{d}": total(name, "MB", MB, f"bytes.{d}") for d, name in names.items()},
        "mb": total("sent", "MB", MB, *(f"bytes.{d}" for d in DIRECTIONS)),
        "seconds": total("time", "s", 1.0, "seconds"),
        "clock": total("simulated time", "s", 1.0, VIRTUAL_CLOCK),
        **further,
    }  # fmt: skip


BRIEF = ("global", "personal", "gain", "difference", "personal_difference", "unseen", "unseen_adapted")
"""Columns that a terminal has; differences only where there is no gain over training alone."""


def headline(record: Record, names: Sequence[str] = (), brief: bool = False) -> Table:
    """The table of results: a row for each method, in the run's order.

    Args:
        record: The run.
        names: Columns beside the method, in the order given; by default all that have a number.
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
    some = {name: c for name, c in every.items() if c.values}
    own = {d.method for d in tables.paired(record, record.headline.own)} & tables.for_own_models(record)
    hidden = {"difference_tail", "mb", *(() if own else ("personal_difference",))}
    if brief and "gain" in some:
        hidden |= {"difference", "personal_difference"}
    offered = [name for name in (BRIEF if brief else some) if name in some and name not in hidden]
    shown = {name: every[name] for name in names or offered}
    marks, several = tables.bounds(record), len({c.setting for c in record.cells}) > 1
    rows = []
    for method in record.methods:
        cells = tuple(c.write(c.values[method]) if method in c.values else "–" for c in shown.values())
        below = ", ".join(
            filter(None, (marks.get(method), record.cell(method).setting if several and not brief else ""))
        )
        bold = frozenset(k for k, c in enumerate(shown.values()) if c.leader == method)
        rows.append(TableRow(method, cells, below, bold))
    head = (("method", ""), *((c.title, c.unit) for c in shown.values()))
    return Table(record.name, head, tuple(rows), _note(record, shown), data=frame(record, some))


def frame(record: Record, shown: Mapping[str, TableColumn] | None = None) -> Columns:
    """The table of results unrounded: a row for each method.

    A mean has its standard deviation over seeds as NAME_std, a difference its interval as NAME_low_95 and NAME_high_95.
    """
    methods = record.methods
    shown = {name: c for name, c in columns(record).items() if c.values} if shown is None else shown
    several = [len(counted_seeds(record, k)) > 1 for k in methods]
    out: dict[str, list[Any]] = {
        "run": [run_of(record, k).name for k in methods],
        "method": list(methods),
        "setting": [record.cell(k).setting for k in methods],
        "bound": [record.cell(k).bound for k in methods],
        "finished": [run_of(record, k).finished for k in methods],
        "same_test_rows": [record.same_test_rows if more else None for more in several],
        "compared_with": [record.baseline] * len(methods),
    }
    for name, column in shown.items():
        values = [column.values.get(k) for k in methods]
        out[name] = [v.mean if v else None for v in values]
        if name == "seeds":
            out[name] = [int(v.mean) if v else None for v in values]
        elif any(isinstance(v, Spread) for v in values) and name not in ("seconds", "mb"):
            out[f"{name}_std"] = [v.std if isinstance(v, Spread) else None for v in values]
        elif any(isinstance(v, Difference) for v in values):
            out[f"{name}_low_95"] = [v.low if isinstance(v, Difference) else None for v in values]
            out[f"{name}_high_95"] = [v.high if isinstance(v, Difference) else None for v in values]
    return out


def run_of(record: Record, method: str) -> Record:
    """The run of a method, if several were merged."""
    for name, part in record.parts.items():
        if method.removeprefix(f"{name}/") in part.methods:
            return replace(part, name=name)
    return record


def _note(record: Record, shown: Mapping[str, TableColumn]) -> str:
    """Notes on the numbers in these columns."""
    kind = "95 % interval" if record.until is None else "95 % confidence sequence"
    unfinished = [name for name, of in (record.parts or {record.name: record}).items() if not of.finished]
    sentences = {
        "Last round; mean ± standard deviation over seeds.": True,
        "The mean of the last fifth of evaluations is steadier.": "tail" in shown and shown["tail"].values,
        "Best on test was picked on the test data.": "best" in shown,
        f"Bold: better than every other federated method, by the {kind} of paired differences.":
            any(c.leader for c in shown.values()),
        "These runs are not comparable: no differences, and nothing in bold.": not record.comparable,
        tables.left_out(record): True,
        f"Not finished: {', '.join(unfinished)}.": unfinished,
    }  # fmt: skip
    return " ".join(sentence for sentence, holds in sentences.items() if sentence and holds)


# ---------------------------------------------------------------- differences and gains
def differences(record: Record, base: str | None = None) -> list[Table]:
    """Paired differences to `base`, by default the run's baseline: in the last round, steadier, and of own models."""
    base = record.baseline if base is None else base
    m, tail = record.headline, tables.steadier(record)
    kinds = {
        f"Global {m.label} minus {base}’s, last round": tables.paired(record, base=base),
        "The same, mean of the last fifth of evaluations": tables.paired(record, base=base, pick=tail),
        f"Own {m.label}, mean over clients, minus {base}’s": tables.paired(record, m.own, base),
    }
    parts = []
    for what, several in kinds.items():
        known = corrected({d.method: d.at for d in several if d.bound is None and d.low is not None})
        rows = []
        for d in several:
            ends = m.interval(d.low, d.high) if d.low is not None and d.high is not None else "–"
            stands = "–" if d.method not in known else "yes" if known[d.method].verdict in ("gains", "loses") else "no"
            cells = (
                m.signed(d.mean, (d.high or 0.0) - (d.low or 0.0)), ends,
                d.why or READING[d.verdict], stands, str(len(d.seeds)),
                "  ".join(map(m.signed, d.values)),
            )  # fmt: skip
            rows.append(TableRow(d.method, cells, BOUNDS[d.bound] if d.bound else ""))
        head = ["method", f"mean | {m.points}", f"95 % interval | {m.points}", "reading",
                f"significant | corrected (Holm), {len(known)} comparisons", "seeds", "seed by seed"]  # fmt: skip
        parts += [table(what, head, rows, words=[3, 4, 6])] if several else []
    return parts


def gains(record: Record) -> Table | None:
    """Each method's gain over training alone; None where there are none."""
    m, alone = record.headline, worth.alone(record)
    worths = worth.worths(record) if record.comparable else ()
    if not worths:
        return None
    rows, unsure = [], any(w.whole.why for w in worths)
    for w in worths:
        cells = (
            worth.bracket(w.whole, m) + of_seeds(w.seeds, w.lost), worth.bracket(w.whole.per_row, m),
            worth.READING[w.whole.verdict], w.over or "–",
            f"{w.count('gains')} of {len(w.clients)}", str(w.count("loses")),
            *([w.whole.why or "–"] * unsure),
        )  # fmt: skip
        rows.append(TableRow(w.method, cells, "" if w.bound is None else BOUNDS[w.bound]))
    head = ["method", f"mean gain | {m.points}", f"per test row | {m.points}",
            "reading | corrected (Holm)", "interval over", "better off | clients",
            "worse off | clients", *["why not"] * unsure]  # fmt: skip
    known = sum(c.gain.low is not None for c in max(worths, key=lambda w: w.seeds).clients)
    by_chance = f"Of {known} clients about {0.05 * known:.2g} would gain or lose by chance alone. " * (known > 1)
    note = (
        f"{beginning(m.label)} on the client’s own test data minus that under {alone}{m.turned}, last round. "
        "A client is better or worse off if its 95 % interval excludes zero. "
        f"{by_chance}The best of many methods looks better than it is."
    )
    return table(f"Gain over training alone ({alone})", head, rows, note, [3, 4, *[7] * unsure])


# ---------------------------------------------------------------- clients
MOST_CLIENTS = 100
"""Clients that a table for people has at most; its frame has all."""


def by_client(record: Record) -> Table:
    """Each client's result under each method, and its gain over training alone if clients have names.

    With many clients the table has those with the most test rows; its frame has all.

    Raises:
        RunError: If the run has no results of single clients.
    """
    m, same = record.headline, worth.lasting(record)
    gained = worth.rows(record) if record.comparable else []
    gains = {(g["method"], g["client"], g["seed"]): tuple(g[k] for k in ("gain", "low", "high")) for g in gained}
    clients: dict[Any, tuple[Client, dict[str, str]]] = {}
    data: list[dict[str, Any]] = []
    for method in record.methods:
        by_client: dict[tuple[str | int, int | None], dict[int, int]] = {}
        seeds = counted_seeds(record, method)
        for seed in seeds:
            names = record.names(seed)
            for c in record.clients(method, seed):
                by_client.setdefault((names[c] if names else c, None if same else seed), {})[seed] = c
        planned = len(seeds) + len(record.diverged_seeds(method)) if same else 1
        for at, numbers in by_client.items():
            tested = [round(record.tested(method, seed).get(c, 0)) for seed, c in numbers.items()]
            values = tuple(record.clients(method, seed)[c] for seed, c in numbers.items())
            spread = Spread(values, planned - len(values))
            client = worth.client_of(record, next(iter(numbers.values())), list(numbers), min(tested))
            rows = tables.span(Spread(tuple(map(float, tested)))) if all(tested) else "–"
            cells = clients.setdefault(at, (client, {"rows": rows}))[1]
            cells[method] = with_spread(spread, m)
            cells |= {"patients": f"{client.patients:,}"} if client.patients else {}
            cells |= {"rarest": f"{client.rarest[1]}: {client.rarest[0]:,}".removeprefix(": ")} if client.rarest else {}
            ends = gains.get((method, *at), (None,) * 3)
            if ends[0] is not None and isinstance(client.label, str):
                cells[f"{method} gain"] = m.with_interval(*ends)
            mean = tested[0] if len(set(tested)) == 1 else statistics.fmean(tested)
            row = {
                "run": run_of(record, method).name, "method": method, "bound": record.cell(method).bound,
                "client": at[0], "seed": at[1], "test_rows": mean if all(tested) else None, "seeds": len(values),
                m.name: spread.mean, f"{m.name}_std": spread.std,
                "same_test_rows": record.same_test_rows if len(values) > 1 else None,
            }  # fmt: skip
            data.append(row | dict(zip(("gain", "gain_low_95", "gain_high_95"), ends, strict=True)))
    if not clients:
        raise RunError(f'{record.folder} has no results of single clients; run it with "personal" in evaluate')
    every = [client for client, _ in clients.values()]
    rarest = f"{'events' if m.of_events else 'rarest class'} | test rows"
    heads = {"rows": "test rows", "patients": "patients | tested", "rarest": rarest}
    for k in record.methods:
        heads[k] = f"{k} | {', '.join(filter(None, (tables.bounds(record).get(k), '%' * m.percent)))}"
        heads[f"{k} gain"] = f"{k} gain | {m.points}"
    heads = {name: head for name, head in heads.items() if any(name in cells for _, cells in clients.values())}
    few = [c for c in every if 0 < c.telling < worth.FEW]
    unjudged = worth.unjudged(record)
    sentences = {
        "Last round; mean ± standard deviation over seeds.": True,
        "Every seed has the same test rows, whose chance ± leaves out.": record.same_test_rows,
        f"{counted(len(few), 'client')} of {len(clients)} with fewer than {worth.FEW} test examples that count: "
        f"{worth.fewest(few, m)}.": few,
        f"Without test rows from which {m.label} can be measured: {', '.join(unjudged)}.": unjudged,
    }
    caption = f"{beginning(m.label)} of each client’s own model on its own test data{', ' * bool(m.way)}{m.way}"
    note = " ".join(sentence for sentence, holds in sentences.items() if holds)
    shown = list(clients.values())
    if len(shown) > MOST_CLIENTS:
        # Not those with the worst results: of many clients these are the ones with a test row or two.
        shown = sorted(shown, key=lambda row: -row[0].telling)[:MOST_CLIENTS]
        note += f" The {MOST_CLIENTS} clients with the most test rows; csv has all."
    entries = [(c.name, *(cells.get(name, "–") for name in heads)) for c, cells in shown]
    return table(caption, ["client", *heads.values()], entries, note, data=columns_of(data))


# ---------------------------------------------------------------- clients that came after training
def unseen(record: Record) -> Table:
    """Clients that trained beside unseen ones, before and after adapting; empty without unseen clients.

    The gap, trained minus unseen, has an interval over seeds and one over clients (Welch's, averaged over seeds).
    Named clients are the same under every seed, so more seeds do not make the latter narrower.
    """
    m, every = record.headline, columns(record)
    anew = not any(split.client_names for split in record.partitions.values())
    rows = []
    for method in every["unseen"].values:
        means = (every[name] for name in ("personal", "unseen", "unseen_adapted"))
        cells = [column.write(v) if (v := column.values.get(method)) else "–" for column in means]
        seeds = counted_seeds(record, method)
        for part in (SERVED, ADAPTED):
            if (last := tables.results(record, method, seeds, gap_name(part, m.name))) is None:
                cells += ["–"] * 3
                continue
            of = [(record.clients(method, s), record.clients(method, s, part)) for s in seeds]
            pairs = [(tuple(trained.values()), tuple(later.values())) for trained, later in of]
            over_seeds = interval(last.values, sequential=record.until is not None)
            ends = over_seeds, welch(pairs, drawn_anew=anew or len(pairs) < 2)
            cells += [m.signed(last.mean), *("–" if e is None else m.interval(*e) for e in ends)]
        rows.append((method, *cells))
    head = ["method", *(f"{what} | {m.unit}" for what in ("trained", "unseen, as served", "unseen, adapted"))]
    for how in ("as served", "adapted"):
        head += [f"gap {how} | {m.points}", "over seeds | 95 %", "over clients | 95 %"]
    note = (
        f"Gap: {m.label} of clients that trained minus that of unseen ones, each on its own test data. As served: what "
        "a method gives to a client it never met; adapted: that after training on the client’s own data."
    )
    return table(f"{beginning(m.label)} of unseen clients", head, rows, note)


# ---------------------------------------------------------------- what was sent, lost and foretold
SENT_BY_WAY = (
    "SELECT method, seed, kind, CASE WHEN src = 0 THEN 'down' WHEN dst = 0 THEN 'up' ELSE 'd2d' END, sum(bytes), "
    "count(*) FROM transfers GROUP BY 1, 2, 3, 4"
)


def traffic(record: Record) -> Table:
    """The ledger by method and kind of message, the mean over the counted seeds."""
    sums: dict[tuple[str, str], dict[str, list[float]]] = {}
    for method, seed, kind, way, size, count in select(record, SENT_BY_WAY):
        if seed in counted_seeds(record, method):
            total = sums.setdefault((method, kind), {}).setdefault(way, [0, 0])
            total[:] = total[0] + size, total[1] + count
    rows = []
    for method, kind in ((m, kind) for m in record.methods for kind in KINDS if (m, kind) in sums):
        seeds = len(counted_seeds(record, method))
        means = (sums[method, kind].get(way, [0, 0]) for way in DIRECTIONS)
        sent = (cell for size, n in means for cell in (quantity(size / seeds / MB), quantity(n / seeds)))
        rows.append((method, kind, *sent))
    head = ["method", "kind"]
    for d in DIRECTIONS:
        head += [f"{'device to device' if d == 'd2d' else d} | MB", f"{'' if d == 'd2d' else d} | transfers"]
    note = "Model: messages with parameters, and all that travels in them; control: the others, as losses and counts."
    return table("Mean over seeds, whole run: encoded messages", head, rows, note, [1])


def lost(record: Record) -> Table:
    """Clients that did not reply, by method and reason, over all seeds."""
    groups: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for f in record.failures:
        groups.setdefault((f["method"], f["reason"]), []).append((f["round"], f["client"]))
    rows = [
        (method, reason, str(len(at)), str(len({c for _, c in at})), f"{min(at)[0]}–{max(at)[0]}")
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
    """The forecast in plan.json beside the run's costs; None without one, or while the run has not finished."""
    plan, summary = record.predicted, record.summary
    if plan is None or summary is None:
        return None
    every, few, rows = columns(record), "from a few steps", list[tuple[str, ...]]()

    def add(what: str, unit: str, foretold: float | None, actual: float, sure: str) -> None:
        ratio = f"{foretold / actual:.2f}" if foretold and actual else "–"
        rows.append((what, unit, "–" if foretold is None else quantity(foretold), quantity(actual), ratio, sure))

    methods = {of["method"]: of for of in plan["methods"]}
    for method in record.methods:
        of = methods.get(method, {"method": method})
        sent, seconds = (every[name].values.get(method) for name in ("mb", "seconds"))
        if sent is not None:
            bytes_of = of.get("bytes")
            foretold = None if bytes_of is None else sum(bytes_of.values()) / MB
            add(method, "MB", foretold, sent.mean, SURE.get(of.get("traffic", ""), "–"))
        if seconds is not None:
            add(method, "s", of.get("seconds"), seconds.mean, few)
    # The forecast is of all the seeds there may be; of those that a decision left out nothing was spent.
    share = 1.0 if record.until is None else len(record.seeds) / record.until["most"]
    whole, peak = plan.get("seconds"), summary.get("peak_rss")
    add("whole run", "s", whole and share * whole, summary["seconds"], few)
    if peak is not None:
        add("peak memory of the main process", "MB", plan["memory"]["peak"] / MB, peak / MB, "a sum of parts")
    head = ["what", "unit", "predicted", "actual", "ratio", "the prediction is"]
    note = "Predicted before the first round, without training; of a method the mean over seeds."
    return table("The forecast and the run", head, rows, note, [1, 5])


# ---------------------------------------------------------------- what a run costs on the air
SENT = {"down | MB": "megabytes.down", "device to device | MB": "megabytes.d2d", "up | MB": "megabytes.up",
        "sent | MB": "megabytes"}  # fmt: skip
ON_AIR = {"bandwidth | MHz·s": "hz_s", "sub-frames": "subframes", "on air | s": "seconds",
          "sending | J": "joules.transmit", "computing | J": "joules.compute"}  # fmt: skip


def costs(
    rows: Sequence[Mapping[str, Any]], measures: Sequence[Measure], ledger: str, channel: str, target: str | None
) -> list[Table]:
    """Tables of a cost summary (`unskew.pricing.summary`): traffic, costs on the air, and until the target."""
    aim, prefix = f"until {' and '.join(m.label for m in measures)} {target}", "to_target."
    scales = {m.name: m.scale for m in measures} | {"hz_s": 1e-6}
    parts = {
        ledger: {f"{m.label} | {'%' * m.percent}": m.name for m in measures} | SENT,
        f"on the air, {channel}": ON_AIR,
        aim: {"rounds": f"{prefix}rounds"} | {title: prefix + name for title, name in SENT.items()},
        f"{aim}, on the air": {title: prefix + name for title, name in ON_AIR.items()},
    }
    by = {(row["method"], row["metric"]): row for row in rows}

    def cell(method: str, name: str) -> str:
        row, scale = by.get((method, name)), scales.get(name.removeprefix(prefix), 1.0)
        return "–" if row is None else quantity(row["mean"] * scale, (row["std"] or 0.0) * scale)

    out = []
    for caption, some in parts.items():
        few = [row for row in rows if row["metric"] in some.values()]
        entries = []
        for method in dict.fromkeys(row["method"] for row in rows) if few else ():
            counts = {name: len(row["seeds"]) for (k, name), row in by.items() if k == method}
            trained = max(counts.values())
            reached = max((n for name, n in counts.items() if name in some.values()), default=trained)
            # Under the other seeds a target was not reached.
            label = method + of_seeds(reached, trained - reached)
            entries.append((label, *(cell(method, name) for name in some.values())))
        data = columns_of([{k: row[k] for k in ("method", "metric", "mean", "std")} for row in few])
        caption = f"{caption}: mean ± standard deviation over seeds"
        out += [table(caption, ["method", *some], entries, data=data)] if few else []
    return out
