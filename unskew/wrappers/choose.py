"""Cohorts chosen by your own function, instead of a uniform draw.

Departures Methods that ask more clients than a cohort, as for everybody's histogram, do so as before.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from unskew.errors import ConfigError, ProtocolError
from unskew.protocol import ClientId, Federation, hook
from unskew.wrappers.base import Wrapper


@dataclass(frozen=True)
class ChooseClients(Wrapper):
    """A function chooses each round's clients.

    `ChooseClients(lambda fed: fed.sample(weights=speeds))` draws the usual number of clients by `speeds`.
    `ChooseClients(lambda fed: [c for c in fed.clients if c % 24 == fed.round % 24])` lets each hour's clients train.

    Attributes:
        choose: Returns the round's clients from the server's view of the federation; draw from its `key`.
    """

    adds_nothing: ClassVar[bool] = True

    choose: Callable[[Federation], Collection[ClientId]]

    def check(self, method: Any) -> None:
        """Refuse a method whose noise is accounted for uniform cohorts.

        Raises:
            ConfigError: If so.
        """
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
