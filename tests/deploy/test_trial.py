"""What is refused before anything is started, what is told of a run, and where its files end up."""

import shutil
import tomllib
from pathlib import Path

import pytest
from records import rewrite

from unskew.deploy import trial
from unskew.experiment import config
from unskew.experiment.config import Experiment
from unskew.record.logs import rows

TINY = """
name = "tiny"
rounds = 2
task = { data = "digits", model = "logistic" }
split = { name = "iid", num_clients = 3 }
local = { lr = 0.1, batch_size = 128 }
runtime = { executor = "sequential" }
[[methods]]
name = "fedavg"
[[methods]]
name = "fedper"
personal = ["head.bias"]
"""


def tiny(*settings: str) -> Experiment:
    return config.parse(config.override(tomllib.loads(TINY), settings))


@pytest.fixture(autouse=True)
def _nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*args: object, **named: object) -> None:
        raise AssertionError("a program was started")

    monkeypatch.setattr(trial.subprocess, "Popen", started)


def test_a_run_that_is_done_is_moved_whole_with_its_summary_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "deploy" / "server" / "run"
    (run / "models").mkdir(parents=True)
    (run / "models" / "m").write_text("m")
    for name in ("summary.json", "run.sqlite", "run.json", ".lock"):
        (run / name).write_text(name)
    order: list[str] = []
    rename = Path.rename

    def noted(self: Path, target: Path) -> Path:
        order.append(self.name)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", noted)
    assert trial.collect(run, tmp_path) == tmp_path
    assert order == ["models", "run.json", "run.sqlite", "summary.json"]
    assert (tmp_path / "models" / "m").read_text() == "m"


# ---------------------------------------------------------------- parity
@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trial.simulate(tiny(), tmp_path_factory.mktemp("parity") / "run")


@pytest.fixture
def other(simulated: Path, tmp_path: Path) -> Path:
    """A copy whose rows may be changed."""
    return Path(shutil.copytree(simulated, tmp_path / "other"))


def change_one(run: Path, table: str, method: str, change: "dict[str, object]", name: str | None = None) -> None:
    """Change one row of a method, or drop it if there is nothing to change."""
    of_table = list(rows(run, table))
    at = next(i for i, r in enumerate(of_table) if r["method"] == method and r.get("name") == name)
    of_table[at : at + 1] = [{**of_table[at], **change}] if change else []
    rewrite(run, **{table: of_table})


def test_a_metric_a_model_and_a_transfer_that_differ_are_noticed_method_by_method(simulated: Path, other: Path) -> None:
    import safetensors.torch

    change_one(other, "transfers", "fedper", {"bytes": 1})
    path = other / "models" / "fedavg-seed0.safetensors"
    tensors = safetensors.torch.load(path.read_bytes())
    name = next(iter(tensors))
    tensors[name].view(-1)[0] += 0.5
    path.write_bytes(safetensors.torch.save(tensors))
    fedavg, fedper = trial.compare(simulated, other)
    assert fedavg.max_abs_diff == pytest.approx(0.5)
    assert (fedavg.bytes_equal, fedavg.equal) == (True, False)
    assert (fedper.max_abs_diff, fedper.bytes_equal, fedper.equal) == (0.0, False, False)
