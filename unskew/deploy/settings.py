"""Settings of a federation and of a site."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from unskew import schema
from unskew.errors import ConfigError, DeployError
from unskew.files import from_toml
from unskew.runtime.policy import Rules, SitePolicy

T = TypeVar("T")

EXPERIMENT, AGREED, ANSWER = "experiment.toml", "agreed.json", "answer"
"""Files of the experiment, in each folder; at a site of what sites have agreed on in it, and of a person's answer."""


def text_of(path: Path) -> str:
    """The content of a file; empty if there is none."""
    return path.read_text("utf-8") if path.exists() else ""


@dataclass(frozen=True)
class About:
    """A federation's settings: federation.toml of its folder.

    Attributes:
        name: Name of the federation.
        host, port: Where sites reach the server.
        listen: Address at which it listens, on the same port.
        names: More host names and addresses of the server.
        days: Validity of certificates of server and sites, days; they are renewed in time.
    """

    name: str = "federation"
    host: str = "127.0.0.1"
    port: int = 8443
    listen: str = "127.0.0.1"
    names: tuple[str, ...] = ()
    days: float = 397.0


@dataclass(frozen=True)
class Site:
    """A site's settings: site.toml of its folder.  The coordinator cannot change them.

    Attributes:
        data: Its own data, in the syntax of `task.data`.  None uses its part of an experiment's split.
        separator, thousands, decimal, encoding: Format of its CSV file, where it differs from the experiment's.
        data_dir: Folder of named data sets; by default $UNSKEW_DATA.
        allow_code: Import code that an experiment names.
        policy: File of its policy; by default that of the user's own settings.
        name: Name of the site in the federation.
        host, port: Address of the federation's server.
    """

    data: str | None = None
    separator: str | None = None
    thousands: str | None = None
    decimal: Literal[".", ","] | None = None
    encoding: str | None = None
    data_dir: str | None = None
    allow_code: bool = False
    policy: str | None = None
    name: str = "site"
    host: str = "127.0.0.1"
    port: int = 8443

    @property
    def place(self) -> str | None:
        """The path, or hub: name, of its data; None for a named set, or without data."""
        if (path := path_in(self.data or "")) is not None:
            return str(path)
        return self.data if self.data is not None and self.data.startswith("hub:") else None


def address(of: About | Site, host: str = "") -> str:
    """HOST:PORT of a federation's server, or of `host`."""
    host = host or of.host
    return f"[{host}]:{of.port}" if ":" in host else f"{host}:{of.port}"


def path_in(source: str) -> Path | None:
    """The file or folder that a data source names; None if it names none."""
    from unskew.data.sources import FILES  # with all of PyTorch

    kind, _, rest = source.partition(":")
    return Path(os.path.expanduser(rest)) if kind in FILES and rest else None


def absolute(source: str) -> str:
    """Make the path in a data source absolute."""
    path = path_in(source)
    return source if path is None else f"{source.partition(':')[0]}:{path.absolute()}"


def is_elsewhere(source: str) -> bool:
    """True if a data source names a file that does not exist on this machine."""
    path = path_in(source)
    return path is not None and not path.exists()


def own_state() -> Path:
    """Folder of this user for sites and for what outlives them."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "unskew"


def read_rules(site: Site = Site()) -> Rules:
    """A site's policy: its own, that of $UNSKEW_POLICY, or unskew/policy.toml in the user's own settings."""
    named = site.policy or os.environ.get("UNSKEW_POLICY")
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "unskew"
    path = Path(named or folder / "policy.toml").expanduser().absolute()
    if not named and not path.exists():
        return Rules(where=str(path))
    if not path.exists():
        raise ConfigError(f"there is no policy {path}; correct --policy or UNSKEW_POLICY")
    return Rules(read_settings(path, SitePolicy), str(path))


def account(rules: Rules) -> Path:
    """File that records all noised uploads from this user's data, for all sites and federations."""
    return Path(rules.policy.privacy or own_state() / "account" / "privacy.sqlite").expanduser()


def outside(site: Site, folder: Path) -> tuple[list[Path], list[Path]]:
    """Folders that a site writes to beside its own, and files and folders that it reads; missing folders are made.

    The policy's folder is listed, since it is read for each experiment and an editor may replace the file.
    """
    rules = read_rules(site)
    writes, settings = [account(rules).parent, rules.audit(folder).parent], Path(rules.where).parent
    for place in (*writes, settings):
        place.mkdir(parents=True, exist_ok=True)
    named = (site.place, site.data_dir, os.environ.get("UNSKEW_DATA"), *rules.policy.paths)
    return writes, [settings, *(path for name in named if name and (path := Path(name).expanduser()).exists())]


def read_settings(path: Path, kind: type[T]) -> T:
    """Read a file of settings; an unknown or invalid setting is refused."""
    try:
        table: dict[str, Any] = from_toml(path.read_text("utf-8-sig"))
    except FileNotFoundError:
        raise DeployError(f"there is no {path}; name a folder that unskew site join or fed init has made") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    settings: T = schema.build(kind, table, "", str(path))
    return settings
