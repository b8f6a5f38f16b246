"""Published experiments as data: their settings, their numbers and their claims, to be reproduced.

TABLE names every reproduction; `unskew reproduce NAME` runs one.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from unskew.errors import ConfigError
from unskew.experiment import config
from unskew.papers.result import Result
from unskew.papers.result import keep as keep_result
from unskew.papers.study import FOLDER, SCALES, ReproductionRequest
from unskew.references import makes
from unskew.registry import Registry
from unskew.run.cell import Observer

PAPERS = ("noniid", "feddif", "hcct", "feddw", "feddistr", "natural", "advise")


class ReproductionEntry(NamedTuple):
    """The module of a reproduction, and one line about it."""

    target: str
    about: str


def _entries(paper: str) -> dict[str, ReproductionEntry]:
    reproductions = config.read_toml(FOLDER / f"{paper}.toml")["reproductions"]

    def target(own: Mapping[str, Any]) -> str:
        make = own.get("make", reproductions.get(own.get("like"), {}).get("make"))
        return f"unskew.papers.{paper}:{make}" if make else "unskew.papers.study:compare"

    return {f"{paper}/{name}": ReproductionEntry(target(own), own["title"]) for name, own in reproductions.items()}


TABLE: dict[str, ReproductionEntry] = {name: entry for paper in PAPERS for name, entry in _entries(paper).items()}

REPRODUCTIONS = Registry(
    "reproduction",
    "unskew.reproductions",
    {name: entry.target for name, entry in TABLE.items()},
    "a function annotated to return a Result, as in def mine(request: ReproductionRequest) -> Result",
    partial(makes, lambda kind: kind is Result),
    about={name: entry.about for name, entry in TABLE.items()},
)


def reproduce(
    name: str,
    scale: str,
    folder: Path,
    data_dir: Path | None,
    callback: Observer,
    changes: Mapping[str, Any] | None = None,
) -> Result:
    """Run a reproduction, with its runs in `folder`.

    Args:
        name: One of `unskew list reproductions`.
        scale: small or paper.
        folder: Folder for its runs; an interrupted run is resumed.
        data_dir: Folder of named data sets; by default the environment's UNSKEW_DATA.
        callback: Observer of every run.
        changes: Settings laid over those of the paper's file, table by table, as for a trial of two rounds.

    Raises:
        ConfigError: If there is no such reproduction or scale.
        DataError: If its data are missing.
    """
    make: Callable[[ReproductionRequest], Result] = REPRODUCTIONS.resolve(name)
    if scale not in SCALES:
        raise ConfigError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")
    return make(ReproductionRequest(name, scale, folder, data_dir, callback, changes or {}))


def keep(result: Result, root: Path) -> Path:
    """Keep a result in `root/NAME/SCALE`, and write the page over all that are kept, `root/README.md`, anew."""
    from unskew.papers import overview  # a command, too: python -m unskew.papers.overview

    folder = keep_result(result, root)
    overview.write(root)
    return folder


__all__ = ["REPRODUCTIONS", "TABLE", "ReproductionEntry", "ReproductionRequest", "Result", "keep", "reproduce"]
