"""Reads images that a table names: a row for each, with its file and label and, where known, its site and patient.

Below `images:PATH` lies the table, and the images anywhere beside it or deeper.  A row names its image by the path from
PATH, or by the file's name, with or without its ending, where only one file has it.
"""

import re
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge

from unskew.data import image_folders, own, tables
from unskew.data.arrays import all_for_testing
from unskew.data.columns import composed_names
from unskew.data.dataset import Dataset
from unskew.data.inputs import constants_of, value_of
from unskew.data.latest import Latest, moments
from unskew.data.lengths import check_words
from unskew.data.own.frames import check_column, owners_of
from unskew.data.own.given import GivenExamples
from unskew.data.own.parts import check_parts
from unskew.data.own.values import truths
from unskew.data.patients import PatientIds, names_of_patients, unnamed_patients
from unskew.data.places import place, rows_at
from unskew.errors import ConfigError, DataError, did_you_mean, shown, warn
from unskew.tasks.targets import CLASS, Targets
from unskew.words import composed, counted, some

Words = list[str | None]
"""A column as it is written, None where there is no value."""


@dataclass(frozen=True)
class LabelledImages:
    """The table that names the images, and its columns; others are not read.

    Attributes:
        labels: The table, CSV or Parquet, by its path from the folder.
        image: Column of the images.
        target: Column of what is learned; several columns where it has several, as 0 or 1 for each label.
        client: Column of the clients; by default the data name none, and a split divides them.
        patient: Column of who is on an image, by default not known: nobody is in training and in testing then.
        patient_ids: Whose the names in it are, as in a table.
        test: Column that says which images are for testing, or that the latest are, as in a table; by default a fifth
            of each client's is set aside, or the images of a fifth of each client's patients.
        size: Height and width to which they are resized, pixels; by default all must have one size.
        classes: Names of all classes, in order, where a client may lack some.
        alone: The folder is one client's own: a column `client` is not read.
        mean, std: Of each channel, by which pixels in [0, 1] are standardised; by default those of the training images.
        channels: 1 makes all images grey, 3 gives all three channels; by default grey ones stay grey where all are.
        testing: All images are for testing, unless `test` says which are.
    """

    labels: str
    image: str
    target: str | tuple[str, ...]
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
        """Write names of columns in one form of Unicode, as tables have them."""
        for setting in ("image", "target", "client", "patient", "test"):
            object.__setattr__(self, setting, composed_names(getattr(self, setting)))


SETTINGS = ("labels", "image", "target", "client", "patient", "test")
"""Settings that images in folders do not have: where one is given, a table names the images."""


def check_table_named(options: Mapping[str, Any]) -> None:
    """Refuse columns of a table that is not named, and a share for testing, which images do not have.

    Raises:
        ConfigError: If there are any.
    """
    if isinstance(options.get("test"), float | int):
        raise ConfigError(
            "task.data_options.test of images is the column of their table (labels) that says which are for testing, "
            f"got {options['test']!r}; without it a fifth of each site's images is set aside, or of its patients"
        )
    columns = [name for name in SETTINGS[1:] if name in options]
    if columns and "labels" not in options:
        raise ConfigError(
            f"task.data_options: {', '.join(columns)} name{'s' * (len(columns) == 1)} what is in the table of the "
            "images; name the table, too, as in labels = 'labels.csv', a file in their folder"
        )


def read_labelled(root: Path, options: LabelledImages, targets: Targets = CLASS) -> Dataset:
    """The data set of the images that the table names.

    Images that no row names are counted in a warning.

    Raises:
        DataError: If there is no such folder, table or column, a row names no image or one that another has named, an
            image cannot be read, sizes differ, a link leads out of the folder, or as in `unskew.data.own.dataset`.
    """
    if not root.is_dir():
        raise DataError(f"there is no folder {root.absolute()}")
    constants = constants_of(options.mean, options.std)
    table, kind = _table(root, options.labels)
    columns = tables.TableOptions(options.target)
    words = tables.words_of(kind, table, columns)
    several = (options.target,) if isinstance(options.target, str) else options.target
    rule, apart = (None, options.test) if not isinstance(options.test, Latest) else (options.test, options.test.column)
    single = (
        ("image", options.image),
        ("client", options.client),
        ("patient", options.patient),
        ("test", apart),
    )
    for setting, name in (*(("target", name) for name in several), *single):
        if name is not None and not (options.alone and setting == "client"):
            check_column(words, name, f"task.data_options.{setting}")
    images, _ = image_folders.files_below(root)
    named = None if options.alone else options.client
    patient = None if options.testing and options.test is None else options.patient  # nobody is kept apart from anybody
    with rows_at(tables.lines_of(kind, table, columns)):
        for name in filter(None, (options.image, *several, named, options.patient, apart)):
            check_words(words[name], f"column {name!r} of {table.name}")
        files = _files(root, images, words[options.image], f"column {options.image!r} of {table.name}")
        grey, doubts = image_folders.look_at(root, files, options.size, options.channels)
        clients, names = (None, ()) if named is None else owners_of(_numbers(words[named]), named)
        labels = [_target(words[name], targets) for name in several]
        rows = GivenExamples(
            root.name,
            image_folders.pixels(files, options.size, grey),
            labels[0] if len(labels) == 1 else np.column_stack(labels),
            clients,
            names,
            None if patient is None else names_of_patients(words[patient], f"column {patient!r}"),
            columns=(options.image,),
            files=[shown(str(file.relative_to(root))) for file in files],
            patient_ids=options.patient_ids,
        )
        if rule is not None and apart is not None:
            rows = replace(rows, when=moments(words[apart], rule.where))
        elif apart is not None:
            tested = truths(words[apart], apart)
            check_parts(rows, tested, patient)
            rows = replace(rows.take(np.flatnonzero(~tested)), test=rows.take(np.flatnonzero(tested)))
        doubts += _unnamed(root, set(images) - set(files), len(images), table)
        if options.patient is None and not options.testing:
            taken = [apart, *(getattr(options, setting) for setting in SETTINGS)]
            doubts += unnamed_patients({name: words[name] for name in words if name not in taken}, inputs=False)
        data = own.dataset(
            rows,
            target=options.target,
            client=named,
            patient=patient,
            test=rule,
            own_test=True,
            classes=options.classes,
            targets=targets,
            one_client=options.alone,
            constants=constants,
            testing=options.testing and options.test is None,
        )
    for doubt in doubts:
        warn(doubt)
    if options.testing and options.test is None:
        data = all_for_testing(data)
    inputs = replace(data.inputs, made_grey=options.channels == 1)
    return replace(data, inputs=inputs, doubts=(*doubts, *data.doubts))


# ---------------------------------------------------------------- table
def _table(root: Path, labels: str) -> tuple[Path, str]:
    """The table's path, and whether it is a CSV or a Parquet file.

    Raises:
        DataError: If it does not lie in the folder, there is none, or it is of another kind.
    """
    table = root / labels
    if not table.resolve().is_relative_to(root.resolve()):
        raise DataError(
            f"task.data_options.labels: {labels} lies outside of {root}; put the table into that folder and give its "
            "path from there"
        )
    kind = tables.kind_of(labels)
    if kind is None:
        endings = " or ".join(ending for of in tables.ENDINGS.values() for ending in of)
        raise DataError(f"task.data_options.labels: {labels} is no table; it must end in {endings}")
    if not table.is_file():
        raise DataError(f"task.data_options.labels: there is no file {table.absolute()}")
    return table, kind


def _numbers(words: Words) -> list[Any]:
    """The words as whole numbers if all of them are such, so that 2 comes before 10; else as they are."""
    if all(word is not None and re.fullmatch("0|-?[1-9][0-9]*", word) for word in words):
        return [int(word) for word in words if word is not None]
    return list(words)


def _target(words: Words, targets: Targets) -> npt.NDArray[Any]:
    """The labels: classes as words, or as whole numbers if all are; else numbers, NaN for a gap, if all are such."""
    numbers = [None if word is None else value_of(word) for word in words]
    if targets.classes or any(number is None and word is not None for number, word in zip(numbers, words, strict=True)):
        return np.array(_numbers(words), None if words and None not in words and _numbers(words) != words else object)
    return np.array([np.nan if number is None else number for number in numbers], np.float64)


# ---------------------------------------------------------------- files
def _files(root: Path, images: Sequence[Path], names: Words, column: str) -> list[Path]:
    """The file of each row's image.

    Raises:
        DataError: If a row names no image, one of several files, or one that another row has named.
    """
    known = _by_name(root, images)
    found: dict[Path, int] = {}
    missing: list[tuple[str, int]] = []
    for i, name in enumerate(names):
        if name is None:
            raise DataError(f"{column} names no image in {place(i)}; fill it, or leave the row out")
        files = known.get(composed(name.replace("\\", "/").removeprefix("./")), [])
        if not files:
            missing.append((name, i))
        elif len(files) > 1:
            paths = some([str(file.relative_to(root)) for file in files])
            raise DataError(f"{column}: {name!r} in {place(i)} may be any of {paths}; write the path from {root}")
        elif files[0] in found:
            raise DataError(
                f"{column} names an image twice, {name!r} in {place(found[files[0]])} and {place(i)}; leave out one of "
                "the rows"
            )
        else:
            found[files[0]] = i
    if missing:
        name, i = missing[0]
        one = len(missing) == 1
        raise DataError(
            f"{column} names no image below {root} in {counted(len(missing), 'row')}, such as {name!r} in {place(i)}"
            f"{did_you_mean(name, list(known)[:1000]) or ';'} put {'it' if one else 'them'} there, or leave the "
            f"{'row' if one else 'rows'} out (what is read is {image_folders.READ})"
        )
    return list(found)


def _by_name(root: Path, images: Sequence[Path]) -> Mapping[str, list[Path]]:
    """Images by all that they may be called: the path from the folder, the file's name, each with or without ending.

    The longer name counts: `a/1.png` is that file, and `1.png` the one beside the table, whatever lies deeper.
    """
    known: list[dict[str, list[Path]]] = [{}, {}, {}, {}]
    for file in images:
        path = file.relative_to(root)
        names = path.as_posix(), path.with_suffix("").as_posix(), file.name, file.stem
        for of_kind, name in zip(known, names, strict=True):
            of_kind.setdefault(composed(name), []).append(file)
    return ChainMap(*known)


def _unnamed(root: Path, left: set[Path], of: int, table: Path) -> list[str]:
    """A sentence on images that no row names."""
    if not left:
        return []
    names = some(sorted(str(file.relative_to(root)) for file in left))
    verb = "stands" if len(left) == 1 else "stand"
    return [shown(f"{len(left):,} of {counted(of, 'image')} below {root} {verb} in no row of {table.name}: {names}")]
