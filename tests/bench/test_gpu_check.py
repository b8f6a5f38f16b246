"""The session's tool for a machine with a GPU, as far as it goes on a CPU."""

import importlib.util
import itertools
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import unskew

FILE = Path(unskew.__file__).parents[1] / "bench" / "gpu_check.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    if not FILE.exists():
        pytest.skip(f"{FILE} is not here: this is an installed package")
    spec = importlib.util.spec_from_file_location("gpu_check", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.DEVICE = torch.device("cpu")
    return module


@pytest.mark.parametrize("check", ["check_fold", "check_grade", "check_dropout"])
def test_equality_is_checked_to_its_end(tool: ModuleType, check: str) -> None:
    assert getattr(tool, check)() == 0


def test_a_fold_that_differs_is_counted(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stack that answers for every client what it answers for the first: seven of eight are wrong."""
    complete = tool.Stacked.complete

    def wrong(self: Any, work: Any) -> Any:
        done = dict(complete(self, work))
        return iter(dict.fromkeys(done, done[0]).items())

    monkeypatch.setattr(tool.Stacked, "complete", wrong)
    assert tool.check_fold() == 7


def test_the_executors_time_is_that_of_its_work(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not that of making a generator.

    By a clock on which every look takes a second and the executor's work five: six from the look before it to the look
    after, and two more from one look around the round to the other.
    """
    now, complete = itertools.count(), tool.Stacked.complete

    def working(self: Any, work: Any) -> Any:
        yield from complete(self, work)
        for _ in range(5):
            next(now)

    monkeypatch.setattr(tool.Stacked, "complete", working)
    monkeypatch.setattr(tool, "time", SimpleNamespace(perf_counter=lambda: next(now)))
    network = (lambda: tool.logistic((1, 8, 8), 10), (1, 8, 8))
    monkeypatch.setattr(tool, "CASES", {"tiny": (*network, 8, 200, 10, 2, 0.9)})
    tool.timing(())
    said = capsys.readouterr().out
    assert "ERROR" not in said
    found = re.search(r"tiny +rule +([\d.]+) s/round .* executor ([\d.]+) ", said)
    assert found is not None, said
    whole, inside = map(float, found.groups())
    assert (whole, inside) == (8.0, 6.0)
