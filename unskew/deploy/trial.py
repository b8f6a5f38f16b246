"""A whole federation on this machine: `unskew fed try`.

RUN/                       a run's folder, as of a simulation
    deploy/                the federation's folder; beside it sites/NAME, logs/NAME.log, policy.toml
"""

import functools
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import tomli_w

from unskew.deploy import member, resident, site
from unskew.deploy.certificates import make_private
from unskew.deploy.federation import FederationFolder
from unskew.deploy.server import check_split
from unskew.deploy.settings import Address, Site
from unskew.errors import DeployError, RunError, UnskewError
from unskew.experiment.config import Experiment, is_written_in
from unskew.files import from_toml, write_atomically
from unskew.runtime.log import log, show

Say = Callable[[str], None]
GRACE_S = 8.0
"""Time between SIGTERM and SIGKILL, seconds."""
UNUSABLE = 2
"""Exit code of a site whose settings cannot be used: starting it again would not help."""


def trial(
    experiment: Experiment,
    number: int,
    out: Path,
    say: Say,
    *,
    restart: bool = True,
    force: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Path:
    """Run an experiment with a server and so many sites as processes on this machine; its run folder.

    Each site has its part of the experiment's split.  When the run is done its files are moved to `out`, where those of
    a simulation would be.  A run that was stopped is continued.

    Args:
        experiment: Experiment to run.
        number: Number of sites, that of the split's clients.
        out: Folder of the run.
        say: Called with a line when something happens.
        restart: False to leave a site stopped when it has ended.
        force: That of `server.serve`.
        options: Settings of `ServerConfig` that are not its defaults.

    Raises:
        ConfigError, DataError: If the experiment cannot be deployed so.
        RunError: If there is something else in `out`, or the run failed.
    """
    if (out / "summary.json").exists():
        if not is_written_in(out / "config.toml", experiment):
            raise RunError(f"{out} holds a run of another experiment; choose another --out")
        return out
    check_split(experiment, number)
    federation, folders = prepare(experiment, number, out, options)
    name = str(federation.experiment()["name"])
    with ExitStack() as ended:
        started = [ended.enter_context(SiteProcess(folder, say, restart)) for folder in folders]

        def each(what: Callable[[SiteProcess], None]) -> None:
            for one in started:
                what(one)

        ended.callback(each, lambda one: one.process.terminate())  # all at once; each is waited for then
        resident.serve(federation, say, only=name, force=force, look=lambda: each(lambda one: one.look()))
    row = federation.experiment(name)
    if row["state"] != "done":
        raise RunError(str(row["reason"]))
    return collect(federation.experiment_folder(name) / "run", out)


def prepare(
    experiment: Experiment, number: int, out: Path, options: Mapping[str, Any] | None = None
) -> tuple[FederationFolder, list[Path]]:
    """Make the federation and its sites, or take those of a stopped run, on a port that is free now.

    Raises:
        RunError: If there is something else in `out`.
    """
    place = out / "deploy"
    address = Address("127.0.0.1", free_port())
    names = [f"site-{c}" for c in range(number)]
    folders = [place / "sites" / name for name in names]
    if not (place / "experiments").is_dir():
        if out.exists() and (not out.is_dir() or {path.name for path in out.iterdir()} - {"deploy"}):
            raise RunError(f"{out} exists already and holds no deployment; choose another --out")
        make_private(out)  # a run's folder: clients' models end up in it
        shutil.rmtree(place, ignore_errors=True)
        federation = FederationFolder.create(place, experiment.name, address, address.host)
        # Nothing leaves this machine, so nothing is charged to its user's own privacy budget.
        policy = {"privacy": str((place / "privacy.sqlite").absolute()), "paths": ["/", "hub:"]}
        write_atomically(place / "policy.toml", tomli_w.dumps(policy))
        for token, folder in zip(federation.invite(names), folders, strict=True):
            site.join(token, folder, Site(allow_code=True, policy=str((place / "policy.toml").absolute())))
            site.admit(folder, functools.partial(federation.certify, token.certificate.encode()))
        federation.queue(experiment, {"own_data": False, **(options or {})})
    federation = FederationFolder(place)
    if not is_written_in(federation.experiment_folder(federation.experiment()["name"]) / "experiment.toml", experiment):
        raise RunError(f"{out} holds a run of another experiment; choose another --out")
    if not federation.next():
        federation.queue(experiment, {"own_data": False, **(options or {})})
    federation.move(address)
    for folder in folders:
        table = from_toml((folder / "site.toml").read_text("utf-8"))
        write_atomically(folder / "site.toml", tomli_w.dumps({**table, "port": address.port}))
    return federation, folders


def free_port() -> int:
    """A port on loopback that no program listens on, below those that the system gives to outgoing connections."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class SiteProcess:
    """A site in a process of its own, which ends with the `with` block or with its parent.

    Args:
        folder: The site's folder; logs/NAME.log of the federation's has what the process says.
        say: Called with a line when it has ended.
        restart: False to leave it then.
    """

    def __init__(self, folder: Path, say: Say, restart: bool) -> None:
        self.folder, self.say, self.restart = folder, say, restart
        self.log = folder.parents[1] / "logs" / f"{folder.name}.log"
        self.log.parent.mkdir(exist_ok=True)
        self._start()

    def _start(self) -> None:
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", CHILD, str(self.folder)],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.over = False

    def __enter__(self) -> "SiteProcess":
        return self

    def __exit__(self, *of_error: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def look(self) -> None:
        """Start the process again if it has ended; to be called now and then.

        Raises:
            DeployError: If its settings cannot be used.
        """
        code = self.process.poll()
        if code == UNUSABLE:
            last = self.log.read_text("utf-8", "replace").strip().rpartition("\n")[2]
            raise DeployError(f"{self.folder.name} ended: {last} (log: {self.log})")
        if code is not None and not self.over:
            self.over = True
            self.say(f"{self.folder.name} ended with code {code} (log: {self.log})")
            if self.restart:
                self._start()


CHILD = "import sys; from unskew.deploy.trial import child; child(sys.argv[1])"


def child(folder: str) -> None:
    """Take part as a process that ends with the one that started it."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)  # nothing is lost that its folder does not have

    threading.Thread(target=watch, daemon=True).start()
    show()
    try:
        member.start(Path(folder), log)
    except KeyboardInterrupt:
        os._exit(0)  # Python's own end takes seconds
    except UnskewError as error:
        print(" ".join(str(error).splitlines()), file=sys.stderr)
        sys.exit(UNUSABLE)


def collect(run: Path, out: Path) -> Path:
    """Move the files of a run that is done to `out`; summary.json last, so that an interrupted move is noticed."""
    for path in sorted(run.iterdir(), key=lambda p: (p.name == "summary.json", p.name)):
        if path.name != ".lock":
            path.rename(out / path.name)
    write_atomically(run / "MOVED", f"This run is done; its files are in {out.absolute()}.\n")
    return out
