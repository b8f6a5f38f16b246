"""Parts shared by networks: the split into body and head, named layers, normalisation, checks of image shapes."""

import copy
from collections.abc import Callable
from typing import Annotated, Literal, final

import torch
from annotated_types import Ge, Lt
from torch import Tensor, nn

from unskew.errors import ConfigError

# The types of options; `unskew.models.build` validates against them.
AtLeastOne = Annotated[int, Ge(1)]
Dropout = Annotated[float, Ge(0.0), Lt(1.0)]
Norm = Literal["batch", "group", "none"]


def copied(module: nn.Module) -> nn.Module:
    """A copy of a network, including values that a forward pass left on its layers, as old weight normalisation does.

    Raises:
        ConfigError: If it is compiled by TorchScript, which takes no hooks.
    """
    if isinstance(module, torch.jit.ScriptModule):
        raise ConfigError("the network is compiled by TorchScript; give the module that it was made of")
    left = (v for part in module.modules() for v in vars(part).values() if isinstance(v, Tensor) and not v.is_leaf)
    return copy.deepcopy(module, {id(t): t.detach().clone() for t in left})


@final
class Network(nn.Module):
    """`head(body(x))`: (B, *input_shape) to features (B, d) to logits (B, classes).

    With `softmax` the output is probabilities: only for published numbers obtained so.
    """

    def __init__(self, body: nn.Module, head: nn.Linear, *, softmax: bool = False) -> None:
        super().__init__()
        self.body = body
        self.head = head
        self.softmax = softmax

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, classes), or probabilities if the network was built with `softmax`."""
        out: Tensor = self.head(self.body(x))
        return out.softmax(1) if self.softmax else out


def stack(**layers: nn.Module | None) -> nn.Sequential:
    """Stack named layers in order, leaving out None."""
    sequence = nn.Sequential()
    for name, layer in layers.items():
        if layer is not None:
            sequence.add_module(name, layer)
    return sequence


def initialise(network: Network, draw: Callable[[Tensor], object]) -> Network:
    """Redraw every weight of the network with `draw`, in layer order, and set every bias to 0."""
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            draw(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return network


def dropout_layer(p: float) -> nn.Dropout | None:
    """Dropout with probability `p`, or no layer if it would do nothing (executors look at the layers)."""
    return nn.Dropout(p) if p > 0 else None


def norm_layer(kind: Norm, channels: int, groups: int, *, flat: bool = False) -> nn.Module | None:
    """Normalisation of `channels` feature maps (B, channels, H, W), or of a vector (B, channels) if `flat`.

    Raises:
        ConfigError: If `groups` does not divide the channels.
    """
    if kind == "none":
        return None
    if kind == "batch":
        return nn.BatchNorm1d(channels) if flat else nn.BatchNorm2d(channels)
    if channels % groups:
        raise ConfigError(
            f"option groups must divide the channels of every normalised layer, got {groups} for {channels} channels"
        )
    return nn.GroupNorm(groups, channels)


def image(model: str, shape: tuple[int, ...], at_least: int) -> tuple[int, int, int]:
    """Channels, height and width of `shape`.

    Raises:
        ConfigError: If it is no image, or a side is shorter than `at_least` pixels.
    """
    if len(shape) != 3 or min(shape[1:]) < at_least:
        instead = "cnn_small, which accepts 8x8 and up, or mlp" if at_least > 8 else "mlp"
        raise ConfigError(
            f"model {model} needs images (channels, height, width) of at least {at_least}x{at_least} pixels, "
            f"got {shape}; use {instead}, which accepts any input"
        )
    channels, height, width = shape
    return channels, height, width
