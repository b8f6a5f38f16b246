"""Differences in what clients write: spellings of a word, codes beside words, a column that names its client."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from unskew.data.inputs import Array, word
from unskew.data.numerals import value_of
from unskew.words import counted, letters, listed, separate_classes, some, spelling_variants

RETURNS = 5
"""Rows for each word of a column from which on its words are categories that return."""

ROWS_OF_A_CODING = 20
"""Rows of a client from which on words and codes that it lacks are no chance."""

MOST_CODES, FREQUENT, SIMILAR = 10, 0.1, 3.0
"""Words of a column that may be codes, share of a client's rows of a frequent one, times that two shares may differ."""

MOST_GROUPS = 3
"""Groups of clients that a sentence names."""


def names_the_client(name: str, values: Array, owners: Array, clients: Sequence[str]) -> str:
    """A sentence on a column with one value at each client and another at every other; empty for any other.

    Two clients may well differ so in something else, unless the values are their names.

    Args:
        name: The column.
        values: Its values, (N,).
        owners: Number of each row's client in `clients`, (N,); clients of fewer than 5 rows tell nothing.
        clients: The clients' names.
    """
    codes = np.unique([str(v) for v in values.tolist()] if values.dtype.kind == "O" else values, return_inverse=True)[1]
    if codes.max(initial=-1) + 1 != len(np.unique(owners)):
        return ""
    width = int(codes.max(initial=0)) + 1
    pairs, first, rows = np.unique(owners * width + codes, return_index=True, return_counts=True)
    many = len(rows)
    if many < 2 or rows.min() < 5 or not len(np.unique(pairs // width)) == width == many:
        return ""
    called = [letters(str(values[row])) == letters(clients[owners[row]]) for row in first]
    if many == 2 and not all(called):
        return ""
    return (
        f"column {name!r} has one value at each client, and at every other another one, so that it names the client: a "
        "model learns nothing from it about other clients; leave it out"
    )


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


def coded_differently(what: str, values: Array, owners: Array | None, clients: Sequence[str]) -> str:
    """A sentence if some clients write a column in numbers and others in words, and have none in common.

    Args:
        what: What holds them, such as "column 'sex'".
        values: Words, and anything that is no word for a gap.
        owners, clients: As in `variants_by_client`.
    """
    if owners is None:
        return ""
    held = _words_by_client(values, owners)
    sides: list[tuple[list[str], set[str]]] = []
    for spelt in (False, True):
        those = [c for c, of in held.items() if all((value_of(v) is None) == spelt for v in of)]
        sides.append(([clients[c] for c in those], {value for c in those for value in held[c]}))
    (_, numbers), (_, words) = sides
    if not numbers or not words or numbers & words:
        return ""
    one, other = (f"{some(who)} ({some(sorted(of))})" for who, of in sides)
    return f"{what} holds numbers at {one}, and words at {other}, which count as different: write them alike"


def no_word_in_common(name: str, values: Array, owners: Array | None, clients: Sequence[str]) -> str:
    """A sentence if clients fall into groups that have no word of a column in common, as m, f and Male, Female.

    Groups of one word, as the country a client is in, are none, and so are words that hardly return, as identifiers.

    Args:
        name: The column.
        values: Its words, and anything that is no word for a gap.
        owners, clients: As in `variants_by_client`.
    """
    if owners is None:
        return ""
    groups: list[tuple[list[int], set[str]]] = []
    held = _words_by_client(values, owners)
    for client, known in held.items():
        joined = [group for group in groups if group[1] & known.keys()]
        groups = [group for group in groups if group not in joined]
        groups.append(([*(c for of, _ in joined for c in of), client], set(known).union(*(of for _, of in joined))))
    groups = [
        (of, known)
        for of, known in sorted(groups, key=lambda group: min(group[0]))
        if len(known) > 1 and sum(sum(held[c].values()) for c in of) >= RETURNS * len(known)
    ]
    if len(groups) < 2:
        return ""
    shown = [f"{some([clients[c] for c in sorted(of)])} ({some(sorted(known))})" for of, known in groups]
    more = [f"{len(shown) - MOST_GROUPS:,} more"] if len(shown) > MOST_GROUPS else []
    return (
        f"column {name!r} has no word in common between {listed([*shown[:MOST_GROUPS], *more])}, and tells these "
        "clients apart: write alike what means the same, or leave it out"
    )


def words_in_turn(name: str, values: Array, owners: Array | None, clients: Sequence[str]) -> str:
    """A sentence if each client has one of two words, as H and M for men, beside a word they share; empty otherwise.

    Both are frequent where they occur, and about as frequent, and neither stands for a third word.  Clients of few rows
    tell nothing.

    Args:
        name: The column.
        values: Its words, and anything that is no word for a gap.
        owners, clients: As in `variants_by_client`.
    """
    if owners is None:
        return ""
    share = {
        client: {one: n / of.total() for one, n in of.items()}
        for client, of in _words_by_client(values, owners).items()
        if of.total() >= ROWS_OF_A_CODING
    }
    known = sorted(set().union(*share.values()))
    if len(share) < 2 or len(known) > MOST_CODES:
        return ""
    holders = {one: {client for client, of in share.items() if one in of} for one in known}
    some_hold = {one: np.array([share[client][one] for client in holders[one]]) for one in known}
    frequent = [one for one in known if some_hold[one].min() >= FREQUENT and len(holders[one]) < len(share)]
    pairs = [
        (one, other)
        for i, one in enumerate(frequent)
        for other in frequent[i + 1 :]
        if not holders[one] & holders[other] and len(holders[one] | holders[other]) == len(share)
    ]
    shared = [one for one in known if len(holders[one]) == len(share)]
    again = Counter(one for pair in pairs for one in pair)
    pairs = [pair for pair in pairs if max(again[one] for one in pair) == 1]
    middle = {one: float(np.median(of)) for one, of in some_hold.items()}
    pairs = [(a, b) for a, b in pairs if max(middle[a], middle[b]) <= SIMILAR * min(middle[a], middle[b])]
    if not pairs or not shared:
        return ""
    shown = [
        " and ".join(f"{one!r} at {some([clients[c] for c in sorted(holders[one])])}" for one in pair) for pair in pairs
    ]
    return (
        f"column {name!r} holds {'; '.join(shown)}, and none holds both, beside {some(shared)} at all: if both mean "
        "the same, write them alike"
    )


def two_numbers_differ(name: str, values: Array, owners: Array | None, clients: Sequence[str]) -> str:
    """A sentence if a column has two whole numbers at each client, but 0 and 1 at some and 1 and 2 at others.

    Args:
        name: The column.
        values: Its numbers, NaN for a gap.
        owners, clients: As in `variants_by_client`.
    """
    if owners is None or values.dtype.kind != "f" or len(np.unique(values[~np.isnan(values)])) not in (3, 4):
        return ""
    groups: dict[tuple[float, ...], list[str]] = {}
    for i, client in enumerate(clients):
        own = values[(owners == i) & ~np.isnan(values)]
        known = tuple(np.unique(own).tolist())
        if len(known) > 2 or any(one % 1 for one in known):
            return ""
        if len(known) == 2 and len(own) >= ROWS_OF_A_CODING:
            groups.setdefault(known, []).append(client)
    if len(groups) < 2:
        return ""
    shown = listed([f"{word(low)} or {word(high)} at {some(who)}" for (low, high), who in sorted(groups.items())])
    return f"column {name!r} is {shown}: if these mean the same two things, code them alike"


def _words_by_client(values: Array, owners: Array) -> dict[int, Counter[str]]:
    """Counts of the words of each client that has any."""
    held: dict[int, Counter[str]] = {}
    for value, owner in zip(values.tolist(), owners.tolist(), strict=True):
        if isinstance(value, str) and owner >= 0:
            held.setdefault(owner, Counter())[value] += 1
    return dict(sorted(held.items()))
