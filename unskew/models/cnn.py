"""CNNs of 3x3 convolutions.  The padded ones take any image that survives their pooling."""

from functools import partial

from torch import nn

from unskew.models.network import AtLeastOne, Dropout, Network, Norm, convolutional, initialise


def cnn_small(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    norm: Norm = "none",
    groups: AtLeastOne = 4,
    dropout: Dropout = 0.0,
    head_bias: bool = True,
) -> Network:
    """Ours, for small images: padded convolutions of 16 and 32, each with norm, ReLU and pooling; 64 ReLU -> C.

    The hidden layer follows the image: 13,706 parameters at 8x8x1 and C = 10, 105,866 at 28x28x1.
    With `norm="group"` the default groups are of 4 and 8 channels.
    """
    return convolutional(
        "cnn_small",
        input_shape,
        num_classes,
        at_least=8,
        maps=(16, 32),
        kernel=3,
        hidden=(64,),
        norm=norm,
        groups=groups,
        dropout=dropout,
        head_bias=head_bias,
    )


def feddif_cnn(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    norm: Norm = "none",
    groups: AtLeastOne = 4,
    dropout: Dropout = 0.0,
    head_bias: bool = True,
) -> Network:
    """FedDif's first code base on CIFAR-10: padded convolutions of 64, 128, 256, each with ReLU and pooling; 256 -> C.

    1,422,218 parameters at 32x32x3 and C = 10.  Weights start He-normal (fan in), biases at zero.  `norm` acts before
    each convolution's ReLU, `dropout` after the hidden layer's; neither is in the paper.
    """
    network = convolutional(
        "feddif_cnn",
        input_shape,
        num_classes,
        at_least=8,
        maps=(64, 128, 256),
        kernel=3,
        hidden=(256,),
        norm=norm,
        groups=groups,
        dropout=dropout,
        head_bias=head_bias,
    )
    return initialise(network, partial(nn.init.kaiming_normal_, nonlinearity="relu"))


def cnn_4(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    norm: Norm = "none",
    groups: AtLeastOne = 4,
    dropout: Dropout = 0.25,
    head_bias: bool = True,
) -> Network:
    """HCCT on CIFAR-10: padded convolutions of 16, 32, 64, 128 with ReLU, no pooling after the first; 500 -> C.

    1,126,950 parameters at 32x32x3 and C = 10.  `norm`, before each convolution's ReLU, is not in the paper.
    """
    return convolutional(
        "cnn_4",
        input_shape,
        num_classes,
        at_least=8,
        maps=(16, 32, 64, 128),
        kernel=3,
        unpooled=(1,),
        hidden=(500,),
        norm=norm,
        groups=groups,
        dropout=dropout,
        head_bias=head_bias,
    )


def cnn_w4(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    norm: Norm = "none",
    groups: AtLeastOne = 4,
    head_bias: bool = True,
) -> Network:
    """Workload W4, "four-conv CNN on 32x32x3" at batch 64: `cnn_4` without dropout, so that executors can be compared.

    The engine study prints no layer list.  `cnn_4` fits what it measured: 93 MFLOP for a training step of one image at
    its 2,515 images/s is 234 GFLOP/s, against 216 for W3 on the same cores.
    """
    return cnn_4(input_shape, num_classes, norm=norm, groups=groups, dropout=0.0, head_bias=head_bias)


def pfl_cnn(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    conv_dropout: Dropout = 0.25,
    dropout: Dropout = 0.5,
    head_bias: bool = True,
) -> Network:
    """pfl-research on CIFAR-10: unpadded convolutions of 32 and 64 with ReLU, one pooling, 128 ReLU -> C.

    1,626,442 parameters at 32x32x3 and C = 10.  Weights start Glorot-uniform, biases at zero.  Unpadded, so images
    smaller than the published ones are refused, as in `lenet`.
    """
    network = convolutional(
        "pfl_cnn",
        input_shape,
        num_classes,
        at_least=32,
        maps=(32, 64),
        kernel=3,
        padded=False,
        unpooled=(1,),
        hidden=(128,),
        conv_dropout=conv_dropout,
        dropout=dropout,
        head_bias=head_bias,
    )
    return initialise(network, nn.init.xavier_uniform_)
