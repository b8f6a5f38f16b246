"""One client after the other, the last first."""

from collections.abc import Iterator, Mapping
from typing import Annotated

from annotated_types import Ge

from unskew.local.executor import CellParts, ExecutorKind, StepJob, StepResult
from unskew.local.sequential import Sequential
from unskew.protocol import ClientId


class Backwards(Sequential):
    name = "backwards"
    notes = ("the last client came first",)

    def complete(self, jobs: Mapping[ClientId, StepJob]) -> Iterator[tuple[ClientId, StepResult]]:
        yield from super().complete(dict(reversed(jobs.items())))


def backwards(parts: CellParts, naps: Annotated[int, Ge(0)] = 0) -> Backwards:
    return Backwards(parts.trainer)


BACKWARDS = ExecutorKind("backwards", "one client after the other, the last first", backwards)
