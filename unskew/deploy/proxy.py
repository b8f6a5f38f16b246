"""The reverse proxy in front of a server's SuperLink: `python -m unskew.deploy.proxy FOLDER HOST PORT INNER`.

Flower serves three interfaces on one port, and its Control API asks for no password: whoever reaches it can run a
program on the server and on every client.  The SuperLink therefore listens on loopback only, and this process listens
at the server's address.  It forwards the calls of the Fleet API, for which a client must have a registered key, and the
check of health; it answers 403 to everything else.

Flower looks at a call's signature when it has all of the call in memory.  This proxy looks before the first byte: what
no registered key has signed may be a few kilobytes long, which is enough for Flower's refusal.
"""

import functools
import re
import ssl
import sys
from base64 import b64decode
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import httpx
import uvicorn
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from unskew.deploy.certificates import identity, openssh
from unskew.deploy.reach import SUPERLINK_AWAY
from unskew.errors import DeployError

ALLOWED = re.compile(r"/v1/fleet/[a-z]+(-[a-z]+)*|/health")
"""Paths that are forwarded; no dot, percent sign or further slash can lead from them to another interface."""
LARGEST = 64 << 20
"""Largest request, bytes; Flower sends arrays in pieces of 5 MB."""
LARGEST_OF_STRANGERS = 64 << 10
"""Largest request that is not signed with a registered key, bytes."""
LATELY_S = 305.0
"""Age of a signature up to which Flower accepts it, seconds."""
CONNECTIONS, OF_A_CLIENT = 1024, 16
"""Connections at a time: as many in all, or, if that is more, for each registered client."""
TIMEOUT_S = 120.0
OF_ONE_CONNECTION = {"host", "connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
"""Headers that are not forwarded."""


def application(folder: Path, inner: int) -> Starlette:
    """Make the application that forwards to the SuperLink on loopback, at port `inner`."""
    # Not the environment's proxies and certificates: the SuperLink beside this process has the federation's own.
    trust = ssl.create_default_context(cafile=folder / "ca.crt")
    client = httpx.AsyncClient(
        base_url=f"https://127.0.0.1:{inner}", verify=trust, trust_env=False, timeout=httpx.Timeout(TIMEOUT_S)
    )

    async def forward(request: Request) -> Response:
        path = request.scope["raw_path"].decode("ascii", "replace")
        if not ALLOWED.fullmatch(path) or request.scope["query_string"]:
            return PlainTextResponse("only /v1/fleet/ is served here", 403)
        headers = [(k, v) for k, v in request.headers.raw if k.decode("latin-1") not in OF_ONE_CONNECTION]
        largest = LARGEST if is_signed(request.headers, registered(folder)) else LARGEST_OF_STRANGERS
        try:
            sent = client.build_request(request.method, path, headers=headers, content=_bounded(request, largest))
            answer = await client.send(sent, stream=True)
        except ValueError:
            return PlainTextResponse(f"a request must have at most {largest} bytes", 413)
        except ClientDisconnect:
            return PlainTextResponse("the request ended early", 400)
        except httpx.TransportError as error:
            return PlainTextResponse(f"{SUPERLINK_AWAY} ({type(error).__name__})", 502)
        response = StreamingResponse(answer.aiter_raw(), answer.status_code, background=BackgroundTask(answer.aclose))
        response.raw_headers = [(k.lower(), v) for k, v in answer.headers.raw]
        response.raw_headers = [(k, v) for k, v in response.raw_headers if k.decode("latin-1") not in OF_ONE_CONNECTION]
        return response

    @asynccontextmanager
    async def closing(_app: Starlette) -> AsyncIterator[None]:
        async with client:
            yield

    methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
    return Starlette(routes=[Route("/{path:path}", forward, methods=methods)], lifespan=closing)


def registered(folder: Path) -> frozenset[str]:
    """The public keys that a server's folder registers, in OpenSSH's form."""
    clients = folder / "clients"
    return _keys(clients, clients.stat().st_mtime_ns) if clients.is_dir() else frozenset()


@functools.lru_cache(maxsize=1)
def _keys(clients: Path, changed: int) -> frozenset[str]:
    keys = set()
    for path in clients.glob("*.pub"):
        with suppress(DeployError):  # which the server's start reports
            keys.add(identity(path))
    return frozenset(keys)


def is_signed(headers: Mapping[str, str], keys: Collection[str]) -> bool:
    """True if a call is signed with one of these keys, and lately, as Flower's clients sign each of theirs."""
    try:
        key = serialization.load_pem_public_key(b64decode(headers["flwr-public-key"], validate=True))
        signature, timestamp = b64decode(headers["flwr-signature"], validate=True), headers["flwr-timestamp"]
        age = (datetime.now(UTC) - datetime.fromisoformat(timestamp)).total_seconds()
        if abs(age) > LATELY_S or not isinstance(key, ec.EllipticCurvePublicKey) or openssh(key) not in keys:
            return False
        key.verify(signature, timestamp.encode("ascii"), ec.ECDSA(hashes.SHA256()))
    except (KeyError, ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


async def _bounded(request: Request, largest: int) -> AsyncIterator[bytes]:
    """Yield the request's body piece by piece, at most so many bytes."""
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > largest:
            raise ValueError
        yield piece


def server(folder: Path, host: str, port: int, inner: int) -> uvicorn.Server:
    """Make the proxy of a server's folder, which speaks TLS 1.3 with the server's certificate."""
    config = uvicorn.Config(
        application(folder, inner),
        host=host,
        port=port,
        ssl_certfile=folder / "server.crt",
        ssl_keyfile=str(folder / "server.key"),
        http="h11",
        ws="none",
        access_log=False,
        log_level="warning",
        # The SuperLink's own are forwarded: clients compare its date with their clocks.
        date_header=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        limit_concurrency=max(CONNECTIONS, OF_A_CLIENT * len(registered(folder))),
    )
    config.load()
    assert config.ssl is not None
    config.ssl.minimum_version = ssl.TLSVersion.TLSv1_3
    return uvicorn.Server(config)


if __name__ == "__main__":
    server(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])).run()
