"""`unskew site`: a site of a federation that somebody else coordinates."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from unskew.cli.fed import LogFormat, Out, StatusPort, logger, require, size, write_units
from unskew.cli.options import AllowCode, AsJson, DataDir, Decimal, Encoding, Quiet, Separator, Thousands, find_own_code
from unskew.cli.tables import print_table

site = typer.Typer(
    no_args_is_help=True,
    help="""Take part in a federation with data of your own.

    [dim]unskew site join TOKEN --data csv:/srv/ward-7.csv[/]  the first time
    [dim]unskew site start[/]                                  from then on
    """,
)

Folder = Annotated[Path | None, typer.Option(help="The site's folder; default the only one of this user.")]


@site.command()
def join(
    token: Annotated[str, typer.Argument()],
    data: Annotated[str | None, typer.Option(help="Your own data: csv:PATH, npz:PATH, images:PATH, ...")] = None,
    separator: Separator = None,
    thousands: Thousands = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    data_dir: DataDir = None,
    allow_code: AllowCode = False,
    policy: Annotated[
        Path | None, typer.Option(help="Your own policy: what may run and leave; default ~/.config/unskew/policy.toml.")
    ] = None,
    quiet: Quiet = False,
    folder: Annotated[
        Path | None, typer.Option(help="The site's folder; default ~/.local/state/unskew/sites/NAME.")
    ] = None,
    status_port: StatusPort = None,
    log_format: LogFormat = "text",
) -> None:
    """Join a federation, then take part until stopped.

    TOKEN is what the coordinator's [bold]unskew fed invite[/] printed; - reads it from stdin.
    The key is made here and never leaves.  What [bold]--data[/] names is read here; what leaves is what your
    policy and the method say.

    [dim]unskew site join AJZbImJhc2VsIi... --data csv:/srv/ward-7.csv[/]
    """
    require()
    from unskew.deploy import site as sites
    from unskew.deploy.offers import Token
    from unskew.deploy.settings import Site, absolute, read_rules

    invited = Token.read(sys.stdin.readline() if token == "-" else token)
    own = Site(
        None if data is None else absolute(data),
        separator,
        thousands,
        decimal,
        encoding,
        None if data_dir is None else str(data_dir.absolute()),
        allow_code,
        None if policy is None else str(policy.absolute()),
    )
    read_rules(own)  # what is wrong in the policy is said before anything is made
    place = folder or sites.sites() / invited.site
    sites.join(invited, place, own)
    _start(place, quiet, status_port, log_format)


@site.command()
def start(
    folder: Folder = None, status_port: StatusPort = None, log_format: LogFormat = "text", quiet: Quiet = False
) -> None:
    """Take part until stopped: as joined, with the same data."""
    require()
    from unskew.deploy import site as sites

    _start(sites.chosen(folder), quiet, status_port, log_format)


@site.command()
def units(out: Out = Path(), folder: Folder = None) -> None:
    """Write a systemd unit and a compose file for start."""
    require()
    from unskew.deploy import site as sites
    from unskew.deploy.settings import Site, outside, read_settings

    place = sites.chosen(folder)
    own = read_settings(place / "site.toml", Site)
    writes, reads = outside(own, place)
    write_units(f"unskew site {own.name}", ["site", "start", "--folder"], [place, *writes], out, reads=reads)


def _start(place: Path, quiet: bool, status_port: int | None, log_format: Literal["text", "json"]) -> None:
    from unskew.deploy import member
    from unskew.deploy.settings import Site, read_settings

    own = read_settings(place / "site.toml", Site)
    if own.data_dir is not None:
        os.environ["UNSKEW_DATA"] = own.data_dir
    if own.allow_code:
        find_own_code()
    try:
        member.start(place, logger(quiet, log_format, place / "logs" / "site.log"), status_port)
    except KeyboardInterrupt:
        os._exit(130)  # threads of the network may work on


def _answering(word: str, answer: str, text: str) -> None:
    def command(name: Annotated[str, typer.Argument()], folder: Folder = None) -> None:
        require()
        from unskew.deploy import site as sites

        sites.answer(sites.chosen(folder), name, answer)
        print(f"{answer}: {name}")

    site.command(word, help=text)(command)


_answering("accept", "accepted", 'Accept an experiment, where the policy has accept = "ask".')
_answering("refuse", "refused", "Refuse an experiment, from now on.")


@site.command()
def status(folder: Folder = None, as_json: AsJson = False) -> None:
    """Show the site, and the experiments it was offered."""
    require()
    from unskew.deploy import site as sites

    now = sites.status(sites.chosen(folder))
    if as_json:
        print(json.dumps(now))
        return
    days = "none yet" if now["certificate_days"] is None else f"{now['certificate_days']} days left"
    print(f"{now['site']} of {now['server']}, authority {now['authority']}")
    print(f"certificate {days}; data {now['data'] or 'none of its own'}; {size(now['free_bytes'])} free")
    if now["experiments"]:
        rows = [(e["name"], e["answer"], e["models"] or "") for e in now["experiments"]]
        print_table("experiments", ["experiment", "answer", "models"], rows, words=[1, 2])
