"""A site takes part: it answers the server, whichever experiment it asks about, as its own policy allows."""

import hashlib
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from unskew.deploy import certificates
from unskew.deploy.certificates import fingerprint, make_private
from unskew.deploy.channel import Away, Connection, TurnedAway, certify, credentials, stay_connected
from unskew.deploy.client import keep_agreed, open_client
from unskew.deploy.offers import MOST, Offer
from unskew.deploy.settings import EXPERIMENT, Address, Site, read_rules, read_settings, text_of
from unskew.deploy.site import admit, forget_invitation
from unskew.deploy.watched import Vitals, serving
from unskew.errors import ConfigError, DataError, DeployError, UnskewError, WireError, noted, shown
from unskew.files import read_bytes, write_atomically
from unskew.run.folder import locked
from unskew.runtime.audit import append
from unskew.runtime.client import ClientRuntime
from unskew.runtime.log import printable
from unskew.runtime.message import REQUESTS, Envelope, Hello, Refusal, read, write
from unskew.signals import stoppable
from unskew.version import __version__

Say = Callable[[str], None]
OFFERS = "experiments/*/offer.json"
TOLD_AGAIN_S = 60.0
"""Time for which a connection must have held for its loss to be told again, seconds."""


class Resident:
    """Answers the server, whichever experiment it asks about.

    Args:
        folder: The site's folder.
        site: Its settings.
        say: Called with a line for the site's log.
    """

    def __init__(self, folder: Path, site: Site, say: Say) -> None:
        self.folder, self.site, self.say, self.vitals = folder, site, say, Vitals()
        self.doing = self.error = ""
        self.away = "not connected yet"
        self._open: tuple[tuple[str, str], ClientRuntime] | None = None
        self._recorded: dict[str, str] = {}

    def status(self) -> dict[str, Any]:
        """State of the site, for the server's status: version, free disk, what it does, its last error."""
        self.away = ""
        self.vitals.connected.set(1)
        self.vitals.contact.labels("server").set_to_current_time()
        self.renew()
        self.vitals.certificate.labels(self.site.name).set(certificates.days(self.folder / "site.crt"))
        disk = shutil.disk_usage(self.folder).free
        return {"library": __version__, "disk": disk, "doing": self.doing, "error": self.error}

    def renew(self) -> None:
        """Renew the site's certificate in time; connections made from then on have it."""
        if certificates.is_due(self.folder / "site.crt"):
            request = certificates.request(certificates.load_key(self.folder / "site.key"))
            try:
                own = credentials(self.folder, "site")
                certificates.accept(self.folder, certify(str(Address(self.site.host, self.site.port)), own, request))
                self.say("the site has a new certificate")
            except DeployError as error:
                text = f"the certificate ends on {certificates.ends(self.folder / 'site.crt'):%Y-%m-%d}: {error}"
                if text != self.error:
                    self.say(text)
                self.error = text

    def answer(self, envelope: Envelope) -> Envelope:
        """Reply to a request; whatever is wrong with it, there is a reply."""
        try:
            head = read(envelope, REQUESTS)
            if isinstance(head, Hello):
                offer, waits = self.consider(envelope.parts)
                if offer.run != head.run:
                    raise WireError("the experiment is not the one that the server greets for")
                if waits:
                    return write("waiting", Refusal(waits))
                self.doing = offer.name
                runtime = self.opened(offer, envelope)
            else:
                runtime = self.of_run(head.context.run, envelope)
                self.doing = f"{runtime.state.parent.name}, round {head.context.round}"
        except UnskewError as error:
            return write("refused", Refusal(self.failed(error)))
        reply = runtime.answer(envelope)
        self.vitals.bytes.labels("down").inc(len(envelope.head) + envelope.payload)
        self.vitals.bytes.labels("up").inc(len(reply.head) + reply.payload)
        if reply.action == "refused":
            self.vitals.failures.labels(self.site.name).inc()
            self.error = printable(str(read(reply, {"refused": Refusal}).reason))
        return reply

    def failed(self, error: UnskewError) -> str:
        """Write an error into the site's log; returns what the server may know of it."""
        self.say(printable(str(error)))
        quotes = isinstance(error, DataError)  # the data, perhaps
        self.error = "its data do not go with the experiment; its own log says why" if quotes else printable(str(error))
        return self.error

    def consider(self, parts: tuple[bytes, ...]) -> tuple[Offer, str]:
        """Check an offered experiment and keep it; returns it, and why it has to wait, empty if it need not.

        Raises:
            WireError: If the authority has not signed it for this site, or a person has refused it.
            ConfigError: If the policy does not allow it.
        """
        if len(parts) != 2:
            raise WireError("a greeting must carry an experiment and its signature")
        offer = Offer.read(*parts, certificates.load_all(self.folder / "ca.crt"))
        if offer.site != self.site.name:
            raise WireError(f"the experiment is offered to {offer.site[:80]!r}, and this site is {self.site.name!r}")
        place, rules = self.place(offer), read_rules(self.site)
        try:
            word = _answer(place)
            if offer.own_data and self.site.data is None:
                raise ConfigError("this site has named no data of its own; join anew with --data")
            rules.check_names(offer.table())
        except UnskewError as error:
            self.record(offer, "refused", str(error))
            raise
        make_private(place)
        for name, content in (("offer.json", parts[0]), ("offer.sig", parts[1]), (EXPERIMENT, offer.toml.encode())):
            if not (place / name).exists() or (place / name).read_bytes() != content:
                write_atomically(place / name, content)
        if rules.policy.accept == "ask" and word != "accepted":
            waits = f"somebody at the site has yet to accept it: unskew site accept {offer.name}"
            self.record(offer, "waits", waits)
            return offer, waits
        if not word:
            write_atomically(place / "answer", "accepted")
        self.record(offer, "accepted", "")
        return offer, ""

    def record(self, offer: Offer, state: str, reason: str) -> None:
        """Write the answer to an offer into the audit log and the site's own log, once."""
        reason = printable(reason)
        if self._recorded.get(offer.run) != state + reason:
            self._recorded[offer.run] = state + reason
            sha256 = hashlib.sha256(offer.toml.encode()).hexdigest()
            row = {"experiment": offer.name, "run": offer.run, "sha256": sha256, "answer": state}
            append(read_rules(self.site).audit(self.folder), "offer", **row, **({"reason": reason} if reason else {}))
            self.say(f"{offer.name}: {state}{f': {reason}' if reason else ''}")

    def kept(self, run: str) -> Path | None:
        """Folder of a run that was offered; None if there is none."""
        offers = ((path.parent, Offer.parse(read_bytes(path, MOST))) for path in self.folder.glob(OFFERS))
        return next((place for place, offer in offers if offer.run == run), None)

    def place(self, offer: Offer) -> Path:
        """Folder of an offer, which may have the name of another."""
        named = self.folder / "experiments" / offer.name
        return self.kept(offer.run) or (named.with_name(f"{offer.name}-{offer.run[:8]}") if named.exists() else named)

    def of_run(self, run: str, request: Envelope) -> ClientRuntime:
        """The client of a run that this site takes part in; after a restart it is opened anew.

        Raises:
            WireError: If it takes no part in such a run.
        """
        if self._open is not None and self._open[0][0] == run:
            _answer(self._open[1].state.parent)
            return self._open[1]
        if (place := self.kept(run)) is not None:
            offer, waits = self.consider(tuple(read_bytes(place / f"offer.{end}", MOST) for end in ("json", "sig")))
            if not waits:
                return self.opened(offer, request)
        raise WireError("this site takes no part in that run")

    def opened(self, offer: Offer, request: Envelope) -> ClientRuntime:
        """Open the client of an experiment that was accepted, with the site's own data, for a request of it.

        Raises:
            ConfigError, DataError: If the experiment cannot be used here.
        """
        place = self.place(offer)
        which = offer.run, keep_agreed(place, request)
        if self._open is None or self._open[0] != which:
            self._open = None  # the data of the last one make room
            for kept in ("state", "models"):
                make_private(place / kept)
            with noted() as notes:
                self._open = which, open_client(place, offer.client, offer.clients, self.site, self.folder)
            for note in notes:
                self.say(f"warning: {' '.join(shown(note).splitlines())}")
        return self._open[1]


def start(folder: Path, say: Say, status_port: int | None = None) -> None:
    """Run a site until it is stopped; a connection that breaks is made anew.

    Args:
        folder: The site's folder.
        say: Called with a line when something happens.
        status_port: Port on loopback that answers a monitor; by default none does.

    Raises:
        DeployError, ConfigError: If it could never take part: its folder, its token, its key, the server's certificate.
        KeyboardInterrupt: When it is stopped.
    """
    site = read_settings(folder / "site.toml", Site)
    at, trusted = Address(site.host, site.port), list(map(fingerprint, certificates.load_all(folder / "ca.crt")))
    expected = read_rules(site).policy.coordinator
    if expected is not None and "".join(expected.lower().split()) not in (one.replace(" ", "") for one in trusted):
        raise DeployError(
            f"the federation's authority is {' or '.join(trusted)}, and the policy trusts {expected} only"
        )
    resident = Resident(folder, site, say)
    with ExitStack() as open, locked(folder), stoppable():
        if status_port is not None:
            open.enter_context(serving(resident.vitals, lambda: resident.away, status_port))
        say(f"{site.name}: the server's authority is {' or '.join(trusted)}; compare it by telephone")
        connection = Connection(str(at), lambda: credentials(folder, "site"), resident.answer, resident.status)
        if joined := not (folder / "invitation.crt").exists():
            certificates.check(folder, "site")
        last = ""

        def take_part() -> None:
            nonlocal joined
            if not joined:
                invitation = credentials(folder, "invitation")
                if not admit(folder, lambda request: certify(str(at), invitation, request)):
                    raise Away("the coordinator has yet to approve this site")
                joined = True
            connection.serve()

        def lost(error: DeployError, held_s: float) -> None:
            nonlocal last
            if isinstance(error, TurnedAway) and not joined:
                forget_invitation(folder)  # who was a site before stays one
                raise error
            text = str(error)
            try:
                if joined:
                    certificates.check(folder, "site")
            except DeployError as why:
                text = str(why)
            resident.away = text
            resident.vitals.connected.set(0)
            if text != last or held_s > TOLD_AGAIN_S:
                say(f"{text}; waiting for the server")
                last = text

        say(f"{site.name}: takes part at {at}; Ctrl-C ends it")
        stay_connected(take_part, lost)


def _answer(place: Path) -> str:
    """Answer of a person at the site to an experiment, empty for none yet; a refusal is raised."""
    word = text_of(place / "answer")
    if word == "refused":
        raise WireError("a person at this site has refused it")
    return word
