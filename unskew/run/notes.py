"""Notes on settings that are possible but perhaps not meant: small functions, each may return a sentence.

A new one is a function here and its name in `OF_RUNS` or `OF_METHODS`.  Errors are raised elsewhere.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from unskew.experiment.config import Experiment
from unskew.protocol import hook
from unskew.run.setup import FROZEN, Setup, records
from unskew.tasks.probe import draws_in_evaluation
from unskew.tasks.task import ends_in
from unskew.wrappers.base import layers

IN_ORDER = (("0", "1"), ("-1", "1"), ("False", "True"), ("false", "true"))
"""Names of two classes whose order shows that the second is looked for."""
UNKEYED_METRICS = (
    "numbers were drawn from {} global generator while models were evaluated, so the same run again has other "
    "metrics; a network should draw only while it is trained: if self.training"
)


@dataclass(frozen=True, eq=False)
class NewRun:
    """A run before it begins."""

    experiment: Experiment
    setup: Setup
    num_clients: int


def notes(experiment: Experiment, setup: Setup, num_clients: int) -> Iterator[str]:
    """Sentences on settings that are perhaps not meant."""
    run = NewRun(experiment, setup, num_clients)
    yield from filter(None, (look(run) for look in OF_RUNS))
    for method in experiment.methods:
        texts = (look(run, method.method) for look in OF_METHODS)
        yield from (f"{method.label}: {text}" for text in texts if text)


# ---------------------------------------------------------------- of a run
def _second_class(run: NewRun) -> str:
    """Only the alphabet made the more frequent class the second, the one that is looked for."""
    task, dataset = run.experiment.task, run.setup.dataset
    chosen = task.kind != "binary" or dataset.ordered or "classes" in task.data_options
    if chosen or len(dataset.classes) != 2 or dataset.classes in IN_ORDER:
        return ""
    (first, second), share = dataset.classes, float(dataset.y_train.double().mean())
    if share <= 0.5:
        return ""
    seen = f"{second!r}, and {100 * share:.0f} % of the training examples are of it"
    way = f"to look for {first!r}, set data_options.classes = [{second!r}, {first!r}]"
    return f"task.kind = 'binary' looks for the second class, {seen}; {way}"


def _squashed_twice(run: NewRun) -> str:
    """A network of one's own returns probabilities where its loss takes logits."""
    inputs, data, task = run.setup.inputs, run.setup.dataset, run.setup.task
    own = inputs.networks[0] is not None or ":" in run.experiment.task.model
    if not own or task.loss is not task.kind.losses.get("cross_entropy"):  # of one's own loss nothing is known
        return ""
    name = ends_in(task, data.x_train[:64])
    if not name:
        return ""
    return f"the network ends in {name}, which the loss applies, too, so losses are wrong; leave {name} out"


def _draws(run: NewRun) -> str:
    """The network draws while it is evaluated in worker processes, whose draws the loop does not see."""
    if not run.setup.executor_kind.processes:
        return ""
    drawn = draws_in_evaluation(run.setup.task.module(), run.setup.dataset.x_train[:2])
    return "; ".join(UNKEYED_METRICS.format(whose) for whose in drawn)


OF_RUNS = (_second_class, _squashed_twice, _draws)


# ---------------------------------------------------------------- of a method
def _losses(run: NewRun, method: Any) -> str:
    """Effect on the method of clients that a round will lose."""
    outage, expected = run.experiment.world.outage, hook(method, "expected_losses")
    lost = 1.0 - (1.0 - outage.unreachable) * (1.0 - outage.late)
    return str(expected(lost, run.experiment.cohort(run.num_clients))) if lost and expected is not None else ""


def _patients(run: NewRun, method: Any) -> str:
    """The noise covers an example, and a patient has several."""
    dataset = run.setup.dataset
    if dataset.patients is None or not hook(method, "covers_examples"):
        return ""
    rows = dataset.patients if dataset.own_test is None else dataset.patients[~dataset.own_test]
    most = int(np.unique(rows.numpy(), return_counts=True)[1].max()) if len(rows) else 0
    if most < 2:
        return ""
    return f"its noise covers single examples, and a patient has up to {most}: epsilon is {most} times as large"


def _nothing_personal(run: NewRun, method: Any) -> str:
    """Personal parts that this network does not have make the method another under its name."""
    layout = run.setup.task.layout
    for record in records(method):
        groups = getattr(record, "personal", ())
        empty = [group for group in groups if not layout.select((group,))] if isinstance(groups, tuple) else []
        if empty:
            lacks = FROZEN if layout.frozen else " (it has no normalisation layer)" * ("norm" in empty)
            stays = "what else it names" if len(empty) < len(groups) else "nothing"
            return f"personal = {list(empty)} selects no tensor of the network{lacks}, so {stays} stays with a client"
    return ""


def _remembered(run: NewRun, method: Any) -> str:
    """Clients remember what they sent, and a wrapper changes that on the server."""
    for layer in layers(method):
        if layer.by.on_server and hook(layer.of, "amend") is not None:
            by = type(layer.by).__name__
            return (
                f"its clients remember what they sent, and {by} changes that on the server: training may end elsewhere"
            )
    return ""


OF_METHODS = (_losses, _patients, _nothing_personal, _remembered)
