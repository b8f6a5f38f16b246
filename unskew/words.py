"""Lists and numbers of things as a sentence has them."""

from collections.abc import Sequence


def listed(parts: Sequence[str]) -> str:
    """Names as a sentence lists them; "none" if there are none.

    >>> listed(["A", "B", "C"])
    'A, B and C'
    """
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1]))) if parts else "none"


def counted(n: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "client"), counted(1200, "client")
    ('1 client', '1,200 clients')
    """
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def some(names: Sequence[str]) -> str:
    """The first five names, and how many more there are.

    >>> some(["A", "B", "C", "D", "E", "F"])
    'A, B, C, D, E and 1 more'
    """
    return ", ".join(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")
