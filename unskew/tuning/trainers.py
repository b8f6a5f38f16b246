"""Training of trials: in this process, in processes of this machine, or in actors of a Ray cluster.

A step of a trial is a function of what it is asked alone (method, values, rounds): a training that a worker no longer
has, because Ray began it anew, is made again and ends with the same bits.  Nothing but the task goes to a worker, and
nothing but a score comes back.
"""

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_all_start_methods
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, Protocol

import torch

from unskew.advice.training import Sites, Training, measurable
from unskew.errors import ConfigError, DataError, DivergedError, WorkerError
from unskew.experiment.config import Method
from unskew.local import ray as on_ray
from unskew.local.workers.pool import exception
from unskew.local.workers.process import Process, fork
from unskew.local.workers.worker import failure
from unskew.tuning.space import with_values


@dataclass(frozen=True)
class Step:
    """Step of a trial on its way to a worker.

    Attributes:
        search, trial: Position of the method among those that are tuned, and of the trial in its search.
        values: Its hyperparameters.
        until: Rounds to train up to.
        last: True if nothing follows, so that the training may go.
    """

    search: int
    trial: int
    values: Mapping[str, float]
    until: int
    last: bool


@dataclass(frozen=True)
class StepOutcome:
    """Outcome of a step.

    Attributes:
        search, trial: As in `Step`.
        score: The headline on validation rows, mean over clients; None if it diverged.
        rounds: Rounds done.
        seconds: Time it took.
    """

    search: int
    trial: int
    score: float | None
    rounds: int
    seconds: float


class Trainers(Protocol):
    """Workers that train trials, a step each at a time; a trial stays with its worker."""

    count: int

    def send(self, worker: int, step: Step) -> None:
        """Give a worker that has nothing a step."""
        ...

    def receive(self) -> tuple[int, StepOutcome]:
        """Wait for a worker's answer.

        Raises:
            WorkerError: If a worker ended.
        """
        ...

    def close(self) -> None:
        """End the workers."""
        ...


@dataclass(eq=False)
class TrialWorker:
    """A worker's work: the trials that it has begun, each judged by the same one of `Sites.folds`."""

    sites: Sites
    methods: Sequence[Method]
    fold: int
    begun: dict[tuple[int, int], Training] = field(default_factory=dict)

    def train(self, step: Step) -> StepOutcome:
        """Train a trial up to a round and score it on validation rows."""
        began, key, sites = time.monotonic(), (step.search, step.trial), self.sites
        fold, rounds, seed = sites.folds[self.fold], sites.experiment.rounds, sites.experiment.seeds[0]
        # A worker has one trial at a time: one that it still holds was pruned.
        self.begun = {k: t for k, t in self.begun.items() if k == key}
        score, at = math.nan, 0
        try:
            if key not in self.begun:
                method = with_values(self.methods[step.search], step.values)
                self.begun[key] = Training(method, sites, rounds, seed, fold, enough=sites.experiment.stop.megabytes)
            training = self.begun[key]
            training.go_on(step.until)
            score, at = training.scores(fold.clients.val).mean, training.at
        except DivergedError:
            at = self.begun[key].at if key in self.begun else 0
        if step.last or not math.isfinite(score):
            self.begun.pop(key, None)
        return StepOutcome(*key, score if math.isfinite(score) else None, at, time.monotonic() - began)


# ---------------------------------------------------------------- this process
@dataclass(eq=False)
class Here:
    """This process: a step is done when it is asked for, with one thread as elsewhere, which other sums would show."""

    trainer: TrialWorker
    count: int = 1
    answer: StepOutcome | None = None

    def send(self, worker: int, step: Step) -> None:
        """Train."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            self.answer = self.trainer.train(step)
        finally:
            torch.set_num_threads(threads)

    def receive(self) -> tuple[int, StepOutcome]:
        """The answer."""
        assert self.answer is not None
        answer, self.answer = self.answer, None
        return 0, answer

    def close(self) -> None:
        """Do nothing: there is no process to stop."""


# ---------------------------------------------------------------- processes
class Processes:
    """Processes that are forked from this one, each with its trials; steps and answers are lines of JSON.

    Raises:
        ConfigError: If the system cannot fork.
    """

    def __init__(self, trainer: TrialWorker, count: int) -> None:
        if "fork" not in get_all_start_methods():
            raise ConfigError(f"workers = {count} needs a system that can fork; leave it out, or give ray an address")
        self.count = count
        self.pipes: list[Connection] = []
        self.processes: list[Process] = []
        try:
            for _ in range(count):
                self._begin(trainer)
        except OSError as error:
            self.close()
            raise WorkerError(f"{count} worker processes could not be started: {error.strerror}; give fewer") from error

    def _begin(self, trainer: TrialWorker) -> None:
        mine, theirs = Pipe()
        self.processes.append(fork(lambda: _serve(trainer, theirs), (mine, *self.pipes)))
        theirs.close()
        self.pipes.append(mine)

    def send(self, worker: int, step: Step) -> None:
        """Write the step into the worker's pipe."""
        try:
            self.pipes[worker].send_bytes(json.dumps(_plain(step)).encode())
        except OSError:
            raise self._lost(worker) from None

    def receive(self) -> tuple[int, StepOutcome]:
        """Read the first answer that is there.

        Raises:
            WorkerError: If a worker ended.
        """
        pipe = wait(self.pipes)[0]
        worker = next(i for i, other in enumerate(self.pipes) if other is pipe)
        try:
            answer = json.loads(self.pipes[worker].recv_bytes())
        except (EOFError, OSError):
            raise self._lost(worker) from None
        if isinstance(answer, list):
            raise exception(*answer)
        return worker, StepOutcome(**answer)

    def _lost(self, worker: int) -> WorkerError:
        how = self.processes[worker].ended() or "it no longer answers"
        return WorkerError(f"worker {worker} of the trials is lost: {how}; the same command goes on")

    def close(self) -> None:
        """End the processes."""
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.end()
        self.pipes, self.processes = [], []


def _plain(of: Step | StepOutcome) -> dict[str, Any]:
    return {**vars(of), **({"values": dict(of.values)} if isinstance(of, Step) else {})}


def _serve(trainer: TrialWorker, pipe: Connection) -> None:
    """Answer steps until the other end is closed."""
    torch.set_num_threads(1)
    try:
        while True:
            step = Step(**json.loads(pipe.recv_bytes()))
            try:
                answer: Any = _plain(trainer.train(step))
            except Exception as error:
                answer = failure(error)
            pipe.send_bytes(json.dumps(answer).encode())
    except (EOFError, OSError, KeyboardInterrupt):
        pass


# ---------------------------------------------------------------- Ray
class _Actor:
    """A worker on a core of the cluster."""

    def __init__(self, path: list[str], trainer: list[Any], expected: dict[str, str]) -> None:
        torch.set_num_threads(1)
        sys.path.extend(p for p in path if p not in sys.path)  # methods and data of the user's own are found there
        # A reference in a list is not resolved, so the constructor does not fail when an actor begins again.
        self._put, self._expected = trainer[0], expected
        self._trainer: TrialWorker | None = None

    def train(self, step: dict[str, Any]) -> Any:
        """Do a step."""
        try:
            if apart := on_ray.differences(self._expected):
                raise WorkerError(f"a node of the Ray cluster is not like this one ({'; '.join(apart)}); take it out")
            if self._trainer is None:
                self._trainer = TrialWorker(*on_ray.imported().get(self._put))
            return _plain(self._trainer.train(Step(**step)))
        except Exception as error:
            return failure(error)


class OnRay:
    """Actors of a Ray cluster, one a core, begun anew where they are lost.

    Raises:
        ConfigError: If Ray is not installed.
        WorkerError: If there is no cluster at the address.
    """

    def __init__(self, trainer: TrialWorker, address: str, count: int | None) -> None:
        try:
            self._ray = on_ray.imported()
        except ConfigError:
            raise ConfigError("trials on a cluster need Ray: pip install 'unskew[ray]'") from None
        self._owned = not self._ray.is_initialized()
        if self._owned:
            on_ray.connect(address, count)
        self.count = count or max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        put = self._ray.put((trainer.sites, tuple(trainer.methods), trainer.fold))
        kind = self._ray.remote(_Actor).options(num_cpus=1, max_restarts=-1, max_task_retries=on_ray.RETRIES)
        self._actors = [kind.remote(sys.path, [put], on_ray.machine_kind()) for _ in range(self.count)]
        self._sent: dict[Any, int] = {}

    def send(self, worker: int, step: Step) -> None:
        """Call the actor."""
        self._sent[self._actors[worker].train.remote(_plain(step))] = worker

    def receive(self) -> tuple[int, StepOutcome]:
        """Wait for the first actor that is done.

        Raises:
            WorkerError: If an actor died again and again.
        """
        (done,), _ = self._ray.wait([*self._sent], num_returns=1)
        worker = self._sent.pop(done)
        try:
            answer = self._ray.get(done)
        except self._ray.exceptions.RayError as error:
            reason = str(error).strip().partition("\n")[0]
            raise WorkerError(f"Ray gave up on a trial after {on_ray.RETRIES} retries: {reason}") from error
        if isinstance(answer, list):
            raise exception(*answer)
        return worker, StepOutcome(**answer)

    def close(self) -> None:
        """End the actors, and Ray where it was begun here."""
        for actor in self._actors:
            self._ray.kill(actor)
        if self._owned:
            self._ray.shutdown()


def judging_fold(sites: Sites) -> int:
    """The first fold in which the headline is defined for some client's rows, as AUROC is not for rows of one class.

    Raises:
        DataError: If there is none.
    """
    for k, fold in enumerate(sites.folds):
        if any(measurable(sites.setup.task, fold.dataset.y_train[rows]) for rows in fold.clients.val):
            return k
    raise DataError(
        f"{sites.measure.label} is defined for no client's validation rows in any of {len(sites.folds)} folds, so that "
        "no trial could be judged; give another task.headline, or a larger val_fraction, up to 0.5, for fewer and "
        "larger folds"
    )


def trainers(trainer: TrialWorker, workers: int | None, ray: str | None) -> Trainers:
    """Begin the workers: actors where `ray` is an address, else as many processes, or this one.

    Raises:
        ConfigError, WorkerError: If they cannot be had.
    """
    if workers is not None and workers < 1:
        raise ConfigError(f"workers must be at least 1, got {workers}")
    if ray is not None:
        return OnRay(trainer, ray, workers)
    if workers is None or workers == 1:
        return Here(trainer)
    return Processes(trainer, workers)
