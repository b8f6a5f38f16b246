"""What the commands print: JSON and nothing else on stdout, progress on stderr, help that teaches."""

import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from unskew.cli.options import as_settings
from unskew.papers import study

from .conftest import Said, Unskew


def document(text: str) -> Any:
    """One JSON document and nothing after it; NaN and Infinity are no JSON."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


# ---------------------------------------------------------------- run and resume
def test_a_table_is_looked_at_and_run_with_the_same_options(unskew: Unskew, here: Path) -> None:
    rows = [f"{i % 7};{'fg'[i % 2]};{'yes' if i % 3 else 'no'};{'Basel' if i < 30 else 'Chur'}" for i in range(60)]
    (here / "visits.csv").write_text("\n".join(["age;sex;ill;site", *rows]))
    options = ("--target", "ill", "--client", "site", "--separator", ";", "--gaps", "x", "--test", "0.3")
    said = unskew("run", "visits.csv", *options, "--rounds", "1", "--seed", "0", "--out", "r", "--json")
    assert {r["method"] for r in document(said.out)["rows"]} >= {"fedavg", "independent", "centralised"}
    config = tomllib.loads((here / "r" / "config.toml").read_text())
    assert (config["rounds"], config["task"]["data"]) == (1, "csv:visits.csv")
    given = {"target": "ill", "client": "site", "separator": ";", "gaps": ["x"], "test": 0.3}
    assert config["task"]["data_options"] == given
    for source, words in (("visits.csv", options), ("heart", ())):
        said = unskew("data", source, *words, "--rounds", "1", "--out", "d.html")
        assert said.err.splitlines()[-1] == "next: " + shlex.join(("unskew", "advise", source, *words, "--rounds", "1"))


def test_several_targets_are_a_list_and_a_value_may_follow_an_equals_sign() -> None:
    given = ["my.csv", "--target", "days", "--target=died", "--model", "mlp", "--bounds", "true", "--quiet"]
    settings = [f"task.data_options.target={json.dumps(['days', 'died'])}", "task.model=mlp", "bounds=true"]
    settings = [word for setting in settings for word in ("--set", setting)]
    assert as_settings(given, ["--quiet"]) == [*settings, "my.csv", "--quiet"]


def test_seeds_are_added_to_a_run_that_decides_too_little(unskew: Unskew, here: Path) -> None:
    said = unskew("run", "tiny.toml", "--out", "r", "-q", "--no-report")
    assert said.err.splitlines()[-1] == "next: unskew run r --until 0.5 --out r-more"
    more = unskew("run", "r", "--until", 0.001, "--most", 7, "--out", "m", "-q", "--no-report", "--json")
    assert {len(r["seeds"]) for r in document(more.out)["rows"]} == {6}  # the fewest: the two hardly differ
    assert unskew("run", "m", "-q", "--no-report").err.splitlines()[-1] == "next: unskew card m"
    alone = unskew("run", "r", "--until", 0.5)
    assert (alone.code, alone.out) == (2, "")
    assert "give one of them and --out together" in alone.err


def test_a_tilde_that_the_shell_left_is_the_home_folder(
    unskew: Unskew, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(here / "home"))
    assert unskew("run", "tiny.toml", "-q", "--no-report", "--seed", 0, "--out=~/r").code == 0
    assert unskew("show", "~/r", "--format", "html").code == 0
    assert (here / "home" / "r" / "report.html").is_file()
    assert not (here / "~").exists()


# ---------------------------------------------------------------- show
@pytest.mark.usefixtures("drawn")
def test_a_report_is_written_again_equal_to_the_run_s_own(unskew: Unskew, here: Path) -> None:
    unskew("run", "tiny.toml", "--out", "r", "-q")
    first = (here / "r" / "report.html").read_bytes()
    (here / "r" / "report.html").unlink()
    assert unskew("show", "r", "--format", "html") == Said(0, "r/report.html\n", "")
    assert (here / "r" / "report.html").read_bytes() == first
    assert unskew("show", "r", "--format", "html", "--out", "page.html").out == "page.html\n"
    assert (here / "page.html").read_bytes() == first


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        (("--format", "md"), "tiny\n\n| method |"),
        (("--format", "csv"), "run,method,"),
        (("--format", "md", "--columns", "mb, seeds"), "tiny\n\n| method | sent, MB | seeds |"),
        (("--by-client", "--format", "csv"), "run,method,bound,client,"),
        (("--by-client", "--columns", "mb"), ""),
        (("--format", "x"), ""),
    ],
)
def test_show_writes_what_is_asked_for_and_nothing_else(unskew: Unskew, words: tuple[str, ...], begins: str) -> None:
    unskew("run", "tiny.toml", "--out", "r", "-q", "--no-report", "--set", "rounds=1")
    said = unskew("show", "r", *words)
    assert said.out.startswith(begins) if begins else said.out == ""
    assert (said.code == 0) == bool(begins)


# ---------------------------------------------------------------- reproduce
TINY: dict[str, Any] = {
    "bounds": True,
    "rounds": 2,
    "seeds": [0, 1],
    "task": {"data": "digits", "model": "logistic"},
    "split": {"name": "dirichlet", "num_clients": 4, "alpha": 0.5, "min_samples": 10},
    "methods": {"fedavg": {}, "fedprox": {"mu": 0.1}},
}


def shrink(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """The reproduction's own code on two methods, two seeds and two rounds."""
    settings_of = study.settings_of
    monkeypatch.setattr(study, "settings_of", lambda *at: {**settings_of(*at), "experiment": {**TINY, **changes}})


@pytest.fixture
def tiny_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)


@pytest.mark.usefixtures("tiny_paper")
def test_a_reproduction_prints_rows_and_decided_claims(unskew: Unskew, here: Path) -> None:
    said = unskew("reproduce", "noniid/digits", "--out", "runs/here", "--json", "--keep")
    assert said.code == 0
    found = document(said.out)
    assert list(found) == ["name", "scale", "seconds", "rows", "claims"]
    assert (found["name"], found["scale"]) == ("noniid/digits", "small")
    for row in found["rows"]:
        assert list(row) == ["method", "setting", "metric", "paper", "ours", "std", "spread_over", "seeds"]
        assert row["paper"] is None
        assert row["spread_over"] == "seeds"
        assert len(row["seeds"]) == 2
    assert [c["text"] for c in found["claims"]] == [
        "fedprox ends above fedavg at alpha 0.1",
        "on a client's own test data fedavg is above training alone",
    ]
    for claim in found["claims"]:
        assert list(claim) == ["text", "holds", "evidence", "seeds", "interval"]
        assert claim["holds"] is True or claim["holds"] is False or claim["holds"] is None
        assert claim["evidence"]
    assert (here / "runs" / "here" / "run" / "summary.json").is_file()
    kept = here / "docs" / "results" / "noniid" / "digits" / "small"
    assert sorted(p.name for p in kept.iterdir()) == ["README.md", "curves.svg", "result.json"]
    assert json.loads((kept / "result.json").read_text()) == found
    assert said.err.splitlines()[-1] == f"kept: {kept.relative_to(here)}"
