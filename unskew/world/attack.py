"""Attacks: malicious clients, by their uploads or their training data.

A share of the clients, drawn under the run's key, attacks in every round it joins; it is the same for all rounds and
methods.  An attack is a frozen dataclass with the fields `name`, by which it is registered, and `fraction`; whatever it
does not define stays honest.  `wrappers/malicious.py` puts it around a method.
"""

import inspect
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor

from unskew.keys import Key
from unskew.registry import Registry
from unskew.tree import Params, squared_norm

Fraction = Annotated[float, Interval(ge=0.0, le=1.0)]


class Attack:
    """Base class of attacks; does nothing.

    Attributes:
        fraction: Share of clients that are malicious.
        name: Name it is registered by.
        uploads: True if malicious clients change their uploads.
        colludes: True if an update is forged from honest clients' replies, which only a simulation shows.
        alone: False if a malicious client's own update, all it has on a network, is not enough to forge one.
        poisons: True if malicious clients change their training data.
    """

    uploads: ClassVar[bool] = False
    colludes: ClassVar[bool] = False
    alone: ClassVar[bool] = True
    poisons: ClassVar[bool] = False
    fraction: float
    name: str

    def malicious(self, clients: int, key: Key) -> frozenset[int]:
        """Draw the malicious clients: `fraction` of them, rounded, under the run's key."""
        count = math.floor(self.fraction * clients + 0.5)
        return frozenset((key / "liars").numpy().permutation(clients)[:count].tolist())

    def forge(self, update: Params, honest: Sequence[Params], malicious: int, key: Key) -> Params:
        """Return the update that a malicious client sends.

        Args:
            update: Its honest update, the difference from the model sent.
            honest: The round's honest updates if `colludes`, else only the malicious client's own.
            malicious: Number of malicious clients among the replies.
            key: Root of its draws.
        """
        return update

    def poison(
        self, x: Tensor, y: Tensor, classes: int, bounds: tuple[float, float], key: Key
    ) -> tuple[Tensor, Tensor]:
        """Return a malicious client's training examples; `bounds` are the smallest and largest input of all."""
        return x, y

    def trigger(self, x: Tensor, bounds: tuple[float, float]) -> tuple[Tensor, int] | None:
        """Return marked inputs, and the class that the attack wants for them; None without such a mark."""
        return None


@dataclass(frozen=True)
class Honest(Attack):
    """No attack: all clients are honest."""

    name: Literal["honest"] = "honest"
    fraction: Annotated[float, Interval(ge=0.0, le=0.0)] = 0.0


@dataclass(frozen=True)
class SignFlip(Attack):
    """Malicious clients send their update with the opposite sign.

    L. Li, W. Xu, T. Chen, G. Giannakis, Q. Ling, "RSA: Byzantine-Robust Stochastic Aggregation Methods for Distributed
    Learning from Heterogeneous Datasets", AAAI 2019, section 5.

    Attributes:
        fraction: Share of clients that are malicious.
        scale: Factor on the update: u_k <- -scale u_k.
    """

    uploads = True
    fraction: Fraction = 0.2
    scale: Annotated[float, Gt(0.0)] = 1.0
    name: Literal["sign_flip"] = "sign_flip"

    def forge(self, update: Params, honest: Sequence[Params], malicious: int, key: Key) -> Params:
        """Turn the update round."""
        return {n: t * -self.scale for n, t in update.items()}


@dataclass(frozen=True)
class Gaussian(Attack):
    """Malicious clients send normal noise (Blanchard et al. 2017, section 5.1).

    Attributes:
        fraction: Share of clients that are malicious.
        scale: Root-mean-square norm of the noise, in multiples of the malicious client's honest update's norm.
    """

    uploads = True
    fraction: Fraction = 0.2
    scale: Annotated[float, Gt(0.0)] = 10.0
    name: Literal["gaussian"] = "gaussian"

    def forge(self, update: Params, honest: Sequence[Params], malicious: int, key: Key) -> Params:
        """Draw noise of that size."""
        count = max(sum(t.numel() for t in update.values()), 1)
        deviation = self.scale * math.sqrt(float(squared_norm(update)) / count) if update else 0.0
        return {n: deviation * torch.randn(t.shape, generator=(key / n).generator()).to(t) for n, t in update.items()}


@dataclass(frozen=True)
class ALIE(Attack):
    """Malicious clients stay as near the mean as honest ones, all on one side: "a little is enough".

    G. Baruch, M. Baruch, Y. Goldberg, "A Little Is Enough: Circumventing Defenses for Distributed Learning", NeurIPS
    2019, Algorithm 3.  Of M replies f are forged.  Mean and deviation of each coordinate are those of the honest
    replies; the paper estimates them from the malicious clients' own data.

        s = floor(M / 2 + 1) - f,   z = Phi^-1((M - f - s) / (M - f)),   u_k <- mean - z deviation

    Attributes:
        fraction: Share of clients that are malicious.
        z: Deviations from the mean; None takes the largest that a majority rule misses, as above.
    """

    uploads = True
    colludes = True
    alone = False
    fraction: Fraction = 0.2
    z: Annotated[float, Ge(0.0)] | None = None
    name: Literal["ALIE"] = "ALIE"

    def forge(self, update: Params, honest: Sequence[Params], malicious: int, key: Key) -> Params:
        """Move each coordinate z deviations from the mean."""
        z = self.deviations(len(honest) + malicious, malicious) if self.z is None else self.z
        stacks = {n: torch.stack([u[n] for u in honest]) for n in update}
        return {n: t.mean(0) - z * t.std(0, correction=0) for n, t in stacks.items()}

    @staticmethod
    def deviations(replies: int, malicious: int) -> float:
        """Compute z; 0 if malicious clients are already the majority.

        >>> round(ALIE.deviations(50, 24), 2)
        1.43
        """
        honest = replies - malicious
        share = (honest - (replies // 2 + 1 - malicious)) / honest if honest else 0.0
        return statistics.NormalDist().inv_cdf(share) if 0.5 < share < 1.0 else 0.0


@dataclass(frozen=True)
class IPM(Attack):
    """Malicious clients send the honest clients' mean with the opposite sign: inner product manipulation.

    C. Xie, O. Koyejo, I. Gupta, "Fall of Empires: Breaking Byzantine-Tolerant SGD by Inner Product Manipulation", UAI
    2019, section 4: u_k <- -epsilon mean of the honest updates.  On a network a malicious client sees none of them and
    uses its own update as their mean.

    Attributes:
        fraction: Share of clients that are malicious.
        epsilon: Factor; a small one fools medians and distances, a large one means.
    """

    uploads = True
    colludes = True
    fraction: Fraction = 0.2
    epsilon: Annotated[float, Gt(0.0)] = 0.5
    name: Literal["IPM"] = "IPM"

    def forge(self, update: Params, honest: Sequence[Params], malicious: int, key: Key) -> Params:
        """Turn the mean round."""
        return {n: torch.stack([u[n] for u in honest]).mean(0) * -self.epsilon for n in update}


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Malicious clients train on wrong labels: c becomes the last class minus c (Fang et al., USENIX Security 2020).

    Attributes:
        fraction: Share of clients that are malicious.
    """

    poisons = True
    fraction: Fraction = 0.2
    name: Literal["label_flip"] = "label_flip"

    def poison(
        self, x: Tensor, y: Tensor, classes: int, bounds: tuple[float, float], key: Key
    ) -> tuple[Tensor, Tensor]:
        """Flip the labels."""
        return x, classes - 1 - y


@dataclass(frozen=True)
class Backdoor(Attack):
    """Malicious clients teach the model to put marked inputs in one class, and boost their updates.

    The mark: T. Gu, B. Dolan-Gavitt, S. Garg, "BadNets", arXiv:1708.06733: a bright square in the last corner of an
    image, or the largest value in the last columns of a table.  The boost: E. Bagdasaryan, A. Veit, Y. Hua, D. Estrin,
    V. Shmatikov, "How To Backdoor Federated Learning", AISTATS 2020, eq. 3: u_k <- boost u_k.

    The metric `global.attack_success` is the share of the global test set's other classes that the global model
    predicts as `target` when marked.

    Attributes:
        fraction: Share of clients that are malicious.
        target: Class wanted for marked inputs.
        share: Share of a malicious client's training examples that are marked and labelled so.
        size: Side of the square, or number of columns.
        boost: Factor on the update.
    """

    uploads = True
    poisons = True
    fraction: Fraction = 0.2
    target: Annotated[int, Ge(0)] = 0
    share: Annotated[float, Interval(gt=0.0, le=1.0)] = 0.5
    size: Annotated[int, Ge(1)] = 2
    boost: Annotated[float, Gt(0.0)] = 1.0
    name: Literal["backdoor"] = "backdoor"

    def forge(self, update: Params, honest: Sequence[Params], malicious: int, key: Key) -> Params:
        """Boost the update."""
        return update if self.boost == 1.0 else {n: t * self.boost for n, t in update.items()}

    def poison(
        self, x: Tensor, y: Tensor, classes: int, bounds: tuple[float, float], key: Key
    ) -> tuple[Tensor, Tensor]:
        """Mark and label a share of the examples, at least one."""
        chosen = torch.from_numpy(key.numpy().permutation(len(y))[: max(1, round(self.share * len(y)))])
        marked, label = self.trigger(x[chosen], bounds)
        x, y = x.clone(), y.clone()
        x[chosen], y[chosen] = marked, label
        return x, y

    def trigger(self, x: Tensor, bounds: tuple[float, float]) -> tuple[Tensor, int]:
        """Mark inputs."""
        x = x.clone()
        if x.dim() == 4:
            x[..., -self.size :, -self.size :] = bounds[1]
        else:
            x[..., -self.size :] = bounds[1]
        return x, self.target


ATTACKS = Registry(
    "attack",
    "unskew.attacks",
    {a.name: f"{__name__}:{a.__name__}" for a in (Honest, SignFlip, Gaussian, ALIE, IPM, LabelFlip, Backdoor)},
    "a frozen dataclass derived from unskew.world.attack.Attack, with fields name and fraction",
    lambda kind: inspect.isclass(kind) and issubclass(kind, Attack),
)
