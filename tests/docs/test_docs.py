"""What the documentation says is tried: links, files, commands, settings and code."""

import ast
import dataclasses
import inspect
import re
import shlex
import sys
import tomllib
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from unskew import papers
from unskew.algorithms import TABLE, resolve
from unskew.errors import ConfigError
from unskew.experiment import config
from unskew.pricing.presets import PRESETS, PricingPreset
from unskew.protocol import SgdConfig
from unskew.run import sweep
from unskew.world.energy import Energy
from unskew.world.outage import Outage
from unskew.world.spectrum import Spectrum
from unskew.world.wireless import Radio

ROOT = Path(__file__).parents[2]
NOT_OURS = {"demo", "runs", "build", "dist"}
PAGES = sorted(
    p
    for p in ROOT.rglob("*.md")
    if not any(part.startswith(".") or part in NOT_OURS for part in p.relative_to(ROOT).parts)
)
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.M | re.S)
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^()\n]+)\)")  # a target with a space in it is broken, not none


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


each_page = pytest.mark.parametrize("page", PAGES, ids=name)


def blocks(page: Path, language: str) -> list[str]:
    return [body for info, body in FENCE.findall(page.read_text("utf-8")) if info == language]


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text("utf-8"))


def spans(page: Path) -> list[str]:
    return SPAN.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub links to them."""
    heads = re.findall(r"^#+ (.+)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in heads}


# ---------------------------------------------------------------- links and files
@each_page
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(SPAN.sub("", prose(page))):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        there = (page.parent / path) if path else page
        assert there.exists(), f"{name(page)} links to {target}"
        assert not anchor or anchor in anchors(there), f"{name(page)} links to {target}"


@each_page
def test_every_file_a_page_names_is_there(page: Path) -> None:
    named = [s for s in spans(page) if re.fullmatch(r"(unskew|tests|examples|docs)/[\w./-]+", s)]
    missing = [s for s in named if "NAME" not in s and not (ROOT / s).exists()]
    assert missing == []


def test_every_method_has_its_page_and_the_readme_links_to_it() -> None:
    links = LINK.findall((ROOT / "README.md").read_text("utf-8"))
    pages = [f"docs/algorithms/{method}.md" for method in TABLE]
    assert [p for p in pages if not (ROOT / p).exists()] == []
    assert [p for p in pages if p not in links] == []


@pytest.mark.parametrize("method", [m for m, entry in TABLE.items() if entry.limit is not None])
def test_a_page_that_calls_a_limit_fedavg_names_defaults_that_are_not_fedavgs(method: str) -> None:
    lines = (ROOT / f"docs/algorithms/{method}.md").read_text("utf-8").splitlines()
    claims = [s for s in lines if re.search(r"\bis FedAvg\b", s) and not s.startswith("**Tested by**")]
    default = resolve(method)()
    if getattr(default, "weighting", "samples") != "samples":
        assert [s for s in claims if '`weighting = "samples"`' not in s] == []
    if getattr(default, "local", SgdConfig()) != SgdConfig():
        assert [s for s in claims if "the same `local`" not in s] == []


def test_what_the_readme_calls_planned_is_not_there() -> None:
    paragraphs = (ROOT / "README.md").read_text("utf-8").split("\n\n")
    planned = " ".join(p for p in paragraphs if re.search(r"\bplanned, and not there\b", p, re.I))
    assert {w.lower() for w in re.findall(r"[\w/-]+", planned)}.isdisjoint({*TABLE, *papers.TABLE})


# ---------------------------------------------------------------- commands
def commands(page: Path) -> Iterator[tuple[list[str], bool]]:
    """(words, whole) of each `unskew` command line; a span in the prose may leave arguments out."""
    for block in (*blocks(page, "sh"), *blocks(page, "bash")):
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["unskew"]:
                yield words[1:], True
    for span in spans(page):
        if re.match(r"unskew [a-z-]", span):
            yield shlex.split(span)[1:], False


@pytest.fixture(scope="module")
def known() -> dict[str, Any]:
    """The commands by name, as click sees them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # typer's own use of click
        import typer

        from unskew.cli.app import app

        found: Any = typer.main.get_command(app)
    return dict(found.commands)


@each_page
def test_every_command_line_is_one_that_the_command_takes(page: Path, known: dict[str, Any]) -> None:
    from click import MissingParameter

    for words, whole in commands(page):
        command, *args = ("." if word == "DIR" else word for word in words)  # a folder that is there
        assert command in known, f"{name(page)}: unskew {' '.join(words)}"
        try:
            parsed = known[command].make_context(command, list(args)).params
        except MissingParameter:
            assert not whole, f"{name(page)}: unskew {' '.join(words)}"
            continue
        if parsed.get("settings"):
            # Settings are tried on the built-in experiment, whichever file they are shown with.
            read: Any = sweep.expand if command == "sweep" else config.load
            read(ROOT / "unskew" / "experiment" / "builtin" / "digits.toml", parsed["settings"])


def test_a_command_line_that_does_not_exist_would_be_noticed(known: dict[str, Any]) -> None:
    from click import NoSuchOption

    assert "run" in known
    assert "plant" not in known
    with pytest.raises(NoSuchOption):
        known["run"].make_context("run", ["--sett", "rounds=5"])
    with pytest.raises(ConfigError, match="did you mean rounds"):
        config.load(ROOT / "unskew" / "experiment" / "builtin" / "digits.toml", ["round=5"])


@each_page
def test_every_make_target_is_there(page: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M)
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    named = [m[1] for text in (*lines, *spans(page)) if (m := re.match(r"make ([a-z-]+)", text))]
    assert set(named) <= set(targets)


def test_the_readme_begins_with_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    first, *_ = FENCE.findall(text)
    assert [line.split("#")[0].strip() for line in first[1].splitlines()] == ["make demo", "make test"]
    assert text.index("```python run") < text.index("<!-- results:begin -->") < text.index("<!-- results:end -->")
    assert text[: text.index("<!-- results:begin -->")].count("\n#") == 0


# ---------------------------------------------------------------- settings and code
@each_page
def test_every_experiment_shown_is_one_that_can_be_read(page: Path) -> None:
    for block in blocks(page, "toml"):
        config.parse(tomllib.loads(block), name(page))


# What a page's code writes where it is run; the others write nothing.
WRITES = {
    "docs/guides/results.md": {"two-methods"},
    "docs/guides/tables.md": {"runs"},
    "docs/guides/use-a-model.md": {"runs", "model.pt", "model.safetensors"},
}


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python run")], ids=name)
def test_code_that_is_marked_to_run_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page are run in order, as one module, where the examples are."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    for block in blocks(page, "python run"):
        exec(compile(block, name(page), "exec"), module.__dict__)
    assert {p.name for p in tmp_path.iterdir()} - {"examples"} == WRITES.get(name(page), set())


TABLES = {
    "Experiment": config.Experiment,
    "Task": config.TaskConfig,
    "Seeds": config.UntilDecided,
    "Local": SgdConfig,
    "Stop": config.Stop,
    "Keep models": config.KeepModels,
    "Runtime": config.Runtime,
}


@pytest.mark.parametrize("heading", TABLES)
def test_every_setting_is_on_the_page_of_settings_with_its_default(heading: str) -> None:
    text = (ROOT / "docs" / "guides" / "settings.md").read_text("utf-8")
    section = re.split(r"^## ", text, flags=re.M)
    (table,) = (part for part in section if part.startswith(f"{heading}\n"))
    said = {m[1]: m[2] for m in re.finditer(r"^\| `(\w+)` \|([^|]*)\|", table, re.M)}
    fields = {f.name: default_of(f) for f in dataclasses.fields(TABLES[heading])}
    if heading == "Experiment":
        del fields["until"]  # written in the place of seeds
    assert said.keys() == fields.keys() | ({"local", "bounds"} if heading == "Experiment" else set())
    for name, default in fields.items():
        shown = SPAN.findall(said[name])
        if shown and not shown[0].startswith("$") and (heading, name) != ("Local", "local_epochs"):
            plain = getattr(default, "name", config.plain(default))  # a record is named
            assert shown[0] in (str(plain), str(plain).replace("'", '"'), str(plain).lower()), name


def test_the_page_of_settings_names_the_methods_with_local_defaults_of_their_own() -> None:
    text = (ROOT / "docs" / "guides" / "settings.md").read_text("utf-8")
    plain = config.plain(SgdConfig())
    for name, entry in TABLE.items():
        local = inspect.signature(resolve(name)).parameters.get("local")
        own = config.plain(local.default) if local is not None and isinstance(local.default, SgdConfig) else plain
        for key in own.keys() | plain.keys():
            if own.get(key) != plain.get(key):
                (row,) = (line for line in text.splitlines() if line.startswith(f"| `{key}` |"))
                assert entry.name in row
                assert str(own[key]) in row


def default_of(field: dataclasses.Field[Any]) -> object:
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default


def test_the_world_on_the_page_of_settings_is_all_of_it() -> None:
    text = (ROOT / "docs" / "guides" / "settings.md").read_text("utf-8")
    assert {f.name for f in dataclasses.fields(config.World)} == {"outage", "channel", "attack"}
    for field in dataclasses.fields(Outage):
        assert f"| `outage.{field.name}` | `{field.default}` |" in text


@pytest.mark.parametrize("of", [Radio, Spectrum, Energy])
def test_every_setting_of_the_radio_is_on_its_page_with_its_default(of: Any) -> None:
    text = (ROOT / "docs" / "guides" / "radio.md").read_text("utf-8")
    heading = "channel" if of is Radio else of.__name__.lower()
    (table,) = re.findall(rf"^\| `{heading}` \| default \|.*\n((?:\|.*\n)+)", text, re.M)
    shown = dict(re.findall(r"^\| `(\w+)` \| `?(.+?)`? \|", table, re.M))
    defaults = {f.name: f.default for f in dataclasses.fields(of) if f.name != "name"}
    assert list(shown) == list(defaults)
    for setting, default in defaults.items():
        plain = list(default) if isinstance(default, tuple) else default
        assert shown[setting] == "none" if plain is None else tomllib.loads(f"x = {shown[setting]}")["x"] == plain


@pytest.mark.parametrize("preset", PRESETS)
def test_what_a_radio_preset_sets_is_on_the_page(preset: str) -> None:
    text = (ROOT / "docs" / "guides" / "radio.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| ((?:as|`\w+ = ).*) \|$", text, re.M))
    words = rows[preset].replace("as `p000`", rows["p000"])
    shown = tomllib.loads("\n".join(re.findall(r"`(\w+ = [^`]+)`", words)))
    ours, plain = PRESETS[preset], PricingPreset(Radio(), Spectrum(), Energy())
    parts = [(getattr(ours, f.name), getattr(plain, f.name)) for f in dataclasses.fields(PricingPreset)]
    changed = {
        f.name: getattr(one, f.name)
        for one, other in parts
        for f in dataclasses.fields(one)
        if getattr(one, f.name) != getattr(other, f.name)
    }
    assert shown == changed


def test_there_is_code_to_run() -> None:
    pages = [name(p) for p in PAGES if blocks(p, "python run")]
    assert {"README.md", "docs/guides/quickstart.md", "docs/guides/write-a-method.md"} <= set(pages)


def test_the_readmes_example_has_five_lines_at_most() -> None:
    (block,) = blocks(ROOT / "README.md", "python run")
    assert len([line for line in block.splitlines() if line.strip()]) <= 5


def test_the_guide_shows_the_fedprox_of_the_example() -> None:
    guide = ast.parse("\n".join(blocks(ROOT / "docs" / "guides" / "write-a-method.md", "python run")))
    example = ast.parse((ROOT / "examples" / "write_your_own.py").read_text("utf-8"))

    def shown(tree: ast.Module) -> list[str]:
        return [ast.unparse(n) for n in tree.body if getattr(n, "name", "") in ("Pull", "my_fedprox")]

    assert shown(guide) == shown(example)
    assert len(shown(guide)) == 2
