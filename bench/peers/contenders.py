"""Who takes part, and the environment each is installed into."""

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Contender:
    """A framework, or none.

    Attributes:
        name: What tables call it; NAME_task.py runs it.
        packages: Installed into an environment of its own; nothing means unskew's environment.
        scan: What is tried before, each value in two rounds: "threads", one or all, of PyTorch in one process; "slots",
            clients at once, from one to as many as there are cores.
        checkout: Variable of the environment that names a copy of its repository, where it is no package.
    """

    name: str
    packages: tuple[str, ...] = ()
    scan: Literal["threads", "slots"] | None = None
    checkout: str = ""


# PyTorch by its exact version, and first: a CPU build where one is at hand, never gigabytes of CUDA by surprise.
TORCH = "torch==2.13.0"
CONTENDERS = (
    Contender("unskew"),
    Contender("pfl", (TORCH, "pfl[pytorch]==0.6.0"), scan="threads"),
    Contender("fedjax", ("fedjax==0.0.17", "jax", "dm-haiku")),
    Contender("fluke", (TORCH, "fluke-fl==0.8.1"), scan="threads"),
    Contender("pfllib", (TORCH, "numpy", "scikit-learn", "h5py", "ujson"), scan="threads", checkout="PFLLIB"),
    Contender("flower", (TORCH, "flwr[simulation]>=1.40,<1.43"), scan="slots"),
    Contender("plain", scan="threads"),
)


def python_of(contender: Contender, folder: Path) -> Path:
    """The contender's interpreter; its environment is made first if it is not there or was made from other packages.

    Raises:
        RuntimeError: If pip fails; the message is the end of what it said.  If it is no package, and no copy is named.
    """
    if contender.checkout and not os.environ.get(contender.checkout):
        raise RuntimeError(f"it is no package; clone its repository and name the folder in {contender.checkout}")
    if not contender.packages:
        return Path(sys.executable)
    home = folder / contender.name
    python, stamp = home / "bin" / "python", home / ".installed"
    wanted = hashlib.sha256("\n".join((sys.version, *contender.packages)).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"installing {' '.join(contender.packages)} into {home}", file=sys.stderr, flush=True)
    _do(sys.executable, "-m", "venv", "--clear", str(home))
    first = [p for p in contender.packages if p == TORCH]
    for packages in filter(None, (first, list(contender.packages))):
        _do(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    stamp.write_text(wanted)
    return python


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise RuntimeError(f"{' '.join(command[1:4])} failed: {' '.join(said[-2:])[-400:]}")
