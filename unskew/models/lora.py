"""Low-rank adapters by PEFT on a frozen network: E. J. Hu et al., "LoRA", ICLR 2022.

W x becomes W x + alpha / rank B A x, where A, (rank, in), is drawn, and B, (out, rank), starts at zero.  A's tensors
are called LAYER.lora_A.default.weight, B's LAYER.lora_B.default.weight, so methods may name `lora_A` and `lora_B`.
"""

from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Interval
from torch import nn

from unskew import schema
from unskew.errors import ConfigError

PLACE = "task.model_options.lora"


@dataclass(frozen=True)
class Lora:
    """Settings of adapters.

    Attributes:
        rank: Their inner width.
        alpha: Scale of their output, over `rank`; by default twice the rank.
        targets: Layers that get one, by name or its end; by default all linear ones not `trained`.
        trained: Layers trained as they are, as a classifier's head.
        dropout: Share of an adapter's inputs that a training step drops.
    """

    rank: Annotated[int, Ge(1)] = 8
    alpha: Annotated[int, Ge(1)] | None = None
    targets: tuple[str, ...] = ()
    trained: tuple[str, ...] = ()
    dropout: Annotated[float, Interval(ge=0.0, lt=1.0)] = 0.0


def adapted(network: nn.Module, options: Any) -> nn.Module:
    """Freeze a network in place, except its `trained` layers, and add adapters.

    Raises:
        ConfigError: If PEFT is not installed, or a setting is impossible or names a missing layer.
    """
    lora: Lora = schema.build(Lora, options, PLACE)
    try:
        import peft
    except ImportError as error:
        raise ConfigError(f"{PLACE} needs PEFT; install unskew[peft]") from error
    layers = dict(network.named_modules())
    if unknown := [name for name in lora.trained if name not in layers]:
        raise ConfigError(f"{PLACE}.trained: {type(network).__name__} has no layer {unknown[0]!r}")
    kept = tuple(f"{name}." for name in lora.trained)
    linear = [n for n, layer in layers.items() if isinstance(layer, nn.Linear) and not f"{n}.".startswith(kept)]
    config = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=2 * lora.rank if lora.alpha is None else lora.alpha,
        target_modules=list(lora.targets) or linear,
        lora_dropout=lora.dropout,
    )
    try:
        peft.inject_adapter_in_model(config, network)
    except ValueError as error:
        raise ConfigError(f"{PLACE}: {' '.join(str(error).split())}") from error
    for name in lora.trained:
        network.get_submodule(name).requires_grad_(True)
    return network
