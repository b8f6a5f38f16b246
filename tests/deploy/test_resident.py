"""A federation at work, in one process: experiments in turn, sites that come, go and refuse, a server that stops."""

import json
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import tomli_w

import unskew
from unskew.deploy import resident, site, trial
from unskew.experiment.config import Experiment
from unskew.record.logs import rows
from unskew.record.reader import read
from unskew.report import verdict
from unskew.report.results import by_client
from unskew.run.loop import Interrupted
from unskew.run.models import load_model
from unskew.runtime.message import Envelope

from .party import Party

Small = Callable[..., Experiment]


@pytest.fixture
def party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Party:
    monkeypatch.setattr(resident, "LOOK_S", 0.0)
    monkeypatch.setattr(resident, "TOLD_S", 0.0)
    monkeypatch.setattr(resident, "write_report", lambda run: run)  # test_command has a federation's page drawn
    return Party(tmp_path)


def trained(run: Path) -> list[tuple[int, int]]:
    return [(r["round"], r["client"]) for r in rows(run, "work")]


def after(party: Party, round: int, what: Callable[[], object]) -> Callable[[], None]:
    """Something to be done once when a round is over."""
    done: list[object] = []

    def look() -> None:
        row = party.federation.next()
        if not done and row is not None and (row["round"] or 0) >= round:
            done.append(what())

    return look


def test_two_experiments_follow_one_another_and_each_is_a_simulations(
    party: Party, small: Small, tmp_path: Path
) -> None:
    party.join("basel", "bern")
    chosen = [small('evaluate=["global","personal"]'), small("name='other'", "rounds=3", 'methods.0.name="scaffold"')]
    names = [party.queue(experiment) for experiment in chosen]
    assert party.run() == ["done", "done"]
    for experiment, name in zip(chosen, names, strict=True):
        (found,) = trial.compare(party.record(name), trial.simulate(experiment, tmp_path / f"sim-{name}"))
        assert (found.max_abs_diff, found.bytes_equal) == (0.0, True)
    assert party.run() == [], "what is done is not run again"
    assert {tuple(job["sites"].items()) for job in party.federation.jobs()} == {
        (("basel", "accepted"), ("bern", "accepted"))
    }
    for name in names:
        place = tmp_path / "basel" / "experiments" / name
        assert load_model(place).unskew.client == 0
        assert load_model(next(place.glob("models/*.shared.safetensors"))).unskew.client is None
    assert [text.partition(":")[0] for text in party.said if " is done" in text] == ["small is done", "other is done"]
    assert "client 0 (basel) is here" in party.said


def test_a_policy_refuses_one_experiment_and_takes_another(party: Party, small: Small, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(tomli_w.dumps({"methods": ["fedprox"]}))
    party.join("basel")
    party.join("bern", policy=str(tmp_path / "policy.toml"))
    party.queue(small(), min_clients=1)
    party.queue(small("name='prox'", 'methods.0.name="fedprox"'))
    party.queue(small("name='all'"), wait_s=600.0)
    began = time.monotonic()
    assert party.run() == ["done", "done", "failed"]
    assert time.monotonic() - began < 60.0, "a refusal is an answer"
    assert "client 1 is refused: it refuses: method fedavg may" in party.federation.experiment("all")["reason"]
    refused = {e["name"]: e["answer"] for e in site.status(tmp_path / "bern")["experiments"]}
    assert [refused[name].partition(":")[0] for name in ("small", "prox", "all")] == ["refused", "accepted", "refused"]
    assert set(trained(party.record("small"))) == {(1, 0), (2, 0)}
    assert set(trained(party.record("prox"))) == {(1, 0), (1, 1), (2, 0), (2, 1)}
    first, *_ = party.federation.jobs()
    assert first["sites"] == {"basel": "accepted", "bern": "refused"}
    reason = party.federation.offers(party.federation.experiment("small"))[1]["reason"]
    assert "method fedavg may not run here" in reason


def test_an_experiment_that_fails_says_why_and_does_not_stop_the_next(party: Party, small: Small) -> None:
    party.join("basel", "bern")
    party.hub.handlers.pop(party.node("bern"))
    party.queue(small(), wait_s=0.6)
    party.queue(small("name='alone'"), min_clients=1)
    assert party.run() == ["failed", "done"]
    reason = party.federation.experiment("small")["reason"]
    assert reason.startswith("1 of 2 clients are connected after 0.6 s, 2 needed; present: 0")
    party.come("bern")
    assert party.queue(small(), wait_s=5.0) == "small"
    assert party.run() == ["done"]


def test_a_site_that_is_removed_in_mid_run_leaves_its_place_empty(party: Party, small: Small) -> None:
    party.join("basel", "bern")
    party.queue(small("rounds=12", 'evaluate=["personal"]'), min_clients=2)
    assert party.run(after(party, 1, lambda: party.federation.remove(["bern"]))) == ["done"]
    record = trained(party.record("small"))
    assert (12, 0) in record
    assert (12, 1) not in record
    assert party.hub.dropped == [2]
    assert "client 1 (bern) is gone" in party.said


def test_a_site_that_comes_late_takes_its_place_and_a_new_one_waits_for_the_next(party: Party, small: Small) -> None:
    party.join("basel", "bern")
    late = party.hub.handlers.pop(party.node("bern"))

    def come() -> None:
        party.hub.handlers[party.node("bern")] = late
        party.join("chur")

    party.queue(small("rounds=12"), min_clients=1)
    assert party.run(after(party, 1, come)) == ["done"]
    record = trained(party.record("small"))
    assert (1, 1) not in record
    assert (12, 1) in record
    assert {client for _, client in record} == {0, 1}
    assert party.queue(small("name='three'", "split.num_clients=3")) == "three"
    assert party.run() == ["done"]
    assert {client for _, client in trained(party.record("three"))} == {0, 1, 2}


def test_an_experiment_that_is_stopped_goes_on_when_it_is_asked_for_again(
    party: Party, small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    party.join("basel", "bern")
    monkeypatch.setattr(party.federation, "is_served", lambda: True)
    experiment = small("rounds=12", 'methods.0.name="scaffold"')
    party.queue(experiment)
    assert party.run(after(party, 3, party.federation.stop)) == ["stopped"]
    assert 0 < len(trained(party.record("small"))) < 24
    for name in ("basel", "bern"):
        party.come(name)
    party.queue(experiment)
    assert party.run() == ["done"]
    (found,) = trial.compare(party.record("small"), trial.simulate(experiment, tmp_path / "sim"))
    assert (found.max_abs_diff, found.bytes_equal) == (0.0, True)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("moment", [0, 3, 5])
def test_a_server_that_was_killed_goes_on_by_itself_when_it_starts_again(
    moment: int, party: Party, small: Small, tmp_path: Path
) -> None:
    party.join("basel", "bern")
    experiment = small("rounds=4", 'methods.0.name="scaffold"')
    party.queue(experiment)
    honest, left = dict(party.hub.handlers), iter(range(moment))

    def killed(envelope: Envelope) -> Envelope:
        if next(left, None) is None:
            raise Killed
        return honest[1](envelope)

    party.hub.handlers[1] = killed
    with pytest.raises(Killed):
        party.run()
    for name in ("basel", "bern"):
        party.come(name)
    assert party.run() == ["done"]
    (found,) = trial.compare(party.record("small"), trial.simulate(experiment, tmp_path / "sim"))
    assert (found.max_abs_diff, found.bytes_equal) == (0.0, True)


def test_a_site_is_told_why_its_reply_was_refused(party: Party, small: Small, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "unskew.deploy")
    party.join("basel", "bern")
    honest, wrong = party.hub.handlers[2], iter([True])

    def lies(envelope: Envelope) -> Envelope:
        reply = honest(envelope)
        if reply.action == "ask" and next(wrong, False):
            return Envelope(reply.action, reply.head, (b"nonsense",))
        return reply

    party.hub.handlers[2] = lies
    party.queue(small())
    assert party.run() == ["done"]
    (line,) = [text for text in caplog.messages if "the server refused its last reply" in text]
    assert line.startswith("client 1: ")


def test_a_site_answers_no_longer_than_its_policy_allows(party: Party, small: Small, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(tomli_w.dumps({"max_minutes": 1e-9}))
    party.join("basel")
    party.join("bern", policy=str(tmp_path / "policy.toml"))
    party.queue(small("rounds=3"), min_clients=1)
    assert party.run() == ["done"]
    assert trained(party.record("small")) == [(1, 0), (1, 1), (2, 0), (3, 0)]
    reasons = {r["reason"] for r in rows(party.record("small"), "failures")}
    assert any("minutes here" in reason and "max_minutes" in reason for reason in reasons)


def test_noise_is_in_the_sites_account_across_experiments(party: Party, small: Small, tmp_path: Path) -> None:
    noised = [{"name": "fedavg", "with": [{"name": "local_dp", "clip": 1.0, "noise_multiplier": 2.0}]}]
    (tmp_path / "policy.toml").write_text(tomli_w.dumps({"privacy": str(tmp_path / "privacy.sqlite")}))
    party.join("basel", "bern", policy=str(tmp_path / "policy.toml"))
    methods = f"methods={json.dumps(noised).replace(':', '=')}"
    for name in ("one", "two"):
        party.queue(small(f"name='{name}'", methods, 'evaluate=["personal", "auroc"]'))
    assert party.run() == ["done", "done"]

    def uploads() -> tuple[int, int]:
        with closing(sqlite3.connect(tmp_path / "privacy.sqlite")) as db:
            counts: tuple[int, int] = db.execute("SELECT count(), count(DISTINCT data) FROM uploads").fetchone()
            return counts

    assert uploads() == (2 * 2 * 2, 1)
    record = read(party.record("two"))
    assert verdict.verdict(record) == "The sites sent no metrics."
    assert "auroc was sent by no site, so no table has it." in verdict.notes(record)

    # One that would cost too much in the end is refused before it costs anybody anything.
    (tmp_path / "tight.toml").write_text(tomli_w.dumps({"privacy": str(tmp_path / "own.sqlite"), "max_epsilon": 6.0}))
    party.join("chur", policy=str(tmp_path / "tight.toml"))
    party.queue(small("name='three'", "rounds=5", "split.num_clients=3", methods))
    assert party.run() == ["failed"]
    assert "after this experiment epsilon would be" in party.federation.experiment("three")["reason"]
    assert uploads() == (2 * 2 * 2, 1)


def test_a_server_that_is_asked_to_stop_keeps_its_experiment_running(
    party: Party, small: Small, tmp_path: Path
) -> None:
    party.join("basel", "bern")
    experiment = small("rounds=6", 'methods.0.name="scaffold"')
    party.queue(experiment)
    with pytest.raises(Interrupted):
        party.run(after(party, 2, lambda: signal.raise_signal(signal.SIGTERM)))
    assert party.federation.experiment("small")["state"] == "running"
    assert party.run() == ["done"]
    (found,) = trial.compare(party.record("small"), trial.simulate(experiment, tmp_path / "sim"))
    assert (found.max_abs_diff, found.bytes_equal) == (0.0, True)


def test_what_a_look_raises_ends_the_experiment_and_not_the_server(party: Party, small: Small) -> None:
    party.join("basel", "bern")
    party.queue(small("rounds=12"))

    bugs = iter([RuntimeError("a bug")])

    def broken() -> None:
        for bug in bugs:
            raise bug

    assert party.run(broken) == ["failed"]
    assert party.federation.experiment("small")["reason"] == "RuntimeError: a bug"


@pytest.mark.parametrize(
    ("kind", "of"),
    [
        ("classification", lambda x: [("b", "a")[int(v > 0)] for v in x[:, 0]]),
        ("regression", lambda x: (x[:, 0] - x[:, 1]).tolist()),
        ("survival", lambda x: np.abs(x[:, 0]).tolist()),
    ],
)
@pytest.mark.filterwarnings("ignore::unskew.errors.DataWarning")  # of few rows
def test_a_coordinator_without_data_gets_the_sites_results(
    kind: str, of: Callable[[Any], Any], party: Party, small: Small, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    for name in ("basel", "bern"):
        x = rng.normal(size=(60, 3))
        frame = pandas.DataFrame({"p": x[:, 0], "q": x[:, 1], "r": x[:, 2], "ill": of(x)})
        target: Any = "ill"
        if kind == "survival":
            frame["event"], target = (x[:, 2] > 0).astype(int), ["ill", "event"]
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
        party.join(name, data=f"csv:{tmp_path / name}.csv")
    options = f"data_options={{target={json.dumps(target)}}}"
    task = f"task={{data='csv:nowhere.csv', model='logistic', kind='{kind}', {options}}}"
    if kind == "survival":
        task = task.replace("model='logistic'", "model='mlp'")
    party.federation.queue(small(task, "local.lr=0.01", 'evaluate=["global"]'), {"wait_s": 5.0})
    assert party.run() == ["done"], party.said[-1]
    record = party.record("small")
    names = {r["name"] for r in rows(record, "metrics")}
    assert any(name.startswith("personal.") for name in names)
    assert unskew.load_run(record).client_names == ("basel", "bern")
    assert {"basel", "bern"} <= {entry.name for entry in by_client(read(record)).entries}
    assert not any(name.startswith("global.") for name in names)
    assert "csv:nowhere.csv is not on this machine: results are those of the sites" in party.said
    (record / "summary.json").unlink()
    party.federation.put("experiments", party.federation.experiment("small")["id"], state="failed")
    party.federation.queue(small(task, "local.lr=0.01", 'evaluate=["global"]'), {"wait_s": 5.0})
    assert party.run() == ["done"], party.said[-1]
