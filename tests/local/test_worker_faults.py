"""What is said when a client's step fails in a worker."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import recipe
import torch

from unskew.algorithms.fedavg import FedAvg, ModelMessage, ModelReply
from unskew.errors import ConfigError, MemoryShortage, WorkerError, shortage
from unskew.local.workers.executor import Workers
from unskew.local.workers.pool import Pool
from unskew.local.workers.worker import WorkerSetup
from unskew.protocol import Me, Step, run, step
from unskew.runtime.in_process import Simulator


def too_much(local: Any) -> None:
    torch.empty(1 << 60)


def no_more(local: Any) -> None:
    raise MemoryError


def a_slip(local: Any) -> None:
    {}["lr"]


@dataclass(frozen=True)
class Faulty(FedAvg):
    """Fails in a client's own code."""

    fault: Callable[[Any], None] = no_more

    @step
    def train(self, me: Me, msg: ModelMessage, memory: None) -> Step[tuple[ModelReply, None]]:
        yield from run(self.fault)
        return ModelReply(msg.params, me.n), None


def failing(fault: Callable[[Any], None]) -> Simulator[Any]:
    """A round in one worker, in which every client fails."""
    population, trainer = recipe.world("perceptron")
    method = Faulty(fault=fault)
    pool = Pool(lambda _: WorkerSetup(method, trainer, population.me), 1, 1 << 12)
    try:
        sim: Simulator[Any] = Simulator(method, population, Workers(pool, 0, method))
        sim.round(sim.start(), 1)
    finally:
        pool.close()
    return sim


@pytest.mark.parametrize("fault", [too_much, no_more])
def test_memory_that_ran_out_in_a_worker_is_one_sentence_with_what_to_do(fault: Callable[[Any], None]) -> None:
    with pytest.raises(MemoryShortage) as caught:
        failing(fault)
    text = str(caught.value)
    assert text.startswith("memory ran out")
    assert text.endswith("unskew plan says what each takes")
    assert ("4611686018427387904 bytes more" in text) == (fault is too_much)
    assert "\n" not in text


def test_a_slip_in_a_worker_is_one_line_and_its_trace_a_note() -> None:
    with pytest.raises(WorkerError) as caught:
        failing(a_slip)
    line = a_slip.__code__.co_firstlineno + 1
    assert str(caught.value) == f"KeyError: 'lr' (test_worker_faults.py, line {line}, in step 'train' of client 2)"
    (note,) = caught.value.__notes__
    assert "Traceback" in note
    assert "a_slip" in note


@pytest.mark.parametrize(
    ("error", "short"),
    [
        (MemoryError(), True),
        (OSError(12, "Cannot allocate memory"), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total"), True),
        (MemoryShortage("said before"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (OSError(28, "No space left on device"), False),
        (ConfigError("out of memory is the name of my experiment"), False),
    ],
    ids=lambda v: str(v),
)
def test_a_lack_of_memory_is_told_from_other_errors(error: Exception, short: bool) -> None:
    assert (shortage(error) is not None) == short
    if "20.00" in str(error):
        assert "(20.00 MiB more were wanted)" in str(shortage(error))
