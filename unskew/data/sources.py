"""Loads data by name, from files, from the hub, or from a function.

Nothing is downloaded unless a source begins with `hub:`.  uint8 images are scaled to [0, 1] and standardised per
channel with mean and standard deviation of the *training* part.  Floating arrays are unchanged.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Interval

from unskew import schema
from unskew.data import arrays, build, hub, image_folders, tables
from unskew.data.archives import load_saved
from unskew.data.arrays import ArrayOptions
from unskew.data.dataset import Dataset
from unskew.data.named import NAMED, arrays_of
from unskew.data.places import path_of, require_allowed
from unskew.data.preprocess import Preprocess
from unskew.data.table import UNKNOWN, DataTable
from unskew.errors import ConfigError, DataError
from unskew.references import makes
from unskew.registry import Registry
from unskew.tasks.targets import CLASS, NUMBER, SURVIVAL, TOKENS, Targets
from unskew.words import some


@dataclass(frozen=True)
class RunOptions:
    """Options of data in a run's folder.

    Attributes:
        classes: Names of all classes in their declared order.
    """

    classes: tuple[str, ...] | None = None


@dataclass(frozen=True)
class NamedOptions:
    """Options of a data set by name that has no test rows.

    Attributes:
        test: Share of each client's rows, or of each class, that is set aside as test rows; by default a fifth.
    """

    test: Annotated[float, Interval(gt=0.0, lt=1.0)] | None = None


OPTIONS: dict[str, Any] = {
    "npz": ArrayOptions,
    "csv": tables.TableOptions,
    "parquet": tables.TableOptions,
    "images": image_folders.ImageOptions,
    "hub": hub.HubOptions,
    "run": RunOptions,
}
"""The settings of data by the beginning of their name, up to a colon; any other beginning is a module of the user's."""

FILES = ("npz", "csv", "parquet", "images")
"""Beginnings of names that are followed by a path."""

_ABOUT = {
    **{name: f"{of.what}; {of.origin}" for name, of in NAMED.items()},
    "npz:PATH": "your own arrays in one file; any; x_train, y_train, x_test, y_test",
    "csv:PATH": "your own table; any; a column of clients, or a folder with a file for each",
    "parquet:PATH": "the same as Parquet; any; a column of clients, or a folder with a file for each",
    "images:PATH": "your own images; images; PATH/SITE/CLASS/*.png",
    "hub:OWNER/NAME": "downloaded, extra [hub]; also hub:mnist, ...; images or texts; huggingface.co",
}

DATA = Registry(
    "data set",
    "unskew.data",
    dict.fromkeys(_ABOUT, f"{__name__}:load"),
    "a function annotated to return a Dataset, as in def mine(noise: float = 0.1) -> Dataset",
    partial(makes, lambda kind: kind is Dataset),
    about=_ABOUT,
    schemes=tuple(OPTIONS),
)


def is_data(source: str) -> bool:
    """True for a name of data, or the prefix and path of files."""
    kind, colon, _ = source.partition(":")
    return source in NAMED or bool(colon and kind in OPTIONS)


def gives_bytes(source: str) -> bool:
    """True if images of this source are known to be bytes without reading them."""
    kind = source.partition(":")[0]
    return kind in ("images", "hub", "digits") or (kind in NAMED and bool(NAMED[kind].parts))


def load(
    source: str | Path,
    data_dir: Path | str | None = None,
    data_options: Mapping[str, Any] | None = None,
    preprocess: Preprocess | None = None,
    targets: Targets = CLASS,
) -> Dataset:
    """The data set called `source`.

    Args:
        source: A name; `npz:PATH` and the like; `hub:...`, to download it; `run:FILE` in the folder of a run; or
            module:function of your own.
        data_dir: Folder of sets by name, by default UNSKEW_DATA of the environment; or a run's folder.
        data_options: Settings of the function, or those of `OPTIONS`.
        preprocess: Preprocessing of the columns of a table.
        targets: The form of y_train and y_test: classes, or what a kind of task learns (`unskew.tasks.kind_of`).

    Raises:
        ConfigError: If an option is unknown, or there is preprocessing for data that are no table.
        DataError: If the name is unknown, a file is missing or broken, a check refuses the data, or as in `hub.fetch`.
    """
    source, options = str(source), data_options or {}
    kind, colon, rest = source.partition(":")
    if not colon and source not in DATA.names() and (table_kind := tables.kind_at(source)) is not None:
        raise DataError(f"{source} is the name of no data set; did you mean the table, '{table_kind}:{source}'?")
    tabular = kind in (*tables.ENDINGS, "npz", "run") or (source in NAMED and NAMED[source].preprocess is not None)
    if preprocess is not None and not tabular:
        raise ConfigError(f"task.preprocess is for columns of a table, and {source} has none; leave it out")
    if source not in NAMED and kind not in OPTIONS:
        return _made(source, options)
    if kind == "run" and colon:
        own = schema.build(RunOptions, options, "task.data_options", owner=source)
        dataset = load_saved(path_of(Path(data_dir or ".") / rest), targets)
        if own.classes not in (None, dataset.classes):
            raise ConfigError(f"task.data_options.classes are {some(dataset.classes)} in {source}; leave them so")
        return dataset
    try:
        rows = table(source, data_dir, options, targets, preprocess)
        assert rows is not None
        dataset = build.dataset(rows)
    except (DataError, ConfigError) as error:
        error.args = (f"{error} (in {source})",)
        raise
    return dataset


def table(
    source: str,
    data_dir: Path | str | None = None,
    options: Mapping[str, Any] | None = None,
    targets: Targets = CLASS,
    rules: Preprocess | None = None,
) -> DataTable | None:
    """The table of data by name; None for a function's, and for data in a run's folder.

    Raises:
        ConfigError: If an option is unknown.
        DataError: If a file is missing or cannot be read.
    """
    kind, colon, rest = source.partition(":")
    if source not in NAMED and (kind not in OPTIONS or kind == "run" or not colon):
        return None
    of: Any = OPTIONS[kind] if colon else NamedOptions
    if not rest and kind in FILES:
        raise DataError(f"{source} names no path; write {kind}:PATH")
    chosen = schema.build(of, options or {}, "task.data_options", owner=source)
    if kind in tables.ENDINGS:
        return tables.table(kind, path_of(rest), chosen, rules, targets)
    if kind == "images":
        return replace(image_folders.table(path_of(rest), chosen, targets), rules=rules)
    if kind == "npz":
        return arrays.read(path_of(rest), chosen, rules=rules, kind=targets)
    if kind == "hub":
        require_allowed(source)
        content, known = hub.fetch(rest, chosen), NAMED.get(rest)
        classes = known.classes if known is not None and targets.classes else None
        if classes is not None:
            content.pop("classes", None)  # the same names as from a file
        return arrays.table(rest, content, classes, kind=targets, own=False)
    return _named(source, arrays_of(source, data_dir), rules, targets, chosen)


def _named(name: str, content: arrays.Arrays, rules: Preprocess | None, targets: Targets, options: Any) -> DataTable:
    """The table of a set by name, whose columns are brought to one scale unless something else is asked for."""
    of = NAMED[name]
    if of.clients and targets not in (of.targets, UNKNOWN):
        kind = {NUMBER: "regression", SURVIVAL: "survival", TOKENS: "next_token"}.get(of.targets, "classification")
        raise DataError(f"{name} has {of.targets.what}, and the task learns {targets.what}; set task.kind = {kind!r}")
    classes = of.classes if targets.classes or targets is UNKNOWN else None
    rules = rules or (None if targets is UNKNOWN else of.preprocess)
    rows = arrays.table(name, content, classes, rules=rules, kind=targets, unseen=of.unseen)
    share = getattr(options, "test", None)
    if share is not None and rows.part is not None:
        raise ConfigError(f"{name} comes with its test rows, so task.data_options.test would be ignored; leave it out")
    numbers = None if of.parts else rows.numbers  # those of a joined set are nobody's
    return replace(rows, share=share, numbers=numbers, apart=of.clients, own=False)


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
