"""FedDW's CNNs for MNIST and CIFAR-10.

Both end in 256 ReLU -> 128 -> C with no activation between the last two layers, as in the published code.  The paper's
method wants the classifier without a bias (`head_bias=False`); the published code keeps it, and so do the counts below.
`norm`, after each convolution, is not in the paper.  Its other networks are `resnet18` with `neck=(256, 128)` and
`conv_bias=True`, `shufflenet`, `mobilenet_v2` and, for texts, `bilstm`.
As in `lenet`, images smaller than the published ones are refused.
"""

from torch import nn

from unskew.models.network import (
    AtLeastOne,
    Dropout,
    Network,
    Norm,
    convolutional,
    dropout_layer,
    image,
    norm_layer,
    stack,
)


def last_side(side: int) -> int:
    """Side of an image after two unpadded 5x5 convolutions, each with 2x2 pooling, pixels.

    >>> last_side(28)
    4
    """
    return ((side - 4) // 2 - 4) // 2


def cnn_mnist(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    norm: Norm = "none",
    groups: AtLeastOne = 2,
    dropout: Dropout = 0.5,
    head_bias: bool = True,
) -> Network:
    """5x5 convolutions of 10 and 20, pooling before ReLU, dropout after the second; 320 -> 256 ReLU -> 128 -> C.

    121,642 parameters at 28x28x1 and C = 10.
    """
    channels, height, width = image("cnn_mnist", input_shape, at_least=28)
    body = stack(
        conv1=nn.Conv2d(channels, 10, 5),
        norm1=norm_layer(norm, 10, groups),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(10, 20, 5),
        norm2=norm_layer(norm, 20, groups),
        dropout=dropout_layer(dropout),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
        fc1=nn.Linear(20 * last_side(height) * last_side(width), 256),
        relu3=nn.ReLU(),
        fc2=nn.Linear(256, 128),
    )
    return Network(body, nn.Linear(128, num_classes, bias=head_bias))


def cnn_cifar10(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    norm: Norm = "none",
    groups: AtLeastOne = 2,
    head_bias: bool = True,
) -> Network:
    """5x5 convolutions of 6 and 16 with ReLU and pooling; 400 -> 256 ReLU -> 128 -> C.

    139,714 parameters at 32x32x3 and C = 10.
    """
    return convolutional(
        "cnn_cifar10",
        input_shape,
        num_classes,
        at_least=32,
        maps=(6, 16),
        kernel=5,
        padded=False,
        hidden=(256,),
        neck=128,
        norm=norm,
        groups=groups,
        head_bias=head_bias,
    )
