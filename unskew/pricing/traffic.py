"""What a run sent and computed, as columns: from its folder, or from rows in memory."""

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unskew import schema
from unskew.errors import RunError
from unskew.ledger import Transfer
from unskew.run.folder import read_json, rows
from unskew.runtime.in_process import Effort
from unskew.world.wireless import Radio

Ints = npt.NDArray[np.int64]
KINDS = ("control", "model")


@dataclass(frozen=True, eq=False)
class Columns:
    """Transfers by column, (transfers,) each; `model` is 1 if parameters were in it."""

    round: Ints
    hop: Ints
    src: Ints
    dst: Ints
    model: Ints
    bytes: Ints


@dataclass(frozen=True, eq=False)
class Work:
    """Local training by column, (trainings,) each."""

    round: Ints
    hop: Ints
    client: Ints
    examples: Ints


@dataclass(frozen=True, eq=False)
class Training:
    """One method under one seed.

    Attributes:
        sent: Its ledger.
        work: Its local training; None where that was not recorded.
        facts: By round, what the method had to show.
        bound: lower or pooled for what is no competitor.
    """

    method: str
    seed: int
    sent: Columns
    work: Work | None = None
    info: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    bound: str | None = None


def training(
    method: str,
    seed: int,
    transfers: Iterable[Transfer],
    work: Iterable[Effort] | None = None,
    info: Mapping[int, Mapping[str, Any]] | None = None,
) -> Training:
    """A training from rows in memory, such as traces have them."""
    sent = [(t.round, t.hop, t.src, t.dst, KINDS.index(t.kind), t.bytes) for t in transfers]
    done = None if work is None else Work(*_columns([(w.round, w.hop, w.client, w.examples) for w in work], 4))
    return Training(method, seed, Columns(*_columns(sent, 6)), done, info or {})


def _columns(table: Sequence[tuple[int, ...]], width: int) -> Ints:
    return np.array(table, dtype=np.int64).reshape(-1, width).T


# ---------------------------------------------------------------- a run folder
@dataclass(frozen=True, eq=False)
class RecordedRun:
    """What pricing reads of a run folder.

    Attributes:
        trainings: In the run's order.
        accuracy: (method, seed) -> {round: accuracy on the global test set}; empty where there is no global model.
        setting: What the run's table calls its setting.
        model_bytes: Of the plain model, four for each trainable parameter.
        channel: The radio the run was made under; None if it had none.
        finished: Whether the run came to its end.
    """

    folder: Path
    name: str
    trainings: tuple[Training, ...]
    accuracy: Mapping[tuple[str, int], Mapping[int, float]]
    setting: str
    model_bytes: int
    channel: Radio | None
    finished: bool = True


def read(folder: Path) -> RecordedRun:
    """What a run, finished or not, sent, computed and reached.

    Raises:
        RunError: If the folder is no run, nothing in it ever travelled, or a row is not as a run writes it.
    """
    card = read_json(folder / "run.json")
    try:
        cells = {(str(c["method"]), int(c["seed"])): dict(c) for c in card["cells"]}
        setting, parameters = str(card["cells"][0]["setting"]), int(card["parameters"])
        name = str(card["run"])
    except (KeyError, TypeError, ValueError, IndexError):
        raise RunError(f"{folder / 'run.json'} is not as a run writes it; restore it or run again") from None
    sent = _by_cell(folder / "ledger.jsonl", cells, _transfer)
    if not any(sent.values()):
        methods = ", ".join(dict.fromkeys(method for method, _ in cells))
        raise RunError(f"{folder} has nothing to price: its ledger has no rows ({methods} sent nothing)")
    done = _by_cell(folder / "work.jsonl", cells, _effort) if (folder / "work.jsonl").exists() else None
    info = _by_cell(folder / "info.jsonl", cells, lambda row: (_count(row["round"]), dict(row["info"])))
    trainings = tuple(
        Training(
            *at,
            Columns(*_columns(sent[at], 6)),
            None if done is None else Work(*_columns(done[at], 4)),
            dict(info[at]),
            cell.get("bound"),
        )
        for at, cell in cells.items()
    )
    channel, ended = _own_channel(folder / "config.toml"), (folder / "summary.json").exists()
    return RecordedRun(folder, name, trainings, _accuracy(folder, cells), setting, 4 * parameters, channel, ended)


Cells = Mapping[tuple[str, int], Mapping[str, Any]]


def _by_cell(path: Path, cells: Cells, take: Callable[[Mapping[str, Any]], Any]) -> dict[tuple[str, int], list[Any]]:
    found: dict[tuple[str, int], list[Any]] = {cell: [] for cell in cells}
    for number, row in enumerate(rows(path), 1):
        try:
            found[row["method"], row["seed"]].append(take(row))
        except (KeyError, TypeError, ValueError):
            raise RunError(
                f"{path}, line {number} is not as a run writes it: {schema.show(row)}; restore it or run again"
            ) from None
    return found


def _transfer(row: Mapping[str, Any]) -> tuple[int, ...]:
    round, hop, src, dst, sent = (_count(row[name]) for name in ("round", "hop", "src", "dst", "bytes"))
    return round, hop, src, dst, KINDS.index(row["kind"]), sent


def _effort(row: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(_count(row[name]) for name in ("round", "hop", "client", "examples"))


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError
    return value


def _accuracy(folder: Path, cells: Cells) -> dict[tuple[str, int], dict[int, float]]:
    entries = _by_cell(
        folder / "metrics.jsonl", cells, lambda row: (row["name"], _count(row["round"]), float(row["value"]))
    )
    return {
        cell: dict(sorted((t, value) for name, t, value in found if name == "global.accuracy"))
        for cell, found in entries.items()
    }


def _own_channel(path: Path) -> Radio | None:
    try:
        table = tomllib.loads(path.read_text("utf-8")).get("world", {}).get("channel", {})
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path}: {error}; restore it or run again") from None
    if table.get("name") != "radio":
        return None
    radio: Radio = schema.build(Radio, table, "world.channel", str(path))
    return radio
