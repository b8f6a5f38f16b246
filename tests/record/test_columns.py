"""Numbers of many clients as columns: the same numbers as rows, and files that are no such columns are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unskew.errors import RunError
from unskew.experiment.config import Experiment
from unskew.record import columns, reader
from unskew.record.logs import METRICS
from unskew.run import loop

EVERYTHING = "evaluate=['global','personal','personal_on_global']"


@pytest.fixture(scope="module")
def both(tiny: Callable[..., Experiment], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run of four clients with rows, and the same with columns."""
    folder = tmp_path_factory.mktemp("both")
    rows = loop.start(tiny("rounds=2", EVERYTHING), folder / "rows")
    more = loop.start(tiny("rounds=2", EVERYTHING, "client_rows=3"), folder / "columns")
    return rows.folder, more.folder


def test_columns_hold_what_rows_would(both: tuple[Path, Path]) -> None:
    rows, with_columns = both
    of_clients = [r for r in METRICS.rows(rows) if "client" in r]
    assert {(r["name"], r["round"]) for r in of_clients} == {
        ("personal.accuracy", 2),
        ("personal_on_global.accuracy", 2),
    }
    in_columns = {
        (c.method, c.seed, c.round, c.name, *row)
        for c in columns.client_columns(with_columns)
        for row in zip(c.client.tolist(), c.value.tolist(), c.weight.tolist(), strict=True)
    }
    keys = ("method", "seed", "round", "name", "client", "value", "weight")
    assert in_columns == {tuple(r[key] for key in keys) for r in of_clients}
    others = [r for r in METRICS.rows(rows) if "client" not in r and r["name"] != "seconds"]
    assert [r for r in METRICS.rows(with_columns) if r["name"] != "seconds"] == others
    assert reader.read(with_columns).clients == reader.read(rows).clients
    assert len(reader.read(rows).clients["fedavg", 0]) == 4


def test_as_many_clients_as_have_rows_have_no_columns(
    both: tuple[Path, Path], tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    assert not (both[0] / columns.FOLDER).exists()
    folder = loop.start(tiny("rounds=1", "client_rows=4"), tmp_path / "run").folder
    assert not (folder / columns.FOLDER).exists()


def test_the_fingerprint_and_the_file_are_the_same_every_time_and_of_these_numbers(
    both: tuple[Path, Path], tiny: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = loop.start(tiny("rounds=2", EVERYTHING, "client_rows=3"), tmp_path / "again")
    name = f"{columns.FOLDER}/fedavg-seed0.npz"
    assert (again.folder / name).read_bytes() == (both[1] / name).read_bytes()
    prints = [json.loads((folder / "summary.json").read_text())["fingerprint"] for folder in both]
    assert again.summary["fingerprint"] == prints[1] != prints[0]
    write = columns.write_clients

    def falsified(path: Path, method: str, seed: int, round: int, metrics: dict[str, Any]) -> str:
        return write(path, method, seed, round, {n: (c, v + 0.01, w) for n, (c, v, w) in metrics.items()})

    monkeypatch.setattr(columns, "write_clients", falsified)
    other = loop.start(tiny("rounds=2", EVERYTHING, "client_rows=3"), tmp_path / "other")
    assert other.summary["fingerprint"] != prints[1]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"personal.accuracy.value": np.ones(3)}, "as many values and weights as clients"),
        ({"personal.accuracy.value": np.array([0.5, np.nan])}, "no number"),
        ({"personal.accuracy.client": np.array([1, 1])}, "in ascending order, each once"),
        ({"personal.accuracy.client": np.array([-1, 1])}, "in ascending order, each once"),
        ({"personal.accuracy.client": np.array(["a", "b"])}, "column personal.accuracy.client is of the kind <U1"),
        ({"seed": np.array([0, 1])}, "must be one each"),
        ({"method": np.array("other")}, "run.json has no cell for method 'other'"),
        ({"personal.accuracy.weight": None}, "it has no column personal.accuracy.weight"),
    ],
)
def test_columns_that_no_run_writes_are_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        "method": np.array("fedavg"), "seed": np.array(0), "round": np.array(2),
        "metrics": np.array(["personal.accuracy"]),
        "personal.accuracy.client": np.array([0, 2]), "personal.accuracy.value": np.array([0.5, 1.0]),
        "personal.accuracy.weight": np.array([2.0, 3.0]), **changes,
    }  # fmt: skip
    (tmp_path / columns.FOLDER).mkdir()
    columns.write(tmp_path / columns.FOLDER / "a.npz", {n: a for n, a in arrays.items() if a is not None})
    with pytest.raises(RunError, match=said):
        reader._client_columns(tmp_path, {("fedavg", 0)})


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04", b"\x93NUMPY"])
def test_a_file_that_is_no_archive_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / columns.FOLDER).mkdir()
    (tmp_path / columns.FOLDER / "a.npz").write_bytes(content)
    with pytest.raises(RunError, match=r"a\.npz: it is no archive of columns"):
        list(columns.client_columns(tmp_path))
