"""Data from the Hugging Face hub, only when a source begins with `hub:`, through the package `datasets` (extra [hub]).

    hub:mnist                                     a name of `KNOWN`
    hub:OWNER/NAME?image=img&label=fine_label     any other, with the names of its columns and splits

    image, label       columns; "image" and "label" by default.  Images are PIL's, or uint8 arrays (H, W) or (H, W, 3)
    text               a column of texts instead of images
    domain             a column that says where a training example comes from; none by default
    train, test        splits, "train" and "test" by default; test=none sets a fixed fifth of train aside
    config, revision   one of the repository's configurations, and a commit
    size               images are resized to size x size

Grey and black-and-white images stay grey, all others become RGB, without transparency.  Nothing here runs code from the
hub.  `datasets` keeps its downloads in its own cache (HF_HOME) and finds them there without a network.
"""

import importlib
import re
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from unskew.data.columns import cells
from unskew.errors import DataError, did_you_mean

INSTALL = "pip install 'unskew[hub]'"
NONE = "none"

GREY = ("1", "L", "LA")
"""Pillow's modes of images of one channel, transparency apart."""


@dataclass(frozen=True)
class Reference:
    """A part of a repository; the fields after the first two are the options of a source."""

    repository: str
    name: str
    image: str = "image"
    text: str | None = None
    label: str = "label"
    domain: str | None = None
    train: str = "train"
    test: str = "test"
    config: str | None = None
    revision: str | None = None
    size: int | None = None


KNOWN: dict[str, Reference] = {
    r.name: r
    for r in (
        Reference("ylecun/mnist", "mnist"),
        Reference("zalando-datasets/fashion_mnist", "fashion_mnist"),
        # The balanced 47 classes are not known to us in a form that loads without running code from the hub.
        Reference("tanganke/emnist_letters", "emnist"),
        Reference("flwrlabs/usps", "usps"),
        Reference("Mike0307/MNIST-M", "mnist_m"),
        Reference("ufldl-stanford/svhn", "svhn", config="cropped_digits"),
        Reference("uoft-cs/cifar10", "cifar10", image="img"),
        Reference("uoft-cs/cifar100", "cifar100", image="img", label="fine_label"),
        Reference("flwrlabs/pacs", "pacs", domain="domain", test=NONE, size=64),
        Reference("stanfordnlp/imdb", "imdb", text="text"),
    )
}
"""The names that may follow `hub:`; emnist is the 26 letters."""

_OPTIONS = tuple(f.name for f in fields(Reference) if f.name not in ("repository", "name"))


def parse(source: str) -> Reference:
    """The repository, and the part of it, that `source` refers to, with or without its `hub:`.

    Raises:
        DataError: If it names no repository, or an option is unknown, empty, given twice or contradicts another.

    >>> parse("hub:cifar10?test=none").image
    'img'
    """
    place, _, query = source.removeprefix("hub:").partition("?")
    pairs = [part.partition("=")[::2] for part in query.split("&") if query]
    options: dict[str, Any] = dict(pairs)
    if odd := [key for key in options if key not in _OPTIONS]:
        raise DataError(
            f"{source}: unknown option {odd[0]!r}{did_you_mean(odd[0], _OPTIONS)} (known: {', '.join(_OPTIONS)})"
        )
    if len(options) < len(pairs) or not all(options.values()):
        raise DataError(f"{source}: give each option once, with a value, as in {next(iter(options))}=...")
    if "text" in options and {"image", "size"} & options.keys():
        raise DataError(f"{source}: a data set is read as texts or as images; leave text or image and size out")
    if "size" in options:
        if not re.fullmatch("[1-9][0-9]{0,3}", options["size"]):
            raise DataError(f"{source}: size must be a whole number of pixels, got {options['size']!r}")
        options["size"] = int(options["size"])
    if place in KNOWN:
        return replace(KNOWN[place], **options)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", place):
        near = did_you_mean(f"hub:{place}", [f"hub:{name}" for name in KNOWN], 0.75)
        raise DataError(
            f"{source} must name a repository, hub:OWNER/NAME, or one of {', '.join(KNOWN)}, got {place!r}{near}"
        )
    return Reference(place, place, **options)


def fetch(reference: Reference) -> dict[str, Any]:
    """Both parts of a data set in the plain layout, from the hub or from the cache that `datasets` keeps.

    Raises:
        DataError: If `datasets` is not installed, the hub cannot be reached, the repository, configuration, split or a
            column does not exist, or images do not fit together.
    """
    where = f"hub:{reference.repository}"
    parts = {"train": _part(reference, reference.train, where)}
    if reference.test != NONE:
        parts["test"] = _part(reference, reference.test, where)
    elif reference.text is not None:
        raise DataError(f"{where}: texts need a test split; name one, test=...")
    column, content = reference.text or reference.image, dict[str, Any]()
    for key, part in parts.items():
        values = _column(part, column, where, "text" if reference.text else "image")
        texts = np.array([*values, None], object)[:-1] if reference.text else None
        content[f"x_{key}"] = images(values, reference.size, where, column) if texts is None else texts
        content[f"y_{key}"] = cells(list(_column(part, reference.label, where, "label")))
    if (names := _names(parts["train"], reference.label)) is not None:
        content["classes"] = names
    if reference.domain is not None:
        values, names = list(_column(parts["train"], reference.domain, where, "domain")), None
        if values and all(isinstance(value, str) for value in values):
            names, values = np.unique(values, return_inverse=True)
        names = names if (own := _names(parts["train"], reference.domain)) is None else own
        content |= {"domain_train": np.asarray(values), **({} if names is None else {"domains": names})}
    return content


def _names(part: Any, column: str) -> npt.NDArray[np.str_] | None:
    """The names that the hub has for a column's numbers; None where it has none."""
    names = getattr((getattr(part, "features", None) or {}).get(column), "names", None)
    return None if names is None else np.array([str(name) for name in names], np.str_)


def _part(reference: Reference, split: str, where: str) -> Any:
    try:
        hub = importlib.import_module("datasets")  # the only place that imports it, and only when asked for
    except ImportError as error:
        raise DataError(
            f"{where} needs the package datasets, which cannot be imported ({error}); {INSTALL}, or leave hub: out and "
            "put the files into the data folder"
        ) from error
    try:
        return hub.load_dataset(reference.repository, reference.config, split=split, revision=reference.revision)
    except Exception as error:  # every layer between us and the hub has errors of its own
        raise DataError(f"{where}, split {split}: {_why(error)}") from error


def _why(error: Exception) -> str:
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    if isinstance(error, RuntimeError) and "script" in text:
        return f"{text}; unskew runs no code from the hub: use another copy"
    return f"{text}; check OWNER/NAME, config=, train= and test=, and the network"


# ---------------------------------------------------------------- columns to arrays
def _column(part: Any, name: str, where: str, option: str) -> Any:
    if name not in part.column_names:
        raise DataError(
            f"{where} has no column {name!r}; it has {', '.join(part.column_names)}; say which with {option}=..."
        )
    return part[name]


def images(values: Any, size: int | None, where: str, column: str) -> npt.NDArray[np.uint8]:
    """The images of a column as uint8: (N, H, W) if all are grey, else (N, H, W, 3).

    Raises:
        DataError: If a value is not an 8-bit image, or sizes differ.
    """
    decoded = [image_of(value, size, f"{where}, {column}, row {i}") for i, value in enumerate(values)]
    if len({image.ndim for image in decoded}) > 1:
        decoded = [image if image.ndim == 3 else np.repeat(image[..., None], 3, axis=2) for image in decoded]
    shapes = sorted({image.shape for image in decoded})
    if len(shapes) > 1:
        raise DataError(
            f"{where}, {column}: images must have one size, got {len(shapes)} from {shapes[0]} to {shapes[-1]}; "
            "add size=64 or another number of pixels"
        )
    return np.stack(decoded) if decoded else np.empty((0, 1, 1), np.uint8)


def check_depth(image: Any, where: str) -> None:
    """Refuse an image of Pillow's of other than 8 bits a channel.

    Raises:
        DataError: If it is one.
    """
    # Pillow reads 16 bits in colour as their upper 8; until it has, it knows the file by names such as "RGB;16B".
    deep = any(re.search(r";16[BLN]", str(tile[3])) for tile in getattr(image, "tile", ()))
    if deep or image.mode not in (*GREY, "P", "RGB", "RGBA", "CMYK", "YCbCr"):
        raise DataError(
            f"{where}: an image of 8 bits a channel is needed, got {'16 bits, ' * deep}mode {image.mode}. Scale its "
            "values to 0 to 255 and save them in 8 bits, or give all images as arrays of floats (npz:PATH)"
        )


def image_of(value: Any, size: int | None, where: str) -> npt.NDArray[np.uint8]:
    """One image as uint8, (H, W) if it is grey, else (H, W, 3).

    Raises:
        DataError: If it is no image of 8 bits a channel.
    """
    if hasattr(value, "convert"):  # PIL's; Pillow itself is not imported here
        check_depth(value, where)
        image = value.convert("L" if value.mode in GREY else "RGB")
        return np.asarray(image if size is None else image.resize((size, size)), dtype=np.uint8)
    array = np.asarray(value)
    is_bytes = array.dtype.kind in "iu" and array.size > 0 and array.min() >= 0 and array.max() <= 255
    if not is_bytes or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3))):
        raise DataError(
            f"{where}: an image, or whole numbers 0..255 of shape (H, W) or (H, W, 3), is needed, "
            f"got {array.dtype} of shape {array.shape}; say which column with image=..."
        )
    if size is not None and array.shape[:2] != (size, size):
        raise DataError(f"{where}: size= resizes images, not arrays; this one is {array.shape}")
    grey = array.ndim == 3 and array.shape[2] == 1
    return np.asarray(array[..., 0] if grey else array, dtype=np.uint8)
