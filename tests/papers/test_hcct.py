"""HCCT's reproductions: what is published, who holds what, what is claimed, and toy runs of all five."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unskew import papers
from unskew.data import sources
from unskew.data.dataset import Dataset
from unskew.errors import DataError
from unskew.keys import Key
from unskew.papers import hcct, study
from unskew.papers.hcct import domains, shards, thirds
from unskew.papers.result import Result, pivot
from unskew.papers.study import Draft
from unskew.run.cell import Observer

KEY = Key(7)


def test_patterns_are_compared_where_the_published_errors_are_apart() -> None:
    """Client 1: 23.54, 38.16, 49.90, 96.14 with spreads below 5; (2,3) leaves it alone and is Independent to it.

    Client 3: 27.30 and 31.32 are 4.02 apart, their spreads 1.85 and 1.53 together 3.38; (1,2) leaves it alone.
    """
    methods = draft_of("table2", Path())["experiment"]["methods"]
    patterns = {label: of["groups"] for label, of in methods.items()}
    one, two, three = (hcct.published_order(client, patterns) for client in range(3))
    chain = ["Partial (1,2)", "Independent", "Global", "Partial (1,3)"]
    assert set(one) == {(a, b) for i, a in enumerate(chain) for b in chain[i + 1 :]}
    assert ("Independent", "Partial (1,2)") not in two
    assert ("Global", "Partial (2,3)") in two
    assert set(three) == {
        ("Independent", "Partial (2,3)"), ("Independent", "Global"), ("Partial (1,3)", "Partial (2,3)"),
        ("Partial (1,3)", "Global"), ("Partial (2,3)", "Global"),
    }  # fmt: skip


# ---------------------------------------------------------------- who holds what
@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 grey-ish images of 8x8 in ten classes and three domains; a class is a bright row, a domain a tint."""
    y, d = np.arange(600) % 10, np.arange(600) // 200
    x = (KEY / "images").numpy().integers(0, 90, (600, 8, 8, 3)).astype(np.uint8)
    for i in range(600):
        x[i, y[i] % 8] += np.uint8(130 if y[i] >= 8 else 100)
        x[i, :, :, d[i]] += np.uint8(20)
    file = tmp_path_factory.mktemp("toy") / "toy.npz"
    order = (KEY / "order").numpy().permutation(600)
    np.savez(file, x_train=x[order], y_train=y[order], domain_train=d[order], domains=np.array(["r", "g", "b"]))
    return file


@pytest.fixture(scope="module")
def dataset(toy: Path) -> Dataset:
    return sources.load(f"npz:{toy}")


def sizes(clients: hcct.Clients) -> tuple[list[int], list[int]]:
    return [len(c.train) for c in clients], [len(c.test) for c in clients]


def every(clients: hcct.Clients) -> Iterator[torch.Tensor]:
    return (part for c in clients for part in (c.train, c.val, c.test))


def test_clients_of_a_domain_have_what_they_train_on_and_are_tested_on_the_rest(dataset: Dataset) -> None:
    assert dataset.domains is not None
    clients = domains(dataset, KEY, 2, 25)
    smallest = int(torch.bincount(dataset.domains).min()) // 2
    assert sizes(clients) == ([25] * 6, [smallest - 25] * 6)
    assert [dataset.domains[c.train].unique().tolist() for c in clients] == [[0], [0], [1], [1], [2], [2]]
    assert len(torch.cat(list(every(clients))).unique()) == 6 * smallest


def test_shards_have_one_class_each_and_ratios_nest(dataset: Dataset) -> None:
    """Of 20 shards of 24 images a client with one has one class; a larger ratio adds to what is trained on."""
    small, large = (shards(dataset, KEY, 4, ratio, 0.2, count=20) for ratio in (0.2, 0.6))
    for a, b in zip(small, large, strict=True):
        assert torch.equal(a.test, b.test)
        assert set(a.train.tolist()) < set(b.train.tolist())
    held = torch.cat(list(every(large)))
    assert len(held.unique()) == len(held)
    most = shards(dataset, KEY, 4, 0.8, 0.2, count=20)
    for c in most:
        counts = torch.bincount(dataset.y_train[torch.cat([c.train, c.test])])
        assert all(n % 24 in (0, 1, 2, 23, 22) for n in counts.tolist())


def test_three_clients_share_two_halves_of_the_classes(dataset: Dataset) -> None:
    """480 images, 240 of each half, a half of them trained on: 24 and 96 of the first, 120 of the second."""
    clients = thirds(dataset, KEY, 0.5, 30)
    low = int((dataset.y_train < 5).sum())
    first = round(0.5 * low)
    assert sizes(clients)[0] == [first // 5, first - first // 5, round(0.5 * (len(dataset.y_train) - low))]
    assert sizes(clients)[1] == [30, 30, 30]
    for c, label in zip(clients, (0, 0, 5), strict=True):
        assert set((dataset.y_train[torch.cat([c.train, c.test])] // 5 * 5).tolist()) == {label}
    assert len(torch.cat(list(every(clients))).unique()) == sum(len(p) for p in every(clients))
    with pytest.raises(DataError, match="300 test examples per client"):
        thirds(dataset, KEY, 0.5, 300)


RELEASED = {f"{name}, released code" for name in ("global", "hcct", "hcct_e", "hcct_p")}


# ---------------------------------------------------------------- toy runs
def draft_of(name: str, folder: Path, scale: str = "small", **changes: Any) -> Draft:
    return Draft(f"hcct/{name}", scale, folder, None, Observer(), changes)


def shrunk(toy: Path, divide: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A task's settings on the toy's images, for two rounds."""
    task = {"data": f"npz:{toy}", "model": "mlp", "model_options": {"hidden": [8]}, "augment": "none"}
    return {"task": task, "rounds": 2, "divide": divide, **changes}


def reproduce(
    name: str, folder: Path, tasks: dict[str, Any], methods: dict[str, Any] | None = None, **changes: Any
) -> Result:
    """The reproduction with two seeds, on these grounds alone, whose settings replace their own, as methods do."""
    draft = draft_of(name, folder, seeds=[0, 1], **{"on": list(tasks), **changes})
    draft.settings["grounds"] = {task: {**draft["grounds"][task], **own} for task, own in tasks.items()}
    if methods is not None:
        draft["experiment"]["methods"] = methods
    return study.made(draft, papers.REPRODUCTIONS.resolve(draft.name))


@pytest.mark.slow
def test_the_nine_methods_run_with_both_alphas_on_domains(toy: Path, tmp_path: Path) -> None:
    """Three clusters, for there are no more clients than six."""
    fewer = {"maxfl": {"solo_rounds": 2}, "ifca": {"clusters": 3}, "flsc": {"clusters": 3}}
    fewer["groups by true domain"] = {"groups": [[0, 1], [2, 3], [4, 5]]}
    divide = {"by": "domains", "per_domain": 2, "train": 25}
    tasks = {"Digit": shrunk(toy, divide, local={"local_epochs": 1, "drop_last": False})}
    tasks["Digit"]["task"] |= {"model": "cnn_small", "model_options": {"norm": "batch"}}
    result = reproduce("table4", tmp_path, tasks, grounds={"Digit": {"methods": fewer}})
    rows = {(r.method, r.metric): r for r in result.rows}
    methods = {m for m, metric in rows if metric == "error"}
    assert methods == {*hcct.TABLE4, hcct.BY_PILOT, "groups by true domain"} | RELEASED
    assert {rows[m, "error"].spread_over for m in methods} == {"clients"}
    assert rows["hcct", "error"].paper == rows["hcct, released code", "error"].paper == pytest.approx(0.2006)
    assert rows["hcct", "error.seeds_std"].paper == pytest.approx(0.0066)
    assert rows["hcct", "error.max"].paper == pytest.approx(0.3944)
    assert rows["hcct_p", "error.max"].paper is None
    assert rows[hcct.BY_PILOT, "error"].paper == pytest.approx(0.2006)
    assert {a / 25 for a in rows[hcct.BY_PILOT, "alpha"].seeds} <= {0.0, 0.1, 0.25, 0.5, 1.0}
    assert len(rows[hcct.BY_PILOT, "alpha"].seeds) == 2
    assert [c.text for c in result.claims] == [
        f"Digit: {m} has a smaller error than all that is not HCCT"
        for m in ("hcct", hcct.BY_PILOT, "hcct, released code")
    ]
    heads, _ = pivot(result.rows)
    assert {"error, %", "error.seeds_std, %", "alpha"} <= set(heads)


def test_groups_are_forced_and_their_utility_is_read(toy: Path, tmp_path: Path) -> None:
    """Alone a client's utility is 1 - alpha / D = 1 - 100 / 25 = -3."""
    tasks = {"Digit": shrunk(toy, {"by": "domains", "per_domain": 2, "train": 25})}
    methods = {f"{k} groups": {"name": "hcct", "groups": k, "alpha": 100.0} for k in (1, 3, 6)}
    methods["9 groups"] = {
        "name": "hcct",
        "groups": 2,
        "alpha": 1.0,
        "local": {"lr": 1e30},
    }  # diverges, and is left out
    few = {"divide": {"per_domain": 1}, "compare": ["1 groups", "3 groups"]}
    both = {"on": ["Digit, 3 clients", "Digit, 6 clients"], "settings": {"3 clients": few, "6 clients": {}}}
    result = reproduce("groups", tmp_path, tasks, methods, **both)
    assert {r.note[:8] for r in result.rows if r.method == "9 groups"} == {"diverged"}
    rows = [r for r in result.rows if r.metric == "utility"]
    utility = {r.method: r.ours for r in rows if r.setting == "6 clients"}
    assert {r.method for r in rows if r.setting == "3 clients"} == {"1 groups", "3 groups"}
    assert utility["6 groups"] == pytest.approx(-3.0)
    assert utility["1 groups"] > utility["3 groups"] > -3.0
    assert [c.x for c in result.curves.values()] == [(0.0, 1.0), (0.0, 1.0, 2.0)] * 2
    assert [c.text.partition(":")[0] for c in result.claims][:2] == ["3 clients", "6 clients"]


def test_groups_are_turned_or_relabelled_and_as_large_as_each_other() -> None:
    """Image i has the pixels 4 i to 4 i + 3: turned by a quarter (0 1 / 2 3) is (1 3 / 0 2)."""
    x, y = torch.arange(48.0).reshape(12, 1, 2, 2), torch.arange(12) % 3
    data = Dataset("toy", x, y, x, y, ("a", "b", "c"), None, (), "")
    turned = hcct.in_groups(data, "turned", 4, 9, KEY)
    assert turned["domain_train"].tolist() == [0, 1, 2, 3] * 2
    for x, y, g in zip(turned["x_train"], turned["y_train"], turned["domain_train"], strict=True):
        i = x.min() // 4
        assert y == i % 3
        assert x[0].ravel().tolist() == [4 * i + k for k in ((0, 1, 2, 3), (1, 3, 0, 2), (3, 2, 1, 0), (2, 0, 3, 1))[g]]
    other = hcct.in_groups(data, "relabelled", 2, 12, KEY)
    own = other["x_train"].min((1, 2, 3)) // 4 % 3
    assert (other["y_train"] == own)[other["domain_train"] == 0].all()
    names = {
        (a, b) for a, b, g in zip(own.tolist(), other["y_train"].tolist(), other["domain_train"], strict=True) if g
    }
    assert len(names) == len(dict(names)) == len({b for _, b in names}) > 1  # one label for another, both ways


def test_known_groups_are_compared_with_those_that_are_found(toy: Path, tmp_path: Path) -> None:
    groups = {"how": "turned", "count": 2, "examples": 400}
    tasks = {"turned": shrunk(toy, {"by": "domains", "per_domain": 2, "train": 40}, groups=groups)}
    tasks["relabelled"] = {**tasks["turned"], "groups": {**groups, "how": "relabelled"}}
    methods: dict[str, Any] = {"HCCT": {"name": "hcct", "alpha": 1e6}, "IFCA": {"name": "ifca", "clusters": 2}}
    methods["groups by true domain"] = {"groups": [[0, 1], [2, 3]]}
    result = reproduce("known-groups", tmp_path, tasks, experiment={"methods": methods})
    rows = {(r.method, r.setting, r.metric): r for r in result.rows}
    # All in one group is what chance finds.
    assert rows["HCCT", "turned", "adjusted Rand"].seeds == (0.0, 0.0)
    assert rows["HCCT", "turned", "error"].seeds != rows["HCCT", "relabelled", "error"].seeds
    texts = {c.text: c for c in result.claims}
    assert "turned: groups by true domain errs less than one global model" in texts
    assert texts["relabelled: HCCT finds the known groups (adjusted Rand above 0.9)"].holds is False
    assert len(texts) == 2 * (4 * 2 + 3)


def test_arrivals_are_told_from_founders(toy: Path, tmp_path: Path) -> None:
    """Two at first, one or two more after each of two rounds: after three there are two and two, or two and four."""
    tasks = {"CIFAR-10": shrunk(toy, {"by": "shards", "clients": 6, "train": 0.2, "test": 0.2, "count": 20}, rounds=3)}
    result = reproduce("arrivals", tmp_path, tasks, new=[1, 2], start=2, every=1)
    settings = {(r.setting, r.metric) for r in result.rows}
    assert ("0 every 1 rounds", "error.arrivals") not in settings
    assert ("2 every 1 rounds", "error.arrivals") in settings
    assert len(result.claims) == 2 + 2 * 2 + 2
    # All who are there: the mean over two founders, and over as many as have come.
    errors = {(r.method, r.setting, r.metric): r.ours for r in result.rows}
    one = "1 every 1 rounds"
    assert errors["hcct", one, "error"] == pytest.approx(
        (errors["hcct", one, "error.founders"] + errors["hcct", one, "error.arrivals"]) / 2
    )
    # Nobody joined by alpha 0: with more arrivals the founders are what they were.
    alone = [r.seeds for r in result.rows if (r.method, r.metric) == ("alone", "error.founders")]
    assert alone[0] == alone[1]
