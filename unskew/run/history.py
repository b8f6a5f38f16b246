"""The library's face: an experiment in one call, and its history as rows.

history = simulate({"FedAvg": FedAvg(), "FedProx": fedprox(mu=0.1)}, split=Dirichlet(alpha=0.1), rounds=20)
print(history)                      # the table of results
pandas.DataFrame(history.rows)      # every number of every round
"""

import dataclasses
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unskew import algorithms
from unskew.data.split import Dirichlet, Split
from unskew.errors import ConfigError
from unskew.run import config, folder, loop, schema
from unskew.run.config import Experiment, Method, Runtime, Stop, TaskConfig, World
from unskew.tree import is_record


@dataclass(frozen=True, eq=False)
class History:
    """What a run measured.

    Attributes:
        rows: {"method", "seed", "round", "name", "value", "weight", "client"?}, one per number.
        summary: The table of results, as in summary.json.
        path: The run's folder; None if it was not kept.
    """

    rows: list[dict[str, Any]]
    summary: dict[str, Any]
    path: Path | None

    def curve(self, method: str, name: str = "global.accuracy") -> list[tuple[int, float]]:
        """(round, mean over seeds) of a metric.

        Raises:
            KeyError: If that method has no such metric.
        """
        found: dict[int, list[float]] = {}
        for row in self.rows:
            if (row["method"], row["name"]) == (method, name) and "client" not in row:
                found.setdefault(row["round"], []).append(row["value"])
        if not found:
            raise KeyError(f"no {name} of {method}")
        return [(t, sum(v) / len(v)) for t, v in sorted(found.items())]

    def value(self, method: str, metric: str = "global.accuracy") -> float:
        """Mean over seeds of a result; see the table of results for names.

        Raises:
            KeyError: If that method has no such result.
        """
        for row in self.summary["rows"]:
            if (row["method"], row["metric"]) == (method, metric):
                return float(row["mean"])
        raise KeyError(f"no {metric} of {method}")

    def __str__(self) -> str:
        """The table of results, as text."""
        return "\n".join("  ".join(cells) for cells in _table(self.summary))


def _table(summary: Mapping[str, Any]) -> list[tuple[str, ...]]:
    by = {(r["method"], r["metric"]): r for r in summary["rows"]}
    methods = list(dict.fromkeys(r["method"] for r in summary["rows"]))
    width = max([len(m) for m in methods] + [6])
    lines: list[tuple[str, ...]] = [("method".ljust(width), "global accuracy", "own test data  ", "      MB")]
    for m in methods:
        cells = [_percent(by.get((m, name))).ljust(15) for name in ("global.accuracy", "personal.accuracy.mean")]
        total = by.get((m, "bytes.total"))
        lines.append((m.ljust(width), *cells, f"{total['mean'] / 1e6:8.2f}" if total else ""))
    return lines


def _percent(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "-"
    return f"{100 * row['mean']:.1f} %" + ("" if row["std"] is None else f" ± {100 * row['std']:.1f}")


def simulate(
    methods: object | Sequence[object] | Mapping[str, object],
    *,
    data: str = "digits",
    model: str = "mlp",
    split: Split = Dirichlet(alpha=0.1, num_clients=20),
    rounds: int = 20,
    seeds: Iterable[int] = (0,),
    task: TaskConfig | None = None,
    bounds: bool = False,
    out: str | Path | None = None,
    watcher: loop.Watcher | None = None,
    fraction: float | None = None,
    clients_per_round: int | None = None,
    test_fraction: float = 0.2,
    val_fraction: float = 0.0,
    eval_every: int = 1,
    stop: Stop = Stop(),
    world: World = World(),
    runtime: Runtime = Runtime(),
) -> History:
    """Run methods on the same data, splits, cohorts and initial models.

    Args:
        methods: An algorithm, several, or {label: algorithm}; a string is a name from the table.
        data, model: Where the examples come from and what is trained; `task` overrides both.
        split: Who holds what.
        rounds, seeds: How long, and how often.
        task: Data and model with all their settings.
        bounds: Add training alone, FedAvg, and pooled data.
        out: Keep the run folder there, with its report; by default only the numbers are kept.
        watcher: Sees every round.
        fraction, clients_per_round: Cohort size.
        test_fraction, val_fraction: Parts of each client's data kept from training.
        eval_every: Rounds between evaluations.
        stop, world, runtime: As in a configuration file.

    Raises:
        ConfigError, DataError: If the experiment is impossible.
        RunError: If `out` exists or cannot be written.
    """
    chosen = _methods(methods)
    experiment = Experiment(
        methods=tuple(config.with_bounds(chosen, _local_of(chosen)) if bounds else chosen),
        rounds=rounds,
        seeds=tuple(seeds),
        name=Path(out).name if out is not None else "simulation",
        task=task or TaskConfig(data=data, model=model),
        split=split,
        fraction=fraction,
        clients_per_round=clients_per_round,
        test_fraction=test_fraction,
        val_fraction=val_fraction,
        eval_every=eval_every,
        stop=stop,
        world=world,
        runtime=runtime,
    )
    check(experiment)
    if out is not None:
        return history(loop.start(experiment, Path(out), watcher))
    with tempfile.TemporaryDirectory(prefix="unskew-") as place:
        return dataclasses.replace(history(loop.start(experiment, Path(place) / "run", watcher)), path=None)


def history(outcome: loop.Outcome) -> History:
    """The history of a run that is done."""
    rows = list(folder.rows(outcome.folder / "metrics.jsonl"))
    return History(rows, outcome.summary, outcome.folder)


def check(experiment: Experiment) -> None:
    """Put values made in Python under the same checks as a file's.

    Raises:
        ConfigError: Naming the setting, what was expected and what was got.
    """
    schema.checked(Experiment, _settings(experiment, skip=("methods", "split")), "", skip=("methods", "split"))
    schema.checked(type(experiment.split), _settings(experiment.split), "split")
    for method in experiment.methods:
        schema.checked(type(method.algorithm), _settings(method.algorithm), method.label)


def _settings(value: Any, skip: Sequence[str] = ()) -> dict[str, Any]:
    known = schema.parameters(type(value), skip)
    table = {n: config.plain(getattr(value, n)) for n in known}
    return {n: v for n, v in table.items() if v is not None}


def _methods(methods: object) -> list[Method]:
    if isinstance(methods, Mapping):
        return [_method(m, str(label)) for label, m in methods.items()]
    if isinstance(methods, list | tuple):
        return [_method(m) for m in methods]
    return [_method(methods)]


def _method(value: object, label: str | None = None) -> Method:
    if isinstance(value, str):
        return config.method(value, {}, label)
    if not is_record(value) or not hasattr(value, "round"):
        raise ConfigError(
            f"a method is an algorithm (a frozen dataclass with a round) or the name of one, got {value!r}"
        )
    kind = type(value)
    target = f"{kind.__module__}:{kind.__qualname__}"
    name = next((n for n, entry in algorithms.TABLE.items() if entry.target == target), target)
    return Method(label or name.rpartition(":")[2], name, _settings(value), value)


def _local_of(methods: Sequence[Method]) -> dict[str, Any]:
    """The first method's local optimisation: what the bounds are given too."""
    return next((dict(m.options["local"]) for m in methods if "local" in m.options), {})
