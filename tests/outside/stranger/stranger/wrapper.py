"""A wrapper that changes nothing but counts nothing either: what matters is that it was found."""

from dataclasses import dataclass

from unskew.wrappers.base import Wrapper


@dataclass(frozen=True)
class Shy(Wrapper):
    """A method as it is.

    Attributes:
        depth: A setting, for nothing.
    """

    depth: int = 1
