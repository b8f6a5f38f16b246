"""`unskew plan`, `sweep` and `doctor`, called as from a shell."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from unskew import machine
from unskew.decide import sweep
from unskew.decide.crew import Here
from unskew.decide.runs import LoggedRuns
from unskew.run.doctor import Finding

from .conftest import TINY, Unskew

SWEEP = '\n[sweep]\ngrid = { "methods.1.mu" = [0.1, 1.0] }\n'


# ---------------------------------------------------------------- plan
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
    assert section.count("<span>exact</span>") == 2
    assert len(ratios) == 2 * 2 + 2  # bytes and seconds of two methods, seconds and memory of the run
    assert all(re.fullmatch(r"\d+\.\d\d", ratio) for ratio in ratios)
    assert ratios[0] == ratios[2] == "1.00"  # bytes


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


# ---------------------------------------------------------------- doctor
def test_doctor_ends_with_1_if_something_is_broken(unskew: Unskew, monkeypatch: pytest.MonkeyPatch) -> None:
    from unskew.run import doctor

    monkeypatch.setattr(doctor, "examine", lambda _: (Finding("torch", "problem", "gone", "get it", core=True),))
    said = unskew("doctor")
    assert (said.code, said.out) == (1, "problem torch  gone; get it\n")
    assert json.loads(unskew("doctor", "--json").out)["ok"] is False
