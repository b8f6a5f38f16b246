"""`unskew plan`, `sweep` and `doctor`, called as from a shell."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from unskew import machine
from unskew.cli.options import located
from unskew.decide import sweep
from unskew.decide.crew import Here
from unskew.decide.runs import LoggedRuns
from unskew.experiment import config
from unskew.run.doctor import Finding

from .conftest import TINY, Unskew

SWEEP = '\n[sweep]\ngrid = { "methods.1.mu" = [0.1, 1.0] }\n'


# ---------------------------------------------------------------- plan
def test_plan_says_what_it_will_cost_and_writes_nothing(here: Path, unskew: Unskew) -> None:
    before = sorted(here.rglob("*"))
    said = unskew("plan", "tiny.toml")
    assert said.code == 0
    assert said.err == "next: unskew run tiny.toml\n"
    assert re.search(r"fedavg +\d\.\d{3} +\d\.\d{3} +0\.000 .* exact", said.out)
    assert "whole run: " in said.out
    assert "None" not in said.out
    assert sorted(here.rglob("*")) == before


def test_plan_as_json_is_only_json_and_foretells_the_run(unskew: Unskew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available", lambda: 8_000_000_000)
    found = json.loads(unskew("plan", "tiny.toml", "--json").out)
    rows = json.loads(unskew("run", "tiny.toml", "--json", "--quiet", "--no-report").out)["rows"]
    actual = {(r["method"], r["metric"]): r["mean"] for r in rows}
    assert [m["method"] for m in found["methods"]] == ["fedavg", "fedprox"]
    for m in found["methods"]:
        assert m["traffic"] == "exact"
        assert m["bytes"] == {d: actual[m["method"], f"bytes.{d}"] for d in ("down", "up", "d2d")}
    assert found["energy_j"] is None
    assert found["memory"]["limit"] > found["memory"]["everything"] > 10_000_000
    assert found["memory"]["peak"] >= found["memory"]["everything"]  # one process: no workers beside it


def test_plan_says_the_least_and_the_most_that_a_run_until_it_is_decided_costs(unskew: Unskew) -> None:
    """With 24 seeds at most the least is a quarter: there is no interval before the sixth."""
    rule = ("--set", "seeds={ until = 0.5, most = 24, least = 2 }")
    words = unskew("plan", "tiny.toml", *rule).out
    assert "(6 to 24 seeds, until it is decided, 2 rounds" in words
    found = json.loads(unskew("plan", "tiny.toml", *rule, "--json").out)
    assert (found["seeds"], found["least"]) == (24, 6)
    assert found["least_seconds"] == pytest.approx(found["seconds"] / 4)


def test_plan_takes_settings_and_built_in_names(unskew: Unskew) -> None:
    found = json.loads(unskew("plan", "--set", "rounds=2", "--set", "seeds=[0]", "--json").out)
    assert (found["run"], found["rounds"], found["seeds"]) == ("digits", 2, 1)


def test_plan_refuses_the_impossible_in_one_line(unskew: Unskew) -> None:
    said = unskew("plan", "tiny.toml", "--set", "split.num_clients=900")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("DataError: 900 clients x at least 10 examples = 9000, but there are 1438 examples; ")
    assert said.err.count("\n") == 1


def test_plan_refuses_what_does_not_fit_into_memory(unskew: Unskew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available", lambda: 20_000)
    said = unskew("plan", "tiny.toml")
    assert (said.code, said.out) == (2, "")
    assert re.match(r"ConfigError: the run needs .* of memory \(.* so far \+ .*\), but .* can be had; ", said.err)


# ---------------------------------------------------------------- what a run writes, and its report
def test_a_run_keeps_its_plan_and_the_report_sets_it_beside_the_outcome(here: Path, unskew: Unskew) -> None:
    said = unskew("run", "tiny.toml", "--out", "r", "--quiet")
    assert said.code == 0
    foretold = json.loads((here / "r" / "plan.json").read_text())
    assert [m["method"] for m in foretold["methods"]] == ["fedavg", "fedprox"]
    assert json.loads((here / "r" / "summary.json").read_text())["peak_rss"] > 10_000_000
    page = (here / "r" / "report.html").read_text()
    section = page[page.index("The forecast and the run") :].partition("</table>")[0]
    lines = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", section)]
    columns, *cells = lines
    ratios = [row[columns.index("ratio")] for row in cells]
    assert section.count('<td class="text">exact</td>') == 2
    assert len(ratios) == 2 * 2 + 2  # bytes and seconds of two methods, seconds and memory of the run
    assert all(re.fullmatch(r"\d+\.\d\d", ratio) for ratio in ratios)
    assert ratios[0] == ratios[2] == "1.00"  # bytes


def test_a_run_without_a_plan_has_a_report_without_that_section(here: Path, unskew: Unskew) -> None:
    unskew("run", "tiny.toml", "--out", "r", "--quiet", "--no-report")
    (here / "r" / "plan.json").unlink()
    assert unskew("run", "r", "--quiet").code == 0
    assert "The forecast and the run" not in (here / "r" / "report.html").read_text()


def test_a_damaged_plan_is_left_out_and_named(here: Path, unskew: Unskew) -> None:
    unskew("run", "tiny.toml", "--out", "r", "--quiet", "--no-report")
    shutil.copytree(here / "r", here / "whole")
    plan = here / "r" / "plan.json"
    plan.write_bytes(plan.read_bytes()[:500])
    for command in (("run", "r", "--quiet"), ("show", "r", "--format", "md")):
        said = unskew(*command)
        assert said.code == 0
        assert re.search(r"The forecast is left out: r/plan\.json is damaged; remove it", said.out + said.err)
    page = (here / "r" / "report.html").read_text()
    assert "The forecast and the run" not in page
    assert "The forecast is left out: r/plan.json" in page


def test_too_little_memory_is_a_warning_to_a_run(unskew: Unskew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available", lambda: 20_000)
    said = unskew("run", "tiny.toml", "--quiet", "--no-report", "--json")
    assert said.code == 0
    assert said.err.startswith("warning: the run needs ")
    assert said.err.count("\n") == 1


def test_a_plan_that_fails_does_not_stop_a_run(here: Path, unskew: Unskew, monkeypatch: pytest.MonkeyPatch) -> None:
    from unskew.decide.forecast import plan

    def fail(*_: object, **__: object) -> None:
        raise ValueError("a fault of ours")

    monkeypatch.setattr(plan, "forecast", fail)
    said = unskew("run", "tiny.toml", "--out", "r", "--quiet", "--no-report", "--json")
    assert (said.code, said.err) == (0, "warning: no plan.json: ValueError: a fault of ours\n")
    assert not (here / "r" / "plan.json").exists()


# ---------------------------------------------------------------- sweep
class Made(Here):
    """This process in the place of a sweep's: the first point fails, another is run."""

    def send(self, worker: int, asked: Any, homes: Any) -> None:
        failing = (None, ["ConfigError", "no", ""])
        self.answer = failing if "001" in asked["folder"] else (self.work.train(asked), None)

    def receive(self) -> Any:
        return 0, *self.answer


def test_a_failing_point_is_named_and_the_exit_code_is_1(
    here: Path, unskew: Unskew, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "s.toml").write_text(TINY + SWEEP)
    monkeypatch.setattr(sweep, "Processes", lambda *_, **__: Made(LoggedRuns(here / "out")))
    said = unskew("run", "s.toml", "--out", "out")
    assert said.code == 1
    assert said.err.splitlines()[-1] == "failed: 001-mu=0.1: ConfigError: no"
    assert "[1/2] 001-mu=0.1: FAILED: ConfigError: no" in said.err
    # In a file or a pipe, a name is not broken.
    assert {"002-mu=1.0/fedavg", "002-mu=1.0/fedprox"} <= set(said.out.split())
    assert "001-mu=0.1" not in said.out
    # A shard that has only the point that is done is no failure.
    said = unskew("run", "s.toml", "--out", "out", "--shard", "2/2")
    assert said.code == 0
    told = said.err.splitlines()
    assert told[0] == "tiny: 2 points in out, 1 of them in shard 2/2"
    assert told[1] == "[1/1] 002-mu=1.0: was done already"
    said = unskew("run", "s.toml", "--out", "new", "--shard", "3/3", "--json")
    assert (said.code, json.loads(said.out)["rows"]) == (0, [])
    assert said.err.endswith("2 points of other shards not done yet; the last shard to end writes the page of all\n")


def test_what_cannot_be_a_sweep_is_refused_before_a_word(unskew: Unskew, here: Path) -> None:
    (here / "s.toml").write_text(TINY + SWEEP)
    (here / "file").write_text("")
    for more, text in (
        (["--jobs", "0"], "ConfigError: --jobs must be at least 1, got 0\n"),
        (["--out", "file"], "choose another --out\n"),
        (["--out", "file/deeper"], "choose another --out\n"),
    ):
        said = unskew("run", "s.toml", *more)
        assert (said.code, said.out) == (2, "")
        assert said.err.endswith(text)
        assert "resume" not in said.err
    said = unskew("plan", "s.toml")
    assert (said.code, said.out) == (2, "")
    assert said.err.endswith("a [sweep] table makes many experiments; run them with: unskew run s.toml\n")
    assert {p.name for p in here.iterdir()} == {"tiny.toml", "s.toml", "file"}


def test_a_built_in_experiment_is_swept_with_a_table_in_set(unskew: Unskew) -> None:
    table = 'sweep.grid={"split.alpha"=[0.1,1.0]}'
    said = unskew("run", "digits", "--set", table, "--set", "split.num_clients=90000")
    assert said.code == 2
    assert "point 001-alpha=0.1: 90000 clients" in said.err


def test_where_the_data_lie_is_a_setting_like_any_other(here: Path) -> None:
    """Of a run, a plan, a sweep and a deployment on this machine; a path may hold what TOML would read."""
    place = here / 'a "b" = 1'
    assert config.override({}, located(["rounds=3"], place)) == {"rounds": 3, "task": {"data_dir": str(place)}}
    assert located(None, None) == []


def test_a_sweep_without_points_or_with_an_impossible_one_is_refused_and_leaves_nothing(
    here: Path, unskew: Unskew
) -> None:
    for table, text in (
        ("grid = {}", "is empty"),
        ("list = []", "is empty"),
        ('grid = { "methods.1.mu" = [1.0, -1.0] }', "point 002-mu=-1.0: methods.1.mu must be >= 0"),
        ('grid = { "clients_per_round" = [2, 9] }', "point 002-clients_per_round=9: clients_per_round must be at most"),
    ):
        (here / "s.toml").write_text(f"{TINY}\n[sweep]\n{table}\n")
        said = unskew("run", "s.toml")
        assert (said.code, said.out) == (2, "")
        assert said.err.startswith("ConfigError: ")
        assert text in said.err
        assert said.err.count("\n") == 1
    assert not (here / "runs").exists()


# ---------------------------------------------------------------- doctor
def test_doctor_says_what_is_there_and_what_is_missing(unskew: Unskew) -> None:
    said = unskew("doctor")
    assert said.code == 0
    assert said.err == "next: unskew run\n"
    lines = said.out.splitlines()
    assert all(line.split()[0] in ("ok", "missing", "problem") for line in lines)
    assert any(re.match(r"ok +torch +\d", line) for line in lines)
    assert any("extra [hub]" in line for line in lines)  # not taken for markup


def test_doctor_as_json(here: Path, unskew: Unskew) -> None:
    (here / "usps.npz").write_bytes(b"")
    found = json.loads(unskew("doctor", "--json", "--data-dir", here).out)
    assert found["ok"] is True
    lines = {f["what"]: f for f in found["findings"]}
    assert " has usps; " in lines["data folder"]["found"]


def test_doctor_ends_with_1_if_something_is_broken(unskew: Unskew, monkeypatch: pytest.MonkeyPatch) -> None:
    from unskew.run import doctor

    monkeypatch.setattr(doctor, "examine", lambda _: (Finding("torch", "problem", "gone", "get it", core=True),))
    said = unskew("doctor")
    assert (said.code, said.out) == (1, "problem torch  gone; get it\n")
    assert json.loads(unskew("doctor", "--json").out)["ok"] is False
