"""Channels between nodes, which a plan may probe."""

import inspect
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

import torch
from annotated_types import Gt
from torch import Tensor

from unskew.errors import ProtocolError
from unskew.keys import Key
from unskew.registry import Registry


class Channel(Protocol):
    """A pure function of its arguments, so that any recorded run can be priced again under another channel.

    A channel is a frozen dataclass whose fields are settings, among them `name`, the name it is registered by.
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
    """The channel's spectral efficiency [src, dst], bit/s/Hz, (nodes, nodes), which a method reckons with.

    Raises:
        ProtocolError: If the channel gives another shape, or anything but finite numbers >= 0.
    """
    given = channel.spectral_efficiency(key, round, hop, nodes)
    try:
        gamma = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):
        gamma = None
    if gamma is None or gamma.is_complex():
        wrong = type(given).__name__ if gamma is None else "complex numbers"
    elif gamma.shape != (nodes, nodes):
        wrong = f"shape {tuple(gamma.shape)}"
    elif len(bad := torch.nonzero(~(gamma.isfinite() & (gamma >= 0)))):
        src, dst = bad[0].tolist()
        wrong = f"{gamma[src, dst].item():g} from node {src} to node {dst}"
    else:
        return gamma
    raise ProtocolError(
        f"round {round}, hop {hop}: the channel {getattr(channel, 'name', type(channel).__name__)!r} must give the "
        f"spectral efficiency of every link, finite and >= 0, in shape {(nodes, nodes)}, got {wrong}; correct its "
        "spectral_efficiency"
    )


def _is_channel(kind: Any) -> bool:
    has_name = "name" in getattr(kind, "__dataclass_fields__", {})
    return inspect.isclass(kind) and has_name and callable(getattr(kind, "spectral_efficiency", None))


CHANNELS = Registry(
    "channel",
    "unskew.channels",
    {"even": "unskew.world.channel:Even", "radio": "unskew.world.wireless:Radio"},
    "a frozen dataclass with a field name and a method spectral_efficiency(key, round, hop, nodes)",
    _is_channel,
)
