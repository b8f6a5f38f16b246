"""The bound: one client with everybody's data."""

from typing import Any

import pytest

from unskew.algorithms import TABLE
from unskew.algorithms.centralised import Centralised
from unskew.algorithms.fedavg import FedAvg
from unskew.errors import ConfigError
from unskew.protocol import SgdConfig

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3, momentum=0.5)


def test_it_asks_for_pooled_data_and_refuses_anything_else(classes: Any) -> None:
    assert Centralised.pooled
    assert TABLE["centralised"].kind == "bound"
    assert not any(hasattr(a, "pooled") for a in (FedAvg(),))
    with pytest.raises(ConfigError, match="needs one client with all the data, got 4 clients"):
        classes().play(Centralised(SMALL))
