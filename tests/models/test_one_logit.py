"""A start that can be given: the weights another program begins with."""

import torch
from torch import nn

from unskew.models import build


def test_a_given_start_is_pytorchs_linear_layer_of_that_seed() -> None:
    """The difference of the two logits is the one logit that `torch.manual_seed(42); nn.Linear(13, 1)` starts with."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(42)
        theirs = nn.Linear(13, 1)
    ours = build("one_logit", (13,), 2, start=42).state_dict()
    torch.testing.assert_close(ours["head.weight"][1] - ours["head.weight"][0], theirs.weight.detach()[0])
    torch.testing.assert_close(ours["head.bias"][1] - ours["head.bias"][0], theirs.bias.detach()[0])


def test_without_a_start_the_runs_key_draws_it() -> None:
    first, second = (build("one_logit", (13,), 2).state_dict()["head.weight"] for _ in range(2))
    assert not torch.equal(first, second)
