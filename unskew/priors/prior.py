"""The interface of a latent diffusion model used as a prior, and how embeddings are learned from images.

An embedding replaces a prompt's words.  It is learned by "textual inversion" (R. Gal et al., "An Image is Worth One
Word", ICLR 2023): the model stays fixed, and the embedding moves to where the model best predicts the noise in a
client's images.  FedDistr learns one for each cluster of each client's images.  Equation numbers are this file's.

Notation   z      latent of an image;  eps  Gaussian noise;  t  time, 0 .. T-1;  v  embedding, (width,)
           abar   share of the signal's variance that is left at time t, falling
           K, b   clusters that are inverted together; images of each cluster in a step
Noise      z_t = sqrt(abar_t) z + sqrt(1 - abar_t) eps                                              (1)
Loss       of cluster k:  mean over its b images of ||eps - predict(z_t, v_k, t)||^2 / dim(z)       (2)
Sampling   z0  = (z_t - sqrt(1 - abar_t) e) / sqrt(abar_t)                                          (3)
           z_s = sqrt(abar_s) z0 + sqrt(1 - abar_s) e,  s < t  (DDIM, J. Song et al., ICLR 2021)    (4)
           e   = e_null + guidance (e_v - e_null)                                                   (5)

All clusters of all clients are inverted in one batch.  The loss is a sum over clusters and Adam works entry by entry,
so they do not influence each other.  Times and noise come from the server's key, the same for every cluster, and every
cluster starts at the same place.  Embeddings of similar images therefore end near each other, which FedDistr's
alignment measures.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from unskew.errors import DataError, DivergedError
from unskew.keys import Key


class Prior(ABC):
    """A latent diffusion model, frozen.  Yours derives from it.

    Attributes:
        name: Name in records and messages.
        width: Numbers in an embedding.
        latent_shape: (channels, height, width) of a latent.
        image_shape: (channels, height, width) of an image, values in [0, 1].
        device: Device that it computes on.
        alpha_bar: abar, (T,), on that device.
        velocity: True if it was trained to predict the velocity, whose error is the noise's over root abar.
        lr: Learning rate suited to the size of its embeddings.
        at_once: Most latents to pass through it together.
        guidance, steps: Defaults of `sample`: the guidance scale, 1 for none, and steps of DDIM.
        reach: Bound to which |z0| is clipped in sampling; None does not clip.
    """

    name: str
    width: int
    latent_shape: tuple[int, int, int]
    image_shape: tuple[int, int, int]
    device: torch.device
    alpha_bar: Tensor
    velocity: bool = False
    lr: float = 0.1
    at_once: int = 64
    guidance: float = 1.0
    steps: int = 20
    reach: float | None = None

    @property
    def times(self) -> int:
        """Steps of the diffusion, T."""
        return len(self.alpha_bar)

    @abstractmethod
    def encode(self, images: Tensor) -> Tensor:
        """Standardised latents (N, *latent_shape) of images (N, C, H, W) in [0, 1], prepared by `fitted`."""

    @abstractmethod
    def decode(self, latents: Tensor) -> Tensor:
        """Images (N, *image_shape) in [0, 1] of standardised latents."""

    @abstractmethod
    def start(self, noun: str | None = None) -> Tensor:
        """The start of an embedding, (width,), for a noun, or one that suits any image."""

    @abstractmethod
    def denoised(self, z: Tensor, v: Tensor | None, times: Tensor) -> Tensor:
        """Noise in latents (n, *latent_shape) at times (n,) under embeddings (n, width) or, for None, the empty prompt.

        Shaped as the latents.
        """

    def predict(self, latents: Tensor, embeddings: Tensor, times: Tensor) -> Tensor:
        """Noise in noisy latents (K, b, *latent_shape) at times (b,) under embeddings (K, width), shaped as latents."""
        k, b = latents.shape[:2]
        noise = self.denoised(latents.flatten(0, 1), embeddings.repeat_interleave(b, dim=0), times.repeat(k))
        return noise.reshape(latents.shape)

    def loss(self, latents: Tensor, embeddings: Tensor, times: Tensor, noise: Tensor) -> Tensor:
        """Prediction loss of each cluster (eq. 1, 2), (K,), for latents (K, b, *latent_shape).

        Embeddings are (K, width), and gradients reach nothing else.  Times (b,) and noise (b, *latent_shape) are the
        same for every cluster.
        """
        a = self.alpha_bar[times][:, None, None, None]
        error = self.predict(a.sqrt() * latents + (1 - a).sqrt() * noise, embeddings, times) - noise
        return (error / a.sqrt() if self.velocity else error).float().square().flatten(1).mean(1)

    @torch.no_grad()
    def sample(
        self, embeddings: Tensor, count: int, key: Key, guidance: float | None = None, steps: int | None = None
    ) -> Tensor:
        """`count` images of each of the embeddings (K, width) by DDIM (eq. 3 to 5), (K, count, *image_shape) in [0, 1].

        Embedding k's first noise depends on the key and k only.

        Raises:
            DataError: If an embedding has another width or is not finite.
        """
        v = checked_embeddings(embeddings, self.width).to(self.device).float().repeat_interleave(count, dim=0)
        guidance, steps = self.guidance if guidance is None else guidance, self.steps if steps is None else steps
        draws = ((key / k).generator() for k in range(len(embeddings)))
        z = torch.cat([torch.randn(count, *self.latent_shape, generator=g) for g in draws])
        times = [round(self.times * (1 - i / steps)) - 1 for i in range(steps + 1)]
        out = []
        for z_t, mine in zip(torch.split(z.to(self.device), self.at_once), torch.split(v, self.at_once), strict=True):
            for t, s in pairwise(times):
                at = torch.full((len(z_t),), t, device=self.device)
                e = self.denoised(z_t, mine, at)
                if guidance != 1:
                    without = self.denoised(z_t, None, at)
                    e = without + guidance * (e - without)
                a = self.alpha_bar[t]
                z0 = (z_t - (1 - a).sqrt() * e) / a.sqrt()
                if self.reach is not None:
                    z0 = z0.clamp(-self.reach, self.reach)
                    e = (z_t - a.sqrt() * z0) / (1 - a).sqrt()
                # -1 is the clean latent: at time 0 there is still a little noise.
                z_t = z0 if s < 0 else self.alpha_bar[s].sqrt() * z0 + (1 - self.alpha_bar[s]).sqrt() * e
            out.append(z_t)
        return self.decode(torch.cat(out)).reshape(len(embeddings), count, *self.image_shape)


# ---------------------------------------------------------------- inversion
BETAS, AVERAGE = (0.9, 0.99), 0.25
"""Decay rates of Adam's moving means, and the share of an inversion's steps, the last, whose mean is the result."""


def invert(
    prior: Prior, clusters: Sequence[Tensor], key: Key, steps: int = 100, batch_size: int = 8, lr: float | None = None
) -> Tensor:
    """Learn an embedding for each cluster of latents, all clusters in one batch; (K, width), on the CPU.

    Up to rounding, a cluster's embedding depends only on its own latents, the key and the configuration, not on other
    clusters or their number.

    Args:
        prior: The prior; its weights stay fixed.
        clusters: Latents of each cluster, (n_k, *latent_shape); clusters of several clients may be mixed.
        key: Source of times and noise; it must be the same on all clients.
        steps: Steps of Adam.
        batch_size: Images of each cluster in a step.
        lr: Learning rate for half of the steps, then half a cosine to 0; None takes the prior's.

    Raises:
        DivergedError: If an embedding became NaN or infinite; says which cluster.
    """
    if not clusters:
        return torch.empty(0, prior.width)
    start = checked_embeddings(prior.start()[None], prior.width, "the start embedding")
    held = [cluster.to(prior.device) for cluster in clusters]
    v = start.to(prior.device).float().repeat(len(held), 1).requires_grad_()
    lr = prior.lr if lr is None else lr
    adam = torch.optim.Adam([v], lr, BETAS)
    group = max(1, prior.at_once // batch_size)
    scale = batch_size * math.prod(prior.latent_shape)
    mean, counted = torch.zeros_like(v), 0
    for s in range(steps):
        adam.param_groups[0]["lr"] = lr * rate(s / steps)
        times, noise, places = _draw(prior, key / s, batch_size)
        gradients = []
        for some in torch.split(torch.arange(len(held)), group):
            z = torch.stack([held[k][(places * len(held[k])).long()] for k in some.tolist()])
            part = v[some[0] : some[-1] + 1]
            loss = prior.loss(z, part, times, noise).sum()
            # In half precision the gradient of a mean over so many numbers would be rounded to 0.
            gradients.append(torch.autograd.grad(loss * scale, [part])[0] / scale)
        v.grad = torch.cat(gradients)
        adam.step()
        if s >= steps - math.ceil(AVERAGE * steps):
            mean += v.detach()
            counted += 1
    embeddings = (mean / counted).cpu()
    wrong = (~embeddings.isfinite().all(1)).nonzero()[:, 0]
    if len(wrong):
        raise DivergedError(
            f"the embedding of cluster {int(wrong[0])} became NaN or infinite in {steps} steps at learning rate "
            f"{lr:g}; lower lr"
        )
    return embeddings


def rate(done: float) -> float:
    """Share of the learning rate after this share of a training: 1, from half-time half a cosine to 0."""
    return 1.0 if done <= 0.5 else 0.5 * (1 + math.cos(math.pi * (2 * done - 1)))


def _draw(prior: Prior, key: Key, b: int) -> tuple[Tensor, Tensor, Tensor]:
    """Times (b,), noise (b, *latent_shape) and places (b,) in [0, 1): the image of a cluster that each one takes.

    Times are stratified: one from each b-th of the diffusion.  So are places, independently: a step sees all of a
    cluster, and clusters of any size are served by the same draw.
    """
    g = key.generator()
    strata = torch.arange(b)
    times = ((strata + torch.rand(b, generator=g)) / b * prior.times).long().clamp(max=prior.times - 1)
    noise = torch.randn(b, *prior.latent_shape, generator=g)
    places = (torch.randperm(b, generator=g) + torch.rand(b, generator=g, dtype=torch.float64)) / b
    return times.to(prior.device), noise.to(prior.device), places.clamp(max=1 - 1e-9).to(prior.device)


# ---------------------------------------------------------------- distance
@torch.no_grad()
def distances(prior: Prior, embeddings: Tensor, key: Key, probes: int = 16) -> Tensor:
    """Euclidean distance of the noise predicted under two embeddings, (K, K), over fixed public latents.

    Unlike the vectors' distance, it ignores directions that change nothing.  The probes are Gaussian latents at times
    from 0.3 T on, where they look like noisy images; the same key gives the same probes.

    Raises:
        DataError: If an embedding has another width or is not finite.
    """
    v = checked_embeddings(embeddings, prior.width).to(prior.device)
    g = key.generator()
    latents = torch.randn(probes, *prior.latent_shape, generator=g).to(prior.device)
    times = torch.randint(int(0.3 * prior.times), prior.times, (probes,), generator=g).to(prior.device)
    predicted = torch.cat(
        [
            prior.predict(latents.expand(len(part), *latents.shape), part, times).flatten(1)
            for part in torch.split(v, max(1, prior.at_once // probes))
        ]
    ).double()
    # Not by the Gram matrix: two embeddings that agree are at distance 0 exactly.
    return torch.stack([(predicted - one).square().sum(1).sqrt() for one in predicted]).float().cpu()


# ---------------------------------------------------------------- checks of inputs
def checked_embeddings(embeddings: Tensor, width: int, what: str = "embeddings") -> Tensor:
    """The embeddings, checked to have shape (K, width).

    Raises:
        DataError: If they have another width, or one is not finite; says which.
    """
    if embeddings.ndim != 2 or embeddings.shape[1] != width:
        raise DataError(
            f"{what} must have width {width}, got shape {tuple(embeddings.shape)}; another prior's cannot be used"
        )
    wrong = (~embeddings.isfinite().all(1)).nonzero()[:, 0]
    if len(wrong):
        raise DataError(f"{what}: number {int(wrong[0])} is NaN or infinite; refuse what its client sent")
    return embeddings


def how_fitted(shape: Sequence[int], image_shape: tuple[int, int, int]) -> str | None:
    """Say what `fitted` does to images of `shape` (C, H, W); None if nothing.

    Raises:
        DataError: If images of that shape cannot be brought to the prior's.

    >>> how_fitted((3, 28, 28), (1, 32, 32))
    'images of 3 x 28 x 28 are made grey and given a border of black pixels, to 1 x 32 x 32'
    """
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise DataError(
            f"a prior takes images (1, H, W) or (3, H, W), got shape {tuple(shape)}; it cannot encode anything else"
        )
    (c, h, w), (to_c, to_h, to_w) = shape, image_shape
    if min(h, w) < 4:
        raise DataError(f"images of {h} x {w} pixels are too small for a prior; it needs 4 x 4 at least")
    if max(h * to_w, w * to_h) > 2 * min(h * to_w, w * to_h):
        raise DataError(
            f"images of {h} x {w} pixels would be squeezed by more than half to fit {to_h} x {to_w}; cut them to the "
            "prior's proportions first"
        )
    done = []
    if c != to_c:
        done.append("made grey" if c == 3 else "given three equal channels")
    if (h, w) != (to_h, to_w):
        if _border(h, to_h) is None or _border(w, to_w) is None:
            done.append("resized")
        else:
            done.append("given a border of black pixels" if h < to_h or w < to_w else "cut at the border")
    if not done:
        return None
    return f"images of {c} x {h} x {w} are {' and '.join(done)}, to {to_c} x {to_h} x {to_w}"


def fitted(images: Tensor, image_shape: tuple[int, int, int]) -> Tensor:
    """Images (N, C, H, W) in [0, 1] in `image_shape`; `how_fitted` says how.

    A side that differs by 2 or 4 pixels is padded with black or cut, so 28 x 28 and 32 x 32 keep their pixels both
    ways. Others are resized.

    Raises:
        DataError: If the images have another shape, or a value outside [0, 1] or not finite.
    """
    if images.ndim != 4:
        raise DataError(f"images must have shape (N, C, H, W), got {tuple(images.shape)}")
    how_fitted(tuple(images.shape[1:]), image_shape)
    if len(images):
        low, high = (float(v) for v in torch.aminmax(images))
        if not (low >= -1e-6 and high <= 1 + 1e-6):
            raise DataError(
                f"images must lie in [0, 1], got values in [{low:.4g}, {high:.4g}]; undo their standardisation first"
            )
    to_c, to_h, to_w = image_shape
    x = images.float()
    if x.shape[1] == 3 and to_c == 1:
        x = (x * x.new_tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)
    elif x.shape[1] == 1 and to_c == 3:
        x = x.expand(-1, 3, -1, -1)
    vertical, horizontal = _border(x.shape[2], to_h), _border(x.shape[3], to_w)
    if vertical is not None and horizontal is not None:
        return F.pad(x, (horizontal, horizontal, vertical, vertical)).clamp(0, 1)
    return F.interpolate(x, (to_h, to_w), mode="bilinear", antialias=True).clamp(0, 1)


def _border(side: int, to: int) -> int | None:
    """Pixels to add at both ends (negative: to take away), None if the side is to be resized."""
    return (to - side) // 2 if to - side in (-4, -2, 0, 2, 4) and min(side, to) >= 24 else None
