"""Tasks: what a network's outputs mean, what is minimised, what is reported, and what a prediction is.

    from unskew import tasks

    tasks.kind_of("classification").headline.label   # 'accuracy'

A **kind of task** is a value (`TaskKind`), one file here for each; `TABLE` lists them, and an experiment names one with
`task.kind`.  It says

    targets     what a label is (`unskew.tasks.targets`): a class, a number, a time and an event, labels, tokens
    width       outputs that a network has for so many names: as many, or one (binary: one logit; regression: one
                number).  A network is checked against it before any work; nothing is guessed from a layer.
    losses      by name, the first is the default: (outputs, targets) -> the loss of each example
    measures    what is reported (`Measure`): name, label, direction, range, unit, and how it is taken, as a mean over
                examples (accuracy, squared error; perplexity is a function of a mean) or from all of them at once
                (AUROC, R2, concordance).  The first is the **headline**: early stopping, best rounds, comparisons,
                tables and figures go by it and its direction.
    predict     outputs -> predictions, as `unskew.predict` gives them
    model       the network that is trained if none is named
    gives       what a method may need of it; see `unskew.tasks.needs`

A **task** (`Task`) is a kind with a network for it: `make_task` reads the network's parts, and binds the loss and the
measures that the run reports: the headline, the loss, and those asked for.

The way of a measure through a run:

    trainer.evaluate        columns, one value an example (`Task.columns`), and where a measure needs all examples at
                            once also the outputs and targets
    run.evaluation          means over a client's examples, `whole` for the rest: global.NAME, personal.NAME.mean, ...
    a remote client         sends values in the order of `task.measures`; the server checks them against their ranges
    run.json                holds the measures' cards (`Measure.card`), the headline first
    record, report, history read them there: a report needs no code of the task

A kind of one's own is one file with a `TaskKind`, named as module:attribute or by an entry point `unskew.tasks`.
"""

from typing import TYPE_CHECKING, Any

from unskew.registry import Registry

if TYPE_CHECKING:
    from unskew.tasks.kind import TaskKind

TABLE: dict[str, str] = {
    "classification": "unskew.tasks.classification:CLASSIFICATION",
    "binary": "unskew.tasks.binary:BINARY",
    "regression": "unskew.tasks.regression:REGRESSION",
    "survival": "unskew.tasks.survival:SURVIVAL",
    "next_token": "unskew.tasks.next_token:NEXT_TOKEN",
    "multi_label": "unskew.tasks.multi_label:MULTI_LABEL",
    "ordinal": "unskew.tasks.ordinal:ORDINAL",
}

ABOUT: dict[str, str] = {
    "classification": "one of several classes; cross-entropy, accuracy",
    "binary": "one of two classes by one logit; cross-entropy, AUROC",
    "regression": "a number; squared, absolute or Huber error, or Poisson's likelihood; root mean squared error",
    "survival": "time to an event, censored or not; Cox's partial likelihood, concordance index",
    "next_token": "the token that follows; cross-entropy, perplexity",
    "multi_label": "any of several labels; cross-entropy of each, mean average precision",
    "ordinal": "one of several grades in an order; cross-entropy of each step, mean error in grades",
}


def _is_kind(target: Any) -> bool:
    from unskew.tasks.kind import TaskKind

    return isinstance(target, TaskKind)


KINDS = Registry(
    "kind of task",
    "unskew.tasks",
    TABLE,
    "a TaskKind",
    _is_kind,
    about=ABOUT,
)


def kind_of(name: str) -> "TaskKind":
    """The kind of task of that name.

    Raises:
        ConfigError: If there is none.
    """
    kind: TaskKind = KINDS.resolve(name)
    return kind
