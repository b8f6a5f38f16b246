"""Wrappers: values that change any method by intercepting its requests, its messages and its clients' steps.

    us.wrap(SCAFFOLD(), DW(mu=0.1), ClipNorm(1.0))

is SCAFFOLD with the class-relation term, its replies then clipped.  The first wrapper is next to the method; each later
one sees a method already wrapped.  Order matters: clipping before noise differs from noise before clipping.

A wrapper is a frozen dataclass; its fields are its settings.  It overrides any of

    init(method, params, fed)                    the state before round 1
    round(method, state, fed)                    the plan of a round
    work(method, name, begin, me, msg, memory)   a client's step
    client(method, me)                           a client's view of itself
    server(method, fed)                          the server's view of the federation

where `method` is the one it wraps.  To add to the method's message, reply, state or memory, it names a record that
holds the method's in a field `of`:

    @dataclass(frozen=True)
    class Informed(Generic[M]):
        of: M
        temperature: float

in its class attribute `Message`, `Reply`, `State` or `Memory`; None adds nothing.

Whatever a wrapper's `check`, `check_around` or `permit` refuses, it refuses by a ConfigError.

A wrapper may also define `serve` and any optional hook, with `method` as the first argument.  All others are the
method's own, called with the method's records, clients and federations in place of the wrapper's.  This includes hooks
added later.
"""

import functools
import types
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Optional, get_args, get_origin, get_type_hints

from unskew.errors import ConfigError, ProtocolError
from unskew.protocol import Federation, Me, Plan, Step, hook, personalise_of, step, steps_of
from unskew.tree import Params

CLAIMS = ("has_dp_noise", "weighting", "covers_examples", "covers_replies", "uses_private_randomness")
"""Attributes of a method that a wrapper may have as functions of the method; all others are the method's own."""


@dataclass(frozen=True)
class StepTypes:
    """A step's types, from its annotations.

    Attributes:
        message, memory, reply, kept: Types of its message, memory, reply and new memory.
        works: True for a generator, which may train; False if it only computes an answer.
    """

    message: Any
    memory: Any
    reply: Any
    kept: Any
    works: bool


class Wrapper:
    """Base class of wrappers; changes nothing.

    Attributes:
        Message, Reply, State, Memory: Generic records that hold the method's in a field `of`; None adds nothing.
        adds_nothing: True if it reveals nothing that does not follow from what the wrapped method reveals, so the
            method's own noise covers it.
        one_by_one: True if it changes each reply on its own.
        on_server: True if it changes uploads on the server, unseen by clients.
    """

    adds_nothing: ClassVar[bool] = False
    one_by_one: ClassVar[bool] = False
    on_server: ClassVar[bool] = False
    Message: ClassVar[Any] = None
    Reply: ClassVar[Any] = None
    State: ClassVar[Any] = None
    Memory: ClassVar[Any] = None

    def check(self, method: Any) -> None:
        """Refuse a method that cannot have this wrapper.

        Raises:
            ConfigError: If so.
        """

    def check_around(self, method: Any, whole: Any) -> None:
        """Refuse combinations with later wrappers; `whole` is the method with all of them.

        Raises:
            ConfigError: If so.
        """

    def applies_to(self, method: Any, name: str, types: StepTypes) -> bool:
        """True if `work` replaces a step; by default every step that may train."""
        return types.works

    def permit(self, method: Any, request: Any, fed: Federation) -> None:
        """Refuse a request of a plan, or None; `init` tries the first one, before any work."""

    def init(self, method: Any, params: Params, fed: Federation) -> Any:
        """Return the state before round 1."""
        view = self.server(method, fed)
        state = method.init(params, view)
        if type(self).permit is not Wrapper.permit:
            self.permit(method, first_request(method, state, view), view)
        return state

    def round(self, method: Any, state: Any, fed: Federation) -> Plan[Any]:
        """Run the method's round."""
        return (yield from method.round(state, self.server(method, fed)))

    def work(
        self, method: Any, name: str, begin: Callable[..., Any], me: Me, msg: Any, memory: Any
    ) -> Step[tuple[Any, Any]]:
        """Run the method's step, `begin(me, msg, memory)`."""
        answer: tuple[Any, Any] = yield from running(begin(self.client(method, me), msg, memory))
        return answer

    def amend(self, method: Any, name: str, me: Me, msg: Any, reply: Any, sent: Any, memory: Any) -> Any:
        """Return a client's memory, amended for a reply that an outer wrapper changed."""
        msg = msg.of if self.Message and isinstance(msg, self.Message) else msg
        reply, sent = (r.of if self.Reply and isinstance(r, self.Reply) else r for r in (reply, sent))
        kept = memory.of if self.Memory else memory
        kept = hook(method, "amend")(name, self.client(method, me), msg, reply, sent, kept)
        return replace(memory, of=kept) if self.Memory else kept

    def remember(self, memory: Any, kept: Any) -> Any:
        """Return a client's memory after a step that this wrapper leaves alone: its own fields stay."""
        return self.Memory(kept) if memory is None else replace(memory, of=kept)

    def steps(self, method: Any) -> dict[str, Callable[..., Any]]:
        """Return the wrapper's own steps by name, annotated as a method's; they get the wrapper's memory."""
        return {}

    def client(self, method: Any, me: Me) -> Me:
        """Return a client's view of itself, as the method sees it."""
        return me

    def server(self, method: Any, fed: Federation) -> Federation:
        """Return the view of the federation, as the method sees it."""
        return fed

    def covers_replies(self, method: Any) -> bool:
        """True if clients' own noise covers all of their replies, and this wrapper adds nothing."""
        return self.adds_nothing and bool(hook(method, "covers_replies"))


@dataclass(frozen=True)
class Wrapped:
    """A method with a wrapper; made by `wrap`.

    Attributes:
        of: The method.
        by: The wrapper.

    Raises:
        ConfigError: If the method cannot have the wrapper.
        ProtocolError: If the method does not annotate its state.
    """

    of: Any
    by: Wrapper

    def __post_init__(self) -> None:
        if "return" not in get_type_hints(self.of.init, include_extras=True):
            kind = type(self.of).__name__
            raise ProtocolError(f"{kind}.init must be annotated with the type of the state it returns")
        by = self.by
        one_each = by.one_by_one and not (by.Message or by.Reply or hook(self, "has_dp_noise"))
        if hook(self.of, "as_they_come") and not one_each:  # noise is accounted for by round
            raise ConfigError(f"{name_of(self.of)} takes replies as they come; leave {type(by).__name__} out")
        by.check(self.of)
        for inside in layers(self.of):
            inside.by.check_around(inside.of, self)

    @functools.cached_property
    def wrapped_steps(self) -> dict[str, Callable[..., Any]]:
        """The steps by name."""
        return {name: self._step(name, begin) for name, begin in steps_of(self.of).items()} | self.by.steps(self.of)

    @functools.cached_property
    def init(self) -> Callable[[Params, Federation], Any]:
        """The function that returns the state before round 1, annotated with its type."""

        def init(params: Params, fed: Federation) -> Any:
            return self.by.init(self.of, params, fed)

        state = get_type_hints(self.of.init, include_extras=True)["return"]
        init.__annotations__ |= {"return": self.by.State[state] if self.by.State else state}
        return init

    def round(self, state: Any, fed: Federation) -> Plan[Any]:
        """Run one round."""
        return self.by.round(self.of, state, fed)

    @property
    def amend(self) -> Callable[..., Any] | None:
        """The function that makes a client remember the reply as an outer wrapper changed it; None if there is none."""
        return None if hook(self.of, "amend") is None else functools.partial(self.by.amend, self.of)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in CLAIMS:
            claim = getattr(self.by, name, None)
            return hook(self.of, name) if claim is None else claim(self.of)
        if name in (steps := self.wrapped_steps):
            return steps[name]
        value = personalise_of(self.of) if name == "personalise" else getattr(self.of, name, None)
        own = getattr(self.by, name, None)
        if callable(own) and not hasattr(Wrapper, name) and (value is not None or name != "personalise"):
            return functools.partial(own, self.of)
        if value is None and (name == "personalise" or not hasattr(self.of, name)):
            raise AttributeError(f"{name_of(self)} has no {name}")
        hooks = (types.MethodType, types.FunctionType, functools.partial)  # the last is a hook of a wrapper inside
        return self._handed_on(value) if isinstance(value, hooks) else value

    def _handed_on(self, own: Callable[..., Any]) -> Callable[..., Any]:
        """Return a hook of the method that takes the wrapper's state, memory, messages, client or federation."""
        by = self.by
        records = tuple(record for record in (by.State, by.Memory, by.Message, by.Reply) if record is not None)

        def inside(value: Any) -> Any:
            if isinstance(value, records):
                return value.of
            if isinstance(value, Me):
                return by.client(self.of, value)
            return by.server(self.of, value) if isinstance(value, Federation) else value

        @functools.wraps(own)
        def handed_on(*args: Any, **kwargs: Any) -> Any:
            return own(*map(inside, args), **{name: inside(value) for name, value in kwargs.items()})

        return handed_on

    # ------------------------------------------------------------------ steps
    def _step(self, name: str, begin: Callable[..., Any]) -> Callable[..., Any]:
        """Make the step that stands for one of the method's, annotated with the types that travel."""
        by, own = self.by, step_types(begin)
        if own is None:  # the wire will say what is wrong with it
            return begin
        applied = by.applies_to(self.of, name, own)

        def run(me: Me, msg: Any, memory: Any) -> Step[tuple[Any, Any]]:
            return (yield from by.work(self.of, name, begin, me, msg, memory))

        def pass_on(me: Me, msg: Any, memory: Any) -> Any:
            inner = memory.of if by.Memory and memory is not None else memory
            answer = begin(by.client(self.of, me), msg, inner)
            return self._kept(answer, memory) if by.Memory else answer

        message, reply, kept, memory = own.message, own.reply, own.kept, own.memory
        if applied:
            message = by.Message[message] if by.Message else message
            reply = by.Reply[reply] if by.Reply else reply
        if by.Memory:
            kept = memory = by.Memory[Optional[kept]] | None  # noqa: UP045  # None | None is no type
        return as_step(run if applied else pass_on, name, StepTypes(message, memory, reply, kept, applied or own.works))

    def _kept(self, answer: Any, memory: Any) -> Any:
        """Put what a step that this wrapper leaves alone remembers into the wrapper's memory."""

        def with_own(result: tuple[Any, Any]) -> tuple[Any, Any]:
            reply, kept = result
            return reply, self.by.remember(memory, kept)

        if not isinstance(answer, types.GeneratorType):
            return with_own(answer)

        def run() -> Step[tuple[Any, Any]]:
            return with_own((yield from answer))

        return run()


def wrap(method: Any, *wrappers: Wrapper) -> Any:
    """Wrap a method: the first wrapper is next to it, the last is outermost.

    Raises:
        ConfigError: If an argument is no wrapper, or the method cannot have it.
        ProtocolError: If the method does not annotate its state.
    """
    for by in wrappers:
        if not isinstance(by, Wrapper):
            raise ConfigError(
                f"expected a wrapper after the method, got {type(by).__name__}; see: unskew list wrappers"
            )
        method = Wrapped(method, by)
    return method


def layers(method: Any) -> Iterator[Wrapped]:
    """Yield a method's wrapped forms, from the outermost in."""
    while isinstance(method, Wrapped):
        yield method
        method = method.of


def name_of(method: Any) -> str:
    """Return a method's name for messages, with its wrappers."""
    if isinstance(method, Wrapped):
        return f"{name_of(method.of)} with {type(method.by).__name__}"
    return type(method).__name__


# ---------------------------------------------------------------- tools for authors
def through(
    gen: Any, change_request: Callable[[Any], Any], change_answer: Callable[[Any, Any], Any]
) -> Generator[Any, Any, Any]:
    """Run `yield from gen` with each request and answer changed; failures are raised at its `yield`.

    A request may become a generator, which is run to its end for the answer.
    """
    if not isinstance(gen, types.GeneratorType):
        return gen
    try:
        request = next(gen)
        while True:
            try:
                changed = change_request(request)
                got = (yield from changed) if isinstance(changed, types.GeneratorType) else (yield changed)
            except Exception as error:
                request = gen.throw(error)
            else:
                request = gen.send(change_answer(request, got))
    except StopIteration as stop:
        return stop.value


def running(answer: Any) -> Generator[Any, Any, Any]:
    """Run a step, generator or not, to its answer."""
    return (yield from answer) if isinstance(answer, types.GeneratorType) else answer


def as_step(work: Callable[..., Any], name: str, of: StepTypes) -> Callable[..., Any]:
    """Make a function a step of this name and these types."""
    answer: Any = types.GenericAlias(tuple, (of.reply, of.kept))
    returns = Generator[Any, Any, answer] if of.works else answer
    work.__annotations__ = {"me": Me, "msg": of.message, "memory": of.memory, "return": returns}
    work.__name__ = work.__qualname__ = name
    return step(work)


def step_types(begin: Callable[..., Any]) -> StepTypes | None:
    """Read a step's types from its annotations; None if it is no step."""
    hints = get_type_hints(begin, include_extras=True)
    returns = hints.get("return")
    works = get_origin(returns) is get_origin(Generator[Any, Any, Any])
    answer = get_args(get_args(returns)[2]) if works else get_args(returns)
    if len(hints) != 4 or len(answer) != 2:
        return None
    _, message, memory = (hint for name, hint in hints.items() if name != "return")
    return StepTypes(message, memory, answer[0], answer[1], works)


def types_of(method: Any) -> dict[str, StepTypes]:
    """Read the types of a method's steps, by name."""
    read = {name: step_types(begin) for name, begin in steps_of(method).items()}
    return {name: types for name, types in read.items() if types is not None}


def first_request(method: Any, state: Any, fed: Federation) -> Any:
    """Return the first request of a round's plan, then drop the plan; None if it makes none."""
    plan = method.round(state, fed)
    request = next(plan, None)
    plan.close()
    return request
