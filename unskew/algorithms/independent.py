"""Independent: every client trains on alone.  What federation has to beat.

Notation   y_k  client k's own model, in its memory; the common initial model at first
Round      y_k <- LocalSGD(y_k; F_k) for every client, whatever the cohort size
Wire       Nothing travels; an empty message has no bytes.
Departures The optimiser is fresh in every round, as in every other method here, so that a round is the same amount
           and kind of local work.  Training alone needs no network, but a client that a lossy world leaves unreachable
           for a round does rest in it.
"""

from dataclasses import dataclass

from unskew.protocol import ClientId, Federation, Me, Plan, SgdConfig, Step, ask, sgd, step
from unskew.tree import Params


@dataclass(frozen=True)
class Nothing:
    """No content: the state, the message and the reply of clients that do not cooperate."""


@dataclass(frozen=True)
class Independent:
    """Local training only.

    Attributes:
        local: The clients' optimisation; per round as much as a participant of any other method does.
    """

    local: SgdConfig = SgdConfig()

    def init(self, params: Params, fed: Federation) -> Nothing:
        """The server has no model."""
        return Nothing()

    def round(self, state: Nothing, fed: Federation) -> Plan[Nothing]:
        """Let every client train."""
        yield from ask(self.train, {c: state for c in fed.clients}, at_least=0)
        return state

    @step
    def train(self, me: Me, msg: Nothing, mine: Params | None) -> Step[tuple[Nothing, Params | None]]:
        """Go on from this client's own model."""
        return msg, (yield from sgd(mine or me.initial, self.local))

    def personalise(self, me: Me, params: Params | None, mine: Params | None) -> Step[Params]:
        """This client's own model."""
        yield from ()
        return mine or me.initial

    def serve(self, state: Nothing, client: ClientId | None) -> Params | None:
        """None: no model leaves a client."""
        return None
