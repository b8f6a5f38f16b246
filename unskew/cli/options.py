"""Options that several commands share, and the lookup of their arguments."""

import json
from pathlib import Path
from typing import Annotated

import typer

from unskew.errors import ConfigError, did_you_mean

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, e.g. rounds=50, methods.1.mu=0.01."),
]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder of named data sets; else $UNSKEW_DATA.", exists=True, file_okay=False, resolve_path=True),
]
Report = Annotated[bool, typer.Option(help="Write report.html when the run is done.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the results as JSON on stdout, and nothing else there.")]


def located(settings: list[str] | None, data_dir: Path | None) -> list[str]:
    """The settings, with the folder of named data sets added as one more."""
    where = [] if data_dir is None else [f"task.data_dir={json.dumps(str(data_dir))}"]
    return [*(settings or []), *where]


def find_experiment(name: str) -> Path:
    """The file of an experiment, given by its path or a built-in name.

    Raises:
        ConfigError: If there is no such file or name.
    """
    path = Path(name)
    builtin = builtin_experiments()
    # A folder `digits` beside us is no experiment; a file of that name is.
    if path.is_file() or path.suffix == ".toml" or (path.exists() and name not in builtin):
        return path
    if name not in builtin:
        raise ConfigError(
            f"no file and no built-in experiment is called {name!r}{did_you_mean(name, builtin)} "
            f"(built in: {', '.join(builtin)})"
        )
    return builtin[name]


def builtin_experiments() -> dict[str, Path]:
    """The experiments that come with unskew, by name."""
    return {p.stem: p for p in sorted((Path(__file__).parent.parent / "experiment" / "builtin").glob("*.toml"))}


def as_file(name: str) -> str:
    """The name of an experiment as a single part of a path."""
    return "".join(c if c.isalnum() or c in "-_.+=" else "-" for c in name).lstrip(".")[:100] or "experiment"
