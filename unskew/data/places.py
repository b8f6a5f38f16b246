"""Places of data: the path that a user has written, and the place of a row as its owner finds it.

A row's place is a line of a file, or its number in a table without lines.

A deployed client runs an experiment that somebody else wrote.  Within `reading_only` every path in it, and every hub:
name, is refused that the client has not named or allowed itself.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from unskew.errors import DataError
from unskew.files import user_path

_allowed: ContextVar[tuple[Sequence[str], Sequence[str], str] | None] = ContextVar("allowed", default=None)


@contextmanager
def reading_only(own: Sequence[str], paths: Sequence[str], where: str) -> Iterator[None]:
    """Read nothing within the block but what these name.

    Args:
        own: Paths and hub: names exactly as the user has them.
        paths: Files, folders with all that lies in them, and hub: names that others may name; "hub:" is all of these.
        where: File in which the user may write more `paths`.
    """
    before = _allowed.set((own, paths, where))
    try:
        yield
    finally:
        _allowed.reset(before)


def require_allowed(source: str, named: str = "") -> None:
    """Refuse a path or hub: name of somebody else's, which a `reading_only` leaves out; it is not looked at.

    Args:
        source: The path or name.
        named: What it is called in the message; by default as it is written.

    Raises:
        DataError: Naming it, and the file in which it can be allowed.
    """
    allowed = _allowed.get()
    if allowed is None:
        return
    own, paths, where = allowed
    if source.startswith("hub:"):
        fits = source in own or bool({"hub:", source} & {*paths})
    else:
        source = _absolute(source)
        real = Path(os.path.realpath(source))
        fits = source in map(_absolute, own) or any(
            real.is_relative_to(os.path.realpath(_absolute(one))) for one in paths if not one.startswith("hub:")
        )
    if not fits:
        raise DataError(
            f"{named or json.dumps(source)} is not read: the coordinator chose it and nobody here has allowed it. If "
            f"it may be read, write paths = [{json.dumps(source)}] into {where}, else name your own with --data"
        )


def _absolute(written: str) -> str:
    return str(Path(os.path.expanduser(written)).absolute())


def path_of(written: str | Path, named: str = "") -> Path:
    """The path that a user has written, ~ for the home folder; there may be nothing at it.

    Args:
        written: The path.
        named: What it is called if it is refused.

    Raises:
        DataError: If it may not be looked at, or as in `require_allowed`.
    """
    path = user_path(written)
    require_allowed(str(path), named)
    try:
        path.exists()
    except OSError as error:
        raise DataError(f"{str(written)[:200]} cannot be looked at: {error.strerror}; give another path") from None
    return path


Place = Callable[[int], str]
"""The place of the row of that number."""


def by_number(row: int) -> str:
    """The place of a row of a table in memory, as its library counts: from 0."""
    return f"row {row}"
