"""Every method at its defaults: who ends below FedAvg."""

from pathlib import Path
from typing import Any

import pytest

from unskew.papers import Result, noniid
from unskew.papers.study import Draft, made
from unskew.run.cell import Observer


def test_every_method_that_needs_no_more_than_a_network_is_tried_as_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {"fedavg", "ditto", "scaffold"} <= {*noniid.tried()}
    monkeypatch.setattr(noniid, "tried", lambda: ["fedavg", "ditto", "hcct"])
    quick: dict[str, Any] = {"rounds": 1, "seeds": [0, 1]}
    draft = Draft("noniid/defaults_heart", "small", tmp_path, None, Observer(), {"experiment": quick})
    result = made(draft, noniid.defaults)
    assert {r.method for r in result.rows} == {*noniid.tried(), "independent", "centralised"}
    gains = {r.method: r for r in result.rows if r.metric.endswith("minus_fedavg")}
    own = {r.method: r for r in result.rows if r.metric == noniid.OWN}
    assert gains["ditto"].seeds == pytest.approx(
        [a - b for a, b in zip(own["ditto"].seeds, own["fedavg"].seeds, strict=True)]
    )
    (claim,) = result.claims
    assert claim.text.startswith("no method ends below FedAvg")
    assert claim.evidence.endswith("; the smallest of 2")
    even = Draft("noniid/defaults", "small", tmp_path, None, Observer())
    assert even["experiment"]["split"]["alpha"] == 0.1


def with_rows(rows: dict[tuple[str, str], list[float]], monkeypatch: pytest.MonkeyPatch, name: str) -> Result:
    """The result of a reproduction whose tuned methods have these values by seed, by method and metric."""

    def tuned(draft: Draft, _: Any) -> list[Any]:
        for (method, metric), values in rows.items():
            draft.add(method, "here", metric, values)
        return []

    monkeypatch.setattr(noniid, "_tuned", tuned)
    changes = {"compare": list(dict.fromkeys(method for method, _ in rows))}
    draft = Draft(f"noniid/{name}", "small", Path(), None, Observer(), changes)
    return made(draft, noniid.ranked if name.startswith("all") else noniid.tuned)


def test_a_tuned_method_is_above_fedavg_if_it_stands_for_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Differences of 5 points, standard deviation .816, over seven seeds: B(0) is 1 / .0032, thrice .01.

    Of methods for clients' own models, Ditto and FedPer, these are compared, whatever their global model.
    """
    base = [0.5, 0.52, 0.48, 0.51, 0.49, 0.5, 0.5]
    more = [0.06, 0.05, 0.04, 0.05, 0.06, 0.04, 0.05]
    values = {
        ("fedavg", "global.accuracy"): base,
        ("fedavg", noniid.OWN): base,
        ("fedavgm", "global.accuracy"): [b + d for b, d in zip(base, more, strict=True)],
        ("ditto", "global.accuracy"): base,
        ("ditto", noniid.OWN): [b + d for b, d in zip(base, more, strict=True)],
        ("fedper", noniid.OWN): [b - d for b, d in zip(base, more, strict=True)],
        ("scaffold", "global.accuracy"): base[::-1],
    }
    claims = with_rows(values, monkeypatch, "tuned_mnist_writers").claims
    assert [c.text.partition(",")[0] for c in claims] == ["fedavgm", "ditto", "fedper", "scaffold"]
    assert [c.holds for c in claims] == [True, True, False, None]
    assert claims[0].evidence.startswith("+5.00 points, 98.75 % confidence sequence [+")


def test_ranks_begin_with_the_best_of_each_seed_and_equal_ones_share_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {("fedavg", noniid.OWN): [0.9, 0.4], ("b", noniid.OWN): [0.8, 0.7], ("c", noniid.OWN): [0.8, 0.7]}
    result = with_rows(values, monkeypatch, "all_digits")
    ranks = {r.method: r.seeds for r in result.rows if r.metric == "rank"}
    assert ranks == {"fedavg": (1.0, 3.0), "b": (2.5, 1.5), "c": (2.5, 1.5)}


@pytest.mark.seconds
def test_every_method_is_tuned_and_ranked_under_fresh_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna", reason="optuna is not installed (extra [tune])")
    monkeypatch.setattr(noniid, "tried", lambda: ["fedavg", "ditto"])
    quick = {"rounds": 2, "task": {"data": "digits", "model_options": {"hidden": [8]}}}
    changes = {"trials": 2, "fresh_seeds": [1, 2], "experiment": quick}
    result = made(Draft("noniid/all_digits", "small", tmp_path, None, Observer(), changes), noniid.ranked)
    assert result.seeds == (1, 2)
    assert {r.method: sum(r.seeds) for r in result.rows if r.metric == "rank"}.keys() == {"fedavg", "ditto"}
    assert [c.text for c in result.claims] == ["tuned, no method ends below fedavg on clients' own test examples"]
