"""The cost of FedDW to a client beside FedAvg: the class-relation term in every step, and the soft labels' pass.

CPU time of one thread, so that waiting for other work is not counted; caches and cores shared with it still are.
FedAvg, FedDW and FedAvg once more take turns, in another order every time.  A ratio is that of two epochs of one turn;
stated are the median over turns, their middle half, and the ratio of the minima.  "FedAvg again" has a
ratio of 1 by construction: how far it strays is the noise.  Where that hides the term, as in a network whose step
takes seconds, `term_alone` measures the term's value and gradient by themselves, for every step of an epoch.

Two networks also measure the other methods of the paper's Table III: MOON with a model of an earlier round to compare
with, FedBABU, FedUV, Per-FedAvg and FedProx.  For these it is a client's whole step, message in and reply out;
Per-FedAvg takes two batches for each one of the others.

A bar is met if the median is within it.  The middle half and "FedAvg again" show how certain that is.

Networks have no bias in the classifier (`head_bias = false`), as in the paper.  In the cases called "held" there is
one, which FedDW holds at zero and FedAvg trains.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from unskew import models
from unskew.algorithms.fedbabu import FedBABU
from unskew.algorithms.feddw import DW, ClassRelation, add_soft_labels
from unskew.algorithms.fedprox import FedProx
from unskew.algorithms.feduv import FedUV
from unskew.algorithms.moon import MOON
from unskew.algorithms.perfedavg import PerFedAvg
from unskew.bench.toolkit import BenchRow, Say, chosen, paired_rows, take_turns, threads
from unskew.decide.forecast.measure import timed
from unskew.keys import Key
from unskew.local.data import DeviceData
from unskew.local.trainer import LocalTrainer
from unskew.protocol import Ask, Aux, Federation, Fold, Me, Sgd, SgdConfig, drive
from unskew.runtime.in_process import Population
from unskew.tasks.task import make_task
from unskew.tree import Params

BATCH = 128
_WHAT = {"soft labels": "soft_label_pass", "term": "term_alone"}


@dataclass(frozen=True)
class Case:
    """A network and the settings of its measurement.

    Attributes:
        model, shape, options: Arguments of `unskew.models.build`.
        batches: Batches in an epoch.
        bar: Largest cost of FedDW allowed, relative to FedAvg; None if nothing is promised.
        held: True if the classifier has a bias.
        others: True if the other methods of Table III are measured, too.
        batch: Examples in a batch; None is BATCH.
        classes: Number of classes.
        words: Number of words where inputs are token ids; 0 where they are numbers.
    """

    model: str
    shape: tuple[int, ...]
    batches: int
    bar: float | None
    options: tuple[tuple[str, Any], ...] = ()
    held: bool = False
    others: bool = False
    batch: int | None = None
    classes: int = 10
    words: int = 0

    @property
    def size(self) -> int:
        """Examples of a batch."""
        return self.batch or BATCH

    @property
    def label(self) -> str:
        """Name in tables."""
        return f"{self.model}{', held' if self.held else ''}/b{self.size}"


_NECK = (("neck", (256, 128)), ("conv_bias", True))

CASES = (
    Case("cnn_mnist", (1, 28, 28), 4, 1.08),
    Case("cnn_cifar10", (3, 32, 32), 4, 1.08, others=True),
    Case("resnet18", (3, 32, 32), 1, 1.03, _NECK, others=True),
    # Small batches: the networks are slow here, and the term costs a step the same whatever the batch.
    Case("shufflenet", (3, 32, 32), 1, None, batch=32),
    Case("mobilenet_v2", (3, 32, 32), 1, None, batch=32),
    Case("bilstm", (100,), 4, None, batch=16, classes=2, words=10_000),
    Case("mlp", (1, 28, 28), 16, None),
    Case("cnn_mnist", (1, 28, 28), 4, 1.08, held=True),
    Case("mlp", (1, 28, 28), 16, None, held=True),
)


def measure(repeats: int = 60, only: tuple[str, ...] = (), say: Say = print) -> list[BenchRow]:
    """Measure all cases, as rows of the benchmark's JSON.

    Args:
        repeats: Number of epochs of each contender; a network whose epoch is one batch takes a sixth of them.
        only: Names of the networks that are measured; all by default.
        say: Called with a line for each case.

    Raises:
        ConfigError: If a network in `only` is not measured.
    """
    cases = {case.label: case for case in CASES}
    rows: list[BenchRow] = []
    with threads(1):
        for label in chosen(only, {label: [case.model] for label, case in cases.items()}, "bench feddw"):
            case = cases[label]
            contenders = {name: partial(timed, once, time.thread_time) for name, once in _contenders(case).items()}
            seconds = take_turns(contenders, repeats if case.batches > 1 else max(1, repeats // 6), shuffled=True)
            rows += _rows(case, seconds)
            say("  ".join(f"{name} {statistics.median(s):.4f} s" for name, s in seconds.items()) + f"  ({case.label})")
    return rows


def _contenders(case: Case) -> dict[str, Callable[[], object]]:
    n, key, classes = case.batches * case.size, Key(0) / case.label, case.classes
    options = {**dict(case.options), "head_bias": case.held}
    task = make_task(lambda: models.build(case.model, case.shape, classes, **options), classes, head="head")
    drawn = (key / "x").generator()
    shape = (n, *case.shape)
    x = torch.randint(case.words, shape, generator=drawn) if case.words else torch.randn(shape, generator=drawn)
    y = torch.randint(classes, (n,), generator=(key / "y").generator())
    trainer = LocalTrainer(task, DeviceData(x, y, (torch.arange(n),), (torch.arange(0),)))
    population = Population(torch.bincount(y, minlength=classes)[None], task.layout, task.init(key), task.init)
    me: Me = population.me(0, 1, key)
    config = SgdConfig(1e-3, batch_size=case.size, optimizer="adam", local_epochs=1)
    plain = Sgd(population.initial, config)
    dw = DW()
    assert task.layout.classifier is not None
    term = ClassRelation(dw.mu, task.layout.classifier)
    without_bias = dw.held(task.layout, plain)
    pulled = replace(without_bias, terms=(term,), aux={"soft_labels": torch.eye(classes)})
    pass_ = Fold(add_soft_labels, population.initial, torch.zeros(classes, classes))
    fed = Federation((0,), classes, task.layout, 1, key, 1, task.init)
    others = _others(config) if case.others else {}
    return {
        "fedavg": lambda: trainer.fit(me, plain, key),
        "feddw": lambda: trainer.fit(me, pulled, key),
        "fedavg again": lambda: trainer.fit(me, plain, key),
        "soft labels": lambda: trainer.fold(me, pass_),
        "term": lambda: _term_alone(term, population.initial, pulled.aux, case.batches),
        **{name: _client(method, trainer, me, fed) for name, method in others.items()},
    }


def _others(config: SgdConfig) -> Mapping[str, Any]:
    """The other methods of Table III, with the constants of `feddw/table1`."""
    return {
        "moon": MOON(mu=5.0, temperature=0.5, local=config),
        "fedbabu": FedBABU(local=config),
        "feduv": FedUV(lambda_v=2.5, lambda_u=0.5, local=config),
        "perfedavg": PerFedAvg(alpha=0.01, local=replace(config, optimizer="sgd")),
        "fedprox": FedProx(mu=0.01, local=config),
    }


def _client(method: Any, trainer: LocalTrainer, me: Me, fed: Federation) -> Callable[[], object]:
    """The step that the method's first round asks of a client, which keeps its memory from call to call."""
    request = next(method.round(method.init(me.initial, fed), fed))
    assert isinstance(request, Ask)
    train, message, memory = getattr(method, request.step), request.to[0], None

    def epoch() -> object:
        nonlocal memory
        reply, memory = drive(train(me, message, memory), lambda asked: trainer.answer(me, 0, asked))
        return reply

    return epoch


def _term_alone(term: ClassRelation, params: Params, aux: Aux, steps: int) -> None:
    """Value and gradient of the term, once for every step of an epoch."""
    weight = params[term.layer].clone().requires_grad_()
    for _ in range(steps):
        torch.autograd.grad(term({term.layer: weight}, aux), [weight])


def _rows(case: Case, measured: Mapping[str, Sequence[float]]) -> list[BenchRow]:
    """A row for each contender; whether a bar is `met` is about the median."""
    by = paired_rows(case.label, measured, "fedavg")
    for name, row in by.items():
        row["what"] = _WHAT.get(name, row["what"])
        if name == "feddw" and case.bar is not None:
            row |= {"bar": case.bar, "met": row["ratio"] <= case.bar}
    return list(by.values())
