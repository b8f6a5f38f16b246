"""`unskew reproduce`: runs a published experiment and sets its numbers beside ours, or decides a campaign of claims."""

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from unskew.cli.options import AsJson, DataDir, Quiet, only, then
from unskew.cli.tables import print_page
from unskew.errors import ConfigError, shown


def reproduce(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument()] = None,
    scale: Annotated[str, typer.Option(help="small fits two cores; paper is the published size.")] = "small",
    data_dir: DataDir = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the runs behind the numbers; one that was stopped goes on. "
            "[runs/NAME-DATE; of a campaign runs/campaign-NAME]"
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="runtime.KEY=VALUE", help="Say how it is run, e.g. runtime.executor=ray."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Copy the result to docs/results/.")] = False,
    campaign: Annotated[
        str | None,
        typer.Option("--campaign", metavar="FILE", help="Decide the claims of this file, or of ours: papers."),
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="With --campaign: arms at a time, a process each.")] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Time there is: the arms of most value that end in it. Alone: of the papers' claims."
        ),
    ] = None,
    status: Annotated[
        bool, typer.Option("--status", help="With --campaign: say where it stands, run nothing.")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run a published experiment, or one of ours, and set the paper's number beside ours.

    NAME is one from [bold]unskew list reproductions[/].

    A claim holds, does not hold, or is undecided: it is decided by paired
    differences over seeds with a 95 % interval.  Two methods that end within
    half a point are level, and a claim that one is above does not hold.

    A campaign is a list of claims in a TOML file, decided in that order: each
    gets seeds until it is decided, and no arm runs twice.  It can be stopped
    and killed anywhere; the same command goes on.

    [dim]unskew reproduce noniid/digits[/]
    [dim]unskew reproduce hcct/arrivals --set runtime.executor=ray[/]
    [dim]unskew reproduce --campaign papers --data-dir DIR --keep[/]
    [dim]unskew reproduce --minutes 25 --data-dir DIR[/]
    """
    if name is None and minutes is not None:
        campaign = campaign or "papers"
    from unskew import papers
    from unskew.run.progress import watching

    if (name is None) == (campaign is None):
        raise ConfigError("give the name of a reproduction, or a file of claims with --campaign")
    if campaign is not None:
        only(context, ("out", "data_dir", "campaign", "jobs", "minutes", "status", "keep", "quiet", "as_json"),
             "a campaign says what is run")  # fmt: skip
        from unskew.cli.options import find_own_code
        from unskew.papers import campaign as campaigns

        find_own_code()
        path = campaigns.PAPERS if campaign == "papers" else Path(campaign)
        if not path.is_file():
            raise ConfigError(f"--campaign: there is no file {campaign}; ours is called papers")
        folder = out or Path("runs") / f"campaign-{Path(campaign).stem}"
        claims = campaigns.load(path)
        if not status:
            with watching(quiet) as callback:
                written = campaigns.run(claims, folder, callback, data_dir, jobs, minutes)
            print(f"status: {written}", file=sys.stderr)
        results = [*campaigns.results(claims, campaigns.cards_in(folder))]
        if as_json:
            print(json.dumps([result.to_json() for result in results]))
        else:
            print(*(shown(str(c)) for result in results for c in result.claims), sep="\n")
        for result in results if keep else ():
            print(f"kept: {papers.keep(result, Path('docs') / 'results')}", file=sys.stderr)
        return
    only(context, ("scale", "data_dir", "out", "settings", "keep", "quiet", "as_json"), "it goes with --campaign")
    changes = _runtime(settings or [])
    from unskew.report.page import write_page

    folder = out or Path("runs") / f"{str(name).replace('/', '-')}-{datetime.now():%Y%m%d-%H%M%S}"
    with watching(quiet) as callback:
        result = papers.reproduce(str(name), scale, folder, data_dir, callback, changes)
    if as_json:
        print(json.dumps(result.to_json()))
    else:
        print_page(result.page())
        for c in result.claims:
            print(shown(str(c)))
    folder.mkdir(parents=True, exist_ok=True)  # of a result that trains nothing
    print(f"page: {write_page(result.page(), folder / 'result.html')}", file=sys.stderr)
    if not as_json and not keep:
        then("reproduce", name, "--out", folder, "--keep")
    if keep:
        print(f"kept: {papers.keep(result, Path('docs') / 'results')}", file=sys.stderr)


def _runtime(settings: list[str]) -> dict[str, Any]:
    """The changes that settings ask for, of the runtime alone: all others are the reproduction's own.

    Raises:
        ConfigError: If another is among them.
    """
    from unskew.experiment import config

    for text in settings:
        if not text.startswith("runtime."):
            raise ConfigError(f"--set changes how a reproduction is run, as in runtime.executor=ray, got {text!r}")
    return config.override({}, [f"experiment.{text}" for text in settings])
