"""Files from elsewhere that are nested deeper than Python's parsers can follow: one sentence, as of other damage."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unskew.data.manifest import read_manifest
from unskew.data.sources import load
from unskew.errors import ConfigError, DataError, RunError, UnskewError
from unskew.pricing import radio
from unskew.priors import builtin
from unskew.record.logs import document
from unskew.run.folder import read_json

READERS: dict[str, tuple[str, Callable[[Path], Any], type[UnskewError]]] = {
    "run": ("run.json", read_json, RunError),
    "record": ("summary.json", document, RunError),
    "manifest": ("m.json", read_manifest, DataError),
    "texts": ("imdb.json", lambda path: load("imdb", path.parent), DataError),
    "channel": ("channel.toml", lambda path: radio.preset(str(path)), ConfigError),
    "prior": (builtin.CARD, lambda path: builtin.read_card(path.parent), DataError),
}


@pytest.mark.parametrize(("name", "read", "error"), READERS.values(), ids=READERS)
def test_a_file_that_is_nested_too_deeply_is_refused(
    name: str, read: Callable[[Path], Any], error: type[UnskewError], tmp_path: Path
) -> None:
    (tmp_path / name).write_text(("v = " if name.endswith(".toml") else "") + "[" * 100_000)
    with pytest.raises(error, match=name):
        read(tmp_path / name)
