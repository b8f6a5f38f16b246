import pytest

from unskew.errors import ProtocolError
from unskew.runtime.memory import Memory


@pytest.mark.parametrize("round", [2, 3])
def test_a_round_that_is_over_cannot_be_committed_again(round: int) -> None:
    """The newer values would hide what was written, and nobody would notice."""
    memory = Memory(3, {0: "old"})
    memory.stage(0, "new")
    with pytest.raises(ProtocolError, match=f"round {round} cannot follow round 3"):
        memory.commit(round)
