"""References to code: `module.path:attribute`, by which a file names a piece that is in no table.

What a file names is looked at before it is called: each kind (`unskew.registry`) says what its pieces are.  A method is
a class with `init`, `round` and `serve`, or a function annotated to return one; a network is a `torch.nn.Module` class,
or a function annotated to return one.  Anything else, `os:system` for example, is refused and not called.  Importing a
module runs it, though, so a file that may come from elsewhere is refused before that, unless its reader says
`allow_code`: see `permit`.
"""

import functools
import hashlib
import importlib
import inspect
import sys
import sysconfig
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from unskew.errors import ConfigError

OURS = "unskew"
PARTS = ("init", "round", "serve")
SIZES = ("input_shape", "num_classes")

IN_PYTHON = "made in Python:"
"""Prefix of the name of a piece that no file describes, because `simulate` was given it as a value."""


def permit(reference: str, place: str, registered: Collection[str]) -> None:
    """Refuse a reference to code that is not installed with unskew: the file it stands in may come from elsewhere.

    Args:
        reference: A name; it refers to code if it has a colon after the name of a module.
        place: Dotted path of the setting that holds it.
        registered: References that unskew or an installed package has registered.

    Raises:
        ConfigError: If it would import anything else.
    """
    module = reference.partition(":")[0]
    if module != reference and _importable(module) and reference not in registered and _package(reference) != OURS:
        raise ConfigError(
            f"{place} names code ({reference}) in a file that may not be yours, so it was not imported; "
            f"if you trust it, pass --allow-code, or allow_code=True in Python"
        )


def find(reference: str, what: str, need: str, fits: Callable[[Any], bool], inside: tuple[str, ...] = ()) -> Any:
    """Import what a file names as `module:attribute`, if it can be what its place needs; it is not called.

    Args:
        reference: The name.
        what: Name of the piece, for messages.
        need: End of the sentence "... must be ...".
        fits: True if an object can be such a piece.
        inside: Packages of unskew whose classes may be named.

    Raises:
        ConfigError: If it cannot be imported, or does not fit.
    """
    need = f"{what} must be {need}"
    _refuse_internal(reference, need, inside)
    target = load(reference, what)
    if not fits(target):
        raise ConfigError(f"{need}; {reference} is {described(target)}")
    if _package(reference) == OURS and not inspect.isclass(target):
        raise ConfigError(f"{need}; {reference} is a function inside unskew that is not in its table")
    return target


def load(reference: str, what: str) -> Any:
    """Import what a reference names, without looking at it: for tables, which hold nothing but what is meant.

    Raises:
        ConfigError: If it cannot be imported.
    """
    module, _, attribute = reference.partition(":")
    if reference.startswith(IN_PYTHON):
        raise ConfigError(
            f"{what.replace(IN_PYTHON, '')} was given as a value, which no file holds; give a loss or a transform "
            "again, as in unskew.resume(FOLDER, loss=...); a method needs a new run"
        )
    if "<" in attribute:  # as Python writes it: f.<locals>.Mine
        raise ConfigError(
            f"{what} is made inside a function, where no other process and no file finds it; move it to the top of its "
            "module"
        )
    if not _importable(module):
        raise ConfigError(f"{what} cannot be imported from {reference}: {module!r} is not the name of a module")
    try:
        target: Any = importlib.import_module(module)
        for part in attribute.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{what} cannot be imported from {reference}: {error}") from error
    return target


def sources(settings: Any) -> dict[str, str]:
    """SHA-256 of the source of each imported module that settings name code of, by module; unskew's and Python's aside.

    Modules that these import in turn are not looked at.
    """
    if isinstance(settings, Mapping):
        parts = [sources(value) for value in settings.values()]
    elif isinstance(settings, Sequence) and not isinstance(settings, str):
        parts = [sources(value) for value in settings]
    else:
        parts = [_source(settings)] if isinstance(settings, str) else []
    return {module: sha256 for part in parts for module, sha256 in part.items()}


def _source(reference: str) -> dict[str, str]:
    module, _, attribute = reference.partition(":")
    if not attribute or not _importable(module) or _package(reference) in (OURS, *sys.stdlib_module_names):
        return {}
    file = getattr(sys.modules.get(module), "__file__", None)
    try:
        return {} if file is None else {module: hashlib.sha256(Path(file).read_bytes()).hexdigest()}
    except OSError:  # a module in an archive is part of something installed
        return {}


# ---------------------------------------------------------------- looking, not calling
def _package(reference: str) -> str:
    return reference.partition(":")[0].partition(".")[0]


def _importable(module: str) -> bool:
    return all(part.isidentifier() for part in module.split("."))


def _refuse_internal(reference: str, need: str, allowed: tuple[str, ...]) -> None:
    """Refuse what cannot be meant before it is imported: some modules of Python do their work when imported."""
    if _package(reference) in sys.stdlib_module_names:
        raise ConfigError(f"{need}; {reference} is part of Python itself")
    if _package(reference) == OURS and not reference.startswith(allowed):
        raise ConfigError(f"{need}; {reference} is inside unskew and not in its table")


def makes(kind: Callable[[Any], bool], target: Any) -> bool:
    """True if this class, or whatever this function is annotated to return, is of a kind."""
    if inspect.isclass(target):
        return kind(target)
    returned = _returned(target)
    union = typing.get_origin(returned) in (typing.Union, types.UnionType)
    return all(map(kind, typing.get_args(returned) if union else (returned,)))


def is_method(kind: Any) -> bool:
    """True if this is a class with the parts of a method; a generic one may have its parameter."""
    kind = typing.get_origin(kind) or kind
    return inspect.isclass(kind) and all(_is_part(getattr(kind, part, None)) for part in PARTS)


def _is_part(part: Any) -> bool:
    return callable(part) or isinstance(part, property | functools.cached_property)


def is_network(kind: Any) -> bool:
    """True if this is a class of networks."""
    from torch import nn

    return inspect.isclass(kind) and issubclass(kind, nn.Module)


def _plain_function(target: Any) -> Any:
    """The function behind a partial, a bound method, a decorator or an object that is called; None if there is none."""
    while isinstance(target, partial):
        target = target.func
    if not inspect.isroutine(target):
        target = getattr(type(target), "__call__", None)  # noqa: B004, the function itself is wanted
    return getattr(target, "__func__", target)


def _returned(target: Any) -> Any:
    """The type that a function is annotated to return; None if there is none, or it cannot be read."""
    function = _plain_function(target)
    annotation = (getattr(function, "__annotations__", None) or {}).get("return")
    names = getattr(inspect.unwrap(function) if callable(function) else function, "__globals__", {})
    try:  # that annotation alone: the others may name what is imported for type checkers only
        return typing.get_type_hints(types.SimpleNamespace(__annotations__={"return": annotation}), names).get("return")
    except Exception:  # an annotation is anybody's expression
        return None


def is_own_factory(target: Any) -> bool:
    """True for a function of a user's own file that takes the sizes of a network, whatever it is annotated with."""
    if not inspect.isfunction(target) or "return" in target.__annotations__:
        return False
    function = inspect.unwrap(target)
    named = tuple(inspect.signature(target).parameters)[: len(SIZES)] == SIZES
    return named and inspect.isfunction(function) and not is_installed(Path(function.__code__.co_filename))


def is_installed(file: Path) -> bool:
    """True if this file is Python's, unskew's or an installed package's."""
    path = file.absolute()
    return any(part in ("site-packages", "dist-packages") for part in path.parts) or any(
        path.is_relative_to(root) for root in _installation()
    )


@functools.cache
def _installation() -> tuple[Path, ...]:
    roots = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), str(Path(__file__).parent)}
    return tuple(Path(root).absolute() for root in roots)


def described(target: Any) -> str:
    """Describe an object that is not what was meant, for an error message."""
    if inspect.isclass(target):
        return f"the class {target.__qualname__}"
    if not callable(target):
        return f"a value of type {type(target).__name__}"
    name = getattr(target, "__qualname__", type(target).__qualname__)
    annotations = getattr(_plain_function(target), "__annotations__", None) or {}
    if "return" not in annotations:
        return f"{name} without a return annotation"
    returned = annotations["return"]
    shown = returned if isinstance(returned, str) else inspect.formatannotation(returned)
    return f"{name}, annotated to return {shown}"
