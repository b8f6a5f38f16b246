"""`unskew deploy`: an experiment over a real network, on one machine or on many."""

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from click import Context, UsageError
from typer.core import TyperGroup

from unskew.cli.options import (
    AllowCode,
    AsJson,
    DataDir,
    Decimal,
    Encoding,
    Force,
    Quiet,
    Report,
    Separator,
    Settings,
    Thousands,
    as_file,
    find_experiment,
    find_own_code,
    load_own,
    located,
    only,
    silent,
    tell,
    then,
)
from unskew.cli.tables import print_results, print_table, results_json
from unskew.errors import ConfigError, DataError, DeployError, did_you_mean
from unskew.words import counted

if TYPE_CHECKING:
    from unskew.deploy.parity import Parity
    from unskew.experiment.config import Experiment


class _Experiments(TyperGroup):
    """A command group in which a word that is not a command is the experiment of `local`."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            if not args[0].startswith("-"):
                self._check_experiment(args[0])
            args = ["local", *args]
        return super().parse_args(ctx, args)

    def _check_experiment(self, word: str) -> None:
        try:
            find_experiment(word)
        except ConfigError as error:
            raise UsageError(
                f"unskew deploy has no command {word!r}{did_you_mean(word, self.commands)} (commands: "
                f"{', '.join(self.commands)}); nor is it an experiment: {error}"
            ) from None


deploy = typer.Typer(
    cls=_Experiments,
    no_args_is_help=True,
    help="""Run an experiment over a real network, with TLS and a key for each client (gRPC).

    [dim]unskew deploy my.toml --local 3[/]    a trial: everything on this machine, which has all data
    [dim]unskew deploy pack my.toml --host fed.example.org --clients 3 --own-data --out federation[/]
                                      folders for a server and for clients with data of their own
    """,
)

Check = Annotated[bool, typer.Option("--check", help="Report problems that would prevent a start, and start nothing.")]


def _require() -> None:
    """Refuse to go on without gRPC.

    Raises:
        DeployError: If it is not installed.
    """
    try:
        import cryptography  # noqa: F401
        import grpc  # noqa: F401
    except ImportError as error:
        raise DeployError(f"a deployment needs {error.name}; pip install 'unskew[deploy]'") from None


def _say(quiet: bool) -> Callable[[str], None]:
    """Choose what writes a line of the log: stderr, unless it is to be quiet."""
    from unskew.runtime.log import log, to_stderr

    if not quiet:
        to_stderr()
    return log


@deploy.command()
def local(
    experiment: Annotated[str, typer.Argument()],
    clients: Annotated[
        int, typer.Option("--local", min=1, metavar="K", help="Clients, each a process; as many as the split has.")
    ],
    settings: Settings = None,
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; default runs/NAME-deployed-DATE-TIME.")] = None,
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
    """Run a server and K clients as processes on this machine; the word `local` may be left out.

    EXPERIMENT is a TOML file, or a name from [bold]unskew list experiments[/].
    Certificates, keys and logs are in the run folder's [bold]deploy[/]; the rest
    of it is like that of a simulation.  A run that was stopped continues when
    the same command is given again with its --out.

    [dim]unskew deploy examples/deploy.toml --local 3 --check-parity[/]
    """
    _require()
    from unskew.deploy import operate, parity
    from unskew.run.folder import read_json

    chosen = _experiment(experiment, settings, data_dir)
    folder = out or Path("runs") / f"{as_file(chosen.name)}-deployed-{datetime.now():%Y%m%d-%H%M%S}"
    say = _say(quiet)
    if check_parity:
        parity.comparable(chosen)
    if not quiet:
        tell(f"run folder: {folder}")
    run = operate.local(chosen, clients, folder, say, force=force)
    checks: list[Parity] = []
    if check_parity:
        say("simulating the same experiment")
        checks = parity.compare(run, parity.simulate(chosen, folder / "deploy" / "simulated"))
    summary = read_json(run / "summary.json")
    if as_json:
        print(json.dumps({"methods": [p.to_json() for p in checks]}) if check_parity else results_json(summary))
    else:
        _show(run, checks)
    if report:
        from unskew.report import write_report

        print(f"report: {write_report(run)}", file=sys.stderr)
    if not all(p.equal for p in checks):
        raise typer.Exit(1)
    if not as_json:
        then("card", run)


def _experiment(name: str, settings: list[str] | None, data_dir: Path | None = None) -> "Experiment":
    chosen = load_own(name, located(settings, data_dir))
    if chosen.task.data_dir is not None:  # it is read by processes in other working directories
        chosen = replace(chosen, task=replace(chosen.task, data_dir=str(Path(chosen.task.data_dir).resolve())))
    return chosen


def _show(run: Path, checks: "list[Parity]") -> None:
    from unskew.report import read

    print_results(read(run))
    if checks:
        rows = [(p.method, f"{p.max_abs_diff:g}", "equal" if p.bytes_equal else "differ") for p in checks]
        print_table("deployed beside simulated", ["method", "largest difference", "bytes"], rows, words=[2])


@deploy.command()
def pack(
    context: typer.Context,
    experiment: Annotated[str | None, typer.Argument()] = None,
    host: Annotated[
        str, typer.Option(help="Name or address under which clients reach the server; by default on this machine only.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The server's one port.")] = 8443,
    listen: Annotated[
        str | None,
        typer.Option(help="Address the server listens at; default the host's on loopback, else all of the machine's."),
    ] = None,
    names: Annotated[
        list[str] | None, typer.Option("--name", help="Another name of the server for its certificate; may repeat.")
    ] = None,
    clients: Annotated[
        int | None,
        typer.Option(min=1, help="How many take part, with --own-data; else as many as the split has."),
    ] = None,
    own_data: Annotated[
        bool, typer.Option("--own-data", help="Each client has data of its own, and says where when it starts.")
    ] = False,
    min_clients: Annotated[int | None, typer.Option(min=1, help="The run begins with so many; default all.")] = None,
    deadline: Annotated[float, typer.Option(help="Seconds a client has to answer.")] = 600.0,
    wait: Annotated[float, typer.Option(help="Seconds the server waits for clients at the start.")] = 3600.0,
    out: Annotated[Path | None, typer.Option(help="The federation's folder; default federation-NAME.")] = None,
    settings: Settings = None,
    renew: Annotated[
        Path | None, typer.Option("--renew", metavar="FOLDER", help="Sign another server certificate, and no more.")
    ] = None,
) -> None:
    """Write a folder for the server and one for each client: keys, certificates, settings, three commands.

    EXPERIMENT is a TOML file or a built-in name.  Each folder goes to one
    machine, over a channel that keeps it secret; its README says the rest.

    Clients bring data of their own with [bold]--own-data[/]; without it each takes its part of the
    experiment's own data, a dry run.

    [dim]unskew deploy pack my.toml --host fed.example.org --clients 3 --own-data --out federation[/]
    [dim]unskew deploy pack my.toml --host fed.example.org --out trial[/]
    [dim]unskew deploy pack --renew federation[/]
    """
    _require()
    from unskew import schema
    from unskew.deploy import folders, operate, signing
    from unskew.deploy.reach import listening_for
    from unskew.deploy.settings import Address, ServerConfig
    from unskew.experiment.config import own_modules

    if renew is not None:
        only(context, ("renew", "names"), "--renew signs for what was signed before, and --name")
        if experiment is not None:
            raise typer.BadParameter("--renew signs for what was signed before, and --name; leave EXPERIMENT out")
        server = folders.renew(renew, names or [])
        print(f"signed: copy {server / 'server.crt'} and {server / 'server.key'} to the server and start it again")
        return
    if experiment is None:
        raise typer.BadParameter("name an experiment, or a federation to --renew")
    chosen = _experiment(experiment, settings)
    operate.refuse_undeployable(chosen)
    if own_data:
        if clients is None:
            raise typer.BadParameter("--own-data goes with --clients")
        # The server alone reads the experiment's, in whatever folder it is started.
        chosen = replace(chosen, task=replace(chosen.task, data=folders.placed(chosen.task.data)))
        operate.check_own_tables(chosen)
    number = clients or operate.clients_of(chosen)
    if clients and not own_data:
        try:
            operate.check_clients(chosen, clients)
        except DataError as error:
            tell(f"warning: this machine cannot tell whether the split has {counted(clients, 'client')}: {error}")
    settings_of_server = {"min_clients": min_clients or number, "deadline_s": deadline, "wait_s": wait}
    config = schema.build(ServerConfig, {**settings_of_server, "own_data": own_data}, "")
    with suppress(DataError):  # the experiment's own data may lie on the server only, whose --check says the same then
        operate.check_methods(chosen, config, number)
    folder = out or Path(f"federation-{as_file(chosen.name)}")
    folders.pack(
        folder,
        chosen,
        number,
        Address(listen or listening_for(host), port),
        Address(host, port),
        names=names or [],
        config=config,
    )
    theirs = f"{folder / 'client-0'} to {number - 1} for {number} clients" if number > 1 else f"{folder / 'client-0'}"
    print(f"packed: {folder / 'server'} for the server, {theirs}{' for its only client' * (number == 1)}")
    print(f"keep {folder / 'authority'} to yourself: it signs server certificates and clients' folders")
    print(f"fingerprint to read to each participant by telephone: {signing.fingerprint_of(folder / 'client-0')}")
    modules = ", ".join(own_modules(chosen))
    if modules:
        tell(
            f"warning: the experiment names code of your own, which is not packed: {modules}; send it to each "
            "participant apart, and have it installed on every machine, the server's too; clients are started with "
            "--allow-code, as their READMEs say"
        )
    then("deploy", "server", folder / "server", "--check")


@deploy.command()
def server(
    folder: Annotated[Path, typer.Argument()],
    check: Check = False,
    force: Force = False,
    report: Report = True,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run the server of a packed federation until its run is done; given again it continues the run.

    FOLDER is the server's, as [bold]unskew deploy pack[/] made it.  The run begins when all
    clients have appeared, or min_clients of server.toml; results are in FOLDER/run.

    [dim]unskew deploy server federation/server --check[/]
    [dim]unskew deploy server federation/server[/]
    """
    _require()
    from unskew.deploy import operate
    from unskew.deploy.settings import ServerConfig
    from unskew.run.folder import read_json

    if check:
        operate.check_version(folder / "server.toml", ServerConfig)
        listen = operate.check_serving(folder, read_data=True)
        print(f"ready: would listen at {listen}", file=sys.stderr if as_json else sys.stdout)
        then("deploy", "server", folder)
        return
    run = operate.serve(folder, _say(quiet), force)
    summary = read_json(run / "summary.json")
    if as_json:
        print(results_json(summary))
    else:
        _show(run, [])
    if report:
        from unskew.report import write_report

        print(f"report: {write_report(run)}", file=sys.stderr)
    if not as_json:
        then("card", run)


@deploy.command()
def client(
    folder: Annotated[Path, typer.Argument()],
    check: Check = False,
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
) -> None:
    """Run a client of a packed federation until it is stopped.

    FOLDER is the client's, as [bold]unskew deploy pack[/] made it.  The client waits
    for the server, and restarts what ends.  It reads what [bold]--data[/] names and
    nothing that the coordinator has chosen; code that the coordinator's
    experiment names is imported with [bold]--allow-code[/] only.

    [dim]unskew deploy client client-0 --data csv:/srv/ward-7.csv --check[/]
    [dim]unskew deploy client client-0 --data csv:/srv/ward-7.csv[/]
    """
    _require()
    from unskew.deploy import operate
    from unskew.deploy.settings import ClientConfig, Site, absolute

    site = Site(None if data is None else absolute(data), separator, thousands, decimal, encoding, allow_code)
    for variable, path in (("UNSKEW_POLICY", policy), ("UNSKEW_DATA", data_dir)):
        if path is not None:
            os.environ[variable] = str(path.absolute())  # for the processes that this one starts, too
    if check:
        from unskew.deploy.client import open_client

        operate.check_signature(folder, silent if quiet else tell, site, remember=False)
        operate.check_version(folder / "client.toml", ClientConfig)
        if allow_code:
            find_own_code()
        runtime = open_client(folder.absolute(), site)
        operate.check_taking_part(folder)
        print(f"ready: client {runtime.client} can read its data, the server answers with a good certificate")
        then("deploy", "client", folder, *(() if data is None else ("--data", data)))
        return
    operate.take_part(folder, _say(quiet), site)
