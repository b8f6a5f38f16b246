"""Runs a federation: a server until its run is done, a client until it is stopped, or everything on one machine."""

import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import tomli_w

from unskew.data.preprocess import check_agreed
from unskew.data.split import SPLITS
from unskew.deploy import folders, reach, server, signing
from unskew.deploy.certificates import check_client, check_server, days_left, make_private
from unskew.deploy.channel import Connection, GrpcServer, credentials, stay_connected
from unskew.deploy.client import open_client
from unskew.deploy.reach import Unreachable
from unskew.deploy.server import at_server, check_evaluated, on_cpu
from unskew.deploy.settings import (
    CODE_PATH,
    EXPERIMENT,
    Address,
    ClientConfig,
    ServerConfig,
    Site,
    code_path,
    find_own_code,
    own_state,
    packed_clients,
    read_rules,
    read_settings,
)
from unskew.errors import ConfigError, DataError, DeployError, RunError, UnskewError, noted, shown
from unskew.experiment.config import Experiment, TaskConfig, is_written_in, load, read_toml
from unskew.files import rename_folder, write_atomically
from unskew.protocol import hook
from unskew.run import setup as run_setup
from unskew.run.folder import locked
from unskew.run.loop import Interrupted
from unskew.runtime.log import log, to_stderr
from unskew.runtime.membership import printable
from unskew.signals import handled
from unskew.version import __version__

Say = Callable[[str], None]
WARN_DAYS = 60
"""Days before its end from which on a certificate is warned of."""
TOLD_AGAIN_S = 60.0
"""Time for which a connection must have held for its loss to be told again, seconds."""
GRACE_S = 8.0
"""Time between SIGTERM and SIGKILL, seconds."""
LONGEST_PAUSE_S = 60.0
"""Longest pause before a client's process is started again, seconds."""
UNUSABLE = 2
"""Exit code of a client whose settings or data cannot be used: starting it again would not help."""


# ---------------------------------------------------------------- experiments that can be deployed
def clients_of(experiment: Experiment) -> int:
    """Number of clients of an experiment's own split.

    Raises:
        ConfigError: If it differs between seeds, or a method cannot be deployed.
        DataError: If the data cannot be read or split.
    """
    refuse_undeployable(experiment)
    setup = run_setup.prepare(on_cpu(experiment))
    numbers = {seed: run_setup.divide(experiment, setup.dataset, seed).num_clients for seed in experiment.seeds}
    if len(set(numbers.values())) > 1:
        raise ConfigError(
            f"a federation has the same clients under every seed, the split makes {numbers}; choose one seed"
        )
    return next(iter(numbers.values()))


def check_clients(experiment: Experiment, clients: int) -> None:
    """Refuse a number of clients that the experiment's own split does not have.

    Raises:
        ConfigError: If so, or as `clients_of`.
        DataError: If the number follows from data that cannot be read here.
    """
    have = experiment.split.num_clients or clients_of(experiment)
    if clients != have:
        raise ConfigError(
            f"--clients {clients} must be the number of the split's clients, {have}, who take their data from it; use "
            f"--clients {have}{_resized(experiment, clients)}, or --own-data if clients have data of their own"
        )


def _resized(experiment: Experiment, clients: int) -> str:
    """The options that give the split another number of clients; empty where the data say how many there are."""
    split = experiment.split
    if split.num_clients is None:
        return ""
    return f", or --set split.name={SPLITS.name_of(type(split))} --set split.num_clients={clients}"


def check_own_tables(experiment: Experiment) -> None:
    """Refuse an experiment whose clients, each with a table of its own, would lack numbers that all must agree on.

    Raises:
        ConfigError: Naming the first column that lacks some, and the commands that make them.
    """
    rules = experiment.task.preprocess
    if rules is None:
        return
    try:
        inputs = run_setup.prepare(on_cpu(experiment)).dataset.inputs
    except DataError:  # the experiment's own table may lie on the server only
        check_agreed(rules)
    else:
        check_agreed(rules, inputs.columns)


def refuse_undeployable(experiment: Experiment) -> None:
    """Refuse methods and evaluations that need all clients' data or models in one place.

    Raises:
        ConfigError: Naming the first.
    """
    check_evaluated(experiment)
    for method in experiment.methods:
        if hook(method.method, "pooled"):
            raise ConfigError(
                f"{method.label} trains on everybody's data in one place, which no deployment allows; leave it out"
            )


def check_methods(experiment: Experiment, config: ServerConfig, clients: int) -> None:
    """Refuse what the first round would refuse whatever data the clients have.

    Raises:
        ConfigError, DataError, ProtocolError: As in a run.
    """
    setup = run_setup.prepare(at_server(experiment, config))
    seed = experiment.seeds[0]
    for method in experiment.methods:
        run_setup.check_method(experiment, method, setup, {seed: run_setup.with_own_data(setup.dataset, clients, seed)})


def check_version(path: Path, kind: type[ServerConfig | ClientConfig], say: Say | None = None) -> None:
    """Refuse the settings of a folder that another version of unskew packed; with `say` only say so.

    Raises:
        DeployError: If so.
    """
    packed = read_settings(path, kind).library
    if packed != __version__:
        text = (
            f"unskew {__version__} is installed here, and {path.parent} was packed with {printable(packed)}; server "
            f"and clients must have one version"
        )
        if say is None:
            raise DeployError(text)
        say(text)


# ---------------------------------------------------------------- server
def check_serving(folder: Path, read_data: bool = False) -> Address:
    """Refuse a server's folder that a server could not run from; the address it would listen at.

    Args:
        folder: The server's folder.
        read_data: True to read the experiment's own data, too, as the run will do; else they only have to be there.

    Raises:
        DeployError, ConfigError, DataError: Naming what is wrong with it.
    """
    listen = folders.address(folder)
    experiment = load(folder / EXPERIMENT, allow_code=True)  # the coordinator's own
    refuse_undeployable(experiment)
    path = folder / "server.toml"
    config = read_settings(path, ServerConfig)
    clients = packed_clients(path, config, folders.clients(folder))
    if read_data or folders.not_here(experiment.task.data) is not None:
        check_methods(experiment, config, clients)
    check_server(folder)
    reach.check_port(listen)
    return listen


def serve(folder: Path, say: Say, force: bool = False, watch: Callable[[], None] = lambda: None) -> Path:
    """Run the server of a federation until its run is done; the run's folder.

    A run that was stopped is continued, with `force` though versions or machine have changed.  `watch` is called
    several times a second while it waits.

    Raises:
        DeployError, ConfigError, DataError: If the folder cannot be used.
        QuorumError, RunError: If the run failed, with the reason.
    """
    run = folder / "run"
    if (run / "summary.json").exists():
        say(
            f"the run is over, and no client is served any more: one that was away at its end gets what is in "
            f"{run / 'models'} from you"
        )
        return run
    folders.address(folder)  # before anything is written into a folder that may be something else
    with locked(folder), resumable(folder):
        listen = check_serving(folder)
        check_version(folder / "server.toml", ServerConfig, say)
        known = folders.clients(folder)
        with GrpcServer(
            str(listen), credentials(folder, "server"), lambda: folders.keys(folder), say, watch
        ) as network:
            say(f"server: listening at {listen}, {len(known)} clients may take part")
            if (days := days_left(folder / "server.crt")) < WARN_DAYS:
                say(f"the server's certificate expires in {days} days: sign another one, unskew deploy pack --renew")
            server.serve(network, folder, server.LogCallback(say), force)
    return run


def stoppable() -> AbstractContextManager[None]:
    """Let SIGTERM and SIGHUP end this process as Ctrl-C does: by leaving every open `with` block."""

    def heard(number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    return handled((signal.SIGTERM, signal.SIGHUP), heard)


@contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """Tell the user how a run that was stopped is continued."""
    try:
        with stoppable():
            yield
    except KeyboardInterrupt:
        raise Interrupted(f"stopped by request; give the same command again to continue the run in {folder}") from None


# ---------------------------------------------------------------- client
def check_signature(folder: Path, say: Say, site: Site = Site(), remember: bool = True) -> None:
    """Refuse a client's folder that is not as its coordinator signed it, before anything else in it is read.

    Raises:
        DeployError: Naming what differs.
    """
    signed = signing.check(folder.absolute(), own_state() / "accepted", remember)
    rules = read_rules(folder)
    expected = rules.policy.coordinator
    if expected is not None and "".join(expected.lower().split()) != signed.fingerprint.replace(" ", ""):
        raise DeployError(
            f"{folder} was signed with the key {signed.fingerprint}, and {rules.where} trusts coordinator = "
            f'"{expected}" only; ask the coordinator, by telephone, which key is theirs'
        )
    say(f"signed with the key {signed.fingerprint}; compare it with the coordinator's by telephone")
    if signed.changed:
        say(f"changed here since it was packed: {', '.join(signed.changed)}")
    task = read_toml(folder / EXPERIMENT).get("task")
    theirs = task.get("data", TaskConfig.data) if isinstance(task, Mapping) else TaskConfig.data
    say(f"data: {printable(site.data or f'its part of {theirs}')}")


def after_the_run(folder: Path) -> str:
    """Say what a participant can do whose server stays away because its run is over."""
    if any((folder / "models").glob("*-seed*.json")):
        return f"if the run is over nobody will: this client's own models are in {folder / 'models'}"
    return (
        "if the run is over nobody will: ask the coordinator for the global model, in run/models of the server's folder"
    )


def check_taking_part(folder: Path) -> None:
    """Refuse a client that could not take part.

    Raises:
        Unreachable: If there is no answer yet.
        DeployError, ConfigError: Naming what is wrong with its folder or the server.
    """
    check_client(folder)
    reach.probe(folders.address(folder), folder)


def take_part(folder: Path, say: Say, site: Site = Site()) -> None:
    """Run a client until it is stopped; a connection that breaks is made anew.

    Raises:
        DeployError, ConfigError, DataError: If it could never take part: its folder, its data, its key, the server's
            certificate.
        KeyboardInterrupt: When it is stopped.
    """
    check_signature(folder, say, site)
    reached = folders.address(folder)
    check_version(folder / "client.toml", ClientConfig, say)  # which the server may have, too
    check_client(folder)
    if site.allow_code:
        find_own_code()
    with locked(folder), stoppable():
        for kept in ("state", "models"):  # whoever may enter the folder above, after a copy
            make_private(folder / kept)
        with noted() as notes:
            runtime = open_client(folder.absolute(), site)
        for note in notes:
            say(f"client {runtime.client}: warning: {' '.join(shown(note).splitlines())}")
        connection = Connection(str(reached), credentials(folder, "client"), runtime.answer)
        say(f"client {runtime.client}: taking part at {reached}; Ctrl-C ends it")
        last = ""

        def lost(error: DeployError, held_s: float) -> None:
            nonlocal last
            text = str(error)
            try:
                check_taking_part(folder)
            except Unreachable as why:
                text = f"{why}: the run has ended, or the server was stopped"
            except DeployError as why:
                text = str(why)
            if text != last or held_s > TOLD_AGAIN_S:
                say(f"{text}; waiting for it, Ctrl-C ends this client ({after_the_run(folder)})")
                last = text

        stay_connected(connection, lost)


# ---------------------------------------------------------------- everything on this machine
def local(
    experiment: Experiment, num_clients: int, out: Path, say: Say, restart: bool = True, force: bool = False
) -> Path:
    """Run an experiment with a server and clients as processes on this machine; its run folder.

    Certificates, keys and logs are in `out/deploy`.  When the run is done its files are moved to `out`, where those of
    a simulation would be.  A run that was stopped is continued.

    Args:
        experiment: Experiment to run.
        num_clients: Number of clients, that of its split.
        out: Folder of the run.
        say: Called with a line when something happens.
        restart: False to leave a client stopped when it has ended.
        force: True to continue though versions or machine have changed.

    Raises:
        ConfigError, DataError: If the experiment cannot be deployed so.
        DeployError: If a program cannot be started, or ends.
        RunError: If there is something else in `out`, or the run failed.
    """
    if (out / "summary.json").exists():
        if not is_written_in(out / "config.toml", experiment):
            raise RunError(f"{out} holds a run of another experiment; choose another --out")
        return out
    have = clients_of(experiment)
    if num_clients != have:
        raise ConfigError(
            f"--local {num_clients} must be the number of the split's clients, {have}: each is a process, and any of "
            f"them may be asked; use --local {have}{_resized(experiment, num_clients)}"
        )
    deployment = prepare(experiment, num_clients, out)
    with locked(deployment), resumable(out), ExitStack() as ended:
        clients = [
            ended.enter_context(ClientProcess(folders.client_folder(deployment, c), deployment / "policy.toml", say))
            for c in range(num_clients)
        ]

        def look() -> None:
            for client in clients:
                client.look(restart)

        def terminate() -> None:
            for client in clients:
                client.terminate()

        ended.callback(terminate)  # all at once; each is waited for then
        run = serve(deployment / "server", say, force, look)
    return collect(run, out)


class ClientProcess:
    """A client as a process of its own, ended with the `with` block, or with the process that started it.

    Args:
        folder: The client's folder; `logs/` beside it has what the process says.
        policy: The participant's policy.
        say: Called with a line when it is started again.
    """

    def __init__(self, folder: Path, policy: Path, say: Say) -> None:
        self.folder, self.say, self.log = folder, say, folder.parent / "logs" / f"{folder.name}.log"
        self.environment = {**os.environ, "UNSKEW_POLICY": str(policy.absolute()), CODE_PATH: code_path()}
        self.process: subprocess.Popen[bytes] | None = None
        self.due = self.pause = 0.0

    def __enter__(self) -> "ClientProcess":
        self.log.parent.mkdir(exist_ok=True)
        return self

    def terminate(self) -> None:
        """Ask it to end."""
        if self.process is not None:
            self.process.terminate()

    def __exit__(self, *of_error: object) -> None:
        self.terminate()
        if self.process is not None:
            try:
                self.process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def look(self, restart: bool = True) -> None:
        """Start it, or start it again after a pause when it has ended; to be called often.

        Raises:
            DeployError: If its settings or data cannot be used.
        """
        if self.process is not None and self.process.poll() is None:
            return
        if self.process is not None and self.process.returncode == UNUSABLE:
            last = self.log.read_text("utf-8", "replace").strip().rpartition("\n")[2]
            raise DeployError(f"{self.folder.name} ended: {last} (log: {self.log})")
        now = time.monotonic()
        if self.process is not None and not self.due:
            self.pause = min(2 * self.pause + 1.0, LONGEST_PAUSE_S)
            self.due = now + self.pause if restart else math.inf
            again = f"; restarting in {self.pause:.0f} s" if restart else ""
            self.say(f"{self.folder.name} ended with code {self.process.returncode}{again} (log: {self.log})")
        if now < self.due:
            return
        self.due = 0.0
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", CHILD, str(self.folder)],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


CHILD = "import sys; from unskew.deploy.operate import child; child(sys.argv[1])"


def child(folder: str) -> None:
    """Take part as a process that ends with the one that started it."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)  # nothing is lost that its folder does not have

    threading.Thread(target=watch, daemon=True).start()
    to_stderr()
    try:
        take_part(Path(folder), log, Site(allow_code=True))
    except KeyboardInterrupt:
        os._exit(0)  # Python's own end takes seconds
    except UnskewError as error:
        print(" ".join(str(error).splitlines()), file=sys.stderr)
        sys.exit(UNUSABLE)


def prepare(experiment: Experiment, num_clients: int, out: Path, config: ServerConfig | None = None) -> Path:
    """Make the deployment's folder, or take that of a run that was stopped, with a port that is free now.

    Raises:
        RunError: If there is something else in `out`, or the disk refuses.
    """
    deployment = out / "deploy"
    if deployment.is_dir() and (deployment / "server" / "experiment.toml").exists():
        if not is_written_in(deployment / "server" / "experiment.toml", experiment):
            raise RunError(f"{out} holds a run of another experiment; choose another --out")
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(f"{out} exists already and holds no deployment; choose another --out")
    address = Address("127.0.0.1", reach.free_ports(1)[0])
    if not deployment.exists():
        try:
            make_private(out)  # a run's folder: clients' models end up in it
        except OSError as error:
            raise RunError(f"cannot make {out}: {error.strerror}; choose another --out") from None
        new = out / ".deploy"
        shutil.rmtree(new, ignore_errors=True)
        folders.pack(new, experiment, num_clients, address, address, config=config, portable=False)
        rename_folder(new, deployment)
    make_private(deployment)
    # Nothing leaves this machine, so nothing is charged to its user's own privacy budget.
    account = str((deployment / "privacy.jsonl").absolute())
    write_atomically(deployment / "policy.toml", tomli_w.dumps({"privacy": account, "paths": ["/", "hub:"]}))
    for folder in (deployment / "server", *(folders.client_folder(deployment, c) for c in range(num_clients))):
        folders.write_address(folder, address)
    return deployment


def collect(run: Path, out: Path) -> Path:
    """Move the files of a run that is done to `out`; summary.json last, so that an interrupted move is noticed."""
    for path in sorted(run.iterdir(), key=lambda p: (p.name == "summary.json", p.name)):
        if path.name != ".lock":
            path.rename(out / path.name)
    write_atomically(run / "MOVED", f"This run is done; its files are in {out.absolute()}.\n")
    return out
