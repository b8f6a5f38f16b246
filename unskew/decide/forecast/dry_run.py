"""A run without training: a method's real plan, driven by clients whose results are made up.

`dry_run` drives a method of an experiment on its data, for a forecast.  `untrained_rounds` needs class counts only:
FedDif's auctions, for example, see class counts, sizes and channels, so three hundred of its rounds take seconds.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from unskew import machine
from unskew.data.federated import FederatedData
from unskew.decide.forecast.counts import DryRun, RoundRequests
from unskew.decide.forecast.mock_executor import CodeResults, DryRunExecutor, Mock, size
from unskew.experiment.config import Experiment, Method
from unskew.info import Passes, whole
from unskew.ledger import totals
from unskew.local.executor import Columns, EvalJob, StepJob, StepResult, answer_untrained
from unskew.local.trainer import LocalTrainer
from unskew.protocol import ClientId, Layout, drive, report_of
from unskew.run import setup as run_setup
from unskew.run.evaluation import eval_set, evaluate, evaluated_clients
from unskew.run.setup import Setup
from unskew.runtime.in_process import Population, Simulator
from unskew.runtime.round import Trace
from unskew.tree import Params
from unskew.world.channel import Channel
from unskew.wrappers.replies import held_uploads

PARTIAL_MEANS = 3
"""Models that a mean in the making takes: sums of this chunk and of those before, and a first reply."""


@dataclass(frozen=True, eq=False)
class PreparedMethod:
    """One method under one seed, ready to be driven or timed.

    Attributes:
        window: `Executor.window` of the run's executor.
        code: Results of the method's local code so far.
    """

    method: Method
    seed: int
    trainer: LocalTrainer
    population: Population
    pooled: bool
    window: Callable[[int], int]
    code: CodeResults = field(default_factory=CodeResults)


def prepare(
    experiment: Experiment, method: Method, setup: Setup, fed: FederatedData, seed: int, code: CodeResults | None = None
) -> PreparedMethod:
    """A method's clients under a seed, as a run would make them; `code` has the results of other seeds' local code."""
    trainer, population, train = run_setup.clients(experiment, method, setup, fed, seed)
    if code is not None:
        code.next_seed()
    workers = experiment.runtime.workers or machine.cores()

    def window(model_bytes: int) -> int:
        return setup.executor_kind.window(model_bytes, workers, setup.device.type)

    return PreparedMethod(method, seed, trainer, population, train is not fed, window, code or CodeResults())


def dry_run(
    experiment: Experiment,
    prepared: PreparedMethod,
    fed: FederatedData,
    mock: Mock,
    rounds: int,
    *,
    until: float,
    evaluated: bool = False,
) -> DryRun:
    """Drive a method for `rounds` rounds, or at least two if the clock passes `until` (`time.monotonic`) before.

    Raises:
        MemoryShortage: If an exchange takes nearly all the memory there is.
        UnskewError: If the plan itself refuses; anything else it raises on made-up results goes through.
    """
    executor = DryRunExecutor(prepared.trainer, mock, until, prepared.code, prepared.window)
    cohort = 1 if prepared.pooled else experiment.cohort(len(prepared.population.clients))
    sim: Simulator[Any] = Simulator(
        prepared.method.algorithm,
        replace(prepared.population, server_trainer=executor),
        executor,
        seed=prepared.seed,
        clients_per_round=cohort,
        outage=None if prepared.pooled else experiment.world.outage,
        channel=experiment.world.channel,
    )
    state = sim.start()
    driven: list[RoundRequests] = []
    abandoned = 0
    for t in range(1, rounds + 1):
        if t > 2 and time.monotonic() > until:
            break
        requests = executor.begin()
        began = time.monotonic()
        state, trace = sim.attempt(state, t, t == experiment.rounds)
        abandoned += bool(trace.abandoned)
        requests.server_s = time.monotonic() - began - executor.spent
        # What pooling would send is not a method's cost, as in a run.
        requests.bytes = totals(() if prepared.pooled else trace.transfers)
        driven.append(requests)
    remembered = sim.memory.at(len(driven))
    evaluation = None
    if evaluated:
        # Of two, the first imports what metrics need, which a run does once.
        for _ in range(2 if any(m.whole is not None for m in prepared.trainer.task.measures) else 1):
            evaluation = executor.begin()
            began = time.monotonic()
            examples = eval_set(prepared.trainer.task, fed, prepared.trainer.device)
            trained = () if prepared.pooled else {w.client for w in trace.work}
            clients = evaluated_clients(
                experiment.evaluate_clients, fed.num_clients, experiment.cohort(fed.num_clients), prepared.seed, trained
            )
            evaluate(sim, state, len(driven), examples, experiment.evaluate, last=False, clients=clients)
            evaluation.server_s = time.monotonic() - began - executor.spent
    return DryRun(
        driven,
        evaluation,
        executor.in_flight_bytes
        + 2 * size([state])
        + (PARTIAL_MEANS + cohort * held_uploads(prepared.method.algorithm)) * size([prepared.population.initial]),
        executor.client_bytes,
        size(remembered.values()) / max(len(remembered), 1),
        frozenset(executor.clients),
        executor.sample_jobs,
        prepared.code.timings,
        executor.reused,
        abandoned,
    )


# ---------------------------------------------------------------- class counts only
def untrained_rounds(
    algorithm: Any,
    histograms: Tensor,
    count: int,
    *,
    seed: int = 0,
    channel: Channel | None = None,
    parameters: int = 1,
) -> Iterator[tuple[Passes, Trace]]:
    """Rounds of a method whose clients end training where they began: models and passes it reports, and its messages.

    Args:
        algorithm: Method to run; its clients may ask only for local training.
        histograms: Examples of each class by client, (clients, classes) int64.
        count: Number of communication rounds.
        seed, channel: Settings of a run.
        parameters: Size of the model, one vector.

    Raises:
        ProtocolError: If a client's step asks for more than local training.
    """
    params: Params = {"w": torch.zeros(parameters)}
    population = Population(histograms, Layout(("w",)), params, lambda _: params)
    sim: Simulator[Any] = Simulator(algorithm, population, _Untrained(), seed=seed, channel=channel)
    state = sim.start()
    for t in range(1, count + 1):
        state, trace = sim.round(state, t)
        yield (whole(report_of(algorithm, state), Passes) or Passes()), trace


class _Untrained:
    """An executor whose clients' training ends where it began; everything else they do is real."""

    name = "untrained"

    def window(self, model_bytes: int) -> int:
        """Return 1."""
        return 1

    def complete(self, jobs: Mapping[ClientId, StepJob]) -> Iterator[tuple[ClientId, StepResult]]:
        """Run every step to its end."""
        for c, job in jobs.items():
            answer = partial(answer_untrained, round=job.me.round)
            yield c, StepResult(drive(job.begin(job.me, job.message, job.memory), answer))

    def evaluate(self, jobs: Sequence[EvalJob]) -> list[Columns]:
        """Refused: nothing was trained."""
        raise NotImplementedError(f"{len(jobs)} models cannot be evaluated: nothing was trained")
