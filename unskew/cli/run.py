"""`unskew run` and `unskew resume`."""

import shlex
import sys
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unskew.cli.options import (
    AllowCode,
    AsJson,
    DataDir,
    Quiet,
    Report,
    Settings,
    as_file,
    find_own_code,
    load_own,
    located,
)
from unskew.cli.tables import print_more_seeds, print_results, results_json
from unskew.decide.planning import Planning
from unskew.errors import ConfigError, shown

if TYPE_CHECKING:
    from unskew.run.loop import RunResult


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
        typer.Option("--track", metavar="NAME", help="Also log to tensorboard, mlflow or wandb."),
    ] = None,
    report: Report = True,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run an experiment: every method on the same split, cohorts and initial model, for every seed.

    A method that diverges is left out of the results under that seed, and the
    exit code is 1; the others are run all the same.

    EXPERIMENT is a TOML file, or a name from [bold]unskew list experiments[/].
    Without it this compares several methods on real handwritten digits, in
    about a minute.  The run's folder holds the resolved configuration, the
    split, every metric and transfer, checkpoints, and [bold]report.html[/].

    [dim]unskew run[/]
    [dim]unskew run my.toml --set split.alpha=0.5 --seed 1 --seed 2[/]
    [dim]unskew run digits --set rounds=5 --json > results.json[/]
    """
    from unskew.run import loop
    from unskew.run.progress import watching

    chosen = load_own(experiment, [*located(settings, data_dir), *(["bounds=true"] if with_bounds else [])])
    if seeds:
        chosen = replace(chosen, seeds=tuple(seeds), until=None)
    if device is not None:
        chosen = replace(chosen, runtime=replace(chosen.runtime, device=device))
    if track:
        chosen = replace(chosen, track=tuple(dict.fromkeys((*chosen.track, *track))))
    folder = out or Path("runs") / f"{as_file(chosen.name)}-{datetime.now():%Y%m%d-%H%M%S}"
    with watching(quiet) as callback:
        outcome = loop.start(chosen, folder, Planning(callback, folder), command=shlex.join(["unskew", *sys.argv[1:]]))
    _finish(outcome, report, as_json)


def resume(
    folder: Annotated[Path, typer.Argument()],
    force: Annotated[
        bool, typer.Option("--force", help="Resume although versions, device or executor changed; results may differ.")
    ] = False,
    allow_code: AllowCode = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Run the rest otherwise, e.g. runtime.workers=8."),
    ] = None,
    until: Annotated[
        float | None,
        typer.Option(help="Add seeds until every comparison with FedAvg is decided or narrower than this."),
    ] = None,
    most: Annotated[int, typer.Option(min=2, help="With --until: the most seeds, those of FOLDER counted.")] = 30,
    out: Annotated[Path | None, typer.Option(help="With --until: the new run's folder; FOLDER stays as it is.")] = None,
    report: Report = True,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Continue a run where it was stopped, by Ctrl-C, a crash or a power cut; its results are bit-identical.

    FOLDER is the run's folder.  The results of a finished run are printed again.
    A run with a method or network of your own needs [bold]--allow-code[/]: a
    folder from elsewhere could name any code.

    With [bold]--set[/] the rest runs with other workers, or another executor that
    trains each client by itself; its bits stay the same.  Other threads,
    devices or executors need [bold]--force[/], too.

    With [bold]--until[/] a run whose seeds decide too little gets more, in a folder
    of its own.  Its intervals then pay for looking after every seed.

    [dim]unskew resume runs/digits-20260101-120000[/]
    [dim]unskew resume runs/digits-20260101-120000 --until 0.5 --out runs/more[/]
    """
    from unskew.run import loop, more_seeds
    from unskew.run.progress import watching

    if (until is None) != (out is None):
        raise ConfigError("--until adds seeds in a new folder: give --until and --out together")
    if allow_code:
        find_own_code()
    if until is not None and out is not None:
        more_seeds.add(folder, out, until, most, force, allow_code=allow_code)
    with watching(quiet) as callback:
        outcome = loop.resume(out or folder, callback, force, allow_code=allow_code, settings=settings or ())
    _finish(outcome, report, as_json)


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
            print_more_seeds(outcome.folder, record)
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
