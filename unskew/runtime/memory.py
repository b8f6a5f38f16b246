"""Client memory between rounds, kept by round.

The last two rounds stay, for a server that resumes.  Writes of a round are staged: later asks of the round see them at
once, the next round only after a commit.  A failed round leaves no trace.
"""

from typing import Any

from unskew.errors import ProtocolError
from unskew.protocol import ClientId


class Memory:
    """Client memory of one run."""

    def __init__(self, round: int = 0, values: dict[ClientId, Any] | None = None) -> None:
        self._rounds: dict[int, dict[ClientId, Any]] = {round: dict(values or {})}
        self._staged: dict[ClientId, Any] = {}

    @property
    def round(self) -> int:
        """The last committed round."""
        return max(self._rounds)

    def get(self, client: ClientId) -> Any:
        """The client's present memory; None if it has none."""
        if client in self._staged:
            return self._staged[client]
        return self._rounds[self.round].get(client)

    def stage(self, client: ClientId, value: Any) -> None:
        """Remember `value` once the round is committed."""
        self._staged[client] = value

    def commit(self, round: int) -> None:
        """End a round: staged values are kept, and the round before the last is forgotten.

        Raises:
            ProtocolError: If the round is not later than the last.
        """
        if round <= self.round:
            raise ProtocolError(
                f"round {round} cannot follow round {self.round}; to go back, make a memory of that round's values"
            )
        now = {**self._rounds[self.round], **self._staged}
        self._rounds = {self.round: self._rounds[self.round], round: {c: v for c, v in now.items() if v is not None}}
        self._staged = {}

    def discard(self) -> None:
        """Forget what a failed round staged."""
        self._staged = {}

    def at(self, round: int) -> dict[ClientId, Any]:
        """All memory at the end of `round`, one of the last two.

        Raises:
            KeyError: If that round is no longer kept.
        """
        return self._rounds[round]
