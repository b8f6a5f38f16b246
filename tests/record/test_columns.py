"""Who has which examples, where clients are many: the same as in lists; what is no such file is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from records import rewrite

from unskew.data import checked
from unskew.data.federated import federate, to_columns
from unskew.data.manifest import read_manifest
from unskew.data.split import ByGroup
from unskew.errors import DataError, RunError
from unskew.experiment.config import Experiment
from unskew.history import load_run
from unskew.keys import Key
from unskew.record import columns, reader
from unskew.record.logs import rows as recorded
from unskew.run import loop

EVERYTHING = "evaluate=['global','personal','personal_on_global','macro_f1']"


@pytest.fixture(scope="module")
def both(tiny: Callable[..., Experiment], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run of four clients with lists, and the same with columns."""
    folder = tmp_path_factory.mktemp("both")
    lists = loop.start(tiny("rounds=2", EVERYTHING), folder / "lists")
    more = loop.start(tiny("rounds=2", EVERYTHING, "client_rows=3"), folder / "columns")
    assert lists.summary["fingerprint"] == more.summary["fingerprint"]
    return lists.folder, more.folder


def test_numbers_of_clients_are_those_of_the_last_round(
    both: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [r for r in recorded(both[0], "metrics") if "client" in r]
    names = {f"{part}.{m}" for part in ("personal", "personal_on_global") for m in ("accuracy", "loss", "macro_f1")}
    assert {(r["name"], r["round"]) for r in rows} == {(name, 2) for name in names}
    few = load_run(both[0])
    assert [r for r in few.rows if "client" in r] == rows
    monkeypatch.setattr(reader, "MANY", 3)
    many = load_run(both[0])
    assert not any("client" in row for row in many.rows)
    for name in names:
        values = {r["client"]: r["value"] for r in rows if r["name"] == name}
        assert few.client_values("fedavg", name) == many.client_values("fedavg", name, seed=0) == values
        assert list(values) == [0, 1, 2, 3]
    for kept in (few, many):
        with pytest.raises(KeyError, match=r"fedavg, seed 1, has no personal\.accuracy of single clients"):
            kept.client_values("fedavg", seed=1)


def test_a_division_in_columns_reads_as_one_in_lists(both: tuple[Path, Path]) -> None:
    lists, with_columns = map(reader.read, both)
    assert with_columns.partitions == lists.partitions
    card, whole = (json.loads((f / "partition.json").read_text())["seeds"]["0"] for f in reversed(both))
    assert card["columns"] == columns.partition_file(0)
    assert "clients" not in card
    assert card["stats"]["labels"] == np.array(whole["stats"]["label_counts"]).sum(0).tolist()
    assert card["sha256"] == whole["sha256"]


def test_clients_of_one_domain_each_have_it_in_a_column(tmp_path: Path) -> None:
    x = torch.arange(24.0).reshape(12, 2)
    data = checked("toy", x, torch.arange(12) % 2, x[:2], torch.arange(2), domain_train=torch.arange(12) // 6)
    columns.write(tmp_path / columns.partition_file(0), to_columns(federate(data, ByGroup(2), Key(0))))
    assert columns.partition_columns(tmp_path, 0)["domains"].tolist() == [0, 0, 1, 1]


def test_a_division_in_columns_is_no_manifest(both: tuple[Path, Path], tmp_path: Path) -> None:
    card = json.loads((both[1] / "partition.json").read_text())["seeds"]["0"]
    (tmp_path / "m.json").write_text(json.dumps(card))
    with pytest.raises(DataError, match="is none: clients: Field required; write it anew"):
        read_manifest(tmp_path / "m.json")


@pytest.mark.parametrize("content", [b"", b"no columns", b"\xff" * 100, b"\x02\0\0\0\0\0\0\0{}\0"])
def test_a_file_that_is_no_columns_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / columns.ROWS_FILE
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"rows\.safetensors: it has no column.*; the file is corrupt, restore it"):
        columns.given_rows(tmp_path)


def test_results_by_test_row_come_back(both: tuple[Path, Path]) -> None:
    tested = columns.RowResults({1: (np.array([7, 8]), np.array([0.5, 1.0])), 4: (np.array([2]), np.zeros(1))}, True)
    rewrite(both[0], tested=[{"method": "fedavg", "seed": 0, "round": 2, **row} for row in tested.rows()])
    back = reader.read(both[0]).tested_rows["fedavg", 0]
    assert back.ranked
    assert list(back.rows()) == list(tested.rows())
