"""Every method at its defaults: who ends below FedAvg."""

from pathlib import Path
from typing import Any

import pytest

from unskew.papers import noniid
from unskew.papers.toolkit import Draft, ReproductionRequest
from unskew.run.progress import NoCallback

GAINS = {"worse": [-0.02, -0.03, -0.025], "better": [0.02, 0.03, 0.025], "open": [-0.02, 0.02, 0.01]}


def test_a_method_whose_interval_lies_below_is_named_with_it() -> None:
    """Mean -2.5 points, standard error 0.5 / sqrt 3 = .289; Student's t at two degrees of freedom is 4.303."""
    claim = noniid.none_below("none", GAINS)
    assert claim.verdict == "does not hold"
    assert claim.evidence == (
        "of 3, 1 above it, 1 undecided, 0 level, 1 below: worse -2.50 points, 95 % interval [-3.74, -1.26] over 3 seeds"
    )


def test_without_one_the_claim_holds_and_the_others_are_counted() -> None:
    claim = noniid.none_below("none", {name: gain for name, gain in GAINS.items() if name != "worse"})
    assert (claim.verdict, claim.evidence) == ("holds", "of 2, 1 above it, 1 undecided, 0 level, 0 below")


def test_every_method_but_those_of_images_is_tried_as_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noniid, "WITHOUT_IMAGES", ("fedavg", "fedprox", "ditto", "independent"))
    quick: dict[str, Any] = {"rounds": 1, "seeds": [0, 1]}
    request = ReproductionRequest("noniid/defaults", "small", tmp_path, None, NoCallback(), {"experiment": quick})
    result = noniid.defaults(request)
    assert {r.method for r in result.rows} == {"fedavg", "fedprox", "ditto", "independent", "centralised"}
    gains = {r.method: r for r in result.rows if r.metric.endswith("minus_fedavg")}
    own = {r.method: r for r in result.rows if r.metric == noniid.OWN}
    assert gains["ditto"].seeds == pytest.approx(
        [a - b for a, b in zip(own["ditto"].seeds, own["fedavg"].seeds, strict=True)]
    )
    (claim,) = result.claims
    assert claim.text == "no method ends below FedAvg on clients' own test examples"
    assert Draft.of(request)["experiment"]["split"]["alpha"] == 0.1
