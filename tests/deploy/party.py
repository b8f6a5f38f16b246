"""A federation in one process: its folder, its sites' folders, and a network of calls between them."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loopback import Loopback

from unskew.deploy import certificates, member, resident, site
from unskew.deploy.channel import Node, Peer
from unskew.deploy.federation import FederationFolder
from unskew.deploy.offers import Token
from unskew.deploy.settings import About, Site
from unskew.experiment.config import Experiment
from unskew.runtime.message import Envelope, Lost


class Memory(Loopback):
    """The hub of a federation: nodes are sites by their number in the database."""

    def __init__(self) -> None:
        super().__init__({})
        self.watch: Callable[[], None] = lambda: None
        self.dropped: list[Node] = []

    def clients(self) -> set[Node]:
        self.watch()
        return super().clients()

    def here(self) -> dict[Node, Peer]:
        return dict.fromkeys(self.handlers, Peer())

    def drop(self, node: Node) -> None:
        self.dropped.append(node)
        self.handlers.pop(node, None)

    def receive(self, seconds: float) -> Iterator[tuple[Node, Envelope | Lost]]:
        self.watch()
        return super().receive(seconds)


@dataclass
class Party:
    """A federation with the folders of its sites.

    Attributes:
        folder: Where all of it lies.
        said: What server and sites have said.
    """

    folder: Path
    said: list[str] = field(default_factory=list)
    hub: Memory = field(default_factory=Memory)

    def __post_init__(self) -> None:
        self.federation = FederationFolder.create(self.folder / "federation", About("test"))

    def join(self, *names: str, **settings: Any) -> list[Path]:
        """Let sites join, and be there."""
        folders = []
        for token in self.federation.invite(names):
            folders.append(self.folder / token.site)
            site.join(token, folders[-1], Site(**settings))
            site.admit(folders[-1], functools.partial(self.federation.certify, token.certificate.encode()))
            self.come(token.site)
        return folders

    def certified(self, token: Token, folder: Path) -> bytes:
        """What the server answers a site's request for its first certificate."""
        request = certificates.request(certificates.load_key(folder / "new.key"))
        return self.federation.certify(token.certificate.encode(), request)

    def opened(self, name: str) -> member.Resident:
        """A site as a fresh process has it."""
        folder = self.folder / name
        return member.Resident(folder, site.read_settings(folder / "site.toml", Site), self.said.append)

    def node(self, name: str) -> Node:
        row = self.federation.one("SELECT id FROM sites WHERE name = ?", name)
        assert row is not None
        return int(row["id"])

    def come(self, name: str) -> member.Resident:
        """A site comes to the network, or comes back as another process."""
        here = self.opened(name)
        self.hub.handlers[self.node(name)] = here.answer
        return here

    def queue(self, experiment: Experiment, *sites: str, **options: Any) -> str:
        """Queue an experiment in which sites have their part of the split."""
        return self.federation.queue(experiment, {"own_data": False, "wait_s": 5.0, **options}, sites)

    def run(self, look: Callable[[], None] = lambda: None) -> list[str]:
        """Run all that waits; how each has ended."""
        watch = resident.Watch(self.federation, self.hub, look)  # type: ignore[arg-type]
        states = []
        while (row := self.federation.next()) is not None:
            watch._looked = 0.0
            resident.run(watch, row, self.said.append)
            states.append(str(self.federation.experiment(row["name"])["state"]))
        watch._looked = watch._saw = 0.0
        watch()
        return states

    def record(self, name: str) -> Path:
        return self.federation.record(name)
