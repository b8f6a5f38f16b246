"""Health and metrics of a server or a site for a monitor: `/healthz`, and `/metrics` for Prometheus, on loopback."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from unskew.errors import DeployError

Health = Callable[[], str]
"""Says what is wrong; empty where all is well."""


class Vitals:
    """Numbers of one process; each is set where it is known.

    Attributes:
        rounds, seconds: Rounds that ended, and their time, by experiment.
        bytes: Bytes sent and received, by direction, "up" to the server or "down" from it.
        failures: Replies that were late, lost or refused, by site.
        connected: Sites that are connected; at a site 1 or 0.
        contact: When a site was last heard of, seconds since 1970.
        certificate: Days for which a certificate is still valid, by its holder.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.rounds = self._counter("rounds", "Rounds that ended", "experiment")
        self.seconds = self._counter("round_seconds", "Seconds of the rounds that ended", "experiment")
        self.bytes = self._counter("bytes", "Bytes of messages", "direction")
        self.failures = self._counter("failures", "Replies that were late, lost or refused", "site")
        self.connected = Gauge("unskew_connected", "Sites that are connected", registry=self.registry)
        self.contact = self._gauge("last_contact_seconds", "When a site was last heard of, since 1970", "site")
        self.certificate = self._gauge("certificate_days", "Days for which a certificate is valid", "holder")

    def _counter(self, name: str, what: str, label: str) -> Counter:
        return Counter(f"unskew_{name}", what, [label], registry=self.registry)

    def _gauge(self, name: str, what: str, label: str) -> Gauge:
        return Gauge(f"unskew_{name}", what, [label], registry=self.registry)

    def text(self) -> bytes:
        """All of them as Prometheus reads them."""
        return generate_latest(self.registry)


@contextmanager
def serving(vitals: Vitals, health: Health, port: int) -> Iterator[int]:
    """Answer on 127.0.0.1 while the `with` block goes on; gives the port, a free one for 0.

    Raises:
        DeployError: If the port is taken.
    """

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._send(200, vitals.text())
            elif self.path == "/healthz":
                wrong = health()
                self._send(503 if wrong else 200, f"{wrong or 'ok'}\n".encode())
            else:
                self._send(404, b"there are /healthz and /metrics\n")

        def _send(self, status: int, text: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *of_request: object) -> None:
            """Scrapes are not logged."""

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Answer)
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
