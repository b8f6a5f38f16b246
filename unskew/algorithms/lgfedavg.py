"""LG-FedAvg: local representations, a global head; FedPer the other way round.

P. P. Liang, T. Liu, L. Ziyin, N. B. Allen, R. P. Auerbach, D. Brent, R. Salakhutdinov, L.-P. Morency, "Think Locally,
Act Globally: Federated Learning with Local and Global Representations", arXiv 2001.01523, 2020, Algorithm 1.

Notation   phi_k  body of client k, in its memory;  theta  head, common to all
Round      (phi_k, theta_k) = LocalSGD((phi_k, theta); F_k), both trained together
           theta <- sum_k n_k theta_k / sum_k n_k
Own model  (phi_k, theta), the averaged head on the client's own body.  Bodies may be networks of several kinds, whose
           last layers are of one shape.
Departures The paper's new devices vote by all local models, and its adversarial and self-supervised local losses are
           left out; a client that never took part has its initial body.
"""

from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.presets import variant

LGFedAvg = variant(
    FedAvg, "LGFedAvg", "FedAvg of the head; `personal` tensors never leave a client.  Without any it is FedAvg.",
    personal=("body",),
)  # fmt: skip
