"""Plain sentences on a run: its experiment and its results."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any

from unskew.errors import RunError
from unskew.protocol import SgdConfig
from unskew.record.logs import described
from unskew.record.reader import DataSplit, Record, configured
from unskew.report.stats import Spread
from unskew.report.tables import (
    SAME_TEST_ROWS,
    Difference,
    Headline,
    bracket,
    for_own_models,
    headline,
    last_words,
    paired,
    paired_tails,
    reached,
    reference,
    standing,
    with_spread,
    written,
)
from unskew.tasks.measure import Measure
from unskew.words import counted, listed, of_seeds


def what(record: Record) -> str:
    """Data, split, clients, rounds, methods and seeds."""
    competitors = [m for m in record.methods if record.cell(m).bound is None]
    bounds = [m for m in record.methods if record.cell(m).bound is not None]
    trained = f"{counted(len(competitors), 'method')} ({listed(competitors)})" if competitors else "no competing method"
    also = f", with {listed(bounds)} as {'a bound' if len(bounds) == 1 else 'bounds'}," if bounds else ""
    rounds = [reached(record, c.method, c.seed) for c in record.cells if c.seed not in record.diverged_seeds(c.method)]
    fewest, most = min(rounds, default=0), max(rounds, default=0)
    least = f"{fewest:,} to " if record.finished and fewest < most else ""  # where training may end early
    so_far = "" if record.finished else " so far"
    return (
        f"This run trained {trained}{also} on {_data(record)}, for {least}{counted(most, 'round')}{so_far}, "
        f"with {counted(len(record.seeds), 'seed')} ({listed([str(s) for s in record.seeds])}).{_evaluated(record)}"
    )


def _evaluated(record: Record) -> str:
    """A sentence on whose own models were evaluated, where that is not every client's."""
    try:
        setting = configured(record).get("evaluate_clients", "all")
    except RunError:  # a report is written without its config.toml, too
        return ""
    if setting == "cohort":
        return " Numbers of the clients' own models are of those clients that trained in the round."
    clients = max((len(p.sizes) for p in record.partitions.values()), default=None)
    if isinstance(setting, int) and (clients is None or setting < clients):
        return f" Numbers of the clients' own models are of {counted(setting, 'client')}, drawn once for each seed."
    return ""


def set_apart(records: Sequence[Record], labels: Sequence[Mapping[str, str]] | None = None) -> str:
    """A sentence on what else than the method differs: local training and clients' weights, beside the baseline's.

    Methods have the defaults of their papers, where some train with momentum and some weigh all clients equally.

    Args:
        records: The records of one or more runs; the baseline is the first run's that has one.
        labels: What each run's methods are called, by their own labels; by default these.
    """
    called = labels or [{m: m for m in record.methods} for record in records]
    of: dict[str, Mapping[str, str]] = {}
    for record, names in zip(records, called, strict=True):
        with suppress(RunError):  # a report is written without its config.toml, too
            written_down = {m.get("label", m.get("name")): _training(m) for m in configured(record).get("methods", [])}
            # A file that was edited may have labels that the logs have not.
            shown = [m for m in record.methods if m in written_down and record.cell(m).bound != "pooled"]
            of |= {names[m]: written_down[m] for m in shown}
    bases = (names.get(reference(record) or "") for record, names in zip(records, called, strict=True))
    base = next((name for name in bases if name in of), next(iter(of), None))
    if base is None:
        return ""
    differing: dict[str, dict[str, list[str]]] = {}
    for label in of:
        for key in of[label]:
            # Methods that weigh by a rule of their own, or train in a way of their own, have no such setting.
            if key in of[base] and of[label][key] != of[base][key]:
                differing.setdefault(key, {}).setdefault(of[label][key], []).append(label)
    parts = [
        f"{key} is {', '.join(f'{value} for {listed(those)}' for value, those in by_value.items())} and "
        f"{of[base][key]} for {base}"
        for key, by_value in differing.items()
    ]
    return f"Not only the methods differ: {'; '.join(parts)}." if parts else ""


def _training(method: Mapping[str, Any]) -> dict[str, str]:
    """A method's settings that may differ from another's by no idea of its own, in short form."""
    local = method.get("local")
    shown = {key: written(value) for key, value in local.items()} if isinstance(local, Mapping) else {}
    if "batch_size" in shown:  # what is none is not written, nor is what is younger than the run
        plain = {f.name: written(f.default) for f in fields(SgdConfig) if f.name not in ("local_epochs", "lr_schedule")}
        shown = plain | shown
    return shown | ({"weighting": written(method["weighting"])} if "weighting" in method else {})


def found(record: Record, base: str | None = None) -> str:
    """Sentences on which methods differ from `base` by the paired interval and which do not, or why that is unknown.

    Without `base` it is the run's FedAvg.
    """
    base = reference(record) if base is None else base
    best, measure = _best(headline(record), record.headline), record.headline
    if base is None:
        return f"{best}No method here is plain FedAvg, so no difference to it is given."
    rows, own = _compared(record, base)
    if not rows and not own:
        if sum(record.cell(m).bound is None for m in record.methods) < 2:
            return best.rstrip()
        return (
            f"{best}Of no other competing method was a global model evaluated on the seeds of {base}, so there is no "
            "difference to give."
        )
    whose = f"By the {measure.label} of clients’ own models on their own test data: " if own else ""
    parts = [_verdicts(record, rows, base, measure.shared), _verdicts(record, own, base, measure.own)]
    return f"{best}{parts[0]}{whose}{parts[1]}{SAME_TEST_ROWS * record.same_test_rows}".rstrip()


def _compared(record: Record, base: str | None) -> tuple[list[Difference], list[Difference]]:
    """Differences to `base`: by the global model, or where a method is for clients' own models by these."""
    measure, own = record.headline, for_own_models(record)
    by_own = [d for d in paired(record, measure.own, base) if d.bound is None and d.method in own]
    named = {d.method for d in by_own}
    return [d for d in paired(record, base=base) if d.bound is None and d.method not in named], by_own


def _verdicts(record: Record, rows: Sequence[Difference], base: str, metric: str) -> str:
    """Sentences on which methods differ from `base` in this metric, and how that is known; empty for no rows."""
    if not rows:
        return ""
    measure = record.headline
    which = ["mean over clients"] * (metric == measure.own)
    which += ["below zero where the method is better"] * (not measure.higher)
    what = ", ".join([measure.label, *which]) + "," * bool(which)
    unit = " points" if record.headline.percent else ""
    here = " on these test rows" if record.same_test_rows else ""
    # Of the rows that have no interval, only the number of seeds is common to all.
    if all(len(d.seeds) < 2 for d in rows):
        values = "; ".join(filter(None, [listed([f"{d.method} {bracket(d)}{unit}" for d in rows]), measure.way]))
        return f"With fewer than two seeds no interval is possible: differences to {base} ({values}) may be chance. "
    sentences = []
    for verdict in ("higher", "lower"):
        chosen = [d for d in rows if d.verdict == verdict]
        if chosen:
            verb = "is" if len(chosen) == 1 else "are"
            sentences.append(f"{_named(chosen)} {verb} {measure.directed(verdict)} than {base}{here}. ")
    level = [d for d in rows if d.verdict == "level"]
    if level:
        verb = "is" if len(level) == 1 else "are"
        sentences.append(f"{_named(level)} {verb} level with {base}, within {_narrow(record)}. ")
    undecided = [d for d in rows if d.verdict == "undecided"]
    if undecided:
        sentences.append(f"{_named(undecided)} cannot be told apart from {base} at this number of seeds. ")
    without = [d for d in rows if d.verdict == "no interval"]
    if without:
        sentences.append(f"For {_named(without)} no interval is possible: too few seeds, or no spread between them. ")
    n = sorted({len(d.seeds) for d in rows})
    kind = "t-interval" if record.until is None else "confidence sequence"
    sentences.append(
        f"This is by the 95 % {kind} of paired differences in last-round {what} over {' to '.join(map(str, n))} "
        f"seeds, {'percentage points, ' * record.headline.percent}each comparison by itself. "
    )
    return "".join([*sentences, _corrected(rows), _steadier(record, rows, base, metric)])


def undecided(record: Record) -> bool:
    """True if a method cannot be told apart from the run's FedAvg, and more of its seeds might."""
    base = reference(record)
    if base is None or record.until is not None or not record.headline.percent:
        return False
    consecutive = record.seeds == tuple(range(record.seeds[0], record.seeds[0] + len(record.seeds)))
    return consecutive and any(
        d.verdict in ("undecided", "no interval") for rows in _compared(record, base) for d in rows
    )


def intervals(record: Record, base: str) -> str:
    """Sentences on what tables' intervals are, and on which differences stand when corrected for their number.

    The differences that are counted are those by which `found` compares the methods.
    """
    rows, own = _compared(record, base)
    if record.until is None:
        kind = "Intervals are Student’s t, each method by itself."
    else:
        fifth = record.until["metric"] == "last_fifth"
        by = "the mean of the last fifth of evaluations" if fifth else "the last round"
        kind = (
            f"Seeds were added until by {by} every interval excluded zero or was narrower than {_narrow(record)}, "
            f"{record.until['most']} at most; the intervals are a confidence sequence, which pays for a look after "
            "every seed, each method by itself."
        )
    chance = SAME_TEST_ROWS * record.same_test_rows
    if chance and "lower" in {cell.bound for cell in record.cells}:
        chance += " The answer whether federation is worth it counts that, too, or has no interval."
    corrected = _corrected(rows) + _corrected(own, " of clients’ own models")
    return " ".join(filter(None, [kind, corrected.rstrip(), chance]))


def _narrow(record: Record) -> str:
    """The width below which an interval is narrow."""
    assert record.until is not None
    return f"{record.until['until']:g}{' points' * record.headline.percent}"


def _corrected(rows: Sequence[Difference], of: str = "") -> str:
    """A sentence on which differences stand when corrected for the number of comparisons; empty without any."""
    count, names = standing(rows)
    by_itself = {d.method for d in rows if d.verdict in ("higher", "lower")}
    if count < 2 or not by_itself:
        return ""
    if not names:
        which = "none of them still differs"
    elif len(names) > 1 and by_itself == set(names):
        which = "all of them still differ"
    else:
        which = f"{listed(names)} still differ{'s' * (len(names) == 1)}"
    return f"Corrected for {count} comparisons{of} (Holm), {which}. "


def _steadier(record: Record, rows: Sequence[Difference], base: str, metric: str) -> str:
    """A sentence on the mean of the last evaluations, where it decides otherwise than the last round."""
    tails = {d.method: d for d in paired_tails(record, metric, base)}
    others = [tails[d.method] for d in rows if d.method in tails and tails[d.method].verdict != d.verdict]
    if not others:
        return ""
    words = {"no interval": "without an interval"}
    parts = listed(
        [f"{d.method} is {words.get(d.verdict, d.measure.directed(d.verdict))} ({bracket(d)})" for d in others]
    )
    return f"By the mean of the {last_words(record)} of evaluations {parts}. "


def _best(rows: Sequence[Headline], measure: Measure) -> str:
    means = {r.method: r.shared.mean for r in rows if r.shared is not None and r.bound is None}
    if not means:
        return f"No method has a global {measure.label}. "
    if len(means) == 1:
        ((only, _),) = means.items()
        return (
            f"{only} has a last-round global {measure.label} of {_value(next(r for r in rows if r.method == only))}. "
        )
    best = measure.best(means.values())
    extreme, unit = "highest" if measure.higher else "lowest (best)", " %" if measure.percent else ""
    what = f"global {measure.label}{' of the federated methods' * any(r.bound is not None for r in rows)}"
    alike = [r for r in rows if means.get(r.method) == best]
    if len(alike) > 1:
        names = listed([r.method for r in alike])
        return f"{names} share the {extreme} last-round {what}, {measure.show(best)}{unit}. "
    return f"{alike[0].method} has the {extreme} last-round {what}, {_value(alike[0])}. "


def _value(row: Headline) -> str:
    """A method's headline with its unit, and under how many seeds it is known."""
    assert row.shared is not None
    known = Spread(row.shared.values)
    few = of_seeds(len(known.values), row.shared.undefined)
    return f"{with_spread(known, row.measure)}{' %' * row.measure.percent}{few}"


def _named(rows: Sequence[Difference]) -> str:
    return listed([f"{d.method} ({bracket(d)})" for d in rows])


def _examples(split: DataSplit) -> str:
    """Numbers of examples that add up: for training, for the clients' own tests, and those that are neither."""
    rest, latest = split.n - split.trained - (split.tested or 0), ", the latest of each" if split.in_time else ""
    parts = [
        f"{split.trained:,} for training",
        *([] if split.tested is None else [f"{split.tested:,} for clients’ own tests{latest}"]),
        *([f"{rest:,} in neither"] if rest and split.tested is not None else []),
    ]
    return f"{split.n:,} examples: {', '.join(parts)}"


def _data(record: Record) -> str:
    if not record.partitions:
        known = "data that the clients kept to themselves" if record.finished else "unknown data (no partition.json)"
        return f"{known}, {record.cells[0].setting}"
    first = next(iter(record.partitions.values()))
    later = f", and {counted(len(first.unseen), 'client')} unseen" if first.unseen else ""
    return (
        f"{first.dataset} ({_examples(first)}), split over {counted(len(first.sizes), 'client')} "
        f"by {described(first.split)}{later}"
    )
