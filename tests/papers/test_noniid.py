"""Every method at its defaults: who ends below FedAvg."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unskew.papers import noniid
from unskew.papers.study import Draft, ReproductionRequest
from unskew.run.cell import Observer

GAINS = {"worse": [-0.02, -0.03, -0.025], "better": [0.02, 0.03, 0.025], "open": [-0.02, 0.02, 0.01]}


def test_a_method_whose_interval_lies_below_is_named_with_it() -> None:
    """Mean -2.5 points, standard error 0.5 / sqrt 3 = .289; Student's t at two degrees of freedom is 4.303."""
    claim = noniid.none_below("none", GAINS)
    assert claim.verdict == "does not hold"
    assert claim.evidence == (
        "of 3, 1 above it, 1 undecided, 0 level, 1 below, 1 if corrected for 3 (Holm): "
        "worse -2.50 points, 95 % interval [-3.74, -1.26] over 3 seeds"
    )
    assert noniid.none_below("none", {"better": GAINS["better"], "level": [0.0, 0.0, 0.0]}).holds is True
    assert noniid.none_below("none", {"better": GAINS["better"], "open": GAINS["open"]}).holds is None


def test_one_of_many_methods_below_by_chance_refutes_nothing() -> None:
    """-4 points, standard error .577: Student's t with two degrees of freedom is 4.303 of one and 10.886 of six."""
    below, others = [-0.05, -0.04, -0.03], dict.fromkeys("bcdef", GAINS["open"])
    assert noniid.none_below("none", {"a": below}).holds is False
    claim = noniid.none_below("none", {"a": below, **others})
    assert claim.holds is None
    assert claim.evidence.startswith("of 6, 0 above it, 5 undecided, 0 level, 1 below, 0 if corrected for 6 (Holm): a ")


def test_every_method_that_needs_no_more_than_a_network_is_tried_as_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {"fedavg", "ditto", "scaffold"} <= {*noniid.every()}
    monkeypatch.setattr(noniid, "every", lambda: ["fedavg", "ditto", "hcct"])
    quick: dict[str, Any] = {"rounds": 1, "seeds": [0, 1]}
    request = ReproductionRequest("noniid/defaults_heart", "small", tmp_path, None, Observer(), {"experiment": quick})
    result = noniid.defaults(request)
    assert {r.method for r in result.rows} == {*noniid.every(), "independent", "centralised"}
    gains = {r.method: r for r in result.rows if r.metric.endswith("minus_fedavg")}
    own = {r.method: r for r in result.rows if r.metric == noniid.OWN}
    assert gains["ditto"].seeds == pytest.approx(
        [a - b for a, b in zip(own["ditto"].seeds, own["fedavg"].seeds, strict=True)]
    )
    (claim,) = result.claims
    assert (claim.text[:27], claim.evidence[:5]) == ("no method ends below FedAvg", "of 2,")
    assert Draft.of(replace(request, name="noniid/defaults"))["experiment"]["split"]["alpha"] == 0.1


def test_a_tuned_method_is_above_fedavg_if_it_stands_for_all_of_them() -> None:
    """Differences of 5 points, standard deviation .816, over seven seeds: B(0) is 1 / .0032, thrice .01."""
    base = [0.5, 0.52, 0.48, 0.51, 0.49, 0.5, 0.5]
    more = [0.06, 0.05, 0.04, 0.05, 0.06, 0.04, 0.05]
    values = {
        ("fedavg", "global.accuracy"): base,
        ("fedavg", noniid.OWN): base,
        ("above", "global.accuracy"): [b + d for b, d in zip(base, more, strict=True)],
        ("ditto", "global.accuracy"): base,
        ("ditto", noniid.OWN): [b + d for b, d in zip(base, more, strict=True)],
        ("below", noniid.OWN): [b - d for b, d in zip(base, more, strict=True)],
        ("same", "global.accuracy"): base[::-1],
    }
    above, ditto, below, same = noniid.against_fedavg(values)
    assert (above.holds, ditto.holds, below.holds, same.holds) == (True, True, False, None)
    assert above.evidence.startswith("+5.00 points, 95 % confidence sequence [+")
    assert above.evidence.endswith(" over 7 seeds, significant of 4 methods (Holm)")


def test_ranks_begin_with_the_best_of_each_seed_and_equal_ones_share_theirs() -> None:
    values = {"a": (0.9, 0.5), "b": (0.8, 0.7), "c": (0.8, 0.7)}
    assert noniid.ranks(values) == {"a": [1.0, 3.0], "b": [2.5, 1.5], "c": [2.5, 1.5]}


@pytest.mark.seconds
def test_every_method_is_tuned_and_ranked_under_fresh_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna", reason="optuna is not installed (extra [tune])")
    monkeypatch.setattr(noniid, "every", lambda: ["fedavg", "ditto"])
    quick = {"rounds": 2, "task": {"data": "digits", "model_options": {"hidden": [8]}}}
    changes = {"trials": 2, "fresh_seeds": [1, 2], "experiment": quick}
    result = noniid.ranked(ReproductionRequest("noniid/all_digits", "small", tmp_path, None, Observer(), changes))
    assert result.seeds == (1, 2)
    assert {r.method: sum(r.seeds) for r in result.rows if r.metric == "rank"}.keys() == {"fedavg", "ditto"}
    assert [c.text for c in result.claims] == ["tuned, no method ends below fedavg on clients' own test examples"]
