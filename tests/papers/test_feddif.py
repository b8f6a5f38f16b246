"""FedDif's reproductions."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from unskew.papers import Request, feddif, result
from unskew.run.callbacks import NoCallback

SHARED = Path(__file__).parents[3] / "shared" / "data"


def request(name: str, folder: Path) -> Request:
    return Request(f"feddif/{name}", "small", folder, SHARED, NoCallback())


def test_the_cost_formula_is_the_published_one_but_for_an_erratum(tmp_path: Path) -> None:
    result = feddif.table3_formula(request("table3-formula", tmp_path))
    assert len(result.rows) == 19
    assert [c.holds for c in result.claims] == [True, True]


def test_the_carried_distance_is_worked_out_along_the_chain() -> None:
    """Two classes.  Client 0 has (4, 0), client 1 (1, 3): psi goes from (1, 0) to (5/8, 3/8).

    The distance to (1/2, 1/2) goes from sqrt(1/2) to sqrt(2) / 8; the second model stays with client 1 at sqrt(2) / 4.
    """
    histograms = torch.tensor([[4, 0], [1, 3]])
    info = {"starts": [0, 1], "hops": [{"moves": [{"model": 0, "src": 0, "dst": 1}]}]}
    (first, closed), (stays, _) = feddif._distances(info, histograms)
    assert first == pytest.approx([2**-0.5, 2**0.5 / 8])
    assert closed == pytest.approx(first)
    assert stays == pytest.approx([2**0.5 / 4] * 2)


def test_a_round_that_has_ended_keeps_its_last_distance() -> None:
    assert feddif._mean_by_hop([[[4.0, 2.0, 0.0], [2.0]]]) == [[3.0, 2.0, 1.0]]


@pytest.mark.parametrize(("values", "verdict"), [((8.9, 9.0), True), ((8.9, 12.0), False)])
def test_iterations_near_the_published_ones_are_confirmed(values: tuple[float, ...], verdict: bool) -> None:
    """579 / 65 = 8.91; within 15 % is 7.57 to 10.24."""
    rows = [result.over_seeds("FedDif eps1, p000", "hard", "iterations_per_round", values, 579 / 65)]
    rows += [
        result.over_seeds(f"FedDif eps1, {who}", setting, "iterations_per_round", (base, base + 0.5))
        for who, base in (("paper", 20.0), ("p000", 9.0))
        for setting in ("hard", "soft")
    ]
    claims = feddif._iteration_claims(rows)
    assert claims[0].holds is verdict
    assert len(claims) == 3


def test_a_split_has_every_label_once_and_no_client_far_above_the_mean() -> None:
    held = feddif._histograms("hard", 100, 500, 100, 0)
    assert held.sum(0).tolist() == [500] * 100
    assert int(held.sum(1).min()) >= 100
    assert int(held.sum(1).max()) < 1000


@pytest.mark.slow
def test_the_comparison_runs_and_prices_every_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (SHARED / "fashion_mnist").is_dir():
        pytest.skip(f"{SHARED / 'fashion_mnist'} is not here")
    plan = replace(feddif.PLANS["small"][0], rounds=2, seeds=(0, 1), settings=("hard",), train=4000)
    monkeypatch.setitem(feddif.PLANS, "small", (plan,))
    result = feddif.accuracy(request("accuracy", tmp_path))
    methods = {"fedavg", "feddc", "fedswap", "tthf", "stc", "feddif eps1", "feddif eps2", "feddif eps3"}
    found = {(r.method, r.metric): r for r in result.rows}
    assert {m for m, _ in found} == methods
    assert found["fedavg", "to_target.iterations"].seeds == found["fedavg", "to_target.rounds"].seeds
    assert found["feddif eps1", "bytes.total"].ours > found["fedavg", "bytes.total"].ours > 0
    assert {c.text.split()[0] for c in result.claims} == {m.split()[0] for m in methods - {"fedavg"}}
