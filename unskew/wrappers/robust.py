"""Robust means: taken by the server in place of a mean, so that a minority of malicious clients cannot move it far.

    us.wrap(us.FedAvg(), us.TrimmedMean(0.2))

Each is applied to the updates u_k of the M clients that replied, as differences from the model that each was sent, and
to each upload of a reply by itself: SCAFFOLD's two vectors have a centre each.  All but `NormBound` are unweighted,
because a malicious client chooses the number of examples that it claims.  Statistics of normalisation layers take part
in means and medians by coordinate; where clients are compared by distance they follow those chosen by the parameters.

Limits     Honest clients that differ are hard to tell from malicious ones: under label skew every rule here leaves out
           some of what few clients know.  None keeps a malicious client from small steps in a direction of its choice,
           round after round.  Clients that remember what they sent (SCAFFOLD, FedDyn, FedDC) do not see what the server
           made of it: their method's sums are then no longer those of what they remember.
"""

import statistics
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor

from unskew.errors import ConfigError, QuorumError
from unskew.protocol import ClientId, Federation
from unskew.tree import Params, squared_norm
from unskew.wrappers.replies import Centre, ReplyWrapper, compared


# ---------------------------------------------------------------- by coordinate
@dataclass(frozen=True)
class Median(Centre):
    """Coordinate-wise median of the clients' updates; the mean of the middle two if their number is even.

    D. Yin, Y. Chen, K. Ramchandran, P. Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
    Rates", ICML 2018, definition 1.
    """

    def centre(self, stacks: Params, parameter_names: frozenset[str]) -> Params:
        """Take the median of each coordinate."""
        return {n: _middle(t, (len(t) - 1) // 2) for n, t in stacks.items()}


@dataclass(frozen=True)
class TrimmedMean(Centre):
    """Mean of each coordinate without its largest and smallest values.

    Yin et al. 2018, definition 2: of M values the floor(fraction M) largest and as many smallest are left out.

    Attributes:
        fraction: Share left out at each end, beta; 0 is the unweighted mean.
    """

    fraction: Annotated[float, Interval(ge=0.0, lt=0.5)] = 0.2

    def centre(self, stacks: Params, parameter_names: frozenset[str]) -> Params:
        """Take the mean of the middle values of each coordinate."""
        # 0.29 * 100 is 28.999999999999996, but 29 are meant.
        return {n: _middle(t, int(self.fraction * len(t) + 1e-9)) for n, t in stacks.items()}


def _middle(stack: Tensor, cut: int) -> Tensor:
    """Return the mean over clients without the `cut` largest and smallest values of each coordinate."""
    middle = stack.sort(dim=0).values[cut : len(stack) - cut] if cut else stack
    return middle[0] if len(middle) == 1 else middle.mean(0)


# ---------------------------------------------------------------- by distance
@dataclass(frozen=True)
class MultiKrum(Centre):
    """Mean of the updates that lie nearest to their nearest neighbours.

    P. Blanchard, E. M. El Mhamdi, R. Guerraoui, J. Stainer, "Machine Learning with Adversaries: Byzantine Tolerant
    Gradient Descent", NeurIPS 2017, section 4 and section 6.  Of M clients, f of them malicious, the m of
    lowest score are averaged:  s(k) = sum of |u_k - u_j|^2 over the M - f - 2 others j nearest to k.

    Attributes:
        f: Malicious clients expected in a round; a round needs 2f + 3 replies.
        m: Clients averaged; None takes M - f.
    """

    f: Annotated[int, Ge(0)] = 1
    m: Annotated[int, Ge(1)] | None = None

    def init(self, method: object, params: Params, fed: Federation) -> object:
        """Return the method's state before round 1.

        Raises:
            ConfigError: If the cohort is too small for `f` malicious clients.
        """
        if fed.clients_per_round < 2 * self.f + 3:
            raise ConfigError(
                f"{type(self).__name__} with f = {self.f} needs 2f + 3 = {2 * self.f + 3} clients in a round, got "
                f"{fed.clients_per_round}; lower f or raise clients_per_round"
            )
        return super().init(method, params, fed)

    def centre(self, stacks: Params, parameter_names: frozenset[str]) -> Params:
        """Average the updates of lowest score; equal scores are taken in the order asked.

        Raises:
            QuorumError: If fewer than 2f + 3 clients replied.
        """
        count = len(next(iter(stacks.values())))
        if count < 2 * self.f + 3:
            raise QuorumError(
                f"{type(self).__name__} with f = {self.f} needs 2f + 3 = {2 * self.f + 3} replies, got {count}"
            )
        m = min(self.m or count - self.f, count)
        chosen = self.scores(stacks, parameter_names).argsort(stable=True)[:m].sort().values
        return {n: t[chosen[0]] if m == 1 else t[chosen].mean(0) for n, t in stacks.items()}

    def scores(self, stacks: Params, parameter_names: frozenset[str]) -> Tensor:
        """Compute the score of each client, (clients,) float64."""
        rows = compared(stacks, parameter_names)
        count = len(rows[0])
        # Differences, not products: a malicious client's large numbers would leave no digits for the others' distances.
        apart = torch.stack(
            [sum(((t - t[k]).square().sum(1) for t in rows), start=torch.zeros(())) for k in range(count)]
        )
        nearest = apart.fill_diagonal_(torch.inf).sort(1).values[:, : count - self.f - 2]
        return nearest.sum(1)


@dataclass(frozen=True)
class Krum(MultiKrum):
    """The one update that lies nearest to its nearest neighbours: MultiKrum with m = 1 (Blanchard et al. 2017).

    Attributes:
        f: Malicious clients expected in a round; a round needs 2f + 3 replies.
        m: Clients averaged: one.
    """

    m: Annotated[int, Interval(ge=1, le=1)] = 1


@dataclass(frozen=True)
class GeometricMedian(Centre):
    """The point with the least sum of distances to the clients' updates, by Weiszfeld's smoothed iteration.

    K. Pillutla, S. M. Kakade, Z. Harchaoui, "Robust Aggregation for Federated Learning", IEEE Transactions on Signal
    Processing 70, 2022, Algorithm 2 (RFA), with equal weights: from the mean v,

        b_k = 1 / max(nu, |v - u_k|),   v <- sum_k b_k u_k / sum_k b_k.

    Attributes:
        nu: Smoothing: a distance is taken to be at least this.
        iterations: Number of iterations; they end earlier when v moves by less than a millionth of its mean distance.
    """

    nu: Annotated[float, Gt(0.0)] = 1e-6
    iterations: Annotated[int, Ge(1)] = 100

    def centre(self, stacks: Params, parameter_names: frozenset[str]) -> Params:
        """Iterate from the mean."""
        rows = compared(stacks, parameter_names)
        share = torch.full((len(rows[0]),), 1.0 / len(rows[0]), dtype=torch.float64)
        point = [share @ t.cpu() for t in rows]
        rows = [t.cpu() for t in rows]
        for _ in range(self.iterations):
            far = torch.stack([(t - v).square().sum(1) for t, v in zip(rows, point, strict=True)]).sum(0).sqrt()
            share = 1.0 / far.clamp(min=self.nu)
            share /= share.sum()
            moved = [share @ t for t in rows]
            step = sum(float((a - b).square().sum()) for a, b in zip(moved, point, strict=True)) ** 0.5
            point = moved
            if step <= 1e-6 * float(far.mean()):
                break
        return {n: torch.tensordot(share.to(t), t, dims=1) for n, t in stacks.items()}


# ---------------------------------------------------------------- by size
@dataclass(frozen=True)
class NormBound(ReplyWrapper):
    """Updates scaled down to a norm by the server, since malicious clients do not; the method's own mean follows.

    Z. Sun, P. Kairouz, A. T. Suresh, H. B. McMahan, "Can You Really Backdoor Federated Learning?", arXiv:1911.07963,
    2019, section 4.1: u_k <- u_k min(1, S / |u_k|).  Statistics of normalisation layers are bounded apart from the
    parameters, always by a multiple of the median norm of theirs: they are longer by far, and a bound on both together
    would leave the parameters without one.

    Attributes:
        bound: The norm S of parameters; None takes a multiple of the median norm of the round's updates, of two middle
            ones the lower.
        multiple: That multiple.
    """

    bound: Annotated[float, Gt(0.0)] | None = None
    multiple: Annotated[float, Gt(0.0)] = 1.0

    def change(
        self, updates: Mapping[ClientId, Params], parameter_names: frozenset[str], fed: Federation
    ) -> Mapping[ClientId, Params]:
        """Scale the updates that are longer; the others stay as they are, to the bit."""
        names = next(iter(updates.values())).keys()
        parameters = names & parameter_names or names
        updates = self.bounded(updates, parameters, self.bound)
        return self.bounded(updates, names - parameters, None) if names - parameters else updates

    def bounded(
        self, updates: Mapping[ClientId, Params], names: Set[str], bound: float | None
    ) -> Mapping[ClientId, Params]:
        """Scale these tensors of the updates in which they are longer than the bound, or than the median allows."""
        # In the update's order, not that of a set, which is each process's own and rounds a sum otherwise.
        chosen = {c: {n: t.double() for n, t in u.items() if n in names} for c, u in updates.items()}
        sizes = {c: float(squared_norm(tensors).sqrt()) for c, tensors in chosen.items()}
        if bound is None:
            bound = self.multiple * statistics.median_low(sizes.values())
        return {
            c: u if sizes[c] <= bound else {n: t * (bound / sizes[c]) if n in names else t for n, t in u.items()}
            for c, u in updates.items()
        }
