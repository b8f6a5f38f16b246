"""Every method on tasks without classes: it learns them, or is refused in one sentence before any work."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import unskew as us
from unskew import algorithms, schema
from unskew.errors import ConfigError
from unskew.experiment.config import method, parse
from unskew.papers.noniid import MORE
from unskew.tasks import KINDS, kind_of
from unskew.tasks.kind import NEEDS, given, needs_of

RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 3)).astype(np.float32)
Y = X @ np.array([1.0, -1.0, 0.5])
TARGETS: Mapping[str, Any] = {
    "regression": Y,
    "binary": Y > 0,
    "survival": np.stack([RNG.exponential(np.exp(-Y)), RNG.random(90) < 0.7], 1),
}
TASKS = {
    "regression": us.TaskConfig(kind="regression", bins=2),
    "binary": us.TaskConfig(kind="binary"),
    "survival": us.TaskConfig(kind="survival"),
}
SAMPLE = ["scaffold", "hcct", "feddif", "moon", "maxfl"]
LOCAL = {"lr": 0.01, "batch_size": 10, "local_epochs": 2}
NEED_OF = {name: needs_of(algorithms.resolve(name)()) for name in algorithms.TABLE}


def options(name: str) -> dict[str, Any]:
    return {"local": LOCAL} if "local" in schema.parameters(algorithms.resolve(name)) else {}


@pytest.mark.parametrize(
    ("kind", "some"),
    [*((kind, True) for kind in TASKS), *(pytest.param(kind, False, marks=pytest.mark.slow) for kind in TASKS)],
)
def test_every_method_that_goes_with_a_kind_learns_it(kind: str, some: bool) -> None:
    """Two rounds of a small network: every method reports the headline of some model, and all numbers are finite."""
    able = given(kind_of(kind), binned=True) - {"images"}
    names = [name for name, needs in NEED_OF.items() if able.issuperset(needs) and name not in MORE]
    assert set(names) >= set(SAMPLE)
    names = SAMPLE if some else names
    history = us.simulate(
        {name: method(name, options(name)).method for name in names},
        data=(X, TARGETS[kind]),
        task=TASKS[kind],
        model="mlp",
        split=us.IID(num_clients=3),
        rounds=2,
        eval_every=2,
        progress=False,
    )
    headline = kind_of(kind).headline
    last = {(r["method"], r["name"]): r["value"] for r in history.rows if r["round"] == 2}
    for name in names:
        values = [last[name, m] for m in (headline.shared, headline.own) if (name, m) in last]
        assert values, name
        assert np.isfinite(values).all(), name


@pytest.mark.parametrize("kind", KINDS.names())
def test_a_method_that_cannot_learn_a_kind_is_refused_before_any_work(kind: str) -> None:
    able = given(kind_of(kind))
    for name, needs in NEED_OF.items():
        if able.issuperset(needs):
            continue
        table = {"rounds": 1, "task": {"kind": kind}, "methods": [{"name": name}]}
        with pytest.raises(ConfigError, match=f"^{name} needs .*, which task.kind = '{kind}' has not"):
            parse(table)


def test_needs_are_words_that_are_known_and_are_found_in_terms_and_wrappers() -> None:
    declared = {need for needs in NEED_OF.values() for need in needs}
    assert declared | {"apart"} == set(NEEDS)
    assert needs_of(us.wrap(us.FedAvg(), us.ClipNorm(1.0), us.DW())) == ("classes", "classifier")
    assert needs_of(us.FedUV()) == ("classifier", "features")
    assert needs_of(us.FedAvg()) == ()
    with pytest.raises(ConfigError, match=r"; set task\.bins$"):
        parse({"rounds": 1, "task": {"kind": "regression"}, "methods": [{"name": "feddif"}]})
