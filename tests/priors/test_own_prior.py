"""A prior of a user's own: one file, named in an experiment, and what is refused of it."""

import sys
from pathlib import Path

import pytest

from unskew.errors import ConfigError
from unskew.experiment import config
from unskew.experiment.config import Experiment
from unskew.local import imagery
from unskew.record.logs import rows
from unskew.run import loop
from unskew.run.folder import read_json

STRANGER = Path(__file__).parents[1] / "outside" / "stranger" / "stranger" / "prior.py"
METHODS = """
rounds = 1
seeds = [0]
task = { data = "digits", model = "logistic" }
split = { name = "iid", num_clients = 2 }
runtime = { executor = "sequential" }

[[methods]]
name = "fedpft"
prior = "prior_of_mine:Mirror"
m = 1
images = 2
classifier = { lr = 0.1, local_steps = 1, batch_size = 4 }

[[methods]]
name = "feddistr"
prior = "prior_of_mine:made"
m = 1
steps = 2
images = 2
classifier = { lr = 0.1, local_steps = 1, batch_size = 4 }
"""
MORE = """

def made(device: torch.device) -> priors.Prior:
    return Mirror(device)


def of_nothing() -> priors.Prior:
    raise AssertionError("it is not called")


class Bare(priors.Prior):
    def __init__(self, device):
        self.device = device


def half(device: torch.device) -> Mirror:
    return object()


class Thin(Mirror):
    def start(self, noun=None):
        return torch.zeros(5)


class Flat(Mirror):
    def encode(self, images):
        return super().encode(images).flatten(1)
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of prior_of_mine.py, where modules are looked for."""
    (tmp_path / "prior_of_mine.py").write_text(STRANGER.read_text() + MORE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "prior_of_mine", raising=False)
    imagery._loaded.cache_clear()
    (tmp_path / "mine.toml").write_text(METHODS)
    return tmp_path


def experiment(mine: Path, *settings: str) -> Experiment:
    return config.load(mine / "mine.toml", settings, allow_code=True)


def test_a_file_with_a_prior_serves_two_methods_and_their_report(mine: Path) -> None:
    loop.start(experiment(mine), mine / "run")
    ends = {(r["method"], r["metric"]) for r in read_json(mine / "run" / "summary.json")["rows"]}
    assert {("fedpft", "global.accuracy"), ("feddistr", "global.accuracy")} <= ends
    warned = {text for row in rows(mine / "run", "info") for text in row["info"]["warnings"]}
    assert warned == {"for the prior images of 1 x 8 x 8 are resized, to 1 x 4 x 4"}
    assert "code of prior_of_mine" in read_json(mine / "run" / "run.json")["environment"]


@pytest.mark.parametrize(
    ("prior", "text"),
    [
        (
            "bilt-in",
            r"unknown prior 'bilt-in'; did you mean built-in\? \(there are: built-in, photographs, FOLDER, hub:",
        ),
        ("prior_of_mine:Miror", r"prior 'prior_of_mine:Miror' cannot be imported from prior_of_mine:Miror: "),
        ("prior_of_mine:of_nothing", r"prior 'prior_of_mine:of_nothing' must take device and need nothing else"),
        ("prior_of_mine:half", r"prior 'prior_of_mine:half' must make a Prior; what it makes lacks name, width, "),
        ("prior_of_mine:Bare", r"what it makes lacks decode, denoised, encode, start"),
        ("prior_of_mine:Thin", r"prior 'prior_of_mine:Thin': start must return a tensor of \(16,\), got \(5,\)"),
        (
            "prior_of_mine:Flat",
            r"'prior_of_mine:Flat': encode of one image must return a tensor of \(1, 1, 4, 4\), got",
        ),
    ],
)
def test_a_prior_with_a_mistake_is_refused_in_a_sentence_before_anything_is_done(
    mine: Path, prior: str, text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        loop.start(experiment(mine, f"methods.0.prior={prior}"), mine / "run")
    assert not (mine / "run").exists()
