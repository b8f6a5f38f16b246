"""requirements.lock: what a deployment installs, each file by its hash."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCKED = dict(re.findall(r"^([\w.-]+)==(\S+) \\$", (ROOT / "requirements.lock").read_text(), re.MULTILINE))


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_entry_has_a_hash_and_nothing_else_is_in_it() -> None:
    entries = (ROOT / "requirements.lock").read_text().split("\n    --hash=sha256:")
    assert len(LOCKED) > 50
    for line in "".join(entries).splitlines():
        assert re.fullmatch(r"[\w.-]+==\S+ (\\?[0-9a-f]{64} ?)+", line), line


def test_the_versions_are_those_that_the_tests_were_run_with() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    tested = {canonical(name): version for name, _, version in (line.partition("==") for line in lines if "==" in line)}
    for name, version in LOCKED.items():
        assert tested.get(canonical(name), version) == version, f"{name}: make lock writes it anew"


def test_all_that_unskew_needs_in_a_deployment_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["deploy"]]
    names = {canonical(re.match(r"[\w.-]+", need)[0]) for need in needed}  # type: ignore[index]
    assert names - {"unskew"} <= {canonical(name) for name in LOCKED}
