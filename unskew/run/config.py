"""An experiment as a value, from TOML and back.

    name = "digits"
    rounds = 30
    seeds = [0, 1, 2]
    task = { data = "digits", model = "mlp" }
    split = { name = "dirichlet", num_clients = 20, alpha = 0.1 }
    local = { lr = 0.1, local_epochs = 2, batch_size = 32 }

    [[methods]]
    name = "fedavg"
    [[methods]]
    name = "fedprox"
    mu = 0.1

`[algorithm]` instead of `[[methods]]` runs a single one.  `[local]` is every method's local optimisation unless the
method says otherwise.  A resolved configuration spells everything out and reads back to an equal experiment.
"""

import dataclasses
import hashlib
import inspect
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from annotated_types import Ge, Gt, Interval, MinLen

from unskew import algorithms
from unskew.data.split import IID, SPLITS, Split, record
from unskew.errors import ConfigError
from unskew.run import schema
from unskew.tree import is_record
from unskew.world.outage import Outage

BOUNDS = ("independent", "fedavg", "centralised")


@dataclass(frozen=True)
class TaskConfig:
    """What is learned from what.

    Attributes:
        data: digits, npz:PATH, folder:PATH, or a known name to look up in the data directory.
        model: A name from `unskew list models`.
        model_options: The network's own settings.
        loss: cross_entropy or multi_margin; by default what the model is meant for.
        augment: Applied to training batches only.
        data_dir: Where named data sets lie; by default the environment's UNSKEW_DATA.
    """

    data: str = "digits"
    model: str = "mlp"
    model_options: dict[str, Any] = field(default_factory=dict)
    loss: Literal["cross_entropy", "multi_margin"] | None = None
    augment: Literal["none", "crop", "flip", "crop+flip"] = "none"
    data_dir: str | None = None


@dataclass(frozen=True)
class Stop:
    """When a method's training ends before its last round.

    Attributes:
        accuracy: Mean accuracy on the clients' validation part reaches this fraction; the test set decides nothing.
        megabytes: Everything sent so far, in 10^6 bytes.
        seconds: Wall-clock time of this method and seed; where it falls differs from run to run.
    """

    accuracy: Annotated[float, Interval(gt=0.0, le=1.0)] | None = None
    megabytes: Annotated[float, Gt(0.0)] | None = None
    seconds: Annotated[float, Gt(0.0)] | None = None


@dataclass(frozen=True)
class Runtime:
    """How the work is done; recorded, because another executor or device agrees only within rounding.

    Attributes:
        executor: auto chooses by rule.
        device: auto takes a CUDA device if there is one.
        threads: PyTorch threads; by default one, and all cores for networks above five million parameters.
        deterministic: On CUDA, refuse kernels whose sums depend on timing.
        checkpoint_every: Rounds between checkpoints; 0 saves after about ten seconds' work instead.
        codec: Send every message through the wire's bytes and back, as a network would.
    """

    executor: Literal["auto", "sequential"] = "auto"
    device: str = "auto"
    threads: Annotated[int, Ge(1)] | None = None
    deterministic: bool = False
    checkpoint_every: Annotated[int, Ge(0)] = 0
    codec: bool = False


@dataclass(frozen=True)
class World:
    """What is true outside the algorithms."""

    outage: Outage = Outage()


@dataclass(frozen=True, eq=False)
class Method:
    """An algorithm with its settings, and what tables and figures call it."""

    label: str
    name: str
    options: Mapping[str, Any]
    algorithm: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Method) and (self.label, self.name, self.options) == (
            other.label,
            other.name,
            other.options,
        )

    @property
    def kind(self) -> str:
        """global, personal or bound."""
        entry = algorithms.TABLE.get(self.name)
        return getattr(entry, "kind", "global") if entry else "global"


@dataclass(frozen=True)
class Experiment:
    """Methods on one task, split and set of seeds.

    Attributes:
        methods: What is compared; every method meets the same split, the same cohorts and the same initial model.
        rounds: Communication rounds.
        seeds: Each draws its own split, initial model, cohorts and batches.
        name: Of the run.
        task, split: What is learned, and who holds what.
        fraction, clients_per_round: Cohort size, by share or by number; all clients if neither is given.
        test_fraction: Part of each client's own data kept for personal tests.
        val_fraction: Part of each client's remaining data kept for choices during training; 0.1 if a choice needs it.
        eval_every: Rounds between evaluations; the last round is always evaluated.
        evaluate: personal_on_global adds each personal model's accuracy on the global test set.
        mean_last: How many evaluations the "mean of last" averages.
        stop: Early stopping.
        world: Losses and channel.
        runtime: Executor, device, checkpoints.
    """

    methods: tuple[Method, ...]
    rounds: Annotated[int, Ge(1)]
    seeds: Annotated[tuple[int, ...], MinLen(1)] = (0,)
    name: str = "experiment"
    task: TaskConfig = TaskConfig()
    split: Split = IID()
    fraction: Annotated[float, Interval(gt=0.0, le=1.0)] | None = None
    clients_per_round: Annotated[int, Ge(1)] | None = None
    test_fraction: Annotated[float, Interval(ge=0.0, lt=1.0)] = 0.2
    val_fraction: Annotated[float, Interval(ge=0.0, lt=1.0)] = 0.0
    eval_every: Annotated[int, Ge(1)] = 1
    evaluate: tuple[Literal["global", "personal", "personal_on_global"], ...] = ("global", "personal")
    mean_last: Annotated[int, Ge(1)] = 5
    stop: Stop = Stop()
    world: World = World()
    runtime: Runtime = Runtime()

    def __post_init__(self) -> None:
        if self.fraction is not None and self.clients_per_round is not None:
            raise ConfigError(
                f"fraction and clients_per_round exclude each other, got {self.fraction:g} and "
                f"{self.clients_per_round}; leave one out"
            )
        labels = [m.label for m in self.methods]
        twice = next((label for label in labels if labels.count(label) > 1), None)
        if twice is not None:
            raise ConfigError(f"two methods are called {twice!r}; give one of them another label")
        if len(set(self.seeds)) != len(self.seeds):
            raise ConfigError(f"seeds must differ, got {list(self.seeds)}")
        if self.stop.accuracy is not None and self.val_fraction == 0.0:
            object.__setattr__(self, "val_fraction", 0.1)

    def cohort(self, num_clients: int) -> int:
        """Clients per round: `max(floor(fraction N), 1)`, or the number asked for.

        Raises:
            ConfigError: If more are asked for than there are.
        """
        if self.clients_per_round is not None:
            if self.clients_per_round > num_clients:
                raise ConfigError(
                    f"clients_per_round must be at most the {num_clients} clients, got {self.clients_per_round}"
                )
            return self.clients_per_round
        return num_clients if self.fraction is None else max(int(self.fraction * num_clients), 1)


def method(
    name: str, options: Mapping[str, Any], label: str | None = None, place: str = "algorithm", where: str = ""
) -> Method:
    """An algorithm from the table with checked options.

    Raises:
        ConfigError: If the name or an option is not known, or a value is not allowed.
    """
    target = algorithms.resolve(name)
    algorithm = schema.build(target, options, place, where)
    return Method(label or name, name, _spelled_out(target, options), algorithm)


def _spelled_out(target: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """All options with their values, defaults included, as JSON has them; None is left out as TOML leaves it out."""
    out: dict[str, Any] = {}
    for name, (_, default) in schema.parameters(target).items():
        value = plain(options.get(name, None if default is ... else default))
        if isinstance(value, Mapping) and is_record(default):
            value = {**plain(default), **value}
        if value is not None:
            out[name] = value
    return out


def plain(value: Any) -> Any:
    """A value as JSON and TOML have it."""
    if is_record(value):
        named = (
            {"name": next(n for n, kind in SPLITS.items() if kind is type(value))}
            if type(value) in SPLITS.values()
            else {}
        )
        pairs = {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {**named, **{k: v for k, v in pairs.items() if v is not None}}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, tuple | list):
        return [plain(v) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return repr(value)


# ---------------------------------------------------------------- reading
def load(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """The experiment a TOML file describes, with `key.path=value` overrides.

    Raises:
        ConfigError: If the file is missing, is no TOML, or describes no possible experiment.
    """
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}; write one as in the README, or run unskew without it"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text") from None
    return parse(override(_toml(text, str(path)), overrides), str(path))


def _toml(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not TOML: {error}") from None


def override(raw: Mapping[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """`raw` with settings such as `algorithm.mu=0.1` or `methods.1.mu=0.1`; values are read as TOML, else as text.

    Raises:
        ConfigError: If a setting is not of that form or leads through something that is no table.
    """
    out: dict[str, Any] = _copy(raw)
    for setting in settings:
        key, sign, text = setting.partition("=")
        if not sign or not key.strip():
            raise ConfigError(f"--set takes key.path=value, got {setting!r}")
        try:
            value = tomllib.loads(f"v = {text}")["v"]
        except tomllib.TOMLDecodeError:
            value = text
        *path, last = key.strip().split(".")
        table: Any = out
        for part in path:
            if isinstance(table, list):
                if not part.isdigit() or int(part) >= len(table):
                    raise ConfigError(f"--set {key}: {part!r} is no entry of a list of {len(table)}; count from 0")
                table = table[int(part)]
            else:
                table = table.setdefault(part, {})
            if not isinstance(table, dict | list):
                raise ConfigError(f"--set {key}: {part} is a value, not a table")
        if isinstance(table, list):
            raise ConfigError(f"--set {key}: say which entry, counting from 0: {'.'.join(path)}.0.{last}")
        table[last] = value
    return out


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _copy(v) for k, v in value.items()}
    return [_copy(v) for v in value] if isinstance(value, list) else value


def parse(raw: Mapping[str, Any], where: str = "") -> Experiment:
    """The experiment a table of settings describes.

    Raises:
        ConfigError: If a key is unknown, a value is out of range, or settings contradict each other.
    """
    table = dict(raw)
    known = (*schema.parameters(Experiment), "algorithm", "local", "bounds", "seed")
    for key in table:
        if key not in known:
            raise schema.unknown(key, known, "", "an experiment", where)
    if "seed" in table and "seeds" not in table:
        table["seeds"] = [table.pop("seed")]
    local = table.pop("local", {})
    bounds = table.pop("bounds", False)
    if not isinstance(bounds, bool):
        raise ConfigError(f"bounds must be true or false, got {bounds!r} ({where})")
    if ("algorithm" in table) == ("methods" in table):
        raise ConfigError(f"give either [algorithm] or [[methods]]{schema.at(where)}")
    single = "algorithm" in table
    entries = [table.pop("algorithm")] if single else table.pop("methods")
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"methods must be a list of at least one table{schema.at(where)}")
    methods = [
        _method(entry, local, "algorithm" if single else f"methods.{i}", where) for i, entry in enumerate(entries)
    ]
    if bounds:
        methods = with_bounds(methods, local)
    split = table.pop("split", {"name": "iid"})
    kwargs = schema.checked(Experiment, table, "", where, skip=("methods", "split"))
    try:
        return Experiment(methods=tuple(methods), split=parse_split(split, where), **kwargs)
    except ConfigError as error:
        text = str(error)
        raise ConfigError(text if where in text else f"{text}{schema.at(where)}") from None


def _method(entry: Any, local: Any, place: str, where: str) -> Method:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        raise ConfigError(f"{place} must be a table with a name, got {entry!r}{schema.at(where)}")
    options = {k: v for k, v in entry.items() if k not in ("name", "label")}
    label = entry.get("label", entry["name"])
    if not isinstance(label, str) or not label.strip():
        raise ConfigError(f"{place}.label must be a string, got {label!r}{schema.at(where)}")
    return method(entry["name"], _with_local(entry["name"], options, local), label, place, where)


def _with_local(name: str, options: Mapping[str, Any], local: Any) -> dict[str, Any]:
    """`[local]` under the method's own `local`, if the method has one."""
    if not local or "local" not in inspect.signature(algorithms.resolve(name)).parameters:
        return dict(options)
    own = options.get("local", {})
    return {**options, "local": {**local, **own} if isinstance(own, Mapping) and isinstance(local, Mapping) else local}


def with_bounds(methods: Sequence[Method], local: Mapping[str, Any]) -> list[Method]:
    """The methods with what they must beat and what they cannot: local only, FedAvg, and pooled data."""
    have = {m.name for m in methods}
    more = [method(name, _with_local(name, {}, local)) for name in BOUNDS if name not in have]
    return [*methods, *more]


def parse_split(raw: Any, where: str = "") -> Split:
    """A split from its table.

    Raises:
        ConfigError: If its name or one of its fields is not known, or a value is not allowed.
    """
    if not isinstance(raw, Mapping) or raw.get("name") not in SPLITS:
        got = raw.get("name") if isinstance(raw, Mapping) else raw
        raise ConfigError(f"split.name must be one of {', '.join(SPLITS)}, got {got!r}{schema.at(where)}")
    options = {k: v for k, v in raw.items() if k != "name"}
    split: Split = schema.build(SPLITS[raw["name"]], options, "split", where)
    return split


# ---------------------------------------------------------------- writing
def resolved(experiment: Experiment) -> dict[str, Any]:
    """Everything spelled out; `parse` gives back an equal experiment."""
    table: dict[str, Any] = {
        f.name: plain(getattr(experiment, f.name))
        for f in dataclasses.fields(experiment)
        if f.name not in ("methods", "split") and getattr(experiment, f.name) is not None
    }
    split = {k: v for k, v in record(experiment.split).items() if v is not None}
    methods = [{"name": m.name, "label": m.label, **m.options} for m in experiment.methods]
    return {**table, "split": split, "methods": methods}


def to_toml(experiment: Experiment) -> str:
    """The resolved experiment as TOML."""
    return tomli_w.dumps(resolved(experiment))


def fingerprint(experiment: Experiment) -> str:
    """SHA-256 of the resolved experiment, without its name and without what does not change the numbers."""
    table = resolved(experiment)
    table.pop("name", None)
    for key in ("checkpoint_every", "codec"):
        table["runtime"].pop(key, None)
    table["task"].pop("data_dir", None)
    return hashlib.sha256(tomli_w.dumps(table).encode()).hexdigest()
