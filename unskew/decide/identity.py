"""Identity of outcomes: a text of the experiment, its data, network and code."""

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from unskew.decide.sites import Sites
from unskew.errors import RunError
from unskew.experiment.config import fingerprint, resolved
from unskew.references import IN_PYTHON, is_installed, sources
from unskew.run.documents import network_sha256


def about(sites: Sites, file: Path) -> str:
    """A text that differs whenever data, network, code or settings could change outcomes on these sites.

    Raises:
        RunError: If the file has outcomes, and the experiment has a function or class that may have changed.
    """
    experiment, setup = sites.experiment, sites.setup
    settings = resolved(experiment)
    values = set(_values(settings))
    models = values & {of.model for of in experiment.task.models or (experiment.task,)}
    layers = {type(layer) for layer in setup.task.module().modules()} if models else set()
    methods = (f for kind in layers for f in vars(kind).values() if inspect.isfunction(f))
    try:
        code = {inspect.getsource(f) for f in methods if not is_installed(Path(f.__code__.co_filename))}
        values -= models
    except OSError:  # of code that was typed, and kept nowhere
        code = set()
    if values and file.exists():
        named = ", ".join(sorted(name.removeprefix(IN_PYTHON) for name in values))
        raise RunError(
            f"{file} has outcomes of {named}, which no file holds, so it may have changed; "
            "give another folder, or put it into a module"
        )
    runtime = dataclasses.replace(experiment.runtime, executor=setup.executor, workers=None, executor_options={})
    trained = fingerprint(dataclasses.replace(experiment, runtime=runtime, until=None))
    hashes = (setup.dataset.sha256, sites.fed.sha256, network_sha256(setup, True))
    return " ".join((trained, *map(str, hashes), *sorted(code), str(sources(settings))))


def _values(settings: Any) -> Iterator[str]:
    """Yield the names of what was given as a value, which no file holds."""
    if isinstance(settings, Mapping | list | tuple):
        for part in settings.values() if isinstance(settings, Mapping) else settings:
            yield from _values(part)
    elif isinstance(settings, str) and settings.startswith(IN_PYTHON):
        yield settings
