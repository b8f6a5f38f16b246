"""A whole federation on this machine, and its run beside a simulation of the same experiment: `unskew fed try`.

RUN/                       a run's folder, as from a simulation
    deploy/                the federation's folder; beside it sites/NAME, logs/NAME.log, policy.toml
"""

import functools
import math
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import tomli_w

from unskew.deploy import member, resident, site
from unskew.deploy.certificates import make_private
from unskew.deploy.federation import FederationFolder
from unskew.deploy.server import check_split
from unskew.deploy.settings import EXPERIMENT, About, Site
from unskew.errors import ConfigError, DeployError, RunError, UnskewError
from unskew.experiment.config import Experiment, fingerprint
from unskew.files import write_atomically
from unskew.protocol import hook
from unskew.record.logs import CLOCK, require_none_diverged, rows
from unskew.run import models
from unskew.run.again import complete
from unskew.run.cell import Observer
from unskew.run.folder import read_json, require_done
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


# ---------------------------------------------------------------- beside a simulation
TOLERANCE = 1e-5
"""Largest difference of a parameter or a metric that counts as equal; on one machine there is none at all."""


@dataclass(frozen=True)
class Parity:
    """One method's two runs, all seeds together.

    Attributes:
        method: Its label.
        max_abs_diff: Largest difference between final global models and between metrics; infinite if something is
            missing in one run.
        bytes_equal: True if the ledgers have the same transfers with the same bytes, row by row.
    """

    method: str
    max_abs_diff: float
    bytes_equal: bool

    @property
    def equal(self) -> bool:
        """True if the runs agree within the tolerance."""
        return self.max_abs_diff <= TOLERANCE and self.bytes_equal

    def to_json(self) -> dict[str, Any]:
        """What `fed try --check-parity --json` prints; infinity becomes null."""
        table = asdict(self)
        return table if math.isfinite(self.max_abs_diff) else {**table, "max_abs_diff": None}


def simulate(experiment: Experiment, folder: Path, callback: Observer | None = None) -> Path:
    """Simulate the same experiment in this process, one client after another; returns the run's folder."""
    alone = replace(experiment, runtime=replace(experiment.runtime, executor="sequential"), track=())
    done = complete(alone, folder, callback)
    require_none_diverged(done.summary.get("diverged", ()))  # as the run over a network, which it ends
    return done.folder


def comparable(experiment: Experiment) -> None:
    """Refuse an experiment that cannot be simulated with the same numbers, since clients draw secret noise."""
    labels = [m.label for m in experiment.methods if hook(m.method, "uses_private_randomness")]
    if labels:
        raise ConfigError(
            f"a deployed run of {', '.join(labels)} has noise that each client draws from a secret of its own, which "
            "no simulation can repeat; leave out --check-parity, or the noise"
        )


def compare(deployed: Path, simulated: Path) -> list[Parity]:
    """Compare two finished runs, method by method."""
    for folder in (deployed, simulated):
        require_done(folder)
    gaps = []
    for label in dict.fromkeys(cell["method"] for cell in read_json(deployed / "run.json")["cells"]):
        ours, theirs = (_metrics(run, label) | _models(run, label) for run in (deployed, simulated))
        gap = (
            max((_distance(ours[k], theirs[k]) for k in ours), default=0.0)
            if ours.keys() == theirs.keys()
            else math.inf
        )
        gaps.append(Parity(label, gap, _ledger(deployed, label) == _ledger(simulated, label)))
    return gaps


def _distance(a: Any, b: Any) -> float:
    """Largest difference between two numbers or tensors; infinite if their shapes differ."""
    if not hasattr(a, "shape"):
        return abs(float(a) - float(b))
    if a.shape != b.shape or a.dtype != b.dtype:
        return math.inf
    gap = float((a.double() - b.double()).abs().max()) if a.numel() else 0.0
    return gap if math.isfinite(gap) else math.inf


def _metrics(run: Path, method: str) -> dict[tuple[Any, ...], Any]:
    own = rows(run, "metrics", "method = ? AND name != ?", method, CLOCK)
    return {(r["seed"], r["round"], r["name"], r.get("client")): float(r["value"]) for r in own}


def _models(run: Path, method: str) -> dict[tuple[Any, ...], Any]:
    seeds = [cell["seed"] for cell in read_json(run / "run.json")["cells"] if cell["method"] == method]
    files = {seed: run / "models" / f"{models.stem(method, seed)}.safetensors" for seed in seeds}
    saved = {seed: safetensors.torch.load(file.read_bytes()) for seed, file in files.items() if file.exists()}
    return {(seed, name): tensor for seed, tensors in saved.items() for name, tensor in tensors.items()}


def _ledger(run: Path, method: str) -> Counter[tuple[Any, ...]]:
    """Every transfer; the order of the messages within an exchange does not matter."""
    own = rows(run, "transfers", "method = ?", method)
    return Counter((r["seed"], r["round"], r["hop"], r["src"], r["dst"], r["kind"], r["bytes"]) for r in own)
