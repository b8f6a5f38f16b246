"""Minutes of coverage-guided fuzzing of the codec, where atheris is installed: `make test-slow`, `make nightly`."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_bytes_break_the_codec(tmp_path: Path, outcome: Callable[[str, str, str], None]) -> None:
    """UNSKEW_FUZZ_S seconds, two minutes unless it is set; an input that breaks something is kept in build/fuzz."""
    pytest.importorskip(
        "atheris", reason="coverage-guided fuzzing needs atheris (Linux and macOS): pip install -e '.[fuzz]'"
    )
    corpus, findings = tmp_path / "corpus", Path("build/fuzz").absolute()
    corpus.mkdir()
    findings.mkdir(parents=True, exist_ok=True)
    seconds = os.environ.get("UNSKEW_FUZZ_S", "120")
    script = Path(__file__).with_name("fuzz_codec.py")
    fuzzing = subprocess.run(
        [
            sys.executable,
            str(script),
            str(corpus),
            f"-max_total_time={seconds}",
            f"-artifact_prefix={findings}/",
            "-rss_limit_mb=4096",
            "-max_len=65536",
            "-print_final_stats=1",
        ],
        capture_output=True,
        text=True,
        errors="replace",
    )
    output = fuzzing.stdout + fuzzing.stderr
    assert fuzzing.returncode == 0, output[-4000:]
    (runs,) = re.findall(r"number_of_executed_units: (\d+)", output)
    assert int(runs) > 1000, "it ran"
    outcome(
        "inputs of a coverage-guided fuzzer", "refused", f"{runs} in {seconds} s: a WireError or a value, no other end"
    )
