"""What a state is worth: the three accuracies, told apart by name.

    global.*              the server's model on the global test set
    personal.*            each client's own model on its own held-out data
    personal_on_global.*  each client's own model on the global test set

For a method with one global model a client's own model is that model.  Nothing is augmented, charged or remembered.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unskew.data.federated import FederatedData
from unskew.run.metrics import Metric, reduce_clients
from unskew.runtime.simulate import Simulator
from unskew.tree import Params


@dataclass(frozen=True, eq=False)
class Exam:
    """The examples of one evaluation, on the device.

    Attributes:
        x_test, y_test: The global test set.
        x, y: The training inputs that personal parts point into.
        test, val: Rows of each client's personal test and validation part.
    """

    x_test: Tensor
    y_test: Tensor
    x: Tensor
    y: Tensor
    test: tuple[Tensor, ...]
    val: tuple[Tensor, ...]


def exam(fed: FederatedData, device: torch.device) -> Exam:
    """What the clients of `fed` and the world at large are tested on."""
    d = fed.dataset
    return Exam(
        d.x_test.to(device),
        d.y_test.to(device),
        d.x_train.to(device),
        d.y_train.to(device),
        tuple(c.test.to(device) for c in fed.clients),
        tuple(c.val.to(device) for c in fed.clients),
    )


def evaluate(sim: Simulator[Any], state: Any, t: int, exam: Exam, which: Iterable[str], last: bool) -> list[Metric]:
    """All metrics of the state after round `t`; single clients' numbers only when it is the last."""
    rows: list[Metric] = []
    model = sim.algorithm.serve(state, None)
    if "global" in which and model is not None:
        correct, loss = sim.executor.evaluate(model, exam.x_test, exam.y_test)
        n = float(len(exam.y_test))
        rows += [Metric("global.accuracy", _mean(correct), n), Metric("global.loss", _mean(loss), n)]
    has_val = any(len(v) for v in exam.val)
    if not has_val and not {"personal", "personal_on_global"} & set(which):
        return rows
    own = _own_models(sim, state, t, len(exam.test))
    if "personal" in which:
        rows += _per_client(sim, own, exam.x, exam.y, exam.test, "personal", last)
    if "personal_on_global" in which:
        everyone = tuple(torch.arange(len(exam.y_test), device=exam.y_test.device) for _ in exam.test)
        rows += _per_client(sim, own, exam.x_test, exam.y_test, everyone, "personal_on_global", last)
    if has_val:
        val = _per_client(sim, own, exam.x, exam.y, exam.val, "val", last=False)
        rows += [Metric("val.accuracy", m.value, m.weight) for m in val if m.name == "val.accuracy.weighted"]
    return rows


def _own_models(sim: Simulator[Any], state: Any, t: int, clients: int) -> dict[int, Params]:
    """Each client's own model; the clients of a pooled bound all use the one there is."""
    alone = len(sim.population.clients) == 1
    models = {c: sim.personal(state, 0 if alone else c, t) for c in range(clients)}
    return {c: m for c, m in models.items() if m is not None}


def _per_client(
    sim: Simulator[Any], own: dict[int, Params], x: Tensor, y: Tensor, parts: tuple[Tensor, ...], name: str, last: bool
) -> list[Metric]:
    """Accuracy and loss by client; clients who use the same model are tested in one pass."""
    accuracies: dict[int, tuple[float, float]] = {}
    losses: dict[int, tuple[float, float]] = {}
    sharing: dict[int, list[int]] = {}
    for c, model in own.items():
        if len(parts[c]):
            sharing.setdefault(id(model), []).append(c)
    for clients in sharing.values():
        same = all(parts[c] is parts[clients[0]] or torch.equal(parts[c], parts[clients[0]]) for c in clients[1:])
        once = same and len(clients) > 1
        rows = parts[clients[0]] if once else torch.cat([parts[c] for c in clients])
        correct, loss = sim.executor.evaluate(own[clients[0]], x[rows], y[rows])
        sizes = [len(parts[c]) for c in clients]
        split = (
            [(correct, loss)] * len(clients)
            if once
            else list(zip(_cut(correct, sizes), _cut(loss, sizes), strict=True))
        )
        for c, (right, each) in zip(clients, split, strict=True):
            accuracies[c] = (_mean(right), float(len(parts[c])))
            losses[c] = (_mean(each), float(len(parts[c])))
    ordered = sorted(accuracies)
    rows_out = reduce_clients(f"{name}.accuracy", {c: accuracies[c] for c in ordered})
    rows_out += reduce_clients(f"{name}.loss", {c: losses[c] for c in ordered})
    if last:
        rows_out += [Metric(f"{name}.accuracy", *accuracies[c], client=c) for c in ordered]
    return rows_out


def _cut(values: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
    return torch.split(values, sizes)


def _mean(values: Tensor) -> float:
    return float(values.double().mean())
