import dataclasses
import functools
import gc
import os
import signal
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

import unskew as us
import unskew.deploy  # before gRPC, which it settles
from unskew import report
from unskew.data import sources
from unskew.data.dataset import Dataset
from unskew.data.named import NAMED
from unskew.experiment import config
from unskew.experiment.config import Experiment
from unskew.record import database
from unskew.run import setup as run_setup
from unskew.tasks.targets import Targets

# Nothing that is collected is garbage: looking for some took a fifth of the time, and again and again in the tests.
gc.disable()

# Also where the environment says not to: workers and the processes of a federation would each compile everything.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# As in a terminal, also where the tests are run by nohup: it would be left ignored.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(700, 10, 100)  # each look at everything takes a tenth of a second
    gc.enable()


torch.set_num_threads(1)
# A shell starts what it puts into the background deaf to Ctrl-C, and so would be what the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("unskew", deadline=None, derandomize=True, max_examples=40, print_blob=True)
# Fresh examples every night: --hypothesis-profile=nightly, which pytest loads after this file.
settings.register_profile("nightly", deadline=None, derandomize=False, max_examples=500, print_blob=True)
settings.register_profile("quick", settings.get_profile("unskew"), max_examples=15)
settings.load_profile("unskew")

# pytest's importlib mode puts no test folder on the path.  A child process shares the conformance suite's recipe, and
# several folders write records by hand.
sys.path[:0] = [str(Path(__file__).parent / name) for name in ("conformance", "record", "report")]


@pytest.fixture(scope="session", autouse=True)
def _digits_are_parsed_once() -> Iterator[None]:
    """Nearly every run reads them; each is given arrays of its own."""
    digits = NAMED["digits"]
    once = functools.cache(digits.read)
    again = dataclasses.replace(digits, read=lambda path: {name: rows.copy() for name, rows in once(path).items()})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(NAMED, "digits", again)
        yield


@pytest.fixture
def unreported(monkeypatch: pytest.MonkeyPatch) -> None:
    """No page is drawn at the end of `simulate(out=...)`: it takes ten times as long as a small run."""
    real = report.write_report
    monkeypatch.setattr(report, "write_report", lambda run, out=None: run if out is None else real(run, out))


@pytest.fixture(scope="session", autouse=True)
def _disks_are_not_waited_for() -> Iterator[None]:
    """No test pulls the plug, and a sync takes as long as a round; who counts or breaks syncs patches this again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        patch.setattr(database, "SYNCHRONOUS", "OFF")
        yield


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """A run of a large model takes all cores and leaves PyTorch so: two of pytest's workers would wait for each other.

    Tests of tiny networks then took thirty times as long.
    """
    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)


@pytest.fixture
def two_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """`us.simulate` runs two rounds at most: for code of pages, of which it matters that it runs."""
    real = us.simulate
    monkeypatch.setattr(us, "simulate", lambda *given, rounds=2, **more: real(*given, rounds=min(rounds, 2), **more))


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures have their words and no lines: for tests of a page's text, of which drawing is nine tenths."""
    from unskew.report import charts

    monkeypatch.setattr(charts, "_svg", lambda spec: '<svg viewBox="0 0 1 1"></svg>')
    monkeypatch.setattr(charts, "_vega", lambda: "")


@pytest.fixture
def drawn() -> None:
    """Asks for real figures where other tests have undrawn ones."""


@pytest.fixture(autouse=True)
def _undrawn(request: pytest.FixtureRequest) -> None:
    """A page is written without drawing, unless a test asks for it.

    A test that is the first to import the figures draws them, since importing them would cost the others more.
    """
    if "unskew.report.charts" in sys.modules and "drawn" not in request.fixturenames:
        request.getfixturevalue("undrawn")


OUTCOMES: list[tuple[str, str, str]] = []


TINY = """
name = "tiny"
rounds = 3
task = { data = "digits", model = "mlp", model_options = { hidden = [8] } }
split = { name = "dirichlet", num_clients = 4, alpha = 0.5 }
local = { lr = 0.1, batch_size = 128 }
runtime = { executor = "sequential" }
"""
FEDAVG = '[[methods]]\nname = "fedavg"\n'


@pytest.fixture(scope="session")
def _digits_are_read_once() -> Iterator[None]:
    once = functools.cache(sources.load)

    def load(source: str, data_dir: Path | None, options: Any, preprocess: Any, targets: Targets) -> Dataset:
        # A path is read each time: another test, or the same one, may have written another file there.
        plain = ":" not in source and not options and preprocess is None and targets.classes
        return once(source, data_dir) if plain else sources.load(source, data_dir, options, preprocess, targets)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_setup, "load", load)
        yield


@pytest.fixture(scope="session")
def tiny(_digits_are_read_once: None) -> Callable[..., Experiment]:
    """`tiny("rounds=2", methods="...")`: real digits, four clients, 610 parameters; with overrides and methods."""

    def make(*overrides: str, methods: str = FEDAVG) -> Experiment:
        return config.parse(config.override(tomllib.loads(TINY + methods), overrides))

    return make


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
