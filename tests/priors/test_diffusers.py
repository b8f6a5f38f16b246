"""Stable Diffusion as a prior: a pipeline of 10^5 parameters is built, saved and loaded without a network."""

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import unskew
from unskew import priors
from unskew.algorithms.feddistr import FedDistr
from unskew.algorithms.fedpft import FedPFT
from unskew.data.sources import load
from unskew.errors import ConfigError, DataError
from unskew.keys import Key
from unskew.priors import diffusers as adapter
from unskew.protocol import SgdConfig
from unskew.record.logs import rows

INSTALLED = all(importlib.util.find_spec(name) for name in ("diffusers", "transformers"))
needs_diffusers = pytest.mark.skipif(not INSTALLED, reason="the extra [diffusion] is not installed")
KEY = Key(5)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def save(folder: Path, prediction: str = "epsilon", safe: bool = True) -> Path:
    """A random Stable Diffusion of 32 x 32 images with 4 x 16 x 16 latents and 32-d tokens, in `folder`."""
    import diffusers
    import transformers

    symbols = [chr(33 + i) for i in range(94)] + [chr(161 + i) for i in range(162)]
    merges = [("t", "h"), ("i", "n"), ("th", "in")]
    pieces = [*symbols, *(s + "</w>" for s in symbols), *("".join(m) for m in merges)]
    pieces += ["<|startoftext|>", "<|endoftext|>"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    begin, end = len(pieces) - 2, len(pieces) - 1
    with warnings.catch_warnings(), Key(0).ambient():
        warnings.simplefilter("ignore")
        tokenizer = transformers.CLIPTokenizer(vocabulary, merges, model_max_length=12)
        text = transformers.CLIPTextModel(
            transformers.CLIPTextConfig(
                vocab_size=len(pieces), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                num_attention_heads=4, max_position_embeddings=12, bos_token_id=begin, eos_token_id=end,
                pad_token_id=end,
            )
        )  # fmt: skip
        vae = diffusers.AutoencoderKL(
            in_channels=3, out_channels=3, latent_channels=4, sample_size=32, block_out_channels=(8, 16),
            layers_per_block=1, norm_num_groups=4, down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
        )  # fmt: skip
        unet = diffusers.UNet2DConditionModel(
            sample_size=16, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(8, 16),
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), cross_attention_dim=32, attention_head_dim=4,
            norm_num_groups=4,
        )  # fmt: skip
        scheduler = diffusers.PNDMScheduler(
            beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", skip_prk_steps=True, steps_offset=1,
            prediction_type=prediction,
        )  # fmt: skip
        diffusers.StableDiffusionPipeline(
            vae=vae, text_encoder=text, tokenizer=tokenizer, unet=unet, scheduler=scheduler, safety_checker=None,
            feature_extractor=None, requires_safety_checker=False,
        ).save_pretrained(folder, safe_serialization=safe)  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("diffusers")
    pytest.importorskip("transformers")
    return save(tmp_path_factory.mktemp("pipeline") / "tiny")


@pytest.fixture(scope="module")
def prior(folder: Path) -> adapter.Diffusers:
    return adapter.load(folder)


# ---------------------------------------------------------------- what a pipeline does
def test_a_saved_pipeline_is_a_prior(prior: adapter.Diffusers) -> None:
    assert (prior.width, prior.latent_shape, prior.image_shape, prior.times) == (32, (4, 16, 16), (3, 32, 32), 1000)
    assert prior.start().shape == (32,)
    assert not torch.equal(prior.start("boot"), prior.start())
    latents = prior.encode(torch.rand(3, 1, 28, 28))
    assert latents.shape == (3, 4, 16, 16)
    assert prior.decode(latents).shape == (3, 3, 32, 32)
    assert not any(p.requires_grad for part in ("unet", "vae") for p in getattr(prior.pipeline, part).parameters())


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
def test_sampling_is_the_librarys_ddim_without_clipping(tmp_path: Path, prediction: str) -> None:
    """`DDIMScheduler` from the same configuration clips latents to [-1, 1] unless told otherwise: it must not."""
    diffusers = pytest.importorskip("diffusers")
    prior = adapter.load(save(tmp_path / "tiny", prediction))
    scheduler = diffusers.DDIMScheduler.from_config(
        prior.pipeline.scheduler.config, clip_sample=False, timestep_spacing="trailing", set_alpha_to_one=True
    )
    scheduler.set_timesteps(5)
    v = torch.stack([prior.start(), prior.start("boot")])
    z = torch.stack([torch.randn(2, 4, 16, 16, generator=(KEY / k).generator()) for k in range(2)]).flatten(0, 1)
    with torch.no_grad():
        photo = torch.cat([prior.photo.expand(4, -1, -1), v.repeat_interleave(2, 0)[:, None]], dim=1)
        empty = torch.cat([prior.empty, prior.empty[-1:]]).expand(4, -1, -1)
        for t in scheduler.timesteps:
            said, without = (prior.pipeline.unet(z, t, encoder_hidden_states=c).sample for c in (photo, empty))
            z = scheduler.step(without + 3.0 * (said - without), t, z, eta=0.0).prev_sample
    assert float(z.abs().max()) > 1
    expected = prior.decode(z).reshape(2, 2, 3, 32, 32)
    torch.testing.assert_close(prior.sample(v, 2, KEY, guidance=3.0, steps=5), expected, atol=1e-4, rtol=1e-4)


# ---------------------------------------------------------------- what is refused
@needs_diffusers
def test_size_and_tokens_follow_a_pipelines_name_and_half_precision_alone_is_read(tmp_path: Path) -> None:
    folder = save(tmp_path / "tiny")
    whole = priors.load(f"{folder}?tokens=3&size=64")
    assert (whole.width, whole.image_shape) == (3 * 32, (3, 64, 64))
    for file in folder.rglob("*.safetensors"):
        file.rename(file.with_name(file.name.replace(".safetensors", ".fp16.safetensors")))
    assert priors.load(str(folder)).image_shape == (3, 32, 32)
    with pytest.raises(
        ConfigError, match=r"options are tokens and size, as in .*tiny\?tokens=4&size=64, got \?side=64"
    ):
        priors.check(f"{folder}?side=64")
    with pytest.raises(ConfigError, match="only a Stable Diffusion pipeline has options, and built-in is none"):
        priors.load("built-in?size=64")


@needs_diffusers
def test_pickles_are_refused_without_being_opened(tmp_path: Path) -> None:
    folder = save(tmp_path / "old")
    for file in folder.rglob("*.safetensors"):
        file.with_suffix(".bin").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
        file.unlink()
    with pytest.raises(DataError, match=r"cannot be loaded .* saved with safetensors"):
        adapter.load(folder)


@needs_diffusers
def test_a_folder_that_is_no_pipeline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be loaded as a Stable Diffusion pipeline"):
        priors.load(str(tmp_path))
    (tmp_path / "model_index.json").write_text('{"_class_name": "StableDiffusionXLPipeline"}')
    with pytest.raises(ConfigError, match=r"is a StableDiffusionXLPipeline.*not XL"):
        priors.load(str(tmp_path))
    (tmp_path / "model_index.json").write_text('{"_class_name": "StableDiffusionPipeline", "unet": ["mine", "Net"]}')
    with pytest.raises(ConfigError, match=r"its unet comes from 'mine'.*is not run"):
        priors.load(str(tmp_path))


@needs_diffusers
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("method", [FedDistr, FedPFT])
def test_a_run_with_a_pipeline_as_its_prior(folder: Path, tmp_path: Path, method: Any) -> None:
    """Digits of 8 x 8 are brought to its 32 x 32 in colour and back, which the run says."""
    digits = load("digits")
    x = ((digits.x_train - digits.x_train.min()) / (digits.x_train.max() - digits.x_train.min()) * 255).byte()[:, 0]
    few = (digits.y_train < 2).nonzero()[:32, 0]
    y = digits.y_train[few]
    np.savez(tmp_path / "two.npz", x_train=x[few][:24], y_train=y[:24], x_test=x[few][24:], y_test=y[24:])
    options = {"steps": 2, "sampling_steps": 2} if method is FedDistr else {}
    classifier = SgdConfig(0.1, local_steps=1, batch_size=4)
    history = unskew.simulate(
        {"m": method(prior=str(folder), m=1, images=2, classifier=classifier, **options)},
        data=f"npz:{tmp_path / 'two.npz'}", split=unskew.IID(num_clients=2), rounds=1, model="logistic",
        out=tmp_path / "run",
    )  # fmt: skip
    (info, _) = [r["info"] for r in rows(tmp_path / "run", "info")]
    assert info["warnings"] == [
        "for the prior images of 1 x 8 x 8 are given three equal channels and resized, to 3 x 32 x 32"
    ]
    assert any(r["name"] == "global.accuracy" and r["round"] == 1 for r in history.rows)
