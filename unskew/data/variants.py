"""Words of a column that clients spell differently."""

from collections.abc import Iterable, Sequence

import numpy as np

from unskew.data.inputs import Array
from unskew.words import counted, separate_classes, some, spelling_variants


def variants_by_client(known: Iterable[str], values: Array, owners: Array | None, clients: Sequence[str]) -> str:
    """Words that are one but for case, accents and spaces, and who holds them; empty if there are none.

    Args:
        known: Each word once.
        values: The rows' words, (N,).
        owners: Number of each row's client in `clients`, (N,), -1 where it has none; None if there are no clients.
        clients: The clients' names.
    """

    def held(one: str) -> str:
        rows = np.flatnonzero(values == one)
        who = [] if owners is None else [clients[i] for i in np.unique(owners[rows]) if i >= 0]
        return f"{'only ' * (len(who) == 1 < len(clients))}{some(who)}" if who else counted(len(rows), "row")

    return spelling_variants(known, held)


def label_variants(known: Iterable[str], values: Array, owners: Array | None, clients: Sequence[str]) -> str:
    """A sentence on labels that differ in case, accents or spaces alone, as `variants_by_client`; empty if none do."""
    return separate_classes(variants_by_client(known, values, owners, clients))


def column_variants(
    name: str, values: Array, owners: Array | None, clients: Sequence[str], agreed: Sequence[str] = ()
) -> str:
    """A sentence on words of a column that differ in case, accents or spaces alone; empty if none do or all are agreed.

    Args:
        name: The column.
        values: Its words, and anything that is no word for a gap.
        owners, clients: As in `variants_by_client`.
        agreed: Words that sites agreed on.
    """
    present = sorted(v for v in set(values.tolist()) if isinstance(v, str))
    if set(present) <= set(agreed):
        return ""
    variants = variants_by_client([*agreed, *(one for one in present if one not in agreed)], values, owners, clients)
    return variants and (
        f"column {name!r} holds words that differ in case, accents or spaces alone, and each counts as another "
        f"one: {variants}; "
        "write them alike"
    )
