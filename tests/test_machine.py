import os
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from unskew import machine
from unskew.experiment.config import Experiment
from unskew.run import setup


@pytest.mark.parametrize(
    ("bound", "variable", "cores"),
    [
        ({0, 1, 2, 3}, None, 4),
        ({5}, None, 1),
        ({0, 1, 2, 3}, "2", 2),
        ({0, 1}, "8", 2),
        ({0, 1, 2, 3}, "3,1", 3),
        ({0, 1}, "", 2),
        ({0, 1}, "many", 2),
    ],
)
def test_cores_are_those_that_the_process_may_use(
    bound: set[int], variable: str | None, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: bound, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    assert machine.cores() == cores


def test_a_large_network_trains_on_the_cores_of_its_process(
    tiny: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    monkeypatch.setattr(setup, "THREADS_FROM", 10)
    torch.set_num_threads(2)
    experiment = tiny("runtime.executor=auto")
    experiment = replace(experiment, runtime=replace(experiment.runtime, threads=None))
    made = setup.prepare(experiment)
    assert (torch.get_num_threads(), made.executor) == (1, "sequential")
    assert setup.environment(experiment, made)["cores"] == "1"
