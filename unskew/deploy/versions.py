"""Which releases of Flower this library speaks to."""

import sys
from importlib import metadata
from pathlib import Path

from packaging.specifiers import SpecifierSet

from unskew.errors import DeployError

SUPPORTED = ">=1.40,<1.43"
"""1.40 moved everything to one HTTP port; its command-line flags are what `unskew.deploy.launch` writes."""
PROGRAMS = ("flower-superlink", "flower-superexec", "flower-supernode", "flwr", "flwr-serverapp", "flwr-clientapp")


def require() -> str:
    """The release of Flower that is installed.

    Raises:
        DeployError: If there is none, or another one than is supported.
    """
    try:
        found = metadata.version("flwr")
    except metadata.PackageNotFoundError:
        raise DeployError("a deployment needs Flower, which is not installed; pip install 'unskew[flower]'") from None
    if found not in SpecifierSet(SUPPORTED):
        raise DeployError(f"flwr {SUPPORTED} is needed, found {found}; pip install 'unskew[flower]'")
    return found


def programs() -> Path:
    """The folder of Flower's programs: that of this interpreter, whose packages they share.

    Raises:
        DeployError: If one of them is not there.
    """
    folder = Path(sys.executable).parent
    missing = [name for name in PROGRAMS if not (folder / name).is_file()]
    if missing:
        raise DeployError(f"{folder} has no {', '.join(missing)}; pip install 'unskew[flower]' for this interpreter")
    return folder
