"""`unskew show --cost`, as from a shell."""

import json
from pathlib import Path

import pytest

from unskew.record.logs import rows as written

from .conftest import Unskew


@pytest.fixture
def run(here: Path, unskew: Unskew) -> Path:
    assert unskew("run", "tiny.toml", "--out", "a", "--no-report", "--quiet").code == 0
    return here / "a"


def test_json_is_all_there_is_on_stdout(run: Path, unskew: Unskew) -> None:
    said = unskew("show", "--cost", run, "--json", "--channel", "p001", "--target", "fedavg-peak")
    assert (said.code, said.err) == (0, "")
    found = json.loads(said.out)
    assert (found["run"], found["ledger"], found["target"]) == ("a", "measured", "fedavg-peak")
    assert found["presets"]["a"]["channel"] == "p001"
    assert found["presets"]["a"]["settings"]["spectrum"]["rbs"] == 1484
    rows = {(r["method"], r["metric"]): r for r in found["rows"]}
    for metric in ("accuracy", "megabytes.up", "hz_s", "subframes", "seconds", "joules.transmit", "joules.compute"):
        assert len(rows["fedprox", metric]["seeds"]) == 2
    assert len(rows["fedavg", "to_target.megabytes"]["seeds"]) == 2
    sent = written(run, "transfers")
    assert rows["fedavg", "megabytes"]["mean"] * 2e6 == pytest.approx(
        sum(r["bytes"] for r in sent if r["method"] == "fedavg")
    )


def test_a_run_under_a_radio_is_priced_under_its_own(here: Path, unskew: Unskew) -> None:
    settings = ["--set", 'world.channel={name="radio", kappa=3.0}', "--set", "rounds=1"]
    assert unskew("run", "tiny.toml", "--out", "a", "--no-report", "--quiet", *settings).code == 0
    found = json.loads(unskew("show", "--cost", "a", "--json").out)
    assert found["presets"]["a"]["channel"] == "the run's own"
    assert found["presets"]["a"]["settings"]["channel"]["kappa"] == 3.0
