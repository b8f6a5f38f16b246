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
HALF = SgdConfig(lr=0.5, local_steps=1, batch_size=None)
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


def test_three_rounds_by_hand(springs: Any, value: Any) -> None:
    """F_k = (v - m_k)^2 / 2, m = 4, -2, lr .5, one step, eta .1, two passes at first; a pass is one full batch.

    Round 1: from 0 to 2 and -1, mean .5; no W yet.
    Round 2: client 0: own 2, d = .5 - 2 = -1.5.  Theta^ = .5, g = -3.5, W = 1 - .1 * 5.25 = .475;
             Theta^ = 2 - 1.5 W = 1.2875, g = -2.7125, W = .068125; Theta^ = 1.8978125; trained 2.94890625.
             client 1: own -1, d = 1.5.  g = 2.5, W = .625; Theta^ = -.0625, g = 1.9375, W = .334375;
             Theta^ = -.4984375; trained -1.24921875.  Mean .84984375.
    Round 3: one pass.  client 0: own 2.94890625, d = -2.0990625, Theta^ = 2.80590761..., g = Theta^ - 4,
             W = .068125 - .1 g d < 0, so 0: it keeps its own model; trained (2.94890625 + 4) / 2 = 3.474453125.
    """
    play = springs(m=[4.0, -2.0]).play(FedALA(eta=0.1, start_epochs=2, settled=NEVER, local=HALF), 3)
    assert [value(p) for p in play.params[:3]] == pytest.approx([0.0, 0.5, 0.84984375])
    first = springs(m=[4.0, -2.0]).play(FedALA(eta=0.1, start_epochs=2, settled=NEVER, local=HALF), 2)
    assert [value(first.sim.memory.get(c).w) for c in (0, 1)] == pytest.approx([0.068125, 0.334375])
    assert [value(first.sim.memory.get(c).own) for c in (0, 1)] == pytest.approx([2.94890625, -1.24921875])
    assert value(play.sim.memory.get(0).w) == 0.0
    assert value(play.sim.memory.get(0).own) == pytest.approx(3.474453125)


def test_a_model_is_judged_after_the_mixture_and_before_training(springs: Any, value: Any) -> None:
    """After round 2 above: client 1 has own -1.24921875, W .334375 and gets .84984375, d = 2.0990625.

    Theta^ = -.547344..., g = 1.452655..., W = .334375 - .1 g d = .029452...; what it uses is own + d W.
    """
    play = springs(m=[4.0, -2.0]).play(FedALA(eta=0.1, start_epochs=2, settled=NEVER, local=HALF), 2)
    own, d, w = -1.24921875, 2.0990625, 0.334375
    w -= 0.1 * (own + d * w + 2.0) * d
    assert value(play.own(1)) == pytest.approx(own + d * w)
    assert value(play.sim.memory.get(1).w) == pytest.approx(0.334375)  # evaluation is forgotten


@pytest.mark.parametrize("eta", [0.5, 50.0])
def test_the_weights_stay_between_zero_and_one(eta: float, classes: Any) -> None:
    """I-24; at the larger rate they hit the walls."""
    play = classes(n=[4, 7, 9], norm=True).play(FedALA(eta=eta, layers=("all",), local=SMALL), 3)
    w = torch.cat([t.flatten() for c in range(3) for t in play.sim.memory.get(c).w.values()])
    assert bool(((w >= 0.0) & (w <= 1.0)).all())
    assert bool((w < 1.0).any())
    assert bool((w == 0.0).any()) == (eta > 1)


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
