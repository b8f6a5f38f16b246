"""`unskew bench`: measurements of unskew itself."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from unskew.cli.options import tell
from unskew.errors import ConfigError

bench = typer.Typer(no_args_is_help=True, help="Measure unskew itself: ratios within one process, never a test.")

AsJson = Annotated[bool, typer.Option("--json", help='Print {"rows": [...]} on stdout, and nothing else there.')]


def _writable(out: Path | None) -> Path | None:
    """Check that the file can be written, before minutes of measuring rather than after."""
    if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):
        raise typer.BadParameter(f"{out} is a folder, or in none that is there; choose another file")
    return out


Out = Annotated[Path | None, typer.Option(help="Also write the rows there, as JSON.", callback=_writable)]


@bench.command()
def engine(
    only: Annotated[
        list[str] | None, typer.Option("--only", help="A workload (W2) or a case (W2/b50/c100); repeat for several.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds per contender after one to warm up.")] = 5,
    device: Annotated[str, typer.Option(help="cpu, or cuda for the stacked executor.")] = "cpu",
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Samples per second of the executors against plain PyTorch (L1), contenders taking turns.

    [dim]unskew bench engine --only W2[/]
    """
    from unskew.bench.engine import measure

    chosen = tuple(only or ())
    rows = measure(repeats, chosen, tell) if device == "cpu" else _cuda(repeats, chosen, device)
    _show(rows, out, as_json, "samples per second against plain PyTorch")


def _cuda(repeats: int, only: tuple[str, ...], device: str) -> list[dict[str, Any]]:
    from unskew.bench.gpu import measure
    from unskew.run.setup import choose_device

    return measure(choose_device(device), repeats, only, tell)


@bench.command()
def scale(
    population: Annotated[
        list[int] | None,
        typer.Option("--population", min=2, help="Clients there are; repeat for several. By default up to 1,000,000."),
    ] = None,
    cohort: Annotated[
        list[int] | None, typer.Option("--cohort", min=1, help="Clients of a round; repeat for several.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A second's trial of two tiny populations.")] = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Seconds and memory of split, round, evaluation, run and report by the number of clients, and their slopes.

    [dim]unskew bench scale --population 10000 --population 100000[/]
    """
    from unskew.bench.scale import COHORTS, POPULATIONS, measure

    if quick and (population or cohort):
        raise ConfigError("--quick has populations and cohorts of its own; leave out --population and --cohort")
    rows = measure(sorted(population or POPULATIONS), sorted(cohort or COHORTS), quick, tell)
    _show(rows, out, as_json, "seconds, and gigabytes of memory so far")


@bench.command()
def cluster(
    only: Annotated[
        list[str] | None, typer.Option("--only", help="W2/b16/c100, W3/b50/c10, W4/b64/c10, actors or sum; repeatable.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds per contender after one to warm up.")] = 5,
    actors: Annotated[
        list[int] | None, typer.Option("--actors", min=1, help="Actors of a simulated cluster; repeat for several.")
    ] = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Rounds by a local Ray beside worker processes, and how many actors one driver keeps busy.

    [dim]unskew bench cluster --only W2/b16/c100[/]
    """
    from unskew.bench.cluster import ACTORS, measure

    rows = measure(repeats, tuple(only or ()), sorted(actors or ACTORS), tell)
    _show(rows, out, as_json, "seconds of a round, clients a second, and what the driver spends")


@bench.command()
def soak(
    rounds: Annotated[int, typer.Option(min=4)] = 500,
    every: Annotated[
        int | None, typer.Option(min=1, help="Rounds between two readings; a tenth of them, if it is not given.")
    ] = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Memory of the whole process tree over many rounds: it should stay flat.

    [dim]unskew bench soak --rounds 500[/]
    """
    from unskew.bench.soak import measure

    _show(measure(rounds, every or max(rounds // 10, 1), tell), out, as_json, "memory")


@bench.command()
def memory(
    cohort: Annotated[
        list[int] | None, typer.Option("--cohort", min=1, help="Clients in a round; repeat for several.")
    ] = None,
    width: Annotated[int, typer.Option(min=1, help="Units of both hidden layers; 2800 is ten million numbers.")] = 2800,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Peak memory of a round by the number of its clients: with replies that are folded it should hardly grow.

    [dim]unskew bench memory --cohort 10 --cohort 200[/]
    """
    from unskew.bench.cohort import measure

    _show(measure(sorted(cohort or (10, 50, 200)), width, tell), out, as_json, "peak memory of one round")


@bench.command()
def auction(
    clients: Annotated[int, typer.Option(min=2, help="Clients, and as many models.")] = 1000,
    repeats: Annotated[int, typer.Option(min=1, help="Repeats of what is fast.")] = 5,
    rounds: Annotated[int, typer.Option(min=0, help="Communication rounds of the simulation; 0 leaves it out.")] = 300,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """FedDif's auction: weights and matching against a plain double loop, and a simulation in which training is free.

    [dim]unskew bench auction --rounds 0[/]
    """
    from unskew.bench.auction import measure

    _show(measure(clients, repeats=repeats, rounds=rounds, say=tell), out, as_json, "seconds, and times the plain loop")


@bench.command()
def partition(
    clients: Annotated[int, typer.Option(min=1)] = 1000,
    parameters: Annotated[int, typer.Option(min=1, help="Numbers in each client's gradient.")] = 1_000_000,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """HCCT's partition with its Gram matrix; and, at a size where that ends, beside Algorithm 2 as printed.

    [dim]unskew bench partition --clients 100[/]
    """
    from unskew.bench.partition import measure

    _show(measure(clients, parameters, tell), out, as_json, "seconds, and times the printed algorithm")


@bench.command()
def feddw(
    only: Annotated[list[str] | None, typer.Option("--only", help="A network (cnn_mnist); repeat for several.")] = None,
    turns: Annotated[int, typer.Option(min=1, help="Epochs per contender; a sixth of it for large networks.")] = 60,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """FedDW's class-relation term and its soft labels beside FedAvg's epoch, in CPU time.

    [dim]unskew bench feddw --only cnn_mnist[/]
    """
    from unskew.bench.feddw import measure

    _show(measure(turns, tuple(only or ()), tell), out, as_json, "CPU time of a local epoch, and times FedAvg's")


@bench.command()
def precision(
    only: Annotated[list[str] | None, typer.Option("--only", help="A network (cnn_4); repeat for several.")] = None,
    turns: Annotated[int, typer.Option(min=1, help="Epochs per contender.")] = 20,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """A local epoch in bfloat16 beside the same in float32, in CPU time.

    [dim]unskew bench precision --only cnn_4[/]
    """
    from unskew.bench.precision import measure

    _show(measure(turns, tuple(only or ()), tell), out, as_json, "CPU time of a local epoch, and times that in float32")


@bench.command()
def prior(
    source: Annotated[str, typer.Option(help="built-in, a folder, or hub:OWNER/NAME.")] = "built-in",
    steps: Annotated[int, typer.Option(min=1, help="Steps of the inversions that are timed.")] = 20,
    repeats: Annotated[int, typer.Option(min=1, help="Turns of each contender after one to warm up.")] = 5,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Seconds per embedding and images per second of a prior, batched against one at a time, in CPU time.

    [dim]unskew bench prior[/]
    """
    from unskew.bench.prior import measure

    _show(measure(source, steps, repeats=repeats, say=tell), out, as_json, "CPU time, and times one at a time")


@bench.command()
def deploy(
    only: Annotated[list[str] | None, typer.Option("--only", help="A size of the model: 10kB, 50MB.")] = None,
    clients: Annotated[int, typer.Option(min=1, help="Each a process of its own.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Timed, after one that is not.")] = 5,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Seconds of a round over gRPC on this machine, beside the simulator's, for two sizes of model.

    [dim]unskew bench deploy --only 10kB --rounds 3[/]
    """
    from unskew.bench.deploy import measure

    _show(measure(clients, rounds, tuple(only or ()), tell), out, as_json, "seconds of a round, and times simulated")


@bench.command()
def security(
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Folder with federated/ and mnist/; else digits.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option("--only", help="An attack (ALIE); repeat for several.")] = None,
    figures: Annotated[
        Path | None, typer.Option("--figures", help="Folder for a figure and a table of each suite.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Two rounds, one share of malicious clients.")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds to average over.")] = 1,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Accuracy of the mean and of robust means by attack and share of malicious clients.

    [dim]unskew bench security --quick --only ALIE[/]
    """
    from unskew.bench.security import figure, measure, table

    rows = measure(data_dir, tuple(only or ()), quick, tell, seeds)
    if figures is not None:
        figures.mkdir(parents=True, exist_ok=True)
        for suite in dict.fromkeys(row["case"].split("/")[0] for row in rows):
            (figures / f"attacks-{suite}.svg").write_text(figure(rows, suite), "utf-8")
            (figures / f"attacks-{suite}.md").write_text(table(rows, suite), "utf-8")
    _show(rows, out, as_json, "balanced accuracy, and how often a backdoor opens")


def _show(rows: list[dict[str, Any]], out: Path | None, as_json: bool, title: str) -> None:
    document = json.dumps({"rows": rows}, indent=None if as_json else 1)
    if as_json:
        print(document)
    else:
        _print(rows, title)
    if out is not None:  # last: what was measured is shown even if it cannot be written
        from unskew.files import write_atomically
        from unskew.run.folder import explained

        with explained(out, None):
            write_atomically(out, document + "\n")


def _print(rows: list[dict[str, Any]], title: str) -> None:
    numbers = ("value", "deviation", "peak_gb", "ratio", "low", "high", "ratio_of_medians", "ratio_of_minima", "bar")
    order = ("case", "what", "contender", "value", "unit", *numbers[1:])
    columns = [c for c in order if any(c in r for r in rows)]
    table = Table(title=title, box=SIMPLE, padding=(0, 1))
    for c in columns:
        table.add_column(c, justify="right" if c in numbers else "left")
    for r in rows:
        table.add_row(*(f"{r[c]:,.4g}" if isinstance(r.get(c), float) else str(r.get(c, "")) for c in columns))
    Console().print(table)
