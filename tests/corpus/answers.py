"""What the commands answer with --json: a comparison's numbers, gains by client, costs, advice, tuning, a forecast."""

import atexit
import functools
import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import unskew as us

from . import adaptors
from .inputs import table

SITES = """
name = "sites"
rounds = 3
seeds = [0, 1, 2]
local = { lr = 0.1, batch_size = 8 }
split = { name = "natural" }
runtime = { executor = "sequential" }
evaluate = ["global", "personal", "balanced_accuracy"]
[task]
data = "csv:table.csv"
model = "logistic"
data_options = { target = "ill", client = "site", test = 0.25, leave_out = ["day", "part", "days", "died", "patient"] }
preprocess = { scale = "agreed" }
[[methods]]
name = "independent"
[[methods]]
name = "fedavg"
[[methods]]
name = "ditto"
"""
DEPLOYED = """
name = "deployed"
rounds = 2
task = { data = "digits", model = "logistic" }
split = { name = "iid", num_clients = 2 }
[[methods]]
name = "fedavg"
[[methods]]
name = "scaffold"
"""
RUN = "run sites.toml --quiet --no-report --json --out"
OF_ONE = "--set methods=[{name='fedprox'}] --set seeds=[0]"

COMMANDS: dict[str, tuple[str, ...]] = {
    "run": (f"{RUN} run",),
    "gains": (),
    "compare": (f"{RUN} b {OF_ONE}", "show run b --json"),
    "price": ("show --cost run --json",),
    "predict": ("predict run table.csv --method fedavg --json",),
    "plan": ("plan sites.toml --json",),
    "data": ("data table.csv --target ill --client site --leave-out day --json",),
    "data, by name": ("data heart --json",),
    "data, patients": ("data table.csv --target ill --client site --patient patient --patient-ids network --json",),
    "tune": (f"tune sites.toml {OF_ONE} --trials 3 --final-seeds 2 --quiet --json --out tuned",),
    "advise": ("advise sites.toml --max-rounds 3 --fresh-seeds 2 --quiet --json --out advice",),
    "deploy": ("fed try deployed.toml --sites 2 --check-parity --json",),
}
NETWORK = ("deploy",)
"""Entries that start processes which talk over a network."""
CLOCKS = re.compile(r"seconds|.*_s|.*_seconds|.*memory.*|peak_rss|created|.*version|workers|nodes|executor.*")


@functools.cache
def cases() -> dict[str, tuple[str, ...]]:
    return COMMANDS


@functools.cache
def made() -> Path:
    """The run that several commands begin with, made once."""
    place = Path(tempfile.mkdtemp(prefix="unskew-corpus-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    table().to_csv("table.csv", index=False)
    Path("sites.toml").write_text(SITES)
    code, _, said = adaptors.command(*f"{RUN} {place / 'run'}".split())
    assert code == 0, said
    return place / "run"


def entry(name: str, here: Path) -> Any:
    """What the last of the commands answers, but for what clocks and this machine say."""
    table().to_csv(here / "table.csv", index=False)
    (here / "sites.toml").write_text(SITES)
    (here / "deployed.toml").write_text(DEPLOYED)
    if name in ("compare", "price", "predict"):
        shutil.copytree(made(), here / "run")
    if name == "gains":
        return numbers([dict(row) for row in us.load_run(made()).gains()])
    for words in cases()[name]:
        code, out, said = adaptors.command(*words.split())
        assert code == 0, said
    return numbers(json.loads(out))


def numbers(value: Any) -> Any:
    """What a command answers, without what clocks and this machine say, and without sentences."""
    if isinstance(value, dict):
        kept = {key: inner for key, inner in value.items() if not CLOCKS.fullmatch(key)}
        return {} if value.get("metric") == "seconds" else {key: numbers(inner) for key, inner in kept.items()}
    if isinstance(value, list):
        return [numbers(inner) for inner in value]
    return "..." if isinstance(value, str) and len(value.split()) > 3 else value
