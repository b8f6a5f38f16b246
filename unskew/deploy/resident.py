"""The server of a federation: keeps connections, and runs one experiment after another."""

import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace

from unskew.deploy import certificates, server
from unskew.deploy.channel import Credentials, GrpcServer, Node, Peer, credentials
from unskew.deploy.federation import FederationFolder, Row
from unskew.deploy.settings import address
from unskew.deploy.watched import Vitals, serving
from unskew.errors import RunError, UnskewError, WireError
from unskew.protocol import ClientId
from unskew.report import write_report
from unskew.run.cell import Cell
from unskew.run.folder import locked
from unskew.run.loop import Interrupted
from unskew.runtime.log import printable, warn
from unskew.runtime.message import REPLIES, Envelope, Lost, read
from unskew.signals import stoppable
from unskew.words import with_names

Say = Callable[[str], None]
LEAST_BYTES = 100_000_000
"""Free bytes of the disk below which a server is not well."""
LOOK_S = 0.5
"""Time after which the database is looked at again, seconds."""
TOLD_S = 1.0
"""Time within which one round's end is told, of however many, seconds."""
SEEN_S = 5.0
"""Time after which it is written again who is here, and looked whether the server's certificate ends, seconds."""


class Stopped(RunError):
    """A user has asked to stop an experiment."""


class Watch:
    """Looks at the database now and then: for sites that were removed, and for an experiment to stop."""

    def __init__(self, federation: FederationFolder, hub: GrpcServer, look: Callable[[], None]) -> None:
        self.federation, self.hub, self.look, self.vitals = federation, hub, look, Vitals()
        self.job: RunningJob | None = None
        self._looked = self._saw = 0.0
        self._here: set[Node] = set()
        self._warned = False
        hub.watch = self

    def __call__(self) -> None:
        """Look, unless it was done a moment ago; raises Stopped if the running experiment is to stop."""
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return
        self._looked = now
        self.look()
        here, members = self.hub.here(), {s["id"] for s in self.federation.present() if s["state"] == "member"}
        for node in here.keys() - members:
            self.hub.drop(node)
        if now - self._saw > SEEN_S or here.keys() != self._here:
            self._saw, self._here = now, {*here}
            renew(self.federation)
            self.measure(here)
            self.federation.saw({node: peer for node, peer in here.items() if node in members})
        if self.job is not None and self.federation.experiment(self.job.row["name"])["stop"]:
            raise Stopped("stopped by request")

    def measure(self, here: Mapping[Node, Peer]) -> None:
        """Set the numbers for a monitor: sites and certificates."""
        self.vitals.connected.set(len(here))
        keys = self.federation.keys
        left = {"server": certificates.days(keys / "server.crt"), "authority": certificates.days(keys / "ca.crt")}
        if left["authority"] < certificates.RENEWED.days and not (self._warned or (keys / "next.crt").exists()):
            self._warned = True
            text = f"the authority ends in {left['authority']:.0f} days; change it with unskew fed authority"
            warn(text)
            self.federation.note(text, "warning")
        for site in self.federation.present():
            if site["ends"] is not None:
                left[site["name"]] = (site["ends"] - time.time()) / 86_400
            if site["id"] in here:
                self.vitals.contact.labels(site["name"]).set(here[site["id"]].heard)
        for holder, days in left.items():
            self.vitals.certificate.labels(holder).set(days)


class RunningJob(server.LogCallback):
    """A running experiment: the transport to its sites, whose greeting carries the signed offer, and its progress.

    Attributes:
        names: Names of the sites, by client.
        members: Clients that are members of the federation; removed ones take no part.
    """

    def __init__(self, watch: Watch, row: Row, say: Say) -> None:
        self.watch, self.row, self.federation, self.vitals = watch, row, watch.federation, watch.vitals
        self._offers, sites = self.federation.signed(row), self.federation.offers(row)
        self._nodes = [site["site"] for site in sites]
        self._clients = {node: client for client, node in enumerate(self._nodes)}
        here = {site["id"] for site in self.federation.present()}
        self.members = {client for client, node in enumerate(self._nodes) if node in here}
        self.names = tuple(site["name"] for site in sites)
        super().__init__(lambda text: say(with_names(text, self.names)))
        self._asked: dict[ClientId, str] = {}
        self._ended, self._shown = time.monotonic(), 0.0

    def clients(self) -> set[ClientId]:
        """Clients whose sites are connected."""
        here = self.watch.hub.clients()
        return {client for client in self.members if self._nodes[client] in here}

    def send(self, client: ClientId, envelope: Envelope, deadline_s: float, most: int) -> bool:
        """Send a request to a client's site; a greeting carries the experiment."""
        if envelope.action == "hello":
            envelope = replace(envelope, parts=self._offers[client])
        if sent := self.watch.hub.send(self._nodes[client], envelope, deadline_s, most):
            self._asked[client] = envelope.action
            self.vitals.bytes.labels("down").inc(envelope.size)
        return sent

    def receive(self, seconds: float) -> Iterator[tuple[ClientId, Envelope | Lost]]:
        """Replies that have come, or the reasons why not."""
        for node, came in self.watch.hub.receive(seconds):
            if (client := self._clients.get(node)) not in self._asked:
                continue  # an experiment that was stopped had asked
            if isinstance(came, Lost):
                self._lost(client, came.reason)
            else:
                self.vitals.bytes.labels("up").inc(came.size)
                with suppress(WireError):
                    self._answered(client, came)
            yield client, came

    def forget(self, client: ClientId, late: str = "") -> None:
        """Stop waiting for a client's reply."""
        self.watch.hub.forget(self._nodes[client])
        if late:
            self._lost(client, late)

    def _lost(self, client: ClientId, reason: str) -> None:
        self.vitals.failures.labels(self.names[client]).inc()
        self.federation.put("sites", self._nodes[client], error=printable(reason), error_at=time.time())

    def _answered(self, client: ClientId, reply: Envelope) -> None:
        """Keep what a site answers to the experiment, and what it refuses."""
        reason = printable(read(reply, REPLIES).reason) if reply.action in ("refused", "waiting") else ""
        if self._asked[client] == "hello":
            state = {"hello": "accepted", "waiting": "waits"}.get(reply.action, "refused")
            self.federation.answered(self.row, self._nodes[client], state, reason)
        elif reason:
            self.federation.put("sites", self._nodes[client], error=reason, error_at=time.time())

    def ended_round(self, cell: Cell) -> None:
        """Log the progress now and then."""
        now = time.monotonic()
        self.vitals.rounds.labels(self.row["name"]).inc()
        self.vitals.seconds.labels(self.row["name"]).inc(now - self._ended)
        self._ended = now
        if now - self._shown > TOLD_S or cell.round in (1, cell.experiment.rounds):
            self._shown = now
            super().ended_round(cell)
            self.federation.put("experiments", self.row["id"], round=cell.round)


def serve(
    federation: FederationFolder,
    say: Say,
    only: str | None = None,
    force: bool = False,
    listen: str | None = None,
    look: Callable[[], None] = lambda: None,
    status_port: int | None = None,
) -> None:
    """Serve a federation until it is stopped (Interrupted), or until the experiment `only` has ended.

    Args:
        federation: The federation.
        say: Called with a line when something happens, which is also stored as an event.
        only: The experiment to end with.
        force: Resume experiments although versions or machine have changed.
        listen: Address to listen at; by default the federation's own.
        look: Called twice a second, too; an error it raises ends the experiment.
        status_port: Port on loopback for a monitor; by default none.
    """

    def note(text: str) -> None:
        say(text)
        federation.note(text)

    def own() -> Credentials:
        return (*credentials(federation.keys, "server")[:2], federation.trusted())

    about = federation.about
    at = address(about, listen or about.listen)
    try:
        with ExitStack() as open, locked(federation.folder), stoppable():
            renew(federation)
            network = open.enter_context(GrpcServer(at, own, federation.node, federation.certify, note))
            watch = Watch(federation, network, look)
            if status_port is not None:
                open.enter_context(serving(watch.vitals, lambda: wrong(federation), status_port))
            note(f"listening at {at}; sites reach it at {address(about)}")
            row = None
            while row is None or row["name"] != only:
                watch()
                if (row := federation.next()) is None:
                    time.sleep(LOOK_S)
                else:
                    run(watch, row, note, force)
            watch()  # what sites note last
    except (KeyboardInterrupt, Interrupted):
        row = federation.next()
        then = f"; unskew fed serve goes on with {row['name']}" if row else ""
        raise Interrupted(f"the server was stopped{then}") from None


def run(watch: Watch, row: Row, say: Say, force: bool = False) -> None:
    """Run an experiment to its end, and store the outcome in the database."""
    federation = watch.federation
    folder = federation.experiment_folder(row["name"])
    federation.put("experiments", row["id"], state="running", stop=0, began=row["began"] or time.time())
    try:
        job = watch.job = RunningJob(watch, row, say)
        whose = {"clients": job.members, "run": row["run"], "names": job.names}
        done = server.serve(job, folder, federation.config(row), job, force, **whose)
        write_report(done.folder)
        state, reason = "done", f"its record is in {done.folder}"
    except Interrupted:  # it goes on when the server does
        raise
    except Exception as error:  # whatever it is, the next experiment must not wait for it
        state, reason = "stopped" if isinstance(error, Stopped) else "failed", str(error)
        if not isinstance(error, UnskewError):
            say(traceback.format_exc())
            reason = f"{type(error).__name__}: {error}"
    finally:
        watch.job = None
    ended = {"state": state, "reason": "" if state == "done" else reason, "ended": time.time()}
    federation.put("experiments", row["id"], **ended)
    if state == "failed":
        warn(f"{row['name']} failed: {reason}")
        federation.note(f"{row['name']} failed: {reason}", "error")
    else:
        say(f"{row['name']} is {state}: {reason}")


def wrong(federation: FederationFolder) -> str:
    """What is wrong with a running server; empty if nothing is."""
    if shutil.disk_usage(federation.folder).free < LEAST_BYTES:
        return "the disk is nearly full"
    return "the authority's certificate has expired" if certificates.days(federation.keys / "ca.crt") < 0 else ""


def renew(federation: FederationFolder) -> None:
    """Renew the server's certificate when it ends soon; refuse an invalid one."""
    keys = federation.keys
    certificates.check_private(keys / "ca.key")
    if certificates.is_due(keys / "server.crt"):
        federation.issue_server(federation.authority)
        federation.note("the server has a new certificate")
    certificates.check(keys, "server")
