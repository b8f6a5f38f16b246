"""Tasks: what a network's outputs mean, what is minimised, what is reported, and what a prediction is.

    from unskew import tasks

    tasks.kind_of("classification").headline.label   # 'accuracy'

A **kind of task** is a value (`TaskKind`); `TABLE` lists them, and an experiment names one with `task.kind`.  It says

    targets     the kind of label (`unskew.tasks.targets`): a class, a number, a time and an event, labels, tokens
    width       outputs that a network has for so many names: as many, or one (binary: one logit; regression: one
                number).  A network is checked against it before any work; nothing is guessed from a layer.
    losses      by name, the first is the default: (outputs, targets) -> the loss of each example
    measures    what is reported (`Measure`): name, label, direction, range, unit, and how it is taken, as a mean over
                examples (accuracy, squared error; perplexity is a function of a mean) or from all of them at once
                (AUROC, R2, concordance).  The first is the **headline**: early stopping, best rounds, comparisons,
                tables and figures go by it and its direction.
    predict     outputs -> predictions, as `unskew.predict` gives them
    model       the network that is trained if none is named
    gives       what it offers methods; see `unskew.tasks.kind.NEEDS`

A **task** (`Task`) is a kind with a network for it: `make_task` reads the network's parts, and binds the loss and the
measures that the run reports: the headline, the loss, and those asked for.

Your own kind is one file with a `TaskKind`, named as module:attribute or by an entry point `unskew.tasks`.
"""

from typing import TYPE_CHECKING, Any

from unskew.registry import Registry

if TYPE_CHECKING:
    from unskew.tasks.kind import TaskKind

TASKS: dict[str, tuple[str, str]] = {
    "classification": ("classification:CLASSIFICATION", "one of several classes; cross-entropy, accuracy"),
    "binary": ("odds:BINARY", "one of two classes by one logit; cross-entropy, AUROC"),
    "regression": (
        "regression:REGRESSION",
        "a number; squared, absolute or Huber error, or Poisson's likelihood; root mean squared error",
    ),
    "survival": (
        "survival:SURVIVAL",
        "time to an event, censored or not; Cox's partial likelihood, concordance index",
    ),
    "next_token": ("positions:NEXT_TOKEN", "the token that follows; cross-entropy, perplexity"),
    "token_classification": (
        "positions:TOKEN_CLASSIFICATION",
        "a class for each token of a text; cross-entropy, accuracy",
    ),
    "multi_label": ("odds:MULTI_LABEL", "any of several labels; cross-entropy of each, mean average precision"),
    "segmentation": ("positions:SEGMENTATION", "a class for each pixel of an image; cross-entropy, Dice coefficient"),
    "ordinal": ("odds:ORDINAL", "one of several grades in an order; cross-entropy of each step, mean error in grades"),
}
"""Our kinds of task by name: where each is, below `unskew.tasks`, and a line about it."""

TABLE: dict[str, str] = {name: f"unskew.tasks.{place}" for name, (place, _) in TASKS.items()}


def _is_kind(target: Any) -> bool:
    from unskew.tasks.kind import TaskKind

    return isinstance(target, TaskKind)


KINDS = Registry(
    "kind of task",
    "unskew.tasks",
    TABLE,
    "a TaskKind",
    _is_kind,
    about={name: about for name, (_, about) in TASKS.items()},
)


def kind_of(name: str) -> "TaskKind":
    """The kind of task of that name.

    Raises:
        ConfigError: If there is none.
    """
    kind: TaskKind = KINDS.resolve(name)
    return kind
