"""Rounds without training."""

import pytest
import torch

from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.feddif import FedDif
from unskew.algorithms.fedfa import FedFA
from unskew.decide.forecast.dry_run import untrained_rounds
from unskew.errors import ProtocolError
from unskew.info import DiffusionRound, Passes

HISTOGRAMS = torch.tensor([[6, 0], [0, 6], [3, 3]])


def test_what_is_sent_is_what_a_run_would_send() -> None:
    """FedAvg, three clients, a model of 5 float32: each round 3 down and 3 up, whose bytes do not change."""
    rounds = list(untrained_rounds(FedAvg(), HISTOGRAMS, 2, parameters=5))
    assert [info for info, _ in rounds] == [Passes(), Passes()]
    first, second = ([row[1:] for row in trace.transfers] for _, trace in rounds)
    assert first == second
    assert len(first) == 6


def test_an_auction_needs_no_training() -> None:
    """A model of class 0 gains most from the client of class 1, and the other way round; the third is IID already."""
    (info, trace), *_ = untrained_rounds(FedDif(epsilon=0.01), HISTOGRAMS, 1)
    assert isinstance(info, DiffusionRound)
    assert info.starts == (0, 1, 2)
    assert [(v.model, v.dst) for v in info.hops[0].moves] == [(0, 1), (1, 0)]
    assert info.sizes == (12, 12, 6)
    assert not trace.work


def test_a_method_whose_clients_look_at_data_is_refused() -> None:
    with pytest.raises(ProtocolError, match="its step asked for Fold"):
        list(untrained_rounds(FedFA(), HISTOGRAMS, 1))
