"""Every n-th example to a client."""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge

from unskew.data.split import TrainingExamples
from unskew.keys import Key


@dataclass(frozen=True)
class Comb:
    """Every n-th example, from `offset` on."""

    num_clients: Annotated[int, Ge(1)] = 4
    offset: Annotated[int, Ge(0)] = 0

    def assign(self, examples: TrainingExamples, key: Key) -> list[Any]:
        n = len(examples.labels)
        return [(np.arange(i, n, self.num_clients) + self.offset) % n for i in range(self.num_clients)]
