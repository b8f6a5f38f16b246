"""Entries: how they are computed, kept one a line, and compared."""

import json
import math
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from . import answers, data, refusals, runs, variants

HERE = Path(__file__).parent
CONCERNS = {"runs": runs, "variants": variants, "data": data, "refusals": refusals, "answers": answers}
MACHINE = "machine"
"""The entry of a file that says where its fingerprints were made."""


def this_machine() -> dict[str, str]:
    """What rounding depends on; libraries go by the very processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().split("\n\n")[0].splitlines() if info.exists() else []
    about = dict(map(str.strip, line.split(":", 1)) for line in lines)
    names = ("model name", "cpu family", "model", "stepping")  # virtual machines give many processors one name
    cpu = " ".join(about.get(name, "unknown") for name in names)
    return {"cpu": f"{cpu}, {torch.backends.cpu.get_cpu_capability()}", "torch": torch.__version__}


def kept(concern: str) -> dict[str, Any]:
    return dict(json.loads((HERE / f"{concern}.json").read_text()))


def write(concern: str, entries: dict[str, Any]) -> None:
    """One line an entry, sorted, so that a diff shows what changed."""
    lines = [f"{json.dumps(name)}: {json.dumps(entries[name], sort_keys=True)}" for name in sorted(entries)]
    (HERE / f"{concern}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def computed(concern: str, name: str) -> Any:
    """The entry as it is now, as JSON has it, computed in an empty folder, without data of this machine."""
    before = Path.cwd()
    torch.set_num_threads(1)
    environment = mock.patch.dict(os.environ)
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings(), mock.patch("os.fsync"), environment:
        os.environ.pop("UNSKEW_DATA", None)
        warnings.simplefilter("ignore")
        os.chdir(place)
        try:
            entry = CONCERNS[concern].entry(name, Path(place))
        finally:
            os.chdir(before)
    return json.loads(json.dumps(entry))


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """What differs, a line each: floats by more than 1e-5 of them, all else at all."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line for key in sorted({*old, *new}) for line in differences(old.get(key), new.get(key), f"{where}.{key}")
        ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            line for i, pair in enumerate(zip(old, new, strict=True)) for line in differences(*pair, f"{where}[{i}]")
        ]
    numbers = isinstance(old, float) and isinstance(new, float)
    same = math.isclose(old, new, rel_tol=1e-5, abs_tol=1e-9) if numbers else old == new
    return [] if same else [f"{where[1:]}: was {old!r}, is {new!r}"]
