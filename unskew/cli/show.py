"""`unskew compare`, `unskew report` and `unskew table`: the results of recorded runs."""

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from unskew.cli.options import AsJson
from unskew.cli.tables import comparability, print_fitting, results, results_json, run_names
from unskew.errors import ConfigError, shown

if TYPE_CHECKING:
    from unskew.record.reader import Record


def compare(
    folders: Annotated[list[Path], typer.Argument()],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("comparison.html"),
    as_json: AsJson = False,
) -> None:
    """Compare finished runs: a table, what differs, and an HTML page; or why they are not comparable.

    FOLDERS are those of two runs or more.

    [dim]unskew compare runs/a runs/b --out comparison.html[/]
    """
    from unskew.report import read, write_comparison
    from unskew.run.folder import read_json, require_done

    for folder in folders:
        require_done(folder)
    names = run_names(folders)
    page = write_comparison(folders, out, names)  # which also checks what is read
    records = [read(folder) for folder in folders]
    summaries = [read_json(folder / "summary.json") for folder in folders]
    rows = [
        {**row, "method": f"{name}/{row['method']}"}
        for name, s in zip(names, summaries, strict=True)
        for row in s["rows"]
    ]
    together = _merged(records, names)
    rows += _differences(together)
    comparison = {
        "run": together.name,
        "fingerprint": hashlib.sha256("\n".join(s["fingerprint"] for s in summaries).encode()).hexdigest(),
        "seconds": sum(s["seconds"] for s in summaries),
        "headline": records[0].headline.card(),
        **comparability(records, names),
        "same_test_rows": any(r.same_test_rows for r in records) if any(len(r.seeds) > 1 for r in records) else None,
        "rows": rows,
        "diverged": together.diverged,
        **({} if together.until is None else {"seeds": together.seeds}),
    }
    if as_json:
        print(results_json(comparison))
    else:
        from unskew.report import summary_text
        from unskew.report.members import join_summaries
        from unskew.report.tables import bounds

        console = Console()
        verdict = ["These runs are not comparable, so that no differences are given."] if comparison["reasons"] else []
        for text in (*verdict, *comparison["reasons"]):
            console.print(shown(text), highlight=False, markup=False, soft_wrap=True)
        print_fitting(console, partial(results, comparison, bounds=bounds(together)))
        answers = [f"{name}/{j.words}" for name, r in zip(names, records, strict=True) for j in join_summaries(r)]
        if together.baseline:
            set_apart = summary_text.set_apart(records, _called(records, names))
            answers = [*filter(None, [set_apart]), summary_text.found(together), *answers]
        for answer in answers:
            console.print(shown(answer), highlight=False, markup=False, soft_wrap=True)
    for remark in _remarks(records, names):
        if as_json or remark not in comparison["reasons"]:  # which stand above the table
            print(shown(remark), file=sys.stderr)
    print(f"comparison: {page}", file=sys.stderr)


def report(
    folder: Annotated[Path, typer.Argument()],
    out: Annotated[Path | None, typer.Option(help="The page to write.", show_default="FOLDER/report.html")] = None,
    share: Annotated[Path | None, typer.Option(help="New folder for a copy to give away.")] = None,
) -> None:
    """Write a run's report again, one HTML page that needs no other file; print its path.

    FOLDER is the run's, finished or not.  Of a finished one --share writes a
    copy without data, models, and what tells single examples, which compare
    and table read as they read the run's.

    [dim]unskew report runs/digits-20260101-120000[/]
    """
    from unskew.report import write_report
    from unskew.report.share import share as write_copy

    if share is not None and out is not None:
        raise ConfigError("--share writes a folder with the page in it, and --out a page; give one of them")
    print(write_report(folder, out) if share is None else write_copy(folder, share))


def table(
    folders: Annotated[list[Path], typer.Argument()],
    format: Annotated[str, typer.Option(help="markdown, latex, csv, or csv2: with ; and decimal commas.")] = "markdown",
    columns: Annotated[
        str | None, typer.Option(help="Markdown's or LaTeX's columns, by commas: seeds,global,difference.")
    ] = None,
    by_client: Annotated[bool, typer.Option("--by-client", help="Each client's results instead of means.")] = False,
) -> None:
    """Print the headline table of one run, or several, for a paper, a page or a spreadsheet.

    FOLDERS are those of the runs, finished or not.  Local training and
    pooled data are marked; a number is bold only if paired differences over
    seeds say that its method is ahead of every other federated one.  Of runs
    that cannot be compared there are no differences.  --columns takes seeds,
    round, global, tail, difference, personal, personal_difference,
    worst_decile, unseen, unseen_adapted, mb, seconds, and a further metric as
    global_auroc or personal_auroc.

    [dim]unskew table runs/digits-20260101-120000 --format latex > table.tex[/]
    """
    from unskew.report import read
    from unskew.report.export import client_table
    from unskew.report.export import table as headline
    from unskew.report.tables import discrepancies, diverged

    if by_client and columns is not None:
        raise ConfigError("--columns chooses among those of means, and --by-client prints others; give one of them")
    chosen = [name.strip() for name in columns.split(",")] if columns is not None else []
    if len(folders) == 1:
        record = read(folders[0])
        names, records = [str(folders[0])], [record]
        remarks = (*diverged(record), *discrepancies(record))
    else:
        names = run_names(folders)
        records = [read(folder) for folder in folders]
        record, remarks = _merged(records, names), _remarks(records, names)
    unfinished = [
        f"{name} is not finished: its rows are what it has so far"
        for name, r in zip(names, records, strict=True)
        if not r.finished
    ]
    for remark in (*remarks, *unfinished):
        print(shown(remark), file=sys.stderr)
    print(shown(client_table(record, format) if by_client else headline(record, format, chosen)), end="")


def _called(records: "Sequence[Record]", names: Sequence[str]) -> list[dict[str, str]]:
    """The methods of each run, labelled as in a comparison."""
    return [{m: f"{name}/{m}" for m in record.methods} for name, record in zip(names, records, strict=True)]


def _merged(records: "Sequence[Record]", names: Sequence[str]) -> "Record":
    """All methods of some runs as those of one."""
    from unskew.report.tables import together

    called = _called(records, names)
    run_of = {label: name for name, labels in zip(names, called, strict=True) for label in labels.values()}
    finished = {name: record.finished for name, record in zip(names, records, strict=True)}
    return replace(together(records, called)[0], name=" ".join(names), run_of=run_of, runs=finished)


def _differences(together: "Record") -> list[dict[str, Any]]:
    """Rows of a table of results: differences to the one baseline of all runs; none if there is none."""
    from unskew.report.tables import paired
    from unskew.run.metrics import result_row

    return [
        result_row(d.method, together.cell(d.method).setting, f"{metric}.minus_{together.baseline}", d.values)
        for metric in (together.headline.shared, together.headline.own)
        for d in paired(together, metric)
    ]


def _remarks(records: "Sequence[Record]", names: Sequence[str]) -> tuple[str, ...]:
    """Sentences on what keeps runs from being compared, and on what in their folders contradicts itself."""
    from unskew.report.tables import discrepancies, diverged, evaluated_otherwise, incomparable

    damages = [f"{name}: {damage}" for name, r in zip(names, records, strict=True) for damage in discrepancies(r)]
    lost = [f"{name}: {text}" for name, r in zip(names, records, strict=True) for text in diverged(r)]
    return tuple(filter(None, (*incomparable(records, names), evaluated_otherwise(records, names), *lost, *damages)))
