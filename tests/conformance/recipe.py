"""The small world in which every method is tried.

Six unequal clients, four inputs, three classes, labels skewed by client; a multilayer perceptron with or without
BatchNorm.  The pooled bound gets one client with everything.
"""

import dataclasses
import functools
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unskew import wire
from unskew.algorithms import TABLE, resolve
from unskew.algorithms.fedavg import ModelMessage
from unskew.algorithms.feddif import Drift
from unskew.algorithms.hcct import Arrivals, Pilot
from unskew.keys import Key
from unskew.local.data import DeviceData
from unskew.local.sequential import Sequential
from unskew.local.trainer import LocalTrainer
from unskew.protocol import (
    Carried,
    ClientId,
    Federation,
    Keep,
    Me,
    Plan,
    Sgd,
    SgdConfig,
    Step,
    ask,
    collect,
    hook,
    probe,
    sgd,
    step,
)
from unskew.reduction import weighted_mean
from unskew.runtime.in_process import Population, Simulator
from unskew.runtime.round import Trace
from unskew.server.graphs import Complete
from unskew.server.optimise import Adam, Momentum, Yogi
from unskew.tasks.task import Task, make_task
from unskew.tree import Params, leaves
from unskew.wrappers.compression import ClipNorm, Quantise, TopK

SIZES = (9, 4, 12, 6, 2, 7)
CLASSES = 3
LOCAL = SgdConfig(0.05, batch_size=4, local_epochs=2)


# ---------------------------------------------------------------- methods
@dataclass(frozen=True)
class Parcel:
    model: Carried
    n: int


@dataclass(frozen=True)
class Relay:
    """No published method: models travel round a ring before they are averaged, so that held values are tried too."""

    local: SgdConfig = LOCAL

    def init(self, params: Params, fed: Federation) -> ModelMessage:
        return ModelMessage(params)

    def round(self, state: ModelMessage, fed: Federation) -> Plan[ModelMessage]:
        held = yield from ask(self.train, {c: Parcel(state.params, 0) for c in fed.sample()})
        for hop in range(2):
            gamma = yield from probe(hop)
            ring = list(held)
            to = {c: held[ring[i - 1]] for i, c in enumerate(ring) if gamma[ring[i - 1], c] > 0}
            held = {**held, **(yield from ask(self.train, to, at_least=0))}
        models = yield from collect([p.model for p in held.values()])
        return ModelMessage(weighted_mean(models, [float(p.n) for p in held.values()]))

    @step
    def train(self, me: Me, msg: Parcel, memory: int | None) -> Step[tuple[Parcel, int | None]]:
        assert isinstance(msg.model, dict)
        return Parcel(Keep((yield from sgd(msg.model, self.local))), msg.n + me.n), (memory or 0) + 1

    def serve(self, state: ModelMessage, client: ClientId | None) -> Params:
        return state.params


APART = ("feddistr", "fedpft")
"""Methods that need images, which these clients have not; test_images.py asks the same of them."""

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in TABLE if name not in APART},
    **{name: (name, {"pilot": Pilot((0.0, 0.5), rounds=2, hold_out=3)}) for name in ("hcct", "hcct_e", "hcct_p")},
    "fedswap": ("fedswap", {"legs": 4}),
    "ffalora": ("ffalora", {"fixed": ("0",)}),
    "fedsalora": ("fedsalora", {"personal": ("0",)}),
    "oneshot": ("oneshot", {"rounds_worth": 3}),
    "fedala": ("fedala", {"start_epochs": 5}),
    "fedavg, own head": ("fedavg", {"personal": ("head",)}),
    "fedavg, own norm": ("fedavg", {"personal": ("norm",)}),
    "fedavg, uniform": ("fedavg", {"weighting": "uniform"}),
    "fedavg, momentum": ("fedavg", {"local": dataclasses.replace(LOCAL, momentum=0.9, weight_decay=0.01)}),
    "fedavg, adam on the head": (
        "fedavg",
        {"local": dataclasses.replace(LOCAL, optimizer="adam", trainable=("head",))},
    ),
    "scaffold, option I": ("scaffold", {"option": "I"}),
    "scaffold, scaled": ("scaffold", {"scaled": True, "weighting": "samples"}),
    "feddif, drift": (
        "feddif",
        {"preset": "p000", "epsilon": 0.01, "model_ratio": None, "drift": Drift(0.002, 0.1, 0.01)},
    ),
    "feddif, pooled": ("feddif", {"target": "pooled", "metric": "js", "epsilon": 0.001}),
    "feddif, p001": ("feddif", {"preset": "p001", "epsilon": 0.01, "stop": "decrement", "lr_within_round": "constant"}),
    "feddyn, scaled": ("feddyn", {"scaled": True}),
    "feddc, as published": ("feddc", {"scaled": True, "divisor": "code"}),
    "stc, flat": ("stc", {"p_up": 0.1, "p_down": 0.3, "flatten": True}),
    "stc, values": ("stc", {"p_up": 0.3, "ternary": False}),
    "fedswap, d2d": ("fedswap", {"legs": 3, "permutation": "derangement", "weighting": "seen", "route": "d2d"}),
    "cyclic, server": ("cyclic", {"order": "fixed", "route": "server"}),
    "tthf, adaptive": ("tthf", {"cluster_size": 3, "gamma": 3, "phi": 0.1, "d2d_before_global": True}),
    "cfa, complete": ("cfa", {"graph": Complete(), "epsilon": 0.75}),
    "gossip, together": ("gossip", {"graph": Complete(), "order": "together"}),
    "qfedavg": ("qfedavg", {"q": 2.0}),
    "maxfl": ("maxfl", {"warmup": 1}),
    "maxfl, preferred": ("maxfl", {"warmup": 1, "preferred": True}),
    "maxfl_hcct": ("maxfl_hcct", {"warmup": 1}),
    "maxfl_hcct, sqdist": ("maxfl_hcct", {"warmup": 1, "threshold": "sqdist", "solo_rounds": 2}),
    "grouped": ("grouped", {"groups": ((4, 0, 3), (1,), (2, 5))}),
    "grouped, own heads": ("grouped", {"groups": ((0, 1, 2), (3, 4, 5)), "personal": ("head",)}),
    "ifca, heads": ("ifca", {"clusters": 3, "clustered": ("head",), "averaging": "gradient", "weighting": "samples"}),
    "flsc, previous": ("flsc", {"ids": "previous"}),
    "hcct, two groups": ("hcct", {"groups": 2, "recluster_every": 2, "normalize": "mean"}),
    "hcct, by size": ("hcct", {"alpha": "size", "weighting": "uniform"}),
    "hcct, as released": ("hcct", {"preset": "code", "alpha": 1.0, "local": LOCAL, "group_buffers": "mean"}),
    "hcct, arrivals": ("hcct", {"alpha": 1.0, "arrivals": Arrivals(3, 1, 1, 1), "one_shot": True}),
    "hcct_e, published": ("hcct_e", {"alpha": 1.0, "score": "published"}),
    "hcct_p, averaged": ("hcct_p", {"alpha": 1.0, "averaged_heads": True}),
    "ifca, own heads": ("ifca", {"clusters": 2, "personal": ("head",)}),
    "flsc, own norms": ("flsc", {"ids": "previous", "personal": ("norm",)}),
    "cfl, own heads": ("cfl", {"eps1": 100.0, "eps2": 0.0, "after": 0, "personal": ("head",)}),
    "maxfl_hcct, own heads": ("maxfl_hcct", {"warmup": 1, "personal": ("head",)}),
    "cfl, split": ("cfl", {"eps1": 100.0, "eps2": 0.0, "after": 0}),
    "fedrep, own norm": (
        "fedrep",
        {"personal": ("head", "norm"), "local": dataclasses.replace(LOCAL, momentum=0.9, weight_decay=0.01)},
    ),
    "fedala, everything": ("fedala", {"layers": ("all",), "data_share": 1.0, "start_epochs": 3}),
    "perfedavg, hessian-free": ("perfedavg", {"order": "hessian_free"}),
    "perfedavg, exact": ("perfedavg", {"order": "exact"}),
    "fedprox+dw": ("fedprox+dw", {}),
    "scaffold+dw": ("scaffold+dw", {"option": "I"}),
    "moon+dw": ("moon+dw", {"buffer": 2}),
    "feddif+dw": ("feddif+dw", {"epsilon": 0.01}),
    "moon, adam": ("moon", {"server": Adam(server_lr=0.05)}),
    "fedprox, momentum": ("fedprox", {"server": Momentum(beta=0.5)}),
    "ditto, yogi": ("ditto", {"server": Yogi(server_lr=0.05)}),
    "fedper+top_k": ("fedper+top_k", {"top_k": TopK(0.3)}),
    "scaffold+quantise": ("scaffold+quantise", {"quantise": Quantise(4)}),
    "feddyn+dw+clip_norm": ("feddyn+dw+clip_norm", {"clip_norm": ClipNorm(0.1)}),
    "fednova+top_k+quantise": ("fednova+top_k+quantise", {"top_k": TopK(0.5)}),
    "feddw, code": ("feddw", {"preset": "code", "local": LOCAL}),
    "feduv, gradient through the median": ("feduv", {"detach_median": False}),
    "feddistill_plus, feddw": ("feddistill_plus", {"compat": "feddw"}),
}
CASES = [*VARIANTS, "relay"]
# What protects is attacked, and in no other grid.
ROBUST = ("median", "trimmed_mean", "krum", "multi_krum", "geometric_median", "norm_bound")
PROTECTED = [f"fedavg+{name}" for name in (*ROBUST, "central_dp", "local_dp", "dp_sgd", "secure_sum")]
VARIANTS |= {case: (case, {}) for case in PROTECTED}


factory_of = functools.cache(resolve)


def make(case: str, **options: Any) -> Any:
    """The method of a case, on the small world's local optimisation."""
    if case == "relay":
        return Relay(**options)
    name, own = VARIANTS[case]
    factory = factory_of(name)
    local = {"local": LOCAL} if "local" in inspect.signature(factory).parameters else {}
    return factory(**{**local, **own, **options})


DEPLOYED = [case for case in CASES if not hook(make(case), "as_they_come")]


# ---------------------------------------------------------------- clients
def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, CLASSES))


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, CLASSES))


NETWORKS = {"perceptron": perceptron, "normalised": normalised}


@functools.cache
def task_of(network: str) -> Task:
    return make_task(NETWORKS[network], CLASSES, examples=torch.rand(4, 4, generator=Key(1).generator()))


def rows_of(pooled: bool, order: Sequence[int] | None) -> tuple[Tensor, ...]:
    """Rows of each client; with `order`, client i is who was client order[i] before."""
    parts = torch.split(torch.arange(sum(SIZES)), SIZES)
    if pooled:
        return (torch.cat(parts),)
    return tuple(parts[i] for i in (order or range(len(parts))))


def world(
    network: str,
    pooled: bool = False,
    order: Sequence[int] | None = None,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> tuple[Population, LocalTrainer]:
    """The clients, and what meets their requests."""
    g = Key(17).generator()
    x = torch.randn(sum(SIZES), 4, generator=g, dtype=dtype)
    favourite = torch.repeat_interleave(torch.arange(len(SIZES)) % CLASSES, torch.tensor(SIZES))
    noise = torch.randint(CLASSES, (sum(SIZES),), generator=g)
    y = torch.where(torch.rand(sum(SIZES), generator=g) < 0.7, favourite, noise)
    rows, task = rows_of(pooled, order), task_of(network)
    histograms = torch.stack([torch.bincount(y[r], minlength=CLASSES) for r in rows])

    def initialise(key: Key) -> Params:
        return {n: t.to(device, dtype) for n, t in task.init(key).items()}

    rows = tuple(r.to(device) for r in rows)
    x, y = x.to(device), y.to(device)
    data = DeviceData(x, y, rows, tuple(r[:2] for r in rows), public=(x[[0, 9, 13]], y[[0, 9, 13]]))
    trainer = LocalTrainer(task, data, device, dtype)
    return Population(histograms, task.layout, initialise(Key(3)), initialise), trainer


def simulator(case: str, network: str, *, method: Any = None, **options: Any) -> Simulator[Any]:
    """A run of `case`, about to begin: cohorts of four unless said otherwise."""
    method = method or make(case)
    pooled = bool(getattr(method, "pooled", False))
    own = {k: options.pop(k) for k in ("order", "dtype", "device") if k in options}
    population, trainer = world(network, pooled, **own)
    return Simulator(method, population, Sequential(trainer), **{"clients_per_round": 1 if pooled else 4, **options})


def rounds(sim: Simulator[Any], until: int = 3) -> Iterator[tuple[int, Any, Trace]]:
    """(round, state after it, what happened)."""
    state = sim.start()
    for t in range(1, until + 1):
        state, trace = sim.round(state, t)
        yield t, state, trace


def bits(sim: Simulator[Any], state: Any) -> dict[str, bytes]:
    """Everything that a run is between two rounds."""
    memory = {f"client {c}": wire.encode(sim.memory.get(c)) for c in sim.population.clients}
    return {"state": wire.encode(state), **memory}


def finite(tree: Any) -> bool:
    return all(bool(torch.isfinite(t).all()) for _, t in leaves(tree) if isinstance(t, Tensor))


# ---------------------------------------------------------------- one run for many tests
SEED = 11


@dataclass(frozen=True)
class Moment:
    """A run between two rounds.

    Attributes:
        state: The server's state.
        bits: Everything that the run is, as it came out of the round.
        trace: What happened in the round; before the first there is none.
        models: The names of the tensors of each client's model.
        served: The names of the tensors of the model for all, if there is one.
        state_later: The state encoded once more, after models were made of it and the next round started from it.
    """

    state: Any
    bits: dict[str, bytes]
    trace: Trace | None
    models: dict[ClientId, list[str] | None]
    served: list[str] | None
    state_later: bytes


@dataclass(frozen=True)
class Recorded:
    """A run of a case.

    Attributes:
        moments: Between the rounds, before the first one too.
        requests: The optimisations that clients asked for in the rounds: configuration and terms.
        initial: The initial parameters, encoded before the first round.
        lengths: Of the run without models, lengths of all encoded messages by round; of the other, nothing.
        draws_alone: Nothing was drawn from PyTorch's global generator.
    """

    simulator: Simulator[Any]
    moments: tuple[Moment, ...]
    requests: frozenset[Any]
    initial: bytes
    lengths: tuple[set[int], ...]
    draws_alone: bool

    @property
    def rounds(self) -> Iterator[tuple[Moment, Trace]]:
        """The moments after each round, and what happened in it."""
        return ((m, m.trace) for m in self.moments if m.trace is not None)


class Watching(LocalTrainer):
    """A trainer that writes down the optimisations that are asked for."""

    def __init__(self, trainer: LocalTrainer) -> None:
        super().__init__(trainer.task, trainer.device_data)
        self.asked: set[tuple[SgdConfig, Any]] = set()

    def answer(self, me: Me, index: int, request: object) -> Any:
        if isinstance(request, Sgd):
            self.asked.add((request.config, request.terms))
        return super().answer(me, index, request)


def weighed(sim: Simulator[Any], state: Any, t: int, lengths: list[set[int]]) -> tuple[Any, Trace]:
    """A round in which the length of every message is that of its encoded bytes, added to `lengths`."""
    lengths.append(set())

    def encoded(value: Any) -> int:
        lengths[-1].add(n := len(wire.encode(value)))
        return n

    nbytes = wire.nbytes
    try:
        wire.nbytes = encoded
        return sim.round(state, t)
    finally:
        wire.nbytes = nbytes


@functools.cache
def recorded(case: str, network: str, *, seed: int = SEED, models: bool = True) -> Recorded:
    """A run of three rounds, made once for all tests that look at it; nobody may change what is in it.

    Args:
        models: Every client's model is made after each round, which must not change the run.  Where none is, messages
            are encoded to be weighed, which must not change it either.
    """
    sim = simulator(case, network, seed=seed)
    watching = Watching(sim.clients.executor.trainer)
    sim.clients.executor = Sequential(watching)
    generator, initial = torch.get_rng_state(), wire.encode(sim.population.initial)
    states, seen = [sim.start()], []
    traces: list[Trace | None] = [None]
    requests: set[Any] = set()
    lengths: list[set[int]] = []
    for t in range(4):
        if t:
            watching.asked.clear()
            state, trace = sim.round(states[-1], t) if models else weighed(sim, states[-1], t, lengths)
            states.append(state)
            traces.append(trace)
            requests |= watching.asked
        everything = bits(sim, states[t])
        own = {c: sim.own_models(states[t], [c], t).get(c) for c in sim.population.clients} if models else {}
        served = sim.method.serve(states[t], None)
        seen.append((everything, {c: m and list(m) for c, m in own.items()}, served and list(served)))
    moments = [
        Moment(state, everything, trace, own, served, wire.encode(state))
        for state, trace, (everything, own, served) in zip(states, traces, seen, strict=True)
    ]
    alone = torch.equal(torch.get_rng_state(), generator)
    return Recorded(sim, tuple(moments), frozenset(requests), initial, tuple(lengths), alone)
