"""Published experiments as data: their settings, their numbers and their claims, to be reproduced.

TABLE names every reproduction; `unskew reproduce NAME` runs one.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from unskew.errors import ConfigError
from unskew.experiment import config
from unskew.papers.result import Result
from unskew.papers.result import keep as keep_result
from unskew.papers.study import FOLDER, SCALES, Draft, layers_of, made, merged
from unskew.registry import Registry
from unskew.run.cell import Observer

COMPARED = "unskew.papers.study:compared"
PAPERS = ("noniid", "feddif", "hcct", "feddw", "feddistr", "natural", "advise")


def _of(paper: str) -> dict[str, tuple[str, str]]:
    """The reproductions of a paper: the function that makes each, and one line about it."""
    every = config.read_toml(FOLDER / f"{paper}.toml")["reproductions"]
    whole = {f"{paper}/{name}": merged(*layers_of(every, name)) for name in every}
    here = f"unskew.papers.{paper}:"
    return {name: (here + of["make"] if "make" in of else COMPARED, of["title"]) for name, of in whole.items()}


TABLE = {name: entry for paper in PAPERS for name, entry in _of(paper).items()}


def _takes_a_draft(target: Any) -> bool:
    return any(of in (Draft, "Draft") for of in getattr(target, "__annotations__", {}).values())


REPRODUCTIONS = Registry(
    "reproduction",
    "unskew.reproductions",
    {name: target for name, (target, _) in TABLE.items()},
    "a function of a Draft, as in def mine(draft: Draft) -> None",
    _takes_a_draft,
    about={name: about for name, (_, about) in TABLE.items()},
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
        data_dir: Folder of named data sets; by default UNSKEW_DATA of the environment.
        callback: Observer of every run.
        changes: Settings laid over those of the paper's file, table by table.

    Raises:
        ConfigError: If there is no such reproduction or scale.
        DataError: If its data are missing.
    """
    make: Callable[[Draft], object] = REPRODUCTIONS.resolve(name)
    if scale not in SCALES:
        raise ConfigError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")
    return made(Draft(name, scale, folder, data_dir, callback, changes or {}), make)


def keep(result: Result, root: Path) -> Path:
    """Write a result to `root/NAME/SCALE`, and renew the page over all results, `root/README.md`."""
    from unskew.papers import overview  # a command, too: python -m unskew.papers.overview

    folder = keep_result(result, root)
    overview.write(root)
    return folder


__all__ = ["REPRODUCTIONS", "TABLE", "Draft", "Result", "keep", "reproduce"]
