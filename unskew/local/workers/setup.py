"""Parts that a worker needs for one method under one seed."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from unskew import wire
from unskew.keys import Key
from unskew.local.trainer import LocalTrainer
from unskew.protocol import ClientId, Me, steps_of
from unskew.tree import Params


@dataclass(frozen=True, eq=False)
class WorkerSetup:
    """Objects a worker needs for one method under one seed.

    Attributes:
        method: The method, whose steps are run.
        trainer: Answers the steps' requests, and evaluates models.
        me: (client, round, key, step) -> what the client knows about itself.
    """

    method: Any
    trainer: LocalTrainer
    me: Callable[[ClientId, int, Key, str], Me]

    # Annotations are read once: it takes as long as a small client's whole training.
    @cached_property
    def steps(self) -> dict[str, Callable[..., Any]]:
        """The method's steps by name."""
        return steps_of(self.method)

    @cached_property
    def messages(self) -> dict[str, Any]:
        """Type of the message that each step is sent; `personalise` is called like a step."""
        message_types = {name: s.message for name, s in wire.signatures(self.method).items()}
        return {**message_types, "personalise": Params | None}

    @cached_property
    def memory(self) -> Any:
        """Type of what a client remembers."""
        return wire.memory_type(self.method)

    @cached_property
    def held(self) -> Any:
        """Type of what a step keeps."""
        return wire.held_type(self.method)


Open = Callable[[int], WorkerSetup]
"""Makes the setup of one method under one seed, by its number in the run."""
