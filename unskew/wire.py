"""Encodes messages as bytes, and counts the bytes.

A message is a tree of frozen dataclasses, dictionaries, tuples, tensors and scalars.  On the wire it is one safetensors
file: tensors under their path, everything else as compact JSON in the file's metadata.  Decoding is driven by the
*type* a step's signature names, never by what the bytes claim to be: no other class can be built, no code can run.
State and client memory are saved in the same form.

`nbytes` is the exact length of `encode`, computed without copying a tensor; the ledger records it.
"""

import collections.abc
import functools
import hashlib
import itertools
import json
import math
import operator
import re
import reprlib
import sys
import types
import typing
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import safetensors.torch
import torch
from torch import Tensor

from unskew.errors import ProtocolError, WireError
from unskew.protocol import Held, Keep, field_names, steps_of
from unskew.tree import Params, hints_of, is_record_type
from unskew.words import with_article

_META = "unskew"
DTYPES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
BY_NAME = {name: dtype for dtype, name in DTYPES.items()}
# safetensors sorts tensors by element type, widest first and then in its enum's order, and by name within a type.
_RANK = {n: i for i, n in enumerate(["I64", "F64", "F32", "I32", "BF16", "F16", "I16", "I8", "U8", "BOOL"])}


# Decoding bytes from elsewhere takes at most this many times their size in memory; a message of less than SMALL bytes
# may take what one of SMALL bytes may.  Unbounded, a list of empty lists takes thirty times its bytes, tables fifty.
MEMORY_FACTOR, SMALL = 10, 8 << 20
_LONGEST_PATH = 4096
# Upper bounds, measured, on the memory in bytes of what a character of JSON begins, parsed and built: a list, a table,
# one more element, one more entry; of a tensor in a header, and of one more side of its shape.
_COSTS = {"[": 96, "{": 160, ",": 80, ":": 260}
_TENSOR_COST, _SIDE_COST = 2100, 72
_OPENING = re.compile(r'\s*\{\s*"__metadata__"\s*:\s*\{\s*"' + _META + r'"\s*:\s*(?=")')
# An escape that spells half a surrogate pair, unless its backslash is itself escaped.
_SURROGATE = re.compile(r"(?<!\\)(?:\\\\)*\\u[dD][89a-fA-F]")
_BRIEF = reprlib.Repr()
_BRIEF.maxlist = _BRIEF.maxtuple = _BRIEF.maxdict = 40
_BRIEF.maxstring = _BRIEF.maxlong = _BRIEF.maxother = 200

_UNIONS = (Union, types.UnionType)
_TABLES = (dict, collections.abc.Mapping)
_ROWS = (tuple, list, collections.abc.Sequence)
_SCALARS = (int, float, str, bool)
# The jaxtyping dimensions that can be checked on a single tensor: names, _, numbers, and any number of them.
_DIMENSION = re.compile(r"\.\.\.|\*?[^\W\d]\w*|(\w+=)?\d+")


# ---------------------------------------------------------------- value -> (tensors, JSON)
def _flatten(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Return the JSON part of `value`, and put its tensors into `tensors` under their paths."""
    if isinstance(value, Tensor):
        _put(value, path, tensors)
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return _flatten_dict(value, path, tensors)
    if isinstance(value, bytes):
        # A copy: torch.frombuffer would warn about read-only memory, and refuses to make nothing.
        octets = torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else torch.empty(0, dtype=torch.uint8)
        _put(octets, path, tensors)
        return None
    if isinstance(value, Held):
        return [value.owner, value.key]
    if isinstance(value, Keep):
        raise WireError(f"a Keep reached the wire (at {path or 'top'}); only a step's reply may hold one")
    fields = field_names(value)
    if fields is not None:
        return {name: _flatten(getattr(value, name), _join(path, name), tensors) for name in fields}
    if isinstance(value, tuple | list):
        return [_flatten(v, _join(path, i), tensors) for i, v in enumerate(value)]
    if isinstance(value, types.GeneratorType):
        raise WireError(
            f"a request that nobody waited for cannot travel (at {path or 'top'}); write yield from before "
            f"{value.__name__}(...)"
        )
    raise WireError(
        f"{type(value).__name__} cannot travel (at {path or 'top'}); use dataclasses, tuples, tensors, scalars"
    )


def _flatten_dict(value: dict[Any, Any], path: str, tensors: dict[str, Tensor]) -> Any:
    names = [str(k) for k in value]
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise WireError(f"two entries of a table are both written {twice!r} (at {path or 'top'}); give them other keys")
    if value and all(isinstance(v, Tensor) for v in value.values()):
        for k, v in value.items():
            _put(v, _join(path, k), tensors)
        return names  # safetensors reorders; sums over a table must not depend on whether it travelled
    return {str(k): _flatten(v, _join(path, k), tensors) for k, v in value.items()}


def flatten(value: Any) -> tuple[Any, dict[str, Tensor]]:
    """Split a value into its JSON part and its tensors by path, as `encode` writes them, for callers that move tensors.

    Raises:
        WireError: If something in it cannot travel.
    """
    tensors: dict[str, Tensor] = {}
    return _flatten(value, "", tensors), tensors


def build(of: Any, body: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Rebuild the value of type `of` that `flatten` took apart.

    Raises:
        WireError: If the parts are not exactly such a value.
    """
    loose = dict(tensors)
    try:
        value = _build(of, body, "", loose)
    except RecursionError:
        raise WireError("message is nested too deeply") from None
    if loose:
        raise WireError(f"message has tensors its type does not name: {', '.join(n[:80] for n in sorted(loose)[:5])}")
    return value


def _put(value: Tensor, path: str, tensors: dict[str, Tensor]) -> None:
    where = f"(at {path or 'top'})"
    if value.dtype not in DTYPES:
        raise WireError(f"a tensor of {value.dtype} cannot travel {where}; use one of {list(DTYPES)}")
    if value.layout != torch.strided or value.is_meta:
        raise WireError(f"a tensor that is sparse or without memory cannot travel {where}; make it dense")
    if path in tensors:
        raise WireError(f"two tensors of a message have the name {path}; leave the '/' out of its keys")
    if path == "__metadata__":
        raise WireError("a tensor cannot travel as __metadata__: safetensors keeps that name to itself; choose another")
    tensors[path] = value


def _join(path: str, part: object) -> str:
    joined = f"{path}/{part}" if path else str(part)
    if len(joined) > _LONGEST_PATH:  # paths are kept at every level, so long ones add up
        raise WireError(f"a name of {len(joined)} characters exceeds the {_LONGEST_PATH} allowed ({joined[:40]}...)")
    return joined


# One encoder for all messages: `json.dumps` makes one for each.
_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def encode(value: Any) -> bytes:
    """Encode a message as bytes; a message without content has no bytes at all.

    Raises:
        WireError: If something in it cannot travel.
    """
    return b"".join(pieces(value))


def pieces(value: Any) -> tuple[bytes | memoryview, ...]:
    """Yield `encode(value)` in parts, one after another; tensors on the CPU are viewed, not copied, while they live.

    A state of hundreds of megabytes is hashed and written in a third of the time this way, because safetensors itself
    first makes a second and a third copy.

    Raises:
        WireError: If something in it cannot travel.
    """
    tensors, text = _pack(value)
    return () if text is None else file_of(text, tensors)


def file_of(text: str, tensors: Params) -> tuple[bytes | memoryview, ...]:
    """A safetensors file with this metadata, in parts as `pieces` has them."""
    head, order, _ = _layout(text, _shapes(tensors))
    return (head, *(octets(tensors[name]) for name in order))


def _pack(value: Any) -> tuple[dict[str, Tensor], str | None]:
    """Tensors and JSON of a message; no JSON if the message is None, or a record without fields."""
    tensors: dict[str, Tensor] = {}
    body = _flatten(value, "", tensors)
    if not tensors and (body is None or (body == {} and not isinstance(value, dict))):
        return tensors, None
    try:
        text = _json(body)
        "".join((text, *tensors)).encode()
    except ValueError as error:  # lone surrogates, integers of thousands of digits
        raise WireError(f"{with_article(type(value).__name__)} holds what cannot be written: {error}") from None
    return tensors, text


def octets(tensor: Tensor) -> memoryview:
    """A tensor's elements in their order, as bytes."""
    whole = tensor.detach().resolve_neg().cpu().contiguous()
    # A tensor of one element is contiguous whatever its strides say, but cannot be seen as bytes with them.
    return whole.as_strided((whole.numel(),), (1,)).view(torch.uint8).numpy().data


def tensors_hash(params: Params) -> str:
    """SHA-256 of tensors' names, shapes, element types and values; empty if there are none."""
    if not params:
        return ""
    table = [[name, str(t.dtype), list(t.shape)] for name, t in params.items()]
    whole = hashlib.sha256(json.dumps(table).encode())
    for t in params.values():
        whole.update(octets(t))
    return whole.hexdigest()


def nbytes(value: Any) -> int:
    """`len(encode(value))`, without encoding."""
    tensors, text = _pack(value)
    if text is None:
        return 0
    return _layout(text, _shapes(tensors))[2]


_Shapes = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]


def _shapes(tensors: Mapping[str, Tensor]) -> _Shapes:
    return tuple((name, t.dtype, tuple(t.shape)) for name, t in tensors.items())


def _layout(text: str, tensors: _Shapes) -> tuple[bytes, tuple[str, ...], int]:
    """Header, order of tensors and length in bytes of a safetensors file with this metadata and these tensors."""
    entries, order, size = (_entries if len(tensors) <= _MOST_KEPT else _entries.__wrapped__)(tensors)
    header = f'{{"__metadata__":{{"{_META}":{_json(text)}}}'.encode() + entries + b"}"
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header, order, 8 + len(header) + size


# Clients send the same shapes over and over, and writing them down is most of the cost of counting.  The rest of a
# message is not kept, as a round's number is in it; nor are the many tensors of a checkpoint.
_MOST_KEPT = 1000


@functools.lru_cache(maxsize=256)
def _entries(tensors: _Shapes) -> tuple[bytes, tuple[str, ...], int]:
    """Entries of a header for tensors, their order, and the bytes of their elements."""
    parts = []
    offset, order = 0, sorted(tensors, key=lambda t: (_RANK[DTYPES[t[1]]], t[0]))
    for name, dtype, shape in order:
        end = offset + math.prod(shape) * dtype.itemsize
        sides = ",".join(map(str, shape))
        parts.append(f',{_json(name)}:{{"dtype":"{DTYPES[dtype]}","shape":[{sides}],"data_offsets":[{offset},{end}]}}')
        offset = end
    return "".join(parts).encode(), tuple(name for name, _, _ in order), offset


def kind(value: Any) -> Literal["model", "control"]:
    """Kind of a message in the ledger: "model" if it carries parameters by name, else "control"."""
    if isinstance(value, dict):
        if value and all(isinstance(v, Tensor) for v in value.values()):
            return "model"
        return _kind(value.values())
    if isinstance(value, tuple | list):
        return _kind(value)
    fields = field_names(value)
    return "control" if fields is None else _kind(getattr(value, name) for name in fields)


def _kind(parts: collections.abc.Iterable[Any]) -> Literal["model", "control"]:
    return "model" if any(kind(p) == "model" for p in parts) else "control"


# ---------------------------------------------------------------- bytes -> value of a given type
def decode(data: bytes, of: Any, max_bytes: int | None = None) -> Any:
    """Decode the value of type `of` that `data` holds.

    Args:
        data: Bytes that `encode` is supposed to have written; untrusted.
        of: Type as in an annotation: dataclass, dict[str, Tensor], tuple[int, ...], Tensor | None, ...
        max_bytes: Refuse longer messages before looking at them, and any that would take more than `MEMORY_FACTOR`
            times their size in memory; None for bytes of one's own.

    Raises:
        WireError: If the bytes are not exactly such a value.
    """
    if max_bytes is not None and len(data) > max_bytes:
        raise WireError(f"message of {len(data)} bytes exceeds the {max_bytes} allowed")
    tensors: dict[str, Tensor] = {}
    body: Any = None
    if data:
        try:
            text = _open(data, math.inf if max_bytes is None else MEMORY_FACTOR * max(len(data), SMALL))
            tensors = safetensors.torch.load(data)
            if "\\u" in text and _SURROGATE.search(text):
                raise ValueError("an escape spells half a character")
            body = json.loads(text)
        except WireError:
            raise
        except Exception as error:  # the parsers raise many kinds of exceptions; callers need only one
            reason = f"{type(error).__name__}: {str(error)[:200]}"
            raise WireError(f"{len(data)} bytes are not a message: {reason}") from None
    for name, t in tensors.items():
        if t.dtype not in DTYPES:
            raise WireError(f"tensor {name[:80]} of {t.dtype} is not accepted; {list(DTYPES.values())} are")
        if t.dtype is torch.bool and bool((t.view(torch.uint8) > 1).any()):
            raise WireError(f"tensor {name[:80]} holds truth values that are neither 0 nor 1")
    return build(of, body, tensors)


def _open(data: bytes, allowed: float) -> str:
    """The JSON of an encoded message, not yet parsed.

    Safetensors and `json` build all they find before anyone can look at it.  What that takes is known from the
    characters that begin something, and counting them takes no memory.

    Raises:
        WireError: If decoding could take more than `allowed` bytes of memory.
        ValueError: If this is no message.
    """
    size = int.from_bytes(data[:8], "little")
    if size > len(data) - 8:
        raise ValueError(f"a header of {size} bytes is longer than the message")
    header = data[8 : 8 + size].decode()
    # The tensors, safetensors' copies of the header, and its text: four bytes a letter if one of them is an emoji.
    memory = len(data) + size + 3 * sys.getsizeof(header)
    _afford(memory, allowed, data)
    opening = _OPENING.match(header)
    if opening is None:
        raise ValueError(f"its header does not begin with the metadata {_META}")
    text: str
    text, end = json.JSONDecoder().raw_decode(header, opening.end())
    if header[end : end + 100].lstrip()[:1] != "}":
        raise ValueError(f"its header has metadata beyond {_META}")
    memory += sum(cost * text.count(character) for character, cost in _COSTS.items())
    memory += _TENSOR_COST * header.count("{", end) + _SIDE_COST * header.count(",", end)
    _afford(memory, allowed, data)
    return text


def _afford(memory: int, allowed: float, data: bytes) -> None:
    if memory > allowed:
        raise WireError(
            f"message of {len(data)} bytes could take {memory} bytes of memory, more than the {allowed} allowed; send "
            "many numbers as one tensor"
        )


def _build(of: Any, body: Any, path: str, loose: dict[str, Tensor]) -> Any:
    of, origin, args, is_tensor = _look(of)
    if is_tensor:
        return _claim(of, body, path, loose)
    if origin in _UNIONS:
        return _build_member(_members(of), body, path, loose)
    if origin is Literal:
        if not _is_one_of(body, args):
            raise _wrong(f"one of {args}", body, path)
        return body
    if of is type(None):
        if body is not None or path in loose:
            raise _wrong("nothing", body, path)
        return None
    if of is Held:
        if not _is_held(body):
            raise _wrong("a held value", body, path)
        return Held(body[0], body[1])
    if of is bytes:
        octets = _claim(Tensor, body, path, loose)
        if octets.dtype != torch.uint8 or octets.ndim != 1:
            raise WireError(f"expected bytes at {path or 'top'}, got {octets.dtype} {tuple(octets.shape)}")
        return octets.numpy().tobytes()
    if is_record_type(of):
        return _build_record(of, body, path, loose)
    if origin in _TABLES:
        return _build_dict(args, body, path, loose)
    if origin in _ROWS:
        if not isinstance(body, list):
            raise _wrong("a list", body, path)
        if origin is tuple and args[-1:] != (Ellipsis,):
            if len(args) != len(body):
                raise WireError(f"expected {len(args)} entries at {path or 'top'}, got {len(body)}")
            return tuple(_build(a, b, _join(path, i), loose) for i, (a, b) in enumerate(zip(args, body, strict=True)))
        values = [_build(args[0], b, _join(path, i), loose) for i, b in enumerate(body)]
        return values if origin is list else tuple(values)
    if of is float and type(body) is int and abs(body) < 1 << 1023:
        return float(body)
    if of in _SCALARS:
        if type(body) is not of:
            raise _wrong(of.__name__, body, path)
        return body
    raise ProtocolError(f"the wire cannot build {of} (at {path or 'top'}); annotate with a concrete type")


# Asking `typing` what an annotation means takes longer than building a small client's reply from it.
@functools.cache
def _look(of: Any) -> tuple[Any, Any, tuple[Any, ...], bool]:
    """A type without annotations, its origin and arguments, and True if it is a tensor."""
    of = _bare(of)
    return of, get_origin(of), get_args(of), _is_tensor(of)


def _build_record(of: Any, body: Any, path: str, loose: dict[str, Tensor]) -> Any:
    hints = hints_of(of)
    names = list(hints)
    if body is None and not names and not path:
        return of()
    if not isinstance(body, dict) or len(body) != len(names) or set(body) != set(names):
        got = sorted(body) if isinstance(body, dict) else body
        raise _wrong(f"{of.__name__} with fields {names}", got, path)
    values = {n: _build(hints[n], body[n], _join(path, n), loose) for n in names}
    try:
        return of(**values)
    except WireError:
        raise
    except Exception as error:  # a message class may check itself; a foreign value must not crash the server
        raise WireError(f"{of.__name__} at {path or 'top'} refuses its values: {error}") from None


def _build_dict(args: tuple[Any, ...], body: Any, path: str, loose: dict[str, Tensor]) -> Any:
    key, of = _bare(args[0]), args[1]
    named = isinstance(body, list)
    if isinstance(body, list):
        if key is str and of is Tensor and body and all(type(n) is str and _join(path, n) in loose for n in body):
            claimed = {n: loose.pop(_join(path, n), None) for n in body}  # a repeated name is missing the second time
            if len(claimed) == len(body):
                return claimed
            raise _wrong("a list of tensor names", body, path)
        if not all(isinstance(n, str) and _join(path, n) in loose for n in body) or len(set(body)) < len(body):
            raise _wrong("a list of tensor names", body, path)
        body = dict.fromkeys(body)
    if not isinstance(body, dict):
        raise _wrong("a table", body, path)
    try:
        keys = {k: key(k) for k in body}
    except ValueError:
        keys = {}
    if any(str(keys.get(k)) != k for k in body):  # one key, one spelling: " 1" is not an integer here
        raise _wrong(f"keys of {key.__name__}", sorted(body)[:5], path)
    value = {keys[k]: _build(of, v, _join(path, k), loose) for k, v in body.items()}
    if named != (bool(value) and all(isinstance(v, Tensor) for v in value.values())):
        raise _wrong("a list of tensor names, or a table of anything else", body, path)
    return value


def _build_member(options: list[Any], body: Any, path: str, loose: dict[str, Tensor]) -> Any:
    """Build the first member of a union that fits, trying scalars of exactly this type first."""
    fitting = [of for of in options if _fits(of, body, path, loose)]
    if not fitting:
        raise _wrong(f"one of {[getattr(o, '__name__', str(o)) for o in options]}", body, path)
    *first, last = sorted(fitting, key=lambda of: of is not type(body))
    for of in first:
        trial = dict(loose)
        try:
            value = _build(of, body, path, trial)
        except WireError:
            continue
        for name in loose.keys() - trial.keys():
            del loose[name]
        return value
    return _build(last, body, path, loose)


def _fits(of: Any, body: Any, path: str, loose: dict[str, Tensor]) -> bool:
    """True if a shallow look at the value does not exclude the type `of`."""
    origin = get_origin(of)
    if origin is Literal:
        return _is_one_of(body, get_args(of))
    if _is_tensor(of) or of is bytes:
        return body is None and path in loose
    if of is type(None):
        return body is None and path not in loose
    if of is Held:
        return _is_held(body)
    if is_record_type(of):
        names = hints_of(of).keys()
        return isinstance(body, dict) and len(body) == len(names) and set(body) == names
    if origin in _TABLES:
        return isinstance(body, dict | list)
    if origin in _ROWS:
        return isinstance(body, list)
    return type(body) is of or (of is float and type(body) is int)


def _claim(of: Any, body: Any, path: str, loose: dict[str, Tensor]) -> Tensor:
    if body is not None or path not in loose:
        raise _wrong("a tensor", body, path)
    value = loose.pop(path)
    if of is not Tensor and not isinstance(value, of):  # jaxtyping: element type and number of dimensions
        raise WireError(f"tensor at {path or 'top'} must be {of.__name__}, got {value.dtype} {tuple(value.shape)}")
    return value


def _bare(of: Any) -> Any:
    """Strip `Annotated` and `NewType` from a type."""
    while True:
        if get_origin(of) is Annotated:
            of = get_args(of)[0]
        elif isinstance(of, typing.NewType):
            of = of.__supertype__
        else:
            return type(None) if of is None else of


def _members(of: Any) -> list[Any]:
    """Members of a union, stripped.  A Keep is never sent: a Held stands in its place."""
    if get_origin(_bare(of)) not in _UNIONS:
        return [_bare(of)]
    return [m for a in get_args(_bare(of)) if a is not Keep for m in _members(a)]


def _is_one_of(body: Any, values: tuple[Any, ...]) -> bool:
    return any(type(body) is type(v) and body == v for v in values)


def _is_held(body: Any) -> bool:
    return isinstance(body, list) and len(body) == 2 and type(body[0]) is int and isinstance(body[1], str)


def _is_tensor(of: Any) -> bool:
    return isinstance(of, type) and (issubclass(of, Tensor) or getattr(of, "array_type", None) is Tensor)


def _wrong(expected: str, got: Any, path: str) -> WireError:
    text = _BRIEF.repr(got)
    return WireError(f"expected {expected} at {path or 'top'}, got {text if len(text) < 80 else text[:77] + '...'}")


# ---------------------------------------------------------------- what a step sends and keeps
@dataclass(frozen=True)
class Signature:
    """The types of a step: message, reply, and client memory (None if it keeps none)."""

    message: Any
    reply: Any
    memory: Any


def signature(step: Callable[..., Any]) -> Signature:
    """Read a step's types from its annotations.

    Raises:
        ProtocolError: If it is not `(self, me: Me, msg: M, memory: L | None) -> Step[tuple[R, L | None]]` (or L alone,
            where something is always remembered), or bytes could not be turned into one of these types, or in two ways.
    """
    function = getattr(step, "__func__", step)
    if function not in _SIGNATURES:
        _SIGNATURES[function] = _signature(step)
    return _SIGNATURES[function]


# A client asks with every message; a step that is gone is forgotten.
_SIGNATURES: "weakref.WeakKeyDictionary[Callable[..., Any], Signature]" = weakref.WeakKeyDictionary()


def _signature(step: Callable[..., Any]) -> Signature:
    hints = typing.get_type_hints(step, include_extras=True)
    returns = hints.pop("return", None)
    parameters = list(hints.values())
    if get_origin(returns) is collections.abc.Generator:
        returns = get_args(returns)[2]
    if len(parameters) != 3 or get_origin(returns) is not tuple or len(get_args(returns)) != 2:
        raise ProtocolError(
            f"step {getattr(step, '__qualname__', step)} must be annotated as "
            "(self, me: Me, msg: M, memory: L | None) -> Step[tuple[R, L | None]]"
        )
    types = Signature(parameters[1], get_args(returns)[0], _bare(get_args(returns)[1]))
    for of in (types.message, types.reply, types.memory):
        _check(of, f"step {getattr(step, '__qualname__', step)}", set())
    return types


def _check(of: Any, who: str, seen: set[Any]) -> None:
    """Refuse a type that bytes cannot be decoded to, or can be decoded to in two ways."""
    of = _bare(of)
    if of in seen:  # a class may hold itself
        return
    seen.add(of)
    origin, args = get_origin(of), get_args(of)
    if origin in _UNIONS:
        members = _members(of)
        for a, b in itertools.combinations(members, 2):
            if _alike(a, b):
                raise ProtocolError(f"{who}: {a} and {b} look the same on the wire; name their fields differently")
        parts = members
    elif is_record_type(of) and of not in (Held, Keep):
        parts = list(hints_of(of).values())
    elif origin in _TABLES and _bare(args[0]) in (str, int):
        parts = [args[1]]
    elif origin in _ROWS:
        parts = [a for a in args if a is not Ellipsis]
    elif origin is Literal or of in (*_SCALARS, type(None), bytes, Held) or _is_tensor(of):
        odd = [d for d in getattr(of, "dim_str", "").split() if not _DIMENSION.fullmatch(d)]
        if odd:
            raise ProtocolError(
                f"{who}: a dimension of a tensor that travels must be a name, a number, _, ... or *name, got "
                f"{odd[0]!r} in {of.__name__}; what depends on other dimensions belongs in `validate_reply`"
            )
        parts = []
    else:
        raise ProtocolError(
            f"{who}: the wire cannot build {of}; annotate with dataclasses, tables by name, tuples, tensors and scalars"
        )
    for part in parts:
        _check(part, who, seen)


def _alike(a: Any, b: Any) -> bool:
    """True if two members of a union can have the same bytes for different values."""
    one, two = _form(a), _form(b)
    if one == two == "record":
        return hints_of(a).keys() == hints_of(b).keys()
    return {one, two} in (
        {"tensor", "bytes"},
        {"record", "table"},
        {"list", "tuple"},
        {"held", "list"},
        {"held", "tuple"},
        {"table", "list"},  # a table of tensors is written as the list of their names
        {"table", "tuple"},
        {"nothing", "empty record"},
    )


def _form(of: Any) -> str:
    if is_record_type(of) and of is not Held:
        return "record" if hints_of(of) else "empty record"
    if get_origin(of) in _ROWS:
        return "list" if get_origin(of) is list else "tuple"
    if get_origin(of) in _TABLES:
        return "table"
    named = {bytes: "bytes", Held: "held", type(None): "nothing"}
    return "tensor" if _is_tensor(of) else named.get(of, "scalar")


def signatures(method: object) -> dict[str, Signature]:
    """Return the types of every step of a method, by name."""
    return {name: signature(fn) for name, fn in steps_of(method).items()}


def held_type(method: object) -> Any:
    """Return the type of values that stay on a client: everything that replies may hold as a `Keep`."""
    kept_types: list[Any] = []
    for s in signatures(method).values():
        _beside_keep(s.reply, kept_types, set())
    return functools.reduce(operator.or_, kept_types) if kept_types else type(None)


def _beside_keep(of: Any, beside: list[Any], seen: set[Any]) -> None:
    of = _bare(of)
    if of in seen:  # a class may hold itself
        return
    seen.add(of)
    if get_origin(of) in _UNIONS:
        if Keep in map(_bare, get_args(of)):
            kept = [m for m in _members(of) if m not in (Held, type(None))]
            beside.extend(m for m in kept if m not in beside)
        parts = _members(of)
    elif is_record_type(of):
        parts = list(hints_of(of).values())
    else:
        parts = [a for a in get_args(of) if a is not Ellipsis] if get_origin(of) is not Literal else []
    for part in parts:
        _beside_keep(part, beside, seen)


def state_type(method: Any) -> Any:
    """Return the type of a method's state, from the annotation of `init`.

    Raises:
        ProtocolError: If `init` has no return annotation, or its type cannot be rebuilt from bytes.
    """
    hints = typing.get_type_hints(method.init, include_extras=True)
    if "return" not in hints:
        raise ProtocolError(f"{type(method).__name__}.init must be annotated with the type of the state it returns")
    _check(hints["return"], f"{type(method).__name__}.init", set())
    return hints["return"]


def memory_type(method: object) -> Any:
    """Return the type of the memory that a client keeps between rounds, None included; all steps must agree on it.

    Raises:
        ProtocolError: If two steps keep memory of different types.
    """
    kept: list[Any] = []
    for s in signatures(method).values():
        memory = s.memory | None  # a client has no memory before its first round, whatever its steps return
        if s.memory is not type(None) and memory not in kept:
            kept.append(memory)
    if len(kept) > 1:
        raise ProtocolError(
            f"steps of {type(method).__name__} keep different memories: {', '.join(map(str, kept))}; make them one"
        )
    return kept[0] if kept else type(None)
