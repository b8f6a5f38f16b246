"""The top-level command.  Each of its commands is a thin layer in a file of its own: read options, call the
library, print.

Only JSON goes to stdout under `--json`; progress and notes go to stderr.  Heavy imports wait until a command needs
them, so that `--help` is quick.
"""

from collections.abc import Callable
from typing import Annotated

import typer
from click import Context, HelpFormatter
from typer.core import TyperGroup

from unskew.cli.advise import advise
from unskew.cli.audit import audit
from unskew.cli.bench import HELP, bench
from unskew.cli.card import card
from unskew.cli.catalogue import list_
from unskew.cli.data import data
from unskew.cli.doctor import doctor
from unskew.cli.fed import fed
from unskew.cli.leave_out import leave_one_out
from unskew.cli.options import Settable
from unskew.cli.plan import plan
from unskew.cli.predict import predict
from unskew.cli.prior import prior
from unskew.cli.reproduce import reproduce
from unskew.cli.run import run
from unskew.cli.show import show
from unskew.cli.site import site
from unskew.cli.tune import tune
from unskew.version import __version__


class _Commands(TyperGroup):
    """The commands with a line each, on one screen."""

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Print the commands in their order, as Typer prints the help of each."""
        print("Usage: unskew COMMAND ...\n")
        print("Federated learning on non-IID client data: run methods, compare them, see costs.\n")
        for name, command in self.commands.items():
            print(f"  {name:15}{command.short_help}")
        print("\nunskew COMMAND --help says more, unskew --version which version this is.")


# What an argument is stands in its command's text: click 8.5 drops the help that Typer 0.20 gives to arguments.
app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
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


COMMANDS: dict[str, tuple[Callable[..., None], str]] = {
    "run": (run, "Run an experiment, go on with one that was stopped, or sweep a grid."),
    "show": (show, "Show what runs found: table, page, costs, a trained model."),
    "card": (card, "Write the card of a model: data, sites, results, limits."),
    "predict": (predict, "Use a trained model on new rows, images or texts."),
    "list": (list_, "Name what there is: methods, data, models, splits, metrics."),
    "data": (data, "Look at data: sites, how they differ, gaps, what may be wrong."),
    "advise": (advise, "Should these sites train together, and how?"),
    "tune": (tune, "Find each method's settings, at equal budgets."),
    "plan": (plan, "Predict bytes, time and memory of an experiment."),
    "leave-one-out": (leave_one_out, "What is each site's taking part worth?"),
    "audit": (audit, "Attack a method's differential privacy."),
    "reproduce": (reproduce, "Run a published experiment beside its numbers."),
    "doctor": (doctor, "Check this installation and machine."),
}
for name, (command, short) in COMMANDS.items():
    app.command(name=name, cls=Settable, short_help=short)(command)
app.add_typer(fed, name="fed", short_help="Coordinate a federation of real sites.")
app.add_typer(site, name="site", short_help="Take part in a federation with your own data.")
app.command(name="bench", help=HELP, short_help="Measure unskew itself.")(bench)
app.add_typer(prior, name="prior", short_help="The built-in diffusion model: its card, and training it.")
