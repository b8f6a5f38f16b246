"""The prior that comes with unskew: its file, its shapes, what it has learned, and what it refuses."""

import json
import shutil
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from torch import Tensor

from unskew import priors
from unskew.data.sources import load as load_data
from unskew.errors import DataError
from unskew.keys import Key
from unskew.priors import Prior, invert
from unskew.priors.builtin import CARD, WEIGHTS, BuiltIn, load, read_card
from unskew.priors.public import Captioned

KEY = Key(11)
SHIPPED = Path(priors.__file__).parent / "weights"
WORDS = load().words


@pytest.fixture(scope="module")
def prior() -> BuiltIn:
    return load()


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    """Images (N, 1, 8, 8) in [0, 1] that the prior has never seen, and labels."""
    data = load_data("digits")
    x = data.x_train
    return (x - x.min()) / (x.max() - x.min()), data.y_train


# ---------------------------------------------------------------- the file
def test_the_file_is_small_and_is_the_one_its_card_vouches_for(prior: BuiltIn) -> None:
    card = read_card()
    assert (SHIPPED / WEIGHTS).stat().st_size == card["bytes"] <= 5_000_000
    assert prior.sha256 == card["sha256"]
    assert prior.words == Captioned(*[torch.empty(0)] * 4).words
    assert sum(p.numel() for p in prior.networks.parameters()) == card["parameters"] < 900_000
    assert not any(p.requires_grad for p in prior.networks.parameters())


def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SHIPPED, tmp_path / "copy"))


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / WEIGHTS).write_bytes(content)
    with pytest.raises(DataError, match=r"not the file its card vouches for: SHA-256 .* the card says"):
        load(folder)
    (folder / WEIGHTS).unlink()
    with pytest.raises(DataError, match=r"builtin\.safetensors cannot be read: No such file"):
        load(folder)


def vouched(folder: Path, content: bytes) -> Path:
    """The card made to fit another content, as one would who changes the weights."""
    import hashlib

    (folder / WEIGHTS).write_bytes(content)
    card = json.loads((folder / CARD).read_text())
    (folder / CARD).write_text(json.dumps({**card, "sha256": hashlib.sha256(content).hexdigest()}))
    return folder


def test_a_file_of_another_kind_is_refused_even_with_its_card(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    tensors = safetensors.torch.load((folder / WEIGHTS).read_bytes())
    words = {"words": json.dumps(WORDS)}
    with pytest.raises(DataError, match="does not hold this version's built-in prior"):
        load(vouched(folder, b"garbage"))
    with pytest.raises(DataError, match="does not hold this version's built-in prior"):
        load(vouched(folder, safetensors.torch.save(tensors)))
    with pytest.raises(DataError, match="does not hold this version's built-in prior"):
        load(vouched(folder, safetensors.torch.save({"words.weight": tensors["words.weight"]}, words)))
    assert load(vouched(folder, safetensors.torch.save(tensors, words))).words == WORDS


def test_a_folder_without_a_card_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"builtin\.json cannot be read"):
        load(tmp_path)
    (tmp_path / CARD).write_text("[]")
    with pytest.raises(DataError, match=r"builtin\.json cannot be read"):
        load(tmp_path)


# ---------------------------------------------------------------- shapes
def test_images_become_latents_and_images_again(prior: BuiltIn, digits: tuple[Tensor, Tensor]) -> None:
    """The autoencoder has not seen these digits; a mean squared error of 0.005 is a tenth of their variance."""
    whole: Prior = prior
    images = priors.fitted(digits[0][:64], prior.image_shape)
    latents = whole.encode(digits[0][:64])
    assert latents.shape == (64, *prior.latent_shape)
    assert float(latents.std()) == pytest.approx(1.0, abs=0.6)
    assert float((prior.decode(latents) - images).square().mean()) < 0.005 < float(images.var()) / 10


# ---------------------------------------------------------------- what it has learned
def test_the_prior_of_photographs_knows_more_of_photographs_than_their_variance() -> None:
    """Under its own noise a latent of unit variance tells, by itself, all of the noise but a share abar (linear)."""
    prior, file = priors.load("photographs"), files("sklearn.datasets") / "images" / "china.jpg"
    with Image.open(str(file)) as photo:
        x = torch.from_numpy(np.array(photo.resize((320, 192)))).float().permute(2, 0, 1) / 255
    tiles = x.unfold(1, 32, 32).unfold(2, 32, 32).permute(1, 2, 0, 3, 4).reshape(-1, 3, 32, 32)
    latents = prior.encode(tiles)
    assert float((prior.decode(latents) - tiles).square().mean()) < 0.005 < float(tiles.var()) / 10
    times = torch.arange(100, 900, 100)
    noise = (KEY / "noise").normal(len(times), *prior.latent_shape).float()
    learned = prior.loss(latents[None, : len(times)], prior.start()[None], times, noise)
    assert float(learned) < 0.8 * float(prior.alpha_bar[times].mean())


def test_what_is_learned_from_sevens_is_nearer_to_sevens_than_to_zeros(
    prior: BuiltIn, digits: tuple[Tensor, Tensor]
) -> None:
    """Two disjoint parts of the zeros and of the sevens: like parts end nearer each other, by both distances."""
    x, y = digits
    zeros, sevens = prior.encode(x[y == 0][:80]), prior.encode(x[y == 7][:80])
    clusters = [zeros[:40], zeros[40:], sevens[:40], sevens[40:]]
    v = invert(prior, clusters, KEY, steps=12)
    for d in (torch.cdist(v, v), priors.distances(prior, v, KEY)):
        assert float(torch.maximum(d[0, 1], d[2, 3])) < float(d[:2, 2:].min())
