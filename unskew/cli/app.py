"""The top-level command.  Each of its commands is a thin layer in a file of its own: read options, call the
library, print.

Only JSON goes to stdout under `--json`; progress and remarks go to stderr.  Heavy imports wait until a command needs
them, so that `--help` is quick.
"""

from collections.abc import Callable
from typing import Annotated

import typer

from unskew.cli.advise import advise
from unskew.cli.audit import audit
from unskew.cli.bench import HELP, bench
from unskew.cli.catalogue import list_
from unskew.cli.data import data
from unskew.cli.deploy import deploy
from unskew.cli.doctor import doctor
from unskew.cli.leave_out import leave_one_out
from unskew.cli.plan import plan
from unskew.cli.predict import predict
from unskew.cli.prior import prior
from unskew.cli.reproduce import reproduce
from unskew.cli.run import resume, run
from unskew.cli.show import show
from unskew.cli.sweep import sweep
from unskew.cli.tune import tune
from unskew.version import __version__

# What an argument is stands in its command's text: click 8.5 drops the help that Typer 0.20 gives to arguments.
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Federated learning on heterogeneous (non-IID) client data: run methods, compare them, see what they cost.",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Federated learning on heterogeneous (non-IID) client data."""


COMMANDS: dict[str, Callable[..., None]] = {
    "run": run,
    "resume": resume,
    "show": show,
    "predict": predict,
    "list": list_,
    "data": data,
    "reproduce": reproduce,
    "plan": plan,
    "sweep": sweep,
    "leave-one-out": leave_one_out,
    "advise": advise,
    "tune": tune,
    "audit": audit,
    "doctor": doctor,
}
for name, command in COMMANDS.items():
    app.command(name=name)(command)
app.add_typer(deploy, name="deploy")
app.command(name="bench", help=HELP)(bench)
app.add_typer(prior, name="prior")
