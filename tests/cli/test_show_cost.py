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


def test_the_tables_are_on_stdout_and_notes_on_stderr(run: Path, unskew: Unskew) -> None:
    said = unskew("show", "--cost", run, "--target", "0.999")
    assert said.code == 0
    assert "ledger measured: mean ± standard deviation over seeds" in said.out
    assert "on the air, channel paper" in said.out
    assert "until accuracy" not in said.out
    for method in ("fedavg", "fedprox"):
        assert f" {method} " in said.out
        assert f"{method}: the target was not reached under any seed" in said.err


def test_a_target_that_one_seed_reached_says_so_beside_the_cost(run: Path, unskew: Unskew) -> None:
    rows = list(written(run, "metrics"))
    best = {
        seed: max(
            r["value"] for r in rows if (r["method"], r["seed"], r["name"]) == ("fedavg", seed, "global.accuracy")
        )
        for seed in {r["seed"] for r in rows}
    }
    low, high = sorted(best.values())
    assert low < high
    said = unskew("show", "--cost", run, "--target", f"{(low + high) / 2}")
    until = said.out.partition("until accuracy")[2]
    assert " fedavg (1 of 2 seeds) " in until
    assert "of 2 seeds" not in said.out.partition("until accuracy")[0]
    assert "fedavg (1 of 2 seeds)" not in unskew("show", "--cost", run, "--target", f"{low}").out


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


def test_the_papers_ledgers(run: Path, unskew: Unskew) -> None:
    """Four clients, two rounds: 3.11 * 4 * (2 + 2) = 49.76 MB, and 16 models of 5 MB."""
    for ledger, megabytes in (("table3", 49.76), ("subframes", 80.0)):
        found = json.loads(unskew("show", "--cost", run, "--json", "--ledger", ledger).out)
        (whole,) = [r for r in found["rows"] if (r["method"], r["metric"]) == ("fedavg", "megabytes")]
        assert whole["mean"] == pytest.approx(megabytes)
    assert found["presets"]["a"]["channel"] == "p001"
    said = unskew("show", "--cost", run, "--ledger", "table3")
    assert "ledger feddif_table3" in said.out
    assert "on the air" not in said.out


def test_several_runs_are_named(run: Path, here: Path, unskew: Unskew) -> None:
    assert unskew("run", "tiny.toml", "--out", "b", "--seed", 5, "--no-report", "--quiet").code == 0
    found = json.loads(unskew("show", "--cost", run, here / "b", "--json").out)
    assert {r["method"] for r in found["rows"]} == {"a/fedavg", "a/fedprox", "b/fedavg", "b/fedprox"}


def test_a_run_under_a_radio_is_priced_under_its_own(here: Path, unskew: Unskew) -> None:
    settings = ["--set", 'world.channel={name="radio", kappa=3.0}', "--set", "rounds=1"]
    assert unskew("run", "tiny.toml", "--out", "a", "--no-report", "--quiet", *settings).code == 0
    found = json.loads(unskew("show", "--cost", "a", "--json").out)
    assert found["presets"]["a"]["channel"] == "the run's own"
    assert found["presets"]["a"]["settings"]["channel"]["kappa"] == 3.0


def test_a_run_under_a_channel_of_ones_own_says_that_it_is_priced_under_another(run: Path, unskew: Unskew) -> None:
    config = run / "config.toml"
    config.write_text(config.read_text().replace('name = "even"', 'name = "mine:Away"'))
    said = unskew("show", "--cost", run)
    assert "the run's own channel 'mine:Away' tells no powers and no bandwidth" in said.err
    assert "on the air are those of 'paper' instead; name a cell with --channel" in said.err
    assert any("mine:Away" in note for note in json.loads(unskew("show", "--cost", run, "--json").out)["notes"])
    assert "mine:Away" not in unskew("show", "--cost", run, "--channel", "p001").err  # one has chosen


@pytest.mark.parametrize(
    ("words", "kind", "part"),
    [
        (["nowhere"], "RunError", "nowhere is not a run folder: it has no run.json"),
        (["a", "--channel", "p002"], "ConfigError", "no channel is called 'p002'; choose paper, p000, p001"),
        (["a", "--channel", "mine.toml"], "ConfigError", "cannot read mine.toml"),
        (
            ["a", "--ledger", "mesured"],
            "ConfigError",
            "--ledger must be one of measured, table3, subframes, got 'mesured'",
        ),
        (
            ["a", "--target", "2"],
            "ConfigError",
            "--target must be fedavg-peak or a value of accuracy in (0, 1]",
        ),
        (["a", "a"], "RunError", "a is given twice"),
    ],
)
def test_bad_input_is_one_line_and_code_two(run: Path, unskew: Unskew, words: list[str], kind: str, part: str) -> None:
    said = unskew("show", "--cost", *words)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(f"{kind}: ")
    assert said.err.count("\n") == 1
    assert part in said.err


def test_a_run_without_transfers_is_refused(here: Path, unskew: Unskew) -> None:
    alone = (here / "tiny.toml").read_text().replace("fedavg", "centralised").replace("fedprox", "independent")
    (here / "alone.toml").write_text(alone)
    assert unskew("run", "alone.toml", "--out", "a", "--no-report", "--quiet").code == 0
    said = unskew("show", "--cost", "a")
    assert (said.code, said.out) == (2, "")
    assert "a has nothing to price: its ledger has no rows (centralised, independent sent nothing)" in said.err
