"""Options that several commands take, what their arguments name, and how their tables write."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from unskew.errors import ConfigError, meant

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, e.g. rounds=50, methods.1.mu=0.01."),
]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Where named data sets lie; else $UNSKEW_DATA.", exists=True, file_okay=False, resolve_path=True),
]
Report = Annotated[bool, typer.Option(help="Write report.html when the run is done.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the results as JSON on stdout, and nothing else there.")]


def located(settings: list[str] | None, data_dir: Path | None) -> list[str]:
    """The settings, with where named data sets lie as one more."""
    where = [] if data_dir is None else [f"task.data_dir={json.dumps(str(data_dir))}"]
    return [*(settings or []), *where]


def find_experiment(name: str) -> Path:
    """The file of an experiment: that of a path, or of a built-in name.

    Raises:
        ConfigError: If there is neither.
    """
    path = Path(name)
    builtin = builtin_experiments()
    # A folder `digits` beside us is no experiment; a file of that name is.
    if path.is_file() or path.suffix == ".toml" or (path.exists() and name not in builtin):
        return path
    if name not in builtin:
        raise ConfigError(
            f"no file and no built-in experiment is called {name!r}{meant(name, builtin)} "
            f"(built in: {', '.join(builtin)})"
        )
    return builtin[name]


def builtin_experiments() -> dict[str, Path]:
    """The experiments that come with unskew, by name."""
    return {p.stem: p for p in sorted((Path(__file__).parent.parent / "experiment" / "builtin").glob("*.toml"))}


def in_lines(name: str) -> str:
    """A name that goes on in the next line after `/` and `,` if it is long, rather than where a column ends.

    >>> in_lines("one/fedavg"), in_lines("a-run-of-yesterday/fedprox")
    ('one/fedavg', 'a-run-of-yesterday/\\nfedprox')
    """
    return name if len(name) <= 16 else name.replace("/", "/\n").replace(",", ",\n")


def in_seconds(value: float) -> str:
    """Seconds for a table: more digits where there are few.

    >>> in_seconds(0.0456), in_seconds(12.34)
    ('0.05', '12.3')
    """
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}"


def in_percent(row: Mapping[str, Any] | None) -> str:
    """A row's mean ± standard deviation for a table; a dash for what was not measured."""
    if row is None:
        return "–"
    return f"{100 * row['mean']:.1f}" + ("" if row["std"] is None else f" ± {100 * row['std']:.1f}")


def as_file(name: str) -> str:
    """The name of an experiment as a single part of a path."""
    return "".join(c if c.isalnum() or c in "-_.+=" else "-" for c in name).lstrip(".")[:100] or "experiment"
