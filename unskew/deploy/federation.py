"""The coordinator's folder: the members of the federation, and its experiments.

    FEDERATION/                made by `unskew fed init`; only its owner can enter it
        authority/             ca.crt  ca.key  server.crt  server.key
        federation.toml        its name and address
        federation.sqlite      sites, experiments, offers, events
        experiments/NAME/      experiment.toml  deployment.json  run/

Commands write into the database, which the server reads twice a second.  A site's number in the table is its node on
the network.
"""

import json
import secrets
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w
from cryptography import x509

from unskew import schema
from unskew.deploy import certificates
from unskew.deploy.certificates import Authority, make_private, public_bytes, public_key
from unskew.deploy.offers import Offer, Token, checked_name
from unskew.deploy.settings import EXPERIMENT, About, address, read_settings, text_of
from unskew.errors import DeployError, RunError, did_you_mean
from unskew.files import rename_folder, temporary_folder, write_atomically
from unskew.lock import lock, lockable
from unskew.runtime.log import printable
from unskew.runtime.policy import ServerConfig

if TYPE_CHECKING:
    from unskew.deploy.channel import Peer
    from unskew.experiment.config import Experiment

DATABASE, SETTINGS = "federation.sqlite", "federation.toml"
GRACE = timedelta(days=30)
"""Time for which an invitation's certificate outlives it, so that its holder can be told that it has expired."""
EVENTS = 100_000
"""Events that are kept."""
_TABLES = """
CREATE TABLE sites (
    id INTEGER PRIMARY KEY, name TEXT UNIQUE, state TEXT, token BLOB, until REAL, ask INTEGER, key BLOB UNIQUE,
    ends REAL, signed TEXT, since REAL, seen REAL, version TEXT, free_bytes INTEGER, error TEXT, error_at REAL);
CREATE TABLE experiments (
    id INTEGER PRIMARY KEY, name TEXT UNIQUE, state TEXT, run TEXT, config TEXT, stop INTEGER DEFAULT 0,
    round INTEGER DEFAULT 0, rounds INTEGER, queued REAL, began REAL, ended REAL, reason TEXT);
CREATE TABLE offers (
    experiment INTEGER, site INTEGER, client INTEGER, state TEXT DEFAULT 'offered', reason TEXT DEFAULT '', at REAL,
    PRIMARY KEY (experiment, site));
CREATE TABLE events (id INTEGER PRIMARY KEY, at REAL, level TEXT, site TEXT, text TEXT);
"""
Row = dict[str, Any]
Node = int


class FederationFolder:
    """A federation's folder.  The database is opened for each call, so any thread or process may use one.

    Attributes:
        folder, keys: The folder, and the one in it with keys and certificates of authority and server.
        about: Its settings.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.keys = folder, folder / "authority"
        if not (folder / DATABASE).is_file():
            raise DeployError(f"{folder} is no federation; make one with unskew fed init, or name it with --folder")
        self.about = read_settings(folder / SETTINGS, About)

    @classmethod
    def create(cls, folder: Path, about: About) -> "FederationFolder":
        """Make a new folder, with an authority, a server's certificate and an empty database."""
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise DeployError(f"{folder} exists already; name another folder")
        with temporary_folder(folder) as new:
            who, hosts = certificates.authority(about.name), (about.host, *about.names)
            certificates.save_authority(who, make_private(new / "authority"))
            certificates.issue_server(who, hosts, new / "authority", timedelta(days=about.days))
            write_atomically(new / SETTINGS, tomli_w.dumps(asdict(about)))
            with closing(sqlite3.connect(new / DATABASE)) as db, db:
                db.executescript(_TABLES)
            if folder.exists():
                folder.rmdir()
            rename_folder(new, folder)
        return cls(folder)

    # ------------------------------------------------------------ the database
    @contextmanager
    def change(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """One transaction."""
        path = self.folder / DATABASE
        try:
            with closing(sqlite3.connect(path, timeout=30.0, isolation_level=None)) as db:
                db.row_factory = sqlite3.Row
                db.execute(begin)
                yield db
                db.execute("COMMIT")
        except sqlite3.Error as error:
            raise DeployError(f"cannot use {path}: {error}; fix it, or restore a backup") from None

    def rows(self, query: str, *values: object) -> list[Row]:
        """Rows of a query."""
        with self.change("BEGIN") as db:
            return [dict(row) for row in db.execute(query, values)]

    def one(self, query: str, *values: object) -> Row | None:
        """The first row of a query; None if there is none."""
        return next(iter(self.rows(query, *values)), None)

    def put(self, table: str, number: int, **values: object) -> None:
        """Update columns of the row with this id."""
        with self.change() as db:
            _put(db, table, number, **values)

    def note(self, text: str, level: str = "info", site: str | None = None) -> None:
        """Write an event."""
        with self.change() as db:
            _note(db, text, level, site)

    # ------------------------------------------------------------ itself
    @property
    def authority(self) -> Authority:
        """The federation's authority, which signs the server's certificate and experiments."""
        return certificates.load_authority(self.keys)

    def trusted(self) -> bytes:
        """The trusted authorities (PEM): the current one, and its successor if there is one."""
        files = (self.keys / name for name in ("ca.crt", "next.crt"))
        return b"".join(file.read_bytes() for file in files if file.exists())

    def change_authority(self) -> list[str]:
        """Trust a second authority beside the first; it signs sites' certificates from now on.

        Returns:
            Names of the members that have yet to renew their certificates.
        """
        if not (self.keys / "next.crt").exists():
            certificates.save_authority(certificates.authority(self.about.name), self.keys, "next")
            self.note("a second authority is trusted; sites move over as they renew their certificates", "warning")
        signer = certificates.fingerprint(certificates.load(self.keys / "next.crt"))
        behind = self.rows("SELECT name FROM sites WHERE state = 'member' AND signed IS NOT ? ORDER BY id", signer)
        return [row["name"] for row in behind]

    def drop_authority(self) -> None:
        """Trust the second authority alone, once all members have renewed; it signs the server's certificate."""
        if not (self.keys / "next.crt").exists():
            raise DeployError("there is no second authority; make one with unskew fed authority")
        if behind := self.change_authority():
            raise DeployError(f"{', '.join(behind)} would be locked out; wait until they have renewed, or remove them")
        self.issue_server(certificates.load_authority(self.keys, "next"))
        for end in ("key", "crt"):
            (self.keys / f"next.{end}").replace(self.keys / f"ca.{end}")
        self.note("the first authority is no longer trusted", "warning")

    def issue_server(self, who: Authority) -> None:
        """Sign a new certificate for the server."""
        hosts, valid = (self.about.host, *self.about.names), timedelta(days=self.about.days)
        certificates.issue_server(who, hosts, self.keys, valid)

    def fingerprint(self) -> str:
        """Fingerprint of the authority, to read aloud."""
        return certificates.fingerprint(certificates.load(self.keys / "ca.crt"))

    def is_served(self) -> bool:
        """True if a server runs."""
        with lockable(self.folder / ".lock") as f:
            try:
                lock(f)
            except BlockingIOError:
                return True
        return False

    # ------------------------------------------------------------ sites
    def invite(self, names: Iterable[str], hours: float = 48.0, ask: bool = False) -> list[Token]:
        """Make a token for each site; a token it had before becomes invalid.

        Args:
            names: Names of new, invited or removed sites; no members.
            hours: Hours for which the tokens are valid.
            ask: True if a site must be approved when it joins.
        """
        tokens, until, who = [], time.time() + 3600.0 * hours, self.authority
        reached = self.about.host, self.about.port
        for name in names:
            checked_name(name, "a site")
            key, certificate = certificates.invitation(who, name, timedelta(hours=hours) + GRACE)
            invited = {"token": public_bytes(key.public_key()), "until": until, "ask": ask, "state": "invited"}
            with self.change() as db:
                db.execute("INSERT OR IGNORE INTO sites (name, state) VALUES (?, 'invited')", (name,))
                site = self._named(db, name)
                if site["state"] == "member":
                    raise DeployError(f"{name} is a member; remove it first, or invite another name")
                _put(db, "sites", site["id"], **invited, key=None)
                _note(db, f"{name} is invited", site=name)
            files = certificates.pem(who.certificate), certificates.pem(certificate), certificates.private_pem(key)
            tokens.append(Token(name, *reached, *(file.decode() for file in files)))
        return tokens

    def certify(self, caller: bytes, request: bytes) -> bytes:
        """Sign a site's certificate: the first by its invitation, later ones by its current certificate.

        Args:
            caller: Certificate of the caller (PEM), signed by the authority.
            request: The request (PEM).

        Returns:
            The certificate and the trusted authorities (`certificates.answer`); empty while approval is pending.
        """
        key, valid = certificates.requested(request), timedelta(days=self.about.days)
        wanted, owner = public_bytes(key), public_key(caller)
        with self.change() as db:
            site = db.execute("SELECT * FROM sites WHERE ? IN (key, token)", (owner,)).fetchone()
            if site is None:
                raise DeployError("the token is not known, or a newer one has taken its place; ask for a new one")
            state, name = site["state"], site["name"]
            if owner == site["key"] != wanted:
                raise DeployError("a certificate is renewed for the key that the site has")
            if site["key"] not in (None, wanted):
                raise DeployError("the token was used already; ask for a new one, and find out who used it")
            if site["key"] is None:
                if time.time() > site["until"]:
                    raise DeployError("the token has expired; ask for a new one")
                state = "waiting" if site["ask"] else "member"
                _put(db, "sites", site["id"], state=state, key=wanted)
                _note(
                    db,
                    f"{name} {'has joined' if state == 'member' else f'waits: unskew fed approve {name}'}",
                    site=name,
                )
            if state != "member":
                return b""
            who = certificates.load_authority(self.keys, "next" if (self.keys / "next.crt").exists() else "ca")
            signed = certificates.issue_site(who, name, key, valid)
            ends = x509.load_pem_x509_certificate(signed).not_valid_after_utc.timestamp()
            _put(db, "sites", site["id"], ends=ends, signed=certificates.fingerprint(who.certificate))
            _note(db, f"{name} has a new certificate", site=name)
        return certificates.answer(signed, self.trusted(), self.authority)

    def approve(self, names: Iterable[str]) -> None:
        """Let sites join that wait or will come; refuse other names."""
        for name in names:
            with self.change() as db:
                site = self._named(db, name)
                if site["state"] not in ("waiting", "invited"):
                    raise DeployError(f"{name} is {site['state']}; there is nothing to approve")
                _put(db, "sites", site["id"], state="member" if site["key"] else "invited", ask=False)
                _note(db, f"{name} is approved", site=name)

    def remove(self, names: Iterable[str]) -> None:
        """Remove sites at once: their certificates and tokens become invalid."""
        for name in names:
            with self.change() as db:
                site = self._named(db, name)
                _put(db, "sites", site["id"], state="removed", key=None, token=None)
                _note(db, f"{name} is removed", "warning", site=name)

    def _named(self, db: sqlite3.Connection, name: str, kind: str = "site") -> Row:
        row = db.execute(f"SELECT * FROM {kind}s WHERE name = ?", (name,)).fetchone()
        if row is None:
            known = [r["name"] for r in db.execute(f"SELECT name FROM {kind}s")]
            raise DeployError(f"there is no {kind} {name!r}{did_you_mean(name, known)} ({kind}s: {', '.join(known)})")
        return dict(row)

    def node(self, key: bytes) -> Node | None:
        """The number of the site with this key; None if it is no member."""
        row = self.one("SELECT id FROM sites WHERE key = ? AND state = 'member'", key)
        return None if row is None else int(row["id"])

    def present(self) -> list[Row]:
        """Sites that are not removed, in their order."""
        return self.rows("SELECT * FROM sites WHERE state != 'removed' ORDER BY id")

    def saw(self, here: Mapping[Node, "Peer"]) -> None:
        """Keep since when sites are connected, and their status: numbers and short texts."""
        with self.change() as db:
            db.execute("UPDATE sites SET since = NULL WHERE since IS NOT NULL")
            for node, peer in here.items():
                disk, version = peer.status.get("disk"), printable(str(peer.status.get("library")), 200)
                own = {"version": version, "free_bytes": disk if type(disk) is int else None}
                _put(db, "sites", node, since=peer.since, seen=time.time(), **own)

    # ------------------------------------------------------------ experiments
    def queue(self, experiment: "Experiment", options: Mapping[str, Any], sites: Sequence[str] = ()) -> str:
        """Sign an experiment for sites and queue it; returns its name in the federation.

        The same experiment for the same sites is resumed, unless it is done.

        Args:
            experiment: The experiment.
            options: Settings of `ServerConfig` other than the defaults; min_clients is by default all.
            sites: Names of the sites; by default all but removed ones.
        """
        name = checked_name(experiment.name.replace(" ", "-"), "an experiment")
        from unskew.experiment.config import to_toml  # with all of PyTorch

        toml, present = to_toml(experiment), self.present()
        with self.change() as db:
            chosen = [self._named(db, site) for site in sites] or present
            if gone := [site["name"] for site in chosen if site["state"] == "removed"]:
                raise DeployError(f"{', '.join(gone)} was removed; invite it again")
            if not chosen:
                raise DeployError("the federation has no sites; invite some with unskew fed invite")
            table = {"num_clients": len(chosen), "min_clients": len(chosen), **options}
            config = json.dumps(asdict(schema.build(ServerConfig, table, "")))
            known = {row["name"]: dict(row) for row in db.execute("SELECT * FROM experiments")}
            tried = (f"{name}{f'-{n}' if n else ''}" for n in (0, *range(2, len(known) + 3)))
            free = next(one for one in tried if one not in known or self._same(db, known[one], toml, chosen))
            if free in known:
                if known[free]["state"] != "running":
                    _put(db, "experiments", known[free]["id"], state="queued", stop=0, config=config)
                _note(db, f"{free} goes on")
                return free
            place = self.experiment_folder(free)
            make_private(place)
            write_atomically(place / EXPERIMENT, toml)
            columns = "name, state, run, config, rounds, queued"
            row = (free, "queued", secrets.token_hex(8), config, experiment.rounds, time.time())
            number = db.execute(f"INSERT INTO experiments ({columns}) VALUES (?, ?, ?, ?, ?, ?)", row).lastrowid
            offers = [(number, site["id"], client) for client, site in enumerate(chosen)]
            db.executemany("INSERT INTO offers (experiment, site, client) VALUES (?, ?, ?)", offers)
            _note(db, f"{free} is queued for {', '.join(site['name'] for site in chosen)}")
        return free

    def _same(self, db: sqlite3.Connection, row: Row, toml: str, sites: Sequence[Row]) -> bool:
        """True if it is the same experiment, not done, for the same sites but those removed or added since."""
        asked = {r["site"] for r in db.execute("SELECT site FROM offers WHERE experiment = ?", (row["id"],))}
        removed = {r["id"] for r in db.execute("SELECT id FROM sites WHERE state = 'removed'")}
        chosen = {site["id"] for site in sites if site["id"] <= max(asked)}
        same = text_of(self.experiment_folder(row["name"]) / EXPERIMENT) == toml
        return row["state"] != "done" and same and asked - removed == chosen

    def experiment_folder(self, name: str) -> Path:
        """Folder of an experiment."""
        return self.folder / "experiments" / name

    def record(self, name: str) -> Path:
        """Folder of the run of an experiment that has begun."""
        folder = self.experiment_folder(name) / "run"
        if not (folder / "run.json").exists():
            raise RunError(f"{name} has no results yet; unskew fed status says what it waits for")
        return folder

    def experiment(self, name: str | None = None) -> Row:
        """The experiment of that name, or the last one."""
        with self.change("BEGIN") as db:
            if name is not None:
                return self._named(db, name, "experiment")
            row = db.execute("SELECT * FROM experiments ORDER BY id DESC").fetchone()
        if row is None:
            raise DeployError("no experiment was run yet; run one with unskew fed run")
        return dict(row)

    def next(self) -> Row | None:
        """The experiment to run now: an interrupted one, else the first in the queue."""
        return self.one(
            "SELECT * FROM experiments WHERE state IN ('running', 'queued') ORDER BY state = 'queued', queued, id"
        )

    def config(self, row: Row) -> ServerConfig:
        """How an experiment is run."""
        config: ServerConfig = schema.build(ServerConfig, json.loads(row["config"]), "")
        here = {offer["site"] for offer in self.offers(row)} & {site["id"] for site in self.present()}
        return replace(config, min_clients=max(min(config.min_clients, len(here)), 1))

    def offers(self, row: Row) -> list[Row]:
        """The sites' answers to an experiment, by client."""
        query = "SELECT offers.*, name FROM offers JOIN sites ON sites.id = site WHERE experiment = ? ORDER BY client"
        return self.rows(query, row["id"])

    def signed(self, row: Row) -> list[tuple[bytes, bytes]]:
        """The offer of an experiment to each site, with the authority's signature, by client."""
        who, offers = self.authority, self.offers(row)
        toml, own_data = text_of(self.experiment_folder(row["name"]) / EXPERIMENT), self.config(row).own_data
        return [
            Offer(row["name"], o["name"], row["run"], o["client"], len(offers), own_data, toml).signed(who)
            for o in offers
        ]

    def answered(self, row: Row, node: Node, state: str, reason: str = "") -> None:
        """Keep a site's answer to an offer."""
        with self.change() as db:
            change = "UPDATE offers SET state = ?, reason = ?, at = ? WHERE experiment = ? AND site = ?"
            place = (state, reason, time.time(), row["id"], node, state, reason)
            if db.execute(f"{change} AND (state, reason) != (?, ?)", place).rowcount:
                name = db.execute("SELECT name FROM sites WHERE id = ?", (node,)).fetchone()["name"]
                text = f"{name}: {row['name']} {state}{f': {reason}' if reason else ''}"
                _note(db, text, "warning" if state == "refused" else "info", name)

    def stop(self, name: str | None = None) -> str:
        """Stop an experiment, by default the running one or the first in the queue; returns its name."""
        row = self.next() if name is None else self.experiment(name)
        if row is None or row["state"] not in ("running", "queued"):
            raise DeployError(f"{'no experiment' if row is None else row['name']} is running or waiting")
        if row["state"] == "running" and self.is_served():
            self.put("experiments", row["id"], stop=1)
        else:
            self.put("experiments", row["id"], state="stopped", reason="stopped by request", ended=time.time())
        self.note(f"{row['name']} is to stop")
        return str(row["name"])

    # ------------------------------------------------------------ what is shown
    def status(self) -> Row:
        """The federation now: settings, sites, experiments.  Times are seconds since 1970."""
        served, now = self.is_served(), time.time()
        own = "name AS site, state, since, seen, version, free_bytes, error, error_at, ends"
        sites = self.rows(f"SELECT {own} FROM sites ORDER BY id")
        for site in sites:
            site["since"] = site["since"] if served else None
            ends = site.pop("ends")
            site["certificate_days"] = None if ends is None else int((ends - now) // 86_400)
        return {
            "federation": self.about.name,
            "server": address(self.about),
            "serving": served,
            "certificate_days": int(certificates.days(self.keys / "server.crt") // 1),
            "authority_days": int(certificates.days(self.keys / "ca.crt") // 1),
            "sites": sites,
            "experiments": self.jobs(),
        }

    def jobs(self) -> list[Row]:
        """Experiments in order, each with its sites' answers."""
        experiments = self.rows("SELECT * FROM experiments ORDER BY id")
        names = ("name", "state", "round", "rounds", "queued", "began", "ended", "reason")
        return [
            {**{name: row[name] for name in names}, "sites": {o["name"]: o["state"] for o in self.offers(row)}}
            for row in experiments
        ]

    def events(self, after: int = 0, site: str | None = None, last: int = EVENTS) -> list[Row]:
        """Events after this number, oldest first, of one site if it is named."""
        query = "SELECT * FROM events WHERE id > ? AND (site = ? OR ? IS NULL) ORDER BY id DESC LIMIT ?"
        return self.rows(query, after, site, site, last)[::-1]


def _put(db: sqlite3.Connection, table: str, number: int, **values: object) -> None:
    columns = ", ".join(f"{name} = ?" for name in values)
    db.execute(f"UPDATE {table} SET {columns} WHERE id = ?", (*values.values(), number))


def _note(db: sqlite3.Connection, text: str, level: str = "info", site: str | None = None) -> None:
    insert = "INSERT INTO events (at, level, site, text) VALUES (?, ?, ?, ?)"
    number = db.execute(insert, (time.time(), level, site, printable(text, 1000))).lastrowid
    if number is not None and number % 1000 == 0:
        db.execute("DELETE FROM events WHERE id <= ?", (number - EVENTS,))
