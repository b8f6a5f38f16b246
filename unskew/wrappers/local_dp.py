"""Local differential privacy: each client clips its update and adds noise of its own before anything leaves it.

S. P. Kasiviswanathan, H. K. Lee, K. Nissim, S. Raskhodnikova, A. Smith, "What Can We Learn Privately?", SIAM J. Comput.
2011, definition 2.2, by the Gaussian mechanism of C. Dwork, A. Roth, "The Algorithmic Foundations of Differential
Privacy", 2014, appendix A.

Notation   u_k  all that client k uploads, as differences from the model that it was sent, in one vector
           C    clipping norm;  z noise multiplier
Client     u_k <- u_k min(1, C / |u_k|) + z C Normal(0, I),  the noise from the client's own secret                (1)
Privacy    All data of a client are covered, towards everyone, its server included, if they are replaced by any others:
           an upload moves by at most 2 C, so that it is a Gaussian mechanism of multiplier z / 2.  Several uploads
           add up (`unskew.server.privacy`, eq. 1); there is no amplification, because the server knows whom it asks.
           In a deployment each client keeps its own account on disk and refuses beyond the budget.
           Its number of examples is not covered: clients declare it when they join.
Departures Noise in floating point, whose low-order bits can leak.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Gt, Interval

from unskew.errors import ConfigError
from unskew.info import NoiseByClients, Privacy, PrivacyBudget
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
    steps_of,
)
from unskew.server import privacy
from unskew.tree import Params, hints_of, is_record_type, map_params, squared_norm
from unskew.wrappers.base import Wrapped, first_request, name_of, running, step_types, through
from unskew.wrappers.budgets import BudgetState, within_budget
from unskew.wrappers.uploads import UploadWrapper, sent_model, uploads_of


@dataclass(frozen=True)
class LocalDP(UploadWrapper):
    """Differential privacy of a client by itself, whoever gets its upload.

    Attributes:
        clip: Clipping norm of an upload, C.
        noise_multiplier: Standard deviation of the noise on every number over C, z.
        delta: Probability that belongs to epsilon; below one over the number of clients.
        max_epsilon: Budget of each client: it is asked no more when its next upload would exceed it, and refuses by its
            own account; None is no limit.

    Raises:
        ConfigError: If the budget does not allow one upload, or the accountant is not installed.
    """

    State: ClassVar[Any] = BudgetState

    clip: Annotated[float, Gt(0.0)] = 1.0
    noise_multiplier: Annotated[float, Gt(0.0)] = 1.0
    delta: Annotated[float, Interval(gt=0.0, lt=1.0)] = 1e-5
    max_epsilon: Annotated[float, Gt(0.0)] | None = None

    def __post_init__(self) -> None:
        privacy.require()
        if math.isinf(self.clip):
            raise ConfigError("noise is proportional to clip, so clip must be finite, got inf; set clip")
        if self.most == 0:
            raise ConfigError(
                f"max_epsilon = {self.max_epsilon:g} does not allow one upload, which costs {self.epsilon(1):.4g} with "
                f"noise_multiplier = {self.noise_multiplier:g}; raise one of the two"
            )

    def epsilon(self, uploads: int) -> float:
        """Compute the epsilon of a client's uploads together."""
        return privacy.epsilon(self.noise_multiplier / 2, uploads, self.delta)

    @property
    def most(self) -> int | None:
        """Number of uploads that the budget allows a client; None is no limit."""
        if self.max_epsilon is None:
            return None
        # T uploads are as one of multiplier z / (2 sqrt(T)); one more than this exceeds the budget.
        least = privacy.noise_multiplier(self.max_epsilon, 1, self.delta)
        return int((self.noise_multiplier / 2 / least) ** 2 * (1 + 1e-9))

    # ------------------------------------------------------------------ what is refused
    def check(self, method: Any) -> None:
        """Refuse a method that sends more than models, updates and numbers of examples.

        Raises:
            ConfigError: If so.
        """
        super().check(method)
        for step, begin in steps_of(method).items():
            types = step_types(begin)
            open_ = uncovered(types.reply, step) if types is not None else []
            if open_:
                raise ConfigError(
                    f"LocalDP adds noise to the models and updates that clients send, and {name_of(method)} sends "
                    f"{' and '.join(open_)} without it; use a method that sends nothing else, such as fedavg"
                )

    def check_around(self, method: Any, whole: Any) -> None:
        """Refuse a wrapper around this one whose clients may send more.

        Raises:
            ConfigError: If so.
        """
        if isinstance(whole, Wrapped) and not whole.by.adds_nothing:
            other = type(whole.by).__name__
            raise ConfigError(f"LocalDP adds noise to what it is given, and {other} sends more after it; leave one out")

    def init(self, method: Any, params: Params, fed: Federation) -> BudgetState[Any]:
        """Return the method's state before round 1, with nothing uploaded.

        Raises:
            ConfigError: If the first round would upload statistics of batches or sends no model to compare with, or
                delta is too large.
        """
        if self.noise_multiplier:
            privacy.check_delta(self.delta, len(fed.clients), "clients")
        state = super().init(method, params, fed)
        request = first_request(method, state, fed)
        sent = [sent_model(m) or {} for m in request.to.values()] if isinstance(request, Ask) else []
        statistics = [n for n in fed.layout.buffers if any(n in m for m in sent)]
        if statistics:
            raise ConfigError(
                f"LocalDP would add noise to statistics of batches ({statistics[0]}, ...), which may become negative; "
                'use a model without BatchNorm, or keep it on the clients: personal = ["norm"]'
            )
        return BudgetState(state, {}, False)

    # ------------------------------------------------------------------ on a client
    def work(
        self, method: Any, name: str, begin: Callable[..., Any], me: Me, msg: Any, memory: Any
    ) -> Step[tuple[Any, Any]]:
        """Run the step and change its uploads; training that diverges counts as none, as no refusal has noise."""

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
        """Return the cost of a reply: that of the method's own, and of one upload."""
        inner = hook(method, "spending")
        own: tuple[Spending, ...] = inner(step, msg) if inner is not None else ()
        cost = Spending("models and updates", self.noise_multiplier / 2, 1, self.most)
        return (*own, cost) if uploads_of(method, step) else own

    # ------------------------------------------------------------------ on the server
    def round(self, method: Any, state: BudgetState[Any], fed: Federation) -> Plan[BudgetState[Any]]:
        """Run the method's round with the clients that have budget left."""
        plan = method.round(state.of, fed)
        return (yield from within_budget(plan, state, self.most, lambda ask: bool(uploads_of(method, ask.step))))

    def has_dp_noise(self, method: Any) -> bool:
        """True: nothing else of a client's data may leave it."""
        return True

    def covers_replies(self, method: Any) -> bool:
        """True: a method with other replies is refused."""
        return True

    def uses_private_randomness(self, method: Any) -> bool:
        """True: clients draw noise of their own."""
        return True

    def planned(self, method: Any, rounds: int, clients: int, cohort: int) -> str:
        """Describe the privacy that a run will spend."""
        uploads = rounds if self.most is None else min(rounds, self.most)
        return f"epsilon {self.epsilon(uploads):.4g} at delta {self.delta:g} for a client that is asked {uploads} times"

    def training_noise(self, method: Any, seed: int, rounds: int, clients: int, cohort: int) -> privacy.ClientsNoise:
        """Return the noise of a training, of which several add up; fewer uploads where the budget ends it."""
        uploads = rounds if self.most is None else min(rounds, self.most)
        return privacy.ClientsNoise("one client's data", self.noise_multiplier / 2, 1.0, uploads, self.delta)

    def info(self, method: Any, state: BudgetState[Any]) -> tuple[object, ...]:
        """Report the method's own info, and the privacy spent by the client that was asked most often."""
        own = report_of(method, state.of)
        most, sigma = max(state.asked.values(), default=0), self.noise_multiplier * self.clip
        guarantee = Privacy(
            epsilon=round(self.epsilon(most), 6),
            server="each participant's number of examples, and its update with noise of standard deviation "
            f"{sigma:.4g} on every number",
            clients="the models",
            delta=self.delta,
            uploads=most,
            covers="all data of one client but their number, if they are replaced by any others, towards everyone",
        )
        stopped = f"no client that was drawn has any of its privacy budget left, epsilon {self.max_epsilon}"
        return (
            *own,
            PrivacyBudget(
                privacy=guarantee,
                clip=self.clip,
                noise=sigma,
                releases=most,
                budget=self.max_epsilon,
                by_clients=NoiseByClients(multiplier=self.noise_multiplier / 2, share=1.0),
                warnings=(stopped,) if state.stopped else (),
            ),
        )


def uncovered(reply: Any, name: str) -> list[str]:
    """Names of the fields of a reply, itself called `name`, that are neither marked uploads nor numbers of examples."""
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
