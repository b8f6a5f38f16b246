"""Examples of arrays: (x, y) or (x, y, patients)."""

from dataclasses import replace
from typing import Any

from unskew.data.own.classes import order_of
from unskew.data.own.frames import check_frame, columns_named, read_columns
from unskew.data.own.given import GivenExamples, Roles
from unskew.data.own.values import check_index, inputs_of, is_text, labels_of, type_name
from unskew.data.patients import names_of_patients
from unskew.errors import DataError


def of_arrays(arrays: Any, place: str, roles: Roles) -> GivenExamples:
    """Examples from (x, y) or (x, y, patients), of equal lengths; a DataFrame's columns as in `of_table`."""
    if not isinstance(arrays, tuple | list) or len(arrays) not in (2, 3):
        raise DataError(f"{place} must be (x, y), or (x, y, patients), got {type_name(arrays)}")
    table, frame, columns = None, arrays[0], ()
    check_frame(frame, f"x of {place}")
    if hasattr(frame, "columns") and (roles.raw or not is_text(frame)):
        columns = columns_named(frame, roles.inputs or tuple(frame.columns))
        x, table = read_columns(frame, columns, roles.raw)
    else:
        x = inputs_of(frame[frame.columns[0]] if hasattr(frame, "columns") else frame, f"x of {place}")
    y = labels_of(arrays[1], f"y of {place}")
    if x.ndim == 0 or len(x) != len(y):
        raise DataError(f"{place}: x has {len(x) if x.ndim else 0} examples, y has {len(y)} labels")
    for name, other in zip(("y", "patients"), arrays[1:], strict=False):
        check_index(frame, other, name, place)
    given = GivenExamples("arrays", x, y, columns=columns, table=table, order=order_of(arrays[1]))
    if len(arrays) == 2:
        return given
    where = f"the third array of {place}"
    patients = labels_of(arrays[2], where)
    if patients.shape != (len(y),):
        raise DataError(f"{where} must name one patient for each of {len(y)} examples, got shape {patients.shape}")
    return replace(given, patients=names_of_patients(patients.tolist(), where))
