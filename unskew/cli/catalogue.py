"""`unskew list`: the names that an experiment can use."""

import json
from typing import Annotated

import typer
from rich.console import Console

from unskew import references
from unskew.cli.options import AsJson, builtin_experiments, then
from unskew.errors import ConfigError, did_you_mean
from unskew.registry import Registry
from unskew.tasks import KINDS as KINDS_OF_TASKS

REGISTRIES = {
    "methods": "unskew.algorithms:METHODS",
    "wrappers": "unskew.algorithms:WRAPPERS",
    "server_rules": "unskew.server.optimise:RULES",
    "tasks": "unskew.tasks:KINDS",
    "metrics": "unskew.tasks.kind:METRICS",
    "losses": "unskew.tasks.kind:LOSSES",
    "augmentations": "unskew.data.batches:AUGMENTS",
    "splits": "unskew.data.split:SPLITS",
    "models": "unskew.models:MODELS",
    "datasets": "unskew.data.sources:DATA",
    "priors": "unskew.priors:PRIORS",
    "executors": "unskew.local.executor:EXECUTORS",
    "trackers": "unskew.experiment.config:TRACKERS",
    "reproductions": "unskew.papers:REPRODUCTIONS",
    "sections": "unskew.report.section:SECTIONS",
    "channels": "unskew.world.channel:CHANNELS",
    "attacks": "unskew.world.attack:ATTACKS",
    "paces": "unskew.world.pace:PACES",
}
"""The registry of each kind."""

KINDS = (*REGISTRIES, "experiments")


def list_(
    what: Annotated[str, typer.Argument()] = "all",
    as_json: AsJson = False,
) -> None:
    """Show what exists, one line each.

    WHAT is one kind of piece, everything by default.  What an installed
    package adds is shown with the package it comes from.

    [dim]unskew list methods[/]
    """
    if what not in (*KINDS, "all"):
        raise ConfigError(f"unskew list knows {', '.join(KINDS)}, got {what!r}{did_you_mean(what, KINDS)}")
    catalogues = {kind: catalogue(kind) for kind in (KINDS if what == "all" else (what,))}
    if as_json:
        print(json.dumps(catalogues))
        return
    console = Console(emoji=False)  # the address of something that cannot be imported ends in :NAME:
    for kind, entries in catalogues.items():
        if len(catalogues) > 1:
            console.print(f"\n[bold]{kind}[/]")
        width = max(map(len, entries), default=0)
        for name, about in entries.items():
            console.print(f"  {name.ljust(width)}  {about}", highlight=False, markup=False, soft_wrap=True)
    then("run")


def catalogue(kind: str) -> dict[str, str]:
    """Items of a kind, each with a one-line description, by name."""
    if kind in REGISTRIES:
        registry: Registry = references.load(REGISTRIES[kind], kind)
        ours = _of_tasks(kind) if kind in ("metrics", "losses") else {}
        own = {"module.path:factory": "a network of your own"} if kind == "models" else {}
        return {**ours, **registry.describe(), **own}
    return {name: path.read_text("utf-8").split("\n")[0].lstrip("# ") for name, path in builtin_experiments().items()}


def _of_tasks(kind: str) -> dict[str, str]:
    """Metrics or losses of the tasks that come with unskew, each with the tasks that have it."""
    tasks: dict[str, list[str]] = {}
    for name in KINDS_OF_TASKS.ours:
        task = KINDS_OF_TASKS.resolve(name)
        for one in [m.name for m in task.measures] if kind == "metrics" else task.losses:
            tasks.setdefault(one, []).append(name)
    return {one: f"of {', '.join(having)}" for one, having in tasks.items()}
