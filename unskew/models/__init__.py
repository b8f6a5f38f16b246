"""Networks by name: those of the papers' tables, and a few small ones for small images.

Every network is `head(body(x))`: `body` turns a batch (B, *input_shape) into features (B, d), `head` is the final
`nn.Linear` from d to the classes.  Parameters are therefore named `body.*` and `head.*`.  None ends in a softmax,
except `mlp` when asked to (`double_softmax=True`, as published for `hcct_mlp`).

Listing names imports no PyTorch; `build` imports the one file it needs.  Initial weights are drawn from PyTorch's
global generator: construct under `Key.ambient`.
"""

import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from unskew import references
from unskew.errors import ConfigError, did_you_mean
from unskew.references import IN_PYTHON
from unskew.registry import Registry

if TYPE_CHECKING:
    from torch import nn

    from unskew.tasks.kind import TaskKind

NETWORKS: dict[str, tuple[str, str]] = {
    "logistic": ("mlp:logistic", "one linear layer, softmax regression; any input"),
    "one_logit": (
        "mlp:one_logit",
        "logistic regression of two classes as FLamby starts it; two logits of opposite weights",
    ),
    "svm": ("mlp:logistic", "one linear layer, trained with the multi-class margin loss; any input"),
    "mlp": ("mlp:mlp", "fully connected, one hidden layer of 64; any input"),
    "fcn": ("mlp:fcn", "FedDif's FCN and workload W2: fully connected, two hidden layers of 200"),
    "hcct_mlp": ("mlp:hcct_mlp", "HCCT on Fashion-MNIST: 784-64-10 with dropout 0.5"),
    "lenet": ("cnn:lenet", "FedDif and FedDC on CIFAR: two 5x5 convolutions of 64, then 384 and 192; 32x32 and up"),
    "torch_cnn": ("cnn:torch_cnn", "the CNN of the PyTorch tutorial (workload E); 32x32 and up"),
    "cnn_w3": ("cnn:cnn_w3", "workload W3: 5x5 convolutions of 32 and 64, then 512; 32x32 and up"),
    "cnn_mnist": ("cnn:cnn_mnist", "FedDW on MNIST: 5x5 convolutions of 10 and 20, then 256 and 128; 28x28 and up"),
    "cnn_cifar10": (
        "cnn:cnn_cifar10",
        "FedDW on CIFAR-10: 5x5 convolutions of 6 and 16, then 256 and 128; 32x32 and up",
    ),
    "cnn_small": (
        "cnn:cnn_small",
        "two 3x3 convolutions of 16 and 32, then 64; plain, batch norm or group norm; 8x8 and up",
    ),
    "feddif_cnn": (
        "cnn:feddif_cnn",
        "FedDif's first code base on CIFAR-10: three 3x3 convolutions, then 256; 8x8 and up",
    ),
    "cnn_4": ("cnn:cnn_4", "HCCT on CIFAR-10: four 3x3 convolutions, then 500 with dropout 0.25; 8x8 and up"),
    "cnn_w4": ("cnn:cnn_w4", "workload W4: the layers of cnn_4 without dropout; 8x8 and up"),
    "pfl_cnn": (
        "cnn:pfl_cnn",
        "pfl-research on CIFAR-10 (workload A): 3x3 convolutions of 32 and 64, then 128; 32x32 and up",
    ),
    "digit_model": (
        "cnn:digit_model",
        "HCCT on Digit: three 5x5 convolutions, then 2048 and 512, batch or group norm; 4x4 and up",
    ),
    "lstm_rows": (
        "sequences:lstm_rows",
        "FedDif's first code base on Fashion-MNIST: a two-layer LSTM over image rows; 2x2 and up",
    ),
    "bag_of_words": ("sequences:bag_of_words", "the mean of a text's word vectors of 32, then linear; token ids"),
    "bilstm": ("sequences:bilstm", "FedDW on IMDB: an LSTM read both ways, its mean over a text's tokens; token ids"),
    "char_lstm": ("sequences:char_lstm", "next token at every position: vectors of 8 and an LSTM of 64; token ids"),
    "resnet18": ("deep:resnet18", "ResNet-18 with the CIFAR stem, batch or group norm (W5); 8x8 and up"),
    "shufflenet": (
        "deep:shufflenet",
        "FedDW: ShuffleNet of 2 groups, then 256 and 128, batch or group norm; 8x8 and up",
    ),
    "mobilenet_v2": (
        "deep:mobilenet_v2",
        "FedDW: MobileNetV2 of half width, then 256 and 128, batch or group norm; 8x8 and up",
    ),
}
"""Our networks by name: where each is made, below `unskew.models`, and a line about it."""

TABLE: dict[str, str] = {name: f"unskew.models.{place}" for name, (place, _) in NETWORKS.items()}

MODELS = Registry(
    "model",
    "unskew.models",
    TABLE,
    "a torch.nn.Module class, or a function annotated to return one, as in def net(input_shape, num_classes) -> "
    "nn.Module",
    lambda target: references.makes(references.is_network, target) or references.is_own_factory(target),
    about={name: about for name, (_, about) in NETWORKS.items()},
    inside=("unskew.papers.",),
    made_later=True,
)

LOSS: dict[str, str] = {"svm": "multi_margin"}
"""The loss a model is meant for, where that is not `cross_entropy`."""


def loss_of(model: str, loss: str | None, kind: "TaskKind") -> str | None:
    """The loss that trains `model`, by name: the one asked for or its own; None for the kind's first."""
    own = LOSS.get(model)
    return loss or (own if own in kind.losses else None)


def build(
    model: "str | Callable[..., nn.Module]", input_shape: Any, num_classes: int, **options: object
) -> "nn.Module":
    """The network `model` for examples of `input_shape`, freshly initialised.

    Args:
        model: A key of `TABLE`, "module.path:factory" for your own network, or the factory itself.  The factory, a
            function or a class, takes input_shape and num_classes, or nothing if its sizes are fixed, and then its
            options; it returns any module.  An option without a type is taken as it is.
        input_shape: Shape of one example: (channels, height, width) for images, (d,) for vectors; for several parts a
            tuple or a dictionary of shapes.
        num_classes: Outputs of the network, at least 1: one for each class, or one number.
        options: The network's own settings.  With `lora`, settings of `unskew.models.lora.Lora`, the network is frozen
            and gets adapters.

    Returns:
        A module with `body` and `head` that maps (B, *input_shape) to logits (B, num_classes).

    Raises:
        ConfigError: If the model or an option is unknown or out of range, the images are too small for the network,
            there is no output, or your own factory fails.
    """
    name = model if isinstance(model, str) else getattr(model, "__qualname__", type(model).__name__)
    factory = _factory(model) if isinstance(model, str) else model
    several = isinstance(input_shape, dict) or any(isinstance(part, tuple | list | dict) for part in input_shape)
    if several and name in TABLE:
        raise ConfigError(
            f"model {name} takes one tensor, and inputs have the parts {input_shape}; give your own network"
        )
    if not several and (not input_shape or any(type(n) is not int or n < 1 for n in input_shape)):
        raise ConfigError(f"input_shape of model {name} must be positive integers, got {tuple(input_shape)}")
    if type(num_classes) is not int or num_classes < 1:
        raise ConfigError(f"num_classes of model {name} must be an integer of at least 1, got {num_classes!r}")
    own = "lora" in options and all(p.name != "lora" for p in _parameters(factory))
    lora = options.pop("lora") if own else None
    checked = _checked(name, factory, options)
    network: nn.Module = (
        factory(tuple(input_shape), num_classes, **checked)
        if name in TABLE
        else _build_own(name, factory, input_shape if several else tuple(input_shape), num_classes, checked)
    )
    if lora is None:
        return network
    from unskew.models.lora import adapted  # PEFT takes seconds

    return adapted(network, lora)


def _build_own(
    name: str,
    factory: "Callable[..., nn.Module]",
    input_shape: Any,
    num_classes: int,
    options: dict[str, object],
) -> "nn.Module":
    """Build the network of a user's factory; any failure of it becomes one sentence."""
    from torch import nn

    sizes = (input_shape, num_classes) if takes_sizes(factory) else ()
    try:
        inspect.signature(factory).bind(*sizes, **options)
    except TypeError as error:
        raise ConfigError(
            f"model {name} must take (input_shape, num_classes) or nothing, and then its options, but {error}; "
            f"its parameters are {inspect.signature(factory)}; options are given with task.model_options"
        ) from None
    try:
        network = factory(*sizes, **options)
    except ConfigError:
        raise
    except Exception as error:  # anybody's code
        raise ConfigError(
            f"model {name} cannot be built for examples of shape {input_shape} and {num_classes} classes: "
            f"{type(error).__name__}: {' '.join(str(error).split())}"
        ) from error
    if not isinstance(network, nn.Module):
        raise ConfigError(f"model {name} must make a torch.nn.Module, got {type(network).__name__}")
    return network


def _factory(name: str) -> "Callable[..., nn.Module]":
    if name.startswith(IN_PYTHON):
        raise ConfigError(
            f"this run's model, {name.removeprefix(IN_PYTHON)}, was given as a value, which no file holds; give it "
            "again, unskew.resume(FOLDER, model=...), or name it as module:factory in another run"
        )
    factory: Callable[..., nn.Module] = MODELS.resolve(name)
    try:
        inspect.signature(factory)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the parameters of model {name} cannot be read: {error}") from None
    return factory


def _parameters(factory: "Callable[..., nn.Module]") -> list[inspect.Parameter]:
    """The parameters of a factory that are options: all but the sizes."""
    parameters = inspect.signature(factory).parameters.values()
    named = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    return named[2:] if takes_sizes(factory) else named


def takes_sizes(factory: "Callable[..., nn.Module]") -> bool:
    """True if a factory takes an example's shape and the number of classes; one of fixed sizes need not."""
    parameters = inspect.signature(factory).parameters.values()
    by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return any(p.default is p.empty or p.name in ("input_shape", "num_classes") for p in by_position)


def _checked(name: str, factory: "Callable[..., nn.Module]", options: dict[str, object]) -> dict[str, object]:
    # pydantic takes a tenth of a second to import: not needed to list the names
    from pydantic import PydanticSchemaGenerationError, ValidationError

    from unskew import info, schema

    known, hints, checked = {p.name: p for p in _parameters(factory)}, dict[str, Any](), dict[str, object]()
    with suppress(NameError, TypeError):  # types that cannot be read are none
        hints = schema.hints(factory.func if isinstance(factory, partial) else factory)
    for key, value in options.items():
        if key not in known:
            has = ", ".join(known) or "none"
            raise ConfigError(f"model {name} has no option {key}{did_you_mean(key, known)} ({name} has: {has})")
        # TOML and JSON know no tuples; everything else must already have its type: 'false' is not False
        plain = tuple(value) if isinstance(value, list) else value
        try:
            checked[key] = info.adapter(hints.get(key, Any)).validate_python(plain, strict=True)
        except PydanticSchemaGenerationError:  # a type of its own, which is for the network to check
            checked[key] = value
        except ValidationError as error:
            reason = error.errors()[0]["msg"].removeprefix("Input ")
            raise ConfigError(f"option {key} of model {name} {reason}, got {value!r}") from None
    if name in TABLE and "groups" in options and checked.get("norm", known["norm"].default) != "group":
        raise ConfigError(
            f"option groups of model {name} means something only with norm = 'group': set it or drop groups"
        )
    return checked
