"""FedAvg, and what holds for every method built like it."""

from typing import Any

import pytest
import recipe
import torch
from hypothesis import given
from hypothesis import strategies as st

from unskew.algorithms import TABLE, resolve
from unskew.algorithms.fedavg import FedAvg, average
from unskew.protocol import SgdConfig

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3, momentum=0.5)

# Methods that refuse momentum.
OWN_LOCAL = dict.fromkeys(("perfedavg", "fedsam", "apfl"), SgdConfig(lr=0.1, local_epochs=2, batch_size=3))


def test_one_full_batch_step_is_a_step_on_pooled_data(classes: Any, equal: Any) -> None:
    """I-2: sum_k (n_k / n) (w - eta grad F_k) = w - eta grad F, for clients of unequal size."""
    local = SgdConfig(lr=0.3, local_epochs=1, batch_size=None)
    apart = classes(n=[5, 9, 2])
    together = classes(n=[16])
    assert not torch.equal(apart.device_data.x, together.device_data.x)
    together.device_data.x.copy_(apart.device_data.x)
    together.device_data.y.copy_(apart.device_data.y)
    equal(apart.play(FedAvg(local)).params, together.play(FedAvg(local)).params)


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=8), st.sampled_from(["samples", "uniform"]))
def test_weights_of_a_mean_sum_to_one(n: list[int], weighting: Any) -> None:
    """I-3: the mean of a constant is that constant."""
    constant = {"w": torch.full((2,), 3.0, dtype=torch.float64)}
    mean = average([constant] * len(n), n, weighting)
    torch.testing.assert_close(mean["w"], constant["w"], rtol=0, atol=1e-12)


# Floats per round of everybody together, in models P and buffers Q (baselines.md, section 3), for M participants.
FLOATS = {
    "independent": (0, 0),
    **dict.fromkeys(("fedavg", "fedprox", "fedavgm", "fedadagrad", "fedadam", "fedyogi", "fednova", "oneshot"), (1, 1)),
    **dict.fromkeys(("moon", "feduv", "fedlc", "fedntd", "fedsam", "fedexp", "fedacg"), (1, 1)),
    **dict.fromkeys(("pfedme", "apfl", "fedrod", "fedamp"), (1, 1)),
    "feddyn": (1, 1),
    "feddc": (2, 1),
    "fedswap": (10, 10),
    "scaffold": (2, 1),
    **dict.fromkeys(("maxfl", "fedfa", "cfl"), (1, 1)),
    **dict.fromkeys(("fedper", "fedbn", "fedrep", "fedbabu", "fedala", "perfedavg", "ditto"), (1, 1)),
    **dict.fromkeys(("hcct", "hcct_e", "hcct_p", "grouped"), (1, 1)),
    **dict.fromkeys(("lgfedavg", "ffalora", "fedsalora"), (1, 1)),
}

# Of these a part never travels: the head's 5*3 + 3 floats, or normalisation's 10 parameters and 10 statistics.
# Without the pilot that chooses alpha, whose cost is in test_hcct_pilot.py.
PILOTED: dict[str, Any] = {name: {"alpha": 1.0} for name in ("hcct", "hcct_e", "hcct_p")}
PILOTED |= {"ffalora": {"fixed": ("head",)}, "fedsalora": {"personal": ("head",)}}
STAYS = {**dict.fromkeys(("fedper", "fedrep", "fedbabu", "hcct_p", "ffalora", "fedsalora"), 18), "fedbn": 20}
STAYS["lgfedavg"] = 53 + 10 - 18


# What STC sends depends on where the largest entries are; the corpus has its bytes.
COMPRESSED = {"stc"}

# Between devices much depends on the graph; the corpus has the bytes.
D2D = {"feddif", "cyclic", "tthf", "cfa", "gossip"}


# Several models down for one up, or more or less up than down; the corpus has the bytes.
UNEVEN = {"fedbuff", "fedasync", "maxfl_hcct", "ifca", "flsc", "qfedavg", "fedfomo"}

# Something for each class travels, beside models or without them; the corpus has the bytes.
BY_CLASS = {"fedmd", "feddw", "feddistill", "feddistill_plus", "fedproto", "fedpac", "fedgen", "ccvr"}


def test_every_method_has_its_wire_cost_stated() -> None:
    stated = set(FLOATS) | BY_CLASS | UNEVEN | D2D | COMPRESSED | set(recipe.APART)
    assert stated == {n for n, e in TABLE.items() if e.kind != "bound"}


@pytest.mark.parametrize(("name", "models", "buffers"), [(n, *f) for n, f in FLOATS.items()])
@pytest.mark.seconds
def test_what_travels_is_what_the_papers_say(
    name: str, models: int, buffers: int, classes: Any, spy: Any, floats: Any
) -> None:
    """I-42: P = 4*5 + 5 + 5*3 + 3 + 2*5 = 53 and Q = 10; M (models P + buffers Q) floats each way, less what stays."""
    with spy() as messages:
        local = OWN_LOCAL.get(name, SMALL)
        classes(norm=True).play(resolve(name)(local=local, **PILOTED.get(name, {})), rounds=1, clients_per_round=3)
    sizes = [floats(m) for m in messages]
    assert sum(sizes) == 2 * 3 * (models * 53 + buffers * 10 - STAYS.get(name, 0))
    assert len({n for n in sizes if n}) <= 1
