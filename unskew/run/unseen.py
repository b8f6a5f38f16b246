"""Evaluates unseen clients, which come after training: with the model they get, and after adapting it.

    unseen.*           the model that an unseen client gets, before any training of its own
    unseen_adapted.*   the same after adapting on the client's own training data
    gap.*              the clients that trained minus the unseen ones, of the headline; gap_adapted.* after adapting

The model comes from the method's `serve` for an unknown client, and `personalise` without memory.  Of several models
(`unseen_models`) a client takes the one with the lowest loss on its training data, as in IFCA.  In FLSC it takes the
mean of the best ones (`unseen_memberships`).  Adapting is `personalise` where that trains, or the method's `adapt`, or
else local training as in its `local`.  Training never depends on it.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from unskew.data.federated import FederatedData
from unskew.data.manifest import Ragged
from unskew.errors import ProtocolError
from unskew.keys import Key
from unskew.local.executor import StepJob
from unskew.local.sequential import run_step
from unskew.local.trainer import LocalTrainer
from unskew.protocol import ClientId, Me, SgdConfig, Step, hook, personalise_of, sgd
from unskew.record.logs import ADAPTED, SERVED, gap_name
from unskew.reduction import weighted_mean
from unskew.run.evaluation import ClientScores, reduced, table
from unskew.run.metrics import Metric
from unskew.runtime.in_process import Simulator, without_local_work
from unskew.runtime.message import Score
from unskew.tasks.task import Task
from unskew.tree import Params
from unskew.wrappers.base import name_of


class UnseenClients:
    """The unseen clients of one seed, numbered after those that trained.

    Args:
        sim: Runs the method.
        task: Says what is measured.
        fed: The division, with unseen clients.
        seed: The run's.
        epochs: Passes over their own data in adapting.
    """

    def __init__(self, sim: Simulator[Any], task: Task, fed: FederatedData, seed: int, epochs: int) -> None:
        trainer, later = sim.population.server_trainer, fed.unseen
        assert isinstance(trainer, LocalTrainer)
        assert later is not None
        train = Ragged.of([*fed.clients.train, *later.clients.train]).to(trainer.device)
        val = Ragged.of([*fed.clients.val, *later.clients.val]).to(trainer.device)
        data = replace(trainer.device_data, train=train, val=val)  # theirs beside that of the clients that trained
        self.trainer = LocalTrainer(task, data, trainer.device, trainer.dtype)
        self.method, self.task, self.seed, self.epochs = sim.method, task, seed, epochs
        self.histograms = torch.from_numpy(later.label_counts)
        self.test = later.clients.test.to(trainer.device)
        self.first, self.initial = fed.num_clients, sim.population.initial

    def scores(self, state: Any, t: int) -> dict[str, ClientScores]:
        """The clients' scores after round `t`, before and after adapting.

        Clients without test rows or without a model are left out.
        """
        by_part: dict[str, dict[ClientId, Score]] = {SERVED: {}, ADAPTED: {}}
        for i in np.flatnonzero(self.test.sizes).tolist():
            me = self.me(self.first + i, t)
            served, trained = self.models(state, me)
            for part, model in ((SERVED, served), (ADAPTED, trained)):
                if model is not None:
                    columns = self.trainer.evaluate(model, "train", self.test[i])
                    by_part[part][me.id] = Score(self.task.values(columns), float(self.test.sizes[i]))
        return {part: table(self.task, scores) for part, scores in by_part.items()}

    def me(self, client: ClientId, t: int) -> Me:
        """A client's view of itself in round `t`."""
        key = Key(self.seed) / "unseen" / t / "client" / client
        histogram = self.histograms[client - self.first]
        lasting = Key(self.seed) / "client" / client / "lasting"
        return Me(client, int(histogram.sum()), histogram, t, key, self.task.layout, self.initial, key, lasting)

    def models(self, state: Any, me: Me) -> tuple[Params | None, Params | None]:
        """The client's model before and after adapting; None where the method has none for it."""
        served = served_to(self.method, state, me.id)
        whole = [self.put_together(me, model) for model in served]
        if len(whole) > 1:
            losses = [self.training_loss(of[0], me) for of in whole]
            best = [whole[j] for j in sorted(range(len(whole)), key=lambda j: (math.isnan(losses[j]), losses[j]))]
            whole = best[: hook(self.method, "unseen_memberships")]
        model, ready = whole[0]
        if model is None:
            return None, None
        if len(whole) > 1:
            model = weighted_mean([m for m, _ in whole if m is not None], [1.0] * len(whole))
        own = personalise_of(self.method)
        if not ready and own is not None:  # its rule for a client without memory is to train
            return model, self.run("personalise", own, me, served[0])
        return model, self.run("adapt", adaptation(self.method, self.epochs), me, model)

    def put_together(self, me: Me, served: Params | None) -> tuple[Params | None, bool]:
        """A client's model before it trains, and whether `personalise` has made it.

        Tensors that the method keeps on clients are the initial ones.
        """
        own = personalise_of(self.method)
        if own is None:
            return served, True
        ended, model = without_local_work(StepJob("personalise", own, me, served, None))
        if ended:
            return model, True
        return {name: (served or {}).get(name, start) for name, start in me.initial.items()}, False

    def training_loss(self, model: Params | None, me: Me) -> float:
        """The mean loss of a model on a client's training data."""
        if model is None:
            return float("inf")
        values = self.task.values(self.trainer.evaluate(model, "train", self.trainer.device_data.train[me.id]))
        return values[[m.name for m in self.task.measures].index("loss")]

    def run(self, name: str, begin: Callable[..., Any], me: Me, message: Any) -> Params:
        """Run a client's local work to its end."""
        params: Params = run_step(self.trainer, StepJob(name, begin, me, message, None)).value
        return params


def served_to(method: Any, state: Any, client: ClientId) -> tuple[Params | None, ...]:
    """The models that a method has for an unknown client, at least one; None in the list if it has none.

    Raises:
        ProtocolError: If the method only knows clients that trained.
    """
    candidates = hook(method, "unseen_models")
    try:
        return (method.serve(state, client),) if candidates is None else tuple(candidates(state))
    except (LookupError, StopIteration):
        way = "give it unseen_models(state), or leave unseen out"
        raise ProtocolError(f"{name_of(method)} serves no model to a client it has never met; {way}") from None


def adaptation(method: Any, epochs: int) -> Callable[[Me, Params, Any], Step[Params]]:
    """The step by which a client adapts: the method's `adapt`, or training as in its `local` for `epochs` epochs."""
    own = hook(method, "adapt")
    config = hook(method, "local")
    config = config if isinstance(config, SgdConfig) else SgdConfig()

    def adapt(me: Me, params: Params, memory: Any) -> Step[Params]:
        if own is not None:
            adapted: Params = yield from own(me, params, epochs)
            return adapted
        return (yield from sgd(params, replace(config, local_epochs=epochs, local_steps=None)))

    return adapt


def metrics_of(scores: dict[str, ClientScores], task: Task, trained: list[Metric], last: bool) -> list[Metric]:
    """The metrics of the unseen clients; `trained` has those of the clients that trained, for the gap."""
    seen = next((m.value for m in trained if m.name == task.headline.own and m.client is None), None)
    metrics: list[Metric] = []
    for part, of in scores.items():
        some = reduced(part, task, of, last)
        metrics += some
        mean = next((m for m in some if m.name == f"{part}.{task.headline.name}.mean" and m.client is None), None)
        if seen is not None and mean is not None:
            metrics.append(Metric(gap_name(part, task.headline.name), seen - mean.value, mean.weight))
    return metrics
