"""Messages as bytes, and what they weigh.

A message is a tree of frozen dataclasses, dictionaries, tuples, tensors and scalars.  On the wire it is one safetensors
file: tensors under their path, everything else as compact JSON in the file's metadata.  Decoding is driven by the
*type* a step's signature names, never by what the bytes claim to be: no other class can be built, no code can run.
State and client memory are saved in the same form.

`nbytes` is the exact length of `encode`, computed without copying a tensor; the ledger is made of it.
"""

import collections.abc
import dataclasses
import json
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import safetensors.torch
import torch
from torch import Tensor

from unskew.errors import ProtocolError, WireError
from unskew.protocol import Held, Keep, steps_of

_META = "unskew"
_DTYPES: dict[torch.dtype, str] = {
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
# The order in which safetensors lays tensors out: widest elements first, its enum's order within, then by name.
_RANK = {n: i for i, n in enumerate(["I64", "F64", "F32", "I32", "BF16", "F16", "I16", "I8", "U8", "BOOL"])}


# ---------------------------------------------------------------- value -> (tensors, JSON)
def _flatten(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """The JSON part of `value`; its tensors are put into `tensors` under their paths."""
    if isinstance(value, Tensor):
        if value.dtype not in _DTYPES:
            raise WireError(f"a tensor of {value.dtype} cannot travel (at {path or 'top'}); use one of {list(_DTYPES)}")
        tensors[path] = value
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        # A plain copy: torch.frombuffer would warn about read-only memory.
        tensors[path] = torch.tensor(list(value), dtype=torch.uint8)
        return None
    if isinstance(value, Held):
        return [value.owner, value.key]
    if isinstance(value, Keep):
        raise WireError(f"a Keep reached the wire (at {path or 'top'}); only a step's reply may hold one")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {f.name: _flatten(getattr(value, f.name), _join(path, f.name), tensors) for f in fields}
    if isinstance(value, dict):
        if value and all(isinstance(v, Tensor) for v in value.values()):
            for k, v in value.items():
                _flatten(v, _join(path, k), tensors)
            return list(value)  # safetensors reorders; sums over a table must not depend on whether it travelled
        return {str(k): _flatten(v, _join(path, k), tensors) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_flatten(v, _join(path, i), tensors) for i, v in enumerate(value)]
    raise WireError(
        f"{type(value).__name__} cannot travel (at {path or 'top'}); use dataclasses, tuples, tensors, scalars"
    )


def _join(path: str, part: object) -> str:
    return f"{path}/{part}" if path else str(part)


def _json(body: Any) -> str:
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False)


def encode(value: Any) -> bytes:
    """The message as bytes; a message without content is no bytes at all.

    Raises:
        WireError: If something in it cannot travel.
    """
    tensors: dict[str, Tensor] = {}
    body = _flatten(value, "", tensors)
    if not tensors and not body and (body is None or body == {}):
        return b""
    return bytes(safetensors.torch.save(_alone(tensors), metadata={_META: _json(body)}))


def _alone(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, dense, none sharing memory with another: safetensors refuses views."""
    out: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, t in tensors.items():
        t = t.detach().cpu().contiguous()
        storage = t.untyped_storage()
        if storage.nbytes() != t.numel() * t.element_size() or storage.data_ptr() in seen:
            t = t.clone()
        seen.add(t.untyped_storage().data_ptr())
        out[name] = t
    return out


def nbytes(value: Any) -> int:
    """`len(encode(value))`, without encoding."""
    tensors: dict[str, Tensor] = {}
    body = _flatten(value, "", tensors)
    if not tensors and not body and (body is None or body == {}):
        return 0
    parts = [f'"__metadata__":{_json({_META: _json(body)})}']
    offset = 0
    for name, t in sorted(tensors.items(), key=lambda item: (_RANK[_DTYPES[item[1].dtype]], item[0])):
        end = offset + t.numel() * t.element_size()
        shape = ",".join(map(str, t.shape))
        parts.append(
            f'{_json(name)}:{{"dtype":"{_DTYPES[t.dtype]}","shape":[{shape}],"data_offsets":[{offset},{end}]}}'
        )
        offset = end
    header = len(("{" + ",".join(parts) + "}").encode())
    return 8 + header + (-header % 8) + offset


def kind(value: Any) -> Literal["model", "control"]:
    """What the ledger calls it: "model" if it carries parameters by name, else "control"."""
    if isinstance(value, dict):
        if value and all(isinstance(v, Tensor) for v in value.values()):
            return "model"
        return _kind(value.values())
    if isinstance(value, tuple | list):
        return _kind(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _kind(getattr(value, f.name) for f in dataclasses.fields(value))
    return "control"


def _kind(parts: collections.abc.Iterable[Any]) -> Literal["model", "control"]:
    return "model" if any(kind(p) == "model" for p in parts) else "control"


# ---------------------------------------------------------------- bytes -> value of a given type
def decode(data: bytes, of: Any, max_bytes: int | None = None) -> Any:
    """The value of type `of` that `data` holds.

    Args:
        data: What `encode` made; untrusted.
        of: A type as annotations write it: dataclass, dict[str, Tensor], tuple[int, ...], Tensor | None, ...
        max_bytes: Refuse longer messages before looking at them.

    Raises:
        WireError: If the bytes are not exactly such a value.
    """
    if max_bytes is not None and len(data) > max_bytes:
        raise WireError(f"message of {len(data)} bytes exceeds the {max_bytes} allowed")
    tensors: dict[str, Tensor] = {}
    body: Any = None
    if data:
        try:
            tensors = safetensors.torch.load(data)
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            body = json.loads(header["__metadata__"][_META])
        except Exception as error:  # the parsers raise many kinds; to us they are one
            raise WireError(f"{len(data)} bytes are not a message: {type(error).__name__}: {error}") from None
    for name, t in tensors.items():
        if t.dtype not in _DTYPES:
            raise WireError(f"tensor {name} of {t.dtype} is not accepted; {list(_DTYPES.values())} are")
    loose = dict(tensors)
    try:
        value = _build(of, body, "", loose)
    except RecursionError:
        raise WireError("message is nested too deeply") from None
    if loose:
        raise WireError(f"message has tensors its type does not name: {', '.join(sorted(loose)[:5])}")
    return value


def _build(of: Any, body: Any, path: str, loose: dict[str, Tensor]) -> Any:
    origin, args = get_origin(of), get_args(of)
    if origin is Annotated:
        return _build(args[0], body, path, loose)
    if isinstance(of, typing.NewType):
        return _build(of.__supertype__, body, path, loose)
    if origin is Union or origin is types.UnionType:
        return _build(_choose([a for a in args if a is not Keep], body, path, loose), body, path, loose)
    if origin is Literal:
        if body not in args or not any(type(body) is type(a) for a in args):
            raise _wrong(f"one of {args}", body, path)
        return body
    if of is None or of is type(None):
        if body is not None and not (body == {} and not path):
            raise _wrong("nothing", body, path)
        return None
    if of is Held:
        if not (isinstance(body, list) and len(body) == 2 and type(body[0]) is int and isinstance(body[1], str)):
            raise _wrong("a held value", body, path)
        return Held(body[0], body[1])
    if _is_tensor(of):
        return _claim(of, body, path, loose)
    if of is bytes:
        return _claim(Tensor, body, path, loose).to(torch.uint8).numpy().tobytes()
    if isinstance(of, type) and dataclasses.is_dataclass(of):
        return _build_record(of, body, path, loose)
    if origin in (dict, collections.abc.Mapping):
        return _build_dict(args, body, path, loose)
    if origin in (tuple, list, collections.abc.Sequence):
        if not isinstance(body, list):
            raise _wrong("a list", body, path)
        if origin is tuple and args[-1] is not Ellipsis:
            if len(args) != len(body):
                raise WireError(f"expected {len(args)} entries at {path or 'top'}, got {len(body)}")
            return tuple(_build(a, b, _join(path, i), loose) for i, (a, b) in enumerate(zip(args, body, strict=True)))
        values = [_build(args[0], b, _join(path, i), loose) for i, b in enumerate(body)]
        return values if origin is list else tuple(values)
    if of is float and type(body) is int:
        return float(body)
    if of in (int, float, str, bool):
        if type(body) is not of:
            raise _wrong(of.__name__, body, path)
        return body
    raise ProtocolError(f"the wire cannot build {of} (at {path or 'top'}); annotate with a concrete type")


def _build_record(of: type, body: Any, path: str, loose: dict[str, Tensor]) -> Any:
    hints = typing.get_type_hints(of, include_extras=True)
    names = [f.name for f in dataclasses.fields(of)]
    if body is None and not names:
        return of()
    if not isinstance(body, dict) or set(body) != set(names):
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
    key, of = args
    if _is_tensor(of) and body != {}:
        if not isinstance(body, list) or not all(isinstance(n, str) for n in body):
            raise _wrong("a list of tensor names", body, path)
        return {n: _claim(of, None, _join(path, n), loose) for n in body}
    if not isinstance(body, dict):
        raise _wrong("a table", body, path)
    try:
        return {key(k): _build(of, v, _join(path, k), loose) for k, v in body.items()}
    except ValueError:
        raise _wrong(f"keys of {key.__name__}", sorted(body)[:5], path) from None


def _choose(options: list[Any], body: Any, path: str, loose: dict[str, Tensor]) -> Any:
    """The member of a union that this JSON can be: the first that fits, absence last."""
    for of in options:
        if of is not type(None) and _fits(of, body, path, loose):
            return of
    if body is None and type(None) in options:
        return type(None)
    raise _wrong(f"one of {[getattr(o, '__name__', str(o)) for o in options]}", body, path)


def _fits(of: Any, body: Any, path: str, loose: dict[str, Tensor]) -> bool:
    origin = get_origin(of)
    if body is None:
        return (_is_tensor(of) or of is bytes) and path in loose
    if of is Held:
        return isinstance(body, list) and len(body) == 2 and isinstance(body[1], str)
    if isinstance(of, type) and dataclasses.is_dataclass(of):
        return isinstance(body, dict) and set(body) == {f.name for f in dataclasses.fields(of)}
    if origin is dict:
        named = _is_tensor(get_args(of)[1]) and isinstance(body, list) and all(isinstance(n, str) for n in body)
        return isinstance(body, dict) or named
    if origin in (tuple, list):
        return isinstance(body, list)
    return type(body) is of or (of is float and type(body) is int)


def _claim(of: Any, body: Any, path: str, loose: dict[str, Tensor]) -> Tensor:
    if body is not None or path not in loose:
        raise _wrong("a tensor", body, path)
    value = loose.pop(path)
    if of is not Tensor and not isinstance(value, of):  # jaxtyping: element type and number of dimensions
        raise WireError(f"tensor at {path or 'top'} must be {of.__name__}, got {value.dtype} {tuple(value.shape)}")
    return value


def _is_tensor(of: Any) -> bool:
    return isinstance(of, type) and (issubclass(of, Tensor) or getattr(of, "array_type", None) is Tensor)


def _wrong(expected: str, got: Any, path: str) -> WireError:
    text = repr(got)
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
        ProtocolError: If it is not `(self, me: Me, msg: M, mine: L | None) -> Step[tuple[R, L | None]]`.
    """
    hints = typing.get_type_hints(step, include_extras=True)
    returns = hints.pop("return", None)
    parameters = list(hints.values())
    if get_origin(returns) is collections.abc.Generator:
        returns = get_args(returns)[2]
    if len(parameters) != 3 or get_origin(returns) is not tuple or len(get_args(returns)) != 2:
        raise ProtocolError(
            f"step {getattr(step, '__qualname__', step)} must be annotated as "
            "(self, me: Me, msg: M, mine: L | None) -> Step[tuple[R, L | None]]"
        )
    return Signature(parameters[1], get_args(returns)[0], get_args(returns)[1])


def signatures(algorithm: object) -> dict[str, Signature]:
    """The types of every step of an algorithm, by name."""
    return {name: signature(fn) for name, fn in steps_of(algorithm).items()}


def state_type(algorithm: Any) -> Any:
    """The type of an algorithm's state, as `init` is annotated.

    Raises:
        ProtocolError: If `init` has no return annotation.
    """
    hints = typing.get_type_hints(algorithm.init, include_extras=True)
    if "return" not in hints:
        raise ProtocolError(f"{type(algorithm).__name__}.init must be annotated with the type of the state it returns")
    return hints["return"]


def memory_type(algorithm: object) -> Any:
    """The type of what a client remembers between rounds; the steps must agree on it.

    Raises:
        ProtocolError: If two steps keep different things.
    """
    kept = {str(s.memory): s.memory for s in signatures(algorithm).values() if s.memory is not type(None)}
    if len(kept) > 1:
        raise ProtocolError(
            f"steps of {type(algorithm).__name__} keep different memories: {', '.join(kept)}; make them one"
        )
    return next(iter(kept.values()), type(None))
