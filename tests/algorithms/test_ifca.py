"""IFCA: everybody trains what fits best; models that begin apart find the groups, and others are refused."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.ifca import IFCA, IFCAReply, nearest
from unskew.info import Refused
from unskew.keys import Key
from unskew.protocol import SgdConfig
from unskew.tree import Params

STEP = SgdConfig(lr=0.5, local_steps=1, batch_size=None)
SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3)


def beginning(world: Any, models: Sequence[Params]) -> Any:
    """The same clients, with these initial models: the first is the common one, the others are drawn."""

    def initialise(key: Key) -> Params:
        return models[int(key.path[-1])]

    population = dataclasses.replace(world.population, initial=models[0], initialise=initialise)
    return dataclasses.replace(world, population=population)


def points(*values: float) -> list[Params]:
    """Models of the springs' world."""
    return [{"head.weight": torch.tensor([[v]], dtype=torch.float64)} for v in values]


# ---------------------------------------------------------------- one round by hand
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [2.5, -5.0]),
        ({"weighting": "samples"}, [2.75, -5.0]),
        ({"averaging": "gradient"}, [5 / 3, -3.0]),
        ({"averaging": "gradient", "weighting": "samples"}, [11 / 6, -3.0]),
    ],
)
def test_a_round_by_hand(options: dict[str, Any], expected: list[float], springs: Any, value: Any) -> None:
    """F_k = (w - m_k)^2 / 2 with m = 4, 6, -8 of 1, 3, 2 examples; models 0 and -2, one step of lr .5.

    Losses at 0 and -2: 8, 18; 18, 32; 32, 18.  So y = 2, 3 for model 0 and -5 for model 1.
    Means: (2 + 3) / 2, (2 + 3 * 3) / 4.  Gradients: 0 + (2 + 3) / 3 and -2 - 3 / 3; (2 + 9) / 6 and -2 - 2 * 3 / 6.
    """
    world = beginning(springs(m=[4.0, 6.0, -8.0], n=[1, 3, 2]), points(0.0, -2.0))
    play = world.play(IFCA(clusters=2, local=STEP, **options), 1)
    state = play.states[-1]
    assert [value(m) for m in state.models] == pytest.approx(expected)
    assert state.chosen == {0: 0, 1: 0, 2: 1}
    assert [value(play.own(c)) for c in range(3)] == pytest.approx([expected[0], expected[0], expected[1]])
    info = play.sim.algorithm.info(state)
    assert info.groups == ((0, 1), (2,))
    assert info.chosen == {0: 0, 1: 0, 2: 1}
    assert info.warnings == info.ties == info.ignored == ()


def test_the_gradient_variant_divides_by_all_who_replied(classes: Any, equal: Any) -> None:
    """theta_j - lr / M sum_{S_j} grad F_k(theta_j), with gradients taken by autograd at the models as they were."""
    world, local = classes(n=[8] * 4), SgdConfig(lr=0.3, local_steps=1, batch_size=None)
    play = world.play(IFCA(clusters=2, averaging="gradient", local=local), 1)
    before, after = play.states
    module = world.task.module().double()
    for j in range(2):
        expected = dict(before.models[j])
        for c in (c for c in range(4) if after.chosen[c] == j):
            rows = world.device_data.train[c]
            leaves = {n: t.clone().requires_grad_() for n, t in before.models[j].items()}
            logits = torch.func.functional_call(module, leaves, (world.device_data.x[rows],))
            loss = torch.nn.functional.cross_entropy(logits, world.device_data.y[rows])
            gradients = torch.autograd.grad(loss, list(leaves.values()))
            expected = {n: t - 0.3 / 4 * g for (n, t), g in zip(expected.items(), gradients, strict=True)}
        equal(after.models[j], expected)


# ---------------------------------------------------------------- invariants


def test_permuted_starts_give_permuted_results(classes: Any, equal: Any) -> None:
    """I-27."""
    world = classes(n=[8] * 5)
    models = [world.population.initialise(Key(7) / j) for j in range(3)]
    ends = []
    for order in ((0, 1, 2), (2, 0, 1)):
        play = beginning(world, [models[j] for j in order]).play(IFCA(clusters=3, local=SMALL))
        end = play.states[-1]
        ends.append({order[j]: (end.models[j], [c for c in end.chosen if end.chosen[c] == j]) for j in range(3)})
    assert len({tuple(members) for _, members in ends[0].values()}) > 1
    for j in range(3):
        equal(ends[0][j][0], ends[1][j][0], atol=0.0)
        assert ends[0][j][1] == ends[1][j][1]


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=1, max_size=6), st.data())
def test_the_nearest_are_the_best_with_ties_to_the_lowest(losses: list[float], data: st.DataObject) -> None:
    n = data.draw(st.integers(1, len(losses)))
    ids = nearest(losses, n)
    assert len(set(ids)) == n
    assert list(ids) == sorted(ids)
    for i in ids:
        for j in set(range(len(losses))) - set(ids):
            assert (losses[i], i) < (losses[j], j)


# ---------------------------------------------------------------- a shared body
def test_with_clustered_heads_there_is_one_body(classes: Any, equal: Any) -> None:
    world = classes(n=[8] * 6, norm=True)
    play = world.play(IFCA(clusters=3, clustered=("head",), local=SMALL))
    assert len(set(play.states[-1].chosen.values())) > 1
    for state in play.states:
        heads = {tuple(m["head.bias"].tolist()) for m in state.models}
        assert len(heads) == 3
        for model in state.models[1:]:
            equal({n: t for n, t in model.items() if "head" not in n}, only_body(state.models[0]), atol=0.0)
    assert not torch.equal(play.states[1].models[0]["fc.weight"], play.states[0].models[0]["fc.weight"])


def only_body(model: Params) -> Params:
    return {n: t for n, t in model.items() if "head" not in n}


def test_the_shared_body_is_the_mean_over_all_who_replied(classes: Any, equal: Any) -> None:
    """Nothing clustered but a bias that all clients' models have alike in value: the rest is FedAvg's first round."""
    world = classes(n=[4, 7, 9, 3])
    first = world.population.initial
    other = {**first, "head.bias": first["head.bias"] + 50.0}  # a common shift of all logits changes no loss but a tie
    play = beginning(world, [first, other]).play(IFCA(clusters=2, clustered=("head.bias",), local=SMALL), 1)
    plain = world.play(FedAvg(SMALL, "uniform"), 1)
    got, expected = play.states[1].models[1], plain.params[1]
    equal({n: got[n] for n in got if n != "head.bias"}, {n: expected[n] for n in expected if n != "head.bias"})


# ---------------------------------------------------------------- wire, losses, absence
@pytest.mark.parametrize(("clustered", "down"), [(("all",), 3 * 63), (("head",), 45 + 3 * 18)])
def test_all_models_go_down_and_one_comes_up(clustered: Any, down: int, classes: Any, spy: Any, floats: Any) -> None:
    """I-42: P + Q = 53 + 10, of which the head has 18; down M (P_body + K P_own), up M P, and M numbers of clusters."""
    with spy() as messages:
        classes(norm=True).play(IFCA(clusters=3, clustered=clustered, local=SMALL), 1, clients_per_round=2)
    assert [floats(m) for m in messages] == [down, down, 63, 63]


def test_a_reply_for_no_cluster_is_ignored_and_said(classes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes from another machine is checked; the other clients go on."""
    post_init = IFCAReply.__init__

    def lie(self: Any, params: Params, n: int, cluster: int, tied: bool) -> None:
        post_init(self, params, n, 9 if n == 5 else cluster, tied)

    monkeypatch.setattr(IFCAReply, "__init__", lie)
    play = classes(n=[8, 5, 8]).play(IFCA(clusters=2, local=SMALL), 1)
    info = play.sim.algorithm.info(play.states[-1])
    assert info.ignored == (Refused(1, "train", "named no cluster below 2"),)
    assert sorted(info.chosen) == [0, 2]
