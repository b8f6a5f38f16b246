"""Global models of earlier rounds, and training that ends when validation results are no longer bettered."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import unskew as us
from unskew.errors import RunError
from unskew.experiment.config import Experiment
from unskew.record.logs import rows
from unskew.run import loop, models
from unskew.run.cell import Cell, Observer
from unskew.run.loop import Interrupted

FALLING = ("split.alpha=100", "val_fraction=0.3", "local.lr=3.0", "local.batch_size=4")
"""Steps so large that validation results rise and fall."""


class Stops(Observer):
    """Asks for a stop after some rounds, as Ctrl-C does."""

    def __init__(self, after: int) -> None:
        self.after = after

    def ended_round(self, cell: Cell) -> None:
        if cell.round == self.after:
            raise KeyboardInterrupt


def curve(folder: Path) -> dict[int, float]:
    return {r["round"]: r["value"] for r in rows(folder, "metrics") if r["name"] == "val.accuracy"}


def first_best(values: dict[int, float], until: int) -> int:
    rounds = range(1, until + 1)
    return max(rounds, key=lambda t: (values[t], -t))


def same(a: nn.Module, b: nn.Module) -> bool:
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


def kept(folder: Path) -> list[int]:
    return list(models.of_rounds(folder, "fedavg", 0))


# ---------------------------------------------------------------- models of earlier rounds
def test_a_model_of_round_t_is_that_of_a_run_of_t_rounds(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    folder = loop.start(tiny("rounds=5", "keep_models.every=2"), tmp_path / "run").folder
    short = loop.start(tiny("rounds=2"), tmp_path / "short").folder
    assert kept(folder) == [2, 4]
    second = us.load_model(folder, round=2)
    assert second.unskew.round == 2
    assert same(second, us.load_model(short))
    assert not same(second, us.load_model(folder))
    file = folder / "models" / "fedavg-seed0.round2.safetensors"
    assert same(us.load_model(file), second)
    with pytest.raises(RunError, match="is one model; leave method, client, seed and round out"):
        us.load_model(file, round=4)


def test_the_best_model_is_that_of_the_best_validation_result(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    """Of equally good rounds the first."""
    folder = loop.start(tiny("rounds=8", *FALLING, "keep_models.best=true"), tmp_path / "run").folder
    best = first_best(curve(folder), 8)
    assert best < 8, "the curve must fall for this test to tell the best from the last"
    model = us.load_model(folder, round="best")
    assert model.unskew.round == best
    assert kept(folder) == [best]
    assert same(model, us.load_model(loop.start(tiny(f"rounds={best}", *FALLING), tmp_path / "short").folder))


@pytest.mark.parametrize("after", [3, 6])
def test_a_run_that_was_stopped_keeps_the_same_models(
    tiny: Callable[..., Experiment], tmp_path: Path, after: int
) -> None:
    """Whatever was removed before the stop: the best so far is there at every checkpoint."""
    experiment = tiny("rounds=8", *FALLING, "keep_models={every=3, best=true}", "runtime.checkpoint_every=2")
    whole = loop.start(experiment, tmp_path / "whole").folder
    with pytest.raises((Interrupted, KeyboardInterrupt)):
        loop.start(experiment, tmp_path / "run", Stops(after))
    folder = loop.resume(tmp_path / "run").folder
    assert kept(folder) == kept(whole)
    for t in kept(whole):
        assert same(us.load_model(folder, round=t), us.load_model(whole, round=t))
    assert us.load_model(folder, round="best").unskew.round == us.load_model(whole, round="best").unskew.round


# ---------------------------------------------------------------- patience
@pytest.mark.parametrize("patience", [1, 3])
def test_training_ends_once_nothing_was_better_for_so_many_rounds(
    tiny: Callable[..., Experiment], tmp_path: Path, patience: int
) -> None:
    """The end is what the curve of a run without patience says."""
    whole = curve(loop.start(tiny("rounds=12", *FALLING), tmp_path / "whole").folder)
    end = next((t for t in range(1, 13) if t - first_best(whole, t) >= patience), None)
    assert end is not None
    assert end < 12
    outcome = loop.start(tiny("rounds=12", *FALLING, f"stop.patience={patience}"), tmp_path / "run")
    assert max(curve(outcome.folder)) == end
    best = first_best(whole, end)
    rounds = f"{end - best} round" + "s" * (end - best > 1)
    reason = f"validation accuracy {whole[best]:.4f} of round {best} was not improved in {rounds}"
    assert outcome.summary["stopped"]["fedavg/0"] == reason
