"""References to code: `module.path:attribute`, by which a file names a method or a network that is in no table.

What a file names is looked at before it is called.  A method is a class with `init`, `round` and `serve`, or a function
annotated to return one; a network is a `torch.nn.Module` class, or a function annotated to return one.  Anything else,
`os:system` for example, is refused and not called.  Importing a module runs it, though, so a file that may come from
elsewhere is refused before that, unless its reader says `allow_code`: see `permit`.
"""

import functools
import importlib
import inspect
import sys
import sysconfig
import types
import typing
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

from unskew.errors import ConfigError

OURS = "unskew"
METHODS_OF_OURS = ("unskew.algorithms.", "unskew.papers.")
"""Packages of unskew whose classes a file may name as methods, besides what is in the tables."""
PARTS = ("init", "round", "serve")
SIZES = ("input_shape", "num_classes")


def permit(reference: str, place: str, where: str, registered: Collection[str]) -> None:
    """Refuse a reference to code that is not installed with unskew: the file it stands in may come from elsewhere.

    Args:
        reference: A name; it refers to code if it has a colon after the name of a module.
        place: Dotted path of the setting that holds it.
        where: The file.
        registered: References that unskew or an installed package has registered.

    Raises:
        ConfigError: If it would import anything else.
    """
    module = reference.partition(":")[0]
    if module != reference and _importable(module) and reference not in registered and _package(reference) != OURS:
        raise ConfigError(
            f"{place} names code, {reference}, and this may come from elsewhere, so nothing of it was imported; "
            f"if you trust it, give --allow-code, or allow_code=True in Python{f' ({where})' if where else ''}"
        )


def method(reference: str, what: str, registered: Collection[str]) -> Callable[..., Any]:
    """Import a class or function that makes a method, without calling it.

    Raises:
        ConfigError: If it cannot be imported, or is neither.
    """
    need = (
        f"{what} must be a class with {', '.join(PARTS)}, or a function annotated to return one, as in "
        "def mine(mu: float = 0.1) -> Mine"
    )
    if reference in registered:
        return load(reference, what)
    _refuse_internal(reference, need, METHODS_OF_OURS)
    target = load(reference, what)
    if not _are(_is_method, target):
        raise ConfigError(f"{need}; {reference} is {_described(target)}")
    if _package(reference) == OURS and not inspect.isclass(target):
        raise ConfigError(f"{need}; {reference} is a function inside unskew that is not in its table")
    return target


def network(reference: str, registered: Collection[str]) -> Callable[..., Any]:
    """Import a class or function that makes a network, without calling it.

    A function without a return annotation is taken if its first parameters are input_shape and num_classes, and its
    file is the user's own: not of Python and not an installed package's.

    Raises:
        ConfigError: If it cannot be imported, or is neither.
    """
    what = f"model {reference}"
    need = (
        f"{what} must be a torch.nn.Module class, or a function annotated to return one, as in "
        "def net(input_shape, num_classes) -> nn.Module"
    )
    if reference in registered:
        return load(reference, what)
    _refuse_internal(reference, need, ())
    target = load(reference, what)
    if not (_are(_is_network, target) or _is_own_factory(target)):
        raise ConfigError(f"{need}; it is {_described(target)}")
    return target


def load(reference: str, what: str) -> Callable[..., Any]:
    """Import what a reference names, without looking at it: for tables, which hold nothing but what is meant.

    Raises:
        ConfigError: If it cannot be imported, or cannot be called.
    """
    module, _, attribute = reference.partition(":")
    if not _importable(module):
        raise ConfigError(f"{what} cannot be imported from {reference}: {module!r} is not the name of a module")
    try:
        target: Any = importlib.import_module(module)
        for part in attribute.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{what} cannot be imported from {reference}: {error}") from error
    if not callable(target):
        raise ConfigError(f"{what} must be a class or function, got {type(target).__name__} ({reference})")
    made: Callable[..., Any] = target
    return made


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


def _are(kind: Callable[[Any], bool], target: Any) -> bool:
    """True if this class, or whatever this function is annotated to return, is of a kind."""
    if inspect.isclass(target):
        return kind(target)
    returned = _returned(target)
    union = typing.get_origin(returned) in (typing.Union, types.UnionType)
    return all(map(kind, typing.get_args(returned) if union else (returned,)))


def _is_method(kind: Any) -> bool:
    """True if this is a class with the parts of a method; a generic one may have its parameter."""
    kind = typing.get_origin(kind) or kind
    return inspect.isclass(kind) and all(callable(getattr(kind, part, None)) for part in PARTS)


def _is_network(kind: Any) -> bool:
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


def _is_own_factory(target: Any) -> bool:
    if not inspect.isfunction(target) or "return" in target.__annotations__:
        return False
    function = inspect.unwrap(target)
    named = tuple(inspect.signature(target).parameters)[: len(SIZES)] == SIZES
    return named and inspect.isfunction(function) and not _is_installed(Path(function.__code__.co_filename))


def _is_installed(file: Path) -> bool:
    """True if this file is Python's, unskew's or an installed package's."""
    path = file.absolute()
    return any(part in ("site-packages", "dist-packages") for part in path.parts) or any(
        path.is_relative_to(root) for root in _installation()
    )


@functools.cache
def _installation() -> tuple[Path, ...]:
    roots = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), str(Path(__file__).parent)}
    return tuple(Path(root).absolute() for root in roots)


def _described(target: Any) -> str:
    if inspect.isclass(target):
        return f"the class {target.__qualname__}"
    name = getattr(target, "__qualname__", type(target).__qualname__)
    annotations = getattr(_plain_function(target), "__annotations__", None) or {}
    if "return" not in annotations:
        return f"{name} without a return annotation"
    returned = annotations["return"]
    shown = returned if isinstance(returned, str) else inspect.formatannotation(returned)
    return f"{name}, annotated to return {shown}"
