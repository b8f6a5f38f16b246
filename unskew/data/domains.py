"""Digits of five domains in one layout: the same ten classes, seen in five ways.

`digit_domains` needs three files only.  `digit_five` is the set of X. Li et al., "FedBN", ICLR 2021, that HCCT's Digit
is taken from: all five from files.

Every domain has as many training and test examples as the smallest, drawn under a fixed key.  Images are 28x28 RGB:
grey ones have three equal channels, other sizes are resampled bilinearly, and MNIST-M, which has a border of two
pixels, is cropped.

Printed digits are in colour: fonts, sizes, colours, backgrounds, neighbours and blur are all drawn from a key.  They
are the Synthetic Numbers of Y. Ganin, V. Lempitsky, "Unsupervised Domain Adaptation by Backpropagation", ICML 2015,
section 4 (SynthDigits elsewhere): one to three digits, of which the middle one is the label.  Outlines are read
unhinted, in font units, and drawn here, so that FreeType's version and settings cannot change an image.

Notation   cell  a glyph's square of CELL x CELL points, its digit CAP points high and in the middle
           d     signed distance to the glyph's edge, positive inside: points in a cell, pixels in an image
Departures FedBN evens out the training parts only: its test parts have the sizes of their sources.
           The fonts are 20 faces of 7 families that come with Matplotlib 3.8 and later, not those of Windows.
           The authors chose their ranges manually and did not print them: these are ours, and so are the slant, the
           weight and the outline of strokes, and shaded backgrounds.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unskew.errors import DataError
from unskew.keys import Key

# ---------------------------------------------------------------- printed digits
SIZE = 28
"""Height and width of an image."""

FACES = (
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")),
    # Computer Modern.  Not cmmi10, whose old-style 0 is an o and 1 an i, nor cmti10, which 3.8 and 3.9 have not.
    *("cmr10", "cmb10", "cmss10", "cmtt10"),
)
"""Files of Matplotlib's fonts, without .ttf."""

CELL, CAP = 96, 64
MARGIN = 4
"""Pixels drawn on each side and cut off after the blur, which reaches as far."""

CONTRAST = 0.25
"""Least distance of the stroke's luma from the background's; both lie in [0, 1]."""
_LUMA = np.array([0.299, 0.587, 0.114])
_CHUNK = 256

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def printed(labels: npt.NDArray[Any], key: Key) -> npt.NDArray[np.uint8]:
    """An image of each digit; image i depends only on the key, i and labels[i].

    Args:
        labels: Digits (N,), 0 .. 9.
        key: Source of randomness.

    Returns:
        uint8 RGB (N, 28, 28, 3).

    Raises:
        DataError: If Matplotlib is not installed.

    >>> printed(np.array([3, 1, 4]), Key(0)).shape
    (3, 28, 28, 3)
    """
    labels = np.asarray(labels, np.int64)
    n = len(labels)
    cells, half = _cells()

    def uniform(what: str, low: float, high: float, *shape: int) -> Floats:
        return (key / what).numpy().uniform(low, high, (n, *shape))

    def whole(what: str, count: int) -> Ints:
        return (key / what).numpy().integers(0, count, n)

    face = whole("face", len(FACES))
    height = uniform("height", 14, 21)
    stretch = uniform("stretch", 0.8, 1.15)
    slant = uniform("slant", -0.15, 0.15)
    turn = np.deg2rad(uniform("turn", -20, 20))
    across, down = uniform("across", -2, 2), uniform("down", -2, 2)
    weight = uniform("weight", -0.2, 0.6)
    gap = uniform("gap", 4, 14)
    neighbours = tuple((side, uniform(f"has {side}", 0, 1) < 0.5, whole(str(side), 10)) for side in (-1, 1))
    outlined = uniform("outlined", 0, 1) < 0.3
    rim, rim_ink = np.where(outlined, uniform("rim", 0.6, 1.5), -np.inf), uniform("rim ink", 0, 1, 3)
    back = uniform("back", 0, 1, 3)
    ink = _far_from(back, uniform("ink", 0, 1, 8, 3))
    shade = uniform("shade", -0.15, 0.15, 3)
    towards = uniform("towards", 0, 2 * np.pi)
    blotches = uniform("blotches", -1, 1, 5, 5, 3) * uniform("blotched", 0, 0.15)[:, None, None, None]
    sigma = uniform("blur", 0.2, 1.1)
    grain, grained = (key / "grain").numpy(), uniform("grained", 0, 0.03)

    wide = SIZE + 2 * MARGIN
    at = np.arange(wide) - (wide - 1) / 2
    image = np.empty((n, SIZE, SIZE, 3), np.uint8)
    for start in range(0, n, _CHUNK):
        i = slice(start, min(start + _CHUNK, n))
        x, y = at[None, None, :] - _up(across[i]), at[None, :, None] - _up(down[i])
        cos, sin, point = _up(np.cos(turn[i])), _up(np.sin(turn[i])), _up(height[i] / CAP)
        row = (cos * y - sin * x) / point
        column = (cos * x + sin * y) / (point * _up(stretch[i])) + _up(slant[i]) * row
        d = _distance(cells[face[i], labels[i]], column, row)
        for side, present, digit in neighbours:
            k = np.flatnonzero(present[i])
            f, own, other = face[i][k], labels[i][k], digit[i][k]
            away = side * (half[f, own] + half[f, other] + gap[i][k])
            d[k] = np.maximum(d[k], _distance(cells[f, other], column[k] - _up(away), row[k]))
        # Exact where nothing is stretched; a stroke's edge is off by less than the stretch.
        d = d * point + _up(weight[i])
        slope = (np.cos(_up(towards[i])) * at[None, None, :] + np.sin(_up(towards[i])) * at[None, :, None]) / wide
        paint = back[i][:, None, None] + slope[..., None] * 2 * shade[i][:, None, None] + _spread(blotches[i], wide)
        paint = _over(paint, rim_ink[i], d + _up(rim[i]))
        paint = _over(paint, ink[i], d)
        paint = _blurred(paint, sigma[i]) + grain.standard_normal((len(d), SIZE, SIZE, 3)) * _up(grained[i])[..., None]
        image[i] = np.clip(np.rint(paint * 255), 0, 255)
    return image


def _up(values: Floats) -> Floats:
    """(n,) beside images (n, height, width)."""
    return values[:, None, None]


def _far_from(back: Floats, candidates: Floats) -> Floats:
    """The first of each image's candidates (n, k, 3) with CONTRAST to the background (n, 3), else the farthest."""
    far = np.abs(candidates @ _LUMA - (back @ _LUMA)[:, None])
    best: Floats = np.take_along_axis(candidates, np.minimum(far, CONTRAST).argmax(1)[:, None, None], 1)[:, 0]
    return best


def _over(paint: Floats, colour: Floats, d: Floats) -> Floats:
    """Lay the colour over the paint inside the edge, and in part on the pixels that the edge crosses."""
    covered = np.clip(d + 0.5, 0, 1)[..., None]
    return paint + covered * (colour[:, None, None] - paint)


def _distance(cells: npt.NDArray[np.float32], column: Floats, row: Floats) -> Floats:
    """d at places (n, height, width) of one cell each, counted from its middle; outside a cell, at its rim."""
    middle = (CELL - 1) / 2
    x, y = np.clip(column + middle, 0, CELL - 1.001), np.clip(row + middle, 0, CELL - 1.001)
    left, top = x.astype(np.int64), y.astype(np.int64)
    x, y = x - left, y - top
    flat = cells.reshape(-1)
    corner = np.arange(len(cells))[:, None, None] * CELL**2 + top * CELL + left
    upper = flat[corner] * (1 - x) + flat[corner + 1] * x
    lower = flat[corner + CELL] * (1 - x) + flat[corner + CELL + 1] * x
    distance: Floats = upper * (1 - y) + lower * y
    return distance


def _spread(coarse: Floats, wide: int) -> Floats:
    """Scale (n, k, k, 3) to (n, wide, wide, 3), corners on corners."""
    at = np.linspace(0, coarse.shape[1] - 1, wide)
    share = np.maximum(1 - np.abs(at[:, None] - np.arange(coarse.shape[1])), 0)
    spread: Floats = np.einsum("ai,bj,nijc->nabc", share, share, coarse, optimize=True)
    return spread


def _blurred(paint: Floats, sigma: Floats) -> Floats:
    """Blur each image with a Gaussian of its own, sigma in pixels, and cut off the margin."""
    offset = np.arange(2 * MARGIN + 1) - MARGIN
    taps = np.exp(-0.5 * (offset / sigma[:, None]) ** 2)
    taps /= taps.sum(1, keepdims=True)
    for axis in (1, 2):
        shifted = (paint[(slice(None),) * axis + (slice(k, k + SIZE),)] for k in range(len(offset)))
        paint = np.sum([taps[:, k, None, None, None] * part for k, part in enumerate(shifted)], axis=0)
    return paint


# Glyphs


def font_files() -> Path:
    """The folder of Matplotlib's fonts.

    Raises:
        DataError: If Matplotlib is not installed.
    """
    try:
        from matplotlib import get_data_path
    except ImportError:
        raise DataError("glyphs are drawn from Matplotlib's fonts; pip install 'unskew[fonts]'") from None
    return Path(get_data_path()) / "fonts" / "ttf"


def _cells() -> tuple[npt.NDArray[np.float32], Floats]:
    """d in every cell (faces, 10, CELL, CELL), and half of each digit's width in points (faces, 10)."""
    folder = font_files()
    cells, half = np.empty((len(FACES), 10, CELL, CELL), np.float32), np.empty((len(FACES), 10))
    for f, face in enumerate(FACES):
        for digit, edges in enumerate(_outlines(folder / f"{face}.ttf")):
            low, high = edges.min((0, 1)), edges.max((0, 1))
            point = (high - low)[1] / CAP
            placed = (edges - (low + high) / 2) / point + CELL / 2
            placed[..., 1] = CELL - placed[..., 1]  # fonts count upwards
            cells[f, digit] = _signed_distance(_inside(placed))
            half[f, digit] = (high - low)[0] / point / 2
    return cells, half


def _outlines(path: Path) -> list[Floats]:
    """Edges (count, 2 ends, 2) of the ten digits' outlines in font units; curves become 8 edges."""
    from matplotlib import ft2font
    from matplotlib.path import Path as Outline

    font = ft2font.FT2Font(str(path))
    flags: Any = getattr(ft2font, "LoadFlags", None)
    if flags is not None:
        as_drawn = flags.NO_SCALE | flags.IGNORE_TRANSFORM
    else:  # before Matplotlib 3.10 flags were numbers, and the transform made letters an eighth as wide
        as_drawn = vars(ft2font)["LOAD_NO_SCALE"] | vars(ft2font)["LOAD_IGNORE_TRANSFORM"]
    digits = []
    for digit in "0123456789":
        font.load_char(ord(digit), flags=as_drawn)
        edges = []
        outline: Any = Outline(*font.get_path())  # Matplotlib's annotation of iter_bezier forgets the code
        for curve, code in outline.iter_bezier():
            if code != Outline.MOVETO:
                straight = code in (Outline.LINETO, Outline.CLOSEPOLY)
                corners: Floats = curve(np.linspace(0, 1, 2 if straight else 9))
                edges.append(np.stack([corners[:-1], corners[1:]], axis=1))
        digits.append(np.concatenate(edges))
    return digits


def _inside(edges: Floats) -> npt.NDArray[np.bool_]:
    """The points of a cell that an outline winds around, (CELL, CELL)."""
    rows = np.arange(CELL) + 0.5
    (x0, y0), (x1, y1) = edges[:, 0].T, edges[:, 1].T
    edge, row = np.nonzero((y0[:, None] <= rows) != (y1[:, None] <= rows))
    share = (rows[row] - y0[edge]) / (y1 - y0)[edge]
    x = x0[edge] + share * (x1 - x0)[edge]
    turns = np.zeros((CELL, CELL + 1), np.int64)
    np.add.at(
        turns, (row, np.clip(np.ceil(x - 0.5), 0, CELL).astype(np.int64)), np.sign(y1 - y0)[edge].astype(np.int64)
    )
    inside: npt.NDArray[np.bool_] = turns.cumsum(1)[:, :CELL] != 0
    return inside


def _signed_distance(inside: npt.NDArray[np.bool_]) -> Floats:
    from scipy.ndimage import distance_transform_edt

    # The edge runs half a point from the last point inside and the first outside.
    distance: Floats = np.where(inside, distance_transform_edt(inside) - 0.5, 0.5 - distance_transform_edt(~inside))
    return distance


_Images = npt.NDArray[np.uint8]

Part = tuple[_Images, Ints, _Images, Ints]
"""One domain: uint8 images (N, H, W) or (N, H, W, 1 or 3) and their labels, for training and then for testing."""


def join(parts: Mapping[str, Part | None], key: Key) -> dict[str, npt.NDArray[Any]]:
    """The domains one after the other, of equal size, in the plain layout of `unskew.data.arrays`.

    Without a part, digits are printed, as many as the others allow.  Draws of one domain do not depend on the others.
    """
    read = {name: part for name, part in parts.items() if part is not None}
    n, n_test = (min(len(part[i]) for part in read.values()) for i in (1, 3))
    columns = [
        _printed(n, n_test, key / name) if part is None else _drawn(name, part, n, n_test, key / name)
        for name, part in parts.items()
    ]
    keys = ("x_train", "y_train", "x_test", "y_test")
    return {
        **{key: np.concatenate([column[i] for column in columns]) for i, key in enumerate(keys)},
        "domain_train": np.repeat(np.arange(len(parts)), n),
        "domains": np.array(list(parts), dtype=np.str_),
    }


def _drawn(name: str, part: Part, n: int, n_test: int, key: Key) -> Part:
    x, y, x_test, y_test = part
    train = np.sort((key / "train").numpy().permutation(len(y))[:n])
    test = np.sort((key / "test").numpy().permutation(len(y_test))[:n_test])
    return coloured(_cut(name, x[train])), y[train], coloured(_cut(name, x_test[test])), y_test[test]


def _printed(n: int, n_test: int, key: Key) -> Part:
    y, y_test = np.arange(n, dtype=np.int64) % 10, np.arange(n_test, dtype=np.int64) % 10
    x = printed(np.concatenate([y, y_test]), key)
    return x[:n], y, x[n:], y_test


def _cut(name: str, x: _Images) -> _Images:
    return x[:, 2:-2, 2:-2] if name == "mnist_m" and x.shape[1:3] == (SIZE + 4, SIZE + 4) else x


def coloured(x: _Images) -> _Images:
    """Images (N, H, W) or (N, H, W, 1 or 3) of any size as RGB (N, 28, 28, 3); halves are rounded up.

    Bilinear between pixel centres, in integer arithmetic: the same on every machine.

    >>> coloured(np.full((1, 8, 8), 77, np.uint8))[0, 3, 5]
    array([77, 77, 77], dtype=uint8)
    """
    x = x[..., None] if x.ndim == 3 else x
    if x.shape[1:3] != (SIZE, SIZE):
        # Whole numbers below 2^53: exact as floats, whatever the order of the sums.
        down, across = _weights(x.shape[1]), _weights(x.shape[2])
        mixed = np.einsum("ai,bj,nijc->nabc", down, across, x.astype(np.float64), optimize=True).astype(np.int64)
        unit = (2 * SIZE) ** 2
        x = ((2 * mixed + unit) // (2 * unit)).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(x, (*x.shape[:3], 3)))


def _weights(size: int) -> npt.NDArray[np.float64]:
    """Shares of `size` pixels in 28, (28, size), times 56; beyond the outer centres only the outer pixel counts."""
    place = np.clip((2 * np.arange(SIZE) + 1) * size - SIZE, 0, 2 * SIZE * (size - 1))
    share: npt.NDArray[np.float64] = np.maximum(2.0 * SIZE - np.abs(place[:, None] - 2 * SIZE * np.arange(size)), 0.0)
    return share
