"""Wrappers: each against its equation, two of them in either order, and a method that does not notice."""

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recipe import LOCAL, simulator

import unskew as us
from unskew import wire
from unskew.algorithms import resolve
from unskew.algorithms.fedavg import FedAvg, ModelReply
from unskew.errors import WireError
from unskew.keys import Key
from unskew.protocol import Layout
from unskew.tree import Params, flat
from unskew.wrappers.base import Wrapper, wrap
from unskew.wrappers.compression import ClipNorm, Levels, Quantise, TopK, packed, unpacked

FEDAVG = FedAvg(local=LOCAL)


def played(
    method: Any, rounds: int = 2, network: str = "perceptron", **options: Any
) -> tuple[Any, list[Any], list[Any]]:
    """Simulator, states (the one before round 1 first) and traces."""
    sim = simulator("fedavg", network, method=method, **options)
    states, traces = [sim.start()], []
    for t in range(1, rounds + 1):
        state, trace = sim.round(states[-1], t)
        states.append(state)
        traces.append(trace)
    return sim, states, traces


def params_of(sim: Any, state: Any) -> Params:
    params: Params = sim.method.serve(state, None)
    return params


def norm(params: Params) -> float:
    return float(flat(params).double().norm())


# ---------------------------------------------------------------- clipping
@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=9), st.floats(1e-3, 1e3))
def test_a_clipped_update_has_the_direction_it_had(values: list[float], bound: float) -> None:
    given_ = {"0/w": torch.tensor(values, dtype=torch.float64)}
    me = SimpleNamespace(layout=Layout(("w",)))
    clipped, _ = ClipNorm(bound).encode(me, given_, None)  # type: ignore[arg-type]
    size = norm(given_)
    assert norm(clipped) == pytest.approx(min(size, bound), rel=1e-6, abs=1e-12)
    torch.testing.assert_close(clipped["0/w"] * max(size, bound), given_["0/w"] * bound, rtol=1e-6, atol=1e-9)


def test_statistics_of_normalisation_layers_take_nothing_of_the_bound() -> None:
    """Of (3, 4) a bound of 1 leaves (.6, .8), however far the variance has moved."""
    me = SimpleNamespace(layout=Layout(("w",), ("var",)))
    updates = {"0/w": torch.tensor([3.0, 4.0]), "0/var": torch.tensor([100.0])}
    clipped, _ = ClipNorm(1.0).encode(me, updates, None)  # type: ignore[arg-type]
    assert clipped["0/w"].tolist() == pytest.approx([0.6, 0.8])
    assert clipped["0/var"].tolist() == [100.0]


# ---------------------------------------------------------------- top k
@given(st.lists(st.lists(st.integers(-64, 64), min_size=5, max_size=5), min_size=1, max_size=6), st.floats(0.1, 1.0))
def test_nothing_is_lost_what_was_sent_and_what_is_left_add_up(rows: list[list[int]], share: float) -> None:
    left: Params | None = None
    total = torch.zeros(5)
    for row in rows:
        sent, left = TopK(share).encode(None, {"0/w": torch.tensor(row).float()}, left)  # type: ignore[arg-type]
        total += TopK(share).decode(sent, {"0/w": torch.zeros(5)})["0/w"]
    assert left is not None
    assert (total + left["0/w"]).tolist() == torch.tensor(rows).sum(0).tolist()


@pytest.mark.parametrize(
    "by",
    [(TopK(0.01),), (Quantise(2),), (TopK(0.1), Quantise(4)), (Quantise(4), TopK(0.1)), (ClipNorm(1e-3), TopK(0.1))],
)
def test_statistics_of_normalisation_layers_travel_as_they_are(by: tuple[Wrapper, ...]) -> None:
    """A variance that gets ten rounds of left-out updates at once, or a level of two bits, may end below zero.

    With a bound on both together, statistics would leave parameters nothing of it.
    """
    sim, states, _ = played(wrap(FEDAVG, *by), rounds=1, network="normalised", codec=True)
    plain, others, _ = played(FEDAVG, rounds=1, network="normalised")
    buffers = sim.population.layout.buffers
    assert buffers
    for name in buffers:
        assert torch.equal(params_of(sim, states[1])[name], params_of(plain, others[1])[name])
    assert not any(key.partition("/")[2] in buffers for m in sim.memory.at(1).values() for key in residual_of(m))


def residual_of(memory: Any) -> Params:
    """What a client has left out, in whichever layer of its memory it stands."""
    while memory is not None and not getattr(memory, "residual", None):
        memory = getattr(memory, "of", None)
    return {} if memory is None else memory.residual["train"]


# ---------------------------------------------------------------- quantisation
def test_quantisation_is_right_on_average() -> None:
    """2,000 draws of a number between two levels a step apart err by at most step / 2 / sqrt(2000): five of those."""
    by, values = Quantise(3), torch.linspace(-1.0, 1.0, 41, dtype=torch.float64)
    population = simulator("fedavg", "perceptron").population
    total = torch.zeros_like(values)
    for i in range(2000):
        sent, _ = by.encode(population.me(0, 1, Key(i)), {"0/w": values}, None)
        total += by.decode(sent, {"0/w": values})["0/w"]
    assert float((total / 2000 - values).abs().max()) < 5 * (1 / 3) / 2 / math.sqrt(2000)


def test_tensors_are_rounded_by_draws_of_their_own() -> None:
    """Two tensors of the same 10,000 numbers half-way between levels: rounding up in one says nothing of the other."""
    values = torch.cat([torch.ones(1), torch.full((10_000,), 0.5)])  # 2 bits: 0 or 1
    me = simulator("fedavg", "perceptron").population.me(0, 1, Key(5))
    both = {"0/v": values, "0/w": values}
    v, w = (t[1:] for t in Quantise(2).decode(Quantise(2).encode(me, both, None)[0], both).values())
    assert set(v.tolist()) == {0.0, 1.0}
    assert abs(float(torch.corrcoef(torch.stack([v, w]))[0, 1])) < 4 / math.sqrt(10_000)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_largest_number_has_the_last_level_however_scales_are_rounded(sign: float) -> None:
    """In float32 x (127 / x) is 127.00001 for a fifth of all x, and one such number in 131,000 was lifted to 128."""
    by = Quantise(8)
    largest = next(x for x in torch.rand(100, generator=Key(0).generator()) if x * (127 / x) > 127)
    values = {"0/w": torch.full((2_000_000,), sign * float(largest))}
    me = simulator("fedavg", "perceptron").population.me(0, 1, Key(5))
    sent, _ = by.encode(me, values, None)
    assert torch.allclose(by.decode(sent, values)["0/w"], values["0/w"], rtol=1e-6)


@given(st.lists(st.integers(0, 255), max_size=40), st.integers(2, 8))
def test_numbers_of_some_bits_read_back_equal(numbers: list[int], bits: int) -> None:
    small = torch.tensor([n % 2**bits for n in numbers], dtype=torch.uint8)
    code = packed(small, bits)
    assert len(code) == -(-len(numbers) * bits // 8)
    assert unpacked(code, bits, len(numbers)).tolist() == small.tolist()


# ---------------------------------------------------------------- the method does not notice
@dataclass(frozen=True)
class Praised(FedAvg):
    """A method with a hook that no wrapper has heard of."""

    def praise(self, state: Any, word: str = "fine") -> str:
        return f"{word}: {len(state.params)} tensors"


def test_a_hook_that_a_wrapper_does_not_know_is_handed_on_with_the_methods_own_state() -> None:
    for by in (us.DW(), ClipNorm(1.0), TopK(0.5)):
        sim, states, _ = played(wrap(Praised(local=LOCAL), by, us.DW() if not isinstance(by, us.DW) else Quantise()), 1)
        assert sim.method.praise(states[1]) == "fine: 4 tensors"
        assert sim.method.praise(states[1], word="good") == "good: 4 tensors"
        with pytest.raises(AttributeError, match="has no blame"):
            sim.method.blame(states[1])


@dataclass(frozen=True)
class Quiet(Wrapper):
    """A wrapper that changes nothing."""


@pytest.mark.parametrize("name", ["fedavg", "fedper", "hcct", "feddif", "scaffold", "ifca", "independent", "gossip"])
def test_a_wrapper_that_changes_nothing_changes_nothing(name: str) -> None:
    method = resolve(name)(local=LOCAL)
    plain, states, traces = played(method)
    sim, others, same = played(wrap(method, Quiet()))
    assert wire.encode(others[-1]) == wire.encode(states[-1])
    assert [t.transfers for t in same] == [t.transfers for t in traces]
    assert wire.memory_type(sim.method) == wire.memory_type(method)
    clients = plain.population.clients
    torch.testing.assert_close(
        sim.own_models(others[-1], clients, 2), plain.own_models(states[-1], clients, 2), rtol=0, atol=0
    )


# ---------------------------------------------------------------- what cannot be


LAYOUT = Layout(("w", "b"))
MODEL = {"w": torch.zeros(4), "b": torch.zeros(2)}


@pytest.mark.parametrize(
    ("names", "sent", "said"),
    [
        (((7,),), Levels(torch.zeros(1, dtype=torch.uint8), (torch.ones(1),)), "tensors of the model that was sent"),
        (((1, 1),), Levels(torch.zeros(1, dtype=torch.uint8), (torch.ones(1),)), "each once"),
        ((), Levels(torch.zeros(1, dtype=torch.uint8), ()), "tensors of 1 uploads, got 0"),
        (((),), Levels(torch.zeros(1, dtype=torch.uint8), (torch.ones(2),)), "6 levels of 4 bits are 3 bytes"),
        (((),), Levels(torch.full((3,), 255, dtype=torch.uint8), (torch.ones(2),)), "a level must be at most 14"),
        (((),), Levels(torch.zeros(3, dtype=torch.uint8), (torch.ones(1),)), "need a scale each"),
    ],
)
def test_a_forged_upload_is_refused_before_it_is_used(names: Any, sent: Any, said: str) -> None:
    by = wrap(FEDAVG, Quantise(4))
    reply = Quantise.Reply(ModelReply({}, 3), names, sent)
    with pytest.raises(WireError, match=said):
        by.validate_reply("train", reply, MODEL, LAYOUT)


@pytest.mark.parametrize("beside", [{"w": torch.ones(4)}, {"v": torch.ones(3)}, {"z": torch.ones(1)}])
def test_forged_statistics_are_refused(beside: Params) -> None:
    """A parameter, a variance of another length, and what the model does not have."""
    layout, model = Layout(("w", "b"), ("v",)), {**MODEL, "v": torch.ones(2)}
    sent = Levels(torch.zeros(3, dtype=torch.uint8), (torch.ones(2),))
    with pytest.raises(WireError, match="may keep only buffers of the model that was sent"):
        wrap(FEDAVG, Quantise(4)).validate_reply(
            "train", Quantise.Reply(ModelReply(beside, 3), ((),), sent), model, layout
        )
