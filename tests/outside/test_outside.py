"""Everything can be extended from outside: an installed package with one piece of each kind, and a run of all of them.

The package is installed as pip does it, apart from the building: its modules and a dist-info with the entry points of
its pyproject.toml.
"""

import json
import shutil
import tomllib
from pathlib import Path

import pytest

from unskew import IID, FedPFT, SgdConfig, papers, report, simulate
from unskew.data.split import SPLITS
from unskew.errors import ConfigError
from unskew.experiment import config
from unskew.experiment.config import to_toml
from unskew.record.logs import rows
from unskew.run import loop
from unskew.run.cell import Observer

STRANGER = Path(__file__).parent / "stranger"
PROJECT = tomllib.loads((STRANGER / "pyproject.toml").read_text())["project"]

EXPERIMENT = """
name = "outside"
rounds = 2
seeds = [0]
track = ["csv"]
track_options = { csv = { every = 2 } }
task.data = "blobs"
task.data_options = { n = 40 }
task.model = "wide"
task.model_options = { width = 5 }
task.augment = "reversed"
task.kind = "cautious"
task.loss = "soft"
evaluate = ["global", "personal", "sameness"]
split = { name = "comb", num_clients = 4, offset = 1 }
world = { channel = { name = "fading_away", start = 6.0 }, attack = { name = "stubborn", fraction = 0.0 } }
runtime = { executor = "backwards", executor_options = { naps = 0 } }
local = { lr = 0.1 }

[[methods]]
name = "median"
with = [{ name = "shy", depth = 2 }]
label = "Median"

[[methods]]
name = "moon"
server = { name = "part_way", share = 0.25 }
label = "MOON, part way"
"""


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package installed."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(STRANGER / "stranger", folder / "stranger", ignore=shutil.ignore_patterns("__pycache__"))
    about = folder / "stranger-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    lines = [
        line
        for group, entries in PROJECT["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in entries.items()))
    ]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(site))


# ---------------------------------------------------------------- a run of all of them
@pytest.mark.usefixtures("installed")
def test_one_run_uses_a_strangers_piece_of_every_kind(tmp_path: Path) -> None:
    run = tmp_path / "run"
    loop.start(config.parse(_table()), run)
    report.write_report(run)
    page = (run / "report.html").read_text()
    assert "Medians on the move" in page
    assert "A stranger saw move: Median in round 1 under gamma 6; Median in round 2 under gamma 3." in page
    assert "Brier score" in page
    assert any(row["name"] == "global.sameness" for row in rows(run, "metrics"))
    assert 'loss = "soft"' in (run / "config.toml").read_text()
    assert "share = 0.25" in (run / "config.toml").read_text()
    lines = (run / "stranger.csv").read_text().splitlines()
    assert lines[-1] == "closed"
    assert {line.split(",")[-3] for line in lines if line != "closed"} == {"0", "2"}
    card = json.loads((run / "run.json").read_text())
    assert "backwards" in json.dumps(card)


@pytest.mark.usefixtures("installed")
def test_a_strangers_reproduction_is_reproduced(tmp_path: Path) -> None:
    result = papers.reproduce("stranger/blobs", "small", tmp_path / "r", None, Observer())
    assert [(row.method, row.paper) for row in result.rows] == [("median", 0.5)]


@pytest.mark.usefixtures("installed")
def test_a_strangers_prior_serves_a_method_that_has_images() -> None:
    classifier = SgdConfig(0.1, local_steps=1, batch_size=4)
    history = simulate(
        {"mixtures": FedPFT("mirror", m=1, images=2, classifier=classifier)},
        data="digits", model="logistic", split=IID(num_clients=2), rounds=1, progress=False,
    )  # fmt: skip
    assert any(row["name"] == "global.accuracy" for row in history.rows)


# ---------------------------------------------------------------- trust, settings, names
@pytest.mark.usefixtures("installed")
def test_an_installed_package_needs_no_permission_and_reads_back() -> None:
    experiment = config.parse(_table(), allow_code=False)
    assert config.parse(_table(to_toml(experiment)), allow_code=False) == experiment


def _table(text: str = EXPERIMENT) -> dict[str, object]:
    return tomllib.loads(text)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "place",
    [
        "split.name",
        "world.channel.name",
        "world.attack.name",
        "task.kind",
        "task.data",
        "task.model",
        "track.0",
        "runtime.executor",
        "methods.0.name",
        "methods.1.server.name",
    ],
)
def test_code_that_a_file_from_elsewhere_names_is_not_imported(place: str) -> None:
    table = config.override(_table(), [f"{place}=nobody.there:Thing"])
    with pytest.raises(ConfigError, match=rf"^{place} names code .nobody.there:Thing.*pass --allow-code"):
        config.parse(table, allow_code=False)


@pytest.mark.usefixtures("installed")
def test_a_name_that_two_claim_is_refused_with_both_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SPLITS.ours, "comb", "mine:Comb")  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"provided by unskew and by stranger; .* mine:Comb or stranger.split:Comb"):
        SPLITS.resolve("comb")
