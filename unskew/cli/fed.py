"""`unskew fed`: a coordinator's federation, its sites and the experiments that it runs."""

import json
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from unskew.cli.options import (
    AsJson,
    DataDir,
    Force,
    Quiet,
    Report,
    Settable,
    Settings,
    as_file,
    load_own,
    located,
    tell,
    then,
)
from unskew.cli.tables import print_results, print_table, results_json
from unskew.errors import DeployError, RunError

if TYPE_CHECKING:
    from unskew.deploy.federation import FederationFolder
    from unskew.deploy.trial import Parity
    from unskew.experiment.config import Experiment

fed = typer.Typer(
    no_args_is_help=True,
    help="""Coordinate a federation: invite sites, run experiments on them, see how they are.

    [dim]unskew fed try my.toml --sites 3[/]   a trial: all on this machine
    [dim]unskew fed init --host fed.example.org --listen 0.0.0.0[/]
    [dim]unskew fed invite basel bern chur[/]  a token for each site to join
    [dim]unskew fed run my.toml[/]
    """,
)

Folder = Annotated[Path, typer.Option(help="The federation's folder.")]
Sites = Annotated[list[str], typer.Argument(metavar="SITE...")]
HERE = Path("federation")
Out = Annotated[Path, typer.Option(help="Folder to write to.", exists=True, file_okay=False)]


def require() -> None:
    """Refuse to go on without gRPC.

    Raises:
        DeployError: If it is not installed.
    """
    try:
        from unskew.deploy import channel  # noqa: F401
    except ImportError as error:
        raise DeployError(f"a federation needs {error.name}; pip install 'unskew[deploy]'") from None


LogFormat = Annotated[Literal["text", "json"], typer.Option(help="Lines of the log: text, or JSON.")]
StatusPort = Annotated[
    int | None, typer.Option(min=1, max=65535, help="Port on loopback for a monitor: /healthz and /metrics.")
]


def logger(quiet: bool, form: Literal["text", "json"] = "text", file: Path | None = None) -> Callable[[str], None]:
    """Choose what writes a line of the log: stderr, unless it is to be quiet, and a file that is rotated."""
    from unskew.runtime.log import log, show

    if not quiet:
        show(form, file)
    return log


def write_units(what: str, words: list[str], writes: list[Path], out: Path, **of_compose: Any) -> None:
    """Write a systemd unit and a compose file that keep `unskew WORDS FOLDER` running, of the first folder."""
    import getpass

    from unskew.deploy import units
    from unskew.files import write_atomically

    program, words = shutil.which("unskew"), [*words, str(writes[0].absolute())]
    unit, compose = out / f"{what.replace(' ', '-')}.service", out / "compose.json"
    command = [*([program] if program else [sys.executable, "-m", "unskew"]), *words]
    write_atomically(unit, units.systemd(what, command, writes, getpass.getuser()))
    write_atomically(compose, units.compose(words, writes, **of_compose))
    print(f"systemd: sudo cp {unit} /etc/systemd/system/ && sudo systemctl enable --now {unit.name}")
    print(f"or: docker compose --file {compose} up --detach")


def _federation(folder: Path) -> "FederationFolder":
    require()
    from unskew.deploy.federation import FederationFolder

    return FederationFolder(folder)


# ---------------------------------------------------------------- sites
@fed.command()
def init(
    folder: Annotated[Path, typer.Argument()] = HERE,
    host: Annotated[str, typer.Option(help="Name or address at which sites reach the server.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The server's one port.")] = 8443,
    listen: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 is all of this machine.")] = "127.0.0.1",
    names: Annotated[
        list[str] | None, typer.Option("--also", help="Another name of the server for its certificate; may repeat.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the federation.")] = "federation",
    days: Annotated[
        float, typer.Option(help="Days for which certificates are valid, which are renewed in time.")
    ] = 397.0,
) -> None:
    """Make a federation's folder: keys, certificates, a database.

    [dim]unskew fed init --host fed.example.org --listen 0.0.0.0[/]
    """
    require()
    from unskew.deploy.federation import FederationFolder
    from unskew.deploy.settings import About

    federation = FederationFolder.create(folder, About(name, host, port, listen, tuple(names or ()), days))
    print(f"made: {folder}; keep it to yourself, and a backup of it")
    print(f"fingerprint of the authority, to read to each site by telephone: {federation.fingerprint()}")
    if host not in ("127.0.0.1", "localhost", "::1") and listen == "127.0.0.1":
        tell("note: the server will listen on this machine only; --listen 0.0.0.0 lets others in")
    then("fed", "invite", "SITE...", *_named(folder))


def _named(folder: Path) -> tuple[object, ...]:
    return () if folder == HERE else ("--folder", folder)


@fed.command()
def invite(
    sites: Sites,
    hours: Annotated[float, typer.Option(min=0.01, help="Hours for which the tokens are good.")] = 48.0,
    ask: Annotated[bool, typer.Option("--ask", help="Each site has to be approved when it has come.")] = False,
    folder: Folder = HERE,
) -> None:
    """Print a token for each site, with which it joins.

    A token is good for one certificate.  Send it over a channel that keeps it secret.

    [dim]unskew fed invite basel bern chur[/]
    """
    for token in _federation(folder).invite(sites, hours, ask):
        print(f"{token.site}: unskew site join {token}")
    then("fed", "run", "EXPERIMENT.toml", *_named(folder))


def _of_sites(name: str, text: str) -> None:
    def command(sites: Sites, folder: Folder = HERE) -> None:
        getattr(_federation(folder), name)(sites)

    fed.command(name, help=text)(command)


_of_sites("approve", "Let sites in that were invited with --ask.")
_of_sites("remove", "Take sites out, at once and in mid-run.")


@fed.command()
def authority(
    drop: Annotated[bool, typer.Option("--drop", help="Trust the second authority alone from now on.")] = False,
    folder: Folder = HERE,
) -> None:
    """Change the authority: trust a second one, then drop the first.

    Sites move over as they renew their certificates, by themselves.
    """
    federation = _federation(folder)
    if drop:
        federation.drop_authority()
    elif behind := federation.change_authority():
        print(f"have yet to renew: {', '.join(behind)}")
    print(f"fingerprint of the authority: {federation.fingerprint()}")
    if not drop:
        then("fed", "authority", "--drop", *_named(folder))


# ---------------------------------------------------------------- experiments
@fed.command(cls=Settable)
def run(
    experiment: Annotated[str, typer.Argument()],
    settings: Settings = None,
    sites: Annotated[list[str] | None, typer.Option("--site", help="Only this site; may repeat. Default all.")] = None,
    min_sites: Annotated[int | None, typer.Option(min=1, help="Begin with so many; default all.")] = None,
    deadline: Annotated[float, typer.Option(help="Seconds a site has to answer.")] = 600.0,
    wait: Annotated[float, typer.Option(help="Seconds to wait for sites.")] = 3600.0,
    limits: Annotated[
        list[str] | None, typer.Option("--limit", metavar="KEY=VALUE", help="max_norm, max_ratio, max_examples, ...")
    ] = None,
    split: Annotated[
        bool, typer.Option("--split", help="Sites without data take their part of the experiment's split: a dry run.")
    ] = False,
    force: Force = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    folder: Folder = HERE,
) -> None:
    """Run an experiment on the sites, and print its results.

    It goes on where it stood if it was stopped.
    EXPERIMENT is a TOML file, or a name from [bold]unskew list experiments[/].  It is signed
    and offered to each site, whose own policy decides.  Where no [bold]unskew fed serve[/]
    runs, this command serves until the experiment is done.

    [dim]unskew fed run my.toml --min-sites 2[/]
    """
    federation = _federation(folder)
    from unskew.deploy import resident
    from unskew.deploy.server import check_split, refuse_undeployable
    from unskew.experiment import config
    from unskew.protocol import hook

    chosen = _experiment(experiment, settings)
    given = {"deadline_s": deadline, "wait_s": wait, "own_data": not split, "min_clients": min_sites}
    options = {key: value for key, value in given.items() if value is not None} | config.override({}, limits or [])
    refuse_undeployable(chosen)
    number = len(sites or federation.present())
    if split:
        check_split(chosen, number)
    for method in chosen.methods:
        if (planned := hook(method.method, "planned")) is not None and number:
            tell(f"note: {method.label}: {planned(chosen.rounds, number, chosen.cohort(number))}")
    if modules := ", ".join(config.own_modules(chosen)):
        tell(f"note: sites need this code of yours, and --allow-code; it is not sent: {modules}")
    name = federation.queue(chosen, options, sites or ())
    after = max((event["id"] for event in federation.events(last=1)), default=0)
    if federation.is_served():
        _follow(federation, name, after, quiet)
    else:
        resident.serve(federation, logger(quiet), name, force)
    row = federation.experiment(name)
    if row["state"] != "done":
        raise RunError(f"{name} {row['state']}: {row['reason']}; the same command goes on with it")
    _show(federation.record(name), [], as_json)
    if not as_json:
        then("fed", "pull", name, "--out", name, *_named(folder))


def _experiment(name: str, settings: list[str] | None, data_dir: Path | None = None) -> "Experiment":
    chosen = load_own(name, located(settings, data_dir))
    task = chosen.task
    if task.data_dir is not None:  # it is read by processes in other working directories
        task = replace(task, data_dir=str(Path(task.data_dir).resolve()))
        chosen = replace(chosen, task=task)
    from unskew.deploy.settings import absolute, is_elsewhere

    return chosen if is_elsewhere(task.data) else replace(chosen, task=replace(task, data=absolute(task.data)))


def _follow(federation: "FederationFolder", name: str, after: int, quiet: bool) -> None:
    """Print what the server says until an experiment has ended."""
    try:
        while True:
            over = federation.experiment(name)["state"] not in ("queued", "running")
            for event in federation.events(after):
                after = event["id"]
                if not quiet:
                    tell(_line(event))
            if over:
                return
            time.sleep(0.5)
    except KeyboardInterrupt:
        tell(f"{name} goes on; unskew fed status shows it, unskew fed stop {name} stops it")
        raise typer.Exit(130) from None


def _line(event: dict[str, Any]) -> str:
    at = datetime.fromtimestamp(event["at"]).astimezone()
    level = "" if event["level"] == "info" else f"{event['level']}: "
    return f"{at:%Y-%m-%d %H:%M:%S%z} {level}{event['text']}"


def _show(run: Path, checks: "list[Parity]", as_json: bool) -> None:
    from unskew.report import read
    from unskew.run.folder import read_json

    if as_json:
        summary = read_json(run / "summary.json")
        print(json.dumps({"methods": [p.to_json() for p in checks]}) if checks else results_json(summary))
        return
    print_results(read(run))
    if checks:
        rows = [(p.method, f"{p.max_abs_diff:g}", "equal" if p.bytes_equal else "differ") for p in checks]
        print_table("deployed beside simulated", ["method", "largest difference", "bytes"], rows, words=[2])


@fed.command()
def serve(
    listen: Annotated[str | None, typer.Option(help="Address to listen at; default as fed init says.")] = None,
    status_port: StatusPort = None,
    log_format: LogFormat = "text",
    force: Force = False,
    quiet: Quiet = False,
    folder: Folder = HERE,
) -> None:
    """Serve until stopped, one experiment after another."""
    federation = _federation(folder)
    from unskew.deploy import resident

    say = logger(quiet, log_format, folder / "logs" / "server.log")
    resident.serve(federation, say, force=force, listen=listen, status_port=status_port)


@fed.command()
def units(out: Out = Path(), folder: Folder = HERE) -> None:
    """Write a systemd unit and a compose file for serve."""
    about = _federation(folder).about
    write_units(f"unskew fed {about.name}", ["fed", "serve", "--folder"], [folder], out, port=about.port)


@fed.command("backup")
def backup_(file: Annotated[Path, typer.Argument()], folder: Folder = HERE) -> None:
    """Write the whole federation into a file, keys included."""
    federation = _federation(folder)
    from unskew.deploy.backup import backup

    backup(federation, file)
    print(f"written: {file}; whoever has it can pose as the federation")


@fed.command("restore")
def restore_(file: Annotated[Path, typer.Argument()], folder: Folder = HERE) -> None:
    """Make the federation's folder from such a file."""
    require()
    from unskew.deploy.backup import restore

    restore(file, folder)
    print(f"made: {folder}")


@fed.command()
def stop(name: Annotated[str | None, typer.Argument()] = None, folder: Folder = HERE) -> None:
    """Stop an experiment, by default the one that runs."""
    print(f"stopping {_federation(folder).stop(name)}")


@fed.command()
def pull(
    name: Annotated[str | None, typer.Argument()] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to make; default the experiment's name.")] = None,
    folder: Folder = HERE,
) -> None:
    """Copy the record of an experiment, by default the last."""
    federation = _federation(folder)
    name = str(federation.experiment(name)["name"])
    target = out or Path(name)
    if target.exists():
        raise RunError(f"{target} exists already; choose another --out")
    shutil.copytree(federation.record(name), target, ignore=shutil.ignore_patterns(".lock"))
    target.chmod(0o700)
    print(f"pulled: {target}")
    then("show", target)


@fed.command()
def jobs(as_json: AsJson = False, folder: Folder = HERE) -> None:
    """List experiments, and what sites answered."""
    rows = _federation(folder).jobs()
    if as_json:
        print(json.dumps({"experiments": rows}))
    else:
        print_jobs(rows)


def print_jobs(rows: list[dict[str, Any]]) -> None:
    """Print a table of experiments."""
    cells = []
    for e in rows:
        state, sites = e["state"], ", ".join(f"{site} {answer}" for site, answer in e["sites"].items())
        state += f": {e['reason']}" if e["reason"] else ""
        cells.append((e["name"], state, f"{e['round']}/{e['rounds']}", moment(e["began"]), moment(e["ended"]), sites))
    print_table("experiments", ["experiment", "state", "round", "began", "ended", "sites"], cells, words=[1, 3, 4, 5])


def moment(at: float | None) -> str:
    """A time as a cell says it."""
    return "" if at is None else f"{datetime.fromtimestamp(at):%m-%d %H:%M:%S}"


def size(n: int | None) -> str:
    """Bytes as a cell says them."""
    return "" if n is None else f"{n / 1e9:.1f} GB"


@fed.command()
def status(
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every two seconds.")] = False,
    as_json: AsJson = False,
    folder: Folder = HERE,
) -> None:
    """Show the sites and the experiments as they are."""
    federation = _federation(folder)
    with suppress(KeyboardInterrupt):
        while True:
            now = federation.status()
            if as_json:
                print(json.dumps(now), flush=True)
            else:
                _print_status(now)
            if not watch:
                return
            time.sleep(2.0)


def _print_status(now: dict[str, Any]) -> None:
    serving = f"serving at {now['server']}" if now["serving"] else "no server runs"
    days = "{certificate_days} days of its certificate are left, {authority_days} of the authority's".format(**now)
    print(f"{now['federation']}: {serving}; {days}")
    cells = []
    for s in now["sites"]:
        error = f"{moment(s['error_at'])} {s['error']}" if s["error"] else ""
        contact = moment(s["since"]) or "away", moment(s["seen"])
        left = "" if s["certificate_days"] is None else str(s["certificate_days"])
        cells.append((s["site"], s["state"], *contact, s["version"] or "", size(s["free_bytes"]), left, error))
    head = ["site", "state", "here since", "seen", "version", "free", "days", "last error"]
    print_table("sites", head, cells, words=[1, 2, 3, 4, 7])
    if now["experiments"]:
        print_jobs(now["experiments"])


@fed.command()
def logs(
    site: Annotated[str | None, typer.Argument()] = None,
    last: Annotated[int, typer.Option(min=1, help="So many lines.")] = 50,
    folder: Folder = HERE,
) -> None:
    """Print what has happened, to all sites or to one."""
    for event in _federation(folder).events(site=site, last=last):
        print(_line(event))


# ---------------------------------------------------------------- everything on this machine
@fed.command("try", cls=Settable)
def try_(
    experiment: Annotated[str, typer.Argument()],
    sites: Annotated[int, typer.Option(min=1, metavar="K", help="Sites, each a process; as many as the split has.")],
    settings: Settings = None,
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; default runs/NAME-tried-DATE-TIME.")] = None,
    check_parity: Annotated[
        bool,
        typer.Option(
            "--check-parity", help="Simulate the same experiment too, and compare; exit with 1 if they differ."
        ),
    ] = False,
    force: Force = False,
    report: Report = True,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Try an experiment with K sites on this machine.

    Server and sites are processes; each site has its part of the split.  Keys and
    logs are in the run folder's [bold]deploy[/]; the rest of it is like that of a
    simulation.  A run that was stopped goes on with the same command and --out.

    [dim]unskew fed try examples/deploy.toml --sites 3 --check-parity[/]
    """
    require()
    from unskew.deploy import trial

    chosen = _experiment(experiment, settings, data_dir)
    folder = out or Path("runs") / f"{as_file(chosen.name)}-tried-{datetime.now():%Y%m%d-%H%M%S}"
    say = logger(quiet)
    if check_parity:
        trial.comparable(chosen)
    if not quiet:
        tell(f"run folder: {folder}")
    run = trial.trial(chosen, sites, folder, say, force=force)
    checks: list[Parity] = []
    if check_parity:
        say("simulating the same experiment")
        checks = trial.compare(run, trial.simulate(chosen, folder / "deploy" / "simulated"))
    _show(run, checks, as_json)
    if report:
        from unskew.report import write_report

        print(f"report: {write_report(run)}", file=sys.stderr)
    if not all(p.equal for p in checks):
        raise typer.Exit(1)
    if not as_json:
        then("card", run)
