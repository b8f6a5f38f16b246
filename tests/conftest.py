import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
# A shell starts what it puts into the background deaf to Ctrl-C, and so would be what the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("unskew", deadline=None, derandomize=True, max_examples=60, print_blob=True)
settings.load_profile("unskew")

# pytest's importlib mode puts no test folder on the path; the conformance suite shares one recipe with a child process.
sys.path.insert(0, str(Path(__file__).parent / "conformance"))

OUTCOMES: list[tuple[str, str, str]] = []


@pytest.fixture
def outcome() -> Callable[[str, str, str], None]:
    """`outcome(fault, "went on" or "refused", what happened)`: a line of the table at the end."""
    return lambda fault, verdict, text: OUTCOMES.append((fault, verdict, text))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not OUTCOMES:
        return
    terminalreporter.section("faults and what became of them")
    width = max(len(fault) for fault, _, _ in OUTCOMES)
    for fault, verdict, text in OUTCOMES:
        terminalreporter.write_line(f"{fault.ljust(width)}  {verdict.ljust(8)}  {text}")
