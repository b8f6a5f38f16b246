"""What MkDocs does not do by itself: sections from folders, and pages for what lies beside docs/.

The pages are written for people who read them in the repository, where links lead to examples/ and CONTRIBUTING.md.
On the site those become pages too, and the links are turned to them.
"""

import ast
import posixpath
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BESIDE = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
"""Pages outside docs/, under the same path on the site."""
EXAMPLES = "examples/index.md"
REFERENCE = "reference.md"
NOTEBOOKS = [f"examples/{path.stem}.md" for path in (ROOT / "examples").glob("*.ipynb")]
GROUPS = {
    "api.": "Simulate",
    "run.": "Simulate",
    "algorithms.": "Methods",
    "server.": "Methods",
    "data.": "Data and splits",
    "models.": "Networks",
    "protocol.": "Local training",
    "": "Settings",
}
"""Sections of the reference, by the beginning of a name's module below `unskew`."""
OF_FILES = (
    "unskew.experiment.config.Experiment",
    "unskew.data.tables.TableOptions",
    "unskew.data.inputs.Notation",
    "unskew.world.spectrum.Spectrum",
    "unskew.world.spectrum.Energy",
)
"""Settings that only files name: an experiment's, a table's `data_options`, and the rest of a radio cell's."""
_FENCED = re.compile(r"(^```.*?^```$)", re.M | re.S)
_LINK = re.compile(r"(?<=\]\()([^()\s#]*)(#[^()\s]*)?(?=\))")


# ---------------------------------------------------------------- navigation
def whole(nav: Iterable[Any], pages: Iterable[str]) -> list[Any]:
    """The navigation with each `folder/` replaced by the pages below it that are named nowhere; empty sections go."""
    nav = list(nav)
    rest = sorted(
        set(pages) - set(named(nav)), key=lambda page: (page.count("/"), not page.endswith("README.md"), page)
    )

    def expanded(entry: Any) -> list[Any]:
        if isinstance(entry, dict):
            ((title, inner),) = entry.items()
            if isinstance(inner, list):
                found = [e for each in inner for e in expanded(each)]
                return [{title: found}] if found else []
            if inner.endswith("/"):
                found = expanded(inner)
                return [{title: found}] if found else []
            return [entry]
        return [page for page in rest if page.startswith(entry)] if entry.endswith("/") else [entry]

    return [e for entry in nav for e in expanded(entry)]


def named(nav: Iterable[Any]) -> Iterator[str]:
    """Every page that a navigation names."""
    for entry in nav:
        if isinstance(entry, dict):
            for inner in entry.values():
                yield from named(inner if isinstance(inner, list) else [inner])
        elif not entry.endswith("/"):
            yield entry


def pages() -> list[str]:
    """Every page of docs/, by its path there."""
    return sorted(p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md"))


def on_config(config: Any) -> Any:
    """MkDocs asks: the configuration, with the whole navigation."""
    config.nav = whole(config.nav, pages())
    return config


# ---------------------------------------------------------------- pages beside docs/
def on_files(files: Any, config: Any) -> Any:
    """MkDocs asks: all files, with those beside docs/."""
    from mkdocs.structure.files import File

    for path in BESIDE:
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    files.append(File.generated(config, EXAMPLES, content=examples()))
    files.append(File.generated(config, REFERENCE, content=reference()))
    sys.path.insert(0, str(ROOT / "docs"))
    import notebooks

    for path in notebooks.NOTEBOOKS:
        files.append(File.generated(config, f"examples/{path.stem}.md", content=notebooks.page(path)))
    return files


def examples() -> str:
    """One page with every example."""
    parts = ["# Examples\n\nEach is a program of its own; the tests run them all.\n"]
    for path in sorted((ROOT / "examples").glob("*.py")):
        parts.append(f"## {path.stem} {{ #{path.stem} }}\n\n```python\n{path.read_text('utf-8').rstrip()}\n```\n")
    return "\n".join(parts)


def public_names() -> dict[str, list[str]]:
    """Every name of `unskew`, by the module below it that it is imported from."""
    stub = ROOT / "unskew" / "__init__.pyi"
    names: dict[str, list[str]] = {}
    for node in ast.walk(ast.parse(stub.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module != "version":
            names.setdefault(node.module, []).extend(alias.asname or alias.name for alias in node.names)
    return names


def reference() -> str:
    """One page with the signature and docstring of every public name."""
    parts = ["# API reference\n\nNames are `us.NAME` after `import unskew as us`; a few settings are in files only.\n"]
    groups: dict[str, list[str]] = {title: [] for title in GROUPS.values()}
    for module, names in public_names().items():
        title = next(t for start, t in GROUPS.items() if f"{module}.".startswith(start))
        groups[title] += [f"unskew.{module}.{name}" for name in names]
    groups["Settings"] += OF_FILES
    for title, paths in groups.items():
        parts.append(f"## {title}\n")
        alone = (
            "    options:\n      members: false\n" if title == "Methods" else ""
        )  # init, round and steps are for authors
        parts += [f"::: {path}\n{alone}" for path in sorted(paths, key=lambda p: p.rpartition(".")[2].lower())]
    return "\n".join(parts)


# ---------------------------------------------------------------- links
def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """MkDocs asks: a page's text, with links that lead out of docs/ turned to the site's own pages."""
    parts = _FENCED.split(markdown)
    parts[::2] = [_LINK.sub(lambda m: turned(page.file.src_uri, m[1], m[2] or ""), text) for text in parts[::2]]
    return re.sub(r"^```(\w+) \w+$", r"```\1", "".join(parts), flags=re.M)


def turned(source: str, link: str, anchor: str) -> str:
    """Where on the site a link of the page `source` leads; unchanged if it does so anyway."""
    if not link or re.match(r"[a-z]+:", link):
        return link + anchor
    here = source if source in BESIDE else f"docs/{source}"
    target = posixpath.normpath(posixpath.join(posixpath.dirname(here), link))
    if target.startswith("docs/"):
        place = target.removeprefix("docs/")
    elif target in BESIDE:
        place = target
    elif target.endswith(".ipynb"):
        place = target.replace(".ipynb", ".md")
    elif target == "examples" or target.startswith("examples/"):
        place, anchor = EXAMPLES, f"#{posixpath.basename(target).removesuffix('.py')}" if link.endswith(".py") else ""
    else:
        return link + anchor
    return posixpath.relpath(place, posixpath.dirname(source) or ".") + anchor
