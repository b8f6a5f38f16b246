"""Linear models: the body only flattens."""

import math

from torch import nn

from unskew.models.network import Network


def logistic(input_shape: tuple[int, ...], num_classes: int, *, head_bias: bool = True) -> Network:
    """Softmax regression: d -> C, (d + 1) C parameters.  Workload W1 at 28x28: 7,850."""
    return Network(nn.Flatten(), nn.Linear(math.prod(input_shape), num_classes, bias=head_bias))


def svm(input_shape: tuple[int, ...], num_classes: int, *, head_bias: bool = True) -> Network:
    """A linear support vector machine: d -> C scores for the multi-class margin loss (`unskew.models.LOSS`)."""
    return logistic(input_shape, num_classes, head_bias=head_bias)


def feddif_fcn_linear(input_shape: tuple[int, ...], num_classes: int, *, head_bias: bool = True) -> Network:
    """The "FCN" of FedDif's first code base: a single layer 1024 -> 10 on 32x32 images, 10,250 parameters."""
    return logistic(input_shape, num_classes, head_bias=head_bias)
