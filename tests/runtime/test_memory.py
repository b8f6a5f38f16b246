from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from unskew.errors import ProtocolError
from unskew.runtime.memory import Memory


def test_a_write_is_seen_at_once_but_not_part_of_the_round_before_it_is_committed() -> None:
    memory = Memory()
    memory.stage(3, "new")
    assert memory.get(3) == "new"
    assert memory.at(0) == {}
    memory.commit(1)
    assert memory.at(1) == {3: "new"}
    assert memory.at(0) == {}
    assert memory.round == 1


def test_a_failed_round_leaves_no_trace() -> None:
    memory = Memory(4, {1: "old"})
    memory.stage(1, "new")
    memory.stage(2, "new")
    memory.discard()
    assert (memory.get(1), memory.get(2), memory.round) == ("old", None, 4)
    memory.commit(5)
    assert memory.at(5) == {1: "old"}


def test_the_last_two_rounds_are_kept() -> None:
    memory = Memory()
    for t in (1, 2, 3):
        memory.stage(0, t)
        memory.commit(t)
    assert memory.at(3) == {0: 3}
    assert memory.at(2) == {0: 2}
    with pytest.raises(KeyError):
        memory.at(1)


def test_to_remember_nothing_is_to_forget() -> None:
    memory = Memory(1, {0: "old", 1: "old"})
    memory.stage(0, None)
    assert memory.get(0) is None
    memory.commit(2)
    assert memory.at(2) == {1: "old"}
    assert memory.at(1) == {0: "old", 1: "old"}


def test_the_values_it_was_given_are_not_changed() -> None:
    values: dict[int, Any] = {0: "old"}
    memory = Memory(0, values)
    memory.stage(0, "new")
    memory.commit(1)
    assert values == {0: "old"}


@pytest.mark.parametrize("round", [2, 3])
def test_a_round_that_is_over_cannot_be_committed_again(round: int) -> None:
    """The newer values would hide what was written, and nobody would notice."""
    memory = Memory(3, {0: "old"})
    memory.stage(0, "new")
    with pytest.raises(ProtocolError, match=f"round {round} cannot follow round 3"):
        memory.commit(round)


class Model(RuleBasedStateMachine):
    """Against the obvious: a list of whole dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.memory, self.rounds, self.staged = Memory(), [{}], {}

    @rule(client=st.integers(0, 3), value=st.none() | st.integers())
    def stage(self, client: int, value: int | None) -> None:
        self.memory.stage(client, value)
        self.staged[client] = value

    @rule()
    def commit(self) -> None:
        now = {**self.rounds[-1], **self.staged}
        self.rounds.append({c: v for c, v in now.items() if v is not None})
        self.staged = {}
        self.memory.commit(len(self.rounds) - 1)

    @rule()
    def discard(self) -> None:
        self.memory.discard()
        self.staged = {}

    @invariant()
    def agrees(self) -> None:
        for client in range(4):
            assert self.memory.get(client) == {**self.rounds[-1], **self.staged}.get(client)
        for t in range(max(0, len(self.rounds) - 2), len(self.rounds)):
            assert self.memory.at(t) == self.rounds[t]


TestMemory = Model.TestCase
