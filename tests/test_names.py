"""Names and docstrings, as CONTRIBUTING.md asks for them."""

import ast
import importlib
import re
from collections import defaultdict
from pathlib import Path

import unskew

MODULES = {path: ast.parse(path.read_text()) for path in sorted(Path(unskew.__file__).parent.rglob("*.py"))}
NO_START = re.compile(
    r"(of|as|those|what|whose|who|that|which|where|when|if|how|with|by|for|within|whether)\b", re.IGNORECASE
)
ARGS = re.compile(r"^Args:\n((?: +.*\n|\n)*)", re.M)


def test_no_two_public_classes_have_one_name() -> None:
    places = defaultdict(list)
    for path, module in MODULES.items():
        for node in module.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path.name)
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_a_docstring_begins_with_a_verb_or_a_noun() -> None:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    texts = [
        (path.name, text)
        for path, module in MODULES.items()
        for node in ast.walk(module)
        if isinstance(node, kinds) and (text := ast.get_docstring(node))
    ]
    assert [(name, text[:60]) for name, text in texts if NO_START.match(text)] == []


def test_arguments_that_a_docstring_explains_are_those_of_the_function() -> None:
    wrong = []
    for path, module in MODULES.items():
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef) and (part := ARGS.search(ast.get_docstring(node) or "")):
                explained = [
                    name.strip("*")
                    for line in re.findall(r"^    (\S[^:]*)", part[1], re.M)
                    for name in line.split(", ")
                ]
                known = {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)}
                wrong += [(path.name, node.name, name) for name in explained if name not in known]
    assert wrong == []


def test_every_name_that_a_package_offers_is_there() -> None:
    offering = [path.parent for path in MODULES if path.name == "__init__.py" and "__all__" in path.read_text()]
    names = [".".join(folder.relative_to(Path(unskew.__file__).parents[1]).parts) for folder in offering]
    packages = [importlib.import_module(name) for name in names]
    assert len(packages) > 1
    assert [f"{p.__name__}.{name}" for p in packages for name in p.__all__ if not hasattr(p, name)] == []
