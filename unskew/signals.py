"""Signals while some work is done."""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any] | int


@contextmanager
def handled(signals: Sequence[signal.Signals], handler: Handler) -> Iterator[None]:
    """Handle signals, and put back what was there; outside the main thread, where none arrive, do nothing.

    A SIGHUP that is ignored, by nohup, stays so.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = [s for s in signals if s != signal.SIGHUP or signal.getsignal(s) != signal.SIG_IGN]
    before = {s: signal.signal(s, handler) for s in heard}
    try:
        yield
    finally:
        for s, previous in before.items():
            signal.signal(s, previous)
