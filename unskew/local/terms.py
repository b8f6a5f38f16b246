"""The value of a loss term, which may be somebody's own code."""

import inspect
import numbers
from typing import Any

from torch import Tensor

from unskew.errors import ProtocolError
from unskew.protocol import Aux, Batch, Term
from unskew.tree import Params


def term_value(term: Term, params: Params, aux: Aux, batch: Batch | None = None) -> Tensor:
    """A term's value, a scalar; a plain number is a constant, as where a term is switched off in some rounds.

    Raises:
        ProtocolError: If it is anything else, or the term looks for what it is not given.
    """
    called: Any = term
    given = (params, aux) if batch is None else (params, aux, batch)
    name = getattr(term, "__name__", type(term).__name__)
    try:
        value = called(*given)
    except KeyError as error:
        if any(error.args[0] in table for table in (params, aux)):
            raise
        raise ProtocolError(
            f"the loss term {name} looks for {error.args[0]!r}, which is neither a parameter of the model nor given "
            f"with the term (given: {', '.join(aux) or 'nothing'}); give it by name: sgd(start, local, term, key=value)"
        ) from error
    except TypeError as error:
        if _takes(called, len(given)):
            raise
        remedy = '; one that takes the batch, too, has the attribute sees = "features"' if batch is None else ""
        raise ProtocolError(
            f"the loss term {name} must take ({', '.join(('params', 'aux', 'batch')[: len(given)])}): {error}{remedy}"
        ) from error
    if isinstance(value, Tensor) and value.dim() == 0:
        return value
    if isinstance(value, numbers.Real):
        return next(iter(params.values())).new_tensor(float(value))
    got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
    raise ProtocolError(
        f"the loss term {name} must return one number, a tensor without dimensions, got {got}; take the sum or the mean"
    )


def _takes(called: Any, arguments: int) -> bool:
    """True if a term can be called with so many arguments, as far as its signature can be read."""
    try:
        inspect.signature(called).bind(*range(arguments))
    except TypeError:
        return False
    except ValueError:
        return True
    return True
