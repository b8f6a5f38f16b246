"""Releases of Flower that this library works with."""

import sys
from importlib import metadata
from pathlib import Path

from packaging.specifiers import SpecifierSet

from unskew.errors import DeployError

SUPPORTED = ">=1.40,<1.43"
"""1.40 moved everything to one HTTP port; its command-line flags are what `unskew.deploy.commands` writes."""
PROGRAMS = ("flower-superlink", "flower-superexec", "flower-supernode", "flwr", "flwr-serverapp", "flwr-clientapp")


def require() -> str:
    """Return the installed release of Flower.

    Raises:
        DeployError: If Flower is not installed, or the release is not supported.
    """
    try:
        installed = metadata.version("flwr")
    except metadata.PackageNotFoundError:
        raise DeployError("a deployment needs Flower, which is not installed; pip install 'unskew[flower]'") from None
    if installed not in SpecifierSet(SUPPORTED):
        raise DeployError(f"flwr {SUPPORTED} is needed, found {installed}; pip install 'unskew[flower]'")
    return installed


def programs() -> Path:
    """Folder of Flower's programs: that of this interpreter, whose packages they share.

    Raises:
        DeployError: If one of them is missing.
    """
    folder = Path(sys.executable).parent
    missing = [name for name in PROGRAMS if not (folder / name).is_file()]
    if missing:
        raise DeployError(f"{folder} has no {', '.join(missing)}; pip install 'unskew[flower]' for this interpreter")
    return folder
