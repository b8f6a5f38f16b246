"""Data sets by name: scikit-learn's digits, files in a plain layout, and the usual names looked up in a folder.

Nothing is unpickled, and nothing is downloaded unless a source begins with `hub:` (`unskew.data.hub`).  uint8 images
are brought to [0, 1] and standardised per channel with mean and standard deviation of the *training* part; the test
part is never looked at.  Floating arrays stay as they are.

The plain layout, as one npz file or as a folder with one npy file per key:

    x_train, x_test            images of whole numbers 0..255 or of floats, (N, H, W), (N, H, W, C) or (N, C, H, W);
                               floats (N, D); or token ids, int32 or int64 (N, L)
    y_train, y_test            labels (N,): integers from 0, or words; or as unskew/tasks/targets.py says
    client_train, clients      integer client of each training example (N,) and the clients' names, where the data come
                               with their clients; optional
    client_test                client of each test example, which then are their clients' own test examples; optional
    patient_train, patient_test  integer of who is in each example, optional.  No
                               one's examples are in training and in testing
    features                   names of the columns of x (N, D); optional
    domain_train, domains      integer domain of each training example (N,) and the domains' names; optional
    classes                    names; optional.  In a folder names are text files, one a line: classes.txt, domains.txt,
                               clients.txt

Without x_test and y_test a fixed fifth of the training part is set aside as the test part: of each client if the
data come with their clients, else of each class.

`digit_domains` and `digit_five` join several sources into one set with a domain for each (`unskew.data.domains`).
Their images are standardised with the mean and deviation of all domains' training parts together: constants of each
domain's own would remove part of the difference between domains.
"""

import gzip
import hashlib
import importlib.util
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from unskew import machine, schema
from unskew.data import hub, image_folders, labelled_images, tables
from unskew.data.archives import UNREADABLE, archive_of, array_of, corrupt, kept_bytes
from unskew.data.arrays import (
    LAYOUT,
    NAMES,
    content_of,
    cut_in_time,
    from_arrays,
    is_images,
    names_of,
    with_test_part,
)
from unskew.data.checks import noted
from unskew.data.dataset import Dataset, checked
from unskew.data.domains import BUNDLED, DOMAINS, Part, join
from unskew.data.inputs import Inputs, constants_of
from unskew.data.latest import Cut, Latest, check_gap
from unskew.data.natural import NATURAL, NaturalOptions, files_of
from unskew.data.patients import PatientIds
from unskew.data.places import path_of, require_allowed
from unskew.data.preprocess import Preprocess
from unskew.data.saved import load_saved
from unskew.data.text import tokens, vocabulary
from unskew.errors import ConfigError, DataError, did_you_mean
from unskew.files import check_text, user_path
from unskew.keys import Key
from unskew.references import makes
from unskew.registry import Registry
from unskew.tasks.targets import CLASS, NUMBER, SURVIVAL, TOKENS, Targets
from unskew.words import some

_Array = npt.NDArray[Any]
_Arrays = dict[str, _Array]
_T = TypeVar("_T")


@dataclass(frozen=True)
class ArrayOptions:
    """Options of arrays of your own.

    Attributes:
        mean, std: Numbers of each channel by which byte images are standardised, for pixels in [0, 1]; by default those
            of the training images.
        test: Where there is no test part, its `latest` names a further array, of when each training example was, and
            test examples are the latest (`unskew.data.latest.Latest`).
        alone: The arrays are one client's own, which may lack a class.
        patient_ids: Whose the numbers of patients are: the "network"'s, each one person, or each "site"'s own.  It is
            asked for where a number occurs at several clients.
    """

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    test: Latest | None = None
    alone: bool = False
    patient_ids: PatientIds | None = None


@dataclass(frozen=True)
class RunOptions:
    """Options of data that a run's own folder keeps.

    Attributes:
        classes: Names of all classes in the order in which they were declared, which the data have, too.
    """

    classes: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Source:
    """One line of `unskew list datasets`."""

    name: str
    what: str
    shape: str
    origin: str
    classes: tuple[str, ...] | None = None


_DIGITS = tuple("0123456789")
_FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

SOURCES: tuple[Source, ...] = (
    Source("digits", "handwritten digits, 1,797", "1x8x8, 10 classes", "bundled with scikit-learn", _DIGITS),
    Source("mnist", "handwritten digits", "1x28x28, 10 classes", "yann.lecun.com/exdb/mnist", _DIGITS),
    Source("fashion_mnist", "clothes", "1x28x28, 10 classes", "github.com/zalandoresearch/fashion-mnist", _FASHION),
    Source("emnist", "handwritten letters and digits", "1x28x28, 47 classes (balanced)", "nist.gov/itl (EMNIST)"),
    Source("usps", "digits on envelopes", "1x16x16, 10 classes", "hastie.su.domains/ElemStatLearn (zip code)", _DIGITS),
    Source("mnist_m", "MNIST on photographs", "3x32x32, 10 classes", "Ganin et al., JMLR 17, 2016", _DIGITS),
    Source("svhn", "house numbers", "3x32x32, 10 classes", "ufldl.stanford.edu/housenumbers", _DIGITS),
    Source(
        "synth_digits", "printed digits in colour", "3x32x32, 10 classes", "Ganin and Lempitsky, ICML 2015", _DIGITS
    ),
    Source(
        "digit_domains",
        "MNIST, USPS, MNIST-M, scikit-learn's digits, and digits drawn from fonts",
        "3x28x28, 10 classes, 5 domains",
        "mnist, usps, mnist_m; the rest is bundled",
        _DIGITS,
    ),
    Source(
        "digit_five",
        "MNIST, SVHN, USPS, SynthDigits, MNIST-M",
        "3x28x28, 10 classes, 5 domains",
        "the five sets, as in FedBN, ICLR 2021",
        _DIGITS,
    ),
    Source("cifar10", "small photographs", "3x32x32, 10 classes", "www.cs.toronto.edu/~kriz/cifar.html", _CIFAR10),
    Source("cifar100", "small photographs", "3x32x32, 100 classes", "www.cs.toronto.edu/~kriz/cifar.html"),
    Source("pacs", "objects in 4 domains", "3x64x64, 7 classes", "Li et al., ICCV 2017"),
    Source(
        "imdb",
        "film reviews",
        "200 tokens, 2 classes",
        "ai.stanford.edu/~amaas/data/sentiment",
        ("negative", "positive"),
    ),
    *(Source(name, of.what, of.shape, of.origin) for name, of in NATURAL.items()),
    Source("npz:PATH", "your own arrays in one file", "any", "x_train, y_train, x_test, y_test"),
    Source("folder:PATH", "your own arrays, one npy file each", "any", "x_train, y_train, x_test, y_test"),
    Source(
        "csv:PATH", "your own table, extra [tables]", "any", "a column of clients, or a folder with a file for each"
    ),
    Source("parquet:PATH", "the same as Parquet", "any", "a column of clients, or a folder with a file for each"),
    Source("images:PATH", "your own images", "images", "PATH/SITE/CLASS/*.png"),
    Source("hub:OWNER/NAME", "downloaded, extra [hub]; also hub:mnist, ...", "images or texts", "huggingface.co"),
)
"""Data sets that `load` knows, the offline default first."""

FILES = ("npz", "folder", "csv", "parquet", "images")
"""Beginnings of names that are followed by a path."""

SCHEMES = (*FILES, "hub", "run")
"""Beginnings of names, up to a colon, that say where data are; any other beginning is a module of the user's."""

DATA = Registry(
    "data set",
    "unskew.data",
    {s.name: f"{__name__}:load" for s in SOURCES},
    "a function annotated to return a Dataset, as in def mine(noise: float = 0.1) -> Dataset",
    partial(makes, lambda kind: kind is Dataset),
    about={s.name: f"{s.what}; {s.shape}; {s.origin}" for s in SOURCES},
    schemes=SCHEMES,
)

_NAMED = {s.name: s for s in SOURCES if ":" not in s.name}


def brings_clients(source: str, options: Mapping[str, Any]) -> bool:
    """True if it can be told without reading them that the data come with their clients.

    Raises:
        DataError: If the path is none, or an archive is broken.
    """
    kind, _, rest = source.partition(":")
    if kind == "images" or source in NATURAL or (kind in tables.ENDINGS and "client" in options):
        return True
    if kind not in FILES:
        return False
    path = path_of(rest)
    if kind in tables.ENDINGS:
        return path.is_dir()
    if kind == "npz":
        try:
            if not zipfile.is_zipfile(path):
                return False
            with zipfile.ZipFile(path) as archive:
                return "client_train.npy" in archive.namelist()
        except UNREADABLE as error:
            raise corrupt(path, error) from error
    return (path / "client_train.npy").is_file()


def gives_bytes(source: str) -> bool:
    """True if it can be told without reading them that the data, if they are images, are bytes."""
    return source.partition(":")[0] in ("images", "hub", "digits", *DOMAINS)


def load(
    source: str | Path,
    data_dir: Path | str | None = None,
    data_options: Mapping[str, Any] | None = None,
    preprocess: Preprocess | None = None,
    targets: Targets = CLASS,
) -> Dataset:
    """The data set called `source`: a name of `SOURCES`, a path such as `npz:PATH`, or, to download it, `hub:...`.

    A name other than `digits` is looked up in `data_dir` or, without it, in the folder that the environment variable
    UNSKEW_DATA names: as NAME.npz, as a folder NAME in the plain layout, as NAME/NAME.npz, or as NAME/train_*.npz with
    NAME/test.npz; imdb as imdb.json or imdb/imdb.json.gz.  npz files may code colour images as d_train, d_test
    (differences modulo 256), for a smaller file.  `digit_domains` and `digit_five` look up the sets they
    are made from; their x_test holds the domains in the order of `domain_names`, equally many examples of each.

    `run:FILE` is a data set that a run's own folder keeps, because it was given as a value (`save`); `data_dir` is that
    folder.

    Any other name is that of a registered function, or module:function of your own; `data_options` are its settings,
    or those of `unskew.data.tables` for tables, of `unskew.data.image_folders` or `unskew.data.labelled_images` for
    images, and `ArrayOptions` for npz files and folders of arrays.  `preprocess` says what becomes of the columns of a
    table.

    `targets` is the form of y_train and y_test: classes, or what a kind of task learns (`unskew.tasks.kind_of`).

    Raises:
        ConfigError: If an option is not one of the function's, there are options where the data have none, or a
            preprocessing where they are no table.
        DataError: If the name is unknown, no file is found (every place is listed), a file is corrupt (its size and
            SHA-256 are shown), its content does not pass `checked`, or as in `hub.fetch`.
    """
    source = str(source)
    kind, colon, rest = source.partition(":")
    assemble = partial(_assemble, targets=targets)
    if colon and kind in FILES and not rest:
        raise DataError(f"{source} names no path; write {kind}:PATH")
    if colon and kind in tables.ENDINGS:
        columns = schema.build(tables.TableOptions, data_options or {}, "task.data_options", owner=source)
        path = path_of(rest)
        return _placed(source, lambda: tables.read_table(kind, path, columns, preprocess, targets))
    if not colon and source not in DATA.names() and (table := tables.kind_at(source)) is not None:
        raise DataError(f"{source} is the name of no data set; did you mean the table, '{table}:{source}'?")
    tabular = source in NATURAL and NATURAL[source].preprocess is not None
    if preprocess is not None and not tabular and kind not in ("npz", "folder", "run"):
        raise ConfigError(f"task.preprocess is for columns of a table, and {source} has none; leave it out")
    if source not in _NAMED and kind not in SCHEMES:
        return _made(source, data_options or {})
    if colon and kind == "images":
        images, of_images = path_of(rest), dict(data_options or {})
        by_table = of_images.keys() & set(labelled_images.SETTINGS)
        if by_table and (by_table != {"patient"} or of_images["patient"] != "folder"):
            labelled_images.check_table_named(of_images)
            named = schema.build(labelled_images.LabelledImages, of_images, "task.data_options", owner=source)
            return labelled_images.read_labelled(images, named, targets)
        by_folder = schema.build(image_folders.ImageOptions, of_images, "task.data_options", owner=source)
        return image_folders.read_images(images, by_folder)
    chosen = _chosen(source, data_options)
    if isinstance(chosen, ArrayOptions):
        constants = constants_of(chosen.mean, chosen.std)
        assemble = partial(assemble, constants=constants, one_client=chosen.alone, rule=chosen.test)
        assemble = partial(assemble, patient_ids=chosen.patient_ids)
    if colon and kind == "hub":
        require_allowed(source)
        return _hub(hub.parse(source))
    if colon and kind == "run":
        dataset = load_saved(path_of(Path(data_dir or ".") / rest), targets)
        if chosen.classes not in (None, dataset.classes):
            raise ConfigError(
                f"task.data_options.classes are those that {source} has ({some(dataset.classes)}), got "
                f"{some(chosen.classes)}; leave them as they were"
            )
        return dataset
    if colon and kind in ("npz", "folder"):
        path = path_of(rest)
        if kind == "npz":
            if not path.is_file():
                raise DataError(f"{source}: there is no file {path.absolute()}")
            return assemble(
                path.stem, _npz(path, chosen.test), path, Key(0) / "npz" / "test", own=True, rules=preprocess
            )
        if not path.is_dir():
            raise DataError(f"{source}: there is no folder {path.absolute()}")
        return assemble(
            path.name, _folder(path, chosen.test), path, Key(0) / "folder" / "test", own=True, rules=preprocess
        )
    if source == "digits":
        return assemble("digits", _digits(), "scikit-learn", Key(0) / "digits" / "test", _DIGITS)
    if source == "heart":
        return _natural(source, Path(), preprocess, targets, chosen.test)
    folder = data_dir if data_dir is not None else os.environ.get("UNSKEW_DATA")
    if not folder:
        raise DataError(
            f"{source} is not bundled and no data folder is given; set --data-dir or UNSKEW_DATA to a folder that "
            f"holds {_wanted(_files(source))}, each with x_train, y_train, x_test, y_test{_or_hub(source)}"
        )
    # UNSKEW_DATA is this machine's own: sets of these names may be read there, and nothing else that others name.
    root = path_of(folder) if data_dir is not None else user_path(folder)
    if source in NATURAL:
        return _natural(source, root, preprocess, targets, chosen.test)
    return _domains(_NAMED[source], root) if source in DOMAINS else _named(_NAMED[source], root)


def _chosen(source: str, options: Mapping[str, Any] | None) -> Any:
    """The options of data that have some, as one of the classes of options; None for data that have none.

    Raises:
        ConfigError: If one is unknown.
    """
    kind, colon, _ = source.partition(":")
    of: Any = NaturalOptions if source in NATURAL else None
    if colon and kind in ("npz", "folder", "run"):
        of = RunOptions if kind == "run" else ArrayOptions
    if of is not None:
        return schema.build(of, options or {}, "task.data_options", owner=source)
    if options:
        raise ConfigError(f"task.data_options must be left out: {source} has no options, got {', '.join(options)}")
    return None


def _made(source: str, options: Mapping[str, Any]) -> Dataset:
    """The data set that a function of somebody else makes."""
    try:
        function = DATA.resolve(source)
    except ConfigError as error:
        raise DataError(tables.unreadable(source) or str(error)) from error
    dataset = schema.build(function, options, "task.data_options", owner=source)
    if not isinstance(dataset, Dataset):
        raise DataError(f"data set {source!r} must make a Dataset, got {type(dataset).__name__}")
    return dataset


def _natural(name: str, root: Path, rules: Preprocess | None, targets: Targets, test: float | None) -> Dataset:
    """A data set with its own clients, whose columns are brought to one scale unless something else is asked for."""
    of, file = NATURAL[name], _file_of(name, root)
    if of.targets is not targets:
        kind = {NUMBER: "regression", SURVIVAL: "survival", TOKENS: "next_token"}.get(of.targets, "classification")
        raise DataError(f"{name} has {of.targets.what}, and the task learns {targets.what}; set task.kind = {kind!r}")

    def build() -> Dataset:
        arrays = of.arrays(_whole_file, file)
        if test is not None and "x_test" in arrays:
            raise ConfigError(
                f"{name} comes with its test rows, so task.data_options.test would be ignored; leave it out"
            )
        return from_arrays(
            name,
            arrays,
            Key(0) / name / "test",
            test_fraction=test,
            rules=rules or of.preprocess,
            own_test=True,
            newcomers=of.newcomers,
            targets=targets,
        )

    return _placed(file, build)


def _file_of(name: str, root: Path) -> Path:
    files = files_of(name, root)
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        looked_for = ", ".join(str(place.absolute()) for place in files)
        raise DataError(f"{name} was not found; looked for {looked_for}; put it there ({NATURAL[name].origin})")
    return file


def arrays_of(
    source: str, data_dir: Path | str | None = None, options: Mapping[str, Any] | None = None
) -> tuple[str, Mapping[str, _Array], Cut | None] | None:
    """Name and arrays of data in the plain layout, gaps included, and how they were cut in time, if they were.

    Returns:
        None if the data are of another kind.

    Raises:
        ConfigError: If an option is unknown.
        DataError: If a file is missing or cannot be read, or as in `unskew.data.arrays.cut_in_time`.
    """
    kind, _, rest = source.partition(":")
    path = path_of(rest)
    if kind in ("npz", "folder"):
        rule = _chosen(source, options).test
        if not path.exists():
            raise DataError(f"{source}: there is no {path.absolute()}")
        return path.stem, *_cut(path.stem, _npz(path, rule) if kind == "npz" else _folder(path, rule), rule)
    folder = data_dir or os.environ.get("UNSKEW_DATA")
    if source not in NATURAL or (source != "heart" and not folder):
        return None
    _chosen(source, options)
    file = _file_of(source, user_path(folder or "."))
    return source, NATURAL[source].arrays(_whole_file, file), None


def _whole_file(path: Path) -> _Arrays:
    if not path.is_file():
        raise DataError(f"there is no file {path.absolute()}")
    with archive_of(path) as archive:
        return {key: array_of(archive, key) for key in archive.files}


def _digits() -> _Arrays:
    """Scikit-learn's, read from its file: to import `sklearn.datasets` takes seconds, as long as a small run."""
    spec = importlib.util.find_spec("sklearn")
    assert spec is not None
    assert spec.origin is not None
    rows = np.loadtxt(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", np.uint8, delimiter=",")
    return {"x_train": rows[:, :-1].reshape(-1, 8, 8), "y_train": rows[:, -1].astype(np.int64)}


def _named(source: Source, root: Path) -> Dataset:
    files = places(source.name, root)
    if source.name == "imdb":
        for file in files:
            if file.is_file():
                return _imdb(source, file)
        raise _missing(source.name, files)
    file_and_arrays = _found(source.name, root)
    if file_and_arrays is None:
        raise _missing(source.name, files)
    file, arrays = file_and_arrays
    return _assemble(source.name, arrays, file, Key(0) / source.name / "test", source.classes)


def _found(name: str, root: Path) -> tuple[Path, _Arrays] | None:
    """The first of a set's places that has a file, and the file's content."""
    readers: tuple[Callable[[Path], _Arrays], ...] = (
        _npz,
        lambda file: _folder(file.parent),
        _npz,
        lambda file: _parts(file.parent),
    )
    for file, read in zip(places(name, root), readers, strict=True):
        if file.is_file():
            return file, read(file)
    return None


def _domains(source: Source, root: Path) -> Dataset:
    needed = _files(source.name)
    lacking = [name for name in needed if not any(file.is_file() for file in places(name, root))]
    if lacking:
        looked_for = ", ".join(str(file.absolute()) for name in lacking for file in places(name, root))
        raise DataError(
            f"{source.name} needs {', '.join(needed)}, of which {', '.join(lacking)} cannot be found; looked for "
            f"{looked_for}; put x_train, y_train, x_test, y_test into {_wanted(lacking)}"
        )
    parts = {name: None if name == "printed" else _domain(name, root) for name in DOMAINS[source.name]}
    joined = _placed(root, lambda: from_arrays(source.name, join(parts, Key(0) / source.name), Key(0), source.classes))
    return replace(joined, rows=None)  # of several sets


def _files(name: str) -> list[str]:
    """The sets that a name reads from files: itself, or those it is made from."""
    return [domain for domain in DOMAINS.get(name, (name,)) if domain not in BUNDLED]


def _domain(name: str, root: Path) -> Part:
    if name == "digits":
        arrays = _digits()
        arrays["x_train"] = ((arrays["x_train"].astype(np.int64) * 255 + 8) // 16).astype(np.uint8)  # from 0..16
        return _part_of(name, arrays)
    file_and_arrays = _found(name, root)
    assert file_and_arrays is not None, name
    file, arrays = file_and_arrays
    return _placed(file, lambda: _part_of(name, arrays))


def _part_of(name: str, arrays: _Arrays) -> Part:
    content = with_test_part(name, content_of(name, arrays), Key(0) / name / "test")
    for key in ("x_train", "x_test"):
        if not is_images(content[key]):
            got = f"{content[key].dtype} of shape {content[key].shape}"
            raise DataError(f"{name}: {key} must be uint8 images (N, H, W) or (N, H, W, 3), got {got}")
    return Part(content["x_train"], content["y_train"], content["x_test"], content["y_test"])


def places(name: str, root: Path) -> tuple[Path, ...]:
    """The files `load` looks for in a data folder, in this order; the first that exists is read."""
    folder = root / name
    if name == "imdb":
        return (root / "imdb.json", root / "imdb.json.gz", folder / "imdb.json", folder / "imdb.json.gz")
    return (root / f"{name}.npz", folder / "x_train.npy", folder / f"{name}.npz", folder / "train_1.npz")


def _hub(reference: hub.Reference) -> Dataset:
    fetched, name = hub.fetch(reference), reference.name
    content, where = fetched.content, f"hub:{reference.repository}"
    if name in _NAMED and _NAMED[name].classes is not None:
        content.pop("classes", None)  # the same names as from a file
    classes = names_of(name, "classes", content) or (_NAMED[name].classes if name in _NAMED else None)
    if fetched.texts:
        return _texts(name, content, where, classes)
    return _assemble(name, content, where, Key(0) / name / "test", classes)


def _wanted(names: Iterable[str]) -> str:
    files = ((name, "imdb.json" if name == "imdb" else f"{name}.npz") for name in names)
    return ", ".join(f"{file} (from {_NAMED[name].origin})" for name, file in files)


def _missing(name: str, files: Iterable[Path]) -> DataError:
    return DataError(
        f"{name} was not found; looked for {', '.join(str(f.absolute()) for f in files)}; put x_train, y_train, "
        f"x_test, y_test into {_wanted([name])}{_or_hub(name)}"
    )


def _or_hub(name: str) -> str:
    return f", or ask for hub:{name}, which downloads it" if name in hub.KNOWN else ""


# Reading files


def _npz(path: Path, rule: Latest | None = None) -> _Arrays:
    """The arrays of the plain layout in one npz, and times; coded images are decoded, other keys stay as they are."""
    wanted = (*LAYOUT, *NAMES, *_key_of(rule))
    with archive_of(path) as archive:
        present = archive.files
        arrays = {k: array_of(archive, k) for k in wanted if k in archive.files}
        for part in ("train", "test"):
            if f"x_{part}" not in arrays and f"d_{part}" in archive.files:
                arrays[f"x_{part}"] = _decoded(archive[f"d_{part}"])
    own = _key_of(rule)
    _check_keys(path, [key for key in present if key not in own], (*LAYOUT, *NAMES, "d_train", "d_test"))
    if missing := [key for key in ("x_train", "y_train") if key not in arrays]:
        raise DataError(
            f"{path} must have the keys x_train and y_train, and lacks {' and '.join(missing)} (it has: "
            f"{', '.join(present) or 'none'}); save it with np.savez({path.name!r}, x_train=x, y_train=y)"
        )
    _check_times(path, arrays, rule, present)
    return arrays


def _key_of(rule: Latest | None) -> tuple[str, ...]:
    """The key of the array of times that a rule names, if it does."""
    return () if rule is None or rule.column is None else (rule.column,)


def _check_times(path: Path, arrays: _Arrays, rule: Latest | None, present: Iterable[str]) -> None:
    for key in _key_of(rule):
        if key not in arrays:
            raise DataError(
                f"test.latest: {path} has no array {key!r} of when each example was{did_you_mean(key, present)} (it "
                f"has: {', '.join(present)})"
            )


MISSPELT = 0.82
"""Likeness from which on an unknown key is a misspelt one; recipient_train is not client_train."""


def _check_keys(path: Path, found: Iterable[str], known: Sequence[str], ending: str = "") -> None:
    """Refuse a key that is nearly one of the layout's, whose array would be left out; others are somebody's own.

    Another letter, as in CIFAR-100's c_train of coarse classes, is another array and not a misspelt one.

    Raises:
        DataError: Naming the first.
    """
    for key in found:
        if key in known or re.fullmatch("[a-wz]_(train|test)", key):
            continue
        if meant := did_you_mean(key.lower(), known, MISSPELT):
            raise DataError(f"{path} has an unknown key {key}{ending}{meant} rename it, or leave it out")


def _parts(folder: Path) -> _Arrays:
    """Coded training batches train_1.npz, train_2.npz, ... and test.npz, each with images d and labels y."""
    train = sorted(folder.glob("train_*.npz"), key=lambda f: (len(f.name), f.name))
    x, y = zip(*(_part(file) for file in train), strict=True)
    try:
        joined = np.concatenate(x), np.concatenate(y)
    except ValueError as error:
        raise DataError(f"{folder}: the training batches do not fit together: {error}") from error
    x_test, y_test = _part(folder / "test.npz")
    return {"x_train": joined[0], "y_train": joined[1], "x_test": x_test, "y_test": y_test}


def _part(path: Path) -> tuple[_Array, _Array]:
    if not path.is_file():
        raise DataError(f"{path.absolute()} is missing beside the training batches")
    with archive_of(path) as archive:
        return _decoded(archive["d"]), array_of(archive, "y")


def _folder(folder: Path, rule: Latest | None = None) -> _Arrays:
    """The plain layout with one npy file per key, and times; names are text files, one name a line."""
    arrays: _Arrays = {}
    own = _key_of(rule)
    wanted = (*LAYOUT, *own)
    present = sorted(file.stem for file in folder.glob("*.npy"))
    files = [file for file in folder.glob("*.npy") if file.is_file()]
    machine.require_room(sum(kept_bytes(file.open("rb"), file.stat().st_size) for file in files), folder)
    _check_keys(folder, [key for key in present if key not in own], LAYOUT, ".npy")
    _check_keys(folder, sorted(file.stem for file in folder.glob("*.txt")), NAMES, ".txt")
    for key in wanted:
        path = folder / f"{key}.npy"
        if key not in present or not path.is_file():
            if key in ("x_train", "y_train"):
                raise DataError(f"{path.absolute()} is missing; {folder} must hold x_train.npy and y_train.npy")
            continue
        try:
            with path.open("rb") as file:
                array = np.load(file, allow_pickle=False)
            if not isinstance(array, np.ndarray):
                raise ValueError("an archive, not one array")
            check_text(key, array)
        except UNREADABLE as error:
            raise corrupt(path, error) from error
        arrays[key] = array
    for key in NAMES:
        path = folder / f"{key}.txt"
        if path.is_file():
            try:
                lines = path.read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise corrupt(path, error) from error
            arrays[key] = np.array([line.strip() for line in lines if line.strip()], np.str_)
    _check_times(folder, arrays, rule, present)
    return arrays


def _decoded(d: _Array) -> _Array:
    """Coded (N, 3, H, W) to RGB (N, H, W, 3).

    The code: red and blue minus green, then differences down the columns and along the rows, all modulo 256.
    """
    if d.dtype != np.uint8 or d.ndim != 4 or d.shape[1] != 3:
        raise ValueError(f"coded images must be uint8 (N, 3, H, W), got {d.dtype} of shape {d.shape}")
    x = d.cumsum(2, dtype=np.uint8).cumsum(3, dtype=np.uint8)
    x[:, 0] += x[:, 1]
    x[:, 2] += x[:, 1]
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1))


def _imdb(source: Source, path: Path) -> Dataset:
    try:
        raw = path.read_bytes()
        content = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
        if not isinstance(content, dict):
            raise ValueError("a JSON object with x_train, y_train, x_test, y_test is needed")
    except UNREADABLE as error:
        raise corrupt(path, error) from error
    for key, kind in (("x_train", str), ("y_train", int), ("x_test", str), ("y_test", int)):
        values = content.get(key)
        if not isinstance(values, list) or not all(type(v) is kind for v in values):
            raise corrupt(path, f"{key} must be a list of {'texts' if kind is str else 'integers'}")
    return _texts(source.name, content, path, source.classes)


def _texts(name: str, content: dict[str, Any], where: Path | str, classes: tuple[str, ...] | None) -> Dataset:
    """Texts under x_train and x_test, labels under y_train and y_test."""
    x, y = content["x_train"], [int(v) for v in content["y_train"]]
    x_test, y_test = content["x_test"], [int(v) for v in content["y_test"]]
    ids = vocabulary(x)
    return _placed(
        where,
        lambda: checked(
            name,
            tokens(x, ids),
            torch.tensor(y, dtype=torch.int64),
            tokens(x_test, ids),
            torch.tensor(y_test, dtype=torch.int64),
            classes=classes,
            sha256=hashlib.sha256(json.dumps([x, y, x_test, y_test]).encode()).hexdigest(),
            inputs=Inputs("texts", vocabulary=tuple(ids)),
        ),
    )


# Arrays to a data set


def _assemble(
    name: str,
    arrays: _Arrays,
    where: Path | str,
    test_key: Key,
    classes: tuple[str, ...] | None = None,
    own: bool = False,
    rules: Preprocess | None = None,
    targets: Targets = CLASS,
    constants: Sequence[tuple[float, float]] | None = None,
    one_client: bool = False,
    rule: Latest | None = None,
    patient_ids: PatientIds | None = "network",
) -> Dataset:
    aside = rules is not None  # before any number is taken from the data
    names = classes if targets.classes else None

    def build() -> Dataset:
        if rule is not None:
            check_gap(rule, one_client or "client_train" in arrays)
        given, parts = _cut(name, arrays, rule)
        dataset = from_arrays(
            name,
            given,
            test_key,
            names,
            own=own,
            rules=rules,
            own_test=aside,
            targets=targets,
            constants=constants,
            one_client=one_client,
            patient_ids=patient_ids,
            rows=None if parts is None else parts.rows,
            when=None if parts is None else parts.ranks,
        )
        dataset = replace(dataset, ordered=targets.classes and names_of(name, "classes", arrays) is not None)
        return noted(dataset, one_client, () if parts is None else parts.doubts) if own else dataset

    return _placed(where, build)


def _cut(name: str, arrays: _Arrays, rule: Latest | None) -> tuple[_Arrays, Cut | None]:
    """The arrays, cut in time if a rule says how, and the cut; the array of times is not among them."""
    if rule is None:
        return arrays, None
    times = rule.latest if rule.column is None else arrays[rule.column]
    layout = {key: array for key, array in arrays.items() if key in (*LAYOUT, *NAMES)}
    return cut_in_time(name, layout, rule, times)


def _placed(where: Path | str, build: Callable[[], _T]) -> _T:
    try:
        return build()
    except (DataError, ConfigError) as error:
        raise type(error)(f"{error} (in {where})") from error
