"""Optimisers that go on: a client keeps its momentum and moments between rounds.

Notation   o_k  state of client k's optimiser after its last training, such as SGD's velocity or Adam's moments
Client     o_k, w_k <- LocalSGD(w; F_k, o_k):  it begins with the o_k that it remembers, fresh in its first round
Departures None of it is sent or averaged: S. P. Reddi et al., "Adaptive Federated Optimization", ICLR 2021, start
           fresh.  A client's steps then lean towards the model of a past round.
           Each of several trainings in a step keeps its own; other `trainable` tensors start fresh.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

from unskew.protocol import SERVER_ID, Fitted, Me, Sgd, Step
from unskew.tree import Params
from unskew.wrappers.base import Wrapper, through

M = TypeVar("M")


@dataclass(frozen=True)
class KeptStates(Generic[M]):
    """A client's memory: the method's, and optimiser states by step, place in it and trained tensors."""

    of: M
    states: dict[str, Params]


@dataclass(frozen=True)
class KeepOptimizer(Wrapper):
    """Local training continues from the client's optimiser state at the end of its last round."""

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

    def remember(self, memory: KeptStates[Any] | None, kept: Any) -> KeptStates[Any]:
        """Return the memory after a step that trains nothing."""
        return KeptStates(kept, {} if memory is None else memory.states)
