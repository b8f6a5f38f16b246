"""Data sets by name: scikit-learn's digits, files, and the usual names looked up in a folder.

Nothing is unpickled, and nothing is downloaded unless a source begins with `hub:` (`unskew.data.hub`).  uint8 images
are brought to [0, 1] and standardised per channel with mean and standard deviation of the *training* part; the test
part is never looked at.  Floating arrays stay as they are.

`digit_domains` and `digit_five` join several sources into one set with a domain for each (`unskew.data.domains`).
Their images are standardised with the mean and deviation of all domains' training parts together: constants of each
domain's own would remove part of the difference between domains.
"""

import gzip
import importlib.util
import json
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from unskew import schema
from unskew.data import arrays, build, hub, image_folders, tables
from unskew.data.archives import UNREADABLE, archive_of, array_of, corrupt
from unskew.data.arrays import ArrayOptions, Arrays
from unskew.data.dataset import Dataset
from unskew.data.domains import BUNDLED, DOMAINS, Part, join
from unskew.data.inputs import constants_of
from unskew.data.natural import NATURAL, NaturalOptions, files_of
from unskew.data.places import path_of, require_allowed
from unskew.data.preprocess import Preprocess
from unskew.data.saved import load_saved
from unskew.data.table import TEST, TRAIN, DataTable
from unskew.errors import ConfigError, DataError
from unskew.files import user_path
from unskew.keys import Key
from unskew.references import makes
from unskew.registry import Registry
from unskew.tasks.targets import CLASS, NUMBER, SURVIVAL, TOKENS, Targets
from unskew.words import some

_T = TypeVar("_T")


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
    Source(
        "csv:PATH", "your own table, extra [tables]", "any", "a column of clients, or a folder with a file for each"
    ),
    Source("parquet:PATH", "the same as Parquet", "any", "a column of clients, or a folder with a file for each"),
    Source("images:PATH", "your own images", "images", "PATH/SITE/CLASS/*.png"),
    Source("hub:OWNER/NAME", "downloaded, extra [hub]; also hub:mnist, ...", "images or texts", "huggingface.co"),
)
"""Data sets that `load` knows, the offline default first."""

FILES = ("npz", "csv", "parquet", "images")
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
    try:
        if not zipfile.is_zipfile(path):
            return False
        with zipfile.ZipFile(path) as archive:
            return "client_train.npy" in archive.namelist()
    except UNREADABLE as error:
        raise corrupt(path, error) from error


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
    UNSKEW_DATA names: as NAME.npz, as NAME/NAME.npz, or as NAME/train_*.npz with
    NAME/test.npz; imdb as imdb.json or imdb/imdb.json.gz.  `digit_domains` and `digit_five` look up the sets they
    are made from; their x_test holds the domains in the order of `domain_names`, equally many examples of each.

    `run:FILE` is a data set that a run's own folder keeps, because it was given as a value (`save`); `data_dir` is that
    folder.

    Any other name is that of a registered function, or module:function of your own; `data_options` are its settings,
    or those of `unskew.data.tables`, `unskew.data.image_folders` or `ArrayOptions`.  `preprocess` says what becomes of
    the columns of a table.

    `targets` is the form of y_train and y_test: classes, or what a kind of task learns (`unskew.tasks.kind_of`).

    Raises:
        ConfigError: If an option is not one of the function's, there are options where the data have none, or a
            preprocessing where they are no table.
        DataError: If the name is unknown, no file is found (every place is listed), a file is corrupt (its size and
            SHA-256 are shown), something in it cannot be meant, or as in `hub.fetch`.
    """
    source = str(source)
    kind, colon, rest = source.partition(":")
    options = data_options or {}
    if not colon and source not in DATA.names() and (table_kind := tables.kind_at(source)) is not None:
        raise DataError(f"{source} is the name of no data set; did you mean the table, '{table_kind}:{source}'?")
    tabular = source in NATURAL and NATURAL[source].preprocess is not None
    if preprocess is not None and not tabular and kind not in (*tables.ENDINGS, "npz", "run"):
        raise ConfigError(f"task.preprocess is for columns of a table, and {source} has none; leave it out")
    if source not in _NAMED and kind not in SCHEMES:
        return _made(source, options)
    if colon and kind in FILES:
        return _placed(source, lambda: _of_files(source, options, preprocess, targets))
    if colon and kind == "run":
        own = schema.build(RunOptions, options, "task.data_options", owner=source)
        dataset = load_saved(path_of(Path(data_dir or ".") / rest), targets)
        if own.classes not in (None, dataset.classes):
            raise ConfigError(
                f"task.data_options.classes are those that {source} has ({some(dataset.classes)}), got "
                f"{some(own.classes)}; leave them as they were"
            )
        return dataset
    if source in NATURAL:
        of_natural = schema.build(NaturalOptions, options, "task.data_options", owner=source)
        return _natural(source, _root(source, data_dir), preprocess, targets, of_natural.test)
    if options:
        raise ConfigError(f"task.data_options must be left out: {source} has no options, got {', '.join(options)}")
    if colon:
        require_allowed(source)
        return _hub(hub.parse(source), targets)
    if source == "digits":
        return _built("digits", _digits(), "scikit-learn", _DIGITS, targets)
    root = _root(source, data_dir)
    if source in DOMAINS:
        return _domains(_NAMED[source], root)
    file, content = _read(source, root)
    return _built(source, content, file, _NAMED[source].classes, targets)


def _of_files(source: str, options: Mapping[str, Any], rules: Preprocess | None, targets: Targets) -> Dataset:
    kind, chosen, path = source.partition(":")[0], options_of(source, options), path_of(source.partition(":")[2])
    if kind in tables.ENDINGS:
        return tables.read_table(kind, path, chosen, rules, targets)
    if kind == "images":
        return image_folders.read_images(path, chosen, targets)
    rows = arrays.read(path, chosen, rules, targets)
    return build.dataset(rows, Key(0) / kind / "test", constants=constants_of(chosen.mean, chosen.std))


def table(
    source: str,
    data_dir: Path | str | None = None,
    options: Mapping[str, Any] | None = None,
    targets: Targets = CLASS,
    rules: Preprocess | None = None,
) -> DataTable | None:
    """The table of data that are a user's own files, or that come with their clients; None of others.

    Raises:
        ConfigError: If an option is unknown.
        DataError: If a file is missing or cannot be read.
    """
    kind, colon, rest = source.partition(":")
    if colon and kind in FILES:
        chosen, path = options_of(source, options or {}), path_of(rest)
        if kind in tables.ENDINGS:
            return tables.table(kind, path, chosen, rules, targets)
        rows = (
            image_folders.table(path, chosen, targets)
            if kind == "images"
            else arrays.read(path, chosen, targets=targets)
        )
        return replace(rows, rules=rules)
    if source not in NATURAL:
        return None
    file = _file_of(source, _root(source, data_dir))
    return arrays.table(source, NATURAL[source].arrays(_whole_file, file), targets=targets, rules=rules)


def options_of(source: str, options: Mapping[str, Any]) -> Any:
    """The settings of files, as the class of their kind.

    Raises:
        ConfigError: If one is unknown.
        DataError: If there is no path.
    """
    kind, _, rest = source.partition(":")
    if not rest:
        raise DataError(f"{source} names no path; write {kind}:PATH")
    of: Any = {"images": image_folders.ImageOptions, "npz": ArrayOptions}
    return schema.build(of.get(kind, tables.TableOptions), options, "task.data_options", owner=source)


def _root(source: str, data_dir: Path | str | None) -> Path:
    """The folder of data sets by name."""
    folder = data_dir if data_dir is not None else os.environ.get("UNSKEW_DATA")
    if source == "heart":  # which comes with unskew
        return Path()
    if not folder:
        raise _missing(source, (), _files(source))
    # UNSKEW_DATA is this machine's own: sets of these names may be read there, and nothing else that others name.
    return path_of(folder) if data_dir is not None else user_path(folder)


def _missing(source: str, looked_for: Sequence[Path], names: Sequence[str]) -> DataError:
    state = "is not bundled and no data folder is given; set --data-dir or UNSKEW_DATA to one"
    if looked_for:
        state = f"was not found; looked for {', '.join(str(file.absolute()) for file in looked_for)}"
    wanted = ", ".join(f"{places(name, Path())[0]} (from {_NAMED[name].origin})" for name in names)
    fetched = f", or ask for hub:{source}, which downloads it" if source in hub.KNOWN else ""
    return DataError(f"{source} {state}; put there {wanted}{fetched}")


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


def _built(
    name: str, content: Mapping[str, Any], where: Path | str, classes: tuple[str, ...] | None, targets: Targets = CLASS
) -> Dataset:
    """The data set of arrays in the plain layout that have a name."""
    known = classes if targets.classes else None
    return _placed(
        where,
        lambda: build.dataset(arrays.table(name, content, known, targets=targets), Key(0) / name / "test", own=False),
    )


def _natural(name: str, root: Path, rules: Preprocess | None, targets: Targets, test: float | None) -> Dataset:
    """A data set with its own clients, whose columns are brought to one scale unless something else is asked for."""
    of, file = NATURAL[name], _file_of(name, root)
    if of.targets is not targets:
        kind = {NUMBER: "regression", SURVIVAL: "survival", TOKENS: "next_token"}.get(of.targets, "classification")
        raise DataError(f"{name} has {of.targets.what}, and the task learns {targets.what}; set task.kind = {kind!r}")
    rows = arrays.table(
        name,
        of.arrays(_whole_file, file),
        rules=rules or of.preprocess,
        targets=targets,
        newcomers=of.newcomers,
    )
    if test is not None and rows.part is not None:
        raise ConfigError(f"{name} comes with its test rows, so task.data_options.test would be ignored; leave it out")
    fraction = build.TEST_FRACTION if test is None else test
    key = Key(0) / name / "test"
    return _placed(file, lambda: build.dataset(rows, key, fraction=fraction, own_test=True, own=False))


def _file_of(name: str, root: Path) -> Path:
    """The first of a set's places that has a file."""
    file = next((file for file in places(name, root) if file.is_file()), None)
    if file is None:
        raise _missing(name, places(name, root), [name])
    return file


def _whole_file(path: Path) -> Arrays:
    if not path.is_file():
        raise DataError(f"there is no file {path.absolute()}")
    with archive_of(path) as archive:
        return {key: array_of(archive, key) for key in archive.files}


def _digits() -> Arrays:
    """Scikit-learn's, read from its file: to import `sklearn.datasets` takes seconds, as long as a small run."""
    spec = importlib.util.find_spec("sklearn")
    assert spec is not None
    assert spec.origin is not None
    rows = np.loadtxt(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", np.uint8, delimiter=",")
    return {"x_train": rows[:, :-1].reshape(-1, 8, 8), "y_train": rows[:, -1].astype(np.int64)}


def _read(name: str, root: Path) -> tuple[Path, Arrays]:
    """The file of a set, and what is in it."""
    file = _file_of(name, root)
    if name == "imdb":
        return file, _imdb(file)
    return file, arrays.batches(file.parent) if file.name == "train_1.npz" else arrays.npz(file)


def _domains(source: Source, root: Path) -> Dataset:
    parts = {name: None if name == "printed" else _domain(name, root) for name in DOMAINS[source.name]}
    joined = _placed(root, lambda: join(parts, Key(0) / source.name))
    return replace(_built(source.name, joined, root, source.classes), rows=None)


def _files(name: str) -> list[str]:
    """The sets that a name reads from files: itself, or those it is made from."""
    return [domain for domain in DOMAINS.get(name, (name,)) if domain not in BUNDLED]


def _domain(name: str, root: Path) -> Part:
    if name == "digits":
        content = _digits()
        content["x_train"] = ((content["x_train"].astype(np.int64) * 255 + 8) // 16).astype(np.uint8)  # from 0..16
    else:
        _, content = _read(name, root)
    rows = _placed(root, lambda: arrays.table(name, content))
    y = rows.y.astype(np.int64)
    rows = build.with_test_part(rows, y, Key(0) / name / "test", build.TEST_FRACTION)
    x = rows.inputs
    if x is None or x.dtype != np.uint8 or not (x.ndim == 3 or (x.ndim == 4 and x.shape[3] in (1, 3))):
        raise DataError(f"{name} must be uint8 images (N, H, W) or (N, H, W, 3)")
    train, test = (np.flatnonzero(rows.part == part) for part in (TRAIN, TEST))
    return x[train], y[train], x[test], y[test]


def places(name: str, root: Path) -> tuple[Path, ...]:
    """The files `load` looks for in a data folder, in this order; the first that exists is read."""
    folder = root / name
    if name in NATURAL:
        return files_of(name, root)
    if name == "imdb":
        return (root / "imdb.json", root / "imdb.json.gz", folder / "imdb.json", folder / "imdb.json.gz")
    return (root / f"{name}.npz", folder / f"{name}.npz", folder / "train_1.npz")


def _hub(reference: hub.Reference, targets: Targets) -> Dataset:
    content, name = hub.fetch(reference), reference.name
    known = _NAMED[name].classes if name in _NAMED else None
    if known is not None:
        content.pop("classes", None)  # the same names as from a file
    return _built(name, content, f"hub:{reference.repository}", known, targets)


def _imdb(path: Path) -> Arrays:
    try:
        raw = path.read_bytes()
        content = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
        if not isinstance(content, dict):
            raise ValueError("a JSON object with x_train, y_train, x_test, y_test is needed")
        for key, kind in (("x_train", str), ("y_train", int), ("x_test", str), ("y_test", int)):
            values = content.get(key)
            if not isinstance(values, list) or not all(type(v) is kind for v in values):
                raise ValueError(f"{key} must be a list of {'texts' if kind is str else 'integers'}")
    except UNREADABLE as error:
        raise corrupt(path, error) from error
    texts = {key: np.array([*content[key], None], object)[:-1] for key in ("x_train", "x_test")}
    return {**texts, **{key: np.array(content[key], np.int64) for key in ("y_train", "y_test")}}


def _placed(where: Path | str, make: Callable[[], _T]) -> _T:
    try:
        return make()
    except (DataError, ConfigError) as error:
        raise type(error)(f"{error} (in {where})") from error
