"""Seconds and memory by the number of clients: split, round, evaluation, a whole run, and its report.

Ten examples a client, twenty inputs, ten classes, logistic regression: what remains is what each client costs.  Each
population is measured in a process of its own, whose peak memory is read after every stage.

    split        dividing the examples, and each client's among train, validation and test
    round        training a cohort and averaging, the fastest of several rounds
    evaluation   one model on the global test set and on every client's own test examples, the fastest of several
    run          five rounds with an evaluation after each, from the data in memory to a finished folder
    report       report.html of that folder

The slope is the power of the number of clients with which seconds grow, between populations (or cohorts): 1 is a cost
for each client, 0 none.
"""

import itertools
import math
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from unskew.bench.toolkit import BenchRow, Say, in_a_process, seconds_row, threads
from unskew.data import Dataset, checked
from unskew.data.federated import federate
from unskew.decide.forecast.measure import timed
from unskew.experiment import config
from unskew.keys import Key
from unskew.machine import peak_resident
from unskew.run import loop
from unskew.run.evaluation import eval_set, evaluate
from unskew.run.setup import Backend, InMemoryInputs, PreparedRun, simulator

POPULATIONS = (100, 10_000, 100_000, 1_000_000)
COHORTS = (10, 100, 1000)
QUICK = ((20, 60), (5,))
"""Populations and cohorts of a trial in a second, which measures nothing but that it runs."""
EXAMPLES, INPUTS, CLASSES, ROUNDS = 10, 20, 10, 5
TESTED = 10_000


def measure(
    population: Sequence[int] = POPULATIONS, cohort: Sequence[int] = COHORTS, quick: bool = False, say: Say = print
) -> list[BenchRow]:
    """Measure each population, as rows of the benchmark's JSON: seconds and peak memory by stage, then slopes.

    Args:
        population: Numbers of clients.
        cohort: Clients of a round; those above a population are left out.
        quick: Measure two tiny populations in this process, in place of these, without the report: its figures take
            seconds.
        say: Is called with a line for each population.
    """
    if quick:
        population, cohort = QUICK
    rows: list[BenchRow] = []
    for clients in population:
        part = partial(_population, clients, cohort, reports=not quick)
        measured = part() if quick else in_a_process(part, f"measuring {clients:,} clients")
        say("  ".join(f"{r['case']} {r['what']} {r['value']:.3g} {r['unit']}" for r in measured))
        rows += measured
    return rows + slopes(rows)


def slopes(rows: Sequence[BenchRow]) -> list[BenchRow]:
    """The power of the number of clients that seconds grow with, between neighbouring populations and cohorts.

    >>> slopes([{"what": "split", "clients": n, "value": 2.0 * n, "unit": "s"} for n in (100, 1000)])[0]["value"]
    1.0
    """
    by_size: dict[tuple[str, str], dict[int, float]] = {}
    for row in (row for row in rows if row["unit"] == "s"):
        what, cohort, clients = row["what"], row.get("cohort"), row["clients"]
        by_size.setdefault((what, f", {cohort:,} a round" if cohort else ""), {})[clients] = row["value"]
        if cohort:
            by_size.setdefault((what, f" a round of {clients:,}"), {})[cohort] = row["value"]
    return [
        {"case": f"{few:,} to {many:,}{among}", "what": f"slope of {what}", "value": round(slope, 6), "unit": "1"}
        for (what, among), seconds in by_size.items()
        for few, many in itertools.pairwise(sorted(seconds))
        for slope in [math.log(seconds[many] / seconds[few]) / math.log(many / few)]
    ]


def _population(clients: int, cohorts: Sequence[int], reports: bool) -> list[BenchRow]:
    """Rows of one population."""
    dataset, cohorts = _data(clients), [c for c in cohorts if c <= clients] or [clients]
    experiment = _experiment(clients, max(cohorts))
    (method,) = experiment.methods
    rows: list[BenchRow] = []

    def note(what: str, seconds: Sequence[float], cohort: int | None = None) -> None:
        case = f"{clients:,} clients" + (f", {cohort:,} a round" if cohort else "")
        asked = {} if cohort is None else {"cohort": cohort}
        rows.append(seconds_row(case, what, seconds, clients=clients, peak_gb=peak_resident() / 1e9, **asked))

    with threads(1), tempfile.TemporaryDirectory() as scratch:
        began = time.perf_counter()
        fed = federate(dataset, experiment.split, Key(0) / "data")
        note("split", [time.perf_counter() - began])
        backend = Backend(InMemoryInputs(dataset=dataset))
        setup = backend.prepare(experiment)
        for cohort in cohorts:
            sim, _ = simulator(PreparedRun(_experiment(clients, cohort), setup, {0: fed}), method, 0)
            state, seconds = sim.start(), []
            for t in range(1, 4):
                began = time.perf_counter()
                state, _ = sim.round(state, t)
                seconds.append(time.perf_counter() - began)
            note("round", seconds, cohort)
        examples = eval_set(setup.task, fed, setup.device)
        evaluation = partial(evaluate, sim, state, 3, examples, ("global", "personal"), last=False)
        note("evaluation", [timed(evaluation) for _ in range(3)])
        del fed, sim, examples, evaluation
        folder = Path(scratch) / "run"
        note("run", [timed(lambda: loop.start(experiment, folder, backend=backend))], max(cohorts))
        if reports:
            from unskew.report import write_report

            note("report", [timed(lambda: write_report(folder))])
        written = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) / 1e6
        rows.append(
            {"case": f"{clients:,} clients", "what": "folder", "clients": clients, "value": written, "unit": "MB"}
        )
    return rows


def _experiment(clients: int, cohort: int) -> config.Experiment:
    local = {"lr": 0.05, "batch_size": EXAMPLES, "local_epochs": 1}
    return config.parse(
        {
            "name": "scale",
            "rounds": ROUNDS,
            "clients_per_round": cohort,
            "task": {"data": "run:data.npz", "model": "logistic"},
            "split": {"name": "iid", "num_clients": clients},
            "runtime": {"executor": "sequential", "device": "cpu"},
            "methods": [{"name": "fedavg", "local": local}],
        }
    )


def _data(clients: int) -> Dataset:
    """Random inputs whose label is that of the nearest of ten random directions."""
    n, key = EXAMPLES * clients, Key(0) / "scale"
    x = torch.randn(n + TESTED, INPUTS, generator=(key / "x").generator())
    y = (x @ torch.randn(INPUTS, CLASSES, generator=(key / "directions").generator())).argmax(1)
    names: Any = tuple(map(str, range(CLASSES)))
    return checked("scale", x[:n], y[:n], x[n:], y[n:], classes=names)
