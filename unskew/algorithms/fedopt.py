"""FedAvgM, FedAdagrad, FedAdam, FedYogi: the mean update of a round is a gradient for a server optimiser.

T.-M. H. Hsu, H. Qi, M. Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", 2019 (FedAvgM).  S. J. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar,
H. B. McMahan, "Adaptive Federated Optimization", ICLR 2021, Algorithm 2 (the others).  Equation numbers are this
file's.

Notation   w      global trainable parameters
           y_k    client k's parameters after local training
           D      mean over the cohort of y_k - w
           m, v   first and second moment, one number per parameter
Round      D = sum_k n_k (y_k - w) / sum_k n_k                                          (1)
FedAvgM    m <- beta m + D;  w <- w + server_lr m                                       (2)
           nesterov: w <- w + server_lr (D + beta m)                                    (3)
Adaptive   m <- beta1 m + (1 - beta1) D                                                 (4)
           v <- v + D^2                                  Adagrad                        (5)
           v <- beta2 v + (1 - beta2) D^2                Adam                           (6)
           v <- v - (1 - beta2) D^2 sign(v - D^2)        Yogi                           (7)
           w <- w + server_lr m / (sqrt(v) + tau)                                       (8)
           m_0 = 0, v_0 = tau^2; no bias correction
Server     The rules are values (server/optimise.py), which any method with FedAvg's round takes: `server`.
Departures Buffers have no gradient: they bypass the optimiser and become the plain mean, as in FedAvg.  `v0` sets v_0,
           which other implementations take to be 0.
"""

from typing import Annotated

from annotated_types import Ge

from unskew.algorithms.fedavg import FedAvg, Weighting
from unskew.protocol import SgdConfig
from unskew.schema import Search
from unskew.server.optimise import Adagrad, Adam, Decay, Momentum, Rate, Yogi


def FedAvgM(
    beta: Annotated[Decay, Search(0.0, 0.99, log=False)] = 0.9,
    server_lr: Annotated[Rate, Search(0.1, 2.0)] = 1.0,
    nesterov: bool = False,
    local: SgdConfig = SgdConfig(),
    weighting: Weighting = "samples",
) -> FedAvg:
    """FedAvg with server momentum (eq. 2); with `beta = 0` and `server_lr = 1` it is FedAvg.

    Args:
        beta: Momentum; Hsu et al. tune it up to 0.997.
        server_lr: Server learning rate.
        nesterov: Use eq. 3 instead of eq. 2; the original's form.
        local, weighting: Settings as in FedAvg.
    """
    return FedAvg(local, weighting, server=Momentum(server_lr, beta, nesterov))


def FedAdagrad(
    server_lr: Annotated[Rate, Search(0.001, 1.0)] = 0.1,
    beta1: Decay = 0.0,
    tau: Rate = 1e-3,
    v0: Annotated[float, Ge(0.0)] | None = None,
    local: SgdConfig = SgdConfig(),
    weighting: Weighting = "samples",
) -> FedAvg:
    """FedAvg with Adagrad on the server: v is the sum of all squared updates (eq. 5)."""
    return FedAvg(local, weighting, server=Adagrad(server_lr, beta1, tau, v0))


def FedAdam(
    server_lr: Annotated[Rate, Search(0.001, 1.0)] = 0.03,
    beta1: Decay = 0.9,
    beta2: Decay = 0.99,
    tau: Rate = 1e-3,
    v0: Annotated[float, Ge(0.0)] | None = None,
    local: SgdConfig = SgdConfig(),
    weighting: Weighting = "samples",
) -> FedAvg:
    """FedAvg with Adam on the server, without bias correction (eq. 6)."""
    return FedAvg(local, weighting, server=Adam(server_lr, beta1, tau, v0, beta2))


def FedYogi(
    server_lr: Annotated[Rate, Search(0.001, 1.0)] = 0.03,
    beta1: Decay = 0.9,
    beta2: Decay = 0.99,
    tau: Rate = 1e-3,
    v0: Annotated[float, Ge(0.0)] | None = None,
    local: SgdConfig = SgdConfig(),
    weighting: Weighting = "samples",
) -> FedAvg:
    """FedAvg with Yogi on the server: v moves by a step that does not depend on its size (eq. 7)."""
    return FedAvg(local, weighting, server=Yogi(server_lr, beta1, tau, v0, beta2))
