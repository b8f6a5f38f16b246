"""Reads npz archives that may be broken or hostile: nothing is unpickled, and errors name the file."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.lib.npyio import NpzFile

from unskew import machine
from unskew.errors import DataError, UnskewError


def corrupt(path: Path, why: object) -> DataError:
    """The error for a file that cannot be read, with its size and hash, and what to do."""
    try:
        with path.open("rb") as file:
            mark = f"{path.stat().st_size:,} bytes, SHA-256 {hashlib.file_digest(file, 'sha256').hexdigest()}"
    except OSError as error:
        return DataError(f"there is no file {path.absolute()}, or it cannot be opened: {error.strerror}")
    reason = " ".join(str(why).split()) or type(why).__name__
    if "allow_pickle" in reason:  # NumPy's text advises to load it unsafely
        reason = "it is no NumPy file, or it holds pickled objects, which are never loaded"
    return DataError(f"{path} is not a readable data file: {reason} ({mark}); replace it with a whole copy")


@contextmanager
def archive_of(path: Path) -> Iterator[NpzFile]:
    """Open an npz file.

    Raises:
        DataError: If it cannot be read.
    """
    try:
        # Opened here: np.load leaves its own handle open when the archive is broken.
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, NpzFile):
                raise ValueError("one bare array, an npz archive with x_train and y_train is needed")
            # A megabyte of an archive can hold a gigabyte of zeros; it says so before it is unpacked.
            assert archive.zip is not None
            machine.require_room(sum(part.file_size for part in archive.zip.infolist()), path)
            with archive:
                yield archive
    except UnskewError:
        raise
    except Exception as error:  # a broken file, or a hostile one, can make its readers fail in any way
        raise corrupt(path, error) from error
