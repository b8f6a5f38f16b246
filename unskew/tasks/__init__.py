"""Tasks: what a network's outputs mean, what is minimised, what is reported, and what a prediction is.

    from unskew import tasks

    tasks.kind_of("classification").headline.label   # 'accuracy'

A **kind of task** is a value (`TaskKind`), one file here for each; `TABLE` lists them, and an experiment names one with
`task.kind`.  It says

    width       outputs that a network has for so many classes: as many, or one (binary: one logit; regression: one
                number).  A network is checked against it before any work; nothing is guessed from a layer.
    targets     what a label is: a class (a whole number from 0) or a number
    losses      by name, the first is the default: (outputs, targets) -> the loss of each example
    measures    what is reported (`Measure`): name, label, direction, range, unit, and how it is taken, as a mean over
                examples (accuracy, squared error) or from all of them at once (AUROC, R2, concordance).  The first is
                the **headline**: early stopping, best rounds, comparisons, tables and figures go by it and its
                direction.
    predict     outputs -> predictions, as `unskew.predict` gives them

A **task** (`Task`) is a kind with a network for it: `make_task` reads the network's parts, and binds the loss and the
measures that the run reports: the headline, the loss, and those asked for.

The way of a measure through a run:

    trainer.evaluate        columns, one value an example (`Task.columns`), and where a measure needs all examples at
                            once also the outputs and targets
    run.evaluation          means over a client's examples, `whole` for the rest: global.NAME, personal.NAME.mean, ...
    a remote client         sends values in the order of `task.measures`; the server checks them against their ranges
    run.json                holds the measures' cards (`Measure.card`), the headline first
    record, report, history read them there: a report needs no code of the task

Tasks to come need no other place: survival gives two targets an example and the concordance index as a `whole` measure
with one output; next token has outputs (batch, classes, positions) and counts positions; multi-label has `width`
outputs and a target for each.
"""

from typing import TYPE_CHECKING, Any

from unskew.registry import Registry

if TYPE_CHECKING:
    from unskew.tasks.kind import TaskKind

TABLE: dict[str, str] = {
    "classification": "unskew.tasks.classification:CLASSIFICATION",
}

ABOUT: dict[str, str] = {
    "classification": "one of several classes; cross-entropy, accuracy",
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
