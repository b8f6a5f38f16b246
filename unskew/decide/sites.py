"""The sites of a choice among methods, divided once.

A site's rows are divided once, under the experiment's first seed, into test rows and folds.  Choices are made by
cross-validation over the folds; test rows are read after all choices.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from unskew.data.federated import ClientIndex, ClientIndices, FederatedData, apart
from unskew.data.latest import latest
from unskew.data.patients import most_frequent
from unskew.errors import ConfigError, DataError, RunError
from unskew.experiment.config import Experiment
from unskew.keys import Key
from unskew.protocol import ClientId
from unskew.run import setup as run_setup
from unskew.run.final import of_constants
from unskew.run.progress import duration
from unskew.run.setup import InMemoryInputs, Setup
from unskew.tasks import kind_of
from unskew.tasks.measure import Measure
from unskew.tasks.task import Task
from unskew.words import listed

VALIDATION = 0.25
"""Share of a site's rows in a fold, where the experiment does not say."""


class Clock:
    """A time limit for training; it also counts rounds.

    Args:
        seconds: The time limit; without one nothing depends on the clock.
        now: A clock, s.
    """

    def __init__(self, seconds: float = math.inf, now: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self._now, self._begun = seconds, now, now()
        self.counted: dict[str, int] = {}

    def __reduce__(self) -> tuple[type["Clock"], tuple[float]]:
        return Clock, (self.seconds - self.spent,)  # another machine's clock says something else

    @property
    def rounds(self) -> int:
        """Rounds of all trainings so far."""
        return sum(self.counted.values())

    @property
    def spent(self) -> float:
        """Seconds since its start."""
        return self._now() - self._begun

    def require_time(self) -> None:
        """Called before a round.

        Raises:
            RunError: If the time is over.
        """
        if self.spent > self.seconds:
            raise RunError(
                f"{duration(self.seconds)} ended before the answer is known; give it more minutes, and it goes on "
                "in the same folder"
            )


@dataclass(frozen=True)
class Constraints:
    """Limits of a federation.

    Attributes:
        rounds: Most communication rounds.
        megabytes: Most that all clients and the server send in one training, 10^6 bytes.
    """

    rounds: int | None = None
    megabytes: float | None = None


@dataclass(frozen=True, eq=False)
class Sites:
    """The sites of an advice or a tuning, and their task.

    Attributes:
        experiment: Their experiment, with model, rounds and local training.
        setup: Task, network and data.
        fed: Division into sites, and of each site's rows into training and test rows.
        clock: Time limit and counter of rounds.
    """

    experiment: Experiment
    setup: Setup
    fed: FederatedData
    clock: Clock = field(default_factory=Clock)

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each site."""
        return self.fed.client_names or tuple(f"client {k}" for k in range(self.fed.num_clients))

    @property
    def measure(self) -> Measure:
        """The measure that decides."""
        return self.setup.task.headline

    @property
    def drawn(self) -> str:
        """Name of the sampling units: test rows, or patients."""
        return "test rows" if self.fed.dataset.patients is None else "test patients"

    @cached_property
    def constants(self) -> Mapping[ClientId, float]:
        """Each site's headline on its test rows for the best constant of its training rows; empty if unknown."""
        return of_constants(kind_of(self.experiment.task.kind), self.measure, self.fed)

    @cached_property
    def folds(self) -> tuple[FederatedData, ...]:
        """The sites without test rows, and with a fold of their rows for validation: a division for each fold.

        All rows of a patient are in one fold.  A site of one row, or patient, trains on it in all folds.  Where times
        are known folds are consecutive, the latest first: each is judged after training on earlier rows, and the
        earliest fold only trains.
        """
        count = max(round(1 / self.experiment.val_fraction), 2)
        if self.fed.dataset.when is not None:
            return self._in_time(count)
        key = Key(self.experiment.seeds[0]) / "advice" / "folds"
        train = self.fed.clients.train
        units, owner = _units(self.fed, train.values), np.repeat(np.arange(len(train)), train.sizes)
        home = most_frequent(units, owner)  # of a patient of several sites, the one that has most rows
        fold = np.full(len(home), -1)
        order = np.argsort(home, kind="stable")
        for client, mine in enumerate(np.split(order, np.searchsorted(home[order], np.arange(1, len(train))))):
            drawn = (key / client).numpy().permutation(len(mine))
            for number, chosen in enumerate(np.array_split(drawn, count)):
                fold[mine[chosen[: len(mine) - 1]]] = number
        of_row = np.split(fold[units], np.cumsum(train.sizes)[:-1])

        def divided(number: int) -> ClientIndices:
            val = [torch.from_numpy(of == number) for of in of_row]
            parts = zip(train, val, strict=True)
            return ClientIndices.of([ClientIndex(rows[~chosen], rows[chosen], rows[:0]) for rows, chosen in parts])

        return tuple(divided_as(self.fed, divided(number)) for number in range(count))

    def _in_time(self, count: int) -> tuple[FederatedData, ...]:
        data = self.fed.dataset
        folds, left = [], list(self.fed.clients.train)
        for k in range(count - 1):
            clients = []
            for client, rows in enumerate(left):
                when, patients = (None if of is None else of[rows].numpy() for of in (data.when, data.patients))
                assert when is not None
                late, early = (torch.from_numpy(part) for part in latest(when, 1 / (count - k), patients))
                clients.append(ClientIndex(rows[early], rows[late], rows[:0]))
                left[client] = rows[~late]
            known = None if data.patients is None else data.patients.numpy()
            folds.append(divided_as(self.fed, apart(ClientIndices.of(clients), known)))
        return tuple(fold for fold in folds if fold.clients.val.sizes.any())


def _units(fed: FederatedData, rows: torch.Tensor) -> npt.NDArray[np.int64]:
    """The patient of each of these rows, counted from 0; where patients are not known, each row by itself."""
    patients = fed.dataset.patients
    if patients is None:
        return np.arange(len(rows))
    return np.unique(patients[rows].numpy(), return_inverse=True)[1]


def divided_as(fed: FederatedData, clients: ClientIndices) -> FederatedData:
    """The same examples in another division."""
    return replace(fed, clients=clients)


def sites_of(experiment: Experiment, inputs: InMemoryInputs = InMemoryInputs(), minimum: int = 2) -> Sites:
    """Read the data and divide them.

    Raises:
        ConfigError, DataError: If the experiment is impossible, there are fewer than `minimum` sites, or the headline
            cannot be measured on validation or test rows.
    """
    early = [f"stop.{name}" for name in ("metric", "patience", "seconds") if getattr(experiment.stop, name) is not None]
    if early:
        raise ConfigError(
            f"{listed(early)} would be ignored: methods are chosen by trainings that take all their rounds; leave it "
            "out, and give as many rounds as a training should have"
        )
    share = experiment.val_fraction or VALIDATION
    experiment = replace(experiment, val_fraction=0.0)
    setup = run_setup.prepare(experiment, inputs)
    if setup.executor_kind.processes:  # several methods are in training at a time, and workers serve one
        here = replace(experiment.runtime, executor="sequential", executor_options={})
        executor, kind = run_setup.choose_executor(here, setup.device, setup.parameters, 0.0)
        setup = replace(setup, executor=executor, executor_kind=kind)
    fed = run_setup.divide(experiment, setup.dataset, experiment.seeds[0])
    if fed.num_clients < minimum:
        raise ConfigError(f"advice needs at least two sites, got {fed.num_clients}")
    if not fed.clients.test.sizes.any():
        raise DataError("no site has test rows; raise test_fraction, or give the sites more rows")
    if not any(measurable(setup.task, fed.dataset.y_train[rows]) for rows in fed.clients.test):
        raise DataError(
            f"no site has test rows from which {setup.task.headline.label} can be measured, as rows of one class or "
            "without events; give a site others, or choose another task.headline"
        )
    sites = Sites(replace(experiment, val_fraction=share), setup, fed)
    if not any(fold.clients.val.sizes.any() for fold in sites.folds):
        raise DataError(
            "no site has rows to train on and others to choose by, of other patients or times; give the sites more rows"
        )
    return sites


def measurable(task: Task, y: torch.Tensor) -> bool:
    """True if the headline can be measured with these targets, whatever the model."""
    if task.headline.whole is None or not len(y):
        return len(y) > 0
    outputs = torch.linspace(-1.0, 1.0, len(y) * task.width).reshape(len(y), task.width)
    return not math.isnan(task.whole(task.headline, (outputs, y)))
