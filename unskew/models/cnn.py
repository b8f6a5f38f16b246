"""Convolutional networks of the papers: convolutions with norm, ReLU and pooling, then fully connected layers.

Each is a row of layers (`Layers`) with the same options.  These are `norm` before each convolution's ReLU and its
`groups`, `conv_dropout` after convolutions, `dropout` after each fully connected layer's ReLU, and `head_bias`.  Those
that a paper lacks are off.  Unpadded networks refuse images smaller than published: the last feature map would shrink
to a few pixels, and the number of parameters would change.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from unskew.models.network import (
    AtLeastOne,
    Dropout,
    Network,
    Norm,
    dropout_layer,
    image,
    initialise,
    norm_layer,
    stack,
)


@dataclass(frozen=True)
class Layers:
    """The layers of a convolutional network.

    Attributes:
        at_least: Shortest side of an image, pixels.
        maps: Feature maps of each convolution.
        kernel: Side of its kernel, pixels.
        hidden: Widths of the fully connected layers.
        padded: True if convolutions keep the image size.
        unpooled: Convolutions without 2x2 pooling, counted from 1.
        neck: Width of a last layer without ReLU before the head; None leaves it out.
        early_dropout: True if `dropout` acts before the last convolution's ReLU, and not on fully connected layers.
        norm_hidden: True if the norm also acts before the fully connected layers' ReLU.
        first_weights: Draws the weights, with biases of 0; None leaves PyTorch's.
    """

    at_least: int
    maps: tuple[int, ...]
    kernel: int
    hidden: tuple[int, ...]
    padded: bool = True
    unpooled: tuple[int, ...] = ()
    neck: int | None = None
    early_dropout: bool = False
    norm_hidden: bool = False
    first_weights: Callable[[Tensor], object] | None = None


def convolutional(
    model: str,
    of_layers: Layers,
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    norm: Norm = "none",
    groups: AtLeastOne = 4,
    conv_dropout: Dropout = 0.0,
    dropout: Dropout = 0.0,
    head_bias: bool = True,
) -> Network:
    """The network of these layers; `model` is its name in messages.

    Raises:
        ConfigError: If the examples are not such images, or `groups` does not divide the maps.
    """
    channels, height, width = image(model, input_shape, of_layers.at_least)
    kernel, padded = of_layers.kernel, of_layers.padded
    layers: dict[str, nn.Module | None] = {}
    for i, n in enumerate(of_layers.maps, start=1):
        pooled = i not in of_layers.unpooled
        layers[f"conv{i}"] = nn.Conv2d(channels, n, kernel, padding=kernel // 2 if padded else 0)
        layers[f"norm{i}"] = norm_layer(norm, n, groups)
        last = i == len(of_layers.maps)
        layers[f"early_dropout{i}"] = dropout_layer(dropout) if of_layers.early_dropout and last else None
        layers[f"relu{i}"] = nn.ReLU()
        layers[f"pool{i}"] = nn.MaxPool2d(2) if pooled else None
        height, width = ((side - (0 if padded else kernel - 1)) // (2 if pooled else 1) for side in (height, width))
        channels = n
    layers["conv_dropout"] = dropout_layer(conv_dropout)
    layers["flatten"] = nn.Flatten()
    widths = (channels * height * width, *of_layers.hidden)
    for i in range(1, len(widths)):
        norm_name = f"norm{len(of_layers.maps) + i}"
        layers[f"fc{i}"] = nn.Linear(widths[i - 1], widths[i])
        layers[norm_name] = norm_layer(norm, widths[i], groups, flat=True) if of_layers.norm_hidden else None
        layers[f"relu{len(of_layers.maps) + i}"] = nn.ReLU()
        layers[f"dropout{i}"] = None if of_layers.early_dropout else dropout_layer(dropout)
    if of_layers.neck is not None:
        layers[f"fc{len(widths)}"] = nn.Linear(widths[-1], of_layers.neck)
    network = Network(stack(**layers), nn.Linear(of_layers.neck or widths[-1], num_classes, bias=head_bias))
    return network if of_layers.first_weights is None else initialise(network, of_layers.first_weights)


_he_normal = partial(nn.init.kaiming_normal_, nonlinearity="relu")
_FOUR = Layers(8, (16, 32, 64, 128), 3, (500,), unpooled=(1,))

cnn_small = partial(convolutional, "cnn_small", Layers(8, (16, 32), 3, (64,)))
"""Ours, for small images: 13,706 parameters at 8x8x1 and 10 classes; with group norm, groups of 4 and 8 channels."""

feddif_cnn = partial(convolutional, "feddif_cnn", Layers(8, (64, 128, 256), 3, (256,), first_weights=_he_normal))
"""FedDif's first code base on CIFAR-10: 1,422,218 parameters at 32x32x3 and 10 classes; He-normal (fan in)."""

cnn_4 = partial(convolutional, "cnn_4", _FOUR, dropout=0.25)
"""HCCT on CIFAR-10: no pooling after the first convolution; 1,126,950 parameters at 32x32x3 and 10 classes."""

cnn_w4 = partial(convolutional, "cnn_w4", _FOUR)
"""Workload W4, "four-conv CNN on 32x32x3": `cnn_4` without dropout, so that executors can be compared.

The engine study prints no layer list.  `cnn_4` fits what it measured: 93 MFLOP for a training step of one image at its
2,515 images/s is 234 GFLOP/s, against 216 for W3 on the same cores.
"""

pfl_cnn = partial(
    convolutional,
    "pfl_cnn",
    Layers(32, (32, 64), 3, (128,), padded=False, unpooled=(1,), first_weights=nn.init.xavier_uniform_),
    conv_dropout=0.25,
    dropout=0.5,
)
"""pfl-research on CIFAR-10: one pooling, Glorot-uniform; 1,626,442 parameters at 32x32x3 and 10 classes."""

lenet = partial(convolutional, "lenet", Layers(32, (64, 64), 5, (384, 192), padded=False))
"""FedDif and FedDC on CIFAR: 797,962 parameters at 32x32x3 and 10 classes; 815,332 at 100."""

torch_cnn = partial(convolutional, "torch_cnn", Layers(32, (6, 16), 5, (120, 84), padded=False), groups=2)
"""The PyTorch tutorial's CNN: 62,006 parameters at 32x32x3 and 10 classes."""

cnn_w3 = partial(convolutional, "cnn_w3", Layers(32, (32, 64), 5, (512,), padded=False))
"""Workload W3: 878,538 parameters at 32x32x3 and 10 classes."""

cnn_cifar10 = partial(convolutional, "cnn_cifar10", Layers(32, (6, 16), 5, (256,), padded=False, neck=128), groups=2)
"""FedDW on CIFAR-10: 139,714 parameters at 32x32x3 and 10 classes.

As in `cnn_mnist` no activation stands between the last two layers.  The paper's method wants the classifier without a
bias (`head_bias=False`); the published code keeps it, and so do these counts.
"""


cnn_mnist = partial(
    convolutional,
    "cnn_mnist",
    Layers(28, (10, 20), 5, (256,), padded=False, neck=128, early_dropout=True),
    groups=2,
    dropout=0.5,
)
"""FedDW on MNIST: dropout after the second convolution; 121,642 parameters at 28x28x1 and 10 classes.

The published code pools before ReLU, which is the same.
"""


def digit_model(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    width: AtLeastOne = 64,
    norm: Norm = "batch",
    groups: AtLeastOne = 4,
    dropout: Dropout = 0.0,
    head_bias: bool = True,
) -> Network:
    """HCCT on the Digit domains, from FedBN: convolutions of w, w, 2w, then 32w and 8w; a norm after every layer.

    14,219,210 parameters at 28x28x3, C = 10 and the published w = 64; 502,702 at w = 12.  Batch norm needs at least two
    images in a batch: PyTorch refuses the statistics of one.
    """
    w = width
    layers = Layers(4, (w, w, 2 * w), 5, (32 * w, 8 * w), unpooled=(3,), norm_hidden=True)
    network = partial(convolutional, "digit_model", layers, input_shape, num_classes)
    return network(norm=norm, groups=groups, dropout=dropout, head_bias=head_bias)
