"""Latent diffusion models behind one interface: unskew's own, any Stable Diffusion pipeline, a user's own."""

import inspect
import os
from functools import partial
from pathlib import Path
from typing import Any

import torch

from unskew.data.places import require_allowed
from unskew.errors import ConfigError
from unskew.priors.prior import Inversion, Prior, distances, fitted, how_fitted, invert
from unskew.references import makes
from unskew.registry import Registry

__all__ = [
    "BUILT_IN",
    "PRIORS",
    "Inversion",
    "Prior",
    "check",
    "distances",
    "fitted",
    "how_fitted",
    "invert",
    "load",
]

BUILT_IN, FOLDER, HUB = "built-in", "FOLDER", "hub:OWNER/NAME"

_MEMBERS = tuple(name for name in vars(Prior) if not name.startswith("_"))
_PARTS = tuple(name for name in _MEMBERS if callable(getattr(Prior, name)))


def _is_prior(kind: Any) -> bool:
    return inspect.isclass(kind) and all(callable(getattr(kind, part, None)) for part in _PARTS)


PRIORS = Registry(
    "prior",
    "unskew.priors",
    {
        BUILT_IN: "unskew.priors.builtin:load",
        FOLDER: "unskew.priors:_in_folder",
        HUB: "unskew.priors.diffusers:load",
    },
    f"a class with {', '.join(_PARTS)}, or a function annotated to return one, as in def mine(device: torch.device) -> "
    "Prior",
    partial(makes, _is_prior),
    about={
        BUILT_IN: "0.8 million parameters, grey 32 x 32 images; comes with unskew",
        FOLDER: "one that unskew prior train wrote, or a Stable Diffusion pipeline, extra [diffusion]",
        HUB: "a Stable Diffusion pipeline, downloaded, extra [diffusion]; huggingface.co",
    },
    schemes=("hub",),
)


def check(source: str) -> None:
    """Refuse code that is no prior; it is imported and not called.  Other names are left to `load`.

    Raises:
        ConfigError: If `source` is module:attribute, and there is none or it is no prior.
    """
    if _entry(source) == source and ":" in source:
        PRIORS.resolve(source)


def load(source: str = BUILT_IN, device: torch.device | str = "cpu", tokens: int = 1, size: int | None = None) -> Prior:
    """The prior called `source`.

    Args:
        source: "built-in"; a folder that `unskew prior train` wrote; a folder of a Stable Diffusion pipeline;
            hub:OWNER/NAME, which downloads one; one that an installed package registers; or module:attribute.
        device: Device that it computes on.
        tokens: Tokens of an embedding; more than 1 with Stable Diffusion only.
        size: Height and width of images; None is the prior's own, others go with Stable Diffusion only.

    Raises:
        ConfigError: If the extra [diffusion] is needed and missing, an option or the pipeline does not fit, there is no
            prior of that name, or one of a user's own is none.
        DataError: If there is no prior at that place, or its files are damaged.
    """
    entry = _entry(source)
    make = PRIORS.resolve(entry)
    if entry in (FOLDER, HUB):
        require_allowed(source)
        prior: Prior = make(source, device, tokens, size)
        return prior
    ours = entry in PRIORS.ours
    return _of_one_size(make(device=device) if ours else _made(make, entry, torch.device(device)), source, tokens, size)


def _entry(source: str) -> str:
    """The name in `PRIORS` that a prior's source goes by."""
    if source in PRIORS.names():
        return source
    if source.startswith("hub:"):
        return HUB
    from unskew.priors.diffusers import PICKLES

    place = Path(source)  # a pickle is refused as one, wherever it lies
    return FOLDER if os.sep in source or place.suffix in PICKLES or place.exists() else source


def _in_folder(source: str, device: torch.device | str, tokens: int, size: int | None) -> Prior:
    from unskew.priors import builtin, diffusers

    folder = Path(source)
    if not (folder / builtin.CARD).is_file():
        return diffusers.load(source, device, tokens, size)
    return _of_one_size(builtin.load(folder, device), source, tokens, size)


def _of_one_size(prior: Prior, source: str, tokens: int, size: int | None) -> Prior:
    if tokens != 1 or size not in (None, prior.image_shape[1]):
        raise ConfigError(
            f"the prior {source} has embeddings of one token and images of {prior.image_shape[1]} pixels, got tokens = "
            f"{tokens}, size = {size}; leave both out, or name a Stable Diffusion pipeline"
        )
    return prior


def _made(make: Any, name: str, device: torch.device) -> Prior:
    """Make a user's own prior: one that has all parts, and through which a black image goes."""
    try:
        inspect.signature(make).bind(device=device)
    except TypeError as error:
        raise ConfigError(
            f"prior {name!r} must take device and need nothing else, as in def mine(device: torch.device) -> Prior "
            f"({error})"
        ) from None
    prior: Prior = make(device=device)
    if missing := [member for member in _MEMBERS if not hasattr(prior, member)]:
        raise ConfigError(f"prior {name!r} must make a Prior; what it makes lacks {', '.join(missing)}")
    with torch.no_grad():
        latents = prior.encode(torch.zeros(1, *prior.image_shape, device=device))
        parts = {
            "encode of one image": (latents, (1, *prior.latent_shape)),
            "decode of one image": (prior.decode(latents), (1, *prior.image_shape)),
            "start": (prior.start(), (prior.width,)),
        }
    for part, (value, shape) in parts.items():
        got = tuple(getattr(value, "shape", ())) or type(value).__name__
        if got != shape:
            raise ConfigError(f"prior {name!r}: {part} must return a tensor of {shape}, got {got}")
    return prior
