"""Evaluates and checks loss terms, which may be a user's code."""

import numbers
from typing import Any

import torch
from torch import Tensor

from unskew.errors import ProtocolError
from unskew.keys import Key
from unskew.protocol import Aux, Batch, Term
from unskew.tree import Params, check_unchanged, marks


def term_value(term: Term, params: Params, aux: Aux, batch: Batch | None = None) -> Tensor:
    """A term's value, a scalar; a plain number is a constant.

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
    raise ProtocolError(
        f"the loss term {_name(term)} must return one number, a tensor without dimensions, got {got}; take the sum or "
        "the mean"
    )


def _looked_at(term: Term, params: Params, aux: Aux) -> Tensor:
    """A term's value; one that changes the parameters in place is refused."""
    before = marks(params, content=True)
    value = term_value(term, params, aux)
    check_unchanged(before, params, f"the loss term {_name(term)}", "the parameters that it is given")
    return value


def check_value(term: Term, params: Params, aux: Aux) -> bool:
    """Refuse a term that is a constant other than zero near `params`.

    Returns:
        True if the value is not zero; nothing was checked at zero, as when a term is off.

    Raises:
        ProtocolError: If it is.
    """
    with torch.enable_grad():
        leaves = {n: w.requires_grad_() for n, w in _near(params).items()}
        return depends(term, _looked_at(term, leaves, aux))


def check_gradient(term: Any, params: Params, aux: Aux) -> bool:
    """Compare a term's written gradient with that of its value, at a point near `params`.

    Returns:
        True if the value is not zero; a term may be off, or have nothing to correct yet.

    Raises:
        ProtocolError: If they differ by more than rounding, or the value is a constant other than zero.
    """
    point = _near(params)
    with torch.enable_grad():
        leaves = {n: w.clone().requires_grad_() for n, w in point.items()}
        value = _looked_at(term, leaves, aux)
        if not depends(term, value):
            return False
        gradients = torch.autograd.grad(value, list(leaves.values()), materialize_grads=True)
    with torch.no_grad():
        written = term.gradient(point, aux)
    for name, g in zip(leaves, gradients, strict=True):
        own = written.get(name, torch.zeros_like(g))
        if own.shape != g.shape or _differ(own, g):
            raise ProtocolError(
                f"the gradient of the loss term {type(term).__name__} is not that of its value, first at {name} (norms "
                f"{float(own.norm()):.3g} and {float(g.norm()):.3g}); correct it, or leave it to autograd"
            )
    return any(bool(g.any()) for g in gradients)


def _name(term: Term) -> str:
    name: str = getattr(term, "__name__", type(term).__name__)
    return name


def _near(params: Params) -> Params:
    """A point near a model: many a term is zero at the model that it was given."""
    draws = (Key(0) / "gradient").generator()
    return {n: w.detach() + 0.1 * torch.randn(w.shape, generator=draws).to(w) for n, w in params.items()}


def depends(term: Term, value: Tensor) -> bool:
    """True if a value depends on the parameters, False if it is zero; other constants are refused."""
    if value.requires_grad or not bool(value):
        return value.requires_grad
    raise ProtocolError(
        f"the value of the loss term {_name(term)}, {float(value):.4g}, does not depend on the parameters, so it "
        "changes nothing. Compute it without item(), float(), numpy() or detach(), and return 0.0 where it is to be off"
    )


def _differ(one: Tensor, other: Tensor) -> bool:
    rounding = max(1e-3, 8 * torch.finfo(one.dtype).eps)
    return float((one - other).norm()) > rounding * float(one.norm() + other.norm()) + 1e-6
