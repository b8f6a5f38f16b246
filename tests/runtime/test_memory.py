from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from unskew.runtime.memory import Memory


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
