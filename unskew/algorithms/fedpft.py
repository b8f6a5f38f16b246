"""One-shot by Gaussian mixtures: clients send mixtures of each label's latents, and all clients sample from them.

M. Beitollahi et al., "Parametric Feature Transfer: One-shot Federated Learning with Foundation Models", 2024.  Equation
numbers are this file's.  It is the cheap rival of FedDistr (feddistr.py): of the same prior it uses only encoder and
decoder, and nothing is learned by gradients before the classifier.

Notation   z      latent of a client's image, z = E(x), D numbers;  E, decoder  the prior's
           c      a component: a cluster of one label's latents at one client, with n_c images
Client     of the images of each label:  m clusters by k-means;  of each its mean, its variance by coordinate and n_c
                                                                                                        (1)
Server     puts all components together and sends them to all clients
Client     I images of each label, shared out over its components by n_c:  decoder(mean + deviation N(0, 1)), the same
           on all clients;  trains a classifier on them and its own images, every label equally often   (2)
Server     the same with the images alone: the global model
Departures The paper trains a linear head on features of a foundation model, which is all its clients have in common.
           Here latents are decoded to images, so that the task's own network is trained and methods can be compared.
           Its server draws as many features of a client's label as the client has images of it, and trains one head
           for all; here labels count alike whatever their frequency, clients train classifiers of their own with their
           own images, and images are jittered in training, as in feddistr.py.
           Mixtures are k-means clusters, not fitted by EM; covariances are diagonal.
Counts     no client's total count exceeds twice that of the next largest, whatever it reports
Later      Rounds after the first change nothing, and say so.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from jaxtyping import Float32, Int64
from torch import Tensor

from unskew.algorithms.feddistr import PER_CLUSTER, fitting, looked_up, lowered, mixed, travelling
from unskew.algorithms.parts import OneModel, OwnNetworks
from unskew.errors import DataError
from unskew.info import Mixtures, Privacy, Refused
from unskew.keys import Key
from unskew.protocol import (
    ClientId,
    Examples,
    Federation,
    Fitted,
    Local,
    Me,
    Plan,
    Sgd,
    SgdConfig,
    Step,
    ask,
    run,
    step,
)
from unskew.server.alignment import ABSURD, fair, faults, usual
from unskew.server.kmeans import kmeans
from unskew.tree import Params

_OVER = "FedPFT is over after its first round: the later rounds of this experiment change nothing for it"


# ---------------------------------------------------------------- messages
@dataclass(frozen=True)
class ComponentsRequest:
    """A request for components."""


@dataclass(frozen=True)
class Components:
    """Means and variances of components, their labels and image counts (eq. 1)."""

    means: Float32[Tensor, "components numbers"]
    variances: Float32[Tensor, "components numbers"]
    labels: Int64[Tensor, "components"]
    counts: Int64[Tensor, "components"]


@dataclass(frozen=True)
class Mixture:
    """All clients' components, and the seed of the images."""

    components: Components
    seed: int


@dataclass(frozen=True)
class ClassifierDone:
    """Notice that a client's classifier is trained."""


@dataclass(frozen=True)
class FedPFTState:
    """The server's state: the global model if there is one, the components distributed, and the last round's refusals
    and warnings.
    """

    params: Params | None
    components: Components | None
    ignored: tuple[Refused, ...] = ()
    warnings: tuple[str, ...] = ()


# ---------------------------------------------------------------- on the clients
def summary(local: Local, prior: str, most: int) -> Components:
    """Compute a client's components (eq. 1)."""
    means: list[Tensor] = []
    variances: list[Tensor] = []
    labels: list[int] = []
    counts: list[int] = []
    for y in torch.unique(local.y).tolist():
        z = local.imagery(prior).encode(local.x[local.y == y]).flatten(1).float().cpu()
        assignment = kmeans(z, max(1, min(most, len(z) // PER_CLUSTER)), local.key / "clusters" / y)
        for j in range(int(assignment.max()) + 1):
            part = z[assignment == j]
            means.append(part.mean(0))
            variances.append(part.var(0, correction=0))
            labels.append(int(y))
            counts.append(len(part))
    nothing = torch.empty(0, 0)
    return Components(
        torch.stack(means) if means else nothing,
        torch.stack(variances) if variances else nothing,
        torch.tensor(labels, dtype=torch.int64),
        torch.tensor(counts, dtype=torch.int64),
    )


@dataclass(frozen=True)
class Decode:
    """Decodes examples from components, with or without this device's own (eq. 2)."""

    prior: str
    images: int
    own: bool

    def __call__(self, local: Local, mixture: Mixture) -> Examples:
        """Return the examples."""
        return mixed(local, *self.made(local, mixture), self.own)

    def made(self, local: Local, mixture: Mixture) -> tuple[Tensor, Tensor]:
        """Generate `images` inputs of each label, and their labels.

        Raises:
            DataError: If components do not have the shape of the prior's latents.
        """
        imagery, parts = local.imagery(self.prior), mixture.components
        g = (Key(mixture.seed) / "images").generator()
        shape = imagery.latent_shape
        if parts.means.ndim != 2 or parts.means.shape[1] != math.prod(shape):
            raise DataError(
                f"components must have the {math.prod(shape)} numbers of a latent of {self.prior}, got "
                f"{tuple(parts.means.shape)}; server and clients need the same prior"
            )
        x, y = [], []
        for label in torch.unique(parts.labels).tolist():
            mine = (parts.labels == label).nonzero()[:, 0]
            weights = parts.counts[mine].double().clamp(min=1.0)
            which = mine[torch.multinomial(weights, self.images, replacement=True, generator=g)]
            noise = torch.randn(self.images, parts.means.shape[1], generator=g)
            z = parts.means[which] + parts.variances[which].sqrt() * noise
            x.append(imagery.decode(z.reshape(-1, *shape)))
            y.append(torch.full((self.images,), label))
        return torch.cat(x), torch.cat(y)


# ---------------------------------------------------------------- method
@dataclass(frozen=True)
class FedPFT(OneModel, OwnNetworks):
    """One round of Gaussian mixtures.

    Attributes:
        prior: Prior, as in FedDistr.
        m: Maximum number of components of a label; each has at least 12 images on average.
        images: Number of images made of each label.
        classifier: Optimisation of the classifier, from scratch; `[local]` does not apply to it.
        server_model: True to train a global model on the server's own device, on images only.
    """

    needs: ClassVar[tuple[str, ...]] = (
        "classes",
        "classifier",
        "images",
    )

    prior: str = "built-in"
    m: Annotated[int, Ge(1)] = 3
    images: Annotated[int, Ge(1)] = 150
    classifier: SgdConfig = SgdConfig(0.001, local_steps=800, batch_size=64, optimizer="adam")
    server_model: bool = True

    def init(self, params: Params, fed: Federation) -> FedPFTState:
        """Return the initial model, without components."""
        return FedPFTState(params if self.server_model else None, None)

    def round(self, state: FedPFTState, fed: Federation) -> Plan[FedPFTState]:
        """Run the whole method in round 1, nothing later."""
        if state.components is not None:
            return replace(state, ignored=(), warnings=(_OVER,))
        replies = yield from ask(self.summarise, dict.fromkeys(fed.sample(), ComponentsRequest()))
        refused = unusable(replies, fed.num_classes, looked_up(fed, _width, self.prior), self.m)
        ignored = tuple(Refused(c, "summarise", why) for c, why in sorted(refused.items()))
        taken = {c: r for c, r in replies.items() if c not in refused and len(r.labels)}
        if not taken:
            return FedPFTState(state.params, None, ignored, ("no client sent components of use",))
        counts = fair({c: r.counts.cpu() for c, r in taken.items()})
        parts = Components(
            torch.cat([r.means.cpu().float() for r in taken.values()]),
            torch.cat([r.variances.cpu().float() for r in taken.values()]),
            torch.cat([r.labels.cpu() for r in taken.values()]),
            torch.cat(list(counts.values())),
        )
        mixture = Mixture(parts, travelling(fed.key / "fedpft"))
        yield from ask(self.learn, dict.fromkeys(fed.clients, mixture), at_least=0)
        params = state.params
        if self.server_model:
            params = fed.run_on_server(lambda me: self.taught(me, mixture, own=False))
        warnings = [lowered(c) for c, r in taken.items() if not torch.equal(counts[c], r.counts.cpu())]
        return FedPFTState(params, parts, ignored, (*warnings, *fitting(fed, self.prior)))

    @step
    def summarise(
        self, me: Me, msg: ComponentsRequest, memory: Params | None
    ) -> Step[tuple[Components, Params | None]]:
        """Return this client's components (eq. 1)."""
        return (yield from run(summary, self.prior, self.m)), memory

    @step
    def learn(self, me: Me, msg: Mixture, memory: Params | None) -> Step[tuple[ClassifierDone, Params | None]]:
        """Train a classifier on sampled images and this client's own (eq. 2); it stays here."""
        return ClassifierDone(), (yield from self.taught(me, msg, own=True))

    def taught(self, me: Me, mixture: Mixture, own: bool) -> Step[Params]:
        """Train a classifier from the common initial model."""
        examples = yield from run(Decode(self.prior, self.images, own), mixture)
        fitted: Fitted = yield Sgd(me.initial, self.classifier, examples=examples)
        return fitted.params

    def info(self, state: FedPFTState) -> Mixtures:
        """Report the number of components of each label, refused uploads, and what each party saw."""
        labels = [] if state.components is None else state.components.labels.tolist()
        return Mixtures(
            components={y: labels.count(y) for y in sorted(set(labels))},
            privacy=_PRIVACY,
            warnings=state.warnings,
            ignored=state.ignored,
        )


_PRIVACY = Privacy(
    epsilon="no guarantee",
    server="means, variances and sizes of each participant's clusters of latents, by label; no model",
    clients="the same of all participants, and not whose they are",
)


def _width(local: Local, prior: str) -> int:
    return math.prod(local.imagery(prior).latent_shape)


def unusable(replies: dict[ClientId, Components], classes: int, width: int | None, most: int) -> dict[ClientId, str]:
    """Explain why some clients' components cannot be used, by client; `width`, `most` are as in `alignment.faults`."""
    sound = {c: bool((r.variances.isfinite() & (r.variances >= 0)).all()) for c, r in replies.items()}
    reasons = {c: "a variance is negative, NaN or infinite" for c in replies if not sound[c]}
    rest = {c: (r.means, r.labels, r.counts) for c, r in replies.items() if c not in reasons}
    reasons |= {c: f"means: {why}" for c, why in faults(rest, classes, width, most).items()}
    middle = usual([v.double().norm(dim=1) for c, (v, _, _) in rest.items() if c not in reasons])
    limit = ABSURD * max(0.0 if middle is None else middle, 1e-6)
    for c in rest.keys() - reasons.keys():
        spread = replies[c].variances.double().sum(1).sqrt()
        if len(spread) and float(spread.max()) > limit:
            reasons[c] = f"a spread of {float(spread.max()):.4g}, {ABSURD:g} times the median length of means"
    return reasons
