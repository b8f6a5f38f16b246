import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unskew.data import Dataset, checked
from unskew.data.federated import FederatedData, federate, from_manifest, pooled, to_manifest
from unskew.data.manifest import PARTS, part_in, sha256_of
from unskew.data.split import IID, Dirichlet, FromManifest
from unskew.errors import DataError
from unskew.keys import Key


def toy(n: int = 100, groups: bool = False) -> Dataset:
    x, y = torch.arange(2.0 * n).reshape(n, 2), torch.arange(n) % min(n, 4)
    return checked("toy", x, y, x[:4], y[:4], **({"domain_train": torch.arange(n) % 2} if groups else {}))


def everything(fed: FederatedData) -> list[int]:
    return sorted(int(i) for c in fed.clients for part in (c.train, c.val, c.test) for i in part)


def save(path: Path, content: dict[str, Any], **changes: object) -> Path:
    """The manifest with some entries changed and, unless given, a hash that fits its indices."""
    content = content | changes
    if "sha256" not in changes:
        content["sha256"] = sha256_of(*(part_in(content["parts"][name]) for name in PARTS))
    path.write_text(json.dumps(content))
    return path


@given(st.integers(1, 60), st.floats(0, 0.99), st.floats(0, 0.99), st.integers(0, 99))
def test_parts_are_disjoint_complete_and_leave_something_to_train(n: int, test: float, val: float, seed: int):
    fed = federate(toy(n), IID(max(n // 5, 1), min_samples=1), Key(seed), test, val)
    assert everything(fed) == list(range(n))
    assert all(len(c.train) >= 1 for c in fed.clients)
    assert all((part.diff() > 0).all() for c in fed.clients for part in (c.train, c.val, c.test))


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


def test_pooling_joins_training_and_leaves_tests_alone():
    fed = federate(toy(), Dirichlet(), Key(0), 0.2, 0.1)
    union = pooled(fed)
    (client,) = union.clients
    assert client.train.tolist() == sorted(i for c in fed.clients for i in c.train.tolist())
    assert client.val.tolist() == sorted(i for c in fed.clients for i in c.val.tolist())
    assert len(client.test) == 0
    assert union.sha256 != fed.sha256


def test_a_manifest_brings_back_the_division(tmp_path: Path):
    fed = federate(toy(), Dirichlet(0.3), Key(7), val_fraction=0.1)
    path = tmp_path / "partition.json"
    path.write_text(json.dumps(to_manifest(fed)))
    for again in (from_manifest(path, toy()), federate(toy(), FromManifest(str(path)), Key(0))):
        assert to_manifest(again) == to_manifest(fed)
        assert torch.equal(again.clients[4].val, fed.clients[4].val)


def test_a_manifest_of_other_data_is_refused(tmp_path: Path):
    path = save(tmp_path / "m.json", to_manifest(federate(toy(), IID(), Key(0))))
    with pytest.raises(DataError, match=rf"divides data of SHA-256 {toy().sha256}, not {toy(99).sha256}"):
        from_manifest(path, toy(99))


WHOLE = {"train": [[1], [2]], "val": [[], []], "test": [[], [3]]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 2}, "schema: "),
        ({"parts": {**WHOLE, "train": [[1], []]}}, "a client without training examples"),
        ({"parts": {**WHOLE, "test": [[], [100]]}}, "each index in one place, and from 0 to 99"),
        ({"parts": {**WHOLE, "test": [[], [2]]}}, "each index in one place"),
        ({"parts": {**WHOLE, "train": [[3], [3]]}}, "each index in one place"),
        ({"split": {}}, "split.name is missing"),
        ({"parts": {**WHOLE, "test": [[], [-1]]}, "sha256": ""}, "parts.test.1.0: "),
        ({"parts": {"train": WHOLE["train"]}, "sha256": ""}, "parts.val: "),
        ({"sha256": "0" * 64}, "was changed after it was written"),
    ],
)
def test_a_broken_manifest_is_refused(tmp_path: Path, changes: dict[str, object], message: str):
    path = save(tmp_path / "m.json", to_manifest(federate(toy(), IID(), Key(0))), **changes)
    with pytest.raises(DataError, match=message):
        from_manifest(path, toy())


def test_an_index_moved_by_hand_is_noticed(tmp_path: Path):
    content = to_manifest(federate(toy(), IID(), Key(0)))
    train = content["parts"]["train"]
    train[1].append(train[0].pop())
    with pytest.raises(DataError, match="changed after it was written"):
        from_manifest(save(tmp_path / "m.json", content, sha256=content["sha256"]), toy())
