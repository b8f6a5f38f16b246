"""ShuffleNet for small images, as used by FedDW.

X. Zhang et al., "ShuffleNet: An Extremely Efficient Convolutional Neural Network for Mobile Devices".  For 32x32 the
stem is a 1x1 convolution of stride 1 without pooling, and a ReLU follows the depthwise convolution, unlike in the
paper.
"""

from typing import Literal, final

import torch
from torch import Tensor, nn

from unskew.models.network import AtLeastOne, Network, image, neck_layers, norm_layer, stack

# Of the 1x1 convolutions; the norm's groups are another matter.
_GROUPS = 2
_STEM = 24


@final
class Shuffle(nn.Module):
    """Channels of the groups in turn; PyTorch's own layer has no derivative in stacked training before 2.5."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the maps (B, C, H, W) of both halves in turn."""
        return x.reshape(len(x), _GROUPS, -1, *x.shape[2:]).transpose(1, 2).flatten(1, 2)


@final
class Unit(nn.Module):
    """Grouped 1x1, shuffle, depthwise 3x3, grouped 1x1, beside a shortcut: (B, in, H, W) to (B, out, H / s, W / s).

    With stride 1 the shortcut is the input and is added, so out = in.  With stride 2 it is a 3x3 average and is
    concatenated, so the residual has out - in maps.
    """

    def __init__(
        self, inside: int, outside: int, stride: Literal[1, 2], norm: Literal["batch", "group"], groups: int
    ) -> None:
        super().__init__()
        added = outside if stride == 1 else outside - inside
        middle = added // 4
        first = 1 if inside == _STEM else _GROUPS  # too few maps to split
        self.residual = stack(
            conv1=nn.Conv2d(inside, middle, 1, groups=first, bias=False),
            norm1=norm_layer(norm, middle, groups),
            relu1=nn.ReLU(),
            shuffle=Shuffle() if first > 1 else None,
            conv2=nn.Conv2d(middle, middle, 3, stride=stride, padding=1, groups=middle, bias=False),
            norm2=norm_layer(norm, middle, groups),
            relu2=nn.ReLU(),
            conv3=nn.Conv2d(middle, added, 1, groups=_GROUPS, bias=False),
            norm3=norm_layer(norm, added, groups),
        )
        self.shortcut = stack(mean=nn.AvgPool2d(3, stride=2, padding=1) if stride == 2 else None)

    def forward(self, x: Tensor) -> Tensor:
        """`relu` of residual and shortcut, added or concatenated."""
        residual, shortcut = self.residual(x), self.shortcut(x)
        out: Tensor = torch.cat([residual, shortcut], 1) if len(self.shortcut) else residual + shortcut
        return out.relu()


def shufflenet(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    norm: Literal["batch", "group"] = "batch",
    groups: AtLeastOne = 2,
    neck: tuple[AtLeastOne, ...] = (256, 128),
    head_bias: bool = True,
) -> Network:
    """Stem of 24, then 4, 8 and 4 units of 200, 400 and 800 maps (each halves the image once), global mean, neck, C.

    1,118,814 parameters at three channels and C = 10.  `neck` are linear layers before the head, with ReLU between
    them and none after the last; `neck=()` is 800 -> C.  With `norm="group"`, `groups` is 1 or 2: no other number
    divides the maps of every layer.
    """
    channels, _, _ = image("shufflenet", input_shape, at_least=8)
    layers: dict[str, nn.Module | None] = {
        "conv1": nn.Conv2d(channels, _STEM, 1, bias=False),
        "norm1": norm_layer(norm, _STEM, groups),
        "relu1": nn.ReLU(),
    }
    inside = _STEM
    for stage, (outside, units) in enumerate(((200, 4), (400, 8), (800, 4)), start=1):
        layers[f"unit{stage}_1"] = Unit(inside, outside, 2, norm, groups)
        for i in range(2, units + 1):
            layers[f"unit{stage}_{i}"] = Unit(outside, outside, 1, norm, groups)
        inside = outside
    layers["mean"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    widths = (inside, *neck)
    return Network(stack(**layers, **neck_layers(widths)), nn.Linear(widths[-1], num_classes, bias=head_bias))
