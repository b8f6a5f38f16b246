"""Your own loss terms for any method whose clients train by `Sgd`.

Departures Where a method itself reads the loss, the terms are absent: SCAFFOLD's gradient under option I and
           Per-FedAvg's second derivative are of the task's loss.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from unskew.errors import ProtocolError
from unskew.protocol import SERVER_ID, Me, Run, Sgd, Step, Term, refuse_terms
from unskew.tree import Params
from unskew.wrappers.base import Wrapper, name_of, through


@dataclass(frozen=True)
class AddTerms(Wrapper):
    """Terms in the loss of every local training.

    They are called as FedAvg's are, with the method's `aux`.  Without an `anchor` of the method's, it is the model
    where the step's first training starts: in most methods the one received.

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
