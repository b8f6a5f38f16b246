"""What a state is worth: the three accuracies, told apart by name.

    global.*              the server's model on the global test set
    personal.*            each client's own model on its own held-out data
    personal_on_global.*  each client's own model on the global test set

For a method with one global model a client's own model is that model.  Nothing is augmented, charged or remembered.
Where the clients are elsewhere they test their own models themselves, and say how it went.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unskew.data.federated import FederatedData
from unskew.local.executor import EvalJob
from unskew.run.metrics import Metric, reduce_clients
from unskew.runtime.in_process import Simulator
from unskew.runtime.message import Score
from unskew.runtime.network import Remote, Runtime
from unskew.tree import Params

Graded = tuple[Tensor, Tensor]
Scores = dict[str, dict[int, Score]]


@dataclass(frozen=True, eq=False)
class EvalSet:
    """Which training inputs each client is tested on, on the device: personal test and validation rows.

    Attributes:
        test, val: By client; empty where the clients keep theirs to themselves.
        validates: Whether there are validation rows.
    """

    test: tuple[Tensor, ...]
    val: tuple[Tensor, ...]
    validates: bool


def eval_set(fed: FederatedData, device: torch.device, validates: bool = False) -> EvalSet:
    """What the clients of `fed` are tested on; `validates` if they have validation rows that are not known here."""
    test, val = (tuple(getattr(c, part).to(device) for c in fed.clients) for part in ("test", "val"))
    return EvalSet(test, val, validates or any(len(v) for v in val))


def evaluate(sim: Runtime, state: Any, t: int, eval_set: EvalSet, which: Iterable[str], last: bool) -> list[Metric]:
    """All metrics of the state after round `t`; single clients' numbers only when it is the last."""
    wanted = set(which)
    if isinstance(sim, Remote):
        whole, scores = _examined(sim, state, t, eval_set, wanted)
    else:
        whole, scores = _graded(sim, state, t, eval_set, wanted)
    metrics: list[Metric] = []
    if whole is not None:
        metrics += [Metric("global.accuracy", whole.accuracy, whole.n), Metric("global.loss", whole.loss, whole.n)]
    for name in [n for n in ("personal", "personal_on_global") if n in wanted]:
        metrics += _reduced(name, scores[name], last)
    if "val" in scores:
        val = _reduced("val", scores["val"], last=False)
        metrics += [Metric("val.accuracy", m.value, m.weight) for m in val if m.name == "val.accuracy.weighted"]
    return metrics


def _examined(
    remote: Remote[Any], state: Any, t: int, eval_set: EvalSet, wanted: Collection[str]
) -> tuple[Score | None, Scores]:
    """Scores of the global model, tested here, and of the clients' own models, tested by themselves."""
    model = remote.algorithm.serve(state, None) if "global" in wanted else None
    whole = None if model is None else _score(*remote.executor.evaluate([EvalJob(model, "test")]))
    parts = [*(["personal"] if "personal" in wanted else []), *(["val"] if eval_set.validates else [])]
    return whole, remote.evaluate_on_clients(state, t, parts) if parts else {}


def _graded(
    sim: Simulator[Any], state: Any, t: int, eval_set: EvalSet, wanted: Collection[str]
) -> tuple[Score | None, Scores]:
    """Scores of the global model and of the clients' own, all tested in this process."""
    model = sim.algorithm.serve(state, None) if "global" in wanted else None
    parts: dict[str, tuple[Tensor, ...]] = {}
    if "personal" in wanted:
        parts["personal"] = eval_set.test
    if eval_set.validates:
        parts["val"] = eval_set.val
    own = _own_models(sim, state, t, len(eval_set.test)) if parts or "personal_on_global" in wanted else {}
    sharing = _sharing(own)
    papers: dict[tuple[str, int], EvalJob] = {}
    if model is not None:
        papers["global", 0] = EvalJob(model, "test")
    for name, rows in parts.items():
        for first, clients in sharing.items():
            mine = [rows[c] for c in clients if len(rows[c])]
            if mine:
                papers[name, first] = EvalJob(own[first], "train", torch.cat(mine))
    if "personal_on_global" in wanted:
        for first in sharing:
            papers["personal_on_global", first] = EvalJob(own[first], "test")
    graded = dict(zip(papers, sim.executor.evaluate(list(papers.values())), strict=True))

    whole = None if model is None else _score(graded["global", 0])
    names = [*parts, *(["personal_on_global"] if "personal_on_global" in wanted else [])]
    by_client = {name: _by_client(graded, name, sharing, parts.get(name)) for name in names}
    return whole, {name: {c: _score(g) for c, g in found.items()} for name, found in by_client.items()}


def _own_models(sim: Simulator[Any], state: Any, t: int, clients: int) -> dict[int, Params]:
    """Each client's own model; the clients of a pooled bound all use the one there is."""
    if len(sim.population.clients) == 1:
        found = sim.personal(state, [0], t)
        return dict.fromkeys(range(clients), found[0]) if found else {}
    return sim.personal(state, range(clients), t)


def _sharing(own: dict[int, Params]) -> dict[int, list[int]]:
    """Clients who use the very same model, under the first of them: they are tested in one pass."""
    groups: dict[int, list[int]] = {}
    for c, model in own.items():
        groups.setdefault(id(model), []).append(c)
    return {clients[0]: clients for clients in groups.values()}


def _by_client(
    graded: dict[tuple[str, int], Graded], name: str, sharing: dict[int, list[int]], rows: tuple[Tensor, ...] | None
) -> dict[int, Graded]:
    """Each client's part of what was graded in one pass; without rows of their own all have the whole."""
    out: dict[int, Graded] = {}
    for first, clients in sharing.items():
        if rows is None:
            out.update(dict.fromkeys(clients, graded[name, first]))
        elif (name, first) in graded:
            mine = [c for c in clients if len(rows[c])]
            sizes = [len(rows[c]) for c in mine]
            correct, loss = graded[name, first]
            out.update(zip(mine, zip(torch.split(correct, sizes), torch.split(loss, sizes), strict=True), strict=True))
    return out


def _reduced(name: str, scores: dict[int, Score], last: bool) -> list[Metric]:
    ordered = sorted(scores)
    accuracies = {c: (scores[c].accuracy, scores[c].n) for c in ordered}
    losses = {c: (scores[c].loss, scores[c].n) for c in ordered}
    metrics = reduce_clients(f"{name}.accuracy", accuracies) + reduce_clients(f"{name}.loss", losses)
    return metrics + [Metric(f"{name}.accuracy", *accuracies[c], client=c) for c in ordered if last]


def _score(graded: Graded) -> Score:
    correct, loss = graded
    return Score(float(correct.double().mean()), float(loss.double().mean()), float(len(correct)))
