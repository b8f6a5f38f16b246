"""A run in words: what was run, its verdict, and notes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from unskew.info import OneClassModels
from unskew.protocol import SgdConfig
from unskew.record.logs import described, plain
from unskew.record.reader import Record, configured
from unskew.report import tables, together, worth
from unskew.report.stats import CONFIDENCE, UNCORRECTED, Difference, corrected
from unskew.report.tables import Paired
from unskew.report.worth import Worth
from unskew.tasks.measure import Measure
from unskew.words import counted, listed

FEW_NAMED = 3
"""Methods up to which a line names each."""


def what(record: Record) -> str:
    """Methods, data, split, clients, rounds and seeds in one line."""
    federated = [m for m in record.methods if record.cell(m).bound is None]
    named = listed(federated) if len(federated) <= FEW_NAMED else counted(len(federated), "method")
    bounds = listed(list(dict.fromkeys(tables.bounds(record).values()))) if tables.bounds(record) else ""
    reached = [
        record.numbers.reached(c.method, c.seed) for c in record.cells if c.seed not in record.diverged_seeds(c.method)
    ]
    fewest, most = min(reached, default=0), max(reached, default=0)
    least = f"{fewest:,} to " if record.finished and fewest < most else ""  # where training may end early
    rounds = f"{least}{counted(most, 'round')}{'' if record.finished else ' so far'}"
    methods = ", beside ".join(filter(None, (named, bounds)))
    return f"{methods} on {_data(record)}; {rounds}, {counted(len(record.seeds), 'seed')}"


def _data(record: Record) -> str:
    first = next(iter(record.partitions.values()), None)
    if first is None:
        known = "data that the clients kept to themselves" if record.finished else "unknown data (no partition.json)"
        return f"{known}, {record.cells[0].setting}"
    later = f" and {len(first.unseen)} unseen" if first.unseen else ""
    return f"{first.dataset}, {counted(len(first.sizes), 'client')}{later} by {described(first.split)}"


# ---------------------------------------------------------------- the verdict
def verdict(record: Record) -> str:
    """The answer in at most 25 words: against training alone if the run has that, else against its baseline."""
    if not record.comparable:
        return "These runs are not comparable, so no differences are given."
    if worths := worth.rivals(record):
        return _worth(record, worths)
    rows = compared(record)
    return _better(record, str(record.baseline), rows) if rows else _reached(record)


def _worth(record: Record, worths: Sequence[Worth]) -> str:
    m = record.headline
    best, better = worth.best(worths), [w for w in worths if w.whole.verdict == "gains"]
    few, gain = " on few test rows" * bool(worth.few(worths[0].clients, m)), in_words(best.whole, m)
    if better:
        ahead = "ahead so far" if unsettled(record) else "worth it"
        return f"Federation is {ahead}{few}: {best.method} gains {gain} over training alone{_more(better)}."
    if all(w.whole.verdict == "loses" for w in worths):
        return f"Federation is not worth it{few}: {best.method} is best, by {gain} against training alone."
    if best.whole.why == worth.USELESS:
        return f"Undecided: {best.method} and training alone are both worse than a constant prediction."
    lost = _behind([w.method for w in worths if w.whole.verdict == "loses"])
    return f"Undecided{few}: no method is clearly better than training alone{lost}; best is {best.method}, {gain}."


def of_method(record: Record, method: str) -> str:
    """The answer on one method: against training alone if the run has that, else that of the run."""
    own = next((w for w in worth.worths(record) if w.method == method), None) if record.comparable else None
    if own is None:
        return verdict(record)
    reading = {"gains": "better than", "loses": "worse than", "open": "not shown to differ from"}[own.whole.verdict]
    return f"{method} is {reading} training alone: {in_words(own.whole, record.headline)}."


def _more(better: Sequence[object]) -> str:
    return f", and {counted(len(better) - 1, 'more method')} too" if len(better) > 1 else ""


def _behind(lost: Sequence[str]) -> str:
    named = listed(lost) if len(lost) < 3 else counted(len(lost), "method")
    return f", and {named} {'is' if len(lost) == 1 else 'are'} worse" if lost else ""


def _better(record: Record, base: str, rows: Sequence[Paired]) -> str:
    m = record.headline
    better = [d for d in rows if d.verdict == "gains"]
    best = max(better or rows, key=lambda d: d.mean if m.higher else -d.mean)
    here = " on these test rows" if record.same_test_rows else ""
    if better:
        return f"{best.method} is better than {base}{here} by {in_words(best, m)}{_more(better)}."
    if all(len(d.seeds) < 2 for d in rows):
        return f"One seed tells no chance: {best.method} differs from {base} by {in_words(best, m)}."
    if all(d.verdict == "loses" for d in rows):
        return f"No method is better than {base}{here}: even {best.method} is worse by {in_words(best, m)}."
    how = "Level" if all(d.verdict in ("level", "loses") for d in rows) else "Undecided"
    lost = [d.method for d in rows if d.verdict == "loses"]
    return f"{how}: no method is clearly better than {base}{_behind(lost)}; {best.method} {in_words(best, m)}."


def in_words(gain: Difference, m: Measure, confidence: float = CONFIDENCE) -> str:
    """A difference with its unit and its interval of this confidence."""
    unit = " points" if m.percent else f" in {m.label}"
    if gain.low is None or gain.high is None:
        return f"{m.signed(gain.mean)}{unit}"
    ends = m.interval(gain.low, gain.high).strip("[]").replace(", ", " to ")
    shown = ends if gain.low == gain.high else f"({100 * confidence:g} % {ends})"
    return f"{m.signed(gain.mean, gain.high - gain.low)}{unit} {shown}"


def _reached(record: Record) -> str:
    m = record.headline
    for name, whose in ((m.shared, "global"), (m.own, "own")):
        last = {k: tables.results(record, k, tables.counted_seeds(record, k), name) for k in record.methods}
        competing = [k for k in record.methods if record.cell(k).bound is None or len(record.methods) == 1]
        means = {k: spread.mean for k, spread in last.items() if spread is not None and k in competing}
        if means:
            best = m.first(means)
            among = "has the best" if len(means) > 1 else "reaches"
            return f"{best} {among} {whose} {m.label} of {m.with_unit(means[best])}."
    return "The sites sent no metrics." if record.deployed else f"No {m.label} has been measured yet."


def compared(record: Record) -> list[Paired]:
    """Differences to the baseline with Holm's correction: of the global model, or of clients' own for such methods."""
    own = tables.for_own_models(record)
    by_own = {d.method: d for d in tables.paired(record, record.headline.own) if d.method in own}
    every = [*(d for d in tables.paired(record) if d.method not in by_own), *by_own.values()]
    rows = [d for d in every if d.bound is None]
    known = corrected({d.method: d.at for d in rows if d.low is not None})
    return [replace(d, verdict=known[d.method].verdict) if d.method in known else d for d in rows]


def undecided(record: Record) -> bool:
    """True if a comparison with the baseline is open, and more seeds might decide it."""
    if record.until is not None or not record.headline.percent:
        return False
    consecutive = record.seeds == tuple(range(record.seeds[0], record.seeds[0] + len(record.seeds)))
    return consecutive and any(d.verdict == "open" for d in compared(record))


# ---------------------------------------------------------------- notes
def serious(record: Record) -> tuple[str, ...]:
    """Notes that a reader must not miss: unfinished, stopped or diverged runs, and damaged files."""
    notes = []
    if len(record.diverged) == len(record.cells):
        notes.append("This run has no results: every method diverged under every seed.")
    elif record.summary is None:
        behind = [
            f"{c.method} seed {c.seed} at round {record.numbers.reached(c.method, c.seed)}"
            for c in record.cells
            if c.seed not in tables.counted_seeds(record, c.method)
        ]
        left = f" Left out, because behind: {', '.join(behind)}." if behind else ""
        notes.append(f"This run has not finished; rows count the seeds that came furthest.{left}")
    elif (stopped := record.summary.get("stopped")) is not None:
        why = ", ".join(f"{k}: {plain(v)}" for k, v in stopped.items())
        notes.append(f"Stopped early ({why}); “last round” is the last one reached.")
    return (*notes, *tables.diverged(record))


def notes(record: Record) -> tuple[str, ...]:
    """All other notes: why runs cannot be compared, notes of the record, and what numbers leave out."""
    apart = (*together.incomparable(record.parts), together.evaluated_otherwise(record.parts))
    several = (*apart, *record.notes, *_of_gains(record))
    several += (_undefined(record), _evaluated(record), set_apart(record))
    return tuple(note for note in several if note)


def _undefined(record: Record) -> str:
    """A sentence on metrics that were asked for and have no number, so that no table has them."""
    missing = [m.name for m in record.asked if not {m.shared, m.own} & {*record.frame.names()}]
    why = "sent by no site" if record.deployed else "not a number (NaN) in any round"
    return f"{listed(missing)} was {why}, so no table has it." if missing else ""


def _of_gains(record: Record) -> list[str]:
    """Notes on what makes gains over training alone uncertain."""
    base, m = worth.alone(record), record.headline
    worths = worth.rivals(record)
    if base is None or not record.has_clients:
        return []
    if not worths:
        return [f"No method has clients’ results on a seed of {base}, so there is no gain over training alone."]
    few, useless = worth.few(worths[0].clients, m), [w.method for w in worths if w.whole.why == worth.USELESS]
    lost = [f"{w.method} ({w.seeds} of {w.seeds + w.lost} seeds)" for w in worths if w.lost]
    uncorrected = [w.method for w in worths if w.whole.why == UNCORRECTED]
    unjudged = worth.unjudged(record)
    rounds = tables.reported(record, base, OneClassModels).values()
    alike = {c for by_round in rounds for info in by_round.values() for c in info.clients}
    losers = dict.fromkeys(c.name for w in worths for c in w.clients if c.gain.verdict == "loses" and c.number in alike)
    sentences = {
        f"Few test rows: {few}.": few,
        unsettled(record): True,
        f"{_some(useless, 'methods')} and {base} are on average worse than a constant prediction: train longer.":
            useless,
        f"Trained alone, {_some(tuple(losers), 'clients')} predict one class only, so that accuracy says little.":
            losers and m.name == "accuracy",
        f"No verdict on {_some(unjudged, 'clients')}: no test rows from which {m.label} can be measured.": unjudged,
        f"Gains leave out seeds without a result: {listed(lost)}.": lost,
        f"Corrected for the number of methods (Holm), the gain of {listed(uncorrected)} is undecided.": uncorrected,
        "One seed says nothing about how much seeds matter: intervals leave that out.": 1 in {w.seeds for w in worths},
    }  # fmt: skip
    return [sentence for sentence, holds in sentences.items() if holds]


def _some(names: Sequence[str], what: str) -> str:
    return listed(names) if len(names) <= worth.MOST_NAMED else f"{len(names)} {what}"


def unsettled(record: Record) -> str:
    """A note that training alone had not converged; empty if it had, or if unknown.

    It had not if its mean over clients changed too much in the last quarter of the rounds.  Too much is more than a
    hundredth, and than a standard error over all test examples.
    """
    base, m = worth.alone(record), record.headline
    mean = None if base is None else tables.curve(record, base, m.own)
    if base is None or mean is None or len(mean.x) < 2:
        return ""
    before = max(i for i, t in enumerate(mean.x[:-1]) if i == 0 or t <= 0.75 * mean.x[-1])
    earlier, last = mean.mean[before], mean.mean[-1]
    error = 0.01 if m.bounded else 0.01 * abs(last)
    n = sum(record.tested(base, tables.counted_seeds(record, base)[0]).values())
    if m.bounded and n and 0 < last < 1:
        error = max(error, math.sqrt(last * (1 - last) / n))
    if abs(last - earlier) <= error:
        return ""
    return (
        f"Training alone had not settled ({m.with_unit(earlier)} after round {mean.x[before]:.0f}, "
        f"{m.with_unit(last)} after round {mean.x[-1]:.0f}): more rounds may change the answer."
    )


def _evaluated(record: Record) -> str:
    """A sentence on whose own models were evaluated, where that is not every client's."""
    setting = configured(record).get("evaluate_clients", "all")
    clients = max((len(p.sizes) for p in record.partitions.values()), default=math.inf)
    some = isinstance(setting, int) and setting < clients
    return f"Numbers of clients’ own models are of {setting} clients, drawn once for each seed." if some else ""


def set_apart(record: Record) -> str:
    """A note on settings beside the method that differ from the baseline's: local training and clients' weights."""
    settings: dict[str, Mapping[str, str]] = {}
    bases = []
    for name, run in (record.parts or {"": record}).items():
        prefix = f"{name}/" if name else ""
        for entry in configured(run).get("methods", []):
            label = entry.get("label", entry.get("name"))
            # A file that was edited may have labels that the logs have not.
            if label in run.methods and run.cell(label).bound != "pooled":
                settings[prefix + label] = _training(entry)
        bases.append(prefix + (run.baseline or ""))
    base = next((name for name in (*bases, *settings) if name in settings), "")
    differing: dict[str, dict[str, list[str]]] = {}
    for label, own in settings.items():
        # Methods that weigh by a rule of their own, or train in a way of their own, have no such setting.
        for key in own.keys() & settings[base].keys():
            if own[key] != settings[base][key]:
                differing.setdefault(key, {}).setdefault(own[key], []).append(label)
    parts = [
        f"{key} is {', '.join(f'{value} for {listed(those)}' for value, those in by_value.items())}, "
        f"{settings[base][key]} for {base}"
        for key, by_value in sorted(differing.items())
    ]
    return f"Settings differ, too: {'; '.join(parts)}." if parts else ""


def _training(method: Mapping[str, Any]) -> dict[str, str]:
    """Settings that differ between methods though no idea of theirs asks for it, in short form."""
    local = method.get("local", {})
    if "batch_size" in local:  # what is none is not written, nor is what is younger than the run
        plain = {f.name: f.default for f in fields(SgdConfig) if f.name not in ("local_epochs", "lr_schedule")}
        local = {**plain, **local}
    return together.flat({**local, **({"weighting": method["weighting"]} if "weighting" in method else {})})
