import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unskew.errors import ConfigError, ProtocolError
from unskew.keys import Key
from unskew.protocol import (
    Ask,
    Constant,
    Exponential,
    Federation,
    Held,
    Keep,
    Layout,
    Probe,
    Schedule,
    Scheduler,
    Sgd,
    SgdConfig,
    collect,
    drive,
    fit,
    map_held,
    map_keep,
    probe,
    refuse_request,
    step,
    steps_of,
)

LAYOUT = Layout(
    trainable=("conv1.weight", "norm1.weight", "norm1.bias", "conv10.weight", "head.weight", "head.bias"),
    buffers=("norm1.running_mean", "norm1.running_var"),
    head=("head.weight", "head.bias"),
    norm=("norm1.weight", "norm1.bias", "norm1.running_mean", "norm1.running_var"),
    classifier="head.weight",
)


def federation(n: int = 10, m: int = 4, seed: int = 0, round: int = 1) -> Federation:
    key = Key(seed) / "server" / round
    return Federation(tuple(range(n)), 3, LAYOUT, round, key, m, lambda _: {})


# ---------------------------------------------------------------- drive
def test_answers_reach_the_generator_and_its_value_comes_back() -> None:
    def plan() -> Iterator[int]:
        a = yield 1
        b = yield 2
        return (a, b)

    assert drive(plan(), lambda want: want * 10) == (10, 20)


def test_a_failure_is_thrown_in_at_the_authors_own_line() -> None:
    def plan() -> Any:
        yield from ()
        gamma = yield from probe(3)  # the author's line
        return gamma

    def answer(want: object) -> Any:
        raise KeyError("no channel")

    with pytest.raises(KeyError) as caught:
        drive(plan(), answer)
    mine = [f for f in traceback.extract_tb(caught.value.__traceback__) if f.filename == __file__]
    lines = Path(__file__).read_text().splitlines()
    at = next(i for i, line in enumerate(lines, 1) if line.endswith("# the author's line"))
    assert at in [f.lineno for f in mine]


def test_a_plan_may_catch_a_failure_and_go_on_or_end() -> None:
    def go_on() -> Any:
        try:
            yield "fails"
        except KeyError:
            return (yield "works")

    def end() -> Any:
        try:
            yield "fails"
        except KeyError:
            return "ended"

    def answer(want: str) -> str:
        if want == "fails":
            raise KeyError(want)
        return want

    assert drive(go_on(), answer) == "works"
    assert drive(end(), answer) == "ended"


def test_an_interrupt_is_not_the_plans_business() -> None:
    def plan() -> Any:
        try:
            yield 1
        except BaseException:
            return "swallowed"

    def answer(want: object) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drive(plan(), answer)


@pytest.mark.parametrize(
    ("who", "want", "text"),
    [
        ("plan", Sgd({}, SgdConfig()), "a plan may yield Ask, AsTheyCome, Collect or Probe, not Sgd$"),
        ("step", Ask("train", {}), "a step may yield Sgd, Fold or Run, not Ask$"),
        ("step", fit({}, SgdConfig()), 'a step may yield Sgd, Fold or Run, not generator: write "yield from"'),
        ("plan", None, "not NoneType$"),
    ],
)
def test_a_foreign_request_is_refused_with_what_may_be_yielded(who: Any, want: object, text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        refuse_request(who, want)


# ---------------------------------------------------------------- steps
class Base:
    @step
    def train(self) -> int:
        return 1

    @step
    def bid(self) -> int:
        return 2

    def personalise(self) -> int:
        return 3


class Derived(Base):
    def bid(self) -> int:
        return 4


def test_only_marked_methods_are_steps_and_an_unmarked_override_is_none() -> None:
    assert {n: f() for n, f in steps_of(Base()).items()} == {"train": 1, "bid": 2}
    assert set(steps_of(Derived())) == {"train"}


# ---------------------------------------------------------------- held and kept values, at any depth
@dataclass(frozen=True)
class Leaf:
    value: Any
    rest: int = 0


@dataclass(frozen=True)
class Tree:
    parts: Any


HANDLE = Held(1, "k")


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (HANDLE, "moved"),
        (Leaf(HANDLE), Leaf("moved")),
        (Tree((Leaf(HANDLE), {"a": (HANDLE, 3)})), Tree((Leaf("moved"), {"a": ("moved", 3)}))),
        ([HANDLE, [Leaf(HANDLE)]], ["moved", [Leaf("moved")]]),
        ({"a": {"b": [HANDLE]}}, {"a": {"b": ["moved"]}}),
    ],
)
def test_every_held_value_in_a_message_is_found(tree: Any, expected: Any) -> None:
    seen: list[Held] = []

    def move(held: Held) -> str:
        seen.append(held)
        return "moved"

    assert map_held(move, tree) == expected
    assert set(seen) == {HANDLE}


@pytest.mark.parametrize("tree", [Tree((Leaf(1), {"a": [torch.zeros(1)]})), (), {}, [], None, 3])
def test_a_message_without_held_values_is_left_as_it_is(tree: Any) -> None:
    assert map_held(lambda held: "moved", tree) is tree


def test_kept_values_are_found_with_the_path_to_them() -> None:
    tree = Tree((Leaf(Keep(1)), {"a": [Keep(2), 7]}, Keep((Keep(3),))))
    kept: dict[str, Any] = {}

    def keep(value: Keep, path: str) -> Held:
        kept[path] = value.value
        return Held(0, path)

    replaced = map_keep(keep, tree)
    assert kept == {"/parts/0/value": 1, "/parts/1/a/0": 2, "/parts/2": (Keep(3),)}
    assert replaced.parts[1] == {"a": [Held(0, "/parts/1/a/0"), 7]}


def test_collect_takes_handles_only() -> None:
    with pytest.raises(ProtocolError, match=r"wrap what must stay on the client in Keep"):
        drive(collect([HANDLE, {"w": torch.zeros(1)}]), lambda want: want)
    assert drive(collect([HANDLE]), lambda want: [h.key for h in want.held]) == ["k"]
    assert drive(probe(2), lambda want: want) == Probe(2)


# ---------------------------------------------------------------- layout
@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (("all",), {*LAYOUT.trainable, *LAYOUT.buffers}),
        (("head",), set(LAYOUT.head)),
        (("body",), {*LAYOUT.trainable, *LAYOUT.buffers} - set(LAYOUT.head)),
        (("norm",), set(LAYOUT.norm)),
        (("buffers",), set(LAYOUT.buffers)),
        (("conv1.",), {"conv1.weight"}),
        (("conv1",), {"conv1.weight"}),
        (("head.bias", "buffers"), {"head.bias", *LAYOUT.buffers}),
        ((), set()),
    ],
)
def test_groups_of_tensors(groups: tuple[str, ...], expected: set[str]) -> None:
    assert LAYOUT.select(groups) == expected


def test_a_group_that_is_empty_is_no_error_but_an_unknown_name_is() -> None:
    bare = Layout(("w",))
    assert bare.select(("norm", "buffers", "head")) == frozenset()
    with pytest.raises(
        ConfigError,
        match=r"no tensor of the model is called 'haed', or in a layer of that name, .*; choose from all, body, head",
    ):
        LAYOUT.select(("haed",))


def test_what_is_frozen_is_in_no_group_and_is_not_said_to_be_missing() -> None:
    layout = Layout(("head.weight",), head=("head.weight",), frozen=("body.weight", "bn.weight"))
    assert layout.select(("all",)) == {"head.weight"}
    assert layout.select(("body", "norm")) == frozenset()
    with pytest.raises(
        ConfigError, match=r"called 'body\.weight', or in a layer of that name, and not frozen or constant"
    ):
        layout.select(("head", "body.weight"))


@pytest.mark.parametrize("group", ["head", "norm"])
def test_a_single_word_in_place_of_a_tuple_is_refused(group: str) -> None:
    """A string is a sequence of letters, and "n" is the start of a name."""
    with pytest.raises(ConfigError, match=rf"\['{group}'\]"):
        LAYOUT.select(group)


# ---------------------------------------------------------------- SgdConfig and schedules
def test_epochs_and_steps_exclude_each_other_and_nesterov_needs_momentum() -> None:
    with pytest.raises(ConfigError, match="exclude each other"):
        SgdConfig(local_epochs=2, local_steps=3)
    with pytest.raises(ConfigError, match="nesterov needs momentum > 0"):
        SgdConfig(nesterov=True)
    with pytest.raises(ConfigError, match=r"Scheduler\('StepLR'"):
        SgdConfig(lr_schedule=torch.optim.lr_scheduler.StepLR)
    assert [SgdConfig(**of).epochs for of in ({}, {"local_epochs": 5}, {"local_steps": 5})] == [1, 5, None]


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (Constant(), {1: 1.0, 100: 1.0}),
        (Exponential(0.5), {1: 1.0, 2: 0.5, 4: 0.125}),
        # cos(0) = 1, cos(pi/4) = sqrt(1/2), cos(pi/2) = 0, cos(pi) = -1.
        (Scheduler("CosineAnnealingLR", {"T_max": 4}), {1: 1.0, 2: (1 + 0.5**0.5) / 2, 3: 0.5, 5: 0.0}),
        (Scheduler("MultiStepLR", {"milestones": [2, 4]}), {1: 1.0, 2: 1.0, 3: 0.1, 4: 0.1, 5: 0.01}),
    ],
)
def test_schedules_by_hand(schedule: Schedule, factors: dict[int, float]) -> None:
    config = SgdConfig(lr=0.2, lr_schedule=schedule)
    for round, factor in factors.items():
        assert schedule(round) == pytest.approx(factor, abs=1e-15)
        assert config.lr_at(round) == pytest.approx(0.2 * factor, abs=1e-15)


# ---------------------------------------------------------------- the cohort
@given(st.integers(1, 20), st.integers(1, 25), st.integers(0, 50))
def test_a_cohort_is_sorted_without_repetition_of_the_size_asked_and_the_same_each_time(
    n: int, m: int, seed: int
) -> None:
    cohort = federation(n, m, seed).sample()
    assert cohort == tuple(sorted(set(cohort)))
    assert len(cohort) == min(n, m)
    assert set(cohort) <= set(range(n))
    assert federation(n, m, seed).sample() == cohort


def test_rounds_and_seeds_have_their_own_cohorts() -> None:
    cohorts = {federation(seed=s, round=r).sample() for s in range(5) for r in range(5)}
    assert len(cohorts) > 15


def test_every_client_is_drawn_about_equally_often() -> None:
    """Of 2000 cohorts of 4 out of 10 each client is in 800, with a standard deviation of sqrt(2000 * .4 * .6) = 22."""
    counts = Counter(c for r in range(2000) for c in federation(round=r).sample())
    assert all(abs(counts[c] - 800) < 5 * 22 for c in range(10))


def test_one_client_is_drawn_in_proportion_to_its_weight() -> None:
    """Shares 1/10, 2/10, 3/10, 4/10 of 3000 draws; the largest standard deviation is sqrt(3000 * .4 * .6) = 27."""
    counts = Counter(federation(4, round=r).sample(1, weights=[1, 2, 3, 4])[0] for r in range(3000))
    assert all(abs(counts[c] - 300 * (c + 1)) < 5 * 27 for c in range(4))


def test_a_client_without_weight_is_never_drawn() -> None:
    for r in range(50):
        assert federation(4, round=r).sample(3, weights=[1, 0, 5, 0]) == (0, 2)


@pytest.mark.parametrize(
    "weights", [[1.0], [1.0] * 9, [1.0] * 9 + [-1.0], [1.0] * 9 + [float("nan")], [1.0] * 9 + [float("inf")]]
)
def test_weights_that_mean_nothing_are_refused(weights: list[float]) -> None:
    with pytest.raises(ProtocolError, match=r"sample\(\) needs a finite weight >= 0 for each of 10 clients"):
        federation(10).sample(3, weights=weights)
