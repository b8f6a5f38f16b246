"""The ledger: one row for each transfer, and sums of rows.

Bytes are those of the encoded payload, as `wire.nbytes` counts them.  Node 0 is the server (the base station); client
`c` is node `c + 1`.  Seconds, hertz-seconds and joules are not recorded: they are computed from the rows and a channel
afterwards.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple

from unskew.units import Bytes

SERVER = 0

Direction = Literal["down", "up", "d2d"]
DIRECTIONS: tuple[Direction, ...] = ("down", "up", "d2d")

Kind = Literal["model", "control"]
KINDS: tuple[Kind, ...] = ("model", "control")


def node(client: int) -> int:
    """Number of a client's node in the ledger."""
    return client + 1


class Transfer(NamedTuple):
    """One message on one link.

    Attributes:
        round: Round, counted from 1.
        hop: Exchange of the round, counted from 0.
        src, dst: Nodes; 0 is the server.
        kind: "model" if it carried parameters, else "control".
        bytes: Length of the encoded payload.
    """

    round: int
    hop: int
    src: int
    dst: int
    kind: Kind
    bytes: Bytes

    @property
    def direction(self) -> Direction:
        """The transfer's direction: down from the server, up to it, or d2d from device to device."""
        return "down" if self.src == SERVER else "up" if self.dst == SERVER else "d2d"


def totals(rows: Iterable[Transfer]) -> dict[Direction, Bytes]:
    """Bytes by direction."""
    sums: dict[Direction, int] = dict.fromkeys(DIRECTIONS, 0)
    for row in rows:
        sums[row.direction] += row.bytes
    return {d: Bytes(n) for d, n in sums.items()}
