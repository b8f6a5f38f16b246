"""Reads files of text that are not in UTF-8, as programs of Windows and of old Macs write them.

What is valid UTF-8 beyond ASCII is hardly ever meant as anything else, so a setting can say how the others of a folder
are encoded.  Which of the others a file is in, nothing in it tells.
"""

import re
from pathlib import Path
from typing import Literal

from unskew.errors import DataError

Encoding = Literal["cp1252", "latin-1", "iso-8859-15", "cp1250", "cp1251", "cp850", "mac-roman", "utf-16"]

UTF8 = "utf-8-sig"
"""UTF-8, with or without the mark that Excel begins it with."""

_MARKS = (b"\xff\xfe", b"\xfe\xff")
"""Beginnings of files in UTF-16, as Excel writes them."""

_CONTROL = re.compile("[\x00\x80-\x9f]")
"""Characters that no text has; in ISO's encodings they stand where Windows has letters and signs."""


def encoding_of(path: Path, other: Encoding | None) -> str:
    """UTF-8, or the other encoding if there is one and a file is not in UTF-8."""
    if other is None:
        return UTF8
    try:
        path.read_bytes().decode()
    except UnicodeDecodeError:
        return other
    return UTF8


def as_utf8(path: Path, encoding: str) -> bytes:
    """The file in UTF-8.

    Raises:
        DataError: If it cannot be in this encoding, naming the line.
    """
    octets = path.read_bytes()
    try:
        text = octets.decode(encoding)
        odd = _CONTROL.search(text)
        at = None if odd is None else len(text[: odd.start()].encode(encoding))
    except UnicodeDecodeError as error:
        at = error.start
    if encoding == "utf-16" and octets[:2] not in _MARKS:  # any two bytes are a character of it
        at = 0
    if at is not None:
        raise DataError(
            f"{path} is not a readable csv file: {_line(octets, at)} is neither in UTF-8 nor in {encoding}; set "
            "encoding to what it is in, or save it as CSV UTF-8, as Excel calls it"
        )
    return text.encode()


def not_utf8(path: Path) -> str:
    """Say which line of a file is not in UTF-8, how it reads in the commonest other encoding, and what to do."""
    octets = path.read_bytes()
    remedy = "save it as CSV UTF-8, as Excel calls it"
    if octets[:2] in _MARKS:
        return f"it is not in UTF-8 but in UTF-16; set encoding = 'utf-16', or {remedy}"
    try:
        octets.decode()
    except UnicodeDecodeError as error:
        at = error.start
        before = re.search(rb"[\w .-]{0,20}\Z", octets[max(at - 20, 0) : at])
        after = re.match(rb"[\w\x80-\xff .-]{0,20}", octets[at:])
        word = ((before[0] if before else b"") + (after[0] if after else b"")).decode("cp1252", "replace").strip()
        return (
            f"{_line(octets, at)} is not in UTF-8; set encoding = 'cp1252', which is usual in Windows, if "
            f"{word!r} is right there, or {remedy}"
        )
    return f"it is not in UTF-8; {remedy}"


def _line(octets: bytes, at: int) -> str:
    return f"line {octets.count(bytes([10]), 0, at) + 1}"
