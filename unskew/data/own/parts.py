"""Training and test rows: who is in both, clients without either, and rows cut in time."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from unskew.data.arrays import TEST_FRACTION
from unskew.data.inputs import is_gap
from unskew.data.latest import Cut, Latest, cut, moments
from unskew.data.own.clients import distinct_names, row_at
from unskew.data.own.frames import column_of, patients_in
from unskew.data.own.given import GivenExamples
from unskew.data.own.values import Array, name_of_client
from unskew.data.patients import PatientIds, coded, part_of
from unskew.data.places import Place, place, rows_at
from unskew.errors import DataError, did_you_mean
from unskew.words import some


def cut_in_time(
    data: Any, rows: GivenExamples, rule: Latest, fraction: float
) -> tuple[GivenExamples, GivenExamples, tuple[str, ...]]:
    """The rows before and after a cut in time, and sentences on it.

    Raises:
        DataError: If there are test rows already, times are missing or none, or as in `unskew.data.latest.cut`.
    """
    if rows.test is not None:
        raise DataError("the data have a test part of their own, so none is cut off by time; leave test out")
    when = rows.when if rows.when is not None else _times(data, rows, rule)
    parts = cut(rule, when, fraction, rows.clients, rows.patient_codes)
    if parts.refusal:
        raise DataError(parts.refusal)
    rows = replace(rows, when=when)
    return rows.take(np.flatnonzero(parts.train)), rows.take(np.flatnonzero(parts.test)), parts.doubts


def cut_of(
    frame: Any, rule: Latest, client: str | None, patient: str | None, patient_ids: PatientIds | None = None
) -> Cut:
    """The rows of a table before and after a cut in time; one without a client is of a client of its own.

    Raises:
        DataError: If there is no such column, or a row has no time or names no patient.
    """
    when = moments(column_of(frame, rule.column or "", "test.latest", "dates"), rule.where)
    clients = None
    if client is not None:
        clients = ["no client" if is_gap(v) else name_of_client(v) for v in column_of(frame, client, "client")]
    patients = None if patient is None else coded((patients_in(frame, patient), clients), ids=patient_ids)[0]
    return cut(rule, when, TEST_FRACTION, clients, patients)


def _times(data: Any, rows: GivenExamples, rule: Latest) -> Array:
    """The time of each row: of a table's column, of an array beside (x, y), or of one for each client."""
    if rule.column is not None:
        return moments(column_of(data, rule.column, "test.latest", "dates"), rule.where)
    each = {"": (rule.latest, len(rows.y))}
    if isinstance(data, Mapping):
        sizes, names = Counter(rows.clients), distinct_names(data)
        given = (
            {name_of_client(name): times for name, times in rule.latest.items()}
            if isinstance(rule.latest, Mapping)
            else {}
        )
        if odd := sorted(set(given) ^ set(names.values())):
            raise DataError(f"latest must have the times of every client, as a dict like data; see {some(odd)}")
        each = {name: (given[name], sizes[name]) for name in names.values()}
    read = []
    for name, (times, n) in each.items():
        with rows_at(row_at(name)) if name else nullcontext():
            read.append(moments(times, f"latest of client {name}" if name else "latest"))
        if len(read[-1]) != n:
            raise DataError(f"latest has {len(read[-1])} times for {n} examples{name and f' of client {name}'}")
    if len({one.dtype.kind for one in read}) > 1:
        raise DataError("latest holds dates of some clients and numbers of others; give all alike")
    return np.concatenate(read)


def ranks_in_time(parts: Mapping[str, GivenExamples]) -> dict[str, Array]:
    """The times of the parts' rows by their order: 0 for the earliest of all."""
    times = [of.when for of in parts.values() if of.when is not None]
    ranks = np.unique(np.concatenate(times), return_inverse=True)[1]
    return dict(zip(parts, np.split(ranks, np.cumsum([len(of) for of in times])[:-1]), strict=True))


def strangers_of(test: Sequence[str], clients: Sequence[str], column: str | None) -> str:
    """A sentence on clients whom test rows name and who have none to train on; empty if there are none.

    Args:
        test: Names of the clients that have test rows.
        clients: Of those that have training rows.
        column: Column of the clients; None if the data are no table.
    """
    known = set(clients)
    strangers = [name for name in test if name not in known]
    if not strangers:
        return ""
    more = f" ({len(strangers):,} such clients in all)" if len(strangers) > 1 else ""
    unnamed = "test=(x, y)" if column is None else f"a table without the column {column!r}"
    return (
        f"test names client {strangers[0]!r}, which has no rows to train on{more}"
        f"{did_you_mean(strangers[0], clients)} (clients: {some(clients)}); give it some, leave it out, or, if the "
        f"rows are nobody's own, give {unnamed}"
    )


def check_clients(rows: GivenExamples, column: str | None, fraction: float | None) -> None:
    """Refuse a column that is not a column of clients."""
    if column is None:
        return
    if len(rows.client_names) == 1:
        raise DataError(
            f"column {column!r} names only one client ({rows.client_names[0]}); a federation needs at least two: name "
            "another column, or leave client out and choose a split"
        )
    most = max(Counter(rows.clients or ()).values())
    if fraction is not None and (most == 1 or int(fraction * most + 0.5) == 0):
        rows_each = "one row each" if most == 1 else f"at most {most} rows each"
        raise DataError(
            f"column {column!r} has {len(rows.client_names):,} clients with {rows_each}, so none can keep a row for "
            "testing: if it numbers rows or patients, name the column of who holds them"
        )


def check_parts(rows: GivenExamples, is_test: npt.NDArray[np.bool_], column: str | None) -> None:
    """Refuse a patient who has rows for training and for testing; the places are those of these rows.

    Raises:
        DataError: Naming the first.
    """
    if rows.patients is None or (codes := rows.patient_codes) is None:
        return
    both = np.flatnonzero(~is_test & np.isin(codes, codes[is_test]))
    if len(both):
        other = int(np.flatnonzero(is_test & (codes == codes[both[0]]))[0])
        raise _in_both(rows.patients[both[0]], column, place(both[0]), place(other), len(np.unique(codes[both])))


def _where_patients(column: str | None) -> str:
    """Words for what names the patients: a column, or else the last of (x, y, patients)."""
    return "the third array" if column is None else f"column {column!r}"


def _in_both(name: str, column: str | None, train: str, test: str, count: int) -> DataError:
    more = f" ({count:,} such patients in all)" if count > 1 else ""
    return DataError(
        f"{_where_patients(column)}: patient {name} is for training in {train} and for testing in {test}{more}, and a "
        "model that has seen somebody knows more of him or her than of others; put all rows of a patient into one "
        "part, or leave test out, and it is drawn by patient"
    )


def patients_of_parts(
    parts: Mapping[str, GivenExamples], column: str | None, client: str | None, test_rows_at: Place | None
) -> dict[str, Array]:
    """The codes of the patients of each part.

    Args:
        parts: The parts, by name.
        column: Column of the patients; None if there is none.
        client: Column of the clients; None if there is none.
        test_rows_at: The places of the rows of the test part; None where it is known to share no patient.

    Raises:
        DataError: If patients of the test part are not known, or are in both parts.
    """
    for part in parts.values():
        if part.patients is None or (part.clients is None and parts["train"].clients is not None):
            missing, array = (column, "patients") if part.patients is None else (client, "clients")
            raise DataError(
                f"the test rows have no {array if missing is None else f'column {missing!r}'}, so it is not known who "
                f"is in them; add {'them' if missing is None else 'it'}, or leave test out, and it is drawn by patient"
            )
    ids = parts["train"].patient_ids
    codes = coded(*((part.patients or (), part.clients) for part in parts.values()), ids=ids)
    if len(codes) == 2 and test_rows_at is not None:
        both = np.flatnonzero(np.isin(codes[0], codes[1]))
        if len(both):
            row = int(np.flatnonzero(codes[1] == codes[0][both[0]])[0])
            with rows_at(test_rows_at):
                where = f"{place(row)} of the test rows"
            name = (parts["test"].patients or ())[row]
            raise _in_both(name, column, place(both[0]), where, len(np.unique(codes[0][both])))
    return {f"patient_{key}": of for key, of in zip(parts, codes, strict=True)}


def _patients_at(rows: GivenExamples) -> dict[str, int]:
    """The number of patients of each client; of all under "", where there are no clients."""
    pairs = set(zip(rows.clients or [""] * len(rows.y), rows.patients or (), strict=True))
    return dict(Counter(client for client, _ in pairs))


def check_patients(rows: GivenExamples, column: str | None, fraction: float) -> None:
    """Refuse a share of patients that is nobody."""
    most = max(_patients_at(rows).values(), default=0)
    if not part_of(most, fraction):
        of, share = "" if rows.clients is None else " of one client", f"{100 * fraction:g} %"
        raise DataError(
            f"{_where_patients(column)} names at most {most} patients{of}, of whom "
            f"{'a fifth' if fraction == 0.2 else share} is nobody; say which rows are for testing, as test"
        )


def untested_clients(rows: GivenExamples, fraction: float, own_test: bool) -> list[str]:
    """A sentence on clients that have too few patients for a test part.

    Where it is not the part that is set aside now, it is drawn later from the patients that are left.
    """

    def tested(n: int) -> int:
        return part_of(n if own_test else n - part_of(n, fraction), fraction)

    few = sorted(client for client, n in _patients_at(rows).items() if not tested(n))
    if not few or rows.clients is None:
        return []
    enough = next(n for n in itertools.count(2) if tested(n))
    have = "has" if len(few) == 1 else "have"
    return [f"{some(few)} {have} fewer than {enough} patients, so nobody is tested there"]
