"""The wire between a client's short-lived processes and the one that stays.

Flower starts a process for each message.  That process is thin: it hands what came to the client's resident process,
which has PyTorch, the data and the network at hand, over a Unix socket that only its owner can reach.  A frame is an
action, a head, the payloads' lengths and the payloads joined, each as it came; nothing is interpreted here.

    CLIENT/resident.json     {"socket": "..."}: there is a resident process, and there it listens
"""

import json
import os
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from unskew.errors import WireError

FILE = "resident.json"
HOPELESS = 2
"""Exit code of a resident whose settings or data cannot be used: starting it again is of no use."""
START_S = 120.0
"""How long a message waits for a resident process that is just being started."""
_LENGTHS = struct.Struct("!4Q")


class Frame(NamedTuple):
    """A letter, as it came: action, head and lengths are text, the parcel is all payloads one after the other."""

    action: str
    head: str
    sizes: str
    parcel: bytes


def where(folder: Path) -> Path | None:
    """The socket of a client's resident process; None if it has none."""
    try:
        return Path(json.loads((folder / FILE).read_text("utf-8"))["socket"])
    except FileNotFoundError:
        return None


def ask(path: Path, frame: Frame, start_s: float = START_S) -> Frame:
    """The resident's answer.

    Raises:
        WireError: If there is no resident within `start_s` seconds, or it ends before it has answered.
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
    """A socket that only this user can connect to; whoever does waits until it is answered."""
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
    """Answer one frame after the other, for ever; what goes wrong with one does not concern the next."""
    while True:
        s, _ = listener.accept()
        with s:
            try:
                _send(s, answer(_receive(s)))
            except (OSError, ValueError):  # whoever asked is gone, or sent what is no text
                traceback.print_exc(limit=0, file=sys.stderr)


def _send(s: socket.socket, frame: Frame) -> None:
    parts = [frame.action.encode(), frame.head.encode(), frame.sizes.encode(), frame.parcel]
    *texts, parcel = parts
    s.sendall(b"".join([_LENGTHS.pack(*map(len, parts)), *texts]))
    if parcel:  # whoever has all of it may have answered and gone: not even nothing can be sent then
        s.sendall(parcel)


def _receive(s: socket.socket) -> Frame:
    action, head, sizes, parcel = (_exactly(s, n) for n in _LENGTHS.unpack(_exactly(s, _LENGTHS.size)))
    return Frame(action.decode(), head.decode(), sizes.decode(), parcel)


def _exactly(s: socket.socket, n: int) -> bytes:
    data = bytearray()
    while len(data) < n:
        more = s.recv(min(n - len(data), 1 << 20))
        if not more:
            raise ConnectionResetError("the other side has closed")
        data += more
    return bytes(data)
