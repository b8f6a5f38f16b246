"""Any Stable Diffusion pipeline as a prior, through the package `diffusers` (extra [diffusion]).

    FOLDER            a pipeline that `diffusers` saved: model_index.json and a folder for each part
    hub:OWNER/NAME    the same from the Hugging Face hub; downloaded, and kept in its cache (HF_HOME)

Weights are read from safetensors only, as opening a pickled checkpoint runs code.  Code beside the weights is not run
either.

Notation   p      encoded prompt "a photo of", (77, d);  v  embedding, L tokens of d numbers, as one vector (L d,)
           The denoiser attends to [p; v], 77 + L tokens, as in FedDistr's equations.
Departures Textual inversion proper learns an input of the text encoder; this, like FedDistr, learns an extra output.
           The empty prompt of guidance gets L copies of its last token, so both have one length.  Pipelines that
           predict the velocity (Stable Diffusion 2) are inverted by the velocity's error, as they were trained: the
           noise's error divided by abar.
Not tried  Published weights, and half precision on a GPU: neither was available.  Tests build a small pipeline.
"""

import importlib
import io
from collections.abc import Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from unskew.errors import ConfigError, DataError
from unskew.files import user_path
from unskew.priors.prior import Prior, fitted

INSTALL = "pip install 'unskew[diffusion]'"
PROMPT, THING = "a photo of", "thing"

_PARTS = ("unet", "vae", "text_encoder")


def load(
    source: str | Path, device: torch.device | str = "cpu", tokens: int = 1, size: int | None = None
) -> "Diffusers":
    """A Stable Diffusion pipeline as a prior: half precision and sliced attention on a GPU, float32 on a CPU.

    Args:
        source: A folder, or hub:OWNER/NAME, which may download.
        device: Device that it computes on.
        tokens: Tokens of an embedding, L.
        size: Height and width of images, a multiple of the autoencoder's factor; None is the pipeline's own.

    Raises:
        ConfigError: If the extra is not installed, the source is another pipeline, or `size` does not fit.
        DataError: If there is nothing there, it has no weights in safetensors, or it cannot be read.
    """
    name = str(source)
    from_hub = name.startswith("hub:")
    place = name.removeprefix("hub:")
    if not from_hub:
        place = str(user_path(place))
    kind = _diffusers().StableDiffusionPipeline
    device = torch.device(device)
    dtype = torch.float32 if device.type == "cpu" else torch.float16
    options = {"local_files_only": not from_hub}
    # Bars and warnings of both libraries: their errors say everything that matters.
    with redirect_stderr(io.StringIO()):
        try:
            _check_index(name, kind.load_config(place, **options))
            pipeline = kind.from_pretrained(
                place,
                dtype=dtype,
                use_safetensors=True,
                variant=_variant(Path(place)),
                safety_checker=None,
                feature_extractor=None,
                image_encoder=None,
                requires_safety_checker=False,
                **options,
            )
        except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
            why = " ".join(str(error).split())[:300]
            raise DataError(
                f"{name} cannot be loaded as a Stable Diffusion pipeline: {why}; give a folder that "
                "diffusers saved with safetensors, or hub:OWNER/NAME"
            ) from None
    return _prior(pipeline, name, device, tokens, size)


def _prior(pipeline: Any, name: str, device: torch.device, tokens: int, size: int | None) -> "Diffusers":
    predicts = pipeline.scheduler.config.get("prediction_type", "epsilon")
    if predicts not in ("epsilon", "v_prediction"):
        raise ConfigError(f"{name} predicts {predicts!r}; a prior must predict noise (epsilon) or velocity")
    if tokens < 1:
        raise ConfigError(f"an embedding has at least one token, got {tokens}")
    for part in _PARTS:
        getattr(pipeline, part).eval().requires_grad_(False)
    pipeline.to(device)
    if device.type != "cpu":
        pipeline.enable_attention_slicing()
    factor = 2 ** (len(pipeline.vae.config.block_out_channels) - 1)
    side = pipeline.unet.config.sample_size * factor if size is None else size
    # The denoiser halves a latent at each level but the last.
    least = factor * 2 ** (len(pipeline.unet.config.block_out_channels) - 1)
    if side < least or side % least:
        raise ConfigError(f"size must be a multiple of {least} pixels for {name}, got {side}")
    width = pipeline.unet.config.cross_attention_dim
    return Diffusers(
        pipeline=pipeline,
        name=name,
        width=tokens * width,
        latent_shape=(pipeline.unet.config.in_channels, side // factor, side // factor),
        image_shape=(pipeline.vae.config.in_channels, side, side),
        tokens=tokens,
        velocity=predicts == "v_prediction",
        device=device,
        alpha_bar=pipeline.scheduler.alphas_cumprod.float().to(device),
        photo=_text(pipeline, PROMPT),
        empty=_text(pipeline, ""),
    )


@dataclass(frozen=True, eq=False)
class Diffusers(Prior):
    """A Stable Diffusion pipeline; `load` makes one.

    Attributes:
        pipeline: A frozen `diffusers.StableDiffusionPipeline`.
        tokens: Tokens of an embedding, L.
        photo, empty: Encoded prompts, (tokens of a prompt, d).
        lr: Learning rate; DDDR uses 5e-3 for a batch of 4.
    """

    pipeline: Any = field(repr=False)
    name: str
    width: int
    latent_shape: tuple[int, int, int]
    image_shape: tuple[int, int, int]
    tokens: int
    device: torch.device
    alpha_bar: Tensor = field(repr=False)
    photo: Tensor = field(repr=False)
    empty: Tensor = field(repr=False)
    velocity: bool
    lr: float = 0.02
    at_once: int = 16
    guidance: float = 7.5
    steps: int = 50

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Scaled means of the autoencoder's latents, (N, *latent_shape) float32; see `fitted` for other shapes."""
        parts = []
        for part in torch.split(images, self.at_once):
            x = fitted(part, self.image_shape).to(self.device, self.photo.dtype)
            parts.append(self.pipeline.vae.encode(2 * x - 1).latent_dist.mean.float())
        return torch.cat(parts) * self._scale

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Images (N, *image_shape) in [0, 1], float32."""
        scaled = (latents / self._scale).to(self.device, self.photo.dtype)
        parts = [self.pipeline.vae.decode(part).sample.float() for part in torch.split(scaled, self.at_once)]
        return (torch.cat(parts) / 2 + 0.5).clamp(0, 1)

    def start(self, noun: str | None = None) -> Tensor:
        """Mean of the text encoder's output at a noun's tokens, L times, (width,); by default the noun "thing"."""
        ids = self.pipeline.tokenizer(noun or THING, add_special_tokens=False)["input_ids"]
        # The first token marks the beginning of the text.
        words = _text(self.pipeline, noun or THING)[1 : 1 + len(ids)]
        return words.float().mean(0).repeat(self.tokens)

    @property
    def _scale(self) -> float:
        return float(self.pipeline.vae.config.scaling_factor)

    def _condition(self, v: Tensor | None, n: int = 0) -> Tensor:
        """[p; v] for embeddings (n, width), or the empty prompt n times; (n, tokens of a prompt + L, d)."""
        if v is None:
            return torch.cat([self.empty, self.empty[-1:].expand(self.tokens, -1)]).expand(n, -1, -1)
        mine = v.reshape(len(v), self.tokens, -1).to(self.photo.dtype)
        return torch.cat([self.photo.expand(len(v), -1, -1), mine], dim=1)

    def _output(self, z: Tensor, condition: Tensor, times: Tensor) -> Tensor:
        """Output of the denoiser, float32."""
        output: Tensor = self.pipeline.unet(z.to(condition.dtype), times, encoder_hidden_states=condition).sample
        return output.float()

    def denoised(self, z: Tensor, v: Tensor | None, times: Tensor) -> Tensor:
        """Noise in latents under embeddings, or the empty prompt."""
        output = self._output(z, self._condition(v, len(z)), times)
        if not self.velocity:
            return output
        a = self.alpha_bar[times][:, None, None, None]
        return a.sqrt() * output + (1 - a).sqrt() * z


# ---------------------------------------------------------------- reading
def _diffusers() -> Any:
    try:
        importlib.import_module("transformers")
        return importlib.import_module("diffusers")
    except ImportError as error:
        raise ConfigError(f"a Stable Diffusion prior needs diffusers and transformers ({error}): {INSTALL}") from None


def _variant(folder: Path) -> str | None:
    """The variant of the weights in a folder where it has no other, as in model.fp16.safetensors."""
    names = [p.name.split(".") for p in (folder / "unet").glob("*.safetensors")]
    return names[0][-2] if names and all(len(parts) > 2 for parts in names) else None


def _check_index(name: str, index: Mapping[str, Any]) -> None:
    """Refuse another kind of pipeline, and parts that would bring code of their own."""
    kind = index.get("_class_name")
    if kind != "StableDiffusionPipeline":
        raise ConfigError(f"{name} is a {kind}; a prior must be a StableDiffusionPipeline (versions 1 and 2, not XL)")
    for part, made_by in index.items():
        if part in (*_PARTS, "tokenizer", "scheduler"):
            library = made_by[0] if isinstance(made_by, list | tuple) and made_by else made_by
            if library not in ("diffusers", "transformers"):
                raise ConfigError(
                    f"{name}: its {part} comes from {library!r}, not from diffusers or transformers; code that comes "
                    "with a pipeline is not run"
                )


@torch.no_grad()
def _text(pipeline: Any, text: str) -> Tensor:
    """The text encoder's output, (tokens of a prompt, d)."""
    tokenizer, encoder = pipeline.tokenizer, pipeline.text_encoder
    ids = tokenizer(
        text, padding="max_length", max_length=tokenizer.model_max_length, truncation=True, return_tensors="pt"
    ).input_ids
    encoded: Tensor = encoder(ids.to(encoder.device))[0][0]
    return encoded
