"""Central differential privacy: a cohort's clipped updates are summed, and the server adds noise to the sum.

H. B. McMahan, D. Ramage, K. Talwar, L. Zhang, "Learning Differentially Private Recurrent Language Models", ICLR 2018,
Algorithm 1 with flat clipping and the fixed-denominator estimator; for the clipping norm that follows a quantile,
G. Andrew, O. Thakkar, H. B. McMahan, S. Ramaswamy, "Differentially Private Learning with Adaptive Clipping", NeurIPS
2021, Algorithm 1.

Notation   u_k  all that the method's reductions take of client k's reply, as differences from the model that it was
                sent, in one vector
           C    clipping norm;  z noise multiplier;  M cohort size;  N number of clients
Clipping   v_k = u_k min(1, C / |u_k|);  0 for a client that does not reply, or whose update is not finite       (1)
Sum        s = sum_k v_k + z C Normal(0, I);  a mean is s / M, whoever replied                                   (2)
Adaptive   b = (1 / M) (sum_k (1[|u_k| <= C] - 1/2) + sigma_b Normal(0, 1)) + 1/2
           C <- C exp(-eta_C (b - gamma)),  with noise of (z^-2 - (2 sigma_b)^-2)^(-1/2) instead of z in (2), so that
           both releases together are one Gaussian mechanism of multiplier z                                     (3)
Privacy    One client's data are covered against replacement by any others: s moves by at most 2 C, so its Gaussian
           mechanism has the multiplier z / 2.  Cohorts are drawn uniformly, M of N without replacement.  This amplifies
           (`unskew.server.privacy`) towards those who do not know the cohorts.  A deployment draws them from a server
           secret but amplifies nothing: a client knows when it was asked, so the sums with the client asked most often
           count.  All clients have equal weight.  What a method does with s costs nothing more.  A method that reads
           anything else of a reply is refused.  In a deployment the server also refuses replies by comparing them; that
           is not covered.
Departures The sum's noise is not divided among clients; Poisson sampling is not offered.  Sums are in floating point,
           whose low-order bits can leak.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import torch
from annotated_types import Ge, Gt, Interval

from unskew.errors import ConfigError, QuorumError
from unskew.info import Privacy, PrivacyBudget, ReleaseNoise
from unskew.keys import Key
from unskew.protocol import Ask, ClientId, Collect, Federation, Plan, SampleCount, hook, report_of
from unskew.reduction import EACH, MeanOf, Reduced, Reduction, SumOf, Within
from unskew.server import privacy
from unskew.tree import Params, wide
from unskew.wrappers.base import StepTypes, Wrapped, Wrapper, layers, name_of, through, types_of
from unskew.wrappers.local_dp import check_noise
from unskew.wrappers.uploads import MARK_IT, fields_of, sent_model, uploads

S = TypeVar("S")


@dataclass(frozen=True)
class AdaptiveClip:
    """Clipping norm that follows a quantile of the updates' norms (eq. 3).

    Attributes:
        quantile: Share of the updates to leave unclipped, gamma.
        lr: Step size of the norm's logarithm, eta_C.
        noise: Standard deviation of the noise on the count of updates within the norm, sigma_b, in clients; over
            z / 2.  None takes the larger of a twentieth of the cohort, as in the paper, and 0.6 z.
    """

    quantile: Annotated[float, Interval(ge=0.0, le=1.0)] = 0.5
    lr: Annotated[float, Gt(0.0)] = 0.2
    noise: Annotated[float, Gt(0.0)] | None = None

    def noise_for(self, cohort: int, noise_multiplier: float) -> float:
        """Return sigma_b."""
        return max(cohort / 20, 0.6 * noise_multiplier) if self.noise is None else self.noise


@dataclass(frozen=True)
class CentralState(Generic[S]):
    """The method's state, and what was released so far.

    Attributes:
        of: The method's state.
        clip: The clipping norm, C.
        noise: Standard deviation of the last release's noise; 0 before it.
        releases: Number of noised sums; in a deployment, of those that may hold the client asked most often.  Undone
            rounds count.
        cohort: Size of the largest cohort, M; N in a deployment, as clients know their cohorts.
        clients: Number of clients, N.
        stopped: True if the budget allows no further round.
        asked: How often each client was asked, in a deployment.
    """

    of: S
    clip: float
    noise: float
    releases: int
    cohort: int
    clients: int
    stopped: bool
    asked: dict[ClientId, int]


@dataclass(frozen=True, eq=False)
class _Drawing(Federation):
    """A view of the federation that knows the cohorts it drew uniformly, in a deployment from the server's secret."""

    cohorts: list[tuple[ClientId, ...]] = field(default_factory=list)

    def sample(self, n: int | None = None, weights: Sequence[float] | None = None) -> tuple[ClientId, ...]:
        drawn = Federation.sample(replace(self, key=self.private), n, weights)
        if weights is None:
            self.cohorts.append(drawn)
        return drawn


class _Budget(Exception):
    """The budget allows no further release; `state` is what stays."""

    def __init__(self, state: CentralState[Any]) -> None:
        super().__init__()
        self.state = state


@dataclass(frozen=True)
class CentralDP(Wrapper):
    """Differential privacy of clients by a server trusted with their updates.

    All data of one client are covered, against replacement by any others, towards whoever sees the models.  The sum
    then moves by up to 2 C, so the noise counts half of what add-or-remove-one papers report for the same z.  A
    simulation counts the sampling of cohorts; a deployment does not, as clients know when they are asked.

    Attributes:
        clip: Clipping norm of a client's update, C, the first one if it adapts; a large one, as 1e9, does not clip.
        noise_multiplier: Standard deviation of the noise on the sum over C, z; 0 adds none.
        delta: Probability that belongs to epsilon; below one over the number of clients.
        max_epsilon: Budget: a round that would exceed it does not begin, and the model stays; None is no limit.
        adaptive: Lets the clipping norm follow the clients' updates; None keeps it.

    Raises:
        ConfigError: If a budget has no noise, the adaptive norm's noise leaves none for the sum, or the accountant is
            not installed.
    """

    State: ClassVar[Any] = CentralState
    adds_nothing = True
    on_server = True

    clip: Annotated[float, Gt(0.0)] = 1.0
    noise_multiplier: Annotated[float, Ge(0.0)] = 1.0
    delta: Annotated[float, Interval(gt=0.0, lt=1.0)] = 1e-5
    max_epsilon: Annotated[float, Gt(0.0)] | None = None
    adaptive: AdaptiveClip | None = None

    def __post_init__(self) -> None:
        check_noise(self)
        if math.isinf(self.clip) and self.adaptive:
            raise ConfigError("an adaptive norm needs a finite clip to begin with, got inf; set clip")
        least = self.noise_multiplier / 2
        if self.adaptive is not None and least and self.adaptive.noise is not None and self.adaptive.noise <= least:
            raise ConfigError(
                f"adaptive.noise must be > noise_multiplier / 2 = {least:g}, got {self.adaptive.noise:g}; raise it, or "
                "leave it out"
            )

    # ------------------------------------------------------------------ what is refused
    def check(self, method: Any) -> None:
        """Refuse a method that gets more than sums of replies.

        Raises:
            ConfigError: If so, or if it already has this noise.
        """
        self.check_replies(method)
        if any(isinstance(inside.by, CentralDP) for inside in layers(method)):
            raise ConfigError("the method already has CentralDP; leave one of them out")

    def check_around(self, method: Any, whole: Any) -> None:
        """Refuse outer wrappers that read single replies, or change one by another."""
        self.check_replies(whole)
        if isinstance(whole, Wrapped) and not isinstance(whole.by, CentralDP) and not whole.by.one_by_one:
            other = type(whole.by).__name__
            raise ConfigError(
                f"CentralDP bounds what one client changes, and {other} around it may let one client change what "
                "others send; leave one of them out"
            )

    def check_replies(self, whole: Any) -> None:
        """Refuse a method that reads single replies."""
        for step, types in types_of(whole).items():
            if seen := [path[-1] for path, hint in fields_of(types.reply) if EACH in getattr(hint, "__metadata__", ())]:
                raise ConfigError(
                    f"CentralDP covers sums only, and {name_of(whole)} reads {' and '.join(seen)} of every single "
                    f"reply to step {step!r}; use a method that needs means only, such as fedavg"
                )

    def applies_to(self, method: Any, name: str, types: StepTypes) -> bool:
        """False: clients do what the method says."""
        return False

    def permit(self, method: Any, request: Any, fed: Any) -> None:
        """Check that a request is covered."""

        def refuse(why: str) -> ConfigError:
            return ConfigError(f"CentralDP covers one sum over a cohort in each round, and {name_of(method)} {why}")

        if not isinstance(request, Ask | Collect):
            return
        if isinstance(request, Collect):
            raise refuse("collects values that clients hold; leave CentralDP out")
        step = request.step
        if not request.reduce:
            raise refuse(
                f"reads every single reply to step {step!r}; use a method that needs means only, such as fedavg"
            )
        fields = fields_of(types_of(method)[step].reply)
        counts = {path[-1] for path, hint in fields if hint in (SampleCount, SampleCount | None)}
        for reduction in request.reduce:
            linear = inner_of(reduction)
            if type(linear) not in (MeanOf, SumOf):
                raise refuse(f"takes {type(linear).__name__} of the replies to step {step!r}, which is not a sum")
            if linear.by is not None:
                raise refuse(f"makes a mean for each group of clients in step {step!r}, which reveals the groups")
            if linear.weight is not None and linear.weight not in counts:
                raise refuse(
                    f"weights replies to step {step!r} by what clients report, where all must have equal weight"
                )
        if set(request.to) not in ({*fed.clients}, *map(set, fed.cohorts)):
            raise refuse(f"asks clients that were not drawn uniformly for step {step!r}")
        models = [sent_model(message) for message in request.to.values()]
        if any(m is None or m.keys() != models[0].keys() for m in models):  # type: ignore[union-attr]
            raise refuse(
                f"sends no model in step {step!r} to take differences from, or several tables of tensors ({MARK_IT})"
            )
        if any(m[n] is not t for m in models for n, t in (models[0] or {}).items()):  # type: ignore[index]
            raise refuse(f"sends different models in step {step!r}, so that an absent client has no update of zero")
        if self.noise_multiplier and (statistics := [n for n in fed.layout.buffers if n in (models[0] or {})]):
            raise refuse(
                f"averages statistics of batches ({statistics[0]}, ...), which noise may make negative; use a model "
                'without BatchNorm, or keep it on the clients: personal = ["norm"]'
            )

    # ------------------------------------------------------------------ rounds
    def init(self, method: Any, params: Params, fed: Federation) -> CentralState[Any]:
        """Return the method's state before round 1, with nothing released.

        Raises:
            ConfigError: If the first request of the first round is not covered, or delta is too large.
        """
        if self.noise_multiplier:
            privacy.check_delta(self.delta, len(fed.clients), "clients")
        state = super().init(method, params, drawing(fed))
        return CentralState(state, self.clip, 0.0, 0, 0, len(fed.clients), False, {})

    def round(self, method: Any, state: CentralState[Any], fed: Federation) -> Plan[CentralState[Any]]:
        """Run the method's round with noised sums in place of its own.

        Raises:
            ConfigError: If the method makes a request that is not covered, or asks for a second sum.
            QuorumError: If the method raises it; its `state` counts a requested sum as released.
        """
        view = drawing(fed)
        after = state

        def change_request(request: Any) -> Any:
            nonlocal after
            if not isinstance(request, Ask | Collect):
                return request
            if after is not state:
                raise ConfigError(
                    f"CentralDP covers one sum in each round, and {name_of(method)} asks for a second one"
                )
            self.permit(method, request, view)
            assert isinstance(request, Ask)  # nothing else is permitted
            ask = request
            asked, before = state.asked, state.releases
            releases, cohort = before + 1, max(state.cohort, len(ask.to))
            if fed.rounds_begun:
                # A round that a crash or a divergence undid may have released a sum, with noise of its own.
                undone, cohort = fed.rounds_begun - fed.round, len(fed.clients)
                before = before if state.stopped else max(asked.values(), default=0) + undone
                asked = asked | {c: asked.get(c, 0) + 1 for c in ask.to}
                releases = max(asked.values()) + undone
            spent = self.epsilon(releases, len(fed.clients), cohort)
            if self.max_epsilon is not None and spent > self.max_epsilon:
                raise _Budget(replace(state, stopped=True, releases=before, cohort=cohort))
            model = sent_model(next(iter(ask.to.values())))
            assert model is not None
            z = self.sum_noise(len(ask.to))
            after = replace(state, releases=releases, cohort=cohort, asked=asked, noise=z * state.clip if z else 0.0)
            count_noise = self.adaptive.noise_for(len(ask.to), self.noise_multiplier) if self.adaptive and z else 0.0
            joint = NoisedSum(
                ask.reduce, model, state.clip, after.noise, count_noise, len(ask.to), fed.private / "central dp"
            )
            return replace(ask, reduce=(joint,))

        def change_answer(request: Any, got: Any) -> Any:
            nonlocal after
            if not isinstance(request, Ask):
                return got
            (values, within), (cohort,) = got.value, got.weights
            if self.adaptive is not None:
                step = self.adaptive.lr * (within - self.adaptive.quantile)
                after = replace(after, clip=after.clip * math.exp(-step))
            return Reduced(values, (cohort,) * len(values), got.replies)

        try:
            inner = yield from through(method.round(state.of, view), change_request, change_answer)
        except _Budget as spent:
            return spent.state
        except QuorumError as error:
            error.state = replace(after, of=error.after(state.of), clip=state.clip)
            raise
        return replace(after, of=inner)

    def sum_noise(self, cohort: int) -> float:
        """Return the standard deviation of the noise on the sum over C: z, or what the count's noise leaves (eq. 3)."""
        z = self.noise_multiplier
        if self.adaptive is None or not z:
            return z
        count = 2.0 * self.adaptive.noise_for(cohort, z)
        return math.sqrt(1.0 / (z**-2 - count**-2))

    # ------------------------------------------------------------------ what it costs
    def has_dp_noise(self, method: Any) -> bool:
        """True: nothing else of a client's data may leave it."""
        return True

    def uses_private_randomness(self, method: Any) -> bool:
        """True if there is noise; a deployed server draws it from its own secret."""
        return self.noise_multiplier > 0.0 or bool(hook(method, "uses_private_randomness"))

    def epsilon(self, releases: int, clients: int, cohort: int) -> float:
        """Compute the epsilon of so many rounds; inf without noise."""
        return privacy.cohort_epsilon(self.noise_multiplier, clients, cohort, releases, self.delta)

    def planned(self, method: Any, rounds: int, clients: int, cohort: int) -> str:
        """Describe the privacy that a run will spend."""
        spent = self.epsilon(rounds, clients, min(cohort, clients))
        if math.isinf(spent):
            return "no differential privacy, as there is no noise"
        if self.max_epsilon is not None and spent > self.max_epsilon:
            return f"epsilon {self.max_epsilon:g}, its budget, is less than the {spent:.4g} that {rounds} rounds cost"
        return f"epsilon {spent:.4g} at delta {self.delta:g} for one client's data after {rounds} rounds"

    def training_noise(self, method: Any, seed: int, rounds: int, clients: int, cohort: int) -> privacy.Training:
        """Return what a whole training will release, within the budget; several of them add up."""
        cohort, most, releases = min(cohort, clients), self.max_epsilon or math.inf, rounds
        while releases and self.epsilon(releases, clients, cohort) > most:
            releases -= 1
        z = self.noise_multiplier / 2
        return privacy.Training("one client's data", seed, z, (clients, cohort), releases, self.delta)

    def info(self, method: Any, state: CentralState[Any]) -> tuple[object, ...]:
        """Report the method's own info and the privacy spent so far."""
        own = report_of(method, state.of)
        spent = self.epsilon(state.releases, state.clients, state.cohort)
        drawn = state.cohort < state.clients
        guarantee = Privacy(
            epsilon="no guarantee, as there is no noise" if math.isinf(spent) else round(spent, 6),
            server="each participant's update and number of examples, as they are: it is trusted",
            clients="the models, which follow from noised sums"
            + (f" over {state.cohort} of {state.clients} clients, drawn without replacement" if drawn else ""),
            delta=self.delta,
            covers="all data of one client, if they are replaced by any others, towards everyone who sees the models"
            + (" and does not know whom a round asked" if drawn else ""),
        )
        stopped = f"the privacy budget, epsilon {self.max_epsilon}, allows no further round: the model stays as it is"
        return (
            *own,
            PrivacyBudget(
                privacy=guarantee,
                clip=None if math.isinf(state.clip) else state.clip,
                noise=state.noise,
                releases=state.releases,
                budget=self.max_epsilon,
                each=ReleaseNoise(multiplier=self.noise_multiplier / 2, sample=(state.clients, state.cohort)),
                warnings=(stopped,) if state.stopped else (),
            ),
        )


# ---------------------------------------------------------------- the sum
@dataclass
class _Partial:
    """Sums so far: of each reduction's table, of clients behind them, and of those within the clipping norm."""

    sums: list[Params] = field(default_factory=list)
    kinds: list[dict[str, torch.dtype]] = field(default_factory=list)
    anchored: list[bool] = field(default_factory=list)
    clients: int = 0
    within: int = 0


@dataclass(frozen=True, eq=False)
class NoisedSum:
    """One request's reductions as one noised sum of jointly clipped updates (eq. 1, 2).

    Attributes:
        reductions: Sums and means without groups; weights are ignored.
        model: The model sent to every client.
        clip: C.
        noise: Standard deviation of the noise on each number of the sum.
        count_noise: The same for the count of updates within C, in clients.
        cohort: M.
        key: Root of the noise.
    """

    reductions: tuple[Reduction, ...]
    model: Params
    clip: float
    noise: float
    count_noise: float
    cohort: int
    key: Key

    def start(self) -> _Partial:
        """Return the sum over no clients."""
        return _Partial()

    def add(self, partial: _Partial, client: int, reply: Any) -> _Partial:
        """Add a client's clipped update; one that is not finite counts as zero."""
        tables, anchored = zip(*(self._table(r, client, reply) for r in self.reductions), strict=True)
        size = math.sqrt(sum(self._squared(t, a) for t, a in zip(tables, anchored, strict=True)))
        if not math.isfinite(size):
            return partial
        if not partial.sums:
            partial.sums = [{n: torch.zeros_like(wide(t)) for n, t in table.items()} for table in tables]
            partial.kinds = [{n: t.dtype for n, t in table.items()} for table in tables]
            partial.anchored = list(anchored)
        within = size <= self.clip
        for total, table, whole in zip(partial.sums, tables, anchored, strict=True):
            for name, t in total.items():
                value = wide(table[name])
                if not within:
                    scale, anchor = self.clip / size, self._anchor(name, value, whole)
                    value = anchor + scale * (value - anchor)
                t.add_(value)
        partial.clients += 1
        partial.within += within
        return partial

    def merge(self, partial: _Partial, later: _Partial) -> _Partial:
        """Add the sums of a later chunk."""
        if not partial.sums or not later.sums:
            return partial if partial.sums else later
        for total, more in zip(partial.sums, later.sums, strict=True):
            for name, t in total.items():
                t.add_(more[name])
        partial.clients += later.clients
        partial.within += later.within
        return partial

    def finish(self, partial: _Partial) -> tuple[Any, Any]:
        """Return the reductions' values, the noised share of updates within C, and M.

        Raises:
            QuorumError: If no reply could be used.
        """
        if not partial.sums:
            raise QuorumError("a noised mean needs one client with a finite update, got none")
        values = []
        for i, (reduction, total) in enumerate(zip(self.reductions, partial.sums, strict=True)):
            for name, t in total.items():
                if partial.clients != self.cohort and partial.anchored[i]:  # an absent client did not move
                    t.add_(self._anchor(name, t, True), alpha=self.cohort - partial.clients)
                if self.noise:
                    t.add_((self.key / i / name).normal(*t.shape).to(t), alpha=self.noise)
                if type(inner_of(reduction)) is MeanOf:
                    t.div_(float(self.cohort))
            values.append({n: t.to(partial.kinds[i][n]) for n, t in total.items()})
        count = partial.within - partial.clients / 2
        if self.count_noise:
            count += self.count_noise * float((self.key / "within").normal(1))
        return (tuple(values), count / self.cohort + 0.5), float(self.cohort)

    def _table(self, reduction: Reduction, client: int, reply: Any) -> tuple[Params, bool]:
        """Return what a reduction takes of a reply, and True if it is a model rather than a difference."""
        while isinstance(reduction, Within):
            reply = reduction.part(client, reply)
            reduction = reduction.reduction
        assert isinstance(reduction, MeanOf | SumOf)
        field = reduction.of
        if isinstance(field, str):
            mark = next((u.kind for u in uploads(type(reply)) if u.path == (field,)), "update")
            return getattr(reply, field), mark == "model"
        return field(client, reply), False

    def _anchor(self, name: str, like: torch.Tensor, whole: bool) -> torch.Tensor:
        return wide(self.model[name]) if whole else torch.zeros_like(like)

    def _squared(self, table: Params, whole: bool) -> float:
        return sum(
            float((t.double() - (self.model[n].double() if whole else 0.0)).square().sum()) for n, t in table.items()
        )


# ---------------------------------------------------------------- what a method declares
def drawing(fed: Federation) -> _Drawing:
    """Return a view of the federation that remembers the cohorts it draws."""
    return _Drawing(**{name: getattr(fed, name) for name in Federation.__dataclass_fields__})


def inner_of(reduction: Any) -> Any:
    """Return the method's own reduction, without other wrappers'."""
    while isinstance(reduction, Within):
        reduction = reduction.reduction
    return reduction
