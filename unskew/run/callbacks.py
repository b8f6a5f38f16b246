"""Callbacks: what is told of a run while it goes on."""

from dataclasses import dataclass
from typing import Protocol

from unskew.data.federated import FederatedData
from unskew.experiment.config import Experiment
from unskew.run.setup import Setup


@dataclass(frozen=True)
class Progress:
    """How far a run is, for whoever watches.

    Attributes:
        method, seed: The cell being run.
        round, rounds: Of this cell.
        cell, cells: Which cell, counted from 1.
        accuracy, loss: Of the last evaluation: global, or the clients' mean where there is no global model.
        own: Whether it is the clients' mean, on their own data.
        evaluated: The round of that evaluation; 0 is the initial model's.
        clients_per_second: Client trainings per second in this round.
        megabytes: Sent by this cell so far.
        left_s: Estimated seconds to the end of the whole run.
    """

    method: str
    seed: int
    round: int
    rounds: int
    cell: int
    cells: int
    accuracy: float | None
    loss: float | None
    own: bool
    evaluated: int
    clients_per_second: float
    megabytes: float
    left_s: float


class Callback(Protocol):
    """Whoever wants to see a run go on."""

    def start(self, experiment: Experiment, setup: Setup, feds: dict[int, FederatedData]) -> None:
        """Before the first round."""
        ...

    def progress(self, progress: Progress) -> None:
        """After every round."""
        ...

    def note(self, text: str) -> None:
        """Something worth a line."""
        ...


class NoCallback:
    """Watches nothing."""

    def start(self, experiment: Experiment, setup: Setup, feds: dict[int, FederatedData]) -> None:
        """Nothing."""

    def progress(self, progress: Progress) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""
