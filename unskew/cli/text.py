"""Text of others on the terminal: names in data and folders, which neither Rich nor the terminal is to obey."""

from rich import markup

from unskew.errors import shown


def escape(text: str) -> str:
    """Return text for Rich that is printed as it is; control characters are written out."""
    return markup.escape(shown(text))
