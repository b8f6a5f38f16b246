"""The public images, their captions, and that training is repeatable; all tiny."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unskew.data.domains import FACES
from unskew.errors import ConfigError, DataError
from unskew.keys import Key
from unskew.priors.builtin import CARD, WEIGHTS, BuiltIn, load, photographs
from unskew.priors.public import (
    CHARACTERS,
    GARMENTS,
    KINDS,
    NOUNS,
    STYLES,
    Captioned,
    Sizes,
    change,
    glyphs,
    pictures,
    public,
)  # fmt: skip
from unskew.priors.train import PriorTraining, captions, train

KEY = Key(2)
TINY = PriorTraining(autoencoder_steps=3, autoencoder_batch=8, denoiser_steps=3, denoiser_batch=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files as those of MNIST and Fashion-MNIST, with noise in them."""
    root = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for name in ("mnist", "fashion_mnist"):
        x, y = rng.integers(0, 256, (120, 28, 28), np.uint8), np.arange(120) // 2 % 10
        x[0, 0, :2] = 0, 255
        np.savez(root / f"{name}.npz", x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])
    return root


@pytest.fixture(scope="module")
def data(folder: Path) -> tuple[Captioned, dict[str, Any]]:
    return public(folder, KEY, Sizes(digits=50, digits_again=20, glyphs=30))


# ---------------------------------------------------------------- public images
def test_the_public_images_are_digits_garments_without_two_classes_and_glyphs(
    data: tuple[Captioned, dict[str, Any]],
) -> None:
    """50 + 20 digits; 60 garments at even places, six of each class, of which 2 of 10 classes go: 48; 30 glyphs."""
    found, about = data
    hashes = about["data"]["sha256"]
    assert len(found) == 50 + 20 + 48 + 30
    assert found.images.shape == (148, 1, 32, 32)
    assert found.images.dtype == torch.uint8
    assert hashes.keys() == {"mnist", "fashion_mnist"}
    assert len(set(hashes.values())) == 2
    count = torch.bincount(found.noun[70:118], minlength=len(NOUNS))
    assert {NOUNS[k]: int(n) for k, n in enumerate(count) if n} == dict.fromkeys(GARMENTS.values(), 6)
    style = dict(zip(STYLES, found.styles.T, strict=True))
    assert style["handwritten"].nonzero()[:, 0].tolist() == list(range(70))
    assert style["item"].nonzero()[:, 0].tolist() == list(range(70, 118))
    assert style["printed"].nonzero()[:, 0].tolist() == list(range(118, 148))
    assert 0 <= int(found.kind.min()) <= int(found.kind.max()) < KINDS


def test_a_glyph_has_holes_where_the_letter_has() -> None:
    """In every face an o is dark in the middle and light left of it; a full stop of an i stands above its stem."""
    n = len(FACES)
    o = glyphs(torch.arange(n), torch.full((n,), CHARACTERS.index("O")))
    assert o.shape == (n, 1, 32, 32)
    assert int(o[:, 0, 15:17, 15:17].max()) == 0
    assert bool((o[:, 0, 16, :16].amax(1) > 200).all())
    left, right = o[:, 0].float().sum(1)[:, :16].sum(1), o[:, 0].float().sum(1)[:, 16:].sum(1)
    torch.testing.assert_close(left, right, rtol=0.1, atol=0)


def test_a_change_does_what_its_words_say() -> None:
    """A square of light: large covers more than small, wide is wider than high, inverted has a light corner."""
    x = torch.zeros(2000, 1, 32, 32)
    x[:, :, 10:22, 10:22] = 1
    out, flags = change(x, KEY.generator())
    style = dict(zip(STYLES, flags.T, strict=True))
    plain = ~(style["bold"] | style["thin"] | style["blurred"] | style["inverted"] | style["wide"])
    area = out.sum((1, 2, 3))
    assert float(area[plain & style["large"]].min()) > 144 > float(area[plain & style["small"]].max())
    across, down = (out.amax(d).squeeze(1).gt(0.5).sum(1) for d in (2, 3))
    upright = ~(style["left"] | style["right"] | style["inverted"] | style["blurred"])
    assert float((across - down)[upright & style["wide"]].float().min()) > 0
    assert torch.equal(out[:, 0, 0, 0] > 0.5, style["inverted"])
    bare = style["left"] ^ style["right"]
    tops = (out[:, 0, :16] * torch.arange(32)).sum((1, 2)) / out[:, 0, :16].sum((1, 2))
    feet = (out[:, 0, 16:] * torch.arange(32)).sum((1, 2)) / out[:, 0, 16:].sum((1, 2))
    leans = bare & ~style["inverted"]
    assert bool(((tops > feet) == style["right"])[leans].all())
    assert bool((out.amax((1, 2, 3)) > 0.99).all())


# ---------------------------------------------------------------- captions
def test_a_caption_is_a_sum_of_its_words(data: tuple[Captioned, dict[str, Any]]) -> None:
    """Words are unit vectors here, so a caption counts its words: a noun or "thing", and none that the image lacks."""
    found = data[0]
    words = torch.nn.Embedding.from_pretrained(torch.eye(len(found.words)))
    rows = torch.arange(len(found)).repeat(40)
    bag = captions(words, found, rows, KEY.generator())
    first = found.words.index(NOUNS[0])
    noun, thing = bag[:, first : first + len(NOUNS)], bag[:, found.words.index("thing")]
    empty = bag[:, found.words.index("")]
    styles = bag[:, first + len(NOUNS) : first + len(NOUNS) + len(STYLES)]
    kind = bag[:, first + len(NOUNS) + len(STYLES) :]
    assert torch.equal(noun.sum(1) + thing + empty, torch.ones(len(bag)))
    named = noun.sum(1) == 1
    assert torch.equal(noun.argmax(1)[named], found.noun[rows][named])
    assert bool((styles <= found.styles[rows]).all())
    assert float(kind[thing == 1].sum()) == 0  # the nameless words would tell the noun
    assert torch.equal(kind.sum(1).unique(), torch.tensor([0.0, 1.0]))
    assert float(empty.mean()) == pytest.approx(0.1, abs=0.02)
    assert float(thing[empty == 0].mean()) == pytest.approx(0.08, abs=0.02)
    assert float(kind[named].sum(1).mean()) == pytest.approx(0.5, abs=0.03)


# ---------------------------------------------------------------- training
def written(folder: Path, weights: bytes, card: dict[str, Any]) -> BuiltIn:
    (folder / WEIGHTS).write_bytes(weights)
    (folder / CARD).write_text(json.dumps(card))
    return load(folder)


def test_three_steps_give_the_same_bytes_again_and_others_with_another_seed(
    data: tuple[Captioned, dict[str, Any]], tmp_path: Path
) -> None:
    before = torch.random.get_rng_state()
    first, again, other = (train(*data, seed, TINY) for seed in (7, 7, 8))
    assert first[0] == again[0] != other[0]
    assert torch.equal(torch.random.get_rng_state(), before)
    assert written(tmp_path, *first).sha256 == first[1]["sha256"]


# ---------------------------------------------------------------- pictures in colour
@pytest.mark.seconds
def test_a_prior_of_pictures_is_trained_in_the_latents_of_the_shipped_autoencoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after two of three steps it goes on to the same bytes; the autoencoder stays as it was."""
    monkeypatch.setattr("unskew.priors.train.EVERY", 2)
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (60, 16, 16, 3), np.uint8), np.arange(60) % 3
    x[0, 0, 0], x[0, 0, 1] = 0, 255
    np.savez(tmp_path / "cifar100.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9], classes=["oak", "cat", "bus"])
    state = tmp_path / "training.safetensors"
    found, about = pictures("cifar100", tmp_path, KEY)
    assert found.nouns == ("oak", "cat", "bus")
    assert torch.equal(found.images[:60], torch.from_numpy(x).movedim(3, 1))
    assert torch.equal(found.images[60:], found.images[:60].flip(3))

    def trained(steps: int) -> tuple[bytes, dict[str, Any]]:
        small = PriorTraining(denoiser_steps=steps, denoiser_batch=2)
        return train(found, about, 7, small, state=state)

    whole = trained(3)
    assert trained(3)[0] == whole[0]
    prior = written(tmp_path, *whole)
    assert (prior.image_shape, prior.latent_shape) == ((3, 16, 16), (32, 2, 2))
    shipped = photographs().networks
    for own, theirs in ((prior.networks.encoder, shipped.encoder), (prior.networks.decoder, shipped.decoder)):
        assert all(torch.equal(t, theirs.state_dict()[name]) for name, t in own.state_dict().items())
    assert prior.sample(prior.start()[None], 2, KEY, steps=2).shape == (1, 2, 3, 16, 16)


# ---------------------------------------------------------------- commands
def test_the_command_trains_writes_and_shows(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from unskew.cli import prior as command
    from unskew.priors import public as drawn

    monkeypatch.setattr(drawn.public, "__defaults__", (Sizes(glyphs=10),))
    out = tmp_path / "mine"
    command.train(out, folder, 0, autoencoder_steps=2, denoiser_steps=2, quiet=False)
    assert "SHA-256" in capsys.readouterr().err
    assert sorted(p.name for p in out.iterdir()) == ["builtin.json", "builtin.safetensors"]
    command.show(out, False)
    assert "rebuild: unskew prior train --seed 0" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="holds a prior already"):
        command.train(out, folder, 0, quiet=True)
    (out / "builtin.safetensors").write_bytes(b"half")
    with pytest.raises(DataError, match="vouches"):
        command.show(out, True)
