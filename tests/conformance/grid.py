"""The grid of the conformance suite as pytest knows it: every case on every network, or each on one."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from recipe import CASES, NETWORKS, make

from unskew import wire

GRID = [(case, network) for case in CASES for network in NETWORKS]

NORMALISED = {"fedbn", "fedavg, own norm", "fedrep, own norm", "flsc, own norms", "hcct, as released"}
"""What these do, they do to normalisation: a network without it would not try them."""


def network_of(case: str) -> str:
    """The network with which a case is tried where one is enough: the cases take turns."""
    return "normalised" if case in NORMALISED or CASES.index(case) % 2 else "perceptron"


def one_network_each(
    cases: Sequence[str], turn: tuple[int, int] = (0, 1), variants: bool = False
) -> pytest.MarkDecorator:
    """Try methods on one network each, and by `make test-slow` every case on both.

    Of `turn` (0, 3) is every third method, from the first on: where three tests look at what all have in common, such
    as the codec, each method meets one of them here and all there.  A method with other settings than its own, "hcct,
    by size", waits for `make test-slow`, but with `variants` for every third of them.

    By the module's scope: pytest then runs all tests of a cell one after the other, and its run is made once.
    """
    methods, others = ([c for c in cases if (", " in c) == of] for of in (False, True))
    now = {*methods[turn[0] :: turn[1]], *(others[::3] if variants else ())}
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


def one_of_a_kind(cases: Iterable[str]) -> list[Any]:
    """The cases as parameters; those whose messages another one before them has, too, are for `make test-slow`."""
    seen, params = set(), []
    for case in cases:
        kinds = frozenset((s.message, s.reply) for s in wire.signatures(make(case)).values())
        params.append(pytest.param(case, marks=pytest.mark.slow if kinds in seen else ()))
        seen.add(kinds)
    return params
