"""The connection between a client's short-lived processes and its resident one.

Flower starts a process for each message.  That process only forwards the message to the client's resident process, in
which PyTorch, data and network are loaded, over a Unix socket that only its owner can open.  A frame is an action, a
head, the lengths of the payloads and the payloads joined, all as they arrived; nothing is interpreted here.

    CLIENT/resident.json     {"socket": "..."}: the socket of the client's resident process
"""

import json
import os
import re
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from unskew.errors import WireError

FILE = "resident.json"
UNUSABLE = 2
"""Exit code of a resident process whose settings or data cannot be used: starting it again would not help."""
PROGRESS = "progress: "
"""Beginning of a line, after its time, that says how far the run is."""
START_S = 120.0
"""Time that a message waits for a resident process that is just being started, seconds."""
_LENGTHS = struct.Struct("!4Q")


class Frame(NamedTuple):
    """An envelope as it arrived: action, head and lengths are text; the payload is all payloads joined."""

    action: str
    head: str
    sizes: str
    payload: bytes


def timed(text: str) -> str:
    """Put the time in front of a text: that of this machine, with its difference to UTC."""
    return f"{datetime.now().astimezone().isoformat(' ', 'seconds')} {text}"


def untimed(line: str) -> str:
    """Leave out the time that `timed` put in front.

    >>> untimed("2026-11-25 14:20:05+01:00 client 0 is here"), untimed("Traceback")
    ('client 0 is here', 'Traceback')
    """
    return re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[-+]\d\d:\d\d(:\d\d)? ", "", line)


def log(text: str) -> None:
    """Write to stderr with the time, a file on a disk that may be full: no process ends because nobody can read why."""
    with suppress(OSError):
        print(timed(text.rstrip("\n")), file=sys.stderr, flush=True)


def where(folder: Path) -> Path | None:
    """Find the socket of a client's resident process; None if it has none."""
    try:
        return Path(json.loads((folder / FILE).read_text("utf-8"))["socket"])
    except FileNotFoundError:
        return None


def ask(path: Path, frame: Frame, start_s: float = START_S) -> Frame:
    """Send a frame to the resident process and return its answer.

    Raises:
        WireError: If no such process appears within `start_s` seconds, or it ends before it has answered.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        until = time.monotonic() + start_s
        while True:
            try:
                s.connect(str(path))
                break
            except (FileNotFoundError, ConnectionRefusedError):
                if time.monotonic() > until:
                    raise WireError("the client's resident process is gone; its log says why") from None
                time.sleep(0.05)
        try:
            _send(s, frame)
            return _receive(s)
        except OSError:
            raise WireError("the client's resident process ended before it had answered; its log says why") from None


def listen(path: Path) -> socket.socket:
    """Open a socket that only this user can connect to; connections queue up until they are answered."""
    old = os.umask(0o177)
    try:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with suppress(FileNotFoundError):
            path.unlink()
        listener.bind(str(path))
    finally:
        os.umask(old)
    listener.listen(16)
    return listener


def answer_all(listener: socket.socket, answer: Callable[[Frame], Frame]) -> None:
    """Answer one frame after another, forever; a failure with one does not affect the next."""
    while True:
        s, _ = listener.accept()
        with s:
            try:
                _send(s, answer(_receive(s)))
            except (OSError, ValueError):  # the sender is gone, or sent something that is not text
                log(traceback.format_exc(limit=0))


def _send(s: socket.socket, frame: Frame) -> None:
    parts = [frame.action.encode(), frame.head.encode(), frame.sizes.encode(), frame.payload]
    *texts, payload = parts
    s.sendall(b"".join([_LENGTHS.pack(*map(len, parts)), *texts]))
    if payload:  # a receiver that has it all may have answered and closed: even sending nothing would fail
        s.sendall(payload)


def _receive(s: socket.socket) -> Frame:
    action, head, sizes, payload = (_exactly(s, n) for n in _LENGTHS.unpack(_exactly(s, _LENGTHS.size)))
    return Frame(action.decode(), head.decode(), sizes.decode(), payload)


def _exactly(s: socket.socket, n: int) -> bytes:
    data = bytearray()
    while len(data) < n:
        more = s.recv(min(n - len(data), 1 << 20))
        if not more:
            raise ConnectionResetError("the other side has closed")
        data += more
    return bytes(data)
