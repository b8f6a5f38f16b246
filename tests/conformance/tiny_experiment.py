"""One small experiment for all tests of a run and its forecast: real digits, four clients, 610 parameters."""

import functools
import tomllib
from collections.abc import Callable, Iterator

import pytest

from unskew.data import sources
from unskew.experiment import config
from unskew.experiment.config import Experiment
from unskew.run import setup as run_setup

TINY = """
name = "tiny"
rounds = 3
task = { data = "digits", model = "mlp", model_options = { hidden = [8] } }
split = { name = "dirichlet", num_clients = 4, alpha = 0.5 }
local = { lr = 0.1, batch_size = 128 }
runtime = { executor = "sequential" }
"""
FEDAVG = '[[methods]]\nname = "fedavg"\n'


@pytest.fixture(scope="session", autouse=True)
def _digits_are_read_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_setup, "load", functools.cache(sources.load))
        yield


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Experiment]:
    """`tiny("rounds=2", methods="...")`: the small experiment with overrides and methods."""

    def make(*overrides: str, methods: str = FEDAVG) -> Experiment:
        return config.parse(config.override(tomllib.loads(TINY + methods), overrides))

    return make
