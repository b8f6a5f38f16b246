"""Clients that read texts: the bidirectional LSTM through every executor."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from unskew import models
from unskew.algorithms.feddw import FedDW
from unskew.data.text import tokens, vocabulary
from unskew.keys import Key
from unskew.local.data import DeviceData
from unskew.local.executor import EvalJob, Executor
from unskew.local.sequential import Sequential
from unskew.local.stacked.executor import Stacked
from unskew.local.trainer import LocalTrainer
from unskew.local.workers.executor import Workers
from unskew.local.workers.pool import Pool
from unskew.local.workers.recipe import WorkerSetup
from unskew.protocol import SgdConfig
from unskew.runtime.in_process import Population, Simulator
from unskew.tasks.task import make_task
from unskew.tree import Params

SIZES = (14, 9, 13)
GOOD, BAD, FILLER = ("good", "fine"), ("bad", "dull"), ("film", "the", "plot", "was")


def texts(n: int, seed: int) -> tuple[list[str], Tensor]:
    """Reviews of three to nine words, one of which tells the label."""
    draws, y, said = Key(seed).generator(), torch.arange(n) % 2, []

    def below(most: int) -> int:
        return int(torch.randint(most, (), generator=draws))

    for label in y.tolist():
        words = [FILLER[below(4)] for _ in range(2 + below(7))]
        words.insert(len(words) // 2, (BAD, GOOD)[label][below(2)])
        said.append(" ".join(words))
    return said, y


TRAIN, Y = texts(sum(SIZES), 1)
TEST, Y_TEST = texts(20, 2)
IDS = vocabulary(TRAIN)
SHELF = DeviceData(
    tokens(TRAIN, IDS, length=8),
    Y,
    torch.split(torch.arange(sum(SIZES)), SIZES),
    tuple(torch.arange(0) for _ in SIZES),
    x_test=tokens(TEST, IDS, length=8),
    y_test=Y_TEST,
)
OPTIONS = {"words": 16, "embedding": 6, "hidden": 5, "head_bias": False}
ALGORITHM = FedDW(local=SgdConfig(0.02, optimizer="adam", batch_size=4, local_epochs=2))


def trainer(dropout: float = 0.2) -> LocalTrainer:
    return LocalTrainer(
        make_task(lambda: models.build("bilstm", (8,), 2, dropout=dropout, **OPTIONS), 2, head="head"), SHELF
    )


def population(trainer: LocalTrainer) -> Population:
    histograms = torch.stack([torch.bincount(Y[r], minlength=2) for r in SHELF.train])
    return Population(histograms, trainer.task.layout, trainer.task.init(Key(3)), trainer.task.init)


def models_of(executor: Executor, trainer: LocalTrainer, rounds: int = 2) -> list[Params]:
    sim = Simulator(ALGORITHM, population(trainer), executor)
    state, found = sim.start(), []
    for t in range(1, rounds + 1):
        state, _ = sim.round(state, t)
        found.append({**sim.algorithm.serve(state, None), "sl": state.sl})
    return found


def open_cell(_: int) -> WorkerSetup:
    made = trainer()
    return WorkerSetup(ALGORITHM, made, population(made).me)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool(open_cell, workers=2, model_bytes=1 << 14)
    yield made
    made.close()


def test_workers_read_as_one_process_does(pool: Pool) -> None:
    made = trainer()
    alone, many = models_of(Sequential(made), made), models_of(Workers(pool, 0, ALGORITHM), made)
    for one, other in zip(alone, many, strict=True):
        assert all(torch.equal(one[n], other[n]) for n in one)
    jobs = [EvalJob({n: t for n, t in alone[-1].items() if n != "sl"}, "test")]
    (right, loss), (same, too) = Sequential(made).evaluate(jobs)[0], Workers(pool, 0, ALGORITHM).evaluate(jobs)[0]
    assert torch.equal(right, same)
    assert torch.equal(loss, too)


def test_stacked_clients_read_one_at_a_time_and_the_notes_say_so() -> None:
    made = trainer(dropout=0.0)
    stacked = Stacked(made)
    for one, other in zip(models_of(Sequential(made), made), models_of(stacked, made), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)
    assert len(stacked.notes) == 1
    assert "lstm" in stacked.notes[0]


def test_it_learns_which_words_are_kind() -> None:
    """One word decides; after 12 rounds of two epochs the model has it, from .5 at the start."""
    made = trainer(dropout=0.0)
    last = models_of(Sequential(made), made, rounds=12)[-1]
    (right, _), *_ = Sequential(made).evaluate([EvalJob({n: t for n, t in last.items() if n != "sl"}, "test")])
    assert right.float().mean() >= 0.9
