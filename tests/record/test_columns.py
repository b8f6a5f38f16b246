"""Numbers of many clients as columns: the same numbers as rows, and files that are no such columns are refused."""

import io
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unskew import machine
from unskew.data.dataset import checked
from unskew.data.federated import federate, to_columns
from unskew.data.manifest import read_manifest
from unskew.data.split import ByGroup
from unskew.errors import DataError, RunError
from unskew.experiment.config import Experiment
from unskew.history import load_run
from unskew.keys import Key
from unskew.record import columns, reader
from unskew.record.logs import METRICS
from unskew.run import documents, loop
from unskew.run.callbacks import NoCallback, Progress
from unskew.tasks.measure import ACCURACY

EVERYTHING = "evaluate=['global','personal','personal_on_global','macro_f1']"


@pytest.fixture(scope="module")
def both(tiny: Callable[..., Experiment], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run of four clients with rows, and the same with columns."""
    folder = tmp_path_factory.mktemp("both")
    rows = loop.start(tiny("rounds=2", EVERYTHING), folder / "rows")
    more = loop.start(tiny("rounds=2", EVERYTHING, "client_rows=3"), folder / "columns")
    return rows.folder, more.folder


def test_columns_hold_what_rows_would(both: tuple[Path, Path]) -> None:
    rows, with_columns = both
    client_values = [r for r in METRICS.rows(rows) if "client" in r]
    assert {(r["name"], r["round"]) for r in client_values} == {
        (f"{part}.{name}", 2)
        for part in ("personal", "personal_on_global")
        for name in ("accuracy", "loss", "macro_f1")
    }
    in_columns = {
        (c.method, c.seed, c.round, c.name, *row)
        for c in columns.client_columns(with_columns)
        for row in zip(c.client.tolist(), c.value.tolist(), c.weight.tolist(), strict=True)
    }
    keys = ("method", "seed", "round", "name", "client", "value", "weight")
    assert in_columns == {tuple(r[key] for key in keys) for r in client_values}
    others = [r for r in METRICS.rows(rows) if "client" not in r and r["name"] != "seconds"]
    assert [r for r in METRICS.rows(with_columns) if r["name"] != "seconds"] == others
    assert reader.read(with_columns).clients == reader.read(rows).clients
    assert len(reader.read(rows).clients["fedavg", 0]) == 4


def test_a_history_gives_the_numbers_of_clients_from_rows_or_columns(both: tuple[Path, Path]) -> None:
    in_rows, in_columns = map(load_run, both)
    for name in ("personal.accuracy", "personal_on_global.accuracy", "personal.macro_f1", "personal.loss"):
        assert in_rows.client_values("fedavg", name) == in_columns.client_values("fedavg", name, seed=0)
    assert list(in_columns.client_values("fedavg")) == [0, 1, 2, 3]
    assert not any("client" in row for row in in_columns.rows)
    for kept in (in_rows, in_columns):
        with pytest.raises(KeyError, match=r"fedavg, seed 1, has no personal\.accuracy of single clients"):
            kept.client_values("fedavg", seed=1)


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
        ({"personal.accuracy.value": np.array([0.5, np.nan])}, "not a number"),
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
        reader._client_columns(tmp_path, {("fedavg", 0)}, ACCURACY)


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04", b"\x93NUMPY"])
def test_a_file_that_is_no_archive_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / columns.FOLDER).mkdir()
    (tmp_path / columns.FOLDER / "a.npz").write_bytes(content)
    with pytest.raises(RunError, match=r"a\.npz: it is not an archive of columns"):
        list(columns.client_columns(tmp_path))


# ---------------------------------------------------------------- who holds what
def test_a_division_in_columns_reads_as_one_in_lists(both: tuple[Path, Path]) -> None:
    rows, with_columns = map(reader.read, both)
    assert with_columns.partitions == rows.partitions
    assert reader.holdings(with_columns, 0) == reader.holdings(rows, 0)
    card, lists = (json.loads((f / "partition.json").read_text())["seeds"]["0"] for f in reversed(both))
    assert card["columns"] == "partition-seed0.npz"
    assert "clients" not in card
    sizes = lists["stats"]["sizes"]
    assert {k: card["stats"][k] for k in ("num_clients", "smallest", "largest")} == {
        "num_clients": 4,
        "smallest": min(sizes),
        "largest": max(sizes),
    }
    assert card["stats"]["labels"] == np.array(lists["stats"]["label_counts"]).sum(0).tolist()
    assert card["sha256"] == lists["sha256"]


def test_clients_of_one_domain_each_have_it_in_a_column(tmp_path: Path) -> None:
    x = torch.arange(24.0).reshape(12, 2)
    data = checked("toy", x, torch.arange(12) % 2, x[:2], torch.arange(2), domains=torch.arange(12) // 6)
    columns.write(tmp_path / columns.partition_file(0), to_columns(federate(data, ByGroup(2), Key(0))))
    assert columns.partition_columns(tmp_path, 0).domains.tolist() == [0, 0, 1, 1]


def test_many_examples_of_all_seeds_together_are_in_columns_of_few_clients_too(
    both: tuple[Path, Path], tiny: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text of all of them would be longer than what is read; the limit is lowered to that of one seed."""
    seeds = json.loads((both[0] / "partition.json").read_text())["seeds"]
    stats = seeds["0"]["stats"]
    monkeypatch.setattr(documents, "MOST_NUMBERS", seeds["0"]["n"] + 2 * 4 * len(stats["label_counts"][0]))
    one = loop.start(tiny("rounds=1"), tmp_path / "one").folder
    assert json.loads((one / "partition.json").read_text())["seeds"]["0"] == seeds["0"]
    two = loop.start(tiny("rounds=1", "seeds=[0, 1]"), tmp_path / "two").folder
    assert all("clients" not in of for of in json.loads((two / "partition.json").read_text())["seeds"].values())
    assert reader.holdings(reader.read(two), 0) == reader.holdings(reader.read(one), 0)
    assert not (two / columns.FOLDER).exists()


def test_a_run_with_columns_is_resumed(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    experiment = tiny("rounds=2", "client_rows=3", "runtime.checkpoint_every=1")
    whole = loop.start(experiment, tmp_path / "whole").summary["fingerprint"]

    class Crashes(NoCallback):
        def progress(self, progress: Progress) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop.start(experiment, tmp_path / "run", Crashes())
    assert loop.resume(tmp_path / "run").summary["fingerprint"] == whole


def test_a_division_in_columns_is_no_manifest_and_says_what_to_do(both: tuple[Path, Path], tmp_path: Path) -> None:
    card = json.loads((both[1] / "partition.json").read_text())["seeds"]["0"]
    (tmp_path / "m.json").write_text(json.dumps(card))
    with pytest.raises(DataError, match=r"are in partition-seed0\.npz; divide again with client_rows"):
        read_manifest(tmp_path / "m.json")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train_sizes": np.array([1, 1])}, "how many of train each client has"),
        ({"train_sizes": np.array([-1, 3])}, "how many of train each client has"),
        ({"label_counts": np.array([1, 2])}, "must be a table of counts"),
        ({"label_counts": np.array([[1, -2]])}, "must be a table of counts"),
        ({"domains": np.array([0])}, "domains one for each"),
    ],
)
def test_divisions_that_no_run_writes_are_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    arrays = {"train": np.array([5, 1, 0]), "train_sizes": np.array([1, 2]), "label_counts": np.eye(2, dtype=np.int64)}
    path = tmp_path / columns.partition_file(0)
    columns.write(path, arrays)
    assert list(columns.part_rows(tmp_path, 0, "train")) == [[5], [1, 0]]
    columns.partition_columns(tmp_path, 0)
    columns.write(path, {**arrays, **changes})
    with pytest.raises(RunError, match=said):
        (columns.partition_columns(tmp_path, 0), columns.part_rows(tmp_path, 0, "train"))


def test_a_column_that_claims_more_than_it_has_is_refused_before_room_is_made_for_it(tmp_path: Path) -> None:
    member = io.BytesIO()
    np.lib.format.write_array_header_1_0(member, {"descr": "<i8", "fortran_order": False, "shape": (1 << 50,)})
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("train.npy", member.getvalue() + bytes(8))
    with pytest.raises(RunError, match=r"a\.npz: .* column train has not the \(1125899906842624,\) values"):
        columns.read(tmp_path / "a.npz", {"train": "i"})


def test_a_column_of_which_a_small_file_would_make_gigabytes_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    """A megabyte of the archive stands for a gigabyte of zeros; the limits are lowered, so that the test makes 2 MB."""
    columns.write(tmp_path / "bomb.npz", {"sizes": np.zeros(250_000, np.int64)})
    assert (tmp_path / "bomb.npz").stat().st_size < 20_000
    assert len(columns.read(tmp_path / "bomb.npz", {"sizes": "i"})["sizes"]) == 250_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "ROOM", 2**19)
        patch.setattr(columns, "MOST_PACKED", 10)
        with pytest.raises(RunError, match=r"sizes would unpack to 2,000,\d+ bytes"):
            columns.read(tmp_path / "bomb.npz", {"sizes": "i"})


def test_counts_of_many_clients_and_classes_are_read_as_large_as_partition_json_says(
    both: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nearly all are 0 and pack at 200 to 1; the limits are lowered, so that a small table is a large one."""
    monkeypatch.setattr(columns, "ROOM", 0)
    monkeypatch.setattr(columns, "MOST_PACKED", 10)
    folder = shutil.copytree(both[1], tmp_path / "run")
    path, card = folder / columns.partition_file(0), json.loads((folder / "partition.json").read_text())
    counts = np.zeros((4, 5000), np.int32)
    columns.write(path, {"label_counts": counts, "test_counts": counts})
    stats = card["seeds"]["0"]["stats"]

    def written(labels: int) -> Path:
        stats["labels"] = [0] * labels
        (folder / "partition.json").write_text(json.dumps(card))
        return folder

    assert len(reader.read(written(5000)).partitions[0].test_counts[0]) == 5000
    with pytest.raises(RunError, match=r"label_counts would unpack to 80,128 bytes"):
        reader.read(written(2000))
    monkeypatch.setattr(machine, "available", lambda: 80_000)
    with pytest.raises(RunError, match=r"column label_counts of .*partition-seed0\.npz holds .* GB"):
        reader.read(written(5000))


def member(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    return file.getvalue()


def with_header(text: str, values: bytes = b"") -> bytes:
    header = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + values


def archived(content: bytes, compression: int = zipfile.ZIP_DEFLATED) -> bytearray:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("a.npy", content)
    return bytearray(file.getvalue())


def marked(flags: int = 0, compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    archive = archived(member(np.arange(3)))
    for head, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = archive.find(head) + at
        archive[place], archive[place + 2] = flags, compression
    return bytes(archive)


def broken_lzma() -> bytes:
    archive = archived(member(np.arange(300)), zipfile.ZIP_LZMA)
    archive[45:60] = b"\xff" * 15
    return bytes(archive)


def nested(depth: int) -> bytes:
    return bytes(archived(with_header(f"{{'descr': '<i8', 'fortran_order': False, 'shape': ({'-' * depth}1,)}}")))


NO_CHARACTER = with_header("{'descr': '<U1', 'fortran_order': False, 'shape': ()}", b"\xff" * 4)


@pytest.mark.parametrize(
    "content",
    [
        marked(flags=1),
        marked(compression=99),
        broken_lzma(),
        *map(nested, (900, 5000, 9000)),
        bytes(archived(NO_CHARACTER)),
    ],
    ids=["encrypted", "unknown compression", "lzma", "nested", "nested deeper", "nested deepest", "no character"],
)
def test_an_archive_that_libraries_fail_at_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(RunError, match=r"a\.npz: it is not an archive of columns: .+; the file is corrupt"):
        str(columns.read(tmp_path / "a.npz", {"a": "iU"})["a"])
