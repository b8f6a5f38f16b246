"""Losses of messages and replies, and the speeds at which clients train and send: a simulation's virtual clock.

A pace turns a client's work for one request into seconds, from which the driver of rounds makes a clock.  An exchange
ends with its slowest client, or at the deadline, after which replies are late.
"""

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple, Protocol

import torch
from annotated_types import Ge, Gt, Interval

from unskew.keys import Key
from unskew.registry import Registry

Rate = Annotated[float, Gt(0.0)]
LossReason = Literal["unreachable", "late"]


@dataclass(frozen=True)
class Outage:
    """Independent losses, drawn anew for every request and client.

    Attributes:
        unreachable: Probability that an ask never arrives: nothing is sent and the client does no work.
        late: Probability that the reply misses the deadline: the client got the message, did its work and remembers it,
            but the server never gets the reply.
    """

    unreachable: Annotated[float, Interval(ge=0.0, le=1.0)] = 0.0
    late: Annotated[float, Interval(ge=0.0, le=1.0)] = 0.0

    def fate(self, key: Key, step: str = "", asked: int = 0) -> LossReason | None:
        """Fate of one request to one client, drawn at this key; None is a reply in time.

        Neither the step nor how often it was asked before in the round makes a difference here.
        """
        if self.unreachable == 0.0 and self.late == 0.0:
            return None
        u = torch.rand(2, generator=key.generator()).tolist()
        return "unreachable" if u[0] < self.unreachable else "late" if u[1] < self.late else None


class Errand(NamedTuple):
    """A client's work for one request: `examples` trained on, and bytes `down` and `up`."""

    round: int
    hop: int
    client: int
    examples: int
    down: int
    up: int


class Pace(Protocol):
    """A pure function of its arguments: a frozen dataclass with a field `name`, and perhaps `deadline_s`."""

    def seconds(self, key: Key, errand: Errand) -> float:
        """Return the simulated seconds that an errand takes; draw from the run's `key`."""
        ...


@dataclass(frozen=True)
class Devices:
    """Devices and links of different speed:  jitter * (examples / speed + 8e-6 down / rate + 8e-6 up / rate).

    Attributes:
        examples_per_s: Training examples per second of the median device.
        down_mbit_s, up_mbit_s: Rates of the median link, Mbit/s.
        spread: Standard deviation of the logarithm of a client's speed, and of its link's rates, drawn once a run.  At
            1 a sixth of the clients are slower than the median by a factor of e.
        jitter: Standard deviation of the logarithm of an errand's time, drawn anew for each.
        clients: Fixed clients by number: their examples per second, and Mbit/s down and up.
        deadline_s: Seconds after which a reply is late, unless the plan says; None waits for the slowest client.
    """

    examples_per_s: Rate = 1000.0
    down_mbit_s: Rate = 20.0
    up_mbit_s: Rate = 5.0
    spread: Annotated[float, Ge(0.0)] = 0.0
    jitter: Annotated[float, Ge(0.0)] = 0.0
    clients: Mapping[str, tuple[Rate, Rate, Rate]] = field(default_factory=dict)
    deadline_s: Rate | None = None
    name: Literal["devices"] = "devices"

    def seconds(self, key: Key, errand: Errand) -> float:
        """Return the seconds of training, receiving and sending."""
        rates = self.clients.get(str(errand.client))
        device, link = (1.0, 1.0) if rates else _factors(key / "device" / errand.client, self.spread)
        speed, down, up = rates or (self.examples_per_s, self.down_mbit_s, self.up_mbit_s)
        spent = errand.examples / (speed * device) + 8e-6 * (errand.down / down + errand.up / up) / link
        return spent * _factors(key / "errand" / errand.round / errand.hop / errand.client, self.jitter)[0]


def _factors(key: Key, deviation: float) -> tuple[float, float]:
    """Two draws whose logarithms have this standard deviation."""
    if not deviation:
        return 1.0, 1.0
    first, second = torch.randn(2, dtype=torch.float64, generator=key.generator()).tolist()
    return math.exp(deviation * first), math.exp(deviation * second)


PACES = Registry(
    "pace",
    "unskew.paces",
    {"devices": "unskew.world.pace:Devices"},
    "a frozen dataclass with a field name and a method seconds(key, errand)",
    lambda kind: inspect.isclass(kind) and callable(getattr(kind, "seconds", None)),
)
