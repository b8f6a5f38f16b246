"""Check a table of settings against the signature of what it configures, and build it.

The declaration is the code itself: a dataclass or a function with annotated, bounded keyword parameters.  Pydantic does
the checking, strictly; this module turns its findings into one sentence each.
"""

import dataclasses
import functools
import inspect
import json
import math
import sys
import types
import typing
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pydantic

from unskew.errors import ConfigError, nearest

NONE = "none"
"""The word that stands for None in a file, since TOML has none."""

# Other tools' names for our settings.
ALIASES = {
    "join_ratio": "fraction",
    "fraction_fit": "fraction",
    "fraction_train": "fraction",
    "participation": "fraction",
    "cohort_size": "clients_per_round",
    "client_num_per_round": "clients_per_round",
    "n_clients": "num_clients",
    "client_num": "num_clients",
    "clients": "num_clients",
    "num_rounds": "rounds",
    "comm_round": "rounds",
    "global_rounds": "rounds",
    "global_epoch": "rounds",
    "epochs": "local_epochs",
    "local_num_epochs": "local_epochs",
    "steps": "local_steps",
    "batch": "batch_size",
    "learning_rate": "lr",
    "local_learning_rate": "lr",
    "global_lr": "server_lr",
    "seed": "seeds",
    "dataset": "data",
    "algorithms": "methods",
    "algorithm": "method",
    "beta": "alpha",
    "dir_alpha": "alpha",
    "dirichlet_alpha": "alpha",
    "dirichlet_beta": "alpha",
    "concentration": "alpha",
    "num_classes_per_client": "classes_per_client",
    "num_partitions": "num_clients",
    "min_partition_size": "min_samples",
    "min_size": "min_samples",
    "num_shards_per_client": "shards_per_client",
    "network": "model",
    "arch": "model",
    "backbone": "model",
    "batchsize": "batch_size",
    "eval_gap": "eval_every",
    "test_every": "eval_every",
    "proximal_mu": "mu",
    "wd": "weight_decay",
    "gpu": "device",
    "num_workers": "workers",
}


ELSEWHERE: ContextVar[Mapping[str, str]] = ContextVar("ELSEWHERE", default={})  # noqa: B039, nobody changes it
"""A sentence for each setting of the file that is being read, for whoever writes one in the wrong table."""


@dataclass(frozen=True)
class Search:
    """Range in which `unskew tune` searches a hyperparameter, beside its type: `Annotated[float, Search(0.01, 10.0)]`.

    Attributes:
        low, high: Its ends.
        log: Search evenly over the logarithm.
        whole: Search whole numbers only.
    """

    low: float
    high: float
    log: bool = True
    whole: bool = False


def parameters(target: Callable[..., Any], skip: Collection[str] = ()) -> dict[str, tuple[Any, Any]]:
    """Return the settings a file may hold: (annotation, default) by name; the default is `...` where there is none.

    What no file can express is left out: functions, but not what a parameter takes beside them.

    Raises:
        ConfigError: If a parameter has no readable annotation, or is `*args` or `**kwargs`, so that there is nothing to
            check it against.
    """
    return dict((_parameters if isinstance(target, Hashable) else _parameters.__wrapped__)(target, frozenset(skip)))


def hints(target: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of the parameters of a class or function, bounds included.

    Python resolves all annotations of a dataclass's `__init__` in the module of that class.  Inherited ones that are
    text (`from __future__ import annotations`) need the imports of their own module.
    """
    made: Any = target.__init__ if inspect.isclass(target) else target
    left, inherited = dict(getattr(made, "__annotations__", {})), dict[str, Any]()
    for base in target.__mro__[1:] if inspect.isclass(target) and dataclasses.is_dataclass(target) else ():
        names = vars(sys.modules[base.__module__]) if base.__module__ in sys.modules else {}
        for name, hint in inspect.get_annotations(base).items():
            redefined = name in inspect.get_annotations(target)
            if isinstance(hint, str) and left.get(name) == hint and not redefined:
                inherited |= _resolved({name: left.pop(name)}, names, dict(vars(base)))
    if not inherited:
        return typing.get_type_hints(made, include_extras=True)
    return _resolved(left, getattr(inspect.unwrap(made), "__globals__", {})) | inherited


def _resolved(written: dict[str, Any], names: dict[str, Any], of_class: dict[str, Any] | None = None) -> dict[str, Any]:
    of = types.SimpleNamespace(__annotations__=written)
    return typing.get_type_hints(of, names, of_class, include_extras=True)


# A file has a dozen tables, and a run reads some again and again; Pydantic takes milliseconds to make a model of one.
# Somebody's callable value may be comparable and so not hashable: it is read each time.
@functools.lru_cache(maxsize=512)
def _parameters(target: Callable[..., Any], skip: frozenset[str]) -> dict[str, tuple[Any, Any]]:
    try:
        known = hints(target)
        signature = inspect.signature(target)
    except (TypeError, ValueError, NameError) as error:
        raise ConfigError(f"the settings of {_name(target)} cannot be read from its signature: {error}") from None
    settings: dict[str, tuple[Any, Any]] = {}
    for name, p in signature.parameters.items():
        if name in skip:
            continue
        if name not in known or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise ConfigError(
                f"settings of {_name(target)} are checked against its signature, and {p} has no usable name and type; "
                "give every setting a name and a type, as in mu: float = 0.1"
            )
        members = get_args(known[name]) if get_origin(known[name]) in _UNIONS else (known[name],)
        plain = tuple(t for t in members if registry_of(t) or not any(map(_is_function, _types(t))))
        if any(t is not type(None) for t in plain):
            settings[name] = (Union[plain], ... if p.default is p.empty else p.default)  # noqa: UP007
    return settings


_UNIONS = (Union, types.UnionType)


def _is_function(hint: Any) -> bool:
    return getattr(hint, "_is_protocol", False) or Callable in (get_origin(hint), hint)


@functools.lru_cache(maxsize=512)
def _model(target: Callable[..., Any], skip: frozenset[str]) -> type[pydantic.BaseModel]:
    config = pydantic.ConfigDict(extra="forbid", strict=True, protected_namespaces=())
    fields: dict[str, Any] = parameters(target, skip)
    return pydantic.create_model("Options", __config__=config, **fields)


def build(
    target: Callable[..., Any],
    options: Mapping[str, Any],
    place: str,
    where: str = "",
    *,
    owner: str = "",
) -> Any:
    """Call `target(**options)` once every option is known, of the right type and in range.

    Args:
        target: A dataclass or a function; its signature is the schema.
        options: Settings as TOML or JSON gives them.
        place: Dotted path of the table, for messages: "method", "split", ...
        where: The file, for messages.
        owner: Name of the object that the settings belong to, for messages; by default the place.

    Raises:
        ConfigError: If not; names the dotted key, the expected value and the actual one.
    """
    with in_file(where):
        return construct(target, checked(target, options, place, owner=owner), place)


def construct(target: Callable[..., Any], values: Mapping[str, Any], place: str) -> Any:
    """Call `target(**values)`; errors that it raises itself get the place added."""
    with errors_at(place):
        return target(**values)


def checked(
    target: Callable[..., Any],
    options: Any,
    place: str,
    *,
    skip: Collection[str] = (),
    owner: str = "",
) -> dict[str, Any]:
    """Return the options as `target` takes them; missing ones keep their defaults.  Raises as `build` does."""
    with errors_at(place):
        fields = parameters(target, skip)
    plain = _prepared(fields, options, place, owner or place or _name(target))
    model = (_model if isinstance(target, Hashable) else _model.__wrapped__)(target, frozenset(skip))
    try:
        # Through JSON, where strict mode takes a list for a tuple and a table for a dataclass, but never "3" for 3.
        values = model.model_validate_json(json.dumps(plain), strict=True)
    except pydantic.ValidationError as error:
        raise ConfigError(sentence(error, place)) from None
    return {name: getattr(values, name) for name in values.model_fields_set}


def _prepared(known: Mapping[str, Any], options: Any, place: str, owner: str) -> dict[str, Any]:
    """Return the options as JSON, "none" as null; keys are known, numbers finite, nested tables checked as a whole."""
    if not isinstance(options, Mapping):
        raise ConfigError(f"{place} must be a table, got {show(options)}")
    plain: dict[str, Any] = {}
    for key, value in options.items():
        if key not in known:
            raise unknown(key, known, place, owner)
        hint, _ = known[key]
        members = _types(hint)  # the word means None where None is allowed and text is not
        nothing = isinstance(value, str) and value == NONE and type(None) in members and str not in members
        plain[key] = None if nothing else _nested(hint, value, _join(place, key))
    return plain


def _nested(hint: Any, value: Any, place: str) -> Any:
    registry = registry_of(hint)
    if registry is not None:
        registry.build(value, place)
        return {str(k): _nested(Any, v, _join(place, k)) for k, v in value.items()}
    if isinstance(value, Mapping):
        inner = _record(hint, value, place)
        if inner is None:
            return {str(k): _nested(Any, v, _join(place, k)) for k, v in value.items()}
        owner = str(value.get("name", place))
        build(inner, value, place, owner=owner)
        return _prepared(parameters(inner), value, place, owner)
    if isinstance(value, list | tuple):
        return [_nested(hint, v, _join(place, i)) for i, v in enumerate(value)]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ConfigError(f"{place} must fit into 64 bits, got an integer of {value.bit_length()} bits")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{place} must be a finite number, got {value}")
    if isinstance(value, date) and (hint is Any or date in get_args(hint)):  # TOML's own, without quotes
        return value.isoformat()
    if value is not None and not isinstance(value, bool | int | float | str):
        got = " ".join(str(value).split())
        raise ConfigError(f"{place} must be text, a number, true or false, a list or a table, got {got[:60]}")
    return value


@contextmanager
def errors_at(place: str) -> Iterator[None]:
    """Add to an error the place that it belongs to."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}" if place else str(error)) from None


@contextmanager
def in_file(where: str) -> Iterator[None]:
    """Add to an error, in brackets, the file that it is about."""
    try:
        yield
    except ConfigError as error:
        if not where:
            raise
        raise ConfigError(f"{error} ({where})") from None


_WANTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a string",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a table",
    "dataclass_type": "a table",
    "none_required": "left out",
}
_SIGNS = {
    "greater_than": ("> ", "gt"),
    "greater_than_equal": (">= ", "ge"),
    "less_than": ("< ", "lt"),
    "less_than_equal": ("<= ", "le"),
}


def sentence(error: pydantic.ValidationError, place: str) -> str:
    """Put pydantic's first finding into one sentence."""
    findings = error.errors(include_url=False)
    # In a union every member complains; the deepest complaint is about the member that was meant.
    item = max(findings, key=lambda e: (e["type"] not in {"none_required", "literal_error"}, len(e["loc"])))
    keys = _keys(item)
    dotted = ".".join([p for p in (place, *keys) if p])
    context = item.get("ctx", {})
    got = show(item.get("input"))
    kind = item["type"]
    if kind == "missing":
        return f"{dotted} is required"
    if kind in _SIGNS:
        sign, name = _SIGNS[kind]
        return f"{dotted} must be {sign}{context[name]:g}, got {got}"
    if kind == "literal_error":
        return f"{dotted} must be one of {context['expected']}, got {got}"
    if kind in ("too_short", "too_long"):
        bound = f"at least {context['min_length']}" if kind == "too_short" else f"at most {context['max_length']}"
        return f"{dotted} must have a length of {bound}, got {context['actual_length']}"
    if kind in _WANTED:
        words = [e["ctx"]["expected"] for e in findings if e["type"] == "literal_error" and _keys(e) == keys]
        return f"{dotted} must be {' or '.join([_WANTED[kind], *words])}, got {got}"
    text = str(context["error"]) if kind == "value_error" and "error" in context else item["msg"]
    return f"{dotted}: {text}, got {got}" if kind != "value_error" else f"{dotted}: {text}"


def _keys(finding: Mapping[str, Any]) -> list[str]:
    return [str(part) for part in finding["loc"] if not _is_member(str(part))]


def _is_member(part: str) -> bool:
    """True if pydantic put this into a location to name a type of a union or a constraint, not a key."""
    types = {"int", "float", "str", "bool", "none", "constrained-int", "constrained-float", "json-or-python[json]"}
    return part in types or part[:1].isupper() or "[" in part


def show(value: Any) -> str:
    """Format a value for an error message, in one short line."""
    try:
        text = json.dumps(value, default=str, ensure_ascii=False)
    except ValueError:  # Python writes no integer of more than 4300 digits
        return "an integer of thousands of digits"
    return text if len(text) <= 60 else text[:57] + "..."


def _join(place: str, key: object) -> str:
    return f"{place}.{key}" if place else str(key)


def _name(target: Any) -> str:
    return getattr(target, "__name__", None) or type(target).__name__


def unknown(
    key: str,
    known: Iterable[str],
    place: str,
    owner: str,
    elsewhere: Mapping[str, str] | None = None,
    noun: str = "key",
) -> ConfigError:
    """Return the error for an unknown key; `elsewhere` replaces `ELSEWHERE`."""
    known = list(known)
    sentences = {**(elsewhere or ELSEWHERE.get()), **{k: f"did you mean {k}?" for k in known}}
    # A word that names a setting elsewhere is meant sooner than one that merely looks like a setting here.
    word = named_by(key, known) or named_by(key, sentences) or nearest(key, known) or nearest(key, sentences)
    hint = f"; {sentences[word]}" if word else ""
    has = ", ".join(known) or "none"
    return ConfigError(f"unknown {noun} {_join(place, key)}{hint} ({owner} has: {has})")


def named_by(word: str, known: Collection[str]) -> str | None:
    """Find the known setting of this name, here or in other tools."""
    alias = ALIASES.get(word)
    return word if word in known else alias if alias in known else None


def _record(hint: Any, table: Mapping[str, Any], place: str) -> type | None:
    """Find the dataclass in an annotation that this table is meant for, by its `name` if there are several."""
    options = [t for t in _types(hint) if isinstance(t, type) and hasattr(t, "__dataclass_fields__")]
    if len(options) < 2:
        return next(iter(options), None)
    by_name = {name: t for t in options for name in get_args(typing.get_type_hints(t).get("name"))}
    name = table.get("name")
    if not isinstance(name, str) or name not in by_name:
        got = f", got {show(name)}" if "name" in table else ", got none"
        raise ConfigError(f"{place}.name must be one of {', '.join(by_name)}{got}")
    return by_name[name]


def only_record(hint: Any) -> type | None:
    """The dataclass that an annotation allows, if it allows nothing else."""
    members = _types(hint)
    records = [t for t in members if isinstance(t, type) and dataclasses.is_dataclass(t)]
    return records[0] if records and len(members) == 1 else None


def registry_of(hint: Any) -> Any:
    """The registry (`unskew.registry`) in an annotation: such a setting is a table that names a registered piece."""
    metadata = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((m for m in metadata if hasattr(m, "resolve") and hasattr(m, "build")), None)


def with_name(plain: Any, value: Any, hint: Any) -> Any:
    """Add to the settings of a piece the name by which a file finds it, registered or not."""
    registry = registry_of(hint)
    if registry is not None and value is plain and not (value is None or isinstance(value, str | Mapping)):
        raise ConfigError(f"the {registry.kind} must be {registry.need}, got {value!r:.80}")
    named = registry is not None and isinstance(plain, dict)
    return {**plain, "name": registry.name_of(type(value))} if named else plain


def _types(hint: Any) -> list[Any]:
    origin = get_origin(hint)
    if origin is Annotated:
        return _types(get_args(hint)[0])
    if origin in (*_UNIONS, tuple, list):
        return [t for a in get_args(hint) for t in _types(a)]
    return [] if origin is Literal else [hint]
