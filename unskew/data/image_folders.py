"""Reads folders of images: a folder for each client, in it a folder for each class.

images:PATH     PATH/SITE/CLASS/*.png, or PATH/SITE/train/CLASS/*.png and PATH/SITE/test/CLASS/*.png
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Ge

from unskew import machine
from unskew.data.arrays import from_arrays
from unskew.data.dataset import Dataset
from unskew.data.hub import image_of
from unskew.errors import DataError
from unskew.keys import Key

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")
_FORMATS = ("PNG", "JPEG", "BMP", "TIFF")
"""What Pillow may take a file for, whatever its ending: of other formats one would start Ghostscript."""


@dataclass(frozen=True)
class ImageOptions:
    """Rules that bring images to one shape.

    Attributes:
        size: Height and width to which they are resized, pixels; by default all must have one size.
    """

    size: Annotated[int, Ge(1)] | None = None


def read_images(root: Path, options: ImageOptions) -> Dataset:
    """The data set in folders of images: a folder for each client, in it a folder for each class.

    A client may divide its images into `train` and `test`, which hold the classes; then all clients must.

    Raises:
        DataError: If there is no such folder or image, an image cannot be read, or sizes differ.
    """
    if not root.is_dir():
        raise DataError(f"there is no folder {root.absolute()}")
    sites = _folders(root)
    if len(sites) < 2:
        raise DataError(f"{root} must have a folder for each client, at least 2, with a folder for each class in it")
    divided = {site.name: {folder.name for folder in _folders(site)} == {"train", "test"} for site in sites}
    if len(set(divided.values())) > 1:
        one = next(name for name, is_divided in divided.items() if not is_divided)
        raise DataError(f"some clients of {root} have train and test folders, and {one} has not; do it for all or none")
    arrays: dict[str, npt.NDArray[Any]] = {"clients": np.array([site.name for site in sites], np.str_)}
    for part in ("train", "test") if all(divided.values()) else ("",):
        images = [
            (client, folder.name, file)
            for client, site in enumerate(sites)
            for folder in _folders(site / part)
            for file in sorted(folder.iterdir())
            if file.suffix.lower() in IMAGES
        ]
        if not images:
            raise DataError(f"{root} has no images below SITE/{part + '/' if part else ''}CLASS ({', '.join(IMAGES)})")
        key = part or "train"
        arrays[f"x_{key}"] = _pixels(root, [file for _, _, file in images], options.size)
        arrays[f"y_{key}"] = np.array([label for _, label, _ in images], np.str_)
        arrays[f"client_{key}"] = np.array([client for client, _, _ in images], np.int64)
    return from_arrays(root.name, arrays, Key(0) / "npz" / "test", own=True, own_test=True)


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _pixels(root: Path, files: Sequence[Path], size: int | None) -> npt.NDArray[np.uint8]:
    pillow = importlib.import_module("PIL.Image")
    open_image: Callable[..., Any] = pillow.open
    bombs: type[Exception] = pillow.DecompressionBombError
    images: list[npt.NDArray[np.uint8]] = []
    for file in files:
        try:
            with open_image(file, formats=_FORMATS) as image:
                if not images:  # the first says how large all are, before any is decoded
                    width, height = image.size if size is None else (size, size)
                    machine.require_room(width * height * len(image.getbands()) * len(files), root)
                images.append(image_of(image, size, str(file)))
        except (OSError, ValueError, SyntaxError, bombs) as error:
            raise DataError(f"{file} is not a readable image: {error}") from None
        if images[-1].shape[:2] != images[0].shape[:2]:
            raise DataError(
                f"{file} is {images[-1].shape[1]} x {images[-1].shape[0]}, {files[0]} is {images[0].shape[1]} x "
                f"{images[0].shape[0]}; give a size, as in data_options = {{ size = 64 }}"
            )
    if len({image.ndim for image in images}) > 1:
        images = [image if image.ndim == 3 else np.repeat(image[..., None], 3, axis=2) for image in images]
    return np.stack(images)
