"""A run from its start to its end: what is written, when it ends early, what it refuses and how it fails."""

import math
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unskew.errors import ConfigError, DataError, DivergedError, QuorumError, RunError
from unskew.experiment.config import Experiment
from unskew.info import AbandonedRound
from unskew.record.logs import rows
from unskew.run import checkpoint, loop
from unskew.run import setup as run_setup
from unskew.run.cell import Cell, Observer
from unskew.run.recording import ABANDONED
from unskew.run.setup import Setup

MIXED = 'methods = ["fedavg", { name = "fedavg", label = "fedper", personal = ["head"] }, "centralised"]'


def metrics(folder: Path, **where: Any) -> list[dict[str, Any]]:
    """The rows whose fields have these values."""
    return [r for r in rows(folder, "metrics") if all(r.get(k) == v for k, v in where.items())]


def names(folder: Path, **where: Any) -> set[str]:
    return {r["name"] for r in metrics(folder, **where)}


def refused(kind: type[Exception], experiment: Experiment, folder: Path) -> str:
    """The one line with which the run is refused, and nothing is left."""
    before = sorted(folder.parent.iterdir())
    with pytest.raises(kind) as caught:
        loop.start(experiment, folder)
    assert sorted(folder.parent.iterdir()) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(scope="module")
def mixed(tiny: Callable[..., Experiment], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods, two seeds, four rounds evaluated every third: 0, 3 and 4; pooled data would be late."""
    pace = "world.pace={name='devices', deadline_s=0.5}"
    experiment = tiny("rounds=4", "eval_every=3", "seeds=[0, 5]", "val_fraction=0.1", pace, methods=MIXED)
    return loop.start(experiment, tmp_path_factory.mktemp("mixed") / "run").folder


# ---------------------------------------------------------------- what is written
def test_evaluations_fall_on_their_rounds_and_the_last(mixed: Path) -> None:
    for method in ("fedavg", "centralised"):
        found = [r["round"] for r in metrics(mixed, method=method, seed=5, name="global.accuracy")]
        assert found == [0, 3, 4]
    for name in ("train.loss", "bytes.up", "seconds"):
        assert [r["round"] for r in metrics(mixed, method="fedavg", seed=0, name=name)] == [1, 2, 3, 4]
    assert "global.accuracy" not in names(mixed, method="fedper")


def test_bytes_of_the_metrics_are_those_of_the_ledger(mixed: Path) -> None:
    ledger = list(rows(mixed, "transfers"))
    for method in ("fedavg", "fedper"):
        for t in range(1, 5):
            mine = [r for r in ledger if (r["method"], r["seed"], r["round"]) == (method, 0, t)]
            down = sum(r["bytes"] for r in mine if r["src"] == 0)
            up = sum(r["bytes"] for r in mine if r["dst"] == 0)
            assert [r["value"] for r in metrics(mixed, method=method, seed=0, round=t, name="bytes.down")] == [down]
            assert [r["value"] for r in metrics(mixed, method=method, seed=0, round=t, name="bytes.up")] == [up]
            assert up > 0


def test_a_pooled_bound_is_charged_nothing_and_tested_on_the_clients(mixed: Path) -> None:
    assert all(r["value"] == 0.0 for r in metrics(mixed, method="centralised") if r["name"].startswith("bytes."))
    assert not [r for r in rows(mixed, "transfers") if r["method"] == "centralised"]
    fedavg, pooled = (
        [(r["client"], r["weight"]) for r in metrics(mixed, method=m, seed=0, name="personal.accuracy")]
        for m in ("fedavg", "centralised")
    )
    assert fedavg == pooled
    weights = [
        {r["weight"] for r in metrics(mixed, method=m, seed=0, name="val.accuracy")} for m in ("fedavg", "centralised")
    ]
    assert weights[0] == weights[1]


def test_all_methods_begin_with_the_same_model_on_the_same_split(mixed: Path) -> None:
    """fedper's first models are the common initial model with the common initial head."""
    for seed in (0, 5):
        for name in ("personal.accuracy.mean", "personal.loss.weighted", "val.accuracy"):
            assert len({r["value"] for r in metrics(mixed, seed=seed, round=0, name=name)}) == 1
    (one,), (other,) = (metrics(mixed, method="fedavg", seed=s, round=0, name="personal.loss.mean") for s in (0, 5))
    assert one["value"] != other["value"]


def test_equal_runs_have_equal_fingerprints_and_other_seeds_others(
    tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    prints = [
        loop.start(tiny("rounds=1", *more), tmp_path / str(i)).summary["fingerprint"]
        for i, more in enumerate([(), ("name=other",), ("seeds=[1]",), ("local.lr=0.2",), ("runtime.codec=true",)])
    ]
    assert prints[0] == prints[1] == prints[4]
    assert len(set(prints)) == 3


# ---------------------------------------------------------------- who watches
class Callback(Observer):
    def __init__(self) -> None:
        self.rounds = list[tuple[str, int, int]]()
        self.begun = list[tuple[int, str, int]]()
        self.first: dict[str, float] = {}

    def start(self, cell: Cell) -> None:
        self.begun.append((cell.setup.parameters, cell.setup.executor, len(cell.run.feds)))

    def ended_round(self, cell: Cell) -> None:
        self.first = self.first or {**cell.metrics, "bytes": cell.bytes, "speed": cell.clients_per_second}
        self.rounds.append((cell.method.label, cell.seed, cell.round))


def test_a_watcher_sees_every_round(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    callback = Callback()
    loop.start(tiny("rounds=2", "seeds=[3, 4]", methods=MIXED), tmp_path / "run", callback)
    assert callback.begun == 6 * [(610, "sequential", 2)]
    methods = ("fedavg", "fedper", "centralised")
    assert callback.rounds == [(method, seed, t) for seed in (3, 4) for method in methods for t in (1, 2)]
    (accuracy,) = metrics(tmp_path / "run", method="fedavg", seed=3, round=1, name="global.accuracy")
    sent = [r["bytes"] for r in rows(tmp_path / "run", "transfers")]
    assert callback.first["global.accuracy"] == accuracy["value"]
    assert callback.first["bytes"] == pytest.approx(sum(sent[: len(sent) // 8]), rel=0.2)
    assert callback.first["speed"] > 0


def test_a_run_works_outside_the_main_thread(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    thread = threading.Thread(target=loop.start, args=(tiny("rounds=1"), tmp_path / "run"))
    thread.start()
    thread.join()
    assert (tmp_path / "run" / "summary.json").exists()


# ---------------------------------------------------------------- early stopping
def test_stopping_by_accuracy_looks_at_validation_data_only(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    """Up to where it stops, the run is the one that does not stop: nothing else may look at the target."""
    settings = ("rounds=8", "val_fraction=0.2", "split.alpha=100", "local.batch_size=16")
    whole = loop.start(tiny(*settings), tmp_path / "whole").folder
    curve = [r["value"] for r in metrics(whole, name="val.accuracy")]
    target = (curve[2] + curve[3]) / 2
    assert max(curve[:3]) < target <= curve[3]
    outcome = loop.start(tiny(*settings, f"stop.metric={target}"), tmp_path / "early")
    early = [r for r in metrics(outcome.folder) if r["name"] != "seconds"]
    until = [r for r in metrics(whole) if r["name"] != "seconds" and r["round"] <= 3]
    assert [r for r in early if "client" not in r] == until
    assert {(r["round"], r["client"]) for r in early if "client" in r} == {(3, c) for c in range(4)}
    reason = outcome.summary["stopped"]["fedavg/0"]
    assert reason == f"validation accuracy {curve[3]:.4f} >= {target:g} after round 3"


@pytest.mark.parametrize("setting", ["stop.metric=0.9", "stop.patience=3", "keep_models.best=true", "seeds.until=0.5"])
@pytest.mark.parametrize("wrapper", ["central_dp", "local_dp", "dp_sgd"])
def test_no_choice_by_clients_rows_is_made_beside_noise(
    setting: str, wrapper: str, tiny: Callable[..., Experiment]
) -> None:
    """What is chosen would follow from what has no noise: refused before any data are read."""
    methods = f'[[methods]]\nname = "fedprox"\nwith = ["{wrapper}"]\n[[methods]]\nname = "fedavg"\n'
    says = rf"^{setting.partition('=')[0]} chooses by clients' rows without noise, .* fedprox"
    with pytest.raises(ConfigError, match=says):
        tiny("task.data=npz:/nowhere.npz", setting, methods=methods)


def test_the_classes_of_a_site_s_rows_are_not_told_beside_noise(
    tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    """Its first message has their names: under noise they are what the experiment says, not what its rows hold."""
    (tmp_path / "own.csv").write_text(
        "a,status\n" + "".join(f"{i % 9},{'yes' if i % 7 else 'no'}\n" for i in range(60))
    )

    def prepared(wrapper: str, **options: Any) -> Setup:
        noised = tiny(f"methods.0.with=['{wrapper}']")
        task = replace(noised.task, data=f"csv:{tmp_path / 'own.csv'}", data_options={"target": "status", **options})
        return run_setup.prepare(replace(noised, task=task), one_client=True)

    for wrapper in ("local_dp", "dp_sgd"):
        with pytest.raises(ConfigError, match=r"does not cover which classes .*; name all in task\.data_opt"):
            prepared(wrapper)
        assert prepared(wrapper, classes=("no", "yes", "unknown")).dataset.num_classes == 3
    assert prepared("central_dp").dataset.num_classes == 2  # whose server is trusted


def test_stopping_by_megabytes_and_by_seconds(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    """One round of 4 clients sends 4 models down and 4 up, about 22 kB: 30 kB are reached after round 2.

    Any time is more than a nanosecond, so `stop.seconds` ends after round 1.
    """
    by_bytes = loop.start(tiny("rounds=5", "stop.megabytes=0.03"), tmp_path / "bytes")
    assert max(r["round"] for r in metrics(by_bytes.folder)) == 2
    assert by_bytes.summary["stopped"]["fedavg/0"].endswith(" MB sent >= 0.03 after round 2")
    by_time = loop.start(tiny("rounds=5", "stop.seconds=1e-9"), tmp_path / "seconds")
    assert max(r["round"] for r in metrics(by_time.folder)) == 1


def test_a_run_that_ends_early_has_all_that_its_last_round_would_have(
    tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    """Ended in round 2 by its traffic, it has the numbers and reports of two rounds, also of unseen clients."""
    of = ("unseen.clients=0.25", "unseen.every=4", "split.num_clients=5")
    short = loop.start(tiny("rounds=2", *of), tmp_path / "short").folder
    ended = loop.start(tiny("rounds=9", "stop.megabytes=0.03", *of), tmp_path / "ended")
    assert ended.summary["stopped"]["fedavg/0"].endswith("after round 2")

    def last(folder: Path) -> dict[tuple[str, int | None], float]:
        return {(r["name"], r.get("client")): r["value"] for r in metrics(folder, round=2) if r["name"] != "seconds"}

    def reports(folder: Path) -> list[Any]:
        return [row["info"] for row in rows(folder, "info")]

    assert last(ended.folder) == last(short)
    assert {("unseen.accuracy.mean", None), ("gap.accuracy", None)} <= last(short).keys()
    assert len(metrics(ended.folder, round=2)) == len(metrics(short, round=2))
    assert reports(ended.folder) == reports(short) != []


# ---------------------------------------------------------------- refused before it begins
@pytest.mark.parametrize(
    ("kind", "settings", "says"),
    [
        (DataError, ["task.data=npz:/nowhere/x.npz"], "there is no file /nowhere/x.npz"),
        (DataError, ["stop.metric=0.5", "split={name='iid', num_clients=400}"], "stop.metric needs validation"),
        (ConfigError, ["runtime.device=mps"], "runtime.device must be auto, cpu or cuda[:n], got 'mps'"),
        (ConfigError, ["methods.0.personal=['hed']"], "fedavg: no tensor of the model is called 'hed'"),
        (ConfigError, ["local.trainable=['hed']"], "fedavg: no tensor of the model is called 'hed'"),
        (ConfigError, ["local.trainable=['norm']"], "fedavg: local.trainable = ['norm'] selects no parameter"),
    ],
)
def test_an_impossible_experiment_is_refused_before_anything_is_written(
    kind: type[Exception], settings: list[str], says: str, tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    assert says in refused(kind, tiny(*settings), tmp_path / "run")


def test_a_folder_that_exists_is_refused_and_left_alone(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("mine")
    message = refused(RunError, tiny(), tmp_path / "run")
    assert message.startswith(f"{tmp_path}/run exists already; choose another --out")
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["mine.txt"]
    (tmp_path / "file").write_text("a file")
    assert "exists already" in refused(RunError, tiny(), tmp_path / "file")


# ---------------------------------------------------------------- failing on the way
def test_a_loss_that_becomes_nan_names_method_seed_round_and_client(
    tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    experiment = tiny("local.lr=1e30", "seeds=[6]", methods=MIXED)
    with pytest.raises(DivergedError) as caught:
        loop.start(experiment, tmp_path / "run")
    message = str(caught.value)
    assert message.startswith("fedavg, seed 6: round 1, client ")
    assert "\n" not in message
    assert {r["round"] for r in metrics(tmp_path / "run")} == {0}
    assert not (tmp_path / "run" / "summary.json").exists()
    assert list((tmp_path / "run" / "models").iterdir()) == []
    with pytest.raises(DivergedError, match=r"^fedavg, seed 6: round 1, client "):
        loop.resume(tmp_path / "run")


def test_a_server_that_diverges_is_caught_before_a_log_holds_nan(
    tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    """Clients are well; the server's step of 1e38 makes the global model overflow, and JSON has no infinity."""
    methods = '[[methods]]\nname = "fedavgm"\nserver_lr = 1e38\n'
    with pytest.raises(DivergedError, match=r"^fedavgm, seed 0: round 1: global\.loss became (nan|inf); lower lr or "):
        loop.start(tiny(methods=methods), tmp_path / "run")
    assert all(math.isfinite(row["value"]) for row in rows(tmp_path / "run", "metrics"))


@pytest.mark.parametrize(
    "settings",
    [
        ("methods.0.with=['secure_sum']", "world.outage.unreachable=0.1"),
        ("clients_per_round=1", "world.outage.late=0.4"),
    ],
    ids=["secure sums", "one client"],
)
def test_a_round_without_a_result_is_said_and_the_run_goes_on(
    settings: tuple[str, ...], tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    """What it sent is in the ledger, and the model is evaluated as it was."""
    said: list[str] = []

    class Notes(Observer):
        def note(self, text: str) -> None:
            said.append(text)

    folder = loop.start(tiny(*settings, "rounds=6"), tmp_path / "run", Notes()).folder
    assert (folder / "summary.json").exists()
    assert ("About 43 % of rounds keep fewer than 3 of 4" in said[0]) == ("secure_sum" in settings[0])
    of_rounds = [r for r in rows(folder, "info") if r["type"] == AbandonedRound.__name__]
    warned = {r["round"]: r["info"]["warnings"][0] for r in of_rounds}
    assert warned
    assert all(r["info"]["reason"].startswith(f"round {r['round']}, step '") for r in of_rounds)
    assert {r["round"] for r in rows(folder, "failures")} >= warned.keys()
    assert set(warned.values()) == {ABANDONED}
    (text,) = (text for text in said if ABANDONED in text)
    assert re.search(rf"{ABANDONED}: round {min(warned)}, step '.*': \d of \d clients replied", text)
    assert warned.keys() <= {r["round"] for r in rows(folder, "transfers")}
    loss = {r["round"]: r["value"] for r in metrics(folder) if r["name"] == "global.loss"}
    assert [t for t in range(1, 7) if loss[t] == loss[t - 1]] == sorted(warned)


def test_a_run_that_goes_on_knows_how_many_rounds_had_no_result(
    tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    """Stopped after one of two rounds without a result, it ends as it would have without the stop."""

    class Killed(Observer):
        def ended_round(self, cell: Cell) -> None:
            raise RuntimeError("killed")

    experiment = tiny("world.outage.unreachable=1.0", "rounds=2", "runtime.checkpoint_every=1")
    with pytest.raises(RuntimeError, match="killed"):
        loop.start(experiment, tmp_path / "run", Killed())
    with pytest.raises(QuorumError, match="2 rounds in a row have no result"):
        loop.resume(tmp_path / "run")


def test_checkpoints_that_take_long_are_written_seldom(
    tiny: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds of 11 s and checkpoints of 2: the next is due 2 * 19 = 38 s after one, at the end of the fourth round."""
    genuine, passed, saved = time.monotonic, [0.0], list[int]()
    monkeypatch.setattr(time, "monotonic", lambda: genuine() + passed[0])
    save = checkpoint.save

    def slowly(folder: Path, files: Any, position: checkpoint.Position, record: Any) -> checkpoint.Position:
        saved.append(position.round)
        passed[0] += 2.0
        return save(folder, files, position, record)

    monkeypatch.setattr(checkpoint, "save", slowly)

    class Slow(Observer):
        def ended_round(self, *_: Any) -> None:
            passed[0] += 11.0

    loop.start(tiny("rounds=12", "runtime.checkpoint_every=0"), tmp_path / "run", Slow())
    assert saved == [1, 5, 9, 0]  # and the end, from which the next method's round 0 would go on
