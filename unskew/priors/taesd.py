"""A small pretrained autoencoder of colour images, for a prior of natural ones: O. Boer Bohan, TAESD, MIT.

This is taef2 of github.com/madebyollin/taesd, distilled from the autoencoder of FLUX.2.  It takes images (N, 3, H, W)
in [0, 1], H and W divisible by 8, to latents (N, 32, H/8, W/8), and back.  Its weights are in photographs/.
"""

from collections.abc import Iterator
from itertools import chain

from torch import Tensor, nn

CHANNELS, FACTOR = 32, 8


class _Block(nn.Module):
    """Three convolutions beside the identity; `pooled`, also normalised ones of single places before them."""

    def __init__(self, pooled: bool = False) -> None:
        super().__init__()
        self.conv = nn.Sequential(_conv(), nn.ReLU(), _conv(), nn.ReLU(), _conv())
        enter, leave = nn.Conv2d(64, 256, 1, bias=False), nn.Conv2d(256, 64, 1, bias=False)
        self.pool = nn.Sequential(enter, nn.GroupNorm(4, 256), nn.ReLU(), leave) if pooled else None

    def forward(self, x: Tensor) -> Tensor:
        """(N, 64, H, W) to the same shape."""
        x = x if self.pool is None else x + self.pool(x)
        out: Tensor = (self.conv(x) + x).relu()
        return out


class _Bounded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 3 * (x / 3).tanh()


def _conv(inputs: int = 64, outputs: int = 64, stride: int = 1, bias: bool = True) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, 1, bias=bias)


def _blocks(pooled: bool) -> Iterator[nn.Module]:
    return (_Block(pooled) for _ in range(3))


def encoder() -> nn.Sequential:
    """Images to latents; parts are numbered as in the published weights."""
    halved = ((_conv(stride=2, bias=False), *_blocks(pooled)) for pooled in (False, False, True))
    return nn.Sequential(_conv(3), _Block(), *chain.from_iterable(halved), _conv(64, CHANNELS))


def decoder() -> nn.Sequential:
    """Latents to images."""
    doubled = ((*_blocks(pooled), nn.Upsample(scale_factor=2), _conv(bias=False)) for pooled in (True, False, False))
    enter = _Bounded(), _conv(CHANNELS), nn.ReLU()
    return nn.Sequential(*enter, *chain.from_iterable(doubled), _Block(), _conv(outputs=3))
