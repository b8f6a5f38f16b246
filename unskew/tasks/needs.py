"""What a method needs of a task: declared beside the method, checked before any work.

A method, a loss term or a wrapper declares its needs in a class attribute:

    needs: ClassVar[tuple[str, ...]] = ("classes", "classifier")

A kind of task says what it gives (`TaskKind.gives`).  Without `needs` it suits every task.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from unskew.protocol import hook
from unskew.tasks.kind import TaskKind, is_batchwise
from unskew.tree import is_record

NEEDS: dict[str, str] = {
    "classes": "a class for each example",
    "classifier": "a last layer with a row for each class",
    "features": "what enters the last layer",
    "groups": "examples that are counted by class or group",
    "images": "images as inputs",
    "apart": "a loss of each example by itself",
}
"""Every need, in words."""


def needs_of(method: Any) -> tuple[str, ...]:
    """Return what a method needs, with its terms, rules and wrappers, in the order of `NEEDS`."""
    declared = _declared(method)
    return tuple(need for need in NEEDS if need in declared)


def _declared(value: Any) -> set[str]:
    if isinstance(value, tuple | list):
        return set().union(*map(_declared, value))
    if isinstance(value, Mapping):
        return set().union(*map(_declared, value.values()))
    own = set(hook(type(value), "needs"))
    return own.union(*(_declared(getattr(value, f.name)) for f in fields(value))) if is_record(value) else own


def given(kind: TaskKind, binned: bool = False, weighted: bool = False) -> frozenset[str]:
    """Return what tasks of a kind give without class weights; only the data say if inputs are images."""
    counted = kind.targets.classes or len(kind.targets.groups) > 1 or binned
    apart = not weighted and not is_batchwise(next(iter(kind.losses.values())))
    always = {"features", "images"}
    return kind.gives | always | ({"groups"} if counted else set()) | ({"apart"} if apart else set())


def refusal(method: Any, kind: TaskKind, binned: bool = False, weighted: bool = False) -> str:
    """Why a method cannot learn such a task, as the end of a sentence; empty if it can."""
    lacking = [need for need in needs_of(method) if need not in given(kind, binned, weighted)]
    if not lacking:
        return ""
    if weighted and lacking == ["apart"]:
        return f"needs {NEEDS['apart']}, which task.class_weights take away; leave them out"
    remedy = "; set task.bins" if lacking == ["groups"] and kind.targets.name == "number" else ""
    return f"needs {' and '.join(NEEDS[need] for need in lacking)}, which task.kind = {kind.name!r} has not{remedy}"
