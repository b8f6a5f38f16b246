"""The in-process clients of a run: their data, memory and held values are in this process.

As over a network, a message reaches one client and a reply comes back, and a held value moves with a message.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from types import GeneratorType
from typing import Any, TypeVar

from torch import Tensor

from unskew import wire
from unskew.errors import ProtocolError, WireError
from unskew.keys import Key
from unskew.local.executor import FIRST, WATCHED, Executor, StepJob, StepResult, Stored, Trainer
from unskew.protocol import ClientId, Held, Keep, Layout, Me, Method, held_in, map_held, map_keep, steps_of
from unskew.runtime.memory import Memory
from unskew.runtime.round import (
    Answer,
    Clients,
    ClientsInRound,
    Driver,
    Exchange,
    HeldValue,
    ServerModel,
    Size,
    size_of,
)
from unskew.runtime.validation import Validator, sizes_of, taken_apart
from unskew.runtime.values import check_type
from unskew.tree import Params, moved
from unskew.units import Bytes

S = TypeVar("S")


@dataclass(frozen=True, eq=False)
class Population:
    """The clients of a run as the runtime knows them.

    Attributes:
        histograms: Training examples by client and class, (clients, classes) int64.
        layout: Names of the model's tensors.
        initial: Initial model, which every client can build by itself.
        initialise: Makes a fresh model from a key.
        server_trainer: Does the server's own local training; None if it does none.
        networks: Layout and initial model of clients whose network is another one.
    """

    histograms: Tensor
    layout: Layout
    initial: Params
    initialise: Callable[[Key], Params]
    server_trainer: Trainer | None = None
    networks: Mapping[ClientId, tuple[Layout, Params]] = field(default_factory=dict)

    @cached_property
    def clients(self) -> tuple[ClientId, ...]:
        """All clients, ascending."""
        return tuple(range(len(self.histograms)))

    @property
    def model(self) -> ServerModel:
        """The server's view of task and model."""
        classes = self.histograms.shape[1]
        return ServerModel(classes, self.layout, self.initial, self.initialise, self.server_trainer)

    @cached_property
    def _examples(self) -> list[int]:
        counts: list[int] = self.histograms.sum(1).tolist()
        return counts

    def me(self, client: ClientId, round: int, key: Key, step: str = "") -> Me:
        """The client's view of itself when it runs a step.

        Steps of one round may share a key for batches; noise on what they send is drawn for each step.
        """
        lasting = Key(key.seed) / "client" / client / "lasting"
        n, histogram = self._examples[client], self.histograms[client]
        layout, initial = self.networks.get(client, (self.layout, self.initial))
        return Me(client, n, histogram, round, key, layout, initial, key / "private" / step, lasting)


class InProcessClients(Clients):
    """Clients in this process.

    Args:
        method: Method whose steps they run.
        population: The sizes of their data, and the model.
        executor: Does their local work.
        key: Root of all randomness.
        codec: Encode, decode and check every message, as a network would.

    Raises:
        ProtocolError: If a step's annotations do not say what it receives, returns and keeps.
    """

    remote = False
    rounds_begun = 0

    def __init__(
        self, method: Method[Any], population: Population, executor: Executor, key: Key, codec: bool = False
    ) -> None:
        self.population, self.executor, self.key, self.codec = population, executor, key, codec
        self.ids = population.clients
        self.memory, self.memory_type = Memory(), wire.memory_type(method)
        self.steps, self.signatures = steps_of(method), wire.signatures(method)
        self.held_type = wire.held_type(method)
        self.model_bytes = sum(t.numel() * t.element_size() for t in population.initial.values())
        model = population.model
        sizes = sizes_of(model.num_classes, model.layout, model.initial)
        self.messages = Validator(model.initial, 0, sizes=sizes)
        self.replies = Validator(model.initial, 0, least=0, sizes=sizes)

    def through_bytes(self, message: Any, of: Any, validator: Validator, what: str) -> Any:
        """Encode and decode a message of type `of`; its tensors arrive on the models' device.

        Raises:
            ProtocolError: If another machine would refuse it.
        """
        like = next(iter(self.population.initial.values()))
        value = wire.decode(wire.encode(message), of)
        self.permit(value, of, validator, what)
        return moved(value, like.device)

    def permit(self, value: Any, of: Any, validator: Validator, what: str) -> None:
        """Refuse what another machine would refuse."""
        try:
            validator.check(value, of)
        except WireError as error:
            raise ProtocolError(f"a deployment would refuse {what}: {error}") from None

    def begin(self, t: int) -> "_InProcessRound":
        """Open round `t`."""
        return _InProcessRound(self, t)

    def own_models(
        self, served: Mapping[ClientId, Params | None], personalise: Callable[..., Any] | None, t: int
    ) -> dict[ClientId, Params]:
        """The models the clients would use: those they are served, adapted by `personalise`."""
        own: Mapping[ClientId, Params | None] = served
        if personalise is not None:
            jobs = {
                c: self.personal_job(personalise, c, model, t, watched=i < WATCHED)
                for i, (c, model) in enumerate(served.items())
            }
            alone = {c: without_local_work(job) for c, job in jobs.items()}
            results = dict(self.executor.complete({c: jobs[c] for c, (ended, _) in alone.items() if not ended}))
            own = {c: results[c].value if c in results else alone[c][1] for c in served}
        return {c: model for c, model in own.items() if model is not None}

    def personal_job(
        self, personalise: Callable[..., Any], client: ClientId, model: Params | None, t: int, watched: bool
    ) -> StepJob:
        """The job that adapts one client's model."""
        key = self.key / "round" / t / "client" / client / "personalise"
        me = self.population.me(client, t, key, "personalise")
        return StepJob("personalise", personalise, me, model, self.memory.get(client), watched=watched and t <= FIRST)


class _InProcessRound(ClientsInRound):
    """The clients during one round, with the values they hold."""

    def __init__(self, clients: InProcessClients, t: int) -> None:
        self.clients, self.t = clients, t
        self.held: dict[Held, HeldValue] = {}

    def run(self, exchange: Exchange) -> Iterator[tuple[ClientId, Answer]]:
        """Run the step on every client; of replies that are folded no more than an executor's window are alive."""
        delivered = {
            i: self.deliver(exchange.step, m) for i, m in {id(m): m for m in exchange.messages.values()}.items()
        }
        stored = {i: self.stored(m) for i, m in {id(m): m for m in exchange.messages.values()}.items()}
        jobs = {
            c: self.job(exchange, c, delivered[id(m)], stored[id(m)], watched=i < WATCHED)
            for i, (c, m) in enumerate(exchange.messages.items())
        }
        looked_at = next(iter(jobs), None) if self.t <= FIRST else None
        executor = self.clients.executor
        together = executor.window(self.clients.model_bytes) if exchange.folds else max(len(jobs), 1)
        for first in range(0, len(jobs), together):
            order = deque(islice(jobs, first, first + together))
            waiting: dict[ClientId, Answer] = {}
            for c, result in executor.complete({c: jobs[c] for c in order}):
                waiting[c] = self.receive(exchange, jobs[c].me, result)
                if c == looked_at:
                    self.check_types(exchange.step, exchange.messages[c], waiting[c])
                del result
                while order and order[0] in waiting:
                    yield order[0], waiting.pop(order.popleft())

    def deliver(self, step: str, message: Any) -> Any:
        """The message as a client sees it, with held values in place of their references.

        The references of values that lie with the executor stay: it puts the values in their place.
        """
        if self.clients.codec:
            of, what = self.clients.signatures[step].message, f"the message to step {step!r}"
            message = self.clients.through_bytes(message, of, self.clients.messages, what)

        def value(held: Held) -> Any:
            kept = self.value(held).value
            return held if isinstance(kept, Stored) else kept

        return map_held(value, message)

    def stored(self, message: Any) -> dict[Held, Stored]:
        """The values that a message refers to and that lie with the executor."""
        values = {h: self.value(h).value for h in held_in(message)}
        return {h: value for h, value in values.items() if isinstance(value, Stored)}

    def job(
        self, exchange: Exchange, client: ClientId, message: Any, stored: Mapping[Held, Stored], watched: bool
    ) -> StepJob:
        """Prepare the client's step."""
        clients = self.clients
        # The step's name is not part of the address: methods that name their step differently still draw alike.
        key = clients.key / "round" / self.t / "client" / client / exchange.index
        me = clients.population.me(client, self.t, key, exchange.step)
        memory = clients.memory.get(client)
        watched = watched and self.t <= FIRST
        return StepJob(exchange.step, clients.steps[exchange.step], me, message, memory, stored, watched)

    def receive(self, exchange: Exchange, me: Me, result: StepResult) -> Answer:
        """Take a step's result apart: kept values stay on the client, the bytes of the rest are counted."""
        reply, memory = taken_apart(exchange.step, result.value, me.n)

        def keep(kept: Keep, path: str) -> Held:
            held = Held(me.id, f"{exchange.hop}{path}")
            value, clients = kept.value, self.clients
            if clients.codec and not isinstance(value, Stored):
                clients.permit(
                    value, clients.held_type, clients.replies, f"what step {exchange.step!r} keeps at {path}"
                )
            size = Size(Bytes(value.nbytes), value.kind) if isinstance(value, Stored) else size_of(value)
            self.held[held] = HeldValue(value, size)
            return held

        reply = map_keep(keep, reply)
        size = size_of(reply)
        if self.clients.codec:
            of, what = self.clients.signatures[exchange.step].reply, f"the reply of step {exchange.step!r}"
            reply = self.clients.through_bytes(reply, of, self.clients.replies, what)
        return Answer(reply, size, memory, me.n, result.examples, result.losses)

    def check_types(self, step: str, message: Any, answer: Answer) -> None:
        """Refuse what is not of the step's annotated types.

        Raises:
            ProtocolError: If so.
        """
        types = self.clients.signatures[step]
        check_type(message, types.message, f"the message to step {step!r}")
        check_type(answer.reply, types.reply, f"the reply of step {step!r}")
        check_type(answer.memory, self.clients.memory_type, f"the memory that step {step!r} returns")

    def fetch(self, held: Sequence[Held], hop: int, timeout_s: float | None) -> Mapping[Held, HeldValue]:
        """Look up held values.

        Raises:
            ProtocolError: If one is not held.
        """
        return {h: self.value(h) for h in held}

    def value(self, held: Held) -> HeldValue:
        if held not in self.held:
            raise ProtocolError(
                f"round {self.t}: client {held.owner} holds no value {held.key!r}; held values live for one round, "
                "what must outlive it belongs in the client's memory"
            )
        return self.held[held]


class Simulator(Driver[S]):
    """Runs one method on clients in this process.

    Args:
        method, population, executor: The method, its clients, and the executor of their local work.
        seed: Root of all randomness.
        codec: Encode and decode every message, as a network would.
        options: `clients_per_round`, `outage` and `channel`, as in `Driver`.

    Raises:
        ProtocolError, ConfigError: As `Driver`.
    """

    clients: InProcessClients

    def __init__(
        self,
        method: Method[S],
        population: Population,
        executor: Executor,
        *,
        seed: int = 0,
        codec: bool = False,
        **options: Any,
    ) -> None:
        clients = InProcessClients(method, population, executor, Key(seed), codec)
        super().__init__(method, population.model, clients, seed=seed, **options)
        self.population = population


def without_local_work(work: StepJob) -> tuple[bool, Any]:
    """(True, result) of a step without local work, as most personal models are put together and not trained."""
    step = work.start()
    if not isinstance(step, GeneratorType):
        return True, step
    try:
        next(step)
    except StopIteration as stop:
        return True, stop.value
    step.close()
    return False, None
