"""HCCT's network for the Digit domains, taken from FedBN."""

from unskew.models.network import AtLeastOne, Dropout, Network, Norm, convolutional


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
    """Padded 5x5 convolutions of w, w, 2w (the first two pooled), then 32w and 8w; norm and ReLU after every layer.

    14,219,210 parameters at 28x28x3, C = 10 and the published w = 64; 502,702 at w = 12.  With batch norm, training
    needs at least two images in a batch: PyTorch refuses the statistics of one.  `dropout`, after the fully connected
    layers' ReLU, is not in the paper.
    """
    return convolutional(
        "digit_model",
        input_shape,
        num_classes,
        at_least=4,
        maps=(width, width, 2 * width),
        kernel=5,
        unpooled=(3,),
        hidden=(32 * width, 8 * width),
        norm=norm,
        norm_hidden=True,
        groups=groups,
        dropout=dropout,
        head_bias=head_bias,
    )
