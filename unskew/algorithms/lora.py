"""FFA-LoRA and FedSA-LoRA: which half of an adapter travels.

Y. Sun, Z. Li, Y. Li, B. Ding, "Improving LoRA in Privacy-preserving Federated Learning", ICLR 2024 (FFA-LoRA).
P. Guo, S. Zeng, Y. Wang, H. Fan, F. Wang, L. Qu, "Selective Aggregation for Low-Rank Adaptation in Federated Learning",
ICLR 2025 (FedSA-LoRA).

Notation   W0    a layer's weight, frozen, the same everywhere: it never travels
           A, B  its adapter, (r, in) and (out, r): the layer is W0 + alpha / r B A; A is drawn, B is zero at first
           n_k   training examples of client k
FedAvg     averages both halves, and mean(B_k) mean(A_k) is not mean(B_k A_k), what clients have learned.
FFA-LoRA   A stays as it was drawn, which every client does from the run's seed.
           B_k = LocalSGD(B; F_k(., A));  B <- sum_k n_k B_k / sum_k n_k;  mean(B_k) A = mean(B_k A)           (1)
FedSA-LoRA A holds what clients have in common, B what is each one's own, in its memory.
           (A_k, B_k) = LocalSGD((A, B_k); F_k);  A <- sum_k n_k A_k / sum_k n_k                                (2)
Own model  FFA-LoRA's is the global one; FedSA-LoRA's is W0 + alpha / r B_k A, under the averaged A.
Wire       FFA-LoRA half of an adapter, B; FedSA-LoRA the other, A.  A head that is trained as it is travels in both.
Departures A classifier's head that is trained as it is travels; `personal = ["lora_B", "head"]` keeps it with B, and a
           network may freeze it, by `requires_grad=False`.
"""

from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.fedbabu import FedBABU
from unskew.algorithms.presets import variant

FFALoRA = variant(
    FedBABU, "FFALoRA", "FedAvg of adapters whose A stays as it was drawn (eq. 1); with nothing `fixed` it is FedAvg.",
    fixed=("lora_A",), finetune="none", weighting="samples",
)  # fmt: skip
FedSALoRA = variant(
    FedAvg, "FedSALoRA", "FedAvg of adapters' A; B stays with each client (eq. 2).  Nothing `personal` is FedAvg.",
    personal=("lora_B",),
)  # fmt: skip
