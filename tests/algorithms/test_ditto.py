"""Ditto: FedAvg, and beside it models of the clients' own."""

from typing import Any

from unskew.algorithms.ditto import Ditto
from unskew.protocol import SgdConfig

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3, momentum=0.5, weight_decay=0.01)


def test_own_epochs_are_counted_apart(classes: Any) -> None:
    """8 examples: 2 epochs for the global model, 5 for the own one, 56 examples; with None 2 and 2, 32."""
    for epochs, examples in ((5, 56), (None, 32)):
        play = classes().play(Ditto(personal_epochs=epochs, local=SMALL), 1)
        assert [e.examples for e in play.traces[0].work] == [examples] * 4
