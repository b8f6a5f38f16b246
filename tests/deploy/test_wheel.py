"""The wheel that a pack carries."""

import io
import zipfile
from pathlib import Path

import pytest

from unskew.deploy.wheel import build_wheel


def test_the_leftovers_of_a_build_beside_the_source_are_not_taken_for_the_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m` in a source folder finds its .egg-info first; a wheel made of it has no METADATA and cannot be
    installed."""
    (tmp_path / "unskew.egg-info").mkdir()
    (tmp_path / "unskew.egg-info" / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: unskew\nVersion: 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    built = build_wheel()
    assert built is not None
    assert "METADATA" in {Path(name).name for name in zipfile.ZipFile(io.BytesIO(built[1])).namelist()}
