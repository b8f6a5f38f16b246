"""Leave one site out: the same experiment once with all clients and once without each of them.

The client that is left out of a run is `unseen` in it, so the run also says what the method would give it.  Other
clients keep their examples: the division does not depend on who takes part.
"""

from collections.abc import Sequence
from dataclasses import replace

from unskew.decide.sweep import Point
from unskew.errors import ConfigError
from unskew.experiment.config import Experiment
from unskew.run import setup as run_setup
from unskew.words import composed

MOST = 50
"""Clients up to which each is left out unless some are named: a run for each of a thousand clients was not meant."""


def points(experiment: Experiment, clients: Sequence[str] = ()) -> dict[str | None, Point]:
    """The points of a sweep, by the name or number of the client that is left out; the first, None, is with all.

    Args:
        experiment: The experiment with all clients.
        clients: Names of the clients to leave out, each in a run of its own; by default every client.

    Raises:
        ConfigError: If there are fewer than three clients, clients that are unseen already, more than `MOST` and none
            named, or a name that no client has.
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
            "leave-one-out pairs runs by their seeds, so list them; seeds.until would end each run elsewhere"
        )
    out: dict[str | None, Point] = {None: Point("with-all", {}, experiment)}
    for number, name in enumerate(names):
        if not clients or name in clients:
            unseen = replace(experiment.unseen, clients=(name,))
            without = replace(experiment, unseen=unseen, name=f"{experiment.name} without {name}")
            out[name] = Point(f"without-{number}", {"unseen.clients": [name]}, without)
    return out
