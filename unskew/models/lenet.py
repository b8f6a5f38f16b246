"""LeNet-type networks: two unpadded 5x5 convolutions, each with ReLU and 2x2 max pooling, then fully connected layers.

An unpadded network refuses images smaller than those it was published for: its last feature map would shrink to a few
pixels and the parameter count would no longer be the published one.
"""

from unskew.models.network import AtLeastOne, Dropout, Network, Norm, convolutional


def lenet(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    norm: Norm = "none",
    groups: AtLeastOne = 4,
    dropout: Dropout = 0.0,
    head_bias: bool = True,
) -> Network:
    """FedDif and FedDC on CIFAR: convolutions of 64 and 64, then 1600 -> 384 -> 192 -> C.

    797,962 parameters at 32x32x3 and C = 10; 815,332 at C = 100.  `norm` acts before each convolution's ReLU, `dropout`
    after each hidden layer's; neither is in the papers.
    """
    return _lenet("lenet", input_shape, num_classes, (64, 64), (384, 192), norm, groups, dropout, head_bias)


def torch_cnn(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    norm: Norm = "none",
    groups: AtLeastOne = 2,
    dropout: Dropout = 0.0,
    head_bias: bool = True,
) -> Network:
    """The PyTorch tutorial's CNN: convolutions of 6 and 16, then 400 -> 120 -> 84 -> C.

    62,006 parameters at 32x32x3 and C = 10.
    """
    return _lenet("torch_cnn", input_shape, num_classes, (6, 16), (120, 84), norm, groups, dropout, head_bias)


def cnn_w3(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    norm: Norm = "none",
    groups: AtLeastOne = 4,
    dropout: Dropout = 0.0,
    head_bias: bool = True,
) -> Network:
    """Workload W3: convolutions of 32 and 64, then 1600 -> 512 -> C; 878,538 parameters at 32x32x3 and C = 10."""
    return _lenet("cnn_w3", input_shape, num_classes, (32, 64), (512,), norm, groups, dropout, head_bias)


def _lenet(
    model: str,
    input_shape: tuple[int, ...],
    num_classes: int,
    maps: tuple[int, int],
    hidden: tuple[int, ...],
    norm: Norm,
    groups: int,
    dropout: float,
    head_bias: bool,
) -> Network:
    return convolutional(
        model,
        input_shape,
        num_classes,
        at_least=32,
        maps=maps,
        kernel=5,
        padded=False,
        hidden=hidden,
        norm=norm,
        groups=groups,
        dropout=dropout,
        head_bias=head_bias,
    )
