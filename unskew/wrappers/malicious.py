"""Malicious clients around a method: they take part but do not follow it.

A malicious client does the method's work and then sends something else (`unskew.world.attack`), which is neither
clipped nor compressed as honest uploads are.  Honest clients' replies are bit-identical to a run without an attack;
without malicious clients there is no wrapper.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from unskew.errors import ConfigError
from unskew.keys import Key
from unskew.protocol import ClientId, Federation, Me
from unskew.tree import Params
from unskew.world.attack import Attack
from unskew.wrappers.base import Wrapper, name_of, wrap
from unskew.wrappers.robust import ReplyWrapper
from unskew.wrappers.uploads import UploadWrapper


@dataclass(frozen=True)
class IndependentAttack(UploadWrapper):
    """Malicious clients that know only their own update.

    Attributes:
        attack: What they do.
        malicious: The malicious clients.
    """

    honest: ClassVar[bool] = False

    attack: Attack
    malicious: frozenset[ClientId]

    def encode(self, me: Me, updates: Params, residual: Params | None) -> tuple[Params, Params]:
        """Forge the update of a malicious client."""
        if me.id not in self.malicious:
            return updates, {}
        return self.attack.forge(updates, [updates], 1, me.key / "lie"), {}


@dataclass(frozen=True)
class ColludingAttack(ReplyWrapper):
    """Malicious clients that see all honest replies of a round, so theirs change once all have come.

    Attributes:
        attack: What they do.
        malicious: The malicious clients.
    """

    permit = Wrapper.permit  # every request

    attack: Attack
    malicious: frozenset[ClientId]

    def change(
        self, updates: Mapping[ClientId, Params], parameter_names: frozenset[str], fed: Federation
    ) -> Mapping[ClientId, Params]:
        """Replace the malicious clients' updates."""
        honest = [u for c, u in updates.items() if c not in self.malicious]
        count = len(updates) - len(honest)
        return {
            c: self.attack.forge(u, honest or [u], count, fed.key / "lie" / c) if c in self.malicious else u
            for c, u in updates.items()
        }


def with_attack(method: Any, attack: Attack, clients: int, key: Key, simulated: bool = True) -> Any:
    """Put the malicious among so many clients around a method; with none, return the method itself.

    `key` is the root of the run's randomness; `simulated` if one place sees all replies of a round.

    Raises:
        ConfigError: If this method cannot be attacked so.
    """
    malicious = attack.malicious(clients, key)
    if not malicious or not attack.uploads:
        return method
    together = attack.colludes and simulated
    if not (together or attack.alone):
        raise ConfigError(
            f"world.attack {attack.name!r} needs the replies of honest clients, which a client on a network "
            "does not see; use sign_flip, gaussian, IPM, label_flip or backdoor, or a simulation"
        )
    by = (ColludingAttack if together else IndependentAttack)(attack, malicious)
    try:
        by.check(method)
    except ConfigError:
        raise ConfigError(
            f"world.attack {attack.name!r} changes the models or updates that clients send, and {name_of(method)} "
            "sends none that it could change; use label_flip, which changes their data"
        ) from None
    return wrap(method, by)
