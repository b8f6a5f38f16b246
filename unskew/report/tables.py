"""The numbers of a run: pure functions from its record.

The headline is the last evaluation; the mean of the last fifth of evaluations is steadier.  The best evaluation was
picked on the test data, so it is optimistic.  Spreads are standard deviations over seeds (ddof 1).  Two methods are
compared by paired differences over seeds, with Student's t interval.
"""

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
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
    """Method minus reference on the same seeds: the values by seed, and `at` for another confidence."""

    method: str
    bound: Bound | None
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    at: At


def bounds(record: Record) -> dict[str, str]:
    """The methods that do not compete, with a description."""
    return {m: BOUNDS[bound] for m in record.methods if (bound := record.cell(m).bound) is not None}


def counted_seeds(record: Record, method: str) -> tuple[int, ...]:
    """The seeds that a method's row counts, ascending, without those under which it diverged.

    In an unfinished run these are the seeds at the latest round, since seeds at different rounds cannot be averaged.
    """
    left = {c.seed for c in record.cells if c.method == method} - record.diverged_seeds(method)
    seeds = {seed: record.numbers.reached(method, seed) for seed in left}
    furthest = max(seeds.values(), default=0)
    return tuple(sorted(s for s, r in seeds.items() if record.finished or (r == furthest > 0)))


def client_pairs(record: Record, method: str, base: str) -> dict[int, dict[int, tuple[float, float]]]:
    """Results of clients under a method and under another, (one, other) by client and seed, where both are known.

    In an unfinished run a seed counts if both methods reached the same round; in a finished one all count.
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
    """A metric's name, its scope if needed, and its measure."""
    whose, name, part, *_ = *metric.split("."), "", ""
    plain = Measure(name, name, low=None, high=None, percent=False)
    m = next((m for m in (record.headline, *record.asked) if m.name == name), plain)
    where = "on the global test set" if whose == "personal_on_global" else _PARTS.get(part, part)
    return f"{_WHOSE.get(whose, whose)} {m.label}".strip(), where, m


def class_name(record: Record, k: int) -> str:
    """The name of a class, or its number if it has none."""
    first = next(iter(record.partitions.values()), None)
    return first.label(k) if first is not None and first.classes else f"class {k}"


T = TypeVar("T", bound=Info)


def reported(record: Record, method: str, kind: type[T]) -> dict[int, dict[int, T]]:
    """Reports of a type by a method, by seed and round, under the counted seeds.

    Raises:
        RunError: If a row does not fit the type.
    """
    counted, by_seed = counted_seeds(record, method), dict[int, dict[int, T]]()
    for seed, at, info in info_of(record, method, kind) if method in record.reports(kind) else ():
        if seed in counted:
            by_seed.setdefault(seed, {})[at] = info
    return by_seed


def last(record: Record, method: str, kind: type[T]) -> dict[int, T]:
    """The last report of each counted seed."""
    return {seed: rounds[max(rounds)] for seed, rounds in reported(record, method, kind).items()}


def of_first_seed(record: Record, methods: Sequence[str], kind: type[T]) -> dict[str, T]:
    """The last report of each method's first seed, for methods that have one."""
    every = {m: last(record, m, kind) for m in methods}
    return {m: of[min(of)] for m, of in every.items() if of}


Pick = Callable[[Mapping[int, float], Collection[int]], float | None]
"""From a curve and the rounds that were evaluated to a result; None if it is not defined."""


def results(record: Record, method: str, seeds: Sequence[int], name: str, pick: Pick = last_value) -> Spread | None:
    """A method's results under these seeds; None if none is defined.

    Diverged seeds are counted as undefined.
    """
    numbers = record.numbers
    values = [pick(numbers.curve(method, s, name), numbers.evaluated(method, s, name)) for s in seeds]
    defined = tuple(value for value in values if value is not None)
    lacks = len(values) - len(defined) + len(record.diverged_seeds(method))
    return Spread(defined, lacks) if defined else None


def diverged(record: Record) -> tuple[str, ...]:
    """Notes on methods that diverged: under how many seeds, and in which rounds."""
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
    """The mean of the last evaluations; None in a short run, where it is the last one."""
    names = record.headline.shared, record.headline.own
    evaluated = (record.numbers.evaluated(c.method, c.seed, name) for c in record.cells for name in names)
    return mean_of_last if any(len(last_rounds(rounds)) > 1 for rounds in evaluated) else lambda by_round, rounds: None


def paired(
    record: Record,
    metric: str | None = None,
    base: str | None = None,
    pick: Pick = last_value,
) -> tuple[Paired, ...]:
    """Differences to `base` in the last evaluation over common seeds, for each method with `metric`.

    By default `metric` is the global headline and `base` the baseline; `pick` takes another number from a curve.  In an
    unfinished run a seed counts only if both methods were last evaluated in the same round.  Merged runs that cannot be
    compared have none.
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
    """Methods for the clients' own models: personalised ones, or without a global model."""
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

    With `until`, the width of a narrow interval in a run that adds seeds, the interval is a confidence sequence.
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
    """The method that is better than every other in `metric`, by the intervals of paired differences; else None.

    By default `metric` is the global headline.  Bounds do not take part.  None also if an interval is missing, or if
    all seeds have the same test rows, as intervals over seeds do not cover other rows.
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
    """A note that ± and intervals do not cover the choice of test rows, if seeds share them; else empty."""
    if len(record.seeds) < 2:
        return ""
    if record.same_test_rows:
        return SAME_TEST_ROWS
    if record.headline.shared in record.numbers.names():
        return "All seeds share the global test set: ± and differences do not cover the choice of its examples."
    return ""


By = Literal["round", "traffic", "time"]


def curve(record: Record, method: str, name: str, by: By = "round") -> Curve | None:
    """`name` over the counted seeds, at the rounds that all of them have; None if there are none.

    By traffic x is the MB sent, by time the seconds taken (simulated, if clients have a pace).  Both are up to and with
    a round, averaged over seeds; None if they are zero.
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
    """The metric of the time axis."""
    return VIRTUAL_CLOCK if VIRTUAL_CLOCK in record.numbers.names() else CLOCK


def quantity(mean: float, std: float | None = None) -> str:
    """A mean to three figures (whole numbers unrounded), with its deviation to the same place.

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
    """Mean ± std of a measure's values, fractions in percent; the mean for one seed, a dash without values.

    >>> with_spread(Spread((0.8, 0.9))), with_spread(Spread((0.8,))), with_spread(None)
    ('85.0 ± 7.1', '80.0', '–')
    """
    if spread is None:
        return "–"
    return measure.show(spread.mean) + measure.spread(spread.std) + of_seeds(len(spread.values), spread.undefined)
