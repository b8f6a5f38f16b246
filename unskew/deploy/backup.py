"""Backs up a federation's folder (keys, database, experiments) to one file, and restores it."""

import os
import shutil
import sqlite3
import tarfile
import tempfile
from contextlib import closing, suppress
from pathlib import Path

from unskew.deploy.certificates import make_private
from unskew.deploy.federation import DATABASE, FederationFolder
from unskew.errors import DeployError
from unskew.files import PRIVATE, rename_folder, temporary_folder

TRIES = 20
"""Times that a copy is begun anew because an experiment went on meanwhile."""


def backup(federation: FederationFolder, target: Path) -> None:
    """Write all of a federation into a new file that only its owner can read; the server may be running."""
    folder = federation.folder
    with tempfile.TemporaryDirectory(dir=target.absolute().parent) as place:
        copy = Path(place) / "federation"
        for _ in range(TRIES):
            shutil.rmtree(copy, ignore_errors=True)
            before = _stamps(folder)
            with suppress(shutil.Error, FileNotFoundError):  # an experiment goes on
                shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(".lock", "*.sqlite*", "*.tmp", "logs"))
                for path in folder.rglob("*.sqlite"):
                    with closing(sqlite3.connect(path, timeout=30.0, isolation_level=None)) as db:
                        db.execute("BEGIN IMMEDIATE")  # nobody writes meanwhile; a record's bytes are hashed
                        shutil.copyfile(path, copy / path.relative_to(folder))
                if _stamps(folder) == before:  # else a checkpoint and its record are of two rounds
                    break
        else:
            raise DeployError("the experiment changes too fast to be copied; stop it first: unskew fed stop")
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
        with os.fdopen(fd, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as tar:
            tar.add(copy, "federation")


def _stamps(folder: Path) -> dict[Path, int]:
    """Time at which the files of a record's last transaction were written."""
    files = [*folder.glob("experiments/*/run/checkpoint/*"), *folder.glob("experiments/*/deployment.json")]
    return {path: path.stat().st_mtime_ns for path in files if path.exists()}


def restore(source: Path, folder: Path) -> None:
    """Make a new folder from a federation's backup.  Later changes are lost; sites need not join again."""
    if folder.exists():
        raise DeployError(f"{folder} exists already; name another folder")
    try:
        with temporary_folder(folder) as new, tarfile.open(source) as tar:
            odd = [m.name for m in tar if not (m.isfile() or m.isdir()) or {"/", ".."} & {*Path(m.name).parts}]
            if odd:
                raise tarfile.TarError(f"it has {odd[0]!r}")
            # Python before 3.11.4 has no filters.
            tar.extraction_filter = getattr(tarfile, "data_filter", None)
            tar.extractall(new)
            if not (new / "federation" / DATABASE).is_file():
                raise tarfile.TarError("it has no federation")
            make_private(new / "federation" / "authority")
            rename_folder(make_private(new / "federation"), folder)
    except tarfile.TarError as error:
        raise DeployError(f"cannot restore {source}: {error}") from None
