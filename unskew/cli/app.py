"""The commands.  Each is a thin layer: read options, call the library, print.

Only JSON goes to stdout under `--json`; progress and remarks go to stderr.  Heavy imports wait until a command needs
them, so that `--help` is quick.
"""

import hashlib
import json
import shlex
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from unskew.cli.bench import bench
from unskew.cli.deploy import deploy
from unskew.cli.doctor import doctor
from unskew.cli.options import (
    AsJson,
    DataDir,
    Quiet,
    Report,
    Settings,
    as_file,
    builtin_experiments,
    find_experiment,
    in_lines,
    in_percent,
    in_seconds,
    located,
)
from unskew.cli.plan import Planning, plan
from unskew.cli.price import price
from unskew.cli.prior import prior
from unskew.cli.sweep import sweep
from unskew.errors import ConfigError, RunError, meant
from unskew.version import __version__

if TYPE_CHECKING:
    from unskew.run.loop import RunResult

# What an argument is stands in its command's text: click 8.5 drops the help that Typer 0.20 gives to arguments.
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Federated learning when clients' data do not agree: run methods, compare them, see what they cost.",
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
    """Federated learning when clients' data do not agree."""


# ---------------------------------------------------------------- run, resume
@app.command()
def run(
    experiment: Annotated[str, typer.Argument()] = "digits",
    settings: Settings = None,
    seeds: Annotated[list[int] | None, typer.Option("--seed", help="Run this seed; repeat for several.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; default runs/NAME-DATE-TIME.")] = None,
    data_dir: DataDir = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = None,
    with_bounds: Annotated[bool, typer.Option("--with-bounds", help="Add local only, FedAvg and pooled data.")] = False,
    track: Annotated[
        list[str] | None,
        typer.Option("--track", metavar="NAME", help="Give the numbers to tensorboard, mlflow, wandb too."),
    ] = None,
    report: Report = True,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run an experiment: every method on the same split, cohorts and initial model, for every seed.

    EXPERIMENT is a TOML file, or a name from [bold]unskew list experiments[/].
    Without it this compares several methods on real handwritten digits, in
    about a minute.  The run's folder holds the resolved configuration, the
    split, every metric and transfer, checkpoints, and [bold]report.html[/].

    [dim]unskew run[/]
    [dim]unskew run my.toml --set split.alpha=0.5 --seed 1 --seed 2[/]
    [dim]unskew run digits --set rounds=5 --json > results.json[/]
    """
    from unskew.experiment import config
    from unskew.run import loop
    from unskew.run.progress import watching

    path = find_experiment(experiment)
    chosen = config.load(path, [*located(settings, data_dir), *(["bounds=true"] if with_bounds else [])])
    if seeds:
        chosen = replace(chosen, seeds=tuple(seeds))
    if device is not None:
        chosen = replace(chosen, runtime=replace(chosen.runtime, device=device))
    if track:
        chosen = replace(chosen, track=tuple(dict.fromkeys((*chosen.track, *track))))
    folder = out or Path("runs") / f"{as_file(chosen.name)}-{datetime.now():%Y%m%d-%H%M%S}"
    with watching(quiet) as callback:
        outcome = loop.start(chosen, folder, Planning(callback, folder), command=shlex.join(["unskew", *sys.argv[1:]]))
    _finish(outcome, report, as_json)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument()],
    force: Annotated[
        bool, typer.Option("--force", help="Go on although versions, device or executor changed; bits may differ.")
    ] = False,
    report: Report = True,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Continue a run where it was stopped, by Ctrl-C, a crash or a power cut; it ends with the same bits.

    FOLDER is the run's; of a run that is done it prints the results again.

    [dim]unskew resume runs/digits-20260101-120000[/]
    """
    from unskew.run import loop
    from unskew.run.progress import watching

    with watching(quiet) as callback:
        outcome = loop.resume(folder, callback, force)
    _finish(outcome, report, as_json)


def _finish(outcome: "RunResult", report: bool, as_json: bool) -> None:
    from unskew.report import read, summary_text
    from unskew.report.tables import discrepancies

    record = read(outcome.folder)  # of a run that was done long ago, what is damaged is said before anything is shown
    # Results first: they are known even if the page cannot be written.
    if as_json:
        print(json.dumps({k: outcome.summary[k] for k in ("run", "fingerprint", "seconds", "rows")}))
    else:
        from unskew.cli.members import should_join

        console = Console()
        for damage in discrepancies(record):
            print(damage, file=sys.stderr)
        console.print(results(outcome.summary))
        # Which methods differ from the baseline, and what groups brought their clients.
        for part in (summary_text.found(record), *should_join(record)):
            console.print(part, highlight=False, markup=False, soft_wrap=isinstance(part, str))
        for key, reason in (outcome.summary.get("stopped") or {}).items():
            console.print(f"{key} ended early: {reason}", highlight=False, markup=False, soft_wrap=True)
        console.print(
            f"fingerprint {outcome.summary['fingerprint'][:16]}, {outcome.summary['seconds']:.0f} s", highlight=False
        )
    if report:
        from unskew.report import write_report

        print(f"report: {write_report(outcome.folder)}", file=sys.stderr)


def results(summary: dict[str, Any]) -> Table:
    """The table of results for people: last round first, best labelled as such."""
    by = {(r["method"], r["metric"]): r for r in summary["rows"]}
    columns = [
        ("accuracy", "global.accuracy"),
        ("best*", "global.accuracy.best"),
        ("own data", "personal.accuracy.mean"),
        ("worst 1/10", "personal.accuracy.worst_decile"),
    ]
    seeds = max((len(r["seeds"]) for r in summary["rows"]), default=0)
    table = Table(
        title=f"{escape(summary['run'])}: percent, mean ± standard deviation over {seeds} seed{'s' * (seeds != 1)}",
        caption="accuracy: last round, global test set; *best round on the test set, optimistic; "
        "own data: each client's model on its own test data",
        box=SIMPLE,
        padding=(0, 1),
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("method", overflow="fold")
    for heading, _ in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("MB", justify="right", no_wrap=True)
    table.add_column("s", justify="right", no_wrap=True)
    for method in dict.fromkeys(r["method"] for r in summary["rows"]):
        cells = [in_percent(by.get((method, metric))) for _, metric in columns]
        sent, seconds = by.get((method, "bytes.total")), by.get((method, "seconds"))
        table.add_row(
            escape(in_lines(method)),
            *cells,
            f"{sent['mean'] / 1e6:.2f}" if sent else "",
            in_seconds(seconds["mean"]) if seconds else "",
        )
    return table


# ---------------------------------------------------------------- compare, list, reproduce
@app.command()
def compare(
    folders: Annotated[list[Path], typer.Argument()],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("comparison.html"),
    as_json: AsJson = False,
) -> None:
    """Put runs that are done side by side: one table, one HTML page, and a word where they cannot be compared.

    FOLDERS are those of two runs or more.

    [dim]unskew compare runs/a runs/b --out comparison.html[/]
    """
    from unskew.report import read, write_comparison
    from unskew.report.tables import discrepancies, incomparable
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
    whole = {
        "run": " ".join(names),
        "fingerprint": hashlib.sha256("\n".join(s["fingerprint"] for s in summaries).encode()).hexdigest(),
        "seconds": sum(s["seconds"] for s in summaries),
        "rows": rows,
    }
    if as_json:
        print(json.dumps(whole))
    else:
        from unskew.report.members import joining

        console = Console()
        console.print(results(whole))
        for name, record in zip(names, records, strict=True):
            for j in joining(record):
                console.print(f"{name}/{j.words}", highlight=False, markup=False, soft_wrap=True)
    damages = [f"{name}: {found}" for name, r in zip(names, records, strict=True) for found in discrepancies(r)]
    for remark in (*incomparable(records, names), *damages):
        print(remark, file=sys.stderr)
    print(f"comparison: {page}", file=sys.stderr)


def run_names(folders: list[Path]) -> list[str]:
    """What the runs are called: their folders' names, or the paths where two folders have the same name."""
    places = [folder.resolve() for folder in folders]
    twice = next((folder for folder, place in zip(folders, places, strict=True) if places.count(place) > 1), None)
    if twice is not None:
        raise RunError(f"{twice} is given twice; a run cannot be compared with itself")
    names = [place.name for place in places]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]


@app.command()
def report(
    folder: Annotated[Path, typer.Argument()],
    out: Annotated[Path | None, typer.Option(help="The page to write.", show_default="FOLDER/report.html")] = None,
) -> None:
    """Write a run's report again, one HTML page that needs no other file; print its path.

    FOLDER is the run's, finished or not.

    [dim]unskew report runs/digits-20260101-120000[/]
    """
    from unskew.report import write_report

    print(write_report(folder, out))


@app.command()
def table(
    folder: Annotated[Path, typer.Argument()],
    format: Annotated[str, typer.Option(help="markdown, latex or csv.")] = "markdown",
) -> None:
    """Print a run's headline table for a paper, a page or a spreadsheet.

    FOLDER is the run's, finished or not.  Bounds are marked; a number is bold
    only if paired differences over seeds say that its method is ahead of all.

    [dim]unskew table runs/digits-20260101-120000 --format latex > table.tex[/]
    """
    from unskew.report import read
    from unskew.report.export import table as written

    print(written(read(folder), format), end="")


KINDS = ("algorithms", "datasets", "splits", "models", "experiments", "reproductions")


@app.command(name="list")
def list_(
    what: Annotated[str, typer.Argument()] = "all",
    as_json: AsJson = False,
) -> None:
    """Show what exists, one line each.

    WHAT is one of algorithms, datasets, splits, models, experiments,
    reproductions; everything by default.

    [dim]unskew list algorithms[/]
    """
    if what not in (*KINDS, "all"):
        raise ConfigError(f"unskew list knows {', '.join(KINDS)}, got {what!r}{meant(what, KINDS)}")
    found = {kind: catalogue(kind) for kind in (KINDS if what == "all" else (what,))}
    if as_json:
        print(json.dumps(found))
        return
    console = Console()
    for kind, entries in found.items():
        if len(found) > 1:
            console.print(f"\n[bold]{kind}[/]")
        width = max(map(len, entries))
        for name, about in entries.items():
            console.print(f"  {name.ljust(width)}  {about}", highlight=False, markup=False, soft_wrap=True)


def catalogue(kind: str) -> dict[str, str]:
    """Name -> one line."""
    if kind == "algorithms":
        from unskew.algorithms import TABLE

        return {name: entry.about for name, entry in TABLE.items()}
    if kind == "datasets":
        from unskew.data.sources import SOURCES

        return {s.name: f"{s.what}; {s.shape}; {s.origin}" for s in SOURCES}
    if kind == "splits":
        from unskew.data.split import SPLITS

        return {name: (split.__doc__ or "").strip().split("\n")[0] for name, split in SPLITS.items()}
    if kind == "models":
        from unskew.models import ABOUT

        return {**ABOUT, "module.path:factory": "a network of your own"}
    if kind == "experiments":
        return {
            name: path.read_text("utf-8").split("\n")[0].lstrip("# ") for name, path in builtin_experiments().items()
        }
    from unskew.papers import TABLE as PAPERS

    return {name: entry.about for name, entry in PAPERS.items()}


@app.command()
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


# ---------------------------------------------------------------- commands with files of their own
app.command()(plan)
app.command()(price)
app.command()(sweep)
app.command()(doctor)
app.add_typer(deploy, name="deploy")
app.add_typer(bench, name="bench")
app.add_typer(prior, name="prior")
