"""A federation at work: a server until its run is done, a client until it is stopped, or everything on one machine."""

import json
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from unskew import schema
from unskew.deploy import folders, launch
from unskew.deploy.certificates import check_node, check_server, make_private
from unskew.deploy.folders import Address, Terms
from unskew.deploy.launch import Family, Node, Say, Server, Unreachable
from unskew.deploy.server import ServerConfig
from unskew.errors import ConfigError, DeployError, RunError
from unskew.experiment.config import Experiment, fingerprint, load
from unskew.files import write_atomically
from unskew.run import setup as run_setup
from unskew.run.folder import locked, read_json
from unskew.run.loop import Interrupted

ASK_EVERY_S = 20.0
"""Between two questions to Flower about the run: each is a program that takes seconds to start."""
LOOK_EVERY_S = 0.25


# ---------------------------------------------------------------- what can be deployed
def clients_of(experiment: Experiment) -> int:
    """How many clients an experiment's own split has.

    Raises:
        ConfigError: If seeds differ in it, or a method cannot be deployed.
        DataError: If data or split cannot be had.
    """
    refuse_pooled(experiment)
    setup = run_setup.prepare(experiment)
    found = {seed: run_setup.divide(experiment, setup.dataset, seed).num_clients for seed in experiment.seeds}
    if len(set(found.values())) > 1:
        raise ConfigError(
            f"a federation has the same clients under every seed, the split makes {found}; choose one seed"
        )
    return next(iter(found.values()))


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
            f"--set split.num_clients={clients}, or --own-data if clients have data of their own"
        )


def refuse_pooled(experiment: Experiment) -> None:
    """Refuse methods that need everybody's data in one place.

    Raises:
        ConfigError: Naming the first.
    """
    for method in experiment.methods:
        if getattr(method.algorithm, "pooled", False):
            raise ConfigError(
                f"{method.label} trains on everybody's data in one place, which no deployment allows; leave it out"
            )


# ---------------------------------------------------------------- server
def check_serving(folder: Path) -> Address:
    """Refuse a server's folder that could not be served from; where it would listen.

    Raises:
        DeployError, ConfigError: Saying what is wrong with it.
    """
    listen = folders.address(folder)
    refuse_pooled(load(folder / "experiment.toml"))
    schema.build(ServerConfig, folders.terms(folder), "", str(folder / "server.toml"))
    folders.keys(folder)
    check_server(folder)
    launch.check_port(listen)
    return listen


def serve(folder: Path, say: Say) -> Path:
    """Run the server of a federation until its run is done; the run's folder.

    A run that was stopped goes on.

    Raises:
        DeployError, ConfigError: If the folder does not allow it or a program ends.
        RunError: If the run failed, with its reason.
    """
    if is_done(folder):
        return folder / "run"
    folders.address(folder)  # before anything is written into what may be no such folder
    with locked(folder), goes_on(folder), launch.stoppable(), Family() as family:
        listen = check_serving(folder)
        if listen.host not in ("127.0.0.1", "::1", "localhost"):
            say(
                f"warning: whoever reaches {listen} reaches Flower's Control API too, which asks for no password; let "
                "clients through to /v1/fleet/ only (nginx.conf here does)"
            )
        server = launch.start_server(family, folder, listen)
        say(f"server: listening at {listen}, {len(folders.keys(folder))} keys registered")
        attend(server, launch_run(server), say)
    return folder / "run"


@contextmanager
def goes_on(folder: Path) -> Iterator[None]:
    """Say of a run that was stopped how it goes on."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"stopped by request; {folder} goes on when the same command is given again") from None


def is_done(folder: Path) -> bool:
    """Whether the run of a server's folder has come to its end."""
    return (folder / "run" / "summary.json").exists()


def launch_run(server: Server) -> int:
    """Start the run, or go on with it; its number."""
    (server.folder / "outcome.json").unlink(missing_ok=True)
    return launch.start_run(server)


class Kept(Protocol):
    """What is looked after while a run goes on."""

    def keep(self) -> None:
        """Called several times a second."""
        ...


def attend(server: Server, run: int, say: Say, nodes: Sequence[Kept] = ()) -> None:
    """Wait for the end of a run, telling what happens, while programs are kept running.

    Raises:
        DeployError: If a program ends that the run cannot do without.
        RunError: If the run failed.
    """
    progress = ProgressDisplay(server.folder / "run", load(server.folder / "experiment.toml").rounds)
    asked, status, details = time.monotonic(), "", ""
    while True:
        for node in nodes:
            node.keep()
        # A run's last lines are written before its end is: looked for after the lines, an end would leave some untold.
        known = status.startswith("finished")
        over = known or is_done(server.folder) or (server.folder / "outcome.json").exists()
        for line in progress.news():
            say(line)
        if over:
            end_of(server, run, *((status, details) if known else ("failed", "")))
            return
        server.check()
        if time.monotonic() - asked > ASK_EVERY_S:
            status, details = launch.run_status(server, run)
            asked = time.monotonic()
        time.sleep(LOOK_EVERY_S)


def end_of(server: Server, run: int, status: str, details: str = "") -> None:
    """Tell a run that is done from one that failed; what the server's program printed is kept then.

    Raises:
        RunError: If it failed, with its reason.
    """
    if is_done(server.folder):
        return
    log = server.folder / "logs" / "serverapp.log"
    with suppress(DeployError, OSError):
        write_atomically(log, launch.printed(server, run))
    text = ""
    with suppress(RunError):
        outcome = read_json(server.folder / "outcome.json")
        text = f"{outcome.get('error', 'Error')}: {outcome.get('text', '')}"
    text = text or last_error(log) or details or status
    raise RunError(f"the deployed run failed: {text} (log: {log}; the run stands in {server.folder / 'run'})")


def last_error(log: Path) -> str:
    """The last line of a log that names an error, as Python ends a traceback."""
    with suppress(OSError):
        found = re.findall(r"^(?:[\w.]+\.)?(\w*(?:Error|Interrupted)): (.+)$", log.read_text("utf-8", "replace"), re.M)
        if found:
            return f"{found[-1][0]}: {found[-1][1]}"
    return ""


@dataclass
class ProgressDisplay:
    """What a run's logs have to tell, line by line, as it is written.

    Attributes:
        folder: The run's.
        rounds: Of each method and seed.
        read: How much of each log has been told.
    """

    folder: Path
    rounds: int
    read: dict[str, int] = field(default_factory=dict)

    def news(self) -> Iterator[str]:
        """Lines that were not told before."""
        for row in self.rows("metrics"):
            if row["name"] == "seconds":
                where = f"{row['method']}, seed {row['seed']}: round {row['round']} of {self.rounds}"
                yield f"{where}, {row['value']:.1f} s"
            elif row["name"] == "global.accuracy" and row["round"]:
                yield f"{row['method']}, seed {row['seed']}: accuracy {row['value']:.4f} after round {row['round']}"
        for row in self.rows("failures"):
            yield (
                f"{row['method']}, seed {row['seed']}, round {row['round']}: client {row['client']}, "
                f"step {row['step']!r}: {row['reason']}"
            )

    def rows(self, name: str) -> Iterator[dict[str, Any]]:
        """Whole new lines of a log; one that became shorter was cut to a checkpoint and is told again from there."""
        path, at = self.folder / f"{name}.jsonl", self.read.get(name, 0)
        try:
            size = path.stat().st_size
        except OSError:
            return
        at = min(at, size)
        if size > at:
            with path.open("rb") as f:
                f.seek(at)
                whole = f.read(size - at).rpartition(b"\n")[0]
            at += len(whole) + bool(whole)
            for line in whole.splitlines():
                yield json.loads(line)
        self.read[name] = at


# ---------------------------------------------------------------- client
def check_taking_part(folder: Path) -> float:
    """Refuse a client's folder or a server that would not let it take part; how far its clock is ahead, in seconds.

    Raises:
        Unreachable: If nobody answers yet.
        DeployError, ConfigError: Saying what is wrong.
    """
    check_node(folder)
    return launch.look(folders.address(folder), folder / "ca.crt")


def take_part(folder: Path, say: Say) -> None:
    """Be a client until stopped: waits for the server, and starts again what ends.

    Raises:
        DeployError, ConfigError: If it could never take part: its key, the server's certificate, the clocks.
        KeyboardInterrupt: When it is stopped.
    """
    folders.address(folder)
    with locked(folder), launch.stoppable(), Family() as family:
        said = ""
        while True:
            try:
                check_taking_part(folder)
                break
            except Unreachable as error:
                if str(error) != said:
                    say(f"{error}; waiting for it")
                    said = str(error)
                time.sleep(2.0)
        node = Node(family, folder, say)
        say(f"client: taking part at {node.reached}; Ctrl-C ends it")
        while True:
            node.keep()
            time.sleep(LOOK_EVERY_S)


# ---------------------------------------------------------------- everything here
def local(experiment: Experiment, num_clients: int, out: Path, say: Say, restart: bool = True) -> Path:
    """Run an experiment with a server and clients of its own as processes on this machine; its run folder.

    Everything about the deployment lies in `out/deploy`.  When the run is done its files are moved to `out`, where
    those of a simulation would be.  A run that was stopped goes on.

    Args:
        experiment: What to run.
        num_clients: As many as its split has.
        out: The run's folder.
        say: Gets a line when something happens.
        restart: Whether a client that ended is started again.

    Raises:
        ConfigError, DataError: If the experiment cannot be deployed so.
        DeployError: If a program cannot be started, or ends.
        RunError: If there is something else in `out`, or the run failed.
    """
    if (out / "summary.json").exists():
        same = fingerprint(load(out / "config.toml")) == fingerprint(experiment)
        if not same:
            raise RunError(f"{out} holds a run of another experiment; choose another --out")
        return out
    have = clients_of(experiment)
    if num_clients != have:
        raise ConfigError(
            f"--local {num_clients} must be the number of the split's clients, {have}: each is a process, and any of "
            f"them may be asked; use --local {have} or --set split.num_clients={num_clients}"
        )
    deployment = prepare(experiment, num_clients, out)
    server_folder = deployment / "server"
    if not is_done(server_folder):
        with locked(deployment), goes_on(out), launch.stoppable(), Family() as family:
            server = launch.start_server(family, server_folder, folders.address(server_folder))
            say(f"server: listening at {folders.address(server_folder)}")
            nodes = [
                Node(family, folders.client_folder(deployment, c), say, f"client {c}", restart)
                for c in range(num_clients)
            ]
            for node in nodes:
                node.keep()
            attend(server, launch_run(server), say, nodes)
    return collect(server_folder / "run", out)


def prepare(experiment: Experiment, num_clients: int, out: Path, terms: Terms | None = None) -> Path:
    """The deployment's folder, new or that of a run that was stopped; it listens on a port that is free now.

    Raises:
        RunError: If there is something else in `out`, or the disk refuses.
    """
    deployment = out / "deploy"
    if deployment.is_dir() and (deployment / "server" / "experiment.toml").exists():
        if fingerprint(load(deployment / "server" / "experiment.toml")) != fingerprint(experiment):
            raise RunError(f"{out} holds a run of another experiment; choose another --out")
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(f"{out} exists already and holds no deployment; choose another --out")
    address = Address("127.0.0.1", launch.free_ports(1)[0])
    if not deployment.exists():
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot make {out}: {error.strerror}; choose another --out") from None
        new = out / ".deploy"
        shutil.rmtree(new, ignore_errors=True)
        folders.pack(new, experiment, num_clients, address, address, terms=terms, portable=False)
        new.rename(deployment)
    make_private(deployment)
    for folder in (deployment / "server", *(folders.client_folder(deployment, c) for c in range(num_clients))):
        folders.write_address(folder, address)
    return deployment


def collect(run: Path, out: Path) -> Path:
    """Move a run that is done to where a simulation's would be; summary.json last, so that half a move is seen."""
    for path in sorted(run.iterdir(), key=lambda p: (p.name == "summary.json", p.name)):
        if path.name != ".lock":
            path.rename(out / path.name)
    write_atomically(run / "MOVED", f"This run is done; its files are in {out.absolute()}.\n")
    return out
