import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unskew.data import skew
from unskew.data.dataset import Dataset, checked
from unskew.data.federated import FederatedData, federate, from_manifest, pooled, to_manifest
from unskew.data.manifest import index_sha256
from unskew.data.split import IID, ByGroup, Dirichlet, FromManifest
from unskew.errors import ConfigError, DataError
from unskew.keys import Key


def toy(n: int = 100, groups: bool = False) -> Dataset:
    x, y = torch.arange(2.0 * n).reshape(n, 2), torch.arange(n) % min(n, 4)
    return checked("toy", x, y, x[:4], y[:4], domains=torch.arange(n) % 2 if groups else None)


def everything(fed: FederatedData) -> list[int]:
    return sorted(int(i) for c in fed.clients for part in (c.train, c.val, c.test) for i in part)


def save(path: Path, content: dict[str, Any], **changes: object) -> Path:
    """The manifest with some entries changed and, unless given, a hash that fits its indices."""
    content = content | changes
    if "sha256" not in changes:
        content["sha256"] = index_sha256([[c["train"], c["val"], c["test"]] for c in content["clients"]])
    path.write_text(json.dumps(content))
    return path


@given(st.integers(1, 60), st.floats(0, 0.99), st.floats(0, 0.99), st.integers(0, 99))
def test_parts_are_disjoint_complete_and_leave_something_to_train(n: int, test: float, val: float, seed: int):
    fed = federate(toy(n), IID(max(n // 5, 1), min_samples=1), Key(seed), test, val)
    assert everything(fed) == list(range(n))
    assert all(len(c.train) >= 1 for c in fed.clients)
    assert all((part.diff() > 0).all() for c in fed.clients for part in (c.train, c.val, c.test))


def test_the_repr_of_data_and_of_their_division_is_a_line():
    data = toy(100)
    assert repr(data) == "<Dataset toy: 100 training and 4 test examples of 4 classes>"
    assert repr(federate(data, IID(5), Key(3))) == "<FederatedData of toy: iid, 5 clients, seed 3>"


def test_shares_are_rounded_half_up_and_validation_comes_from_training():
    """n 25: test .2 x 25 = 5; val .125 x 20 = 2.5 -> 3; train 17."""
    (client,) = federate(toy(25), IID(1), Key(0), 0.2, 0.125).clients
    assert (len(client.train), len(client.val), len(client.test)) == (17, 3, 5)


@pytest.mark.parametrize(("n", "tested"), [(1, 0), (2, 0), (3, 1), (7, 1), (8, 2)])
def test_a_client_too_small_for_a_test_part_has_none(n: int, tested: int):
    """.2 x 2 = .4 -> 0; .2 x 3 = .6 -> 1; .2 x 7 = 1.4 -> 1; .2 x 8 = 1.6 -> 2."""
    (client,) = federate(toy(n), IID(1, min_samples=1), Key(0)).clients
    assert len(client.test) == tested


def test_the_same_key_gives_the_same_parts():
    a, b, c = (federate(toy(), Dirichlet(), Key(seed)) for seed in (1, 1, 2))
    assert a.sha256 == b.sha256 != c.sha256
    assert torch.equal(a.clients[3].test, b.clients[3].test)


def test_domains_reach_the_split():
    fed = federate(toy(groups=True), ByGroup(), Key(0))
    assert [set((c.train % 2).tolist()) for c in fed.clients] == [{0}, {1}]


def test_pooling_joins_training_and_leaves_tests_alone():
    fed = federate(toy(), Dirichlet(), Key(0), 0.2, 0.1)
    union = pooled(fed)
    (client,) = union.clients
    assert client.train.tolist() == sorted(i for c in fed.clients for i in c.train.tolist())
    assert client.val.tolist() == sorted(i for c in fed.clients for i in c.val.tolist())
    assert len(client.test) == 0
    assert union.sha256 != fed.sha256


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_a_fraction_out_of_range_is_refused(fraction: float):
    with pytest.raises(ConfigError, match=r"test_fraction must be in \[0, 1\)"):
        federate(toy(), IID(), Key(0), test_fraction=fraction)
    with pytest.raises(ConfigError, match=r"val_fraction must be in \[0, 1\)"):
        federate(toy(), IID(), Key(0), val_fraction=fraction)


def test_a_manifest_brings_back_the_division(tmp_path: Path):
    fed = federate(toy(), Dirichlet(0.3), Key(7), val_fraction=0.1)
    path = tmp_path / "partition.json"
    path.write_text(json.dumps(to_manifest(fed)))
    for again in (from_manifest(path, toy()), federate(toy(), FromManifest(str(path)), Key(0))):
        assert to_manifest(again) == to_manifest(fed)
        assert torch.equal(again.clients[4].val, fed.clients[4].val)


def test_a_manifest_says_what_was_done():
    fed = federate(toy(), Dirichlet(0.3, num_clients=5), Key(7))
    content = to_manifest(fed)
    assert content["split"] == {"name": "dirichlet", "alpha": 0.3, "by": "class", "num_clients": 5, "min_samples": 2}
    assert (content["schema"], content["dataset"], content["n"], content["seed"]) == (1, "toy", 100, 7)
    assert content["stats"]["sizes"] == [len(c.train) for c in fed.clients]
    assert np.array(content["stats"]["label_counts"]).sum(1).tolist() == content["stats"]["sizes"]
    assert content["stats"]["js"] == pytest.approx(skew.js_divergence(fed.label_counts).mean())


def test_a_manifest_names_the_domains_of_clients_that_have_one_each():
    by_domain = federate(toy(groups=True), ByGroup(2), Key(0))
    assert to_manifest(by_domain)["stats"]["domains"] == [0, 0, 1, 1]
    mixed = federate(toy(groups=True), IID(4), Key(0))
    assert "domains" not in to_manifest(mixed)["stats"]
    assert "domains" not in to_manifest(federate(toy(), IID(4), Key(0)))["stats"]


def test_a_manifest_of_other_data_is_refused(tmp_path: Path):
    path = save(tmp_path / "m.json", to_manifest(federate(toy(), IID(), Key(0))))
    with pytest.raises(DataError, match=rf"divides toy with SHA-256 {toy().sha256}, but toy has {toy(99).sha256}"):
        from_manifest(path, toy(99))


def test_a_manifest_that_asks_for_other_clients_is_refused(tmp_path: Path):
    path = save(tmp_path / "m.json", to_manifest(federate(toy(), IID(), Key(0))))
    with pytest.raises(DataError, match="has 10 clients, but num_clients is 4"):
        federate(toy(), FromManifest(str(path), num_clients=4), Key(0))


def client(train: list[object], val: list[object] | None = None, test: list[object] | None = None) -> dict[str, object]:
    return {"train": train, "val": val or [], "test": test or []}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 2}, "must be a JSON object of schema 1, got 2"),
        ({"n": "100"}, "must have n as int, got str"),
        ({"clients": []}, "has no clients"),
        ({"clients": [client([1]), client([], [2])]}, "client 1 has no training examples"),
        ({"clients": [client([1, 100])]}, r"train of client 0 has 100, indices must be integers 0\.\.99"),
        ({"clients": [client([1], [-1])]}, "val of client 0 has -1"),
        ({"clients": [client([1, 2.0])]}, r"train of client 0 has 2\.0"),
        ({"clients": [client([True])]}, "train of client 0 has True"),
        ({"clients": [client([1]), client([2], [], [1])]}, "example 1 belongs to client 0 and to test of client 1"),
        ({"clients": [client([1, 2], [2])]}, "example 2 belongs to client 0 and to val of client 0"),
        ({"clients": [client([3, 1, 3])]}, "train of client 0 has example 3 twice"),
        ({"sha256": "0" * 64}, r"was changed after it was written: .* it says 0000"),
    ],
)
def test_a_broken_manifest_is_refused(tmp_path: Path, changes: dict[str, object], message: str):
    path = save(tmp_path / "m.json", to_manifest(federate(toy(), IID(), Key(0))), **changes)
    with pytest.raises(DataError, match=message):
        from_manifest(path, toy())


def test_an_index_moved_by_hand_is_noticed(tmp_path: Path):
    content = to_manifest(federate(toy(), IID(), Key(0)))
    content["clients"][0]["train"].append(content["clients"][1]["train"].pop())
    with pytest.raises(DataError, match="changed after it was written"):
        from_manifest(save(tmp_path / "m.json", content, sha256=content["sha256"]), toy())


def test_a_client_with_missing_or_foreign_parts_is_refused(tmp_path: Path):
    content = to_manifest(federate(toy(), IID(), Key(0)))
    for broken in ({"train": [1]}, [1], client([1]) | {"extra": []}):
        content["clients"][2] = broken
        with pytest.raises(DataError, match="client 2 must have train, val, test and nothing else"):
            from_manifest(save(tmp_path / "m.json", content, sha256=""), toy())
    content["clients"][2] = {"train": [5], "val": 3, "test": []}
    content["clients"] = content["clients"][2:3]
    with pytest.raises(DataError, match="val of client 0 must be a list"):
        from_manifest(save(tmp_path / "m.json", content, sha256=""), toy())


def test_an_unreadable_manifest_is_refused(tmp_path: Path):
    with pytest.raises(DataError, match="cannot be read: No such file"):
        from_manifest(tmp_path / "none.json", toy())
    (tmp_path / "m.json").write_text('{"schema": 1, ')
    with pytest.raises(DataError, match="is not JSON"):
        from_manifest(tmp_path / "m.json", toy())
    (tmp_path / "m.json").write_text("[]")
    with pytest.raises(DataError, match="schema 1, got list"):
        from_manifest(tmp_path / "m.json", toy())
