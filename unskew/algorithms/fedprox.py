"""FedProx: FedAvg with a quadratic pull to the received model.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith, "Federated Optimization in Heterogeneous Networks",
MLSys 2020, eq. (2).

Notation   mu  strength of the pull
Local loss F_k(y) + mu/2 ||y - w||^2, with w the received model
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from unskew.algorithms.fedavg import FedAvg, Weighting
from unskew.protocol import Aux, SgdConfig
from unskew.tree import Params


@dataclass(frozen=True)
class Proximal:
    """mu/2 ||w - anchor||^2 over trainable parameters (eq. 2); its gradient is mu (w - anchor)."""

    mu: float

    def __call__(self, params: Params, aux: Aux) -> Tensor:
        """A scalar."""
        return 0.5 * self.mu * torch.stack([(w - aux["anchor"][n]).square().sum() for n, w in params.items()]).sum()


def fedprox(
    mu: Annotated[float, Ge(0.0)] = 0.1,
    local: SgdConfig = SgdConfig(),
    weighting: Weighting = "samples",
    personal: tuple[str, ...] = (),
) -> FedAvg:
    """FedAvg whose clients are pulled to the received model with strength `mu`; `mu = 0` is FedAvg."""
    return FedAvg(local, weighting, terms=(Proximal(mu),) if mu else (), personal=personal)
