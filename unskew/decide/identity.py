"""Identity of Python values that have no name: a hash of their code and of what they hold.

A function is its compiled code, its defaults, what it closes over and the globals that it reads; a class its functions;
anything else what pickle would keep of it.  Code of unskew, Python and installed packages goes by its name.
"""

import dataclasses
import dis
import functools
import hashlib
import json
import sys
import types
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unskew import wire
from unskew.decide.sites import Sites
from unskew.errors import ConfigError, RunError
from unskew.experiment.config import fingerprint
from unskew.references import is_installed
from unskew.run.documents import network_sha256

PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
WRAPPERS = (
    types.MethodType,
    staticmethod,
    classmethod,
    property,
    functools.cached_property,
    functools._lru_cache_wrapper,
)
WRAPPED = ("__func__", "__self__", "__wrapped__", "fget", "fset", "func")
"""What is inside of these."""


def about(sites: Sites, file: Path) -> str:
    """A text that differs wherever data, network, code or settings could change outcomes on these sites.

    Raises:
        RunError: If the file has outcomes, and nobody can tell whether they are of the same.
    """
    experiment, task = sites.experiment, sites.setup.task
    runtime = dataclasses.replace(experiment.runtime, executor=sites.setup.executor, workers=None, executor_options={})
    trained = fingerprint(dataclasses.replace(experiment, runtime=runtime, until=None))
    try:
        code = code_sha256(*(m.method for m in experiment.methods), task.module(), task.loss, task.headline)
    except ConfigError as error:
        if file.exists():
            raise RunError(
                f"{file} has outcomes, and nobody can tell whether they are of these methods, network and loss "
                f"({error}); give another folder"
            ) from error
        code = ""
    hashes = (sites.setup.dataset.sha256, sites.fed.sha256, network_sha256(sites.setup, True))
    return " ".join((trained, *map(str, hashes), code))


def code_sha256(*values: Any) -> str:
    """The hash of what these values do.

    Raises:
        ConfigError: If one holds what cannot be told from another, such as a lock or an open file.
    """
    try:
        return hashlib.sha256(json.dumps(_Reader().read(values)).encode()).hexdigest()
    except Exception as error:  # anybody's objects
        raise ConfigError(" ".join(str(error).split())) from error


class _Reader:
    """Values that were read, so that what refers to itself ends; kept, as another could get one's place in memory."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[int, Any]] = {}

    def read(self, value: Any) -> Any:
        """A value as lists and text."""
        if isinstance(value, Enum) or type(value) in PLAIN:
            return repr(value)
        if isinstance(value, Tensor):
            return wire.tensors_hash({"": value.detach()})
        if type(value) in (tuple, list):
            return [type(value).__name__, *map(self.read, value)]
        if isinstance(value, set | frozenset):
            return ["set", *sorted(json.dumps(self.read(one)) for one in value)]
        if type(value) is dict:
            return ["dict", *([self.read(k), self.read(v)] for k, v in value.items())]
        if id(value) in self.seen:
            return self.seen[id(value)][0]
        self.seen[id(value)] = len(self.seen), value
        return [type(value).__qualname__, *map(self.read, _parts(value))]


def _parts(value: Any) -> Iterator[Any]:
    """The parts that tell a value from others of its type."""
    if isinstance(value, types.FunctionType):
        code, known = value.__code__, value.__globals__
        yield f"{value.__module__}:{value.__qualname__}", value.__defaults__, value.__kwdefaults__
        yield tuple(cell.cell_contents for cell in value.__closure__ or ())
        if not is_installed(Path(code.co_filename)):
            yield code, {name: known[name] for name in sorted(set(_globals(code)) & known.keys())}
    elif isinstance(value, types.CodeType):
        yield value.co_code, value.co_consts, value.co_names, value.co_varnames, value.co_freevars
    elif isinstance(value, type):
        yield f"{value.__module__}:{value.__qualname__}"
        if not _of_package(value.__module__):
            yield value.__bases__, {name: member for name, member in vars(value).items() if _is_own(name, member)}
    elif isinstance(value, types.ModuleType):
        yield value.__name__, b"" if _of_package(value.__name__) else Path(value.__file__ or "").read_bytes()
    elif isinstance(value, WRAPPERS):
        yield [getattr(value, name, None) for name in WRAPPED]
    elif hasattr(value, "__qualname__"):  # built in, or a slot
        yield value.__qualname__, getattr(value, "__self__", None)
    elif isinstance(value, nn.Module):
        yield type(value), {n: t for n, t in value.state_dict().items() if isinstance(t, Tensor)}
        for name, module in value.named_modules():
            own = {k: v for k, v in vars(module).items() if not k.startswith("_") and k != "training"}
            yield name, type(module), own
    elif dataclasses.is_dataclass(value):  # not what it has computed for itself
        yield type(value), {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    elif isinstance(value, torch.Generator):
        yield value.get_state()
    else:
        reduced = value.__reduce_ex__(4)
        yield type(value), reduced if isinstance(reduced, str) else [*map(_listed, reduced)]


def _is_own(name: str, member: Any) -> bool:
    """True for what a class's author wrote; a dataclass writes functions of its own."""
    if isinstance(member, types.FunctionType):
        return member.__code__.co_filename != "<string>"
    return not name.startswith("__") and name != "_abc_impl"


def _listed(part: Any) -> Any:
    return list(part) if isinstance(part, Iterator) else dict(part) if isinstance(part, Mapping) else part


def _globals(code: types.CodeType) -> Iterator[str]:
    """Names of globals that code reads, and the code within it."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _globals(constant)


def _of_package(name: str) -> bool:
    """True if a module is Python's, unskew's or an installed package's; not one that was made here."""
    module = sys.modules.get(name)
    if module is None or name == "__main__":
        return False
    file = getattr(module, "__file__", None)
    return file is None or is_installed(Path(file))
