"""Data files from elsewhere: small files that unpack to much more, and files of another format than their ending."""

import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from unskew import machine
from unskew.data.look import describe
from unskew.data.sources import load
from unskew.errors import DataError

ROOM = 10**6


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with room for a megabyte."""
    monkeypatch.setattr(machine, "available", lambda: ROOM)


def png(width: int, height: int, chunks: bytes = b"") -> bytes:
    """A grey image of zeros; its rows are left out where they would be many."""
    rows = bytes((width + 1) * height) if width * height < 10**8 else b""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunks + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def folder_of_images(folder: Path, image: bytes) -> str:
    for site in "ab":
        for label in "01":
            (folder / site / label).mkdir(parents=True)
            for i in range(3):
                (folder / site / label / f"{i}.png").write_bytes(image)
    return f"images:{folder}"


def test_an_archive_that_unpacks_to_more_than_there_is_room_for_is_refused_unread(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, x_train=np.zeros((20, 10**5), np.float32), y_train=np.arange(20) % 2)
    assert path.stat().st_size < ROOM / 10
    monkeypatch.setattr(zipfile.ZipExtFile, "read", lambda *a: pytest.fail("a member was read"))
    monkeypatch.setattr(np.lib.format, "read_array", lambda *a, **k: pytest.fail("an array was read"))
    with pytest.raises(
        DataError,
        match=r"bomb\.npz holds .* GB when it is unpacked, which takes 3 times that, and .* GB can be taken",
    ):
        load(f"npz:{path}")


@pytest.mark.parametrize(("dtype", "kept"), [(np.uint8, 1), (np.float32, 4)])
def test_arrays_need_the_room_that_they_take_while_they_are_read(
    dtype: type, kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.86 GB of images passed, and took 9: as kept they count three times, once decoded and twice divided."""
    x, y = np.zeros((40, 3, 32, 32), dtype), np.arange(40) % 2
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y)
    source = f"npz:{tmp_path / 'own.npz'}"
    monkeypatch.setattr("unskew.machine.available", lambda: int(2.9 * kept * x.size))
    with pytest.raises(DataError, match="which takes 3 times that"):
        load(source)
    monkeypatch.setattr("unskew.machine.available", lambda: 4 * kept * x.size)
    assert len(load(source).y_train) == 32


def test_a_table_of_a_million_equal_rows_is_refused_by_what_its_footer_says(small: None, tmp_path: Path) -> None:
    import polars

    path = tmp_path / "bomb.parquet"
    polars.select(x=polars.repeat(0.0, 10**6), y=polars.repeat(1, 10**6)).write_parquet(path)
    assert path.stat().st_size < ROOM / 10
    with pytest.raises(DataError, match=r"bomb\.parquet holds .* GB when it is unpacked"):
        load(f"parquet:{path}", data_options={"target": "y"})


@pytest.mark.parametrize(
    ("image", "says"),
    [
        (lambda: png(60_000, 60_000), "has more than 89,478,485 pixels; make it smaller"),
        (lambda: png(10_000, 10_000), "has more than 89,478,485 pixels; make it smaller"),
        (lambda: png(8, 8, chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(2 * 10**6)))), "is not a readable image"),
        (lambda: png(500, 500), "holds .* GB when it is unpacked"),
        (lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n", "cannot identify"),
    ],
    ids=[
        "more pixels than Pillow opens",
        "more than it warns of",
        "a comment that unpacks",
        "more pixels than there is room for",
        "PostScript",
    ],
)
def test_images_that_are_none_are_refused(image: Callable[[], bytes], says: str, small: None, tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    with pytest.raises(DataError, match=says):
        load(folder_of_images(tmp_path / "images", image()))


def test_postscript_with_the_ending_of_an_image_starts_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eps = pytest.importorskip("PIL.EpsImagePlugin")
    monkeypatch.setattr(eps, "Ghostscript", lambda *a, **k: pytest.fail("Ghostscript was started"))
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"
    with pytest.raises(DataError):
        load(folder_of_images(tmp_path / "images", script))


@pytest.mark.parametrize("key", ["classes", "clients", "features"])
def test_names_that_a_terminal_would_obey_or_that_cannot_be_written_are_refused(key: str, tmp_path: Path) -> None:
    """Before, `unskew data` wrote them as they are, and a run failed when it wrote the first of them."""
    for name, says in (
        ("q\x1b]0;t\x07", r"'q\\x1b\]0;t\\x07' has control char"),
        (os.fsdecode(b"Z\xfc"), "cannot be written"),
    ):
        names = {"classes": ["a", name], "clients": ["x", name], "features": ["p", name]}
        np.savez(tmp_path / "names.npz", **table(client_train=np.arange(20) // 10), **{key: np.array(names[key])})
        with pytest.raises(DataError, match=says) as refused:
            load(f"npz:{tmp_path / 'names.npz'}")
        assert "\x1b" not in str(refused.value)


def table(**other: object) -> dict[str, np.ndarray]:
    arrays = {"x_train": np.arange(40, dtype=np.float32).reshape(20, 2), "y_train": np.arange(20) % 2}
    return {key: np.asarray(value) for key, value in {**arrays, **other}.items()}


@pytest.mark.parametrize("kind", ["npz", "csv", "parquet", "images"])
@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("~nosuchuser/x", "there is no home folder of that user here; write the whole path"),
        ("x" * 300, "cannot be looked at: .*; give another path"),
    ],
)
def test_what_can_be_no_path_is_refused(kind: str, path: str, says: str) -> None:
    options = {"target": "y"} if kind in ("csv", "parquet") else {}
    for read in (
        lambda: load(f"{kind}:{path}", data_options=options),
        lambda: describe(f"{kind}:{path}", **options),
    ):
        with pytest.raises(DataError, match=says):
            read()
