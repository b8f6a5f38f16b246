"""Wrappers on the server, which change a round's uploads together, and robust means, that few clients cannot move far.

    us.wrap(us.FedAvg(), us.TrimmedMean(0.2))

A robust mean compares replies, so they are held until the last has come: a round takes the memory of its cohort.  The
rest of a reply, and the reductions themselves, stay the method's own.

Each mean is applied to the updates u_k of the M clients that replied, as differences from the model that each was sent.
Each upload of a reply is treated by itself: SCAFFOLD's two vectors have a centre each.  All but `NormBound` are
unweighted, because a malicious client can claim any number of examples.  Statistics of normalisation layers take part
in means and medians by coordinate; distances are of parameters alone, and the statistics follow the clients chosen.

Limits     Honest clients that differ are hard to tell from malicious ones: under label skew every rule here drops some
           of what few clients know.  None stops a malicious client from small steps in its own direction, round after
           round.  Clients that remember what they sent (SCAFFOLD, FedDyn, FedDC) do not see what the server made of it:
           the method's sums then no longer match their memories.
"""

import functools
import math
import statistics
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor

from unskew.errors import ConfigError, QuorumError
from unskew.protocol import Ask, ClientId, Federation, Plan, steps_of
from unskew.reduction import Folding, Reduced, Reduction
from unskew.tree import Params, squared_norm
from unskew.wrappers.base import StepTypes, Wrapper, layers, through
from unskew.wrappers.uploads import (
    Upload,
    UploadWrapper,
    differences,
    in_one_mean,
    require_uploads,
    sent_model,
    uploads_of,
    with_updates,
)


@dataclass(frozen=True)
class Together:
    """A request's reductions, computed from replies that are changed together once all have come.

    Attributes:
        reductions: The reductions.
        change: Function of the replies by client, in the order asked; yields those to reduce, one by one.
    """

    reductions: tuple[Reduction, ...]
    change: Callable[[dict[ClientId, Any]], Iterable[tuple[ClientId, Any]]]

    def start(self) -> dict[ClientId, Any]:
        """Return no replies."""
        return {}

    def add(self, partial: dict[ClientId, Any], client: ClientId, reply: Any) -> dict[ClientId, Any]:
        """Keep a reply."""
        partial[client] = reply
        return partial

    def merge(self, partial: dict[ClientId, Any], later: dict[ClientId, Any]) -> dict[ClientId, Any]:
        """Keep the replies of a later chunk."""
        partial.update(later)
        return partial

    def finish(self, partial: dict[ClientId, Any]) -> tuple[Any, Any]:
        """Return the reductions' results and their weights.

        Raises:
            QuorumError: If the replies do not suffice.
        """
        folding = Folding(self.reductions)
        for place, (client, reply) in enumerate(self.change(partial)):
            folding.add(place, client, reply)
        reduced = folding.finish()
        return reduced.values, reduced.weights


class ReplyWrapper(Wrapper):
    """Base class of wrappers that change all clients' uploads together, on the server."""

    adds_nothing = True
    on_server = True

    @abstractmethod
    def change(
        self, updates: Mapping[ClientId, Params], parameter_names: frozenset[str], fed: Federation
    ) -> Mapping[ClientId, Params]:
        """Change one upload field of all clients.

        Args:
            updates: Differences from the model sent, by client in the order asked; all have the same tensors and are
                finite.
            parameter_names: Names of the parameters; the other tensors are statistics of normalisation layers.
            fed: The federation in this round.

        Returns:
            Changed differences, for the same clients.

        Raises:
            QuorumError: If there are too few of them.
        """

    def applies_to(self, method: Any, name: str, types: StepTypes) -> bool:
        """False: clients do what the method says."""
        return False

    def check(self, method: Any) -> None:
        """Refuse a method whose uploads cannot be compared.

        Raises:
            ConfigError: If its clients send neither models nor updates, or compress them.
        """
        who = type(self).__name__
        require_uploads(method, who)
        for inner in layers(method):
            if isinstance(inner.by, UploadWrapper) and inner.by.Reply is not None:
                other = type(inner.by).__name__
                raise ConfigError(
                    f"{who} compares updates, and {other} before it sends another form of them; put {who} before "
                    f"{other}"
                )

    def permit(self, method: Any, request: Any, fed: Federation) -> None:
        """Refuse a request that uses uploads except by one mean or sum of all."""
        in_one_mean(method, request, type(self).__name__)

    def round(self, method: Any, state: Any, fed: Federation) -> Plan[Any]:
        """Run the method's round on replies that are changed together."""

        def change_request(request: Any) -> Any:
            self.permit(method, request, fed)
            if not isinstance(request, Ask) or not request.reduce or not (fields := uploads_of(method, request.step)):
                return request
            return replace(request, reduce=(Together(request.reduce, change(request, fields)),))

        def change(request: Ask, fields: tuple[Upload, ...]) -> Callable[..., Iterator[tuple[ClientId, Any]]]:
            models = {c: sent_model(message) or {} for c, message in request.to.items()}
            return functools.partial(self.changed, fields, models, fed)

        def change_answer(request: Any, got: Any) -> Any:
            if not isinstance(request, Ask) or not (fields := uploads_of(method, request.step)):
                return got
            if isinstance(got, Reduced):
                return Reduced(got.values[0], got.weights[0], got.replies)
            return dict(change(request, fields)(got))

        return (yield from through(method.round(state, self.server(method, fed)), change_request, change_answer))

    def changed(
        self,
        fields: tuple[Upload, ...],
        models: Mapping[ClientId, Params],
        fed: Federation,
        replies: Mapping[ClientId, Any],
    ) -> Iterator[tuple[ClientId, Any]]:
        """Yield the replies with changed uploads; leave out those that are not finite, unless all are so."""
        every = {c: differences(fields, reply, models[c]) for c, reply in replies.items()}
        sane = {c: u for c, u in every.items() if all(bool(t.isfinite().all()) for t in u.values())}
        if not sane:
            yield from replies.items()
            return
        new: dict[ClientId, Params] = {c: {} for c in sane}
        for i in range(len(fields)):
            part = {c: {k: t for k, t in u.items() if k.startswith(f"{i}/")} for c, u in sane.items()}
            part = {c: u for c, u in part.items() if u}
            if part:
                parameter_names = frozenset(f"{i}/{name}" for name in fed.layout.trainable)
                for c, u in self.change(part, parameter_names, fed).items():
                    new[c] |= u
        for c, update in new.items():
            same = all(t is every[c][name] for name, t in update.items())
            # What is not changed stays the same bits: a model minus another plus that one is not always itself.
            yield c, replies[c] if same else with_updates(fields, replies[c], models[c], update)


class Centre(ReplyWrapper):
    """Base class of robust means: every client counts as if it had sent the centre of all.

    The method's own mean is then that centre, whatever its weights; its own sum is that many times the centre.
    """

    @property
    def fewest(self) -> int:
        """Replies below which it stops no attack."""
        return 1

    def permit(self, method: Any, request: Any, fed: Federation) -> None:
        """Refuse a cohort that is too small, and what `ReplyWrapper` refuses."""
        if fed.clients_per_round < self.fewest:
            raise ConfigError(f"{self} needs {self.fewest} clients_per_round, got {fed.clients_per_round}; ask more")
        super().permit(method, request, fed)

    def weighting(self, method: Any) -> str:
        """Return "uniform": a mean of equal values is that value, whatever the weights."""
        return "uniform"

    @abstractmethod
    def centre(self, stacks: Params, parameter_names: frozenset[str]) -> Params:
        """Compute the centre of updates, (clients, ...) each; clients are compared by parameters alone."""

    def change(
        self, updates: Mapping[ClientId, Params], parameter_names: frozenset[str], fed: Federation
    ) -> Mapping[ClientId, Params]:
        """Give every client the centre of all."""
        if len(updates) < self.fewest:
            raise QuorumError(f"{self} needs {self.fewest} replies, got {len(updates)}")
        names = list(next(iter(updates.values())))
        centre = self.centre({n: torch.stack([u[n] for u in updates.values()]) for n in names}, parameter_names)
        return dict.fromkeys(updates, centre)


def compared(stacks: Params, parameter_names: frozenset[str]) -> list[Tensor]:
    """Return the tensors that clients are compared by, (clients, numbers) each; all tensors if none is a parameter."""
    chosen = [t for name, t in stacks.items() if name in parameter_names] or list(stacks.values())
    return [t.flatten(1).double() for t in chosen]


COPIES = 3
"""Copies of every upload that are alive at once: as it came, as a difference, and beside all others of its tensor."""


def held_uploads(method: Any) -> int:
    """Number of uploads held for each client of a cohort because a wrapper compares them; 0 without one."""
    compared = [layer.of for layer in layers(method) if isinstance(layer.by, ReplyWrapper)]
    return COPIES * max((len(uploads_of(inner, name)) for inner in compared for name in steps_of(inner)), default=0)


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

    Yin et al. 2018, definition 2: the floor(fraction M) largest and smallest of M values are left out.

    Attributes:
        fraction: Share left out at each end, beta; 0 is the unweighted mean.
    """

    fraction: Annotated[float, Interval(ge=0.0, lt=0.5)] = 0.2

    @property
    def fewest(self) -> int:
        """As many as have one to leave out at each end."""
        return math.ceil(1 / self.fraction - 1e-9) if self.fraction else 1

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
    """Mean of the updates nearest to their nearest neighbours.

    P. Blanchard, E. M. El Mhamdi, R. Guerraoui, J. Stainer, "Machine Learning with Adversaries: Byzantine Tolerant
    Gradient Descent", NeurIPS 2017, section 4 and section 6.  Of M clients, f of them malicious, the m of
    lowest score are averaged:  s(k) = sum of |u_k - u_j|^2 over the M - f - 2 others j nearest to k.

    Attributes:
        f: Malicious clients expected in a round; a round needs 2f + 3 replies.
        m: Clients averaged; None takes M - f.
    """

    f: Annotated[int, Ge(0)] = 1
    m: Annotated[int, Ge(1)] | None = None

    @property
    def fewest(self) -> int:
        """2f + 3."""
        return 2 * self.f + 3

    def centre(self, stacks: Params, parameter_names: frozenset[str]) -> Params:
        """Average the updates of lowest score; ties go in the order asked."""
        count = len(next(iter(stacks.values())))
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
    """The update nearest to its nearest neighbours: MultiKrum with m = 1 (Blanchard et al. 2017).

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
        nu: Smoothing: the least distance used.
        iterations: Most iterations; they stop once v moves by less than a millionth of its mean distance.
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
    """Updates scaled down to a norm by the server, as malicious clients would not; then the method's own mean.

    Z. Sun, P. Kairouz, A. T. Suresh, H. B. McMahan, "Can You Really Backdoor Federated Learning?", arXiv:1911.07963,
    2019, section 4.1: u_k <- u_k min(1, S / |u_k|).  Statistics of normalisation layers are bounded apart, always by a
    multiple of their median norm: they are longer by far, so a joint bound would leave the parameters unbounded.

    Attributes:
        bound: The norm S of parameters; None takes a multiple of the round's median norm, the lower of two middle ones.
        multiple: That multiple.
    """

    bound: Annotated[float, Gt(0.0)] | None = None
    multiple: Annotated[float, Gt(0.0)] = 1.0

    def change(
        self, updates: Mapping[ClientId, Params], parameter_names: frozenset[str], fed: Federation
    ) -> Mapping[ClientId, Params]:
        """Scale down longer updates; the others stay bit-identical."""
        names = next(iter(updates.values())).keys()
        parameters = names & parameter_names or names
        updates = self.bounded(updates, parameters, self.bound)
        return self.bounded(updates, names - parameters, None) if names - parameters else updates

    def bounded(
        self, updates: Mapping[ClientId, Params], names: Set[str], bound: float | None
    ) -> Mapping[ClientId, Params]:
        """Scale these tensors in updates where they are longer than the bound, or than the median allows."""
        # In the update's order, not that of a set, which is each process's own and rounds a sum otherwise.
        chosen = {c: {n: t.double() for n, t in u.items() if n in names} for c, u in updates.items()}
        sizes = {c: float(squared_norm(tensors).sqrt()) for c, tensors in chosen.items()}
        if bound is None:
            bound = self.multiple * statistics.median_low(sizes.values())
        return {
            c: u if sizes[c] <= bound else {n: t * (bound / sizes[c]) if n in names else t for n, t in u.items()}
            for c, u in updates.items()
        }
