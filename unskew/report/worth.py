"""Gains over training alone, for each client and on average, with intervals.

The result of a client is the headline of its own model on its own test data.  A gain is that minus the client's result
of training alone in the same run, with the sign turned if lower is better.  Reports, advice and tuning use the same
interval, over seeds and over test rows.

A gain varies with seeds (initial models, cohorts and batches) and with the client's test rows, which are often the same
under every seed.  The variance of the mean over k seeds is that over seeds, divided by k, plus that over rows of their
differences, averaged over seeds.  The half-width is Student's t times the root of the sum, with the degrees of freedom
of B. L. Welch, "The generalization of 'Student's' problem when several different population variances are involved",
Biometrika 34, 1947.  If a part has one or two degrees of freedom (two or three seeds), that is too narrow: up to 9 % of
intervals miss instead of 5 %.  Then, and for confidence sequences, the squares of both half-widths are added.  Variance
of a row under one seed is in both parts, so the interval may be too wide.

The variance over rows comes from the recorded result of each row.  A patient with several rows counts as one row, with
the jackknife's value of them (`unskew.data.patients.by_patient`).  For shares of rows the interval is the adjusted
one of A. Agresti, Y. Min, "Simple improved confidence intervals for comparing matched proportions", Statistics in
Medicine 24, 2005: half an observation more in each of the four cells, so that few rows never look certain.  For an
AUROC it is DeLong's of two correlated ones.  Without recorded rows, a share has Agresti and Caffo's bound, as if the
two methods erred independently and alike under all seeds.  A client without a variance over rows has no interval.  Nor
has one with fewer than `FEWEST` test examples of a class for its AUROC; if most have so few, the mean has none either,
unless they are many.  With one seed, the variance over seeds is left out.

The mean over clients is over these clients if it is a mean over their rows.  Otherwise clients are a sample, and its
interval is over seeds and clients.  Clients are the same in all seeds if the data name them.
"""

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import special

from unskew.data.patients import by_patient
from unskew.info import WorseThanConstant
from unskew.record.logs import Bound
from unskew.record.reader import Record, configured
from unskew.report import stats, tables
from unskew.report.stats import CONFIDENCE, At, Difference, Over, Verdict, corrected, interval, reading
from unskew.tasks.measure import FEWEST, Measure
from unskew.words import counted

K = TypeVar("K", bound=Hashable)
Floats = npt.NDArray[np.float64]
Rows = Mapping[int, tuple[npt.NDArray[np.int64], Floats]]
"""By client, what chance draws for each of its test rows, a patient or the row itself, and the row's value."""
Beside = Literal["test examples", "clients", ""]
"""What the interval of a mean over clients is over beside seeds."""

READING: dict[Verdict, str] = {**stats.READING, "gains": "better off", "loses": "worse off"}
MOST_NAMED = 8
"""Clients up to which each is named in sentences."""
FEW = 30
"""Test examples below which a client's number is given beside its name."""
OF_CLASSES = ("auroc", "balanced_accuracy", "macro_f1")
"""Measures that hang on the class of which there are fewest examples."""
USELESS = "both models are worse than what the training targets would always say"
DIVERGED = "the method diverged under other seeds, which the gain leaves out"
UNKNOWN = "the chance of its test examples is not known"


# ---------------------------------------------------------------- a gain and its interval
def ranked(gains: Mapping[K, Difference]) -> list[K]:
    """Gains sorted: gains, undecided, loses; in each part by the mean."""
    # By means alone the first and the last of many would be those with the fewest test rows.
    return sorted(gains, key=lambda k: (("gains", "open", "loses").index(gains[k].verdict), -gains[k].mean))


@dataclass(frozen=True)
class Chance:
    """One source of variance of a mean: its variance, and degrees of freedom (inf for a normal).

    `shift` is from the mean to the middle of its interval, as adjusted intervals are centred nearer to zero; `beyond`
    is added to its half-width.
    """

    variance: float
    freedom: float = math.inf
    shift: float = 0.0
    beyond: float = 0.0


def gain(
    of_seeds: Sequence[float],
    rows: Chance | None,
    share: bool,
    confidence: float = CONFIDENCE,
    sequential: bool = False,
) -> Difference:
    """The mean gain over seeds, with its interval over seeds and over test rows (or clients).

    Without a variance over rows it has no interval, nor if neither seeds nor rows differ.

    Args:
        of_seeds: The gain of each seed.
        rows: The variance of their mean that is not from seeds.
        share: True for a share of rows, whose gain is at most 1.
        confidence: The interval's.
        sequential: Use a confidence sequence (`unskew.run.decide`).
    """
    mean = statistics.fmean(of_seeds) if of_seeds else math.nan
    ends = interval(of_seeds, confidence, sequential=True) if sequential and of_seeds else (mean, mean)
    seeds = spread(of_seeds) or Chance(0.0)
    if rows is None or not of_seeds or ends is None or not rows.variance + seeds.variance > 0.0:
        return Difference(mean, None, None, why=UNKNOWN)
    half = _half([rows] if sequential else [rows, seeds], confidence)
    middle = mean + rows.shift
    low = middle - math.hypot(mean - ends[0], half) - rows.beyond
    high = middle + math.hypot(ends[1] - mean, half) + rows.beyond
    if share:
        low, high = max(low, -1.0), min(high, 1.0)
    over: Over = "seeds" if seeds.variance > rows.variance else "test examples"
    return Difference(mean, low, high, over, verdict=reading((low, high)))


def mean_gain(
    of_seeds: Sequence[Mapping[K, float]],
    tested: Sequence[Mapping[K, float]],
    chances: Sequence[Chance | None],
    share: bool,
    confidence: float = CONFIDENCE,
    sequential: bool = False,
) -> Difference:
    """The gain of the mean over sites, also with equal weight for each test row.

    Args:
        of_seeds: The gains of each seed's sites.
        tested: Their test rows under each seed; 0 if unknown.
        chances: The variance of the mean that is not from seeds, for equal weights of sites and of rows.
        share, confidence, sequential: As in `gain`.
    """

    def weighted(by: Sequence[Mapping[K, float]], chance: Chance | None) -> Difference:
        means = [statistics.fmean(v.values(), [w[k] for k in v]) for v, w in zip(of_seeds, by, strict=True)]
        return gain(means, chance, share, confidence, sequential)

    whole = weighted([dict.fromkeys(v, 1.0) for v in of_seeds], chances[0])
    known = all(w.get(k) for v, w in zip(of_seeds, tested, strict=True) for k in v)
    return replace(whole, per_row=weighted(tested, chances[1])) if known else whole


def chance_in_mean(
    rows: Sequence[Floats | None],
    each: Sequence[Chance | None],
    means: Sequence[float],
    tested: Sequence[float],
    measure: Measure,
) -> tuple[Beside, list[Chance | None]]:
    """The variance of a mean over sites that is not from seeds, for equal weights of sites and of rows; and its source.

    If all sites have differences by row, or a share of rows with a known variance, the mean is over these sites;
    otherwise sites are a sample.
    """
    n = np.maximum(tested, 1.0)
    weights = np.full(len(n), 1 / len(n)), n / n.sum()
    differences, chances = [r for r in rows if r is not None], [c for c in each if c is not None]
    if len(differences) == len(rows):
        return "test examples", [over_all_rows(differences, measure.percent, w) for w in weights]
    if len(chances) == len(rows) and measure.name == "accuracy":
        variances = [c.variance for c in chances]
        return "test examples", [in_mean(chances, sum(w**2 * variances), w) for w in weights]
    return "clients", [spread(means, w) for w in weights]


def over_rows(rows: Floats, share: bool, ranked: bool = False) -> Chance | None:
    """The variance of the mean of a client's differences by row, or by patient; None if unknown.

    Args:
        rows: The differences.
        share: True for a share of rows.
        ranked: True for DeLong's values of an AUROC, which give the degrees of freedom.  Over patients there are as
            many as patients, less one (N. A. Obuchowski, "Nonparametric analysis of clustered ROC curve data",
            Biometrics 53, 1997).
    """
    n = len(rows)
    if ranked:
        return Chance(float(rows.var()) / n)
    if share:
        return _of_share(rows)
    return Chance(float(rows.var(ddof=1)) / n, n - 1) if n > 1 else None


def _of_share(rows: Floats) -> Chance:
    """Agresti and Min's adjusted chance: as if each method had one row more right that the other has wrong."""
    n = len(rows)
    middle = float(rows.sum()) / (n + 2)
    return Chance(((float((rows**2).sum()) + 1) / (n + 2) - middle**2) / (n + 2), shift=middle - float(rows.mean()))


def over_all_rows(known: Sequence[Floats], share: bool, weights: Floats | None = None) -> Chance:
    """The variance of the mean over clients, from the differences by row of each, by default with equal weights.

    The variance of a row is pooled over clients, or each client's own is used if the sum is larger.  Shares are
    adjusted, as a client with one row, or equal rows, would look certain.
    """
    w = np.full(len(known), 1 / len(known)) if weights is None else weights
    pooled = pooled_variance(known) * sum(w**2 / [len(r) for r in known])
    freedom = sum(len(r) - 1 for r in known) or math.inf
    if share:
        each = [_of_share(r) for r in known]
        return in_mean(each, max(pooled, sum(w**2 * [c.variance for c in each])), w, freedom)
    own = sum(w**2 * [float(r.var(ddof=1)) / len(r) if len(r) > 1 else 0.0 for r in known])
    return Chance(float(max(pooled, own)), freedom)


def in_mean(each: Sequence[Chance], variance: float, weights: Floats, freedom: float = math.inf) -> Chance:
    """The variance of the mean over clients, whose own intervals have shifted middles.

    Shifts add up over clients while errors cancel.  So towards zero the interval ends as one around the shifted mean,
    and away from zero as one around the mean itself.
    """
    shift = float(weights @ [c.shift for c in each])
    return Chance(float(variance), freedom, shift / 2, abs(shift) / 2)


def pooled_variance(rows: Sequence[Floats]) -> float:
    """The variance of rows around their clients' means; around the mean of all if clients have one row each."""
    freedom = sum(len(r) - 1 for r in rows)
    if freedom > 0:
        return float(sum(((r - r.mean()) ** 2).sum() for r in rows)) / freedom
    return float(np.concatenate(rows).var())


def spread(values: Sequence[float], weights: Floats | None = None) -> Chance | None:
    """The variance of a mean of independent values, by default with equal weights; None if Student's interval has none.

    With weights it is unbiased for values of equal variance, and the number of values is Kish's effective one.
    """
    if interval(values) is None:
        return None
    w, v = np.full(len(values), 1 / len(values)) if weights is None else weights, np.array(values)
    return Chance(float(w**2 @ ((v - w @ v) ** 2 / (1 - 2 * w + w @ w))), max(float(1 / (w @ w)) - 1, 1.0))


def _half(parts: Sequence[Chance], confidence: float) -> float:
    """Half the width of an interval over parts that are independent of each other."""

    def t(freedom: float) -> float:
        return float(special.stdtrit(freedom, (1 + confidence) / 2))

    if min(part.freedom for part in parts) <= 2:
        return math.sqrt(sum(t(part.freedom) ** 2 * part.variance for part in parts))
    variance = sum(part.variance for part in parts)
    below = sum(part.variance**2 / part.freedom for part in parts)
    return t(variance**2 / below if below else math.inf) * math.sqrt(variance)


def bracket(gain: Difference | None, m: Measure) -> str:
    """A gain or difference with its interval, in percentage points for fractions."""
    return "–" if gain is None else m.with_interval(gain.mean, gain.low, gain.high)


# ---------------------------------------------------------------- the gains of a run
@dataclass(frozen=True, kw_only=True)
class Client:
    """A client of a run, and its gain.

    `label` is its name, or its number; `seed` is the only seed that has it, None if all have.  `examples` and
    `patients` are those of its test part, 0 if unknown.  `rarest` is the class with the fewest test examples and their
    number (or of events, without a class), if the measure depends on that.
    """

    number: int
    label: str | int
    seed: int | None
    examples: int
    patients: int
    rarest: tuple[int, str] | None = None
    gain: Difference = Difference(math.nan, None, None)

    @property
    def name(self) -> str:
        """The client in words."""
        called = self.label if isinstance(self.label, str) else f"client {self.label}"
        return called if self.seed is None else f"{called} of seed {self.seed}"

    @property
    def telling(self) -> int:
        """Number of test examples (or patients) that limits its result, 0 if unknown."""
        return self.rarest[0] if self.rarest else self.patients or self.examples

    @property
    def too_few(self) -> bool:
        """True if it has too few test examples of a class, or with an event."""
        return self.rarest is not None and self.rarest[0] < FEWEST


@dataclass(frozen=True)
class Worth:
    """A method compared with training alone.

    Attributes:
        method, bound: Its label, and the bound it is, if any.
        at: The gain of the mean over clients, by the confidence of its interval.
        whole: The same with a 95 % interval and Holm's correction for the number of methods.
        beside: What varies in its interval beside seeds; empty if nothing.
        seeds, lost: Number of seeds, and of further seeds without results.
        clients: The clients' gains; if clients differ between seeds, those of every seed.
        diverged: True if the method diverged under some seed, which its gain leaves out.
    """

    method: str
    bound: Bound | None
    at: At
    whole: Difference
    beside: Beside
    seeds: int
    lost: int
    clients: tuple[Client, ...]
    diverged: bool = False

    @property
    def over(self) -> str:
        """What varies in the mean's interval, in words; empty without an interval."""
        return "" if self.whole.low is None else " and ".join(filter(None, ("seeds" * (self.seeds > 1), self.beside)))

    def count(self, verdict: str) -> int:
        """The number of clients with this verdict."""
        return sum(c.gain.verdict == verdict for c in self.clients)


def named(clients: Sequence[Client]) -> bool:
    """True if clients have names."""
    return bool(clients) and isinstance(clients[0].label, str)


def alone(record: Record) -> str | None:
    """The label of the first method that trains every client alone; None without one."""
    return next((m for m in record.methods if record.cell(m).bound == "lower"), None)


@lru_cache(maxsize=1)  # a page asks a dozen times
def worths(record: Record) -> tuple[Worth, ...]:
    """Every method with clients' results, compared with training alone, in the run's order."""
    base = alone(record)
    if base is None:
        return ()
    each = (_worth(record, m, base) for m in record.methods if record.cell(m).bound != "lower")
    every = [w for w in each if w is not None]
    wholes = {w.method: w.at for w in every if w.bound is None}
    by_row = {w.method: partial(_by_row, w.at) for w in every if w.bound is None and w.whole.per_row is not None}
    judged, of_rows = corrected(wholes), corrected(by_row)
    return tuple(
        replace(w, whole=replace(judged[w.method], per_row=of_rows.get(w.method))) if w.bound is None else w
        for w in every
    )


def _by_row(at: At, confidence: float) -> Difference:
    return at(confidence).per_row or at(confidence)


def rivals(record: Record) -> list[Worth]:
    """The same without bounds; empty if runs cannot be compared."""
    return [w for w in worths(record) if w.bound is None] if record.comparable else []


def best(worths: Sequence[Worth]) -> Worth:
    """The method of the verdict: of those that gain, or else of those of use, the one that gains most."""

    def standing(w: Worth) -> tuple[bool, bool, float]:
        return w.whole.verdict == "gains", not (w.diverged or w.whole.why == USELESS), w.whole.mean

    return max(worths, key=standing)


def lasting(record: Record) -> bool:
    """True if clients are the same under all seeds, because the data name them."""
    names = {record.names(seed) for seed in record.seeds}
    return len(record.seeds) == 1 or (len(names) == 1 and bool(next(iter(names))))


def client_of(record: Record, number: int, seeds: Sequence[int], examples: float) -> Client:
    """A client by its number under these seeds; `examples` is its number of test examples."""
    partition, names = record.partitions.get(seeds[0]), record.names(seeds[0])
    return Client(
        number=number,
        label=names[number] if names else number,
        seed=None if lasting(record) else seeds[0],
        examples=round(examples),
        patients=partition.test_patients[number] if partition and partition.test_patients else 0,
        rarest=_rarest(record, seeds, number),
    )


def _worth(record: Record, method: str, base: str) -> Worth | None:
    m, by_seed = record.headline, tables.client_pairs(record, method, base)
    if not by_seed:
        return None
    seeds, pairs = list(by_seed), list(by_seed.values())
    worse, diverged = _both_worse(record, method, base), bool(record.diverged_seeds(method))
    tested = [record.tested(method, seed) for seed in seeds]
    if lasting(record):
        whose = [(c, range(len(seeds))) for c in sorted(set.intersection(*map(set, pairs)))]
    else:
        whose = [(c, range(k, k + 1)) for k, values in enumerate(pairs) for c in values]
    known = [(_tested_rows(record, method, seed), _tested_rows(record, base, seed)) for seed in seeds]
    ranked = any(of.ranked for (k, _), of in record.tested_rows.items() if k == method)
    every = [(client_of(record, c, [seeds[k] for k in at], tested[at[0]].get(c, 0)), at) for c, at in whose]
    clients, beside, whole = gained(every, pairs, known, tested, m, ranked, record.until is not None)
    useless = [all(seeds[k] in worse and c in worse[seeds[k]][0] for k in at) for c, at in whose]
    on_average = all(seed in worse and worse[seed][1] for seed in seeds)

    def mean(confidence: float) -> Difference:
        return doubted(whole(confidence), on_average, diverged)

    return Worth(
        method, record.cell(method).bound, mean, mean(CONFIDENCE), beside, len(seeds),
        sum(c.method == method for c in record.cells) - len(seeds),
        tuple(replace(c, gain=doubted(c.gain, of, diverged)) for c, of in zip(clients, useless, strict=True)),
        diverged,
    )  # fmt: skip


def doubted(gain: Difference, useless: bool, diverged: bool) -> Difference:
    """The gain, or open if models are worse than a constant prediction, or a method diverged."""
    gains = gain.verdict == "gains"
    why = USELESS if useless else DIVERGED if diverged and gains else gain.why
    per_row = None if gain.per_row is None else doubted(gain.per_row, useless, diverged)
    return replace(gain, verdict="open" if gains and (useless or diverged) else gain.verdict, why=why, per_row=per_row)


def _tested_rows(record: Record, method: str, seed: int) -> Rows:
    return record.tested_rows[method, seed].by_client if (method, seed) in record.tested_rows else {}


def gained(
    clients: Sequence[tuple[Client, Sequence[int]]],
    pairs: Sequence[Mapping[int, tuple[float, float]]],
    rows: Sequence[tuple[Rows, Rows]],
    tested: Sequence[Mapping[int, float]],
    m: Measure,
    ranked: bool,
    sequential: bool = False,
) -> tuple[list[Client], Beside, At]:
    """The clients with their gains; what varies in their mean's interval beside seeds; and that mean's gain.

    Args:
        clients: The clients, each with the indices of its seeds.
        pairs: By seed, each client's result and the reference result.
        rows: By seed, both results by row, if known.
        tested: By seed, the clients' numbers of test rows.
        m: The measure of the results.
        ranked: True if rows have DeLong's values of an AUROC.
        sequential: As in `gain`.
    """
    sign = 1.0 if m.higher else -1.0
    apart = [_row_differences(*both, sign) for both in rows]
    gains = [{c: sign * (a - b) for c, (a, b) in values.items()} for values in pairs]
    out, chances, of_rows = list[Client](), list[Chance | None](), list[Floats | None]()
    for client, at in clients:
        known = _over_units([apart[k].get(client.number) for k in at])
        if known is None:
            n = min(client.patients, client.examples) if client.patients else client.examples
            chance = _bound([pairs[k][client.number] for k in at], n, m)
        else:
            chance = over_rows(known, m.percent and not ranked, ranked and not client.patients)
        chances.append(None if client.too_few else chance)
        of_rows.append(None if ranked else known)
        own = gain([gains[k][client.number] for k in at], chances[-1], m.percent, sequential=sequential)
        if client.rarest is not None and client.too_few:
            few_of = f"it has {client.rarest[0]} test examples {_of_which(client.rarest)}, fewer than {FEWEST}"
            own = replace(own, why=few_of)
        out.append(replace(client, gain=own))
    beside: Beside = ""
    of_mean: list[Chance | None] = [Chance(0.0)] * 2  # clients that each seed draws anew are in the spread over seeds
    if all(c.seed is None for c in out):
        means = [c.gain.mean for c in out]
        beside, of_mean = chance_in_mean(of_rows, chances, means, [c.examples for c in out], m)
    if 2 * sum(c.too_few for c in out) > len(out) and few(out, m):
        of_mean = [None, None]
    return out, beside, partial(mean_gain, gains, tested, of_mean, m.percent, sequential=sequential)


def _both_worse(record: Record, method: str, base: str) -> dict[int, tuple[frozenset[int], bool]]:
    """Clients, by seed, that a constant serves better than both methods, and whether it does on average."""
    mine, theirs = (tables.last(record, label, WorseThanConstant) for label in (method, base))
    return {
        seed: (frozenset(ours.clients) & frozenset(theirs[seed].clients), ours.mean and theirs[seed].mean)
        for seed, ours in mine.items()
        if seed in theirs
    }


def _row_differences(mine: Rows, theirs: Rows, sign: float) -> Rows:
    """Units and differences of each client's test rows, of clients of which both have them."""
    return {
        c: (unit, sign * (value - theirs[c][1]))
        for c, (unit, value) in mine.items()
        if c in theirs and np.array_equal(unit, theirs[c][0])
    }


def _over_units(by_seed: Sequence[tuple[npt.NDArray[np.int64], Floats] | None]) -> Floats | None:
    """A client's differences by what is drawn, a row or a patient, all seeds together; None if a seed has none.

    The same rows under every seed have their mean over seeds.
    """
    known = [one for one in by_seed if one is not None]
    if len(known) < len(by_seed):
        return None
    units, values = (np.concatenate(parts) for parts in zip(*known, strict=True))
    return by_patient(values, units)


def _bound(pairs: Sequence[tuple[float, float]], n: int, measure: Measure) -> Chance | None:
    """Bound the chance in a client's gain from its n test examples by its results alone; None if they do not tell.

    That of a difference of two shares of n examples each, with one right and one wrong example more (A. Agresti, B.
    Caffo, The American Statistician 54(4), 2000): by plain variances an interval has no width where all or none of a
    few are right.  Seeds do not make it smaller.
    """
    if measure.name != "accuracy" or not n:
        return None
    adjusted = [[(share * n + 1) / (n + 2) for share in pair] for pair in pairs]
    variance = statistics.fmean(sum(p * (1 - p) for p in pair) / (n + 2) for pair in adjusted)
    return Chance(variance, shift=-2 / (n + 2) * statistics.fmean(a - b for a, b in pairs))


def _rarest(record: Record, seeds: Sequence[int], client: int) -> tuple[int, str] | None:
    """The fewest test examples that a client has of a class, or events, under these seeds; None if of no matter."""
    parts = [record.partitions[seed] for seed in seeds if seed in record.partitions]
    counts = [(p.test_counts[client], p) for p in parts if p.test_counts]
    m = record.headline
    if m.of_events and counts and len(counts[0][0]) == 2:  # censored, event
        return min(numbers[1] for numbers, _ in counts), ""
    if m.name not in OF_CLASSES or not counts:
        return None
    return min(((n, p.label(label)) for numbers, p in counts for label, n in enumerate(numbers) if n), default=None)


def rows(record: Record) -> list[dict[str, Any]]:
    """Every method's gains over training alone: both means, then each client; empty without training alone.

    A client without a result has the reason instead.
    """
    out, unknown = list[dict[str, Any]](), f"it has no test rows from which {record.headline.label} can be measured"

    def add(
        one: Worth, client: str | int | None, alike: str, seed: int | None, gain: Difference | None, **more: int
    ) -> None:
        of = Difference(math.nan, None, None, why=unknown) if gain is None else gain
        row = {"method": one.method, "client": client, "alike": alike, "seed": seed, "gain": gain and gain.mean}
        row |= {name: getattr(of, name) for name in ("low", "high", "verdict", "why")}
        out.append({**row, "seeds": one.seeds, "lost": one.lost, **more})

    for w in worths(record):
        add(w, None, "clients", None, w.whole)
        if w.whole.per_row is not None:
            add(w, None, "test rows", None, w.whole.per_row)
        for c in w.clients:
            counts = {} if c.seed is None else {"seeds": 1, "lost": 0}
            add(w, c.label, "", c.seed, c.gain, **counts)
        for name in unjudged(record):
            add(w, name, "", None, None, seeds=0, lost=w.seeds + w.lost)
    return out


# ---------------------------------------------------------------- words
def unjudged(record: Record) -> tuple[str, ...]:
    """Names of clients without a result in any seed, if all were to be evaluated and all have names."""
    names = {record.names(seed) for seed in record.partitions or record.seeds}
    if configured(record).get("evaluate_clients", "all") != "all" or len(names) != 1:
        return ()
    known = {client for c in record.cells for client in record.clients(c.method, c.seed)}
    return tuple(name for client, name in enumerate(next(iter(names))) if client not in known)


def _of_which(rarest: tuple[int, str]) -> str:
    return f"of class {rarest[1]}" if rarest[1] else "with an event"


def fewest(clients: Sequence[Client], m: Measure) -> str:
    """The client with the fewest test examples, and the name of one example; empty if unknown."""
    least = min((c for c in clients if c.examples), key=lambda c: c.telling, default=None)
    if least is None:
        return ""
    if least.rarest is not None:
        return f"{least.name} has {least.rarest[0]} {_of_which(least.rarest)}"
    if least.patients:
        return f"{least.name} has {least.examples}, which are of {counted(least.patients, 'patient')}"
    each = f", so that one more right is {100 / least.examples:.1f} points" if m.percent else ""
    return f"{least.name} has {least.examples}{each}"


def uncovered(record: Record) -> str:
    """A clause on what intervals over seeds leave out, with the client for which that matters most."""
    cells = ((c.seed, tested_rows) for c in record.cells if (tested_rows := record.tested(c.method, c.seed)))
    seed, tested = next(cells, (0, {}))
    least = fewest([client_of(record, c, [seed], n) for c, n in tested.items()], record.headline)
    return f"the intervals do not cover the choice of test examples{f': {least}' if least else ''}"


def few(clients: Sequence[Client], m: Measure) -> str:
    """`fewest` if there are few test examples, for one of a few clients or for many together; else empty."""
    sizes = [c.telling for c in clients if c.examples]
    some = len(sizes) <= MOST_NAMED
    enough = min(sizes, default=FEW) >= FEW if some else sum(sizes) >= FEW * MOST_NAMED
    return "" if enough else fewest(clients, m)
