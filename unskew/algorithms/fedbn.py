"""FedBN: normalisation layers stay with each client, everything else is averaged.

X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou, "FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization", ICLR 2021, Algorithm 1.

Notation   w        all parameters outside normalisation layers
           b_k      scales, shifts and statistics of client k's normalisation layers, in its memory
Round      (w_k, b_k) = LocalSGD((w, b_k); F_k), both trained together;  w <- sum_k n_k w_k / sum_k n_k
Own model  (w, b_k).
Departures The paper's layers are BatchNorm's; here those of group and layer normalisation stay too, which have no
           statistics.  On a network without any normalisation nothing stays, and it is FedAvg; a run says so.  A client
           that never took part has the common initial values and initial statistics.  The mean is weighted by examples,
           as FedAvg's is; Algorithm 1 and the authors' code weight clients alike, `weighting = "uniform"`.
"""

from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.presets import variant

FedBN = variant(
    FedAvg, "FedBN", "FedAvg whose normalisation layers never leave a client; `personal` may name \"buffers\" alone.",
    personal=("norm",),
)  # fmt: skip
