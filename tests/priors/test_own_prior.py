"""A prior of a user's own: one file, named in an experiment, and what is refused of it."""

import shutil
import signal
import sys
from pathlib import Path

import pytest

from unskew.errors import ConfigError
from unskew.experiment import config
from unskew.experiment.config import Experiment, own_modules
from unskew.local import imagery
from unskew.record.logs import rows
from unskew.run import loop
from unskew.run.callbacks import NoCallback, Progress
from unskew.run.folder import read_json

STRANGER = Path(__file__).parents[1] / "outside" / "stranger" / "stranger" / "prior.py"
METHODS = """
rounds = 1
seeds = [0]
task = { data = "digits", model = "logistic" }
split = { name = "iid", num_clients = 2 }
runtime = { executor = "sequential" }

[[methods]]
name = "fedpft"
prior = "prior_of_mine:Mirror"
m = 1
images = 2
classifier = { lr = 0.1, local_steps = 1, batch_size = 4 }

[[methods]]
name = "feddistr"
prior = "prior_of_mine:made"
m = 1
steps = 2
images = 2
classifier = { lr = 0.1, local_steps = 1, batch_size = 4 }
"""
MORE = """

def made(device: torch.device) -> priors.Prior:
    return Mirror(device)


def of_nothing() -> priors.Prior:
    raise AssertionError("it is not called")


def half(device: torch.device) -> Mirror:
    return object()


class Thin(Mirror):
    def start(self, noun=None):
        return torch.zeros(5)


class Flat(Mirror):
    def encode(self, images):
        return super().encode(images).flatten(1)


def unannotated(device):
    raise AssertionError("it is not called")
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of prior_of_mine.py, where modules are looked for."""
    (tmp_path / "prior_of_mine.py").write_text(STRANGER.read_text() + MORE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "prior_of_mine", raising=False)
    imagery._loaded.cache_clear()
    (tmp_path / "mine.toml").write_text(METHODS)
    return tmp_path


def experiment(mine: Path, *settings: str) -> Experiment:
    return config.load(mine / "mine.toml", settings, allow_code=True)


def test_a_file_with_a_prior_serves_two_methods_and_their_report(mine: Path) -> None:
    loop.start(experiment(mine), mine / "run")
    ends = {(r["method"], r["metric"]) for r in read_json(mine / "run" / "summary.json")["rows"]}
    assert {("fedpft", "global.accuracy"), ("feddistr", "global.accuracy")} <= ends
    warned = {text for row in rows(mine / "run", "info") for text in row["info"]["warnings"]}
    assert warned == {"for the prior images of 1 x 8 x 8 are resized, to 1 x 4 x 4"}
    assert "code of prior_of_mine" in read_json(mine / "run" / "run.json")["environment"]


def test_a_run_with_a_prior_of_ones_own_goes_on_only_where_its_code_is_allowed(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(loop.Interrupted, match=r"unskew run --allow-code "):
        loop.start(experiment(mine), mine / "run", Presses())
    assert own_modules(experiment(mine)) == ("prior_of_mine",)
    with pytest.raises(ConfigError, match=r"^methods.0.prior names code \(prior_of_mine:Mirror\) in a file that may"):
        loop.resume(mine / "run")
    assert loop.resume(mine / "run", allow_code=True).summary["rows"]


class Presses(NoCallback):
    """Ctrl-C after the first round."""

    def progress(self, progress: Progress) -> None:
        signal.raise_signal(signal.SIGINT)


def test_code_of_a_prior_is_not_imported_from_a_file_that_may_be_anybodys(mine: Path) -> None:
    for place in ("methods.0.prior", "methods.1.prior"):
        table = config.override(config.read_toml(mine / "mine.toml"), ["methods.0.prior=built-in"])
        table = config.override(table, ["methods.1.prior=hub:nobody/nothing", f"{place}=prior_of_mine:Mirror"])
        with pytest.raises(ConfigError, match=rf"^{place} names code .prior_of_mine:Mirror.*pass --allow-code"):
            config.parse(table)
    assert "prior_of_mine" not in sys.modules


@pytest.mark.parametrize(
    ("prior", "text"),
    [
        ("bilt-in", r"unknown prior 'bilt-in'; did you mean built-in\? \(there are: built-in, FOLDER, hub:OWNER/NAME;"),
        ("prior_of_mine:Miror", r"prior 'prior_of_mine:Miror' cannot be imported from prior_of_mine:Miror: "),
        (
            "no_such_file:Mirror",
            r"prior 'no_such_file:Mirror' cannot be imported from .*No module named 'no_such_file'",
        ),
        ("os:system", r"prior 'os:system' must be a class with encode, decode, .*; os:system is part of Python itself"),
        ("prior_of_mine:unannotated", r"must be a class with .*; prior_of_mine:unannotated is unannotated without a"),
        ("prior_of_mine:Tensor", r"must be a class with .*; prior_of_mine:Tensor is the class Tensor"),
        ("prior_of_mine:of_nothing", r"prior 'prior_of_mine:of_nothing' must take device and need nothing else"),
        ("prior_of_mine:half", r"prior 'prior_of_mine:half' must make a Prior; what it makes lacks name, width, "),
        ("prior_of_mine:Thin", r"prior 'prior_of_mine:Thin': start must return a tensor of \(16,\), got one of \(5,\)"),
        (
            "prior_of_mine:Flat",
            r"'prior_of_mine:Flat': encode of one image must return a tensor of \(1, 1, 4, 4\), got",
        ),
    ],
)
def test_a_prior_with_a_mistake_is_refused_in_a_sentence_before_anything_is_done(
    mine: Path, prior: str, text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        loop.start(experiment(mine, f"methods.0.prior={prior}"), mine / "run")
    assert not (mine / "run").exists()


# ---------------------------------------------------------------- deployed
def test_a_client_that_lacks_the_prior_is_told_so_before_it_takes_part(
    mine: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("grpc")
    from unskew.deploy import folders
    from unskew.deploy.client import open_client
    from unskew.deploy.settings import Address, Site

    address, packed = Address("127.0.0.1", 8443), mine / "packed"
    folders.pack(packed, experiment(mine), 2, address, address)
    assert "names code that is not in this folder: `prior_of_mine`" in (packed / "client-0" / "README.md").read_text()
    with pytest.raises(ConfigError, match=r"methods.0.prior names code \(prior_of_mine:Mirror\)"):
        open_client(packed / "client-0")
    assert open_client(packed / "client-0", Site(allow_code=True)).info.client == 0
    monkeypatch.delitem(sys.modules, "prior_of_mine")
    shutil.move(mine / "prior_of_mine.py", mine / "moved.py")
    with pytest.raises(ConfigError, match=r"methods.0.prior: prior .* cannot be imported .*No module named 'prior_of"):
        open_client(packed / "client-1", Site(allow_code=True))
