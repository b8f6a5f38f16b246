"""Training of the built-in prior: autoencoder, then denoiser and words on its latents.

    autoencoder   mean squared error + 0.1 absolute + 3e-4 KL divergence from a standard normal; Adam, one cycle
    latents       means only, standardised per channel; computed once
    captions      the sum of the rows of an image's words.  The noun is "thing" in 8 % and the caption empty in 10 %
                  (for guidance); a style's word is left out in 15 %, the word without a name in half of all cases
    denoiser      noise-prediction loss; AdamW, clipped at norm 1, from half-time half a cosine, words three times as
                  fast; the exponential average of the weights is kept

Everything is drawn from one seed.  The same seed, data, PyTorch, kind of processor and number of threads give the same
file to the byte; elsewhere sums round differently and give a file of equal quality.
"""

import hashlib
import json
import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import safetensors.torch
import torch
from annotated_types import Ge, Gt
from torch import Tensor

from unskew.errors import DivergedError
from unskew.files import write_atomically
from unskew.keys import Key
from unskew.priors.builtin import NULL, PHOTO, STEPS, THING, Networks, alpha_bar, photographs
from unskew.priors.prior import rate
from unskew.priors.public import KINDS, Captioned

Say = Callable[[str], None]
EVERY = 500  # steps after which the state of a training is written


@dataclass(frozen=True)
class PriorTraining:
    """Settings of both trainings; the defaults produced unskew's file."""

    autoencoder_steps: Annotated[int, Ge(1)] = 1200
    autoencoder_batch: Annotated[int, Ge(1)] = 128
    autoencoder_lr: Annotated[float, Gt(0.0)] = 2e-3
    denoiser_steps: Annotated[int, Ge(1)] = 12_000
    denoiser_batch: Annotated[int, Ge(1)] = 64
    denoiser_lr: Annotated[float, Gt(0.0)] = 2e-3
    average: Annotated[float, Ge(0.0)] = 0.999


def train(
    data: Captioned,
    about: Mapping[str, Any],
    seed: int,
    training: PriorTraining = PriorTraining(),
    say: Say = lambda _: None,
    state: Path | None = None,
) -> tuple[bytes, dict[str, Any]]:
    """Train both parts, or for images in colour the second on a pretrained first; return the file's bytes and its card.

    Args:
        data: Images with captions (`unskew.priors.public`); `about` describes them on the card.
        seed: Root of all randomness.
        training: Settings of the training.
        say: Called now and then with a line on progress.
        state: File that the denoiser's training is saved to, and continued from if it exists.

    Raises:
        DivergedError: If a loss became NaN or infinite.
    """
    key, (c, h, w) = Key(seed) / "prior", data.images.shape[1:]
    with (key / "weights").ambient():
        networks = Networks(len(data.words), (c, h, w))
    began, result = time.monotonic(), {}
    if c == 1:
        result["autoencoder_mse"] = _train_autoencoder(networks, data, key / "autoencoder", training, say)
    else:
        pretrained = photographs().networks
        networks.encoder.load_state_dict(pretrained.encoder.state_dict())
        networks.decoder.load_state_dict(pretrained.decoder.state_dict())
    latents = _latents(networks, data)
    result["denoiser_loss"] = _train_denoiser(networks, data, latents, key / "denoiser", training, say, state)
    weights = packed(networks, data.words)
    card = {
        **about,
        "rebuild": f"{about['rebuild']} --seed {seed} --data-dir DIR",
        "image": (c, h, w),
        "images": len(data),
        "sha256": hashlib.sha256(weights).hexdigest(),
        "bytes": len(weights),
        "parameters": sum(p.numel() for p in networks.parameters()),
        "training": {"seed": seed, **asdict(training), "seconds": round(time.monotonic() - began)},
        "result": result,
        "made_with": {"torch": torch.__version__, "threads": torch.get_num_threads(), "machine": platform.machine()},
    }
    return weights, card


def packed(networks: Networks, words: Sequence[str]) -> bytes:
    """The weights as safetensors in half precision, with the words."""
    tensors = {name: t.detach().half().contiguous() for name, t in networks.state_dict().items()}
    # One entry only: the order of several is not fixed, and the hash is.
    return safetensors.torch.save(tensors, {"words": json.dumps(words)})


# ---------------------------------------------------------------- autoencoder
def _train_autoencoder(networks: Networks, data: Captioned, key: Key, training: PriorTraining, say: Say) -> float:
    """Train the autoencoder; return its mean squared error over the last tenth of the steps."""
    steps, batch = training.autoencoder_steps, training.autoencoder_batch
    weights = [*networks.encoder.parameters(), *networks.decoder.parameters()]
    adam = torch.optim.Adam(weights, training.autoencoder_lr)
    cycle = torch.optim.lr_scheduler.OneCycleLR(adam, training.autoencoder_lr, total_steps=steps + 1)
    g = key.generator()
    course = []
    for s in range(steps):
        x = data.images[torch.randint(len(data), (batch,), generator=g)].float() / 255
        mean, logvar = networks.encoder(x).chunk(2, dim=1)
        logvar = logvar.clamp(-20, 10)
        z = mean + (0.5 * logvar).exp() * torch.randn(mean.shape, generator=g)
        error = networks.decoder(z) - x
        kl = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean()
        mse = error.square().mean()
        adam.zero_grad()
        (mse + 0.1 * error.abs().mean() + 3e-4 * kl).backward()
        adam.step()
        cycle.step()
        course.append(_finite(mse, "autoencoder", s))
        if (s + 1) % 100 == 0 or s + 1 == steps:
            say(f"autoencoder {s + 1}/{steps}: squared error {fmean(course[-100:]):.4f}")
    return fmean(course[-max(1, steps // 10) :])


@torch.no_grad()
def _latents(networks: Networks, data: Captioned) -> Tensor:
    """Standardised latents of all images; the constants are kept with the networks."""
    raw = torch.cat(
        [networks.encoder(x.float() / 255)[:, : networks.latent_shape[0]] for x in torch.split(data.images, 1024)]
    )
    # Halves now, as they will be when they are read back.
    networks.mean.copy_(raw.mean((0, 2, 3))[:, None, None].half())
    networks.std.copy_(raw.std((0, 2, 3))[:, None, None].half())
    z = (raw - networks.mean) / networks.std
    networks.reach.copy_(z.abs().max().half())
    return z


# ---------------------------------------------------------------- denoiser and words
def _train_denoiser(
    networks: Networks,
    data: Captioned,
    latents: Tensor,
    key: Key,
    training: PriorTraining,
    say: Say,
    state: Path | None,
) -> float:
    """Train denoiser and words; return the mean loss over the last tenth of the steps."""
    steps, lr = training.denoiser_steps, training.denoiser_lr
    groups: list[dict[str, Any]] = [
        {"params": list(networks.denoiser.parameters()), "factor": 1.0, "weight_decay": 1e-4},
        {"params": list(networks.words.parameters()), "factor": 3.0, "weight_decay": 0.0},
    ]
    weights = [p for group in groups for p in group["params"]]
    adam = torch.optim.AdamW(groups, lr)
    kept = [p.detach().clone() for p in weights]
    abar = alpha_bar()
    g = key.generator()
    for p in weights:  # as Adam begins
        adam.state[p] = {"step": torch.zeros(()), "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
    every = [*weights, *kept, *(t for p in weights for t in adam.state[p].values())]
    course: list[float] = []
    if state is not None and state.is_file():
        saved = safetensors.torch.load(state.read_bytes())
        course = saved["course"].tolist()
        g.set_state(saved["generator"])
        with torch.no_grad():
            for i, t in enumerate(every):
                t.copy_(saved[str(i)])
    first, began = len(course), time.monotonic()
    for s in range(first, steps):
        for group in adam.param_groups:  # a warm-up over 100 steps, and at the end a hundredth
            group["lr"] = lr * group["factor"] * max(0.01, min((s + 1) / 100, rate(s / steps)))
        rows = torch.randint(len(data), (training.denoiser_batch,), generator=g)
        z, v = latents[rows], captions(networks.words, data, rows, g)
        times = torch.randint(STEPS, (len(rows),), generator=g)
        noise = torch.randn(z.shape, generator=g)
        a = abar[times][:, None, None, None]
        photo = networks.words.weight[data.words.index(PHOTO)].expand_as(v)
        predicted = networks.denoiser(a.sqrt() * z + (1 - a).sqrt() * noise, times, torch.stack([photo, v], dim=1))
        loss = (predicted - noise).square().mean()
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        adam.step()
        # At first the average follows closely: the initial weights are not worth remembering.
        part = 1 - min(training.average, (s + 1) / (s + 10))
        with torch.no_grad():
            for old, new in zip(kept, weights, strict=True):
                old.lerp_(new, part)
        course.append(_finite(loss, "denoiser", s))
        if (s + 1) % 200 == 0 or s + 1 == steps:
            left = (time.monotonic() - began) / (s + 1 - first) * (steps - s - 1) / 60
            say(f"denoiser {s + 1}/{steps}: loss {fmean(course[-200:]):.4f}, {left:.0f} minutes left")
        if state is not None and (s + 1) % EVERY == 0:
            saved = {str(i): t.detach() for i, t in enumerate(every)}
            saved |= {"course": torch.tensor(course, dtype=torch.float64), "generator": g.get_state()}
            write_atomically(state, safetensors.torch.save(saved))
    with torch.no_grad():
        for old, new in zip(kept, weights, strict=True):
            new.copy_(old)
    return fmean(course[-max(1, steps // 10) :])


def captions(words: torch.nn.Embedding, data: Captioned, rows: Tensor, generator: torch.Generator) -> Tensor:
    """A caption's vector for each image, (n, width): the sum of its words' rows, some left out at random."""
    n = len(rows)

    def chance(p: float, *shape: int) -> Tensor:
        return torch.rand(n, *shape, generator=generator) < p

    noun = data.noun[rows]
    first_noun = data.words.index(data.nouns[0])
    first_style = first_noun + len(data.nouns)
    first_kind = first_style + len(data.named)
    unnamed = chance(0.08)
    bag = torch.zeros(n, len(data.words))
    bag[torch.arange(n), torch.where(unnamed, data.words.index(THING), first_noun + noun)] = 1
    bag[:, first_style:first_kind] = (data.styles[rows] & ~chance(0.15, len(data.named))).float()
    # The nameless words tell the noun too: where it is to be unknown they must go.
    kind = (chance(0.5) & ~unnamed).float()
    bag[torch.arange(n), first_kind + noun * KINDS + data.kind[rows]] = kind
    empty = chance(0.1)
    bag[empty] = 0
    bag[empty, data.words.index(NULL)] = 1
    vectors: Tensor = bag @ words.weight
    return vectors


def _finite(loss: Tensor, what: str, step: int) -> float:
    value = float(loss.detach())
    if not math.isfinite(value):
        raise DivergedError(f"the {what}'s loss became {value} in step {step + 1}; lower its learning rate")
    return value
