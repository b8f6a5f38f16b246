"""Local differential privacy: each client clips its update and adds its own noise before sending anything.

S. P. Kasiviswanathan, H. K. Lee, K. Nissim, S. Raskhodnikova, A. Smith, "What Can We Learn Privately?", SIAM J. Comput.
2011, definition 2.2, by the Gaussian mechanism of C. Dwork, A. Roth, "The Algorithmic Foundations of Differential
Privacy", 2014, appendix A.

Notation   u_k  all that client k uploads, as differences from the model that it was sent, in one vector
           C    clipping norm;  z noise multiplier
Client     u_k <- u_k min(1, C / |u_k|) + z C Normal(0, I),  the noise from the client's own secret                (1)
Privacy    All data of a client are covered, towards everyone including the server, against replacement by any others.
           An upload moves by at most 2 C, so it is a Gaussian mechanism of multiplier z / 2.  Several uploads add up
           (`unskew.server.privacy`, eq. 1); nothing is amplified, as the server knows whom it asks.  In a deployment
           each client keeps its own account on disk and refuses beyond its budget.  Its number of examples is not
           covered: clients declare it when they join.
Departures Noise is in floating point, whose low-order bits can leak.

`ClientNoise` is common to all noise that clients add themselves: one that has spent its budget is no longer asked.
"""

import bisect
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import torch
from annotated_types import Gt, Interval

from unskew.errors import ConfigError, QuorumError
from unskew.info import Privacy, PrivacyBudget, ReleaseNoise
from unskew.protocol import (
    Ask,
    Federation,
    Fitted,
    Me,
    Plan,
    SampleCount,
    Sgd,
    Spending,
    Step,
    UploadMark,
    hook,
    report_of,
)
from unskew.server import privacy
from unskew.tree import Params, is_record_type, map_params, squared_norm
from unskew.wrappers.base import Wrapped, Wrapper, name_of, running, through, types_of
from unskew.wrappers.uploads import UploadWrapper, fields_of, sent_model, uploads_of

S = TypeVar("S")


@dataclass(frozen=True)
class BudgetState(Generic[S]):
    """The state of a method whose clients have budgets.

    Attributes:
        of: The method's state.
        asked: How often each client was asked for a reply that costs budget.
        stopped: True if no client that was asked had budget left.
    """

    of: S
    asked: Mapping[int, int]
    stopped: bool


class _Spent(Exception):
    """No client that a plan asks has budget left."""


def check_noise(by: Any) -> None:
    """Refuse a budget, or an infinite norm, without the noise it needs.

    Raises:
        ConfigError: If so, or if the accountant is missing.
    """
    if by.max_epsilon is not None and not by.noise_multiplier:
        raise ConfigError("max_epsilon needs noise: set noise_multiplier > 0, or leave max_epsilon out")
    if math.isinf(by.clip) and by.noise_multiplier:
        raise ConfigError("noise is proportional to clip, so clip must be finite, got inf; set clip")
    if by.noise_multiplier:
        privacy.require()


class ClientNoise(Wrapper):
    """Base class of wrappers whose clients add noise of their own.

    Attributes:
        covered: Whom the guarantee covers, in a word.
        guarantee: What it covers, in full.
        noised: What gets the noise.
        clip, noise_multiplier, delta, max_epsilon: Settings, as the wrapper's fields.
    """

    State: ClassVar[Any] = BudgetState
    covered: ClassVar[str]
    guarantee: ClassVar[str]
    noised: ClassVar[str]

    clip: float
    noise_multiplier: float
    delta: float
    max_epsilon: float | None

    @abstractmethod
    def mechanisms(self, method: Any) -> tuple[float, float, int]:
        """Return the multiplier over the sensitivity, the sampled share, and the mechanisms of one request."""

    @abstractmethod
    def costs(self, method: Any, step: str) -> bool:
        """True if a step's reply costs its client budget."""

    @abstractmethod
    def seen(self) -> str:
        """Say what the server sees of a client."""

    def report(self, method: Any, state: BudgetState[Any], budget: PrivacyBudget) -> PrivacyBudget:
        """Report the privacy spent; a wrapper may add to it."""
        return budget

    def check_replies(self, method: Any) -> None:
        """Refuse a method that sends anything without noise, or a budget too small for one reply."""
        for step, types in types_of(method).items():
            if open_ := uncovered(types.reply, step):
                raise ConfigError(
                    f"{type(self).__name__} adds noise to {self.noised}, and {name_of(method)} sends "
                    f"{' and '.join(open_)} without it; use a method that sends nothing else, such as fedavg"
                )
        if self.most(method) == 0:
            raise ConfigError(
                f"max_epsilon = {self.max_epsilon:g} does not allow one reply, which costs "
                f"{self.spent(method, 1):.4g} with noise_multiplier = {self.noise_multiplier:g}; raise one of the two"
            )

    def check_around(self, method: Any, whole: Any) -> None:
        """Refuse outer wrappers whose clients may send more."""
        if isinstance(whole, Wrapped) and not whole.by.adds_nothing:
            other = type(whole.by).__name__
            raise ConfigError(
                f"{type(self).__name__} adds noise to {self.noised}, and {other} around it sends more; leave one of "
                "them out"
            )

    # ------------------------------------------------------------------ what it costs
    def spent(self, method: Any, requests: int) -> float:
        """Compute the epsilon of a client asked so often; inf without noise."""
        z, share, each = self.mechanisms(method)
        return privacy.composed_epsilon((((z, share), requests * each),), self.delta)

    def most(self, method: Any) -> int | None:
        """Compute how often the budget lets a client be asked; None is no limit."""
        if self.max_epsilon is None:
            return None
        high = 1
        while self.spent(method, high) <= self.max_epsilon:
            high *= 2
        return bisect.bisect_right(range(high), self.max_epsilon, key=lambda n: self.spent(method, n)) - 1

    def spending(self, method: Any, step: str, msg: Any) -> tuple[Spending, ...]:
        """Return the cost of a reply."""
        if not self.costs(method, step) or not self.noise_multiplier:
            return ()
        (z, share, each), most = self.mechanisms(method), self.most(method)
        return (Spending(self.noised, z, each, None if most is None else most * each, share),)

    def planned(self, method: Any, rounds: int, clients: int, cohort: int) -> str:
        """Describe the privacy that a run will spend."""
        times = self._within(method, rounds)
        if math.isinf(spent := self.spent(method, times)):
            return "no differential privacy, as there is no noise"
        return f"epsilon {spent:.4g} at delta {self.delta:g} for {self.covered} after {times} requests"

    def training_noise(self, method: Any, seed: int, rounds: int, clients: int, cohort: int) -> privacy.Training:
        """Return the noise of a whole training, cut short by the budget; several of them add up."""
        z, share, each = self.mechanisms(method)
        return privacy.Training(self.covered, seed, z, share, each * self._within(method, rounds), self.delta)

    def _within(self, method: Any, rounds: int) -> int:
        most = self.most(method)
        return rounds if most is None else min(rounds, most)

    # ------------------------------------------------------------------ on the server
    def round(self, method: Any, state: BudgetState[Any], fed: Federation) -> Plan[BudgetState[Any]]:
        """Run the method's round with the clients that have budget left.

        Raises:
            QuorumError: If the method does; its `state` counts what clients were asked for.
        """
        counts, most = dict(state.asked), self.most(method)

        def change_request(request: Any) -> Any:
            if not isinstance(request, Ask) or not self.costs(method, request.step):
                return request
            to = {c: m for c, m in request.to.items() if most is None or counts.get(c, 0) < most}
            if request.to and not to:
                raise _Spent
            counts.update({c: counts.get(c, 0) + 1 for c in to})
            return replace(request, to=to)

        try:
            done = yield from through(method.round(state.of, fed), change_request, lambda _, got: got)
        except _Spent:
            return replace(state, stopped=True)
        except QuorumError as error:
            error.state = BudgetState(error.after(state.of), counts, False)
            raise
        return BudgetState(done, counts, False)

    def has_dp_noise(self, method: Any) -> bool:
        """True if there is noise: nothing else of a client's data may then leave it."""
        return self.noise_multiplier > 0.0

    def covers_replies(self, method: Any) -> bool:
        """True if there is noise: a method with other replies is refused."""
        return self.noise_multiplier > 0.0

    def uses_private_randomness(self, method: Any) -> bool:
        """True: clients draw noise of their own."""
        return True

    def info(self, method: Any, state: BudgetState[Any]) -> tuple[object, ...]:
        """Report the method's own info, and the privacy spent by the client asked most often."""
        most, (z, share, each) = max(state.asked.values(), default=0), self.mechanisms(method)
        spent = self.spent(method, most)
        budget = PrivacyBudget(
            privacy=Privacy(
                epsilon="no guarantee, as there is no noise" if math.isinf(spent) else round(spent, 6),
                server=self.seen(),
                clients="the models",
                delta=self.delta,
                uploads=most,
                covers=self.guarantee,
            ),
            clip=None if math.isinf(self.clip) else self.clip,
            noise=self.noise_multiplier * self.clip if self.noise_multiplier else 0.0,
            releases=most * each,
            budget=self.max_epsilon,
            each=ReleaseNoise(multiplier=z, sample=share),
            warnings=(f"no drawn client has any privacy budget left, epsilon {self.max_epsilon}",)
            if state.stopped
            else (),
        )
        return (*report_of(method, state.of), self.report(method, state, budget))


def uncovered(reply: Any, name: str) -> list[str]:
    """Names of a reply's fields that are neither marked uploads nor numbers of examples; the reply is `name`."""
    open_ = []
    for path, hint in fields_of(reply) if is_record_type(reply) else [((name,), reply)]:
        marked = any(isinstance(mark, UploadMark) for mark in getattr(hint, "__metadata__", ()))
        if not (marked or is_record_type(hint) or hint in (type(None), SampleCount, SampleCount | None)):
            open_.append(path[-1])
    return open_


# ---------------------------------------------------------------- noise on uploads
@dataclass(frozen=True)
class LocalDP(ClientNoise, UploadWrapper):
    """Differential privacy of a client by itself, whoever gets its upload.

    All data of a client but their number are covered, towards everyone including the server.  A mean over M clients
    divides the noise by the root of M, where `CentralDP` divides by M.  When a client answers is not covered.

    Attributes:
        clip: Clipping norm of an upload, C.
        noise_multiplier: Standard deviation of the noise on every number over C, z.
        delta: Probability that belongs to epsilon; below one over the number of clients.
        max_epsilon: Budget of each client, which is no longer asked when its next upload would exceed it, and then
            refuses by its own account; None is no limit.

    Raises:
        ConfigError: If the norm is infinite, or the accountant is not installed.
    """

    covered = "one client's data"
    guarantee = "all data of one client but their number, if they are replaced by any others, towards everyone"
    noised = "models and updates"

    clip: Annotated[float, Gt(0.0)] = 1.0
    noise_multiplier: Annotated[float, Gt(0.0)] = 1.0
    delta: Annotated[float, Interval(gt=0.0, lt=1.0)] = 1e-5
    max_epsilon: Annotated[float, Gt(0.0)] | None = None

    def __post_init__(self) -> None:
        check_noise(self)

    def mechanisms(self, method: Any) -> tuple[float, float, int]:
        """Return half of z, as an upload moves by up to 2 C; all the data, once."""
        return self.noise_multiplier / 2, 1.0, 1

    def costs(self, method: Any, step: str) -> bool:
        """True if the step uploads something."""
        return bool(uploads_of(method, step))

    def check(self, method: Any) -> None:
        """Refuse a method that sends more than models, updates and numbers of examples.

        Raises:
            ConfigError: If so, or if the budget is too small for one upload.
        """
        super().check(method)
        self.check_replies(method)

    def permit(self, method: Any, request: Any, fed: Federation) -> None:
        """Refuse a request that would upload batch statistics, or that sends no model to compare with."""
        super().permit(method, request, fed)
        sent = [sent_model(m) or {} for m in request.to.values()] if isinstance(request, Ask) else []
        if statistics := [n for n in fed.layout.buffers if any(n in m for m in sent)]:
            raise ConfigError(
                f"LocalDP would add noise to statistics of batches ({statistics[0]}, ...), which may become negative; "
                'use a model without BatchNorm, or keep it on the clients: personal = ["norm"]'
            )

    def init(self, method: Any, params: Params, fed: Federation) -> BudgetState[Any]:
        """Return the method's state before round 1, with nothing uploaded.

        Raises:
            ConfigError: If delta is too large, or the first request is refused.
        """
        privacy.check_delta(self.delta, len(fed.clients), "clients")
        return BudgetState(super().init(method, params, fed), {}, False)

    # ------------------------------------------------------------------ on a client
    def work(
        self, method: Any, name: str, begin: Callable[..., Any], me: Me, msg: Any, memory: Any
    ) -> Step[tuple[Any, Any]]:
        """Run the step and change its uploads; diverged training counts as none, as a refusal has no noise."""

        def as_none(request: Any, got: Any) -> Any:
            diverged = got is None and isinstance(request, Sgd)
            return Fitted(request.start, 1, request.config.lr_at(me.round), math.nan) if diverged else got

        def steady(*args: Any) -> Step[tuple[Any, Any]]:
            allow = lambda r: replace(r, may_diverge=True) if isinstance(r, Sgd) else r  # noqa: E731
            return through(running(begin(*args)), allow, as_none)

        return (yield from super().work(method, name, steady, me, msg, memory))

    def encode(self, me: Me, updates: Params, residual: Params | None) -> tuple[Params, Params]:
        """Clip updates together and add noise (eq. 1); one that is not finite counts as zero."""
        size = float(squared_norm(map_params(lambda t: t.double(), updates)).sqrt()) if updates else 0.0
        scale = min(1.0, self.clip / size) if size > 0.0 else 1.0
        key, sigma = me.private / "local dp", self.noise_multiplier * self.clip
        noised = {}
        for name, t in updates.items():
            clipped = t * scale if math.isfinite(size) else torch.zeros_like(t)
            noise = (key / name).normal(*t.shape).to(t.device)
            noised[name] = clipped + (noise.to(t) if t.is_floating_point() else noise) * sigma
        return noised, {}

    def spending(self, method: Any, step: str, msg: Any) -> tuple[Spending, ...]:
        """Return the cost of a reply: the method's own, and that of one upload."""
        inner = hook(method, "spending")
        own: tuple[Spending, ...] = inner(step, msg) if inner is not None else ()
        return (*own, *super().spending(method, step, msg))

    def seen(self) -> str:
        """Say what the server sees of a client."""
        sigma = self.noise_multiplier * self.clip
        return (
            "each participant's number of examples, and its update with noise of standard deviation "
            f"{sigma:.4g} on every number"
        )
