"""CNNs of 3x3 convolutions.  The padded ones take any image that survives their pooling."""

from torch import nn

from unskew.models.network import Count, Dropout, Network, Norm, dropout_layer, image, norm_layer, stack


def cnn_small(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    norm: Norm = "none",
    groups: Count = 4,
    dropout: Dropout = 0.0,
    head_bias: bool = True,
) -> Network:
    """Ours, for small images: padded convolutions of 16 and 32, each with norm, ReLU and pooling; 64 ReLU -> C.

    The hidden layer follows the image: 13,706 parameters at 8x8x1 and C = 10, 105,866 at 28x28x1.
    With `norm="group"` the default groups are of 4 and 8 channels.
    """
    channels, height, width = image("cnn_small", input_shape, at_least=8)
    body = stack(
        conv1=nn.Conv2d(channels, 16, 3, padding=1),
        norm1=norm_layer(norm, 16, groups),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(16, 32, 3, padding=1),
        norm2=norm_layer(norm, 32, groups),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(32 * (height // 4) * (width // 4), 64),
        relu3=nn.ReLU(),
        dropout=dropout_layer(dropout),
    )
    return Network(body, nn.Linear(64, num_classes, bias=head_bias))


def feddif_cnn(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    norm: Norm = "none",
    groups: Count = 4,
    dropout: Dropout = 0.0,
    head_bias: bool = True,
) -> Network:
    """FedDif's first code base on CIFAR-10: padded convolutions of 64, 128, 256, each with ReLU and pooling; 256 -> C.

    1,422,218 parameters at 32x32x3 and C = 10.  Weights start He-normal (fan in), biases at zero.  `norm` acts before
    each convolution's ReLU, `dropout` after the hidden layer's; neither is in the paper.
    """
    channels, height, width = image("feddif_cnn", input_shape, at_least=8)
    body = stack(
        conv1=nn.Conv2d(channels, 64, 3, padding=1),
        norm1=norm_layer(norm, 64, groups),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(64, 128, 3, padding=1),
        norm2=norm_layer(norm, 128, groups),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        conv3=nn.Conv2d(128, 256, 3, padding=1),
        norm3=norm_layer(norm, 256, groups),
        relu3=nn.ReLU(),
        pool3=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(256 * (height // 8) * (width // 8), 256),
        relu4=nn.ReLU(),
        dropout=dropout_layer(dropout),
    )
    network = Network(body, nn.Linear(256, num_classes, bias=head_bias))
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return network


def cnn_4(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    norm: Norm = "none",
    groups: Count = 4,
    dropout: Dropout = 0.25,
    head_bias: bool = True,
) -> Network:
    """HCCT on CIFAR-10: padded convolutions of 16, 32, 64, 128 with ReLU, no pooling after the first; 500 -> C.

    1,126,950 parameters at 32x32x3 and C = 10.  `norm`, before each convolution's ReLU, is not in the paper.
    """
    channels, height, width = image("cnn_4", input_shape, at_least=8)
    body = stack(
        conv1=nn.Conv2d(channels, 16, 3, padding=1),
        norm1=norm_layer(norm, 16, groups),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(16, 32, 3, padding=1),
        norm2=norm_layer(norm, 32, groups),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        conv3=nn.Conv2d(32, 64, 3, padding=1),
        norm3=norm_layer(norm, 64, groups),
        relu3=nn.ReLU(),
        pool3=nn.MaxPool2d(2),
        conv4=nn.Conv2d(64, 128, 3, padding=1),
        norm4=norm_layer(norm, 128, groups),
        relu4=nn.ReLU(),
        pool4=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(128 * (height // 8) * (width // 8), 500),
        relu5=nn.ReLU(),
        dropout=dropout_layer(dropout),
    )
    return Network(body, nn.Linear(500, num_classes, bias=head_bias))


def cnn_w4(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    norm: Norm = "none",
    groups: Count = 4,
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
    channels, height, width = image("pfl_cnn", input_shape, at_least=32)
    body = stack(
        conv1=nn.Conv2d(channels, 32, 3),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(32, 64, 3),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        dropout1=dropout_layer(conv_dropout),
        flatten=nn.Flatten(),
        fc1=nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128),
        relu3=nn.ReLU(),
        dropout2=dropout_layer(dropout),
    )
    network = Network(body, nn.Linear(128, num_classes, bias=head_bias))
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return network
