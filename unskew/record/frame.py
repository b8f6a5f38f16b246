"""A run's numbers as one tidy frame: method, seed, round, name, value, weight, and client for a single client's.

It has the rows of the metrics table as written, with those of single clients packed; `rows` and `columns` unpack them.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unskew.record.database import MetricOfRound, expanded, metrics, opened

COLUMNS = ("method", "seed", "round", "name", "value", "weight", "client")
Key = tuple[str, int, str]
"""Method, seed and name."""


class Numbers:
    """Numbers of a run, or of several."""

    def __init__(self, numbers: Iterable[MetricOfRound] = ()) -> None:
        self.numbers = tuple(numbers)
        self._by_client: dict[tuple[str, int, str, str], Mapping[int, float]] = {}

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> "Numbers":
        """The frame of these rows."""
        return cls(
            MetricOfRound(**{**dict.fromkeys((*COLUMNS, "clients")), **r})
            if r.get("client") is None
            else MetricOfRound(**{**r, **{key: np.array([r[key]]) for key in COLUMNS[4:]}, "clients": None})
            for r in rows
        )

    @classmethod
    def read(cls, folder: Path) -> "Numbers":
        """The frame of a run's numbers.

        Raises:
            RunError: As `database.opened`.
        """
        with opened(folder) as connection:
            return cls(metrics(connection))

    def where(self, holds: Callable[[MetricOfRound], object]) -> "Numbers":
        """The numbers that satisfy a condition."""
        return Numbers(filter(holds, self.numbers))

    def prefixed(self, prefix: str) -> "Numbers":
        """The same numbers, with a prefix to method labels."""
        return Numbers(n._replace(method=prefix + n.method) for n in self.numbers)

    def rows(self, most: int | None = None) -> list[dict[str, Any]]:
        """A row for each number, in the order written; numbers of more than `most` single clients stay packed."""
        few = (n for n in self.numbers if most is None or n.client is None or len(n.client) <= most)
        return list(chain.from_iterable(map(expanded, few)))

    # ---------------------------------------------------------------- numbers of all clients
    @cached_property
    def _series(self) -> dict[Key, dict[int, float]]:
        series: dict[Key, dict[int, float]] = {}
        for n in self.numbers:
            if n.client is None:
                series.setdefault((n.method, n.seed, n.name), {})[n.round] = n.value
        return {key: dict(sorted(of.items())) for key, of in series.items()}

    @property
    def keys(self) -> Collection[Key]:
        """Method, seed and name of the numbers of all clients, in the order written."""
        return self._series.keys()

    def names(self, method: str | None = None, seed: int | None = None) -> tuple[str, ...]:
        """Names of the numbers over all clients, of one method or any, under one seed or any."""
        names = (name for m, s, name in self._series if method in (None, m) and seed in (None, s))
        return tuple(dict.fromkeys(names))

    def curve(self, method: str, seed: int, name: str) -> Mapping[int, float]:
        """{round: value}, rounds ascending; empty if there is none."""
        return self._series.get((method, seed, name), {})

    @cached_property
    def _evaluated(self) -> Mapping[Key, Collection[int]]:
        rounds: dict[Key, set[int]] = {}
        for (method, seed, name), curve in self._series.items():
            rounds.setdefault((method, seed, name.partition(".")[0]), set()).update(curve)
        return rounds

    def evaluated(self, method: str, seed: int, name: str) -> Collection[int]:
        """The rounds in which a metric's part was evaluated, even if the metric is not defined there."""
        return self._evaluated.get((method, seed, name.partition(".")[0]), ())

    @cached_property
    def _reached(self) -> dict[tuple[str, int], int]:
        last: dict[tuple[str, int], int] = {}
        for (method, seed, _), of in self._series.items():
            last[method, seed] = max(last.get((method, seed), 0), *of)
        return last

    def reached(self, method: str, seed: int) -> int:
        """The last round with a number over all clients; 0 if there is none."""
        return self._reached.get((method, seed), 0)

    def few(self, name: str, *methods: str) -> list[tuple[int, int]]:
        """Clients behind the last number, and all, if these are more; of these methods, or of all."""
        last = {(n.method, n.seed): n.clients for n in self.numbers if n.name == name and n.client is None}
        return [(few[0], few[1]) for (m, _), few in last.items() if few is not None and (m in methods or not methods)]

    # ---------------------------------------------------------------- numbers of single clients
    @cached_property
    def _of_clients(self) -> dict[Key, list[MetricOfRound]]:
        """The numbers of the last round that has some."""
        last: dict[Key, list[MetricOfRound]] = {}
        for n in self.numbers:
            if n.client is not None:
                before = last.get((n.method, n.seed, n.name), [])
                last[n.method, n.seed, n.name] = [*(b for b in before if b.round == n.round), n]
        return last

    def clients(self, method: str, seed: int, name: str, column: str = "value") -> Mapping[int, float]:
        """{client: value, or weight} of the last round that has them, clients ascending; empty if none has."""
        at = (method, seed, name, column)
        if at not in self._by_client:
            of: list[Any] = self._of_clients.get((method, seed, name), [])
            pairs = (pair for n in of for pair in zip(n.client.tolist(), getattr(n, column).tolist(), strict=True))
            self._by_client[at] = dict(sorted(pairs))
        return self._by_client[at]


@dataclass(frozen=True, eq=False)
class RowResults:
    """The headline of each test row under its client's own model.

    Attributes:
        by_client: {client: (sampling unit of each row, value of each row)}.  The unit is the row's patient, or the
            row's number in the data.  The mean of the values is the client's headline.
        ranked: True for the values of an AUROC, which are DeLong's.
    """

    by_client: dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]]
    ranked: bool

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row of the record for each test row."""
        for client, (units, values) in self.by_client.items():
            for unit, value in zip(units.tolist(), values.tolist(), strict=True):
                yield {"client": client, "unit": unit, "value": value, "ranked": int(self.ranked)}
