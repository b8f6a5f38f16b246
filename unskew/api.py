"""The library's interface: an experiment in one call, and its history as rows, a table and figures.

history = simulate({"FedAvg": FedAvg(), "FedProx": FedProx(mu=0.1)}, data=(x, y), model=network, rounds=20)
print(history)                      # the table of results; a notebook shows it by itself, with a figure
history.to_frame()                  # every number of every round, a row each
"""

import copy
import dataclasses
import html
import importlib
import inspect
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic
import torch
from torch import nn

from unskew import algorithms, schema
from unskew.data import own
from unskew.data.dataset import Dataset
from unskew.data.sources import load, save
from unskew.data.split import SPLITS, Dirichlet, Natural, Split
from unskew.errors import ConfigError, RunError
from unskew.experiment import config
from unskew.experiment.config import Experiment, Method, Runtime, Stop, TaskConfig, World
from unskew.models import IN_PYTHON
from unskew.protocol import SgdConfig
from unskew.record.logs import METRICS
from unskew.run import callbacks, loop
from unskew.run.folder import read_json
from unskew.run.models import load_model
from unskew.run.progress import watching
from unskew.run.setup import InMemoryInputs, InProcess, network
from unskew.tree import is_record

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

    from unskew.report.stats import Curve

HEADLINES = ("global.accuracy", "personal.accuracy.mean")
DATA_FILE = "data.npz"
RUN_DATA = f"run:{DATA_FILE}"


def of_all_seeds(values: Mapping[int, Sequence[float]]) -> list[int]:
    """The rounds in which every seed has a value, in order: a mean over fewer seeds says nothing about learning."""
    seeds = max(map(len, values.values()))
    return sorted(t for t, of in values.items() if len(of) == seeds)


class _Scratch:
    """A place for a run's folder that is removed with the last reference to this, or when Python ends."""

    def __init__(self) -> None:
        place = tempfile.mkdtemp(prefix="unskew-")
        self.folder = Path(place) / "run"
        self.remove = weakref.finalize(self, shutil.rmtree, place, ignore_errors=True)


@dataclass(frozen=True, eq=False, repr=False)
class History:
    """The numbers of a run; `print` shows their table, a notebook the table and a figure.

    Attributes:
        rows: {"method", "seed", "round", "name", "value", "weight", "client"?}, one per number.
        summary: The table of results, as in summary.json.
        path: The run's folder; None if it was not kept.
        client_names: Names of clients 0, 1, ..., where the data name them.
    """

    rows: list[dict[str, Any]]
    summary: dict[str, Any]
    path: Path | None
    client_names: tuple[str, ...] = ()
    _scratch: _Scratch | None = None
    _network: Callable[[], nn.Module] | None = None

    @property
    def folder(self) -> Path:
        """The folder of the run's files: `path`, or a temporary folder that is removed together with this history.

        Raises:
            RunError: If the run's files are gone.
        """
        folder = self.path if self._scratch is None else self._scratch.folder
        if folder is None or not folder.is_dir():
            raise RunError(
                f"the run's files are gone{f' from {folder}' if folder else ''}; run it again with out=FOLDER"
            )
        return folder

    @property
    def methods(self) -> tuple[str, ...]:
        """Labels of the methods, in the run's order."""
        return tuple(dict.fromkeys(row["method"] for row in self.summary["rows"]))

    def model(self, method: str, client: int | str | None = None, seed: int | None = None) -> nn.Module:
        """A trained model, a plain module in evaluation mode; `unskew.predict(model, x)` takes raw inputs.

        Args:
            method: Label of the method.
            client: Number or name of the client that uses the model; by default the global one.
            seed: Seed of the run; by default the smallest.

        Raises:
            RunError: If there is no such model.
        """
        return load_model(self.folder, method, client, seed, network=self._network)

    def curve(self, method: str, name: str = "global.accuracy") -> list[tuple[int, float]]:
        """(round, mean over seeds) of a metric, in the rounds that every seed reached.

        Raises:
            KeyError: If that method has no such metric.
        """
        curve = self._curve(method, name)
        return [(int(t), mean) for t, mean in zip(curve.x, curve.mean, strict=True)]

    def _curve(self, method: str, name: str) -> "Curve":
        from unskew.report.stats import curve_by_round

        by_seed: dict[int, dict[int, float]] = {}
        for row in self.rows:
            if (row["method"], row["name"]) == (method, name) and "client" not in row:
                by_seed.setdefault(row["seed"], {})[row["round"]] = row["value"]
        curve = curve_by_round(list(by_seed.values()))
        if curve is None:
            raise KeyError(f"no {name} of {method}")
        return curve

    def value(self, method: str, metric: str = "global.accuracy") -> float:
        """Mean over seeds of a result; see the table of results for names.

        Raises:
            KeyError: If that method has no such result.
        """
        for row in self.summary["rows"]:
            if (row["method"], row["metric"]) == (method, metric):
                return float(row["mean"])
        raise KeyError(f"no {metric} of {method}")

    def to_frame(self) -> "pandas.DataFrame":
        """Every number of every round as a pandas.DataFrame, one per row.

        Columns: method, seed, round, name, value, weight, and client, which is missing (pandas.NA) unless the
        number is per-client.

        Raises:
            ConfigError: If pandas is not installed.
        """
        try:
            frames = importlib.import_module("pandas")
        except ImportError as error:
            raise ConfigError(
                f"to_frame needs pandas, which cannot be imported ({error}); pip install pandas, or use history.rows"
            ) from error
        columns = ("method", "seed", "round", "name", "value", "weight", "client")
        frame: pandas.DataFrame = frames.DataFrame.from_records(
            [[row.get(column) for column in columns] for row in self.rows], columns=list(columns)
        )
        return frame.astype({"client": "Int64"})

    def plot(self, metric: str | None = None, ax: "Axes | None" = None) -> "Axes":
        """Draw a metric by round, a line per method with a band from the lowest to the highest seed.

        Args:
            metric: Name of a metric in `rows`; by default global.accuracy, or personal.accuracy.mean where no method
                has a global model.
            ax: Matplotlib's axes to draw on; a new figure by default.

        Raises:
            KeyError: If no method has that metric.
        """
        metric, curves = self._curves(metric)
        if ax is None:
            from matplotlib import pyplot

            ax = pyplot.subplots(layout="constrained")[1]
        for method, curve in curves.items():
            (line,) = ax.plot(curve.x, curve.mean, label=method)
            if curve.seeds > 1:
                ax.fill_between(curve.x, curve.low, curve.high, color=line.get_color(), alpha=0.16, linewidth=0)
        ax.set_xlabel("round")
        ax.set_ylabel(metric)
        ax.legend()
        return ax

    def _curves(self, metric: str | None) -> tuple[str, dict[str, "Curve"]]:
        """The metric asked for, or else the headline, and the curves of the methods that have it."""
        names = {row["name"] for row in self.rows}
        metric = metric or next((name for name in HEADLINES if name in names), HEADLINES[0])
        curves = {}
        for method in self.methods:
            with suppress(KeyError):
                curves[method] = self._curve(method, metric)
        if not curves:
            raise KeyError(f"no method has {metric}")
        return metric, curves

    def report(self, path: str | Path) -> Path:
        """Write the run's report, one HTML file that opens offline, and return its path.

        Raises:
            RunError: If it cannot be written, or the run's files are gone.
        """
        from unskew.report import write_report

        return write_report(self.folder, Path(path))

    def __str__(self) -> str:
        """The table of results, as text."""
        head, *rows = _table(self.summary)
        width = max(len(row[0]) for row in (head, *rows))
        return "\n".join(f"{m.ljust(width)}  {a.ljust(15)}  {p.ljust(15)}  {mb:>8}" for m, a, p, mb in (head, *rows))

    def __repr__(self) -> str:
        methods = ", ".join(self.methods[:4]) + (f" and {len(self.methods) - 4} more" if len(self.methods) > 4 else "")
        rounds, seeds = (len({row[key] for row in self.rows}) for key in ("round", "seed"))
        evaluated = f"{rounds - 1} rounds, {seeds} seed{'s' if seeds > 1 else ''}"
        return f"<History of {methods}: {evaluated}; print() shows the table>"

    def _repr_html_(self) -> str:
        """The table of results and the headline by round, as a notebook shows them."""
        head, *rows = ([html.escape(cell) for cell in row] for row in _table(self.summary))
        cells = ["".join(f"<th>{cell}</th>" for cell in head)]
        cells += [f"<th>{row[0]}</th>{''.join(f'<td>{cell}</td>' for cell in row[1:])}" for row in rows]
        return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>{self._figure()}"

    def _figure(self) -> str:
        """The headline by round as an SVG element; empty where nothing was evaluated."""
        from unskew.report import figures, svg_file
        from unskew.report.section import Chart

        try:
            metric, curves = self._curves(None)
        except KeyError:
            return ""
        title = {"global.accuracy": "Global accuracy by round"}.get(
            metric, "Accuracy on clients' own test data by round"
        )
        looks = figures.looks([False] * len(curves))
        lines = [figures.Line(m, look, c) for (m, c), look in zip(curves.items(), looks, strict=True)]
        seeds = max(curve.seeds for curve in curves.values())
        caption = "Lines: mean over seeds; bands: lowest to highest seed." if seeds > 1 else "One seed: no band."
        svg = figures.lines_chart(f"h{self.summary['fingerprint'][:8]}", lines, "round", "accuracy, %", 100.0, title)
        legend = tuple((line.name, figures.swatch(line.look)) for line in lines)
        return svg_file.document(Chart(title, caption, svg, legend))


def _table(summary: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    by = {(r["method"], r["metric"]): r for r in summary["rows"]}
    lines = [("method", "global accuracy", "own test data", "MB")]
    for m in dict.fromkeys(r["method"] for r in summary["rows"]):
        total = by.get((m, "bytes.total"))
        shared, own_data = (_percent(by.get((m, name))) for name in HEADLINES)
        lines.append((m, shared, own_data, f"{total['mean'] / 1e6:.2f}" if total else ""))
    return lines


def _percent(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "-"
    return f"{100 * row['mean']:.1f} %" + ("" if row["std"] is None else f" ± {100 * row['std']:.1f}")


def simulate(
    methods: object | Sequence[object] | Mapping[str, object],
    *,
    data: object = "digits",
    model: "str | nn.Module | Callable[..., nn.Module]" = "mlp",
    target: str | None = None,
    client: str | None = None,
    test: object = None,
    split: Split | None = None,
    rounds: int = 20,
    seeds: Iterable[int] = (0,),
    task: TaskConfig | None = None,
    bounds: bool = False,
    out: str | Path | None = None,
    progress: bool = True,
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

    `global.*` is measured on the global test set, which no client trains on: `test`, or the test part of the data,
    or else rows that are set aside before anything is divided, the same for every method and seed.  These are
    `test_fraction` of each client's rows where the data come with their clients, else of each class.  `personal.*` is
    measured on each client's own test part, `test_fraction` of its remaining rows.

    Images of whole numbers 0..255 are scaled to [0, 1] and standardised per channel with mean and deviation of the
    training part; floats, and the columns of a table, are taken as they are.

    PyTorch's settings in this process, such as its number of threads, are restored on return.

    Args:
        methods: An algorithm, several, or {label: algorithm}; a string is a name from the table.  The run of an
            algorithm that holds functions or classes of your own cannot be resumed: no file can describe them.
        data: Arrays or tensors (x, y); {client: (x, y)}; a pandas or Polars DataFrame, or a Hugging Face dataset, with
            `target` and, if it has one, `client`; a torch Dataset of (input, label) pairs; what `unskew.load` returns;
            or a name.  Labels may be words.  With `out`, the run's folder keeps the data, to be resumed with.
        model: A module, whose weights every method and seed starts from; a function or class that makes one, called
            with (input_shape, num_classes) or nothing; or a name.  The run of a module, or of a function that no other
            program can import, cannot be resumed.
        target, client: Columns of a table: the labels, and the client that holds the row.
        test: The global test set, in any form of `data`.
        split: Division of the data among clients; by default that of the data, else Dirichlet(0.1) over 20 clients.
        rounds, seeds: Communication rounds, and the seeds to repeat the run with.
        task: Further settings of data and model; a `data` or `model` that is not a name takes precedence.
        bounds: Add local-only training, FedAvg, and training on pooled data.
        out: Keep the run's folder there, with report.html, for `unskew resume`; by default it is removed with the
            history.
        progress: Show a bar in a terminal or a notebook, and a few lines in a log, on stderr.
        track: Trackers that get the numbers too: tensorboard, mlflow, wandb.  They need `out`.
        callback: Called when the run starts and after every round.
        fraction, clients_per_round: Cohort size.
        test_fraction, val_fraction: Parts of each client's data kept from training.
        eval_every: Rounds between evaluations.
        stop, world, runtime: The same as in a configuration file.

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
        "task": _task(task, data, model),
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
        split=Natural() if split is None else _split(split),
        **schema.checked(Experiment, _plain(settings), "", skip=("methods", "split")),
    )
    if experiment.track and out is None:
        raise ConfigError("track needs the run's folder, which is not kept without one; add out=FOLDER")
    with _torch_left_alone(), watching(not progress) as watcher:
        dataset = _dataset(experiment.task, data, target, client, test, test_fraction)
        if split is None and dataset.owners is None:
            experiment = dataclasses.replace(experiment, split=Dirichlet(alpha=0.1, num_clients=20))
        inputs = InMemoryInputs(
            module=copy.deepcopy(model).cpu() if isinstance(model, nn.Module) else None,
            factory=None if isinstance(model, str | nn.Module) else model,
        )
        # The history keeps the network's factory, and not the data.
        fresh = partial(network, experiment.task, dataset.input_shape, dataset.num_classes, inputs)
        keeps = out is not None and experiment.task.data == RUN_DATA
        files = {DATA_FILE: partial(save, dataset)} if keeps else {}
        backend = InProcess(dataclasses.replace(inputs, dataset=dataset, files=files))
        listening = watcher if callback is None else callbacks.Several(watcher, callback)
        if out is not None:
            from unskew.report import write_report

            outcome = loop.start(experiment, Path(out), listening, backend=backend)
            write_report(outcome.folder)
            return dataclasses.replace(history(outcome), _network=fresh)
        scratch = _Scratch()
        try:
            outcome = loop.start(experiment, scratch.folder, listening, backend=backend)
        except BaseException as error:
            scratch.remove()
            if isinstance(error, loop.Interrupted):
                raise loop.Interrupted("stopped by request; nothing is kept of a run without out=FOLDER") from None
            raise
        return dataclasses.replace(history(outcome), path=None, _scratch=scratch, _network=fresh)


def _task(task: object, data: object, model: object) -> Any:
    """The task as a file writes it; data or a model passed as values get a name that says so."""
    table = {} if task is None else _plain(task)
    if not isinstance(table, dict):
        return table
    if task is None or not isinstance(data, str):
        table["data"] = data if isinstance(data, str) else RUN_DATA
    if task is None or not isinstance(model, str):
        table["model"] = _model_name(model)
    return table


def _model_name(model: object) -> str:
    """The name of a model: its import path if it can be imported, or one that marks a value no file can describe."""
    if isinstance(model, str):
        return model
    if isinstance(model, nn.Module):
        return f"{IN_PYTHON}{type(model).__qualname__}"
    if not callable(model):
        raise ConfigError(f"model must be a name, a module, or a function that makes one, got {model!r}")
    module, name = getattr(model, "__module__", ""), getattr(model, "__qualname__", type(model).__qualname__)
    known = module != "__main__" and getattr(sys.modules.get(module), name, None) is model
    return f"{module}:{name}" if known else f"{IN_PYTHON}{name}"


def _dataset(
    task: TaskConfig, data: object, target: str | None, client: str | None, test: object, test_fraction: float
) -> Dataset:
    """The data set passed as a value, or named by the task."""
    if not isinstance(data, str):
        return own.dataset(data, target=target, client=client, test=test, test_fraction=test_fraction)
    if test is not None or target is not None or client is not None:
        raise ConfigError(f"test, target and client go with data given as values, not with a name; got {task.data!r}")
    return load(task.data, Path(task.data_dir) if task.data_dir else None)


@contextmanager
def _torch_left_alone() -> Iterator[None]:
    """Restore PyTorch's settings afterwards, since a run changes them for the whole process."""
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
    """The history of a finished run."""
    rows: list[dict[str, Any]] = [dict(row) for row in METRICS.rows(outcome.folder)]
    seeds = read_json(outcome.folder / "partition.json").get("seeds", {})
    names = {tuple(partition.get("client_names") or ()) for partition in seeds.values()}
    return History(rows, outcome.summary, outcome.folder, names.pop() if len(names) == 1 else ())


# ---------------------------------------------------------------- values made in Python, checked like those of a file
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
    for names in (algorithms.TABLE, added, [f"{kind.__module__}:{kind.__qualname__}"]):
        options = {name: kept for name in names if (kept := _made_with(name, value)) is not None}
        for name in sorted(options, key=lambda name: _settings_given(name, options[name])):
            short = label or name.rpartition(":")[2]
            with suppress(pydantic.PydanticSchemaGenerationError):
                method = config.method(name, options[name], short, short)
                if _same(method.algorithm, value):  # not if a record inside holds code, which `options` leave out
                    return method
    # Code in it, such as a loss term, has no place in a file.  The name is none, so that resume refuses, not guesses.
    _check(value, label or kind.__name__)
    return Method(label or kind.__name__, f"made in Python:{kind.__qualname__}", _as_in_a_file(_settings(value)), value)


def _settings_given(name: str, options: Mapping[str, Any]) -> int:
    """The number of these options that differ from the defaults of the method called `name`."""

    def differing(a: object, b: object) -> int:
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            return sum(differing(a.get(key), b.get(key)) for key in {**a, **b})
        return int(a != b)

    known = schema.parameters(algorithms.resolve(name))
    defaults = {key: _plain(schema.NONE if default is None else default) for key, (_, default) in known.items()}
    return sum(differing(option, defaults[key]) for key, option in options.items())


def _check(value: Any, place: str) -> None:
    """Check the settings of a record that no file can describe, and of the records it holds."""
    held = {f.name: h for f in dataclasses.fields(value) if is_record(h := getattr(value, f.name))}
    theirs = {name for name, (hint, _) in schema.parameters(type(value)).items() if not _has_schema(hint)}
    options = {name: option for name, option in _settings(value).items() if name not in held and name not in theirs}
    schema.checked(type(value), options, place, skip={*held, *theirs})
    for name, record in held.items():
        _check(record, f"{place}.{name}")


def _has_schema(hint: Any) -> bool:
    """True if a type can be checked; a user's own type is the user's to check."""
    try:
        pydantic.TypeAdapter(hint)
    except pydantic.PydanticSchemaGenerationError:
        return False
    return True


def _as_in_a_file(value: Any) -> Any:
    """The value as a file can hold it, with words for the rest."""
    if isinstance(value, Mapping):
        return {k: _as_in_a_file(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_as_in_a_file(v) for v in value]
    return value if isinstance(value, bool | int | float | str) else f"a {type(value).__qualname__}"


def _made_with(name: str, algorithm: Any) -> dict[str, Any] | None:
    """The options with which the algorithm called `name` equals this one; None if it is another."""
    settings = _all_settings(algorithm)
    try:
        target = algorithms.resolve(name)
        if inspect.isclass(target) and target is not type(algorithm):
            return None
        options = {key: settings[key] for key in schema.parameters(target) if key in settings}
        same = _same(target(**options), algorithm)
    except Exception:  # whatever a stranger's code says to settings that are not its own: it did not make this
        return None
    plain = {k: _plain(schema.NONE if v is None else v) for k, v in options.items()}
    return plain if same and plain == _as_in_a_file(plain) else None


def _same(rebuilt: object, algorithm: object) -> bool:
    return type(rebuilt) is type(algorithm) and bool(rebuilt == algorithm)


def _all_settings(value: Any) -> dict[str, Any]:
    """Every setting in a record and in the records it holds, except `local`; the outer of two with the same name."""
    inner: dict[str, Any] = {}
    own = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    for held in own.values():
        for record in held if isinstance(held, tuple) else (held,):
            if is_record(record) and not isinstance(record, SgdConfig):
                inner = {**_all_settings(record), **inner}
    return {**inner, **own}


def _settings(value: Any) -> dict[str, Any]:
    """The fields of a record as a file writes them, without functions and classes, which no file holds."""
    return {
        name: _settings(held)
        if is_record(held := getattr(value, name))
        else _plain(schema.NONE if held is None else held)
        for name, (_, default) in schema.parameters(type(value)).items()
        if getattr(value, name) is not None or default is not None
    }


def _plain(value: Any) -> Any:
    """The value as JSON holds it; numbers and arrays of NumPy and PyTorch become Python's."""
    if is_record(value):
        return _settings(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _local_of(methods: Sequence[Method]) -> dict[str, Any]:
    """The first method's local optimisation, which the bounds use too."""
    return next((dict(m.options["local"]) for m in methods if "local" in m.options), {})
