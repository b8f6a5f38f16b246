"""What travels, counted: numbers in the messages of a round, and models between devices, as the papers have it (I-42).

P = 4 * 5 + 5 + 5 * 3 + 3 = 43 of which the head has 18; with BatchNorm P + Q = 53 + 10.  What every method built like
FedAvg sends is in test_fedavg.py.
"""

from typing import Any

import pytest

import unskew as us
from unskew import wire
from unskew.algorithms import resolve
from unskew.server.graphs import Complete, Geometric, Torus

SMALL = us.SgdConfig(lr=0.1, local_epochs=2, batch_size=3)
TWO: dict[str, Any] = {"clients_per_round": 2}
THREE: dict[str, Any] = {"clients_per_round": 3}

SENT: list[tuple[str, dict[str, Any], bool, dict[str, Any], list[int]]] = [
    ("qfedavg", {}, True, THREE, [63] * 3 + [64] * 3),  # a loss goes up beside the model
    ("ifca", {"clusters": 3}, True, TWO, [3 * 63] * 2 + [63] * 2),  # all models down, one up
    ("ifca", {"clusters": 3, "clustered": ("head",)}, True, TWO, [45 + 3 * 18] * 2 + [63] * 2),
    ("feddistill", {}, False, TWO, [9 + 3] * 4),  # C^2 outputs and C counts or known rows
    ("feddistill_plus", {}, False, TWO, [43 + 9 + 3] * 4),
    ("feddw", {}, False, TWO, [43 + 9] * 2 + [43 + 9 + 3] * 2),  # soft labels down; sums and counts up
    ("feddc", {}, False, THREE, [2 * 43] * 6),
    ("feddc", {"variates": False}, False, THREE, [43] * 6),
    ("cyclic", {"route": "server"}, False, THREE, [43] * 6),  # every visit goes up and down
    ("fedswap", {"legs": 4}, False, THREE, [43] * 24),
    ("independent", {}, False, THREE, []),
]


@pytest.mark.parametrize(("name", "options", "norm", "settings", "sizes"), SENT)
def test_messages_hold_what_the_papers_count(
    name: str, options: Any, norm: bool, settings: Any, sizes: list[int], classes: Any, spy: Any, floats: Any
) -> None:
    with spy() as messages:
        classes(norm=norm).play(resolve(name)(local=SMALL, **options), 1, **settings)
    assert sorted(n for n in map(floats, messages) if n) == sorted(sizes)


LONG = us.SgdConfig(lr=0.1, local_steps=20, batch_size=3)
EDGES = int(Geometric(0.4)(6, us.Key(0) / "graph").sum())
MODELS: list[tuple[Any, int, dict[str, Any], tuple[int, int, int]]] = [
    (us.Cyclic(local=SMALL), 4, {}, (1, 1, 3)),  # down 1, between clients M - 1, up 1
    (us.FedSwap(5, "derangement", route="d2d", local=SMALL), 8, THREE, (3, 3, 4 * 3)),  # (L - 1) M, as none may stay
    # Clusters of 3, 2, 2, complete: e = 3 + 1 + 1; at each of 3 instants, or 4, 2 exchanges of 2 e models.
    (us.TTHF(3, gamma=2, graph=Complete(), local=LONG), 7, {}, (7, 3, 3 * 2 * 2 * 5)),
    (us.TTHF(3, gamma=2, d2d_before_global=True, graph=Complete(), local=LONG), 7, {}, (7, 3, 4 * 2 * 2 * 5)),
    (us.CFA(Torus(), local=SMALL), 6, {}, (0, 0, 2 * 9)),  # a torus of six has 9 edges
    (us.Gossip(Geometric(0.4), local=SMALL), 6, {}, (0, 0, EDGES)),
]


@pytest.mark.parametrize(("method", "n", "settings", "ways"), MODELS, ids=lambda v: type(v).__name__)
def test_models_between_devices_are_as_many_as_the_papers_count(
    method: Any, n: int, settings: Any, ways: tuple[int, int, int], classes: Any
) -> None:
    world = classes(n=[4] * n, norm=True)
    for trace in world.play(method, 2, **settings).traces:
        models = [x for x in trace.transfers if x.kind == "model"]
        assert tuple(sum(x.direction == way for x in models) for way in ("down", "up", "d2d")) == ways
        between = {x.bytes for x in models if x.direction == "d2d"}
        assert between == {wire.nbytes(world.population.initial)}
        assert all(x.src != x.dst for x in models)
