"""The public images that train the built-in prior, each with a short caption.

    handwritten digits   MNIST's training part, once as it is and every second image once more, changed
    garments             every second image of Fashion-MNIST's training part, without sandals and bags, half changed
    glyphs               0-9, A-Z, a-z in the 20 faces of `unskew.data.domains`, all changed

The rest is left out to test the prior on unseen images: the other half of Fashion-MNIST and two of its classes, USPS,
scikit-learn's digits.  MNIST-M does not qualify: its digits are MNIST's.

A change is drawn for each image and named in its caption: "seven handwritten large blurred".  With these words one
vector can describe unseen images, such as coarse, bold or inverted ones.  A noun also has eight nameless words, one for
each cluster of its images' thumbnails: the ways of writing a seven.

Letters are drawn here, from Matplotlib's outlines and without a font rasteriser: a pixel's grey is the share of its 16
points inside.  Digits would be enough for digits, but with letters the model has 44 nouns instead of 18, and a missing
noun lies between known ones.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from unskew.data.dataset import Dataset
from unskew.data.domains import FACES, font_files
from unskew.data.rows import as_tensor
from unskew.data.sources import load
from unskew.errors import DataError
from unskew.keys import Key
from unskew.priors.builtin import IMAGE, NULL, PHOTO, THING
from unskew.priors.prior import fitted
from unskew.priors.taesd import FACTOR

_SIDE = IMAGE[1]

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
LETTERS = tuple(f"letter {c}" for c in "abcdefghijklmnopqrstuvwxyz")
GARMENTS = {0: "shirt", 1: "trousers", 2: "pullover", 3: "dress", 4: "coat", 6: "blouse", 7: "trainer", 9: "boot"}
"""Classes of Fashion-MNIST that are used, and their names here."""

NOUNS = (*DIGITS, *LETTERS, *GARMENTS.values())
STYLES = (
    "handwritten", "printed", "serif", "item",
    "large", "small", "wide", "left", "right", "bold", "thin", "blurred", "inverted",
)  # fmt: skip
KINDS = 8
"""Words without a name for each noun."""

CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_CHUNK = 4096


@dataclass(frozen=True, eq=False)
class Captioned:
    """Images with captions.

    Attributes:
        images: uint8 (N, C, H, W); grey ones are light on dark unless inverted.
        noun: Index into `nouns`, (N,).
        styles: Presence of each of `named` in an image, bool (N, styles).
        kind: Index among its noun's nameless words, (N,) in 0 .. KINDS-1.
        nouns, named: Words of the nouns and of the styles.
    """

    images: Tensor
    noun: Tensor
    styles: Tensor
    kind: Tensor
    nouns: tuple[str, ...] = NOUNS
    named: tuple[str, ...] = STYLES

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The table's rows."""
        kinds = (f"{noun} {k}" for noun in self.nouns for k in range(KINDS))
        return (PHOTO, NULL, THING, *self.nouns, *self.named, *kinds)

    def __len__(self) -> int:
        return len(self.noun)


@dataclass(frozen=True)
class Sizes:
    """Number of images used from each source; None for all."""

    digits: int | None = None
    digits_again: int = 30_000
    garments: int | None = None
    glyphs: int = 20_000


def public(data_dir: Path | str | None, key: Key, sizes: Sizes = Sizes()) -> tuple[Captioned, dict[str, Any]]:
    """The public images, and their description for a card; `data_dir` has mnist and fashion_mnist.

    Raises:
        DataError: As in `load`, or if Matplotlib lacks a font.
    """
    digits, fashion = (load(name, data_dir) for name in ("mnist", "fashion_mnist"))
    x, items = (_bytes(fitted(_unit(data), IMAGE)) for data in (digits, fashion))
    x, y = x[: sizes.digits], digits.y_train[: sizes.digits]
    again = torch.randperm(len(x), generator=(key / "again").generator())[: sizes.digits_again]
    garment = torch.tensor(list(GARMENTS))
    x_even, y_even = items[::2], fashion.y_train[::2]
    used = torch.isin(y_even, garment).nonzero()[: sizes.garments, 0]
    x_wear, wear = x_even[used], (y_even[used][:, None] == garment).int().argmax(1)
    changed = torch.rand(len(used), generator=(key / "which garments").generator()) < 0.5
    first_garment = NOUNS.index("shirt")
    printed = _glyphs(sizes.glyphs, key / "glyphs")
    parts = [
        _plain(x, y, "handwritten"),
        _changed(_plain(x[again], y[again], "handwritten"), key / "digits"),
        _plain(x_wear[~changed], first_garment + wear[~changed], "item"),
        _changed(_plain(x_wear[changed], first_garment + wear[changed], "item"), key / "garments"),
        _changed(printed, key / "changed glyphs"),
    ]
    images, noun, styles = (torch.cat([getattr(p, field) for p in parts]) for field in ("images", "noun", "styles"))
    captioned = Captioned(images, noun, styles, _kinds(images, noun, key / "kinds"))
    sources = {
        "mnist": "training part, and changed copies; CC BY-SA 3.0; Y. LeCun, C. Cortes, C. J. C. Burges",
        "fashion_mnist": "training part, even indices, without Sandal and Bag; MIT; Zalando SE",
        "glyphs": "0-9 A-Z a-z in Matplotlib's faces of DejaVu, STIX and Computer Modern; free fonts",
        "sha256": {"mnist": digits.sha256, "fashion_mnist": fashion.sha256},
    }
    return captioned, {
        "name": "unskew's built-in latent diffusion model",
        "data": sources,
        "licence": "CC BY-SA 3.0, as MNIST, on which most of it was trained; the code around it is Apache-2.0",
        "rebuild": "unskew prior train",
    }


def pictures(source: str, data_dir: Path | str | None, key: Key) -> tuple[Captioned, dict[str, Any]]:
    """A colour data set's training images and their mirror images, a noun for each class; and text for the card.

    Raises:
        DataError: As in `load`, or if they are no colour images of known black and white.
    """
    data = load(source, data_dir)
    if len(data.input_shape) != 3 or data.input_shape[0] != 3:
        raise DataError(f"{source} must be images in colour to train a prior on them, got {data.input_shape}")
    multiple = 2 * FACTOR  # the denoiser halves a latent
    h, w = (side // multiple * multiple for side in data.input_shape[1:])
    images = _bytes(fitted(_unit(data), (3, h, w)))
    both, kind = torch.cat([images, images.flip(3)]), _kinds(images, data.y_train, key / "kinds").repeat(2)
    styles = torch.zeros(len(kind), 0, dtype=torch.bool)
    return Captioned(both, data.y_train.repeat(2), styles, kind, data.classes, ()), {
        "name": f"a latent diffusion model of {source}'s images",
        "data": {source: "training part, and mirrored", "sha256": {source: data.sha256}},
        "licence": f"that of {source}'s images; the autoencoder is MIT, O. Boer Bohan",
        "rebuild": f"unskew prior train --images {source}",
    }


def _unit(data: Dataset) -> Tensor:
    """Training images in [0, 1]: `load` standardises them."""
    if data.inputs.levels is None:
        raise DataError(f"{data.name} was not read from uint8 images; a prior needs to know what black and white are")
    black, white = torch.tensor(data.inputs.levels).T[:, :, None, None]
    unit: Tensor = ((as_tensor(data.x_train) - black) / (white - black)).clamp(0, 1)
    return unit


def _bytes(unit: Tensor) -> Tensor:
    return (unit * 255).round().to(torch.uint8)


def _plain(images: Tensor, noun: Tensor, *styles: str) -> Captioned:
    flags = torch.zeros(len(noun), len(STYLES), dtype=torch.bool)
    flags[:, [STYLES.index(s) for s in styles]] = True
    return Captioned(images, noun, flags, torch.zeros_like(noun))


# ---------------------------------------------------------------- changes
def _changed(originals: Captioned, key: Key) -> Captioned:
    """Change each image at random; the changes are named in its styles."""
    images = torch.empty_like(originals.images)
    styles = originals.styles.clone()
    for start in range(0, len(originals), _CHUNK):
        i = slice(start, start + _CHUNK)
        unit, flags = change(originals.images[i].float() / 255, (key / start).generator())
        images[i] = _bytes(unit)
        styles[i] |= flags
    return Captioned(images, originals.noun, styles, originals.kind)


def change(x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Change images (N, 1, 32, 32) in [0, 1]; return them with the styles they got, bool (N, 13)."""
    n, bright = len(x), x.amax((1, 2, 3))

    def uniform(low: float, high: float) -> Tensor:
        return torch.rand(n, generator=generator) * (high - low) + low

    def chosen(*shares: float) -> list[Tensor]:
        """Disjoint choices with these probabilities."""
        u, bound = uniform(0, 1), 0.0
        choices = []
        for share in shares:
            choices.append((u >= bound) & (u < bound + share))
            bound += share
        return choices

    styles = torch.zeros(n, len(STYLES), dtype=torch.bool)

    def named(**which: Tensor) -> None:
        for style, flags in which.items():
            styles[:, STYLES.index(style)] = flags

    large, small = chosen(0.25, 0.2)
    (wide,) = chosen(0.2)
    left, right = chosen(0.15, 0.15)
    bold, thin = chosen(0.2, 0.15)
    (blurred,) = chosen(0.35)
    (inverted,) = chosen(0.1)
    named(large=large, small=small, wide=wide, left=left, right=right)
    named(bold=bold, thin=thin, blurred=blurred, inverted=inverted)

    zoom = torch.where(large, uniform(1.2, 1.5), torch.where(small, uniform(0.7, 0.85), uniform(0.93, 1.07)))
    stretch = torch.where(wide, uniform(1.2, 1.5), torch.ones(n))
    shear = torch.where(left, uniform(-0.45, -0.2), torch.where(right, uniform(0.2, 0.45), torch.zeros(n)))
    turn = uniform(-0.12, 0.12)
    # affine_grid wants the map from where a pixel is to where it was.
    cos, sin = turn.cos() / zoom, turn.sin() / zoom
    theta = torch.zeros(n, 2, 3)
    theta[:, 0, 0], theta[:, 0, 1] = cos / stretch, (shear * cos - sin) / stretch
    theta[:, 1, 0], theta[:, 1, 1] = sin, shear * sin + cos
    theta[:, 0, 2], theta[:, 1, 2] = uniform(-0.06, 0.06), uniform(-0.06, 0.06)
    x = F.grid_sample(x, F.affine_grid(theta, list(x.shape), align_corners=False), align_corners=False)
    much = uniform(0.5, 1.0)[:, None, None, None]
    x = torch.where(_beside(bold), x + much * (F.max_pool2d(x, 3, 1, 1) - x), x)
    x = torch.where(_beside(thin), x - much * (x + F.max_pool2d(-x, 3, 1, 1)), x)
    pixels = torch.randint(4, (n,), generator=generator)
    for k, side in enumerate((8, 10, 12, 16)):
        which = blurred & (pixels == k)
        coarse = F.interpolate(x[which], (side, side), mode="bilinear", antialias=True)
        x[which] = F.interpolate(coarse, tuple(x.shape[2:]), mode="bilinear")
    # Coarse scans are not faint: the brightest pixel stays as bright as it was.
    x = (x * (bright / x.amax((1, 2, 3)).clamp(min=0.05))[:, None, None, None]).clamp(0, 1)
    return torch.where(_beside(inverted), 1 - x, x), styles


def _beside(flags: Tensor) -> Tensor:
    return flags[:, None, None, None]


# ---------------------------------------------------------------- glyphs
def _glyphs(count: int, key: Key) -> Captioned:
    face = torch.randint(len(FACES), (count,), generator=(key / "face").generator())
    character = torch.randint(len(CHARACTERS), (count,), generator=(key / "character").generator())
    nouns = [DIGITS[int(c)] if c.isdigit() else f"letter {c.lower()}" for c in CHARACTERS]
    noun = torch.tensor([NOUNS.index(n) for n in nouns])[character]
    flags = torch.stack([_face_styles(name) for name in FACES])[face]
    return Captioned(glyphs(face, character), noun, flags, torch.zeros_like(noun))


def _face_styles(face: str) -> Tensor:
    serif = "Serif" in face or "STIX" in face or face in ("cmr10", "cmb10", "cmtt10")
    bold = "Bol" in face or face == "cmb10"
    slanted = "Oblique" in face or "Ita" in face
    has = {"printed": True, "serif": serif, "bold": bold, "right": slanted}
    return torch.tensor([has.get(style, False) for style in STYLES])


def glyphs(face: Tensor, character: Tensor) -> Tensor:
    """Characters drawn light on dark, uint8 (N, 1, 32, 32), from indices into `FACES` and `CHARACTERS`, (N,) each.

    A capital is about 19 pixels high; a character is centred, whatever its place on the line.  A pair is drawn once.

    Raises:
        DataError: If a font file is missing.
    """
    pairs, which = torch.unique(torch.stack([face, character], dim=1), dim=0, return_inverse=True)
    drawn = np.stack([_glyph(FACES[f], CHARACTERS[c]) for f, c in pairs.tolist()])
    return torch.from_numpy(drawn)[which][:, None]


def _glyph(face: str, character: str) -> npt.NDArray[np.uint8]:
    """Grey of each pixel, (32, 32): the part of its 16 points that lie inside an odd number of outlines."""
    file = font_files() / f"{face}.ttf"
    from matplotlib.font_manager import FontProperties
    from matplotlib.path import Path as Outline
    from matplotlib.textpath import TextPath

    if not file.is_file():
        raise DataError(f"the font {file} of Matplotlib is missing; the prior's glyphs need it: reinstall matplotlib")
    outline = TextPath((0, 0), character, size=26, prop=FontProperties(fname=file))
    box = outline.get_extents()
    # Counted from the image's middle; fonts count upwards.
    at = (np.arange(4 * _SIDE) + 0.5) / 4 - _SIDE / 2
    across, up = np.meshgrid(at + (box.x0 + box.x1) / 2, -at + (box.y0 + box.y1) / 2)
    points = np.stack([across.ravel(), up.ravel()], axis=1)
    inside = np.zeros(len(points), bool)
    for polygon in outline.to_polygons():
        inside ^= Outline(polygon).contains_points(points)
    part = inside.reshape(_SIDE, 4, _SIDE, 4).mean((1, 3))
    grey: npt.NDArray[np.uint8] = np.rint(part * 255).astype(np.uint8)
    return grey


# ---------------------------------------------------------------- words without a name
def _kinds(images: Tensor, noun: Tensor, key: Key) -> Tensor:
    """Cluster of each image's thumbnail (8 x 8) among those of its noun, (N,)."""
    from sklearn.cluster import KMeans

    thumbnails = torch.cat([F.avg_pool2d(part.float() / 255, 4).flatten(1) for part in torch.split(images, _CHUNK)])
    kind = torch.zeros_like(noun)
    for k in torch.unique(noun).tolist():
        members = (noun == k).nonzero()[:, 0]
        x = thumbnails[members].numpy()
        if len(x) >= KINDS:
            seen = x[(key / k).numpy().permutation(len(x))[:3000]]
            means = KMeans(KINDS, n_init=1, random_state=(key / k / "start").number() % 2**32).fit(seen)
            kind[members] = torch.from_numpy(means.predict(x)).long()
    return kind
