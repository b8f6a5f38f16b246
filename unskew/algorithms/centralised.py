"""Centralised: one client holds all clients' data.  A bound, not a federated method.

Round      w <- LocalSGD(w; F), F the mean loss over all clients' training data
Wire       Nothing is charged: the run pools the data beforehand (`pooled`), which is what federation avoids.
Departures The optimiser is fresh in every round.  With `local_epochs` a round passes over the pooled data as often as
           a cohort of all clients would; with `local_steps` it takes as many steps as a single participant.
"""

from dataclasses import dataclass
from typing import ClassVar

from unskew.algorithms.fedavg import ModelMessage
from unskew.algorithms.parts import OneModel
from unskew.errors import ConfigError
from unskew.protocol import Federation, Me, Plan, SgdConfig, Step, ask, sgd, step
from unskew.tree import Params
from unskew.words import counted


@dataclass(frozen=True)
class Centralised(OneModel):
    """SGD on pooled data.

    Attributes:
        pooled: Tells the run to pool all clients' data into one client, and to charge nothing.
        local: The optimisation of one round.
    """

    pooled: ClassVar[bool] = True

    local: SgdConfig = SgdConfig()

    def init(self, params: Params, fed: Federation) -> ModelMessage:
        """Return the initial model.

        Raises:
            ConfigError: If the data is not pooled: an average over clients would pass for a bound.
        """
        if len(fed.clients) != 1:
            raise ConfigError(
                f"centralised training needs one client with all the data, got {counted(len(fed.clients), 'client')}; "
                "pool them, or use fedavg"
            )
        return ModelMessage(params)

    def round(self, state: ModelMessage, fed: Federation) -> Plan[ModelMessage]:
        """Train for one more round."""
        replies = yield from ask(self.train, {c: state for c in fed.clients})
        return replies[fed.clients[0]]

    @step
    def train(self, me: Me, msg: ModelMessage, memory: None) -> Step[tuple[ModelMessage, None]]:
        """Run SGD from where the last round ended."""
        return ModelMessage((yield from sgd(msg.params, self.local))), None
