import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from unskew.errors import ProtocolError
from unskew.keys import Key
from unskew.world.channel import Even, efficiency


@pytest.mark.parametrize("gamma", [1.0, 2.5])
def test_an_even_channel_is_the_same_everywhere_and_always(gamma: float) -> None:
    channel = Even(gamma)
    for seed in range(3):
        assert torch.equal(channel.spectral_efficiency(Key(seed), 1, 0, 4), torch.full((4, 4), gamma))


@dataclass(frozen=True)
class Given:
    """What a channel of one's own may give."""

    gamma: Any
    name: str = "given"

    def spectral_efficiency(self, key: Key, round: int, hop: int, nodes: int) -> Any:
        return self.gamma


def one_bad(value: float) -> torch.Tensor:
    gamma = torch.ones(4, 4)
    gamma[2, 3] = value
    return gamma


@pytest.mark.parametrize(
    ("gamma", "got"),
    [
        (torch.ones(3, 4), r"\(3, 4\)"),
        (one_bad(math.nan), ""),
        (one_bad(math.inf), ""),
        (one_bad(-1.0), ""),
        (torch.ones(4, 4, dtype=torch.complex64), "complex64"),
        (None, "NoneType"),
    ],
)
def test_a_channel_that_gives_no_efficiencies_is_refused_by_name(gamma: Any, got: str) -> None:
    with pytest.raises(
        ProtocolError, match=rf"round 2, hop 1: the channel 'given' must .* \(4, 4\), got .*{got}.*; correct"
    ):
        efficiency(Given(gamma), Key(0), 2, 1, 4)
