"""Leave one site out: the same experiment once with all clients and once without each of them.

The client that is left out takes no part in a run (`unseen`), so the run also says what the method would give it as a
newcomer.  Other clients keep their examples: the division does not depend on who takes part.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from unskew.decide.cells import queue
from unskew.decide.cells import run as run_plans
from unskew.decide.crew import Here, Processes
from unskew.decide.runs import LoggedRuns, RunWork, at_once, run_cell
from unskew.errors import ConfigError
from unskew.experiment.config import Experiment
from unskew.record.logs import require_none_diverged
from unskew.run import setup as run_setup
from unskew.run.again import require_same
from unskew.run.callbacks import Callback
from unskew.run.folder import read_json
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


def run(left_out: Sequence[LeftOut], folder: Path, callback: Callback, jobs: int = 1) -> None:
    """Run what has not been run: a run that was stopped goes on, one that is complete is left.

    Args:
        left_out: The runs.
        folder: Folder of their folders.
        callback: Watches each; of several at once, files in the folder `logs` have what they say.
        jobs: Runs at once, each in a process of its own if there are several.

    Raises:
        RunError: If a folder holds another experiment, or a run cannot be resumed.
        ConfigError, DataError: If the experiment is impossible.
        DivergedError: If a method diverged, once the others of that run are done.
    """
    for each in left_out:
        require_same(each.experiment, folder / each.folder)
    cells = [run_cell(each.experiment, each.folder) for each in left_out]
    folder.mkdir(parents=True, exist_ok=True)
    crew = Here(RunWork(folder, callback)) if jobs == 1 else Processes(LoggedRuns(folder.absolute()), jobs, new=True)
    with queue(folder / "runs.sqlite") as kept, closing(crew):
        for cell, each in zip(cells, left_out, strict=True):
            if not (folder / each.folder / "summary.json").exists():
                kept.forget(cell)
        run_plans([at_once(cells)], kept, crew)
    for each in left_out:
        require_none_diverged(read_json(folder / each.folder / "summary.json").get("diverged", ()))
