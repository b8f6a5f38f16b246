"""The built-in prior: a small latent diffusion model of grey 32 x 32 images.

R. Rombach, A. Blattmann, D. Lorenz, P. Esser, B. Ommer, "High-Resolution Image Synthesis with Latent Diffusion Models",
CVPR 2022, for the arrangement: an autoencoder, a denoiser in its latent space that attends to a prompt, and classifier-
free guidance (J. Ho, T. Salimans, 2021).  Such networks have 10^9 parameters; this one has 8.3 x 10^5, so one core
inverts and samples a federation of five clients in a minute.

Notation   x      image in [0, 1], (1, 32, 32)
           z      latent, (4, 8, 8), standardised per channel over the public data
           v      embedding, (64,): the sum of the rows of a caption's words
           p      the row of "a photo of"; the denoiser attends to the two tokens [p, v]
Departures A table of words, trained with the denoiser, replaces the text encoder.  A sum of words lies where a caption
           lies, so a learned embedding can only go where trained ones lie.  v also scales and shifts every residual
           block (FiLM): attention to two tokens alone conveys little.

`unskew.priors.train` trains it; weights/builtin.json records the data and the result.
"""

import hashlib
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import Tensor, nn

from unskew.errors import DataError
from unskew.files import user_path
from unskew.keys import Key
from unskew.priors import taesd
from unskew.priors.prior import Prior, fitted

STEPS = 1000
IMAGE = (1, 32, 32)
LATENT = (4, 8, 8)
WIDTH = 64

PHOTO, NULL, THING = "a photo of", "", "thing"
"""Words with a role: the fixed first token, the empty caption, and the noun of an image without one."""

CARD, WEIGHTS = "builtin.json", "builtin.safetensors"


def alpha_bar() -> Tensor:
    """Share of the signal's variance left at each time, (STEPS,): half a cosine.

    The ends are cut at 0.9996 and 0.001: DDIM's first step divides by the root of the last.
    """
    return torch.cos(torch.linspace(0.02, 1.539, STEPS, dtype=torch.float64)).square().float()


# ---------------------------------------------------------------- networks
def encoder() -> nn.Sequential:
    """Images (N, 1, 32, 32) to means and log-variances of latents, (N, 8, 8, 8)."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 4, 2, 1),
        nn.SiLU(),
        nn.Conv2d(32, 64, 4, 2, 1),
        nn.SiLU(),
        nn.Conv2d(64, 64, 3, 1, 1),
        nn.SiLU(),
        nn.Conv2d(64, 2 * LATENT[0], 1),
    )


def decoder() -> nn.Sequential:
    """Latents (N, 4, 8, 8), as the encoder gives them, to images (N, 1, 32, 32)."""
    return nn.Sequential(
        nn.Conv2d(LATENT[0], 64, 3, 1, 1),
        nn.SiLU(),
        nn.Conv2d(64, 64, 3, 1, 1),
        nn.SiLU(),
        nn.Conv2d(64, 128, 3, 1, 1),
        nn.PixelShuffle(2),
        nn.SiLU(),
        nn.Conv2d(32, 32, 3, 1, 1),
        nn.SiLU(),
        nn.Conv2d(32, 4, 3, 1, 1),
        nn.PixelShuffle(2),
    )


class Block(nn.Module):
    """A residual block of two convolutions; the condition scales and shifts between them."""

    def __init__(self, inputs: int, outputs: int, condition: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, inputs), nn.GroupNorm(8, outputs)
        self.conv1, self.conv2 = nn.Conv2d(inputs, outputs, 3, 1, 1), nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.film = nn.Linear(condition, 2 * outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        nn.init.zeros_(self.conv2.weight)

    def forward(self, h: Tensor, condition: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, outputs, H, W)."""
        scale, shift = self.film(condition)[:, :, None, None].chunk(2, dim=1)
        inner = self.norm2(self.conv1(F.silu(self.norm1(h)))) * (1 + scale) + shift
        out: Tensor = self.skip(h) + self.conv2(F.silu(inner))
        return out


class Attend(nn.Module):
    """Attention among places, then from places to the prompt, then a perceptron; each added to its input."""

    def __init__(self, channels: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(channels) for _ in range(3))
        self.places, self.join = nn.Linear(channels, 3 * channels, bias=False), nn.Linear(channels, channels)
        self.query, self.join2 = nn.Linear(channels, channels, bias=False), nn.Linear(channels, channels)
        self.prompt = nn.Linear(WIDTH, 2 * channels, bias=False)
        enter, leave = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.mlp = nn.Sequential(enter, nn.GELU(), leave)
        for last in (self.join, self.join2, leave):
            nn.init.zeros_(last.weight)

    def forward(self, h: Tensor, tokens: Tensor) -> Tensor:
        """`h` (N, C, H, W) and tokens (N, L, WIDTH) to (N, C, H, W)."""
        s = h.flatten(2).transpose(1, 2)
        q, k, v = self.places(self.norm1(s)).chunk(3, dim=-1)
        s = s + self.join(self._attended(q, k, v))
        k, v = self.prompt(tokens).chunk(2, dim=-1)
        s = s + self.join2(self._attended(self.query(self.norm2(s)), k, v))
        s = s + self.mlp(self.norm3(s))
        out: Tensor = s.transpose(1, 2).reshape(h.shape)
        return out

    def _attended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (t.reshape(*t.shape[:2], self.heads, -1).transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class Denoiser(nn.Module):
    """The noise in a latent, given time and prompt: residual blocks at its size and half of it, attention between."""

    def __init__(self, channels: int = LATENT[0], condition: int = 128) -> None:
        super().__init__()
        wide = max(32, 2 * channels)
        deep = 2 * wide
        self.time = nn.Sequential(nn.Linear(64, condition), nn.SiLU(), nn.Linear(condition, condition))
        self.prompt = nn.Linear(WIDTH, condition)
        self.enter = nn.Conv2d(channels, wide, 3, 1, 1)
        self.down, self.down_attend = Block(wide, wide, condition), Attend(wide)
        self.shrink = nn.Conv2d(wide, deep, 3, 2, 1)
        self.middle = nn.ModuleList(Block(deep, deep, condition) for _ in range(3))
        self.middle_attend = nn.ModuleList(Attend(deep) for _ in range(2))
        self.grow = nn.Conv2d(deep, wide, 3, 1, 1)
        self.up, self.up_attend = Block(2 * wide, wide, condition), Attend(wide)
        self.last = Block(wide, wide, condition)
        self.norm, self.leave = nn.GroupNorm(8, wide), nn.Conv2d(wide, channels, 3, 1, 1)
        nn.init.zeros_(self.leave.weight)

    def forward(self, z: Tensor, times: Tensor, tokens: Tensor) -> Tensor:
        """Noisy latents (N, C, H, W), times (N,) in 0 .. STEPS-1 and tokens (N, 2, WIDTH) to noise (N, C, H, W)."""
        c = F.silu(self.time(waves(times)) + self.prompt(tokens[:, -1]))
        h = self.enter(z)
        wide = h = self.down_attend(self.down(h, c), tokens)
        h = self.middle[0](self.shrink(h), c)
        for attend, block in zip(self.middle_attend, self.middle[1:], strict=True):
            h = block(attend(h, tokens), c)
        h = self.grow(F.interpolate(h, scale_factor=2.0, mode="nearest"))
        h = self.up_attend(self.up(torch.cat([h, wide], dim=1), c), tokens)
        h = self.last(h, c)
        out: Tensor = self.leave(F.silu(self.norm(h)))
        return out


def waves(times: Tensor) -> Tensor:
    """Times (N,) as sines and cosines of 32 wavelengths, (N, 64)."""
    frequency = torch.exp(torch.linspace(0, -math.log(10_000), 32, device=times.device))
    angle = times.float()[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=1)


class Networks(nn.Module):
    """Everything trained and stored: both halves of the autoencoder, denoiser, words, scaling of latents.

    Colour images use the pretrained autoencoder of `unskew.priors.taesd`.  `mean` and `std` (C, 1, 1) standardise
    latents; `reach`, (), bounds them: no public image has a larger one.
    """

    def __init__(self, words: int, image_shape: tuple[int, int, int] = IMAGE) -> None:
        super().__init__()
        colour, h, w = image_shape[0] == 3, *image_shape[1:]
        self.image_shape = image_shape
        self.latent_shape = (taesd.CHANNELS, h // taesd.FACTOR, w // taesd.FACTOR) if colour else LATENT
        channels = self.latent_shape[0]
        self.encoder, self.decoder = (taesd.encoder(), taesd.decoder()) if colour else (encoder(), decoder())
        self.denoiser = Denoiser(channels)
        self.words = nn.Embedding(words, WIDTH)
        nn.init.normal_(self.words.weight, std=0.3)
        self.mean: Tensor
        self.std: Tensor
        self.reach: Tensor
        self.register_buffer("mean", torch.zeros(channels, 1, 1))
        self.register_buffer("std", torch.ones(channels, 1, 1))
        self.register_buffer("reach", torch.tensor(5.0))


# ---------------------------------------------------------------- the prior
@dataclass(frozen=True, eq=False)
class BuiltIn(Prior):
    """The built-in model; `load` makes one.

    Attributes:
        networks: Networks in evaluation mode, frozen.
        words: The table's words, in the order of its rows.
        sha256: SHA-256 of the file they were read from.
    """

    networks: Networks
    words: tuple[str, ...]
    sha256: str
    image_shape: tuple[int, int, int]
    latent_shape: tuple[int, int, int]
    device: torch.device
    alpha_bar: Tensor
    reach: float
    at_once: int
    name: str = "built-in"
    width: int = WIDTH
    guidance: float = 1.5

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Standardised latents (N, *latent_shape) of images (N, C, H, W) in [0, 1]; see `fitted` for other shapes."""
        images, channels = fitted(images, self.image_shape), self.latent_shape[0]
        parts = [self.networks.encoder(x.to(self.device))[:, :channels] for x in torch.split(images, self.at_once)]
        return (torch.cat(parts) - self.networks.mean) / self.networks.std

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Images (N, *image_shape) in [0, 1] of standardised latents."""
        raw = latents.to(self.device) * self.networks.std + self.networks.mean
        return torch.cat([self.networks.decoder(part) for part in torch.split(raw, self.at_once)]).clamp(0, 1)

    def start(self, noun: str | None = None) -> Tensor:
        """Row of a noun, (64,); if there is none, or the table lacks it, that of "thing", which fits any image."""
        row = self.words.index(noun if noun in self.words and noun not in (PHOTO, NULL) else THING)
        return self.networks.words.weight[row].clone()

    def denoised(self, z: Tensor, v: Tensor | None, times: Tensor) -> Tensor:
        """Noise in latents under embeddings, or the empty prompt."""
        row = self.networks.words.weight
        if v is None:
            v = row[self.words.index(NULL)].expand(len(z), -1)
        photo = row[self.words.index(PHOTO)].expand_as(v)
        out: Tensor = self.networks.denoiser(z, times, torch.stack([photo, v], dim=1))
        return out


# ---------------------------------------------------------------- reading
def photographs(device: torch.device | str = "cpu") -> BuiltIn:
    """The prior of colour photographs, 32 x 32, that comes with unskew."""
    return replace(load(Path(__file__).parent / "photographs", device), name="photographs")


def load(folder: Path | str | None = None, device: torch.device | str = "cpu") -> BuiltIn:
    """The built-in prior, or one that `unskew prior train` wrote to `folder`.

    Raises:
        DataError: If the weights or their card are missing, or the card names other weights.
    """
    place = Path(__file__).parent / "weights" if folder is None else user_path(folder)
    card, file = read_card(place), place / WEIGHTS
    again = "install unskew again" if folder is None else "write both again with unskew prior train"
    try:
        content = file.read_bytes()
    except OSError as error:
        raise DataError(f"the prior's weights {file} cannot be read: {error.strerror or error}; {again}") from None
    digest = hashlib.sha256(content).hexdigest()
    if digest != card["sha256"]:
        raise DataError(
            f"{file} is not the file its card vouches for: SHA-256 {digest[:16]}... ({len(content):,} bytes), the card "
            f"says {card['sha256'][:16]}...; {again}"
        )
    try:
        # From the bytes that were hashed, not from the file again: it may be written to meanwhile.
        tensors = {name: t.float() for name, t in safetensors.torch.load(content).items()}
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        words = tuple(json.loads(header["__metadata__"]["words"]))
        with Key(0).ambient():
            networks = Networks(len(words), tuple(card.get("image", IMAGE)))
        networks.load_state_dict(tensors)
    except (SafetensorError, RuntimeError, KeyError, TypeError, ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{file} does not hold this version's built-in prior: {reason}; {again}") from None
    networks = networks.eval().requires_grad_(False).to(device)
    shapes, where = (networks.image_shape, networks.latent_shape), networks.mean.device
    at_once = 1024 if networks.image_shape[0] == 1 else 128
    return BuiltIn(networks, words, digest, *shapes, where, alpha_bar().to(where), float(networks.reach), at_once)


def read_card(folder: Path | None = None) -> dict[str, Any]:
    """The card of the prior in `folder`: data, hashes, training, licence, and how to reproduce it.

    Raises:
        DataError: If there is no card, or it is not valid.
    """
    file = (Path(__file__).parent / "weights" if folder is None else folder) / CARD
    try:
        card: dict[str, Any] = json.loads(file.read_text("utf-8"))
        str(card["sha256"])
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        raise DataError(f"the prior's card {file} cannot be read: {error!r}; unskew prior train writes one") from None
    return card
