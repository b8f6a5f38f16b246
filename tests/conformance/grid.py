"""The grid of the conformance suite as pytest knows it: every case on every network, or on one."""

from collections.abc import Sequence

import pytest
from recipe import CASES, NETWORKS

GRID = [(case, network) for case in CASES for network in NETWORKS]

NORMALISED = {"fedbn", "fedavg, own norm", "fedrep, own norm", "flsc, own norms", "hcct, as released"}
"""What these do, they do to normalisation: a network without it would not try them."""


def network_of(case: str) -> str:
    """The network with which a case is tried where one is enough: the cases take turns."""
    return "normalised" if case in NORMALISED or CASES.index(case) % 2 else "perceptron"


def one_network_each(cases: Sequence[str], variants: bool = True) -> pytest.MarkDecorator:
    """Try every case on one network, and by `make test-slow` on the other.

    Without `variants` a method with other settings than its own, "hcct, by size", waits for it on both.

    By the module's scope: pytest then runs all tests of a cell one after the other, and its run is made once.
    """
    return pytest.mark.parametrize(
        ("case", "network"),
        [
            pytest.param(c, n, marks=() if n == network_of(c) and (variants or ", " not in c) else pytest.mark.slow)
            for c in cases
            for n in NETWORKS
        ],
        scope="module",
        ids=[f"{c}, on {n}" for c in cases for n in NETWORKS],
    )
