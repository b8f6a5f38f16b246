"""Federations of real processes for the tests that need them."""

import os
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="a federation needs the extra [deploy]")

from unskew.deploy import certificates
from unskew.experiment import config
from unskew.experiment.config import Experiment
from unskew.files import PRIVATE, write_atomically
from unskew.runtime import log

SMALL = """
name = "small"
rounds = 2
task = { data = "digits", model = "logistic" }
split = { name = "iid", num_clients = 2 }
local = { lr = 0.1, batch_size = 64 }
evaluate = ["global"]
[[methods]]
name = "fedavg"
"""


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what a participant remembers across federations out of the user's home."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path.with_name(f"{tmp_path.name}-state")))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path.with_name(f"{tmp_path.name}-config")))


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    """Forget after each test who shows the log."""
    yield
    log.LOG.handlers[:] = []


@pytest.fixture
def small() -> Callable[..., Experiment]:
    """`small("rounds=3")`: the small experiment with overrides."""
    return lambda *settings: config.parse(config.override(tomllib.loads(SMALL), settings))


@dataclass
class Lines:
    """Keeps what is said."""

    lines: list[str] = field(default_factory=list)

    def __call__(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def said(request: pytest.FixtureRequest) -> Lines:
    return Lines()


def issued(who: "certificates.Authority", folder: Path, name: str = "site") -> Path:
    """Write ca.crt, site.crt and site.key of a site into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    key = certificates.new_key()
    write_atomically(folder / "site.key", certificates.private_pem(key), PRIVATE)
    write_atomically(folder / "site.crt", certificates.issue_site(who, name, key.public_key()))
    write_atomically(folder / "ca.crt", certificates.pem(who.certificate))
    return folder


def processes_of(folder: Path) -> list[str]:
    """Command lines of all other processes that name this folder."""
    commands = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it has ended, or belongs to somebody else
            continue
        if str(folder) in command:
            commands.append(command)
    return commands
