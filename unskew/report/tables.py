"""The numbers of a run: pure functions from its record.

The headline is the last evaluation.  The mean of the last fifth of evaluations is steadier and stands beside it.  The
best evaluation was picked on the test data, so it is optimistic and labelled.  Spreads are standard deviations over
seeds (ddof 1).  Two methods are compared by their differences on the same seeds, with Student's t interval: the seed
fixes split and initial weights, and most of the spread over seeds is common to both.
"""

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeVar

from unskew.algorithms import TABLE
from unskew.info import Info
from unskew.ledger import DIRECTIONS
from unskew.record.logs import CLOCK, VIRTUAL_CLOCK, Bound
from unskew.record.reader import Record, configured, info_of
from unskew.report.stats import CONFIDENCE, At, Curve, Difference, Spread, curve_by_round, interval, reading
from unskew.run.metrics import last_rounds, last_value, mean_of_last, minus
from unskew.tasks.measure import ACCURACY, Measure
from unskew.units import MB
from unskew.words import counted, of_seeds

BOUNDS: dict[Bound, str] = {"lower": "training alone", "pooled": "pooled data"}
"""What methods are that do not compete, as every table marks them.  Clients' own models may be best alone: no bound."""


@dataclass(frozen=True, kw_only=True)
class Paired(Difference):
    """Method minus reference on the same seeds: the values of the seeds, and `at` with another confidence."""

    method: str
    bound: Bound | None
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    at: At


def bounds(record: Record) -> dict[str, str]:
    """The methods that do not compete, and what they are, in words."""
    return {m: BOUNDS[bound] for m in record.methods if (bound := record.cell(m).bound) is not None}


def counted_seeds(record: Record, method: str) -> tuple[int, ...]:
    """The seeds that a method's row counts, ascending.

    All of them in a finished run but those under which it diverged.  In an unfinished one, the seeds that came as far
    as the furthest: a mean over seeds at different rounds would measure the moment of the interruption.
    """
    left = {c.seed for c in record.cells if c.method == method} - record.diverged_seeds(method)
    seeds = {seed: record.numbers.reached(method, seed) for seed in left}
    furthest = max(seeds.values(), default=0)
    return tuple(sorted(s for s, r in seeds.items() if record.finished or (r == furthest > 0)))


def client_pairs(record: Record, method: str, base: str) -> dict[int, dict[int, tuple[float, float]]]:
    """Results of clients under a method and under another, (one, other) by client and seed, where both are known.

    In an unfinished run a seed counts if both methods reached the same round.  In a finished one all count: where
    training may end early the last round is an outcome, and seeds are not chosen by outcomes.
    """
    by_seed = {}
    for seed in counted_seeds(record, method):
        one, other = record.clients(method, seed), record.clients(base, seed)
        if record.finished or record.numbers.reached(method, seed) == record.numbers.reached(base, seed):
            by_seed[seed] = {c: (result, other[c]) for c, result in one.items() if c in other}
    return {seed: pairs for seed, pairs in by_seed.items() if pairs}


_WHOSE = {"personal": "own", "personal_on_global": "own", "train": "training", "bytes": "bytes sent"}
_PARTS = {"mean": "", "weighted": "by rows", "worst_decile": "worst tenth of clients", "std": "spread over clients"}


def in_words(record: Record, metric: str) -> tuple[str, str, Measure]:
    """What a metric is called, what it is over where that is to be said, and its measure."""
    whose, name, part, *_ = *metric.split("."), "", ""
    plain = Measure(name, name, low=None, high=None, percent=False)
    m = next((m for m in (record.headline, *record.asked) if m.name == name), plain)
    where = "on the global test set" if whose == "personal_on_global" else _PARTS.get(part, part)
    return f"{_WHOSE.get(whose, whose)} {m.label}".strip(), where, m


def last_words(record: Record) -> str:
    """Rounds that the steadier number averages, in words: `last fifth` or `last 10`."""
    return f"last {configured(record).get('mean_last') or 'fifth'}"


T = TypeVar("T", bound=Info)


def reported(record: Record, method: str, kind: type[T]) -> dict[int, dict[int, T]]:
    """Reports of a type by a method, by seed and round, under the seeds that count.

    Raises:
        RunError: If a row is not as the type is.
    """
    counted, by_seed = counted_seeds(record, method), dict[int, dict[int, T]]()
    for seed, at, info in info_of(record, method, kind) if method in record.reports(kind) else ():
        if seed in counted:
            by_seed.setdefault(seed, {})[at] = info
    return by_seed


def last(record: Record, method: str, kind: type[T]) -> dict[int, T]:
    """The last report of each seed that counts."""
    return {seed: rounds[max(rounds)] for seed, rounds in reported(record, method, kind).items()}


def of_first_seed(record: Record, methods: Sequence[str], kind: type[T]) -> dict[str, T]:
    """The last report of each method's first seed, of those methods that have one."""
    every = {m: last(record, m, kind) for m in methods}
    return {m: of[min(of)] for m, of in every.items() if of}


Pick = Callable[[Mapping[int, float], Collection[int]], float | None]
"""From a curve and the rounds that were evaluated to a result; None if it is not defined."""


def results(record: Record, method: str, seeds: Sequence[int], name: str, pick: Pick = last_value) -> Spread | None:
    """A method's results under these seeds; None if none is defined.

    Seeds under which it diverged are counted as such: it is not as good as the others let it seem.
    """
    numbers = record.numbers
    values = [pick(numbers.curve(method, s, name), numbers.evaluated(method, s, name)) for s in seeds]
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


def steadier(record: Record) -> Pick:
    """Picks the mean of the last evaluations, or nothing in a run of so few that it is the last one alone."""
    last, names = configured(record).get("mean_last"), (record.headline.shared, record.headline.own)
    evaluated = (record.numbers.evaluated(c.method, c.seed, name) for c in record.cells for name in names)
    several = any(len(last_rounds(rounds, last)) > 1 for rounds in evaluated)
    return partial(mean_of_last, last=last) if several else lambda by_round, rounds: None


def paired(
    record: Record,
    metric: str | None = None,
    base: str | None = None,
    pick: Pick = last_value,
) -> tuple[Paired, ...]:
    """Last-evaluation differences to `base` over common seeds, for each method that measured `metric`.

    Without `metric` it is the headline of the global model, without `base` the reference; `pick` takes another number
    from a curve than the last.  In an unfinished run a seed counts only if both methods were evaluated last at the same
    round.  Of merged runs that are not comparable there are none.
    """
    base = record.baseline if base is None else base
    metric = metric or record.headline.shared
    rows = []
    narrow = None if record.until is None else record.until["until"] / record.headline.scale
    for method in record.methods if base is not None and record.comparable else ():
        if method == base:
            continue
        pairs: dict[int, float] = {}
        for seed in sorted({c.seed for c in record.cells if c.method == method}):
            both = [(name, record.numbers.evaluated(name, seed, metric)) for name in (method, str(base))]
            if all(at for _, at in both) and (record.finished or max(both[0][1]) == max(both[1][1])):
                apart = minus(*(pick(record.numbers.curve(of, seed, metric), at) for of, at in both))
                if apart is not None:
                    pairs[seed] = apart
        if pairs:
            rows.append(difference(method, pairs, record.cell(method).bound, record.headline, narrow))
    return tuple(rows)


def for_own_models(record: Record) -> frozenset[str]:
    """Methods that are for the clients' own models, by the method's name or since they have no global one."""
    if record.for_own is not None:
        return record.for_own
    entries = configured(record).get("methods", [])
    names = {entry.get("label", entry.get("name")): str(entry.get("name")).partition("+")[0] for entry in entries}
    kinds = {label: TABLE[name].kind for label, name in names.items() if name in TABLE}
    measure = record.headline
    return frozenset(
        method
        for method in record.methods
        if results(record, method, counted_seeds(record, method), measure.own) is not None
        and (
            kinds.get(method) == "personal"
            or not any(record.numbers.evaluated(method, seed, measure.shared) for seed in record.seeds)
        )
    )


def difference(
    method: str,
    by_seed: Mapping[int, float],
    bound: Bound | None = None,
    measure: Measure = ACCURACY,
    until: float | None = None,
) -> Paired:
    """A row of differences: one for each seed, at least one, with their mean and its interval.

    `until` is the width at which an interval is narrow, in a run that adds seeds until it excludes zero or is narrow;
    it then allows for a look after every seed.
    """
    values = tuple(by_seed.values())
    mean = statistics.fmean(values)

    def at(confidence: float) -> Difference:
        ends = interval(values, confidence, sequential=until is not None)
        if ends is None:
            return Difference(mean, None, None, why="no interval possible")
        # One with zero at both ends, as it is shown, does not exclude it.
        zero = len({measure.signed(end) for end in (0.0, *ends)}) == 1
        shows = reading((0.0, ends[1] - ends[0]) if zero else ends, not measure.higher, until or 0.0)
        return Difference(mean, *ends, "seeds", verdict=shows)

    return Paired(**vars(at(CONFIDENCE)), method=method, bound=bound, seeds=tuple(by_seed), values=values, at=at)


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
    worse = {d.method for d in paired(record, metric, top) if d.verdict == "loses"}
    return top if worse >= means.keys() - {top} else None


SAME_TEST_ROWS = "All seeds share the same test rows: ± and differences do not cover the choice of these rows."


def left_out(record: Record) -> str:
    """A sentence on the chance that ± and intervals leave out where seeds share test rows; else empty."""
    if len(record.seeds) < 2:
        return ""
    if record.same_test_rows:
        return SAME_TEST_ROWS
    if record.headline.shared in record.numbers.names():
        return "All seeds share the global test set: ± and differences do not cover the choice of its examples."
    return ""


By = Literal["round", "traffic", "time"]


def curve(record: Record, method: str, name: str, by: By = "round") -> Curve | None:
    """`name` over the counted seeds, at the rounds that every one of them has; None if there are none.

    By traffic x is the MB sent, by time the seconds taken, simulated where clients have a pace, up to and including a
    round, averaged over seeds; None if that is nothing.
    """
    seeds = counted_seeds(record, method)
    by_round = curve_by_round([record.numbers.curve(method, s, name) for s in seeds])
    if by_round is None or by == "round":
        return by_round
    of, unit = ([f"bytes.{d}" for d in DIRECTIONS], MB) if by == "traffic" else ([clock_of(record)], 1.0)
    spent = [record.numbers.curve(method, s, what) for s in seeds for what in of]
    x = tuple(sum(v for row in spent for r, v in row.items() if r <= t) / len(seeds) / unit for t in by_round.x)
    return replace(by_round, x=x) if any(sum(row.values()) for row in spent) else None


def clock_of(record: Record) -> str:
    """The metric that charts by time are drawn over."""
    return VIRTUAL_CLOCK if VIRTUAL_CLOCK in record.numbers.names() else CLOCK


def quantity(mean: float, std: float | None = None) -> str:
    """A mean to three figures, whole numbers as they are, with its deviation to the same place.

    >>> quantity(11.0), quantity(1.5, 0.7071), quantity(12345.6, 0.0), quantity(0.00012)
    ('11', '1.50 ± 0.71', '12,346', '0.00012')
    """
    if 0.0 < abs(mean) < 1e-3:
        return f"{mean:.3g}" + (f" ± {std:.1g}" if std else "")
    whole = not std and mean == round(mean)
    places = 0 if whole or not math.isfinite(mean) else max(2 - math.floor(math.log10(abs(mean) or 1.0)), 0)
    spread = f"{std or 0.0:,.{places}f}"
    return f"{mean:,.{places}f}" + (f" ± {spread}" if spread.strip("0.") else "")


def span(values: Spread | None) -> str:
    """Whole numbers over seeds, from the lowest to the highest.

    >>> span(Spread((10, 7, 5))), span(Spread((4, 4))), span(None)
    ('5–10', '4', '–')
    """
    return "–" if values is None else "–".join(f"{n:,.0f}" for n in sorted({min(values.values), max(values.values)}))


def with_spread(spread: Spread | None, measure: Measure = ACCURACY) -> str:
    """Mean ± std of a measure's values, fractions in percent; just the mean for one seed, a dash if not measured.

    >>> with_spread(Spread((0.8, 0.9))), with_spread(Spread((0.8,))), with_spread(None)
    ('85.0 ± 7.1', '80.0', '–')
    """
    if spread is None:
        return "–"
    return measure.show(spread.mean) + measure.spread(spread.std) + of_seeds(len(spread.values), spread.undefined)
