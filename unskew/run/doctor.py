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
LOADED = ("torch", "numpy")

EXTRAS = {
    "tables": ("tables as CSV and Parquet files", ("polars",)),
    "hub": ("data sets by name from the Hugging Face hub", ("datasets",)),
    "track": ("TensorBoard, MLflow, Weights & Biases", ("tensorboard", "mlflow", "wandb")),
    "deploy": ("the same experiment over a real network, secure sums", ("grpcio", "cryptography", "pycryptodome")),
    "diffusion": ("Stable Diffusion as a prior", ("diffusers", "transformers")),
    "ray": ("training on more than one machine", ("ray",)),
    "dp": ("privacy accounting", ("dp-accounting",)),
    "tune": ("tuning of hyperparameters", ("optuna",)),
}
"""Purpose and packages of each optional extra."""


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
    return (*_software(), *_hardware(), *map(_extra, EXTRAS), *_data(data_dir), *_disk(runs))


def examine_cluster(address: str) -> tuple[Finding, ...]:
    """Examine every machine of a Ray cluster, on which a function of ours runs; a finding each, and one of all.

    Args:
        address: "auto" or HOST:PORT.

    Raises:
        ConfigError: If Ray is not installed.
        WorkerError: If there is no cluster at the address, or it turns this process away.
    """
    from unskew.local.ray import nodes

    machines = nodes(address)
    cores, gpus = sum(n.cores for n in machines), sum(n.gpus for n in machines)
    total = f"{counted(len(machines), 'machine')}, {cores} cores, {gpus} GPUs"
    findings = [_judged("cluster", cores > 0, total, "start nodes with --num-cpus")]
    for node in machines:
        state = f"{node.cores} cores, {node.gpus} GPUs, object store of {human_bytes(node.store)}"
        odd = node.problem or "; ".join(node.differences)
        remedy = "a run is refused there unless runtime.executor_options has mixed = true"
        if node.problem:
            remedy = "install the versions of this machine there, by the same path"
        findings.append(_judged(node.name, not odd, f"{state}; {odd or 'versions and processor as here'}", remedy))
    return tuple(findings)


def broken(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Findings without which nothing works."""
    return tuple(f for f in findings if f.core and f.status != "ok")


def _judged(what: str, fine: bool, state: str, remedy: str, core: bool = False) -> Finding:
    """A finding with its remedy unless all is fine."""
    return Finding(what, "ok" if fine else "problem", state, "" if fine else remedy, core)


# ---------------------------------------------------------------- software
def _software() -> Iterator[Finding]:
    try:
        needs = SpecifierSet(importlib.metadata.metadata("unskew")["Requires-Python"] or "")
        requirements = [Requirement(r) for r in importlib.metadata.requires("unskew") or []]
        yield Finding("unskew", "ok", __version__)
    except importlib.metadata.PackageNotFoundError:
        needs, requirements = SpecifierSet(), []
        state = f"{__version__}, run from its source without being installed: versions cannot be compared"
        yield Finding("unskew", "problem", state, "pip install -e . in the source folder")
    version = platform.python_version()
    fits = needs.contains(version, prereleases=True)
    state = f"{version} ({sys.executable})" + f", {needs} is needed" * (not fits)
    yield _judged("python", fits, state, f"make an environment with a Python {needs}", core=True)
    here = f"{platform.system()} {platform.release()} {platform.machine()}"
    yield _judged("platform", sys.platform in ("linux", "darwin"), here, "on Windows, use WSL 2", core=True)
    wanted = {r.name: r.specifier for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})}
    for package, versions in (wanted or dict.fromkeys(LOADED, SpecifierSet())).items():
        yield _package(package, versions)


def _package(name: str, wanted: SpecifierSet) -> Finding:
    install = f"pip install '{name}{wanted}'"
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "problem", "not installed", install, core=True)
    if not wanted.contains(version, prereleases=True):
        return Finding(name, "problem", f"{version}, {wanted} is needed", install, core=True)
    why = _not_loaded(name) if name in LOADED else ""
    state = f"{version}, but it cannot be loaded: {why}" if why else f"{version} {f'({wanted})' if wanted else ''}"
    return _judged(name, not why, state.rstrip(), install.replace("install", "install --force-reinstall"), core=True)


def _not_loaded(package: str) -> str:
    """Reason why a package cannot be imported; empty if it can."""
    try:
        importlib.import_module(package)
    except Exception as error:  # a library that is missing or of another build can fail in any way
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return ""


def _extra(name: str) -> Finding:
    purpose, packages = EXTRAS[name]
    versions: dict[str, str | None] = dict.fromkeys(packages)
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    has = ", ".join(f"{package} {version}" for package, version in versions.items() if version)
    lacks = ", ".join(package for package, version in versions.items() if not version)
    if not lacks:
        return Finding(f"extra [{name}]", "ok", f"{has}: {purpose}")
    state = f"has {has}, lacks {lacks}" if has else f"lacks {lacks}"
    return Finding(f"extra [{name}]", "missing", f"{state}: {purpose}", f"pip install 'unskew[{name}]'")


# ---------------------------------------------------------------- hardware
def _hardware() -> Iterator[Finding]:
    yield Finding("cores", "ok", f"{machine.cores()} of {os.cpu_count() or 1} are for this process")
    total, left = machine.total(), machine.available()
    if total is None or left is None:
        yield Finding("memory", "missing", "this system does not tell how much there is", "watch it yourself")
    else:
        state = f"{human_bytes(left)} to be had of {human_bytes(total)}"
        yield _judged("memory", left >= LITTLE_MEMORY, state, "end other programs; unskew plan says what a run needs")
    if not _not_loaded("torch"):
        import torch

        setting = os.environ.get("OMP_NUM_THREADS")
        state = f"{torch.get_num_threads()} in PyTorch, OMP_NUM_THREADS is {setting or 'not set'}"
        number = setting is None or setting.isdecimal()
        yield _judged("threads", number, state, "set OMP_NUM_THREADS to a number or unset it")
        gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        devices = ", ".join(f"{gpu.name} ({human_bytes(gpu.total_memory)})" for gpu in gpus)
        none = f"PyTorch {torch.__version__} finds no device; runs use the CPU"
        yield Finding("cuda", "ok" if gpus else "missing", devices or none)
    if "fork" in multiprocessing.get_all_start_methods():
        yield Finding("fork", "ok", "workers are forked and share the data")
    else:
        yield Finding("fork", "missing", "workers are started afresh: same results, a slower start, more memory")


# ---------------------------------------------------------------- data, disk
def _data(data_dir: Path | None) -> Iterator[Finding]:
    folder = str(data_dir) if data_dir is not None else os.environ.get("UNSKEW_DATA")
    if not folder:
        remedy = "set UNSKEW_DATA or --data-dir to a folder with data sets; unskew list datasets names them"
        yield Finding("data folder", "missing", "none is given; digits is bundled", remedy)
        return
    root = Path(folder).expanduser()
    if not root.is_dir():
        yield Finding("data folder", "problem", f"{root.absolute()} is not there", "set UNSKEW_DATA to one that is")
        return
    if any(map(_not_loaded, LOADED)):
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
            state = f"{runs.absolute()} can be written"
    except OSError as error:
        state = f"{runs.absolute()} cannot be written: {error.strerror or error}"
    writable = state.endswith("can be written")
    yield _judged("run folders", writable, state, "work in a folder of your own, or give --out", core=True)
    if writable:
        free = shutil.disk_usage(place).free
        yield _judged("disk", free >= LITTLE_DISK, f"{human_bytes(free)} free", "make room or give --out")
