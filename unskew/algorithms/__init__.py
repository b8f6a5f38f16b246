"""One file per paper.  TABLE names what exists; nothing is imported until it is asked for."""

import difflib
import importlib
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, NamedTuple

from unskew.errors import ConfigError

GROUP = "unskew.algorithms"


class Entry(NamedTuple):
    """Where an algorithm is, and what is said of it before it is imported.

    Attributes:
        target: "module:attribute" of a callable whose keyword parameters are the algorithm's options.
        about: One line.
        kind: "global" trains one model for all, "personal" a model per client, "bound" is no federated method.
        limit: Options at which it must equal FedAvg, up to rounding; None if there are none.
    """

    target: str
    about: str
    kind: Literal["global", "personal", "bound"] = "global"
    limit: Mapping[str, Any] | None = None


# At this tau the second moment is nothing beside it, and the adaptive step is server_lr / tau times the mean update.
_NOT_ADAPTIVE = {"server_lr": 1e8, "beta1": 0.0, "tau": 1e8, "v0": 0.0}

TABLE: dict[str, Entry] = {
    "independent": Entry(
        "unskew.algorithms.independent:Independent", "every client trains alone; nothing travels", "personal"
    ),
    "centralised": Entry(
        "unskew.algorithms.centralised:Centralised", "SGD on everybody's data in one place: a bound", "bound"
    ),
    "fedavg": Entry("unskew.algorithms.fedavg:FedAvg", "average locally trained models (McMahan et al. 2017)"),
    "fedprox": Entry(
        "unskew.algorithms.fedprox:fedprox", "FedAvg with a pull to the received model (Li et al. 2020)",
        limit={"mu": 0.0},
    ),
    "fedavgm": Entry(
        "unskew.algorithms.fedopt:FedAvgM", "FedAvg with momentum on the server (Hsu et al. 2019)",
        limit={"beta": 0.0, "server_lr": 1.0},
    ),
    "fedadagrad": Entry(
        "unskew.algorithms.fedopt:fedadagrad", "Adagrad on the server (Reddi et al. 2021)", limit=_NOT_ADAPTIVE
    ),
    "fedadam": Entry(
        "unskew.algorithms.fedopt:fedadam", "Adam on the server (Reddi et al. 2021)", limit=_NOT_ADAPTIVE
    ),
    "fedyogi": Entry(
        "unskew.algorithms.fedopt:fedyogi", "Yogi on the server (Reddi et al. 2021)", limit=_NOT_ADAPTIVE
    ),
    "fednova": Entry(
        "unskew.algorithms.fednova:FedNova", "average updates per unit of local work (Wang et al. 2020)"
    ),
    "scaffold": Entry(
        "unskew.algorithms.scaffold:Scaffold", "control variates against client drift (Karimireddy et al. 2020)"
    ),
    "oneshot": Entry(
        "unskew.algorithms.oneshot:OneShot", "train long, average once (Guha et al. 2019)"
    ),
}  # fmt: skip


def resolve(name: str) -> Callable[..., Any]:
    """What makes the algorithm called `name`: its keyword parameters are the options.

    Looked up in TABLE, then among installed packages (entry points in the group "unskew.algorithms"); a name with a
    colon is taken as "module.path:attribute".

    Raises:
        ConfigError: If there is no such name, if two distributions claim it, or if what it points to cannot be
            imported or called.
    """
    if ":" in name:
        return _load(name, f"algorithm {name!r}")
    others = [e for e in entry_points(group=GROUP) if e.name == name]
    owners = [*(["unskew"] if name in TABLE else []), *(_owner(e) for e in others)]
    if len(owners) > 1:
        raise ConfigError(
            f"algorithm {name!r} is provided by {' and by '.join(owners)}; uninstall one, or name the one you mean: "
            f"{' or '.join([*([TABLE[name].target] if name in TABLE else []), *(e.value for e in others)])}"
        )
    if name in TABLE:
        return _load(TABLE[name].target, f"algorithm {name!r}")
    if others:
        return _load(others[0].value, f"algorithm {name!r} of {owners[0]}")
    known = [*TABLE, *sorted({e.name for e in entry_points(group=GROUP)} - set(TABLE))]
    near = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ConfigError(
        f"unknown algorithm {name!r}; {hint}(there are: {', '.join(known)}; or give module.path:attribute)"
    )


def _owner(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else f"the installed {entry.value}"


def _load(target: str, what: str) -> Callable[..., Any]:
    module, _, attribute = target.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{what} cannot be imported from {target}: {error}") from error
    if not callable(found):
        raise ConfigError(f"{what} must be a class or function that makes an algorithm, got {type(found).__name__}")
    made: Callable[..., Any] = found
    return made
