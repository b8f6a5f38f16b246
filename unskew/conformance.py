"""Checks for a method of your own: all checks of unskew's methods, on six small clients.

    import unskew as us

    def test_my_method():
        us.check_method(Mine())

A method that passes gives the same results in every executor, over a network, and in a resumed run.
"""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin

import numpy as np
import torch
from torch import nn

from unskew import info, wire
from unskew.algorithms import resolve
from unskew.errors import ConfigError, ProtocolError, QuorumError, UnskewError
from unskew.keys import Key, drawn_since, global_states
from unskew.local.data import DeviceData
from unskew.local.executor import Executor
from unskew.local.sequential import Sequential
from unskew.local.stacked.executor import Stacked
from unskew.local.trainer import LocalTrainer
from unskew.protocol import ClientId, hook, report_of
from unskew.runtime.in_process import Population, Simulator
from unskew.runtime.memory import Memory
from unskew.tasks.task import make_task
from unskew.tree import Params, check_unchanged, hints_of, is_record_type, marks
from unskew.world.pace import Outage
from unskew.wrappers.base import name_of

SIZES = (9, 4, 12, 6, 2, 7)
"""Training examples of each client."""

INPUTS, CLASSES, COHORT, ROUNDS, SEED = 4, 3, 4, 3, 11
RTOL, ATOL = 1e-3, 1e-4
"""Differences that rounding may make between executors in three rounds."""


@dataclass(frozen=True)
class Moment:
    """A run between two rounds.

    Attributes:
        round: The last round; 0 before the first.
        bits: The server's state and each client's memory, as saved.
        models: The model of each client, and under None the global one.
    """

    round: int
    bits: Mapping[str, bytes]
    models: Mapping[ClientId | None, Params | None]


def check_method(method: Any, network: Callable[[], nn.Module] | None = None) -> None:
    """Run a method in every executor, through bytes and resumed, and refuse it if results differ.

    Checked in three rounds of four of six clients:

    * it is a frozen value, and changes nothing in place
    * states, messages, replies and memories are frozen, of their annotated types, and what a deployment would accept
    * the same seed gives the same bits, and no global generator is drawn from
    * a run through bytes, a resumed one and, up to rounding, one of stacked clients are the same run
    * numbers stay finite, and lost clients are survived or refused without a trace
    * every client has a model, and what it reports can be kept

    Args:
        method: The method, wrapped or not, or the name of one with its defaults, as "scaffold+dw".
        network: Makes a network of 4 inputs and 3 classes; by default a perceptron, and another with batch
            normalisation if the method takes that.

    Raises:
        ConfigError: If it is a class or an unknown name, or the method refuses the network, or these clients.
        DivergedError: If training diverges.
        ProtocolError: In one sentence, what differs.
    """
    if isinstance(method, str):
        method = resolve(method)()
    if inspect.isclass(method) or inspect.isfunction(method):
        kind = "class" if inspect.isclass(method) else "function"
        raise ConfigError(f"check_method checks a method, got the {kind} {method.__name__}; write {method.__name__}()")
    who = name_of(method)
    if method != copy.copy(method):
        raise ProtocolError(f"{who} is not equal to its copy; make it a dataclass whose fields can be compared")
    try:
        hash(method)
    except TypeError as error:
        raise ProtocolError(f"{who} cannot be hashed ({error}); make its fields tuples, numbers and words") from None
    _refuse_thawed(who, method)
    _check(who, method, _world(method, network or _plain))
    if network is None:
        world = _world(method, _normalised)
        try:
            _simulator(method, world, Sequential).start()
        except ConfigError:
            return
        _check(who, method, world)


def _refuse_thawed(who: str, method: Any) -> None:
    signatures = wire.signatures(method).values()
    types = [
        wire.state_type(method),
        wire.memory_type(method),
        *(of for s in signatures for of in (s.message, s.reply)),
    ]
    for kind in {kind for of in types for kind in _records(of)}:
        if not kind.__dataclass_params__.frozen:
            raise ProtocolError(
                f"{who}: {kind.__name__}, which is sent or kept, must be a frozen dataclass, so that nobody changes "
                "what others have; write @dataclass(frozen=True)"
            )


def _records(of: Any, outer: tuple[Any, ...] = ()) -> Iterator[Any]:
    """Yield the dataclasses that a value of a type may hold; `outer` have been looked at."""
    if of in outer:  # a class may hold itself
        return
    if is_record_type(of):
        yield get_origin(of) or of
    for part in hints_of(of).values() if is_record_type(of) else get_args(of):
        yield from _records(part, (*outer, of))


World = tuple[Population, LocalTrainer]


def _check(who: str, method: Any, world: World) -> None:
    before = global_states()
    straight = list(_run(method, world))
    for whose in drawn_since(before):
        raise ProtocolError(
            f"{who} draws from {whose} global generator, so the same run again has other results; draw from fed.key, "
            "me.key or me.private"
        )
    _same(who, straight, list(_run(method, world)), "a second run of the same seed differs from the first")
    _same(who, straight, list(_run(method, world, codec=True)), "a run whose messages travel as bytes differs")
    list(_run(method, world, seed=SEED + 1))  # so that what is kept outside the state, even by round, is another run's
    _same(who, straight[-2:], list(_run(method, world, begin=straight[-2])), "a run that is resumed differs")
    _close(who, straight, list(_run(method, world, executor=Stacked)))
    _finite(who, straight)
    _served(who, straight, world[0].initial)
    _lose(who, method, world)


def _plain() -> nn.Module:
    return nn.Sequential(nn.Linear(INPUTS, 6), nn.ReLU(), nn.Linear(6, CLASSES))


def _normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(INPUTS, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, CLASSES))


def _world(method: Any, network: Callable[[], nn.Module]) -> World:
    """Six clients, each with examples of a class of its own in the main; one with all of them for a pooled bound."""
    rng = Key(17).numpy()
    x = torch.from_numpy(rng.standard_normal((sum(SIZES), INPUTS), np.float32))
    favourite = np.repeat(np.arange(len(SIZES)) % CLASSES, SIZES)
    y = torch.from_numpy(np.where(rng.random(len(x)) < 0.7, favourite, rng.integers(CLASSES, size=len(x))))
    rows = torch.split(torch.arange(len(x)), [len(x)] if hook(method, "pooled") else [*SIZES])
    histograms = torch.stack([torch.bincount(y[of], minlength=CLASSES) for of in rows])
    task = make_task(network, CLASSES, examples=x[:4])
    trainer = LocalTrainer(task, DeviceData(x, y, rows, tuple(of[:2] for of in rows)))
    return Population(histograms, task.layout, task.init(Key(3)), task.init), trainer


def _run(
    method: Any,
    world: World,
    *,
    executor: Callable[[LocalTrainer], Executor] = Sequential,
    codec: bool = False,
    begin: Moment | None = None,
    seed: int = SEED,
) -> Iterator[Moment]:
    """Run three rounds, or those after a saved moment; yield the moment before each, and the last."""
    sim = _simulator(method, world, executor, seed=seed, codec=codec)
    if begin is None:
        state, done = sim.start(), 0
    else:
        state, done = wire.decode(begin.bits["state"], wire.state_type(method)), begin.round
        of = sim.clients.memory_type
        saved = {c: wire.decode(begin.bits[f"client {c}"], of) for c in sim.population.clients}
        sim.memory = Memory(done, {c: memory for c, memory in saved.items() if memory is not None})
    yield _moment(sim, state, done)
    for t in range(done + 1, ROUNDS + 1):
        state, _ = sim.round(state, t)
        before = marks(state, content=True)
        for part in report_of(method, state):
            try:
                info.check(part, len(sim.population.clients))
            except (TypeError, ValueError) as error:
                raise ProtocolError(f"{name_of(method)}: its report cannot be kept: {error}") from error
        moment = _moment(sim, state, t)
        check_unchanged(before, state, f"serve or info of {name_of(method)}", "the state that it is given")
        yield moment


def _simulator(
    method: Any, world: World, executor: Callable[[LocalTrainer], Executor], **options: Any
) -> Simulator[Any]:
    population, trainer = world
    return Simulator(
        method, population, executor(trainer), clients_per_round=min(COHORT, len(population.clients)), **options
    )


def _moment(sim: Simulator[Any], state: Any, t: int) -> Moment:
    clients = sim.population.clients
    own = sim.own_models(state, clients, t)
    models: dict[ClientId | None, Params | None] = {
        None: sim.method.serve(state, None),
        **{c: own.get(c) for c in clients},
    }
    return Moment(t, _bits(sim, state), models)


def _bits(sim: Simulator[Any], state: Any) -> dict[str, bytes]:
    memory = {f"client {c}": wire.encode(sim.memory.get(c)) for c in sim.population.clients}
    return {"state": wire.encode(state), **memory}


def _same(who: str, expected: Sequence[Moment], got: Sequence[Moment], what: str) -> None:
    for one, two in zip(expected, got, strict=True):
        for name, bits in one.bits.items():
            if bits != two.bits[name]:
                whose = "the server's state" if name == "state" else f"the memory of {name}"
                raise ProtocolError(
                    f"{who}: {what}, in {whose} after round {one.round}; keep everything in the state or a client's "
                    "memory, nothing in an object or a module"
                )
        for client, model in one.models.items():
            if wire.encode(model) != wire.encode(two.models[client]):
                raise ProtocolError(
                    f"{who}: {what}, in {_model_of(client)} after round {one.round}, though the state and all memories "
                    "are the same; serve and personalise may depend on nothing else and draw from me.key only"
                )


def _close(who: str, expected: Sequence[Moment], got: Sequence[Moment]) -> None:
    for one, two in zip(expected, got, strict=True):
        for whose, model in one.models.items():
            for name, t in (model or {}).items():
                other = (two.models[whose] or {}).get(name)
                if other is None or not torch.allclose(t, other, RTOL, ATOL):
                    raise ProtocolError(
                        f"{who}: clients that train together, as on a GPU, end round {one.round} with another {name!r} "
                        f"in {_model_of(whose)} than one after the other. A term may use parameters, aux and batch "
                        "only, with examples weighted by batch.mask; a step may keep nothing in an object or a module"
                    )


def _model_of(client: ClientId | None) -> str:
    return "the global model" if client is None else f"the model of client {client}"


def _finite(who: str, moments: Sequence[Moment]) -> None:
    for moment in moments:
        for whose, model in moment.models.items():
            odd = [name for name, t in (model or {}).items() if not t.isfinite().all()]
            if odd:
                raise ProtocolError(f"{who}: {_model_of(whose)} is not finite in {odd[0]!r} after round {moment.round}")


def _served(who: str, moments: Sequence[Moment], initial: Params) -> None:
    names = [*initial]
    for moment in moments:
        for whose, model in moment.models.items():
            if model is None and whose is not None:
                raise ProtocolError(f"{who}: client {whose} has no model; serve(state, client) must give it one")
            if model is not None and [*model] != names:
                odd = ", ".join(sorted({*names} ^ {*model})) or "their order"
                raise ProtocolError(
                    f"{who}: {_model_of(whose)} must have the network's {len(names)} tensors in its order, and differs "
                    f"in {odd}"
                )
            for name, t in (model or {}).items():
                if (t.dtype, t.shape) != (initial[name].dtype, initial[name].shape):
                    raise ProtocolError(
                        f"{who}: {name} of {_model_of(whose)} must be {initial[name].dtype} "
                        f"{tuple(initial[name].shape)}, got {t.dtype} {tuple(t.shape)}; convert what serve returns: "
                        "t.to(old)"
                    )


def _lose(who: str, method: Any, world: World) -> None:
    """Lose three of ten messages, and three of ten replies: a round goes on without them, or leaves nothing behind."""
    for seed in range(4):
        sim = _simulator(method, world, Sequential, seed=seed, outage=Outage(0.3, 0.3))
        state = sim.start()
        for t in range(1, ROUNDS + 1):
            before = _bits(sim, state)
            try:
                state, _ = sim.round(state, t)
            except QuorumError:
                if _bits(sim, state) != before:
                    raise ProtocolError(
                        f"{who}: a round without enough replies leaves another state or memory behind than it found"
                    ) from None
                break
            except UnskewError:
                raise
            except Exception as error:
                raise ProtocolError(
                    f"{who}: a round in which clients were lost ends in {type(error).__name__} ({error}); the answer "
                    "of ask has the clients that replied"
                ) from error
