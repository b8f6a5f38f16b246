"""The numbers of a report: pure functions from a record to rows.

Which number is the headline is fixed: the last evaluation.  The mean of the last fifth of evaluations, which is
steadier, stands beside it.  The best evaluation is shown too, but it was picked on the test data, so it is optimistic
and labelled.  Spreads are standard deviations over seeds (ddof 1).  Two methods are
compared by their differences on the same seeds, with Student's t interval, because the seed fixes the split and the
initial weights and most of the spread over seeds is common to both.
"""

import math
import re
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from unskew.algorithms import TABLE
from unskew.data.differs import holm
from unskew.errors import RunError
from unskew.ledger import DIRECTIONS, KINDS, Direction, Kind
from unskew.record.logs import ADAPTED, SERVED, Bound
from unskew.record.reader import Flow, Record, configured
from unskew.report.stats import CONFIDENCE, Curve, Spread, curve_by_round, interval, p_value
from unskew.run.metrics import last_rounds, last_value, mean_of_last, minus
from unskew.tasks.measure import ACCURACY, Measure
from unskew.units import MB
from unskew.words import counted, of_clients, of_seeds

BOUNDS: dict[Bound, str] = {"lower": "local training", "pooled": "pooled data"}
"""What methods are that do not compete, as every table marks them.  Clients' own models may be best alone: no bound."""


@dataclass(frozen=True)
class Headline:
    """One method's row.  Accuracies are fractions, traffic is MB over the run, None if not measured.

    `shared` is the global model's, `tail` the mean of its last evaluations where that is of several, `personal` the
    mean over the clients' own models, `worst` that of the worst tenth; `across` is the standard deviation over the
    clients (ddof 0: these are all there are).
    `clients` says over how many clients `personal` is, where it is not over all that were evaluated.
    `unseen` is the mean over clients that came after training, as they are served, `adapted` after adapting.
    `rounds` are the last rounds reached, of each seed; `planned` is the number of seeds asked for.
    """

    method: str
    setting: str
    bound: Bound | None
    seeds: tuple[int, ...]
    planned: int
    rounds: Spread | None
    measure: Measure
    shared: Spread | None
    tail: Spread | None
    best: Spread | None
    personal: Spread | None
    clients: str
    worst: Spread | None
    across: Spread | None
    unseen: Spread | None
    adapted: Spread | None
    mb: dict[Direction, Spread]
    seconds: Spread | None


@dataclass(frozen=True)
class Difference:
    """Method minus reference on the same seeds, as fractions.

    `low`, `high` and `p`, that of no difference, are None if there is no interval.  `until` is the width at which an
    interval is narrow, in a run that adds seeds until it excludes zero or is narrow.
    """

    method: str
    bound: Bound | None
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    mean: float
    low: float | None
    high: float | None
    measure: Measure = ACCURACY
    p: float | None = None
    until: float | None = None

    @property
    def verdict(self) -> Literal["higher", "lower", "level", "undecided", "no interval"]:
        """The interval's verdict: it excludes zero, it does not but is narrow, it does not, or there is none.

        One with zero at both ends, as it is shown, does not exclude it.
        """
        if self.low is None or self.high is None:
            return "no interval"
        shown = {self.measure.signed(end) for end in (0.0, self.low, self.high)}
        if self.low <= 0 <= self.high or len(shown) == 1:
            return "level" if self.until is not None and self.high - self.low < self.until else "undecided"
        return "higher" if self.low > 0 else "lower"


@dataclass(frozen=True)
class Traffic:
    """One method's ledger, the mean over the counted seeds: MB and transfers by (direction, kind)."""

    method: str
    bound: Bound | None
    mb: dict[tuple[Direction, Kind], float]
    transfers: dict[tuple[Direction, Kind], float]

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of message that were sent."""
        return tuple(kind for kind in KINDS if any(self.transfers[d, kind] for d in DIRECTIONS))


def bounds(record: Record) -> dict[str, str]:
    """The methods that do not compete, and what they are, in words."""
    return {m: BOUNDS[bound] for m in record.methods if (bound := record.cell(m).bound) is not None}


def reached(record: Record, method: str, seed: int) -> int:
    """The last round with a metric in the record; 0 if there is none."""
    rounds = (max(v) for (m, s, _), v in record.series.items() if (m, s) == (method, seed) and v)
    return max(rounds, default=0)


def counted_seeds(record: Record, method: str) -> tuple[int, ...]:
    """The seeds that a method's row counts, ascending.

    All of them in a finished run but those under which it diverged.  In an unfinished one, the seeds that came as far
    as the furthest: a mean over seeds at different rounds would measure the moment of the interruption.
    """
    left = {c.seed for c in record.cells if c.method == method} - record.diverged_seeds(method)
    seeds = {seed: reached(record, method, seed) for seed in left}
    furthest = max(seeds.values(), default=0)
    return tuple(sorted(s for s, r in seeds.items() if record.finished or (r == furthest > 0)))


def client_pairs(record: Record, method: str, base: str) -> dict[int, dict[int, tuple[float, float]]]:
    """Results of clients under a method and under another, (one, other) by client and seed, where both are known.

    Of the counted seeds, in an unfinished run those under which both methods reached the same round.  In a finished one
    the last round may be an outcome, where training may end early, and seeds are not chosen by outcomes.
    """
    by_seed = {}
    for seed in counted_seeds(record, method):
        one, other = record.clients.get((method, seed), {}), record.clients.get((base, seed), {})
        if record.finished or reached(record, method, seed) == reached(record, base, seed):
            by_seed[seed] = {c: (result, other[c]) for c, result in one.items() if c in other}
    return {seed: pairs for seed, pairs in by_seed.items() if pairs}


def last_k(record: Record) -> int | None:
    """The number of evaluations that the run's `mean_last` asks for; None for the last fifth of them."""
    metrics = {metric for _, metric in record.summary.means} if record.summary else set()
    ks = [
        m[1]
        for metric in metrics
        if (m := re.fullmatch(rf"{re.escape(record.headline.shared)}\.mean_last_(\d+)", metric))
    ]
    return int(ks[0]) if len(ks) == 1 else None


def last_words(record: Record) -> str:
    """The evaluations that the steadier number is a mean of, in words: `last fifth` or `last 10`."""
    return f"last {last_k(record) or 'fifth'}"


def headline(record: Record) -> tuple[Headline, ...]:
    """One row for each method, in the order of the run."""
    return tuple(_headline(record, method) for method in record.methods)


def _headline(record: Record, method: str) -> Headline:
    seeds, cell = counted_seeds(record, method), record.cell(method)
    measure = record.headline

    def total(name: str) -> Spread | None:
        by_seed = [record.series.get((method, s, name), {}) for s in seeds]
        return Spread(tuple(math.fsum(v.values()) for v in by_seed)) if by_seed and all(by_seed) else None

    def last(name: str) -> Spread | None:
        return results(record, method, seeds, name)

    traffic = {d: total(f"bytes.{d}") for d in DIRECTIONS}
    return Headline(
        method=method,
        setting=cell.setting,
        bound=cell.bound,
        seeds=seeds,
        planned=sum(c.method == method for c in record.cells),
        rounds=Spread(tuple(float(reached(record, method, s)) for s in seeds)) if seeds else None,
        measure=measure,
        shared=last(measure.shared),
        tail=results(record, method, seeds, measure.shared, _steadier(record)),
        best=results(record, method, seeds, measure.shared, lambda v, _: measure.best(v.values()) if v else None),
        personal=last(measure.own),
        clients=fewer_clients(record, measure.own, method),
        worst=last(measure.worst),
        across=last(measure.across),
        unseen=last(f"{SERVED}.{measure.name}.mean"),
        adapted=last(f"{ADAPTED}.{measure.name}.mean"),
        mb={d: Spread(tuple(b / MB for b in t.values)) for d, t in traffic.items() if t is not None},
        seconds=total("seconds"),
    )


Pick = Callable[[Mapping[int, float], Collection[int]], float | None]
"""From a curve and the rounds that were evaluated to a result; None if it is not defined."""


def results(record: Record, method: str, seeds: Sequence[int], name: str, pick: Pick = last_value) -> Spread | None:
    """A method's results under these seeds, of which some may not be defined; None if none is.

    Seeds under which it diverged are counted as such: it is not as good as the others let it seem.
    """
    values = [pick(record.series.get((method, s, name), {}), record.evaluated(method, s, name)) for s in seeds]
    defined = tuple(value for value in values if value is not None)
    lacks = len(values) - len(defined) + len(record.diverged_seeds(method))
    return Spread(defined, lacks) if defined else None


def diverged(record: Record) -> tuple[str, ...]:
    """Sentences on methods that diverged: under how many seeds, and in which rounds."""
    sentences = []
    for method in record.methods:
        rounds = [f"seed {r['seed']} in round {r['round']}" for r in record.diverged if r["method"] == method]
        seeds = sum(c.method == method for c in record.cells)
        counts = "it has no results" if len(rounds) == seeds else "its results are of the others alone"
        if rounds:
            sentences.append(
                f"{method} diverged under {len(rounds)} of {counted(seeds, 'seed')} ({', '.join(rounds)}): {counts}."
            )
    return tuple(sentences)


def _steadier(record: Record) -> Pick:
    """The mean of the last evaluations; None in a run of so few that it is everywhere the last one alone."""
    last, names = last_k(record), (record.headline.shared, record.headline.own)
    evaluated = (record.evaluated(c.method, c.seed, name) for c in record.cells for name in names)
    several = any(len(last_rounds(rounds, last)) > 1 for rounds in evaluated)
    return partial(mean_of_last, last=last) if several else lambda by_round, rounds: None


@dataclass(frozen=True)
class Asked:
    """The metrics that a run was asked for beside its headline, last round, by method.

    Attributes:
        where: The test data that they were taken on, in words.
        clients: Of each of `measures`, over how many clients it is, where it is not over all.
        rows: Method and its value in each of `measures`, None if not measured.
    """

    where: str
    measures: tuple[Measure, ...]
    clients: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Spread | None, ...]], ...]

    @property
    def heads(self) -> list[str]:
        """The columns' titles."""
        return [m.axis + few for m, few in zip(self.measures, self.clients, strict=True)]


def asked(record: Record) -> tuple[Asked, ...]:
    """The global models' and the mean over clients' own; without those that nobody measured.

    Of own models on the global test set, which the headline's table has not, it is the headline, too.
    """
    beside, every = record.asked, (record.headline, *record.asked)
    parts = (
        ("global test set", beside, [m.shared for m in beside]),
        ("own test data, mean over clients", beside, [m.own for m in beside]),
        (
            "own models on the global test set, mean over clients",
            every,
            [f"personal_on_global.{m.name}.mean" for m in every],
        ),
    )
    tables = [
        Asked(
            where,
            measures,
            tuple(fewer_clients(record, name) for name in names),
            tuple((method, last_round(record, method, names)) for method in record.methods),
        )
        for where, measures, names in parts
    ]
    return tuple(table for table in tables if any(value for _, values in table.rows for value in values))


def fewer_clients(record: Record, name: str, *methods: str) -> str:
    """Say over how many clients a metric is a mean after the last round, where it is not over all; empty if it is."""
    counts = [few for (m, s, n), few in record.few.items() if n == name and (m in methods or not methods)]
    return of_clients(counts)


def last_round(record: Record, method: str, names: Sequence[str]) -> tuple[Spread | None, ...]:
    """A method's metrics of these names after the last round, over the seeds that are counted."""
    seeds = counted_seeds(record, method)
    return tuple(results(record, method, seeds, name) for name in names)


def reference(record: Record) -> str | None:
    """The method that others are compared with; None if there is none.

    The run says which: a label may be anything.  Of a record that does not say, it is the method called FedAvg, or the
    only one whose name begins so.
    """
    if record.baseline is not None:
        return record.baseline or None
    names = [m for m in record.methods if record.cell(m).bound in (None, "lower")]
    plain = [m for m in names if m.casefold() == "fedavg"]
    variants = [m for m in names if re.match(r"fedavg(?![a-z])", m.casefold())]
    candidates = plain if len(plain) == 1 else variants
    return candidates[0] if len(candidates) == 1 else None


def paired(
    record: Record,
    metric: str | None = None,
    base: str | None = None,
    pick: Pick = last_value,
) -> tuple[Difference, ...]:
    """Last-evaluation differences to `base` over common seeds, for each method that measured `metric`.

    Without `metric` it is the headline of the global model, without `base` the reference; `pick` takes another number
    from a curve than the last.  In an unfinished run a seed counts only if both methods were evaluated last at the same
    round.  Of merged runs that are not comparable there are none.
    """
    base = reference(record) if base is None else base
    metric = metric or record.headline.shared
    rows = []
    for method in record.methods if base is not None and record.comparable else ():
        if method == base:
            continue
        pairs: dict[int, float] = {}
        for seed in sorted({c.seed for c in record.cells if c.method == method}):
            both = [(name, record.evaluated(name, seed, metric)) for name in (method, str(base))]
            if all(at for _, at in both) and (record.finished or max(both[0][1]) == max(both[1][1])):
                apart = minus(*(pick(record.series.get((of, seed, metric), {}), at) for of, at in both))
                if apart is not None:
                    pairs[seed] = apart
        if pairs:
            row = difference(method, pairs, record.cell(method).bound, record.headline, record.until is not None)
            narrow = None if record.until is None else record.until["until"] / record.headline.scale
            rows.append(replace(row, until=narrow))
    return tuple(rows)


def for_own_models(record: Record) -> frozenset[str]:
    """Methods that are for the clients' own models, by the algorithm's name or since they have no global one."""
    if record.for_own is not None:
        return record.for_own
    try:
        entries = configured(record).get("methods", [])
    except RunError:  # a report is written without its config.toml, too
        entries = []
    names = {entry.get("label", entry.get("name")): str(entry.get("name")).partition("+")[0] for entry in entries}
    kinds = {label: TABLE[name].kind for label, name in names.items() if name in TABLE}
    measure = record.headline
    return frozenset(
        method
        for method in record.methods
        if results(record, method, counted_seeds(record, method), measure.own) is not None
        and (
            kinds.get(method) == "personal"
            or not any(record.evaluated(method, seed, measure.shared) for seed in record.seeds)
        )
    )


def paired_tails(record: Record, metric: str | None = None, base: str | None = None) -> tuple[Difference, ...]:
    """`paired` by the mean of the last evaluations, where it is of several, and so steadier than the last one."""
    return paired(record, metric, base, _steadier(record))


def paired_by_rule(record: Record, base: str | None) -> list[tuple[str, tuple[Difference, ...]]]:
    """Rule that decided a run that added seeds, in words, and `paired` by it, where no other table shows it."""
    if record.until is None or record.until["metric"] == "last_round" or last_k(record) is None:
        return []
    what = f"Global {record.headline.label} minus {base}’s, mean of the last fifth of evaluations"
    return [(what, paired(record, base=base, pick=mean_of_last))]


def difference(
    method: str,
    by_seed: Mapping[int, float],
    bound: Bound | None = None,
    measure: Measure = ACCURACY,
    sequential: bool = False,
) -> Difference:
    """A row of differences: one for each seed, at least one, with their mean and its interval.

    With `sequential` the interval allows for a look after every seed.
    """
    values = tuple(by_seed.values())
    low, high = interval(values, sequential=sequential) or (None, None)
    p = p_value(values, sequential)
    return Difference(method, bound, tuple(by_seed), values, statistics.fmean(values), low, high, measure, p)


def standing(rows: Sequence[Difference]) -> tuple[int, tuple[str, ...]]:
    """The number of comparisons that have a p-value, and the methods that differ also by Holm's correction for it."""
    corrected = holm({d.method: d.p for d in rows if d.p is not None})
    return len(corrected), tuple(
        d.method for d in rows if corrected.get(d.method, 1.0) <= 1.0 - CONFIDENCE and d.verdict in ("higher", "lower")
    )


def leader(record: Record, metric: str | None = None) -> str | None:
    """The method that is better than every other in `metric` by the interval of their paired differences.

    Without `metric` it is the headline of the global model.  Bounds do not take part.  None if there is no
    other method, or an interval is missing or reaches zero, or all seeds have the same test rows: then an interval over
    seeds does not tell which method is better on others.
    """
    if record.same_test_rows:
        return None
    metric = metric or record.headline.shared
    means = {}
    for method in record.methods:
        last = results(record, method, counted_seeds(record, method), metric)
        if record.cell(method).bound is None and last is not None and not last.undefined:
            means[method] = last.mean
    if len(means) < 2:
        return None
    top = record.headline.first(means)
    verdict = "lower" if record.headline.higher else "higher"
    worse = {d.method for d in paired(record, metric, top) if d.verdict == verdict}
    return top if worse >= means.keys() - {top} else None


SAME_TEST_ROWS = (
    "Every seed has the same test rows: ± and intervals over seeds are the chance of training alone, and leave out "
    "that of the test rows, which is often larger."
)


def left_out(record: Record) -> str:
    """A sentence on what numbers over seeds leave out, as the seeds have test rows in common; else empty."""
    if len(record.seeds) < 2:
        return ""
    if record.same_test_rows:
        return SAME_TEST_ROWS
    if any(name == record.headline.shared for _, _, name in record.series):
        return (
            "The global test set is the same under every seed: ± and intervals of global models over seeds leave out "
            "the chance of its examples."
        )
    return ""


def curve(record: Record, method: str, name: str) -> Curve | None:
    """`name` by round over the counted seeds, at the rounds that every one of them has; None if there are none."""
    return curve_by_round([record.series.get((method, s, name), {}) for s in counted_seeds(record, method)])


def cost_curve(record: Record, method: str) -> Curve | None:
    """The headline with x in MB: all bytes sent up to and including that round, the mean over the counted seeds.

    None if nothing travelled.
    """
    spent = _spent(record, method, [f"bytes.{d}" for d in DIRECTIONS])
    return against(record, method, record.headline.shared, spent, MB)


def time_curve(record: Record, method: str) -> Curve | None:
    """The headline with x in seconds by the clock up to and including that round, the mean over the counted seeds.

    None if no time was recorded.
    """
    return against(record, method, record.headline.shared, _spent(record, method, ["seconds"]), 1.0)


def _spent(record: Record, method: str, names: Sequence[str]) -> list[Mapping[int, float]]:
    return [record.series.get((method, s, name), {}) for s in counted_seeds(record, method) for name in names]


def against(record: Record, method: str, name: str, spent: Sequence[Mapping[int, float]], unit: float) -> Curve | None:
    """`curve` with x the mean amount that the counted seeds had `spent` up to that round, in `unit`s.

    None if nothing was spent.
    """
    by_round, seeds = curve(record, method, name), counted_seeds(record, method)
    if by_round is None or not any(sum(row.values()) for row in spent):
        return None
    x = tuple(sum(v for row in spent for r, v in row.items() if r <= t) / len(seeds) / unit for t in by_round.x)
    return Curve(x, by_round.mean, by_round.low, by_round.high, by_round.seeds)


def client_accuracies(record: Record, method: str) -> tuple[float, ...]:
    """Per-client accuracies in the last round that has them, over the counted seeds."""
    return tuple(a for s in counted_seeds(record, method) for a in record.clients.get((method, s), {}).values())


def traffic(record: Record) -> tuple[Traffic, ...]:
    """The ledger by method, direction and kind; methods with no row in the ledger are left out."""
    rows = []
    for method in record.methods:
        seeds = counted_seeds(record, method)
        sums = {(d, k): [record.flows.get((method, s, d, k), Flow()) for s in seeds] for d in DIRECTIONS for k in KINDS}
        if seeds and any(f.transfers for flows in sums.values() for f in flows):
            mb = {at: sum(f.bytes for f in flows) / len(seeds) / MB for at, flows in sums.items()}
            n = {at: sum(f.transfers for f in flows) / len(seeds) for at, flows in sums.items()}
            rows.append(Traffic(method, record.cell(method).bound, mb, n))
    return tuple(rows)


def discrepancies(record: Record) -> tuple[str, ...]:
    """Sentences about damaged files that are left out, and those of a finished run that contradict each other."""
    if record.summary is None:
        return record.left_out
    sentences, what = [*record.left_out], record.headline.label
    for row in headline(record):
        summarised = record.summary.means.get((row.method, record.headline.shared))
        if row.shared is None and summarised is not None:
            sentences.append(
                f"{row.method}: summary.json gives a last-round {what} of {summarised:.4f}, but the record has no "
                f"global {what} of every seed: rows were removed; restore the file or run again."
            )
        if row.shared is not None and summarised is not None and abs(row.shared.mean - summarised) > 1e-6:
            sentences.append(
                f"{row.method}: summary.json gives a last-round {what} of {summarised:.4f}, the record gives "
                f"{row.shared.mean:.4f}; this report shows the record's."
            )
        for d in DIRECTIONS if record.flows else ():
            booked = sum(record.flows.get((row.method, s, d, k), Flow()).bytes for s in row.seeds for k in KINDS)
            metered = round(
                sum(math.fsum(record.series.get((row.method, s, f"bytes.{d}"), {}).values()) for s in row.seeds)
            )
            if booked != metered:
                sentences.append(
                    f"{row.method}: the ledger books {booked:,} bytes {d}, the metrics {metered:,}; "
                    "the headline shows the metrics, the ledger table the ledger."
                )
    return tuple(sentences)


def together(records: Sequence[Record], labels: Sequence[Mapping[str, str]]) -> tuple[Record, str | None]:
    """Merge runs into one record; return it with the reference of the first run that has one, or None.

    Of runs that are not comparable (`incomparable`) the record has no reference and no differences.

    Args:
        records: The runs.
        labels: For each run, the label of each method in the merged record.
    """
    pairs = list(zip(records, labels, strict=True))
    comparable = not incomparable(records, list(map(str, range(len(records)))))
    bases = [names[base] for r, names in pairs if comparable and (base := reference(r)) is not None]
    merged = replace(
        records[0],
        cells=tuple(replace(c, method=names[c.method]) for r, names in pairs for c in r.cells),
        series={(names[m], seed, name): v for r, names in pairs for (m, seed, name), v in r.series.items()},
        clients={(names[m], seed): v for r, names in pairs for (m, seed), v in r.clients.items()},
        few={(names[m], seed, name): v for r, names in pairs for (m, seed, name), v in r.few.items()},
        tested={(names[m], seed): v for r, names in pairs for (m, seed), v in r.tested.items()},
        tested_rows={(names[m], seed): v for r, names in pairs for (m, seed), v in r.tested_rows.items()},
        newcomers={(names[m], seed, part): v for r, names in pairs for (m, seed, part), v in r.newcomers.items()},
        flows={(names[m], s, d, k): v for r, names in pairs for (m, s, d, k), v in r.flows.items()},
        failures=tuple(replace(f, method=names[f.method]) for r, names in pairs for f in r.failures),
        diverged=tuple({**row, "method": names[row["method"]]} for r, names in pairs for row in r.diverged),
        ignored={names[m]: n for r, names in pairs for m, n in r.ignored.items()},
        until=next((r.until for r in records if r.until is not None), None),
        summary=records[0].summary if all(r.finished for r in records) else None,
        baseline=next(iter(bases), ""),
        comparable=comparable,
        for_own=frozenset(names[m] for r, names in pairs for m in for_own_models(r)),
    )
    return merged, next(iter(bases), None)


def incomparable(records: Sequence[Record], names: Sequence[str]) -> tuple[str, ...]:
    """Sentences on why runs cannot be compared, each against the first; empty if they can.

    `names` are distinct names of the runs.
    """
    first, sentences = records[0], []
    for name, other in zip(names[1:], records[1:], strict=True):
        ours, theirs = _facts(first), _facts(other)
        differs = f"“{name}” differs from “{names[0]}” in"
        for what in ours:
            if what in theirs and written(ours[what]) != written(theirs[what]):
                new, old = apart(theirs[what], ours[what])
                sentences.append(f"{differs} {what}: {written(new)} against {written(old)}.")
        sentences += [
            f"“{n}” does not say which data its clients trained on: nothing shows that they are the same."
            for n, r in ((names[0], first), (name, other))
            if not r.partitions
        ]
        common = sorted(set(first.partitions) & set(other.partitions))
        moved = [s for s in common if first.partitions[s].sha256 != other.partitions[s].sha256]
        if moved:
            new, old = (r.partitions[moved[0]] for r in (other, first))
            how = f" ({written(new.split)} against {written(old.split)})" if new.split != old.split else ""
            sentences.append(
                f"{differs} the split of seed {', '.join(map(str, moved))}: hash {new.sha256[:12]} against "
                f"{old.sha256[:12]}{how}."
            )
    return tuple(dict.fromkeys(sentences))


def evaluated_otherwise(records: Sequence[Record], names: Sequence[str]) -> str:
    """A sentence on runs that were evaluated in other rounds, which their last round does not show; empty if none."""

    def evaluated(record: Record) -> str:
        settings = configured(record)
        every, last = settings.get("eval_every", 1), settings.get("mean_last")
        rounds = "every round" if every == 1 else f"every {every} rounds"
        return rounds if last is None else f"{rounds}, the last {last} for the mean"

    by_rule: dict[str, list[str]] = {}
    for name, record in zip(names, records, strict=True):
        by_rule.setdefault(evaluated(record), []).append(f"“{name}”")
    if len(by_rule) < 2:
        return ""
    rules = "; ".join(f"{', '.join(which)}: {rule}" for rule, which in by_rule.items())
    return (
        f"These runs were evaluated in other rounds ({rules}): compare their last rounds, and neither their means of "
        "the last rounds nor their best ones, of which more evaluations find a better."
    )


def apart(new: Any, old: Any) -> tuple[Any, Any]:
    """Two values of a configuration without the settings that are written alike, or those of things of other names.

    >>> apart({"outage": {"late": 0.3, "lost": 0.0}, "attack": "flip"}, {"outage": {"late": 0.2, "lost": 0.0}})
    ({'outage': {'late': 0.3}, 'attack': 'flip'}, {'outage': {'late': 0.2}})
    >>> apart({"name": "radio", "kappa": 3.75}, {"name": "even", "gamma": 1.0})
    ({'name': 'radio'}, {'name': 'even'})
    """
    if not isinstance(new, Mapping) or not isinstance(old, Mapping):
        return new, old
    if "name" in new and "name" in old and new["name"] != old["name"]:
        return {"name": new["name"]}, {"name": old["name"]}
    pairs = {k: apart(new.get(k), old.get(k)) for k in {**new, **old} if written(new.get(k)) != written(old.get(k))}
    return {k: a for k, (a, _) in pairs.items() if k in new}, {k: b for k, (_, b) in pairs.items() if k in old}


def _facts(record: Record) -> dict[str, Any]:
    data = {f"{p.dataset} ({p.dataset_sha256[:12]})" for p in record.partitions.values()}
    known = (
        {"data": ", ".join(sorted(data))} if data and all(p.dataset_sha256 for p in record.partitions.values()) else {}
    )
    rounds = max(reached(record, c.method, c.seed) for c in record.cells)
    return {
        **known,
        "rounds": f"{rounds}" if record.finished else f"{rounds} (unfinished)",
        "seeds": ", ".join(map(str, record.seeds)),
        **_conditions(record),
    }


_OF_NETWORK = ("model", "model_options", "head")
_OF_DATA = ("data_options", "preprocess", "bins")
"""Settings in the table of the task that are about the network, and about the data; the others are about the task."""


def _conditions(record: Record) -> dict[str, Any]:
    """The configuration of everything except methods and data; empty for a run without one."""
    settings = configured(record)
    if not settings:
        return {}
    task = settings.get("task", {})
    task_options = {k: v for k, v in task.items() if k not in (*_OF_NETWORK, *_OF_DATA, "data", "data_dir", "augment")}
    cohort = settings.get("clients_per_round", settings.get("fraction"))
    return {
        "network": {k: task[k] for k in _OF_NETWORK if k in task},
        "settings of the data": {k: task[k] for k in _OF_DATA if k in task},
        "task": task_options,
        "augmentation": task.get("augment"),
        "clients of a round": "all" if cohort is None else cohort,
        "test_fraction": settings.get("test_fraction"),
        "val_fraction": settings.get("val_fraction"),
        # Own models of a cohort are those that have just trained.
        "clients evaluated": settings.get("evaluate_clients", "all"),
        "world": settings.get("world", {}),
    }


def written(value: object) -> str:
    """A configuration value in short form."""
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {written(v)}" for k, v in value.items() if v != {}) or "none"
    if isinstance(value, list | tuple):
        return " ".join(map(written, value)) or "none"
    return "none" if value is None else str(value)


def percent(value: float, digits: int = 1) -> str:
    """A fraction as a number of percent.

    >>> percent(0.8614)
    '86.1'
    """
    return ACCURACY.show(value, digits)


def amount(value: float) -> str:
    """A quantity (MB, seconds, transfers) with about three figures; below 0 only in damaged files.

    >>> [amount(v) for v in (0, 0.00371, 4.5678, 56.78, 12345.6)]
    ['0', '0.0037', '4.57', '56.8', '12,346']
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "not finite"
    size = abs(value)
    digits = 0 if size >= 1000 else 1 if size >= 10 else 2 if size >= 1 else min(6, 1 - math.floor(math.log10(size)))
    return f"{value:,.{digits}f}"


def span(values: Spread | None) -> str:
    """Whole numbers over seeds, from the lowest to the highest.

    >>> span(Spread((10, 7, 5))), span(Spread((4, 4))), span(None)
    ('5–10', '4', '–')
    """
    return "–" if values is None else "–".join(f"{n:,.0f}" for n in sorted({min(values.values), max(values.values)}))


def count(value: float) -> str:
    """A mean of counts; decimals only where it has them.

    >>> count(1200.0), count(10.25)
    ('1,200', '10.2')
    """
    return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"


def with_spread(spread: Spread | None, measure: Measure = ACCURACY) -> str:
    """Mean ± std of a measure's values, fractions in percent; just the mean for one seed, a dash if not measured.

    >>> with_spread(Spread((0.8, 0.9))), with_spread(Spread((0.8,))), with_spread(None)
    ('85.0 ± 7.1', '80.0', '–')
    """
    if spread is None:
        return "–"
    return measure.show(spread.mean) + measure.spread(spread.std) + of_seeds(len(spread.values), spread.undefined)


def bracket(difference: Difference) -> str:
    """A difference with its interval, percentage points for fractions.

    >>> bracket(Difference("A", None, (0, 1), (0.01, 0.03), 0.02, -0.107, 0.147))
    '+2.00 [−10.70, +14.70]'
    """
    return difference.measure.with_interval(difference.mean, difference.low, difference.high)
