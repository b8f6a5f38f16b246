"""DP-SGD inside a client: each example's gradient is clipped, and noise added, so single examples are covered.

M. Abadi, A. Chu, I. Goodfellow, H. B. McMahan, I. Mironov, K. Talwar, L. Zhang, "Deep Learning with Differential
Privacy", CCS 2016, Algorithm 1.

Notation   n    the client's examples;  q  probability that an example is in a batch, the same in every step
           C    clipping norm of an example's gradient;  z  noise multiplier
           T    steps of a local training: its `local_steps`, or epochs / q, rounded up
Step       B    every example by itself with probability q: Poisson sampling, drawn in secret                      (1)
           g    (sum_{i in B} g_i min(1, C / |g_i|) + z C Normal(0, I)) / (q n)                                    (2)
           The gradient of the method's terms is added to g for the optimiser: they know only messages and parameters.
Privacy    One example of a client is covered, towards everyone, against replacement by one that adds nothing: n, which
           clients declare, stays the same.  Steps are Gaussian mechanisms of multiplier z on a Poisson sample, composed
           by dp-accounting (`unskew.server.privacy`, eq. 3); (1) makes that assumption true.  An example without a
           finite gradient counts as zero, and only the noised parameters tell whether training diverged.  A personal
           model is not covered, nor are other clients' copies of the same example.
Gradients  By torch.func, `vmap(grad)`, not Opacus: its hooks rewrite the module, which executors here call
           functionally, and its optimiser and loader would duplicate `SgdConfig`'s loop.
Departures A batch's size follows from q, so `batch_size` and `drop_last` are ignored.  A method that counts steps
           itself, as FedDC's divisor "code" does, counts T for every client.  Noise is in floating point, whose
           low-order bits can leak.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor

from unskew.errors import ConfigError, DivergedError, ProtocolError
from unskew.info import ExampleBudget, PrivacyBudget
from unskew.keys import Key
from unskew.local.optim import optimiser, views
from unskew.protocol import (
    Ask,
    Federation,
    Fitted,
    Layout,
    Local,
    Me,
    Run,
    Sgd,
    SgdConfig,
    Step,
    drive,
    hook,
    require_rate,
    sees_features,
    steps_of,
)
from unskew.server import privacy
from unskew.tasks.kind import needs_of
from unskew.tree import Params
from unskew.wrappers.base import Wrapped, first_request, name_of, running, through, types_of
from unskew.wrappers.local_dp import BudgetState, ClientNoise, check_noise
from unskew.wrappers.training import KeepOptimizer

ROOM = 2**24
"""Numbers of examples' gradients that are held at once."""


@dataclass(frozen=True)
class DPSGD(ClientNoise):
    """Differential privacy of single examples, by noise in a client's training.

    One example is covered against replacement by one that adds nothing; a person with k examples is covered k times
    less.  Batches are Poisson samples, so `batch_size` is ignored and an epoch is 1 / share steps.  BatchNorm is
    refused.

    Attributes:
        clip: Clipping norm of an example's gradient, C; a large one, as 1e9, does not clip.
        noise_multiplier: Standard deviation of the noise on a sum of gradients over C, z; 0 adds none.
        share: Probability that an example is in a batch, q; 1 takes all in every step.
        delta: Probability that belongs to epsilon; below one over a client's number of examples.
        max_epsilon: Budget of each client, which is no longer asked when its next training would exceed it; None is no
            limit.

    Raises:
        ConfigError: If a budget or an infinite norm has no noise, or the accountant is missing.
    """

    needs: ClassVar[tuple[str, ...]] = ("apart",)
    adds_nothing = True
    one_by_one = True
    covered = "one example of a client"
    guarantee = "one example of a client, if it is replaced by one that adds nothing, towards everyone"
    noised = "gradients"

    clip: Annotated[float, Gt(0.0)] = 1.0
    noise_multiplier: Annotated[float, Ge(0.0)] = 1.0
    share: Annotated[float, Interval(gt=0.0, le=1.0)] = 0.1
    delta: Annotated[float, Interval(gt=0.0, lt=1.0)] = 1e-5
    max_epsilon: Annotated[float, Gt(0.0)] | None = None

    def __post_init__(self) -> None:
        check_noise(self)

    def steps_in(self, config: SgdConfig) -> int:
        """Compute the steps of a local training, T."""
        return config.local_steps or math.ceil(round((config.epochs or 1) / self.share, 6))

    def counting(self, method: Any) -> Any:
        """Return the method with T as its number of steps, if it counts them."""
        if not hook(method, "counts_steps"):
            return method
        if isinstance(method, Wrapped):
            return replace(method, of=self.counting(method.of))
        return replace(method, local=replace(method.local, local_epochs=None, local_steps=self.steps_in(method.local)))

    def mechanisms(self, method: Any) -> tuple[float, float, int]:
        """Return z, q and T."""
        return self.noise_multiplier, self.share, self.steps_in(method.local)

    def costs(self, method: Any, step: str) -> bool:
        """True if the step trains."""
        types = types_of(method).get(step)
        return types is not None and types.works

    # ------------------------------------------------------------------ what is refused
    def check(self, method: Any) -> None:
        """Refuse a method that sends or counts more than one local training makes.

        Raises:
            ConfigError: If so, if it already has noise, or if the budget is too small for one training.
        """
        name = name_of(method)
        if not isinstance(hook(method, "local"), SgdConfig):
            raise ConfigError(f"DPSGD adds noise to clients' local training, and {name} has no setting `local` for one")
        require_rate(method.local, "DPSGD")
        if method.local.precision != "float32":
            raise ConfigError(
                f"DPSGD trains in float32, got local.precision = {method.local.precision!r}; leave it out"
            )
        if hook(method, "has_dp_noise"):
            raise ConfigError(f"DPSGD states one guarantee, and {name} has noise of its own; leave one of them out")
        if "groups" in needs_of(method):
            raise ConfigError(f"DPSGD covers gradients only, and {name} also counts examples of groups")
        self.check_replies(method)

    def check_around(self, method: Any, whole: Any) -> None:
        """Refuse outer wrappers whose clients may send more, that have their own noise, or that change training."""
        super().check_around(method, whole)
        if isinstance(whole, Wrapped) and isinstance(whole.by, KeepOptimizer):
            raise ConfigError("KeepOptimizer sees no training of DPSGD's that it could go on with; put it before DPSGD")
        if isinstance(whole, Wrapped) and hook(whole.by, "planned") is not None and not isinstance(whole.by, DPSGD):
            raise ConfigError(
                f"DPSGD states one guarantee, and {type(whole.by).__name__} around it another; leave one of them out"
            )

    def one_training(self, method: Any, step: str, request: Any, before: int) -> Sgd:
        """Check that a client's step asks only for the one training that is accounted for."""
        where = f"DPSGD covers one local training in a step, and step {step!r} of {name_of(method)}"
        if not isinstance(request, Sgd):
            raise ConfigError(f"{where} reads the client's data in its own loop ({type(request).__name__})")
        if before:
            raise ConfigError(f"{where} asks for a second one")
        if request.examples is not None or request.rows is not None:
            raise ConfigError(f"{where} trains on chosen examples")
        if any(sees_features(term) for term in request.terms):
            raise ConfigError(f"{where} has a term that reads batches, whose gradient has no bound")
        if self.steps_in(request.config) != self.steps_in(method.local):
            raise ConfigError(f"{where} trains longer or shorter than its setting `local` says")
        return request

    def init(self, method: Any, params: Params, fed: Federation) -> BudgetState[Any]:
        """Return the method's state before round 1, after trying one client's step without data.

        Raises:
            ConfigError: If the network has batch statistics, or the step asks for more than one training.
        """
        if fed.layout.buffers:
            raise ConfigError(
                f"DPSGD needs gradients of single examples, and this network has batch statistics "
                f"({fed.layout.buffers[0]}, ...): BatchNorm mixes examples; use a model without it"
            )
        state = method.init(params, fed)
        request = first_request(method, state, fed)
        if isinstance(request, Ask) and request.to:
            client, message = next(iter(request.to.items()))
            key, histogram = fed.key / "dry run", torch.zeros(fed.num_classes, dtype=torch.int64)
            me = Me(client, 1, histogram, 1, key, fed.layout, params, key, key)
            asked = 0

            def answer(training: Any) -> Fitted:
                nonlocal asked
                job = self.one_training(method, request.step, training, asked)
                asked += 1
                return Fitted(job.start, self.steps_in(job.config), job.config.lr_at(1), math.nan)

            drive(steps_of(method)[request.step](me, message, None), answer)
        return BudgetState(state, {}, False)

    # ------------------------------------------------------------------ on a client
    def work(
        self, method: Any, name: str, begin: Callable[..., Any], me: Me, msg: Any, memory: Any
    ) -> Step[tuple[Any, Any]]:
        """Run the method's step with noised training; hide class counts and losses, which have no noise."""
        asked = 0

        def change_request(request: Any) -> Run:
            nonlocal asked
            job = self.one_training(method, name, request, asked)
            asked += 1
            return Run(train, (self, me, job))

        def change_answer(request: Any, got: Fitted | None) -> Fitted | None:
            return None if got is None else replace(got, loss=math.nan)

        blind = replace(self.client(method, me), histogram=torch.zeros_like(me.histogram))
        if hook(method, "counts_steps"):
            begin = steps_of(self.counting(method))[name]
        done: tuple[Any, Any] = yield from through(running(begin(blind, msg, memory)), change_request, change_answer)
        return done

    def validate_reply(self, method: Any, step: str, reply: Any, model: Params, layout: Layout) -> None:
        """Refuse what the method refuses of a client with T steps."""
        validate = hook(self.counting(method), "validate_reply")
        if validate is not None:
            validate(step, reply, model, layout)

    def covers_examples(self, method: Any) -> bool:
        """True if there is noise."""
        return self.noise_multiplier > 0

    def check_examples(self, method: Any, most: int) -> None:
        """Refuse a delta too large for a client of so many examples."""
        if self.noise_multiplier:
            privacy.check_delta(self.delta, most, "a client's examples")

    def seen(self) -> str:
        """Say what the server sees of a client."""
        return "each participant's number of examples, and its model, trained with noise in every step"

    def report(self, method: Any, state: BudgetState[Any], budget: PrivacyBudget) -> ExampleBudget:
        """Add what each client has spent."""
        spent = {c: self.spent(method, k) for c, k in sorted(state.asked.items())}
        finite = {c: round(epsilon, 6) for c, epsilon in spent.items() if math.isfinite(epsilon)}
        return ExampleBudget(**vars(budget), spent=finite)


# ---------------------------------------------------------------- training
def batch(key: Key, n: int, share: float) -> Tensor:
    """Draw a Poisson sample (eq. 1): positions of examples, ascending, int64."""
    chance = (key.bits(n) & (2**53 - 1)).double() / 2.0**53
    return torch.nonzero(chance < share).flatten()


def clipped(gradients: Params, clip: float) -> Tensor:
    """Sum examples' gradients (m, ...) by parameter, each clipped to a norm, in one vector; an infinite one is zero."""
    rows = torch.cat([g.flatten(1) for g in gradients.values()], 1)
    norms = torch.linalg.vector_norm(rows.double(), dim=1)
    scale = torch.where(norms > clip, clip / norms, 1.0)
    finite = norms.isfinite()
    rows = torch.where(finite[:, None], rows, 0.0)
    return torch.where(finite, scale, 0.0).to(rows) @ rows


def train(local: Local, by: DPSGD, me: Me, job: Sgd) -> Fitted | None:
    """Train a client's model by noised gradients (eq. 1, 2).

    An example without a finite gradient adds nothing, as it cannot be clipped.  Under noise, a NaN or infinite loss
    does not end training: only noised values do.

    Raises:
        DivergedError: If a parameter, or without noise a loss, became NaN or infinite and may not; names client and
            round.
        ProtocolError: If the model lacks a tensor.
    """
    config, n, lr = job.config, len(local.y), job.config.lr_at(me.round)
    chosen = me.layout.select(config.trainable)
    names = [name for name in me.layout.trainable if name in chosen]
    if missing := [name for name in me.layout.trainable if name not in job.start]:
        raise ProtocolError(f"a model lacks {missing[0]}; complete it with what the client keeps before it is trained")
    device = local.y.device
    params = {name: t.detach().to(device) for name, t in job.start.items()}
    vector = torch.cat([params[name].flatten() for name in names])
    shapes = [params[name].shape for name in names]
    params |= dict(zip(names, views(vector, shapes), strict=True))
    state, key = {n: t.clone() for n, t in (job.state or {}).items()}, me.private / "dp sgd"
    update = optimiser(config, lr, vector, lambda v: views(v, shapes), state)
    at_once = max(1, min(n, ROOM // max(vector.numel(), 1)))
    steps, seen, losses = by.steps_in(config), 0, 0.0
    for i in range(steps):
        rows = batch(key / "batch" / i, n, by.share).to(device)
        total, loss = torch.zeros_like(vector), 0.0
        for j, part in enumerate(torch.split(rows, at_once) if len(rows) else ()):
            with (key / "draws" / i / j).ambient(device):
                each, values = local.example_gradients(params, names, part, key / "augment" / i / j)
            total += clipped(each, by.clip)
            loss += float(values.sum())
        if by.noise_multiplier:
            noise = (key / "noise" / i).normal(vector.numel()).to(vector)
            total.add_(noise, alpha=by.noise_multiplier * by.clip)
        total /= by.share * n
        if job.terms:
            total += _of_terms(job, params, names)
        with torch.no_grad():
            update(vector, total)
        seen, losses = seen + len(rows), losses + loss / max(len(rows), 1)
    # A loss has no noise, so that it may decide nothing that shows, as whether the client answers.
    if not (bool(torch.isfinite(vector).all()) and (by.noise_multiplier or math.isfinite(losses))):
        if job.may_diverge:
            return None
        raise DivergedError(
            f"round {me.round}, client {me.id}: a {'' if by.noise_multiplier else 'loss or '}parameter became NaN or "
            f"infinite at learning rate {lr:g}; lower lr or clip"
        )
    trained = {name: params[name].clone().to(t.device) for name, t in job.start.items()}
    return Fitted(trained, steps, lr, losses / steps, seen, None if job.state is None else state)


def _of_terms(job: Sgd, params: Params, names: list[str]) -> Tensor:
    """Compute the gradient of the terms' sum, as one vector."""
    leaves = {name: t.detach().clone().requires_grad_(name in names) for name, t in params.items()}
    with torch.enable_grad():
        terms: tuple[Any, ...] = job.terms
        value = sum(term({name: leaves[name] for name in names}, job.aux) for term in terms)
        if not isinstance(value, Tensor) or not value.requires_grad:
            return torch.zeros(())
        gradients = torch.autograd.grad(value, [leaves[name] for name in names], materialize_grads=True)
    return torch.cat([g.flatten() for g in gradients])
