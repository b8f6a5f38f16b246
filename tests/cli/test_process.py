"""What a process shows: imports, signals, pipes, a terminal."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import unskew as package
from unskew.run import progress

from .conftest import Unskew

PYTHON = shlex.quote(sys.executable)
ROOT = Path(package.__file__).parent.parent


def python(*words: str, **more: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def loaded(modules: str, heavy: set[str]) -> str:
    """What is loaded of these with those, in a process of its own."""
    said = python("-c", f"import sys, {modules}; print({heavy} & set(sys.modules))")
    assert said.returncode == 0, said.stderr
    return said.stdout.strip()


def test_importing_the_face_of_the_package_loads_nothing_heavy() -> None:
    heavy = {"torch", "numpy", "scipy", "sklearn", "matplotlib", "pydantic"}
    assert loaded("unskew, unskew.cli.app", heavy) == "set()"


def test_the_help_of_a_command_loads_no_torch() -> None:
    asks = "import sys; from unskew.cli import main; sys.argv[1:] = ['run', '--help']\ntry: main()\nfinally: "
    said = python("-c", f"{asks}print('torch' in sys.modules, file=sys.stderr)")
    assert ("--set" in said.stdout, said.stderr) == (True, "False\n")


def test_what_a_federation_does_without_training_loads_no_torch() -> None:
    pytest.importorskip("cryptography")
    modules = ", ".join(f"unskew.deploy.{name}" for name in ("federation", "site", "backup", "units"))
    assert loaded(modules, {"torch", "grpc", "scipy"}) == "set()"


def test_a_refusal_by_a_process_is_one_line_and_exit_code_2() -> None:
    said = python("-m", "unskew", "list", "nothing")
    assert (said.returncode, said.stdout) == (2, "")
    assert re.fullmatch("ConfigError: unskew list knows .*, got 'nothing'\n", said.stderr)


def test_output_that_cannot_be_written_is_no_traceback() -> None:
    said = subprocess.run(
        f"{PYTHON} -m unskew list experiments | true; {PYTHON} -m unskew list experiments > /dev/full",
        shell=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (said.returncode, said.stderr) == (
        2,
        "OSError: [Errno 28] No space left on device: the output could not be written\n",
    )


# ---------------------------------------------------------------- being stopped
def stop_at(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C as soon as progress says this."""
    note = progress.Lines.note

    def heard(self: progress.Lines, line: str) -> None:
        note(self, line)
        if text in line:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(progress.Lines, "note", heard)


def test_ctrl_c_is_exit_code_130_and_the_run_goes_on_with_the_same_bits(unskew: Unskew) -> None:
    words = ("run", "tiny.toml", "--json", "--no-report")
    straight = json.loads(unskew(*words, "--out", "straight").out)
    with pytest.MonkeyPatch.context() as patch:
        stop_at("fedavg (seed 0)  round 1/2", patch)
        said = unskew(*words, "--out", "r")
    assert (said.code, said.out) == (130, "")
    assert "stopping after this round" in said.err
    assert said.err.splitlines()[-1] == (
        "Interrupted: stopped by request after round 1 of fedavg, seed 0; continue with: unskew run r"
    )
    again = unskew("run", "r", "--json", "--no-report")
    assert json.loads(again.out)["fingerprint"] == straight["fingerprint"]
