"""What is refused before anything is started, what is told of a run, and where its files end up."""

import json
import os
import shutil
import sys
import tomllib
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from records import rewrite

pytest.importorskip("flwr", reason="a deployment needs the extra [flower]")

from unskew.deploy import certificates, folders, launch, operate, parity, reach
from unskew.deploy.processes import ChildProcess, ProcessGroup
from unskew.deploy.reach import Unreachable
from unskew.deploy.settings import CODE_PATH, Address
from unskew.errors import ConfigError, DeployError, RunError
from unskew.experiment import config
from unskew.experiment.config import Experiment
from unskew.record.logs import METRICS
from unskew.record.logs import rows as rows_of
from unskew.run import loop
from unskew.runtime.resident import timed

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

    monkeypatch.setattr(launch.subprocess, "Popen", started)


# ---------------------------------------------------------------- refusals
def test_as_many_clients_as_the_split_has(tmp_path: Path) -> None:
    assert operate.clients_of(tiny()) == 3
    with pytest.raises(ConfigError, match=r"--local 2 must be the number of the split's clients, 3.*num_clients=2"):
        operate.local(tiny(), 2, tmp_path / "run", print)
    assert not (tmp_path / "run").exists()


def test_a_method_that_pools_data_is_never_deployed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="centralised trains on everybody's data in one place"):
        operate.local(tiny('methods.0.name="centralised"'), 3, tmp_path / "run", print)


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match="exists already and holds no deployment"):
        operate.local(tiny(), 3, tmp_path, print)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_deployment_of_another_experiment_is_not_gone_on_with(tmp_path: Path) -> None:
    address = Address("127.0.0.1", 8443)
    folders.pack(tmp_path / "deploy", tiny(), 3, address, address, portable=False)
    with pytest.raises(RunError, match="holds a run of another experiment"):
        operate.local(tiny("rounds=3"), 3, tmp_path, print)


@pytest.fixture
def federation(tmp_path: Path) -> Path:
    port = reach.free_ports(1)[0]
    address = Address("127.0.0.1", port)
    folders.pack(tmp_path / "federation", tiny(), 3, address, address)
    return tmp_path / "federation"


def test_a_packed_server_is_ready(federation: Path) -> None:
    assert operate.check_serving(federation / "server") == folders.address(federation / "server")


def test_a_server_is_not_started_with_what_clients_would_refuse(federation: Path) -> None:
    server = federation / "server"
    certificates.issue_server(certificates.authority("other"), [], federation)
    shutil.copy(federation / "server.crt", server)
    shutil.copy(federation / "server.key", server)
    with pytest.raises(DeployError, match="was not signed by"):
        operate.serve(server, print)
    shutil.rmtree(server / "clients")
    with pytest.raises(DeployError, match="has no client's key"):
        operate.serve(server, print)


def test_a_server_that_waits_for_a_client_that_was_taken_out_is_not_started(federation: Path) -> None:
    (federation / "server" / "clients" / "0.pub").unlink()
    with pytest.raises(ConfigError, match="min_clients must be at most 2, the number of keys in clients/, got 3"):
        operate.check_serving(federation / "server")


def test_a_client_is_not_started_towards_another_federation(federation: Path) -> None:
    client = federation / "client-0"
    (client / "node.key").unlink()
    with pytest.raises(DeployError, match=r"node\.key is missing; it was packed and signed"):
        operate.take_part(client, print)


def test_the_programs_of_a_server_are_told_where_this_process_finds_code(federation: Path) -> None:
    group = ProcessGroup()
    with pytest.raises(AssertionError, match="a program was started"):
        launch.start_server(group, federation / "server", folders.address(federation / "server"))
    assert group.variables[CODE_PATH].split(os.pathsep) == [os.path.abspath(folder) for folder in sys.path]


def test_a_server_whose_run_is_done_starts_nothing(federation: Path) -> None:
    server = federation / "server"
    (server / "run").mkdir()
    (server / "run" / "summary.json").write_text("{}")
    assert operate.serve(server, print) == server / "run"


# ---------------------------------------------------------------- what is told
def test_progress_tells_each_row_once(tmp_path: Path) -> None:
    row = {"method": "fedavg", "seed": 0, "round": 1, "name": "global.accuracy", "value": 0.5}
    clock = {**row, "name": "seconds", "value": 2.0}
    failure = {"method": "fedavg", "seed": 0, "round": 1, "client": 2, "step": "train", "reason": "late"}
    progress = operate.ProgressDisplay(tmp_path, rounds=3)
    assert list(progress.new_lines()) == []
    rewrite(tmp_path, metrics=[row], failures=[failure])
    assert list(progress.new_lines()) == [
        "fedavg, seed 0: accuracy 0.5000 after round 1",
        "fedavg, seed 0, round 1: client 2, step 'train': late",
    ]
    rewrite(tmp_path, metrics=[row, clock])
    assert list(progress.new_lines()) == ["fedavg, seed 0: round 1 of 3, 2.0 s"]
    assert list(progress.new_lines()) == []


def test_a_client_that_is_lost_for_one_reason_is_told_of_once_and_then_counted(tmp_path: Path) -> None:
    """Of 12 rounds in which client 2 is not there, and client 1 is late in two."""
    away = "client lost: it is not connected"
    rows = [
        {"method": "m", "seed": 0, "round": t, "client": c, "step": step, "reason": reason}
        for t in range(1, 13)
        for c, reason, rounds in ((1, "late", (1, 12)), (2, away, range(13)))
        for step in ("train", "evaluate")
        if t in rounds
    ]
    progress = operate.ProgressDisplay(tmp_path, rounds=20)
    lines = []
    for i in range(len(rows)):
        rewrite(tmp_path, failures=rows[: i + 1])
        lines += progress.new_lines()
    assert lines == [
        "m, seed 0, round 1: client 1, step 'train': late",
        f"m, seed 0, round 1: client 2, step 'train': {away}",
        f"m, seed 0, round 10: client 2, step 'train': {away} (10 rounds by now)",
        "m, seed 0, round 12: client 1, step 'train': late",
    ]


def test_a_server_that_is_started_again_tells_what_is_new_and_keeps_its_notes(tmp_path: Path) -> None:
    notes = tmp_path / folders.NOTES
    notes.parent.mkdir(parents=True)
    notes.write_text("client 0 is here\n")
    (tmp_path / "run").mkdir()
    row = {"method": "m", "seed": 0, "name": "seconds", "value": 1.0, "weight": 1.0}
    rewrite(tmp_path / "run", metrics=[{**row, "round": 1}])
    progress = operate.ProgressDisplay(tmp_path / "run", 3, notes=notes, read=operate.told(tmp_path))
    assert list(progress.new_lines()) == []
    with notes.open("a") as file:
        file.write("client 1 is here\n")
    rewrite(tmp_path / "run", metrics=[{**row, "round": 1}, {**row, "round": 2}])
    assert list(progress.new_lines()) == ["client 1 is here", "m, seed 0: round 2 of 3, 1.0 s"]


def test_progress_follows_a_record_that_went_back_to_a_checkpoint(tmp_path: Path) -> None:
    row = {"method": "fedavg", "seed": 0, "round": 1, "name": "seconds", "value": 2.0}
    rewrite(tmp_path, metrics=[row, row])
    progress = operate.ProgressDisplay(tmp_path, rounds=3)
    assert len(list(progress.new_lines())) == 2
    rewrite(tmp_path, metrics=[row])
    assert list(progress.new_lines()) == []
    rewrite(tmp_path, metrics=[row, {**row, "round": 2}])
    assert list(progress.new_lines()) == ["fedavg, seed 0: round 2 of 3, 2.0 s"]


def test_what_a_server_notes_of_its_clients_is_told_before_there_is_a_run(tmp_path: Path) -> None:
    notes = tmp_path / "notes.log"
    progress = operate.ProgressDisplay(tmp_path / "run", rounds=3, notes=notes)
    assert list(progress.new_lines()) == []
    notes.write_text(f"{timed('client 0 is here')}\nclient 2 is ref")
    assert list(progress.new_lines()) == ["client 0 is here"]
    with notes.open("a") as f:
        f.write("used: its classes\n")
    assert list(progress.new_lines()) == ["client 2 is refused: its classes"]
    assert list(progress.new_lines()) == []


def test_a_client_tells_that_its_server_is_gone_and_that_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(
        [Unreachable("nobody answers at x:1: refused"), Unreachable("nobody answers at x:1: timed out"), None]
    )

    def taking_part(folder: Path) -> float:
        error = next(answers)
        if error is not None:
            raise error
        return 0.0

    monkeypatch.setattr(operate, "check_taking_part", taking_part)
    monkeypatch.setattr(operate, "ASK_SERVER_EVERY_S", 0.0)
    said: list[str] = []
    watch = operate.ServerWatch(tmp_path, said.append)
    for _ in range(3):
        watch.look()
    assert said == [
        "nobody answers at x:1: refused: the run has ended, or the server was stopped; waiting for it, Ctrl-C ends "
        "this client (if the run is over nobody will: ask the coordinator for the global model, in run/models of the "
        "server's folder)",
        "the server is back",
    ]


def test_a_client_that_comes_when_its_run_is_over_is_told_where_a_model_is(
    federation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, said = federation / "client-0", list[str]()

    def say(text: str) -> None:
        said.append(text)
        if "nobody answers" in text:
            raise KeyboardInterrupt

    for expected in ("nobody will: ask the coordinator for the global model", f"are in {client / 'models'}"):
        with pytest.raises(KeyboardInterrupt):
            operate.take_part(client, say)
        assert expected in said[-1]
        assert "waiting for it, Ctrl-C ends this client" in said[-1]
        (client / "models" / "fedavg-seed0.json").write_text("{}")


def test_a_server_whose_run_is_over_says_that_it_serves_nobody(federation: Path) -> None:
    server, said = federation / "server", list[str]()
    (server / "run").mkdir()
    (server / "run" / "summary.json").write_text("{}")
    assert operate.serve(server, said.append) == server / "run"
    (line,) = said
    assert line.startswith("the run is over, and no client is served any more")
    assert str(server / "run" / "models") in line


@dataclass
class Ending:
    """Hears what is said; at the first line the run comes to its end, with one more line in its log."""

    server: Path
    end: str
    heard: list[str] = field(default_factory=list)

    def __call__(self, text: str) -> None:
        self.heard.append(text)
        if len(self.heard) == 1:
            log(self.server, 2)
            (self.server / self.end).write_text('{"status": "failed", "error": "QuorumError", "text": "1 of 3"}')


def log(server: Path, round: int) -> None:
    row = {"method": "fedavg", "seed": 0, "round": round, "name": "seconds", "value": 2.0}
    rewrite(server / "run", metrics=[*METRICS.fresh(server / "run", 0)[0], row])


FLOWER = "known to Flower only"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("end", "reason"), [("run/summary.json", None), ("outcome.json", "QuorumError: 1 of 3"), (FLOWER, "out of memory")]
)
def test_the_last_lines_are_told_however_a_run_ends(
    federation: Path, end: str, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    link: Any = SimpleNamespace(poll=lambda: None)
    child = ChildProcess("SuperLink", link, federation / "superlink.log", 0)
    server = launch.ServerProcesses(federation / "server", federation / "server", (child,))
    (server.folder / "run").mkdir()
    log(server.folder, 1)
    say = Ending(server.folder, end)
    monkeypatch.setattr(operate, "ASK_EVERY_S", 0.0)
    monkeypatch.setattr(launch, "printed", lambda server, run: "")

    def status(server: launch.ServerProcesses, run: int) -> tuple[str, str]:
        return ("finished:failed", "out of memory") if (server.folder / FLOWER).exists() else ("running", "")

    monkeypatch.setattr(launch, "run_status", status)
    with nullcontext() if reason is None else pytest.raises(RunError, match=f"the deployed run failed: {reason}"):
        operate.wait_for_end(server, 1, say)
    assert say.heard == ["fedavg, seed 0: round 1 of 2, 2.0 s", "fedavg, seed 0: round 2 of 2, 2.0 s"]


def test_a_failed_run_is_explained_by_the_last_error_that_was_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").mkdir()
    server = launch.ServerProcesses(tmp_path, tmp_path, ())
    said = ["ValueError: an old one\nTraceback ...\nunskew.errors.QuorumError: round 2, step 'train': 1 of 3\n"]
    monkeypatch.setattr(launch, "printed", lambda server, run: said[0])
    with pytest.raises(RunError, match=r"QuorumError: round 2, step 'train': 1 of 3 \(log: .*serverapp\.log"):
        operate.conclude(server, 1, "finished:failed")
    said[0] = "killed\n"
    with pytest.raises(RunError, match="the deployed run failed: finished:failed"):
        operate.conclude(server, 1, "finished:failed")
    (tmp_path / "outcome.json").write_text(json.dumps({"status": "failed", "error": "DataError", "text": "no data"}))
    with pytest.raises(RunError, match="DataError: no data"):
        operate.conclude(server, 1, "failed")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "summary.json").write_text("{}")
    operate.conclude(server, 1, "finished:completed")


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
    assert operate.collect(run, tmp_path) == tmp_path
    assert order == ["models", "run.json", "run.sqlite", "summary.json"]
    assert (tmp_path / "models" / "m").read_text() == "m"


# ---------------------------------------------------------------- parity
@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return parity.simulate(tiny(), tmp_path_factory.mktemp("parity") / "run")


@pytest.fixture
def other(simulated: Path, tmp_path: Path) -> Path:
    """A copy whose rows may be changed."""
    return Path(shutil.copytree(simulated, tmp_path / "other"))


def test_a_run_is_on_par_with_itself(simulated: Path, other: Path) -> None:
    found = parity.compare(simulated, other)
    assert [p.to_json() for p in found] == [
        {"method": "fedavg", "max_abs_diff": 0.0, "bytes_equal": True},
        {"method": "fedper", "max_abs_diff": 0.0, "bytes_equal": True},
    ]
    assert all(p.equal for p in found)


def change_one(run: Path, table: str, method: str, change: "dict[str, object]", name: str | None = None) -> None:
    """Change one row of a method, or drop it if there is nothing to change."""
    rows = list(rows_of(run, table))
    at = next(i for i, r in enumerate(rows) if r["method"] == method and r.get("name") == name)
    rows[at : at + 1] = [{**rows[at], **change}] if change else []
    rewrite(run, **{table: rows})


def test_a_metric_a_model_and_a_transfer_that_differ_are_noticed_method_by_method(simulated: Path, other: Path) -> None:
    import safetensors.torch

    change_one(other, "transfers", "fedper", {"bytes": 1})
    path = other / "models" / "fedavg-seed0.safetensors"
    tensors = safetensors.torch.load(path.read_bytes())
    name = next(iter(tensors))
    tensors[name].view(-1)[0] += 0.5
    path.write_bytes(safetensors.torch.save(tensors))
    fedavg, fedper = parity.compare(simulated, other)
    assert fedavg.max_abs_diff == pytest.approx(0.5)
    assert (fedavg.bytes_equal, fedavg.equal) == (True, False)
    assert (fedper.max_abs_diff, fedper.bytes_equal, fedper.equal) == (0.0, False, False)


def test_what_one_run_lacks_is_no_agreement(simulated: Path, other: Path) -> None:
    change_one(other, "metrics", "fedper", {}, "personal.accuracy.mean")
    change_one(other, "transfers", "fedavg", {})
    fedavg, fedper = parity.compare(simulated, other)
    assert fedper.to_json() == {"method": "fedper", "max_abs_diff": None, "bytes_equal": True}
    assert not fedper.equal
    assert not fedavg.bytes_equal


def test_clocks_are_no_part_of_it(simulated: Path, other: Path) -> None:
    change_one(other, "metrics", "fedavg", {"value": 1e6}, "seconds")
    assert all(p.equal for p in parity.compare(simulated, other))


def test_runs_that_are_not_done_are_not_compared(simulated: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"is not a run folder: it has no run\.json"):
        parity.compare(simulated, tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(RunError, match=r"is not done: it has no summary\.json; run unskew resume"):
        parity.compare(simulated, tmp_path)


def test_a_simulation_that_is_there_already_is_not_run_again(simulated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "start", None)
    assert parity.simulate(tiny(), simulated) == simulated


def test_the_folder_of_a_local_deployment_is_its_owners_alone(tmp_path: Path) -> None:
    deployment = operate.prepare(tiny(), 1, tmp_path / "run")
    assert [p.stat().st_mode & 0o777 for p in (tmp_path / "run", deployment)] == [0o700, 0o700]
