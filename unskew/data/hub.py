"""Data from the Hugging Face hub, only when a source begins with `hub:`, through the package `datasets` (extra [hub]).

    hub:mnist                                     a name of `KNOWN`
    hub:OWNER/NAME                                any other, whose columns and splits `HubOptions` names

Grey and black-and-white images stay grey, all others become RGB, without transparency.  Nothing here runs code from the
hub.  `datasets` keeps its downloads in its own cache (HF_HOME) and finds them there without a network.
"""

import importlib
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Ge

from unskew import machine
from unskew.data.columns import cells, listed
from unskew.data.places import Place
from unskew.errors import DataError
from unskew.words import some

NONE = "none"

GREY = ("1", "L", "LA")
"""Pillow's modes of images of one channel, transparency apart."""


@dataclass(frozen=True)
class HubOptions:
    """A part of a repository.

    Attributes:
        image, label: Columns, "image" and "label" by default.
        text: Column of texts, instead of images.
        domain: Column of the domain of a training example; none by default.
        train, test: Splits, "train" and "test" by default; test "none" sets a fixed fifth of train aside.
        config, revision: One of the repository's configurations, and a commit.
        size: Images are resized to size x size, pixels.
    """

    image: str | None = None
    text: str | None = None
    label: str | None = None
    domain: str | None = None
    train: str | None = None
    test: str | None = None
    config: str | None = None
    revision: str | None = None
    size: Annotated[int, Ge(1)] | None = None


KNOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "mnist": ("ylecun/mnist", {}),
    "fashion_mnist": ("zalando-datasets/fashion_mnist", {}),
    # The balanced 47 classes are not known to us in a form that loads without running code from the hub.
    "emnist": ("tanganke/emnist_letters", {}),
    "usps": ("flwrlabs/usps", {}),
    "mnist_m": ("Mike0307/MNIST-M", {}),
    "svhn": ("ufldl-stanford/svhn", {"config": "cropped_digits"}),
    "cifar10": ("uoft-cs/cifar10", {"image": "img"}),
    "cifar100": ("uoft-cs/cifar100", {"image": "img", "label": "fine_label"}),
    "pacs": ("flwrlabs/pacs", {"domain": "domain", "test": NONE, "size": 64}),
    "imdb": ("stanfordnlp/imdb", {"text": "text"}),
}
"""Repository and options of the names that may follow `hub:`; emnist is the 26 letters."""


def fetch(name: str, options: HubOptions) -> dict[str, Any]:
    """Both parts of a data set in the plain layout, from the hub or from the cache of `datasets`.

    The name is one of `KNOWN`, or OWNER/NAME.

    Raises:
        DataError: If `datasets` is not installed, the hub cannot be reached, repository, split or column do not exist,
            or images do not fit together.
    """
    repository, known = KNOWN.get(name, (name, {}))
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise DataError(f"hub:{name} must name a repository, hub:OWNER/NAME, or one of {', '.join(KNOWN)}")
    usual = {"image": "image", "label": "label", "train": "train", "test": "test"}
    of = {**usual, **known, **{key: value for key, value in asdict(options).items() if value is not None}}
    where, text, domain = f"hub:{repository}", of.get("text"), of.get("domain")
    parts = {
        key: _part(repository, of[key], where, of.get("config"), of.get("revision"))
        for key in ("train", "test")
        if of[key] != NONE
    }
    content: dict[str, Any] = {}
    place = f"{where}, {of['image']}, row {{}}".format
    for key, part in parts.items():
        values = _column(part, text or of["image"], where, "text" if text else "image")
        content[f"x_{key}"] = listed(list(values)) if text else images(values, of.get("size"), place)
        content[f"y_{key}"] = cells(list(_column(part, of["label"], where, "label")))
    if (names := _names(parts["train"], of["label"])) is not None:
        content["classes"] = names
    if domain is not None:
        values, names = list(_column(parts["train"], domain, where, "domain")), _names(parts["train"], domain)
        if values and all(isinstance(value, str) for value in values):
            names, values = np.unique(values, return_inverse=True)
        content |= {"domain_train": np.asarray(values), **({} if names is None else {"domains": names})}
    return content


def _names(part: Any, column: str) -> npt.NDArray[np.str_] | None:
    """The names that the hub has for a column's numbers; None where it has none."""
    names = getattr((getattr(part, "features", None) or {}).get(column), "names", None)
    return None if names is None else np.array([str(name) for name in names], np.str_)


def _part(repository: str, split: str, where: str, config: str | None, revision: str | None) -> Any:
    try:
        hub = importlib.import_module("datasets")  # the only place that imports it, and only when asked for
    except ImportError as error:
        raise DataError(f"{where} needs datasets, which is not there ({error}); pip install 'unskew[hub]'") from error
    try:
        return hub.load_dataset(repository, config, split=split, revision=revision)
    except Exception as error:  # every layer between us and the hub has errors of its own
        text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        way = "check OWNER/NAME, config, train and test in data_options, and the network; no code of the hub is run"
        raise DataError(f"{where}, split {split}: {text}; {way}") from error


# ---------------------------------------------------------------- columns to arrays
def _column(part: Any, name: str, where: str, option: str) -> Any:
    if name not in part.column_names:
        raise DataError(f"{where} has no column {name!r} (it has {some(part.column_names)}); name it in {option}")
    return part[name]


def images(values: Iterable[Any], size: int | None, place: Place, number: int = 0) -> npt.NDArray[np.uint8]:
    """Images as uint8: (N, H, W) if all are grey, else (N, H, W, 3); `place` describes one.

    Raises:
        DataError: If a value is not an 8-bit image, sizes differ, or memory is too small for all.
    """
    decoded: list[npt.NDArray[np.uint8]] = []
    for i, value in enumerate(values):
        decoded.append(image_of(value, size, place(i)))
        if not i:
            machine.require_room(number * decoded[0].nbytes, Path(place(0)).parent)
    if len({image.ndim for image in decoded}) > 1:
        decoded = [image if image.ndim == 3 else np.repeat(image[..., None], 3, axis=2) for image in decoded]
    if (odd := next((i for i, image in enumerate(decoded) if image.shape != decoded[0].shape), None)) is not None:
        one, first = (f"{place(i)} is {decoded[i].shape[1]} x {decoded[i].shape[0]}" for i in (odd, 0))
        raise DataError(f"{one}, {first}; give a size")
    return np.stack(decoded) if decoded else np.empty((0, 1, 1), np.uint8)


def check_depth(image: Any, where: str) -> None:
    """Refuse an image of Pillow's with other than 8 bits a channel.

    Raises:
        DataError: If it is one.
    """
    # Pillow reads 16 bits in colour as their upper 8; until it has, it knows the file by names such as "RGB;16B".
    deep = any(re.search(r";16[BLN]", str(tile[3])) for tile in getattr(image, "tile", ()))
    if deep or image.mode not in (*GREY, "P", "RGB", "RGBA", "CMYK", "YCbCr"):
        got = f"{'16 bits, ' * deep}mode {image.mode}"
        raise DataError(f"{where}: an image of 8 bits a channel is needed, got {got}. Scale it to 0..255")


def image_of(value: Any, size: int | None, where: str) -> npt.NDArray[np.uint8]:
    """An image of Pillow's as uint8, (H, W) if it is grey, else (H, W, 3).

    Raises:
        DataError: If it is none, or has other than 8 bits a channel.
    """
    if not hasattr(value, "convert"):  # Pillow itself is not imported here
        raise DataError(f"{where}: an image is needed, got {type(value).__name__}; name the column of images")
    check_depth(value, where)
    image = value.convert("L" if value.mode in GREY else "RGB")
    return np.asarray(image if size is None else image.resize((size, size)), dtype=np.uint8)
