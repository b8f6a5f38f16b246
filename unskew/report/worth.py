"""Is federation worth it, and for whom: each method beside local-only training, client by client.

The result of a client is the headline of its own model on its own test data.  A gain is that minus the client's result
under local-only training in the same run, with the sign turned where lower is better: above zero the client is better
off.  Its interval is over seeds and over the client's test examples, or patients, together, as advice has it
(`unskew.report.gain`).  Chance of examples is known where the run kept the result of each; of a share of examples it is
bounded by Agresti and Caffo's, as if the two methods erred independently of each other and alike under all seeds.  A
client of whose examples no chance is known has no interval: seeds alone do not tell whether it gains.  Nor has one with
fewer than `FEWEST` test examples of a class for its AUROC; if most have so few, nor has the mean, unless they are many.

The mean over clients is that of these very clients where it is a mean over their examples; otherwise clients stand for
others like them, and its interval is over seeds and clients.

Clients are the same in all seeds if the data name them; of others each seed's clients count by themselves.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from unskew.data.patients import by_patient
from unskew.info import WorseThanConstant
from unskew.record.logs import Bound
from unskew.record.reader import Record
from unskew.report import tables
from unskew.report.gain import (
    Beside,
    Chance,
    Floats,
    Gain,
    Verdict,
    chance_in_mean,
    gain,
    mean_gain,
    over_rows,
    standing,
)
from unskew.report.stats import CONFIDENCE
from unskew.tasks.measure import FEWEST, Measure
from unskew.words import counted

MOST_NAMED = 8
"""Clients up to which each is named in sentences."""

FEW = 30
"""Test examples below which a client's number is given beside its name."""

OF_CLASSES = ("auroc", "balanced_accuracy", "macro_f1")
"""Measures that hang on the class of which there are fewest examples."""


@dataclass(frozen=True, kw_only=True)
class Client:
    """A client of a run, and what its test examples can tell.

    `label` is what the data call it, or its number where they name no clients, and `seed` the only one that has it,
    None where all have the same.  `examples` and `patients` are those of its test, 0 if not known.  `rarest` is the
    class of which it has the fewest test examples, and how many, or how many have an event, without a class, if the
    measure depends on that.
    """

    number: int
    label: str | int
    seed: int | None
    examples: int
    patients: int
    rarest: tuple[int, str] | None

    @property
    def name(self) -> str:
        """The client in words."""
        called = self.label if isinstance(self.label, str) else f"client {self.label}"
        return called if self.seed is None else f"{called} of seed {self.seed}"

    @property
    def telling(self) -> int:
        """The number of test examples, or patients, that limits what its result says, 0 if not known."""
        return self.rarest[0] if self.rarest else self.patients or self.examples

    @property
    def too_few(self) -> bool:
        """True if it has too few test examples of a class, or with an event, to tell anything."""
        return self.rarest is not None and self.rarest[0] < FEWEST


@dataclass(frozen=True, kw_only=True)
class ClientGain(Client):
    """A client's gain.

    `useless` is true if both models, the method's and that alone, do worse than what its training targets would always
    say, and `diverged` if the method diverged under a seed.
    """

    gain: Gain
    useless: bool
    diverged: bool

    @property
    def judged(self) -> Gain:
        """Its gain, without an interval where it is none: of a model worse than a constant, or that may diverge."""
        none = (self.useless or self.diverged) and self.gain.verdict == "gains"
        return replace(self.gain, low=None, high=None) if none else self.gain

    @property
    def verdict(self) -> Verdict:
        """The verdict of its gain."""
        return self.judged.verdict

    def why(self, m: Measure) -> str:
        """The reason why it has no interval, or no gain; empty if it has."""
        if self.useless or (self.diverged and self.gain.verdict == "gains"):
            return USELESS if self.useless else DIVERGED
        if self.gain.low is not None:
            return ""
        if self.rarest is not None and self.too_few:
            return f"it has {self.rarest[0]} test examples {_of_which(self.rarest)}, fewer than {FEWEST}"
        return f"the chance of its test examples in {m.label} is not known"


@dataclass(frozen=True)
class Worth:
    """A method beside local-only training.

    Attributes:
        method, bound: Its label, and the bound it is, if any.
        at: The gain of the mean over clients, by the confidence of its interval.
        beside: What its interval is over beside seeds; empty if nothing.
        seeds, lost: Number of seeds, and of further ones of the run that tell nothing.
        clients: The clients' gains; where clients are not the same in all seeds, those of every seed.
        useless: True if under every seed the mean over clients of both, the method and local-only training, is worse
            than that of what each client's training targets would always say.
        diverged: True if the method diverged under some seed, so that its gain is that of the others alone.
        stands: False if its 95 % interval does not exclude zero when corrected for the number of methods (Holm).
    """

    method: str
    bound: Bound | None
    at: Callable[[float], Gain]
    beside: Beside
    seeds: int
    lost: int
    clients: tuple[ClientGain, ...]
    useless: bool = False
    diverged: bool = False
    stands: bool = True

    @property
    def whole(self) -> Gain:
        """The gain of the mean over clients, with its own 95 % interval."""
        return self.at(CONFIDENCE)

    @property
    def verdict(self) -> Verdict:
        """The corrected verdict of the mean; a model worse than a constant, or that may diverge, is no gain."""
        none = (self.useless or self.diverged) and self.whole.verdict == "gains"
        return "open" if none or not self.stands else self.whole.verdict

    @property
    def why(self) -> str:
        """The reason why its mean has no interval, or no verdict; empty if it has."""
        if self.useless:
            return USELESS
        if self.diverged and self.whole.verdict == "gains":
            return DIVERGED
        if self.whole.verdict != "open" and not self.stands:
            return UNCORRECTED
        return "" if self.whole.low is not None else "the chance of its test examples is not known"

    @property
    def over(self) -> str:
        """The chance that the mean's interval is over, in words; empty if there is none."""
        return "" if self.whole.low is None else " and ".join(filter(None, ("seeds" * (self.seeds > 1), self.beside)))

    def count(self, verdict: str) -> int:
        """The number of clients with this verdict."""
        return sum(c.verdict == verdict for c in self.clients)


def named(clients: Sequence[ClientGain]) -> bool:
    """True if clients have names: only then can somebody ask whether to join."""
    return bool(clients) and isinstance(clients[0].label, str)


def alone(record: Record) -> str | None:
    """The label of local-only training, the first if there are several; None if the run has none."""
    return next((m for m in record.methods if record.cell(m).bound == "lower"), None)


def worths(record: Record) -> tuple[Worth, ...]:
    """Every method that is not local-only training itself, in the run's order, if it has clients' results."""
    base = alone(record)
    if base is None:
        return ()
    each = (_worth(record, m, base) for m in record.methods if record.cell(m).bound != "lower")
    return _corrected([w for w in each if w is not None])


def per_row(of: Sequence[Worth]) -> tuple[Worth, ...]:
    """The same of the mean in which each test row counts alike, of those methods that have it."""

    def by_row(at: Callable[[float], Gain], confidence: float) -> Gain:
        return at(confidence).per_row or at(confidence)

    return _corrected([replace(w, at=partial(by_row, w.at)) for w in of if w.whole.per_row is not None])


def _corrected(of: Sequence[Worth]) -> tuple[Worth, ...]:
    rivals = competing(of)
    lost = rivals.keys() - standing(rivals)
    return tuple(replace(w, stands=w.method not in lost) for w in of)


def competing(of: Sequence[Worth]) -> dict[str, Callable[[float], Gain]]:
    """The gains that verdicts are corrected for the number of, by method: those with an interval, but not of bounds."""
    return {w.method: w.at for w in of if w.bound is None and w.whole.low is not None}


def lasting(record: Record) -> bool:
    """True if clients are the same under all seeds: the data name them; others are drawn anew by each seed."""
    names = {split.client_names for split in record.partitions.values()}
    return len(record.seeds) == 1 or (len(names) == 1 and bool(next(iter(names))))


def client_of(record: Record, number: int, seeds: Sequence[int], examples: float) -> Client:
    """A client by its number under these seeds, with so many test examples."""
    partition = record.partitions.get(seeds[0])
    names = partition.client_names if partition else ()
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
    sign, sequential = 1.0 if m.higher else -1.0, record.until is not None
    same = lasting(record)
    rows = {seed: _row_differences(record, method, base, seed, sign) for seed in by_seed}
    worse, diverged = _both_worse(record, method, base), bool(record.diverged_seeds(method))

    def client(c: int, seeds: Sequence[int]) -> tuple[ClientGain, Chance | None, Floats | None]:
        of = client_of(record, c, seeds, record.tested(method, seeds[0]).get(c, 0))
        pairs, known = [by_seed[seed][c] for seed in seeds], _over_units([rows[seed].get(c) for seed in seeds])
        if known is not None:
            ranked = record.tested_rows[method, seeds[0]].ranked
            chance = over_rows(known, m.percent and not ranked, ranked and not of.patients)
            of_rows = None if ranked else known
        else:
            n = min(of.patients, of.examples) if of.patients else of.examples
            chance, of_rows = _bound(pairs, n, m), None
        chance = None if of.too_few else chance
        gained = gain([sign * (a - b) for a, b in pairs], chance, m.percent, sequential=sequential)
        useless = all(seed in worse and c in worse[seed][0] for seed in seeds)
        return ClientGain(**vars(of), gain=gained, useless=useless, diverged=diverged), chance, of_rows

    if same:
        of = [client(c, list(by_seed)) for c in sorted(set.intersection(*map(set, by_seed.values())))]
    else:
        of = [client(c, [seed]) for seed, values in by_seed.items() for c in values]
    clients = tuple(c for c, _, _ in of)
    gains = [{c: sign * (a - b) for c, (a, b) in values.items()} for values in by_seed.values()]
    tested = [record.tested(method, seed) for seed in by_seed]
    beside: Beside = ""
    chances: list[Chance | None] = [Chance(0.0)] * 2  # clients that each seed draws anew are in the spread over seeds
    if same:
        parts = [rows for _, _, rows in of], [chance for _, chance, _ in of], [c.gain.mean for c in clients]
        beside, chances = chance_in_mean(*parts, [c.examples for c in clients], m)
    if 2 * sum(c.too_few for c in clients) > len(clients) and few(clients, m):
        chances = [None, None]
    whole = partial(mean_gain, gains, tested, chances, m.percent, sequential=sequential)
    useless = all(seed in worse and worse[seed][1] for seed in by_seed)
    lost = sum(c.method == method for c in record.cells) - len(by_seed)
    return Worth(method, record.cell(method).bound, whole, beside, len(by_seed), lost, clients, useless, diverged)


def _both_worse(record: Record, method: str, base: str) -> dict[int, tuple[frozenset[int], bool]]:
    """Clients, by seed, that a constant serves better than both methods, and whether it does on average."""
    reports = [tables.reported(record, label, WorseThanConstant) for label in (method, base)]
    last = [{seed: rounds[max(rounds)] for seed, rounds in of.items()} for of in reports]
    return {
        seed: (frozenset(mine.clients) & frozenset(last[1][seed].clients), mine.mean and last[1][seed].mean)
        for seed, mine in last[0].items()
        if seed in last[1]
    }


def _row_differences(
    record: Record, method: str, base: str, seed: int, sign: float
) -> dict[int, tuple[npt.NDArray[np.int64], Floats]]:
    """Units and differences of each client's test rows under a seed, of clients of which both methods have them."""
    if (method, seed) not in record.tested_rows or (base, seed) not in record.tested_rows:
        return {}
    mine, theirs = (record.tested_rows[of, seed].by_client() for of in (method, base))
    return {
        c: (unit, sign * (value - theirs[c][1]))
        for c, (unit, value) in mine.items()
        if c in theirs and np.array_equal(unit, theirs[c][0])
    }


def _over_units(by_seed: Sequence[tuple[npt.NDArray[np.int64], Floats] | None]) -> Floats | None:
    """A client's differences by what is drawn, a row or a patient, all seeds together; None if a seed has none.

    The same rows under every seed have their mean over seeds.
    """
    known = [of for of in by_seed if of is not None]
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
        return min(of[1] for of, _ in counts), ""
    if m.name not in OF_CLASSES or not counts:
        return None
    return min(((n, p.label(label)) for of, p in counts for label, n in enumerate(of) if n), default=None)


# ---------------------------------------------------------------- rows
USELESS = "both models are worse than what the training targets would always say"
DIVERGED = "the method diverged under other seeds, which the gain leaves out"
UNCORRECTED = "its interval excludes zero, but not when corrected for the number of methods (Holm)"


class GainRow(TypedDict):
    """A client's gain with a method, or that of a mean, of which `client` is None and `alike` is what counts alike.

    `client` is its name, or its number where the data name no clients; `seed` is None where all seeds have the same.
    Gains are fractions for accuracies, above zero where the client is better off; `why` says why there is no interval,
    or no gain, and so no verdict.  It is over `seeds` of the run, and there is none under `lost` further ones.
    """

    method: str
    client: str | int | None
    alike: str
    seed: int | None
    gain: float | None
    low: float | None
    high: float | None
    verdict: str
    why: str
    seeds: int
    lost: int


def rows(record: Record) -> list[GainRow]:
    """Every method's gains over local training: both means, then each client; empty without local training.

    A client of which nothing could be measured is there, too, with the reason.
    """
    m, every, of = record.headline, worths(record), []
    by_row = {w.method: w for w in per_row(every)}
    unknown = f"it has no test rows from which {m.label} can be measured"
    for w in every:
        whole: GainRow = {
            "method": w.method, "client": None, "alike": "clients", "seed": None, "gain": w.whole.mean,
            "low": w.whole.low, "high": w.whole.high, "verdict": w.verdict, "why": w.why, "seeds": w.seeds,
            "lost": w.lost,
        }  # fmt: skip
        of.append(whole)
        if (row := by_row.get(w.method)) is not None:
            mean = row.whole.mean, row.whole.low, row.whole.high
            of.append({**whole, "alike": "test rows", "gain": mean[0], "low": mean[1], "high": mean[2],
                       "verdict": row.verdict, "why": row.why})  # fmt: skip
        for c in w.clients:
            seeds, lost = (w.seeds, w.lost) if c.seed is None else (1, 0)
            of.append({**whole, "client": c.label, "alike": "", "seed": c.seed, "gain": c.gain.mean, "low": c.gain.low,
                       "high": c.gain.high, "verdict": c.verdict, "why": c.why(m), "seeds": seeds,
                       "lost": lost})  # fmt: skip
        nothing: GainRow = {**whole, "alike": "", "gain": None, "low": None, "high": None, "verdict": "open",
                            "why": unknown, "seeds": 0, "lost": w.seeds + w.lost}  # fmt: skip
        of += [{**nothing, "client": name} for name in unjudged(record)]
    return of


# ---------------------------------------------------------------- words
def unjudged(record: Record) -> tuple[str, ...]:
    """Names of clients that have no result in any seed, where all were to be evaluated and all have names."""
    names = {p.client_names[: len(p.sizes)] for p in record.partitions.values()}
    if tables.settings(record).get("evaluate_clients", "all") != "all" or len(names) != 1:
        return ()
    known = {client for c in record.cells for client in record.clients(c.method, c.seed)}
    return tuple(name for client, name in enumerate(next(iter(names))) if client not in known)


def _of_which(rarest: tuple[int, str]) -> str:
    return f"of class {rarest[1]}" if rarest[1] else "with an event"


def fewest(clients: Sequence[Client], m: Measure) -> str:
    """The client with the fewest test examples, and what one of them is; empty where that is not known."""
    few = min((c for c in clients if c.examples), key=lambda c: c.telling, default=None)
    if few is None:
        return ""
    if few.rarest is not None:
        return f"{few.name} has {few.rarest[0]} {_of_which(few.rarest)}"
    if few.patients:
        return f"{few.name} has {few.examples}, which are of {counted(few.patients, 'patient')}"
    each = f", so that one more right is {100 / few.examples:.1f} points" if m.percent else ""
    return f"{few.name} has {few.examples}{each}"


def uncovered(record: Record) -> str:
    """A clause on what intervals over seeds leave out, with the client for which that matters most."""
    cells = ((c.seed, of) for c in record.cells if (of := record.tested(c.method, c.seed)))
    seed, tested = next(cells, (0, {}))
    least = fewest([client_of(record, c, [seed], n) for c, n in tested.items()], record.headline)
    return f"the intervals do not cover the choice of test examples{f': {least}' if least else ''}"


def few(clients: Sequence[Client], m: Measure) -> str:
    """`fewest` where test examples are few: those of each of some clients, or those of many together; else empty."""
    sizes = [c.telling for c in clients if c.examples]
    some = len(sizes) <= MOST_NAMED
    enough = min(sizes, default=FEW) >= FEW if some else sum(sizes) >= FEW * MOST_NAMED
    return "" if enough else fewest(clients, m)


def bracket(gain: Gain | None, m: Measure) -> str:
    """A gain with its interval, in percentage points for fractions."""
    return "–" if gain is None else m.with_interval(gain.mean, gain.low, gain.high)
