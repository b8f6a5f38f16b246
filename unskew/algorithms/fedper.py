"""FedPer: the last layers stay with each client, everything below them is averaged.

M. G. Arivazhagan, V. Aggarwal, A. K. Singh, S. Choudhary, "Federated Learning with Personalization Layers",
arXiv 1912.00818, 2019.

Notation   phi      body, common to all;  theta_k  personal layers of client k, in its memory
Round      (phi_k, theta_k) = LocalSGD((phi, theta_k); F_k), both trained together
           phi <- sum_k n_k phi_k / sum_k n_k
Own model  (phi, theta_k): the averaged body under the client's own layers, not the body it trained itself.
Departures The paper's personal part is the classifier, or the classifier and the residual blocks before it; by default
           it is the classification layer, others are named by `personal`.  A client that never took part has the
           common initial layers.
"""

from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.presets import variant

FedPer = variant(
    FedAvg, "FedPer", "FedAvg whose `personal` tensors never leave a client; without any it is FedAvg.",
    personal=("head",),
)  # fmt: skip
