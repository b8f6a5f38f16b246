"""Linear and fully connected networks; the input is flattened, so any shape will do."""

import math
from functools import partial

import torch
from torch import nn

from unskew.models.network import AtLeastOne, Dropout, Network, dropout_layer, stack


def logistic(input_shape: tuple[int, ...], num_classes: int, *, head_bias: bool = True) -> Network:
    """Softmax regression: d -> C, (d + 1) C parameters.  Workload W1 at 28x28: 7,850."""
    return Network(nn.Flatten(), nn.Linear(math.prod(input_shape), num_classes, bias=head_bias))


def one_logit(input_shape: tuple[int, ...], num_classes: int, *, head_bias: bool = True) -> Network:
    """Softmax regression for two classes whose logits start opposite: one logit's logistic regression.

    Their difference starts like PyTorch's linear layer of one output, uniform in +-1 / sqrt(inputs), and each takes
    half of its steps: the model of FLamby's Fed-Heart-Disease.  For more classes it is `logistic`.

    >>> w = one_logit((13,), 2).head.weight
    >>> bool(torch.equal(w[0], -w[1]))
    True
    """
    network = logistic(input_shape, num_classes, head_bias=head_bias)
    if num_classes == 2:
        single = nn.Linear(math.prod(input_shape), 1, bias=head_bias)
        with torch.no_grad():
            for name, whole in single.named_parameters():
                getattr(network.head, name).copy_(torch.cat([-whole / 2, whole / 2]))
    return network


def mlp(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    hidden: tuple[AtLeastOne, ...] = (64,),
    dropout: Dropout = 0.0,
    head_bias: bool = True,
    double_softmax: bool = False,
) -> Network:
    """d -> hidden[0] ReLU -> ... -> C, with dropout after each ReLU.  IFCA's MNIST network is `hidden=(200,)`.

    With `double_softmax` the output is probabilities, no longer `head(body(x))`.
    """
    widths = (math.prod(input_shape), *hidden)
    layers: dict[str, nn.Module | None] = {"flatten": nn.Flatten()}
    for i in range(1, len(widths)):
        layers[f"fc{i}"] = nn.Linear(widths[i - 1], widths[i])
        layers[f"relu{i}"] = nn.ReLU()
        layers[f"dropout{i}"] = dropout_layer(dropout)
    return Network(stack(**layers), nn.Linear(widths[-1], num_classes, bias=head_bias), softmax=double_softmax)


fcn = partial(mlp, hidden=(200, 200))
"""FedDif's FCN, 784 -> 200 ReLU -> 200 ReLU -> C: 206,647 parameters at the 47 classes of EMNIST balanced.

At C = 10 it is workload W2 (and FedDC's MNIST network), 199,210 parameters.
"""


hcct_mlp = partial(mlp, dropout=0.5)
"""HCCT on Fashion-MNIST: 784 -> 64 -> 10; 50,890 parameters.  Its dropout is before ReLU, which is the same.

The published code puts a softmax on the output and feeds that to the cross-entropy, which applies another one.
"""
