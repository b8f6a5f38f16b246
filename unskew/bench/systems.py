"""Flower and NVFlare on this machine, started with their own tools: for the benchmark and the tests of our adaptors.

Both take a folder for all their files and the number of sites, and give a function that runs an app or a job.  Nothing
of them is left running after the `with` block.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from unskew.errors import RunError

PLACE = "UNSKEW_PLACE"
"""Variable of all processes of a system, by which they are found: its folder."""
Runs = Callable[[Path, float], None]
"""Runs an app or a job within so many seconds; RunError if it fails, with its log."""
READY_S, GRACE_S, LOOK_S = 240.0, 10.0, 0.5
ALLOWED = ("unskew.deploy.in_nvflare", "unskew.bench")
"""Modules that NVFlare's sites here allow jobs to name."""


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def processes_of(place: Path) -> Iterator[Path]:
    """Yield the folder in /proc of each process of a system."""
    mark = f"{PLACE}={place}\0".encode()
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # it has ended, or belongs to somebody else
            if entry.name.isdecimal() and mark in (entry / "environ").read_bytes():
                yield entry


class Programs:
    """Starts the programs of one system, whose files are all in `folder`, and ends them with the `with` block."""

    def __init__(self, folder: Path, **variables: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        here = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            **{"HOME": str(folder), "XDG_STATE_HOME": str(folder / "state"), PLACE: str(folder)},
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
            "PYTHONPATH": os.pathsep.join(filter(None, here)),
            "OMP_NUM_THREADS": "1",
            **variables,
        }
        self.folder = folder
        self._options: dict[str, Any] = {"env": environment, "cwd": folder, "start_new_session": True}
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Programs":
        return self

    def __exit__(self, *of_error: object) -> None:
        for process in self._started:
            process.terminate()
        for process in self._started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
        for left in processes_of(self.folder):
            with suppress(ProcessLookupError):
                os.kill(int(left.name), signal.SIGKILL)

    def start(self, name: str, *command: str) -> None:
        """Start a program that goes on; what it says is in NAME.log."""
        with (self.folder / f"{name}.log").open("ab") as out:
            self._started.append(subprocess.Popen(command, stdout=out, stderr=out, **self._options))

    def call(self, *command: str) -> str:
        """Return what a program prints.

        Raises:
            RunError: If it fails.
        """
        done: subprocess.CompletedProcess[str] = subprocess.run(
            command, capture_output=True, text=True, **self._options
        )
        if done.returncode:
            raise RunError(f"{' '.join(command)} ended with code {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout


@contextmanager
def flower(folder: Path, sites: int) -> Iterator[Runs]:
    """A SuperLink and so many SuperNodes; site k has `partition-id` k."""
    with Programs(folder, FLWR_HOME=str(folder), FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1") as programs:
        address = f"127.0.0.1:{free_port()}"
        (folder / "config.toml").write_text(f'[superlink.here]\naddress = "{address}"\ninsecure = true\n')
        at = ("--host", "127.0.0.1", "--port", address.rpartition(":")[2], "--insecure")
        programs.start("superlink", "flower-superlink", *at, "--disable-runtime-dependency-installation")
        _wait(f"http://{address}/health")
        for site in range(sites):
            own = ("--port", str(free_port()), "--node-config", f"partition-id={site}")
            programs.start(f"supernode-{site}", "flower-supernode", "--insecure", "--superlink", address, *own)

        def run(app: Path, limit_s: float) -> None:
            answer = json.loads(programs.call("flwr", "run", str(app), "here", "--format", "json"))
            if not answer["success"]:
                raise RunError(f"Flower does not run {app}: {answer}")
            number, end, status = str(answer["run-id"]), time.monotonic() + limit_s, ""
            while not status.startswith("finished") and time.monotonic() < end:
                time.sleep(LOOK_S)
                listed = programs.call("flwr", "ls", "here", "--run-id", number, "--format", "json")
                status = json.loads(listed)["runs"][0]["status"]
            if status != "finished:completed":
                raise RunError(f"Flower's run is {status}: {programs.call('flwr', 'log', number, 'here', '--show')}")

        yield run


@contextmanager
def nvflare(folder: Path, sites: int) -> Iterator[Runs]:
    """NVFlare's proof of concept: a server, so many sites, called site-1 and so on, and an administrator."""
    place = folder / "poc"
    with Programs(folder, NVFLARE_POC_WORKSPACE=str(place)) as programs:
        prepare, project = ("nvflare", "poc", "prepare", "--force"), folder / "project.yml"
        programs.call(*prepare, "-n", str(sites))
        project.write_text((place / "project.yml").read_text().replace(" 8002", f" {free_port()}"))  # the server's port
        programs.call(*prepare, "-i", str(project))
        for default in place.rglob("local/resources.json.default"):
            own = default.with_suffix("")
            resources: dict[str, Any] = json.loads((own if own.exists() else default).read_text())
            if "class_allow_list" in resources:
                own.write_text(
                    json.dumps({**resources, "class_allow_list": [*resources["class_allow_list"], *ALLOWED]})
                )
        programs.call("nvflare", "poc", "start", "--timeout", str(int(READY_S)))

        def run(job: Path, limit_s: float) -> None:
            answer = json.loads(programs.call("nvflare", "--format", "json", "job", "submit", "-j", str(job)))
            number = answer["data"]["job_id"]
            state = programs.call("nvflare", "job", "wait", number, "--timeout", str(int(limit_s)))
            if "COMPLETED" not in state:
                raise RunError(f"NVFlare's job is {state}: {programs.call('nvflare', 'job', 'logs', number)}")

        try:
            yield run
        finally:
            with suppress(RunError):  # on a machine with much to do it gives up after half a minute
                programs.call("nvflare", "poc", "stop")


def _wait(address: str) -> None:
    end = time.monotonic() + READY_S
    while time.monotonic() < end:
        with suppress(OSError), urllib.request.urlopen(address, timeout=5.0):
            return
        time.sleep(0.1)
    raise RunError(f"nothing answers at {address} within {READY_S:g} s; see the logs beside it")
