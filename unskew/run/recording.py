"""The record of a run: what each round adds to it, and the summary at the end."""

import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from pydantic import ValidationError

from unskew import info, machine
from unskew.data.federated import split_label
from unskew.errors import DivergedError, ProtocolError
from unskew.files import write_atomically
from unskew.info import Info
from unskew.protocol import report_of
from unskew.record import database
from unskew.record.database import opened, sha256
from unskew.record.frame import Numbers
from unskew.record.logs import CLOCK, sentence
from unskew.run.cell import Cell, LiveRun
from unskew.run.folder import explained
from unskew.run.metrics import Metric, summarise
from unskew.runtime.round import Trace

ABANDONED = "too few usable replies for a result, so the model stays as it was"


def reports(cell: Cell, state: Any, own: Sequence[str], abandoned: str) -> list[object]:
    """The method's report on a round, and the run's own notes on it.

    Of a round that was abandoned there is only the privacy that has been spent.

    Raises:
        ProtocolError: If it cannot be stored, or names a client that does not exist.
    """
    parts: list[object] = list(report_of(cell.sim.method, state))
    for part in parts:
        try:
            info.check(part, cell.fed.num_clients)
        except ValidationError as error:
            raise ProtocolError(f"info has {type(part).__name__}.{sentence(error)}") from None
        except (TypeError, ValueError) as error:
            raise ProtocolError(str(error)) from None
    own = [*cell.sim.drain_warnings(), *own]
    if abandoned:
        spent = [part for part in parts if isinstance(part, info.PrivacyBudget)]
        parts = [*spent, info.AbandonedRound(reason=abandoned, warnings=(ABANDONED,))]
        cell.warned.add(ABANDONED)
        # Other methods and seeds lose rounds, too: the report counts them.
        cell.run.note_once(f"{cell.method.label}, seed {cell.seed}: {ABANDONED}: {abandoned}", ABANDONED)
    return [*parts, Info(warnings=tuple(own))] if own else parts


def record(cell: Cell, t: int, metrics: list[Metric], trace: Trace | None = None, parts: Iterable[object] = ()) -> None:
    """Write a round's rows, and show notes that are new.

    Raises:
        DivergedError: If a number is NaN or infinite.
    """
    parts = list(parts)
    if warnings := [text for part in parts if type(part) is Info for text in part.warnings]:
        parts = [*(part for part in parts if type(part) is not Info), Info(warnings=tuple(warnings))]
    for text in (text for part in parts for text in info.warnings_of(part)):
        if text not in cell.warned:
            cell.warned.add(text)
            cell.run.callback.note(f"{cell.method.label}, seed {cell.seed}, round {t}: {text}")
    for m in metrics:
        if not math.isfinite(m.value):
            whose = "" if m.client is None else f" of client {m.client}"
            why = (
                f"became {m.value}; lower lr or server_lr"
                if t
                else f"is {m.value} before any training: look at the loss, the network's outputs, and the data"
            )
            raise DivergedError(f"round {t}: {m.name}{whose} {why}")
    with explained(cell.run.record.path, cell.run.folder):
        _add(cell, t, metrics, trace, parts)
        cell.run.record.show()


def _add(cell: Cell, t: int, metrics: Sequence[Metric], trace: Trace | None, parts: Sequence[object]) -> None:
    record, where = cell.run.record, cell.where
    record.add("metrics", ({**where, "round": t, **row} for row in _rows(metrics)))
    if trace is not None:
        # Nothing travels in a bound that pools the data; sending the data is not a method's cost.
        if not cell.pooled:
            record.add("transfers", ({**where, **x._asdict()} for x in trace.transfers))
        record.add("failures", ({**where, **asdict(f)} for f in trace.failures))
        record.add("work", ({**where, **w._asdict()} for w in trace.work))
    raw = cell.setup.dataset.raw
    disclosed = "" if raw is None else raw.rules.disclosed(list(raw.columns))
    _add_failures(cell)
    for part in (info.with_disclosed(part, disclosed) for part in parts):
        record.add("failures", ({**where, "round": t, **refused} for refused in info.ignored_of(part)))
        record.add("info", [{**where, "round": t, **info.row(part)}])


def record_failures(cell: Cell) -> None:
    """Write failures outside a finished round, and what crossed the network."""
    with explained(cell.run.record.path, cell.run.folder):
        _add_failures(cell)
        cell.run.record.commit()


def _add_failures(cell: Cell) -> None:
    failures, sent = cell.sim.drain_records()
    cell.run.record.add("failures", ({**cell.where, **asdict(f)} for f in failures))
    cell.run.record.add("network", ({**cell.where, **s._asdict()} for s in sent))


def _rows(metrics: Iterable[Metric]) -> Iterator[dict[str, Any]]:
    """Rows of metrics; the numbers of single clients, which may be very many, are one for each name."""
    for (name, of_clients), some in itertools.groupby(metrics, lambda m: (m.name, m.client is not None)):
        if of_clients:
            clients, values, weights = zip(*((m.client, m.value, m.weight) for m in some), strict=True)
            yield {"name": name, "value": values, "weight": weights, "client": clients}
            continue
        for m in some:
            yield {"name": name, "value": m.value, "weight": m.weight, "clients": m.clients}


# ---------------------------------------------------------------- at the end
def write_summary(run: LiveRun) -> dict[str, Any]:
    """Write summary.json, the table of results, and return its content."""
    experiment, position, task = run.experiment, run.position, run.setup.task
    table = summarise(
        Numbers.read(run.folder),
        [m.label for m in experiment.methods],
        experiment.seeds,
        split_label(next(iter(run.feds.values()))),
        experiment.baseline,
        task.headline,
        run.diverged,
    )
    summary: dict[str, Any] = {
        "run": experiment.name,
        "fingerprint": _fingerprint(run),
        "record_sha256": sha256(run.folder),
        "seconds": run.seconds(),
        "peak_rss": machine.peak_resident(),
        "headline": task.headline.card(),
        "asked": [m.card() for m in task.measures[2:]],
        "rows": table,
        **({"diverged": run.diverged} if run.diverged else {}),
        "stopped": position.stopped or None,
    }
    if experiment.until is not None:
        summary["seeds"] = list(experiment.seeds[: len(position.done) // len(experiment.methods)])
    with explained(run.folder / "summary.json", run.folder):
        write_atomically(run.folder / "summary.json", json.dumps(summary, indent=1))
    return summary


def _fingerprint(run: LiveRun) -> str:
    """SHA-256 of every final state and every metric; clocks are left out."""
    digest = hashlib.sha256("\n".join(run.position.done).encode())
    with opened(run.folder) as connection:
        for m in database.metrics(connection, f"name != '{CLOCK}'"):
            digest.update("".join(_as_json(m)).encode())
    return digest.hexdigest()


def _as_json(m: database.MetricOfRound) -> Iterator[str]:
    """A number, or those of single clients, as JSON with sorted keys."""
    about = {"method": m.method, "name": m.name, "round": m.round, "seed": m.seed}
    if m.client is None:
        clients = {} if m.clients is None else {"clients": m.clients}
        yield json.dumps({**clients, **about, "value": m.value, "weight": m.weight})
        return
    where = json.dumps(about)[1:-1]  # once: there may be very many clients
    for client, value, weight in zip(m.client.tolist(), m.value.tolist(), m.weight.tolist(), strict=True):
        yield f'{{"client": {client}, {where}, "value": {value!r}, "weight": {weight!r}}}'
