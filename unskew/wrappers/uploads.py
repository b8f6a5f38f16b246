"""Wrappers of uploads: models and updates, changed as they leave a client and restored for the method.

A reply's type says which of its fields are uploads: `Model`, a trained model, or `Update`, already a difference
(`unskew.protocol`).  A wrapper gets all of them as differences from the model sent to the client, changes them, and may
send something else instead.  On the server the method gets its own reply again.  The rest of a reply stays as it is.  A
message with several tables of tensors marks that model by `Model`.

A wrapper that sends something else leaves out statistics of normalisation layers, which travel as they are.  A variance
that is rounded, or gets earlier remainders, may turn negative.  And statistics are measured anew each time, so no sum
of updates lacks a remainder.

Two such wrappers compose in either order: the first marks the numbers that it sends as an `Update`, and the second
changes those.
"""

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, get_args, get_origin

from torch import Tensor

from unskew.errors import ConfigError, ProtocolError, QuorumError, WireError
from unskew.protocol import Ask, ClientId, Collect, Federation, Layout, Me, Plan, Step, UploadMark, hook, steps_of
from unskew.reduction import Reduced, Within
from unskew.tree import Params, check_unchanged, form_of, hints_of, is_record, is_record_type, marks
from unskew.wrappers.base import (
    StepTypes,
    Wrapped,
    Wrapper,
    name_of,
    running,
    step_types,
    through,
    types_of,
)

M = TypeVar("M")
Names = tuple[tuple[int, ...], ...]
"""Numbers of each upload's parameters in the model's order, from 1: () for all, (0,) for none; of an upload that is not
a table, the sizes of its tensors."""

MARK_IT = "annotate the one that uploads are compared with as Model"
"""Remedy for a message that does not say which of its tables is the model sent."""


class Upload(NamedTuple):
    """A field of a reply that holds a model or an update: its path and which of the two."""

    path: tuple[str, ...]
    kind: Literal["model", "update"]


@dataclass(frozen=True)
class Residuals(Generic[M]):
    """A client's memory: the method's, and what each step's uploads left out so far, by upload and tensor.

    Attributes:
        of: The method's memory.
        residual: What is left out after the client's last upload.
        before: What was left out before it.
        number: Number of that upload, counting those that the server received; 0 is none.
    """

    of: M
    residual: dict[str, Params] = dataclasses.field(default_factory=dict)
    before: dict[str, Params] = dataclasses.field(default_factory=dict)
    number: int = 0

    def as_of(self, heard: int) -> dict[str, Params]:
        """Return what was left out after upload `heard`, the last that the server received."""
        return self.residual if heard == self.number else self.before


@dataclass(frozen=True)
class Receipt(Generic[M]):
    """The method's message, and how many of this client's uploads the server received."""

    of: M
    heard: int


@dataclass(frozen=True)
class Receipts(Generic[M]):
    """The method's state, and how many uploads were received of each client that sent any."""

    of: M
    heard: dict[int, int]


class UploadWrapper(Wrapper):
    """Base class of wrappers that change uploads.

    A wrapper that sends something else names it by `Reply`, a generic record.  Its fields are `of`, the method's reply
    with only buffers in its uploads, `names: Names`, and `sent`, what `encode` makes.  One that remembers what it
    leaves out has `Memory = Residuals`.  Its messages then say how many of the client's uploads were received, and a
    client whose last one was lost goes back to its earlier memory.

    A method whose clients remember what they sent (`amend`) learns what was sent instead, except from a wrapper with a
    `Memory`: there the rest arrives later.

    Attributes:
        honest: False if clients lie about what they know; the method's memory is then left alone.
    """

    adds_nothing = True
    one_by_one = True
    honest: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.Memory is not None:
            cls.Message, cls.State = Receipt, Receipts

    @abstractmethod
    def encode(self, me: Me, updates: Params, residual: Params | None) -> tuple[Any, Params]:
        """Change updates on a client.

        Args:
            me: The client.
            updates: Differences by upload and tensor, as in "0/fc.weight".
            residual: Sum of what this step's received uploads left out; None if nothing is remembered.

        Returns:
            What is sent, and the residual from now on; {} without a `Memory`.
        """

    def decode(self, sent: Any, like: Params) -> Params:
        """Turn what travelled back into updates; `like` has tensors of the same names, shapes and types.

        Raises:
            WireError: If it cannot stand for such updates.
        """
        updates: Params = sent
        return updates

    # ------------------------------------------------------------------ which steps
    def check(self, method: Any) -> None:
        """Refuse a method whose clients send neither models nor updates."""
        require_uploads(method, type(self).__name__)

    def check_around(self, method: Any, whole: Any) -> None:
        """Refuse a second wrapper that remembers what it leaves out: its entries change each round."""
        outer = whole.by if isinstance(whole, Wrapped) else self
        if self.Memory and outer is not self and isinstance(outer, UploadWrapper) and outer.Memory:
            raise ConfigError(
                f"{type(outer).__name__} around {type(self).__name__} would add what it left out of one round to "
                "other entries in the next; use one of them"
            )

    def applies_to(self, method: Any, name: str, types: StepTypes) -> bool:
        """True if a step sends models or updates."""
        return bool(uploads(types.reply))

    def permit(self, method: Any, request: Any, fed: Federation) -> None:
        """Refuse a request that sends clients no single model to take differences from."""
        if isinstance(request, Ask) and uploads_of(method, request.step):
            require_model(method, request, type(self).__name__)

    def init(self, method: Any, params: Params, fed: Federation) -> Any:
        """Return the method's state before round 1."""
        state = super().init(method, params, fed)
        return self.State(state, {}) if self.Memory else state

    # ------------------------------------------------------------------ on a client
    def work(
        self, method: Any, name: str, begin: Callable[..., Any], me: Me, msg: Any, memory: Any
    ) -> Step[tuple[Any, Any]]:
        """Run the method's step and change its uploads."""
        inner: Any = memory
        residuals: dict[str, Params] = {}
        if self.Memory:
            if memory is not None:
                inner, residuals = memory.of, memory.as_of(msg.heard)
            heard, msg = msg.heard, msg.of
        reply, kept = yield from running(begin(me, msg, inner))
        fields, model = uploads_of(method, name), sent_model(msg)
        if model is None:
            raise ProtocolError(
                f"step {name!r} of {name_of(method)} was sent no model to take differences from, or several tables of "
                f"tensors; {MARK_IT}"
            )
        updates = differences(fields, reply, model)
        if self.Reply is not None:
            updates = {key: u for key, u in updates.items() if key.partition("/")[2] not in me.layout.buffers}
        before, who = marks(updates), f"encode of {type(self).__name__}"
        encoded: Any = self.encode(me, updates, residuals.get(name))
        check_unchanged(before, updates, who, "the updates it is given")
        sent, residual = encoded
        if self.Reply is None and sent.keys() != updates.keys():
            odd = ", ".join(sorted(sent.keys() ^ updates.keys()))
            raise ProtocolError(f"{who} must return an update for each that it is given, and differs in {odd}")
        if self.Reply is None and (unlike := first_unlike(sent, updates)):
            raise ProtocolError(f"{who} must return updates of the shapes and types that it is given: {unlike}")
        if self.Reply is None:
            # What is not changed stays the same bits: a model minus another plus that one is not always itself.
            arrives = answer = reply if sent is updates else with_updates(fields, reply, model, sent)
        else:
            answer = self.Reply(emptied(fields, reply, me.layout.buffers), names_of(fields, reply, me.layout), sent)
            arrives = None
        if self.Memory:
            return answer, self.Memory(kept, {**residuals, name: residual}, residuals, heard + 1)
        amend = hook(method, "amend")
        if amend is not None and self.honest and arrives is not reply:
            if arrives is None:
                arrives = self.restored(fields, answer, model, me.layout)
            kept = amend(name, me, msg, reply, arrives, kept)
        return answer, kept

    def amend(self, method: Any, name: str, me: Me, msg: Any, reply: Any, sent: Any, memory: Any) -> Any:
        """Return a client's memory of a reply that an outer wrapper changed in coded form."""
        fields = uploads_of(method, name)
        msg = msg.of if self.Memory and fields else msg
        if self.Reply is not None and fields:
            model = sent_model(msg) or {}
            reply, sent = (self.restored(fields, r, model, me.layout) for r in (reply, sent))
        kept = hook(method, "amend")(name, me, msg, reply, sent, memory.of if self.Memory else memory)
        return replace(memory, of=kept) if self.Memory else kept

    # ------------------------------------------------------------------ on the server
    def round(self, method: Any, state: Any, fed: Federation) -> Plan[Any]:
        """Run the method's round on its own replies; clients with a memory hear how many of theirs came."""
        heard = dict(state.heard) if self.Memory else {}

        def change_request(request: Any) -> Any:
            if not isinstance(request, Ask) or not (fields := uploads_of(method, request.step)):
                return request
            to, reduce = request.to, request.reduce
            if self.Memory:
                alike: dict[tuple[int, int], Any] = {}  # what many clients are sent stays one object
                to = {
                    c: alike.setdefault((id(m), heard.get(c, 0)), self.Message(m, heard.get(c, 0)))
                    for c, m in request.to.items()
                }
            if self.Reply is not None:

                def restored(client: ClientId, reply: Any) -> Any:
                    return self.restored(fields, reply, sent_model(request.to[client]) or {}, fed.layout)

                reduce = tuple(Within(r, restored) for r in request.reduce)
            return replace(request, to=to, reduce=reduce)

        def change_answer(request: Any, got: Any) -> Any:
            if not isinstance(request, Ask) or not (fields := uploads_of(method, request.step)):
                return got
            replies = got.replies if isinstance(got, Reduced) else got
            heard.update({c: heard.get(c, 0) + 1 for c in replies})
            if self.Reply is None:
                return got
            if isinstance(got, Reduced):
                return replace(got, replies={c: reply.of for c, reply in replies.items()})
            return {
                c: self.restored(fields, reply, sent_model(request.to[c]) or {}, fed.layout)
                for c, reply in replies.items()
            }

        plan = method.round(state.of if self.Memory else state, fed)
        try:
            new = yield from through(plan, change_request, change_answer)
        except QuorumError as error:
            if self.Memory and error.state is not None:  # clients forget the round, so that what they heard stays
                error.state = replace(state, of=error.state)
            raise
        return self.State(new, heard) if self.Memory else new

    def restored(self, fields: tuple[Upload, ...], reply: Any, model: Params, layout: Layout) -> Any:
        """Make the method's reply from what travelled.

        Raises:
            WireError: If it makes none.
        """
        like = shapes(fields, reply, model, layout)
        updates = self.decode(reply.sent, like)
        if unlike := first_unlike(updates, like):  # it would be stretched to the model's shape
            raise WireError(f"decode of {type(self).__name__} must return updates of the shapes of `like`: {unlike}")
        return with_updates(fields, reply.of, model, updates)

    def validate_reply(self, method: Any, step: str, reply: Any, model: Params, layout: Layout) -> None:
        """Refuse a reply that cannot be restored, or that the method then refuses."""
        fields = uploads_of(method, step)
        if self.Reply is not None and fields:
            reply = self.restored(fields, reply, model, layout)
        validate = hook(method, "validate_reply")
        if validate is not None:
            validate(step, reply, model, layout)


# ---------------------------------------------------------------- uploads in a reply, the model in a message
def fields_of(of: Any, path: tuple[str, ...] = (), sealed: bool = True) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path and type of each field of a record's type, and of records in it, perhaps but for `sealed` ones."""
    if is_record_type(of) and (sealed or not getattr(of, "sealed", False)):
        for name, hint in hints_of(of).items():
            yield (*path, name), hint
            yield from fields_of(hint, (*path, name), sealed)


def uploads(reply: Any) -> tuple[Upload, ...]:
    """Find the uploads in a type of reply and its nested records; none in a `sealed` one."""
    marks = ((path, _mark(hint)) for path, hint in fields_of(reply, sealed=False))
    return tuple(Upload(path, mark.kind) for path, mark in marks if mark is not None)


def uploads_of(method: Any, name: str) -> tuple[Upload, ...]:
    """Find the uploads in the reply of a method's step."""
    types = step_types(steps_of(method)[name])
    return () if types is None else uploads(types.reply)


def require_uploads(method: Any, who: str) -> None:
    """Refuse a method whose clients send neither models nor updates.

    Raises:
        ConfigError: If so.
    """
    if not any(uploads(types.reply) for types in types_of(method).values()):
        raise ConfigError(
            f"{who} needs the models or updates that clients send, and {name_of(method)} marks none in its clients' "
            "replies; leave it out"
        )


def require_model(method: Any, request: Ask, who: str) -> None:
    """Refuse a request whose messages have no model to take differences from.

    Raises:
        ConfigError: If so.
    """
    if any(sent_model(message) is None for message in request.to.values()):
        raise ConfigError(
            f"{who} needs one model that clients are sent, and step {request.step!r} of {name_of(method)} sends none, "
            f"or several tables of tensors; {MARK_IT}, or leave {who} out"
        )


def in_one_mean(method: Any, request: Any, who: str) -> tuple[Upload, ...]:
    """Find the uploads that a request asks for; refuse anything but means and sums of all of them.

    Raises:
        ConfigError: If so, or if there is no model to take differences from.
    """

    def refuse(why: str) -> ConfigError:
        return ConfigError(f"{who} needs means of all clients' uploads, and {name_of(method)} {why}; leave {who} out")

    if isinstance(request, Collect):
        raise refuse("collects models that clients held")
    if not isinstance(request, Ask) or not (fields := uploads_of(method, request.step)):
        return ()
    if not request.reduce:
        raise refuse(f"looks at each reply to step {request.step!r} by itself")
    if any(map(grouped, request.reduce)):
        raise refuse(f"takes one for each group in step {request.step!r}, where one client may be the majority")
    require_model(method, request, who)
    return fields


def grouped(reduction: Any) -> bool:
    """True if a reduction, or one inside it, gives a result for each group of clients."""
    while isinstance(reduction, Within):
        reduction = reduction.reduction
    inside = getattr(reduction, "reductions", ())
    return any(map(grouped, inside)) or getattr(reduction, "by", None) is not None


def sent_model(message: Any) -> Params | None:
    """Find the model in a message: its table of tensors that is marked `Model`, or its only one, at any depth.

    None if there is no model, or several tables without exactly one marked: their order says nothing.
    """
    if isinstance(message, dict):
        return message if _is_table(message) else None
    tables = list(_tables(message))
    marked = [table for table, is_model in tables if is_model]
    (table, *others) = marked or [table for table, _ in tables] or [None]
    return table if _is_table(table) and not others else None


def _tables(record: Any) -> Iterator[tuple[Any, bool]]:
    """Yield what is in a record's fields for tables of tensors, and whether it is marked `Model`."""
    if not is_record(record):
        return
    of: Any = type(record)
    for name, hint in hints_of(of).items():
        value, mark = getattr(record, name), _mark(hint)
        if mark is not None or _is_table(value) or any(map(_is_table_type, (hint, *get_args(hint)))):
            yield value, mark == UploadMark("model")
        else:
            yield from _tables(value)


def _mark(hint: Any) -> UploadMark | None:
    members = (hint, *get_args(hint))
    return next((x for m in members for x in getattr(m, "__metadata__", ()) if isinstance(x, UploadMark)), None)


def _is_table_type(hint: Any) -> bool:
    return get_origin(hint) is dict and get_args(hint)[1] is Tensor


def has_table(hint: Any, outer: tuple[Any, ...] = ()) -> bool:
    """True if a type's value may hold a table of tensors by name or number, at any depth; `outer` were already seen."""
    if hint in outer:  # a record may hold itself
        return False
    inner = (*hints_of(hint).values(),) if is_record_type(hint) else get_args(hint)
    values = get_args(hint)[1:] if get_origin(hint) is dict else ()
    tables = any(v is Tensor or hasattr(v, "dim_str") for v in values)
    return tables or any(has_table(part, (*outer, hint)) for part in inner)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(isinstance(t, Tensor) for t in value.values())


def at(record: Any, path: tuple[str, ...]) -> Any:
    """Return the value at a path."""
    for name in path:
        record = getattr(record, name)
    return record


def put(record: Any, path: tuple[str, ...], value: Any) -> Any:
    """Return the record with another value at a path."""
    name, *rest = path
    return replace(record, **{name: put(getattr(record, name), tuple(rest), value) if rest else value})


def differences(fields: tuple[Upload, ...], reply: Any, model: Params) -> Params:
    """Collect all uploads of a reply as differences from the model sent, by upload and tensor."""
    updates: Params = {}
    for i, field in enumerate(fields):
        value = at(reply, field.path)
        if isinstance(value, dict):
            for name in sorted(value):
                t = value[name]
                updates[f"{i}/{name}"] = t - model[name] if field.kind == "model" else t
        elif value is not None:
            updates |= {f"{i}/{j}": t for j, t in enumerate(value)}
    return updates


def with_updates(fields: tuple[Upload, ...], reply: Any, model: Params, updates: Params) -> Any:
    """Return the reply with these differences in its uploads, all else kept; the inverse of `differences`."""
    for i, field in enumerate(fields):
        value = at(reply, field.path)
        new = {key.partition("/")[2]: u for key, u in updates.items() if key.startswith(f"{i}/")}
        if isinstance(value, dict):  # in the model's order, as the method had it
            changed = {n: t + new[n] if field.kind == "model" else new[n] for n, t in model.items() if n in new}
            reply = put(reply, field.path, {n: t for n in model if (t := changed.get(n, value.get(n))) is not None})
        elif value is not None:
            reply = put(reply, field.path, tuple(new.values()))
    return reply


def first_unlike(got: Params, like: Params) -> str | None:
    """Describe the first tensor whose shape or type differs from its like; None if none does.

    A smaller one would be broadcast when added to a model, so nobody would notice.
    """
    odd = next((n for n, t in got.items() if n in like and form_of(t) != form_of(like[n])), None)
    return None if odd is None else f"{odd} is {form_of(like[odd])}, got {form_of(got[odd])}"


def emptied(fields: tuple[Upload, ...], reply: Any, but: Collection[str] = ()) -> Any:
    """Return the reply with only the named tensors in its uploads."""
    for field in fields:
        value = at(reply, field.path)
        if value is not None:
            left = {n: t for n, t in value.items() if n in but} if isinstance(value, dict) else ()
            reply = put(reply, field.path, left)
    return reply


def names_of(fields: tuple[Upload, ...], reply: Any, layout: Layout) -> Names:
    """Name each upload's parameters; () is all of the model's, so it costs nothing in most methods."""
    places = {name: i for i, name in enumerate(layout.trainable, start=1)}
    described: list[tuple[int, ...]] = []
    for field in fields:
        value = at(reply, field.path)
        if isinstance(value, dict):
            which = tuple(places[name] for name in sorted(value) if name in places)
            described.append(() if len(which) == len(places) else which or (0,))
        else:
            described.append(() if value is None else tuple(len(t) for t in value))
    return tuple(described)


def shapes(fields: tuple[Upload, ...], reply: Any, model: Params, layout: Layout) -> Params:
    """Return tensors like a reply's updates, without memory of their own.

    Raises:
        WireError: If its names fit no upload of this model.
    """
    order = layout.trainable
    if len(reply.names) != len(fields):
        raise WireError(f"expected the tensors of {len(fields)} uploads, got {len(reply.names)}")
    like: Params = {}
    for i, (field, which) in enumerate(zip(fields, reply.names, strict=True)):
        value = at(reply.of, field.path)
        if isinstance(value, dict):
            if any(n not in layout.buffers or n not in model or t.shape != model[n].shape for n, t in value.items()):
                raise WireError("an upload may keep only buffers of the model that was sent")
            chosen = () if which == (0,) else tuple(n - 1 for n in which) or tuple(range(len(order)))
            if len(set(chosen)) < len(chosen) or any(not 0 <= n < len(order) or order[n] not in model for n in chosen):
                raise WireError("an upload must have tensors of the model that was sent, each once")
            like |= {f"{i}/{name}": model[name] for name in sorted(order[n] for n in chosen)}
        elif value is not None:
            largest = sum(t.numel() for t in model.values())
            if any(n < 0 for n in which) or sum(which) > largest:
                raise WireError(f"an upload must have 0 to {largest} numbers, got {sum(which)}")
            like |= {f"{i}/{j}": next(iter(model.values())).new_empty(1).expand(n) for j, n in enumerate(which)}
    return like
