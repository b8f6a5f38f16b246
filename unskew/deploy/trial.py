"""A whole federation on this machine: `unskew fed try`.

RUN/                       a run's folder, as from a simulation
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
from unskew.deploy.settings import EXPERIMENT, About, Site
from unskew.errors import DeployError, RunError, UnskewError
from unskew.experiment.config import Experiment, fingerprint
from unskew.files import write_atomically
from unskew.runtime.log import log, show

Say = Callable[[str], None]
GRACE_S = 8.0
"""Time between SIGTERM and SIGKILL, seconds."""


def trial(experiment: Experiment, number: int, out: Path, say: Say, *, force: bool = False) -> Path:
    """Run an experiment with a server and sites as processes on this machine; returns its run folder.

    Each site has its part of the experiment's split.  An interrupted run is resumed; the files of a finished one are
    moved to `out`.

    Args:
        experiment: Experiment to run.
        number: Number of sites, equal to the split's clients.
        out: Folder of the run, with nothing else in it.
        say: Called with a line when something happens.
        force: As in `server.serve`.
    """
    _require_same(experiment, out / "config.toml", out)
    if (out / "summary.json").exists():
        return out
    check_split(experiment, number)
    federation, folders = prepare(experiment, number, out)
    name = str(federation.experiment()["name"])
    with ExitStack() as ended:
        started = [ended.enter_context(SiteProcess(folder)) for folder in folders]

        def look() -> None:
            for one in started:
                one.look()

        resident.serve(federation, say, only=name, force=force, look=look)
    row = federation.experiment(name)
    if row["state"] != "done":
        raise RunError(str(row["reason"]))
    return collect(federation.experiment_folder(name) / "run", out)


def prepare(
    experiment: Experiment, number: int, out: Path, options: Mapping[str, Any] | None = None
) -> tuple[FederationFolder, list[Path]]:
    """Make the federation and its sites in a new folder, or reuse those of an interrupted run."""
    place = out / "deploy"
    names = [f"site-{c}" for c in range(number)]
    folders = [place / "sites" / name for name in names]
    if not (place / "experiments").is_dir():
        if out.exists() and (not out.is_dir() or {path.name for path in out.iterdir()} - {"deploy"}):
            raise RunError(f"{out} exists already and holds no deployment; choose another --out")
        make_private(out)  # a run's folder: clients' models end up in it
        shutil.rmtree(place, ignore_errors=True)
        federation = FederationFolder.create(place, About(experiment.name, port=free_port()))
        # Nothing leaves this machine, so nothing is charged to its user's own privacy budget.
        policy = {"privacy": str((place / "privacy.sqlite").absolute()), "paths": ["/", "hub:"]}
        write_atomically(place / "policy.toml", tomli_w.dumps(policy))
        for token, folder in zip(federation.invite(names), folders, strict=True):
            site.join(token, folder, Site(allow_code=True, policy=str((place / "policy.toml").absolute())))
            site.admit(folder, functools.partial(federation.certify, token.certificate.encode()))
    federation = FederationFolder(place)
    for begun in place.glob(f"experiments/*/{EXPERIMENT}"):
        _require_same(experiment, begun, out)
    if not federation.next():
        federation.queue(experiment, {"own_data": False, **(options or {})})
    return federation, folders


def _require_same(experiment: Experiment, begun: Path, out: Path) -> None:
    if begun.exists() and fingerprint(begun) != fingerprint(experiment):
        raise RunError(f"{out} holds a run of another experiment; choose another --out")


def free_port() -> int:
    """A free port on loopback, below the range of outgoing connections."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class SiteProcess:
    """A site in a process of its own, which ends with the `with` block or with its parent.

    Args:
        folder: The site's folder; the log is logs/NAME.log of the federation's.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder.parents[1] / "logs" / f"{folder.name}.log"
        self.log.parent.mkdir(exist_ok=True)
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", CHILD, str(self.folder)],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

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
        """Raise an error if it has ended; call it now and then."""
        if (code := self.process.poll()) is not None:
            last = self.log.read_text("utf-8", "replace").strip().rpartition("\n")[2]
            raise DeployError(f"{self.folder.name} ended with code {code}: {last} (log: {self.log})")


CHILD = "import sys; from unskew.deploy.trial import child; child(sys.argv[1])"


def child(folder: str) -> None:
    """Take part as a process that ends with its parent."""
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
        sys.exit(2)


def collect(run: Path, out: Path) -> Path:
    """Move the files of a finished run to `out`; summary.json last, so that an interrupted move is noticed."""
    for path in sorted(run.iterdir(), key=lambda p: (p.name == "summary.json", p.name)):
        if path.name != ".lock":
            path.rename(out / path.name)
    return out
