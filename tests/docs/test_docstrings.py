"""What docstrings say is tried: their examples are run, and the settings that they list are listed one by one."""

import ast
import doctest
import importlib
import re
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


def test_no_setting_is_listed_as_part_of_the_one_above() -> None:
    """A line under "Attributes:" that is indented further belongs to the setting before it."""
    nodes = [(name, node) for name, text in MODULES.items() for node in ast.walk(ast.parse(text))]
    hidden = []
    for name, c in nodes:
        if not isinstance(c, ast.ClassDef):
            continue
        settings = {f.target.id for f in c.body if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name)}
        listed = (ast.get_docstring(c) or "").partition("Attributes:\n")[2]
        for line in re.findall(r"^ {8,}(\w+(?:, \w+)*): ", listed, re.MULTILINE):
            hidden += [f"{name}:{c.name}.{one}" for one in line.split(", ") if one in settings]
    assert hidden == []
