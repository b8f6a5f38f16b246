"""`unskew reproduce`: runs a published experiment and sets its numbers beside ours."""

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from unskew.cli.options import AsJson, DataDir, Quiet


def reproduce(
    name: Annotated[str, typer.Argument()],
    scale: Annotated[str, typer.Option(help="small fits two cores; paper is the published size.")] = "small",
    data_dir: DataDir = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the runs behind the numbers; one that was stopped goes on. [runs/NAME-DATE]"),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Copy the result to docs/results/.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run a published experiment, or one of ours, and set the paper's number beside ours.

    NAME is one from [bold]unskew list reproductions[/].

    A claim holds, does not hold, or is undecided: it is decided by paired
    differences over seeds with a 95 % interval.

    [dim]unskew reproduce noniid/digits[/]
    """
    from unskew import papers
    from unskew.run.progress import watching

    folder = out or Path("runs") / f"{name.replace('/', '-')}-{datetime.now():%Y%m%d-%H%M%S}"
    with watching(quiet) as callback:
        result = papers.reproduce(name, scale, folder, data_dir, callback)
    if as_json:
        print(json.dumps(result.to_json()))
    else:
        Console().print(result.table(), highlight=False)
        for claim in result.claims:
            print(f"[{claim.verdict}] {claim.text}: {claim.evidence}")
    if keep:
        print(f"kept: {papers.keep(result, Path('docs') / 'results')}", file=sys.stderr)
