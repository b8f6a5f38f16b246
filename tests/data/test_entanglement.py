"""How much clients overlap, and splits that overlap as much as asked."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unskew.data import Dataset, checked
from unskew.data.entanglement import (
    bases_of,
    coefficients,
    entanglement,
    ratio,
)
from unskew.data.federated import federate, to_manifest
from unskew.data.split import Entangled
from unskew.errors import DataError
from unskew.keys import Key

counts = st.integers(1, 6).flatmap(
    lambda bases: st.lists(st.lists(st.integers(0, 50), min_size=bases, max_size=bases), min_size=1, max_size=6)
)


# ---------------------------------------------------------------- the coefficient
def test_entanglement_by_hand() -> None:
    """(3, 4) has length 5; with (1, 0) it has 3/5 in common and with (0, 2) 4/5, which have nothing in common."""
    table = coefficients(np.array([[1, 0], [0, 2], [3, 4]]))
    assert table == pytest.approx(np.array([[1, 0, 0.6], [0, 1, 0.8], [0.6, 0.8, 1]]))
    found = entanglement(np.array([[1, 0], [0, 2], [3, 4]]))
    assert (found.average, found.maximum) == (pytest.approx(1.4 / 3, abs=1e-4), 0.8)


@given(counts)
def test_it_lies_between_0_and_1_and_does_not_ask_for_sizes(rows: list[list[int]]) -> None:
    table = np.array(rows)
    found = coefficients(table)
    assert ((found >= 0) & (found <= 1)).all()
    assert np.allclose(found, found.T)
    assert np.allclose(found, coefficients(table * 7), atol=1e-12)
    assert entanglement(table).average <= entanglement(table).maximum + 1e-4


@pytest.mark.parametrize(
    ("clients", "xi", "r", "owner"),
    [
        (5, 0.003, 0.001497, 0.99405),
        (5, 0.057, 0.027455, 0.90105),
        (5, 0.385, 0.171123, 0.59365),
        (10, 0.003, 0.001491, 0.98676),
        (10, 0.057, 0.025974, 0.81052),
        (10, 0.385, 0.144895, 0.43402),
        (20, 0.003, 0.001480, 0.97264),
        (20, 0.057, 0.023735, 0.68920),
        (20, 0.385, 0.118049, 0.30836),
    ],
)
def test_the_closed_form_at_the_paper_s_levels(clients: int, xi: float, r: float, owner: float) -> None:
    """The table of the specification, worked out apart from this code."""
    assert ratio(xi, clients) == pytest.approx(r, abs=5e-7)
    assert 1 / (1 + (clients - 1) * ratio(xi, clients)) == pytest.approx(owner, abs=5e-6)


# ---------------------------------------------------------------- the split
def subclasses(each: int = 60) -> Dataset:
    """Five labels, two domains each that no other label has: ten base distributions."""
    base = torch.arange(10).repeat_interleave(each)
    x = torch.randn(len(base), 3, generator=Key(1).generator())
    return checked("subclasses", x, base // 2, x[:5], torch.arange(5), domain_train=base)


def test_base_distributions_are_labels_domains_or_both() -> None:
    labels, domains = np.array([0, 0, 1, 1, 1]), np.array([1, 0, 1, 1, 0])
    assert bases_of(labels, domains, "both").tolist() == [1, 0, 3, 3, 2]
    assert bases_of(labels, domains, "labels").tolist() == [0, 0, 1, 1, 1]
    assert bases_of(labels, domains, "domains").tolist() == [1, 0, 1, 1, 0]
    assert bases_of(labels, None, "both").tolist() == [0, 0, 1, 1, 1]
    with pytest.raises(DataError, match="this data set has none"):
        bases_of(labels, None, "domains")


@pytest.mark.parametrize("xi", [0.0, 0.057, 0.385])
@pytest.mark.parametrize("by", ["blocks", "dirichlet"])
def test_the_split_reaches_it_and_the_manifest_says_what_was_reached(xi: float, by: str) -> None:
    fed = federate(subclasses(), Entangled(xi, by), Key(4), test_fraction=0.0)  # type: ignore[arg-type]
    assert sorted(torch.cat([c.train for c in fed.clients]).tolist()) == list(range(600))
    stats = to_manifest(fed)["stats"]
    assert stats["entanglement"] == fed.entanglement().average
    assert stats["entanglement"] == pytest.approx(xi, abs=0.05)
    assert stats["largest_entanglement"] >= stats["entanglement"]
