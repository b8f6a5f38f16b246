"""Cohorts chosen by a function of one's own, instead of a uniform draw.

Departures Methods that ask more than a cohort, as for everybody's histogram, ask those as before.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from unskew.errors import ConfigError, ProtocolError
from unskew.protocol import ClientId, Federation, hook
from unskew.wrappers.base import Wrapper


@dataclass(frozen=True)
class ChooseClients(Wrapper):
    """A function chooses the clients of each round.

    `ChooseClients(lambda fed: fed.sample(weights=speeds))` draws the usual number of clients by `speeds`.
    `ChooseClients(lambda fed: [c for c in fed.clients if c % 24 == fed.round % 24])` lets each hour's clients train.

    Attributes:
        choose: The round's clients, from the server's view of the federation; random draws come from its `key`.
    """

    adds_nothing: ClassVar[bool] = True

    choose: Callable[[Federation], Collection[ClientId]]

    def check(self, method: Any) -> None:
        """Refuse a method whose noise is accounted for cohorts that are drawn evenly.

        Raises:
            ConfigError: If so.
        """
        self.check_around(method, method)

    def check_around(self, method: Any, whole: Any) -> None:
        """Refuse such noise around it.

        Raises:
            ConfigError: If there is any.
        """
        if hook(whole, "has_dp_noise"):
            raise ConfigError("differential privacy is accounted for cohorts drawn evenly; leave ChooseClients out")

    def server(self, method: Any, fed: Federation) -> Federation:
        """Return the view of the federation whose `sample` gives the chosen clients."""
        return replace(fed, choose=lambda now: self._chosen(replace(now, choose=fed.choose)))

    def _chosen(self, fed: Federation) -> Collection[ClientId]:
        chosen = frozenset(self.choose(fed))
        if not chosen or not chosen <= frozenset(fed.clients):
            raise ProtocolError(f"choose must return some of {len(fed.clients)} clients, got {sorted(chosen)}")
        return chosen
