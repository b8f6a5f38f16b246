"""`unskew card`: what is to be known of a trained model, on one page."""

from pathlib import Path
from typing import Annotated

import typer

from unskew.cli.options import then


def card(
    run: Annotated[Path, typer.Argument()],
    method: Annotated[str | None, typer.Option(help="The method; by default the best or only one.")] = None,
    out: Annotated[Path | None, typer.Option(help="The page: .html or .md; default RUN/card.html.")] = None,
) -> None:
    """Write the card of a run's model: data, sites, method, results by site, limits.

    [dim]unskew card runs/heart[/]
    [dim]unskew card runs/heart --method fedprox --out CARD.md[/]
    """
    from unskew.report import card as cards
    from unskew.report import read
    from unskew.report.page import write_page

    print(write_page(cards.of_run(read(run), method), run / "card.html" if out is None else out))
    then("predict", run, "NEW.csv", *(() if method is None else ("--method", method)))
