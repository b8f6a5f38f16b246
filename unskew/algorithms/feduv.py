"""FedUV: local training is regularised towards what IID training looks like.

H. M. Son, M.-H. Kim, T.-M. Chung, C. Huang, X. Liu, "FedUV: Uniformity and Variance for Heterogeneous Federated
Learning", CVPR 2024.  Not the "FedUV" of 2021 on user verification.  Equation numbers are this file's.

Notation   s_i, r_i   probabilities and features of example i of a batch of B;  C  classes
           gamma      standard deviation of a column of the identity: 1 / sqrt(C)
           m          median of the squared distances between features that differ
Variance   L_V = 1/C sum_c max(0, gamma - std_i(s_ic)), std unbiased over the batch; between 0 and gamma     (1)
Uniformity L_U = mean over i < j of exp(-||r_i - r_j||^2 / m); between 0 and 1                               (2)
Local loss F_k + lambda_v L_V + lambda_u L_U                                                                 (3)
Server     FedAvg.
Departures m is a constant of the batch: in the published code the gradient runs through it, which `detach_median =
           false` restores.  lambda_v is C / 4 unless given, which is the published 2.5 at C = 10; its scale with C is
           ours.  Distances that rounding cannot tell from 0 count as 0 for m; if all do, m is 1.  A batch of one has no
           variance: L_V is gamma there, without a gradient, and L_U is 0.  With fewer examples than classes, or one
           class only, gamma is out of reach and L_V presses on: that is the method.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from unskew.algorithms.fedavg import FedAvg, Weighting
from unskew.protocol import Aux, Batch, SgdConfig
from unskew.schema import Search
from unskew.server.optimise import Mean, ServerRule
from unskew.tree import Params


@dataclass(frozen=True)
class Variance:
    """lambda_v L_V (eq. 1); None is C / 4."""

    needs: ClassVar[tuple[str, ...]] = ("classifier",)

    lambda_v: float | None
    sees: ClassVar[Literal["features"]] = "features"

    def __call__(self, params: Params, aux: Aux, batch: Batch) -> Tensor:
        """A scalar."""
        s, mask = batch.logits.softmax(1), batch.mask[:, None]
        classes, n = s.shape[1], mask.sum()
        mean = (s * mask).sum(0) / n.clamp(min=1.0)
        variance = ((s - mean).square() * mask).sum(0) / (n - 1.0).clamp(min=1.0)
        # The root has no gradient at 0; where nothing varies there is no direction to go.
        std = variance.clamp(min=torch.finfo(s.dtype).tiny).sqrt()
        scale = classes / 4.0 if self.lambda_v is None else self.lambda_v
        short: Tensor = (classes**-0.5 - std).clamp(min=0.0)
        return scale * short.mean()


@dataclass(frozen=True)
class Uniformity:
    """lambda_u L_U (eq. 2)."""

    needs: ClassVar[tuple[str, ...]] = ("features",)

    lambda_u: float
    detach_median: bool = True
    sees: ClassVar[Literal["features"]] = "features"

    def __call__(self, params: Params, aux: Aux, batch: Batch) -> Tensor:
        """A scalar."""
        r, mask = batch.features.flatten(1), batch.mask
        # Distances are the same about any point; about the mean, rounding is small beside them.
        r = r - (r.detach() * mask[:, None]).sum(0) / mask.sum().clamp(min=1.0)
        size = r.square().sum(1)
        sizes = size[:, None] + size[None, :]
        distance = (sizes - 2.0 * r @ r.T).clamp(min=0.0)
        # Each pair stands here twice, which changes neither mean nor lower median.
        pairs = mask[:, None] * mask[None, :] * (1.0 - torch.eye(len(r), dtype=r.dtype, device=r.device))
        apart = (pairs > 0) & (distance > 64.0 * torch.finfo(r.dtype).eps * sizes)
        k = apart.sum()
        ordered = distance.masked_fill(~apart, torch.inf).flatten().sort().values
        median = ordered.gather(0, ((k - 1).clamp(min=0) // 2)[None])[0]
        m = torch.where(k > 0, median, torch.ones_like(median))
        m = m.detach() if self.detach_median else m
        return self.lambda_u * (pairs * torch.exp(-distance / m)).sum() / pairs.sum().clamp(min=1.0)


def FedUV(
    lambda_v: Annotated[float, Ge(0.0), Search(0.05, 20)] | None = None,
    lambda_u: Annotated[float, Ge(0.0), Search(0.01, 5)] = 0.5,
    detach_median: bool = True,
    local: SgdConfig = SgdConfig(),
    weighting: Weighting = "samples",
    personal: tuple[str, ...] = (),
    server: ServerRule = Mean(),
) -> FedAvg:
    """FedAvg with both regularisers (eq. 3); with both strengths 0 it is FedAvg.

    Args:
        lambda_v: Strength of the variance; None is C / 4.
        lambda_u: Strength of the uniformity.
        detach_median: Treat m as a constant; the published code does not.
        local: The clients' optimisation.
        weighting, personal, server: Settings as in FedAvg.
    """
    variance = () if lambda_v == 0.0 else (Variance(lambda_v),)
    uniformity = (Uniformity(lambda_u, detach_median),) if lambda_u else ()
    return FedAvg(local, weighting, (*variance, *uniformity), personal, server=server)
