"""A run's traffic and work as tables, from its folder or from rows in memory."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unskew import schema
from unskew.errors import RunError
from unskew.info import Passes
from unskew.ledger import SERVER, Transfer
from unskew.record import reader
from unskew.record.logs import rows as recorded
from unskew.record.logs import why_diverged
from unskew.runtime.round import Effort
from unskew.tasks.measure import Measure
from unskew.world.channel import Radio

Table = npt.NDArray[Any]
"""Rows with named fields, (n,): of `SENT` or of `WORK`."""

SENT = np.dtype([(name, np.int64) for name in ("round", "hop", "turn", "src", "dst", "model", "bytes")])
"""A transfer; `turn` is 0 down, 1 from device to device, 2 up, and `model` is 1 if parameters were in it."""

WORK = np.dtype([(name, np.int64) for name in ("round", "hop", "client", "examples")])
"""A local training."""


@dataclass(frozen=True, eq=False)
class CellTraffic:
    """One method under one seed.

    Attributes:
        sent: Its ledger, `SENT`.
        work: Its local training, `WORK`; None if not recorded.
        info: Models and passes by round, if the method reports them.
        bound: "lower" or "pooled" for a reference that does not compete.
    """

    method: str
    seed: int
    sent: Table
    work: Table | None = None
    info: Mapping[int, Passes] = field(default_factory=dict)
    bound: str | None = None


def training(
    method: str,
    seed: int,
    transfers: Iterable[Transfer],
    work: Iterable[Effort] | None = None,
    info: Mapping[int, Passes] | None = None,
) -> CellTraffic:
    """A training from rows in memory, as traces have them."""
    sent = [_transfer(t.round, t.hop, t.src, t.dst, t.kind, t.bytes) for t in transfers]
    done = None if work is None else np.array([(w.round, w.hop, w.client, w.examples) for w in work], WORK)
    return CellTraffic(method, seed, np.array(sent, SENT), done, info or {})


def _transfer(round: int, hop: int, src: int, dst: int, kind: str, sent: int) -> tuple[int, ...]:
    turn = 0 if src == SERVER else 2 if dst == SERVER else 1
    return round, hop, turn, src, dst, int(kind == "model"), sent


# ---------------------------------------------------------------- a run folder
@dataclass(frozen=True, eq=False)
class RecordedRun:
    """The parts of a run folder that pricing needs.

    Attributes:
        trainings: In the run's order.
        headline: The metric by which the run's models are compared.
        curves: (method, seed) -> {round: its value on the global test set}; empty where there is no global model.
        setting: The run's setting, as its table names it.
        model_bytes: Size of the plain model, four bytes per trainable parameter.
        channel: The run's radio; None if it had none.
        finished: True if the run finished.
        other_channel: Name of the run's channel if it is no radio, and so has no price; None for even links.
        diverged: Why trainings diverged, a sentence each; they are not among `trainings`.
    """

    folder: Path
    name: str
    trainings: tuple[CellTraffic, ...]
    headline: Measure
    curves: Mapping[tuple[str, int], Mapping[int, float]]
    setting: str
    model_bytes: int
    channel: Radio | None
    finished: bool = True
    other_channel: str | None = None
    diverged: tuple[str, ...] = ()


def read(folder: Path) -> RecordedRun:
    """Read the traffic, work and accuracies of a run, finished or not.

    Raises:
        RunError: If the folder is not a run, nothing was ever sent, or one of its files is not a run's.
    """
    record = reader.read(folder)
    cells = [(c.method, c.seed) for c in record.cells]
    sent = _by_cell(
        "transfers", folder, cells, lambda r: _transfer(r["round"], r["hop"], r["src"], r["dst"], r["kind"], r["bytes"])
    )
    if not any(sent.values()):
        raise RunError(
            f"{folder} has nothing to price: its ledger has no rows ({', '.join(record.methods)} sent nothing)"
        )
    worked = _by_cell("work", folder, cells, lambda r: (r["round"], r["hop"], r["client"], r["examples"]))
    done = worked if any(worked.values()) else None
    info: dict[tuple[str, int], dict[int, Passes]] = {cell: {} for cell in cells}
    for method in record.reports(Passes):
        for seed, t, passes in reader.info_of(record, method, Passes):
            info[method, seed][t] = passes
    trainings = tuple(
        CellTraffic(
            cell.method,
            cell.seed,
            np.array(sent[cell.method, cell.seed], SENT),
            None if done is None else np.array(done[cell.method, cell.seed], WORK),
            info[cell.method, cell.seed],
            cell.bound,
        )
        for cell in record.cells
        if cell.seed not in record.diverged_seeds(cell.method)
    )
    curves = {at: record.numbers.curve(*at, record.headline.shared) for at in cells}
    if (parameters := record.card.get("parameters")) is None:
        raise RunError(f"{folder / 'run.json'}: parameters is required; restore it or run again")
    channel, other = _channel(record)
    return RecordedRun(
        folder, record.name, trainings, record.headline, curves, record.cells[0].setting,
        4 * parameters, channel, record.finished, other, tuple(map(why_diverged, record.diverged)),
    )  # fmt: skip


def _by_cell(
    table: str, folder: Path, cells: Sequence[tuple[str, int]], take: Callable[[dict[str, Any]], tuple[int, ...]]
) -> dict[tuple[str, int], list[tuple[int, ...]]]:
    rows: dict[tuple[str, int], list[tuple[int, ...]]] = {cell: [] for cell in cells}
    for row in recorded(folder, table):
        rows[row["method"], row["seed"]].append(take(row))
    return rows


def _channel(record: reader.Record) -> tuple[Radio | None, str | None]:
    """The run's radio, and the name of a channel that is neither a radio nor even."""
    table = reader.configured(record).get("world", {}).get("channel", {})
    name = table.get("name", "even")
    if name != "radio":
        return None, None if name == "even" else str(name)
    return schema.build(Radio, table, "world.channel", str(record.folder / "config.toml")), None
