"""`unskew doctor`: a check of the installation and the machine."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from unskew.cli.options import AsJson, then

STYLES = {"ok": "green", "missing": "yellow", "problem": "bold red"}


def doctor(
    data_dir: Annotated[Path | None, typer.Option(help="Where named data sets lie; else $UNSKEW_DATA.")] = None,
    as_json: AsJson = False,
) -> None:
    """Look at Python, packages, extras, cores, memory, data and disk; say what is missing and what to do.

    The exit code is 1 only if unskew cannot run at all.

    [dim]unskew doctor[/]
    """
    from unskew.run.doctor import broken, examine

    findings = examine(data_dir)
    bad = broken(findings)
    if as_json:
        print(json.dumps({"ok": not bad, "findings": [asdict(f) for f in findings]}))
    else:
        console = Console()
        width = max(len(f.what) for f in findings)
        for f in findings:
            line = Text(f"{f.status.ljust(8)}", style=STYLES[f.status])
            line.append(f"{f.what.ljust(width)}  {f.found}", style="default")
            if f.remedy:
                line.append(f"; {f.remedy}", style="default")
            console.print(line, soft_wrap=True, highlight=False)
    if bad:
        raise typer.Exit(1)
    if not as_json:
        then("run")
