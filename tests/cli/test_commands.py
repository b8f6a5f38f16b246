"""What the commands print: JSON and nothing else on stdout, progress on stderr, help that teaches."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from unskew import papers
from unskew.algorithms import TABLE
from unskew.data.sources import DATA
from unskew.data.split import TABLE as SPLITS
from unskew.models import TABLE as MODELS
from unskew.papers import toolkit
from unskew.tasks import KINDS
from unskew.version import __version__

from .conftest import Said, Unskew

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


def document(text: str) -> Any:
    """One JSON document and nothing after it; NaN and Infinity are no JSON."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def is_summary(found: Any) -> None:
    """As decisions.md fixes it."""
    assert list(found) == ["run", "fingerprint", "seconds", "rows"]
    assert re.fullmatch("[0-9a-f]{64}", found["fingerprint"])
    assert found["seconds"] > 0
    assert found["rows"]
    for row in found["rows"]:
        ends = ["low", "high"] if ".minus_" in row["metric"] else []
        assert list(row) == ["method", "setting", "metric", "mean", "std", "seeds", *ends]
        assert row["mean"] == pytest.approx(math.fsum(row["seeds"]) / len(row["seeds"]))
        assert (row["std"] is None) == (len(row["seeds"]) < 2)


# ---------------------------------------------------------------- run and resume
def test_a_table_is_run_by_its_two_columns(unskew: Unskew, here: Path) -> None:
    rows = [f"{i % 7},{'fg'[i % 2]},{'yes' if i % 3 else 'no'},{'Basel' if i < 30 else 'Chur'}" for i in range(60)]
    (here / "visits.csv").write_text("\n".join(["age,sex,ill,site", *rows]))
    columns = ("--target", "ill", "--client", "site")
    said = unskew("run", "visits.csv", *columns, "--set", "rounds=1", "--seed", "0", "--out", "r", "--json")
    assert {r["method"] for r in document(said.out)["rows"]} >= {"fedavg", "independent", "centralised"}
    assert 'data = "csv:visits.csv"' in (here / "r" / "config.toml").read_text()
    assert unskew("data", "visits.csv", *columns, "--out", "d.html").err.splitlines()[-1] == (
        "next: unskew advise visits.csv --target ill --client site"
    )


def test_json_is_one_document_and_everything_else_is_on_stderr(unskew: Unskew, here: Path) -> None:
    said = unskew("run", "tiny.toml", "--out", "r", "--json")
    assert said.code == 0
    found = document(said.out)
    is_summary(found)
    assert found["run"] == "tiny"
    assert {r["method"] for r in found["rows"]} == {"fedavg", "fedprox"}
    assert {"global.accuracy", "global.accuracy.best", "global.accuracy.mean_last_fifth", "bytes.total"} <= {
        r["metric"] for r in found["rows"]
    }
    assert "fedprox (seed 1)  round 2/2" in said.err
    assert said.err.splitlines()[-1] == f"page: {Path('r/report.html')}"
    assert (here / "r" / "report.html").is_file()


def test_progress_without_a_terminal_is_plain_lines(unskew: Unskew) -> None:
    said = unskew("run", "tiny.toml", "--out", "r")
    assert not CONTROL.search(said.err)
    assert not CONTROL.search(said.out)
    for cell in ("fedavg (seed 0)", "fedprox (seed 0)", "fedavg (seed 1)", "fedprox (seed 1)"):
        line = next(line for line in said.err.splitlines() if line.startswith(f"{cell}  round 2/2"))
        for word in ("accuracy", "loss", "clients/s", "MB", "left"):
            assert word in line
    assert "IID distance" in said.err
    assert "650 parameters" in said.err


def test_the_table_for_people_says_what_was_measured_and_over_how_many_seeds(unskew: Unskew) -> None:
    said = unskew("run", "tiny.toml", "--out", "r", "-q")
    lines = said.out.splitlines()
    assert len(lines) <= 25
    assert len(said.out.split()) <= 120
    assert lines[0] == "tiny"
    assert lines[1].split()[:3] == ["method", "global", "accuracy"]
    assert "no method is clearly better than fedavg" in said.out or "is better than fedavg" in said.out


def test_seeds_are_added_to_a_run_that_decides_too_little(unskew: Unskew, here: Path) -> None:
    said = unskew("run", "tiny.toml", "--out", "r", "-q", "--no-report")
    assert said.err.splitlines()[-1] == "next: unskew run r --until 0.5 --out r-more"
    more = unskew("run", "r", "--until", 0.001, "--most", 7, "--out", "m", "-q", "--no-report", "--json")
    assert {len(r["seeds"]) for r in document(more.out)["rows"]} == {6}  # the fewest: the two hardly differ
    assert unskew("run", "m", "-q", "--no-report").err.splitlines()[-1] == "next: unskew card m"
    alone = unskew("run", "r", "--until", 0.5)
    assert (alone.code, alone.out) == (2, "")
    assert "give one of them and --out together" in alone.err


def test_a_seed_option_wins_over_the_files_seed(unskew: Unskew, here: Path) -> None:
    text = (here / "tiny.toml").read_text()
    (here / "one.toml").write_text(text.replace("seeds = [0, 1]", "seed = 7"))
    said = unskew("run", "one.toml", "--out", "r", "--seed", 2, "--seed", 5, "--json", "-q", "--no-report")
    assert {len(r["seeds"]) for r in document(said.out)["rows"]} == {2}
    assert "seeds = [\n    2,\n    5,\n]" in (here / "r" / "config.toml").read_text()


def test_options_reach_the_resolved_configuration(unskew: Unskew, here: Path) -> None:
    odd = here / 'a "b" ☂ c'
    odd.mkdir()
    said = unskew(
        "run",
        "tiny.toml",
        "--out",
        "r",
        "--seed",
        0,
        "--data-dir",
        odd,
        "--set",
        "runtime.device=cpu",
        "--set",
        "bounds=true",
        "--no-report",
        "-q",
        "--json",
    )
    assert list(dict.fromkeys(r["method"] for r in document(said.out)["rows"])) == [
        "fedavg", "fedprox", "independent", "centralised"
    ]  # fmt: skip
    again = unskew("run", "r", "--json", "--no-report")
    assert again.out == said.out
    import tomllib

    config = tomllib.loads((here / "r" / "config.toml").read_text("utf-8"))
    assert config["task"]["data_dir"] == str(odd)
    assert config["runtime"]["device"] == "cpu"


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


def test_a_report_of_no_run_is_refused(unskew: Unskew, here: Path) -> None:
    said = unskew("show", ".")
    assert said.code != 0
    assert "is not a run folder" in said.err


def test_runs_that_differ_in_more_than_methods_are_shown_with_the_reasons(unskew: Unskew, here: Path) -> None:
    one = document(unskew("run", "tiny.toml", "--out", "x/one", "--json", "--no-report").out)
    two = document(unskew("run", "tiny.toml", "--out", "two", "--json", "--no-report", "--set", "split.alpha=5.0").out)
    found = document(unskew("show", "x/one", "two", "--json").out)
    assert found.pop("comparable") is False
    assert found.pop("same_test_rows") is False
    (reason,) = found.pop("reasons")
    assert reason.startswith("“two” differs from “one” in the split of seed 0, 1: ")
    assert found.pop("verdict") == "These runs are not comparable, so no differences are given."
    assert reason in found.pop("notes")
    is_summary(found)
    strip = [{**r, "method": r["method"].partition("/")[2]} for r in found["rows"]]
    assert strip == one["rows"] + two["rows"]
    said = unskew("show", "x/one", "two", "--format", "html", "--out", "page.html")
    assert said.out == "page.html\n"
    assert "two/fedprox" in (here / "page.html").read_text("utf-8")
    said = unskew("show", "x/one", "two")
    assert "These runs are not comparable, so no differences are given." in said.out
    assert "minus" not in said.out


def test_like_runs_are_shown_with_their_differences(unskew: Unskew) -> None:
    for place, method in (("one", "fedavg"), ("two", "ditto")):
        unskew("run", "tiny.toml", "--out", place, "-q", "--no-report", "--set", f'methods=[{{name="{method}"}}]')
    said = unskew("show", "one", "two", "--format", "md").out
    assert "| minus one/fedavg, points, 95 % |" in said
    of_one, of_two = unskew("show", "one", "two", "--format", "csv").out.splitlines()[1:]
    assert of_one.startswith("one,one/fedavg,")
    assert of_two.startswith("two,two/ditto,")
    found = document(unskew("show", "one", "two", "--json").out)
    assert (found.pop("comparable"), found.pop("reasons")) == (True, [])
    row = next(r for r in found["rows"] if r["metric"] == "personal.accuracy.mean.minus_one/fedavg")
    assert row["method"] == "two/ditto"
    half = 12.7062 * row["std"] / math.sqrt(2)  # t_{.975, 1}
    assert (row["low"], row["high"]) == pytest.approx((row["mean"] - half, row["mean"] + half), rel=1e-4)
    own, base = (
        next(r for r in found["rows"] if (r["method"], r["metric"]) == (m, "personal.accuracy.mean"))
        for m in ("two/ditto", "one/fedavg")
    )
    assert row["seeds"] == pytest.approx([a - b for a, b in zip(own["seeds"], base["seeds"], strict=True)])


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


def test_runs_whose_folders_have_one_name_are_told_apart_by_their_paths(unskew: Unskew) -> None:
    for place in ("a/run", "b/run"):
        unskew("run", "tiny.toml", "--out", place, "-q", "--no-report", "--seed", 0)
    found = document(unskew("show", "a/run", "b/run", "--json").out)
    assert {r["method"] for r in found["rows"]} == {
        "a/run/fedavg", "a/run/fedprox", "b/run/fedavg", "b/run/fedprox"
    }  # fmt: skip
    assert found["same_test_rows"] is None  # of one seed


# ---------------------------------------------------------------- list
NAMES = {
    "methods": set(TABLE),
    "datasets": set(DATA.names()),
    "splits": set(SPLITS),
    "priors": {"built-in", "FOLDER", "hub:OWNER/NAME"},
    "models": {*MODELS, "module.path:factory"},
    "wrappers": {
        *("dw", "clip_norm", "top_k", "quantise", "central_dp", "dp_sgd", "local_dp"),
        *("median", "trimmed_mean", "krum", "multi_krum", "geometric_median", "norm_bound", "secure_sum"),
    },
    "server_rules": {"mean", "momentum", "adagrad", "adam", "yogi"},
    "sections": {
        "embeddings",
        "diffusion",
        "effects",
        "groups",
        "class_relations",
        "predictions",
        "privacy",
        "subgroups",
    },
    "executors": {"sequential", "workers", "stacked", "ray"},
    "trackers": {"tensorboard", "mlflow", "wandb"},
    "tasks": set(KINDS.ours),
    "metrics": {m.name for kind in map(KINDS.resolve, KINDS.ours) for m in kind.measures},
    "losses": {name for kind in map(KINDS.resolve, KINDS.ours) for name in kind.losses},
    "augmentations": {"none", "crop", "flip", "crop+flip"},
    "channels": {"even", "radio"},
    "paces": {"devices"},
    "attacks": {"honest", "sign_flip", "label_flip", "gaussian", "ALIE", "IPM", "backdoor"},
    "experiments": {"digits", "domains", "feddistr", "table"},
    "reproductions": set(papers.TABLE),
}


def test_list_alone_shows_every_kind(unskew: Unskew) -> None:
    found = document(unskew("list", "--json").out)
    assert {kind: set(names) for kind, names in found.items()} == NAMES
    out = unskew("list").out
    assert all(f"\n{kind}\n" in out for kind in NAMES)
    lines = unskew("list", "splits").out.splitlines()
    assert {line.split()[0] for line in lines} == NAMES["splits"]
    assert all(re.fullmatch(r"  \S+ +\S.*", line) for line in lines), "one line each, and something about it"


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
    settings = toolkit.settings
    monkeypatch.setattr(toolkit, "settings", lambda request: {**settings(request), "experiment": {**TINY, **changes}})


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
        assert list(claim) == ["text", "holds", "evidence"]
        assert claim["holds"] is True or claim["holds"] is False or claim["holds"] == "undecided"
        assert claim["evidence"]
    assert (here / "runs" / "here" / "summary.json").is_file()
    kept = here / "docs" / "results" / "noniid" / "digits" / "small"
    assert sorted(p.name for p in kept.iterdir()) == ["README.md", "plot.svg", "result.json"]
    assert json.loads((kept / "result.json").read_text()) == found
    assert said.err.splitlines()[-1] == f"kept: {kept.relative_to(here)}"


def test_how_a_reproduction_is_run_can_be_set_and_nothing_else(
    unskew: Unskew, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = toolkit.settings

    def tiny(request: toolkit.ReproductionRequest) -> dict[str, Any]:
        return {**settings(request), "experiment": {**TINY, "runtime": settings(request)["experiment"]["runtime"]}}

    monkeypatch.setattr(toolkit, "settings", tiny)
    assert unskew("reproduce", "noniid/digits", "--out", "it", "-q", "--set", "runtime.executor=sequential").code == 0
    assert 'executor = "sequential"' in (here / "it" / "config.toml").read_text()
    said = unskew("reproduce", "noniid/digits", "--out", "runs/other", "--set", "rounds=3")
    assert (said.code, "how a reproduction is run, as in runtime.executor=ray, got 'rounds=3'" in said.err) == (2, True)
    for words in (["noniid/digits", "--status"], ["--campaign", "papers", "--set", "runtime.executor=ray"]):
        said = unskew("reproduce", *words)
        assert (said.code, f"leave {words[-1 - words.count('--set')]} out" in said.err) == (2, True)


@pytest.mark.usefixtures("tiny_paper")
def test_a_reproduction_shows_people_a_table_and_verdicts(unskew: Unskew, here: Path) -> None:
    said = unskew("reproduce", "noniid/digits", "-q")
    assert said.code == 0
    assert said.err.splitlines()[0].startswith("page: runs/noniid-digits-")
    assert "fedprox" in said.out
    assert re.search(r"^\[(holds|does not hold|undecided)\] fedprox ends above fedavg", said.out, re.MULTILINE)
    assert not (here / "docs").exists()
    (folder,) = (here / "runs").iterdir()
    assert folder.name.startswith("noniid-digits-")


# ---------------------------------------------------------------- help
@pytest.mark.parametrize("command", ["run", "reproduce"])
def test_help_teaches_by_an_example(command: str, unskew: Unskew) -> None:
    said = unskew(command, "--help")
    assert (said.code, said.err) == (0, "")
    assert re.search(rf"^ unskew {command}( .+)?$", said.out, re.MULTILINE), "an example to copy"
    assert max(map(len, said.out.splitlines())) <= 80
    for argument in re.findall(r"Usage: unskew \w+ \[OPTIONS\] (\S+)", said.out):
        name = argument.strip("[].")
        assert re.search(rf"^ .*{name}(?! \[OPTIONS).* (is|are) ", said.out, re.MULTILINE), f"{name} is explained"


def test_help_and_version_of_the_whole(unskew: Unskew) -> None:
    said = unskew("--help")
    assert (said.code, said.err) == (0, "")
    assert len(said.out.splitlines()) <= 24
    for command in ("run", "show", "list", "reproduce"):
        assert re.search(rf"^  {command} +\S", said.out, re.MULTILINE)
    assert (unskew("--version").code, unskew("--version").out) == (0, f"{__version__}\n")
    bare = unskew()
    assert bare.err == ""
    assert bare.out.strip() == said.out.strip()
