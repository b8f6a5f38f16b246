"""Leave one site out: the same experiment once with all clients and once without each of them.

The client that is left out takes no part in a run (`unseen`), so the run also says what the method would give it as a
newcomer.  Other clients keep their examples: the division does not depend on who takes part.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from unskew.errors import ConfigError, RunError
from unskew.experiment.config import Experiment, is_written_in
from unskew.record.logs import require_none_diverged
from unskew.run import loop
from unskew.run import setup as run_setup
from unskew.run.callbacks import Callback
from unskew.words import composed

MOST = 50
"""Clients up to which each is left out unless some are named: a run for each of a thousand clients was not meant."""

WITH_ALL = "with-all"


@dataclass(frozen=True)
class LeftOut:
    """A run of a leave-one-out.

    Attributes:
        client: Name of the client that is left out, or its number; None for the run with all.
        folder: Name of the run's folder.
        experiment: What is run.
    """

    client: str | None
    folder: str
    experiment: Experiment


def runs(experiment: Experiment, clients: Sequence[str] = ()) -> tuple[LeftOut, ...]:
    """The runs, the one with all clients first.

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
    out = [LeftOut(None, WITH_ALL, experiment)]
    for number, name in enumerate(names):
        if not clients or name in clients:
            without = replace(experiment, unseen=replace(experiment.unseen, clients=(name,)))
            out.append(LeftOut(name, f"without-{number}", replace(without, name=f"{experiment.name} without {name}")))
    return tuple(out)


def run(left_out: Sequence[LeftOut], folder: Path, callback: Callback) -> None:
    """Run what has not been run: a run that was stopped goes on, one that is complete is left.

    Raises:
        RunError: If a folder holds another experiment, or a run cannot be resumed.
        ConfigError, DataError: If the experiment is impossible.
        DivergedError: If a method diverged, once the others of that run are done.
    """
    for each in left_out:
        at = folder / each.folder
        if not (at / "run.json").exists():
            done = loop.start(each.experiment, at, callback)
        elif not is_written_in(at / "config.toml", each.experiment):
            raise RunError(f"{at} holds a run of another experiment; give another --out")
        else:
            done = loop.resume(at, callback, allow_code=True)  # the user's own file, as `loop.start` has run it
        require_none_diverged(done.summary.get("diverged", ()))
