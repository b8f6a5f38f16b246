"""Evaluation of a state: three values of each of the task's measures, distinguished by name.

    global.*              the server's model on the global test set
    personal.*            each client's own model on its own held-out data
    personal_on_global.*  each client's own model on the global test set

For a method with one global model a client's own model is that model.  Nothing is augmented or added to the ledger, and
clients remember nothing.  Remote clients test their own models and send scores.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from unskew.data.federated import FederatedData
from unskew.data.manifest import Ragged
from unskew.keys import Key
from unskew.local.executor import Columns, EvalJob, joined
from unskew.protocol import ClientId
from unskew.run.metrics import Metric, reduce_clients
from unskew.runtime.message import Score
from unskew.runtime.round import Driver
from unskew.tasks.task import Task
from unskew.tree import Params

OwnModels = Mapping[ClientId, Params]
_AT_ONCE = 1 << 14  # examples averaged in one call


@dataclass(frozen=True, eq=False)
class ClientScores:
    """Scores of the clients' own models, by column.

    Attributes:
        clients: Client numbers, ascending.
        values: The task's measures on the client's examples, (clients, measures); NaN where not defined.
        n: Number of these examples.
    """

    clients: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    n: npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class EvalSet:
    """Rows of the training inputs on which each client is tested: its personal test and validation parts.

    Attributes:
        task: Says what is measured.
        test, val: Rows by client; empty where clients keep their data to themselves.
        validates: True if any client has validation rows.
    """

    task: Task
    test: Ragged
    val: Ragged
    validates: bool


def eval_set(task: Task, fed: FederatedData, device: torch.device, validates: bool = False) -> EvalSet:
    """The evaluation set of `fed`; set `validates` if remote clients have validation rows."""
    test, val = (part.to(device) for part in (fed.clients.test, fed.clients.val))
    return EvalSet(task, test, val, validates or bool(val.sizes.any()))


def evaluated_clients(setting: Literal["all"] | int, num_clients: int, seed: int) -> Sequence[ClientId]:
    """The clients whose own models are evaluated, ascending.

    Args:
        setting: `evaluate_clients` of the experiment.
        num_clients: Number of all clients.
        seed: The run's; clients are drawn once, so that rounds and methods are compared on the same ones.
    """
    if setting == "all" or setting >= num_clients:
        return range(num_clients)
    drawn = (Key(seed) / "evaluate" / "clients").numpy().choice(num_clients, setting, replace=False)
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
    """All metrics of the state after round `t`; numbers of single clients only after the last round.

    Args:
        own: The own models of these clients (`own_models`), if already built.
        clients: Clients whose own models are evaluated, ascending; by default all.
    """
    task, wanted = eval_set.task, set(which)
    clients = range(len(eval_set.test)) if clients is None else clients
    parts: dict[str, Ragged | None] = {"personal": eval_set.test} if "personal" in wanted else {}
    parts |= {"personal_on_global": None} if "personal_on_global" in wanted else {}
    parts |= {"val": eval_set.val} if eval_set.validates else {}
    model = sim.method.serve(state, None) if "global" in wanted else None
    jobs: dict[tuple[str, ClientId], EvalJob] = {} if model is None else {("global", 0): EvalJob(model, "test")}
    tested: dict[str, Groups] = {}
    if not sim.clients.remote:
        own = own if own is not None else own_models(sim, state, t, clients) if parts else {}
        sharing = _sharing(own)
        for name, rows in parts.items():
            tested[name] = sharing if rows is None else _with_rows(sharing, rows)
            jobs |= {(name, first): _job(own, first, rows, some) for first, some in tested[name].items()}
    by_job = dict(zip(jobs, sim.executor.evaluate(list(jobs.values())), strict=True))
    scores: dict[str, ClientScores] = {}
    for name, groups in tested.items():
        columns = [by_job[name, first] for first in groups]
        rows = parts[name]
        scores[name] = _on_test_set(task, columns, groups) if rows is None else _on_rows(task, columns, groups, rows)
    if sim.clients.remote and (parts or last):
        # After the last round every client is asked, even if no score is needed, because it then stores its model.
        answers = sim.evaluate_on_clients(state, t, list(parts), last, None if last else clients)
        scores = {part: table(task, {c: of[c] for c in clients if c in of}) for part, of in answers.items()}
    metrics: list[Metric] = []
    if model is not None:
        on_global = _score(task, by_job["global", 0])
        metrics += [
            Metric(f"global.{measure.name}", value, on_global.n)
            for measure, value in zip(task.measures, on_global.values, strict=True)
            if measure.each is not None or not math.isnan(value)  # not defined, as AUROC of one class
        ]
    for name in [n for n in ("personal", "personal_on_global") if n in wanted]:
        metrics += reduced(name, task, scores[name], last)
    if "val" in scores:
        headline = f"val.{task.headline.name}"
        val = reduced("val", task, scores["val"], last=False)
        metrics += [Metric(headline, m.value, m.weight) for m in val if m.name == f"{headline}.weighted"]
    return metrics


def needs_own_models(eval_set: EvalSet, which: Iterable[str]) -> bool:
    """True if an evaluation tests the clients' own models."""
    return eval_set.validates or not {"personal", "personal_on_global"}.isdisjoint(which)


def own_models(sim: Driver[Any], state: Any, t: int, clients: Sequence[ClientId]) -> OwnModels:
    """The model each of these clients would use after round `t`; clients without a model are left out.

    With pooled data all clients use the one model.
    """
    if len(sim.clients.ids) == 1:
        model = sim.own_models(state, [0], t)
        return dict.fromkeys(clients, model[0]) if model else {}
    return sim.own_models(state, clients, t)


def on_own_rows(sim: Driver[Any], own: OwnModels, rows: Ragged) -> Iterator[tuple[ClientId, Columns]]:
    """Results on each client's rows under its own model; clients without rows are left out.

    A model that several clients share is tested in one pass.
    """
    tested = _with_rows(_sharing(own), rows)
    jobs = [_job(own, first, rows, some) for first, some in tested.items()]
    for some, columns in zip(tested.values(), sim.executor.evaluate(jobs), strict=True):
        sizes = rows.sizes[some].tolist()
        yield from zip(some.tolist(), zip(*(torch.split(c, sizes) for c in columns), strict=True), strict=True)


Groups = Mapping[ClientId, npt.NDArray[np.int64]]
"""Clients that share a model, listed under the first of them, so that it is tested in one pass."""


def _sharing(own: OwnModels) -> Groups:
    groups: dict[tuple[str | int, ...], list[ClientId]] = {}
    for c, model in own.items():
        groups.setdefault((*model, *map(id, model.values())), []).append(c)
    return {clients[0]: np.array(clients) for clients in groups.values()}


def _with_rows(sharing: Groups, rows: Ragged) -> Groups:
    having = ((first, some[rows.sizes[some] > 0]) for first, some in sharing.items())
    return {first: some for first, some in having if len(some)}


def _job(own: OwnModels, first: ClientId, rows: Ragged | None, some: npt.NDArray[np.int64]) -> EvalJob:
    """The test of a client's model on rows of these clients, or on the global test set."""
    mine = None if rows is None else rows.take(some).values
    return EvalJob(own[first], "test" if rows is None else "train", mine, first)


def _on_rows(task: Task, by_group: Sequence[Columns], groups: Groups, rows: Ragged) -> ClientScores:
    """Scores of clients that were tested on rows of their own, from their parts of the passes."""
    if not groups:
        return table(task, {})
    clients, columns = np.concatenate(list(groups.values())), joined(by_group)
    sizes = rows.sizes[clients]
    means = [i for i, m in enumerate(task.measures) if m.each is not None]
    values = np.empty((len(clients), len(task.measures)))
    if means:
        values[:, means] = _segments(columns[: len(means)], sizes)
    for i in means:
        if task.measures[i].link is not None:
            values[:, i] = [task.measures[i].of_mean(mean) for mean in values[:, i].tolist()]
    if len(means) < len(task.measures):
        each_client = list(zip(*(torch.split(column, sizes.tolist()) for column in columns), strict=True))
        for i, measure in enumerate(task.measures):
            if measure.each is None:
                values[:, i] = [task.whole(measure, own) for own in each_client]
    order = np.argsort(clients)
    return ClientScores(clients[order], values[order], sizes[order].astype(np.float64))


def _on_test_set(task: Task, by_group: Sequence[Columns], groups: Groups) -> ClientScores:
    """Scores of clients whose models were tested on the same rows: one for all that share a model."""
    scores = ((clients.tolist(), _score(task, of)) for clients, of in zip(groups.values(), by_group, strict=True))
    return table(task, {client: score for clients, score in scores for client in clients})


def table(task: Task, by_client: Mapping[ClientId, Score]) -> ClientScores:
    """The clients' scores in columns."""
    clients = sorted(by_client)
    values = np.array([by_client[c].values for c in clients], np.float64).reshape(len(clients), len(task.measures))
    return ClientScores(np.array(clients, np.int64), values, np.array([by_client[c].n for c in clients], np.float64))


def reduced(name: str, task: Task, scores: ClientScores, last: bool) -> list[Metric]:
    """The measures over the clients for which they are defined; after the last round also of each client.

    Of a single client only the headline, the loss and what was asked for are given.
    """
    metrics: list[Metric] = []
    client_values: list[Metric] = []
    for measure, values in zip(task.measures, scores.values.T, strict=True):
        has = np.full(len(values), True) if measure.each is not None else ~np.isnan(values)
        metrics += reduce_clients(f"{name}.{measure.name}", values[has], scores.n[has], measure.higher, len(has))
        if last:
            columns = (column[has].tolist() for column in (values, scores.n, scores.clients))
            client_values += [Metric(f"{name}.{measure.name}", *row) for row in zip(*columns, strict=True)]
    return [*metrics, *client_values]


def _score(task: Task, columns: Columns) -> Score:
    return Score(task.values(columns), float(len(columns[0])))


def _segments(scores: Columns, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Means of columns over consecutive parts of these sizes, (parts, columns).

    Parts of one size are averaged in one call: a hundred thousand clients have a few hundred sizes.  On a CPU each mean
    has the bits of a call of its own; of large parts, which PyTorch may divide among threads, each has one.
    """
    length = torch.from_numpy(sizes)
    start = length.cumsum(0) - length
    by_part = torch.empty(len(sizes), len(scores), dtype=torch.float64)
    for size in np.unique(sizes).tolist():
        parts = (length == size).nonzero()[:, 0]
        for some in torch.split(parts, max(1, _AT_ONCE // size)):
            rows = (start[some, None] + torch.arange(size)).to(scores[0].device)
            by_part[some] = torch.stack([values[rows].double().mean(1) for values in scores], 1).cpu()
    return by_part.numpy()
