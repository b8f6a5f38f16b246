"""`unskew bench`: measurements of unskew itself."""

import importlib
import inspect
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from unskew.cli.options import tell
from unskew.cli.tables import print_table
from unskew.errors import ConfigError, did_you_mean

BENCHES = {
    "engine": ("engine:measure", "Samples per second against plain PyTorch; with --device cuda against a loop"),
    "scale": ("scale:measure", "Seconds and memory of split, round, evaluation, run and report by clients"),
    "cluster": ("cluster:measure", "Rounds by a local Ray beside worker processes, and the actors of one driver"),
    "feddw": ("feddw:measure", "CPU time of a local epoch with FedDW's term, beside FedAvg's"),
    "deploy": ("deploy:measure", "Seconds of an exchange over a network on this machine, beside Flower and NVFlare"),
    "security": ("security:measure", "Balanced accuracy of the mean and of robust means by attack"),
}
"""Each measurement's function in `unskew.bench`, and what it measures."""

HELP = "\n\n".join(
    (
        "Measure unskew itself: ratios within one process, never a test.  NAME is one of:",
        *(f"[bold]{name}[/]: {about}" for name, (_, about) in BENCHES.items()),
        "[dim]unskew bench engine --only W2[/]",
    )
)
NUMBERS = ("value", "deviation", "peak_gb", "ratio", "low", "high", "ratio_of_medians", "ratio_of_minima", "bar")
COLUMNS = ("case", "what", "contender", "value", "unit", *NUMBERS[1:])


def bench(
    name: Annotated[str, typer.Argument()],
    only: Annotated[
        list[str] | None, typer.Option(help="A case, a network or an attack, such as W2 or ALIE; repeatable.")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option("--repeats", "--turns", min=1, help="Turns of each contender after one to warm up.")
    ] = None,
    population: Annotated[list[int] | None, typer.Option(min=2, help="Clients there are; repeatable.")] = None,
    cohort: Annotated[list[int] | None, typer.Option(min=1, help="Clients of a round; repeatable.")] = None,
    clients: Annotated[int | None, typer.Option(min=1)] = None,
    rounds: Annotated[int | None, typer.Option(min=0)] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds to average over.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, or cuda for the stacked executor.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with federated/ and mnist/; else digits.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Folder for a figure and a table of each suite.")] = None,
    quick: Annotated[bool | None, typer.Option("--quick", help="A trial that measures next to nothing.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the rows there, as JSON.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help='Print {"rows": [...]} on stdout, and no more there.')
    ] = False,
) -> None:
    """Measure what `name` stands for, with those of the options that it takes."""
    if name not in BENCHES:
        raise ConfigError(f"there is no bench {name!r}{did_you_mean(name, BENCHES)}; take {', '.join(BENCHES)}")
    if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):  # before minutes of measuring
        raise ConfigError(f"--out {out} is a folder, or in none that is there; choose another file")
    options: dict[str, Any] = {
        "only": None if only is None else tuple(only),
        "repeats": repeats,
        "population": None if population is None else sorted(population),
        "cohort": None if cohort is None else sorted(cohort),
        "clients": clients,
        "rounds": rounds,
        "seeds": seeds,
        "device": device,
        "data_dir": data_dir,
        "figures": figures,
        "quick": quick,
    }
    given = {option: value for option, value in options.items() if value is not None}
    (target, title) = BENCHES[name]
    module, _, function = target.partition(":")
    measure = getattr(importlib.import_module(f"unskew.bench.{module}"), function)
    taken = [option for option in options if option in inspect.signature(measure).parameters]
    if strangers := [option for option in given if option not in taken]:
        known = ", ".join(f"--{option.replace('_', '-')}" for option in taken)
        raise ConfigError(f"bench {name} has no --{strangers[0].replace('_', '-')}; it has {known}")
    rows = measure(**given, say=tell)
    document = json.dumps({"rows": rows}, indent=None if as_json else 1)
    if as_json:
        print(document)
    else:
        head = [c for c in COLUMNS if any(c in r for r in rows)]
        cells = [[f"{r[c]:,.4g}" if isinstance(r.get(c), float) else str(r.get(c, "")) for c in head] for r in rows]
        print_table(title, head, cells, words=[k for k, c in enumerate(head) if c not in NUMBERS])
    if out is not None:  # last: what was measured is shown even if it cannot be written
        from unskew.files import write_atomically
        from unskew.run.folder import explained

        with explained(out, None):
            write_atomically(out, document + "\n")
