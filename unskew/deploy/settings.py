"""Settings of a deployment: server.toml, client.toml and network.toml of its folders, and what a participant says."""

import os
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from annotated_types import Ge, Gt, Interval

from unskew import schema
from unskew.data.sources import FILES
from unskew.errors import ConfigError, DeployError
from unskew.files import from_toml
from unskew.runtime.policy import Rules, SitePolicy
from unskew.version import __version__

T = TypeVar("T")

EXPERIMENT = "experiment.toml"
"""File of the experiment, in each folder."""


@dataclass(frozen=True)
class Address:
    """Address at which a server listens, or is reached: network.toml.

    Attributes:
        host: Host name or IP address.
        port: The one port of the server.
    """

    host: str
    port: Annotated[int, Interval(ge=1, le=65535)]

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class ServerConfig:
    """Settings of a server: server.toml.

    Attributes:
        min_clients: Number of clients that must be connected before the first round.
        deadline_s: Longest time for an exchange unless the plan sets its own, seconds.
        wait_s: Longest time to wait for those clients, seconds.
        max_norm: Largest L2 norm of all floating-point tensors of a reply together.
        max_ratio: Largest norm of a reply's model, in multiples of the median of the replies to the same request.
        max_examples: Largest number of training examples that a client may say it has.
        warn_share: Share of a cohort's examples above which the log and the report name the client that has them.
        own_data: Every client has data of its own: the images of the experiment's own data are all for testing.
        num_clients: Number of clients that were packed, whether their certificates are still in clients/ or not.
        library: Version of unskew that packed the folder.
    """

    min_clients: Annotated[int, Ge(1)]
    deadline_s: Annotated[float, Gt(0.0)] = 600.0
    wait_s: Annotated[float, Gt(0.0)] = 300.0
    max_norm: Annotated[float, Gt(0.0)] = 1e6
    max_ratio: Annotated[float, Gt(1.0)] = 100.0
    max_examples: Annotated[int, Ge(1)] = 10_000_000
    warn_share: Annotated[float, Interval(gt=0.0, le=1.0)] = 0.5
    own_data: bool = False
    num_clients: Annotated[int, Ge(1)] = 1
    library: str = __version__


@dataclass(frozen=True)
class ClientConfig:
    """Settings of a client, which the coordinator has signed: client.toml.

    Attributes:
        client: Number of the client, from 0.
        num_clients: Number of clients in the federation.
        own_data: The client must name data of its own; else it may take its part of the experiment's split.
        library: Version of unskew that packed the folder.
    """

    client: Annotated[int, Ge(0)]
    num_clients: Annotated[int, Ge(1)]
    own_data: bool = False
    library: str = __version__


@dataclass(frozen=True)
class Site:
    """Settings that a participant gives when it starts its client; no file of the coordinator can give them.

    Attributes:
        data: Its own data, in the syntax of `task.data`.  None takes its part of the experiment's split.
        separator, thousands, decimal, encoding: How its CSV file is written, where it is not as the experiment says.
        allow_code: Import code that the experiment names.
    """

    data: str | None = None
    separator: str | None = None
    thousands: str | None = None
    decimal: Literal[".", ","] | None = None
    encoding: str | None = None
    allow_code: bool = False

    @property
    def place(self) -> str | None:
        """The path, or the hub: name, of its data; None of a named set, and without data."""
        kind, _, path = (self.data or "").partition(":")
        return path if kind in FILES else self.data if kind == "hub" else None


_OWN = {"csv": "own.csv", "parquet": "own.parquet", "images": "images"}


def own_data_example(source: str) -> str:
    """Return an example of a client's own data, of the kind that an experiment reads from `source`.

    >>> own_data_example("csv:examples/hospitals.csv"), own_data_example("digits")
    ('--data csv:/absolute/path/own.csv', '--data npz:/absolute/path/own.npz')
    """
    kind = source.partition(":")[0]
    return f"--data {kind}:/absolute/path/{_OWN[kind]}" if kind in _OWN else "--data npz:/absolute/path/own.npz"


def absolute(source: str) -> str:
    """Make the path in a data source absolute."""
    kind, _, rest = source.partition(":")
    return f"{kind}:{Path(os.path.expanduser(rest)).absolute()}" if kind in FILES and rest else source


def packed_clients(path: Path, config: ServerConfig, registered: Collection[int]) -> int:
    """Number of clients that a server's folder was packed for; a client that was taken out still counts.

    Args:
        path: server.toml.
        config: Settings in it.
        registered: Numbers of the clients whose certificates are in clients/; there is at least one.

    Raises:
        ConfigError: If such a number is too high, or more clients are waited for than may connect.
    """
    number = config.num_clients
    if max(registered) >= number:
        raise ConfigError(
            f"num_clients must be above {max(registered)}, whose certificate is in clients/, got {number} ({path})"
        )
    if config.min_clients > len(registered):
        raise ConfigError(
            f"min_clients must be at most {len(registered)}, the number of certificates in clients/, got "
            f"{config.min_clients} ({path})"
        )
    return number


CODE_PATH = "UNSKEW_CODE_PATH"
"""Variable with the folders in which the programs of a deployment also look for code of the user's own."""


def code_path() -> str:
    """Return the folders in which this process finds code, for `CODE_PATH`."""
    return os.pathsep.join(os.path.abspath(folder) for folder in sys.path)


def find_own_code() -> None:
    """Search modules where the parent process did, after what is installed."""
    folders = os.environ.get(CODE_PATH, "").split(os.pathsep)
    sys.path.extend(f for f in folders if f and f not in sys.path)


def own_state() -> Path:
    """Folder of this user in which a participant keeps what must outlive a federation's folder.

    Raises:
        DeployError: If there is no home folder.
    """
    return _of_user("XDG_STATE_HOME", ".local/state") / "unskew"


def _of_user(variable: str, below_home: str) -> Path:
    if named := os.environ.get(variable):
        return Path(named)
    try:
        return Path.home() / below_home
    except RuntimeError:
        raise DeployError(f"this user has no home folder; set HOME, or {variable} to a folder of its own") from None


def read_rules(folder: Path) -> Rules:
    """Read the policy of this participant: $UNSKEW_POLICY, or unskew/policy.toml in the user's own settings.

    Args:
        folder: The client's folder, in which the file must not lie: it came from the coordinator.

    Raises:
        ConfigError, DeployError: If it cannot be read, or a setting in it is unknown or not allowed.
    """
    named = os.environ.get("UNSKEW_POLICY")
    settings = Path(named) if named else _of_user("XDG_CONFIG_HOME", ".config") / "unskew" / "policy.toml"
    path = settings.expanduser().absolute()
    if path.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"the policy {path} lies in the folder that came from the coordinator; keep it elsewhere")
    if not named and not path.exists():
        return Rules(where=str(path))
    if not path.exists():
        raise ConfigError(f"there is no policy {path}; correct --policy or UNSKEW_POLICY")
    return Rules(read_settings(path, SitePolicy), str(path))


def read_settings(path: Path, kind: type[T]) -> T:
    """Read and check one of the settings files of a folder.

    Raises:
        DeployError: If there is no such file: the folder is not one that was packed.
        ConfigError: If the file is not TOML, or a setting in it is unknown or not allowed.
    """
    try:
        table: dict[str, Any] = from_toml(path.read_text("utf-8-sig"))
    except FileNotFoundError:
        raise DeployError(
            f"{path.parent} has no {path.name}; it is not a folder that unskew deploy pack made"
        ) from None
    except OSError as error:
        raise DeployError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    settings: T = schema.build(kind, table, "", str(path))
    return settings
