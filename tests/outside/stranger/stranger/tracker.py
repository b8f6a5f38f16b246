"""Numbers as lines of a file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from unskew.experiment.config import Experiment


class Csv:
    """Numbers as lines of stranger.csv in the run's folder."""

    def __init__(self, experiment: Experiment, folder: Path, every: Annotated[int, Ge(1)] = 1) -> None:
        self._file, self._every = folder / "stranger.csv", every

    def scalars(self, method: str, seed: int, round: int, values: Mapping[str, float]) -> None:
        if round % self._every == 0:
            with self._file.open("a") as file:
                file.writelines(f"{method},{seed},{round},{name},{value}\n" for name, value in values.items())

    def close(self, table: Sequence[Mapping[str, Any]] | None) -> None:
        with self._file.open("a") as file:
            file.write("closed\n")
