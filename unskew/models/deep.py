"""Deep networks for small images: stems without pooling, blocks beside shortcuts, a global mean.

K. He et al., "Deep Residual Learning for Image Recognition"; X. Zhang et al., "ShuffleNet: An Extremely Efficient
Convolutional Neural Network for Mobile Devices"; M. Sandler et al., "MobileNetV2: Inverted Residuals and Linear
Bottlenecks"; group norm as in Y. Wu and K. He, "Group Normalization".

For 32x32 the stems have stride 1.  In ShuffleNet a ReLU follows the depthwise convolution, unlike in the paper.  In
MobileNetV2 the second stage has stride 1, and ReLU replaces ReLU6.  A block of stride 1 that changes width has a 1x1
convolution as its shortcut, where the paper has none.
"""

from collections.abc import Iterator
from typing import Literal, final

import torch
from torch import Tensor, nn

from unskew.models.network import AtLeastOne, Network, image, norm_layer, stack

DeepNorm = Literal["batch", "group"]


@final
class Block(nn.Module):
    """A residual and a shortcut, added or, `side_by_side`, concatenated; (B, in, H, W) to (B, out, H / s, W / s)."""

    def __init__(
        self, residual: nn.Module, shortcut: nn.Module | None, *, side_by_side: bool = False, relu: bool = True
    ) -> None:
        super().__init__()
        self.residual, self.shortcut, self.side_by_side, self.relu = residual, shortcut, side_by_side, relu

    def forward(self, x: Tensor) -> Tensor:
        """Both, and a ReLU if there is one; without a shortcut the residual."""
        out: Tensor = self.residual(x)
        if self.shortcut is not None:
            out = torch.cat([out, self.shortcut(x)], 1) if self.side_by_side else out + self.shortcut(x)
        return out.relu() if self.relu else out


@final
class Shuffle(nn.Module):
    """Channels of the groups in turn; PyTorch's own layer has no derivative in stacked training before 2.5."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the maps (B, C, H, W) of both halves in turn."""
        return x.reshape(len(x), _GROUPS, -1, *x.shape[2:]).transpose(1, 2).flatten(1, 2)


def _conv(inside: int, outside: int, kernel: int, stride: int = 1, groups: int = 1, bias: bool = False) -> nn.Conv2d:
    return nn.Conv2d(inside, outside, kernel, stride, kernel // 2, groups=groups, bias=bias)


def _convolutions(norm: DeepNorm, groups: int, *convolutions: nn.Conv2d, shuffled: bool = False) -> nn.Sequential:
    """Convolutions with norms, ReLU between them; `shuffled` after the first."""
    layers: dict[str, nn.Module | None] = {}
    for i, convolution in enumerate(convolutions, start=1):
        layers[f"conv{i}"] = convolution
        layers[f"norm{i}"] = norm_layer(norm, convolution.out_channels, groups)
        layers[f"relu{i}"] = nn.ReLU() if i < len(convolutions) else None
        layers[f"shuffle{i}"] = Shuffle() if shuffled and i == 1 else None
    return stack(**layers)


def _network(
    stem: nn.Conv2d,
    blocks: dict[str, nn.Module],
    last: nn.Conv2d | None,
    width: int,
    num_classes: int,
    *,
    norm: DeepNorm,
    groups: int,
    neck: tuple[int, ...],
    head_bias: bool,
) -> Network:
    """Stem, blocks, perhaps a last convolution, global mean of `width` maps, neck, head.

    The neck is linear layers before the head, with ReLU between them and none after the last.
    """
    layers: dict[str, nn.Module | None] = {"conv1": stem, "norm1": norm_layer(norm, stem.out_channels, groups)}
    layers |= {"relu1": nn.ReLU(), **blocks}
    if last is not None:
        layers |= {"conv2": last, "norm2": norm_layer(norm, width, groups), "relu2": nn.ReLU()}
    layers |= {"mean": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    widths = (width, *neck)
    for i in range(1, len(widths)):
        layers[f"fc{i}"] = nn.Linear(widths[i - 1], widths[i])
        layers[f"relu_fc{i}"] = nn.ReLU() if i + 1 < len(widths) else None
    return Network(stack(**layers), nn.Linear(widths[-1], num_classes, bias=head_bias))


# ---------------------------------------------------------------- ResNet
def resnet18(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    norm: DeepNorm = "batch",
    groups: AtLeastOne = 32,
    conv_bias: bool = False,
    neck: tuple[AtLeastOne, ...] = (),
    head_bias: bool = True,
) -> Network:
    """Stem of 64, two blocks each of 64, 128, 256, 512 (halving the image from the second pair on), global mean, C.

    11,173,962 parameters at three channels and C = 10.  FedDW's ResNet18 is `neck=(256, 128), conv_bias=True`.
    Workload W5 is `norm="group"`.
    """

    def block(inside: int, outside: int, stride: int) -> Block:
        first = _conv(inside, outside, 3, stride, bias=conv_bias)
        residual = _convolutions(norm, groups, first, _conv(outside, outside, 3, bias=conv_bias))
        if inside == outside:
            return Block(residual, stack())  # the identity
        beside = _conv(inside, outside, 1, stride, bias=conv_bias)
        return Block(residual, stack(conv=beside, norm=norm_layer(norm, outside, groups)))

    def blocks() -> Iterator[tuple[str, nn.Module]]:
        for stage, (inside, outside) in enumerate(((64, 64), (64, 128), (128, 256), (256, 512)), start=1):
            yield f"block{stage}a", block(inside, outside, 1 if stage == 1 else 2)
            yield f"block{stage}b", block(outside, outside, 1)

    channels, _, _ = image("resnet18", input_shape, at_least=8)
    stem, every = _conv(channels, 64, 3, bias=conv_bias), dict(blocks())
    return _network(stem, every, None, 512, num_classes, norm=norm, groups=groups, neck=neck, head_bias=head_bias)


# ---------------------------------------------------------------- ShuffleNet
_GROUPS = 2  # of the 1x1 convolutions; the norm's groups are another matter


def shufflenet(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    norm: DeepNorm = "batch",
    groups: AtLeastOne = 2,
    neck: tuple[AtLeastOne, ...] = (256, 128),
    head_bias: bool = True,
) -> Network:
    """Stem of 24, then 4, 8 and 4 units of 200, 400 and 800 maps (each halves the image once), global mean, neck, C.

    1,118,814 parameters at three channels and C = 10; `neck=()` is 800 -> C.  With `norm="group"`, `groups` is 1 or 2:
    no other number divides the maps of every layer.
    """

    def unit(inside: int, outside: int, stride: int) -> Block:
        """Grouped 1x1, shuffle, depthwise 3x3, grouped 1x1, beside the input or, with stride 2, its 3x3 average."""
        added = outside if stride == 1 else outside - inside
        middle, first = added // 4, 1 if inside == 24 else _GROUPS  # the stem's maps are too few to split
        convolutions = (
            _conv(inside, middle, 1, groups=first),
            _conv(middle, middle, 3, stride, groups=middle),
            _conv(middle, added, 1, groups=_GROUPS),
        )
        residual = _convolutions(norm, groups, *convolutions, shuffled=first > 1)
        beside = stack(mean=nn.AvgPool2d(3, stride=2, padding=1) if stride == 2 else None)
        return Block(residual, beside, side_by_side=stride == 2)

    def units() -> Iterator[tuple[str, nn.Module]]:
        for stage, (inside, outside, n) in enumerate(((24, 200, 4), (200, 400, 8), (400, 800, 4)), start=1):
            yield f"unit{stage}_1", unit(inside, outside, 2)
            yield from ((f"unit{stage}_{i}", unit(outside, outside, 1)) for i in range(2, n + 1))

    channels, _, _ = image("shufflenet", input_shape, at_least=8)
    stem, every = _conv(channels, 24, 1), dict(units())
    return _network(stem, every, None, 800, num_classes, norm=norm, groups=groups, neck=neck, head_bias=head_bias)


# ---------------------------------------------------------------- MobileNetV2
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


def mobilenet_v2(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    shrink: Literal[1, 2] = 2,
    norm: DeepNorm = "batch",
    groups: AtLeastOne = 4,
    neck: tuple[AtLeastOne, ...] = (256, 128),
    head_bias: bool = True,
) -> Network:
    """Stem of 32, 17 inverted residuals of 16 to 320 maps and 1280 at the end, each over `shrink`; mean, neck, C.

    796,050 parameters at three channels and C = 10.  The stem keeps its width, as in the published code.
    """

    def inverted(inside: int, outside: int, expansion: int, stride: int) -> Block:
        """1x1 to `expansion` times the maps, depthwise 3x3, 1x1 back without ReLU; a shortcut if the stride is 1."""
        wide = expansion * inside
        convolutions = _conv(inside, wide, 1), _conv(wide, wide, 3, stride, groups=wide), _conv(wide, outside, 1)
        residual, beside = _convolutions(norm, groups, *convolutions), None if stride > 1 else stack()
        if stride == 1 and inside != outside:
            beside = stack(conv=_conv(inside, outside, 1), norm=norm_layer(norm, outside, groups))
        return Block(residual, beside, relu=False)

    def blocks() -> Iterator[tuple[str, nn.Module]]:
        inside = 32
        for stage, (expansion, maps, n, stride) in enumerate(_STAGES, start=1):
            for i in range(1, n + 1):
                yield f"block{stage}_{i}", inverted(inside, maps // shrink, expansion, stride if i == 1 else 1)
                inside = maps // shrink

    channels, _, _ = image("mobilenet_v2", input_shape, at_least=8)
    stem, every = _conv(channels, 32, 3), dict(blocks())
    width = 1280 // shrink
    last = _conv(320 // shrink, width, 1)
    return _network(stem, every, last, width, num_classes, norm=norm, groups=groups, neck=neck, head_bias=head_bias)
