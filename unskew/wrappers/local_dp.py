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
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from annotated_types import Gt, Interval

from unskew.errors import ConfigError
from unskew.protocol import (
    Ask,
    Federation,
    Fitted,
    Me,
    Sgd,
    Spending,
    Step,
    hook,
)
from unskew.server import privacy
from unskew.tree import Params, map_params, squared_norm
from unskew.wrappers.base import first_request, running, through
from unskew.wrappers.budgets import BudgetState, ClientNoise, check_noise
from unskew.wrappers.uploads import UploadWrapper, sent_model, uploads_of


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

    def init(self, method: Any, params: Params, fed: Federation) -> BudgetState[Any]:
        """Return the method's state before round 1, with nothing uploaded.

        Raises:
            ConfigError: If the first round would upload batch statistics or sends no model to compare with, or delta is
                too large.
        """
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
