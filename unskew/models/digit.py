"""HCCT's network for the Digit domains, taken from FedBN."""

from torch import nn

from unskew.models.network import Count, Dropout, Network, Norm, dropout_layer, image, norm_layer, stack


def digit_model(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    width: Count = 64,
    norm: Norm = "batch",
    groups: Count = 4,
    dropout: Dropout = 0.0,
    head_bias: bool = True,
) -> Network:
    """Padded 5x5 convolutions of w, w, 2w (the first two pooled), then 32w and 8w; norm and ReLU after every layer.

    14,219,210 parameters at 28x28x3, C = 10 and the published w = 64; 502,702 at w = 12.  With batch norm, training
    needs at least two images in a batch: PyTorch refuses the statistics of one.  `dropout`, after the fully connected
    layers' ReLU, is not in the paper.
    """
    channels, height, wide = image("digit_model", input_shape, at_least=4)
    maps = 2 * width
    body = stack(
        conv1=nn.Conv2d(channels, width, 5, padding=2),
        norm1=norm_layer(norm, width, groups),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(width, width, 5, padding=2),
        norm2=norm_layer(norm, width, groups),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        conv3=nn.Conv2d(width, maps, 5, padding=2),
        norm3=norm_layer(norm, maps, groups),
        relu3=nn.ReLU(),
        flatten=nn.Flatten(),
        fc1=nn.Linear(maps * (height // 4) * (wide // 4), 32 * width),
        norm4=norm_layer(norm, 32 * width, groups, flat=True),
        relu4=nn.ReLU(),
        dropout1=dropout_layer(dropout),
        fc2=nn.Linear(32 * width, 8 * width),
        norm5=norm_layer(norm, 8 * width, groups, flat=True),
        relu5=nn.ReLU(),
        dropout2=dropout_layer(dropout),
    )
    return Network(body, nn.Linear(8 * width, num_classes, bias=head_bias))
