"""Paths of data, and who may read them; places of rows for messages.

A row's place is a line of a file, or its number in a table without lines.

A deployed client runs an experiment that somebody else wrote.  Within `reading_only` it can only use paths and hub:
names that the client itself has named or allowed.
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
    """Allow only these paths within the block.

    Args:
        own: Paths and hub: names exactly as the user has them.
        paths: Files, folders with their contents, and hub: names that others may name; "hub:" allows all of these.
        where: File in which the user may add `paths`, for messages.
    """
    before = _allowed.set((own, paths, where))
    try:
        yield
    finally:
        _allowed.reset(before)


def require_allowed(source: str, named: str = "") -> None:
    """Refuse a path or hub: name that `reading_only` does not allow, without looking at it.

    Args:
        source: The path or name.
        named: Its name in the message; by default as written.

    Raises:
        DataError: If it is not allowed; the message names it and the file in which to allow it.
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
    """The path that a user has written, ~ for the home folder; it need not exist.

    Args:
        written: The path.
        named: Its name in a message.

    Raises:
        DataError: If it cannot be looked at, or as in `require_allowed`.
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
    """The place of a row of a table in memory, counted from 0."""
    return f"row {row}"
