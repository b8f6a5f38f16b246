"""A method whose global model is never served."""

from collections.abc import Callable
from typing import Any


def shy(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method as it is: what matters is that it was found."""
    return method
