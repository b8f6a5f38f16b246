"""Merges runs that differ only in their methods; for others gives the reasons why not."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from unskew.record.frame import Numbers
from unskew.record.reader import Record, configured
from unskew.report import tables

T = TypeVar("T")

NOT_CONDITIONS = (
    "name", "methods", "seeds", "rounds", "evaluate", "eval_every", "baseline", "keep_models",
    "runtime", "track", "track_options", "stop", "split", "checkpoint", "models",
)  # fmt: skip
"""Settings that runs may differ in and be compared, or that are compared by what they led to."""


def merge(records: Sequence[Record], names: Sequence[str]) -> Record:
    """Some runs as one, whose methods are labelled NAME/METHOD; its baseline is that of the first run that has one.

    Runs that are not comparable (`incomparable`) have no baseline and no differences.  Info stays in the runs' folders.

    Args:
        records: The runs, at least one.
        names: Distinct names of the runs.
    """
    parts = dict(zip(names, records, strict=True))
    comparable = not incomparable(parts)
    bases = (f"{n}/{base}" for n, r in parts.items() if comparable and (base := r.baseline) is not None)

    def each(rows: Callable[[Record], Iterable[T]], labelled: Callable[[str, T], T]) -> tuple[T, ...]:
        return tuple(labelled(n, row) for n, r in parts.items() for row in rows(r))

    def of_method(name: str, row: Any) -> Any:
        method = f"{name}/{row['method'] if isinstance(row, Mapping) else row.method}"
        return {**row, "method": method} if isinstance(row, Mapping) else replace(row, method=method)

    return replace(
        records[0],
        name=" ".join(names),
        cells=each(lambda r: r.cells, of_method),
        frame=Numbers(number for n, r in parts.items() for number in r.frame.prefixed(f"{n}/").numbers),
        tested_rows={(f"{n}/{m}", seed): rows for n, r in parts.items() for (m, seed), rows in r.tested_rows.items()},
        failures=each(lambda r: r.failures, of_method),
        diverged=each(lambda r: r.diverged, of_method),
        ignored={f"{n}/{m}": times for n, r in parts.items() for m, times in r.ignored.items()},
        until=next((r.until for r in records if r.until is not None), None),
        summary=records[0].summary if all(r.finished for r in records) else None,
        baseline=next(bases, None),
        comparable=comparable,
        info={},
        predicted=None,
        notes=each(lambda r: r.notes, "{}: {}".format),
        for_own=frozenset(each(tables.for_own_models, "{}/{}".format)),
        parts=parts,
    )


def incomparable(parts: Mapping[str, Record]) -> tuple[str, ...]:
    """Why runs cannot be compared with the first, in sentences; empty if they can."""
    sentences = []
    name, first = next(iter(parts.items()), ("", None))
    for other_name, other in parts.items():
        if first is None or other is first:
            continue
        # What one folder does not tell is no difference, but a setting that one has not is its default.
        pairs = [(_facts(first), _facts(other))]
        pairs += [(_conditions(first), _conditions(other))] if configured(first) and configured(other) else []
        differs = f"“{other_name}” differs from “{name}” in"
        sentences += [
            f"{differs} {what}: {new.get(what, 'none')} against {old.get(what, 'none')}."
            for i, (old, new) in enumerate(pairs)
            for what in {**old, **new}
            if old.get(what) != new.get(what) and (i == 1 or (what in old and what in new))
        ]
        moved = [
            s for s, p in first.partitions.items() if s in other.partitions and other.partitions[s].sha256 != p.sha256
        ]
        if moved:
            new, old = (
                f"{p.sha256[:12]} ({written(p.split)})" for p in (r.partitions[moved[0]] for r in (other, first))
            )
            sentences.append(f"{differs} the split of seed {', '.join(map(str, moved))}: {new} against {old}.")
        sentences += [
            f"“{n}” does not say which data its clients trained on: nothing shows that they are the same."
            for n, r in ((name, first), (other_name, other))
            if not r.partitions
        ]
    return tuple(dict.fromkeys(sentences))


def _facts(record: Record) -> dict[str, str]:
    """Facts of a run: rounds, seeds and data."""
    rounds = max(record.numbers.reached(c.method, c.seed) for c in record.cells)
    facts = {"rounds": f"{rounds}{'' if record.finished else ' (unfinished)'}"}
    facts["seeds"] = ", ".join(map(str, record.seeds))
    for p in record.partitions.values():
        facts |= {"data": f"{p.dataset} ({p.dataset_sha256[:12]})"} if p.dataset_sha256 else {}
    return facts


def _conditions(record: Record) -> dict[str, str]:
    """Every setting but of the methods and the data's place, by its dotted name."""
    settings = {key: value for key, value in configured(record).items() if key not in NOT_CONDITIONS}
    task = {key: value for key, value in settings.pop("task", {}).items() if key not in ("data", "data_dir")}
    return flat(task) | flat(settings)


def evaluated_otherwise(parts: Mapping[str, Record]) -> str:
    """A note on runs that were evaluated in other rounds; empty if none."""
    by_rule: dict[str, list[str]] = {}
    for name, record in parts.items():
        every = configured(record).get("eval_every", 1)
        rule = "every round" if every == 1 else f"every {every} rounds"
        by_rule.setdefault(rule, []).append(f"“{name}”")
    rules = "; ".join(f"{', '.join(which)}: {rule}" for rule, which in by_rule.items())
    means = "compare their last rounds alone, as means and best rounds are of other numbers of evaluations"
    return f"These runs were evaluated in other rounds ({rules}): {means}." if len(by_rule) > 1 else ""


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Settings by their dotted names, as text.

    >>> flat({"outage": {"late": 0.3}, "attack": "flip"})
    {'outage.late': '0.3', 'attack': 'flip'}
    """
    named: dict[str, str] = {}
    for key, value in settings.items():
        named |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: written(value)}
    return named


def written(value: object) -> str:
    """A configuration value as text."""
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {written(v)}" for k, v in value.items() if v != {}) or "none"
    if isinstance(value, list | tuple):
        return " ".join(map(written, value)) or "none"
    return "none" if value is None else str(value)
