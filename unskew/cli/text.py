"""Text on the terminal: names in data and folders, which neither Rich nor the terminal is to obey."""

import codecs

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
