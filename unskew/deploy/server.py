"""A run whose clients are elsewhere, from the server's folder; `unskew.runtime.flower` calls it inside Flower."""

import json
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt

from unskew import schema
from unskew.data.federated import ClientIndex, FederatedData
from unskew.deploy.client import read_toml, split_hash
from unskew.errors import ConfigError, RunError
from unskew.experiment.config import Experiment, Method, fingerprint, load
from unskew.files import write_atomically
from unskew.keys import Key
from unskew.local.sequential import Sequential
from unskew.local.workers.pool import Pool
from unskew.protocol import ClientId
from unskew.run import callbacks, loop
from unskew.run import setup as run_setup
from unskew.run.folder import read_json
from unskew.run.setup import Setup
from unskew.runtime.membership import Expected, Known, Membership, layout_hash
from unskew.runtime.message import Node, Transport
from unskew.runtime.network import Model, Remote, Runtime, Terms
from unskew.version import __version__

EXECUTOR = "flower"


@dataclass(frozen=True)
class ServerConfig:
    """server.toml.

    Attributes:
        min_clients: So many must have said hello before the first round.
        deadline_s: Seconds an exchange may take, unless the plan says otherwise.
        wait_s: Seconds those clients have to appear.
        max_norm: Largest L2 norm of all floating-point tensors of a reply together.
    """

    min_clients: Annotated[int, Ge(1)]
    deadline_s: Annotated[float, Gt(0.0)] = 600.0
    wait_s: Annotated[float, Gt(0.0)] = 300.0
    max_norm: Annotated[float, Gt(0.0)] = 1e6


def serve(transport: Transport, folder: Path, callback: callbacks.Callback | None = None) -> loop.RunResult:
    """Run the experiment of a server's folder on the clients `post` reaches, or go on with it.

    How it ended is in the folder's outcome.json: {"status": "finished"}, or "failed" with the error's name and text.

    Raises:
        ConfigError, DataError: If folder or experiment cannot be used.
        QuorumError: If too few clients are there, or reply.
        RunError: If the run's folder cannot be gone on with.
    """
    try:
        outcome = _serve(transport, folder, callback or Lines())
    except BaseException as error:
        _outcome(folder, {"status": "failed", "error": type(error).__name__, "text": str(error)})
        raise
    _outcome(folder, {"status": "finished"})
    return outcome


def _serve(transport: Transport, folder: Path, callback: callbacks.Callback) -> loop.RunResult:
    path = folder / "server.toml"
    config: ServerConfig = schema.build(ServerConfig, read_toml(path), "", str(path))
    experiment = _every_round(load(folder / "experiment.toml"))
    run = folder / "run"
    if (run / "summary.json").exists():
        return loop.RunResult(run, read_json(run / "summary.json"))
    if "personal_on_global" in experiment.evaluate:
        raise ConfigError(
            "evaluate: personal_on_global needs every client's own model and the server's test set in one place, and "
            "neither travels; leave it out"
        )
    pooled = next((m.label for m in experiment.methods if getattr(m.algorithm, "pooled", False)), None)
    if pooled is not None:
        raise ConfigError(f"{pooled} trains on all clients' data in one place; it cannot be deployed, leave it out")
    setup = replace(run_setup.prepare(experiment), executor=EXECUTOR)
    registered = _registered(folder)
    number = len(registered) if registered else _number(experiment, setup)
    if config.min_clients > number:
        raise ConfigError(f"min_clients must be at most the {number} clients, got {config.min_clients} ({path})")
    expected = Expected(
        number, __version__, fingerprint(experiment), setup.dataset.classes, layout_hash(setup.task.init(Key(0)))
    )
    book = Book.open(folder / "deployment.json", fingerprint(experiment))
    nodes = {node: client for client, node in registered.items()} if registered else None
    membership = Membership(transport, book.run, expected, nodes, book.clients, callback.note)
    membership.wait(config.min_clients, config.wait_s)
    # Either all clients have their shard of the experiment's split or all declare data of their own; the most decide.
    own = 2 * sum(membership.known[c].own for c in membership.present) > len(membership.present)
    membership.settle(own, None if own else split_hash(experiment, setup, number))
    membership.wait(config.min_clients, config.wait_s)
    book.save()
    backend = OverNetwork(setup, membership, book, Terms(config.deadline_s, config.max_norm), own)
    if (run / "run.json").exists():
        return loop.resume(run, callback, backend=backend)
    return loop.start(experiment, run, callback, command="unskew deploy", backend=backend)


def _every_round(experiment: Experiment) -> Experiment:
    """Saved after every round: clients remember the last two, so the server may not fall back further."""
    return replace(experiment, runtime=replace(experiment.runtime, checkpoint_every=1))


def _number(experiment: Experiment, setup: Setup) -> int:
    """How many clients there are, where no keys were registered."""
    return experiment.split.num_clients or run_setup.divide(experiment, setup.dataset, experiment.seeds[0]).num_clients


def _registered(folder: Path) -> dict[ClientId, Node]:
    """Whose key each of Flower's nodes has; empty where no keys are in use."""
    path = folder / "nodes.json"
    if not path.exists():
        return {}
    try:
        return {int(client): int(node) for client, node in read_json(path).items()}
    except (TypeError, ValueError):
        raise RunError(f"{path} must name a node for each client; start the server anew with unskew deploy") from None


def _outcome(folder: Path, found: Mapping[str, str]) -> None:
    write_atomically(folder / "outcome.json", json.dumps(found))


# ---------------------------------------------------------------- what outlives a server
class Book:
    """deployment.json: what a server that is started again must know of those before it.

    Attributes:
        run: The run's random name, under which clients remember.
        attempt: Which start of a server this is, counted from 1.
        begun: By cell, each start of a server in it and its first round.
        clients: What each client said of its data when it was met first.
    """

    def __init__(
        self,
        path: Path,
        config: str,
        run: str,
        attempt: int,
        begun: dict[int, tuple[tuple[int, int], ...]],
        clients: dict[ClientId, Known],
    ) -> None:
        self.path, self.config, self.run, self.attempt = path, config, run, attempt
        self.begun, self.clients = begun, clients

    @classmethod
    def open(cls, path: Path, config: str) -> "Book":
        """The book of a deployment, opened for one more start.

        Raises:
            RunError: If it cannot be read, or is that of another experiment.
        """
        if not path.exists():
            return cls(path, config, secrets.token_hex(8), 1, {}, {})
        table = read_json(path)
        try:
            begun = {int(cell): tuple((int(a), int(t)) for a, t in rows) for cell, rows in table["begun"].items()}
            clients = {int(c): Known(str(k["data"]), bool(k["own"])) for c, k in table["clients"].items()}
            book = cls(path, str(table["config"]), str(table["run"]), int(table["attempt"]) + 1, begun, clients)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise RunError(
                f"{path} is not as a server writes it; restore it, clients remember by what it says"
            ) from None
        if book.config != config:
            raise RunError(f"{path} belongs to a run of another experiment; make a new folder with unskew deploy pack")
        return book

    def begin(self, cell: int, first: int) -> tuple[tuple[int, int], ...]:
        """Note that this server's first round of a cell is `first`; all starts in the cell."""
        self.begun[cell] = (*self.begun.get(cell, ()), (self.attempt, first))
        self.save()
        return self.begun[cell]

    def save(self) -> None:
        """Write it, whole or not at all."""
        table = {
            "run": self.run,
            "config": self.config,
            "attempt": self.attempt,
            "begun": {str(cell): [list(row) for row in rows] for cell, rows in self.begun.items()},
            "clients": {str(c): {"data": k.data, "own": k.own} for c, k in sorted(self.clients.items())},
        }
        write_atomically(self.path, json.dumps(table))


# ---------------------------------------------------------------- the run loop's side
@dataclass(frozen=True, eq=False)
class OverNetwork:
    """A run's clients are reached by letters; data stay where they are.

    Attributes:
        ready: Data set, network and device of the server, which tests the global model.
        roll: Who is there.
        book: What outlives this server.
        terms: Deadlines and bounds.
        own: Whether clients declared data of their own, of which nothing is known here.
    """

    ready: Setup
    membership: Membership
    book: Book
    terms: Terms
    own: bool

    def prepare(self, experiment: Experiment) -> Setup:
        """What all methods and seeds share."""
        return self.ready

    def divide(self, experiment: Experiment, setup: Setup, seed: int) -> FederatedData:
        """Who holds what, as the clients themselves divide it; nobody holds anything where they declared their own."""
        if not self.own:
            return run_setup.divide(experiment, setup.dataset, seed)
        nothing = torch.empty(0, dtype=torch.int64)
        number = self.membership.expected.num_clients
        experiment.cohort(number)
        clients = (ClientIndex(nothing, nothing, nothing),) * number
        return FederatedData(setup.dataset, clients, {"name": "own data"}, seed, "")

    def check_method(
        self, experiment: Experiment, method: Method, setup: Setup, feds: Mapping[int, FederatedData]
    ) -> None:
        """Refuse what the first round would refuse, as far as it is known without the clients' data."""
        if not self.own:
            run_setup.check_method(experiment, method, setup, feds)

    def runtime(
        self, experiment: Experiment, method: Method, setup: Setup, fed: FederatedData, cell: int, pool: Pool | None
    ) -> tuple[Runtime, FederatedData]:
        """The plan runs here, its steps where the clients are."""
        seed, _ = run_setup.cells(experiment)[cell]
        trainer, population, _ = run_setup.clients(experiment, method, setup, fed, seed)
        remote: Remote[Any] = Remote(
            method.algorithm,
            Model(setup.task.num_classes, population.layout, population.initial, population.initialise, trainer),
            fed.num_clients,
            self.membership,
            Sequential(trainer),
            begin=lambda first: self.book.begin(cell, first),
            cell=cell,
            seed=seed,
            clients_per_round=experiment.cohort(fed.num_clients),
            outage=experiment.world.outage,
            channel=experiment.world.channel,
            terms=self.terms,
        )
        return remote, fed


class Lines:
    """Says on stderr what happens, for the server's log."""

    def start(self, experiment: Experiment, setup: Setup, feds: dict[int, FederatedData]) -> None:
        """What is run."""
        labels = ", ".join(m.label for m in experiment.methods)
        self.note(f"{experiment.name}: {labels}; {experiment.rounds} rounds, seeds {', '.join(map(str, feds))}")

    def progress(self, progress: callbacks.Progress) -> None:
        """How far it is."""
        accuracy = "" if progress.accuracy is None else f", accuracy {progress.accuracy:.4f}"
        self.note(f"{progress.method}, seed {progress.seed}: round {progress.round} of {progress.rounds}{accuracy}")

    def note(self, text: str) -> None:
        """A line."""
        print(text, file=sys.stderr, flush=True)
