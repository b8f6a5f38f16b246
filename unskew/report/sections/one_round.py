"""A round of embeddings as a run's record has it: the embeddings, their alignment, who saw what."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from unskew.info import Embeddings, Mixtures, Privacy
from unskew.record.reader import Record, info_of
from unskew.report import tables

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Match:
    """Two embeddings of different clients that the alignment matched: their numbers and their distance."""

    i: int
    j: int
    distance: float


@dataclass(frozen=True, eq=False)
class Uploads:
    """The embeddings of a round, and the server's alignment of them.

    Attributes:
        v: The embeddings as the info holds them, (K, axes).
        whole: True if `v` holds the embeddings themselves, false if their principal coordinates.
        labels, counts, owners: Label, example count and client of each; the count is 0 if none was sent.
        sent: Number of embeddings sent; K is less if the info holds only the first.
        distance: Distance that the alignment used.
        threshold: Largest distance at which a match counts as the same.
        matches: All matches, nearest first.
        sets: Sets of embeddings, by number, that stand for one distribution.
        kept: The embedding of each set that was distributed.
    """

    v: Floats
    whole: bool
    labels: tuple[int, ...]
    counts: tuple[int, ...]
    owners: tuple[int, ...]
    sent: int
    distance: str
    threshold: float
    matches: tuple[Match, ...]
    sets: tuple[tuple[int, ...], ...]
    kept: frozenset[int]

    @property
    def place(self) -> dict[int, int]:
        """The set of each embedding."""
        return {i: s for s, members in enumerate(self.sets) for i in members}

    def joined(self, match: Match) -> bool:
        """True if the two ended in one set."""
        place = self.place
        return match.i in place and place[match.i] == place.get(match.j)


@dataclass(frozen=True, eq=False)
class OneRound:
    """A method of one round, over a run.

    Attributes:
        seed, uploads: Seed that is drawn, and its embeddings.
        privacy: The weakest guarantee over the seeds, and what each party saw.
        nearest: Least distance from a generated image to one of its client's own, in medians; None if not known.
        client: The client with that distance.
        trained: Who trained which model, on what; empty if not known.
    """

    method: str
    seed: int
    uploads: Uploads | None
    privacy: Privacy
    nearest: float | None
    client: int | None
    trained: str = ""


def one_round(record: Record, method: str) -> OneRound | None:
    """A method's info over a run; None if no seed that counts has any.

    Raises:
        RunError: If the info is not as a run writes it.
    """
    seeds = set(tables.counted_seeds(record, method))
    privacy: list[Privacy] = []
    nearest: list[tuple[float, int]] = []  # distance and client, the least of each seed
    drawn: tuple[int, Uploads | None] | None = None
    trained = ""
    reported: Iterable[tuple[int, int, Embeddings | Mixtures]] = chain(
        info_of(record, method, Embeddings), info_of(record, method, Mixtures)
    )
    for seed, _, info in reported:
        if seed not in seeds:
            continue
        if drawn is None:
            drawn = seed, uploads_of(info) if isinstance(info, Embeddings) else None
        privacy.append(info.privacy)
        if isinstance(info, Embeddings):
            nearest += sorted((v, c) for c, v in info.closest.items() if v is not None)[:1]
            trained = info.trained_at
    if drawn is None:
        return None
    distance, client = min(nearest, default=(None, None))
    return OneRound(method, *drawn, max(privacy, key=lambda p: p.bound), distance, client, trained)


def uploads_of(info: Embeddings) -> Uploads:
    """The embeddings of a round and the server's alignment of them."""
    return Uploads(
        v=np.array(info.embeddings),
        whole=info.coordinates == "embedding",
        labels=info.labels,
        counts=info.counts,
        owners=info.owners,
        sent=info.sent,
        distance=info.distance,
        threshold=info.threshold,
        matches=tuple(Match(i, j, d) for i, j, d in info.pairs if max(i, j) < len(info.embeddings)),
        sets=info.sets,
        kept=frozenset(info.kept),
    )


def principal(centred: Floats) -> tuple[Floats, float]:
    """The two directions in which rows vary most, (D, 2), and their share of the variance.

    A principal direction has no sign: the largest entry of each is made positive, so equal input gives equal figures.
    """
    _, lengths, axes_of = np.linalg.svd(centred, full_matrices=False)
    signs = np.sign(axes_of[np.arange(len(axes_of)), np.abs(axes_of).argmax(1)])
    plane = (axes_of[:2] * signs[:2, None]).T
    plane = np.pad(plane, ((0, 0), (0, 2 - plane.shape[1])))
    return plane, float((lengths[:2] ** 2).sum() / (lengths**2).sum())
