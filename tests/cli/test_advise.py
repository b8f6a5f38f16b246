"""`unskew advise`: answers on the terminal, JSON, page and experiment."""

import json
from pathlib import Path

from unskew.experiment import config

from .conftest import Unskew


def test_answers_are_printed_and_the_page_and_experiment_written(unskew: Unskew, here: Path) -> None:
    done = unskew("advise", "tiny.toml", "--fresh-seeds", "2", "--out", "advice")
    assert done.code == 0, done.err
    assert done.out.startswith("Undecided: ")
    assert all(f" client {k} " in done.out for k in range(4))
    assert len(done.out.splitlines()) <= 25
    assert done.err.endswith("page: advice/advice.html\nnext: unskew run advice/advised.toml\n")
    assert "4 sites of digits; measuring how they differ" in done.err
    assert "should they train together?" in (here / "advice" / "advice.html").read_text("utf-8")
    assert config.load(here / "advice" / "advised.toml").methods


def test_json_leaves_nothing_else_on_stdout(unskew: Unskew) -> None:
    done = unskew("advise", "tiny.toml", "--fresh-seeds", "2", "--out", "advice", "--json", "--quiet")
    answer = json.loads(done.out)
    assert answer["verdict"] in ("join", "alone", "undecided")
    assert set(answer["sites"]) == {f"client {k}" for k in range(4)}
    assert answer["rounds"] == 2
    assert "measuring" not in done.err


def test_too_little_time_is_said_and_decides_nothing(unskew: Unskew) -> None:
    done = unskew("advise", "tiny.toml", "--minutes", "0.0001", "--out", "advice", "--json", "--quiet")
    assert (done.code, done.out) == (2, "")
    assert "give it more minutes" in done.err


def test_an_impossible_limit_is_refused_before_any_work(unskew: Unskew, here: Path) -> None:
    done = unskew("advise", "tiny.toml", "--max-megabytes", "0", "--out", "advice")
    assert (done.code, done.out) == (2, "")
    assert done.err == "ConfigError: max_megabytes must be above zero, got 0\n"
    assert not (here / "advice").exists()
