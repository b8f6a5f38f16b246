"""A client that lies in every way its messages allow, once a round: refused, recorded, survived, with every method."""

import dataclasses
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from recipe import DEPLOYED, PROTECTED, make
from torch import Tensor

from unskew import wire
from unskew.errors import DivergedError, QuorumError, WireError
from unskew.info import ignored_of, parts, row
from unskew.protocol import Held
from unskew.tree import is_record

pytest.importorskip("grpc")

from loopback import Deployed, built

from unskew.algorithms import TABLE
from unskew.algorithms.flsc import FLSCReply
from unskew.algorithms.ifca import IFCAReply
from unskew.algorithms.maxfl import MAXFLGroupReply
from unskew.runtime.message import REQUESTS, Envelope, StepRequest, read
from unskew.tree import hints_of

LIAR, NETWORK = 3, "perceptron"
# Every method, and the variants whose replies or whose use of them differ.
FURTHER = (
    "maxfl",
    "maxfl_hcct",
    "feddw",
    "stc, values",
    "tthf, adaptive",
    "fedswap, d2d",
    "feddif, pooled",
    "feddif, drift",
)
TRIED = [c for c in DEPLOYED if (c in TABLE or c in FURTHER or "+dw" in c) and not getattr(make(c), "pooled", False)]

OF_FEDDIF = {"feddif, pooled", "feddif, drift", "feddif+dw"}


def in_turn(first: int) -> pytest.MarkDecorator:
    """Every fourth method with one kind of lies, others with the other; by `make test-slow` all with both."""
    cases = enumerate(TRIED)
    later = {c for i, c in cases if c in OF_FEDDIF or (i % 4 != first and c != "feddif")}
    return pytest.mark.parametrize(
        "case", [pytest.param(c, marks=pytest.mark.slow if c in later else ()) for c in TRIED]
    )


# Exchanges of a round that add nothing here; clients need not know.
FEW = {"feddif": {"max_hops": 1}, "fedswap": {"legs": 2}}


# ---------------------------------------------------------------- lies
def of_tensor(t: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What has another shape or element type, or numbers that none can be."""
    like = t.new_zeros
    if t.ndim:
        yield "a row too many", torch.cat([t, t[-1:] if len(t) else like((1, *t.shape[1:]))])
        yield "no dimension", like(())
    if t.ndim == 2:
        yield "a column too many", torch.cat([t, like((len(t), 1))], 1)
    yield "a dimension too many", t[None]
    yield "whole or broken numbers", t.long() if t.is_floating_point() else t.float()
    if t.is_floating_point() and t.numel():
        yield "not a number", torch.full_like(t, float("nan"))
        yield "an infinite number", torch.full_like(t, float("inf"))
        yield "an absurd number", torch.full_like(t, 1e30) if t.dtype != torch.float16 else torch.full_like(t, 6e4)


def lies(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The value with one thing in it changed to what cannot be, and what was changed."""
    if isinstance(value, Held):
        yield f"{path}: another client's value", Held(value.owner - 1, value.key)
        yield f"{path}: another value", Held(value.owner, value.key + "/other")
    elif isinstance(value, Tensor):
        yield from ((f"{path}: {what}", lie) for what, lie in of_tensor(value))
    elif is_record(value):
        for f in dataclasses.fields(value):
            for what, lie in lies(getattr(value, f.name), f"{path}/{f.name}"):
                yield what, dataclasses.replace(value, **{f.name: lie})
    elif isinstance(value, dict):
        if len(value) > 1 and all(isinstance(t, Tensor) for t in value.values()):
            (first, t), *rest = value.items()
            yield f"{path}: a tensor is missing", dict(rest)
            yield f"{path}: nothing", {}
            yield f"{path}: a strange tensor", {**value, "strange": t}
            for what, lie in of_tensor(t):
                yield f"{path}/{first}: {what}", {**value, first: lie}
    elif isinstance(value, tuple):
        if value:
            yield f"{path}: one too many", value + value[-1:]
    elif isinstance(value, int) and not isinstance(value, bool):
        if path == "/n":  # examples, which every client has
            yield f"{path}: none", 0
        yield f"{path}: below none", -1
        yield f"{path}: countless", 1 << 60
    elif isinstance(value, float):
        yield f"{path}: not a number", float("nan")
        yield f"{path}: an absurd number", 1e300


def odd(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The value with one number changed to what might be and yet ends a careless computation."""
    if isinstance(value, Tensor):
        yield f"{path}: zeros", torch.zeros_like(value)
        yield f"{path}: signs turned", -value if value.dtype not in (torch.bool, torch.uint8) else ~value
        if value.dtype == torch.int64:
            yield f"{path}: enormous", torch.full_like(value, 1 << 62)
    elif is_record(value) and not isinstance(value, Held):
        for f in dataclasses.fields(value):
            for what, lie in odd(getattr(value, f.name), f"{path}/{f.name}"):
                yield what, dataclasses.replace(value, **{f.name: lie})
            if type(None) in get_args(hints_of(type(value))[f.name]):
                yield f"{path}/{f.name}: absent", dataclasses.replace(value, **{f.name: None})
    elif isinstance(value, dict) and all(isinstance(t, Tensor) for t in value.values()):
        yield f"{path}: zeros", {name: torch.zeros_like(t) for name, t in value.items()}
    elif isinstance(value, tuple):
        if value:
            yield f"{path}: none", ()
            yield f"{path}: backwards", value[::-1]
    elif isinstance(value, bool):
        yield f"{path}: turned", not value
    elif isinstance(value, int):
        yield from ((f"{path}: {n}", n) for n in (0, 1, 1 << 53))
    elif isinstance(value, float):
        yield from ((f"{path}: {x:g}", x) for x in (0.0, -1.0, 1e-300))


def forged(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The value with one key, share or vector in it changed to another, or to none."""
    if is_record(value):
        for f in dataclasses.fields(value):
            for what, lie in forged(getattr(value, f.name), f"{path}/{f.name}"):
                yield what, dataclasses.replace(value, **{f.name: lie})
    elif isinstance(value, str):
        yield f"{path}: nothing", ""
        yield f"{path}: another", value[::-1]
    elif isinstance(value, dict) and value:
        (k, v), *rest = value.items()
        yield f"{path}: one is missing", dict(rest)
        yield f"{path}: a stranger's", {**value, 77: v}
        for what, lie in forged(v, f"{path}/{k}"):
            yield what, {**value, k: lie}
    elif isinstance(value, Tensor):
        yield f"{path}: too short", value[:-1]


class Liar:
    """Answers as the client would, but tells a lie that it has not told yet, once a round."""

    def __init__(self, there: Deployed, kind: Any) -> None:
        self.there, self.kind, self.honest = there, kind, there.fresh(LIAR)
        self.replies = {name: s.reply for name, s in wire.signatures(there.method).items()}
        self.held = wire.held_type(there.method)
        self.told: list[tuple[str, str]] = []
        self.now: tuple[str, str] | None = None

    def __call__(self, message: Envelope) -> Envelope:
        asked, reply = read(message, REQUESTS), (honest := self.honest(message))
        if self.now is not None or reply.action not in ("ask", "fetch"):
            return honest
        step, of = (
            (asked.step, self.replies[asked.step]) if isinstance(asked, StepRequest) else ("held value", self.held)
        )
        for i, part in enumerate(reply.parts):
            for what, lie in self.kind(wire.decode(part, of)):
                if (step, what) not in self.told:
                    self.told.append((step, what))
                    if len(self.told) > 1 and self.is_seen_through(step, wire.encode(lie), of):
                        continue
                    self.now = (step, what)
                    parts = (*reply.parts[:i], wire.encode(lie), *reply.parts[i + 1 :])
                    return Envelope(reply.action, reply.head, parts)
        return honest

    def is_seen_through(self, step: str, data: bytes, of: Any) -> bool:
        """Whether the server refuses a message by itself; of those one is tried whole, for the others it is known."""
        runtime = self.there.runtime
        try:
            value = runtime.clients.validator.decode(data, of)
            if runtime.clients.validate_reply is not None and step != "held value":
                runtime.clients.validate_reply(step, value, runtime.model.initial, runtime.model.layout)
        except WireError:
            return True
        return False


def lived(
    case: str, folder: Path, kind: Any, alone: bool = False, **options: Any
) -> Iterator[tuple[str, str, dict[int, str], set[int]]]:
    """Rounds with a liar: what the lie was, the failures by client, and whose replies the method itself refused.

    Alone, nobody else is connected; a round that then ends for want of replies is begun anew.
    """
    few = next((few for name, few in FEW.items() if case.startswith(name)), {})
    there = Deployed(case, NETWORK, folder, seed=4, clients_per_round=6, method=make(case, **few, **options))
    liar = there.grid.handlers[LIAR] = Liar(there, kind)
    if alone:
        there.grid.handlers = {LIAR: liar}
    state, t, quiet = there.runtime.start(), 0, 0
    while quiet < 2:  # some steps are not asked for in every round
        t, liar.now = t + 1, None
        try:
            state, trace = there.runtime.attempt(state, t) if "secure_sum" in case else there.runtime.round(state, t)
        except (QuorumError, DivergedError) as error:
            if not alone or liar.now is None:
                raise
            yield *liar.now, {LIAR: str(error)}, set()
            memory, there.runtime = there.runtime.memory, there.start_server()
            there.runtime.memory = memory
            t, quiet = t - 1, 0
            continue
        info = parts(there.method.info(state)) if hasattr(there.method, "info") else ()
        json.dumps([row(part) for part in info], allow_nan=False)
        there.method.serve(state, LIAR)
        if liar.now is None:
            quiet += 1
            continue
        quiet = 0
        # A round whose sum clients have bound themselves to is abandoned, and those after it are run without the liar.
        failures = {f.client: f"{f.step}: {f.reason}" for f in trace.failures} | there.runtime.left_out
        there.runtime.left_out.clear()
        yield *liar.now, failures, {i["client"] for part in info for i in ignored_of(part)}
    assert liar.told or alone or not any(dataclasses.fields(of) for of in liar.replies.values())


@in_turn(0)
def test_every_lie_is_refused_recorded_and_survived(case: str, tmp_path: Path) -> None:
    """Tensors of another shape or type, NaN, absurd numbers and counts, tables with too little or too much."""
    for step, what, failures, ignored in lived(case, tmp_path, lies):
        assert LIAR in failures or LIAR in ignored, (step, what, "was believed")
        others = {c: why for c, why in failures.items() if c != LIAR and f"client {LIAR}" not in why}
        assert not others, (step, what)


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        pytest.param(case, kind, marks=pytest.mark.slow if (i + 4 * j) % 8 and case != "feddif" else ())
        for i, case in enumerate(TRIED)
        for j, kind in enumerate((lies, odd))
    ],
)
def test_a_liar_whom_nobody_contradicts_is_refused_or_ends_the_round_in_words(
    case: str, kind: Any, tmp_path: Path
) -> None:
    """Its is the only reply of every step: nothing has a majority, no mean another weight."""
    for step, what, failures, ignored in lived(case, tmp_path, kind, alone=True):
        assert LIAR in failures or LIAR in ignored or kind is odd, (step, what, "was believed")


def joining(kind: Any, value: Any) -> Iterator[tuple[str, Any]]:
    """Lies of one who is in a group that nobody else chooses."""
    if isinstance(value, IFCAReply):
        value = dataclasses.replace(value, cluster=11)
    elif isinstance(value, FLSCReply):
        value = dataclasses.replace(value, ids=(10, 11))
    elif isinstance(value, MAXFLGroupReply) and value.params is None:
        value = dataclasses.replace(value, params=built("maxfl_hcct", NETWORK)[1].initial)
    return kind(value)  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [lies, odd])
@pytest.mark.parametrize("case", PROTECTED[:-1])
def test_what_protects_a_method_from_others_is_no_way_in(case: str, kind: Any, tmp_path: Path) -> None:
    """Robust means and differential privacy; of secure sums the next test."""
    for step, what, failures, ignored in lived(case, tmp_path, kind):
        assert failures.keys() <= {LIAR}, (step, what, failures)
        assert LIAR in failures or LIAR in ignored or kind is odd, (step, what, "was believed")


HARMLESS = ("secure_unmask", "secure_shares /to/0")
"""What of a secure sum one client may forge: the others' shares are enough."""
FEW_FORGED = ("/own: another", "/to: one is missing", "/masked: too short", "/own/0: another")


@pytest.mark.seconds
@pytest.mark.parametrize("only", [FEW_FORGED, pytest.param(("",), marks=pytest.mark.slow)], ids=["few", "all"])
def test_no_forged_key_share_or_vector_ends_a_run_with_secure_sums(only: tuple[str, ...], tmp_path: Path) -> None:
    """The liar is refused, or its round is begun again without it; or the others' shares are enough."""

    def some(value: Any) -> Iterator[tuple[str, Any]]:
        yield from ((what, lie) for what, lie in forged(value) if what.endswith(only))

    told = set()
    for step, what, failures, _ in lived("fedavg+secure_sum", tmp_path, some):
        told.add(step)
        assert failures.keys() <= {LIAR}, (step, what, failures)
        assert failures or f"{step} {what}".startswith(HARMLESS), (step, what, "was believed")
    assert told == {"secure_keys", "secure_shares", "train", "secure_unmask"}


@pytest.mark.parametrize("kind", [lies, odd])
@pytest.mark.parametrize(
    ("case", "options"),
    [
        ("grouped", {"groups": ((LIAR,), (0, 1, 2, 4, 5))}),
        ("ifca", {"weighting": "samples", "clusters": 12}),
        ("flsc", {"weighting": "samples", "clusters": 12}),
        ("maxfl_hcct", {}),
    ],
)
def test_a_liar_that_is_a_group_of_its_own_ends_no_run(
    case: str, options: dict[str, Any], kind: Any, tmp_path: Path
) -> None:
    """There a mean has its weight only, and its model is all there is."""
    for step, what, failures, ignored in lived(case, tmp_path, functools.partial(joining, kind), **options):
        assert failures.keys() <= {LIAR}, (step, what, failures)
        assert LIAR in failures or LIAR in ignored or kind is odd, (step, what, "was believed")


@in_turn(2)
def test_no_number_that_might_be_ends_a_run(case: str, tmp_path: Path) -> None:
    """Counts of nothing or of everything, zeros, signs turned: plausible or refused, an exception never."""
    for step, what, failures, _ in lived(case, tmp_path, odd):
        assert failures.keys() <= {LIAR}, (step, what, failures)
