"""The documentation site: every page is in its navigation, every link leads to a page of it, and it builds.

All but the building is tried without MkDocs.
"""

import importlib
import importlib.util
import posixpath
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def _site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("unskew_docs_site", DOCS / "site.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


site = _site()


def nav() -> list[Any]:
    """The navigation of mkdocs.yml; nested lists by indentation are all of YAML it uses."""
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    block = re.search(r"^nav:\n((?:  .*\n)+)", text, re.M)
    assert block is not None
    top: list[Any] = []
    levels: list[tuple[int, list[Any]]] = [(2, top)]
    for line in block[1].splitlines():
        found = re.fullmatch(r"( +)- (?:([^:]+):)? ?(\S+)?", line)
        assert found is not None, line
        while levels[-1][0] > len(found[1]):
            levels.pop()
        title, page = found[2], found[3]
        if page is None:
            inner: list[Any] = []
            levels[-1][1].append({title: inner})
            levels.append((len(found[1]) + 4, inner))
        else:
            levels[-1][1].append({title: page} if title else page)
    return top


WHOLE = site.whole(nav(), site.pages())
ON_SITE = {*site.pages(), *site.BESIDE, site.EXAMPLES, site.REFERENCE}


def test_every_page_the_navigation_names_is_there_and_every_page_is_named_once() -> None:
    named = list(site.named(WHOLE))
    assert len(named) == len(set(named))
    assert set(named) == ON_SITE
    assert all((ROOT / page).is_file() for page in site.BESIDE)


def test_the_tutorial_the_how_tos_and_the_glossary_are_named_by_hand_and_in_order() -> None:
    by_hand = [page for page in site.named(nav()) if page in site.pages()]
    assert by_hand == [
        "index.md",
        "guides/quickstart.md",
        "guides/data.md",
        "guides/tables.md",
        "guides/advise.md",
        "guides/choose-a-method.md",
        "guides/tune.md",
        "guides/write-a-method.md",
        "guides/tasks.md",
        "guides/extend.md",
        "guides/settings.md",
        "guides/results.md",
        "guides/use-a-model.md",
        "guides/malicious-clients.md",
        "guides/trust.md",
        "guides/cluster.md",
        "architecture.md",
        "glossary.md",
    ]


def test_a_folder_stands_for_the_pages_that_are_named_nowhere_else() -> None:
    made = site.whole(
        [{"A": "a/"}, {"Empty": "none/"}, {"B": ["b/one.md", "b/"]}],
        ["a/z.md", "a/README.md", "a/deep/x.md", "b/one.md", "b/two.md"],
    )
    assert made == [{"A": ["a/README.md", "a/z.md", "a/deep/x.md"]}, {"B": ["b/one.md", "b/two.md"]}]


def test_every_method_s_page_is_in_the_section_of_methods() -> None:
    from unskew.algorithms import TABLE

    (methods,) = [entry["Methods"] for entry in WHOLE if "Methods" in entry]
    assert {f"algorithms/{name}.md" for name in TABLE} <= set(methods)


@pytest.mark.parametrize("page", sorted(ON_SITE - {site.EXAMPLES, site.REFERENCE}))
def test_every_link_leads_to_something_on_the_site(page: str) -> None:
    text = (ROOT / page if page in site.BESIDE else DOCS / page).read_text("utf-8")
    prose = re.sub(r"`[^`\n]+`", "", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))
    for found in site._LINK.finditer(prose):
        link = site.turned(page, found[1], found[2] or "")
        if re.match(r"[a-z]+:", link) or link.startswith("#"):
            continue
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), link.partition("#")[0]))
        on_site = target in ON_SITE or ((DOCS / target).is_file() and not target.startswith("../"))
        assert on_site, f"{page} links to {found[0]}, which is {target}"


@pytest.mark.parametrize(
    ("page", "link", "leads_to"),
    [
        ("guides/data.md", "../../examples/own_data.py", "../examples/index.md#own_data"),
        ("guides/quickstart.md", "../../examples/", "../examples/index.md"),
        ("guides/write-a-method.md", "../../CONTRIBUTING.md", "../CONTRIBUTING.md"),
        ("CONTRIBUTING.md", "docs/guides/data.md", "guides/data.md"),
        ("index.md", "glossary.md", "glossary.md"),
        ("index.md", "https://example.org/a.md", "https://example.org/a.md"),
        ("guides/data.md", "../../unskew/keys.py", "../../unskew/keys.py"),
    ],
)
def test_links_out_of_the_folder_are_turned_to_the_site_s_pages(page: str, link: str, leads_to: str) -> None:
    assert site.turned(page, link, "") == leads_to


def test_links_in_code_are_left_alone_and_a_fence_names_its_language_only() -> None:
    class File:
        src_uri = "guides/data.md"

    class Page:
        file = File

    text = "[a](../../examples/x.py)\n\n```python run\n# [a](../../examples/x.py)\n```\n\n```toml fragment\n```\n"
    assert site.on_page_markdown(text, Page, None, None) == (
        "[a](../examples/index.md#x)\n\n```python\n# [a](../../examples/x.py)\n```\n\n```toml\n```\n"
    )


def test_the_page_of_examples_has_them_all_whole() -> None:
    text = site.examples()
    for path in (ROOT / "examples").glob("*.py"):
        assert f"## {path.stem} {{ #{path.stem} }}" in text
        assert path.read_text("utf-8").rstrip() in text


def test_the_reference_has_every_public_name_once_where_it_is_defined() -> None:
    import unskew

    listed = re.findall(r"^::: ([\w.]+)\.(\w+)$", site.reference(), re.M)
    assert sorted(name for _, name in listed) == sorted(set(unskew.__all__) - {"__version__"})
    for module, name in listed:
        assert getattr(importlib.import_module(module), name) is getattr(unskew, name)


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("mkdocs", "material")),
    reason="mkdocs-material is not installed (extra [docs])",
)
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-f", ROOT / "mkdocs.yml", "-d", tmp_path],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) >= len(ON_SITE)
    for page in pages:
        loaded = re.findall(r"<(?:script|img|link|iframe)[^>]+(?:src|href)=[\"']?(https?:[^\"' >]+)", page.read_text())
        assert loaded == [], f"{page.name} loads {loaded}"
