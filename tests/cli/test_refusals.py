"""Bad input, end to end: one line that begins with the error's class, an exit code that is not 0, nothing left."""

import json
import sys
from pathlib import Path

import pytest
import torch

from unskew.local.trainer import LocalTrainer

from .conftest import Unskew


def test_a_page_that_cannot_be_written_does_not_take_the_results_with_it(unskew: Unskew, here: Path) -> None:
    assert unskew("run", "tiny.toml", "--out", "r", "-q", "--no-report").code == 0
    (here / "r" / "report.html").mkdir()
    said = unskew("run", "r", "--json")
    assert said.code == 2
    assert json.loads(said.out)["run"] == "tiny"
    assert said.err.startswith("RunError: ")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("executor", ["sequential", "workers"])
def test_memory_that_runs_out_is_one_line_that_says_what_to_lower(
    unskew: Unskew, here: Path, monkeypatch: pytest.MonkeyPatch, executor: str
) -> None:
    """The address space of a process is not so large; what was done before stands at its checkpoint."""
    monkeypatch.setattr(LocalTrainer, "fit", lambda *_: torch.empty(1 << 60))
    said = unskew("run", "tiny.toml", "--out", "r", "--quiet", "--set", f"runtime.executor={executor}")
    assert said.code == 2
    (line,) = [line for line in said.err.splitlines() if not line.startswith("warning: no plan.json")]
    assert line.startswith("MemoryShortage: fedavg, seed 0, round 1: memory ran out (4611686018427387904 bytes more")
    assert line.endswith("unskew plan says what each takes; on a machine with more, unskew run r goes on")


def test_an_error_nobody_foresaw_keeps_its_traceback(unskew: Unskew, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("unskew.decide.forecast.plan.plan", fault)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        unskew("plan", "tiny.toml")


# ---------------------------------------------------------------- a network of one's own, in the working directory
NETWORKS = """
from torch import nn


class Net(nn.Module):
    def __init__(self, inputs=64, outputs=10):
        super().__init__()
        self.flat, self.classify = nn.Flatten(), nn.Linear(inputs, outputs)

    def forward(self, x):
        return self.classify(self.flat(x))


def headless(input_shape, num_classes):
    return nn.Sequential(nn.Conv2d(1, num_classes, input_shape[1:]), nn.Flatten())
"""


@pytest.mark.parametrize(
    ("settings", "begin"),
    [
        ({"model_options.inputs": 64}, None),
        ({"model_options.inputs": 32}, "ConfigError: Net cannot take examples of shape (1, 8, 8) and torch.float32: "),
        ({"model": "own_networks:headless", "head": '"0"'}, None),
    ],
)
def test_a_network_in_the_working_directory_runs_or_is_refused_in_a_sentence(
    unskew: Unskew, here: Path, settings: dict[str, object], begin: str | None
) -> None:
    (here / "own_networks.py").write_text(NETWORKS)
    settings = {"model": "own_networks:Net", **settings}
    words = [w for key, value in settings.items() for w in ("--set", f"task.{key}={value}")]
    said = unskew("run", "tiny.toml", "--out", "r", "--quiet", "--no-report", "--set", "seeds=[0]", *words)
    if begin is None:
        assert said.code == 0
    else:
        assert said.code == 2
        assert said.err.startswith(begin)
        assert len(said.err.splitlines()) == 1
        assert not (here / "r").exists()


@pytest.mark.parametrize("words", ["show .", "predict . x.csv"])
def test_a_folder_from_elsewhere_does_not_shadow_packages_that_are_not_installed(
    words: str, unskew: Unskew, here: Path
) -> None:
    """A tracker, for one, is a package that may be missing, and the working directory may hold a file of its name."""
    unskew(*words.split())
    assert str(here) not in sys.path
