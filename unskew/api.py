"""The library's face: an experiment in one call, and its history as rows.

history = simulate({"FedAvg": FedAvg(), "FedProx": FedProx(mu=0.1)}, split=Dirichlet(alpha=0.1), rounds=20)
print(history)                      # the table of results; a notebook shows it by itself
history.to_pandas()                 # every number of every round, a row each
"""

import dataclasses
import html
import importlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic
import torch

from unskew import algorithms
from unskew.data.split import SPLITS, Dirichlet, Split
from unskew.errors import ConfigError
from unskew.experiment import config, schema
from unskew.experiment.config import Experiment, Method, Runtime, Stop, TaskConfig, World
from unskew.run import callbacks, folder, loop
from unskew.tree import is_record

if TYPE_CHECKING:
    import pandas


def of_all_seeds(values: Mapping[int, Sequence[float]]) -> list[int]:
    """The rounds that have a value of every seed, in order: a mean over those left says nothing of learning."""
    seeds = max(map(len, values.values()))
    return sorted(t for t, of in values.items() if len(of) == seeds)


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
        """(round, mean over seeds) of a metric, in the rounds that all seeds came to.

        Raises:
            KeyError: If that method has no such metric.
        """
        found: dict[int, list[float]] = {}
        for row in self.rows:
            if (row["method"], row["name"]) == (method, name) and "client" not in row:
                found.setdefault(row["round"], []).append(row["value"])
        if not found:
            raise KeyError(f"no {name} of {method}")
        return [(t, sum(found[t]) / len(found[t])) for t in of_all_seeds(found)]

    def value(self, method: str, metric: str = "global.accuracy") -> float:
        """Mean over seeds of a result; see the table of results for names.

        Raises:
            KeyError: If that method has no such result.
        """
        for row in self.summary["rows"]:
            if (row["method"], row["metric"]) == (method, metric):
                return float(row["mean"])
        raise KeyError(f"no {metric} of {method}")

    def to_pandas(self) -> "pandas.DataFrame":
        """Every number of every round as a pandas.DataFrame, a row each.

        Columns: method, seed, round, name, value, weight, and client, which is missing (pandas.NA) where a number is of
        no single client.

        Raises:
            ConfigError: If pandas is not installed.
        """
        try:
            frames = importlib.import_module("pandas")
        except ImportError as error:
            raise ConfigError(
                f"to_pandas needs pandas, which cannot be imported ({error}); pip install pandas, or use history.rows"
            ) from error
        columns = ("method", "seed", "round", "name", "value", "weight", "client")
        made: pandas.DataFrame = frames.DataFrame.from_records(
            [[row.get(column) for column in columns] for row in self.rows], columns=list(columns)
        )
        return made.astype({"client": "Int64"})

    def __str__(self) -> str:
        """The table of results, as text."""
        head, *rows = _table(self.summary)
        width = max(len(row[0]) for row in (head, *rows))
        return "\n".join(f"{m.ljust(width)}  {a.ljust(15)}  {p.ljust(15)}  {mb:>8}" for m, a, p, mb in (head, *rows))

    def _repr_html_(self) -> str:
        """The table of results, as a notebook shows it."""
        head, *rows = ([html.escape(cell) for cell in row] for row in _table(self.summary))
        cells = ["".join(f"<th>{cell}</th>" for cell in head)]
        cells += [f"<th>{row[0]}</th>{''.join(f'<td>{cell}</td>' for cell in row[1:])}" for row in rows]
        return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def _table(summary: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    by = {(r["method"], r["metric"]): r for r in summary["rows"]}
    lines = [("method", "global accuracy", "own test data", "MB")]
    for m in dict.fromkeys(r["method"] for r in summary["rows"]):
        total = by.get((m, "bytes.total"))
        shared, own = (_percent(by.get((m, name))) for name in ("global.accuracy", "personal.accuracy.mean"))
        lines.append((m, shared, own, f"{total['mean'] / 1e6:.2f}" if total else ""))
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
    track: Sequence[str] = (),
    callback: callbacks.Callback | None = None,
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

    What PyTorch is set to in this process, such as its number of threads, is as it was when this returns.

    Args:
        methods: An algorithm, several, or {label: algorithm}; a string is a name from the table.  The run of an
            algorithm that holds functions or classes of your own cannot be resumed: no file can describe them.
        data, model: Where the examples come from and what is trained; `task` overrides both.
        split: Who holds what.
        rounds, seeds: How long, and how often.
        task: Data and model with all their settings.
        bounds: Add training alone, FedAvg, and pooled data.
        out: Keep the run's folder there, for `unskew resume` and `unskew.report`; by default only the numbers are kept.
        track: Trackers that get the numbers too: tensorboard, mlflow, wandb.  They need `out`.
        watcher: Sees every round.
        fraction, clients_per_round: Cohort size.
        test_fraction, val_fraction: Parts of each client's data kept from training.
        eval_every: Rounds between evaluations.
        stop, world, runtime: As in a configuration file.

    Raises:
        ConfigError, DataError: If the experiment is impossible.
        RunError: If `out` exists or cannot be written, or (Interrupted) Ctrl-C stopped the run.
        DivergedError, QuorumError: If training fails, naming method, seed and round.
    """
    chosen = _methods(methods)
    settings = {
        "name": Path(out).name if out is not None else "simulation",
        "rounds": rounds,
        "seeds": list(seeds) if isinstance(seeds, Iterable) else seeds,
        "task": task if task is not None else {"data": data, "model": model},
        "fraction": fraction,
        "clients_per_round": clients_per_round,
        "test_fraction": test_fraction,
        "val_fraction": val_fraction,
        "eval_every": eval_every,
        "stop": stop,
        "world": world,
        "runtime": runtime,
        "track": list(track) if isinstance(track, tuple) else track,
    }
    experiment = Experiment(
        methods=tuple(config.with_bounds(chosen, _local_of(chosen)) if bounds else chosen),
        split=_split(split),
        **schema.checked(Experiment, _plain(settings), "", skip=("methods", "split")),
    )
    if experiment.track and out is None:
        raise ConfigError("track needs the run's folder, which is not kept without one; add out=FOLDER")
    with _torch_left_alone():
        if out is not None:
            return history(loop.start(experiment, Path(out), callback))
        with tempfile.TemporaryDirectory(prefix="unskew-") as place:
            try:
                return dataclasses.replace(history(loop.start(experiment, Path(place) / "run", callback)), path=None)
            except loop.Interrupted:
                raise loop.Interrupted("stopped by request; nothing is kept of a run without out=FOLDER") from None


@contextmanager
def _torch_left_alone() -> Iterator[None]:
    """A run sets how PyTorch works in this process; whoever called it gets back what was set before."""
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        now = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        if now != (strict, warns):  # setting it imports PyTorch's compiler, more than a second's work
            torch.use_deterministic_algorithms(strict, warn_only=warns)


def history(outcome: loop.RunResult) -> History:
    """The history of a run that is done."""
    rows = list(folder.rows(outcome.folder / "metrics.jsonl"))
    return History(rows, outcome.summary, outcome.folder)


# ---------------------------------------------------------------- values made in Python, under the checks of a file
def _split(split: object) -> Split:
    if type(split) not in SPLITS.values():
        kinds = ", ".join(kind.__name__ for kind in SPLITS.values())
        raise ConfigError(f"split must be one of {kinds}, as in Dirichlet(alpha=0.1, num_clients=20), got {split!r}")
    checked: Split = schema.build(type(split), _settings(split), "split")
    return checked


def _methods(methods: object) -> list[Method]:
    if isinstance(methods, Mapping):
        return [_method(m, _label(label)) for label, m in methods.items()]
    if isinstance(methods, list | tuple):
        return [_method(m) for m in methods]
    return [_method(methods)]


def _label(label: object) -> str:
    text = str(label)
    if not text.strip() or not text.isprintable() or len(text) > config.LONGEST_LABEL:
        raise ConfigError(
            f"a method's label must be a line of at most {config.LONGEST_LABEL} characters, got {schema.show(text)}"
        )
    return text


def _method(value: object, label: str | None = None) -> Method:
    if isinstance(value, str):
        return config.method(value, {}, label, label or "method")
    if not is_record(value) or not hasattr(value, "round"):
        raise ConfigError(
            f"a method is an algorithm (a frozen dataclass with a round) or the name of one, got {value!r}"
        )
    kind = type(value)
    added = [f"{name}+{word}" for word in algorithms.ADDITIONS for name in algorithms.TABLE]
    for name in (*algorithms.TABLE, *added, f"{kind.__module__}:{kind.__qualname__}"):
        options = _made_with(name, value)
        if options is not None:
            short = label or name.rpartition(":")[2]
            with suppress(pydantic.PydanticSchemaGenerationError):
                method = config.method(name, options, short, short)
                if _same(method.algorithm, value):  # not if a record inside holds code, which `options` leave out
                    return method
    # Code in it, such as a loss term, has no place in a file.  The name is none, so that resume refuses, not guesses.
    _check(value, label or kind.__name__)
    return Method(label or kind.__name__, f"made in Python:{kind.__qualname__}", _sayable(_settings(value)), value)


def _check(value: Any, place: str) -> None:
    """Check the settings of a record that no file can make, and of the records it holds."""
    held = {f.name: h for f in dataclasses.fields(value) if is_record(h := getattr(value, f.name))}
    theirs = {name for name, (hint, _) in schema.parameters(type(value)).items() if not _has_schema(hint)}
    options = {name: option for name, option in _settings(value).items() if name not in held and name not in theirs}
    schema.checked(type(value), options, place, skip={*held, *theirs})
    for name, record in held.items():
        _check(record, f"{place}.{name}")


def _has_schema(hint: Any) -> bool:
    """Whether a type can be checked at all; a stranger's own is for the stranger to check."""
    try:
        pydantic.TypeAdapter(hint)
    except pydantic.PydanticSchemaGenerationError:
        return False
    return True


def _sayable(value: Any) -> Any:
    """What a file can hold, with words for the rest."""
    if isinstance(value, Mapping):
        return {k: _sayable(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_sayable(v) for v in value]
    return value if isinstance(value, bool | int | float | str) else f"a {type(value).__qualname__}"


def _made_with(name: str, algorithm: Any) -> dict[str, Any] | None:
    """The options with which the algorithm called `name` equals this one; None if it is another."""
    said = _said(algorithm)
    try:
        target = algorithms.resolve(name)
        options = {key: said[key] for key in schema.parameters(target) if key in said}
        same = _same(target(**options), algorithm)
    except Exception:  # whatever a stranger's code says to settings that are not its own: it did not make this
        return None
    plain = {k: _plain(schema.NONE if v is None else v) for k, v in options.items()}
    return plain if same and plain == _sayable(plain) else None


def _same(made: object, algorithm: object) -> bool:
    return type(made) is type(algorithm) and bool(made == algorithm)


def _said(value: Any) -> dict[str, Any]:
    """Every setting in a record and in the records it holds; of two with one name, the outer."""
    inner: dict[str, Any] = {}
    own = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    for held in own.values():
        for record in held if isinstance(held, tuple) else (held,):
            if is_record(record):
                inner = {**_said(record), **inner}
    return {**inner, **own}


def _settings(value: Any) -> dict[str, Any]:
    """The fields of a record as a file has them, without code, which no file has."""
    return {
        name: _settings(held)
        if is_record(held := getattr(value, name))
        else _plain(schema.NONE if held is None else held)
        for name, (_, default) in schema.parameters(type(value)).items()
        if getattr(value, name) is not None or default is not None
    }


def _plain(value: Any) -> Any:
    """As JSON has it; NumPy's and PyTorch's numbers and arrays become Python's."""
    if is_record(value):
        return _settings(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _local_of(methods: Sequence[Method]) -> dict[str, Any]:
    """The first method's local optimisation: what the bounds are given too."""
    return next((dict(m.options["local"]) for m in methods if "local" in m.options), {})
