"""Text of others that a terminal would obey, in folders and errors, and files that were edited until they disagree."""

import hashlib
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from unskew.record import database
from unskew.run.folder import DOCUMENTS

from .conftest import Unskew

ORDER = "\x1b]0;title\x07\x1b[31m"


@pytest.fixture
def run(unskew: Unskew, here: Path) -> Path:
    unskew("run", "tiny.toml", "--set", "rounds=1", "--set", "seeds=[0]", "--out", "run", "--no-report", "-q")
    shutil.copytree("run", "other")
    return here / "run"


def edited(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


def made_to_agree(run: Path) -> None:
    """Give the folder hashes of what stands in it now, as whoever means harm would."""
    documents = {name: hashlib.sha256((run / name).read_bytes()).hexdigest() for name in DOCUMENTS}
    with closing(sqlite3.connect(run / database.FILE)) as connection:
        change = "UPDATE checkpoint SET position = json_set(position, '$.documents', json(?))"
        connection.execute(change, (json.dumps(documents),))
        connection.commit()
    summary = json.loads((run / "summary.json").read_text("utf-8"))
    summary["record_sha256"] = database.sha256(run)
    (run / "summary.json").write_text(json.dumps(summary), "utf-8")


def test_a_terminal_obeys_nothing_that_stands_in_a_folder_or_in_an_error(unskew: Unskew, run: Path) -> None:
    written = json.dumps(ORDER)[1:-1]
    edited(run / "run.json", '"run": "tiny"', f'"run": "tiny{written}"')
    dataset = json.loads((run / "partition.json").read_text("utf-8"))["seeds"]["0"]["dataset"]
    edited(run / "partition.json", json.dumps(dataset), json.dumps(dataset + ORDER))
    made_to_agree(run)
    said = [unskew("show", "run"), unskew("show", f"{ORDER}run"), unskew("run", f"{ORDER}.toml")]
    assert [s.code for s in said[1:]] == [2, 2]
    assert not any("\x1b" in s.out + s.err for s in said)
    assert all("\\x1b]0;title" in s.out + s.err for s in said)


def test_nor_in_a_finished_run_that_is_resumed(unskew: Unskew, run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text("utf-8"))
    summary |= {"stopped": {f"{ORDER}fedavg/0": f"done {ORDER}"}, "fingerprint": f"[/]{ORDER}", "run": f"[/]{ORDER}"}
    (run / "summary.json").write_text(json.dumps(summary), "utf-8")
    for path in run.glob("*.json*"):  # and, in place of a method's name, in all that is said of it
        path.write_text(path.read_text("utf-8").replace('"fedprox"', f'"fed[/]{json.dumps(ORDER)[1:-1]}"'), "utf-8")
    made_to_agree(run)
    said = unskew("run", "run")
    assert said.code == 0, said.err
    assert "\x1b" not in said.out + said.err
    assert "\\x1b]0;title\\x07\\x1b[31mfedavg/0: done" in said.out
    assert "fingerprint [/]\\x1b]0;title" in said.out


def test_a_folder_whose_files_disagree_ends_in_no_traceback(unskew: Unskew, run: Path) -> None:
    edited(run / "config.toml", 'label = "fedprox"', 'label = "another"')
    rows = json.loads((run / "summary.json").read_text("utf-8"))
    for row in rows["rows"]:
        del row["std"]
    (run / "summary.json").write_text(json.dumps(rows), "utf-8")
    assert unskew("show", "run", "other").code == 0
