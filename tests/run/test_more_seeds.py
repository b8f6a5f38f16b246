"""Seeds that are added to a run that is there: it ends as if its rule had been written at the start."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from records import rewrite

import unskew as us
from unskew.errors import ConfigError, RunError
from unskew.experiment.config import Experiment, fingerprint
from unskew.run import loop, more_seeds
from unskew.run.documents import EnvironmentChanged
from unskew.run.loop import Interrupted

from .test_resume import Presses, contents, leftovers

# SCAFFOLD's clients keep memory, which a checkpoint in the middle of a cell has.
TWO = '[[methods]]\nname = "fedavg"\n[[methods]]\nname = "scaffold"\n'
FIXED, RULE = "seeds=[3, 4]", "seeds={ until = 0.001, most = 7, first = 3 }"


def until(width: float, most: int) -> Callable[[Experiment], Experiment]:
    return partial(more_seeds.until, width=width, most=most)


@pytest.fixture(scope="module")
def fixed(tiny: Callable[..., Experiment]) -> Experiment:
    return tiny(FIXED, "runtime.checkpoint_every=1", methods=TWO)


@pytest.fixture(scope="module")
def source(fixed: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return loop.start(fixed, tmp_path_factory.mktemp("fixed") / "run").folder


@pytest.fixture(scope="module")
def begun_with_the_rule(tiny: Callable[..., Experiment], tmp_path_factory: pytest.TempPathFactory) -> Path:
    whole = tiny(RULE, "runtime.checkpoint_every=1", methods=TWO)
    return loop.start(whole, tmp_path_factory.mktemp("whole") / "run").folder


def test_it_ends_like_a_run_begun_with_the_rule(source: Path, begun_with_the_rule: Path, tmp_path: Path) -> None:
    """Logs, models, configuration and fingerprint are the same, and the old folder is as it was."""
    before = contents(source)
    more_seeds.add(source, tmp_path / "more", until(0.001, 7))
    assert not (tmp_path / "more" / "summary.json").exists()
    assert contents(loop.resume(tmp_path / "more").folder) == contents(begun_with_the_rule)
    assert contents(source) == before
    assert not leftovers(tmp_path / "more")


def test_given_seeds_are_added_as_if_the_run_had_begun_with_them(
    source: Path, tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    whole = loop.start(tiny("seeds=[3, 4, 9]", "runtime.checkpoint_every=1", methods=TWO), tmp_path / "whole").folder
    more_seeds.add(source, tmp_path / "more", partial(more_seeds.longer, seeds=[9]))
    assert contents(loop.resume(tmp_path / "more").folder) == contents(whole)
    with pytest.raises(ConfigError, match=r"got \[4\]; it has \(3, 4\)"):
        more_seeds.add(source, tmp_path / "other", partial(more_seeds.longer, seeds=[4]))


@pytest.mark.parametrize("after", [2, 5])
def test_a_stopped_run_gets_more_seeds_too(
    after: int, fixed: Experiment, begun_with_the_rule: Path, tmp_path: Path
) -> None:
    """Stopped in the second cell, which has client memory, and in the second seed."""
    with pytest.raises(Interrupted):
        loop.start(fixed, tmp_path / "stopped", Presses(after))
    more_seeds.add(tmp_path / "stopped", tmp_path / "more", until(0.001, 7))
    assert contents(loop.resume(tmp_path / "more").folder) == contents(begun_with_the_rule)


def test_a_run_with_a_rule_gets_a_higher_most(begun_with_the_rule: Path, tmp_path: Path) -> None:
    more_seeds.add(begun_with_the_rule, tmp_path / "more", until(0.001, 8))
    assert loop.resume(tmp_path / "more").summary["seeds"] == [3, 4, 5, 6, 7, 8, 9, 10]
    with pytest.raises(ConfigError, match=r"--most must be above the 7 seeds that the run has, got 7"):
        more_seeds.add(begun_with_the_rule, tmp_path / "other", until(0.001, 7))


@pytest.mark.usefixtures("unreported")
def test_data_that_the_folder_holds_move_with_it(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    data = {f"site {k}": (draw.normal(size=(20, 3)), draw.integers(0, 2, 20)) for k in range(3)}
    methods = [us.FedAvg(), us.FedProx(mu=0.1)]
    us.simulate(methods, data=data, model="logistic", rounds=1, seeds=[0, 1], out=tmp_path / "run")
    more_seeds.add(tmp_path / "run", tmp_path / "more", until(1e-9, 7))
    shutil.rmtree(tmp_path / "run")
    rule = us.UntilDecided(until=1e-9, most=7)
    us.simulate(methods, data=data, model="logistic", rounds=1, seeds=rule, out=tmp_path / "whole")
    found = loop.resume(tmp_path / "more").summary
    assert found["fingerprint"] == json.loads((tmp_path / "whole" / "summary.json").read_text())["fingerprint"]


def test_a_folder_from_elsewhere_names_no_file_outside_it(source: Path, tmp_path: Path) -> None:
    hostile = shutil.copytree(source, tmp_path / "hostile")
    (tmp_path / "data.npz").touch()
    text = (hostile / "config.toml").read_text().replace('data = "digits"', 'data = "run:../data.npz"')
    (hostile / "config.toml").write_text(text)
    card = json.loads((hostile / "run.json").read_text())
    card["config_sha256"] = fingerprint(hostile / "config.toml", portable=True)
    (hostile / "run.json").write_text(json.dumps(card))
    with pytest.raises(RunError, match=r"must name a file of the folder, got run:\.\./data\.npz"):
        more_seeds.add(hostile, tmp_path / "more", until(0.5, 30))
    assert not (tmp_path / "more").exists()


def test_what_makes_it_another_run_is_refused(source: Path, tmp_path: Path) -> None:
    """As a resume does; a link would be copied, and a folder without a checkpoint is none to go on from."""
    moved = shutil.copytree(source, tmp_path / "moved")
    card = json.loads((moved / "run.json").read_text())
    card["environment"]["torch"] = "0.1"
    (moved / "run.json").write_text(json.dumps(card))
    with pytest.raises(EnvironmentChanged, match=r"torch.*--force"):
        more_seeds.add(moved, tmp_path / "more", until(0.5, 30))
    (moved / "run.json").write_text(json.dumps(card | {"command": "unskew fed"}))
    with pytest.raises(RunError, match="a run over a network"):
        more_seeds.add(moved, tmp_path / "more", until(0.5, 30))
    empty = shutil.copytree(source, tmp_path / "empty")
    rewrite(empty)
    with pytest.raises(RunError, match="no checkpoint to go on from"):
        more_seeds.add(empty, tmp_path / "more", until(0.5, 30))
    linked = shutil.copytree(source, tmp_path / "linked")
    (linked / "models" / "more.safetensors").symlink_to("/etc/hostname")
    with pytest.raises(RunError, match=r"more.safetensors is a symbolic link or a device"):
        more_seeds.add(linked, tmp_path / "more", until(0.5, 30))
    other = shutil.copytree(source, tmp_path / "other")
    partition = json.loads((other / "partition.json").read_text())
    partition["seeds"]["3"]["dataset_sha256"] = "0" * 64
    (other / "partition.json").write_text(json.dumps(partition))
    with pytest.raises(RunError, match=r"the data set of .* was changed"):
        more_seeds.add(other, tmp_path / "more", until(0.5, 30))
    assert not (tmp_path / "more").exists()
