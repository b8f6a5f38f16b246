"""Contribution of each client to the others, from the runs of a leave-one-out (`unskew.decide.leave_out`)."""

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from unskew.record.logs import ADAPTED, SERVED
from unskew.record.reader import Record
from unskew.report.stats import interval


@dataclass(frozen=True)
class Contribution:
    """The worth of a client's taking part under a method; positive is better whatever the measure's direction.

    Attributes:
        client, method: The client left out, and the method.
        to_others: Mean over the other clients of their result with it minus that without it, of each seed.
        to_itself: Its own result taking part minus that as a newcomer who adapts, of each seed; empty if not measured.
        unadapted: The same minus its result as a newcomer who uses what it is served.
    """

    client: str
    method: str
    to_others: tuple[float, ...]
    to_itself: tuple[float, ...]
    unadapted: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """The contribution with means and 95 % intervals over seeds."""
        record: dict[str, Any] = {"client": self.client, "method": self.method}
        for name in ("to_others", "to_itself", "unadapted"):
            values = asdict(self)[name]
            ends = interval(values) if len(set(values)) > 1 else None  # seeds that agree on zero are not certain of it
            record[name] = {
                "mean": statistics.fmean(values) if values else None,
                "low": ends[0] if ends else None,
                "high": ends[1] if ends else None,
                "seeds": list(values),
            }
        return record


def contributions(whole: Record, without: Mapping[str, Record]) -> tuple[Contribution, ...]:
    """The contribution of each client that was left out, under every method that competes.

    Args:
        whole: The run with all clients.
        without: The run without each client, by the client's name or number.
    """
    out = []
    sign = 1.0 if whole.headline.higher else -1.0
    for client, record in without.items():
        for method in whole.methods:
            if whole.cell(method).bound == "lower":
                continue
            others: list[float] = []
            itself: list[float] = []
            unadapted: list[float] = []
            for seed in sorted(whole.partitions):
                mine = _by_name(whole, method, seed)
                theirs = _by_name(record, method, seed, left_out=client)
                common = [name for name in theirs if name in mine]
                if common:
                    others.append(sign * statistics.fmean(mine[name] - theirs[name] for name in common))
                for values, part in ((itself, ADAPTED), (unadapted, SERVED)):
                    came = list(record.clients(method, seed, part).values())
                    if len(came) == 1 and client in mine:
                        values.append(sign * (mine[client] - came[0]))
            if others:
                out.append(Contribution(client, method, tuple(others), tuple(itself), tuple(unadapted)))
    return tuple(out)


def _by_name(record: Record, method: str, seed: int, left_out: str | None = None) -> dict[str, float]:
    """Results of clients by name; clients known by number have that of the run with all clients."""
    of = record.clients(method, seed)
    names = record.partitions[seed].client_names
    if names:
        return {names[c]: v for c, v in of.items()}
    gone = None if left_out is None else int(left_out)
    return {str(c + (gone is not None and c >= gone)): v for c, v in of.items()}
