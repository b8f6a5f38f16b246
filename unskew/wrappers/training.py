"""Who trains, with which terms in the loss, and from which state of the optimiser: by your own function or value."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar

from unskew.errors import ConfigError, ProtocolError
from unskew.protocol import SERVER_ID, ClientId, Federation, Fitted, Me, Run, Sgd, Step, Term, hook, refuse_terms
from unskew.tree import Params
from unskew.wrappers.base import Wrapper, name_of, through

M = TypeVar("M")


@dataclass(frozen=True)
class ChooseClients(Wrapper):
    """A function chooses each round's clients, instead of a uniform draw.

    Methods that ask more clients than a cohort, as for everybody's histogram, do so as before.

    `ChooseClients(lambda fed: fed.sample(weights=speeds))` draws the usual number of clients by `speeds`.
    `ChooseClients(lambda fed: [c for c in fed.clients if c % 24 == fed.round % 24])` lets each hour's clients train.

    Attributes:
        choose: Returns the round's clients from the server's view of the federation; draw from its `key`.
    """

    adds_nothing: ClassVar[bool] = True

    choose: Callable[[Federation], Collection[ClientId]]

    def check(self, method: Any) -> None:
        """Refuse a method whose noise is accounted for uniform cohorts."""
        self.check_around(method, method)

    def check_around(self, method: Any, whole: Any) -> None:
        """Refuse such noise around this wrapper.

        Raises:
            ConfigError: If there is any.
        """
        if hook(whole, "has_dp_noise"):
            raise ConfigError("differential privacy is accounted for uniform cohorts; leave ChooseClients out")

    def server(self, method: Any, fed: Federation) -> Federation:
        """Return a view of the federation whose `sample` gives the chosen clients."""
        return replace(fed, choose=lambda now: self._chosen(replace(now, choose=fed.choose)))

    def _chosen(self, fed: Federation) -> Collection[ClientId]:
        chosen = frozenset(self.choose(fed))
        if not chosen or not chosen <= frozenset(fed.clients):
            raise ProtocolError(f"choose must return some of {len(fed.clients)} clients, got {sorted(chosen)}")
        return chosen


@dataclass(frozen=True)
class AddTerms(Wrapper):
    """Your own terms in the loss of every local training, for any method whose clients train by `Sgd`.

    Where a method itself reads the loss, they are absent: SCAFFOLD's gradient under option I and Per-FedAvg's second
    derivative are of the task's loss.  They are called as FedAvg's are, with the method's `aux`.  Without an `anchor`
    of the method's, it is the model where the step's first training starts: in most methods the one received.

    Attributes:
        terms: The terms.

    Raises:
        ConfigError: If `terms` is no tuple of terms.
    """

    adds_nothing: ClassVar[bool] = True

    terms: tuple[Term, ...] = ()

    def __post_init__(self) -> None:
        refuse_terms("AddTerms", self.terms)

    def work(
        self, method: Any, name: str, begin: Callable[..., Any], me: Me, msg: Any, memory: Any
    ) -> Step[tuple[Any, Any]]:
        """Run the method's step with the terms in each of its optimisations.

        Raises:
            ProtocolError: If it has none and runs its own code, whose loss no term can join.
        """
        kinds: set[type] = set()
        first: list[Params] = []

        def change_request(request: Any) -> Any:
            kinds.add(type(request))
            if not isinstance(request, Sgd) or me.id == SERVER_ID:
                return request
            first.append(request.start)
            aux = {"anchor": first[0], **request.aux}
            return replace(request, terms=(*request.terms, *self.terms), aux=aux)

        answer: tuple[Any, Any] = yield from through(begin(me, msg, memory), change_request, lambda request, got: got)
        if Run in kinds and Sgd not in kinds:
            raise ProtocolError(
                f"AddTerms adds to the loss of local training by Sgd, and step {name!r} of {name_of(method)} runs its "
                "own code; leave AddTerms out"
            )
        return answer


@dataclass(frozen=True)
class KeptStates(Generic[M]):
    """A client's memory: the method's, and optimiser states by step, place in it and trained tensors."""

    of: M
    states: dict[str, Params] = field(default_factory=dict)


@dataclass(frozen=True)
class KeepOptimizer(Wrapper):
    """Local training continues from the client's optimiser state at the end of its last round.

    The state is SGD's velocity or Adam's moments, fresh in a client's first round:  o_k, w_k <- LocalSGD(w; F_k, o_k).
    None of it is sent or averaged: S. P. Reddi et al., "Adaptive Federated Optimization", ICLR 2021, start fresh.  A
    client's steps then lean towards the model of a past round.  Each of several trainings in a step keeps its own;
    other `trainable` tensors start fresh.
    """

    adds_nothing: ClassVar[bool] = True
    one_by_one: ClassVar[bool] = True
    Memory: ClassVar[Any] = KeptStates

    def work(
        self, method: Any, name: str, begin: Callable[..., Any], me: Me, msg: Any, memory: KeptStates[Any] | None
    ) -> Step[tuple[Any, Any]]:
        """Run the method's step, each of its optimisations from its state in the last round."""
        states, places = {} if memory is None else dict(memory.states), list[str]()

        def change_request(request: Any) -> Any:
            if not isinstance(request, Sgd) or me.id == SERVER_ID:
                return request
            places.append(f"{name} {len(places)} {' '.join(request.config.trainable)}")
            return replace(request, state=states.get(places[-1], {}))

        def change_answer(request: Any, got: Any) -> Any:
            if isinstance(got, Fitted) and got.state is not None:
                states[places[-1]] = got.state
            return got

        own = None if memory is None else memory.of
        reply, kept = yield from through(begin(me, msg, own), change_request, change_answer)
        return reply, KeptStates(kept, states)
