"""FedDistill: clients exchange their models' mean outputs for each class; FedDistill+ exchanges the weights as well.

E. Jeong et al., "Communication-Efficient On-Device Machine Learning: Federated Distillation and Augmentation under
Non-IID Private Data", 2018 (FD), in the form that Z. Zhu, J. Hong, J. Zhou, "Data-Free Knowledge Distillation for
Heterogeneous Federated Learning", ICML 2021, compare with.  Equation numbers are this file's.

Notation   Z        teacher, (C, C): row c is the mean of logits for examples of class c
           z_c^k    the same over client k's own examples;  n_c^k  their number
           lam      strength
Client     F_k + lam mean over the batch of KL(softmax(Z_y) || softmax(f(x))), for labels y that Z knows      (1)
           then one pass over its training data in evaluation mode: z^k, n^k
Server     Z_c <- mean of z_c^k over the clients that replied and hold c; otherwise row c stays              (2)
           FedDistill+ also averages the weights, as FedAvg
Models     In FedDistill each client has its own and there is no global one; in FedDistill+ the server's goes to all.
Departures FD sums logits while the model still trains, and subtracts a client's own share from its teacher.
           Known defects of public code are left out: counts that begin at 1, sums never reset, means that take in empty
           rows of clients without the class.
           `compat = "feddw"` is the variant that FedDW's tables were made with: Z has probabilities and is one-hot at
           first; Z <- Z / 2 + (all uploads so far, pooled) / 2; and probabilities stand where the divergence has
           log-probabilities, so that the term is -sum_c Z_yc softmax(f(x))_c: a reward, and no divergence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from unskew.algorithms.fedavg import Weighting, mean_of
from unskew.algorithms.feddw import add_soft_labels
from unskew.algorithms.parts import (
    OneModel,
    OwnNetworks,
    TeacherMean,
    by_class,
    masked_mean,
    mean_by_class,
)
from unskew.protocol import (
    Aux,
    Batch,
    Federation,
    Me,
    Model,
    Plan,
    SampleCount,
    SgdConfig,
    Step,
    ask,
    fold,
    sgd,
    step,
)
from unskew.reduction import Each
from unskew.schema import Search
from unskew.tree import Params


@dataclass(frozen=True)
class Teacher:
    """Teacher Z, (classes, classes), and a mask of its known rows, (classes,) bool."""

    z: Float[Tensor, "classes classes"]
    known: Bool[Tensor, "classes"]


@dataclass(frozen=True)
class ClassOutputs:
    """A client's z^k, (classes, classes), zero for classes it lacks, and its n^k, (classes,) int64."""

    means: Float[Tensor, "classes classes"]
    counts: Int64[Tensor, "classes"]


@dataclass(frozen=True)
class Distil:
    """lam KL(softmax(Z_y) || softmax(f(x))), mean over the batch (eq. 1); at least 0, and 0 where they agree."""

    lam: float
    sees: ClassVar[Literal["features"]] = "features"

    def __call__(self, params: Params, aux: Aux, batch: Batch) -> Tensor:
        """A scalar."""
        teacher, student = aux["z"].log_softmax(1)[batch.y], batch.logits.log_softmax(1)
        kl = (teacher.exp() * (teacher - student)).sum(1)
        return self.lam * masked_mean(kl * aux["known"][batch.y], batch.mask)


@dataclass(frozen=True)
class Reward:
    """-lam <Z_y, softmax(f(x))>, mean over the batch: FedDW's code has this in place of the divergence."""

    lam: float
    sees: ClassVar[Literal["features"]] = "features"

    def __call__(self, params: Params, aux: Aux, batch: Batch) -> Tensor:
        """A scalar."""
        return -self.lam * masked_mean((aux["z"][batch.y] * batch.logits.softmax(1)).sum(1), batch.mask)


def add_logits(sums: Tensor, batch: Batch) -> Tensor:
    """Add a batch to the sums of logits by true class, (classes, classes)."""
    return sums.index_add(0, batch.y, batch.logits * batch.mask[:, None])


def taught(old: Teacher, outputs: Sequence[ClassOutputs], averaging: TeacherMean) -> Teacher:
    """Return the next teacher (eq. 2)."""
    new, held = mean_by_class([o.means for o in outputs], [o.counts for o in outputs], averaging)
    return Teacher(torch.where(held[:, None], new, old.z), old.known | held)


def untaught(params: Params, fed: Federation) -> Teacher:
    """Return a teacher without any known row."""
    like = next(iter(params.values()))
    z = like.new_zeros((fed.num_classes, fed.num_classes))
    return Teacher(z, torch.zeros(fed.num_classes, dtype=torch.bool, device=z.device))


# ---------------------------------------------------------------- own models
@dataclass(frozen=True)
class FedDistill(OwnNetworks):
    """Federated distillation: models stay on the clients, only their mean outputs for each class travel.

    Attributes:
        lam: Strength; at 0 every client trains by itself.
        averaging: Weights of the clients' outputs: "clients" weights the holders of a class equally, "examples" by
            their examples of it.
        local: The clients' optimisation.
    """

    needs: ClassVar[tuple[str, ...]] = (
        "classes",
        "classifier",
    )

    lam: Annotated[float, Ge(0.0), Search(0.01, 10)] = 1.0
    averaging: TeacherMean = "clients"
    local: SgdConfig = SgdConfig()

    def init(self, params: Params, fed: Federation) -> Teacher:
        """Return a teacher without any known row."""
        return untaught(params, fed)

    def round(self, state: Teacher, fed: Federation) -> Plan[Teacher]:
        """Teach a cohort; its outputs become the next teacher."""
        replies = yield from ask(self.train, {c: state for c in fed.sample()})
        return taught(state, list(replies.values()), self.averaging)

    @step
    def train(self, me: Me, msg: Teacher, memory: Params | None) -> Step[tuple[ClassOutputs, Params | None]]:
        """Train this client's own model with the teacher, then compute its outputs for each class."""
        terms = (Distil(self.lam),) if self.lam else ()
        w = yield from sgd(memory or me.initial, self.local, *terms, z=msg.z, known=msg.known.to(msg.z))
        sums = yield from fold(add_logits, w, torch.zeros_like(msg.z))
        return ClassOutputs(by_class(sums, me.histogram), me.histogram), w


# ---------------------------------------------------------------- shared weights
@dataclass(frozen=True)
class FedDistillPlusState:
    """The server's state, and its message: the model and the teacher.

    Attributes:
        params: The model.
        teacher: Z.
        sums, counts: Sums over all uploads so far, where FedDW's variant pools them; None elsewhere and in messages.
    """

    params: Params
    teacher: Teacher
    sums: Tensor | None
    counts: Tensor | None


@dataclass(frozen=True)
class FedDistillPlusReply:
    """A client's model, its training examples, and the model's outputs for each class."""

    params: Model
    n: SampleCount
    outputs: Each[ClassOutputs]


@dataclass(frozen=True)
class FedDistillPlus(OneModel):
    """FedAvg with a teacher.

    Attributes:
        lam: Strength; 0 is FedAvg.
        averaging: Weights of the clients' outputs, as in FedDistill.
        compat: "feddw" is the variant that FedDW's tables were made with, wrong divergence included; None is eq. 1.
        local: The clients' optimisation.
        weighting: Weights of the models, as in FedAvg.
    """

    needs: ClassVar[tuple[str, ...]] = (
        "classes",
        "classifier",
    )

    lam: Annotated[float, Ge(0.0), Search(0.01, 10)] = 1.0
    averaging: TeacherMean = "clients"
    compat: Literal["feddw"] | None = None
    local: SgdConfig = SgdConfig()
    weighting: Weighting = "samples"

    def init(self, params: Params, fed: Federation) -> FedDistillPlusState:
        """Return the initial model, and an empty teacher, or one with one-hot rows in FedDW's variant."""
        teacher = untaught(params, fed)
        if self.compat is None:
            return FedDistillPlusState(params, teacher, None, None)
        z = torch.eye(fed.num_classes, dtype=teacher.z.dtype, device=teacher.z.device)
        return FedDistillPlusState(params, Teacher(z, ~teacher.known), torch.zeros_like(z), torch.zeros_like(z[0]))

    def round(self, state: FedDistillPlusState, fed: Federation) -> Plan[FedDistillPlusState]:
        """Send model and teacher to a cohort; average the models, and make a teacher of their outputs."""
        message = FedDistillPlusState(state.params, state.teacher, None, None)
        to = {c: message for c in fed.sample()}
        answer = yield from ask(self.train, to, reduce=mean_of("params", self.weighting))
        params, outputs = answer.value, [r.outputs for r in answer.replies.values()]
        if state.sums is None or state.counts is None:
            return FedDistillPlusState(params, taught(state.teacher, outputs, self.averaging), None, None)
        counts = sum((o.counts.to(state.counts) for o in outputs), start=state.counts)
        sums = sum((o.means * o.counts.to(o.means)[:, None] for o in outputs), start=state.sums)
        # Rows of classes that were never reported remain one-hot.
        z = torch.where(counts[:, None] > 0, 0.5 * (state.teacher.z + by_class(sums, counts)), state.teacher.z)
        return FedDistillPlusState(params, Teacher(z, state.teacher.known), sums, counts)

    @step
    def train(self, me: Me, msg: FedDistillPlusState, memory: None) -> Step[tuple[FedDistillPlusReply, None]]:
        """Train the received model with the teacher, then compute its outputs for each class."""
        z, known = msg.teacher.z, msg.teacher.known
        term, say = (Reward(self.lam), add_soft_labels) if self.compat else (Distil(self.lam), add_logits)
        w = yield from sgd(msg.params, self.local, *([term] if self.lam else []), z=z, known=known.to(z))
        sums = yield from fold(say, w, torch.zeros_like(z))
        return FedDistillPlusReply(w, me.n, ClassOutputs(by_class(sums, me.histogram), me.histogram)), None
