"""FedUV: the two regularisers, their bounds, and batches that have no variance or no distances."""

import math

import pytest
import torch
from torch import Tensor

from unskew.algorithms.feduv import Uniformity, Variance
from unskew.keys import Key
from unskew.protocol import Batch


def batch(logits: Tensor | None = None, features: Tensor | None = None, mask: Tensor | None = None) -> Batch:
    some = logits if logits is not None else features
    assert some is not None
    n = len(some)
    logits = logits if logits is not None else some
    features = features if features is not None else some
    mask = torch.ones(n, dtype=some.dtype) if mask is None else mask
    return Batch(
        some, torch.zeros(n, dtype=torch.int64), mask, features, logits, torch.zeros(n), lambda p: (some, some)
    )


def uniformity(features: Tensor, detach: bool = True, mask: Tensor | None = None) -> Tensor:
    return Uniformity(1.0, detach)({}, {}, batch(features=features, mask=mask))


def variance(logits: Tensor, mask: Tensor | None = None, strength: float | None = 1.0) -> Tensor:
    return Variance(strength)({}, {}, batch(logits=logits, mask=mask))


# ---------------------------------------------------------------- eq. 1
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_gamma_is_reached_by_the_identity(classes: int) -> None:
    """I-19: the columns of I_C have unbiased variance ((C - 1)/C) / (C - 1) = 1/C; a batch like it costs nothing."""
    assert torch.eye(classes).std(0).mean().item() == pytest.approx(classes**-0.5)
    assert variance(100.0 * torch.eye(classes)).item() == pytest.approx(0.0, abs=1e-6)


def test_constant_outputs_cost_gamma() -> None:
    """I-19; and there is no direction to go: the gradient is zero, not NaN."""
    logits = torch.zeros(6, 4, requires_grad=True)
    value = variance(logits)
    value.backward()
    assert value.item() == pytest.approx(0.5, abs=1e-6)
    assert logits.grad is not None
    assert logits.grad.abs().max() == 0.0


# ---------------------------------------------------------------- eq. 2
def test_of_an_even_number_of_distances_the_lower_median_counts() -> None:
    """At 0, 0, 1, 3: distances 0 (left out of the median), 1, 1, 9, 9, 4: lower median of 1, 1, 4, 9, 9 is 4."""
    expected = (1 + 2 * math.exp(-0.25) + 2 * math.exp(-2.25) + math.exp(-1.0)) / 6
    assert uniformity(torch.tensor([[0.0], [0.0], [1.0], [3.0]])).item() == pytest.approx(expected, rel=1e-5)
    # At 0, 0, 2, 2: distances 0, 4, 4, 4, 4, 0; median 4.
    pair = torch.tensor([[0.0], [0.0], [2.0], [2.0]])
    assert uniformity(pair).item() == pytest.approx((2 + 4 * math.exp(-1.0)) / 6, rel=1e-5)


def test_features_far_from_zero_and_close_together_are_told_apart_in_float32() -> None:
    """Squared distances of 1e-4 beside squared lengths of 1e4: their difference is below what float32 resolves."""
    features = 100.0 + 1e-2 * torch.randn(8, 4, generator=Key(3).generator(), dtype=torch.float64)
    exact = uniformity(features).item()
    assert uniformity(features.float()).item() == pytest.approx(exact, rel=0.02)
    assert exact < 0.7  # of features that coincide it is 1


def test_features_that_coincide_are_as_far_from_uniform_as_can_be() -> None:
    """I-19: 1; the median of no distance is no NaN, in value or gradient."""
    features = torch.full((5, 300), 1.2345, requires_grad=True)
    for detach in (True, False):
        value = uniformity(features, detach)
        (gradient,) = torch.autograd.grad(value, features)
        assert value.item() == pytest.approx(1.0, abs=1e-3)
        assert bool(gradient.isfinite().all())


def test_of_features_that_coincide_up_to_rounding_the_others_set_the_scale() -> None:
    """Three in one place and one apart: three distances of 0 and three of m, so L_U is (3 + 3 / e) / 6.

    Rounding makes some of the zeros positive in float32; as m, such a one would leave exp(-1) and 0.
    """
    place, other = torch.randn(2, 20, 64, generator=Key(6).generator())
    for one, far in zip(place, other, strict=True):
        features = torch.stack([one, one, one, far])
        assert uniformity(features).item() == pytest.approx((3 + 3 * math.exp(-1.0)) / 6, rel=1e-4)


def test_the_gradient_runs_through_the_median_only_if_asked() -> None:
    """Scaling all features changes nothing if the median scales along: then the gradient has no radial part."""
    features = torch.randn(7, 3, generator=Key(4).generator(), dtype=torch.float64, requires_grad=True)
    radial = {}
    for detach in (True, False):
        (gradient,) = torch.autograd.grad(uniformity(features, detach), features)
        radial[detach] = float((gradient * features.detach()).sum())
    assert abs(radial[False]) < 1e-12
    assert radial[True] < -1e-2
