"""A deployment's two halves from their folders to a run folder, over Flower's types in one process."""

import itertools
import json
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from sklearn.datasets import load_digits
from torch import nn

from unskew import algorithms
from unskew.data import load
from unskew.deploy import parity
from unskew.errors import ConfigError, DataError, DataWarning, QuorumError, RunError
from unskew.experiment import config
from unskew.experiment.config import Experiment, fingerprint, to_toml
from unskew.keys import Key
from unskew.record.logs import RESUMED, rows
from unskew.run import checkpoint, loop
from unskew.run import setup as run_setup
from unskew.run.callbacks import NoCallback, Progress
from unskew.run.folder import read_json
from unskew.run.models import load_model, predict

pytest.importorskip("flwr")

from flwr.app import Context, Error, Message, RecordDict
from loopback import Loopback, through_app

from unskew.deploy.client import open_client
from unskew.deploy.server import DeploymentState, serve
from unskew.deploy.settings import CODE_PATH, Site, code_path
from unskew.runtime import flower
from unskew.runtime.flower import FlowerTransport
from unskew.runtime.message import REPLIES, EvaluationRequest, RoundContext, read, write
from unskew.runtime.resident import untimed
from unskew.tree import Params
from unskew.wire import encode

Small = Callable[..., Experiment]
METHODS: list[dict[str, Any]] = [{"name": name} for name in ("fedavg", "fedper", "scaffold", "feddif", "hcct")]
METHODS[1]["personal"] = ["head.bias"]  # of a network of one layer its head is all
THREE = ("split.num_clients=3", 'evaluate=["global","personal"]', "val_fraction=0.2", "runtime.executor='sequential'")

REFUSED_S = 1.5
"""Time in which a server that refuses a client waits for another one, seconds."""


def own_site(folder: Path, data: str | None, quiet: bool = False) -> Callable[[Message], Message]:
    """A client that names these data of its own, and whose policy may keep its metrics at home."""

    def answer(message: Message) -> Message:
        with pytest.MonkeyPatch.context() as patch:
            if quiet:
                (folder.parent / "quiet.toml").write_text("metrics = false\n")
                patch.setenv("UNSKEW_POLICY", str(folder.parent / "quiet.toml"))
            return flower.answer(message, open_client(folder, Site(data)))

    return answer


def pack(
    root: Path,
    experiment: Experiment,
    clients: int = 3,
    wait_s: float = 12.0,
    data: Sequence[str | None] = (),
    quiet: int | None = None,
) -> Loopback:
    """A federation's folders, and a network on which all its clients are."""
    server = root / "server"
    server.mkdir(parents=True)
    (server / "experiment.toml").write_text(to_toml(experiment))
    (server / "server.toml").write_text(tomli_w.dumps({"min_clients": clients, "deadline_s": 60.0, "wait_s": wait_s}))
    handlers = {}
    for c in range(clients):
        folder = root / f"client-{c}"
        folder.mkdir()
        (folder / "experiment.toml").write_text(to_toml(experiment))
        (folder / "client.toml").write_text(tomli_w.dumps({"client": c, "num_clients": clients}))
        context = Context(1, 100 + c, {"folder": str(folder)}, RecordDict(), {})
        handlers[100 + c] = through_app(flower.client_app, context)
        if data or c == quiet:
            handlers[100 + c] = own_site(folder, data[c] if data else None, c == quiet)
    return Loopback(handlers)


@pytest.fixture
def allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The participants let the coordinator choose what is read, as in `--local`."""
    (tmp_path / "policy.toml").write_text('paths = ["/"]\n')
    monkeypatch.setenv("UNSKEW_POLICY", str(tmp_path / "policy.toml"))


def start(root: Path, grid: Loopback) -> Path:
    """What Flower does with the server's app."""
    flower.server_app(grid, Context(1, 0, {}, RecordDict(), {"folder": str(root / "server")}))
    return root / "server" / "run"


def several(small: Small, *settings: str) -> Experiment:
    raw = config.resolved(small(*THREE, *settings))
    return config.parse({**raw, "methods": METHODS, "local": {"lr": 0.1, "batch_size": 64}})


def test_a_deployed_run_leaves_the_folder_of_a_simulated_one(small: Small, tmp_path: Path) -> None:
    """Row for row, but for clocks; what went over the network and how the server ended are beside it."""
    experiment = several(small, "seeds=[0, 1]", "clients_per_round=2")
    run = start(tmp_path, pack(tmp_path, experiment))
    simulated = loop.start(experiment, tmp_path / "sim").folder
    assert [p.equal for p in parity.compare(run, simulated)] == [True] * len(METHODS)
    assert [p.max_abs_diff for p in parity.compare(run, simulated)] == [0.0] * len(METHODS)
    for name in ("transfers", "work", "failures", "info"):
        assert list(rows(run, name)) == list(rows(simulated, name))
    assert (run / "partition.json").read_bytes() == (simulated / "partition.json").read_bytes()
    assert {r["what"] for r in rows(run, "network")} == {"ask", "fetch", "evaluate"}
    assert not list(rows(simulated, "network"))
    assert read_json(run / "run.json")["environment"]["executor"] == "flower"
    assert read_json(tmp_path / "server" / "outcome.json") == {"status": "finished"}
    assert start(tmp_path, Loopback({})) == run, "a run that is done needs nobody"
    for method, seed, client in itertools.product((m["name"] for m in METHODS), (0, 1), range(3)):
        own = load_model(tmp_path / f"client-{client}", method, seed=seed)
        assert own.unskew == load_model(simulated, method, client, seed).unskew
        assert all(
            torch.equal(t, own.state_dict()[name])
            for name, t in load_model(simulated, method, client, seed).state_dict().items()
        )
    assert load_model(run, "fedavg").unskew.client is None
    with pytest.raises(RunError, match="clients keep theirs to themselves, in their own folders"):
        load_model(run, "fedper", client=0)
    with pytest.raises(RunError, match="there is no global model of fedper, seed 0, and clients keep theirs to themse"):
        load_model(run, "fedper")
    with pytest.raises(RunError, match=r"no model of client 1 of fedper, seed 0: this folder has that of client 0$"):
        load_model(tmp_path / "client-0", "fedper", client=1)
    for folder in (tmp_path, tmp_path / "server"):
        with pytest.raises(RunError, match=f"has no models: .*; those of the deployment's server are in {run}$"):
            load_model(folder, "fedper")


@pytest.mark.parametrize("asked", ["global", "personal"])
def test_a_client_keeps_its_model_though_it_gives_no_scores(asked: str, small: Small, tmp_path: Path) -> None:
    experiment = several(small, f'evaluate=["{asked}"]', "val_fraction=0.0", "rounds=1")
    experiment = replace(experiment, methods=experiment.methods[1:2])
    run = start(tmp_path, pack(tmp_path, experiment, quiet=1))
    simulated = loop.start(experiment, tmp_path / "sim").folder
    tested = {r["client"] for r in rows(run, "metrics") if "client" in r}
    assert tested == (set() if asked == "global" else {0, 2})
    for client in range(3):
        expected = load_model(simulated, "fedper", client).state_dict()
        own = load_model(tmp_path / f"client-{client}", "fedper").state_dict()
        assert own.keys() == expected.keys()
        assert all(torch.equal(t, expected[name]) for name, t in own.items())


TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[-+]\d\d:\d\d"


def test_a_client_tells_its_own_user_each_round_and_the_end_with_times(
    small: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = small("seeds=[0, 1]")
    start(tmp_path, pack(tmp_path, experiment, 2, quiet=0))
    lines = [line for line in capsys.readouterr().err.splitlines() if "progress: client 0" in line]
    loss = r"loss \d\.\d{4} on \d+ examples"  # on its own disk, though it keeps them from the server
    expected = [
        f"fedavg, seed {seed}: {text}"
        for seed in (0, 1)
        for text in (
            *(rf"round {t} of 2, step \w+: \d+\.\d s, {loss}" for t in (1, 2)),
            "training has ended after 2 rounds",
        )
    ]
    for line, text in zip(lines, [*expected, "the run has ended"], strict=True):
        assert re.fullmatch(f"{TIME} progress: client 0: {text}", line), line


def test_what_a_client_refuses_is_in_its_own_log(
    small: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("max_bytes = 10")
    monkeypatch.setenv("UNSKEW_POLICY", str(policy))
    with pytest.raises(QuorumError):
        start(tmp_path, pack(tmp_path, small(), 2))
    assert re.search(
        rf"^{TIME} client 0 does not answer a request \('ask'\): .*max_bytes", capsys.readouterr().err, re.M
    )


class Killed(BaseException):
    pass


@pytest.mark.parametrize("after", [9, 110, *(pytest.param(after, marks=pytest.mark.slow) for after in (40, 70))])
def test_a_server_that_was_killed_goes_on_to_the_same_end(after: int, small: Small, tmp_path: Path) -> None:
    experiment = several(small, "rounds=3")
    simulated = loop.start(experiment, tmp_path / "sim").folder
    grid = pack(tmp_path, experiment)
    pull, left = grid.pull_messages, iter(range(after))

    def killed(ids: Any) -> Any:
        if next(left, None) is None:
            raise Killed
        return pull(ids)

    grid.pull_messages = killed  # type: ignore[method-assign]
    with pytest.raises(Killed):
        start(tmp_path, grid)
    assert read_json(tmp_path / "server" / "outcome.json")["error"] == "Killed"
    grid.pull_messages = pull  # type: ignore[method-assign]
    run = start(tmp_path, grid)
    assert [p.max_abs_diff for p in parity.compare(run, simulated)] == [0.0] * len(METHODS)
    assert all(p.bytes_equal for p in parity.compare(run, simulated))
    assert not list(rows(run, "failures"))
    deployment = read_json(tmp_path / "server" / "deployment.json")
    assert deployment["attempt"] == 2
    assert [len(starts) for starts in deployment["starts"].values()].count(2) <= 1
    assert all(n >= experiment.rounds for n in deployment["begun"].values())


class Kills(NoCallback):
    """Ends the process after round 1."""

    def progress(self, progress: Progress) -> None:
        raise Killed


def test_a_server_under_other_versions_goes_on_only_by_force(small: Small, tmp_path: Path) -> None:
    grid = pack(tmp_path, small("rounds=2"), 2)
    with pytest.raises(Killed):
        serve(FlowerTransport(grid), tmp_path / "server", Kills())
    card = tmp_path / "server" / "run" / "run.json"
    table = read_json(card)
    card.write_text(json.dumps({**table, "environment": {**table["environment"], "torch": "2.0"}}))
    with pytest.raises(RunError, match=r"another environment \(torch 2\.0 -> .*use --force"):
        start(tmp_path, Loopback({}))  # it waits for nobody before it says so
    config = {"folder": str(tmp_path / "server"), "force": True}
    flower.server_app(grid, Context(1, 0, {}, RecordDict(), config))
    assert read_json(tmp_path / "server" / "outcome.json") == {"status": "finished"}
    (row,) = RESUMED.rows(tmp_path / "server" / "run")
    assert [of.partition(" ")[0] for of in row["changed"]] == ["torch"]


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
    run = start(tmp_path, pack(tmp_path, experiment, data=files))
    simulated = loop.start(experiment, tmp_path / "sim").folder
    (found,) = parity.compare(run, simulated)
    assert found.bytes_equal
    assert found.max_abs_diff < 1e-6
    assert read_json(run / "partition.json") == {"schema": 1, "seeds": {}}
    assert read_json(run / "run.json")["cells"][0]["setting"] == "own data, 3 clients"
    # A client that comes back with another file is not who it was.
    open_client.cache_clear()
    (run / "summary.json").unlink()
    impatient = {"min_clients": 3, "deadline_s": 60.0, "wait_s": REFUSED_S}
    (tmp_path / "server" / "server.toml").write_text(tomli_w.dumps(impatient))
    with pytest.raises(QuorumError, match="client 1 had other data, or another folder state/, when it was met"):
        start(tmp_path, again(tmp_path, 3, [files[0], files[0], files[2]]))


@dataclass
class Joins(NoCallback):
    """Brings a site onto the network after round 1."""

    grid: Loopback
    handler: Callable[[Message], Message]

    def progress(self, progress: Progress) -> None:
        self.grid.handlers[102] = self.handler


def test_a_site_whose_folder_was_packed_to_spare_joins_a_run_later(small: Small, tmp_path: Path) -> None:
    digits = load_digits()
    np.savez(tmp_path / "own.npz", x_train=digits.images.astype(np.uint8), y_train=digits.target)
    own = f"npz:{tmp_path / 'own.npz'}"
    grid = pack(tmp_path, small("rounds=3"), data=[own] * 3)
    (tmp_path / "server" / "server.toml").write_text(tomli_w.dumps({"min_clients": 2, "wait_s": 12.0}))
    (tmp_path / "server" / "nodes.json").write_text(json.dumps({str(c): str(100 + c) for c in range(3)}))
    serve(FlowerTransport(grid), tmp_path / "server", Joins(grid, grid.handlers.pop(102)))
    run = tmp_path / "server" / "run"
    lost = [(r["round"], r["client"], r["reason"]) for r in rows(run, "failures")]
    assert lost == [(1, 2, "client lost: it is not connected")]
    trained = [(r["round"], r["client"]) for r in rows(run, "work")]
    assert trained == [(1, 0), (1, 1), *((t, c) for t in (2, 3) for c in range(3))]
    assert load_model(tmp_path / "client-2", "fedavg").unskew.client == 2


@dataclass
class ComesBack(NoCallback):
    """Takes a client off the network after round 1, for good or until the evaluation after the last round."""

    grid: Loopback
    last: bool
    noted: list[str] = field(default_factory=list)

    def progress(self, progress: Progress) -> None:
        if progress.round != 1:
            return
        handler, first = self.grid.handlers.pop(102), self.grid.handlers[100]

        def back(message: Message) -> Message:
            if self.last:
                self.grid.handlers[102] = handler
            return first(message)

        self.grid.handlers[100] = back

    def note(self, text: str) -> None:
        self.noted.append(text)


@pytest.mark.parametrize("back", [True, False])
def test_a_client_that_is_back_by_the_end_gets_its_model_and_another_is_named(
    back: bool, small: Small, tmp_path: Path
) -> None:
    grid = pack(tmp_path, small("rounds=2", "split.num_clients=3", "runtime.executor='sequential'"))
    callback = ComesBack(grid, back)
    serve(FlowerTransport(grid), tmp_path / "server", callback)
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
    (gap,) = parity.compare(run, simulated)
    assert gap.max_abs_diff < 1e-6
    grid = pack(tmp_path / "alie", small("split.num_clients=3", "world.attack={name='ALIE', fraction=0.34}"))
    with pytest.raises(ConfigError, match="'ALIE' is made from the replies of honest clients"):
        start(tmp_path / "alie", grid)


def test_a_secure_sum_over_the_network_is_that_of_a_simulation(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its rounds is kept when it ends: clients that are fewer by then would not do it again."""
    settings = ("split.num_clients=3", "methods.0.with=['secure_sum']", "runtime.executor='sequential'", "rounds=3")
    experiment, kept, save = small(*settings), list[int](), checkpoint.save

    def noted(folder: Path, files: Any, position: checkpoint.Position) -> None:
        kept.append(position.round)
        save(folder, files, position)

    monkeypatch.setattr(checkpoint, "save", noted)
    run = start(tmp_path, pack(tmp_path, experiment))
    assert kept == [1, 2, 0]  # and the end of all rounds
    simulated = loop.start(experiment, tmp_path / "sim").folder
    (gap,) = parity.compare(run, simulated)
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
    run = start(tmp_path, pack(tmp_path, experiment, **({"data": files} if own else {})))
    simulated = loop.start(experiment, tmp_path / "sim").folder
    (found,) = parity.compare(run, simulated)
    assert found.max_abs_diff < 1e-5
    reported = {r["name"] for r in rows(run, "metrics")}
    assert {f"global.{more}", f"personal.{more}.mean"} <= reported
    model = load_model(tmp_path / "client-1", "fedavg")
    assert predict(model, x[:4]) == predict(load_model(simulated, "fedavg"), x[:4])


def again(root: Path, clients: int, data: Sequence[str] = ()) -> Loopback:
    """The same clients' folders on a new network."""
    if data:
        return Loopback({100 + c: own_site(root / f"client-{c}", data[c]) for c in range(clients)})
    contexts = {c: Context(1, 100 + c, {"folder": str(root / f"client-{c}")}, RecordDict(), {}) for c in range(clients)}
    return Loopback({100 + c: through_app(flower.client_app, context) for c, context in contexts.items()})


def test_whoever_has_no_data_of_its_own_where_the_others_have_is_sent_away(small: Small, tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 17, (40, 8, 8), np.uint8)
    np.savez(tmp_path / "own.npz", x_train=x, y_train=np.arange(40) % 10, classes=np.array([str(i) for i in range(10)]))
    own = f"npz:{tmp_path / 'own.npz'}"
    grid = pack(tmp_path, small("split.num_clients=3"), wait_s=REFUSED_S, data=[own, own, None])
    with pytest.raises(QuorumError, match="it declares no data of its own, the others declare such"):
        start(tmp_path, grid)


def test_a_client_with_other_classes_is_named_and_kept_out(
    small: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.random.default_rng(0).integers(0, 17, (40, 8, 8), np.uint8)
    np.savez(tmp_path / "own.npz", x_train=x, y_train=np.arange(40) % 7)
    own = f"npz:{tmp_path / 'own.npz'}"
    grid = pack(tmp_path, small("split.num_clients=3"), wait_s=REFUSED_S, data=[own, None, None])
    with pytest.raises(QuorumError, match=r"the classes of its data must be 0, 1, .* got 0, 1, 2, 3, 4, 5, 6"):
        start(tmp_path, grid)
    told = "the server refuses it: the classes of its data must be 0, 1, "
    assert told in capsys.readouterr().err
    (refused,) = map(json.loads, (tmp_path / "server" / "failures.jsonl").read_text().splitlines())
    assert (refused["client"], refused["step"]) == (0, "hello")
    notes = [untimed(line) for line in (tmp_path / "server" / "logs" / "notes.log").read_text().splitlines()]
    assert f"client 0 is refused: {refused['reason']}" in notes
    assert "client 1 is here" in notes


@pytest.mark.parametrize(
    ("server", "factors", "text"),
    [
        (
            np.uint8,
            (255, 1.0, 255),
            r"client 1 .* must be bytes of 1 x 8 x 8, as the server's are, got floats of 1 x 8",
        ),
        (
            np.float32,
            (1.0, 255, 1.0),
            r"client 1 .* must be floats of 1 x 8 x 8, as the server's are, got bytes of 1 x",
        ),
        (
            np.float32,
            (1.0, 255.0, 1.0),
            r"client 1 .* reach about 256, and the server's about 1; divide all by the same",
        ),
        (
            np.float32,
            (16.0, 1.0, 0.0625),
            r"client 2 .* reach about 0.0625, far from client 0's; divide all by the same",
        ),
    ],
)
def test_a_client_whose_images_are_of_another_kind_or_scale_is_kept_out(
    server: type, factors: tuple[float, ...], text: str, small: Small, tmp_path: Path
) -> None:
    """The last one's are as far from the first one's as 1 from 256, and both not far from the server's."""
    x, rest = np.random.default_rng(0).random((40, 8, 8)), {"y_train": np.arange(40) % 10}
    x[:, 0, 0] = 1.0
    rest["classes"] = np.array([str(i) for i in range(10)])
    for c, factor in enumerate(factors):
        own = x * factor
        np.savez(tmp_path / f"{c}.npz", x_train=own.astype(np.uint8 if isinstance(factor, int) else np.float32), **rest)
    np.savez(tmp_path / "server.npz", x_train=(x * 255).astype(server) if server is np.uint8 else x, **rest)
    experiment = small(f"task.data='npz:{tmp_path / 'server.npz'}'", "split.num_clients=3")
    grid = pack(tmp_path, experiment, wait_s=REFUSED_S, data=[f"npz:{tmp_path / f'{c}.npz'}" for c in range(3)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        with pytest.raises(QuorumError, match=rf"2 of 3 clients are connected .* {text}"):
            start(tmp_path, grid)


def test_constants_of_each_clients_own_are_said_in_the_report(small: Small, tmp_path: Path) -> None:
    """A site's model file has other constants than the server's, so that equal weights predict otherwise."""
    digits = load("digits")
    x, rest = (
        load_digits().images.astype(np.uint8),
        {"y_train": load_digits().target, "classes": np.array(digits.classes)},
    )
    for c in range(3):
        np.savez(tmp_path / f"{c}.npz", x_train=x * (c + 1), **rest)
    experiment = small("split.num_clients=3", "runtime.executor='sequential'")
    run = start(tmp_path, pack(tmp_path, experiment, data=[f"npz:{tmp_path / f'{c}.npz'}" for c in range(3)]))
    (remark,) = read_json(run / "run.json")["remarks"]
    assert remark.startswith("each client standardises its images with its own mean and deviation")
    assert remark.endswith("or name the same for all in task.data_options, as in { mean = [0.5], std = [0.25] }")
    server, site = load_model(run, "fedavg").unskew.inputs, load_model(tmp_path / "client-2").unskew.inputs
    assert site.mean[0] == pytest.approx(3 * server.mean[0], rel=0.05)
    assert remark not in (read_json(start(tmp_path / "b", pack(tmp_path / "b", experiment)) / "run.json")["remarks"])


def test_constants_that_the_experiment_names_are_all_clients_and_the_server_s(small: Small, tmp_path: Path) -> None:
    x, y = load_digits().images.astype(np.uint8), load_digits().target
    sources = []
    for name, brighter in (("server", 1), ("0", 1), ("1", 2), ("2", 3)):
        np.savez(tmp_path / f"{name}.npz", x_train=x * brighter, y_train=y, classes=np.arange(10).astype(str))
        sources.append(f"npz:{tmp_path / f'{name}.npz'}")
    experiment = small(
        f"task.data='{sources[0]}'", "task.data_options={ mean = [0.5], std = [0.25] }", "split.num_clients=3"
    )
    run = start(tmp_path, pack(tmp_path, experiment, data=sources[1:]))
    assert read_json(run / "run.json")["remarks"] == []
    for model in (load_model(run, "fedavg"), load_model(tmp_path / "client-2")):
        assert (model.unskew.inputs.mean, model.unskew.inputs.std) == ((0.5,), (0.25,))


def test_a_client_whose_images_cannot_be_the_experiments_is_told_by_its_own_check(small: Small, tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((40, 8, 8))
    np.savez(tmp_path / "own.npz", x_train=x, y_train=np.arange(40) % 10)
    pack(tmp_path, small("split.num_clients=3"))
    with pytest.raises(DataError, match=r"the experiment's images \(digits\) are bytes, .*; give bytes: scale all"):
        open_client(tmp_path / "client-0", Site(f"npz:{tmp_path / 'own.npz'}"))


def test_nothing_of_pixels_is_told_but_a_power_of_two(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(0).random((40, 8, 8)).astype(np.float32) * 6.5
    np.savez(tmp_path / "own.npz", x_train=x, y_train=np.arange(40) % 10)
    source = f"npz:{tmp_path / 'own.npz'}"
    pack(tmp_path, small("split.num_clients=3", f"task.data='{source}'"))
    (tmp_path / "policy.toml").write_text("metrics = false\n")
    assert open_client(tmp_path / "client-0", Site(source)).info.images == ("floats", "1 x 8 x 8", "3")  # by 6.5
    monkeypatch.setenv("UNSKEW_POLICY", str(tmp_path / "policy.toml"))
    assert open_client(tmp_path / "client-1", Site(source)).info.images == ("floats", "1 x 8 x 8")


def test_a_client_with_another_experiment_is_named_and_kept_out(small: Small, tmp_path: Path) -> None:
    grid = pack(tmp_path, small("split.num_clients=3"), wait_s=REFUSED_S)
    (tmp_path / "client-2" / "experiment.toml").write_text(to_toml(small("split.num_clients=3", "local.lr=0.2")))
    with pytest.raises(QuorumError, match=r"2 of 3 clients are connected .* the experiment \(SHA-256"):
        start(tmp_path, grid)
    assert read_json(tmp_path / "server" / "outcome.json")["error"] == "QuorumError"


def test_a_client_that_dies_is_in_the_failures_and_the_run_ends(small: Small, tmp_path: Path) -> None:
    grid = pack(tmp_path, small("split.num_clients=3", 'evaluate=["global", "personal"]'))
    honest = grid.handlers[102]

    def dies(message: Message) -> Message:
        if message.metadata.message_type == "query.hello":
            return honest(message)
        return Message(Error(8, "ClientApp stopped responding."), reply_to=message)

    grid.handlers[102] = dies
    run = start(tmp_path, grid)
    found = [(r["round"], r["client"], r["step"]) for r in rows(run, "failures")]
    assert found == [
        (0, 2, "evaluate"), (1, 2, "train"), (1, 2, "evaluate"), (2, 2, "train"), (2, 2, "evaluate"),
    ]  # fmt: skip
    last = [r for r in rows(run, "metrics") if r["name"] == "personal.accuracy" and r["round"] == 2]
    assert [r["client"] for r in last] == [0, 1]


def test_what_cannot_be_deployed_is_refused_before_anybody_is_asked(small: Small, tmp_path: Path) -> None:
    for name, settings, text in (
        ("a", ('evaluate=["personal_on_global"]',), "neither travels"),
        ("b", ("bounds=true",), "centralised trains on all clients' data in one place"),
    ):
        grid = pack(tmp_path / name, small("split.num_clients=3", *settings))
        with pytest.raises(ConfigError, match=text):
            start(tmp_path / name, grid)
        assert not grid.pushed
    grid = pack(tmp_path / "c", small("split.num_clients=2"))
    with pytest.raises(ConfigError, match=r"min_clients must be at most the 2 clients, got 3 \(.*server\.toml\)"):
        start(tmp_path / "c", grid)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"client": 3, "num_clients": 3}, "client must be below num_clients = 3, got 3"),
        ({"client": 0, "num_clients": 4}, "the experiment's split has 3 clients under seed 0, num_clients is 4"),
        ({"num_clients": 3}, "client is required"),
        ({"client": 0, "num_clients": 3, "data": "npz:/x"}, "unknown key data"),
    ],
)
def test_a_clients_settings_are_checked(table: dict[str, Any], text: str, small: Small, tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text(to_toml(small("split.num_clients=3")))
    (tmp_path / "client.toml").write_text(tomli_w.dumps(table))
    with pytest.raises(ConfigError) as caught:
        open_client(tmp_path)
    assert text in str(caught.value)


def test_a_client_knows_its_own_cells_only(small: Small, tmp_path: Path) -> None:
    grid = pack(tmp_path, small("split.num_clients=3"))
    run = start(tmp_path, grid)
    client_runtime = open_client(tmp_path / "client-0")
    from unskew.errors import WireError

    with pytest.raises(WireError, match="cell must be 0 to 0, got 1"):
        client_runtime.open_setup(1)
    assert (run / "summary.json").exists()


def test_a_client_evaluates_one_model_a_round_whoever_asks_and_how_often(small: Small, tmp_path: Path) -> None:
    """The attack that worked: accuracies of ten models that always say one class are the counts of a site's labels."""
    folder = tmp_path / "client-0"
    run = start(tmp_path, pack(tmp_path, small("split.num_clients=3", 'evaluate=["personal"]')))
    client_runtime, final = open_client(folder), load_model(run, "fedavg").state_dict()

    def ask(model: Params, round: int, run: str, start: int = 1, parts: tuple[str, ...] = ("personal",)) -> Any:
        context = RoundContext(run, client_runtime.info.config, 0, ((start, 0),), round)
        request = EvaluationRequest(context, parts, True, 0, False, "n")
        return read(client_runtime.answer(write("evaluate", request, encode(model))), REPLIES)

    layout = client_runtime.open_setup(0).initial
    true = dict(zip(layout, final.values(), strict=True))
    assert ask(true, 2, "hostile", start=5).scores == ask(true, 2, "again").scores != ()
    only = {name: value * 0 + 9.0 * (name.endswith("bias")) * (torch.arange(10) == 3) for name, value in true.items()
            if name.endswith("bias")}  # fmt: skip
    constant = {name: only.get(name, value * 0) for name, value in true.items()}
    for round, run_name, begun in ((0, "hostile", 1), (1, "hostile", 1), (2, "hostile", 1), (2, "hostile", 7)):
        refused = ask(constant, round, run_name, begun)
        assert refused.reason == f"round {round} was evaluated already, with another model"
    assert "was evaluated already" in ask(true, 2, "hostile", parts=("personal", "val")).reason
    assert ask(constant, 3, "hostile").reason == "round 3 lies behind the experiment's last, 2"


def test_a_server_knows_nodes_by_their_keys(small: Small, tmp_path: Path) -> None:
    grid = pack(tmp_path, small("split.num_clients=3"), wait_s=REFUSED_S)
    (tmp_path / "server" / "nodes.json").write_text(json.dumps({"0": "100", "1": "102", "2": "101"}))
    with pytest.raises(QuorumError, match="it says it is client 1, its key is client 2's"):
        start(tmp_path, grid)
    (tmp_path / "server" / "nodes.json").write_text(json.dumps({"0": "one"}))
    with pytest.raises(RunError, match=r"nodes\.json must name a node for each client"):
        start(tmp_path, grid)


@pytest.mark.parametrize(
    ("out", "settings"),
    [(1, {"num_clients": 3}), (2, {"num_clients": 3}), (1, {})],  # the last one as an older version packed it
)
def test_a_client_that_is_taken_out_leaves_the_others_in(
    out: int, settings: dict[str, int], small: Small, tmp_path: Path
) -> None:
    grid = pack(tmp_path, small("split.num_clients=3"))
    server = tmp_path / "server"
    (server / "nodes.json").write_text(json.dumps({str(c): str(100 + c) for c in range(3) if c != out}))
    with pytest.raises(ConfigError, match=r"min_clients must be at most 2, the number of keys in clients/, got 3"):
        start(tmp_path, grid)
    (server / "server.toml").write_text(tomli_w.dumps({"min_clients": 2, "wait_s": 12.0, **settings}))
    assert (start(tmp_path, grid) / "summary.json").exists()
    assert f"a node is rejected: it says it is client {out}, its key is not" in (server / "logs/notes.log").read_text()


def test_a_client_that_was_not_packed_is_refused_before_the_start(small: Small, tmp_path: Path) -> None:
    grid = pack(tmp_path, small("split.num_clients=3"))
    (tmp_path / "server" / "nodes.json").write_text(json.dumps({"0": "100", "2": "102"}))
    (tmp_path / "server" / "server.toml").write_text(tomli_w.dumps({"min_clients": 2, "num_clients": 2}))
    with pytest.raises(ConfigError, match=r"num_clients must be above 2, whose key is in clients/, got 2"):
        start(tmp_path, grid)


def test_the_book_of_another_experiment_is_refused_and_a_broken_one_too(small: Small, tmp_path: Path) -> None:
    path = tmp_path / "deployment.json"
    deployment = DeploymentState.open(path, "a")
    assert deployment.begin(0, 1) == ((1, 1),)
    later = DeploymentState.open(path, "a")
    assert (later.run, later.attempt) == (deployment.run, 2)
    assert later.begin(0, 3) == ((1, 1), (2, 3))
    assert later.begin(1, 1) == ((2, 1),)
    assert later.begin(1, 4) == ((2, 1), (3, 4))  # a round that is run again is another server's to the clients
    assert [later.count(0), later.count(0), later.count(1)] == [1, 2, 1]
    assert DeploymentState.open(path, "a").count(0) == 3  # whatever became of those rounds
    with pytest.raises(RunError, match="another experiment"):
        DeploymentState.open(path, "b")
    assert DeploymentState.open(path, "portable", ["a"]).config == "portable"  # as an older version wrote it
    path.write_text("{}")
    with pytest.raises(RunError, match="is damaged; restore it from a copy"):
        DeploymentState.open(path, "a")


@pytest.mark.usefixtures("allowed")
def test_server_and_clients_may_have_the_same_data_in_different_places(small: Small, tmp_path: Path) -> None:
    x, y = load_digits().data.astype(np.float32), load_digits().target
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        np.savez(tmp_path / place / "own.npz", x_train=x, y_train=y)
    grid = pack(tmp_path, small(f"task.data='npz:{tmp_path}/a/own.npz'", "rounds=1"), 2)
    file = tmp_path / "client-1" / "experiment.toml"
    file.write_text(file.read_text().replace("/a/own.npz", "/b/own.npz"))
    assert (start(tmp_path, grid) / "summary.json").exists()


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
    start(tmp_path, grid)
    (tmp_path / "server" / "run" / "summary.json").unlink()
    np.savez(tmp_path / "server.npz", x_train=x[:200], y_train=y[:200], x_test=x[200:300], y_test=y[201:301])
    with pytest.raises(RunError, match="the server's data are not those that its run began with"):
        serve(FlowerTransport(grid), tmp_path / "server")


def test_a_method_that_cannot_run_is_refused_before_the_first_round_of_any(small: Small, tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x_train=load_digits().images.astype(np.uint8), y_train=load_digits().target)
    own = f"npz:{tmp_path / 'own.npz'}"
    experiment = small("task.model='logistic'", "rounds=1", "split.num_clients=2")
    bare = replace(experiment, methods=(*experiment.methods, config.method("fedper", {})))
    grid = pack(tmp_path, bare, 2, data=[own] * 2)
    with pytest.raises(ConfigError, match=r"^fedper: personal = \['head'\] leaves no parameter"):
        start(tmp_path, grid)
    assert not list(rows(tmp_path / "server" / "run", "metrics"))


@pytest.mark.parametrize("name", [name for name, of in algorithms.TABLE.items() if of.kind != "bound"])
def test_what_can_run_passes_the_check_that_knows_no_clients_data(name: str) -> None:
    task, split = {"data": "digits", "model": "cnn_small"}, {"name": "iid", "num_clients": 4}
    experiment = config.parse({"rounds": 1, "task": task, "split": split, "method": {"name": name}})
    setup, (method,) = run_setup.prepare(experiment), experiment.methods
    run_setup.check_method(experiment, method, setup, {0: run_setup.divide(experiment, setup.dataset, 0)})
    run_setup.check_method_alone(experiment, method, setup, 4)


def test_a_run_goes_on_only_with_its_own_experiment(small: Small, tmp_path: Path) -> None:
    experiment = small("split.num_clients=3")
    grid = pack(tmp_path, experiment)
    start(tmp_path, grid)
    (tmp_path / "server" / "run" / "summary.json").unlink()
    (tmp_path / "server" / "experiment.toml").write_text(to_toml(small("split.num_clients=3", "rounds=5")))
    with pytest.raises(RunError, match="another experiment"):
        serve(FlowerTransport(grid), tmp_path / "server")
    assert fingerprint(experiment) == read_json(tmp_path / "server" / "run" / "run.json")["config_sha256"]


def test_a_server_finds_code_where_the_process_did_that_started_it(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "code_of_the_server.py").write_text("import unskew as us\n\nclass Mine(us.FedAvg):\n    pass\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    told = code_path()
    sys.path.remove(str(tmp_path))
    grid = pack(tmp_path, small())
    experiment = tmp_path / "server" / "experiment.toml"
    experiment.write_text(experiment.read_text().replace('name = "fedavg"', 'name = "code_of_the_server:Mine"'))
    with pytest.raises(ConfigError, match="No module named 'code_of_the_server'"):
        serve(FlowerTransport(grid), tmp_path / "server")
    monkeypatch.setenv(CODE_PATH, told)
    (tmp_path / "server" / "server.toml").write_text("min_clients = 9\n")
    with pytest.raises(ConfigError, match="min_clients must be at most the 2 clients, got 9"):
        serve(FlowerTransport(grid), tmp_path / "server")
    assert sys.path[-1] == str(tmp_path)  # what is installed comes first


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
    assert [p.equal for p in parity.compare(run, simulated)] == [True, True]
    for method, client in itertools.product(("scaffold", "ditto"), range(3)):
        own = load_model(tmp_path / f"client-{client}", method, allow_code=True).state_dict()
        there = load_model(simulated, method, client, allow_code=True).state_dict()
        assert all(torch.equal(t, there[name]) for name, t in own.items())
        assert torch.equal(own["0.1.weight"], frozen_body().state_dict()["0.1.weight"])


def without_its_weights() -> nn.Module:
    raise FileNotFoundError(2, "No such file or directory", "body.pt")


@pytest.mark.usefixtures("with_code")
def test_a_client_that_lacks_the_weights_is_told_that_they_come_apart(small: Small, tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x_train=np.zeros((100, 64), np.float32), y_train=np.arange(100) % 10)
    experiment = of_a_frozen_body(small)
    pack(tmp_path, experiment)
    file = tmp_path / "client-0" / "experiment.toml"
    file.write_text(file.read_text().replace(":frozen_body", ":without_its_weights"))
    with pytest.raises(ConfigError, match=r"body\.pt.*What such code reads, as weights, comes to you apart"):
        open_client(tmp_path / "client-0", Site(f"npz:{tmp_path / 'own.npz'}"))


@pytest.mark.usefixtures("with_code")
def test_a_client_with_other_frozen_parameters_is_named_and_kept_out(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one would have who loads another version of the pretrained weights."""
    hashes = itertools.count()
    monkeypatch.setattr("unskew.deploy.client.tensors_hash", lambda params: f"{next(hashes):064}")
    grid = pack(tmp_path, of_a_frozen_body(small), wait_s=REFUSED_S)
    with pytest.raises(QuorumError, match=r"frozen parameters, which never travel \(SHA-256\) must be \w+.*, got 0000"):
        start(tmp_path, grid)


@pytest.mark.usefixtures("with_code")
def test_a_server_whose_own_frozen_parameters_have_changed_blames_no_client(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = pack(tmp_path, of_a_frozen_body(small))
    with pytest.raises(Killed):
        serve(FlowerTransport(grid), tmp_path / "server", Kills())
    monkeypatch.setattr("unskew.wire.tensors_hash", lambda params: "another")
    with pytest.raises(RunError, match=r"was begun with other frozen parameters .* restore the weights"):
        start(tmp_path, Loopback({}))
