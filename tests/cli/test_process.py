"""What only a process of its own shows: imports, signals, pipes, a terminal."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import unskew

ROOT = Path(unskew.__file__).parent.parent


def surroundings() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", "TERM": "xterm", "OMP_NUM_THREADS": "1"}


def python(*words: str, **more: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *words],
        env={**surroundings(), **more},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("module", ["unskew", "unskew.cli.app", "unskew.algorithms", "unskew.models"])
def test_importing_the_face_of_the_package_loads_no_pytorch(module: str) -> None:
    said = python("-c", f"import sys, {module}; print(sorted({{'torch', 'numpy', 'matplotlib'}} & set(sys.modules)))")
    assert said.stdout == "[]\n", said.stderr


def test_help_loads_no_pytorch(here: Path) -> None:
    code = (
        "import sys, unskew.cli\nsys.argv = ['unskew', 'run', '--help']\n"
        "try:\n    unskew.cli.main()\nexcept SystemExit as e:\n    print(e.code, 'torch' in sys.modules)"
    )
    assert python("-c", code).stdout.splitlines()[-1] in ("None False", "0 False")


def test_python_m_unskew_is_the_command(here: Path) -> None:
    said = python("-m", "unskew", "run", "tiny.toml", "--out", "r", "--json", "--seed", "0")
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["run"] == "tiny"
    assert said.stderr.endswith(f"report: {Path('r/report.html')}\n")
    assert "Traceback" not in said.stderr


def test_a_refusal_is_one_line_of_the_process_too(here: Path) -> None:
    said = python("-m", "unskew", "run", "tiny.toml", "--set", "rounds=0")
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr == "ConfigError: rounds must be >= 1, got 0 (tiny.toml)\n"


def test_ctrl_c_stops_cleanly_and_the_run_goes_on_with_the_same_bits(here: Path) -> None:
    words = ["-m", "unskew", "run", "tiny.toml", "--json", "--no-report", "--set", "rounds=120", "--seed", "0"]
    straight = python(*words, "--out", "straight")
    run = subprocess.Popen(
        [sys.executable, *words, "--out", "r"],
        env=surroundings(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stderr is not None
    for line in run.stderr:
        if "round" in line and "accuracy" in line:
            run.send_signal(signal.SIGINT)
            break
    out, err = run.communicate(timeout=60)
    assert run.returncode == 130
    assert out == ""
    assert err.splitlines()[-1].startswith("Interrupted: stopped by request after round ")
    assert err.splitlines()[-1].endswith("continue with: unskew resume r")
    assert "Traceback" not in err
    again = python("-m", "unskew", "resume", "r", "--json", "--no-report")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["fingerprint"] == json.loads(straight.stdout)["fingerprint"]


def test_output_that_nobody_reads_is_no_traceback(here: Path) -> None:
    said = subprocess.run(
        f"{sys.executable} -m unskew list | head -n 1 > /dev/null; {sys.executable} -m unskew list --json > /dev/full",
        shell=True, env=surroundings(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert said.stderr == "OSError: [Errno 28] No space left on device\n"
    assert said.returncode == 2


def test_a_terminal_without_our_signs_is_no_traceback(here: Path) -> None:
    said = python("-m", "unskew", "run", "tiny.toml", "--out", "r", "-q", "--no-report", PYTHONIOENCODING="ascii")
    assert said.returncode == 0, said.stderr
    assert said.stdout.isascii()
    assert "fedavg" in said.stdout


@pytest.mark.parametrize(
    ("settings", "code", "ending"),
    [
        ((), 0, r"report: r/report.html\r\n$"),
        (("stop.megabytes=0.001", 'methods.0.label="[/b] x"'), 0, r"report: r/report.html\r\n$"),
        (("local.lr=1e9", "task.model=mlp", "rounds=9"), 2, r"DivergedError: [^\r\n]+\r\n$"),
    ],
)
def test_the_live_display_gives_the_terminal_back(
    settings: tuple[str, ...], code: int, ending: str, here: Path
) -> None:
    """However a run ends, early or in an error too, the cursor is shown again and the last line is ours."""
    ours, theirs = pty.openpty()
    words = ["-m", "unskew", "run", "tiny.toml", "--out", "r", "--seed", "0"]
    run = subprocess.Popen(
        [sys.executable, *words, *(word for s in settings for word in ("--set", s))],
        env=surroundings(), stdout=subprocess.DEVNULL, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    while True:
        try:
            more = os.read(ours, 65536)
        except OSError:  # Linux's way to say that the other end is closed
            break
        if not more:
            break
        seen += more
    os.close(ours)
    text = seen.decode()
    assert run.wait(timeout=60) == code
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert re.search(ending, text)
    assert "Traceback" not in text
