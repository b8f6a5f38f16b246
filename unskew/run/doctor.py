"""Reports on the installation and the machine, one line each, with a remedy for anything missing.

Only PyTorch and NumPy are imported, to see that they load; if they do not, the rest is still reported.  Nothing is
downloaded, and nothing is left behind.
"""

import importlib
import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from unskew import machine
from unskew.units import human_bytes
from unskew.version import __version__

LITTLE_DISK = 1_000_000_000
LITTLE_MEMORY = 2_000_000_000
LOADED = ("torch", "numpy")

EXTRAS = {
    "hub": ("data sets by name from the Hugging Face hub", ("datasets",)),
    "track": ("TensorBoard, MLflow, Weights & Biases", ("tensorboard", "mlflow", "wandb")),
    "deploy": ("the same experiment over a real network, secure sums", ("grpcio", "cryptography", "pycryptodome")),
    "flower": ("an experiment as an app of an existing Flower", ("flwr",)),
    "nvflare": ("an experiment as a job of an existing NVFlare", ("nvflare",)),
    "peft": ("low-rank adapters on a frozen network", ("peft",)),
    "diffusion": ("Stable Diffusion as a prior", ("diffusers", "transformers")),
    "ray": ("training on more than one machine", ("ray",)),
    "dp": ("privacy accounting", ("dp-accounting",)),
    "tune": ("tuning of hyperparameters", ("optuna",)),
    "fonts": ("printed digits, and training the built-in prior", ("matplotlib",)),
}
"""Purpose and packages of each optional extra."""


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        what: Subject of the line.
        status: "missing" for something optional, "problem" for something to fix.
        found: Its state.
        remedy: What to do; empty if nothing is needed.
        core: True if nothing works without it.
    """

    what: str
    status: Literal["ok", "missing", "problem"]
    found: str
    remedy: str = ""
    core: bool = False


def examine(data_dir: Path | None = None, runs: Path = Path("runs")) -> tuple[Finding, ...]:
    """All findings on the installation and the machine, in reading order.

    Args:
        data_dir: Folder of named data sets; by default UNSKEW_DATA of the environment.
        runs: Folder for run folders.
    """
    return (*_software(), *_machine(), *map(_extra, EXTRAS), _data(data_dir), *_disk(runs))


def broken(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Findings without which nothing works."""
    return tuple(f for f in findings if f.core and f.status != "ok")


def _judged(what: str, fine: bool, found: str, remedy: str, core: bool = False) -> Finding:
    return Finding(what, "ok" if fine else "problem", found, "" if fine else remedy, core)


def _version(package: str) -> str:
    """The version that is installed; empty if none is."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _software() -> Iterator[Finding]:
    yield Finding("unskew", "ok", __version__)
    installed, version = bool(_version("unskew")), platform.python_version()
    needs = SpecifierSet((importlib.metadata.metadata("unskew")["Requires-Python"] if installed else "") or "")
    found = f"{version} ({sys.executable}), {needs or 'any'} is needed"
    yield _judged("python", needs.contains(version, prereleases=True), found, f"use a Python {needs}", core=True)
    here = f"{platform.system()} {platform.release()} {platform.machine()}"
    yield _judged("platform", sys.platform in ("linux", "darwin"), here, "on Windows, use WSL 2", core=True)
    every = map(Requirement, (importlib.metadata.requires("unskew") if installed else LOADED) or ())
    for needed in (of for of in every if of.marker is None or of.marker.evaluate({"extra": ""})):
        name, range_, version = needed.name, needed.specifier, _version(needed.name)
        fits = bool(version) and range_.contains(version, prereleases=True)
        why = _not_loaded(name) if fits and name in LOADED else ""
        state = f", but it cannot be loaded: {why}" if why else "" if fits else f", {range_} is needed"
        again = "--force-reinstall " * bool(why)
        found = version + state if version else "not installed"
        yield _judged(name, fits and not why, found, f"pip install {again}'{name}{range_}'", core=True)


def _not_loaded(package: str) -> str:
    """Reason why a package cannot be imported; empty if it can."""
    try:
        importlib.import_module(package)
    except Exception as error:  # a library that is missing or of another build can fail in any way
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return ""


def _extra(name: str) -> Finding:
    purpose, packages = EXTRAS[name]
    lacks = [package for package in packages if not _version(package)]
    if lacks:
        found = f"lacks {', '.join(lacks)}: {purpose}"
        return Finding(f"extra [{name}]", "missing", found, f"pip install 'unskew[{name}]'")
    return Finding(f"extra [{name}]", "ok", f"{', '.join(f'{p} {_version(p)}' for p in packages)}: {purpose}")


def _machine() -> Iterator[Finding]:
    yield Finding("cores", "ok", f"{machine.cores()} of {os.cpu_count() or 1} are for this process")
    total, left = machine.total(), machine.available()
    if total is not None and left is not None:
        found = f"{human_bytes(left)} to be had of {human_bytes(total)}"
        yield _judged("memory", left >= LITTLE_MEMORY, found, "end other programs; unskew plan says what a run needs")
    if not _not_loaded("torch"):
        import torch

        gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        devices = ", ".join(f"{gpu.name} ({human_bytes(gpu.total_memory)})" for gpu in gpus)
        none = f"PyTorch {torch.__version__} finds no device; runs use the CPU"
        yield Finding("cuda", "ok" if gpus else "missing", devices or none)


def _data(data_dir: Path | None) -> Finding:
    root = data_dir or Path(os.environ.get("UNSKEW_DATA") or "")
    if root == Path():
        remedy = "set UNSKEW_DATA or --data-dir to a folder with data sets; unskew list datasets names them"
        return Finding("data folder", "missing", "none is given; digits is bundled", remedy)
    root = root.expanduser().absolute()
    if not root.is_dir() or any(map(_not_loaded, LOADED)):
        return _judged("data folder", root.is_dir(), f"{root}", "there is no such folder; set UNSKEW_DATA to one")
    from unskew.data.named import NAMED, places

    named = [name for name, of in NAMED.items() if of.files]
    have = [name for name in named if any(file.is_file() for file in places(name, root))]
    lacks = ", ".join(name for name in named if name not in have)
    return Finding("data folder", "ok", f"{root} has {', '.join(have) or 'none'}; not there: {lacks}")


def _disk(runs: Path) -> Iterator[Finding]:
    place = next(p for p in (runs.absolute(), *runs.absolute().parents) if p.exists())
    writable = place.is_dir() and os.access(place, os.W_OK)
    found = f"{runs.absolute()} can{'' if writable else 'not'} be written"
    yield _judged("run folders", writable, found, "work in a folder of your own, or give --out", core=True)
    if writable:
        free = shutil.disk_usage(place).free
        yield _judged("disk", free >= LITTLE_DISK, f"{human_bytes(free)} free", "make room or give --out")
