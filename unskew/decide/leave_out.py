"""Leave one site out: the same experiment once with all clients and once without each of them.

The client that is left out is `unseen` in that run, so its result without taking part is measured, too.  Other clients
keep their examples.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from unskew.decide.sweep import Point
from unskew.errors import ConfigError
from unskew.experiment.config import Experiment
from unskew.record.logs import ADAPTED, SERVED
from unskew.record.reader import Record
from unskew.report.stats import interval
from unskew.run import setup as run_setup
from unskew.words import composed

MOST = 50
"""Clients up to which each is left out unless some are named: a run for each of a thousand clients was not meant."""


def points(experiment: Experiment, clients: Sequence[str] = ()) -> dict[str | None, Point]:
    """The points of a sweep, by the name or number of the client left out; the first, None, is with all.

    Args:
        experiment: The experiment with all clients.
        clients: Names of the clients to leave out, one run each; by default every client.

    Raises:
        ConfigError: If there are fewer than three clients, unseen clients, more than `MOST` and none named, or an
            unknown name.
        DataError: If the data cannot be read or divided.
    """
    if experiment.unseen.clients:
        raise ConfigError("leave-one-out decides itself who is unseen; leave unseen out")
    setup = run_setup.prepare(experiment)
    fed = run_setup.divide(experiment, setup.dataset, experiment.seeds[0])
    names = fed.client_names or tuple(map(str, range(fed.num_clients)))
    if len(names) < 3:
        raise ConfigError(f"leave-one-out needs three clients, so that two are left, got {len(names)}")
    clients = [name if name in names else composed(name) for name in clients]
    strangers = [name for name in clients if name not in names]
    if strangers:
        raise ConfigError(f"there is no client {strangers[0]!r}; the clients are {', '.join(names[:8])}")
    if not clients and len(names) > MOST:
        raise ConfigError(f"{len(names)} clients would be as many runs; name those to leave out with --client")
    if "personal" not in experiment.evaluate:
        raise ConfigError("leave-one-out compares clients' own results; add personal to evaluate")
    if experiment.until is not None:
        raise ConfigError(
            "leave-one-out pairs runs by their seeds, so list them; seeds.until would stop each at another"
        )
    out: dict[str | None, Point] = {None: Point("with-all", {}, experiment)}
    for number, name in enumerate(names):
        if not clients or name in clients:
            unseen = replace(experiment.unseen, clients=(name,))
            without = replace(experiment, unseen=unseen, name=f"{experiment.name} without {name}")
            out[name] = Point(f"without-{number}", {"unseen.clients": [name]}, without)
    return out


def contributions(whole: Record, without: Mapping[str, Record]) -> list[dict[str, Any]]:
    """What each client contributes, under every method that competes; positive is better.

    Args:
        whole: The run with all clients.
        without: The run without each client, by the client's name or number.

    Returns:
        Rows of client, method, and values as from `over_seeds`.  to_others: the other clients' mean result with it
        minus that without it.  to_itself: its own result as a member minus that as an unseen client after adapting.
        unadapted: the same before adapting.
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
    """The mean of the seeds' values, its 95 % interval, and the values; equal values give no interval."""
    low, high = (interval(values) if len(set(values)) > 1 else None) or (None, None)
    return {"mean": statistics.fmean(values) if values else None, "low": low, "high": high, "seeds": list(values)}


def _by_name(record: Record, method: str, seed: int, left_out: str | None = None) -> dict[str, float]:
    """Results of clients by name; clients known by number have that of the run with all clients."""
    of, names = record.clients(method, seed), record.partitions[seed].client_names
    gone = None if names or left_out is None else int(left_out)
    return {names[c] if names else str(c + (gone is not None and c >= gone)): v for c, v in of.items()}
