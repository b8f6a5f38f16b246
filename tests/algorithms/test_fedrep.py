"""FedRep: what each phase may touch, and what each leaves."""

from typing import Any

import pytest
import torch

from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.fedbabu import FedBABU
from unskew.algorithms.fedrep import FedRep
from unskew.errors import ConfigError
from unskew.local.sequential import Sequential
from unskew.local.trainer import LocalTrainer
from unskew.protocol import Fitted, Layout, Me, Sgd, SgdConfig
from unskew.reduction import weighted_mean
from unskew.runtime.in_process import Simulator
from unskew.tree import Params
from unskew.world.outage import Outage

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3, momentum=0.9, weight_decay=0.1)
PLAIN = SgdConfig(lr=0.1, local_epochs=1, batch_size=None)
HEAD = {"head.weight", "head.bias"}
NORM = {"bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"}


class Watching(LocalTrainer):
    """Keeps every optimisation and what came of it."""

    seen: list[tuple[int, Sgd, Fitted]]

    def answer(self, me: Me, index: int, request: object) -> Any:
        value = super().answer(me, index, request)
        if isinstance(request, Sgd):
            self.seen.append((me.id, request, value))
        return value


def watched(world: Any, algorithm: Any, rounds: int = 2, **settings: Any) -> list[tuple[int, Sgd, Fitted]]:
    trainer = Watching(world.task, world.device_data, dtype=torch.float64)
    trainer.seen = []
    sim = Simulator(algorithm, world.population, Sequential(trainer), **settings)
    state = sim.start()
    for t in range(1, rounds + 1):
        state, _ = sim.round(state, t)
    return trainer.seen


def changed(before: Params, after: Params) -> set[str]:
    return {n for n in before if not torch.equal(before[n], after[n])}


@pytest.mark.parametrize("personal", [("head",), ("head", "norm")])
def test_each_phase_leaves_the_others_tensors_as_they_are(personal: tuple[str, ...], classes: Any) -> None:
    """I-21: bit-equal under momentum and weight decay; the body's BatchNorm belongs to the body."""
    world = classes(norm=True)
    own = HEAD | (NORM if "norm" in personal else set())
    everything = set(world.population.initial)
    seen = watched(world, FedRep(head_epochs=3, local=SMALL, personal=personal))
    assert len(seen) == 2 * 4 * 2
    for (client, first, head), (same, second, body) in zip(seen[::2], seen[1::2], strict=True):
        assert client == same
        assert changed(first.start, head.params) == own
        assert second.start is head.params
        assert changed(second.start, body.params) == everything - own
        assert (head.steps, body.steps) == (3 * 3, 2 * 3)


def test_two_rounds_by_hand(classes: Any, equal: Any) -> None:
    """Full batches of one client, by autograd: theta <- theta - lr g twice at the received phi, then phi once."""
    world = classes(n=[6])
    play = world.play(FedRep(head_epochs=2, local=PLAIN), rounds=2)
    module = world.task.build().double()
    module.load_state_dict(world.population.initial)
    named = dict(module.named_parameters())
    for group in (HEAD, HEAD, set(named) - HEAD) * 2:
        module.zero_grad()
        torch.nn.functional.cross_entropy(module(world.device_data.x), world.device_data.y).backward()
        with torch.no_grad():
            for n in group:
                named[n] -= 0.1 * named[n].grad
    equal(play.own(0), {n: p.detach() for n, p in named.items()}, atol=1e-12)


def test_the_head_does_not_travel_and_the_body_does(classes: Any, spy: Any, floats: Any) -> None:
    """I-42: P_phi + Q = 4*5 + 5 + 10 + 10 = 45 floats each way."""
    world = classes(norm=True)
    with spy() as messages:
        world.play(FedRep(head_epochs=1, local=SMALL), rounds=2, codec=True)
    assert {n for m in messages for n in m.params} == set(world.population.initial) - HEAD
    assert {floats(m) for m in messages} == {45}


def test_bodies_have_equal_weights_unless_told(classes: Any, equal: Any) -> None:
    world = classes(n=[4, 12])
    for weighting, weights in (("uniform", [1.0, 1.0]), ("samples", [4.0, 12.0])):
        algorithm = FedRep(head_epochs=1, local=PLAIN, weighting=weighting)  # type: ignore[arg-type]
        bodies = [f.params for _, _, f in watched(world, algorithm, rounds=1)[1::2]]
        mean = weighted_mean(bodies, weights)
        got = world.play(algorithm, 1).states[-1].params
        equal(got, {n: mean[n] for n in got}, atol=1e-12)


def test_without_personal_tensors_and_head_epochs_it_is_fedavg(classes: Any, equal: Any) -> None:
    """I-21, to the bit: the same optimisation at the same draws."""
    world = classes(n=[4, 7, 9], norm=True)
    rep = FedRep(head_epochs=0, local=SMALL, personal=(), weighting="samples")
    equal(world.play(rep).params, world.play(FedAvg(SMALL)).params, atol=0.0)


def test_with_heads_that_never_train_it_is_fedbabu(classes: Any, equal: Any) -> None:
    """tau = 0: every head stays theta^0."""
    world = classes(n=[4, 7, 9], norm=True)
    rep, babu = world.play(FedRep(head_epochs=0, local=SMALL)), world.play(FedBABU(local=SMALL, finetune="none"))
    for client in range(3):
        equal(rep.own(client), babu.own(client), atol=0.0)


def test_personal_statistics_follow_the_batches(classes: Any, equal: Any) -> None:
    """Nothing of eq. 1 is left when only buffers are personal; it is FedAvg with buffers of one's own."""
    world = classes(n=[4, 7, 9], norm=True)
    rep = world.play(FedRep(5, local=SMALL, weighting="samples", personal=("buffers",)))
    plain = world.play(FedAvg(SMALL, personal=("buffers",)))
    for client in range(3):
        equal(rep.own(client), plain.own(client), atol=0.0)


def test_absent_and_lost_clients_keep_a_whole_head(classes: Any) -> None:
    """I-20: heads of absentees are untouched; a lost reply leaves the head its client made, and the body without it."""
    sim = classes(n=[5] * 6).simulator(FedRep(2, local=SMALL), clients_per_round=3, outage=Outage(late=0.3), seed=3)
    state, stayed, lost = sim.start(), 0, 0
    for t in range(1, 7):
        before = sim.memory.at(sim.memory.round)
        state, trace = sim.round(state, t)
        reached = {x.dst - 1 for x in trace.transfers if x.direction == "down"}
        for client in sim.population.clients:
            after = sim.memory.get(client)
            assert (after is before.get(client)) == (client not in reached)
            assert after is None or set(after) == HEAD
        stayed += len(set(before) - reached)
        lost += len(trace.failures)
    assert stayed > 3
    assert lost > 1


def test_finetuning_moves_the_head_alone_and_is_forgotten(classes: Any) -> None:
    """As the authors' code does after the last round."""
    world = classes(norm=True)
    plain, tuned = (world.play(FedRep(2, local=SMALL, finetune_epochs=k), 2) for k in (0, 4))
    for client in range(4):
        assert changed(plain.own(client), tuned.own(client)) == HEAD
    assert torch.equal(tuned.own(0)["head.bias"], tuned.own(0)["head.bias"])
    assert changed(plain.sim.memory.get(0), tuned.sim.memory.get(0)) == set()


def test_all_personal_is_refused(classes: Any) -> None:
    with pytest.raises(ConfigError, match=r"FedRep's personal = \['all'\] leaves no parameter .* take independent"):
        classes().simulator(FedRep(personal=("all",))).start()


def test_a_name_that_begins_as_another_is_another() -> None:
    layout = Layout(("a.w", "a.w_scale", "b.w"), head=("b.w",))
    assert FedRep(personal=("a.w_scale",)).body(layout).trainable == ("a.w", "b.w")
    assert FedRep(personal=("head",)).body(layout).trainable == ("a.w", "a.w_scale")
