"""Fully connected networks; the input is flattened, so any shape will do."""

import math
from functools import partial

from torch import nn

from unskew.models.network import AtLeastOne, Dropout, Network, dropout_layer, stack


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
