"""The kind of a task, apart from any network."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from unskew.errors import ConfigError, did_you_mean
from unskew.tasks.measure import Measure

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class TaskKind:
    """The meaning of a network's outputs; see `unskew.tasks`.

    Attributes:
        name: Its name in an experiment.
        targets: What a label is: a class, counted from 0, or a number.
        width: Number of outputs for so many classes.
        losses: Losses of each example from (outputs, targets), (batch,); the first is the default.
        measures: What can be reported; the first is the headline.
        predict: Predictions from outputs: classes (n,) int64, or numbers (n,).
    """

    name: str
    targets: Literal["class", "number"]
    width: Callable[[int], int]
    losses: Mapping[str, Loss]
    measures: tuple[Measure, ...]
    predict: Callable[[Tensor], Tensor]

    @property
    def headline(self) -> Measure:
        """The measure by which models are compared."""
        return self.measures[0]

    def loss(self, name: str | None) -> Loss:
        """The loss of that name, by default the first.

        Raises:
            ConfigError: If there is none.
        """
        if name is None:
            return next(iter(self.losses.values()))
        if name not in self.losses:
            known = ", ".join(self.losses)
            raise ConfigError(f"task.loss of {self.name} must be one of {known}, got {name!r}")
        return self.losses[name]

    def reported(self, asked: Sequence[str], loss: Loss) -> tuple[Measure, ...]:
        """The measures of a run: the headline, the loss, and those asked for.

        Raises:
            ConfigError: If there is no such measure.
        """
        self.check_evaluate(asked, ())
        known = {m.name: m for m in self.measures}
        extra = (known[name] for name in dict.fromkeys(asked) if name != self.headline.name)
        return (self.headline, loss_measure(loss), *extra)

    def check_evaluate(self, names: Sequence[str], models: Sequence[str]) -> None:
        """Refuse names that are neither models to evaluate nor measures.

        Raises:
            ConfigError: If there is one.
        """
        known = (*models, *(m.name for m in self.measures))
        for name in names:
            if name not in known:
                raise ConfigError(
                    f"evaluate: {self.name} has no {name!r}{did_you_mean(name, known)} (it has {', '.join(known)})"
                )


def loss_measure(loss: Loss) -> Measure:
    """The mean loss as a measure."""
    return Measure("loss", "loss", "lower", None, None, percent=False, each=loss)
