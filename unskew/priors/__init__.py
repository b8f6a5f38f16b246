"""Latent diffusion models behind one interface: the one that comes with unskew, and any Stable Diffusion pipeline."""

from pathlib import Path

import torch

from unskew.errors import ConfigError
from unskew.priors.prior import Inversion, LearnedEmbeddings, Prior, distances, fitted, how_fitted, invert

__all__ = ["BUILT_IN", "Inversion", "LearnedEmbeddings", "Prior", "distances", "fitted", "how_fitted", "invert", "load"]

BUILT_IN = "built-in"


def load(source: str = BUILT_IN, device: torch.device | str = "cpu", tokens: int = 1, size: int | None = None) -> Prior:
    """The prior called `source`.

    Args:
        source: "built-in"; a folder that `unskew prior train` wrote; a folder of a Stable Diffusion pipeline; or
            hub:OWNER/NAME, which downloads one.
        device: Device that it computes on.
        tokens: Tokens of an embedding; more than 1 with Stable Diffusion only.
        size: Height and width of images; None is the prior's own, others go with Stable Diffusion only.

    Raises:
        ConfigError: If the extra [diffusion] is needed and missing, or an option or the pipeline does not fit.
        DataError: If there is no prior at that place, or its files are damaged.
    """
    from unskew.priors import builtin, diffusers

    folder = Path(source)
    if source != BUILT_IN and not (folder / builtin.CARD).is_file():
        return diffusers.load(source, device, tokens, size)
    if tokens != 1 or size not in (None, builtin.IMAGE[1]):
        raise ConfigError(
            f"the prior {source} has embeddings of one token and images of {builtin.IMAGE[1]} pixels, got tokens = "
            f"{tokens}, size = {size}; leave both out, or name a Stable Diffusion pipeline"
        )
    return builtin.load(None if source == BUILT_IN else folder, device)
