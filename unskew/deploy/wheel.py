"""The unskew that is installed here as a wheel, so that other machines of a federation can install the very same.

Nothing has to be built: the files of the package lie where Python imports them from, and the metadata beside an
installation (`pip install`, editable or not) is all that a wheel holds in addition.
"""

import base64
import hashlib
import io
import zipfile
from importlib import metadata
from pathlib import Path

from unskew.version import __version__

METADATA = ("METADATA", "entry_points.txt", "licenses/LICENSE")
WHEEL = "Wheel-Version: 1.0\nGenerator: unskew deploy pack\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)


def build_wheel() -> tuple[str, bytes] | None:
    """File name and content of the wheel; None if unskew is run from its source without being installed."""
    # A source folder on the path may hold setuptools' .egg-info, which is no installation and has no METADATA.
    candidates = metadata.distributions(name="unskew")
    installed = next((candidate for candidate in candidates if candidate.read_text("METADATA")), None)
    if installed is None:
        return None
    stem = f"unskew-{installed.version}"
    package = Path(__file__).parents[1]
    files = {
        f"unskew/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    texts = {name: installed.read_text(name) for name in METADATA} | {"WHEEL": WHEEL}
    files |= {f"{stem}.dist-info/{name}": text.encode() for name, text in texts.items() if text is not None}
    record = f"{stem}.dist-info/RECORD"
    lines = [f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items()]
    files[record] = "".join([*lines, f"{record},,\n"]).encode()
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    return f"{stem}-py3-none-any.whl", content.getvalue()


def other_version(folder: Path) -> str:
    """A sentence on a packed folder whose wheel has another version than is installed here; empty if it has this one.

    A folder that was packed without a wheel says nothing of its version.
    """
    for wheel in folder.glob("unskew-*.whl"):
        packed = wheel.name.split("-")[1]
        if packed != __version__:
            return (
                f"unskew {__version__} is installed here, and {folder} was packed with {packed}; server and clients "
                f"must have one version: pip install {wheel}, or install {__version__} on all the others, too"
            )
    return ""


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
