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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

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


@dataclass(frozen=True, eq=False)
class HubData:
    """Examples from the hub, by the keys of the layout of `unskew.data.sources`; texts are lists, not arrays."""

    content: dict[str, Any]
    texts: bool


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
    given: dict[str, str] = {}
    for part in query.split("&") if query else ():
        key, sign, value = part.partition("=")
        if key not in _OPTIONS:
            raise DataError(
                f"{source}: unknown option {key!r}{did_you_mean(key, _OPTIONS)} (known: {', '.join(_OPTIONS)})"
            )
        if not sign or not value:
            raise DataError(f"{source}: option {key} has no value; write {key}=...")
        if key in given:
            raise DataError(f"{source}: option {key} is given twice")
        given[key] = value
    if "text" in given and {"image", "size"} & given.keys():
        raise DataError(f"{source}: a data set is read as texts or as images; leave text or image and size out")
    size = given.pop("size", None)
    if size is not None and not (size.isdecimal() and 1 <= int(size) <= 1024):
        raise DataError(f"{source}: size must be a whole number of pixels in 1..1024, got {size!r}")
    options: dict[str, Any] = {**given, **({} if size is None else {"size": int(size)})}
    if place in KNOWN:
        return replace(KNOWN[place], **options)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", place):
        near = did_you_mean(f"hub:{place}", [f"hub:{name}" for name in KNOWN], 0.75)
        raise DataError(
            f"{source} must name a repository, hub:OWNER/NAME, or one of {', '.join(KNOWN)}, got {place!r}{near}"
        )
    return Reference(place, place, **options)


def fetch(reference: Reference) -> HubData:
    """Return both parts of a data set, from the hub or from the cache that `datasets` keeps.

    Raises:
        DataError: If `datasets` is not installed, the hub cannot be reached, the repository, configuration, split or a
            column does not exist, or images do not fit together.
    """
    where = f"hub:{reference.repository}"
    train = _part(reference, reference.train, where)
    test = None if reference.test == NONE else _part(reference, reference.test, where)
    if reference.text is not None and test is None:
        raise DataError(f"{where}: texts need a test split; name one, test=...")
    column = reference.text or reference.image
    content: dict[str, Any] = {}
    parts = (("train", train), *((("test", test),) if test is not None else ()))
    names = _names([part for _, part in parts], reference.label, where, "label")
    for key, part in parts:
        values = _column(part, column, where, "text" if reference.text else "image")
        content[f"x_{key}"] = (
            _texts(values, f"{where}, {column}") if reference.text else images(values, reference.size, where, column)
        )
        content[f"y_{key}"] = _numbers(part, reference.label, names, where, "label")
    if names is not None:
        content["classes"] = np.array(names, np.str_)
    if reference.domain is not None:
        domains = _names([train], reference.domain, where, "domain")
        content["domain_train"] = _numbers(train, reference.domain, domains, where, "domain")
        if domains is not None:
            content["domains"] = np.array(domains, np.str_)
    return HubData(content, reference.text is not None)


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
    kind = type(error).__name__
    if kind == "DatasetNotFoundError":
        return f"there is no such data set on the hub, or it is not public ({text}); check OWNER/NAME"
    if isinstance(error, ValueError):  # a configuration or split that is not there: the text lists those that are
        return f"{text}; set config=, train= or test= accordingly"
    if "script" in text and isinstance(error, RuntimeError):
        return (
            f"it can only be loaded by running code from the hub, which unskew does not do ({text}); use another copy"
        )
    if isinstance(error, OSError | TimeoutError) or "connect" in f"{kind} {text}".lower():
        return (
            f"the hub could not be reached and the cache has no copy ({kind}: {text}); check the network and try again"
        )
    return f"it could not be loaded ({kind}: {text})"


# ---------------------------------------------------------------- columns to arrays
def _column(part: Any, name: str, where: str, option: str) -> Any:
    if name not in part.column_names:
        raise DataError(
            f"{where} has no column {name!r}; it has {', '.join(part.column_names)}; say which with {option}=..."
        )
    return part[name]


def _names(parts: Sequence[Any], name: str, where: str, option: str) -> tuple[str, ...] | None:
    """The names of a column's values: the hub's own, or the texts of a text column in order; None for numbers."""
    columns = [_column(part, name, where, option) for part in parts]
    own = getattr(_features(parts[0]).get(name), "names", None)
    if own is not None:
        return tuple(str(n) for n in own)
    values = {v for column in columns for v in column}
    return tuple(sorted(values)) if values and all(isinstance(v, str) for v in values) else None


def _features(part: Any) -> Mapping[str, Any]:
    return getattr(part, "features", None) or {}


def _numbers(part: Any, name: str, names: Sequence[str] | None, where: str, option: str) -> npt.NDArray[np.int64]:
    values = list(_column(part, name, where, option))
    if names is not None and values and all(isinstance(v, str) for v in values):
        place = {n: i for i, n in enumerate(names)}
        values = [place[v] for v in values]
    for i, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise DataError(
                f"{where}: {option} column {name!r} must hold whole numbers or names, got {value!r:.40} in row {i}; "
                f"say which with {option}=..."
            )
    return np.array(values, dtype=np.int64)


def _texts(values: Any, where: str) -> list[str]:
    texts = list(values)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(f"{where} must hold texts, got {type(text).__name__} in row {i}")
    return texts


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
            f"{where}: an image of 8 bits a channel is needed, got {'16 bits, ' * deep}mode {image.mode}; scale its "
            "values to 0 to 255 and save them in 8 bits, or give all images, every client's and the server's, as "
            "arrays of floats (npz:PATH)"
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
