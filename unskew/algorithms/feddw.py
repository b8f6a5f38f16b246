"""FedDW: a term, for any method, that pulls the classifier's class relations towards the federation's soft labels.

J. Liu, Y. Wang, N. Wang, J. Yang, X. Tao, "FedDW: Distilling Weights through Consistency Optimization in Heterogeneous
Federated Learning", arXiv 2412.04521, 2024.  Equation numbers are the paper's.

Notation   W       weight of the classification layer, (classes, features), without a bias
           C       classes;  D_c^n  examples of class c on client n
           sl_c^n  sum of client n's predicted probabilities over its examples of class c, (classes,)
           SL      soft labels, (C, C): row c is the mean prediction for examples of class c
           CR      class relations, (C, C): row c is softmax((W W^T)_c)
           mu      strength of the pull
Client     loss F_n + mu L_reg                                                                       (12)
           L_reg = ||CR - SL||_F^2 / C^2, which is at most 2 / C and has a gradient in W only        (11)
           then one pass over its training data, in evaluation mode and not augmented: sl_c^n        (4)
Server     SL_c <- sum_n sl_c^n / sum_n D_c^n over the clients heard; a class that none of them holds keeps its row (7)
           the models are averaged by the method that the term is added to; in FedDW that is FedAvg  (8)
Term       `DW` wraps any method whose clients train by `Sgd` and drives its plan and steps: every optimisation gets
           the term, messages carry SL beside what the method sends, replies the sums.  Held values, quorums and client
           memory are the method's own business.  A step that is annotated as a plain function trains nothing and is
           left alone.  One matrix serves all of a method's models.
Bias       The paper's layer has none.  A method cannot rebuild the network, so the bias is held at zero: models
           start with it at zero, and no optimisation may change it.
Privacy    The uploads tell class counts and how a model sees each class.  With `dp` every one has Gaussian noise, and
           is made by the model that the client was sent.  Whatever that model is, an example then changes one row of
           the sums by probabilities, whose L2 norm is at most 1, and one count by 1: the sensitivity is sqrt(2).  Of
           the model just trained every prediction depends on every example, and there is no such bound.
           epsilon is about the soft labels and counts of one client over all its rounds, given the models that it was
           sent and when it was asked; these may be chosen in view of its earlier uploads.  What it sends besides,
           its own models first of all, is released without a guarantee, and through it the models that it is sent
           later depend on its data, too.  The noise is a private draw: in a deployment it comes from a secret of the
           client's, in a simulation from the run's seed.
Departures Under `dp` SL is that of the models sent, a round of training behind; the paper has no noise.  A method whose
           clients are not sent one whole model cannot have it: what a client keeps depends on its data, and so does
           which of several models it takes.
           The paper leaves the first SL open: one-hot rows, as its code has them.  Its wire count has the class counts
           going down as well; no client needs the others', so C floats less travel.  A client that trains
           several times in a round counts once, with its last labels.  The paper's analysis takes L_reg for a function
           of A^T A; what is minimised here is eq. 11 as it stands, by autograd.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor
from torch.nn.functional import mse_loss

from unskew.algorithms.fedavg import FedAvg, Weighting
from unskew.algorithms.parts import classifier, weight_of
from unskew.algorithms.presets import presets
from unskew.errors import ConfigError, QuorumError
from unskew.info import ClassRelations, Embeddings, Mixtures, Privacy, Refused
from unskew.keys import Key
from unskew.protocol import (
    Ask,
    Aux,
    Batch,
    ClientId,
    Federation,
    Fitted,
    Layout,
    Me,
    Plan,
    Sgd,
    SgdConfig,
    Spending,
    Step,
    field_names,
    fold,
    held_at,
    hook,
    report_of,
    steps_of,
)
from unskew.reduction import Each, Reduced, Within
from unskew.schema import Search
from unskew.server import privacy
from unskew.server.distance import project
from unskew.server.optimise import Mean, ServerRule
from unskew.tree import Params, leaves
from unskew.wrappers.base import Wrapped, Wrapper, first_request, layers, name_of, step_types, through

M = TypeVar("M")


# ---------------------------------------------------------------- settings
@dataclass(frozen=True)
class MuDecay:
    """mu is multiplied by `factor` in every round that `every` divides."""

    every: Annotated[int, Ge(1)] = 9
    factor: Annotated[float, Interval(gt=0.0, le=1.0)] = 0.1


@dataclass(frozen=True)
class LabelNoise:
    """Gaussian noise on a client's soft labels and counts; neighbouring data sets differ by one example.

    Attributes:
        noise_multiplier: Standard deviation of the noise over the sensitivity sqrt(2); give this or `epsilon`.
        epsilon: Privacy budget of all uploads of a client together; sets the noise for `uploads` of them.
        delta: Probability that belongs to epsilon; below one over a client's number of examples.
        uploads: Number of uploads asked of a client in a run; afterwards SL relies on the others.  None is no limit.

    Raises:
        ConfigError: If the noise is not given by exactly one of the two, or a budget has no number of uploads.
    """

    noise_multiplier: Annotated[float, Gt(0.0)] | None = None
    epsilon: Annotated[float, Gt(0.0)] | None = None
    delta: Annotated[float, Interval(gt=0.0, lt=1.0)] = 1e-5
    uploads: Annotated[int, Ge(1)] | None = None

    def __post_init__(self) -> None:
        if (self.noise_multiplier is None) == (self.epsilon is None):
            raise ConfigError(
                "dp needs either noise_multiplier or epsilon, got "
                f"{'neither' if self.epsilon is None else 'both'}; give one of them"
            )
        if self.epsilon is not None and self.uploads is None:
            raise ConfigError(
                "dp.epsilon is a budget for a number of uploads; set dp.uploads, for example to the number of rounds"
            )

    @property
    def multiplier(self) -> float:
        """Return the noise multiplier in force.

        Raises:
            ConfigError: If it follows from epsilon, and the accountant is not installed.
        """
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        assert self.epsilon is not None
        assert self.uploads is not None
        return privacy.noise_multiplier(self.epsilon, self.uploads, self.delta)

    @property
    def sigma(self) -> float:
        """Return the standard deviation of the noise on each number of an upload."""
        return math.sqrt(2.0) * self.multiplier


# ---------------------------------------------------------------- mathematics
def class_relations(weight: Tensor) -> Tensor:
    """Compute CR: softmax of each row of W W^T, (classes, classes).

    >>> class_relations(torch.eye(2))
    tensor([[0.7311, 0.2689],
            [0.2689, 0.7311]])
    """
    return torch.softmax(weight @ weight.T, 1)


@dataclass(frozen=True)
class ClassRelation:
    """mu ||CR - SL||_F^2 / C^2 (eq. 11) of the weight called `layer`; between 0 and 2 mu / C."""

    mu: float
    layer: str

    def __call__(self, params: Params, aux: Aux) -> Tensor:
        """A scalar; its gradient is zero for every parameter but the layer's weight."""
        return self.mu * mse_loss(class_relations(params[self.layer]), aux["soft_labels"])


def sent_of(fits: Sequence[Fitted], reply: Any, layer: str) -> Params:
    """Choose among trained models the last whose `layer` is in the reply; if there is none, the last of all."""
    sent = {id(t) for _, t in leaves(reply) if isinstance(t, Tensor)}
    return next((f.params for f in reversed(fits) if id(f.params.get(layer)) in sent), fits[-1].params)


def add_soft_labels(sums: Tensor, batch: Batch) -> Tensor:
    """Add a batch to the sums of predicted probabilities by true class, (classes, classes) (eq. 4)."""
    return sums.index_add(0, batch.y, batch.logits.softmax(1) * batch.mask[:, None])


# ---------------------------------------------------------------- messages and state
@dataclass(frozen=True)
class SoftLabels:
    """A client's sums of predictions by class, (classes, classes), and its examples of each class, (classes,)."""

    sums: Tensor
    counts: Tensor


@dataclass(frozen=True)
class SoftLabelTotals:
    """Basis of SL: sums and counts over uploads, float64, and the number of uploads."""

    sums: Tensor
    counts: Tensor
    uploads: int


@dataclass(frozen=True)
class FedDWState(Generic[M]):
    """The server's state.

    Attributes:
        of: State of the method.
        layer: Name of the classification layer's weight.
        sl: SL, (classes, classes).
        totals: Sums and counts behind SL.
        asked: Number of uploads requested by client, if they are noised; every request may have been answered.
        refused: Uploads of the last round that were refused.
        idle: True if clients replied in the last round but none of them had trained the layer by `Sgd`.
    """

    of: M
    layer: str
    sl: Tensor
    totals: SoftLabelTotals
    asked: dict[int, int]
    refused: tuple[Refused, ...]
    idle: bool


@dataclass(frozen=True)
class FedDWMessage(Generic[M]):
    """The method's message, with SL, and a flag that asks for soft labels in return."""

    of: M
    sl: Tensor
    report: bool


@dataclass(frozen=True)
class FedDWReply(Generic[M]):
    """The method's reply, soft labels if asked for and trained, and a flag that the term was in use."""

    of: M
    soft: Each[SoftLabels | None]
    pulled: Each[bool]


def _of(client: ClientId, reply: FedDWReply[Any]) -> Any:
    return reply.of


def fault(soft: SoftLabels, classes: int, sigma: float = 0.0, n: int | None = None) -> str | None:
    """Explain why an upload cannot be used; None if it can.

    Without noise each row is a sum of as many distributions as its class has examples: it must add up to the count, to
    one in a thousand.  Counts must not add up to more than the client says that it has, but for what noise may add.

    Args:
        soft: The upload.
        classes: Classes of the task.
        sigma: Standard deviation of the noise on every number.
        n: Examples that the client says it has, None if it does not say.
    """
    shapes = tuple(soft.sums.shape), tuple(soft.counts.shape)
    if shapes != ((classes, classes), (classes,)):
        return f"soft labels of shapes {shapes[0]} and {shapes[1]} instead of {(classes, classes)} and {(classes,)}"
    if not (soft.sums.is_floating_point() and soft.counts.is_floating_point()):
        return f"soft labels of {soft.sums.dtype} and {soft.counts.dtype} instead of floating-point numbers"
    if not bool(soft.sums.isfinite().all() & soft.counts.isfinite().all()):
        return "soft labels that are not finite"
    total = float(soft.counts.double().sum())
    if n is not None and total > 1.001 * n + 10.0 * sigma * math.sqrt(classes):
        return f"soft labels of {total:g} examples, of a client that says it has {n}"
    if sigma:
        return None
    if bool((soft.sums < 0).any() | (soft.counts < 0).any()):
        return "negative soft labels or counts"
    off = (soft.sums.double().sum(1) - soft.counts.double()).abs()
    wrong = (off > 1e-3 * soft.counts.double().clamp(min=1.0)).nonzero().flatten().tolist()
    if wrong:
        c = wrong[0]
        return (
            f"the soft labels of class {c} sum to {float(soft.sums[c].sum()):g}, for {float(soft.counts[c]):g} examples"
        )
    return None


def received(layout: Layout, message: Any) -> Params | None:
    """Find the whole model in a message, which does not yet depend on the client's data: the first field that has all
    tensors; None if there is none."""
    names = {*layout.trainable, *layout.buffers}
    values = [message] if isinstance(message, dict) else [getattr(message, f) for f in field_names(message) or ()]
    return next((v for v in values if isinstance(v, dict) and v.keys() >= names), None)


def noised(soft: SoftLabels, sigma: float, key: Key) -> SoftLabels:
    """Add noise of standard deviation `sigma` to each number of the sums and counts."""

    def blur(t: Tensor, key: Key) -> Tensor:
        return t + sigma * key.normal(*t.shape).to(t)

    return SoftLabels(blur(soft.sums, key / "sums"), blur(soft.counts, key / "counts"))


def renewed(sl: Tensor, totals: SoftLabelTotals, momentum: float, sigma: float) -> Tensor:
    """Update SL after a round: means where there are examples, the old row elsewhere (eq. 7), mixed with the old SL.

    Under noise the count of a class that no client holds is pure noise: up to three standard deviations count as zero.
    The quotient is then not a distribution, and is projected onto the simplex.
    """
    floor = 3.0 * sigma * math.sqrt(totals.uploads)
    held = totals.counts > floor
    means = totals.sums / totals.counts.where(held, torch.ones_like(totals.counts))[:, None]
    if sigma:
        means = project(means)
    old = sl.to(means)
    return torch.where(held[:, None], (1.0 - momentum) * means + momentum * old, old).to(sl)


# ---------------------------------------------------------------- the wrapper
@dataclass(frozen=True)
class DW(Wrapper):
    """The class-relation term.

    Attributes:
        mu: Strength; 0 trains without the term, but SL is kept and shown.  L_reg is a mean over C^2 entries: the paper
            uses .1, and 10 for 100 classes.
        mu_decay: Decay of mu over the rounds; None keeps it constant.
        sl_history: "current" computes SL from this round's uploads (eq. 7), "cumulative" from all so far.
        sl_momentum: Share of the old SL in the new one.
        bias: "zero" holds the classification layer's bias at zero, as the paper has none; "keep" trains it.
        layer: Name of the classification layer, or of its weight; without a name it is the network's own.
        dp: Noise on the uploads, which are then those of the model that the client was sent; None sends them as they
            are, of the model it trained.

    Raises:
        ConfigError: If a method has the term already, or noise is asked for and the accountant is not installed.
    """

    needs: ClassVar[tuple[str, ...]] = (
        "classes",
        "classifier",
    )

    State: ClassVar[Any] = FedDWState
    Message: ClassVar[Any] = FedDWMessage
    Reply: ClassVar[Any] = FedDWReply

    mu: Annotated[float, Ge(0.0), Search(0.001, 10)] = 0.1
    mu_decay: MuDecay | None = None
    sl_history: Literal["current", "cumulative"] = "current"
    sl_momentum: Annotated[float, Interval(ge=0.0, lt=1.0)] = 0.0
    bias: Literal["zero", "keep"] = "zero"
    layer: str = ""
    dp: LabelNoise | None = None

    def mu_at(self, round: int) -> float:
        """Return mu in round `round`, counted from 1."""
        if self.mu_decay is None:
            return self.mu
        return self.mu * float(self.mu_decay.factor ** (round // self.mu_decay.every))

    def check(self, method: Any) -> None:
        """Refuse a method that has the term already."""
        if any(isinstance(inside.by, DW) for inside in layers(method)):
            raise ConfigError("FedDW has the class-relation term already; leave +dw out")
        if self.dp is not None:
            privacy.require()

    def informs(self, method: Any, step: str) -> bool:
        """True if a step is sent SL."""
        types = step_types(steps_of(method)[step])
        return types is not None and self.applies_to(method, step, types)

    def uses_private_randomness(self, method: Any) -> bool:
        """True if clients draw noise of their own."""
        return self.dp is not None or bool(hook(method, "uses_private_randomness"))

    def has_dp_noise(self, method: Any) -> bool:
        """True if the soft labels or the method's own uploads have differentially private noise."""
        return self.dp is not None or bool(hook(method, "has_dp_noise"))

    def covers_examples(self, method: Any) -> bool:
        """True if the noise on soft labels or the method's own covers single examples."""
        return self.dp is not None or bool(hook(method, "covers_examples"))

    def check_examples(self, method: Any, most: int) -> None:
        """Refuse a delta, of the noise on soft labels or the method's own, too large for a client of so many examples.

        Raises:
            ConfigError: If so.
        """
        if (inner := hook(method, "check_examples")) is not None:
            inner(most)
        if self.dp is not None:
            privacy.check_delta(self.dp.delta, most, "a client's examples")

    def spending(self, method: Any, step: str, msg: Any) -> tuple[Spending, ...]:
        """Return the cost of a reply: that of the method's own upload, and of soft labels if they are asked for."""
        inner, informed, dp = hook(method, "spending"), self.informs(method, step), self.dp
        own: tuple[Spending, ...] = inner(step, msg.of if informed else msg) if inner is not None else ()
        return (*own, Spending("soft labels", dp.multiplier, 1, dp.uploads)) if dp and informed and msg.report else own

    def init(self, method: Any, params: Params, fed: Federation) -> FedDWState[Any]:
        """Return the method's initial state, and one-hot soft labels.

        Raises:
            ConfigError: If the model's last layer is not linear, there is only one class, or noise is asked for where
                clients are not sent a whole model.
        """
        who = "FedDW" if type(method) is FedAvg else f"the class-relation term of {name_of(method)}"
        layer = classifier(fed.layout, params, fed.num_classes, who, self.layer)
        sl = torch.eye(fed.num_classes, dtype=params[layer].dtype, device=params[layer].device)
        inner = method.init(self.unbiased(fed.layout, params), self.server(method, fed))
        request = first_request(method, inner, self.server(method, fed)) if self.dp is not None else None
        if isinstance(request, Ask) and self.informs(method, request.step):
            for client, message in request.to.items():
                self.whole(method, fed.layout, request.step, client, message)
        return FedDWState(inner, layer, sl, nothing(sl), {}, (), False)

    def whole(self, method: Any, layout: Layout, step: str, client: ClientId, message: Any) -> Params | None:
        """Find the model for soft labels under noise; None if it is still with another client.

        Raises:
            ConfigError: If there is none in the message, or it never left the client.
        """
        model = received(layout, message)
        held = held_at(message).values()
        if model is None and (not held or any(h.owner == client for h in held)):
            raise ConfigError(
                f"noise on soft labels needs clients that are sent one whole model, and step {step!r} of "
                f"{name_of(method)} sends none; leave dp out, or use fedavg"
            )
        return model

    def round(self, method: Any, state: FedDWState[Any], fed: Federation) -> Plan[FedDWState[Any]]:
        """Run the method's round: SL is sent with each request, and updated from the replies (eq. 7)."""
        heard: dict[ClientId, SoftLabels] = {}
        asked, refused, pulled = dict(state.asked), [], []
        limit, sigma = (self.dp.uploads, self.dp.sigma) if self.dp is not None else (None, 0.0)

        def change_request(request: Any) -> Any:
            if not isinstance(request, Ask) or not self.informs(method, request.step):
                return request
            # A message for many clients stays one object: it is counted once, and handed to workers once.
            messages: dict[tuple[int, bool], FedDWMessage[Any]] = {}
            to = {}
            for c, m in request.to.items():
                report = limit is None or asked.get(c, 0) < limit
                to[c] = messages.setdefault((id(m), report), FedDWMessage(m, state.sl, report))
                if self.dp is not None and report:
                    self.whole(method, fed.layout, request.step, c, m)
                    asked[c] = asked.get(c, 0) + 1
            return replace(request, to=to, reduce=tuple(Within(r, _of) for r in request.reduce))

        def change_answer(request: Any, got: Any) -> Any:
            if not isinstance(request, Ask) or not self.informs(method, request.step):
                return got
            replies = got.replies if isinstance(got, Reduced) else got
            for c, reply in replies.items():
                pulled.append(reply.pulled)
                if reply.soft is not None:
                    n = getattr(reply.of, "n", None)
                    why = fault(reply.soft, fed.num_classes, sigma, n if isinstance(n, int) else None)
                    if why is None:
                        heard[c] = reply.soft
                    else:
                        refused.append(Refused(c, request.step, why))
            own = {c: reply.of for c, reply in replies.items()}
            return replace(got, replies=own) if isinstance(got, Reduced) else own

        try:
            inner = yield from through(method.round(state.of, self.server(method, fed)), change_request, change_answer)
        except QuorumError as error:
            if asked != state.asked or error.state is not None:  # what clients were asked for stays counted
                error.state = replace(state, of=error.after(state.of), asked=asked, refused=(), idle=False)
            raise
        idle = self.mu > 0.0 and bool(pulled) and not any(pulled)
        if not heard:
            return FedDWState(inner, state.layer, state.sl, state.totals, asked, tuple(refused), idle)
        before = state.totals if self.sl_history == "cumulative" else nothing(state.sl)
        totals = SoftLabelTotals(
            sum((s.sums.double() for s in heard.values()), start=before.sums),
            sum((s.counts.double() for s in heard.values()), start=before.counts),
            before.uploads + len(heard),
        )
        sl = renewed(state.sl, totals, self.sl_momentum, sigma)
        return FedDWState(inner, state.layer, sl, totals, asked, tuple(refused), idle)

    def work(
        self, method: Any, name: str, begin: Callable[..., Any], me: Me, msg: FedDWMessage[Any], memory: Any
    ) -> Step[tuple[FedDWReply[Any], Any]]:
        """Run a step of the method with the term in each of its optimisations; then compute soft labels (eq. 4).

        They are computed by the model just trained: of several, the last that is in the reply unchanged, else the last.
        Under noise the model received computes them, on which this step's training has no influence.
        """
        fits: list[Fitted] = []
        pulled: list[Sgd] = []
        weight, mu = weight_of(me.layout, self.layer), self.mu_at(me.round)
        assert weight is not None
        term = ClassRelation(mu, weight)

        def change_request(request: Any) -> Any:
            request = self.held(me.layout, request)
            if not isinstance(request, Sgd) or not mu or weight not in me.layout.select(request.config.trainable):
                return request
            pulled.append(request)
            return replace(request, terms=(*request.terms, term), aux={**request.aux, "soft_labels": msg.sl})

        def change_answer(request: Any, got: Any) -> Any:
            fits.extend([got] if isinstance(got, Fitted) else [])
            return got

        reply, kept = yield from through(begin(self.client(method, me), msg.of, memory), change_request, change_answer)
        soft = None
        dp = self.dp
        if fits and msg.report:
            model = sent_of(fits, reply, weight) if dp is None else self.whole(method, me.layout, name, me.id, msg.of)
            assert model is not None  # values held by another client have arrived
            sums = yield from fold(add_soft_labels, model, torch.zeros_like(msg.sl))
            soft = SoftLabels(sums, me.histogram.to(msg.sl))
            if dp is not None:
                soft = noised(soft, dp.sigma, me.private / "soft labels" / name)
        return FedDWReply(reply, soft, bool(pulled)), kept

    def validate_reply(self, method: Any, step: str, reply: Any, model: Params, layout: Layout) -> None:
        """Refuse what the method refuses; unusable soft labels do not invalidate the rest of a reply."""
        validate = hook(method, "validate_reply")
        if validate is not None:
            validate(step, reply.of if self.informs(method, step) else reply, model, layout)

    def personalise(self, method: Any, me: Me, params: Params | None, memory: Any) -> Step[Params]:
        """Return the method's personal model; the bias is not trained, and without SL there is no term."""
        begun = method.personalise(self.client(method, me), params, memory)
        model: Params = yield from through(begun, lambda request: self.held(me.layout, request), lambda _, got: got)
        return model

    def info(self, method: Any, state: FedDWState[Any]) -> tuple[object, ...]:
        """Report the method's own info, and SL, CR, class norms, refused uploads, privacy cost and what each party saw.

        Matrices are given for up to 20 classes, rounded to 5 digits; CR and the distance ||SL - CR||_F for the global
        model, if the method has one.
        """
        own = report_of(method, state.of)
        own_privacy = next((part.privacy for part in own if isinstance(part, Embeddings | Mixtures)), None)
        both = together(own_privacy, self.spent(state))
        small = len(state.sl) <= 20
        model = method.serve(state.of, None)
        weight = None if model is None else model[state.layer]
        cr = None if weight is None else class_relations(weight)
        term = ClassRelations(
            sl=rounded(state.sl) if small else None,
            counts=rounded(state.totals.counts) if small else None,
            cr=rounded(cr) if small and cr is not None else None,
            class_norms=rounded(weight.norm(dim=1)) if small and weight is not None else None,
            distance=None if cr is None else round(float((state.sl - cr).norm()), 6),
            privacy=both,
            warnings=(_IDLE,) if state.idle else (),
            ignored=state.refused,
        )
        return (*(replace(p, privacy=both) if isinstance(p, Embeddings | Mixtures) else p for p in own), term)

    def spent(self, state: FedDWState[Any]) -> Privacy:
        """Report the privacy loss of the client that was asked most often, and what each party saw."""
        if self.dp is None:
            server = "each participant's class counts and its sums of predictions by class, as they are"
            return Privacy("no guarantee", server, _CLIENTS_SEE)
        dp = self.dp
        most = max(state.asked.values(), default=0)
        return Privacy(
            epsilon=round(privacy.epsilon(dp.multiplier, most, dp.delta), 6),
            delta=dp.delta,
            uploads=most,
            covers="the soft labels and class counts of one client over all rounds, if an example is added or removed, "
            "given the models that it was sent. Its own models, and what the method sends besides, are not covered",
            server="each participant's class counts, and its sums by class of the predictions of the model that it was "
            f"sent, with noise of standard deviation {dp.sigma:.4g} on every number",
            clients=_CLIENTS_SEE,
        )

    # ------------------------------------------------------------------ the bias
    def bias_of(self, layout: Layout) -> str | None:
        """Return the name of the bias that is held at zero; None if there is none, or it is kept."""
        weight = weight_of(layout, self.layer)
        if self.bias == "keep" or weight is None or not weight.endswith("weight"):
            return None
        bias = weight.removesuffix("weight") + "bias"
        return bias if bias in layout.trainable else None

    def unbiased(self, layout: Layout, params: Params) -> Params:
        """Set the bias of a model to zero."""
        bias = self.bias_of(layout)
        return params if bias is None else {**params, bias: torch.zeros_like(params[bias])}

    def client(self, method: Any, me: Me) -> Me:
        """Let initial models that a client makes have zeros for the bias."""
        if self.bias_of(me.layout) is None:
            return me
        return replace(me, initial=self.unbiased(me.layout, me.initial))

    def server(self, method: Any, fed: Federation) -> Federation:
        """Let initial models that the server makes have zeros for the bias."""
        if self.bias_of(fed.layout) is None:
            return fed
        return replace(fed, initialise=lambda key: self.unbiased(fed.layout, fed.initialise(key)))

    def held(self, layout: Layout, request: Any) -> Any:
        """Restrict a request so that it does not train the bias."""
        bias = self.bias_of(layout)
        if bias is None or not isinstance(request, Sgd):
            return request
        chosen = layout.select(request.config.trainable)
        if bias not in chosen:
            return request
        rest = tuple(n for n in (*layout.trainable, *layout.buffers) if n in chosen and n != bias)
        if bias in layout.select(rest):
            raise ConfigError(f"{bias} begins with another tensor's name and cannot be left out; set bias = 'keep'")
        return replace(request, config=replace(request.config, trainable=rest))


_IDLE = (
    "clients did not train the classification layer by Sgd, so the class-relation term had no effect. It is not added "
    "to local code of a method, or to a frozen layer"
)
_CLIENTS_SEE = (
    "the mean predictions by class over those heard in the round before; of a class that one client alone holds, "
    "that client's"
)


def together(own: Privacy | None, term: Privacy) -> Privacy:
    """Combine the privacy statements of a method and of the term into one: both are sent, so both count.

    Each party saw both kinds of messages.  If both have an epsilon, they add up, and so do their deltas.  If only one
    has, the whole has no guarantee, and `covers` says what that one covers.
    """
    if own is None:
        if isinstance(term.epsilon, str):
            return term
        return replace(term, server=f"{term.server}; models, and what else the method sends, as they are")
    whole = Privacy("no guarantee", f"{own.server}; and {term.server}", f"{own.clients}; and {term.clients}")
    known = [p for p in (own, term) if not isinstance(p.epsilon, str)]
    worth = [f"epsilon {p.epsilon:g} at delta {p.delta:g} for {p.covers}" for p in known]
    if len(known) < 2:
        return replace(whole, covers=f"{worth[0]} alone" if known else "")
    return replace(
        whole,
        epsilon=round(own.bound + term.bound, 12),
        delta=round((own.delta or 0.0) + (term.delta or 0.0), 12),
        uploads=term.uploads,
        covers=f"all that is sent, as the sum of {worth[0]}; and of {worth[1]}",
    )


def nothing(sl: Tensor) -> SoftLabelTotals:
    """Return the totals of no uploads."""
    zeros = torch.zeros_like(sl, dtype=torch.float64)
    return SoftLabelTotals(zeros, zeros[0], 0)


def rounded(t: Tensor) -> Any:
    """Convert a vector or matrix to tuples, rounded to 5 digits."""
    values = t.double().mul(1e5).round().div(1e5).tolist()
    return tuple(tuple(row) if isinstance(row, list) else row for row in values)


# ---------------------------------------------------------------- makers
Preset = Literal["paper", "code"]

_ADAM = SgdConfig(lr=1e-3, optimizer="adam", local_epochs=5, batch_size=128)

PRESETS: dict[str, Mapping[str, Any]] = {
    # The paper's text; everything but the optimiser is FedDW's default.
    "paper": {"local": _ADAM},
    # What the released code did.
    "code": {
        "local": _ADAM,
        "mu_decay": MuDecay(9, 0.1),  # mu is divided by 10 in rounds 9, 18, ...: there is hardly a term after round 17
        "sl_history": "cumulative",  # uploads are never forgotten: the first, softest models count as much as the last
        "sl_momentum": 0.5,  # half of the old matrix is kept
        "bias": "keep",  # every network in the code has one
    },
}


@presets(PRESETS)
def FedDW(
    local: SgdConfig = SgdConfig(),
    mu: Annotated[float, Ge(0.0), Search(0.001, 10)] = 0.1,
    mu_decay: MuDecay | None = None,
    sl_history: Literal["current", "cumulative"] = "current",
    sl_momentum: Annotated[float, Interval(ge=0.0, lt=1.0)] = 0.0,
    bias: Literal["zero", "keep"] = "zero",
    layer: str = "",
    dp: LabelNoise | None = None,
    weighting: Weighting = "samples",
    personal: tuple[str, ...] = (),
    server: ServerRule = Mean(),
    preset: Preset | None = None,
) -> Wrapped:
    """FedAvg with the class-relation term (eq. 12).

    Args:
        local: The clients' optimisation.
        mu, mu_decay, sl_history, sl_momentum, bias, layer, dp: Settings of the term, as in DW.
        weighting, personal, server: Settings as in FedAvg.
        preset: Base settings: "paper" is the paper's text, "code" the released code; None is the text with the local
            optimisation of every other method.

    Raises:
        ConfigError: If noise is asked for and the accountant is not installed.
    """
    term = DW(mu, mu_decay, sl_history, sl_momentum, bias, layer, dp)
    return Wrapped(FedAvg(local, weighting, (), personal, server=server), term)
