"""Reproductions on natural clients: FLamby's numbers, its model as two logits, and what the claims decide."""

import gzip
import json
import statistics
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from unskew import papers
from unskew.errors import DataWarning
from unskew.models.linear import one_logit
from unskew.papers import natural
from unskew.run.callbacks import NoCallback


@pytest.mark.parametrize(
    ("method", "mean", "std"),
    [("Pooled", 0.735, 0.003), ("FedAvg", 0.685, 0.028), ("FedAdam", 0.726, 0.014), ("Local 0", 0.722, 0.021)],
)
def test_the_table_has_flambys_means_over_hospitals(method: str, mean: float, std: float) -> None:
    """As the results of its repository give them, over the seeds 42 to 46."""
    values = natural.mean_over_clients(natural.flamby("heart", 4)[method][:4])
    assert statistics.fmean(values) == pytest.approx(mean, abs=5e-4)
    assert statistics.stdev(values) == pytest.approx(std, abs=5e-4)


def test_two_logits_at_half_the_rate_take_the_steps_of_one() -> None:
    """With z = z1 - z0 the gradient of z1's weights is (p - y) x, of z0's its negative: z moves twice as far."""
    torch.manual_seed(0)
    x, y = torch.randn(12, 5, dtype=torch.float64), torch.randint(2, (12,))
    two = one_logit((5,), 2).double()
    one = torch.nn.Linear(5, 1).double()
    with torch.no_grad():
        one.weight.copy_(two.head.weight[1:] - two.head.weight[:1])
        one.bias.copy_(two.head.bias[1:] - two.head.bias[:1])
    fast = torch.optim.SGD(one.parameters(), 0.1)
    half = torch.optim.SGD(two.parameters(), 0.05)
    for batch in torch.arange(12).split(4):
        for optimiser, loss in (
            (fast, F.binary_cross_entropy_with_logits(one(x[batch])[:, 0], y[batch].double())),
            (half, F.cross_entropy(two(x[batch]), y[batch])),
        ):
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    torch.testing.assert_close(two.head.weight[1:] - two.head.weight[:1], one.weight)
    torch.testing.assert_close(two.head.bias[1:] - two.head.bias[:1], one.bias)


def test_means_agree_if_the_interval_of_their_difference_has_zero_in_it() -> None:
    """Of .70, .72, .74 and .73, .75, .77: difference .03, errors .02 / sqrt 3, .0163 together, t(4) 2.776: .0453."""
    near = natural.agreement("m", (0.70, 0.72, 0.74), (0.73, 0.75, 0.77))
    assert near.holds is True
    assert "-3.00 ∓ 4.53" in near.evidence
    assert natural.agreement("m", (0.70, 0.72, 0.74), (0.80, 0.82, 0.84)).holds is False
    assert natural.agreement("m", (0.5, 0.5), (0.5, 0.5)).holds is True
    assert natural.agreement("m", (0.5, 0.5), (0.6, 0.6)).holds is False


@pytest.mark.skipif(not (natural.BUNDLED / "heart.npz").is_file(), reason="heart.npz is not in the package")
def test_heart_runs_by_flambys_protocol_on_its_patients(tmp_path: Path) -> None:
    """Two seeds of one round of two steps: every row is there, with FLamby's number beside it where it has one."""
    few = {"local": {"local_steps": 2}}
    changes = {
        "experiment": {"seeds": [0, 1], "rounds": 1, "eval_every": 1},
        "federated": few,
        **{part: {"local": {"local_epochs": 1}} for part in ("alone", "pooled")},
    }
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always", DataWarning)
        result = papers.reproduce("natural/heart", "small", tmp_path, None, NoCallback(), changes)
    for text in ("Switzerland has training rows of one class only", "column 'chol' has one value only at Switzerland"):
        assert any(text in str(note.message) for note in notes)  # in FLamby's part
    rows = {(r.method, r.metric): r for r in result.rows}
    assert rows["FedAvg", "mean accuracy"].paper == pytest.approx(0.685, abs=5e-4)
    assert rows["alone", "accuracy, Cleveland"].paper == pytest.approx(0.746, abs=5e-4)
    assert rows["Cleveland's model", "mean accuracy"].paper == pytest.approx(0.722, abs=5e-4)
    assert rows["Cyclic at .01", "mean accuracy"].paper is None
    whole = [rows["FedAvg", f"accuracy, {name}"].ours or 0.0 for name in natural.HOSPITALS]
    assert rows["FedAvg", "mean accuracy"].ours == pytest.approx(statistics.fmean(whole))
    assert rows["alone", "accuracy, Cleveland"].ours == rows["Cleveland's model", "accuracy, Cleveland"].ours
    patients = json.loads((tmp_path / "federated" / "partition.json").read_text())["seeds"]["0"]
    assert patients["stats"]["sizes"] == [199, 172, 30, 85]
    assert [len(c["test"]) for c in patients["clients"]] == [104, 89, 16, 45]


# ---------------------------------------------------------------- suites
def landmine(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {"field": np.repeat(np.arange(29), 12), "y": rng.integers(0, 2, 348), "x": rng.normal(size=(348, 9))}


def wisdm(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "user": np.repeat(np.arange(1, 37), 12),
        "y": rng.integers(0, 6, 432),
        "x": rng.normal(size=(432, 43)).astype(np.float32),
        "activity": np.array([f"activity {i}" for i in range(6)]),
        "feature": np.array([f"feature {i}" for i in range(43)]),
    }


def parkinsons(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "subject": np.repeat(np.arange(1, 43), 6),
        "total": rng.normal(29, 10, 252).astype(np.float32),
        "x": rng.normal(size=(252, 3)).astype(np.float32),
        "feature": np.array(["age", "test_time", "Jitter"]),
    }


def shakespeare(rng: np.random.Generator) -> dict[str, object]:
    """Six roles of 1,200 letters."""
    texts = ["".join(rng.choice(list("abcde "), 1200)) for _ in range(6)]
    return {"clients": [{"play": "A", "role": f"role {i}", "text": [text]} for i, text in enumerate(texts)]}


def write(folder: Path, name: str, content: dict[str, Any]) -> None:
    if name == "shakespeare":
        (folder / f"{name}.json.gz").write_bytes(gzip.compress(json.dumps(content).encode()))
    else:
        np.savez(folder / f"{name}.npz", **content)


@pytest.mark.parametrize(
    ("make", "met_later", "tested", "methods"),
    [
        (landmine, 6, 6, {"alone", "FedAvg", "Ditto", "HCCT", "pooled"}),
        pytest.param(
            parkinsons, 8, 1, {"alone", "FedAvg", "Ditto", "HCCT", "Cyclic", "pooled"}, marks=pytest.mark.slow
        ),
        pytest.param(shakespeare, 1, 3, {"alone", "FedAvg", "FedPer", "Ditto"}, marks=pytest.mark.slow),
        pytest.param(wisdm, 12, 2, {"alone", "FedAvg", "Ditto", "HCCT", "pooled"}, marks=pytest.mark.slow),
    ],
)
def test_a_suite_runs_as_it_is_described(
    make: Callable[[np.random.Generator], dict[str, Any]],
    met_later: int,
    tested: int,
    methods: set[str],
    tmp_path: Path,
) -> None:
    """Random rows in the layout of the file: it is the settings that are tried, one round long."""
    write(tmp_path, make.__name__, make(np.random.default_rng(0)))
    quick: dict[str, Any] = {
        "experiment": {"rounds": 1, "eval_every": 1, "seeds": [0, 1], "local": {"local_epochs": 1}}
    }
    if make is shakespeare:
        quick["experiment"]["clients_per_round"] = 2
    name = f"natural/{make.__name__}"
    result = papers.reproduce(name, "small", tmp_path / "out", tmp_path, NoCallback(), quick)
    assert methods <= {r.method for r in result.rows}
    assert {
        f"{m} is worth it against training alone for clients that trained" for m in methods - {"alone", "pooled"}
    } <= {c.text for c in result.claims}
    partition = json.loads((tmp_path / "out" / "partition.json").read_text())["seeds"]["0"]
    assert len(partition["unseen"]["client_names"]) == met_later
    assert {len(c["test"]) for c in partition["clients"]} == {tested}
