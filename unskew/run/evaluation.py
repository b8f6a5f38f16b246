"""Evaluation of a state: three accuracies, distinguished by name.

    global.*              the server's model on the global test set
    personal.*            each client's own model on its own held-out data
    personal_on_global.*  each client's own model on the global test set

For a method with one global model a client's own model is that model.  Nothing is augmented, charged or remembered.
Remote clients test their own models themselves and send their scores.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unskew.data.federated import FederatedData
from unskew.local.executor import EvalJob
from unskew.protocol import ClientId
from unskew.run.metrics import Metric, reduce_clients
from unskew.runtime.message import Score
from unskew.runtime.round import Driver
from unskew.tree import Params

ExampleScores = tuple[Tensor, Tensor]
"""Correctness (bool) and loss of each example."""
Scores = dict[str, dict[ClientId, Score]]
"""Scores of the clients' own models, by part and client."""
OwnModels = Mapping[ClientId, Params]
_AT_ONCE = 1 << 14  # examples averaged in one call


@dataclass(frozen=True, eq=False)
class EvalSet:
    """Training inputs each client is tested on: the rows of its personal test and validation parts, on the device.

    Attributes:
        test, val: Rows by client; empty where clients keep their data to themselves.
        validates: True if any client has validation rows.
    """

    test: tuple[Tensor, ...]
    val: tuple[Tensor, ...]
    validates: bool


def eval_set(fed: FederatedData, device: torch.device, validates: bool = False) -> EvalSet:
    """The evaluation set of `fed`; `validates` if clients have validation rows that are not known here."""
    test, val = (tuple(getattr(c, part).to(device) for c in fed.clients) for part in ("test", "val"))
    return EvalSet(test, val, validates or any(len(v) for v in val))


def evaluate(
    sim: Driver[Any],
    state: Any,
    t: int,
    eval_set: EvalSet,
    which: Iterable[str],
    last: bool,
    own: OwnModels | None = None,
) -> list[Metric]:
    """All metrics of the state after round `t`; per-client numbers only after the last round.

    Args:
        own: The clients' own models (`own_models`), if they have already been built.
    """
    wanted = set(which)
    if sim.clients.remote:
        on_global, scores = _scores_from_clients(sim, state, t, eval_set, wanted, last)
    else:
        on_global, scores = _scores(sim, state, t, eval_set, wanted, own)
    metrics: list[Metric] = []
    if on_global is not None:
        metrics += [
            Metric("global.accuracy", on_global.accuracy, on_global.n),
            Metric("global.loss", on_global.loss, on_global.n),
        ]
    for name in [n for n in ("personal", "personal_on_global") if n in wanted]:
        metrics += _reduced(name, scores[name], last)
    if "val" in scores:
        val = _reduced("val", scores["val"], last=False)
        metrics += [Metric("val.accuracy", m.value, m.weight) for m in val if m.name == "val.accuracy.weighted"]
    return metrics


def needs_own_models(eval_set: EvalSet, which: Iterable[str]) -> bool:
    """Return true if an evaluation tests the clients' own models."""
    return eval_set.validates or not {"personal", "personal_on_global"}.isdisjoint(which)


def own_models(sim: Driver[Any], state: Any, t: int, clients: Sequence[ClientId]) -> OwnModels:
    """The model each of these clients would use after round `t`; clients without a model are left out.

    The clients of a pooled bound all use the one model there is.
    """
    if len(sim.clients.ids) == 1:
        model = sim.own_models(state, [0], t)
        return dict.fromkeys(clients, model[0]) if model else {}
    return sim.own_models(state, clients, t)


def _scores_from_clients(
    remote: Driver[Any], state: Any, t: int, eval_set: EvalSet, wanted: Collection[str], last: bool
) -> tuple[Score | None, Scores]:
    """Scores of the global model, tested here, and of the clients' own models, tested by themselves.

    After the last round every client is asked, even if no score is needed, because it then stores its model.
    """
    model = remote.algorithm.serve(state, None) if "global" in wanted else None
    on_global = None if model is None else _score(*remote.executor.evaluate([EvalJob(model, "test")]))
    parts = [*(["personal"] if "personal" in wanted else []), *(["val"] if eval_set.validates else [])]
    return on_global, remote.evaluate_on_clients(state, t, parts, last) if parts or last else {}


def _scores(
    sim: Driver[Any], state: Any, t: int, eval_set: EvalSet, wanted: Collection[str], own: OwnModels | None
) -> tuple[Score | None, Scores]:
    """Scores of the global model and of the clients' own, all tested in this process."""
    model = sim.algorithm.serve(state, None) if "global" in wanted else None
    parts: dict[str, tuple[Tensor, ...]] = {}
    if "personal" in wanted:
        parts["personal"] = eval_set.test
    if eval_set.validates:
        parts["val"] = eval_set.val
    if own is None:
        needed = needs_own_models(eval_set, wanted)
        own = own_models(sim, state, t, range(len(eval_set.test))) if needed else {}
    sharing = _sharing(own)
    jobs: dict[tuple[str, ClientId], EvalJob] = {}
    if model is not None:
        jobs["global", 0] = EvalJob(model, "test")
    for name, rows in parts.items():
        for first, clients in sharing.items():
            tested = [rows[c] for c in clients if len(rows[c])]
            if tested:
                jobs[name, first] = EvalJob(own[first], "train", torch.cat(tested))
    if "personal_on_global" in wanted:
        for first in sharing:
            jobs["personal_on_global", first] = EvalJob(own[first], "test")
    by_job = dict(zip(jobs, sim.executor.evaluate(list(jobs.values())), strict=True))

    on_global = None if model is None else _score(by_job["global", 0])
    names = [*parts, *(["personal_on_global"] if "personal_on_global" in wanted else [])]
    return on_global, {name: _by_client(by_job, name, sharing, parts.get(name)) for name in names}


def _sharing(own: OwnModels) -> dict[ClientId, list[ClientId]]:
    """Clients that share a model, listed under the first of them, so that it is tested in one pass."""
    groups: dict[int, list[ClientId]] = {}
    for c, model in own.items():
        groups.setdefault(id(model), []).append(c)
    return {clients[0]: clients for clients in groups.values()}


def _by_client(
    by_job: Mapping[tuple[str, ClientId], ExampleScores],
    name: str,
    sharing: Mapping[ClientId, list[ClientId]],
    rows: tuple[Tensor, ...] | None,
) -> dict[ClientId, Score]:
    """Each client's score, from its part of one pass; clients without rows of their own share all of them."""
    by_client: dict[ClientId, Score] = {}
    for first, clients in sharing.items():
        if rows is None:
            by_client.update(dict.fromkeys(clients, _score(by_job[name, first])))
        elif (name, first) in by_job:
            tested = [c for c in clients if len(rows[c])]
            by_client.update(zip(tested, _segments(by_job[name, first], [len(rows[c]) for c in tested]), strict=True))
    return by_client


def _reduced(name: str, scores: dict[int, Score], last: bool) -> list[Metric]:
    ordered = sorted(scores)
    accuracies = {c: (scores[c].accuracy, scores[c].n) for c in ordered}
    losses = {c: (scores[c].loss, scores[c].n) for c in ordered}
    metrics = reduce_clients(f"{name}.accuracy", accuracies) + reduce_clients(f"{name}.loss", losses)
    return metrics + [Metric(f"{name}.accuracy", *accuracies[c], client=c) for c in ordered if last]


def _score(scores: ExampleScores) -> Score:
    correct, loss = scores
    return Score(float(correct.double().mean()), float(loss.double().mean()), float(len(correct)))


def _segments(scores: ExampleScores, sizes: Sequence[int]) -> list[Score]:
    """Scores of consecutive parts of these sizes.

    Parts of one size are averaged in one call: a hundred thousand clients have a few hundred sizes.  On a CPU each mean
    has the bits of a call of its own; of large parts, which PyTorch may divide among threads, each has one.
    """
    length = torch.tensor(sizes)
    start = length.cumsum(0) - length
    by_part = torch.empty(len(sizes), 2, dtype=torch.float64)
    for size in sorted(set(sizes)):
        parts = (length == size).nonzero()[:, 0]
        for some in torch.split(parts, max(1, _AT_ONCE // size)):
            rows = (start[some, None] + torch.arange(size)).to(scores[0].device)
            by_part[some] = torch.stack([values[rows].double().mean(1) for values in scores], 1).cpu()
    return [Score(accuracy, loss, size) for (accuracy, loss), size in zip(by_part.tolist(), sizes, strict=True)]
