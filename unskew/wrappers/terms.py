"""Loss terms of one's own for any method whose clients train by `Sgd`.

Departures A method's own look at the loss knows nothing of the terms: SCAFFOLD's gradient under option I and the second
           derivative in Per-FedAvg are those of the task's loss.
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

    They are called as FedAvg's are: `aux` has what the method gives its own terms.  Unless the method gives one, its
    `anchor` is the model from which the step's first training starts: in most methods the one received.

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
            ProtocolError: If it has none, and runs code of its own, whose loss no term can join.
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
                f"AddTerms adds to the loss of local trainings by Sgd, and step {name!r} of {name_of(method)} has code "
                "of its own instead; leave AddTerms out"
            )
        return answer
