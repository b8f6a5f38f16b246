"""Test rows that stand in training, too, told from rows that are alike by chance.

A table of few or coarse columns has equal rows of different people.  How often chance makes a row is known from how
often its rarest values occur:

    e = n f_a f_b f_c     rows among n training rows that chance makes equal to a test row in its three rarest values

More columns are not multiplied, because real ones depend on each other: people with one answer to a questionnaire give
the others, too.
Frequencies f_j are taken over different rows, so that copies do not vouch for each other.  Of a value that one row
alone has, I. J. Good's estimate says how often it occurs: 2 N_2 / N_1 times, where N_r values occur r times; hardly
ever, in a column of measurements that are all different.  Both counts are one more here, as few rows show little.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain

import numpy as np
import numpy.typing as npt

from unskew.data.inputs import ROWS, Array
from unskew.keys import Key

IMPROBABLE = 0.01
"""Equal training rows below which chance does not explain that a test row has one."""

RAREST = 3
"""Columns whose values are counted as independent."""

BEYOND_CHANCE = 5
"""Times as many improbable copies as chance makes over all test rows, from which on they are called so."""

MOST_COLUMNS = 64
"""Numbers of a row up to which they are columns of a table, of few values perhaps."""

MOST_UNSAID = 2
"""Copies up to which nothing is said."""

NAMED = 3
"""Copies that are named."""


@dataclass(frozen=True)
class Copies:
    """Test rows with an equal training row although chance hardly makes one.

    Attributes:
        seen: Their number.
        expected: How many chance would have made.
        pairs: The first of them, and a training row that each is equal to; empty where they are rows of a table.
    """

    seen: int
    expected: float
    pairs: tuple[tuple[int, int], ...] = ()

    @property
    def beyond_chance(self) -> bool:
        """True if they are too many for chance."""
        return self.seen > MOST_UNSAID and self.seen > BEYOND_CHANCE * self.expected

    def doubt(self, what: str, tested: int) -> str:
        """A sentence on them, "" if chance may have made them; `what` is one of the `tested` rows or images."""
        if not self.beyond_chance:
            return ""
        by_chance = "hardly any" if self.expected < 0.5 else f"about {self.expected:,.0f}"
        return (
            f"{self.seen:,} of {tested:,} test {what}s stand in training, too, where chance makes {by_chance}: "
            f"results on them are too good; give every {what} to one part"
        )


def copies(train: Sequence[Array], test: Sequence[Array], labels: Array, test_labels: Array) -> Copies:
    """Count the test rows that stand in training though chance hardly makes them equal.

    Args:
        train, test: The columns of both, in one order: float64 with NaN, or objects with None, for a gap.
        labels, test_labels: What is to be learnt of each row, (N,) or (N, k): equal rows of different labels are no
            copies.
    """
    n = len(labels)
    codes = [value_codes(np.concatenate(pair)) for pair in zip(train, test, strict=True)]
    keys = row_keys(codes)
    if np.isin(keys[n:], keys[:n]).sum() <= MOST_UNSAID:
        return Copies(0, 0.0)
    both = np.concatenate([labels, test_labels]).reshape(len(keys), -1)
    whole = row_keys([keys.view(np.int64), *map(value_codes, both.T)])
    known = np.isin(whole[n:], whole[:n])
    first = np.unique(whole, return_index=True)[1]
    rarest = np.ones((len(test_labels), RAREST))
    for code in codes:
        shares = _frequencies(code[first], int(code.max()) + 1)[code[n:]]
        rarest = np.sort(np.column_stack([rarest, shares]))[:, :RAREST]
    chance = n * rarest.prod(1)
    improbable = chance < IMPROBABLE
    return Copies(int((known & improbable).sum()), float(chance[improbable].sum()))


def repeated(
    train: Array, test: Array, labels: Array, test_labels: Array
) -> tuple[Copies, tuple[tuple[int, int], ...]]:
    """Count the test images, or rows of numbers without names, that stand in training, too; and find contradictions.

    These are inputs that have another label than an equal one before them: the numbers of both, test images numbered on
    from the training images.

    Images are equal to the last bit by copying alone, but for those of one value all over, which are left out.  So are
    rows of more than `MOST_COLUMNS` numbers, which is what flat images are.

    Args:
        train, test: Images or rows, (N, ...), of one shape.
        labels, test_labels: As in `copies`.
    """
    n = len(train)
    both = np.concatenate([labels, test_labels]).reshape(n + len(test), -1)
    label = row_keys([value_codes(column) for column in both.T]).tolist()
    first: dict[bytes, int] = {}
    of_label: dict[tuple[bytes, int], int] = {}
    pairs, contradictions = [], []
    for row, digest in enumerate(chain(_digests(train), _digests(test))):
        if not digest:
            continue
        if label[before := first.setdefault(digest, row)] != label[row]:
            contradictions.append((row, before))
        if (same := of_label.setdefault((digest, label[row]), row)) < n <= row:
            pairs.append((row - n, same))
    repeats = Copies(len(pairs), 0.0, tuple(pairs[:NAMED]))
    if len(pairs) > MOST_UNSAID and train.ndim == 2 and train.shape[1] <= MOST_COLUMNS:
        repeats = copies([*train.T], [*test.T], labels, test_labels)
    return repeats, tuple(contradictions)


def _digests(x: Array) -> Iterator[bytes]:
    """A number for each input, equal for equal ones; none for one of the same value all over."""
    for i in range(0, len(x), ROWS):
        rows = np.ascontiguousarray(x[i : i + ROWS]).reshape(len(x[i : i + ROWS]), -1)
        plain = (rows == rows[:, :1]).all(1)
        for row, skipped in zip(rows, plain, strict=True):
            yield b"" if skipped else blake2b(row.data, digest_size=16).digest()


def value_codes(values: Array) -> npt.NDArray[np.int64]:
    """A number for each different value; gaps are one."""
    if values.dtype.kind == "O":
        number: dict[object, int] = {}
        return np.array([number.setdefault(value, len(number)) for value in values.tolist()], np.int64)
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def row_keys(codes: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.uint64]:
    """A number of 64 bits for each row, equal for equal rows; else different, but once in 10^7 such tables."""
    drawn = (Key(0) / "copies").numpy().integers(1 << 63, size=len(codes), dtype=np.uint64)
    keys = np.zeros(len(codes[0]), np.uint64)
    for code, factor in zip(codes, drawn * np.uint64(2) + np.uint64(1), strict=True):
        keys += code.view(np.uint64) * factor
    return keys


def _frequencies(codes: npt.NDArray[np.int64], values: int) -> npt.NDArray[np.float64]:
    """Share of rows that have each value, those that are seen once as Good estimates it."""
    times = np.bincount(codes, minlength=values)
    once, twice = int((times == 1).sum()), int((times == 2).sum())
    shares = times / len(codes)
    shares[times == 1] *= min(1.0, 2 * (twice + 1) / (once + 1))
    return np.asarray(shares, np.float64)
