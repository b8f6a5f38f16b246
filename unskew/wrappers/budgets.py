"""Noise that clients add themselves, within privacy budgets; a client that has spent its own is no longer asked."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

from unskew.errors import ConfigError, QuorumError
from unskew.info import NoiseByClients, Privacy, PrivacyBudget
from unskew.protocol import Ask, Federation, Plan, SampleCount, Spending, UploadMark, report_of, steps_of
from unskew.server import privacy
from unskew.tree import hints_of, is_record_type
from unskew.wrappers.base import Wrapped, Wrapper, name_of, step_types, through

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
        for step, begin in steps_of(method).items():
            types = step_types(begin)
            if open_ := uncovered(types.reply, step) if types is not None else []:
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
        low, high = 0, 1
        while self.spent(method, high) <= self.max_epsilon:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.spent(method, middle) <= self.max_epsilon else (low, middle)
        return low

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

    def training_noise(self, method: Any, seed: int, rounds: int, clients: int, cohort: int) -> privacy.ClientsNoise:
        """Return the noise of a whole training, cut short by the budget; several of them add up."""
        z, share, each = self.mechanisms(method)
        return privacy.ClientsNoise(self.covered, z, share, each * self._within(method, rounds), self.delta)

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
            by_clients=NoiseByClients(multiplier=z, share=share),
            warnings=(f"no drawn client has any privacy budget left, epsilon {self.max_epsilon}",)
            if state.stopped
            else (),
        )
        return (*report_of(method, state.of), self.report(method, state, budget))


def uncovered(reply: Any, name: str) -> list[str]:
    """Names of a reply's fields that are neither marked uploads nor numbers of examples; the reply is `name`."""
    if reply in (type(None), SampleCount):
        return []
    if not is_record_type(reply):
        return [name]
    missing: list[str] = []
    for field, hint in hints_of(reply).items():
        marked = any(isinstance(mark, UploadMark) for mark in getattr(hint, "__metadata__", ()))
        if not marked and hint != SampleCount | None:
            missing += uncovered(hint, field)
    return missing
