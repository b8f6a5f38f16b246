"""The value of a loss term, which may be somebody's own code."""

import numbers
from typing import Any

from torch import Tensor

from unskew.errors import ProtocolError
from unskew.protocol import Aux, Batch, Term
from unskew.tree import Params


def term_value(term: Term, params: Params, aux: Aux, batch: Batch | None = None) -> Tensor:
    """A term's value, a scalar; a plain number is a constant, as where a term is switched off in some rounds.

    Raises:
        ProtocolError: If it is anything else.
    """
    called: Any = term
    value = called(params, aux) if batch is None else called(params, aux, batch)
    if isinstance(value, Tensor) and value.dim() == 0:
        return value
    if isinstance(value, numbers.Real):
        return next(iter(params.values())).new_tensor(float(value))
    got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
    name = getattr(term, "__name__", type(term).__name__)
    raise ProtocolError(
        f"the loss term {name} must return one number, a tensor without dimensions, got {got}; take the sum or the mean"
    )
