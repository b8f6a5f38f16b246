"""What FedDW costs a client beside FedAvg: the class-relation term in every step, and the soft labels' pass.

CPU time of one thread, so that what else the machine does counts for little.  FedAvg, FedDW and FedAvg once more take
turns, in a random order every time; a ratio is that of two epochs of one turn, and what is stated is the median over
turns with the middle half of them.  "FedAvg again" has a ratio of 1 by construction: how far it strays is the noise.
Where that drowns the term, as in a network whose step takes seconds, `term_alone` tells: the term's value and gradient
on their own, often, as a part of FedAvg's epoch.

    no bias    the network is built without the classifier's bias (`head_bias = false`), for both methods
    held       it has one, which FedDW holds at zero and FedAvg trains
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from unskew import models
from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.feddw import ClassRelation, add_soft_labels, with_term
from unskew.bench.engine import one_thread
from unskew.keys import Key
from unskew.local.solo import Shelf, Solo
from unskew.protocol import Aux, Fold, Me, Sgd, SgdConfig
from unskew.runtime.simulate import Population
from unskew.task import make_task
from unskew.tree import Params

BATCH = 128
_WHAT = {"soft labels": "soft_label_pass", "term": "term_alone"}


@dataclass(frozen=True)
class Case:
    """A network, how many batches make its epoch here, the most that FedDW may cost (times FedAvg), and its options."""

    model: str
    shape: tuple[int, ...]
    batches: int
    bar: float | None
    options: tuple[tuple[str, Any], ...] = ()
    held: bool = False

    @property
    def label(self) -> str:
        """For tables."""
        return f"{self.model}{', held' if self.held else ''}/b{BATCH}"


_NECK = (("neck", (256, 128)), ("conv_bias", True))

CASES = (
    Case("cnn_mnist", (1, 28, 28), 4, 1.08),
    Case("cnn_cifar10", (3, 32, 32), 4, 1.08),
    Case("resnet18", (3, 32, 32), 1, 1.03, _NECK),
    Case("mlp", (1, 28, 28), 16, None),
    Case("cnn_mnist", (1, 28, 28), 4, 1.08, held=True),
    Case("mlp", (1, 28, 28), 16, None, held=True),
)


def measure(turns: int = 15, only: tuple[str, ...] = (), say: Callable[[str], None] = print) -> list[dict[str, Any]]:
    """All cases as rows of the benchmark's JSON; `only` names networks.  A slow network takes a third of the
    turns."""
    rows: list[dict[str, Any]] = []
    with one_thread():
        for case in CASES:
            if not only or case.model in only:
                found = _turns(case, turns if case.batches > 1 else max(1, turns // 3))
                rows += _rows(case, found)
                say(
                    "  ".join(f"{name} {statistics.median(s):.4f} s" for name, s in found.items()) + f"  ({case.label})"
                )
    return rows


def _turns(case: Case, turns: int) -> dict[str, list[float]]:
    """CPU seconds of each contender in each turn, warmed up."""
    contenders = _contenders(case)
    names = list(contenders)
    found: dict[str, list[float]] = {name: [] for name in names}
    for name in names if case.batches > 1 else names[:1]:
        contenders[name]()
    for turn in range(turns):
        # Not in rotation: nobody should always find the cache as the same neighbour left it.
        for i in torch.randperm(len(names), generator=(Key(0) / "turn" / turn).generator()).tolist():
            name = names[i]
            began = time.thread_time()
            contenders[name]()
            found[name].append(time.thread_time() - began)
    return found


def _contenders(case: Case) -> dict[str, Callable[[], object]]:
    n, key = case.batches * BATCH, Key(0) / case.label
    options = {**dict(case.options), "head_bias": case.held}
    task = make_task(lambda: models.build(case.model, case.shape, 10, **options), 10, head="head")
    x = torch.randn(n, *case.shape, generator=(key / "x").generator())
    y = torch.randint(10, (n,), generator=(key / "y").generator())
    solo = Solo(task, Shelf(x, y, (torch.arange(n),), (torch.arange(0),)))
    population = Population(torch.bincount(y, minlength=10)[None], task.layout, task.init(key), task.init)
    me: Me = population.me(0, 1, key)
    config = SgdConfig(1e-3, batch_size=BATCH, optimizer="adam", local_epochs=1)
    plain = Sgd(population.initial, config)
    dw = with_term(FedAvg(config))
    assert task.layout.classifier is not None
    term = ClassRelation(dw.dw.mu, task.layout.classifier)
    without_bias: Sgd = dw.held(task.layout, plain)
    pulled = replace(without_bias, terms=(term,), aux={"soft_labels": torch.eye(10)})
    pass_ = Fold(add_soft_labels, population.initial, torch.zeros(10, 10))
    return {
        "fedavg": lambda: solo.fit(me, plain, key),
        "feddw": lambda: solo.fit(me, pulled, key),
        "fedavg again": lambda: solo.fit(me, plain, key),
        "soft labels": lambda: solo.fold(me, pass_),
        "term": lambda: _term_alone(term, population.initial, pulled.aux, case.batches),
    }


def _term_alone(term: ClassRelation, params: Params, aux: Aux, steps: int) -> None:
    """Value and gradient of the term, as often as an epoch has steps."""
    weight = params[term.layer].clone().requires_grad_()
    for _ in range(steps):
        torch.autograd.grad(term({term.layer: weight}, aux), [weight])


def _rows(case: Case, found: dict[str, list[float]]) -> list[dict[str, Any]]:
    base = found["fedavg"]
    rows = []
    for name, seconds in found.items():
        ratios = sorted(s / b for s, b in zip(seconds, base, strict=True))
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        row = {
            "case": case.label,
            "what": _WHAT.get(name, "cpu_seconds_per_epoch"),
            "contender": name,
            "value": statistics.median(seconds),
            "unit": "s",
            "ratio": statistics.median(ratios),
            "against": "fedavg",
            "low": low,
            "high": high,
            "turns": len(ratios),
        }
        rows.append(row if name != "feddw" or case.bar is None else {**row, "bar": case.bar})
    return rows
