"""A site that takes part: it answers the server's requests, as its own policy allows."""

import hashlib
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from unskew.deploy import certificates
from unskew.deploy.certificates import fingerprint, make_private
from unskew.deploy.channel import Away, Connection, TurnedAway, certify, credentials, ends
from unskew.deploy.client import consider, keep_agreed, open_client
from unskew.deploy.offers import MOST, Offer
from unskew.deploy.settings import EXPERIMENT, Site, address, read_rules, read_settings, text_of
from unskew.deploy.site import OFFER, OFFERS, OUTCOME, admit, forget_invitation
from unskew.deploy.watched import Vitals, serving
from unskew.errors import DataError, DeployError, WireError, noted, shown
from unskew.files import read_bytes, write_atomically
from unskew.run.folder import locked
from unskew.runtime.accounts import append
from unskew.runtime.client import ClientRuntime, reason_of
from unskew.runtime.log import printable
from unskew.runtime.message import REPLIES, REQUESTS, Envelope, Hello, Refusal, read, write
from unskew.signals import stoppable
from unskew.version import __version__

Say = Callable[[str], None]
TOLD_AGAIN_S = 60.0
"""Time for which a connection must have held for its loss to be told again, seconds."""


class Resident:
    """Answers the server's requests for all experiments.

    Args:
        folder: The site's folder.
        site: Its settings.
        say: Called with a line for the site's log.
    """

    def __init__(self, folder: Path, site: Site, say: Say) -> None:
        self.folder, self.site, self.say, self.vitals = folder, site, say, Vitals()
        self.audit, self.away, self._said = read_rules(site).audit(folder), "not connected yet", ""
        self._open: tuple[tuple[str, str], ClientRuntime] | None = None

    def status(self) -> dict[str, Any]:
        """Version and free disk, for the server's status."""
        self.away = ""
        self.vitals.connected.set(1)
        self.vitals.contact.labels("server").set_to_current_time()
        self.renew()
        self.vitals.certificate.labels(self.site.name).set(certificates.days(self.folder / "site.crt"))
        return {"library": __version__, "disk": shutil.disk_usage(self.folder).free}

    def renew(self) -> None:
        """Renew the site's certificate in time; later connections use it."""
        if certificates.is_due(self.folder / "site.crt"):
            request = certificates.request(certificates.load_key(self.folder / "site.key"))
            try:
                own = credentials(self.folder, "site")
                certificates.accept(self.folder, certify(address(self.site), own, request))
                self.say("the site has a new certificate")
            except DeployError as error:
                at = certificates.load(self.folder / "site.crt").not_valid_after_utc
                self.failed(DeployError(f"the certificate ends on {at:%Y-%m-%d}: {error}"))

    def answer(self, envelope: Envelope) -> Envelope:
        """Reply to a request; errors become replies, too."""
        greeted = None
        try:
            head = read(envelope, REQUESTS)
            if isinstance(head, Hello):
                offer = greeted = self.offered(head.run, envelope.parts)
            else:
                offer = self.kept(head.context.run)
            if waits := consider(self.place(offer), offer.own_data, self.site):
                reply = write("waiting" if greeted else "refused", Refusal(waits))
            else:
                reply = self.opened(offer, envelope).answer(envelope)
        except Exception as error:  # such as a full disk; whoever asks next is answered, too
            reply = write("refused", Refusal(self.failed(error)))
        try:
            if greeted is not None:
                self.record(greeted, reply)
        except OSError as error:
            reply = write("refused", Refusal(self.failed(error)))
        self.vitals.bytes.labels("down").inc(envelope.size)
        self.vitals.bytes.labels("up").inc(reply.size)
        return reply

    def failed(self, error: Exception) -> str:
        """Log an error, unless it is the same as the last; returns what the server may know of it."""
        if (text := printable(reason_of(error, self.folder))) != self._said:
            self._said = text
            self.say(text)
        return "its data do not go with the experiment; its own log says why" if isinstance(error, DataError) else text

    def offered(self, run: str, parts: tuple[bytes, ...]) -> Offer:
        """Keep an experiment that is offered, if the authority has signed it for this site and this run."""
        if len(parts) != 2:
            raise WireError("a greeting must carry an experiment and its signature")
        data, signature = parts
        if len(data) > MOST:
            raise WireError(f"the experiment has {len(data)} bytes, more than the {MOST} allowed")
        certificates.check_signed(certificates.load_all(self.folder / "ca.crt"), data, signature)
        offer = Offer.read(data)
        if offer.site != self.site.name:
            raise WireError(f"the experiment is offered to {offer.site[:80]!r}, and this site is {self.site.name!r}")
        if offer.run != run:
            raise WireError("the experiment is not the one that the server greets for")
        place = make_private(self.place(offer))
        for name, content in ((EXPERIMENT, offer.toml.encode()), (OFFER, data)):
            if not (place / name).exists() or (place / name).read_bytes() != content:
                write_atomically(place / name, content)
        return offer

    def record(self, offer: Offer, reply: Envelope) -> None:
        """Write the answer to an offer beside it, into the audit log and the site's log, once."""
        state = {"hello": "accepted", "waiting": "waits"}.get(reply.action, "refused")
        reason = "" if state == "accepted" else printable(read(reply, REPLIES).reason)
        outcome = f"{state}{f': {reason}' if reason else ''}"
        if text_of(self.place(offer) / OUTCOME) != outcome:
            sha256 = hashlib.sha256(offer.toml.encode()).hexdigest()
            row = {"experiment": offer.name, "run": offer.run, "sha256": sha256, "answer": state}
            append(self.audit, "offer", **row, **({"reason": reason} if reason else {}))
            self.say(f"{offer.name}: {outcome}")
            write_atomically(self.place(offer) / OUTCOME, outcome)

    def kept(self, run: str) -> Offer:
        """The verified offer of a run, which must exist."""
        for path in self.folder.glob(OFFERS):
            if (offer := Offer.read(read_bytes(path, MOST))).run == run:
                return offer
        raise WireError("this site takes no part in that run")

    def place(self, offer: Offer) -> Path:
        """Folder of an offer; an earlier run may have the same name."""
        named = self.folder / "experiments" / offer.name
        if (named / OFFER).exists() and Offer.read(read_bytes(named / OFFER, MOST)).run != offer.run:
            return named.with_name(f"{offer.name}-{offer.run[:8]}")
        return named

    def opened(self, offer: Offer, request: Envelope) -> ClientRuntime:
        """The client of an accepted experiment, with the site's own data."""
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
    """Run a site until it is stopped; broken connections are renewed.

    Args:
        folder: The site's folder.
        say: Called with a line when something happens.
        status_port: Port on loopback for a monitor; by default none.

    Raises:
        DeployError, ConfigError: If it can never take part: because of its folder, token, key, or the server's
            certificate.
    """
    site = read_settings(folder / "site.toml", Site)
    at, trusted = address(site), list(map(fingerprint, certificates.load_all(folder / "ca.crt")))
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
        connection = Connection(at, lambda: credentials(folder, "site"), resident.answer, resident.status)
        invited = (folder / "invitation.crt").exists
        if not invited():
            certificates.check(folder, "site")

        def take_part() -> None:
            if invited():
                own = credentials(folder, "invitation")
                if not admit(folder, lambda request: certify(at, own, request)):
                    raise Away("the coordinator has yet to approve this site")
            connection.serve()

        say(f"{site.name}: takes part at {at}; Ctrl-C ends it")
        last, began = "", time.monotonic()
        for error in ends(take_part):
            if invited() and isinstance(error, TurnedAway):
                forget_invitation(folder)  # who was a site before stays one
                raise error
            resident.away = str(error)
            try:
                if not invited():
                    certificates.check(folder, "site")
            except DeployError as why:
                resident.away = str(why)
            resident.vitals.connected.set(0)
            if resident.away != last or time.monotonic() - began > TOLD_AGAIN_S:
                say(f"{resident.away}; waiting for the server")
            last, began = resident.away, time.monotonic()
