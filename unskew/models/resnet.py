"""ResNet-18 with the stem used on CIFAR: one 3x3 convolution of stride 1, no max pooling.

K. He et al., "Deep Residual Learning for Image Recognition"; group norm as in Y. Wu and K. He, "Group Normalization".
"""

from typing import Literal, final

from torch import Tensor, nn

from unskew.models.network import AtLeastOne, Network, image, neck_layers, norm_layer, stack


@final
class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut: (B, in, H, W) to (B, out, H / stride, W / stride)."""

    def __init__(
        self, inside: int, outside: int, stride: int, norm: Literal["batch", "group"], groups: int, bias: bool
    ) -> None:
        super().__init__()
        self.residual = stack(
            conv1=nn.Conv2d(inside, outside, 3, stride=stride, padding=1, bias=bias),
            norm1=norm_layer(norm, outside, groups),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(outside, outside, 3, padding=1, bias=bias),
            norm2=norm_layer(norm, outside, groups),
        )
        # Sequential() of nothing is the identity
        self.shortcut = stack()
        if stride != 1 or inside != outside:
            self.shortcut = stack(
                conv=nn.Conv2d(inside, outside, 1, stride=stride, bias=bias), norm=norm_layer(norm, outside, groups)
            )

    def forward(self, x: Tensor) -> Tensor:
        """`relu(residual(x) + shortcut(x))`."""
        out: Tensor = self.residual(x) + self.shortcut(x)
        return out.relu()


def resnet18(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    norm: Literal["batch", "group"] = "batch",
    groups: AtLeastOne = 32,
    conv_bias: bool = False,
    neck: tuple[AtLeastOne, ...] = (),
    head_bias: bool = True,
) -> Network:
    """Stem of 64, two blocks each of 64, 128, 256, 512 (halving the image from the second pair on), global mean, C.

    11,173,962 parameters at three channels and C = 10.  `neck` puts linear layers before the head, with ReLU between
    them and none after the last: FedDW's ResNet18 is `neck=(256, 128), conv_bias=True`.  Workload W5 is `norm="group"`.
    """
    channels, _, _ = image("resnet18", input_shape, at_least=8)
    layers: dict[str, nn.Module | None] = {
        "conv1": nn.Conv2d(channels, 64, 3, padding=1, bias=conv_bias),
        "norm1": norm_layer(norm, 64, groups),
        "relu1": nn.ReLU(),
    }
    inside = 64
    for stage, outside in enumerate((64, 128, 256, 512), start=1):
        stride = 1 if stage == 1 else 2
        layers[f"block{stage}a"] = BasicBlock(inside, outside, stride, norm, groups, conv_bias)
        layers[f"block{stage}b"] = BasicBlock(outside, outside, 1, norm, groups, conv_bias)
        inside = outside
    layers["mean"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    widths = (inside, *neck)
    return Network(stack(**layers, **neck_layers(widths)), nn.Linear(widths[-1], num_classes, bias=head_bias))
