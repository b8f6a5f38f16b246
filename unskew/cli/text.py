"""Text on the terminal: names in data and folders, which neither Rich nor the terminal is to obey, and settings."""

import codecs
import inspect
import re
from collections.abc import Callable
from typing import Any

from rich import markup

from unskew.errors import shown

PLAIN = "unskew.plain"
"""Error handler with which a stream writes signs that its encoding lacks as others: no number loses its own."""
_SIGNS = {"−": "-", "–": "-", "—": "-", "±": "+-", "∓": "-+", "≤": "<=", "≥": ">=", "×": "x", "→": "->", "…": "..."}
_SIGNS |= {"’": "'", "‘": "'", "“": '"', "”": '"'}


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Replace what could not be encoded; a sign without another becomes a question mark."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_SIGNS.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


codecs.register_error(PLAIN, _plain)


def escape(text: str) -> str:
    """Return text for Rich that is printed as it is; control characters are written out."""
    return markup.escape(shown(text))


def with_options(text: str, command: Callable[..., Any] | None) -> str:
    """A sentence with settings as options of a command, as in `--decimal ','` for `decimal = ','`.

    Of a command that takes settings of an experiment the sentence is about these, and stays as it is.
    """
    known = {} if command is None else inspect.signature(command).parameters
    if "settings" in known:
        return text
    for setting in (key for key, of in known.items() if of.default is not inspect.Parameter.empty):
        option = f"--{setting.replace('_', '-')}"
        text = re.sub(rf"(?<![\w./\\'\"-]){setting} ?= ?\[?('[^']*'|\d+)\]?", rf"{option} \1", text)
        text = re.sub(rf"(?<![\w./\\'\"-]){setting}(?!\.\w|[\w/\\'\"])", option, text) if "_" in setting else text
    return text
