"""Independent: every client trains by itself.  The baseline that federation has to beat.

Notation   y_k  client k's own model, in its memory; the common initial model at first
Round      y_k <- LocalSGD(y_k; F_k) for every client, whatever the cohort size
Wire       Nothing travels; an empty message has no bytes.
Departures The optimiser is fresh in every round, as in every other method here, so that a round is the same amount
           and kind of local work.  Local training needs no network, but a client that a lossy world makes unreachable
           for a round does not train in it.
"""

from dataclasses import dataclass

from unskew.algorithms.parts import OwnNetworks
from unskew.protocol import Federation, Me, Plan, SgdConfig, Step, ask, sgd, step
from unskew.tree import Params


@dataclass(frozen=True)
class Nothing:
    """Empty record: the state, the message and the reply of clients that do not cooperate."""


class NoServer:
    """The part of a method whose server has nothing to remember."""

    def init(self, params: Params, fed: Federation) -> Nothing:
        """Return the empty state."""
        return Nothing()


@dataclass(frozen=True)
class Independent(NoServer, OwnNetworks):
    """Local training only.

    Attributes:
        local: The clients' optimisation; per round the same amount as a participant in any other method.
    """

    local: SgdConfig = SgdConfig()

    def round(self, state: Nothing, fed: Federation) -> Plan[Nothing]:
        """Train every client."""
        yield from ask(self.train, {c: state for c in fed.clients}, at_least=0)
        return state

    @step
    def train(self, me: Me, msg: Nothing, memory: Params | None) -> Step[tuple[Nothing, Params | None]]:
        """Continue training this client's own model."""
        return msg, (yield from sgd(memory or me.initial, self.local))
