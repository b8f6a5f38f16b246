"""Command lines of Flower's programs and of our own beside them, and the environment that all are given.

No other module knows these command lines.  A server is a SuperLink on loopback with a SuperExec beside it, behind a
reverse proxy; a client is a SuperNode, a SuperExec and a resident process.  All run with process isolation, so that a
task is only given to a process that knows the SuperExec's secret; the SuperLink speaks TLS with the federation's
certificate and accepts registered keys only.  Flower's telemetry, its check for updates and its installation of
dependencies are switched off.
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from site import getsitepackages

from unskew.deploy import versions
from unskew.deploy.folders import CONNECTION
from unskew.deploy.settings import Address, Site

LOOPBACK = "127.0.0.1"


def environment(home: Path) -> dict[str, str]:
    """Environment for Flower's programs: ours without any FLWR_ setting, and with Flower's network features off."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("FLWR_")}
    source = Path(__file__).parents[2]
    # Run from a checkout, the library is on this process's path only; an installed one is found anyway.
    paths = [] if str(source) in getsitepackages() else [str(source)]
    paths += [kept["PYTHONPATH"]] if kept.get("PYTHONPATH") else []
    local = ",".join(filter(None, [kept.get("NO_PROXY", kept.get("no_proxy", "")), "localhost", "127.0.0.1", "::1"]))
    return {
        **kept,
        **({"PYTHONPATH": os.pathsep.join(paths)} if paths else {}),
        # A SuperExec starts its processes by name.
        "PATH": os.pathsep.join([str(versions.programs()), kept.get("PATH", os.defpath)]),
        "PYTHONUNBUFFERED": "1",
        "FLWR_HOME": str(home.absolute()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "NO_PROXY": local,
        "no_proxy": local,
    }


def superlink(server: Path, port: int, secret: Path) -> list[str]:
    """Command line of the SuperLink, which always listens on loopback: its Control API asks for no password."""
    return [
        "flower-superlink",
        *("--host", LOOPBACK, "--port", str(port)),
        *("--ssl-ca-certfile", str(server / "ca.crt")),
        *("--ssl-certfile", str(server / "server.crt")),
        *("--ssl-keyfile", str(server / "server.key")),
        "--enable-supernode-auth",
        *("--isolation", "process", "--superexec-auth-secret-file", str(secret)),
        "--disable-runtime-dependency-installation",
    ]


def proxy_program(server: Path, listen: Address, inner: int) -> list[str]:
    """Command line of the reverse proxy that listens at the server's address, in front of the SuperLink's port."""
    arguments = (str(server), listen.host, str(listen.port), str(inner))
    return [sys.executable, "-P", "-m", "unskew.deploy.proxy", *arguments]


def superexec(runtime: Address, secret: Path, root: Path | None, parent: int) -> list[str]:
    """Command line of a SuperExec; without a root certificate it speaks plainly, to its own machine only."""
    return [
        "flower-superexec",
        *("--runtime-api-address", str(runtime)),
        *(("--root-certificates", str(root)) if root else ("--insecure",)),
        *("--superexec-auth-secret-file", str(secret), "--parent-pid", str(parent)),
    ]


def supernode(client: Path, reached: Address, port: int, secret: Path, config: Path) -> list[str]:
    """Command line of a SuperNode; `port` is where its own SuperExec finds it, on loopback."""
    return [
        "flower-supernode",
        *("--superlink", str(reached)),
        *("--root-certificates", str(client / "ca.crt")),
        *("--auth-supernode-private-key", str(client / "node.key")),
        *("--node-config", str(config)),
        *("--isolation", "process", "--superexec-auth-secret-file", str(secret)),
        *("--host", LOOPBACK, "--port", str(port)),
    ]


def resident_program(client: Path, socket: Path, site: Site) -> list[str]:
    """Command line of a client's resident process; -P keeps it from importing what lies in the working directory."""
    safe = [] if site.allow_code else ["-P"]
    arguments = (str(client), str(socket), json.dumps(asdict(site)))
    return [sys.executable, *safe, "-m", "unskew.deploy.resident", *arguments]


def register(key: Path) -> list[str]:
    """Command line that registers a public key with the SuperLink."""
    return ["flwr", "supernode", "register", str(key), CONNECTION, "--format", "json"]


def submit(app: Path) -> list[str]:
    """Command line that starts a run."""
    return ["flwr", "run", str(app), CONNECTION, "--format", "json"]


def status(run: int) -> list[str]:
    """Command line that asks for a run's status."""
    return ["flwr", "ls", CONNECTION, "--run-id", str(run), "--format", "json"]
