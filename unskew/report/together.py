"""Several runs as one: merged where they differ in their methods alone, else the reasons why not."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from unskew.record.reader import Record, configured
from unskew.report import tables


def merge(records: Sequence[Record], names: Sequence[str]) -> Record:
    """Some runs as one, whose methods are labelled NAME/METHOD; its baseline is that of the first run that has one.

    Runs that are not comparable (`incomparable`) have no baseline and no differences.  Info stays in the runs' folders.

    Args:
        records: The runs, at least one.
        names: Distinct names of the runs.
    """
    runs = list(zip(names, records, strict=True))
    comparable = not incomparable(records, names)
    bases = (f"{n}/{base}" for n, r in runs if comparable and (base := tables.reference(r)) is not None)

    def relabelled(values: Callable[[Record], Mapping[Any, Any]]) -> dict[Any, Any]:
        return {(f"{n}/{at[0]}", *at[1:]): value for n, r in runs for at, value in values(r).items()}

    def prefixed(sentences: Callable[[Record], Sequence[str]]) -> tuple[str, ...]:
        return tuple(f"{n}: {sentence}" for n, r in runs for sentence in sentences(r))

    return replace(
        records[0],
        name=" ".join(names),
        cells=tuple(replace(c, method=f"{n}/{c.method}") for n, r in runs for c in r.cells),
        series=relabelled(lambda r: r.series),
        clients=relabelled(lambda r: r.clients),
        few=relabelled(lambda r: r.few),
        tested=relabelled(lambda r: r.tested),
        tested_rows=relabelled(lambda r: r.tested_rows),
        newcomers=relabelled(lambda r: r.newcomers),
        flows=relabelled(lambda r: r.flows),
        failures=tuple(replace(f, method=f"{n}/{f.method}") for n, r in runs for f in r.failures),
        warned=tuple(replace(w, method=f"{n}/{w.method}") for n, r in runs for w in r.warned),
        diverged=tuple({**row, "method": f"{n}/{row['method']}"} for n, r in runs for row in r.diverged),
        ignored={f"{n}/{m}": times for n, r in runs for m, times in r.ignored.items()},
        until=next((r.until for r in records if r.until is not None), None),
        summary=records[0].summary if all(r.finished for r in records) else None,
        baseline=next(bases, ""),
        comparable=comparable,
        info={},
        predicted=None,
        remarks=prefixed(lambda r: r.remarks),
        left_out=prefixed(lambda r: r.left_out),
        for_own=frozenset(f"{n}/{m}" for n, r in runs for m in tables.for_own_models(r)),
        run_of={f"{n}/{m}": n for n, r in runs for m in r.methods},
        runs={n: r.finished for n, r in runs},
    )


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
    rounds = max(tables.reached(record, c.method, c.seed) for c in record.cells)
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
