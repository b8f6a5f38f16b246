"""Reports on the installation and the machine, one line each, with a remedy for anything missing.

Only PyTorch and NumPy are imported, since an installation can have them and still be unable to load them; without them
everything else is reported all the same.  Nothing is downloaded, and nothing is left behind.
"""

import importlib
import importlib.metadata
import multiprocessing
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from unskew import machine
from unskew.units import human_bytes
from unskew.version import __version__
from unskew.words import counted

Status = Literal["ok", "missing", "problem"]

LITTLE_DISK = 1_000_000_000
LITTLE_MEMORY = 2_000_000_000
SYSTEMS = ("linux", "darwin")
LOADED = ("torch", "numpy")


@dataclass(frozen=True)
class Extra:
    """An optional extra: its purpose and packages."""

    name: str
    purpose: str
    packages: tuple[str, ...]


EXTRAS = (
    Extra("tables", "tables as CSV and Parquet files", ("polars",)),
    Extra("hub", "data sets by name from the Hugging Face hub", ("datasets",)),
    Extra("track", "TensorBoard, MLflow, Weights & Biases", ("tensorboard", "mlflow", "wandb")),
    Extra("deploy", "the same experiment over a real network, secure sums", ("grpcio", "cryptography", "pycryptodome")),
    Extra("diffusion", "Stable Diffusion as a prior", ("diffusers", "transformers")),
    Extra("ray", "training on more than one machine", ("ray",)),
    Extra("dp", "privacy accounting", ("dp-accounting",)),
    Extra("tune", "tuning of hyperparameters", ("optuna",)),
)


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        what: Subject of the line.
        status: "missing" for something optional, "problem" for something to fix.
        found: Its state.
        remedy: Action to take; empty if none is needed.
        core: True if nothing works without it.
    """

    what: str
    status: Status
    found: str
    remedy: str = ""
    core: bool = False


def examine(data_dir: Path | None = None, runs: Path = Path("runs")) -> tuple[Finding, ...]:
    """Examine the installation and the machine; all findings in reading order.

    Args:
        data_dir: Folder of named data sets; by default the environment's UNSKEW_DATA.
        runs: Folder in which run folders would be made.
    """
    return (
        *_software(),
        *_hardware(),
        *(_extra(extra) for extra in EXTRAS),
        *_data(data_dir),
        *_disk(runs),
    )


def examine_cluster(address: str) -> tuple[Finding, ...]:
    """Examine every machine of a Ray cluster, on which a function of ours runs; a finding each, and one of all.

    Args:
        address: "auto" or HOST:PORT.

    Raises:
        ConfigError: If Ray is not installed.
        WorkerError: If there is no cluster at the address, or it turns this process away.
    """
    from unskew.local.ray import nodes

    found = nodes(address)
    cores, gpus = sum(n.cores for n in found), sum(n.gpus for n in found)
    total = f"{counted(len(found), 'machine')}, {cores} cores, {gpus} GPUs"
    findings = [Finding("cluster", "ok" if cores else "problem", total, "" if cores else "start nodes with --num-cpus")]
    for node in found:
        state = f"{node.cores} cores, {node.gpus} GPUs, object store of {human_bytes(node.store)}"
        if node.problem:
            remedy = "install the versions of this machine there, by the same path"
            findings.append(Finding(node.name, "problem", f"{state}; {node.problem}", remedy))
        elif node.differences:
            remedy = "a run is refused there unless runtime.executor_options has mixed = true"
            findings.append(Finding(node.name, "problem", f"{state}; {'; '.join(node.differences)}", remedy))
        else:
            findings.append(Finding(node.name, "ok", f"{state}; versions and processor as here"))
    return tuple(findings)


def broken(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Findings without which nothing works."""
    return tuple(f for f in findings if f.core and f.status != "ok")


# ---------------------------------------------------------------- software
def _software() -> Iterator[Finding]:
    try:
        about = importlib.metadata.metadata("unskew")
        needs = SpecifierSet(about["Requires-Python"] or "")
        requirements = [Requirement(r) for r in importlib.metadata.requires("unskew") or []]
        yield Finding("unskew", "ok", __version__)
    except importlib.metadata.PackageNotFoundError:
        needs, requirements = SpecifierSet(), []
        yield Finding(
            "unskew",
            "problem",
            f"{__version__}, run from its source without being installed: versions cannot be compared",
            "pip install -e . in the source folder",
        )
    version = platform.python_version()
    fits = needs.contains(version, prereleases=True)
    yield Finding(
        "python",
        "ok" if fits else "problem",
        f"{version} ({sys.executable}){'' if fits else f', {needs} is needed'}",
        "" if fits else f"make an environment with a Python {needs}",
        core=True,
    )
    known = sys.platform in SYSTEMS
    here = f"{platform.system()} {platform.release()} {platform.machine()}"
    yield Finding(
        "platform",
        "ok" if known else "problem",
        here if known else f"{here}; unskew needs Linux or macOS",
        "" if known else "on Windows, use WSL 2",
        core=True,
    )
    wanted = {r.name: r.specifier for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})}
    for package, versions in (wanted or dict.fromkeys(LOADED, SpecifierSet())).items():
        yield _package(package, versions)


def _package(name: str, wanted: SpecifierSet) -> Finding:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "problem", "not installed", f"pip install '{name}{wanted}'", core=True)
    if not wanted.contains(version, prereleases=True):
        return Finding(name, "problem", f"{version}, {wanted} is needed", f"pip install '{name}{wanted}'", core=True)
    if name in LOADED and (why := _not_loaded(name)):
        order = f"pip install --force-reinstall '{name}{wanted}'"
        return Finding(name, "problem", f"{version}, but it cannot be loaded: {why}", order, core=True)
    return Finding(name, "ok", f"{version} ({wanted} is supported)" if str(wanted) else version, core=True)


def _not_loaded(package: str) -> str:
    """Reason why a package cannot be imported; empty if it can."""
    try:
        importlib.import_module(package)
    except Exception as error:  # a library that is missing or of another build can fail in any way
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return ""


def _extra(extra: Extra) -> Finding:
    installed, missing = [], []
    for package in extra.packages:
        try:
            installed.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(package)
    what = f"extra [{extra.name}]"
    if not missing:
        return Finding(what, "ok", f"{', '.join(installed)}: {extra.purpose}")
    prefix = f"has {', '.join(installed)}, lacks " if installed else "lacks "
    order = f"pip install 'unskew[{extra.name}]'" if _declared(extra.name) else f"pip install {' '.join(missing)}"
    return Finding(what, "missing", f"{prefix}{', '.join(missing)}: {extra.purpose}", order)


def _declared(extra: str) -> bool:
    """True if the installed unskew declares the extra."""
    try:
        return extra in (importlib.metadata.metadata("unskew").get_all("Provides-Extra") or [])
    except importlib.metadata.PackageNotFoundError:
        return False


# ---------------------------------------------------------------- hardware
def _hardware() -> Iterator[Finding]:
    here, all_of_them = machine.cores(), os.cpu_count() or 1
    some = "" if here == all_of_them else f" of {all_of_them}, the rest is not for this process"
    yield Finding("cores", "ok", f"{here}{some}")
    total, left = machine.total(), machine.available()
    if total is None or left is None:
        yield Finding("memory", "missing", "this system does not tell how much there is", "watch it yourself")
    else:
        little = left < LITTLE_MEMORY
        yield Finding(
            "memory",
            "problem" if little else "ok",
            f"{human_bytes(left)} to be had of {human_bytes(total)}",
            "end other programs; unskew plan says what a run needs" if little else "",
        )
    if not _not_loaded("torch"):
        yield _threads()
        yield _cuda()
    if "fork" in multiprocessing.get_all_start_methods():
        yield Finding("fork", "ok", "workers are forked and share the data")
    else:
        yield Finding("fork", "missing", "workers are started afresh: same results, a slower start, more memory")


def _threads() -> Finding:
    import torch

    setting = os.environ.get("OMP_NUM_THREADS")
    state = f"{torch.get_num_threads()} in PyTorch, OMP_NUM_THREADS is {setting or 'not set'}"
    if setting is not None and not setting.isdecimal():
        return Finding("threads", "problem", state, "set OMP_NUM_THREADS to a number or unset it")
    return Finding("threads", "ok", f"{state}; a run chooses for itself (runtime.threads)")


def _cuda() -> Finding:
    import torch

    if not torch.cuda.is_available():
        built = torch.version.cuda
        why = "this PyTorch is a CPU build" if built is None else f"PyTorch for CUDA {built} finds no device"
        return Finding("cuda", "missing", f"{why}; runs use the CPU")
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    memory = [torch.cuda.get_device_properties(i).total_memory for i in range(len(names))]
    devices = ", ".join(f"{name} ({human_bytes(size)})" for name, size in zip(names, memory, strict=True))
    return Finding("cuda", "ok", devices)


# ---------------------------------------------------------------- data, disk
def _data(data_dir: Path | None) -> Iterator[Finding]:
    folder = str(data_dir) if data_dir is not None else os.environ.get("UNSKEW_DATA")
    if not folder:
        yield Finding(
            "data folder",
            "missing",
            "none is given; digits is bundled",
            "set UNSKEW_DATA or --data-dir to a folder with data sets; unskew list datasets names them",
        )
        return
    root = Path(folder).expanduser()
    if not root.is_dir():
        yield Finding("data folder", "problem", f"{root.absolute()} is not there", "set UNSKEW_DATA to one that is")
        return
    if _not_loaded("torch") or _not_loaded("numpy"):
        yield Finding("data folder", "ok", f"{root.absolute()}; without PyTorch and NumPy it is not looked into")
        return
    from unskew.data.domains import DOMAINS
    from unskew.data.sources import SOURCES, places

    named = [s.name for s in SOURCES if ":" not in s.name and s.name not in ("digits", *DOMAINS)]
    have = {name: file for name in named for file in places(name, root)[::-1] if file.is_file()}
    lacks = [name for name in named if name not in have]
    yield Finding("data folder", "ok", f"{root.absolute()}; not there: {', '.join(lacks) or 'nothing'}")
    for name, file in have.items():
        yield Finding(f"data set {name}", "ok", str(file.absolute()))


def _disk(runs: Path) -> Iterator[Finding]:
    place = next(p for p in (runs.absolute(), *runs.absolute().parents) if p.exists())
    try:
        with tempfile.TemporaryDirectory(prefix=".unskew-", dir=place):
            pass
    except OSError as error:
        yield Finding(
            "run folders",
            "problem",
            f"{runs.absolute()} cannot be written: {error.strerror or error}",
            "work in a folder of your own, or give --out",
            core=True,
        )
        return
    yield Finding("run folders", "ok", f"{runs.absolute()} can be written")
    free = shutil.disk_usage(place).free
    little = free < LITTLE_DISK
    yield Finding(
        "disk", "problem" if little else "ok", f"{human_bytes(free)} free", "make room or give --out" if little else ""
    )
