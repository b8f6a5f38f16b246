"""What holds of messages wherever they are written."""

import ast
from pathlib import Path

import unskew

PACKAGE = Path(unskew.__file__).parent


def texts(file: Path) -> list[str]:
    """All strings of a module but its docstrings."""
    tree = ast.parse(file.read_text("utf-8"))
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    strings = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return [str(node.value) for node in strings if id(node) not in docstrings]


def test_no_message_cites_a_page_that_is_not_installed() -> None:
    """A wheel holds unskew/, not docs/."""
    cited = {
        str(file): [t for t in texts(file) if "docs/" in t and ".md" in t]
        for file in PACKAGE.rglob("*.py")
        if "docs/" in file.read_text()
    }
    assert {name: strings for name, strings in cited.items() if strings} == {}
