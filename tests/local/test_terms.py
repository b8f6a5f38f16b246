"""Loss terms of somebody's own: what they may return, and what is refused in a sentence."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
import torch

import unskew as us
from unskew.algorithms.feddc import DriftTerm
from unskew.algorithms.feddif import Regulariser
from unskew.algorithms.feddyn import DynamicRegulariser
from unskew.algorithms.fedprox import Proximal
from unskew.algorithms.scaffold import Correction
from unskew.errors import ProtocolError
from unskew.local.terms import check_gradient
from unskew.protocol import Batch
from unskew.tree import Params

RNG = np.random.default_rng(0)
Y = np.arange(60) % 3
X = (np.eye(3)[Y] + RNG.normal(size=(60, 3))).astype(np.float32)


def accuracy(executor: str, model: str, terms: tuple[Callable[..., Any], ...]) -> float:
    history = us.simulate(
        {"mine": us.FedAvg(terms=terms)}, data=(X, Y), model=model, split=us.IID(3), rounds=2, progress=False,
        runtime=us.Runtime(executor=executor),
    )  # fmt: skip
    return history.value("mine", "global.loss")


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_a_term_that_is_zero_moves_nothing(executor: str, model: str) -> None:
    plain = accuracy(executor, model, ())
    assert accuracy(executor, model, (lambda params, aux: 0.0,)) == pytest.approx(plain, rel=1e-6)
    assert accuracy(executor, model, (lambda params, aux: torch.tensor(0.0),)) == pytest.approx(plain, rel=1e-6)


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
@pytest.mark.parametrize(
    ("made", "got"),
    [
        (lambda params, aux: next(iter(params.values())), r"shape \(.*\)"),
        (lambda params, aux: None, "NoneType"),
        (lambda params, aux: [0.0], "list"),
    ],
)
def test_a_term_that_is_no_number_is_refused(executor: str, made: Callable[..., Any], got: str) -> None:
    with pytest.raises(
        ProtocolError, match=rf"^mine, seed 0: the loss term <lambda> must return one number.* got {got}"
    ):
        accuracy(executor, "mlp", (made,))


@dataclass(frozen=True)
class Shrinks:
    """Half the squared norm of the parameters, and a gradient of `slope` times them."""

    slope: float

    def __call__(self, params: Params, aux: Any) -> torch.Tensor:
        return 0.5 * torch.stack([w.square().sum() for w in params.values()]).sum()

    def gradient(self, params: Params, aux: Any) -> Params:
        return {name: self.slope * w for name, w in params.items()}


def test_a_gradient_that_is_not_that_of_the_terms_value_is_refused() -> None:
    """Half the sum of squares has the gradient w."""
    assert accuracy("sequential", "mlp", (Shrinks(1.0),)) > 0.0
    with pytest.raises(ProtocolError, match=r"the gradient of the loss term Shrinks is not .* first at body"):
        accuracy("sequential", "mlp", (Shrinks(5.0),))


# ---------------------------------------------------------------- terms that change nothing
@dataclass(frozen=True)
class Detached:
    def __call__(self, params: Params, aux: Any) -> torch.Tensor:
        return torch.stack([(w.detach() - aux["anchor"][n]).square().sum() for n, w in params.items()]).sum()


@dataclass(frozen=True)
class DetachedFeatures:
    sees: Literal["features"] = "features"

    def __call__(self, params: Params, aux: Any, batch: Batch) -> float:
        return float((batch.features.detach().flatten(1).square().mean(1) * batch.mask).sum() / batch.mask.sum())


@pytest.mark.parametrize(
    ("executor", "term"),
    [
        *((e, t) for e in ("sequential", "stacked") for t in (Detached(), lambda params, aux: 3.0)),
        ("sequential", DetachedFeatures()),
    ],
)
def test_a_term_that_does_not_depend_on_the_parameters_is_refused(executor: str, term: Any) -> None:
    """The first is zero at the model that clients start from."""
    name = getattr(term, "__name__", type(term).__name__)
    with pytest.raises(ProtocolError, match=rf"^mine, seed 0: the value of the loss term {name}, .* does not depend"):
        accuracy(executor, "mlp", (term,))


# ---------------------------------------------------------------- terms that see padding
@dataclass(frozen=True)
class InPlace:
    """Changes the parameters where they stand."""

    data: bool

    def __call__(self, params: Params, aux: Any) -> torch.Tensor:
        with torch.no_grad():
            for w in params.values():
                (w.data if self.data else w).mul_(0.99)
        return torch.stack([w.square().sum() for w in params.values()]).sum()


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
@pytest.mark.parametrize("data", [False, True])
def test_a_term_that_changes_the_parameters_in_place_is_refused(executor: str, data: bool) -> None:
    with pytest.raises(ProtocolError, match="the loss term InPlace changes the parameters that it is given in place"):
        accuracy(executor, "logistic", (InPlace(data),))


@pytest.mark.parametrize("corrects", [False, True])
def test_gradients_that_methods_write_out_are_those_of_their_terms(corrects: bool) -> None:
    draws = torch.Generator().manual_seed(5)
    params, centre, turn = ({"a": torch.randn(5, 3, generator=draws)} for _ in range(3))
    share = torch.tensor(0.7)
    terms: list[tuple[Any, dict[str, Any]]] = [
        (DriftTerm(0.3), {"centre": centre, "correction": turn if corrects else {}, "share": share}),
        (DriftTerm(0.0), {"centre": centre, "correction": turn, "share": share}),
        (DynamicRegulariser(0.3), {"anchor": centre, "g": turn, "share": share}),
        (Regulariser(), {"anchor": centre, "correction": turn, "scale": share}),
        (Proximal(0.3), {"anchor": centre}),
        (Correction(), {"correction": turn}),
    ]
    for term, aux in terms:
        assert check_gradient(term, params, aux)  # refuses what differs by more than rounding
