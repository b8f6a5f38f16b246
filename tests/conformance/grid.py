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


def one_network_each(
    cases: Sequence[str], variants: bool = True, turn: tuple[int, int] = (0, 1)
) -> pytest.MarkDecorator:
    """Try every case on one network, and by `make test-slow` on the other.

    Without `variants` a method with other settings than its own, "hcct, by size", waits for it on both; so does every
    case but those of a `turn`: (0, 3) is every third, from the first on.  Where three tests look at what all cases have
    in common, such as the codec, each case meets one of them here and all there.

    By the module's scope: pytest then runs all tests of a cell one after the other, and its run is made once.
    """
    first, of = turn
    now = {c for i, c in enumerate(cases) if i % of == first and (variants or ", " not in c)}
    return pytest.mark.parametrize(
        ("case", "network"),
        [
            pytest.param(c, n, marks=() if n == network_of(c) and c in now else pytest.mark.slow)
            for c in cases
            for n in NETWORKS
        ],
        scope="module",
        ids=[f"{c}, on {n}" for c in cases for n in NETWORKS],
    )
