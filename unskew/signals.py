"""Signals while some work is done."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any] | int

ECHO_S = 1.0
"""A SIGTERM so soon after a first request to stop repeats it: `timeout` signals a process and then its group."""


@contextmanager
def handled(signals: Sequence[signal.Signals], handler: Handler) -> Iterator[None]:
    """Handle signals, and put back what was there; outside the main thread, where none arrive, do nothing.

    A SIGHUP that nohup ignores stays so.  A handler may raise.  What was there hears of what arrives as it is put back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = [s for s in signals if s != signal.SIGHUP or signal.getsignal(s) != signal.SIG_IGN]
    before, late, inside = {s: signal.getsignal(s) for s in heard}, list[int](), True

    def on_signal(number: int, frame: FrameType | None) -> None:
        if inside and callable(handler):
            handler(number, frame)
        else:
            late.append(number)

    try:
        for s in heard:
            signal.signal(s, on_signal if callable(handler) else handler)
        yield
    finally:
        inside = False
        for s, previous in before.items():
            signal.signal(s, previous)
        for number in late:
            signal.raise_signal(number)


def stoppable() -> AbstractContextManager[None]:
    """Let SIGTERM and SIGHUP end this process as Ctrl-C does: by leaving every open `with` block."""

    def heard(number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    return handled((signal.SIGTERM, signal.SIGHUP), heard)


def stop_requests(on_request: Callable[[int], None]) -> AbstractContextManager[None]:
    """Call `on_request` with 1, 2, ... as requests to stop (Ctrl-C, SIGTERM, SIGHUP) arrive, as in `handled`."""
    times: list[float] = []

    def on_signal(number: int, _frame: Any) -> None:
        now = time.monotonic()
        if times and number != signal.SIGINT and now - times[0] < ECHO_S:
            return
        times.append(now)
        on_request(len(times))

    return handled((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), on_signal)
