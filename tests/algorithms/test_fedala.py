"""FedALA: what W_k is, when it is learned, and that nothing of it travels."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unskew.algorithms.fedala import FedALA, mixed
from unskew.protocol import SgdConfig
from unskew.tree import map_params

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3, momentum=0.5)
NEVER = 1e-30  # settles


def vectors(*values: list[float]) -> list[dict[str, torch.Tensor]]:
    return [{"top": torch.tensor(v, dtype=torch.float64)} for v in values]


@given(st.lists(st.tuples(*[st.floats(-10, 10)] * 2, st.floats(0, 1)), min_size=1, max_size=4))
def test_a_mixture_lies_between_the_two_models(entries: list[tuple[float, float, float]]) -> None:
    """Eq. 1; exactly one of them where W is 0 or 1."""
    received, own, w = vectors(*(list(column) for column in zip(*entries, strict=True)))
    low, high = torch.minimum(received["top"], own["top"]), torch.maximum(received["top"], own["top"])
    inside = mixed(received, own, w)["top"]
    assert bool(((inside >= low - 1e-9) & (inside <= high + 1e-9)).all())
    assert torch.equal(mixed(received, own, map_params(torch.ones_like, w))["top"], received["top"])
    assert torch.equal(mixed(received, own, map_params(torch.zeros_like, w))["top"], own["top"])


@pytest.mark.parametrize(
    ("share", "settled", "passes", "batches"), [(0.8, NEVER, 12, 3), (0.5, NEVER, 12, 2), (1.0, 1e9, 10, 3)]
)
def test_how_much_data_the_weights_are_learned_on(
    share: float, settled: float, passes: int, batches: int, classes: Any
) -> None:
    """9 examples in batches of 3: ceil(.8 * 3) = 3, ceil(.5 * 3) = 2.  Round 2: up to 12 passes, ten if they settle at
    once; round 3: one pass.  2 epochs of training are 18 examples more.
    """
    method = FedALA(data_share=share, start_epochs=12, settled=settled, local=SMALL)
    play = classes(n=[9, 9]).play(method, 3)
    work = [[e.examples for e in t.work] for t in play.traces]
    assert work == [[18, 18], [18 + 3 * batches * passes] * 2, [18 + 3 * batches] * 2]


def test_a_share_of_the_batches_is_not_rounded_up_by_its_last_bit() -> None:
    """.55 times 100 batches is 55.00000000000001 in floating point."""
    method = FedALA(data_share=0.55, local=SgdConfig(batch_size=10))
    assert (method.batches(1000), method.batches(9)) == (55, 1)
