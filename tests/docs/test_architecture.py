"""The picture of the architecture is of the code that is here, and what pre-commit runs is what `make check` runs."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def architecture() -> ModuleType:
    spec = importlib.util.spec_from_file_location("unskew_docs_architecture", ROOT / "docs" / "architecture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_shows_the_imports_of_today(architecture: ModuleType) -> None:
    drawn = architecture.drawn(architecture.imports())
    assert architecture.PICTURE.read_text() == drawn, "out of date; run: python docs/architecture.py"


def test_every_package_is_in_the_picture_and_on_the_page(architecture: ModuleType) -> None:
    modules = {p.stem for p in (ROOT / "unskew").glob("*.py") if p.stem not in ("__init__", *architecture.LEFT_OUT)}
    here = {p.name for p in (ROOT / "unskew").iterdir() if (p / "__init__.py").exists()} | modules
    drawn = {*architecture.imports(), *architecture.FOUNDATION}
    assert here <= drawn
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\|([^|]*)\|", page, re.M))))
    assert here <= table
    assert table <= drawn


def test_a_line_that_a_longer_way_makes_superfluous_is_left_out(architecture: ModuleType) -> None:
    """a imports b and c, b imports c: the line from a to c says nothing new."""
    graph = {"a": frozenset("bc"), "b": frozenset("c"), "c": frozenset()}
    assert architecture.reduced(graph) == {"a": frozenset("b"), "b": frozenset("c"), "c": frozenset()}
    assert architecture.rows(graph) == [["a"], ["b"], ["c"]]


def test_before_a_commit_runs_what_make_check_runs() -> None:
    recipe = re.search(r"^check:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)
    assert recipe is not None
    tools = re.findall(r"\$\(BIN\)/(ruff \w+|mypy|lint-imports)", recipe[1])
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert tools == ["ruff format", "ruff check", "mypy", "lint-imports"]
    for tool in tools:
        assert f"entry: .venv/bin/{tool}" in hooks
    assert "entry: make check" in hooks


@pytest.mark.parametrize("script", ["needs_table", "readme_table"])
def test_a_table_is_made_from_what_it_is_about(script: str) -> None:
    spec = importlib.util.spec_from_file_location(f"unskew_docs_{script}", ROOT / "docs" / f"{script}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = module.PAGE.read_text("utf-8")
    assert page == module.written(page), f"out of date; run: python docs/{script}.py"
