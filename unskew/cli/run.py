"""`unskew run`: an experiment, what is left of one that was stopped, or the points of a sweep."""

import shlex
import sys
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unskew.cli import sweep
from unskew.cli.options import (
    AllowCode,
    AsJson,
    DataDir,
    Force,
    Quiet,
    Report,
    Settings,
    as_file,
    experiment_of,
    find_own_code,
    located,
    only,
)
from unskew.cli.tables import print_next, print_results, results_json
from unskew.errors import ConfigError, shown

if TYPE_CHECKING:
    from unskew.run.loop import RunResult

AN_EXPERIMENT = ("settings", "seeds", "out", "data_dir", "report", "quiet", "as_json")
A_SWEEP = ("settings", "out", "data_dir", "jobs", "shard", "ray", "quiet", "as_json")
A_FOLDER = ("settings", "seeds", "out", "until", "most", "force", "allow_code", "report", "quiet", "as_json")


def run(
    context: typer.Context,
    experiment: Annotated[str, typer.Argument()] = "digits",
    settings: Settings = None,
    seeds: Annotated[list[int] | None, typer.Option("--seed", help="Run this seed; repeat for several.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; default runs/NAME-DATE-TIME.")] = None,
    data_dir: DataDir = None,
    until: Annotated[
        float | None,
        typer.Option(help="Add seeds to a run until each comparison with FedAvg is decided or narrower than this."),
    ] = None,
    most: Annotated[int, typer.Option(min=2, help="With --until: the most seeds, those of the run counted.")] = 30,
    jobs: Annotated[int | None, typer.Option(help="Points of a sweep at once; default one per core.")] = None,
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", help="Run every N-th point of a sweep only, from the I-th.")
    ] = None,
    ray: Annotated[str | None, typer.Option(help="Ray cluster that runs a sweep: auto, local or HOST:PORT.")] = None,
    force: Force = False,
    allow_code: AllowCode = False,
    report: Report = True,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    r"""Run an experiment: every method on the same split, cohorts and initial model, for every seed.

    EXPERIMENT is a TOML file, a name from [bold]unskew list experiments[/], a table, or
    the folder of a run; by default several methods on real digits, in a minute.
    The run's folder has settings, split, every metric and transfer, and [bold]report.html[/].
    A method that diverges is left out of the results, and the exit code is 1.

    Of a [bold]folder[/] the run goes on where it was stopped, with the same bits.  With
    [bold]--set[/] the rest runs with other workers.  With [bold]--seed[/] or [bold]--until[/] it gets
    more seeds, in a folder of its own.  Code of your own needs [bold]--allow-code[/].

    A file with a [bold]\[sweep][/] table is run at all its points, one process per core, and
    they are compared; the same command goes on, and retries what failed.

    [dim]unskew run[/]
    [dim]unskew run my.toml --set split.alpha=0.5 --seed 1 --seed 2[/]
    [dim]unskew run visits.csv --target diagnosis --client hospital[/]
    [dim]unskew run runs/digits-20260101-120000[/]
    [dim]unskew run runs/digits-20260101-120000 --seed 5 --out runs/more[/]
    [dim]unskew run runs/digits-20260101-120000 --until 0.5 --out runs/more[/]
    [dim]unskew run digits --set 'sweep.grid={"split.alpha"=\[0.1,1.0]}' --jobs 4[/]
    """
    from unskew.decide.planning import Planning
    from unskew.experiment import config
    from unskew.run import loop, more_seeds
    from unskew.run.cell import Several
    from unskew.run.progress import watching

    given = located(settings, data_dir)
    if (Path(experiment) / "run.json").exists():
        only(context, A_FOLDER, "a run goes on as it began")
        folder = Path(experiment)
        more = partial(more_seeds.longer, seeds=seeds) if seeds else None
        more = partial(more_seeds.until, width=until, most=most) if until is not None else more
        if (more is None) != (out is None):
            raise ConfigError("--seed and --until add seeds in a new folder: give one of them and --out together")
        if allow_code:
            find_own_code()
        if more and out:
            more_seeds.add(folder, out, more, force, allow_code=allow_code)
        with watching(quiet) as callback:
            outcome = loop.resume(out or folder, callback, force, allow_code=allow_code, settings=given)
        return _finish(outcome, report, as_json)
    path, given = experiment_of(experiment, given)
    if "sweep" in config.override(config.read(path), given):
        only(context, A_SWEEP, "a sweep takes other options")
        return sweep.run(path, given, out, jobs, shard, ray, quiet, as_json)
    only(context, AN_EXPERIMENT, "this is for a run's folder, or for a file with a [sweep] table")
    find_own_code()
    chosen = config.load(path, given, allow_code=True)
    if seeds:
        chosen = replace(chosen, seeds=tuple(seeds), until=None)
    folder = out or Path("runs") / f"{as_file(chosen.name)}-{datetime.now():%Y%m%d-%H%M%S}"
    with watching(quiet) as callback:
        command = shlex.join(["unskew", *sys.argv[1:]])
        outcome = loop.start(chosen, folder, Several(Planning(), callback), command)
    return _finish(outcome, report, as_json)


def _finish(outcome: "RunResult", report: bool, as_json: bool) -> None:
    from unskew.report import read
    from unskew.report.tables import diverged

    record = read(outcome.folder)  # of a run that was done long ago, what is damaged is said before anything is shown
    # Results first: they are known even if the page cannot be written; and the page even if nobody reads them.
    try:
        if as_json:
            print(results_json(outcome.summary))
        else:
            print_results(record)
            fingerprint = shown(str(outcome.summary["fingerprint"])[:16])
            print(f"fingerprint {fingerprint}, {outcome.summary['seconds']:.0f} s")
    finally:
        if report:
            from unskew.report import write_report

            page = write_report(outcome.folder)
            with suppress(OSError):  # of an error stream that nobody reads
                print(f"page: {page}", file=sys.stderr)
    if record.diverged:
        for text in diverged(record):
            print(shown(text), file=sys.stderr)
        raise typer.Exit(1)
    if not as_json:
        print_next(outcome.folder, record)
