"""Reads images: in folders of sites and classes, or named by a table that lies beside them.

    PATH/SITE/CLASS/file, or PATH/SITE/train/CLASS/file and PATH/SITE/test/CLASS/file; for one client's own images
    without SITE.  All images below the folder of a class are of this class, such as PATH/SITE/CLASS/PATIENT/file.

    PATH/labels.csv, with a row for each image: its path from PATH, or its unique file name with or without ending;
    its label; and, where known, its site and patient.

A folder is read as a table, too, with a row for each image.
"""

import importlib
import os
import warnings
from collections import ChainMap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge

from unskew.data import own, tables
from unskew.data.columns import INPUTS, Frame, check_column, composed_names, frame_of
from unskew.data.hub import GREY, check_depth, images
from unskew.data.inputs import Inputs, constants_of
from unskew.data.latest import Latest
from unskew.data.patients import PatientIds, unnamed_patients
from unskew.data.places import Place
from unskew.data.table import DataTable
from unskew.errors import ConfigError, DataError, UnskewError, did_you_mean, warn
from unskew.tasks.targets import CLASS, Targets
from unskew.words import composed, some

LAYOUT = "PATH/SITE/CLASS/file, or PATH/SITE/train/CLASS/file and PATH/SITE/test/CLASS/file"
OWN_LAYOUT = "PATH/CLASS/file, or PATH/train/CLASS/file and PATH/test/CLASS/file"

PARTS = ("train", "test", "training", "testing", "val", "valid", "validation")
"""Names of folders that are parts of data, and no site, class or patient."""

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")
READ = f"images ending in {', '.join(IMAGES)}; save others, such as DICOM, as 8-bit PNG"
_FORMATS = ("PNG", "JPEG", "BMP", "TIFF")
"""What Pillow may take a file for, whatever its ending: of other formats one would start Ghostscript."""


@dataclass(frozen=True)
class ImageOptions:
    """Shape of the images, order of the classes, and the table that names the images, if there is one.

    Attributes:
        labels: The table, CSV or Parquet, by its path from the folder; without it folders are sites and classes.
        image: Its column of the images.
        target: Its column of the target; several columns of 0 and 1 for several labels.
        client, patient, patient_ids, test: Columns as in `unskew.data.tables.TableOptions`; without a client a split
            divides the images.  In folders, patient "folder" makes each folder in that of a class a patient; folders of
            one name at one site are one. A file beside them is a patient by itself.
        size: Height and width to which they are resized, pixels; by default all must have one size.
        classes: Names of all classes, in order, where sites may lack some; by default those that occur.
        alone: The folder is one client's own: it has no folders of sites, and a column `client` is not read.
        mean, std: Of each channel, to standardise pixels in [0, 1]; by default those of the training images.
        channels: 1 makes all images grey, 3 gives all three channels; by default they are grey if all are.
        testing: All images are for testing, unless folders or `test` say which.  `alone` is then true if images lie
            directly in the folders, or these are named after `classes` or train and test.
    """

    labels: str | None = None
    image: str | None = None
    target: str | tuple[str, ...] | None = None
    client: str | None = None
    patient: str | None = None
    patient_ids: PatientIds | None = None
    test: str | Latest | None = None
    size: Annotated[int, Ge(1)] | None = None
    classes: tuple[str, ...] | None = None
    alone: bool = False
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    channels: Literal[1, 3] | None = None
    testing: bool = False

    def __post_init__(self) -> None:
        """Normalise names to one form of Unicode (NFC).

        Raises:
            ConfigError: If columns are named without a table, or a table without its columns.
        """
        for setting in ("image", "target", "client", "patient", "classes"):
            object.__setattr__(self, setting, composed_names(getattr(self, setting)))
        columns = [name for name in ("image", "target", "client", "test") if getattr(self, name) is not None]
        columns += ["patient"] * (self.patient not in (None, "folder"))
        if self.labels is None and columns:
            raise ConfigError(f"{', '.join(columns)} are columns of a table; name it in labels")
        if self.labels is not None and not {"image", "target"} <= set(columns):
            raise ConfigError("labels is a table; name its columns image and target, too")


_Read = tuple[dict[str, list[Any]] | Frame, list[Path], dict[str, Any], Place, tuple[str, ...]]
"""What is known of each image as columns, its file, the columns' roles, the place of a row, and notes."""


def table(root: Path, options: ImageOptions, targets: Targets = CLASS) -> DataTable:
    """The images of a folder as one table.

    Raises:
        DataError: If folder, image, table or column are missing, something is a link, an image cannot be read, or sizes
            differ.  If a row names no image, or one named before.
    """
    if not root.is_dir():
        raise DataError(f"there is no folder {root.absolute()}")
    columns, files, roles, place, notes = (_in_folders if options.labels is None else _in_table)(root, options)
    images, frame = pixels(files, options.size, options.channels), frame_of(columns)
    rows = own.table(
        replace(frame, columns={**frame.columns, INPUTS: images}),
        **roles,
        patient_ids=options.patient_ids,
        name=root.name,
        kind=targets,
        declared=options.classes,
        alone=options.alone,
    )
    return replace(
        rows,
        numbers=None if options.labels is None else rows.numbers,
        place=place,
        notes=(*notes, *rows.notes),
        apart=True,
        constants=constants_of(options.mean, options.std),
        testing=options.testing,
        way=Inputs(made_grey=options.channels == 1),
    )


# ---------------------------------------------------------------- a table of images
def _in_table(root: Path, options: ImageOptions) -> _Read:
    """The images that a table names."""
    path, kind = root / str(options.labels), tables.kind_of(str(options.labels))
    if kind is None or not path.is_file() or not path.resolve().is_relative_to(root.resolve()):
        raise DataError(f"task.data_options.labels: {options.labels} is no table ({tables.SHOWN}) in {root.absolute()}")
    client, image = None if options.alone else options.client, str(options.image)
    roles = {"target": options.target, "client": client, "patient": options.patient, "test": options.test}
    read = tables.TableOptions(options.target or (), client, options.patient, leave_out=("",))
    frame = tables.read(kind, path, read, words=(image,))
    check_column(list(frame.columns), image, "image")
    below, _ = files_below(root)
    files = _files(root, below, frame.columns[image].tolist(), frame.place, f"column {image!r} of {path.name}")
    notes = tables.unread(root, sorted(set(below) - set(files)), f"images that a row of {path.name} names")
    taken = {image, client, options.patient, *read.names}
    if options.patient is None:
        notes += tuple(unnamed_patients({k: v for k, v in frame.columns.items() if k not in taken}))
    if options.testing and options.test is None:
        roles["patient"] = None
    return frame, files, roles, frame.place, notes


def _files(root: Path, images: Sequence[Path], names: Sequence[Any], place: Place, column: str) -> list[Path]:
    """The file of each row's image, by its path or by its name, with or without ending; the longer name counts."""
    known: list[dict[str, list[Path]]] = [{}, {}, {}, {}]
    for file in images:
        path = file.relative_to(root)
        of = path.as_posix(), path.with_suffix("").as_posix(), file.name, file.stem
        for by, name in zip(known, of, strict=True):
            by.setdefault(composed(name), []).append(file)
    files, rows = ChainMap(*known), dict[Path, int]()
    for i, name in enumerate(names):
        meant = [] if name is None else files.get(composed(name.replace("\\", "/").removeprefix("./")), [])
        if len(meant) == 1 and meant[0] not in rows:
            rows[meant[0]] = i
            continue
        state = f"names no image below the folder{did_you_mean(str(name), list(files)[:1000])}"
        if meant:
            state = f"may be any of {some([str(file.relative_to(root)) for file in meant])}: write the path"
        if len(meant) == 1:
            state = f"names the image of {place(rows[meant[0]])}, too"
        raise DataError(f"{column}: {name!r} in {place(i)} {state}; correct it, or leave the row out")
    return list(rows)


# ---------------------------------------------------------------- folders of sites and classes
def _in_folders(root: Path, options: ImageOptions) -> _Read:
    """The images in folders, those for training before those for testing."""
    images, left = files_below(root)
    folders = [tuple(map(composed, file.relative_to(root).parts[:-1])) for file in images]
    first = {of[0] for of in folders if of}
    looks_alone = (
        {name.casefold() for name in first} == set(PARTS[:2])
        or first <= set(options.classes or ())
        or any(len(of) == 1 for of in folders)
    )
    alone = options.alone or (options.testing and looks_alone)
    layout, rows = OWN_LAYOUT if alone else LAYOUT, []
    for file, of in zip(images, folders, strict=True):
        site, of = ("", of) if alone else (of[0], of[1:]) if of else ("", ())
        part, of = (of[0].casefold(), of[1:]) if of and of[0].casefold() in PARTS[:2] else ("", of)
        if not of:
            left.append(file)
            continue
        if odd := [name for name in (site, *of[:2]) if name.casefold() in PARTS]:
            raise DataError(f"{file}: the folder {odd[0]} is called after a part of data; expected is {layout}")
        rows.append((file, of[0], site, of[1] if len(of) > 1 else str(file), part))
    if not rows:
        raise DataError(f"{root} has no images of {'a client' if alone else 'sites'}; expected is {layout}")
    parted = any(row[4] for row in rows)
    rows.sort(key=lambda row: row[4] == "test")
    files, *columns = (list(of) for of in zip(*rows, strict=True))
    roles = {
        "target": "class",
        "client": None if alone else "site",
        "patient": "patient" if options.patient is not None and (parted or not options.testing) else None,
        "test": "part" if parted else None,
    }
    by_name = dict(zip(("class", "site", "patient", "part"), columns, strict=True))
    return by_name, files, roles, lambda row: str(files[row].relative_to(root)), tables.unread(root, left, READ)


# ---------------------------------------------------------------- files
def files_below(root: Path) -> tuple[list[Path], list[Path]]:
    """All images below the folder, in order, and other files; hidden ones are left out.

    A folder's own files come before its folders.

    Raises:
        DataError: If a folder cannot be read, or something is a link.
    """
    images: list[Path] = []
    others: list[Path] = []

    def unreadable(error: OSError) -> None:
        raise DataError(f"the folder {error.filename} cannot be read: {error.strerror}")

    for place, folders, files in os.walk(root, onerror=unreadable):
        folders[:] = sorted(name for name in folders if tables.visible(name))
        paths = [Path(place, name) for name in sorted(files) if tables.visible(name)]
        for path in (*(Path(place, name) for name in folders), *paths):
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise DataError(f"{path} is a link, or neither a file nor a folder; put a copy there")
        for path in paths:
            (images if path.suffix.lower() in IMAGES else others).append(path)
    return images, others


def images_below(root: Path) -> list[Path]:
    """The images of `files_below`; a warning names other files."""
    images, others = files_below(root)
    for sentence in tables.unread(root, others, READ):
        warn(sentence)
    return images


# ---------------------------------------------------------------- images
@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """Open an image; what is wrong with it is said with its name."""
    pillow: Any = importlib.import_module("PIL.Image")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            with pillow.open(file, formats=_FORMATS) as image:
                yield image
    except (pillow.DecompressionBombWarning, pillow.DecompressionBombError):
        raise DataError(f"{file} has more than {pillow.MAX_IMAGE_PIXELS:,} pixels; make it smaller") from None
    except FileNotFoundError:
        raise DataError(f"there is no file {file.absolute()}") from None
    except UnskewError:
        raise
    except Exception as error:  # whatever the format's reader meets first in a broken file
        raise DataError(f"{file} is not a readable image: {error}; what is read is {READ}") from None


def read_files(files: Sequence[Path], inputs: Inputs) -> npt.NDArray[np.uint8]:
    """The images in files, read like those that a model was trained on.

    They are turned upright, resized if training had squares, and made grey or RGB as the model needs.

    Raises:
        DataError: As in `pixels`, or if some have colours and the model was trained on grey images.
    """
    channels, height, width = inputs.shape
    size = height if height == width else None
    x = pixels(files, size, 3 if channels == 3 else 1 if inputs.made_grey else None)
    if channels == 1 and x.ndim == 4:  # of a grey scan that was saved with colours all are equal
        if len(odd := np.flatnonzero((x != x[..., :1]).any((1, 2, 3)))):
            raise DataError(f"{files[odd[0]]} has colours, and the model was trained on grey images; save it in grey")
        x = x[..., 0]
    return x


def pixels(files: Sequence[Path], size: int | None, channels: Literal[1, 3] | None) -> npt.NDArray[np.uint8]:
    """The images, (N, H, W) if all are grey or `channels` is 1, else (N, H, W, 3).

    Raises:
        DataError: If a file is not an image, sizes differ, or memory is too small for all.
    """

    def read() -> Iterator[Any]:
        for file in files:
            with _opened(file) as opened:
                check_depth(opened, str(file))
                image = _upright(opened)
                if channels == 3 or (channels == 1 and image.mode not in GREY):
                    image = image.convert("RGB")
                yield image.convert("L") if channels == 1 else image

    return images(read(), size, lambda i: str(files[i]), len(files))


def _upright(image: Any) -> Any:
    """The image turned and mirrored as the camera has noted in its EXIF tags; of a TIFF file Pillow has done it."""
    image.load()
    with suppress(Exception):  # whatever is wrong with the tags, the pixels are there
        return importlib.import_module("PIL.ImageOps").exif_transpose(image)
    return image
