"""What is installed and what is missing, told apart: each line has a status, and a remedy where one is needed."""

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable
from email.message import Message
from pathlib import Path

import pytest

from unskew import machine
from unskew.run import doctor
from unskew.run.doctor import Finding, broken, examine


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`pretend(torch="2.3.0", grpcio=None)`: unskew is installed, and these packages have these versions."""

    def make(python: str = ">=3.11", **versions: str | None) -> None:
        real = importlib.metadata.version
        about = Message()
        about["Requires-Python"] = python
        monkeypatch.setattr(importlib.metadata, "metadata", lambda name: about)
        needs = ["torch>=2.4", "numpy>=1.26", 'datasets>=3; extra == "hub"']
        monkeypatch.setattr(importlib.metadata, "requires", lambda name: needs)

        def version(name: str) -> str:
            found = versions[name] if name in versions else real(name)
            if found is None:
                raise importlib.metadata.PackageNotFoundError(name)
            return found

        monkeypatch.setattr(importlib.metadata, "version", version)

    return make


def line(what: str, tmp_path: Path, data: Path | None = None) -> Finding:
    (found,) = [f for f in examine(data, tmp_path / "runs") if f.what == what]
    return found


def test_a_version_outside_the_supported_range_is_broken(pretend: Callable[..., None], tmp_path: Path) -> None:
    pretend(torch="2.3.1")
    found = line("torch", tmp_path)
    assert (found.status, found.found, found.remedy) == (
        "problem",
        "2.3.1, >=2.4 is needed",
        "pip install 'torch>=2.4'",
    )
    assert found in broken(examine(None, tmp_path / "runs"))


def test_a_missing_extra_is_no_problem_and_comes_with_its_pip_line(
    pretend: Callable[..., None], tmp_path: Path
) -> None:
    pretend(datasets=None, grpcio=None)
    hub, deploy = line("extra [hub]", tmp_path), line("extra [deploy]", tmp_path)
    assert (hub.status, hub.remedy) == ("missing", "pip install 'unskew[hub]'")
    assert hub.found == "lacks datasets: data sets by name from the Hugging Face hub"
    assert (deploy.status, deploy.remedy) == ("missing", "pip install 'unskew[deploy]'")
    assert not hub.core
    assert not deploy.core


# ---------------------------------------------------------------- the machine
def test_a_place_where_no_run_folder_can_be_made_is_broken(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    findings = examine(None, file / "runs")
    assert [f.what for f in broken(findings)] == ["run folders"]


def test_memory_is_the_least_of_machine_and_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A container of 1,000 bytes that has used 400 has 600 left, whatever the machine has."""
    (tmp_path / "max").write_text("1000\n")
    (tmp_path / "used").write_text("400\n")
    monkeypatch.setattr(machine, "_LIMITS", ((str(tmp_path / "max"), str(tmp_path / "used")),))
    # What is free changes from one reading to the next, so the machine's own number is given.
    monkeypatch.setattr(machine, "_meminfo", {"MemAvailable": 5000}.get)
    assert machine.available() == 600
    (tmp_path / "max").write_text("9000\n")
    assert machine.available() == 5000
    (tmp_path / "max").write_text("max\n")
    assert machine.available() == 5000


WITHOUT = """
import importlib.metadata, json, sys
from pathlib import Path
absent = set(sys.argv[1].split(",")) - {""}
real = importlib.metadata.version
def version(name):
    if name in absent:
        raise importlib.metadata.PackageNotFoundError(name)
    return real(name)
importlib.metadata.version = version
for name in absent:
    sys.modules[name] = None  # importing it is an ImportError
sys.platform = sys.argv[2]
sys.argv = ["unskew", *sys.argv[3:]]
from unskew.cli import main
main()
"""


def without(absent: str, system: str, *words: str, here: Path) -> "subprocess.CompletedProcess[str]":
    """The command in a process in which these modules are not to be had, on such a system."""
    root = str(Path(doctor.__file__).parents[2])
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, absent, system, *words],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=here,
    )


@pytest.mark.parametrize(
    "absent",
    [pytest.param("torch", marks=pytest.mark.slow), pytest.param("numpy", marks=pytest.mark.slow), "torch,numpy"],
)
def test_pytorch_or_numpy_that_are_missing_are_said_to_be(absent: str, tmp_path: Path) -> None:
    said = without(absent, "linux", "doctor", "--json", "--data-dir", str(tmp_path), here=tmp_path)
    assert said.returncode == 1, said.stderr
    findings = {f["what"]: f for f in json.loads(said.stdout)["findings"]}
    for name in absent.split(","):
        assert (findings[name]["status"], findings[name]["found"]) == ("problem", "not installed")
        assert findings[name]["remedy"].startswith(f"pip install '{name}")
    assert findings["scipy"]["status"] == "ok"
    assert "disk" in findings


def test_a_package_that_is_installed_and_cannot_be_loaded_is_broken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = doctor.importlib.import_module

    def load(name: str) -> object:
        if name == "torch":
            raise OSError("libcudart.so.12: cannot open shared object file")
        return real(name)

    monkeypatch.setattr(doctor.importlib, "import_module", load)
    found = line("torch", tmp_path)
    assert found.core
    assert found.status == "problem"
    assert "cannot be loaded: OSError: libcudart.so.12" in found.found
    assert found.remedy.startswith("pip install --force-reinstall 'torch")
