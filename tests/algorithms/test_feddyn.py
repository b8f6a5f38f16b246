"""FedDyn: what the linear terms are, that h is their mean whatever is lost, and what its limits are not."""

from typing import Any

import pytest

from unskew.algorithms.feddyn import FedDyn
from unskew.errors import QuorumError
from unskew.protocol import SgdConfig
from unskew.world.pace import Outage

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3)


# ---------------------------------------------------------------- what is remembered
def test_sizes_are_declared_once_and_asked_for_again_if_lost(classes: Any) -> None:
    """Every size is known in the end, and once all are, nobody is asked; without `scaled` nobody ever is."""
    method = FedDyn(scaled=True, local=SMALL)
    sim = classes(n=[4, 7, 9, 3, 5, 6]).simulator(method, outage=Outage(late=0.4), seed=2)
    state, known = sim.start(), []
    for t in range(1, 8):
        complete = len(state.n) == 6
        state, trace = sim.round(state, t)
        told = sum(x.kind == "control" and x.direction == "up" for x in trace.transfers)
        untold = sum(f.step == "declare" for f in trace.failures)
        assert (told + untold > 0) == (not complete)
        known.append(len(state.n))
    assert known[0] < 6
    assert complete
    assert sorted(state.n.items()) == list(enumerate([4, 7, 9, 3, 5, 6]))
    with pytest.raises(QuorumError, match="step 'declare': 0 of 4"):
        classes().play(method, 1, outage=Outage(late=1.0))
    assert classes().play(FedDyn(local=SMALL), 1).states[1].n == {}
