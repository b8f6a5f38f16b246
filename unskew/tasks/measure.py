"""Measures of how good predictions are, and how their values are shown.  Imports no PyTorch."""

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from unskew.errors import ConfigError, shown

if TYPE_CHECKING:
    from torch import Tensor

Array = npt.NDArray[Any]
Direction = Literal["higher", "lower"]

FEWEST = 10
"""Test examples of a class below which a client's AUROC says nothing: DeLong's variance needs about as many.

So many events, too, for a concordance index.
"""


LONGEST = 24
"""Characters of a class's name in a label."""


@dataclass(frozen=True)
class Measure:
    """A number that says how good predictions are.

    A run's folder holds all but the functions, so a report can show a measure without its code.

    Attributes:
        name: Its name in metrics: `accuracy` makes global.accuracy and personal.accuracy.mean.
        label: Its name in tables and on axes, as in "balanced accuracy".
        direction: The better direction.
        low, high: Its range; None where it has no end.  A client's value outside it is refused.
        percent: True for a fraction that is shown in percent.
        each: Value of each example from (outputs, targets), (n,); their mean is the measure.
        whole: Value of all examples together from (outputs, targets), NaN where undefined, as an AUROC of one class.  A
            measure has `each` or `whole`.
        link: From the mean of `each` to the measure, as exp turns mean loss into perplexity; by default the mean
            itself.
        by_row: For `whole` or `link` with a known variance: values from (outputs, targets), (n,).  Their mean is the
            measure, and their variance over n its variance.  None if there are too few.
        of_positives: True if it is about the positive class, the second of two.
        positive: That class's name, also in the label; empty for other measures.
    """

    name: str
    label: str
    direction: Direction = "higher"
    low: float | None = 0.0
    high: float | None = 1.0
    percent: bool = True
    each: "Callable[[Tensor, Tensor], Tensor] | None" = field(default=None, compare=False, repr=False)
    whole: "Callable[[npt.NDArray[np.float64], Array], float] | None" = field(default=None, compare=False, repr=False)
    link: "Callable[[float], float] | None" = field(default=None, compare=False, repr=False)
    by_row: "Callable[[npt.NDArray[np.float64], Array], npt.NDArray[np.float64] | None] | None" = field(
        default=None, compare=False, repr=False
    )
    of_positives: bool = field(default=False, compare=False, repr=False)
    positive: str = field(default="", compare=False)

    def check(self) -> None:
        """Check functions, direction and range of a user's measure.

        Raises:
            ConfigError: If one is missing or invalid.
        """
        ends = self.low, self.high
        for wrong, what in (
            ((self.each is None) == (self.whole is None), "one of the functions each and whole"),
            (self.direction not in get_args(Direction), "higher or lower as its direction"),
            (None not in ends and not ends[0] < ends[1], "low < high, or None where its range has no end"),  # type: ignore[operator]
        ):
            if wrong:
                raise ConfigError(f"measure {self.name!r} must have {what}")

    def of_classes(self, names: Sequence[str]) -> "Measure":
        """The measure with its positive class in the label, as in "sensitivity for sick".

        >>> Measure("sensitivity", "sensitivity", of_positives=True).of_classes(["healthy", "sick"]).label
        'sensitivity for sick'
        """
        if not self.of_positives or len(names) != 2:
            return self
        name = names[1] if len(names[1]) <= LONGEST else f"{names[1][: LONGEST - 3]}..."
        return replace(self, label=f"{self.label} for {name}", positive=name)

    def of_mean(self, mean: float) -> float:
        """The measure of examples where `each` has this mean."""
        return mean if self.link is None else self.link(mean)

    @property
    def higher(self) -> bool:
        """True if a higher value is better."""
        return self.direction == "higher"

    @property
    def shared(self) -> str:
        """Key of the global model's value in the metrics, such as global.accuracy."""
        return f"global.{self.name}"

    @property
    def own(self) -> str:
        """Key of the mean over clients' own models, such as personal.accuracy.mean."""
        return f"personal.{self.name}.mean"

    @property
    def worst(self) -> str:
        """Key of the mean over the worst tenth of the clients, such as personal.accuracy.worst_decile."""
        return f"personal.{self.name}.worst_decile"

    @property
    def across(self) -> str:
        """Key of the standard deviation over the clients, such as personal.accuracy.std."""
        return f"personal.{self.name}.std"

    @property
    def of_rows(self) -> bool:
        """True if it is a mean over rows, so the rows alone show its uncertainty."""
        return self.each is not None and self.link is None

    @property
    def of_events(self) -> bool:
        """True if it depends on the examples with the event, not on those of the rarest class."""
        return self.name == "concordance"

    @property
    def scale(self) -> float:
        """Factor from a value to the number shown."""
        return 100.0 if self.percent else 1.0

    @property
    def way(self) -> str:
        """A note that lower values are better; else empty."""
        return "" if self.higher else "lower is better"

    @property
    def unit(self) -> str:
        """Words beside its label: the unit, and `way`."""
        return ", ".join(filter(None, ["%" * self.percent, self.way]))

    @property
    def axis(self) -> str:
        """Its label with its unit, as in "accuracy, %"."""
        return ", ".join(filter(None, [self.label, self.unit]))

    @property
    def points(self) -> str:
        """The unit of a difference of two values; empty where it has none."""
        return "percentage points" if self.percent else ""

    @property
    def apart(self) -> str:
        """Words after the heading of a difference: a comma, the unit, and `way`."""
        return "".join(f", {part}" for part in (self.points, self.way) if part)

    @property
    def range(self) -> str:
        """The values it may have, in words."""
        ends = [f"at least {self.low:g}"] if self.low is not None else []
        ends += [f"at most {self.high:g}"] if self.high is not None else []
        return " and ".join(ends) or "a finite number"

    def allows(self, value: float | None) -> bool:
        """Return true if the measure can have this value; None is an undefined measure's."""
        if value is None:
            return self.each is None
        inside = (self.low is None or value >= self.low) and (self.high is None or value <= self.high)
        return inside and abs(value) <= sys.float_info.max

    @property
    def bounded(self) -> bool:
        """True if its range is about as wide as 0 to 1, so three decimals are enough."""
        return self.low is not None and self.high is not None and self.high - self.low <= 2

    @property
    def levels(self) -> str:
        """The values that not every model reaches, as an interval."""
        low = "(-inf" if self.low is None else f"{'(' if self.higher else '['}{self.low:g}"
        high = "inf)" if self.high is None else f"{self.high:g}{']' if self.higher else ')'}"
        return f"{low}, {high}"

    def reachable(self, level: float) -> bool:
        """Return true for a value that not every model reaches."""
        return self.allows(level) and level != (self.low if self.higher else self.high)

    def best(self, values: Iterable[float]) -> float:
        """The best of some values, at least one."""
        return max(values) if self.higher else min(values)

    def first(self, by_name: Mapping[str, float]) -> str:
        """The name of the best of some values, at least one."""
        return (max if self.higher else min)(by_name, key=lambda name: by_name[name])

    def reaches(self, value: float, level: float) -> bool:
        """Return true if a value is at a level or better."""
        return value >= level if self.higher else value <= level

    def better(self, difference: float) -> bool:
        """Return true if a difference of two values is an improvement."""
        return difference > 0 if self.higher else difference < 0

    def show(self, value: float, digits: int = 1) -> str:
        """A value without its unit: percent with so many decimals, three decimals if bounded, or four figures.

        >>> ACCURACY.show(0.8614), Measure("mse", "MSE", "lower", high=None, percent=False).show(12.3456)
        ('86.1', '12.35')
        """
        if not math.isfinite(value):
            return "not finite"
        return f"{100 * value:.{digits}f}" if self.percent else f"{value:.3f}" if self.bounded else f"{value:.4g}"

    def spread(self, std: float | None) -> str:
        """A standard deviation after a value, with two figures if not in percent; empty if there is none.

        >>> ACCURACY.spread(0.0164), Measure("mse", "MSE", "lower", high=None, percent=False).spread(0.01646)
        (' ± 1.6', ' ± 0.016')
        """
        if std is None:
            return ""
        plain = not self.percent and not self.bounded and math.isfinite(std)
        return f" ± {f'{std:.2g}' if plain else self.show(std)}"

    def signed(self, difference: float, width: float = 0.0) -> str:
        """A signed difference of two values without its unit: in percentage points, or as `show` formats values.

        Without a scale an interval of this width gives the decimals: three figures of the width.

        >>> ACCURACY.signed(-0.0123), ACCURACY.signed(-0.00001)
        ('−1.23', '0.00')
        """
        plain = f".{max(0, 2 - math.floor(math.log10(width)))}f" if 1e-9 < width < math.inf else ".4g"
        text = f"{100 * difference:+.2f}" if self.percent else f"{difference:+{'.3f' if self.bounded else plain}}"
        return text.lstrip("+-") if float(text) == 0 else text.replace("-", "−")

    def interval(self, low: float, high: float) -> str:
        """An interval of a difference of two values, its ends as `signed` formats them.

        With two seeds it may exceed any possible difference; it then says so without a number. An interval of no width
        means that the difference is the same in every seed. One that excludes zero keeps the sign of an end that rounds
        to zero.

        >>> ACCURACY.interval(-0.1, 0.2), ACCURACY.interval(-0.1, 1.3), ACCURACY.interval(-3.9, 4.6)
        ('[−10.00, +20.00]', '[−10.00, >+100.00]', '[wider than the scale]')
        >>> ACCURACY.interval(0.0, 0.0), ACCURACY.interval(-0.12, -0.00002)
        ('[in every seed]', '[−12.00, −0.00]')
        """
        if low == high:
            return "[in every seed]"
        rounded = partial(self.signed, width=high - low)
        most = math.inf if self.low is None or self.high is None else self.high - self.low
        if low < -most and high > most:
            return "[wider than the scale]"
        first = f"<{rounded(-most)}" if low < -most else rounded(low)
        last = f">{rounded(most)}" if high > most else rounded(high)
        zero = rounded(0.0)
        if high < 0.0 and last == zero != first:
            last = f"−{zero}"
        elif low > 0.0 and first == zero != last:
            first = f"+{zero}"
        return f"[{first}, {last}]"

    def with_interval(self, difference: float, low: float | None, high: float | None) -> str:
        """A signed difference, and its interval if it has one.

        >>> Measure("mse", "MSE", "lower", high=None, percent=False).with_interval(-0.6834, -1.59, 0.2231)
        '−0.68 [−1.59, +0.22]'
        """
        if low is None or high is None:
            return self.signed(difference)
        return f"{self.signed(difference, high - low)} {self.interval(low, high)}"

    def with_unit(self, value: float) -> str:
        """A value with its unit, as in `86.1 %`."""
        return self.show(value) + (" %" if self.percent else "")

    @property
    def turned(self) -> str:
        """End of a sentence about gains: that their sign is reversed, if lower is better; else empty."""
        return "" if self.higher else ", with the sign reversed so that positive is better"

    def rows_of(self, outputs: "Tensor", y: "Tensor") -> "npt.NDArray[np.float64] | None":
        """The values of `by_row`; None if there are none."""
        return (
            None if self.by_row is None else self.by_row(outputs.double().cpu().numpy().copy(), y.cpu().numpy().copy())
        )

    def card(self) -> dict[str, Any]:
        """The measure as a run's folder holds it."""
        names = ("name", "label", "direction", "low", "high", "percent", "positive")
        return {name: getattr(self, name) for name in names}


ACCURACY = Measure("accuracy", "accuracy")
"""The headline of classification, as reports know it."""


def described(card: Mapping[str, Any] | None) -> Measure:
    """The measure that a run's folder describes, by default accuracy; it can only be shown, not computed."""
    if card is None:
        return ACCURACY
    written: dict[str, Any] = {k: shown(v) if isinstance(v, str) else v for k, v in card.items()}
    return Measure(**written)
