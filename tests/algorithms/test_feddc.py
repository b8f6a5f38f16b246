"""FedDC: what drift and mean gradient are, that the server's means hold whatever is lost, and its kin."""

from typing import Any

from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.feddc import FedDC
from unskew.protocol import SgdConfig
from unskew.tree import map_params

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3)


# ---------------------------------------------------------------- kin


def test_alpha_zero_alone_is_not_fedavg(classes: Any, equal: Any) -> None:
    """The drift still enters the server's step: with everybody w is 2 mean(y) - w after the first round."""
    w, mean = classes().play(FedAvg(SMALL, "uniform"), 1).params
    ours = classes().play(FedDC(0.0, local=SMALL), 1).params[1]
    equal(ours, map_params(lambda w, y: 2 * y - w, w, mean))
