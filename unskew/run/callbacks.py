"""Callbacks: objects that are notified while a run goes on."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from unskew.data.federated import FederatedData
from unskew.errors import ConfigError
from unskew.experiment.config import Experiment
from unskew.run.setup import Setup
from unskew.tasks.measure import Measure


@dataclass(frozen=True)
class Progress:
    """The state of a run after a round.

    Attributes:
        method, seed: The cell being run.
        round, rounds: The round just finished, and the number of rounds of this cell.
        cell, cells: Number of the cell, counted from 1, and the number of cells.
        headline: The task's headline metric.
        value, loss: Its value and the loss, from the last evaluation: global, or the clients' mean where there is no
            global model.
        own: True if they are the clients' mean, on their own data.
        evaluated: The round of that evaluation; 0 is the initial model's.
        clients_per_second: Client trainings per second in this round.
        megabytes: Sent by this cell so far.
        left_s: Estimated seconds to the end of the whole run.
        metrics: Every number of the round that is of no single client, by its name in the record.
    """

    method: str
    seed: int
    round: int
    rounds: int
    cell: int
    cells: int
    headline: Measure
    value: float | None
    loss: float | None
    own: bool
    evaluated: int
    clients_per_second: float
    megabytes: float
    left_s: float
    metrics: Mapping[str, float] = field(default_factory=dict)


class Callback(Protocol):
    """An object that is told when the run begins, after every round, and about notes."""

    def start(self, experiment: Experiment, setup: Setup, feds: dict[int, FederatedData]) -> None:
        """Called before the first round."""
        return

    def progress(self, progress: Progress) -> None:
        """Called after every round."""
        return

    def note(self, text: str) -> None:
        """Called with a line worth showing."""
        return


class NoCallback(Callback):
    """A callback that does nothing; a base class for callbacks that need only one method."""


class AfterRounds(NoCallback):
    """A function of `Progress` that is called after every round."""

    def __init__(self, function: Callable[[Progress], object]) -> None:
        self._function = function

    def progress(self, progress: Progress) -> None:
        """Call it."""
        self._function(progress)


class Several:
    """A callback that calls several, one after the other; those after the first are somebody's own and get copies.

    Raises:
        ConfigError: If one is neither a callback nor a function.
    """

    def __init__(self, *callbacks: Callback | Callable[[Progress], object]) -> None:
        self._callbacks = tuple(map(_as_callback, callbacks))

    def start(self, experiment: Experiment, setup: Setup, feds: dict[int, FederatedData]) -> None:
        """Call every `start`."""
        first, *others = self._callbacks
        first.start(experiment, setup, feds)
        for callback in others:
            dataset, own = copy.deepcopy((setup.dataset, feds))
            callback.start(experiment, replace(setup, dataset=dataset), own)

    def progress(self, progress: Progress) -> None:
        """Call every `progress`."""
        for callback in self._callbacks:
            callback.progress(progress)

    def note(self, text: str) -> None:
        """Call every `note`."""
        for callback in self._callbacks:
            callback.note(text)


def _as_callback(given: Any) -> Callback:
    if all(callable(getattr(given, part, None)) for part in ("start", "progress", "note")):
        callback: Callback = given
        return callback
    if not callable(given):
        raise ConfigError(f"callback must be a function, or an object with start, progress and note, got {given!r:.80}")
    return AfterRounds(given)
