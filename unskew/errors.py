"""The errors that unskew raises on purpose.  Each message is one sentence: what, expected, got, where, what to do."""

import difflib
import errno
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar


class UnskewError(Exception):
    """Base of all errors a user can cause or meet; the command prints only its text and exits with `exit_code`."""

    exit_code: ClassVar[int] = 2


class ConfigError(UnskewError):
    """A setting that cannot be honoured; raised before any work begins."""


class DataError(UnskewError):
    """Data or a split that cannot be used: missing, corrupt, out of range, impossible to divide as asked."""


class DataWarning(UserWarning):
    """Data or a run that can be used and may not be what was meant; the command prints its text as one line."""


_noted: ContextVar[list[str] | None] = ContextVar("noted", default=None)


@contextmanager
def noted() -> Iterator[list[str]]:
    """Collect what `warn` is given within the block, to be shown with the result instead."""
    notes: list[str] = []
    before = _noted.set(notes)
    try:
        yield notes
    finally:
        _noted.reset(before)


def warn(note: str, stacklevel: int = 2) -> None:
    """Warn about data or a run, at the line of the user's code that led here.

    Args:
        note: One sentence.
        stacklevel: As for `warnings.warn`, of the module that filters know the warning by.
    """
    if (notes := _noted.get()) is not None:
        notes.append(note)
        return
    module = sys._getframe(stacklevel).f_globals["__name__"]
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "unskew":
        frame = frame.f_back
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(note, DataWarning, frame.f_code.co_filename, frame.f_lineno, module, registry)


class ProtocolError(UnskewError):
    """A violation of the contract of plans and steps by a method."""


class QuorumError(UnskewError):
    """Too few replies for a meaningful round.

    Attributes:
        state: State to go on from, if what the round has cost must be counted in it; None is the one before the round.
    """

    state: Any = None

    def after(self, before: Any) -> Any:
        """Return the state to go on from, by the one before the round."""
        return before if self.state is None else self.state


class SuspectError(QuorumError):
    """A round without a result because of what some clients sent, which can be tried again without them.

    Attributes:
        suspects: What is wrong with what they sent, by client.
        again: False if this round cannot be tried again: those after it are run without them.
    """

    def __init__(self, what: str, suspects: Mapping[int, str], again: bool = True) -> None:
        super().__init__(f"{what}: " + "; ".join(f"client {c}: {why}" for c, why in suspects.items()))
        self.suspects, self.again = dict(suspects), again


class WireError(UnskewError):
    """Bytes that are not the expected message."""


class DivergedError(UnskewError):
    """A loss or a parameter became NaN or infinite.

    Attributes:
        where: (method, seed, round), once the run has set it.
    """

    where: tuple[str, int, int] | None = None


class WorkerError(UnskewError):
    """A worker process that died or failed."""


class RunError(UnskewError):
    """A run folder that cannot be written, read or continued."""


class DeployError(UnskewError):
    """Certificates, keys, ports or processes of a deployment that do not work as they are."""


class MemoryShortage(UnskewError):
    """Less memory than the work needs, noticed only when allocating it."""


_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that a terminal obeys and does not show: control characters but tab and newline, turns of direction."""


def obeyed(text: str) -> bool:
    """True if a terminal would obey some of this text."""
    return _OBEYED.search(text) is not None


def writable(text: str) -> bool:
    """True if it can be written in UTF-8, which a file's name of another encoding cannot."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def shown(text: str) -> str:
    r"""Escape what a terminal would obey or could not write, in text that may be somebody else's.

    >>> shown("a\x1b[31m")
    'a\\x1b[31m'
    """
    text = text.encode(errors="backslashreplace").decode()
    return _OBEYED.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known word closest to this one, whatever their case; None if none is close."""
    by_letters = {one.casefold(): one for one in known}
    close = difflib.get_close_matches(word.casefold(), by_letters, n=1, cutoff=cutoff)
    return by_letters[close[0]] if close else None


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The end of a sentence about an unknown word: the closest known one; empty if none is close.

    >>> did_you_mean("mnits", ["mnist", "digits"]), did_you_mean("x", ["mnist", "digits"])
    ('; did you mean mnist?', '')
    """
    close = nearest(word, known, cutoff)
    return f"; did you mean {close}?" if close else ""


_SHORT = ("DefaultCPUAllocator", "can't allocate memory", "not enough memory", "out of memory")


def shortage(error: BaseException) -> str | None:
    """The message if memory ran out, on the processor or on a device; None if this error is about something else.

    >>> shortage(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8000 bytes."))[:50]
    'memory ran out (8000 bytes more were wanted); lowe'
    """
    text = str(error)
    # PyTorch's own class is known by its name: it is not worth importing PyTorch for.
    known = isinstance(error, MemoryError) or type(error).__name__ in ("OutOfMemoryError", MemoryShortage.__name__)
    refused = isinstance(error, OSError) and error.errno == errno.ENOMEM
    reported = isinstance(error, RuntimeError) and any(s in text for s in _SHORT)
    if not (known or refused or reported):
        return None
    if isinstance(error, MemoryShortage):
        return text
    wanted = re.search(r"allocate ([\d.]+ ?(?:bytes|[KMGT]i?B))", text)
    more = f" ({wanted[1]} more were wanted)" if wanted else ""
    return (
        f"memory ran out{more}; lower local.batch_size, clients_per_round or runtime.workers, or use a smaller "
        "task.model: unskew plan says what each takes"
    )
