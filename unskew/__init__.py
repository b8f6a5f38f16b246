"""unskew: federated learning when clients' data do not agree."""

from unskew.version import __version__

__all__ = ["__version__"]
