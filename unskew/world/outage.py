"""Losses of messages and replies."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Interval

from unskew.keys import Key

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
        """Fate of one request to one client; None is a reply in time.

        Args:
            key: Address of the draw.
            step: The client's step; it makes no difference here.
            asked: How often it was asked for that before in the round; no difference either.
        """
        if self.unreachable == 0.0 and self.late == 0.0:
            return None
        u = torch.rand(2, generator=key.generator()).tolist()
        return "unreachable" if u[0] < self.unreachable else "late" if u[1] < self.late else None
