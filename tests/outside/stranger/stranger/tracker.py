"""Numbers as lines of a file."""

from collections.abc import Mapping
from typing import Annotated

from annotated_types import Ge

from unskew.run.cell import Cell


class Csv:
    """Numbers as lines of stranger.csv in the run's folder."""

    def __init__(self, cell: Cell, every: Annotated[int, Ge(1)] = 1) -> None:
        self._cell, self._every = cell, every

    def log(self, round: int, values: Mapping[str, float]) -> None:
        if round % self._every == 0:
            with (self._cell.run.folder / "stranger.csv").open("a") as file:
                file.writelines(f"{self._cell.name},{round},{name},{value}\n" for name, value in values.items())

    def close(self, finished: bool) -> None:
        with (self._cell.run.folder / "stranger.csv").open("a") as file:
            file.write("closed\n")
