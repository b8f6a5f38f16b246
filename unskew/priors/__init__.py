"""Latent diffusion models behind one interface: unskew's own, any Stable Diffusion pipeline, or yours."""

import inspect
import os
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import torch

from unskew.data.places import require_allowed
from unskew.errors import ConfigError
from unskew.priors.prior import Prior, distances, fitted, how_fitted, invert
from unskew.references import makes
from unskew.registry import Registry

__all__ = [
    "BUILT_IN",
    "PRIORS",
    "Prior",
    "check",
    "distances",
    "fitted",
    "how_fitted",
    "invert",
    "load",
]

BUILT_IN, FOLDER, HUB = "built-in", "FOLDER", "hub:OWNER/NAME"

PRIORS = Registry(
    "prior",
    "unskew.priors",
    {
        BUILT_IN: "unskew.priors.builtin:load",
        "photographs": "unskew.priors.builtin:photographs",
        FOLDER: "unskew.priors:_in_folder",
        HUB: "unskew.priors.diffusers:load",
    },
    "a class derived from unskew.priors.Prior, or a function annotated to return one, as in def mine(device: "
    "torch.device) -> Prior",
    partial(makes, lambda kind: inspect.isclass(kind) and issubclass(kind, Prior)),
    about={
        BUILT_IN: "0.8 million parameters, grey 32 x 32 images; comes with unskew",
        "photographs": "4.9 million parameters, 32 x 32 images in colour; comes with unskew",
        FOLDER: "one that unskew prior train wrote, or a Stable Diffusion pipeline, extra [diffusion]",
        HUB: "a Stable Diffusion pipeline, downloaded, extra [diffusion]; huggingface.co",
    },
    schemes=("hub",),
)


def check(source: str) -> None:
    """Refuse code that is no prior; it is imported, not called.  Other names are left to `load`.

    Raises:
        ConfigError: If `source` is module:attribute and missing or no prior, or an option is invalid.
    """
    place, _ = _options(source)
    if _entry(place) == place and ":" in place:
        PRIORS.resolve(place)


def load(source: str = BUILT_IN, device: torch.device | str = "cpu") -> Prior:
    """The prior called `source`.

    Args:
        source: "built-in" or "photographs"; a folder that `unskew prior train` wrote, or of a Stable Diffusion
            pipeline; hub:OWNER/NAME, which downloads one; one that an installed package registers; or module:attribute.
            After a pipeline, ?tokens=4&size=64 gives an embedding's tokens and the images' height and width.
        device: Device that it computes on.

    Raises:
        ConfigError: If the extra [diffusion] is needed and missing, an option or the pipeline does not fit, there is no
            prior of that name, or your own is no prior.
        DataError: If there is no prior there, or its files are damaged.
    """
    place, options = _options(source)
    entry = _entry(place)
    make = PRIORS.resolve(entry)
    if entry in (FOLDER, HUB):
        require_allowed(place)
    elif options:
        raise ConfigError(f"only a Stable Diffusion pipeline has options, and {place} is none; leave ?... out")
    if entry in PRIORS.ours:
        prior: Prior = make(place, device, **options) if entry in (FOLDER, HUB) else make(device=device)
        return prior
    return _made(make, entry, torch.device(device))


def _options(source: str) -> tuple[str, dict[str, int]]:
    """A source without its options, and these."""
    place, _, query = source.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if not options.keys() <= {"tokens", "size"} or not all(value.isdecimal() for value in options.values()):
        raise ConfigError(f"a prior's options are tokens and size, as in {place}?tokens=4&size=64, got ?{query}")
    return place, {name: int(value) for name, value in options.items()}


def _entry(source: str) -> str:
    """The name in `PRIORS` that a prior's source goes by."""
    if source in PRIORS.names():
        return source
    if source.startswith("hub:"):
        return HUB
    return FOLDER if os.sep in source or Path(source).exists() else source


def _in_folder(source: str, device: torch.device | str, **options: int) -> Prior:
    from unskew.priors import builtin, diffusers

    if options or not (Path(source) / builtin.CARD).is_file():
        return diffusers.load(source, device, **options)
    return builtin.load(Path(source), device)


def _made(make: Any, name: str, device: torch.device) -> Prior:
    """Make a user's own prior: one that has all parts, and through which a black image goes."""
    try:
        inspect.signature(make).bind(device=device)
    except TypeError as error:
        raise ConfigError(
            f"prior {name!r} must take device and need nothing else, as in def mine(device: torch.device) -> Prior "
            f"({error})"
        ) from None
    missing = sorted(getattr(make, "__abstractmethods__", ()))
    prior: Any = None if missing else make(device=device)
    missing = missing or [part for part in Prior.__annotations__ if not hasattr(prior, part)]
    if missing:
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
    whole: Prior = prior
    return whole
