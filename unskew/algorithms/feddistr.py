"""FedDistr: one round in which clients send embeddings of their data, from which all generate the others' images.

X. Zhao, H. Gu, L. Fan, Y. Han, Q. Yang, "Disentangling data distribution for Federated Learning", arXiv 2410.12530,
2024.  Equation numbers in brackets are the paper's, those with a dash this file's; server/alignment.py has the
alignment, server/kmeans.py the clusters, data/entanglement.py what the paper's theory is about.

Notation   E, D     the prior's encoder and decoder;  eps_v(z_t, t)  its noise prediction under embedding v
           z        latent of a client's image, z = E(x)
           m        clusters of one label at one client
           v_0      starting point of every embedding, the same for all
Client     of the images of each label y:  z = E(x);  m clusters by k-means                            (11)
           v of each cluster: least E ||eps - eps_v(z_t, t)||^2, from v_0, with times and noise from a seed that the
           server gives                                                                                (12)
           sends (v, y, n), n the cluster's images
Server     aligns embeddings of equal label; keeps the dominant one of each parallel set and all orthogonal ones, sends
           them to all clients                                                                         (13)
Client     I images of each label, shared out over its embeddings by n and each share rounded up, by sampling from the
           prior;  trains a classifier from the common initial model on them and its own images, every label equally
           often                                                                                       (1')
Server     the same with only the images: the global model; no message is sent for it                  (2')
Counts     no client's total count exceeds twice that of the next largest, whatever it reports
Noise      optional: v <- v_0 + clip(v - v_0, R) + N(0, (sigma R)^2)                                   (3')
           a private draw: in a deployment it comes from a secret of the client's
           one example changes only embeddings of its own label, at most m of them, each by at most 2 R: m Gaussian
           mechanisms of multiplier sigma / 2.  Counts, and the distance of the nearest copy, are not sent then
Departures Embeddings carry a label: without it the generated images would have none; clusters lie within a label.
           v begins at one place for all: from random places embeddings of like images end far apart.  m is 3, or fewer
           for fewer than 12 images each: with the built-in prior one embedding is little more than a mean.  Images are
           jittered while the classifier is trained.  All clients, and the server, generate the same images: the noise
           comes from the server's seed.  The paper's network is ResNet-18 under SGD; here the network is the task's,
           under Adam at .001 unless `classifier` says otherwise.
Later      Rounds after the first change nothing, and say so.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Interval
from jaxtyping import Float32, Int64
from torch import Tensor

from unskew.algorithms.parts import OneModel, OwnNetworks
from unskew.errors import ConfigError
from unskew.info import Embeddings, Info, Privacy, Refused
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
    Spending,
    Step,
    ask,
    no_device,
    run,
    step,
)
from unskew.server import privacy
from unskew.server.alignment import MOST_PER_LABEL, align, fair, faults, lengths_apart
from unskew.server.kmeans import count_by_silhouette, kmeans
from unskew.tree import Params

T = TypeVar("T")

ClusterCount = Literal["auto", "silhouette", "oracle"] | Annotated[int, Ge(1)]
MOST = {"auto": 3, "silhouette": 5}
"""Maximum number of clusters of one label."""

PER_CLUSTER = 12
"""Average number of images that each cluster of a label needs, under "auto"."""

SHOWN = 1 << 14
"""Maximum numbers of embeddings, and of pairs, that info holds."""

AT_ONCE = 1024
"""Number of images on each side that are compared at once in the search for copies."""

_OVER = "FedDistr is over after its first round: the later rounds of this experiment change nothing for it"


# ---------------------------------------------------------------- messages
@dataclass(frozen=True)
class EmbeddingsRequest:
    """A request for embeddings, and the seed of times and noise in all inversions."""

    seed: int


@dataclass(frozen=True)
class Prompts:
    """Embeddings, their labels, and their numbers of examples."""

    embeddings: Float32[Tensor, "embeddings width"]
    labels: Int64[Tensor, "embeddings"]
    counts: Int64[Tensor, "embeddings"]


@dataclass(frozen=True)
class EmbeddingSets:
    """The embeddings kept after the alignment, and the seed of the images."""

    prompts: Prompts
    seed: int


@dataclass(frozen=True)
class ClassifierReport:
    """Notice that a classifier is trained, and the distance of the nearest image to one of the client's own.

    `closest` is in medians of the distance from one of its own images to the next.  None means not known or not sent:
    under noise it is not sent, since it depends on single examples.
    """

    closest: float | None


# ---------------------------------------------------------------- state
@dataclass(frozen=True)
class FedDistrInfo:
    """Record of a round; empty for all rounds but the first.

    Attributes:
        uploads: All embeddings that were accepted.
        owners: Client that sent each.
        sets, kept: Results of the alignment, as numbers of embeddings.
        tau: Threshold of the alignment.
        pairs: Matched pairs: two numbers and their distance.
        learned: Report of each client on its classifier.
        ignored, warnings: Refused uploads, and messages to the user.
    """

    uploads: Prompts | None = None
    owners: tuple[int, ...] = ()
    sets: tuple[tuple[int, ...], ...] = ()
    kept: tuple[int, ...] = ()
    tau: float = 0.0
    pairs: tuple[tuple[int, int, float], ...] = ()
    learned: dict[int, ClassifierReport] | None = None
    ignored: tuple[Refused, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class FedDistrState:
    """The server's state: the global model if there is one, the embeddings distributed, and the last round's info."""

    params: Params | None
    prompts: Prompts | None
    info: FedDistrInfo


@dataclass(frozen=True)
class EmbeddingNoise:
    """Gaussian noise on embeddings (eq. 3').

    Attributes:
        clip: R.
        sigma: Standard deviation over R; this or `epsilon`.
        epsilon: Privacy budget of all embeddings of one client, for one example.
        delta: Probability that belongs to epsilon; below one over a client's number of examples.
    """

    clip: Annotated[float, Gt(0.0)] = 10.0
    sigma: Annotated[float, Gt(0.0)] | None = None
    epsilon: Annotated[float, Gt(0.0)] | None = None
    delta: Annotated[float, Interval(gt=0.0, lt=1.0)] = 1e-5

    def __post_init__(self) -> None:
        if (self.sigma is None) == (self.epsilon is None):
            raise ConfigError(
                f"dp needs either sigma or epsilon, got {self.sigma} and {self.epsilon}; give one of them"
            )

    def multiplier(self, releases: int) -> float:
        """Return the standard deviation over the sensitivity 2 R, for this number of embeddings of a label."""
        if self.epsilon is not None:
            return privacy.noise_multiplier(self.epsilon, releases, self.delta)
        assert self.sigma is not None
        return 0.5 * self.sigma

    def std(self, releases: int) -> float:
        """Return the standard deviation of the noise on every number."""
        return 2.0 * self.clip * self.multiplier(releases)


# ---------------------------------------------------------------- on the clients
@dataclass(frozen=True)
class Disentangle:
    """Finds clusters of each label and their embeddings (eq. 11, 12); several clients' in one batch."""

    prior: str
    m: ClusterCount
    steps: int
    batch_size: int
    lr: float | None

    def __call__(self, local: Local, seed: int) -> Prompts:
        """Compute those of one client."""
        return self.together([(local, (seed,))])[0]

    def together(self, calls: Sequence[tuple[Local, tuple[int]]]) -> list[Prompts]:
        """Compute those of each client; one client's result does not depend on the others, up to rounding."""
        imagery = calls[0][0].imagery(self.prior)
        parts = [self.clusters(local, imagery.encode(local.x)) if len(local.y) else [] for local, _ in calls]
        batches: list[Prompts] = []
        # The server gives all clients of a round the same seed.
        seeds = [args[0] for _, args in calls]
        learned = {
            s: imagery.invert(
                [z for p, mine in zip(parts, seeds, strict=True) if mine == s for _, z in p],
                Key(s) / "inversion",
                steps=self.steps,
                batch_size=self.batch_size,
                lr=self.lr,
            )
            for s in dict.fromkeys(seeds)
        }
        at = dict.fromkeys(seeds, 0)
        for part, s in zip(parts, seeds, strict=True):
            embeddings = learned[s][at[s] : at[s] + len(part)].clone()
            at[s] += len(part)
            labels = torch.tensor([y for y, _ in part], dtype=torch.int64)
            counts = torch.tensor([len(z) for _, z in part], dtype=torch.int64)
            batches.append(Prompts(embeddings, labels, counts))
        return batches

    def clusters(self, local: Local, latents: Tensor) -> list[tuple[int, Tensor]]:
        """Return (label, latents) of each cluster, labels ascending, the largest cluster of a label first."""
        out = []
        for y in torch.unique(local.y).tolist():
            rows = (local.y == y).nonzero()[:, 0]
            z, key = latents[rows], local.key / "clusters" / y
            domains = None if local.domains is None else local.domains[rows]
            assignment = kmeans(z, self.count(z, domains, key), key).to(z.device)
            out += [(int(y), z[assignment == j]) for j in range(int(assignment.max()) + 1)]
        return out

    def count(self, latents: Tensor, domains: Tensor | None, key: Key) -> int:
        """Choose m for the images of one label.

        Raises:
            ConfigError: If the true number is asked for and the data has no domains.
        """
        if self.m == "auto":
            return max(1, min(MOST["auto"], len(latents) // PER_CLUSTER))
        if self.m == "silhouette":
            return count_by_silhouette(latents, key / "count", MOST["silhouette"])
        if self.m == "oracle":
            if domains is None:
                raise ConfigError('m = "oracle" needs data with domains, and this has none; use auto or silhouette')
            return len(torch.unique(domains))
        return self.m


@dataclass(frozen=True)
class Imagine:
    """Generates examples from embeddings, with or without this device's own, every label equally often (eq. 1')."""

    prior: str
    images: int
    guidance: float | None
    steps: int | None
    own: bool
    compare: bool

    def __call__(self, local: Local, sets: EmbeddingSets) -> tuple[Examples, float | None]:
        """Return the examples, and with `compare` the smallest distance from them to one of the device's own."""
        x, y = self.made(local, sets)
        closest = nearest(x, local.x.cpu(), local.key / "yardstick") if self.compare else None
        return mixed(local, x, y, self.own), closest

    def made(self, local: Local, sets: EmbeddingSets) -> tuple[Tensor, Tensor]:
        """Generate about `images` inputs of each label, divided among its embeddings by their counts, and labels."""
        imagery, prompts = local.imagery(self.prior), sets.prompts
        labels, weights = prompts.labels.tolist(), prompts.counts.clamp(min=1).tolist()
        total = {y: sum(w for w, z in zip(weights, labels, strict=True) if z == y) for y in labels}
        each = [-(-self.images * w // total[y]) for w, y in zip(weights, labels, strict=True)]
        # Made in batches of 1, 2, 4, ... of each, of which the first are used: nearly all work is done together.
        batches = [1 << (n - 1).bit_length() for n in each]
        x: dict[int, Tensor] = {}
        for batch in sorted(set(batches)):
            chosen = [i for i, b in enumerate(batches) if b == batch]
            key = Key(sets.seed) / "images" / batch
            sampled = imagery.sample(prompts.embeddings[chosen], batch, key, self.guidance, self.steps)
            x |= {i: images[: each[i]] for i, images in zip(chosen, sampled, strict=True)}
        return torch.cat([x[i] for i in range(len(each))]), prompts.labels.repeat_interleave(torch.tensor(each))


def mixed(local: Local, x: Tensor, y: Tensor, own: bool) -> Examples:
    """Return images with or without this device's own, every label equally often, jittered."""
    if own:
        x, y = torch.cat([x, local.x.cpu()]), torch.cat([y, local.y.cpu()])
    return Examples(x, y, balanced(y, local.key / "rows"), jitter)


def balanced(labels: Tensor, key: Key) -> Tensor:
    """Choose rows of an epoch so that every label occurs as often as the most frequent one, its rows evenly repeated.

    Args:
        labels: (n,).
        key: Decides which rows of a rarer label occur once more.

    Returns:
        int64 (labels that occur x the most frequent one's rows,).

    >>> balanced(torch.tensor([0, 0, 0, 1]), Key(0)).tolist()
    [0, 1, 2, 3, 3, 3]
    """
    pools = [(labels == y).nonzero()[:, 0] for y in torch.unique(labels).tolist()]
    most = max(len(pool) for pool in pools)
    rows = []
    for i, pool in enumerate(pools):
        whole, rest = divmod(most, len(pool))
        some = pool[torch.randperm(len(pool), generator=(key / i).generator())[:rest]]
        rows.append(torch.cat([pool.repeat(whole), some.sort().values]))
    return torch.cat(rows)


def jitter(x: Tensor, generator: torch.Generator) -> Tensor:
    """Jitter images (n, C, H, W): rotate, scale, shift and brighten each by up to 15, 15, 10 and 20 per cent."""
    n, device = len(x), x.device

    def draw(*shape: int) -> Tensor:
        return 2 * torch.rand(*shape, generator=generator, device=generator.device).to(device, x.dtype) - 1

    matrix = torch.eye(2, dtype=x.dtype, device=device) + 0.15 * draw(n, 2, 2)
    theta = torch.cat([matrix, 0.1 * draw(n, 2, 1)], dim=2)
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    # At the border: the value of black in standardised images is not known here.
    moved = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
    return moved * (1 + 0.2 * draw(n, 1, 1, 1))


def nearest(generated: Tensor, own: Tensor, key: Key) -> float | None:
    """Divide the least distance from an image to one of the client's own by the median from one of its own to the next.

    All images are compared with all, whatever their labels, and a copy is at 0; the median is over at most 1024 of the
    client's own.

    Args:
        generated: (n, ...).
        own: (N, ...).
        key: Decides which of its own the median is over.

    Returns:
        None if there is nothing to compare, or if so many of the client's own images are equal that the median is 0
        and no other is.
    """
    if len(own) < 2 or not len(generated):
        return None
    some = torch.randperm(len(own), generator=key.generator())[:AT_ONCE]
    least = float(_to_next(generated, own).amin())
    among = float(_to_next(own[some], own, some).median())
    return least / among if among > 0 else 0.0 if least == 0 else None


def _to_next(images: Tensor, own: Tensor, places: Tensor | None = None) -> Tensor:
    """Compute the distance from each image to the nearest of `own`, (n,); itself excluded, given its `places` there."""
    out = []
    for start in range(0, len(images), AT_ONCE):
        x = images[start : start + AT_ONCE].flatten(1).double()
        best = torch.full((len(x),), torch.inf, dtype=x.dtype)
        for first in range(0, len(own), AT_ONCE):
            y = own[first : first + AT_ONCE].flatten(1).double()
            apart = torch.cdist(x, y)
            if places is not None:
                itself = places[start : start + AT_ONCE, None] == torch.arange(first, first + len(y))
                apart = apart.masked_fill(itself, torch.inf)
            distance, which = apart.min(1)
            # From products, as cdist computes them, equal images are not quite at 0; from differences they are.
            exact = (x - y[which]).norm(dim=1)
            best = torch.minimum(best, torch.where(distance.isinf(), distance, exact))
        out.append(best)
    return torch.cat(out)


def _predictions(local: Local, prior: str, embeddings: Tensor, seed: int) -> Tensor:
    return local.imagery(prior).distances(embeddings, Key(seed) / "probes")


def _start(local: Local, prior: str) -> Tensor:
    return local.imagery(prior).start()


def _changes(local: Local, prior: str) -> str | None:
    return local.imagery(prior).changes


# ---------------------------------------------------------------- method
@dataclass(frozen=True)
class FedDistr(OneModel, OwnNetworks):
    """One round of prompt embeddings.

    Attributes:
        prior: built-in, a folder that `unskew prior train` wrote, a folder of a Stable Diffusion pipeline,
            hub:OWNER/NAME, a registered name, or module:attribute.  After a pipeline ?tokens=4&size=64 are the tokens
            of an embedding and the height and width of images.
        m: Clusters of a label, or a rule: auto is 3 with at least 12 images each, silhouette chooses 1 to 5, oracle
            counts the label's domains at the client.
        steps, batch_size, lr: Settings of the inversion on each cluster; lr None is the prior's own learning rate.
        distance: Distance for the alignment: l2 of the embeddings, or of the noise that the prior predicts under
            them, which the server computes.
        tau: Threshold of the alignment; None is half the median distance of one client's embeddings of one label.
        images: Number of images made of each label; up to one more for each of its embeddings.
        guidance, sampling_steps: Settings of sampling; None takes the prior's defaults.
        classifier: Optimisation of the classifier, from scratch; `[local]` does not apply to it.
        server_model: True to train a global model on the server's own device, on images only.
        dp: Noise on the embeddings; None sends them as they are.

    Raises:
        ConfigError: If m is not a number of clusters; if one example could change any number of embeddings under noise;
            or if an epsilon's accountant is not installed.
    """

    needs: ClassVar[tuple[str, ...]] = (
        "classes",
        "classifier",
        "images",
    )

    prior: str = "built-in"
    m: ClusterCount = "auto"
    steps: Annotated[int, Ge(1)] = 100
    batch_size: Annotated[int, Ge(1)] = 8
    lr: Annotated[float, Gt(0.0)] | None = None
    distance: Literal["l2", "prediction"] = "l2"
    tau: Annotated[float, Ge(0.0)] | None = None
    images: Annotated[int, Ge(1)] = 150
    guidance: Annotated[float, Ge(0.0)] | None = None
    sampling_steps: Annotated[int, Ge(1)] | None = None
    classifier: SgdConfig = SgdConfig(0.001, local_steps=800, batch_size=64, optimizer="adam")
    server_model: bool = True
    dp: EmbeddingNoise | None = None

    def __post_init__(self) -> None:
        if self.dp is not None:
            if self.m == "oracle":
                raise ConfigError('dp needs a bound on the clusters of a label, and m = "oracle" has none; give m')
            if self.dp.epsilon is not None:
                privacy.require()

    # ------------------------------------------------------------------ the server
    def init(self, params: Params, fed: Federation) -> FedDistrState:
        """Return the initial model, without embeddings."""
        return FedDistrState(params if self.server_model else None, None, FedDistrInfo())

    def round(self, state: FedDistrState, fed: Federation) -> Plan[FedDistrState]:
        """Run the whole method in round 1 (eq. 13), nothing later."""
        if state.prompts is not None:
            return replace(state, info=FedDistrInfo(warnings=(_OVER,)))
        seed = travelling(fed.key / "feddistr")
        replies = yield from ask(self.disentangle, dict.fromkeys(fed.sample(), EmbeddingsRequest(seed)))
        parts = {c: (r.embeddings, r.labels, r.counts) for c, r in replies.items()}
        most = MOST_PER_LABEL if self.m == "oracle" else self.releases
        start = looked_up(fed, _start, self.prior)
        width, length = (None, None) if start is None else (len(start), self.plausible(start))
        refused = faults(parts, fed.num_classes, width, most, length)
        ignored = tuple(Refused(c, "disentangle", why) for c, why in sorted(refused.items()))
        taken = {c: r for c, r in replies.items() if c not in refused and len(r.labels)}
        if not taken:
            return replace(state, info=FedDistrInfo(ignored=ignored, warnings=("no client sent an embedding of use",)))
        owners = tuple(c for c, r in taken.items() for _ in range(len(r.labels)))
        counts = fair({c: r.counts.cpu() for c, r in taken.items()})
        uploads = Prompts(
            torch.cat([r.embeddings.cpu().float() for r in taken.values()]),
            torch.cat([r.labels.cpu() for r in taken.values()]),
            torch.cat(list(counts.values())),
        )
        alignment = align(self.distances(uploads.embeddings, seed, fed), *_lists(uploads), owners, self.tau)
        kept = torch.tensor(alignment.kept)
        sets = EmbeddingSets(
            Prompts(uploads.embeddings[kept], uploads.labels[kept], torch.tensor(alignment.counts, dtype=torch.int64)),
            seed,
        )
        learned = yield from ask(self.learn, dict.fromkeys(fed.clients, sets), at_least=0)
        warnings = [lowered(c) for c, r in taken.items() if not torch.equal(counts[c], r.counts.cpu())]
        warnings += fitting(fed, self.prior)
        params = fed.run_on_server(lambda me: self.imagined(me, sets)) if self.server_model else state.params
        absent = fed.num_classes - len(set(uploads.labels.tolist()))
        if absent:
            warnings.append(f"nobody sent an embedding of {absent} of the {fed.num_classes} labels")
        pairs = tuple((p.i, p.j, p.distance) for p in alignment.pairs)
        info = FedDistrInfo(
            uploads, owners, alignment.sets, alignment.kept, alignment.tau, pairs, learned, ignored, tuple(warnings)
        )
        return FedDistrState(params, sets.prompts, info)

    def distances(self, embeddings: Tensor, seed: int, fed: Federation) -> Tensor:
        """Compute the distances of embeddings, (K, K)."""
        if self.distance == "l2":
            return lengths_apart(embeddings)
        predictions: Tensor = fed.run_on_server(lambda me: run(_predictions, self.prior, embeddings, seed))
        return predictions

    def imagined(self, me: Me, sets: EmbeddingSets) -> Step[Params]:
        """Train the global model (eq. 2')."""
        fitted, _ = yield from self.taught(me, sets, own=False)
        return fitted.params

    def plausible(self, start: Tensor) -> float | None:
        """Return the length of an embedding that is still near the common starting point; None if that is 0."""
        length = float(start.double().norm())
        if self.dp is not None:
            length += self.dp.clip + self.dp.std(self.releases) * math.sqrt(len(start))
        return length or None

    # ------------------------------------------------------------------ the clients
    @step
    def disentangle(self, me: Me, msg: EmbeddingsRequest, memory: Params | None) -> Step[tuple[Prompts, Params | None]]:
        """Return this client's clusters as embeddings (eq. 11, 12, 3')."""
        job = Disentangle(self.prior, self.m, self.steps, self.batch_size, self.lr)
        prompts = yield from run(job, msg.seed)
        if self.dp is None:
            return prompts, memory
        start = yield from run(_start, self.prior)
        v = noised(prompts.embeddings, start, self.dp.clip, self.dp.std(self.releases), me.private / "noise")
        return Prompts(v, prompts.labels, torch.zeros_like(prompts.counts)), memory

    @step
    def learn(self, me: Me, msg: EmbeddingSets, memory: Params | None) -> Step[tuple[ClassifierReport, Params | None]]:
        """Train a classifier on generated images and this client's own data (eq. 1'); it stays here."""
        fitted, closest = yield from self.taught(me, msg, own=True)
        return ClassifierReport(closest), fitted.params

    def taught(self, me: Me, sets: EmbeddingSets, own: bool) -> Step[tuple[Fitted, float | None]]:
        """Train a classifier from the common initial model; also return the nearest copy's distance, if allowed."""
        compare = own and self.dp is None
        job = Imagine(self.prior, self.images, self.guidance, self.sampling_steps, own, compare)
        examples, closest = yield from run(job, sets)
        fitted: Fitted = yield Sgd(me.initial, self.classifier, examples=examples)
        return fitted, closest

    # ------------------------------------------------------------------ the record
    @property
    def needs_domains(self) -> str:
        """Name of the setting that depends on the data's domains; empty if none does."""
        return 'm = "oracle"' if self.m == "oracle" else ""

    @property
    def uses_private_randomness(self) -> bool:
        """True if clients draw noise of their own."""
        return self.dp is not None

    @property
    def has_dp_noise(self) -> bool:
        """True if the embeddings have noise."""
        return self.dp is not None

    def check_examples(self, most: int) -> None:
        """Refuse a delta that is too large for a client of so many examples.

        Raises:
            ConfigError: If so.
        """
        if self.dp is not None:
            privacy.check_delta(self.dp.delta, most, "a client's examples")

    def spending(self, step: str, msg: Any) -> tuple[Spending, ...]:
        """Return the cost of a reply: all embeddings of a label that an example may be in (eq. 3')."""
        if self.dp is None or step != "disentangle":
            return ()
        return (Spending("embeddings", self.dp.multiplier(self.releases), self.releases, self.releases),)

    @property
    def releases(self) -> int:
        """Number of embeddings that one example may change."""
        return self.m if isinstance(self.m, int) else MOST[self.m]

    def info(self, state: FedDistrState) -> Info:
        """Report embeddings with labels, counts and owners, matched pairs, threshold, sets, and what each party saw."""
        info = state.info
        if info.uploads is None:
            return Info(warnings=info.warnings, ignored=info.ignored)
        v, coordinates = shown(info.uploads.embeddings)
        labels, counts = _lists(info.uploads)
        number = v.shape[0]
        return Embeddings(
            embeddings=tuple(tuple(round(x, 4) for x in values) for values in v.tolist()),
            coordinates=coordinates,
            labels=tuple(labels[:number]),
            counts=tuple(counts[:number]),
            owners=tuple(info.owners[:number]),
            sent=len(labels),
            width=info.uploads.embeddings.shape[1],
            distance=self.distance,
            threshold=round(info.tau, 6),
            pairs=tuple((i, j, round(d, 4)) for i, j, d in info.pairs[:SHOWN]),
            sets=info.sets,
            kept=info.kept,
            closest={c: _rounded(r.closest) for c, r in (info.learned or {}).items()},
            trained_at="the server: global model, images alone; each client: its own, images and own data"
            if self.server_model
            else "each client: its own model, images and own data",
            privacy=self.spent(),
            sigma=None if self.dp is None else round(2.0 * self.dp.multiplier(self.releases), 6),
            warnings=info.warnings,
            ignored=info.ignored,
        )

    def spent(self) -> Privacy:
        """Report the privacy loss of the upload for one example, and what each party saw."""
        if self.dp is None:
            return Privacy(
                epsilon="no guarantee",
                server="each participant's embeddings, its labels and counts of its clusters, and from every client "
                "how near the nearest image is to one of its own; no model and no image",
                clients="the embeddings that were kept, their labels and counts, and not whose they are",
            )
        return Privacy(
            epsilon=_accounted(self.dp.multiplier(self.releases), self.releases, self.dp.delta),
            delta=self.dp.delta,
            covers="the embeddings of one client, if an example is added or removed. Labels, numbers of clusters and "
            "the metrics that a client reports are not covered",
            server="each participant's noised embeddings, labels and numbers of clusters; no model and no image. Over "
            "a network, with metrics on, it also reports number of examples, losses and test results, without noise",
            clients="the noised embeddings that were kept and their labels, and not whose they are",
        )


def _accounted(multiplier: float, releases: int, delta: float) -> float | str:
    """Return epsilon, or the reason why there is none: noise of a given sigma needs no accountant, its epsilon does."""
    try:
        return round(privacy.epsilon(multiplier, releases, delta), 6)
    except ConfigError as error:
        return f"not worked out: {error}"


def looked_up(fed: Federation, of: Callable[[Local, str], T], prior: str) -> T | None:
    """Query the server's own prior; None if the server has no device for it."""
    if fed.run_on_server is no_device:
        return None
    value: T = fed.run_on_server(lambda me: run(of, prior))
    return value


def fitting(fed: Federation, prior: str) -> list[str]:
    """Return a warning about changes to images on their way into the prior, if there are any."""
    changes = looked_up(fed, _changes, prior)
    return [] if changes is None else [f"for the prior {changes}"]


def travelling(key: Key) -> int:
    """Return a seed of 53 bits for a key: every JSON reader parses it as the same whole number."""
    return key.number() >> 10


def lowered(client: ClientId) -> str:
    """Return a warning about each client whose counts were scaled down."""
    return f"client {client} says it has more than twice as many examples as any other, and counts for twice as many"


def _lists(prompts: Prompts) -> tuple[list[int], list[int]]:
    return prompts.labels.tolist(), prompts.counts.tolist()


def _rounded(value: float | None) -> float | None:
    # A client may report anything.
    return None if value is None or not math.isfinite(value) else round(value, 4)


def noised(embeddings: Tensor, start: Tensor, clip: float, std: float, key: Key) -> Tensor:
    """Clip embeddings to a distance of `clip` from their start, and add noise (eq. 3').

    >>> noised(torch.tensor([[3.0, 4.0]]), torch.zeros(2), 1.0, 0.0, Key(0))
    tensor([[0.6000, 0.8000]])
    """
    moved = embeddings - start
    length = moved.norm(dim=1, keepdim=True).clamp(min=torch.finfo(moved.dtype).tiny)
    out: Tensor = start + moved * (clip / length).clamp(max=1.0) + std * key.normal(*moved.shape).to(moved)
    return out


def shown(embeddings: Tensor) -> tuple[Tensor, str]:
    """Return embeddings for info, as they are or in their principal coordinates, and the name of the coordinates."""
    number, width = embeddings.shape
    if number * width <= SHOWN:
        return embeddings, "embedding"
    v = embeddings[: SHOWN // 2].double()
    axes = min(len(v), width, max(2, SHOWN // len(v)))
    v = v - v.mean(0)
    principal: Tensor = torch.linalg.svd(v, full_matrices=False).Vh[:axes]
    return (v @ principal.T).float(), "principal"
