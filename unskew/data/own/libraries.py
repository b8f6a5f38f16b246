"""Examples of other libraries' data sets: torch Datasets, and Hugging Face's."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from unskew.data import hub
from unskew.data.inputs import raw_column
from unskew.data.lengths import check_words
from unskew.data.own.frames import beside_inputs, check_column, owners_of
from unskew.data.own.given import GivenExamples, Roles
from unskew.data.own.values import Array, array_of, measurement, type_name
from unskew.errors import DataError
from unskew.keys import drawn_since, global_states

AGAIN = 64  # items that are read twice of data that seem to draw nothing


def of_torch(data: Any) -> GivenExamples:
    """Examples from a torch Dataset of (input, label) pairs, each of which must be the same whenever it is read.

    Raises:
        DataError: If an item is no such pair, of another shape than the first, or another when it is read again.
    """
    inputs, labels = [], []
    before = global_states()
    for i in range(len(data)):
        item = data[i]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(f"item {i} of {type(data).__name__} must be a pair (input, label), got {type_name(item)}")
        inputs.append(_input(item[0], i))
        labels.append(item[1].item() if isinstance(item[1], torch.Tensor | np.generic) else item[1])
        if inputs[i].shape != inputs[0].shape:
            raise DataError(
                f"item {i} of {type(data).__name__} has shape {inputs[i].shape}, item 0 has {inputs[0].shape}; bring "
                "all to one size"
            )
    # Whoever draws from no global generator has one of its own, or none.
    again = range(len(data) if drawn_since(before) else min(len(data), AGAIN))
    if not all(np.array_equal(inputs[i], _input(data[i][0], i), equal_nan=True) for i in again):
        raise _drawing(type(data).__name__)
    if not inputs:
        raise DataError(f"{type(data).__name__} holds no examples, at least 1 is needed")
    check_words(labels, type(data).__name__)
    names = getattr(data, "classes", getattr(getattr(data, "dataset", None), "classes", None))
    classes = tuple(map(str, names)) if isinstance(names, list | tuple) and names else None
    return GivenExamples(type(data).__name__, np.stack(inputs), np.array(labels), classes=classes)


def _input(given: Any, i: int) -> Array:
    # A copy: an item may be changed in place when it is read again.
    return np.array(given if hasattr(given, "convert") else array_of(given, f"the input of item {i}"))


def _drawing(name: str) -> DataError:
    return DataError(
        f"items of {name} are others each time they are read; leave the random transform out of it, and give that to "
        "transform=, which changes training examples only, anew in each epoch"
    )


def of_parts(parts: Mapping[str, Any], roles: Roles) -> GivenExamples:
    """Examples from the parts "train" and "test" of a DatasetDict."""
    if "train" not in parts:
        raise DataError(
            f'the data have the parts {", ".join(parts)}; give one of them, or a dict with "train" and "test"'
        )
    rows = of_hugging_face(parts["train"], roles)
    if "test" not in parts:
        return rows
    if not roles.raw and roles.patient is None and roles.client not in parts["test"].column_names:
        roles = replace(roles, client=None)
    return replace(rows, test=of_hugging_face(parts["test"], roles))


def of_hugging_face(part: Any, roles: Roles) -> GivenExamples:
    """Examples from a Hugging Face dataset: its image column, or else all its columns of numbers."""
    target, client = roles.target, roles.client
    check_column(part.column_names, target, "target", "labels")
    patients, left = beside_inputs(part, part.column_names, roles)
    images = [name for name in left if _holds_images(part, name)]
    if len(images) > 1:
        raise DataError(f"{', '.join(images)} all hold images; leave one, with remove_columns")
    table = None
    if images:
        x: Array = hub.images(part[images[0]], None, "data", images[0])
        drawn = (getattr(part, "format", None) or {}).get("type") == "custom"  # a function of the user's makes rows
        if drawn and not np.array_equal(x, hub.images(part[images[0]], None, "data", images[0])):
            raise _drawing("the data set")
    elif roles.raw:
        table = {name: raw_column(np.array(list(part[name]), object), name) for name in left}
        for name, values in table.items():
            check_words(values, f"column {name!r}")
        x = np.arange(len(part[left[0]]))
    else:
        x = np.column_stack([measurement(np.array(list(part[name]), object), name) for name in left])
    clients, known = (None, ()) if client is None else owners_of(_values(part, client), str(client))
    own = getattr((getattr(part, "features", None) or {}).get(target), "names", None)
    labels = np.array(_values(part, target), dtype=object)
    classes = None if own is None else tuple(map(str, own))
    columns = () if images else left
    return GivenExamples("dataset", x, labels, clients, known, patients, classes, columns, table=table)


def _values(part: Any, name: str | None) -> list[Any]:
    return [value.item() if hasattr(value, "item") else value for value in part[name]]


def _holds_images(part: Any, name: str) -> bool:
    first = next(iter(part[name]), None)
    return hasattr(first, "convert") or (isinstance(first, np.ndarray | torch.Tensor | list) and np.ndim(first) >= 2)
