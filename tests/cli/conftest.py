"""The command, called as from a shell, in a folder of its own that holds one small experiment."""

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from unskew.cli import main

with warnings.catch_warnings():  # Typer 0.20 imports what click 8.5 calls deprecated; not ours to mend
    warnings.filterwarnings("ignore", message="'click", category=DeprecationWarning)
    import typer as typer

from ..corpus.inputs import TINY


@dataclass(frozen=True)
class Said:
    """What a command left: exit code, stdout, stderr."""

    code: int
    out: str
    err: str


Unskew = Callable[..., Said]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("UNSKEW_DATA", raising=False)
    (tmp_path / "tiny.toml").write_text(TINY)
    return tmp_path


@pytest.fixture
def unskew(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Unskew:
    def call(*words: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["unskew", *map(str, words)])
        monkeypatch.setattr(sys, "path", list(sys.path))  # to which the command adds the working directory
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        return Said(int(code) if code is not None else 0, *capsys.readouterr())

    return call
