"""Runs an experiment on the clients that a transport reaches."""

import functools
import hashlib
import json
import re
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from unskew import tasks, wire
from unskew.data import checks, preprocess
from unskew.data.dataset import Dataset
from unskew.data.federated import FederatedData
from unskew.data.preprocess import ColumnSums, Preprocess
from unskew.deploy.client import divided, introduction
from unskew.deploy.settings import EXPERIMENT, is_elsewhere
from unskew.errors import ConfigError, RunError, WireError
from unskew.experiment.config import Experiment, NamedMethod, TaskConfig, fingerprint, load
from unskew.files import write_atomically
from unskew.keys import Key
from unskew.local.sequential import Sequential
from unskew.protocol import ClientId, hook
from unskew.run import loop
from unskew.run import setup as run_setup
from unskew.run.cell import Cell, Observer
from unskew.run.folder import read_json
from unskew.run.progress import evaluated
from unskew.run.setup import PreparedRun, Setup
from unskew.runtime.log import log, printable
from unskew.runtime.membership import Membership
from unskew.runtime.message import ClientInfo, NetworkTransfer, Note, Transport, write
from unskew.runtime.network import RemoteClients
from unskew.runtime.policy import ServerConfig
from unskew.runtime.round import Driver
from unskew.version import __version__

EXECUTOR = "network"
COMMAND = "unskew fed"
"""What begins the command that a deployed run's record has."""

OWN_CONSTANTS = (
    "each client standardises its images with its own mean and deviation, and the server with its data's. For a site's "
    "images use the model in that client's folder, or set the same numbers for all in task.data_options, as in "
    "{ mean = [0.5], std = [0.25] }"
)
"""Said of images given as bytes by clients with data of their own."""


def serve(
    transport: Transport,
    folder: Path,
    config: ServerConfig,
    callback: Observer | None = None,
    force: bool = False,
    *,
    clients: Collection[ClientId] | None = None,
    run: str = "",
    names: tuple[str, ...] = (),
) -> loop.RunResult:
    """Run or resume the experiment of a folder on the clients that `transport` reaches.

    Args:
        transport: The network.
        folder: Has experiment.toml; beside it are written deployment.json and run/, the run's folder.
        config: Number of clients, deadlines and limits.
        callback: Watches the run; by default it is logged.
        force: As in `loop.resume`.
        clients: Clients that may take part; by default all.
        run: Random name of the run, known to the clients; by default one is drawn.
        names: Names of the clients, if they have data of their own.

    Raises:
        ConfigError, DataError: If the experiment cannot be used.
        QuorumError: If too few clients are connected, or reply.
        RunError: If the run cannot be resumed.
    """
    callback = callback or LogCallback(log)
    number, place = config.num_clients, folder / "run"
    experiment = load(folder / EXPERIMENT, allow_code=True)  # the coordinator's own
    # Clients remember the last two rounds, so the server must not fall back further.
    experiment = replace(experiment, runtime=replace(experiment.runtime, checkpoint_every=1))
    if (place / "summary.json").exists():
        return loop.RunResult(place, read_json(place / "summary.json"))
    refuse_undeployable(experiment)
    # As the file is written, which clients have, too: read, it would be another after an upgrade.
    settings = fingerprint(folder / EXPERIMENT, portable=True)
    deployment = DeploymentState.open(folder / "deployment.json", settings, run)
    expected = ClientInfo(0, number, __version__, settings, (), "", "", config.own_data)
    member = functools.partial(Membership, transport, deployment.run, expected, config, clients, note=callback.note)
    rules = experiment.task.preprocess
    if config.own_data and rules is not None:
        rules = agreed(rules, deployment, names, member, callback.note)
        experiment = replace(experiment, task=replace(experiment.task, preprocess=rules))
    membership = member(deployment.clients, agreed=rules.columns if rules is not None and deployment.sums else None)
    inputs = run_setup.InMemoryInputs()
    if config.own_data and is_elsewhere(experiment.task.data):
        callback.note(f"{experiment.task.data} is not on this machine: results are those of the sites")
        membership.wait(config.min_clients, config.wait_s)
        inputs = replace(inputs, dataset=described(membership.known.values(), experiment.task))
        metrics = dict.fromkeys((*experiment.evaluate, "personal"))
        experiment = replace(experiment, evaluate=tuple(name for name in metrics if name != "global"))
    setup = run_setup.prepare(at_server(experiment, config), inputs, one_client=inputs.dataset is not None)
    setup = replace(setup, executor=EXECUTOR)
    nothing = {experiment.seeds[0]: run_setup.with_own_data(setup.dataset, number, experiment.seeds[0])}
    for method in experiment.methods:
        run_setup.check_method(PreparedRun(experiment, setup, nothing), method)
    if deployment.data not in ("", setup.dataset.sha256):  # its accuracies would be on two test sets
        raise RunError("the server's data are not those that its run began with; put these back, or begin a new run")
    deployment.data = setup.dataset.sha256

    if not config.own_data:
        divided(experiment, setup, number)
    membership.expect(introduction(setup, number, folder / EXPERIMENT, config.own_data))
    membership.wait(config.min_clients, config.wait_s)
    deployment.save()
    if config.own_data and setup.dataset.inputs.kind == "images" and "mean" not in experiment.task.data_options:
        callback.note(OWN_CONSTANTS)
        notes = (*setup.dataset.notes, OWN_CONSTANTS)
        setup = replace(setup, dataset=replace(setup.dataset, notes=notes))  # which the run's card and report have
    backend = OverNetwork(setup, membership, deployment, names)
    if (place / "run.json").exists():
        return loop.resume(place, callback, force, backend, allow_code=True)
    return loop.start(experiment, place, callback, command=COMMAND, backend=backend)


def agreed(
    rules: Preprocess, deployment: "DeploymentState", names: Sequence[str], met: Callable[[], Membership], note: Note
) -> Preprocess:
    """The rules with the numbers that the clients agree on, from sums of columns that each client sends once."""
    if not deployment.sums:
        first = met()
        first.wait(first.config.min_clients, first.config.wait_s)
        deployment.sums = {c: sums for c in first.present if (sums := first.known[c].sums)}
    if not deployment.sums:  # the experiment says all
        return rules
    by_name = {names[c] if names else f"client {c}": sums for c, sums in deployment.sums.items()}
    rules = preprocess.agree(rules, by_name)
    for sentence in checks.of_sums(by_name):
        note(sentence)
    deployment.save()
    return rules


def described(clients: Iterable[ClientInfo], task: TaskConfig) -> Dataset:
    """A data set without examples, with the classes and shapes that most clients report."""
    most, _ = Counter((info.classes, info.input, info.target) for info in clients).most_common(1)[0]
    outputs, (x, y) = most[0], map(_zeros, most[1:])
    form = tasks.kind_of(task.kind).targets
    counted = None if form.classes or form.tokens else torch.zeros(2, dtype=torch.int64)
    sha256 = hashlib.sha256(repr(most).encode()).hexdigest()
    name = f"{task.data.partition(':')[0]} at the sites"
    classes = outputs if counted is None else form.groups
    empty = Dataset(name, x, y, x[:0], y[:0], classes, None, (), sha256)
    return replace(empty, outputs=outputs, targets=form, groups=counted, inputs=preprocess.declared(task.preprocess))


def _zeros(shape: tuple[str, ...]) -> Tensor:
    """Two rows of zeros, of a type and shape that a client has named; refuse what there is not."""
    kinds = {"float32": torch.float32, "int64": torch.int64}
    if shape[:1] not in {(kind,) for kind in kinds} or not all(re.fullmatch(r"\d{1,6}", n) for n in shape[1:]):
        raise WireError(f"a client reported an impossible shape: {printable(', '.join(shape))}")
    return torch.zeros(2, *map(int, shape[1:]), dtype=kinds[shape[0]])


def at_server(experiment: Experiment, config: ServerConfig) -> Experiment:
    """The experiment as the server prepares it: on the CPU, since only clients train.

    Where clients have their own data, the server's images are for testing only.
    """
    task = experiment.task
    if config.own_data and task.data.partition(":")[0] == "images":
        task = replace(task, data_options={**task.data_options, "testing": True})
    return replace(experiment, task=task, runtime=replace(experiment.runtime, device="cpu"))


def refuse_undeployable(experiment: Experiment) -> None:
    """Refuse methods and evaluations that need all clients' data or models in one place."""
    if "personal_on_global" in experiment.evaluate:
        raise ConfigError(
            "evaluate: personal_on_global needs every client's own model and the server's test set in one place, and "
            "neither travels; leave it out"
        )
    if experiment.unseen.clients:
        raise ConfigError("unseen: a deployment trains on all clients; to hold a site out, name the others by --site")
    for method in experiment.methods:
        if hook(method.method, "pooled"):
            raise ConfigError(
                f"{method.label} trains on everybody's data in one place, which no deployment allows; leave it out"
            )


def check_split(experiment: Experiment, number: int) -> None:
    """Refuse an experiment that cannot be deployed, or whose own split is for another number of sites."""
    refuse_undeployable(experiment)
    divided(experiment, run_setup.prepare(experiment), number)


# ---------------------------------------------------------------- state that outlives a server
@dataclass
class DeploymentState:
    """State that outlives the server: deployment.json.

    Attributes:
        config: Fingerprint of the experiment, without the place of its data.
        run: Random name of the run, under which clients store their memory.
        clients: Each client's introduction when it first connected.
        begun: By cell, the number of rounds that were begun.
        data: SHA-256 of the data that the first server read; "" if there were none.
        sums: By client, of its columns, where numbers were agreed on.
    """

    config: str
    run: str
    clients: dict[ClientId, ClientInfo] = field(default_factory=dict)
    begun: dict[int, int] = field(default_factory=dict)
    data: str = ""
    sums: dict[ClientId, dict[str, ColumnSums]] = field(default_factory=dict)
    path = Path()  # no field: where it is written

    @classmethod
    def open(cls, path: Path, config: str, run: str = "") -> "DeploymentState":
        """Read the state of a deployment of this experiment; `run` names a new one."""
        state = cls(config, run or secrets.token_hex(8))
        if path.exists():
            try:
                state = wire.build(cls, read_json(path), {})
            except WireError:
                raise RunError(
                    f"{path} is damaged; restore it from a copy, clients' memory is tied to its contents"
                ) from None
        if state.config != config:
            raise RunError(f"{path} belongs to a run of another experiment; take a new folder")
        state.path = path
        return state

    def count(self, cell: int) -> int:
        """Record that a round of a cell begins, before any request leaves; returns how many have begun."""
        self.begun[cell] = self.begun.get(cell, 0) + 1
        self.save()
        return self.begun[cell]

    def save(self) -> None:
        """Write it atomically."""
        write_atomically(self.path, json.dumps(wire.flatten(self)[0]))


# ---------------------------------------------------------------- backend of the run loop
@dataclass(frozen=True, eq=False)
class OverNetwork(run_setup.Backend):
    """Backend of a run whose clients are reached over a network; data stay where they are.

    Attributes:
        ready: Data set, network and device of the server, which evaluates the global model.
        membership: Clients that are connected.
        deployment: State that outlives this server.
        names: Names of clients with their own data; empty if there are none.
    """

    ready: Setup
    membership: Membership
    deployment: DeploymentState
    names: tuple[str, ...]
    remote: ClassVar[bool] = True

    def prepare(self, experiment: Experiment) -> Setup:
        """The parts that all methods and seeds share."""
        return self.ready

    def divide(self, experiment: Experiment, setup: Setup, seed: int) -> FederatedData:
        """Split the data as the clients do; clients with their own data have none here."""
        if not self.membership.config.own_data:
            return run_setup.divide(experiment, setup.dataset, seed)
        number = self.membership.config.num_clients
        experiment.cohort(number)
        return run_setup.with_own_data(setup.dataset, number, seed, self.names)

    def check_method(self, run: PreparedRun, method: NamedMethod) -> None:
        """Raise the errors of a first round that can be seen without the clients' data."""
        number = self.membership.config.num_clients
        run_setup.played(run.experiment, method, run.experiment.seeds[0], number, simulated=False)
        run_setup.check_method(run, method)

    def runtime(self, run: PreparedRun, cell: int) -> tuple[Driver[Any], FederatedData]:
        """Run the plan here, and its steps on the clients."""
        experiment, (seed, method) = run.experiment, run_setup.cells(run.experiment)[cell]
        fed, (trainer, population, _) = run.feds[seed], run_setup.clients(run, method, seed)
        model = replace(population.model, measures=run.setup.task.measures, public=trainer.public)
        sums = self.deployment.sums if cell == 0 else {}
        before = [NetworkTransfer(1, -1, c, "up", "sums", len(write("", of).head), 0) for c, of in sums.items()]
        clients = RemoteClients(
            method.method,
            model,
            self.membership,
            Sequential(trainer),
            count=lambda: self.deployment.count(cell),
            key=Key(seed),
            cell=cell,
            seed_index=experiment.seeds.index(seed),
            spool=self.deployment.path.parent,
            before=before,
        )
        world: dict[str, Any] = {"outage": experiment.world.outage, "channel": experiment.world.channel}
        cohort = experiment.cohort(fed.num_clients)
        driver: Driver[Any] = Driver(method.method, model, clients, seed=seed, clients_per_round=cohort, **world)
        return driver, fed


class LogCallback(Observer):
    """Logs the progress of a run."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say

    def start(self, cell: Cell) -> None:
        """Log which method begins or is resumed."""
        done = f", after round {cell.round}" if cell.round else ""
        self.say(f"{cell.experiment.name}: {cell.method.label}, seed {cell.seed}{done}")

    def ended_round(self, cell: Cell) -> None:
        """Log the progress."""
        place = f"{cell.method.label}, seed {cell.seed}: round {cell.round} of {cell.experiment.rounds}"
        self.say(f"{place}  {evaluated(cell)}".rstrip())

    def note(self, text: str) -> None:
        """Log the note."""
        self.say(text)
