"""The interface of executors, and the jobs they run: clients' steps, and evaluations of models.

Every executor answers the same requests with the same values, those of `Sequential`.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import GeneratorType
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from unskew.errors import ProtocolError
from unskew.protocol import ClientId, Fitted, Held, Me, Sgd
from unskew.registry import Registry
from unskew.tree import Marks, Params, check_unchanged, marks

FIRST = 3
"""Rounds in which steps and plans are looked at: one that remembers has something to change from its second on."""

WATCHED = 4
"""Clients of an exchange that are looked at in those rounds, for changes of what they are given."""


@dataclass(frozen=True, eq=False)
class StepJob:
    """One client's step, before it begins.

    Attributes:
        step: Its name; "personalise" is the one that returns a model instead of (reply, memory).
        begin: The bound method.
        me, message, memory: Its arguments.
        stored: Kept values that the message refers to and the executor has, by their `Held`.
        watched: True if the step is refused at its end when it has changed its arguments.
    """

    step: str
    begin: Callable[[Me, Any, Any], Any]
    me: Me
    message: Any
    memory: Any
    stored: Mapping[Held, "Stored"] = field(default_factory=dict)
    watched: bool = False

    def start(self) -> Any:
        """Call the step: return its generator, or its result if it has no local work.

        Raises:
            ProtocolError: If it is watched, has ended already, and has changed its arguments.
        """
        if not self.watched:
            return self.begin(self.me, self.message, self.memory)
        before = {what: marks(tree, content=True) for what, tree in self._given.items()}
        answer = self.begin(self.me, self.message, self.memory)
        if isinstance(answer, GeneratorType):
            return self._watched(answer, before)
        self._check(before)
        return answer

    @property
    def _given(self) -> dict[str, Any]:
        message = "its message" if self.step != "personalise" else "the model that it is served"
        return {
            message: self.message,
            "its client's memory": self.memory,
            "me.initial": self.me.initial,
            "me.histogram": self.me.histogram,
        }

    def _watched(self, step: Any, before: Mapping[str, Marks]) -> Generator[Any, Any, Any]:
        value = yield from step
        self._check(before)
        return value

    def _check(self, before: Mapping[str, Marks]) -> None:
        for what, tree in self._given.items():
            check_unchanged(before[what], tree, f"step {self.step!r}", what)


@dataclass(frozen=True, eq=False)
class StepResult:
    """A finished step.

    Attributes:
        value: The step's return value.
        losses: Mean training loss of each optimisation on the way.
        examples: Examples that went through those optimisations, repeated ones counted again.
    """

    value: Any
    losses: tuple[float, ...] = ()
    examples: int = 0


@dataclass(frozen=True, eq=False)
class Stored:
    """A value that a step kept with the executor; it replaces the value in a `Keep`.

    Attributes:
        nbytes, kind: Its size as encoded, bytes, and its kind in the ledger.
        place: Where the executor finds it.
        bring: Brings it to this process, as a value of a type.
        value_type: That type.
    """

    nbytes: int
    kind: Literal["model", "control"]
    place: Any
    bring: Callable[[Any], Any]
    value_type: Any = None

    def read(self) -> Any:
        """Bring the value to this process."""
        return self.bring(self.value_type)


@dataclass(frozen=True, eq=False)
class EvalJob:
    """A model to be evaluated on rows of the global test set or of the training inputs; None is all rows.

    `client` is the client whose network it is; None is the server.
    """

    params: Params
    part: Literal["test", "train"]
    rows: Tensor | None = None
    client: ClientId | None = None


# Parameters times examples per client; the MLP on digits has 0.3 million, logistic regression on MNIST 3 million.
WORKERS_FROM = 3_000_000

ROOM = {"cpu": 1 << 27, "cuda": 1 << 32}
"""Bytes that the models of clients at work together may take, where their replies are dropped one by one."""

Columns = tuple[Tensor, ...]
"""Values that an evaluation keeps of each example, a tensor (n, ...) each, as `Task.columns` gives them."""


def joined(parts: Sequence[Columns]) -> Columns:
    """Concatenate the columns of parts of the examples, at least one part, in order."""
    filled = [part for part in parts if len(part[0])] or parts[:1]  # a worker with no row makes no outputs
    return tuple(torch.cat(column) for column in zip(*filled, strict=True))


class Executor(Protocol):
    """Runs the steps of the clients asked in one exchange, and evaluates models."""

    name: str

    def window(self, model_bytes: int) -> int:
        """Number of clients to run together, if few of their replies (a model each) are to be in memory."""
        ...

    def complete(self, jobs: Mapping[ClientId, StepJob]) -> Iterator[tuple[ClientId, StepResult]]:
        """Run every step to its end; yields each client once, as it ends, in any order.

        An executor owns its clients until the iterator is exhausted: stopping earlier stops the run.
        """
        ...

    def evaluate(self, jobs: Sequence[EvalJob]) -> list[Columns]:
        """The columns of each job's examples."""
        ...


@dataclass(frozen=True, eq=False)
class CellParts:
    """The parts of an executor for one method under one seed.

    Attributes:
        trainer: The `LocalTrainer` that answers the steps' requests.
        method: The method.
        pool, cell: The run's worker processes, and the index of method and seed; None and 0 for a kind of executor
            without processes.
    """

    trainer: Any
    method: Any
    pool: Any = None
    cell: int = 0


@dataclass(frozen=True, eq=False)
class PoolParts:
    """The parts of a run's worker processes.

    Attributes:
        open_setup: Makes the setup of one method under one seed by its number; called inside the workers.
        workers: Number of workers; None for one on each core.
        model_bytes: Size of a model.
        note: Called with a line to show.
    """

    open_setup: Any
    workers: int | None
    model_bytes: int
    note: Callable[[str], None] = lambda text: None


@dataclass(frozen=True, eq=False)
class ExecutorKind:
    """A kind of executor: what a run must know before it makes one.

    Attributes:
        name: Its name in `runtime.executor`.
        about: Description in one line.
        make: Makes one from `CellParts`; its other parameters are the settings in `runtime.executor_options`.
        start: Starts the run's worker processes from `PoolParts`, if there are any; it then has the settings.
        together: True if several clients train at once in one process.
        cpu_only: True if it cannot use another device.
        apart: True if its processes share no memory with the main one, so that each holds libraries and data.
        handover_s: Seconds that a job costs the main process, without copies.
        window: `Executor.window` before there is an executor: from bytes of a model, workers, and type of device.
    """

    name: str
    about: str
    make: Callable[..., Executor]
    start: Callable[..., Any] | None = None
    together: bool = False
    cpu_only: bool = False
    apart: bool = False
    handover_s: float = 3e-4  # of workers: measured at 0.2 to 0.4 ms
    window: Callable[[int, int, str], int] = lambda model_bytes, workers, device: 1

    @property
    def processes(self) -> bool:
        """True if clients train in worker processes."""
        return self.start is not None


AUTO = "auto"
"""The name that leaves the choice to a rule of device, network and data."""

EXECUTORS = Registry(
    "executor",
    "unskew.executors",
    {
        "sequential": "unskew.local.sequential:SEQUENTIAL",
        "workers": "unskew.local.workers.executor:WORKERS",
        "stacked": "unskew.local.stacked.executor:STACKED",
        "ray": "unskew.local.ray:RAY",
    },
    "an ExecutorKind",
    lambda target: isinstance(target, ExecutorKind),
)


def by_rule(device: str, cores: int, parameters: int, examples_per_client: float) -> str:
    """The executor for `auto`: stacked on CUDA; on a CPU workers, if clients have enough work for several cores.

    It is a rule, not a timing, so the same run makes the same choice.
    """
    if device == "cuda":
        return "stacked"
    large = parameters * examples_per_client >= WORKERS_FROM
    return "workers" if cores > 1 and large else "sequential"


class Trainer(Protocol):
    """Answers the requests of one step, as `LocalTrainer` does."""

    def answer(self, me: Me, index: int, request: object) -> Any:
        """Answer a request; `index` counts the step's requests of this kind."""
        ...


def room_for(model_bytes: int, least: int = 1, device: str = "cpu") -> int:
    """How many models fit into memory at once, at least `least`."""
    return max(least, ROOM[device] // max(model_bytes, 1))


def untrained(job: Sgd, round: int, steps: int = 1) -> Fitted:
    """The result of an optimisation whose `steps` steps changed nothing."""
    return Fitted(job.start, steps, job.config.lr_at(round), 0.0)


def answer_untrained(request: object, round: int) -> Fitted:
    """Answer a step's request without data: training changes nothing.

    Raises:
        ProtocolError: If the step asks for anything but local training.
    """
    if not isinstance(request, Sgd):
        raise ProtocolError(
            f"without data a client can train and nothing else, its step asked for {type(request).__name__}; "
            "run the method on data"
        )
    return untrained(request, round)
