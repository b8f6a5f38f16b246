"""Search spaces: the ranges declared in the types of a method's hyperparameters, and the local learning rate.

mu: Annotated[float, Ge(0.0), Search(0.001, 10.0)] = 0.1
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any, get_args, get_origin

from unskew import algorithms, schema
from unskew.experiment import config
from unskew.experiment.config import NamedMethod
from unskew.schema import Search

LR = "local.lr"
LOWER, UPPER = 1 / 30, 10.0
"""Ends of the range of a local learning rate, in units of the experiment's."""


def ranges_of(method: NamedMethod) -> dict[str, Search]:
    """Ranges of a method's hyperparameters by name, `local.lr` first; each is widened to include the present value.

    A logarithmic range is not widened to zero, which switches the hyperparameter off.
    """
    ranges: dict[str, Search] = {}
    lr = method.options.get("local", {}).get("lr")
    if lr is not None:
        ranges[LR] = Search(_short(lr * LOWER), _short(lr * UPPER))
    for name, (annotation, _) in schema.parameters(algorithms.resolve(method.name)).items():
        if (declared := _declared(annotation)) is not None:
            ranges[name] = _around(declared, method.options.get(name))
    return ranges


def present(method: NamedMethod, ranges: Mapping[str, Search]) -> dict[str, float]:
    """The method's values that lie in their ranges."""
    values = {name: _value(method, name) for name in ranges}
    return {n: v for n, v in values.items() if isinstance(v, float | int) and ranges[n].low <= v <= ranges[n].high}


def with_values(method: NamedMethod, values: Mapping[str, float]) -> NamedMethod:
    """The method with other values of its hyperparameters."""
    options = {**method.options, **{n: v for n, v in values.items() if n != LR}}
    if LR in values:
        options["local"] = {**options["local"], "lr": values[LR]}
    return config.method(method.name, options, method.label)


def _value(method: NamedMethod, name: str) -> Any:
    return method.options.get("local", {}).get("lr") if name == LR else method.options.get(name)


def _declared(annotation: Any) -> Search | None:
    if get_origin(annotation) is Annotated:
        of, *marks = get_args(annotation)
        return next((m for m in marks if isinstance(m, Search)), None) or _declared(of)
    return next((search for a in get_args(annotation) if (search := _declared(a)) is not None), None)


def _around(declared: Search, value: Any) -> Search:
    if not isinstance(value, float | int) or not math.isfinite(value) or (declared.log and value <= 0):
        return declared
    return dataclasses.replace(declared, low=min(declared.low, value), high=max(declared.high, value))


def _short(value: float) -> float:
    return float(f"{value:.3g}")
