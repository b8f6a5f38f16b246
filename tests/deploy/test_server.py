"""A deployment's two halves, from an experiment to a run folder, in one process."""

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loopback import Handler, Loopback
from sklearn.datasets import load_digits
from torch import nn

from unskew.data import load
from unskew.deploy import trial
from unskew.deploy.client import open_client
from unskew.deploy.server import DeploymentState, serve
from unskew.deploy.settings import Site
from unskew.errors import ConfigError, QuorumError, RunError
from unskew.experiment import config
from unskew.experiment.config import Experiment, to_toml
from unskew.keys import Key
from unskew.ledger import SERVER, node
from unskew.record.logs import rows
from unskew.run import checkpoint, loop
from unskew.run import setup as run_setup
from unskew.run.cell import Cell, Observer
from unskew.run.folder import read_json
from unskew.run.models import load_model, predict
from unskew.runtime.message import REPLIES, Envelope, EvaluationRequest, RoundContext, read, write
from unskew.runtime.policy import ServerConfig
from unskew.tree import Params
from unskew.wire import encode

Small = Callable[..., Experiment]


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "unskew.deploy")


METHODS: list[dict[str, Any]] = [{"name": name} for name in ("fedavg", "fedper", "scaffold", "feddif", "hcct")]
METHODS[1]["personal"] = ["head.bias"]  # of a network of one layer its head is all
THREE = ("split.num_clients=3", 'evaluate=["global","personal"]', "val_fraction=0.2", "runtime.executor='sequential'")

REFUSED_S = 1.5
"""Time in which a server that refuses a client waits for another one, seconds."""


opened = functools.lru_cache(open_client)


def own_site(folder: Path, clients: int, data: str | None = None, quiet: bool = False) -> Handler:
    """A client that names these data of its own, and whose policy may keep its metrics at home."""
    if quiet:
        (folder.parent / "quiet.toml").write_text("metrics = false\n")
    site = Site(data, policy=str(folder.parent / "quiet.toml") if quiet else None)
    return lambda message: opened(folder, int(folder.name[7:]), clients, site).answer(message)


def pack(
    root: Path, experiment: Experiment, clients: int = 3, data: Sequence[str | None] = (), quiet: int | None = None
) -> Loopback:
    """A folder for the server and one for each client, and a network on which all clients are."""
    for name in ("server", *(f"client-{c}" for c in range(clients))):
        (root / name).mkdir(parents=True)
        (root / name / "experiment.toml").write_text(to_toml(experiment))
    return Loopback(
        {c: own_site(root / f"client-{c}", clients, data[c] if data else None, c == quiet) for c in range(clients)}
    )


@pytest.fixture
def allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The participants let the coordinator choose what is read, as in `--local`."""
    (tmp_path / "policy.toml").write_text('paths = ["/"]\n')
    monkeypatch.setenv("UNSKEW_POLICY", str(tmp_path / "policy.toml"))


def start(
    root: Path,
    grid: Loopback,
    clients: int = 3,
    least: int | None = None,
    wait_s: float = 12.0,
    own: bool = False,
    **options: Any,
) -> Path:
    """Run the server until its run is done; the run's folder."""
    config = ServerConfig(clients, least or clients, 60.0, wait_s, own_data=own)
    return serve(grid, root / "server", config, **options).folder


def several(small: Small, *settings: str) -> Experiment:
    raw = config.resolved(small(*THREE, *settings))
    return config.parse({**raw, "methods": METHODS, "local": {"lr": 0.1, "batch_size": 64}})


def test_a_deployed_run_leaves_the_folder_of_a_simulated_one(small: Small, tmp_path: Path) -> None:
    """Row for row, but for clocks; what went over the network and how the server ended are beside it."""
    experiment = several(small, "seeds=[0, 1]", "clients_per_round=2")
    run = start(tmp_path, pack(tmp_path, experiment))
    simulated = loop.start(experiment, tmp_path / "sim").folder
    assert [p.equal for p in trial.compare(run, simulated)] == [True] * len(METHODS)
    assert [p.max_abs_diff for p in trial.compare(run, simulated)] == [0.0] * len(METHODS)
    for name in ("transfers", "work", "failures", "info"):
        assert list(rows(run, name)) == list(rows(simulated, name))
    assert (run / "partition.json").read_bytes() == (simulated / "partition.json").read_bytes()
    assert {r["what"] for r in rows(run, "network")} == {"ask", "fetch", "evaluate"}
    down, said = Counter[tuple[Any, ...]](), Counter[tuple[Any, ...]]()
    for r in rows(run, "transfers"):
        if r["dst"] != SERVER:
            down[r["method"], r["seed"], r["round"], r["hop"], r["dst"]] += r["bytes"]
    for r in rows(run, "network"):
        if (r["what"], r["way"]) == ("ask", "down"):
            said[r["method"], r["seed"], r["round"], r["hop"], node(r["client"])] += r["payload"]
    assert +said == down, "what the ledger says that clients are sent is what they were sent"
    assert not list(rows(simulated, "network"))
    assert read_json(run / "run.json")["environment"]["executor"] == "network"
    assert start(tmp_path, Loopback({})) == run, "a run that is done needs nobody"
    for method, seed, client in itertools.product((m["name"] for m in METHODS), (0, 1), range(3)):
        own = load_model(tmp_path / f"client-{client}", method, seed=seed)
        theirs = load_model(simulated, method, client, seed)
        assert own.unskew == theirs.unskew
        assert all(torch.equal(t, own.state_dict()[name]) for name, t in theirs.state_dict().items())
    assert load_model(run, "fedavg").unskew.client is None
    with pytest.raises(RunError, match="clients that keep theirs to themselves have it in their own folders"):
        load_model(run, "fedper", client=0)
    with pytest.raises(RunError, match="there is no global model of fedper, seed 0: say whose"):
        load_model(run, "fedper")
    with pytest.raises(RunError, match="no model of client 1 of fedper, seed 0"):
        load_model(tmp_path / "client-0", "fedper", client=1)
    for folder in (tmp_path, tmp_path / "server"):
        with pytest.raises(RunError, match="has no models yet: "):
            load_model(folder, "fedper")


def test_data_of_their_own_stay_where_they_are_and_give_the_same_run(small: Small, tmp_path: Path) -> None:
    """Each client is given its shard as a file of its own: the run is that of the split, and no label is known here."""
    images = {f"{v}_{part}": getattr(load("digits"), f"{v}_{part}").numpy() for v in "xy" for part in ("train", "test")}
    np.savez(tmp_path / "floats.npz", **images, classes=np.array(load("digits").classes))
    experiment = small(
        f"task.data='npz:{tmp_path / 'floats.npz'}'",
        "split.num_clients=3",
        'evaluate=["global","personal"]',
        "runtime.executor='sequential'",
    )
    setup = run_setup.prepare(experiment)
    data = setup.dataset
    files = []
    for c, mine in enumerate(run_setup.divide(experiment, data, 0).clients):
        path = tmp_path / f"own-{c}.npz"
        parts = {
            f"{v}_{part}": getattr(data, f"{v}_train")[rows].numpy()
            for v in "xy"
            for part, rows in (("train", mine.train), ("test", mine.test))
        }
        np.savez(path, **parts, classes=np.array(data.classes))
        files.append(f"npz:{path}")
    run = start(tmp_path, pack(tmp_path, experiment, data=files), own=True)
    simulated = loop.start(experiment, tmp_path / "sim").folder
    (found,) = trial.compare(run, simulated)
    assert found.bytes_equal
    assert found.max_abs_diff < 1e-6
    assert read_json(run / "partition.json") == {"schema": 1, "seeds": {}}
    assert read_json(run / "run.json")["cells"][0]["setting"] == "own data, 3 clients"
    # A client that comes back with another file is not who it was.
    opened.cache_clear()
    (run / "summary.json").unlink()
    with pytest.raises(QuorumError, match="client 1 had other data, or another folder state/, when it was met"):
        start(tmp_path, again(tmp_path, 3, [files[0], files[0], files[2]]), wait_s=REFUSED_S, own=True)


@dataclass
class ComesBack(Observer):
    """Takes a client off the network after round 1, for good or until the evaluation after the last round."""

    grid: Loopback
    last: bool
    noted: list[str] = field(default_factory=list)

    def ended_round(self, cell: Cell) -> None:
        if cell.round != 1:
            return
        handler, first = self.grid.handlers.pop(2), self.grid.handlers[0]

        def back(message: Envelope) -> Envelope:
            if self.last:
                self.grid.handlers[2] = handler
            return first(message)

        self.grid.handlers[0] = back

    def note(self, text: str) -> None:
        self.noted.append(text)


@pytest.mark.parametrize("back", [True, False])
def test_a_client_that_is_back_by_the_end_gets_its_model_and_another_is_named(
    back: bool, small: Small, tmp_path: Path
) -> None:
    grid = pack(tmp_path, small("rounds=2", "split.num_clients=3", "runtime.executor='sequential'"))
    callback = ComesBack(grid, back)
    start(tmp_path, grid, callback=callback)
    assert [(r["round"], r["client"]) for r in rows(tmp_path / "server" / "run", "work")][3:] == [(2, 0), (2, 1)]
    away = [text for text in callback.noted if "did not answer when training had ended" in text]
    if back:
        assert load_model(tmp_path / "client-2", "fedavg").unskew.client == 2
        assert away == []
    else:
        assert [text.partition(":")[0] for text in away] == ["fedavg, seed 0, round 2"]
        assert "no model is in the folder of client 2, which" in away[0]


def test_clients_that_lie_do_it_in_their_own_processes_as_in_a_simulation(small: Small, tmp_path: Path) -> None:
    world = "world.attack={name='sign_flip', fraction=0.34}"
    experiment = small("split.num_clients=3", 'evaluate=["global","personal"]', "runtime.executor='sequential'", world)
    run = start(tmp_path, pack(tmp_path, experiment))
    simulated = loop.start(experiment, tmp_path / "sim").folder
    (gap,) = trial.compare(run, simulated)
    assert gap.max_abs_diff < 1e-6
    grid = pack(tmp_path / "alie", small("split.num_clients=3", "world.attack={name='ALIE', fraction=0.34}"))
    with pytest.raises(ConfigError, match="'ALIE' needs the replies of honest clients"):
        start(tmp_path / "alie", grid)


def test_a_secure_sum_over_the_network_is_that_of_a_simulation(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its rounds is kept when it ends: clients that are fewer by then would not do it again."""
    settings = ("split.num_clients=3", "methods.0.with=['secure_sum']", "runtime.executor='sequential'", "rounds=3")
    experiment, kept, save = small(*settings), list[int](), checkpoint.save

    def noted(folder: Path, files: Any, position: checkpoint.Position, record: Any) -> checkpoint.Position:
        kept.append(position.round)
        return save(folder, files, position, record)

    monkeypatch.setattr(checkpoint, "save", noted)
    run = start(tmp_path, pack(tmp_path, experiment))
    assert kept == [1, 2, 0]  # and the end of all rounds
    simulated = loop.start(experiment, tmp_path / "sim").folder
    (gap,) = trial.compare(run, simulated)
    assert gap.max_abs_diff < 1e-5
    assert not list(rows(run, "failures"))


def targets_of(kind: str) -> tuple[Any, Any]:
    """Inputs and targets of 120 examples."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3)).astype(np.float32)
    if kind == "next_token":
        tokens = rng.integers(0, 5, (120, 7))
        tokens[:, -1] = tokens[:, 0] = np.arange(120) % 5
        return tokens[:, :-1], tokens[:, 1:]
    times = np.stack([rng.exponential(np.exp(-x[:, 0])), rng.random(120) < 0.7], 1)
    return x, {"binary": (x[:, 0] > 0).astype(np.int64), "regression": x[:, 0] - x[:, 1], "survival": times}[kind]


@pytest.mark.usefixtures("allowed")
@pytest.mark.parametrize(
    ("kind", "own"),
    [
        ("binary", True),
        ("regression", True),
        ("survival", True),
        ("next_token", True),
        ("survival", False),
        ("regression", False),
    ],
)
@pytest.mark.filterwarnings("ignore::unskew.errors.DataWarning")  # of few rows
def test_deployed_clients_learn_and_evaluate_any_kind_as_simulated_ones(
    kind: str, own: bool, small: Small, tmp_path: Path
) -> None:
    """Also what is no mean over examples: each client ranks its own test rows, the server the global ones."""
    x, y = targets_of(kind)
    names = {"classes": np.array(list("abcde"))} if kind == "next_token" else {}
    np.savez(tmp_path / "all.npz", x_train=x[:90], y_train=y[:90], x_test=x[90:], y_test=y[90:], **names)
    more = {"binary": "auroc", "regression": "r2", "survival": "concordance", "next_token": "accuracy"}[kind]
    experiment = small(
        f"task={{data='npz:{tmp_path / 'all.npz'}', kind='{kind}', target_scale={str(not own).lower()}}}",
        "split.num_clients=3",
        f"evaluate=['global', 'personal', '{more}']",
        "local.lr=0.01",
        "runtime.executor='sequential'",
    )
    setup = run_setup.prepare(experiment)
    data, files = setup.dataset, []
    for c, mine in enumerate(run_setup.divide(experiment, data, 0).clients):
        parts = {
            f"{v}_{part}": getattr(data, f"{v}_train")[rows].numpy()
            for v in "xy"
            for part, rows in (("train", mine.train), ("test", mine.test))
        }
        classes = {} if kind == "regression" or kind == "survival" else {"classes": np.array(data.outputs)}
        np.savez(tmp_path / f"own-{c}.npz", **parts, **classes)
        files.append(f"npz:{tmp_path / f'own-{c}.npz'}")
    run = start(tmp_path, pack(tmp_path, experiment, **({"data": files} if own else {})), own=own)
    simulated = loop.start(experiment, tmp_path / "sim").folder
    (found,) = trial.compare(run, simulated)
    assert found.max_abs_diff < 1e-5
    reported = {r["name"] for r in rows(run, "metrics")}
    assert {f"global.{more}", f"personal.{more}.mean"} <= reported
    model = load_model(tmp_path / "client-1", "fedavg")
    assert predict(model, x[:4]) == predict(load_model(simulated, "fedavg"), x[:4])


def again(root: Path, clients: int, data: Sequence[str] = ()) -> Loopback:
    """The same clients' folders on a new network."""
    return Loopback({c: own_site(root / f"client-{c}", clients, data[c] if data else None) for c in range(clients)})


def test_nothing_of_pixels_is_told_but_a_power_of_two(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(0).random((40, 8, 8)).astype(np.float32) * 6.5
    np.savez(tmp_path / "own.npz", x_train=x, y_train=np.arange(40) % 10)
    source = f"npz:{tmp_path / 'own.npz'}"
    pack(tmp_path, small("split.num_clients=3", f"task.data='{source}'"))
    (tmp_path / "policy.toml").write_text("metrics = false\n")
    assert open_client(tmp_path / "client-0", 0, 3, Site(source)).info.scale == 3  # 6.5 at most
    monkeypatch.setenv("UNSKEW_POLICY", str(tmp_path / "policy.toml"))
    quiet = open_client(tmp_path / "client-1", 1, 3, Site(source)).info
    assert (quiet.images, quiet.scale) == ("floats 1 x 8 x 8", None)


def test_what_cannot_be_deployed_is_refused_before_anybody_is_asked(small: Small, tmp_path: Path) -> None:
    for name, settings, text in (
        ("a", ('evaluate=["personal_on_global"]',), "neither travels"),
        ("b", ("bounds=true",), "centralised trains on everybody's data in one place"),
    ):
        grid = pack(tmp_path / name, small("split.num_clients=3", *settings))
        with pytest.raises(ConfigError, match=text):
            start(tmp_path / name, grid)
        assert not grid.pushed
    grid = pack(tmp_path / "c", small("split.num_clients=2"), 2)
    with pytest.raises(ConfigError, match=r"min_clients must be at most the 2 clients, got 3"):
        start(tmp_path / "c", grid, 2, least=3)


def test_a_client_evaluates_one_model_a_round_whoever_asks_and_how_often(small: Small, tmp_path: Path) -> None:
    """The attack that worked: accuracies of ten models that always say one class are the counts of a site's labels."""
    folder = tmp_path / "client-0"
    run = start(tmp_path, pack(tmp_path, small("split.num_clients=3", 'evaluate=["personal"]')))
    client_runtime, final = open_client(folder, 0, 3), load_model(run, "fedavg").state_dict()

    def ask(model: Params, round: int, run: str, parts: tuple[str, ...] = ("personal",)) -> Any:
        context = RoundContext(run, client_runtime.info.config, 0, round)
        request = EvaluationRequest(context, parts, "", False)
        return read(client_runtime.answer(write("evaluate", request, encode(model))), REPLIES)

    true = dict(zip(client_runtime.open_setup(0).initial, final.values(), strict=True))
    assert ask(true, 2, "hostile").scores == ask(true, 2, "again").scores != ()
    third = 9.0 * (torch.arange(10) == 3)
    constant = {name: value * 0 + (third if name.endswith("bias") else 0) for name, value in true.items()}
    for round in (0, 1, 2):
        assert ask(constant, round, "hostile").reason.startswith("this client has given scores of model ")
    assert "in this round already" in ask(true, 2, "hostile", parts=("personal", "val")).reason
    assert ask(constant, 3, "hostile").reason == "round 3 lies behind the experiment's last, 2"


def test_the_book_of_another_experiment_is_refused_and_a_broken_one_too(small: Small, tmp_path: Path) -> None:
    path = tmp_path / "deployment.json"
    deployment = DeploymentState.open(path, "a", "named")
    assert deployment.run == "named"
    deployment.save()
    later = DeploymentState.open(path, "a")
    assert later.run == deployment.run
    assert [later.count(0), later.count(0), later.count(1)] == [1, 2, 1]
    assert DeploymentState.open(path, "a").count(0) == 3  # whatever became of those rounds
    with pytest.raises(RunError, match="another experiment"):
        DeploymentState.open(path, "b")
    path.write_text("{}")
    with pytest.raises(RunError, match="is damaged; restore it from a copy"):
        DeploymentState.open(path, "a")


def test_a_run_goes_on_only_with_the_data_that_its_server_began_with(small: Small, tmp_path: Path) -> None:
    """Clients with data of their own know nothing of the server's, and one curve would be of two test sets."""
    digits = load_digits()
    x, y = digits.images.astype(np.uint8), digits.target
    for client in range(2):
        np.savez(tmp_path / f"own-{client}.npz", x_train=x[client::2], y_train=y[client::2])
    np.savez(tmp_path / "server.npz", x_train=x[:200], y_train=y[:200], x_test=x[200:300], y_test=y[200:300])
    own = [f"npz:{tmp_path / f'own-{client}.npz'}" for client in range(2)]
    experiment = small(f"task.data='npz:{tmp_path / 'server.npz'}'", "split.num_clients=2", "rounds=1")
    grid = pack(tmp_path, experiment, 2, data=own)
    start(tmp_path, grid, 2, own=True)
    (tmp_path / "server" / "run" / "summary.json").unlink()
    np.savez(tmp_path / "server.npz", x_train=x[:200], y_train=y[:200], x_test=x[200:300], y_test=y[201:301])
    with pytest.raises(RunError, match="the server's data are not those that its run began with"):
        start(tmp_path, grid, 2, own=True)


@pytest.fixture
def with_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The participants let the coordinator's experiment name code."""
    (tmp_path / "policy.toml").write_text('paths = ["/"]\nallow_code = true\n')
    monkeypatch.setenv("UNSKEW_POLICY", str(tmp_path / "policy.toml"))


def frozen_body() -> nn.Module:
    with Key(3).ambient():
        body = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU()).requires_grad_(False)
    return nn.Sequential(body, nn.Linear(16, 10))


def of_a_frozen_body(small: Small) -> Experiment:
    raw = config.resolved(small(*THREE))
    methods = [{"name": "scaffold"}, {"name": "ditto"}]
    return config.parse(
        {**raw, "methods": methods, "task": {"data": "digits", "model": f"{__name__}:frozen_body"}}, allow_code=True
    )


@pytest.mark.usefixtures("with_code")
def test_frozen_parameters_are_at_each_client_and_in_each_clients_model(small: Small, tmp_path: Path) -> None:
    experiment = of_a_frozen_body(small)
    run = start(tmp_path, pack(tmp_path, experiment))
    simulated = loop.start(experiment, tmp_path / "sim").folder
    assert [p.equal for p in trial.compare(run, simulated)] == [True, True]
    for method, client in itertools.product(("scaffold", "ditto"), range(3)):
        own = load_model(tmp_path / f"client-{client}", method, allow_code=True).state_dict()
        there = load_model(simulated, method, client, allow_code=True).state_dict()
        assert all(torch.equal(t, there[name]) for name, t in own.items())
        assert torch.equal(own["0.1.weight"], frozen_body().state_dict()["0.1.weight"])
