"""MobileNetV2 for small images, as used by FedDW.

M. Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks".  For 32x32 the stem and the second stage
have stride 1.  ReLU replaces ReLU6, and a block of stride 1 that changes width has a 1x1 convolution as its shortcut,
where the paper has none.
"""

from typing import Literal, final

from torch import Tensor, nn

from unskew.models.network import AtLeastOne, Network, image, neck_layers, norm_layer, stack

# expansion, maps at full width, blocks, stride of the first
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_STEM, _LAST = 32, 1280


@final
class Inverted(nn.Module):
    """1x1 to `expansion` times the maps, depthwise 3x3, 1x1 back, no ReLU after it; a shortcut if the stride is 1.

    (B, in, H, W) to (B, out, H / stride, W / stride).
    """

    def __init__(
        self,
        inside: int,
        outside: int,
        expansion: int,
        stride: int,
        norm: Literal["batch", "group"],
        groups: int,
    ) -> None:
        super().__init__()
        wide = expansion * inside
        self.residual = stack(
            conv1=nn.Conv2d(inside, wide, 1, bias=False),
            norm1=norm_layer(norm, wide, groups),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(wide, wide, 3, stride=stride, padding=1, groups=wide, bias=False),
            norm2=norm_layer(norm, wide, groups),
            relu2=nn.ReLU(),
            conv3=nn.Conv2d(wide, outside, 1, bias=False),
            norm3=norm_layer(norm, outside, groups),
        )
        self.shortcut: nn.Sequential | None = None
        if stride == 1:
            # stack() of nothing is the identity
            self.shortcut = stack()
            if inside != outside:
                self.shortcut = stack(
                    conv=nn.Conv2d(inside, outside, 1, bias=False), norm=norm_layer(norm, outside, groups)
                )

    def forward(self, x: Tensor) -> Tensor:
        """`residual(x) + shortcut(x)`, or just the residual."""
        out: Tensor = self.residual(x)
        return out if self.shortcut is None else out + self.shortcut(x)


def mobilenet_v2(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    shrink: Literal[1, 2] = 2,
    norm: Literal["batch", "group"] = "batch",
    groups: AtLeastOne = 4,
    neck: tuple[AtLeastOne, ...] = (256, 128),
    head_bias: bool = True,
) -> Network:
    """Stem of 32, 17 inverted residuals of 16 to 320 maps and 1280 at the end, each over `shrink`; mean, neck, C.

    796,050 parameters at three channels and C = 10.  The stem keeps its width, as in the published code.  `neck` are
    linear layers before the head, with ReLU between them and none after the last.
    """
    channels, _, _ = image("mobilenet_v2", input_shape, at_least=8)
    layers: dict[str, nn.Module | None] = {
        "conv1": nn.Conv2d(channels, _STEM, 3, padding=1, bias=False),
        "norm1": norm_layer(norm, _STEM, groups),
        "relu1": nn.ReLU(),
    }
    inside = _STEM
    for stage, (expansion, maps, blocks, stride) in enumerate(_STAGES, start=1):
        for i in range(1, blocks + 1):
            outside = maps // shrink
            layers[f"block{stage}_{i}"] = Inverted(inside, outside, expansion, stride if i == 1 else 1, norm, groups)
            inside = outside
    last = _LAST // shrink
    layers["conv2"] = nn.Conv2d(inside, last, 1, bias=False)
    layers["norm2"] = norm_layer(norm, last, groups)
    layers["relu2"] = nn.ReLU()
    layers["mean"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    widths = (last, *neck)
    return Network(stack(**layers, **neck_layers(widths)), nn.Linear(widths[-1], num_classes, bias=head_bias))
