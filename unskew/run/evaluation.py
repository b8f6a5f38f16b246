"""Evaluation of a state: three accuracies, distinguished by name.

    global.*              the server's model on the global test set
    personal.*            each client's own model on its own held-out data
    personal_on_global.*  each client's own model on the global test set

For a method with one global model a client's own model is that model.  Nothing is augmented, charged or remembered.
Remote clients test their own models themselves and send their scores.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unskew.data.federated import FederatedData
from unskew.data.ragged import Ragged
from unskew.keys import Key
from unskew.local.executor import EvalJob
from unskew.protocol import ClientId
from unskew.run.metrics import Metric, reduce_clients
from unskew.runtime.message import Score
from unskew.runtime.round import Driver
from unskew.tree import Params

ExampleScores = tuple[Tensor, Tensor]
"""Correctness (bool) and loss of each example."""
OwnModels = Mapping[ClientId, Params]
_AT_ONCE = 1 << 14  # examples averaged in one call


@dataclass(frozen=True, eq=False)
class ClientScores:
    """Scores of the clients' own models, a column each, clients ascending.

    Attributes:
        clients: Their numbers.
        accuracy, loss: Means over the client's examples.
        n: The number of these examples.
    """

    clients: npt.NDArray[np.int64]
    accuracy: npt.NDArray[np.float64]
    loss: npt.NDArray[np.float64]
    n: npt.NDArray[Any]


Scores = dict[str, ClientScores]
"""Scores by part: personal, personal_on_global, val."""


@dataclass(frozen=True, eq=False)
class EvalSet:
    """Training inputs each client is tested on: the rows of its personal test and validation parts, on the device.

    Attributes:
        test, val: Rows by client; empty where clients keep their data to themselves.
        validates: True if any client has validation rows.
    """

    test: Ragged
    val: Ragged
    validates: bool


def eval_set(fed: FederatedData, device: torch.device, validates: bool = False) -> EvalSet:
    """The evaluation set of `fed`; `validates` if clients have validation rows that are not known here."""
    test, val = (part.to(device) for part in (fed.clients.test, fed.clients.val))
    return EvalSet(test, val, validates or bool(val.sizes.any()))


def evaluated_clients(
    setting: Literal["cohort", "all"] | int, num_clients: int, cohort: int, seed: int, trained: Collection[ClientId]
) -> Sequence[ClientId]:
    """The clients whose own models an evaluation tests, ascending.

    Args:
        setting: `evaluate_clients` of the experiment.
        num_clients: All clients.
        cohort: Clients of a round.
        seed: The run's; it draws clients once, so that rounds and methods are compared on the same.
        trained: Clients that trained in the round before; if none did, a cohort is drawn.
    """
    if setting == "cohort" and trained:
        return sorted(trained)
    count = num_clients if setting == "all" else cohort if setting == "cohort" else setting
    if count >= num_clients:
        return range(num_clients)
    drawn = (Key(seed) / "evaluate" / "clients").numpy().choice(num_clients, count, replace=False)
    return sorted(drawn.tolist())


def evaluate(
    sim: Driver[Any],
    state: Any,
    t: int,
    eval_set: EvalSet,
    which: Iterable[str],
    last: bool,
    own: OwnModels | None = None,
    clients: Sequence[ClientId] | None = None,
) -> list[Metric]:
    """All metrics of the state after round `t`; per-client numbers only after the last round.

    Args:
        own: The own models of these clients (`own_models`), if they have already been built.
        clients: Clients whose own models are evaluated, ascending; by default all.
    """
    wanted = set(which)
    tested = range(len(eval_set.test)) if clients is None else clients
    if sim.clients.remote:
        on_global, scores = _scores_from_clients(sim, state, t, eval_set, wanted, last, tested)
    else:
        on_global, scores = _scores(sim, state, t, eval_set, wanted, own, tested)
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
    remote: Driver[Any],
    state: Any,
    t: int,
    eval_set: EvalSet,
    wanted: Collection[str],
    last: bool,
    clients: Sequence[ClientId],
) -> tuple[Score | None, Scores]:
    """Scores of the global model, tested here, and of the clients' own models, tested by themselves.

    After the last round every client is asked, even if no score is needed, because it then stores its model.
    """
    model = remote.algorithm.serve(state, None) if "global" in wanted else None
    on_global = None if model is None else _score(*remote.executor.evaluate([EvalJob(model, "test")]))
    parts = [*(["personal"] if "personal" in wanted else []), *(["val"] if eval_set.validates else [])]
    by_part = remote.evaluate_on_clients(state, t, parts, last, None if last else clients) if parts or last else {}
    wanted_of = {part: {c: by_client[c] for c in clients if c in by_client} for part, by_client in by_part.items()}
    return on_global, {part: _table(list(by_client), list(by_client.values())) for part, by_client in wanted_of.items()}


def _scores(
    sim: Driver[Any],
    state: Any,
    t: int,
    eval_set: EvalSet,
    wanted: Collection[str],
    own: OwnModels | None,
    clients: Sequence[ClientId],
) -> tuple[Score | None, Scores]:
    """Scores of the global model and of the clients' own, all tested in this process."""
    model = sim.algorithm.serve(state, None) if "global" in wanted else None
    parts: dict[str, Ragged] = {}
    if "personal" in wanted:
        parts["personal"] = eval_set.test
    if eval_set.validates:
        parts["val"] = eval_set.val
    if own is None:
        needed = needs_own_models(eval_set, wanted)
        own = own_models(sim, state, t, clients) if needed else {}
    sharing = _sharing(own)
    jobs: dict[tuple[str, ClientId], EvalJob] = {}
    if model is not None:
        jobs["global", 0] = EvalJob(model, "test")
    tested: dict[str, dict[ClientId, npt.NDArray[np.int64]]] = {}
    for name, rows in parts.items():
        with_rows = ((first, some[rows.sizes[some] > 0]) for first, some in sharing.items())
        tested[name] = {first: some for first, some in with_rows if len(some)}
        for first, some in tested[name].items():
            jobs[name, first] = EvalJob(own[first], "train", rows.take(some).values)
    if "personal_on_global" in wanted:
        for first in sharing:
            jobs["personal_on_global", first] = EvalJob(own[first], "test")
    by_job = dict(zip(jobs, sim.executor.evaluate(list(jobs.values())), strict=True))

    on_global = None if model is None else _score(by_job["global", 0])
    scores = {name: _on_own_rows(by_job, name, tested[name], rows.sizes) for name, rows in parts.items()}
    if "personal_on_global" in wanted:
        scores["personal_on_global"] = _on_all_rows(by_job, "personal_on_global", sharing)
    return on_global, scores


def _sharing(own: OwnModels) -> dict[ClientId, npt.NDArray[np.int64]]:
    """Clients that share a model, listed under the first of them, so that it is tested in one pass."""
    groups: dict[int, list[ClientId]] = {}
    for c, model in own.items():
        groups.setdefault(id(model), []).append(c)
    return {clients[0]: np.array(clients) for clients in groups.values()}


def _on_own_rows(
    by_job: Mapping[tuple[str, ClientId], ExampleScores],
    name: str,
    tested: Mapping[ClientId, npt.NDArray[np.int64]],
    sizes: npt.NDArray[np.int64],
) -> ClientScores:
    """Scores of clients that were tested on rows of their own, from their parts of the passes."""
    if not tested:
        return _table([], [])
    clients = np.concatenate(list(tested.values()))
    correct, loss = (torch.cat(values) for values in zip(*(by_job[name, first] for first in tested), strict=True))
    means = _segments((correct, loss), sizes[clients])
    order = np.argsort(clients)
    return ClientScores(clients[order], means[order, 0], means[order, 1], sizes[clients[order]])


def _on_all_rows(
    by_job: Mapping[tuple[str, ClientId], ExampleScores],
    name: str,
    sharing: Mapping[ClientId, npt.NDArray[np.int64]],
) -> ClientScores:
    """Scores of clients whose models were tested on the same rows: one for all that share a model."""
    by_client: dict[ClientId, Score] = {}
    for first, clients in sharing.items():
        by_client.update(dict.fromkeys(clients.tolist(), _score(by_job[name, first])))
    return _table(list(by_client), list(by_client.values()))


def _table(clients: Sequence[ClientId], scores: Sequence[Score]) -> ClientScores:
    order = np.argsort(np.array(clients, np.int64))
    accuracy, loss, n = (np.array([s[k] for s in scores], np.float64)[order] for k in range(3))
    return ClientScores(np.array(clients, np.int64)[order], accuracy, loss, n)


def _reduced(name: str, scores: ClientScores, last: bool) -> list[Metric]:
    metrics = reduce_clients(f"{name}.accuracy", scores.accuracy, scores.n)
    metrics += reduce_clients(f"{name}.loss", scores.loss, scores.n)
    if last:
        columns = (column.tolist() for column in (scores.accuracy, scores.n, scores.clients))
        metrics += [Metric(f"{name}.accuracy", *row) for row in zip(*columns, strict=True)]
    return metrics


def _score(scores: ExampleScores) -> Score:
    correct, loss = scores
    return Score(float(correct.double().mean()), float(loss.double().mean()), float(len(correct)))


def _segments(scores: ExampleScores, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Mean correctness and loss of consecutive parts of these sizes, (parts, 2).

    Parts of one size are averaged in one call: a hundred thousand clients have a few hundred sizes.  On a CPU each mean
    has the bits of a call of its own; of large parts, which PyTorch may divide among threads, each has one.
    """
    length = torch.from_numpy(sizes)
    start = length.cumsum(0) - length
    by_part = torch.empty(len(sizes), 2, dtype=torch.float64)
    for size in np.unique(sizes).tolist():
        parts = (length == size).nonzero()[:, 0]
        for some in torch.split(parts, max(1, _AT_ONCE // size)):
            rows = (start[some, None] + torch.arange(size)).to(scores[0].device)
            by_part[some] = torch.stack([values[rows].double().mean(1) for values in scores], 1).cpu()
    return by_part.numpy()
