"""Settings that go together: a method as its paper or its published code ran it, and variants that differ in defaults.

A class or function that makes a method takes its hyperparameters as keyword arguments.  `presets` adds one more,
`preset`, which names a table of base settings; `variant` makes a new method from another by changing defaults.
Neither repeats a signature, and the caller's own arguments take precedence.
"""

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from unskew.errors import ConfigError, did_you_mean

Make = TypeVar("Make", bound=Callable[..., Any])
P = ParamSpec("P")
A = TypeVar("A")

Tables = Mapping[str, Mapping[str, Any]]


def presets(tables: Tables) -> Callable[[Make], Make]:
    """Let the parameter `preset` of a method choose a table of settings; arguments that are given win over the table.

    A table holds values of other parameters by name.  A value is replaced as a whole: a given `local` keeps nothing of
    the preset's.

    >>> @presets({"paper": {"rate": 0.5}})
    ... def method(rate: float = 0.1, steps: int = 1, preset: str | None = None) -> tuple[float, int]:
    ...     return rate, steps
    >>> method(), method(preset="paper"), method(preset="paper", rate=0.2)
    ((0.1, 1), (0.5, 1), (0.2, 1))
    """

    def decorate(make: Make) -> Make:
        plain: Callable[..., Any] = make.__init__ if inspect.isclass(make) else make
        signature = inspect.signature(plain)

        @functools.wraps(plain)
        def filled(*args: Any, **options: Any) -> Any:
            given = signature.bind(*args, **options).arguments
            return plain(**{**settings(filled, given.get("preset")), **given})

        filled.__presets__ = tables  # type: ignore[attr-defined]
        if not inspect.isclass(make):
            return typing.cast(Make, filled)
        make.__init__ = filled  # type: ignore[method-assign]
        return make

    return decorate


def settings(make: Callable[..., Any], preset: str | None) -> Mapping[str, Any]:
    """Return the settings that replace defaults of `make` under a preset.

    Raises:
        ConfigError: If it has no such preset.
    """
    tables = tables_of(make)
    if preset is None or not tables:  # without tables, an option of that name belongs to the method itself
        return {}
    if preset not in tables:
        raise ConfigError(
            f"no preset is called {preset!r}{did_you_mean(preset, tables)} (there are: {', '.join(tables)})"
        )
    return tables[preset]


def variant(make: Callable[P, A], name: str, about: str, **defaults: Any) -> Callable[P, A]:
    """Make a method called `name` from `make` by changing defaults.

    >>> from fractions import Fraction
    >>> variant(Fraction, "halves", "Some halves.", denominator=2)(numerator=3)
    Fraction(3, 2)
    """

    def made(*args: P.args, **options: P.kwargs) -> A:
        given = inspect.signature(make).bind_partial(*args, **options).arguments if args else options
        return make(**{**defaults, **given})  # type: ignore[call-arg]  # ParamSpec cannot say that defaults are of P

    return described(made, make, name, about, defaults=defaults)


def described(
    factory: Callable[..., A],
    make: Callable[..., Any],
    name: str,
    about: str | None,
    *,
    defaults: Mapping[str, Any] | None = None,
    extra: Mapping[str, tuple[Any, Any]] | None = None,
) -> Callable[..., A]:
    """Give `factory` a name and `make`'s signature with other defaults, extra parameters (annotation, default)."""
    from unskew.schema import hints as hints_of  # a tenth of a second, which listing names does not need

    defaults, extra = defaults or {}, extra or {}
    hints = hints_of(make)
    known = inspect.signature(make).parameters.values()
    kinds = inspect.Parameter.KEYWORD_ONLY
    parameters = [p.replace(default=defaults.get(p.name, p.default)) for p in known]
    if extra:
        parameters = [p.replace(kind=kinds) for p in parameters]
    parameters += [inspect.Parameter(n, kinds, annotation=kind, default=value) for n, (kind, value) in extra.items()]
    factory.__name__ = factory.__qualname__ = name
    factory.__doc__ = about
    factory.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    factory.__annotations__ = {**{p.name: hints[p.name] for p in known if p.name in hints}} | {
        n: kind for n, (kind, _) in extra.items()
    }
    factory.__annotations__["return"] = make if inspect.isclass(make) else hints.get("return", Any)
    factory.__presets__ = tables_of(make)  # type: ignore[attr-defined]
    return factory


def tables_of(make: Callable[..., Any]) -> Tables:
    """Return the presets of a class or function that makes a method, by name."""
    tables: Tables = getattr(make.__init__ if inspect.isclass(make) else make, "__presets__", {})
    return tables
