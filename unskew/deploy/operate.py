"""Runs a federation: a server until its run is done, a client until it is stopped, or everything on one machine."""

import math
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import tomli_w

from unskew.data.preprocess import check_agreed, check_agreed_unseen
from unskew.data.split import SPLITS
from unskew.deploy import folders, launch, processes, reach, signing
from unskew.deploy.certificates import check_node, check_server, make_private
from unskew.deploy.launch import ClientProcesses, Say, ServerProcesses
from unskew.deploy.processes import ProcessGroup
from unskew.deploy.reach import Unreachable
from unskew.deploy.server import append_line, at_server, check_evaluated, on_cpu
from unskew.deploy.settings import (
    EXPERIMENT,
    Address,
    ClientConfig,
    ServerConfig,
    Site,
    own_state,
    packed_clients,
    read_rules,
    read_settings,
)
from unskew.errors import ConfigError, DataError, DeployError, RunError, UnskewError
from unskew.experiment.config import Experiment, TaskConfig, is_written_in, load, read_toml
from unskew.files import rename_folder, write_atomically
from unskew.protocol import hook
from unskew.record.logs import LOGS
from unskew.run import setup as run_setup
from unskew.run.folder import locked, read_json
from unskew.run.loop import Interrupted
from unskew.runtime.membership import printable
from unskew.runtime.resident import timed, untimed
from unskew.tasks.measure import ACCURACY, Measure
from unskew.version import __version__

ASK_EVERY_S = 20.0
"""Interval between two requests for the run's status, seconds: each takes a program that starts slowly."""
LOOK_EVERY_S = 0.25
FORGOTTEN_ROUNDS = 10
"""Rounds after which a client that is lost as it was before is told of anew."""
SHOWN = ("metrics", "failures")
"""Logs of a run whose rows are shown while it goes on."""
ASK_SERVER_EVERY_S = 30.0
"""Interval between two looks of a client whether the server is still there, seconds."""


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
        check_agreed_unseen(rules)
    else:
        check_agreed(rules, inputs)


def refuse_undeployable(experiment: Experiment) -> None:
    """Refuse methods and evaluations that need all clients' data or models in one place.

    Raises:
        ConfigError: Naming the first.
    """
    check_evaluated(experiment)
    for method in experiment.methods:
        if hook(method.algorithm, "pooled"):
            raise ConfigError(
                f"{method.label} trains on everybody's data in one place, which no deployment allows; leave it out"
            )


def check_methods(experiment: Experiment, config: ServerConfig, clients: int) -> None:
    """Refuse what the first round would refuse whatever data the clients have.

    Raises:
        ConfigError, DataError, ProtocolError: As in a run.
    """
    setup = run_setup.prepare(at_server(experiment, config))
    for method in experiment.methods:
        run_setup.check_method_alone(experiment, method, setup, clients)


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
    experiment = load(folder / "experiment.toml", allow_code=True)  # the coordinator's own
    refuse_undeployable(experiment)
    path = folder / "server.toml"
    config = read_settings(path, ServerConfig)
    clients = packed_clients(path, config, folders.keys(folder))
    if read_data or folders.not_here(experiment.task.data) is not None:
        check_methods(experiment, config, clients)
    check_server(folder)
    reach.check_port(listen)
    return listen


def serve(folder: Path, say: Say, force: bool = False) -> Path:
    """Run the server of a federation until its run is done; the run's folder.

    A run that was stopped is continued, with `force` though versions or machine have changed.

    Raises:
        DeployError, ConfigError: If the folder cannot be used, or a program ends.
        RunError: If the run failed, with the reason.
    """
    if is_done(folder):
        say(
            f"the run is over, and no client is served any more: one that was away at its end gets what is in "
            f"{folder / 'run' / 'models'} from you"
        )
        return folder / "run"
    folders.address(folder)  # before anything is written into a folder that may be something else
    with locked(folder), resumable(folder), processes.stoppable(), ProcessGroup() as group:
        listen = check_serving(folder)
        check_version(folder / "server.toml", ServerConfig, say)
        server = launch.start_server(group, folder, listen)
        say(f"server: listening at {listen}, {len(folders.keys(folder))} keys registered")
        since = told(folder)
        wait_for_end(server, launch_run(server, force), say, since=since)
    return folder / "run"


@contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """Tell the user how a run that was stopped is continued."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"stopped by request; give the same command again to continue the run in {folder}") from None


def is_done(folder: Path) -> bool:
    """True if the run of a server's folder is done."""
    return (folder / "run" / "summary.json").exists()


def launch_run(server: ServerProcesses, force: bool = False) -> int:
    """Start or continue the run, if `force` under other versions, too; Flower's number of it."""
    (server.folder / "outcome.json").unlink(missing_ok=True)  # that of a server before this one
    return launch.start_run(server, force)


def told(folder: Path) -> dict[str, int]:
    """Bytes of a server's notes, and rows of its record, that servers before this one have written, and told."""
    notes, run = folder / folders.NOTES, folder / "run"
    rows = {name: LOGS[name].fresh(run, 0)[1] for name in SHOWN}
    return {**rows, **({"notes": notes.stat().st_size} if notes.exists() else {})}


class Supervised(Protocol):
    """Processes to be restarted during a run."""

    def supervise(self) -> None:
        """Restart what has ended; called several times a second."""
        ...


def wait_for_end(
    server: ServerProcesses,
    run: int,
    say: Say,
    nodes: Sequence[Supervised] = (),
    since: Mapping[str, int] | None = None,
) -> None:
    """Wait for the end of a run, reporting its progress and restarting clients.

    Args:
        server: The server.
        run: Flower's number of the run.
        say: Writes a line.
        nodes: Processes to restart.
        since: What was `told` before it was launched; by default nothing.

    Raises:
        DeployError: If a program of the server ends.
        RunError: If the run failed.
    """
    experiment = load(server.folder / "experiment.toml", allow_code=True)
    headline = experiment.task.check().headline
    notes = server.folder / folders.NOTES
    progress = ProgressDisplay(server.folder / "run", experiment.rounds, headline, notes, dict(since or {}))
    shared = launch.SharedKeys(server.children[0], folders.keys(server.folder))
    asked, status, details = time.monotonic(), "", ""
    while True:
        for node in nodes:
            node.supervise()
        # A run writes its last lines before its end: were the end checked after the lines, some would be missed.
        known = status.startswith("finished")
        over = known or is_done(server.folder) or (server.folder / "outcome.json").exists()
        for line in shared.new_lines():
            append_line(notes, timed(line))  # which are told next
        for line in progress.new_lines():
            say(line)
        if over:
            conclude(server, run, *((status, details) if known else ("failed", "")))
            return
        server.check()
        if time.monotonic() - asked > ASK_EVERY_S:
            status, details = launch.run_status(server, run)
            asked = time.monotonic()
        time.sleep(LOOK_EVERY_S)


def conclude(server: ServerProcesses, run: int, status: str, details: str = "") -> None:
    """Return if the run is done; otherwise keep the output of the server's program.

    Raises:
        RunError: If the run failed, with the reason.
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
    run_folder = server.folder / "run"
    where = f"; run folder: {run_folder}" if run_folder.exists() else ""
    raise RunError(f"the deployed run failed: {text} (log: {log}{where})")


def last_error(log: Path) -> str:
    """Last line of a log that names an error, as at the end of a traceback."""
    with suppress(OSError):
        errors = re.findall(r"^(?:[\w.]+\.)?(\w*(?:Error|Interrupted)): (.+)$", log.read_text("utf-8", "replace"), re.M)
        if errors:
            return f"{errors[-1][0]}: {errors[-1][1]}"
    return ""


@dataclass
class ProgressDisplay:
    """Progress of a run in words, from the logs in its folder.

    Attributes:
        folder: Folder of the run.
        rounds: Rounds of each method and seed.
        headline: The metric that is shown.
        notes: File of lines that are shown as they are.
        read: Rows of each table, and bytes of the notes, that have been read.
        losses: By client and reason, method, seed and round of the last loss, and in how many rounds there was one.
    """

    folder: Path
    rounds: int
    headline: Measure = ACCURACY
    notes: Path | None = None
    read: dict[str, int] = field(default_factory=dict)
    losses: dict[tuple[int, str], tuple[tuple[str, int, int], int]] = field(default_factory=dict)

    def new_lines(self) -> Iterator[str]:
        """Yield a line for everything that is new since the last call.

        That a client is lost for one reason is told once, and again in its 10th, 100th, ... such round.
        """
        if self.notes is not None:
            lines, self.read["notes"] = folders.fresh_lines(self.notes, self.read.get("notes", 0))
            yield from map(untimed, lines)
        for row in self.rows("metrics"):
            if row["name"] == "seconds":
                where = f"{row['method']}, seed {row['seed']}: round {row['round']} of {self.rounds}"
                yield f"{where}, {row['value']:.1f} s"
            elif row["name"] == self.headline.shared and row["round"]:
                value = f"{self.headline.label} {row['value']:.4f}"
                yield f"{row['method']}, seed {row['seed']}: {value} after round {row['round']}"
        for row in self.rows("failures"):
            rounds = self.count_loss(row)
            if rounds and math.log10(rounds).is_integer():
                where = f"{row['method']}, seed {row['seed']}, round {row['round']}"
                so_far = f" ({rounds} rounds by now)" if rounds > 1 else ""
                yield f"{where}: client {row['client']}, step {row['step']!r}: {row['reason']}{so_far}"

    def count_loss(self, row: Mapping[str, Any]) -> int:
        """Return in how many rounds this client has been lost for this reason; 0 if this one is counted already.

        A reason that has not been given for `FORGOTTEN_ROUNDS` rounds is a new one.
        """
        now: tuple[str, int, int] = row["method"], row["seed"], row["round"]
        key: tuple[int, str] = row["client"], row["reason"]
        last, rounds = self.losses.get(key, (now, 0))
        if rounds and last == now:
            return 0
        if last[:2] == now[:2] and now[2] - last[2] > FORGOTTEN_ROUNDS:
            rounds = 0
        self.losses[key] = now, rounds + 1
        return rounds + 1

    def rows(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the new rows of a table; those that a resumed run has removed come again."""
        rows, self.read[name] = LOGS[name].fresh(self.folder, self.read.get(name, 0))
        yield from rows


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


def check_taking_part(folder: Path) -> float:
    """Refuse a client that could not take part; the time its clock is ahead of the server's, seconds.

    Raises:
        Unreachable: If there is no answer yet.
        DeployError, ConfigError: Naming what is wrong with its folder, the server or the clocks.
    """
    check_node(folder)
    processes.place_for_sockets()
    return reach.probe(folders.address(folder), folder / "ca.crt")


def take_part(folder: Path, say: Say, site: Site = Site()) -> None:
    """Run a client until it is stopped: wait for the server, and restart what ends.

    Raises:
        DeployError, ConfigError: If it could never take part: its key, the server's certificate, the clocks.
        KeyboardInterrupt: When it is stopped.
    """
    check_signature(folder, say, site)
    folders.address(folder)
    check_version(folder / "client.toml", ClientConfig, say)  # which the server may have, too
    with locked(folder), processes.stoppable(), ProcessGroup() as group:
        for kept in ("state", "models"):  # whoever may enter the folder above, after a copy
            make_private(folder / kept)
        last = ""
        while True:
            try:
                check_taking_part(folder)
                break
            except Unreachable as error:
                if str(error) != last:
                    say(f"{error}; waiting for it, Ctrl-C ends this client ({after_the_run(folder)})")
                    last = str(error)
                time.sleep(2.0)
        node = ClientProcesses(group, folder, say, site=site)
        say(f"client: taking part at {node.reached}; Ctrl-C ends it")
        watch = ServerWatch(folder, say)
        while True:
            node.supervise()
            watch.look()
            time.sleep(LOOK_EVERY_S)


@dataclass
class ServerWatch:
    """Looks now and then whether a client's server is there, and tells when it has gone or is back.

    Attributes:
        folder: The client's folder.
        say: Called with a line when that changes.
        trouble: What was wrong at the last look; empty if nothing was.
        due: Time of the next look.
    """

    folder: Path
    say: Say
    trouble: str = ""
    due: float = field(default_factory=lambda: time.monotonic() + ASK_SERVER_EVERY_S)

    def look(self) -> None:
        """Look if it is time; to be called often."""
        if time.monotonic() < self.due:
            return
        before, self.trouble = self.trouble, ""
        try:
            check_taking_part(self.folder)
        except Unreachable as error:
            self.trouble = (
                f"{error}: the run has ended, or the server was stopped; waiting for it, Ctrl-C ends this client "
                f"({after_the_run(self.folder)})"
            )
        except UnskewError as error:
            self.trouble = str(error)
        if bool(before) != bool(self.trouble):
            self.say(self.trouble or "the server is back")
        self.due = time.monotonic() + ASK_SERVER_EVERY_S


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
    server_folder = deployment / "server"
    if not is_done(server_folder):
        with locked(deployment), resumable(out), processes.stoppable(), ProcessGroup() as group:
            group.variables["UNSKEW_POLICY"] = str((deployment / "policy.toml").absolute())
            server = launch.start_server(group, server_folder, folders.address(server_folder))
            say(f"server: listening at {folders.address(server_folder)}")
            nodes = [
                ClientProcesses(
                    group,
                    folders.client_folder(deployment, c),
                    say,
                    f"client {c}",
                    restart,
                    site=Site(allow_code=True),
                    progress=False,
                )
                for c in range(num_clients)
            ]
            for node in nodes:
                node.supervise()
            since = told(server.folder)
            wait_for_end(server, launch_run(server, force), say, nodes, since)
    return collect(server_folder / "run", out)


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
