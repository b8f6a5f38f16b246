"""Parts that several methods share."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from unskew.errors import ConfigError
from unskew.protocol import (
    Batch,
    ClientId,
    Constant,
    Federation,
    Layout,
    Me,
    Plan,
    SampleCount,
    SgdConfig,
    Step,
    ask,
    fold,
)
from unskew.tree import Params

T = TypeVar("T")


# ---------------------------------------------------------------- memory
def acknowledged(latest: T, before: T, round: int, heard: int) -> T:
    """Return what a client remembers as of the last reply that the server received.

    A client whose last reply was lost is one round ahead: then it goes back to what it had before.

    Args:
        latest, before: Values after and before the client's last training.
        round: Number of that training, or of its round.
        heard: The same of the last reply that the server received.
    """
    return latest if heard == round else before


class OneModel:
    """The part of a method whose server has one model, `params` of its state, or None, and serves it to all."""

    def serve(self, state: Any, client: ClientId | None) -> Params | None:
        """Return the global model."""
        params: Params | None = state.params
        return params


class OwnModels:
    """The part of a method whose clients each have a model, in their memory; unless it says so, the server has none."""

    def personalise(self, me: Me, params: Params | None, memory: Params | None) -> Step[Params]:
        """Return this client's own model; without one what it is served, or the common initial one."""
        yield from ()
        return memory or params or me.initial

    def serve(self, state: Any, client: ClientId | None) -> Params | None:
        """Return None: there is no model to serve."""
        return None


class OwnNetworks(OwnModels):
    """The same where no weight leaves a client, so that each may have another network."""

    server_model: bool = False

    def common(self, params: Params, layout: Layout) -> Params | None:
        """Return what clients' networks must have alike: nothing, unless the server trains a model for all."""
        return None if self.server_model else {}


# ---------------------------------------------------------------- sizes
@dataclass(frozen=True)
class SizeReply:
    """A client's number of training examples."""

    n: SampleCount


def sizes(
    declare: Callable[[Me, None, Any], tuple[SizeReply, Any]], known: dict[int, int], fed: Federation
) -> Plan[dict[int, int]]:
    """Return the training examples by client: the known ones, and the answers of clients not yet asked.

    A lost answer is requested again in the next round; until then the mean is that of the known sizes.

    Raises:
        QuorumError: If no size at all is known.
    """
    unknown = [c for c in fed.clients if c not in known]
    if not unknown:
        return known
    replies = yield from ask(declare, {c: None for c in unknown}, at_least=0 if known else 1)
    return {**known, **{c: size.n for c, size in replies.items()}}


def share(n: int, mean_size: float | None, like: Params) -> Tensor:
    """Compute 1 / omega_k, a scalar of the parameters' type: 1 where sizes do not count.

    It is a tensor, so that clients of different size can be trained in one call.
    """
    return next(iter(like.values())).new_tensor(1.0 if mean_size is None else mean_size / n)


def steps_of(local: SgdConfig, n: float) -> int:
    """Number of mini-batch steps of a client with `n` examples, short batches included: no client takes more.

    >>> [steps_of(SgdConfig(local_epochs=5, batch_size=50, drop_last=drop), 120.0) for drop in (False, True)]
    [15, 10]
    """
    if local.local_steps is not None:
        return local.local_steps
    assert local.epochs is not None  # epochs, unless steps were chosen
    batches = n / (local.batch_size or n)
    whole = max(1, math.floor(batches) if local.drop_last else math.ceil(batches))
    return math.ceil(round(local.epochs * whole, 6))


def require_plain(local: SgdConfig, who: str) -> None:
    """Check that each of the clients' steps is a gradient times the learning rate, where a method computes with them.

    Raises:
        ConfigError: If it is not.
    """
    plain = {"optimizer": "sgd", "momentum": 0.0, "clip_norm": None, "step_schedule": Constant()}
    if odd := [f"{name} = {getattr(local, name)!r}" for name, value in plain.items() if getattr(local, name) != value]:
        raise ConfigError(f"{who}'s steps are plain gradients at one rate; leave {', '.join(odd)} out of local")


# ---------------------------------------------------------------- tensors by role
def corrected(layout: Layout, local: SgdConfig) -> tuple[str, ...]:
    """Return the parameters that have a correction, a variate or a drift: those that local training may change."""
    chosen = layout.select(local.trainable)
    return tuple(n for n in layout.trainable if n in chosen)


def restricted(config: SgdConfig, layout: Layout, names: Collection[str]) -> SgdConfig:
    """Restrict `config` to these tensors, as far as it trains them at all."""
    chosen = layout.select(config.trainable)
    return replace(
        config, trainable=tuple(n for n in (*layout.trainable, *layout.buffers) if n in chosen and n in names)
    )


def shares_something(layout: Layout, groups: tuple[str, ...], option: str, instead: str) -> frozenset[str]:
    """Return the tensors of `groups`.

    Raises:
        ConfigError: If they are all that can be trained.
    """
    names = layout.select(groups)
    if names.issuperset(layout.trainable):
        raise ConfigError(
            f"{option} = {list(groups)} leaves no parameter to be learned together; name fewer layers, "
            f"or take {instead}"
        )
    return names


def weight_of(layout: Layout, layer: str) -> str | None:
    """Find the name of the classification layer's weight; `layer` may name the layer or the weight, or nothing."""
    if not layer:
        return layout.classifier
    return layer if layer in layout.trainable else f"{layer}.weight"


def classifier(layout: Layout, params: Params, classes: int, who: str, layer: str = "") -> str:
    """Find the name of the weight, (classes, features), of the linear layer that makes the logits.

    Raises:
        ConfigError: If the model has no such layer, or there are not two classes.
    """
    if classes < 2:
        raise ConfigError(f"{who} is about several classes, got {classes}; use data with two or more")
    name = weight_of(layout, layer)
    if name is not None and name in layout.trainable and params[name].dim() == 2 and len(params[name]) == classes:
        return name
    fitting = [n for n in layout.trainable if params[n].dim() == 2 and len(params[n]) == classes]
    if name is None:
        problem = (
            f"this model ends in a layer without a weight of its own ({', '.join(layout.head or ()) or 'no tensors'})"
        )
    elif name in layout.trainable:
        problem = f"{name} has the shape {tuple(params[name].shape)}"
    else:
        problem = f"there is no tensor {name}"
    remedy = f"name it by layer = ..., for instance {fitting[-1]!r}" if fitting else "end the network in a linear layer"
    raise ConfigError(
        f"{who} needs a linear classification layer, whose weight has the shape ({classes}, features), but {problem}; "
        f"{remedy}"
    )


# ---------------------------------------------------------------- losses of models
def add_loss(total: Tensor | float, batch: Batch) -> Tensor | float:
    """Add a batch to the sum of losses."""
    return total + (batch.loss * batch.mask).double().sum()


def train_loss(me: Me, params: Params) -> Step[float]:
    """Compute F_k: mean task loss over all of this client's training data, in evaluation mode."""
    start: Tensor | float = 0.0
    return float((yield from fold(add_loss, params, start))) / me.n


def train_losses(me: Me, models: Sequence[Params]) -> Step[list[float]]:
    """Compute F_k of every model; for a single model it does not matter, and no pass is made."""
    if len(models) == 1:
        return [0.0]
    losses = []
    for model in models:
        losses.append((yield from train_loss(me, model)))
    return losses


# ---------------------------------------------------------------- means by class
def masked_mean(each: Tensor, mask: Tensor) -> Tensor:
    """Average over a batch's examples without padding; 0 if there is only padding."""
    return (each * mask).sum() / mask.sum().clamp(min=1.0)


TeacherMean = Literal["clients", "examples"]


def by_class(sums: Tensor, counts: Tensor) -> Tensor:
    """Compute means by class, (classes, ...); zero where there are no examples."""
    return sums / counts.clamp(min=1).to(sums)[:, None]


def mean_by_class(means: Sequence[Tensor], counts: Sequence[Tensor], averaging: TeacherMean) -> tuple[Tensor, Tensor]:
    """Average over the clients that hold a class (eq. 2), and find the classes that any client holds.

    Args:
        means: Means of each client, (classes, ...).
        counts: Counts of each client, (classes,).
        averaging: "clients" weights the holders of a class equally, "examples" by their examples of it.

    Returns:
        (classes, ...), zero where no client holds the class; (classes,) bool.
    """
    # A client counts on its CPU, and its means may be on a device.
    weights = torch.stack([(c > 0) if averaging == "clients" else c for c in counts]).to(means[0].device).double()
    total = weights.sum(0)
    pooled = sum((w[:, None] * m.double() for w, m in zip(weights, means, strict=True)), start=means[0].double() * 0.0)
    return (pooled / total.where(total > 0, torch.ones_like(total))[:, None]).to(means[0]), total > 0
