"""Reads folders of images: a folder for each client, in it a folder for each class.

Below `images:PATH` lie PATH/SITE/CLASS/file, or PATH/SITE/train/CLASS/file and PATH/SITE/test/CLASS/file; where all
images are one client's own, the same without SITE.  All images below the folder of a class are of this class, however
deep they lie: a folder for each patient is usual, as PATH/SITE/CLASS/PATIENT/file.
"""

import importlib
import os
import struct
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge

from unskew import machine
from unskew.data.arrays import all_for_testing, from_arrays
from unskew.data.checks import noted
from unskew.data.dataset import Dataset
from unskew.data.hub import GREY, check_depth, image_of
from unskew.data.inputs import Inputs, constants_of
from unskew.data.patients import Ints, PatientIds, coded
from unskew.errors import DataError, did_you_mean, shown, warn
from unskew.keys import Key
from unskew.words import composed, counted, some

LAYOUT = "PATH/SITE/CLASS/file, or PATH/SITE/train/CLASS/file and PATH/SITE/test/CLASS/file"
OWN_LAYOUT = "PATH/CLASS/file, or PATH/train/CLASS/file and PATH/test/CLASS/file"
ARRAYS = "give them as arrays (npz:PATH), which a split divides"

PARTS = ("train", "training", "test", "testing", "val", "valid", "validation")
"""Names of folders that are parts of data, and no site, class or patient."""

OF_SYSTEMS = (
    "thumbs.db", "desktop.ini", "__macosx", "@eadir", "#recycle", "$recycle.bin", "system volume information",
    "lost+found",
)  # fmt: skip
"""What Windows, macOS and servers of files write beside people's files, besides hidden ones."""

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")
NEARLY_ALL = 0.9
"""Share of values that are names of image files from which on they are taken for such, and not for texts."""

READ = (
    f"an image that ends in {', '.join(IMAGES[:-1])} or {IMAGES[-1]}; of others, such as DICOM, save the pixels as "
    "8-bit PNG, or give arrays"
)
_FORMATS = ("PNG", "JPEG", "BMP", "TIFF")
"""What Pillow may take a file for, whatever its ending: of other formats one would start Ghostscript."""

_BROKEN = (OSError, EOFError, ValueError, SyntaxError, TypeError, LookupError, ArithmeticError, struct.error)
"""What Pillow raises on a broken file, whatever the format's reader meets first."""

ORIENTATION = 0x0112
TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
"""What makes an image upright, for each value of this EXIF tag; nothing for 1."""


@dataclass(frozen=True)
class ImageOptions:
    """Rules that bring images to one shape, and classes to one order.

    Attributes:
        size: Height and width to which they are resized, pixels; by default all must have one size.
        classes: Names of all classes, in order, where sites may lack some; by default those of the folders.
        alone: The folder is one client's own, and no folders of sites are in it.
        mean, std: Of each channel, by which pixels in [0, 1] are standardised; by default those of the training images.
        channels: 1 makes all images grey, 3 gives all three channels; by default grey ones stay grey where all are.
        testing: All images are for testing, unless folders say which are, and `alone` is as the folder looks: true if
            images lie directly in its folders, or these are called after `classes` or train and test.
        patient: "folder" if each folder directly in that of a class is one patient's: nobody is in training and in
            testing then.  Folders of one name at one site are one's, and a file beside them is somebody else's.
        patient_ids: Whose the folders' names are, as in a table.
    """

    size: Annotated[int, Ge(1)] | None = None
    classes: tuple[str, ...] | None = None
    alone: bool = False
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    channels: Literal[1, 3] | None = None
    testing: bool = False
    patient: Literal["folder"] | None = None
    patient_ids: PatientIds | None = None

    @property
    def layout(self) -> str:
        """Layout of the files."""
        return OWN_LAYOUT if self.alone else LAYOUT


def read_images(root: Path, options: ImageOptions) -> Dataset:
    """The data set in folders of images: a folder for each client, unless all is one's own, in it one for each class.

    A client may divide its images into `train` and `test`, which hold the classes; then all clients must.  Files that
    are not read are counted in a warning.

    Raises:
        DataError: If there is no such folder or image, folders are not laid out so, a link leads out of the folder, a
            site has files and no image, an image cannot be read, or sizes differ.
    """
    if not root.is_dir():
        raise DataError(f"there is no folder {root.absolute()}")
    constants = constants_of(options.mean, options.std)
    if options.classes is not None:
        options = replace(options, classes=tuple(map(composed, options.classes)))
    if options.testing:
        options = replace(options, alone=_has_no_sites(root, options))
    contents = _contents(root, options)
    grey, of_images = look_at(root, [image.file for image in contents.images], options.size, options.channels)
    doubts = [*_not_read(root, contents.images, contents.left), *of_images]
    patients: Ints | None = None
    if options.patient is None and not options.testing:
        doubts += filter(None, [_folders_of_patients(root, contents.images)])
    elif not options.testing:  # else nobody is kept apart from anybody
        patients = _patients(contents.images, options.patient_ids)
    for doubt in doubts:
        warn(doubt)
    sites = list(dict.fromkeys(image.site for image in contents.images))
    arrays: dict[str, npt.NDArray[Any]] = {} if options.alone else {"clients": np.array(sites, np.str_)}
    files: dict[str, list[str]] = {}
    for part in sorted({image.part for image in contents.images}):
        images = [image for image in contents.images if image.part == part]
        key = part or "train"
        arrays[f"x_{key}"] = pixels([image.file for image in images], options.size, grey)
        arrays[f"y_{key}"] = np.array([image.label for image in images], np.str_)
        if patients is not None:
            arrays[f"patient_{key}"] = patients[[image.part == part for image in contents.images]]
        files[key] = [shown(str(image.file.relative_to(root))) for image in images]
        if not options.alone:
            arrays[f"client_{key}"] = np.array([sites.index(image.site) for image in images], np.int64)
    data = from_arrays(
        root.name,
        arrays,
        Key(0) / "npz" / "test",
        options.classes,
        own=True,
        own_test=True,
        files=files,
        constants=constants,
    )
    inputs = replace(data.inputs, made_grey=options.channels == 1)
    data = replace(data, inputs=inputs, doubts=tuple(doubts), rows=None, ordered=options.classes is not None)
    if not options.testing:
        return noted(data, options.alone)
    return data if "test" in files else all_for_testing(data)


# ---------------------------------------------------------------- folders
@dataclass(frozen=True)
class _Image:
    """An image: train, test, or "" where they are not divided; its site, class and file, and its folder there."""

    part: str
    site: str
    label: str
    file: Path
    patient: str


@dataclass
class _Contents:
    """Contents of a folder.

    Attributes:
        home: The folder, without links, which none may leave.
        images: Images, by site and class.
        left: Files that are not read.
    """

    home: str
    images: list[_Image] = field(default_factory=list)
    left: list[Path] = field(default_factory=list)


def _has_no_sites(root: Path, options: ImageOptions) -> bool:
    """True for a folder of the folders of classes, rather than of sites that have these."""
    home = os.path.realpath(root)
    folders, _ = entries(root, home)
    names = {folder.name.casefold() for folder in folders}
    if names == {"train", "test"} or (
        names and {composed(folder.name) for folder in folders} <= set(options.classes or ())
    ):
        return True
    return any(is_image(file) for folder in folders for file in entries(folder, home)[1])


def _contents(root: Path, options: ImageOptions) -> _Contents:
    """All images below the folder.

    Raises:
        DataError: If folders are not laid out so, one is of no known class, a link leads out of the folder, or a site
            has files and no image.
    """
    contents = _Contents(os.path.realpath(root))
    if options.alone:
        _read_site(root, contents, options)
        if not contents.images:
            raise DataError(f"{root} has no file; expected is {OWN_LAYOUT}")
        return contents
    sites, loose = entries(root, contents.home)
    if sites and len(_named_parts(sites)) == len(sites):
        raise DataError(
            f"{root} has the folders {_names(sites)}, where those of the sites are expected: {LAYOUT}; put such "
            f"folders into each site's, or, if the images come without sites, {ARRAYS}"
        )
    contents.left += loose
    parts = {site.name: _read_site(site, contents, options) for site in sites}
    sites = [site for site in sites if any(site in image.file.parents for image in contents.images)]
    if len({composed(site.name) for site in sites}) < 2:
        raise DataError(
            f"{root} has {f'one folder with files, {sites[0].name}' if sites else 'no folder with files'}, where those "
            f"of at least 2 sites are expected: {LAYOUT}"
        )
    if len({parts[site.name] for site in sites}) > 1:
        one = next(site.name for site in sites if not parts[site.name])
        raise DataError(f"some clients of {root} have train and test folders, and {one} has not; do it for all or none")
    return contents


def _read_site(site: Path, contents: _Contents, options: ImageOptions) -> bool:
    """Find a site's images; True if they are divided into train and test."""
    folders, loose = entries(site, contents.home)
    divided = sorted(folder.name.casefold() for folder in folders) == ["test", "train"]
    if not divided:
        _check_no_parts(site, folders, options.layout)
    images: list[_Image] = []
    left = list(loose)
    for part in folders if divided else [site]:
        labels, in_part = entries(part, contents.home)
        left += in_part if divided else []
        for label in labels:
            name = composed(label.name)
            if options.classes is not None and name not in options.classes:
                raise DataError(
                    f"{label} is the folder of none of the classes ({some(options.classes)})"
                    f"{did_you_mean(name, options.classes)}; rename it, or name its class in data_options.classes"
                )
            files = list(_below(label, contents.home, options.layout))
            kind = part.name.casefold() if divided else ""
            images += [
                _Image(kind, composed(site.name), name, file, _folder_in(label, file))
                for file in files
                if is_image(file)
            ]
            left += [file for file in files if not is_image(file)]
    if left and not images:
        whose = "client" if options.alone else "site"
        raise DataError(
            f"{site} is a {whose}'s folder, and none of its {counted(len(left), 'file')} is read "
            f"({some([file.name for file in left])}); expected is {options.layout}, and a file is {READ}"
            + ("" if options.alone else f"; if it is the folder of a class, put the sites' above it, or {ARRAYS}")
        )
    contents.images += images
    contents.left += left
    return divided


def _folder_in(label: Path, file: Path) -> str:
    """The folder directly in that of the class in which a file lies; "" if it lies beside such folders."""
    folder, *below = file.relative_to(label).parts
    return composed(folder) if below else ""


def _folders_of_patients(root: Path, images: Sequence[_Image]) -> str:
    """A sentence if most images lie in folders below those of classes, several in most; "" otherwise."""
    deeper = [image for image in images if image.patient and not image.part]
    folders = list(dict.fromkeys((image.site, image.label, image.patient) for image in deeper))
    classes = {(image.site, image.label) for image in images}
    if 2 * len(deeper) <= len(images) or len(deeper) < 2 * len(folders) or len(folders) < 2 * len(classes):
        return ""
    one = deeper[0].file.parent.relative_to(root)
    return shown(
        f"most images below {root} lie in folders below those of the classes, several in each, such as {one}: if each "
        'is one patient\'s, data_options = { patient = "folder" } keeps it together, so that nobody is in training and '
        "in testing"
    )


def _patients(images: Sequence[_Image], ids: PatientIds | None) -> Ints:
    """The patient of each image, (N,).

    Raises:
        DataError: If somebody has images for training and for testing.
    """
    names = [image.patient or f"{image.file}" for image in images]
    (codes,) = coded((names, [image.site for image in images]), ids=ids)
    part_of: dict[int, _Image] = {}
    for code, image in zip(codes.tolist(), images, strict=True):
        if (first := part_of.setdefault(code, image)).part != image.part:
            raise DataError(
                f"{first.file.parent} and {image.file.parent} are one patient's, who is for training and for testing; "
                "put all images of a patient into one part"
            )
    return codes


def entries(folder: Path, home: str) -> tuple[list[Path], list[Path]]:
    """The folders and the files in a folder, in order, without hidden ones and what systems write."""
    folders: list[Path] = []
    files: list[Path] = []
    try:
        for path in sorted(folder.iterdir()):
            if path.name[0] == "." or path.name.casefold() in OF_SYSTEMS:
                continue
            if path.is_symlink():
                _check_link(path, home)
            if path.is_dir():
                folders.append(path)
            elif path.is_file():
                files.append(path)
            else:
                raise DataError(f"{path} is no file and no folder, nor a link that leads to one; move it away")
    except OSError as error:
        raise DataError(f"the folder {folder} cannot be read: {error.strerror}") from None
    return folders, files


def files_below(root: Path) -> tuple[list[Path], list[Path]]:
    """All images below the folder, in order, files directly in a folder before those of its folders; and other files.

    Raises:
        DataError: If a folder cannot be read, or a link leads out of `root`.
    """
    images: list[Path] = []
    others: list[Path] = []
    pending = [root]
    while pending:
        folders, files = entries(pending.pop(), str(root.resolve()))
        for file in files:
            (images if is_image(file) else others).append(file)
        pending += reversed(folders)
    return images, others


def images_below(root: Path) -> list[Path]:
    """The images of `files_below`; other files are named in a warning.

    Raises:
        DataError: As in `files_below`.
    """
    images, others = files_below(root)
    for sentence in _not_read(root, images, others):
        warn(sentence)
    return images


def _check_link(link: Path, home: str) -> None:
    """Refuse a link that leads out of the folder, to other files of this machine, or back to where it came from."""
    target = os.path.realpath(link)
    if not Path(target).is_relative_to(home):
        raise DataError(
            f"{link} is a link that leads out of the folder, to {target}; put a copy in its place, or name a folder "
            "that holds both"
        )
    if target in map(os.path.realpath, link.parents):
        raise DataError(f"{link} is a link that leads back to {target}, in which it lies; remove it")


def _below(label: Path, home: str, layout: str) -> Iterator[Path]:
    """All files of a class, however deep they lie."""
    folders, files = entries(label, home)
    _check_no_parts(label, folders, layout)
    yield from files
    for folder in folders:
        yield from _below(folder, home, layout)


def _named_parts(folders: Sequence[Path]) -> list[Path]:
    return [folder for folder in folders if folder.name.casefold() in PARTS]


def _check_no_parts(above: Path, folders: Sequence[Path], layout: str) -> None:
    """Refuse folders that are named like parts of data, where they would be taken for classes or patients."""
    parts = _named_parts(folders)
    if len(parts) > 1 or (parts and len(parts) == len(folders)):
        raise DataError(
            f"{above} has the folders {_names(folders)}; expected is {layout}, with no folder beside train and test: "
            "put other images for training into train, or move them away"
        )


def _names(folders: Sequence[Path]) -> str:
    return some([folder.name for folder in folders])


def is_image(file: Path) -> bool:
    """True for a file whose ending is that of an image."""
    return file.suffix.lower() in IMAGES


def check_no_files(values: Sequence[object], place: str) -> None:
    """Refuse names of image files where examples are expected: a network would learn from the words in their paths.

    Raises:
        DataError: If nearly all values are such.
    """
    names = [str(value) for value in values if isinstance(value, str | os.PathLike)]
    named = [name for name in names if name.lower().endswith((*IMAGES, ".dcm"))]
    if not named or len(named) < NEARLY_ALL * len(values):
        return
    raise DataError(
        f"{place} holds the names of image files, such as {shown(named[0])!r}, and not what is in them; give "
        "data='images:FOLDER', where images lie in FOLDER/SITE/CLASS or a table in FOLDER has their labels and sites "
        "(task.data_options.labels), or give arrays of pixels"
    )


def _not_read(root: Path, images: Sequence[object], left: Sequence[Path]) -> list[str]:
    """A sentence on files that are not read, beside these images; none if there are none."""
    if not left:
        return []
    of, names = counted(len(images) + len(left), "file"), some([str(file.relative_to(root)) for file in left])
    was = "was" if len(left) == 1 else "were"
    return [shown(f"{len(left):,} of {of} below {root} {was} not read: {names}; what is read is {READ}")]


# ---------------------------------------------------------------- images
def look_at(
    root: Path, files: Sequence[Path], size: int | None, channels: Literal[1, 3] | None
) -> tuple[bool, list[str]]:
    """True if all images become grey, and sentences on what may not be meant, from what files say before decoding.

    Raises:
        DataError: If a file is no image, or memory has no room for all as they are kept.
    """
    announced = {file: _announced(file) for file in files}
    grey = all(one.grey for one in announced.values()) if channels is None else channels == 1
    _require_room(root, announced, size, grey)
    mixed = _mixed(root, announced) if channels is None else ""
    return grey, [shown(mixed)] if mixed else []


@dataclass(frozen=True)
class _Announced:
    """Size of a file's image in pixels, and whether it is grey, as the file says before it is decoded."""

    width: int
    height: int
    grey: bool


def _announced(file: Path) -> _Announced:
    with _opened(file) as image:
        check_depth(image, str(file))
        width, height = image.size
        return _Announced(width, height, image.mode in GREY)


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
        raise DataError(
            f"{file} has more than {pillow.MAX_IMAGE_PIXELS:,} pixels, the most that are read; make it smaller"
        ) from None
    except FileNotFoundError:
        raise DataError(f"there is no file {file.absolute()}") from None
    except _BROKEN as error:
        raise DataError(f"{file} is not a readable image: {error}; what is read is {READ}") from None


def _require_room(root: Path, announced: Mapping[Path, _Announced], size: int | None, grey: bool) -> None:
    """Refuse images before any is decoded if one of them, or all as they are kept, would not fit into memory."""
    file, largest = max(announced.items(), key=lambda one: one[1].width * one[1].height)
    machine.require_room(largest.width * largest.height * (1 if largest.grey else 4), file)  # Pillow pads RGB
    pixels = sum(one.width * one.height if size is None else size * size for one in announced.values())
    machine.require_room(pixels * (1 if grey else 3), root)


def _mixed(root: Path, announced: Mapping[Path, _Announced]) -> str:
    """A sentence if some images are grey and some are not; "" otherwise."""
    grey = [file for file, one in announced.items() if one.grey]
    coloured = [file for file, one in announced.items() if not one.grey]
    if not grey or not coloured:
        return ""
    few = min(coloured, grey, key=len)
    names = some([str(file.relative_to(root)) for file in few])
    return (
        f"{len(few):,} of {counted(len(announced), 'image')} below {root} {'is' if len(few) == 1 else 'are'} "
        f"{'grey' if few is grey else 'coloured'} and the others not: {names}; all get three channels; channels = 1 or "
        "3 says what is meant"
    )


def read_files(files: Sequence[Path], inputs: Inputs) -> npt.NDArray[np.uint8]:
    """The images in files, as those that a model was trained on were read.

    They are turned upright; where training had squares they are resized to them, grey ones get three channels where the
    model has them, and ones with colours become grey where those for training did, or where their channels are equal.

    Args:
        files: The files.
        inputs: The model's, of kind "images".

    Raises:
        DataError: If a file is no image, some have colours and those for training were grey by themselves, or memory
            has no room.
    """
    if not inputs.shape:
        raise DataError("the model is of an older version and does not say how large its images were; give an array")
    channels, height, width = inputs.shape
    size = height if height == width else None
    announced = {file: _announced(file) for file in files}
    _require_room(files[0].parent, announced, size, channels == 1)
    if channels == 1 and not inputs.made_grey:
        coloured = [file for file, one in announced.items() if not one.grey and _has_colours(file)]
        if coloured:
            has, it = ("has", "it") if len(coloured) == 1 else ("have", "them")
            raise DataError(
                f"{len(coloured):,} of {counted(len(announced), 'image')} {has} colours, and the model was trained on "
                f"grey images: {some(list(map(str, coloured)))}; save {it} in grey"
            )
    return pixels(files, size, channels == 1)


def _has_colours(file: Path) -> bool:
    """True unless the three channels of an image are equal, as of a grey scan that was saved with colours."""
    with _opened(file) as image:
        image.load()
        channels = np.asarray(image.convert("RGB"))
    return bool((channels != channels[..., :1]).any())


def pixels(files: Sequence[Path], size: int | None, grey: bool) -> npt.NDArray[np.uint8]:
    """The images (N, H, W) if they are to be `grey`, which makes them so, else (N, H, W, 3).

    Raises:
        DataError: If a file is no image, or sizes differ.
    """
    out: npt.NDArray[np.uint8] = np.empty((0, 0, 0), np.uint8)
    for i, file in enumerate(files):
        with _opened(file) as opened:
            upright = _upright(opened)
            if grey and upright.mode not in GREY:
                upright = upright.convert("RGB").convert("L")
            image = image_of(upright, size, str(file))
        if i == 0:
            out = np.empty((len(files), *image.shape[:2]) + (() if grey else (3,)), np.uint8)
        if image.shape[:2] != out.shape[1:3]:
            raise DataError(
                f"{file} is {image.shape[1]} x {image.shape[0]}, {files[0]} is {out.shape[2]} x {out.shape[1]}; "
                "give a size, as in data_options = { size = 64 }"
            )
        out[i] = image if grey or image.ndim == 3 else image[..., None]
    return out


def _upright(image: Any) -> Any:
    """The image turned and mirrored as the camera has noted in its EXIF tags; of a TIFF file Pillow has done it."""
    image.load()
    turn = None
    with suppress(Exception):  # whatever is wrong with the tags, the pixels are there
        turn = TURNS.get(image.getexif().get(ORIENTATION))
    return image if turn is None else image.transpose(importlib.import_module("PIL.Image").Transpose[turn])
