"""Serves health (`/healthz`) and Prometheus metrics (`/metrics`) of a server or a site, on loopback."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from unskew.errors import DeployError

disable_created_metrics()  # type: ignore[no-untyped-call]  # when each counter was made: a second line beside every one
Health = Callable[[], str]
"""Says what is wrong; empty where all is well."""


class Vitals:
    """Numbers of one process, each set once it is known.

    Attributes:
        rounds, seconds: Rounds that ended, and their time, by experiment.
        bytes: Bytes sent and received, by direction: "up" to the server or "down" from it.
        failures: Replies that were late, lost or refused, by site.
        connected: Sites that are connected; at a site 1 or 0.
        contact: Time of the last message from a site, seconds since 1970.
        certificate: Days until a certificate expires, by its holder.
    """

    def __init__(self) -> None:
        self.registry = at = CollectorRegistry()
        self.rounds = Counter("unskew_rounds", "Rounds that ended", ["experiment"], registry=at)
        self.seconds = Counter("unskew_round_seconds", "Seconds of the rounds that ended", ["experiment"], registry=at)
        self.bytes = Counter("unskew_bytes", "Bytes of messages", ["direction"], registry=at)
        self.failures = Counter("unskew_failures", "Replies that were late, lost or refused", ["site"], registry=at)
        self.connected = Gauge("unskew_connected", "Sites that are connected", registry=at)
        last, days = "When a site was last heard of, since 1970", "Days for which a certificate is valid"
        self.contact = Gauge("unskew_last_contact_seconds", last, ["site"], registry=at)
        self.certificate = Gauge("unskew_certificate_days", days, ["holder"], registry=at)


class Silent(WSGIRequestHandler):
    """Answers without logging each request."""

    def log_message(self, *of_request: object) -> None:
        """Log nothing."""


@contextmanager
def serving(vitals: Vitals, health: Health, port: int) -> Iterator[int]:
    """Answer on 127.0.0.1 during the `with` block; gives the port, a free one for 0."""
    metrics: Callable[..., Iterable[bytes]] = make_wsgi_app(vitals.registry)

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/metrics":
            return metrics(environ, start)
        wrong = health()
        start("503 Service Unavailable" if wrong else "200 OK", [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{wrong or 'ok'}\n".encode()]

    try:
        server = make_server("127.0.0.1", port, answer, ThreadingWSGIServer, Silent)
    except OSError as error:
        raise DeployError(
            f"cannot answer at 127.0.0.1:{port}: {error.strerror}; choose another --status-port"
        ) from None
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
