"""Options that several commands share, and the lookup of their arguments."""

import json
import os
import shlex
import sys
from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from click import Context
from typer.core import TyperCommand

from unskew.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from unskew.experiment.config import Experiment

WORDS = ("target", "client", "patient", "patient_ids", "separator", "thousands", "decimal", "encoding")
LISTS = ("gaps", "leave_out", "classes")
"""Roles of a table's columns and how its file is written, in `task.data_options`: texts, and lists of these."""
_OPTIONS = (*WORDS, *LISTS, "test")

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a setting, e.g. local.lr=0.05.  Those without a dot are options, too, as --rounds; and --data, "
        f"--model, --{', --'.join(_OPTIONS)}.".replace("_", "-"),
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder of named data sets; else $UNSKEW_DATA.", exists=True, file_okay=False, resolve_path=True),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Go on although versions or machine changed since the start; results may differ."),
]
Report = Annotated[bool, typer.Option(help="Write report.html when the run is done.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
AllowCode = Annotated[
    bool,
    typer.Option("--allow-code", help="Import methods and networks that the folder names by module:attribute."),
]
Separator = Annotated[str | None, typer.Option(help="Between columns of a CSV file; default a comma.")]
Thousands = Annotated[str | None, typer.Option(help="Between thousands in a CSV file; default nothing.")]
Decimal = Annotated[Literal[".", ","] | None, typer.Option(help="Before the decimals in a CSV file; default a point.")]
Encoding = Annotated[str | None, typer.Option(help="Of CSV files that are not in UTF-8, such as cp1252.")]
Gaps = Annotated[
    list[str] | None, typer.Option(help="A further word of a CSV file that means no value; may be repeated.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the results as JSON on stdout, and nothing else there.")]


def only(context: typer.Context, known: Collection[str], why: str) -> None:
    """Refuse options that would be ignored: those that were given and are not among `known`.

    Raises:
        BadParameter: Naming the first.
    """
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        given = source is not None and source.name != "DEFAULT"
        if given and parameter.param_type_name == "option" and parameter.name not in known:
            raise typer.BadParameter(f"{why}; leave {parameter.opts[0]} out")


def tell(text: str) -> None:
    """Print a line on stderr, at once."""
    print(text, file=sys.stderr, flush=True)


def then(*words: object) -> None:
    """Say on stderr which command comes next."""
    with suppress(OSError):  # of an error stream that nobody reads
        tell(f"next: {shlex.join(('unskew', *map(str, words)))}")


def silent(text: str) -> None:
    """Print nothing."""


def located(settings: list[str] | None, data_dir: Path | None) -> list[str]:
    """The settings, with the folder of named data sets added."""
    return [*(settings or []), *([f"task.data_dir={json.dumps(str(data_dir))}"] if data_dir else [])]


# ---------------------------------------------------------------- settings as options
class Settable(TyperCommand):
    """A command with `--set`, whose other options may be settings of the experiment, its task or its table.

    `--rounds 5` is `--set rounds=5`, and `--patient id` is `--set task.data_options.patient=id`.
    """

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Parse the arguments, those of settings as `--set`."""
        known = {option for p in self.get_params(ctx) for option in (*p.opts, *p.secondary_opts)}
        return super().parse_args(ctx, as_settings(args, known) if "--set" in known else args)


def as_settings(args: Sequence[str], known: Collection[str]) -> list[str]:
    """The arguments, with options that are not `known` but name a setting as `--set`.

    >>> as_settings(["my.csv", "--client", "site", "--quiet"], ["--quiet"])
    ['--set', 'task.data_options.client="site"', 'my.csv', '--quiet']

    Raises:
        BadParameter: If one is a setting of something else, which a method may have, too.
    """
    given, rest, words = defaultdict[str, list[str]](list), list[str](), deque(args)
    while words:
        word = words.popleft()
        option, sign, value = word.partition("=")
        place = None if option in known or not option.startswith("--") else _setting(option[2:].replace("-", "_"))
        if place is None:
            rest.append(word)
        elif not place.startswith("task.") and "." in place:
            raise typer.BadParameter(f"no such option: {option}; write --set {place}=VALUE")
        else:
            given[place].append(value if sign or not words else words.popleft())
    settings = [f"{place}={_written(place.rpartition('.')[2], values)}" for place, values in given.items()]
    return [*(word for setting in settings for word in ("--set", setting)), *rest]


def _setting(name: str) -> str | None:
    """The dotted path of the setting that an option names; None if there is none."""
    if name in _OPTIONS:
        return f"task.data_options.{name}"
    from unskew.experiment.config import setting_named

    return setting_named(name)


def _written(name: str, values: list[str]) -> str:
    if name in LISTS or (name in WORDS and len(values) > 1):
        return json.dumps(values)
    return json.dumps(values[0]) if name in WORDS else values[0] if len(values) == 1 else f"[{', '.join(values)}]"


def find_own_code() -> None:
    """Let `model = "mine:Net"` name a file in the working directory; installed packages come before it.

    Only for commands that may import a user's code: the working directory can be a folder from elsewhere.
    """
    try:
        here = os.getcwd()
    except OSError:  # a folder that was removed holds no code
        return
    if here not in sys.path:
        sys.path.append(here)


def load_own(name: str, settings: list[str]) -> "Experiment":
    """The experiment of a user's own file, or a built-in one; its code may be imported, from the working directory too.

    Raises:
        ConfigError: If there is no such file or name, or the experiment is impossible.
    """
    from unskew.experiment import config

    find_own_code()
    path, settings = experiment_of(name, settings)
    return config.load(path, settings, allow_code=True)


def experiment_of(name: str, settings: list[str]) -> tuple[Path, list[str]]:
    """The file and settings of an experiment; a table is the data of the built-in one for it."""
    builtin = builtin_experiments()
    if name in builtin or (data := table_at(name)) is None:
        return find_experiment(name), settings
    return builtin["table"], [f"name={json.dumps(Path(name).stem)}", f"task.data={json.dumps(data)}", *settings]


def table_at(name: str) -> str | None:
    """The setting of data for a table, a folder of them, or one that is known by name; None for anything else."""
    from unskew.data.tables import kind_at

    if kind := kind_at(name):
        return name if ":" in name else f"{kind}:{name}"
    from unskew.data.named import NAMED

    return name if name in NAMED and NAMED[name].preprocess is not None else None


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
