"""Contribution of each client to the others, from the runs of a leave-one-out (`unskew.decide.leave_out`)."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from unskew.record.logs import ADAPTED, SERVED
from unskew.record.reader import Record
from unskew.report.stats import interval


def contributions(whole: Record, without: Mapping[str, Record]) -> list[dict[str, Any]]:
    """The worth of each client's taking part, under every method that competes; positive is better.

    Args:
        whole: The run with all clients.
        without: The run without each client, by the client's name or number.

    Returns:
        Rows of client, method, and as `over_seeds` has them: to_others, the mean over the other clients of their result
        with it minus that without it; to_itself, its own result taking part minus that when unseen, after adapting; and
        unadapted, the same before adapting.
    """
    rows = []
    sign = 1.0 if whole.headline.higher else -1.0
    for client, record in without.items():
        for method in (m for m in whole.methods if whole.cell(m).bound != "lower"):
            worth: dict[str, list[float]] = {"to_others": [], "to_itself": [], "unadapted": []}
            for seed in sorted(whole.partitions):
                mine, theirs = _by_name(whole, method, seed), _by_name(record, method, seed, left_out=client)
                if common := [name for name in theirs if name in mine]:
                    others = statistics.fmean(mine[name] - theirs[name] for name in common)
                    worth["to_others"].append(sign * others)
                for what, part in (("to_itself", ADAPTED), ("unadapted", SERVED)):
                    came = list(record.clients(method, seed, part).values())
                    if len(came) == 1 and client in mine:
                        worth[what].append(sign * (mine[client] - came[0]))
            if worth["to_others"]:
                rows.append({"client": client, "method": method, **{k: over_seeds(v) for k, v in worth.items()}})
    return rows


def over_seeds(values: Sequence[float]) -> dict[str, Any]:
    """The mean of the seeds' values, its 95 % interval, and the values; seeds that agree are not certain."""
    low, high = (interval(values) if len(set(values)) > 1 else None) or (None, None)
    return {"mean": statistics.fmean(values) if values else None, "low": low, "high": high, "seeds": list(values)}


def _by_name(record: Record, method: str, seed: int, left_out: str | None = None) -> dict[str, float]:
    """Results of clients by name; clients known by number have that of the run with all clients."""
    of, names = record.clients(method, seed), record.partitions[seed].client_names
    gone = None if names or left_out is None else int(left_out)
    return {names[c] if names else str(c + (gone is not None and c >= gone)): v for c, v in of.items()}
