"""What the documentation says is tried: its code, settings, commands and links, and what is made from the code."""

import contextlib
import dataclasses
import doctest
import functools
import importlib
import importlib.util
import posixpath
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unskew.algorithms import TABLE
from unskew.decide import sweep
from unskew.experiment import config
from unskew.papers import overview
from unskew.protocol import SgdConfig

ROOT = Path(__file__).parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
}
DIGITS = ROOT / "unskew" / "experiment" / "builtin" / "digits.toml"
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.M | re.S)
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^()\n]+)\)")  # a target with a space in it is broken, not none


def script(name: str) -> Any:
    """A module of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(f"unskew_docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(text: str, *languages: str) -> list[str]:
    return [body for info, body in FENCE.findall(text) if info in languages]


def spans(text: str) -> list[str]:
    return SPAN.findall(FENCE.sub("", text))


# ---------------------------------------------------------------- code
@pytest.mark.usefixtures("two_rounds")
@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if blocks(text, "python run")])
def test_code_that_is_marked_to_run_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page are run in order, as one module, where the examples are."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    for block in blocks(PAGES[page], "python run"):
        exec(compile(block, page, "exec"), module.__dict__)


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
def test_the_code_of_a_methods_page_draws_a_chart(name: str) -> None:
    module: dict[str, Any] = {}
    exec(compile(*blocks(PAGES[f"docs/algorithms/{name}.md"], "python drawn"), name, "exec"), module)
    assert len(module["history"].methods) == 2
    module["chart"].to_dict()


@pytest.mark.seconds
def test_the_examples_of_docstrings_give_what_they_say() -> None:
    files = [path for path in (ROOT / "unskew").rglob("*.py") if ">>>" in path.read_text("utf-8")]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in files]
    results = {name: doctest.testmod(importlib.import_module(name)) for name in names}
    assert [name for name, result in results.items() if result.failed] == []
    assert sum(result.attempted for result in results.values()) > 100


# ---------------------------------------------------------------- settings and commands
def typed(text: str) -> list[tuple[str, Callable[[str], object]]]:
    """What a reader of a page may type or write into a file, each with what tries it."""
    lines = "".join(blocks(text, "sh", "bash")).splitlines()
    return [
        *((block, lambda block: config.parse(tomllib.loads(block), "page")) for block in blocks(text, "toml")),
        *((block, expanded) for block in blocks(text, "toml sweep")),
        *((line, accepted) for line in lines),
        *((span, accepted_in_part) for span in spans(text) if re.match(r"(unskew|make) [a-z-]", span)),
    ]


def expanded(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "sweep.toml")
        path.write_text(text)
        assert len(sweep.expand(path)[1]) > 1


def accepted(line: str) -> None:
    """Let make or unskew look at a command line."""
    words = shlex.split(line, comments=True)
    if words[:1] == ["make"]:
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text("utf-8"), re.M), "no such target"
    if words[:1] != ["unskew"]:
        return
    args = ["." if word == "DIR" else word for word in words[1:]]  # a folder that is there
    context = command().make_context("unskew", args)
    while hasattr(context.command, "resolve_command"):
        name, inner, args = context.command.resolve_command(context, [*context._protected_args, *context.args])
        context = inner.make_context(name, args, parent=context)
    if settings := context.params.get("settings"):  # tried on the built-in experiment, whichever they are shown with
        read: Any = sweep.expand if any(s.startswith("sweep") for s in settings) else config.load
        read(DIGITS, settings)


def accepted_in_part(span: str) -> None:
    """Let prose leave arguments out."""
    from click import MissingParameter

    with contextlib.suppress(MissingParameter):
        accepted(span)


@functools.cache
def command() -> Any:
    """The command as click sees it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # typer's own use of click
        import typer

        from unskew.cli.app import app

        return typer.main.get_command(app)


def test_experiments_sweeps_and_command_lines_are_taken() -> None:
    refused = []
    for page, text in PAGES.items():
        for shown, attempt in typed(text):
            try:
                attempt(shown)
            except Exception as error:
                refused.append(f"{page}: {shown}: {error!r}")
    assert refused == []


SETTINGS = {
    "\n## Experiment\n": config.Experiment,
    "\n## Task\n": config.TaskConfig,
    "\n## Local\n": SgdConfig,
    "\n## Seeds\n": config.UntilDecided,
    "\n## Unseen\n": config.Unseen,
    "\n## Stop\n": config.Stop,
    "\n## Keep models\n": config.KeepModels,
    "\n## World\n": config.World,
    "\n## Runtime\n": config.Runtime,
}
APART = {"local", "bounds", "until", "name"}
"""Settings of a file alone, one that is written in the place of `seeds`, and names of presets."""


def test_every_setting_is_on_its_page_and_no_other() -> None:
    differ = {}
    for begin, kind in SETTINGS.items():
        table = PAGES["docs/reference/settings.md"].partition(begin)[2].partition("|---")[2].partition("\n\n")[0]
        cells = " ".join(re.findall(r"^\| (`[^|]+)", table, re.M))
        listed = {name.partition(".")[0] for name in spans(cells)}
        differ[begin] = (listed ^ {field.name for field in dataclasses.fields(kind)}) - APART
    assert {begin: names for begin, names in differ.items() if names} == {}


# ---------------------------------------------------------------- links
def prose(text: str) -> str:
    return SPAN.sub("", FENCE.sub("", text))


def anchors(text: str) -> set[str]:
    """The headings of a page as GitHub links to them."""
    heads = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def dead(page: str, text: str, exists: Callable[[str, str], bool]) -> list[str]:
    """The relative links of a page for which `exists(path, anchor)` is False."""
    links = [link for link in LINK.findall(prose(text)) if not re.match(r"[a-z]+:", link)]
    targets = {link: link.partition("#")[::2] for link in links}
    here = posixpath.dirname(page)
    return [
        f"{page} links to {link}"
        for link, (path, anchor) in targets.items()
        if not exists(posixpath.normpath(posixpath.join(here, path)) if path else page, anchor)
    ]


def test_links_and_named_files_lead_somewhere() -> None:
    def exists(path: str, anchor: str) -> bool:
        return (ROOT / path).exists() and (not anchor or anchor in anchors(PAGES[path]))

    links = [link for page, text in PAGES.items() for link in dead(page, text, exists)]
    named = [(page, span) for page, text in PAGES.items() for span in spans(text)]
    files = [(p, s) for p, s in named if re.fullmatch(r"(unskew|tests|examples|docs)/[\w./-]+", s) and "NAME" not in s]
    assert links + [f"{page} names {file}" for page, file in files if not (ROOT / file).exists()] == []


# ---------------------------------------------------------------- what is made from the code
@pytest.mark.parametrize(
    ("page", "made_by"),
    [
        ("docs/architecture.svg", "docs/architecture.py"),
        ("docs/reference/tasks.md", "docs/needs_table.py"),
        ("README.md", "docs/readme_table.py"),
    ],
)
def test_what_is_made_from_the_code_is_of_today(page: str, made_by: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert text == script(Path(made_by).stem).written(text), f"out of date; run: python {made_by}"


def test_the_pages_over_results_are_of_today() -> None:
    for path, made in overview.pages(ROOT / "docs" / "results").items():
        assert path.read_text("utf-8") == made, "run: python -m unskew.papers.overview"


def test_every_method_has_its_page() -> None:
    assert [name for name in TABLE if f"docs/algorithms/{name}.md" not in PAGES] == []


def test_no_file_names_a_path_of_a_machine() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False).stdout.decode()
    texts = {name: (ROOT / name).read_bytes() for name in listed.split("\0") if (ROOT / name).is_file()}
    assert [name for name, text in texts.items() if re.search(rb"/(work|root|tmp/bash)[/_]\w", text)] == []
