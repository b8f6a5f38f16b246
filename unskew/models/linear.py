"""Linear models: the body only flattens."""

import math

import torch
from torch import nn

from unskew.models.network import Network


def logistic(input_shape: tuple[int, ...], num_classes: int, *, head_bias: bool = True) -> Network:
    """Softmax regression: d -> C, (d + 1) C parameters.  Workload W1 at 28x28: 7,850."""
    return Network(nn.Flatten(), nn.Linear(math.prod(input_shape), num_classes, bias=head_bias))


def one_logit(
    input_shape: tuple[int, ...], num_classes: int, *, head_bias: bool = True, start: int | None = None
) -> Network:
    """Softmax regression for two classes whose logits start opposite: one logit's logistic regression.

    Their difference starts like PyTorch's linear layer of one output, uniform in +-1 / sqrt(inputs), and each takes
    half of its steps: the model of FLamby's Fed-Heart-Disease.  For more classes it is `logistic`.  With `start` they
    start as a linear layer of one output after `torch.manual_seed(start)`, whatever the run's seed.

    >>> w = one_logit((13,), 2).head.weight
    >>> bool(torch.equal(w[0], -w[1]))
    True
    """
    network = logistic(input_shape, num_classes, head_bias=head_bias)
    if num_classes == 2:
        single = nn.Linear(math.prod(input_shape), 1, bias=head_bias)
        if start is not None:  # as nn.Linear draws, weights before bias
            generator = torch.Generator().manual_seed(start)
            for tensor in single.parameters():
                bound = 1.0 / math.sqrt(single.in_features)
                nn.init.uniform_(tensor, -bound, bound, generator=generator)
        with torch.no_grad():
            for name, whole in single.named_parameters():
                getattr(network.head, name).copy_(torch.cat([-whole / 2, whole / 2]))
    return network
