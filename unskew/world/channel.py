"""Channels between nodes, which a plan may probe."""

import inspect
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

import torch
from annotated_types import Gt
from torch import Tensor

from unskew.errors import ProtocolError
from unskew.keys import Key
from unskew.registry import Registry
from unskew.tree import form_of


class Channel(Protocol):
    """A pure function of its arguments, so any recorded run can be priced again under another channel.

    A channel is a frozen dataclass whose fields are settings; it is registered by its field `name`.
    """

    def spectral_efficiency(self, key: Key, round: int, hop: int, nodes: int) -> Tensor:
        """Expected bit/s/Hz from each node to each, (nodes, nodes); node 0 is the base station.

        `key` is the run's; the channel decides what is redrawn each run, round or hop.
        """
        ...


@dataclass(frozen=True)
class Even:
    """The same efficiency on every link: the channel when no radio is modelled."""

    gamma: Annotated[float, Gt(0.0)] = 1.0
    name: Literal["even"] = "even"

    def spectral_efficiency(self, key: Key, round: int, hop: int, nodes: int) -> Tensor:
        """`gamma` between any two nodes."""
        return torch.full((nodes, nodes), self.gamma)


def efficiency(channel: Channel, key: Key, round: int, hop: int, nodes: int) -> Tensor:
    """The channel's spectral efficiency [src, dst], bit/s/Hz, (nodes, nodes), as a method sees it.

    Raises:
        ProtocolError: If the channel gives another shape, or numbers that are negative or not finite.
    """
    given = channel.spectral_efficiency(key, round, hop, nodes)
    with suppress(TypeError, ValueError, RuntimeError):  # of what has no order, or is no array
        gamma = torch.as_tensor(given)
        if gamma.shape == (nodes, nodes) and bool((gamma.isfinite() & (gamma >= 0)).all()):
            return gamma
    got = form_of(given) if isinstance(given, Tensor) else type(given).__name__
    raise ProtocolError(
        f"round {round}, hop {hop}: the channel {getattr(channel, 'name', type(channel).__name__)!r} must give numbers "
        f">= 0, (nodes, nodes) = {(nodes, nodes)}, got {got}; correct its spectral_efficiency"
    )


CHANNELS = Registry(
    "channel",
    "unskew.channels",
    {"even": "unskew.world.channel:Even", "radio": "unskew.world.wireless:Radio"},
    "a frozen dataclass with a field name and a method spectral_efficiency(key, round, hop, nodes)",
    lambda kind: inspect.isclass(kind) and callable(getattr(kind, "spectral_efficiency", None)),
)
