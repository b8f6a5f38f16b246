"""What docstrings say is tried: their examples are run."""

import doctest
import importlib
from pathlib import Path

import pytest

import unskew

PACKAGE = Path(unskew.__file__).parent
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path.read_text("utf-8")
    for path in sorted(PACKAGE.rglob("*.py"))
}


@pytest.mark.seconds
def test_the_examples_of_docstrings_give_what_they_say() -> None:
    results = {name: doctest.testmod(importlib.import_module(name)) for name in MODULES if ">>>" in MODULES[name]}
    assert [name for name, result in results.items() if result.failed] == []
    assert sum(result.attempted for result in results.values()) > 100
