"""Methods, splits and settings given as Python values, checked and named like those of a file."""

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pydantic

from unskew import algorithms, info, schema
from unskew.data.split import SPLITS, TABLE, Split
from unskew.errors import ConfigError
from unskew.experiment import config
from unskew.experiment.config import NamedMethod
from unskew.protocol import SgdConfig
from unskew.references import IN_PYTHON
from unskew.tree import is_record
from unskew.words import with_article
from unskew.wrappers.base import Wrapped, layers


def split_of(split: object) -> Split:
    """Check a split.

    Raises:
        ConfigError: If it is no split, or one of its settings is impossible.
    """
    if not is_record(split) and callable(getattr(split, "assign", None)):
        raise ConfigError(f"split must be {SPLITS.need}, got {split!r:.80}")
    if not SPLITS.fits(type(split)):
        kinds = ", ".join(kind.__name__ for kind in TABLE.values())
        raise ConfigError(f"split must be one of {kinds}, as in Dirichlet(alpha=0.1, num_clients=20), got {split!r}")
    checked: Split = schema.build(type(split), config.settings_of(split), "split")
    return checked


def arguments() -> dict[str, str]:
    """How to write each argument that has settings, such as local, in sentences."""
    return {
        field.name: f"did you mean {argument}={kind.__name__}({field.name}=...)?"
        for argument, kind in config.TABLES.items()
        for field in dataclasses.fields(kind)
    }


def methods_of(methods: object, local: SgdConfig | None = None) -> list[NamedMethod]:
    """Name and check methods: one, a sequence of them, or a mapping from label to method.

    Args:
        methods: The methods.
        local: Local optimisation of methods given by name, or that leave theirs at its default.

    Raises:
        ConfigError: If one is no method, or one of its settings is impossible.
    """
    if local is not None and not isinstance(local, SgdConfig):
        raise ConfigError(f"local must be SgdConfig(...), as in SgdConfig(lr=0.05), got {local!r:.80}")
    if isinstance(methods, Mapping):
        return [
            method_of(m, config.checked_label(str(label), "a method's label"), local) for label, m in methods.items()
        ]
    several = methods if isinstance(methods, list | tuple) else [methods]
    return [method_of(m, local=local) for m in several]


def _trained_by(local: SgdConfig, method: Any) -> Any:
    """A method that leaves its local optimisation as it is by default, with this one; any other as it is."""
    if isinstance(method, Wrapped):
        return dataclasses.replace(method, of=_trained_by(local, method.of))
    fields = dataclasses.fields(method) if is_record(method) else ()
    by_default = any(f.name == "local" and f.default == method.local for f in fields)
    return dataclasses.replace(method, local=local) if by_default else method


def method_of(value: object, label: str | None = None, local: SgdConfig | None = None) -> NamedMethod:
    """Name and check one method; a file can hold it if it is one of ours and a file can hold its settings.

    Args:
        value: The method.
        label: Its label; by default its name.
        local: As in `methods_of`.

    Raises:
        ConfigError: If it is no method, or one of its settings is impossible.
    """
    if isinstance(value, str):
        options = {} if local is None else config.with_local(value, {}, config.plain(local))
        return config.method(value, options, label, label or "method")
    if local is not None:
        value = _trained_by(local, value)
    if inspect.isclass(value) and hasattr(value, "round"):
        raise ConfigError(f"a method is made of its class: write {value.__name__}(), got the class {value.__name__}")
    if not is_record(value) or not hasattr(value, "round"):
        raise ConfigError(f"a method is a frozen dataclass with a round, such as FedAvg(), or a name, got {value!r}")
    kind = type(value)
    if lacks := config.missing_parts(value):
        raise ConfigError(f"{label or kind.__name__}: {kind.__name__} is no method, it lacks {', '.join(lacks)}")
    words = "".join(f"+{word}" for word in _wrappers(value))
    wrapped = [f"{name}{words}" for name in algorithms.TABLE] if words else []
    for names in (algorithms.TABLE, wrapped, [f"{kind.__module__}:{kind.__qualname__}"]):
        options = {name: kept for name in names if (kept := _made_with(name, value)) is not None}
        for name in sorted(options, key=lambda name: _settings_given(name, options[name])):
            short = label or name.rpartition(":")[2]
            with suppress(pydantic.PydanticSchemaGenerationError):
                method = config.method(name, options[name], short, short)
                if _same(method.method, value):  # not if a record inside holds code, which `options` leave out
                    return method
    # Code in it, such as a loss term, has no place in a file.  The name is none, so that resume refuses, not guesses.
    inner = value
    while isinstance(inner, Wrapped):
        inner = inner.of
    label = label or f"{type(inner).__name__}{words}"
    _check(value, label)
    return NamedMethod(label, f"{IN_PYTHON}{kind.__qualname__}", _as_in_a_file(config.settings_of(value)), value)


def _wrappers(value: Any) -> dict[str, Any]:
    """The wrappers of a method by their names in a file, the one next to the method first."""
    return {algorithms.WRAPPERS.name_of(type(layer.by)): layer.by for layer in reversed([*layers(value)])}


def _settings_given(name: str, options: Mapping[str, Any]) -> int:
    """The number of these options that differ from the defaults of the method called `name`."""

    def differing(a: object, b: object) -> int:
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            return sum(differing(a.get(key), b.get(key)) for key in {**a, **b})
        return int(a != b)

    known = schema.parameters(algorithms.resolve(name))
    defaults = {key: config.plain(default) for key, (_, default) in known.items()}
    return sum(differing(option, defaults[key]) for key, option in options.items())


def _check(value: Any, place: str) -> None:
    """Check the settings of a record that no file can describe, and of the records it holds."""
    for name, (hint, _) in schema.parameters(type(value)).items():
        if isinstance(getattr(value, name), Mapping) and (wanted := schema.only_record(hint)) is not None:
            raise ConfigError(
                f"{place}.{name} must be {wanted.__name__}(...) in Python, got a "
                f"{type(getattr(value, name)).__name__}: {schema.show(getattr(value, name))}"
            )
    held = {f.name: h for f in dataclasses.fields(value) if is_record(h := getattr(value, f.name))}
    known = schema.parameters(type(value))
    theirs = {name for name, (hint, _) in known.items() if callable(getattr(value, name)) or not _has_schema(hint)}
    options = {
        name: option for name, option in config.settings_of(value).items() if name not in held and name not in theirs
    }
    schema.checked(type(value), options, place, skip={*held, *theirs})
    for name, record in held.items():
        _check(record, f"{place}.{name}")


def _has_schema(hint: Any) -> bool:
    """True if a type can be checked; a user's own type is the user's to check."""
    try:
        info.adapter(hint)
    except pydantic.PydanticSchemaGenerationError:
        return False
    return True


def _as_in_a_file(value: Any) -> Any:
    """The value as a file can hold it, with words for the rest."""
    if isinstance(value, Mapping):
        return {k: _as_in_a_file(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_as_in_a_file(v) for v in value]
    return value if isinstance(value, bool | int | float | str) else with_article(type(value).__qualname__)


def _made_with(name: str, method: Any) -> dict[str, Any] | None:
    """The options with which the method called `name` equals this one; None if it is another."""
    try:
        target = algorithms.resolve(name)
        if inspect.isclass(target) and target is not type(method):
            return None
        wrappers = {name.rpartition(":")[2]: by for name, by in _wrappers(method).items()}
        settings = {**_all_settings(method), **wrappers}
        hints = {key: hint for key, (hint, _) in schema.parameters(target).items() if key in settings}
        same = _same(target(**{key: settings[key] for key in hints}), method)
        plain = {key: schema.with_name(config.plain(settings[key]), settings[key], hint) for key, hint in hints.items()}
        for key, hint in hints.items():
            if (registry := schema.registry_of(hint)) is not None:
                registry.resolve(plain[key]["name"])  # a class made inside a function has no name that a file could use
    except Exception:  # whatever a stranger's code says to settings that are not its own: it did not make this
        return None
    return plain if same and plain == _as_in_a_file(plain) else None


def _same(rebuilt: object, method: object) -> bool:
    return type(rebuilt) is type(method) and bool(rebuilt == method)


def _all_settings(value: Any) -> dict[str, Any]:
    """Every setting in a record and in the records it holds, except `local`; the outer of two with the same name."""
    inner: dict[str, Any] = {}
    own = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    for held in own.values():
        for record in held if isinstance(held, tuple) else (held,):
            if is_record(record) and not isinstance(record, SgdConfig):
                inner = {**_all_settings(record), **inner}
    return {**inner, **own}


def local_of(methods: Sequence[NamedMethod]) -> dict[str, Any]:
    """The first method's local optimisation, which the bounds use too."""
    return next((dict(m.options["local"]) for m in methods if "local" in m.options), {})
