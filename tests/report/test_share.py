"""A copy of a run's folder for others: what it has, and what it must not have."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars
import pytest
from records import rewrite
from typer.testing import CliRunner

import unskew as us
from unskew.cli.app import app
from unskew.errors import ConfigError, RunError
from unskew.record.database import TABLES
from unskew.record.logs import rows
from unskew.report import read
from unskew.report.share import share, without_values

N = 120


def table() -> polars.DataFrame:
    """A regression with a word that one row has, and targets that can be looked for."""
    rng = np.random.default_rng(0)
    ward = ["RareWard" if i == 5 else "ab"[i % 2] for i in range(N)]
    los = (rng.normal(size=N) * 3.0).round(6)
    return polars.DataFrame({"age": rng.normal(60, 9, N), "ward": ward, "los": los, "site": list("ABC") * (N // 3)})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "own"
    us.simulate(
        {"alone": us.Independent(), "fedavg": us.FedAvg(), "noised": us.wrap(us.FedAvg(), us.CentralDP())},
        data=table(), target="los", client="site", task="regression", preprocess=True, rounds=2, seeds=(0, 1),
        local=us.SgdConfig(lr=0.001), progress=False, out=folder,
    )  # fmt: skip
    return folder


def test_a_copy_has_no_row_of_the_data_and_no_model(run: Path, tmp_path: Path) -> None:
    copy = share(run, tmp_path / "copy")
    names = {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()}
    assert names == {
        "run.json", "config.toml", "partition.json", "run.sqlite", "summary.json", "report.html",
    }  # fmt: skip
    frame = table()
    secrets = ["RareWard", str(tmp_path.parent), *map(str, frame["los"]), *map(str, frame["age"])]
    secrets += [repr(float(np.float32(v))) for column in ("los", "age") for v in frame[column]]

    def leaked(folder: Path) -> set[str]:
        text = "".join(path.read_text() for path in folder.rglob("*.*") if path.suffix in (".json", ".html"))
        text += "".join(json.dumps(row) for name in TABLES for row in rows(folder, name))
        # A value of three decimals may stand in the code that draws charts, by chance.
        return {secret for secret in secrets if secret in text and len(secret) > 6}

    assert leaked(copy) == set()
    assert "RareWard" in leaked(run)
    assert len(leaked(run)) > 20  # true targets


def test_a_copy_is_read_as_the_run_is(run: Path, tmp_path: Path) -> None:
    copy, app_run = tmp_path / "copy", CliRunner()
    assert app_run.invoke(app, ["show", str(run), "--share", str(copy)]).stdout.strip() == str(copy)
    ours, theirs = us.load_run(run), us.load_run(copy)
    assert theirs.rows == ours.rows
    assert {**theirs.summary, "record_sha256": ours.summary["record_sha256"]} == ours.summary  # not the same rows
    assert theirs.client_values("fedavg") == ours.client_values("fedavg")
    # Who knows all rows but one value could try it out by a hash of them.
    unhashed = {seed: replace(p, dataset_sha256="") for seed, p in read(run).partitions.items()}
    assert read(copy).partitions == unhashed != read(run).partitions
    tables = [app_run.invoke(app, ["show", str(folder), "--format", "md"]).stdout for folder in (run, copy)]
    assert tables[0] == tables[1]
    other = share(run, tmp_path / "other")
    assert app_run.invoke(app, ["show", str(copy), str(other)]).exit_code == 0
    text = (copy / "report.html").read_text()
    assert "Differential privacy" in text
    with pytest.raises(RunError, match="copy exists already; give --share a new folder"):
        share(run, copy)
    wrong = app_run.invoke(app, ["show", str(run), str(copy), "--share", str(tmp_path / "x")])
    assert isinstance(wrong.exception, ConfigError)


def test_no_setting_of_a_copy_has_a_path_a_word_of_a_column_or_a_key_and_labels_stay() -> None:
    """They name machines, people and words."""
    task = {
        "data": "csv:/srv/ward 7/own.csv",
        "data_dir": "/srv",
        "data_options": {"gaps": ["HIV"]},
        "preprocess": {"scale": "agreed", "columns": {"ward": {"words": ["a"]}}},
        "model": "mlp",
        "model_options": {"weights": "/home/j/w.pt", "depth": 2},
    }
    method = {
        "name": "feddistr",
        "label": "a/b",
        "prior": "file:/home/j/p.safetensors",
        "of": [{"x": "C:\\\\u\\\\x.pt"}],
    }
    given = {
        "rounds": 2, "task": task, "methods": [method], "split": {"name": "manifest", "path": "/srv/ward 7/split.json"},
        "track": ["mlflow"], "track_options": {"mlflow": {"uri": "https://ward7:key@host"}},
    }  # fmt: skip
    kept = {"data": "csv:own.csv", "preprocess": {"scale": "agreed"}, "model": "mlp",
            "model_options": {"weights": "w.pt", "depth": 2}}  # fmt: skip
    assert without_values(given) == {
        "rounds": 2, "task": kept, "split": {"name": "manifest", "path": "split.json"},
        "methods": [{"name": "feddistr", "label": "a/b", "prior": "file:p.safetensors", "of": [{"x": "C:x.pt"}]}],
    }  # fmt: skip
    assert without_values({"task": {"data": "digits"}}) == {"task": {"data": "digits"}}


def test_a_link_in_a_run_is_not_followed_and_no_reason_names_a_path(run: Path, tmp_path: Path) -> None:
    """The attack that worked: a log of somebody's run led to a key of whoever shared it."""
    theirs = tmp_path / "theirs"
    shutil.copytree(run, theirs)
    (tmp_path / "key").write_text("secret\n")
    (theirs / "run.sqlite").rename(tmp_path / "record")
    (theirs / "run.sqlite").symlink_to(tmp_path / "key")
    with pytest.raises(RunError, match=r"run\.sqlite cannot be read: it is a link"):
        share(theirs, tmp_path / "copy")
    (tmp_path / "record").replace(theirs / "run.sqlite")
    row = {"method": "fedavg", "seed": 0, "round": 1, "client": 0}
    rewrite(theirs, failures=[{**row, "reason": r} for r in ("late", "refused: restore /home/j/state")])
    copy = share(theirs, tmp_path / "copy")
    assert [f["reason"] for f in read(copy).failures] == ["late", "refused: left out, as it names a path"]
    assert "begun_in" not in json.loads((copy / "run.json").read_text())


def test_a_run_that_has_not_ended_is_not_shared(run: Path, tmp_path: Path) -> None:
    (tmp_path / "begun").mkdir()
    for name in ("run.json", "run.sqlite"):
        shutil.copy(run / name, tmp_path / "begun")
    with pytest.raises(RunError, match="is not done"):
        share(tmp_path / "begun", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
