"""All rows of a patient lie in training, in validation or in a test part, and at one client."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unskew as us
from unskew.data import Dataset, checked, load, own
from unskew.data.federated import FederatedData, federate, to_manifest
from unskew.data.patients import coded, part_of, proportional
from unskew.data.preprocess import Preprocess
from unskew.data.split import IID, Dirichlet, FromManifest, Natural, Shards, Split, TrainingExamples
from unskew.errors import DataError
from unskew.keys import Key

SITES = ("Basel", "Bern")
COLUMNS: dict[str, Any] = {"target": "sick", "client": "site", "patient": "who", "patient_ids": "site"}


def visits(people: int = 10, each: int = 3, **columns: list[Any]) -> polars.DataFrame:
    """Rows of two sites, of which both number their patients from 0; `x` is another number in each row."""
    n = 2 * people * each
    site = [SITES[i % 2] for i in range(n)]
    who = [(i // 2) // each for i in range(n)]
    rows = {
        "site": site,
        "who": who,
        "x": [i / n for i in range(n)],
        "sick": [("no", "yes")[i // 2 % 2] for i in range(n)],
    }
    return polars.DataFrame({**rows, **columns})


def who_is_in(x: Any, table: polars.DataFrame) -> set[tuple[str, Any]]:
    """Sites and patients of rows, by their number `x`."""
    near = np.abs(np.asarray(x)[:, :1] - table["x"].to_numpy()).argmin(1)
    return {(table["site"][int(i)], table["who"][int(i)]) for i in near}


def parts(fed: FederatedData) -> list[list[set[int]]]:
    """Patients in train, val and test of each client."""
    assert fed.dataset.patients is not None
    codes = fed.dataset.patients
    return [[set(codes[rows].tolist()) for rows in (c.train, c.val, c.test)] for c in fed.clients]


def apart(fed: FederatedData) -> bool:
    """True if no patient is in two parts, of whichever clients, and all examples are in one."""
    of_all = [part for client in parts(fed) for part in client]
    rows = torch.cat([torch.cat([c.train, c.val, c.test]) for c in fed.clients])
    whole = sorted(rows.tolist()) == list(range(len(fed.dataset.y_train)))
    return whole and sum(map(len, of_all)) == len(set.union(*of_all))


# ---------------------------------------------------------------- draws
def test_whether_two_clients_patients_of_one_name_are_one_is_said_or_asked_for() -> None:
    who, sites = ["1", "1", "2", "2", "2.0"], ["A", "B", "A", "A", "B"]
    assert coded(who, sites, "site").tolist() == [0, 1, 2, 2, 3]
    assert coded(who, sites, "network").tolist() == [0, 0, 1, 1, 1]
    with pytest.raises(DataError, match=r"2 patient ids occur at several sites, such as 1 at A and B; patient_ids"):
        coded(who, sites, None)
    with pytest.raises(DataError, match="patient_ids must be 'network' or 'site', got 'all'"):
        coded(who, sites, "all")  # type: ignore[arg-type]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 3)), min_size=1, max_size=80),
    st.floats(0, 0.99),
)
def test_every_holder_gives_its_share_and_so_does_every_label_of_its_rows(rows: list[tuple[int, int]], share: float):
    holders, labels = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    chosen = proportional(holders, labels, share)
    for holder in set(holders.tolist()):
        mine = holders == holder
        assert chosen[mine].sum() == part_of(int(mine.sum()), share)
        for label in set(labels[mine].tolist()):
            of = mine & (labels == label)
            assert abs(chosen[of].sum() - share * of.sum()) <= 1 + 1e-9
            assert np.diff(chosen[of].astype(int)).max(initial=-1) <= 0  # the first rows of a label


# ---------------------------------------------------------------- tables
@pytest.mark.parametrize("rules", [None, Preprocess()], ids=["as they are", "preprocessed"])
@pytest.mark.parametrize("test", [None, 0.3])
def test_no_patient_trains_and_tests_and_who_it_is_is_no_input(
    test: float | None, rules: Preprocess | None, tmp_path: Path
) -> None:
    """Ten patients at each site, of whom two, or three, are set aside with their three rows."""
    table = visits()
    data = own.dataset(table, **COLUMNS, test=test, preprocess=rules)
    aside = 3 if test else 2
    assert data.patients is not None
    assert data.test_patients is not None
    assert data.input_shape == (1,)
    tested = set(data.test_patients.tolist())
    assert (len(tested), len(data.y_test)) == (2 * aside, 6 * aside)
    trained = data.patients if data.own_test is None else data.patients[~data.own_test]
    assert not tested & set(trained.tolist())
    assert us.describe(data).patients == len(tested | set(trained.tolist())) == 20
    table.write_csv(tmp_path / "t.csv")
    options = {**COLUMNS, **({} if test is None else {"test": test})}
    again = load(f"csv:{tmp_path / 't.csv'}", None, options, rules)
    for key in ("x_train", "x_test", "patients", "test_patients"):
        assert torch.equal(getattr(again, key), getattr(data, key))
    if rules is None:
        x = data.x_train if data.own_test is None else data.x_train[~data.own_test]
        assert not who_is_in(x, table) & who_is_in(data.x_test, table)


@pytest.mark.parametrize("own_test", [False, True])
def test_clients_own_test_and_validation_rows_are_those_of_whole_patients(own_test: bool) -> None:
    """Of ten patients at a site two are the global test part; with 0.25 of all or of the rest, two each are left."""
    data = own.dataset(visits(), **COLUMNS, test=0.2 if own_test else None)
    for seed in range(5):
        fed = federate(data, Natural(), Key(seed), test_fraction=0.25, val_fraction=0.25)
        assert apart(fed)
        assert [[len(part) for part in client] for client in parts(fed)] == [[6, 2, 2] if own_test else [4, 2, 2]] * 2
    rows = [
        sorted(c.val.tolist()) for seed in range(5) for c in federate(data, Natural(), Key(seed), 0.2, 0.25).clients
    ]
    assert len(set(map(tuple, rows))) > 2  # drawn anew for every seed


# ---------------------------------------------------------------- divisions
def data_of(patients: Any, labels: Any) -> Dataset:
    x = torch.arange(len(patients), dtype=torch.float32)[:, None]
    y = torch.tensor(labels)
    who = torch.tensor(patients)
    return checked("d", x, y, x[:2], y[:2], classes=["a", "b"], patient_train=who, patient_test=torch.tensor([97, 98]))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=12, max_size=30),
    st.sampled_from([IID(3), Dirichlet(1.0, num_clients=3), Shards(2, num_clients=3)]),
    st.floats(0, 0.9),
    st.floats(0, 0.9),
    st.integers(0, 99),
)
def test_every_split_keeps_the_rows_of_a_patient_together(
    sizes: list[int], split: Split, test: float, val: float, seed: int
) -> None:
    patients = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    fed = federate(data_of(patients, patients % 2), split, Key(seed), test, val)
    assert apart(fed)
    assert all(client[0] for client in parts(fed))


@dataclass(frozen=True)
class Alternate:
    """Every second example."""

    num_clients: int = 2

    def assign(self, examples: TrainingExamples, key: Key) -> list[np.ndarray]:
        del key
        return [np.arange(i, len(examples.labels), 2) for i in (0, 1)]


def test_a_division_that_parts_a_patient_is_refused(tmp_path: Path) -> None:
    data = data_of(np.repeat(np.arange(8), 2), [0, 1] * 8)
    with pytest.raises(DataError, match="the examples 0 and 1 are of one patient"):
        federate(data, Alternate(), Key(0))
    fed = federate(data, IID(2), Key(0), 0.25, 0.25)
    file = tmp_path / "m.json"
    file.write_text(json.dumps(to_manifest(fed)))
    assert federate(data, FromManifest(str(file)), Key(1)).sha256 == fed.sha256
    torn = federate(data_of(np.arange(16), [0, 1] * 8), IID(2), Key(0), 0.25, 0.25)
    file.write_text(json.dumps({**to_manifest(torn), "dataset_sha256": data.sha256}))
    with pytest.raises(DataError, match=r"m\.json: the examples .* are of one patient, and apart"):
        federate(data, FromManifest(str(file)), Key(1))


# ---------------------------------------------------------------- patients of several clients
def shared(people: int = 60, each: int = 6) -> polars.DataFrame:
    """Rows of three sites, each patient's at any of them, so that nearly all patients are at several."""
    rng = np.random.default_rng(3)
    who = np.repeat(np.arange(people), each)
    site = np.array(["Basel", "Bern", "Chur"])[rng.integers(0, 3, len(who))]
    sick = np.where(rng.random(people) < 0.5, "no", "yes")[who]
    when = rng.integers(0, 1000, len(who))
    return polars.DataFrame({"site": site, "who": who, "x": rng.random(len(who)), "sick": sick, "when": when})


def together(fed: FederatedData) -> tuple[set[int], set[int], set[int]]:
    """Patients in all clients' training, validation and test rows."""
    of_part = [set.union(*(client[i] for client in parts(fed))) for i in range(3)]
    return of_part[0], of_part[1], of_part[2]


@pytest.mark.filterwarnings("ignore::unskew.errors.DataWarning")
@pytest.mark.parametrize("test", [None, 0.2, us.Latest("when")], ids=["drawn", "a share", "the latest"])
def test_a_patient_of_several_sites_is_in_one_part_at_all_of_them(test: Any) -> None:
    """As each site draws by itself, a patient at all three would be in one part with probability .8^3 + .2^3 = .52."""
    table = shared() if isinstance(test, us.Latest) else shared().drop("when")
    columns = {**COLUMNS, "patient_ids": "network"}
    for rules in (None, Preprocess()):
        data = own.dataset(table, **columns, test=test, preprocess=rules)
        if data.own_test is None:
            assert data.patients is not None
            assert data.test_patients is not None
            assert not set(data.patients.tolist()) & set(data.test_patients.tolist())
        fed = federate(data, Natural(), Key(1), test_fraction=0.25, val_fraction=0.25)
        train, val, tested = together(fed)
        assert train
        assert val
        assert tested
        assert not train & val
        assert not (train | val) & tested
        again = federate(data, Natural(), Key(1), test_fraction=0.25, val_fraction=0.25)
        assert again.sha256 == fed.sha256
    with pytest.raises(DataError, match=r"patient ids occur at several sites, such as "):
        own.dataset(table, **{**columns, "patient_ids": None}, test=test)
