"""Check a table of settings against the signature of what it configures, and build it.

The declaration is the code itself: a dataclass or a function with annotated, bounded keyword parameters.  Pydantic does
the checking, strictly; this module turns its findings into one sentence each.
"""

import difflib
import inspect
import json
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pydantic

from unskew.errors import ConfigError

# What other tools call our settings.
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
}


def parameters(target: Callable[..., Any], skip: Collection[str] = ()) -> dict[str, tuple[Any, Any]]:
    """What a file may set: (annotation, default) by name, the default `...` where there is none.

    Left out is what no file can say: parameters that take functions.
    """
    hints = typing.get_type_hints(target.__init__ if inspect.isclass(target) else target, include_extras=True)
    return {
        name: (hints[name], ... if p.default is p.empty else p.default)
        for name, p in inspect.signature(target).parameters.items()
        if name not in skip and not any(_is_code(t) for t in _types(hints[name]))
    }


def build(target: Callable[..., Any], options: Mapping[str, Any], place: str, where: str = "") -> Any:
    """`target(**options)` once every option is known, of the right type and in range.

    Args:
        target: A dataclass or a function; its signature is the schema.
        options: Settings as TOML or JSON gives them.
        place: Dotted path of the table, for messages: "algorithm", "split", ...
        where: The file, for messages.

    Raises:
        ConfigError: Naming the dotted key, what was expected and what was got.
    """
    values = checked(target, options, place, where)
    try:
        return target(**values)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}{at(where)}") from None


def checked(
    target: Callable[..., Any], options: Mapping[str, Any], place: str, where: str = "", skip: Collection[str] = ()
) -> dict[str, Any]:
    """The options as `target` takes them; those left out keep their defaults.  Raises as `build` does."""
    check_keys(target, options, place, where, skip)
    config = pydantic.ConfigDict(extra="forbid", strict=True)
    fields: dict[str, Any] = dict(parameters(target, skip))
    model = pydantic.create_model("Options", __config__=config, **fields)
    try:
        text = json.dumps(options)
    except TypeError as error:
        raise ConfigError(f"{place}: {error}; use strings, numbers, booleans, lists and tables{at(where)}") from None
    try:
        # Through JSON, where strict mode takes a list for a tuple and a table for a dataclass, but never "3" for 3.
        values = model.model_validate_json(text, strict=True)
    except pydantic.ValidationError as error:
        raise ConfigError(sentence(error, place) + at(where)) from None
    return {name: getattr(values, name) for name in values.model_fields_set}


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
    """The first finding as one sentence."""
    found = error.errors(include_url=False)
    # In a union every member complains; the deepest complaint is about the member that was meant.
    item = max(found, key=lambda e: (e["type"] not in {"none_required", "literal_error"}, len(e["loc"])))
    keys = [str(part) for part in item["loc"] if not _is_member(str(part))]
    dotted = ".".join([p for p in (place, *keys) if p])
    context = item.get("ctx", {})
    got = _show(item.get("input"))
    kind = item["type"]
    if kind == "missing":
        return f"{dotted} is required"
    if kind in _SIGNS:
        sign, name = _SIGNS[kind]
        return f"{dotted} must be {sign}{context[name]:g}, got {got}"
    if kind == "literal_error":
        return f"{dotted} must be one of {context['expected']}, got {got}"
    if kind == "too_short":
        return f"{dotted} must have at least {context['min_length']} entries, got {context['actual_length']}"
    if kind in _WANTED:
        return f"{dotted} must be {_WANTED[kind]}, got {got}"
    text = str(context["error"]) if kind == "value_error" and "error" in context else item["msg"]
    return f"{dotted}: {text}, got {got}" if kind != "value_error" else f"{dotted}: {text}"


def _is_member(part: str) -> bool:
    """Whether pydantic put this into a location to name a type of a union or a constraint, not a key."""
    return part in {"int", "float", "str", "bool", "none", "json-or-python[json]"} or part[:1].isupper() or "[" in part


def _show(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def check_keys(
    target: Callable[..., Any], options: Mapping[str, Any], place: str, where: str = "", skip: Collection[str] = ()
) -> None:
    """Refuse unknown keys here and in nested tables, with the nearest known one.

    Raises:
        ConfigError: Naming the dotted key.
    """
    if not isinstance(options, Mapping):
        raise ConfigError(f"{place} must be a table, got {_show(options)}{at(where)}")
    known = parameters(target, skip)
    for key, value in options.items():
        if key not in known:
            raise unknown(key, known, place, getattr(target, "__name__", str(target)), where)
        nested = value if isinstance(value, list) else [value]
        for table in (v for v in nested if isinstance(v, Mapping)):
            inner = _record(known[key][0], table)
            if inner is not None:
                check_keys(inner, table, f"{place}.{key}" if place else key, where)


def unknown(key: str, known: Iterable[str], place: str, owner: str, where: str = "") -> ConfigError:
    """The error for a key nobody knows."""
    known = list(known)
    dotted = f"{place}.{key}" if place else key
    guess = ALIASES[key] if ALIASES.get(key) in known else next(iter(difflib.get_close_matches(key, known, 1)), None)
    hint = f"did you mean {guess}? " if guess else ""
    return ConfigError(f"unknown key {dotted}; {hint}({owner} has: {', '.join(known)}){at(where)}")


def _record(hint: Any, table: Mapping[str, Any]) -> type | None:
    """The dataclass of an annotation that this table is meant for, by its `name` if several could be."""
    options = [t for t in _types(hint) if isinstance(t, type) and hasattr(t, "__dataclass_fields__")]
    named = [t for t in options if table.get("name") in get_args(typing.get_type_hints(t).get("name"))]
    return next(iter(named or options), None) if named or len(options) == 1 else None


def _is_code(of: Any) -> bool:
    return getattr(of, "_is_protocol", False) or get_origin(of) is Callable or of is Callable


def _types(hint: Any) -> list[Any]:
    origin = get_origin(hint)
    if origin is Annotated:
        return _types(get_args(hint)[0])
    if origin in (Union, types.UnionType, tuple, list):
        return [t for a in get_args(hint) for t in _types(a)]
    return [] if origin is Literal else [hint]


def at(where: str) -> str:
    """The file a message is about, in brackets."""
    return f" ({where})" if where else ""
