"""FedDistill and FedDistill+: the divergence, the teacher, and FedDW's variant of it."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import kl_div

from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.feddistill import ClassOutputs, Distil, FedDistill, FedDistillPlus, Reward, Teacher, taught
from unskew.algorithms.independent import Independent
from unskew.algorithms.parts import mean_by_class
from unskew.keys import Key
from unskew.protocol import Batch, SgdConfig

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3, momentum=0.5)


def batch(logits: Tensor, y: Any, mask: Tensor | None = None) -> Batch:
    n = len(logits)
    mask = torch.ones(n, dtype=logits.dtype) if mask is None else mask
    return Batch(logits, torch.tensor(y), mask, logits, logits, torch.zeros(n), lambda p: (logits, logits))


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=Key(seed).generator(), dtype=torch.float64)


def known(*flags: float) -> Tensor:
    return torch.tensor(flags, dtype=torch.float64)


# ---------------------------------------------------------------- eq. 1
def test_the_divergence_by_hand() -> None:
    """Teacher (3/4, 1/4), student (1/2, 1/2): .75 ln 1.5 + .25 ln .5 = .13081; the second example's row is unknown."""
    z = torch.tensor([[math.log(3.0), 0.0], [5.0, -5.0]], dtype=torch.float64)
    value = Distil(2.0)({}, {"z": z, "known": known(1, 0)}, batch(torch.zeros(2, 2, dtype=torch.float64), [0, 1]))
    assert value.item() == pytest.approx(2.0 * 0.13081 / 2, abs=1e-4)


def test_the_divergence_is_that_of_torch() -> None:
    logits, z, y = normal(7, 4), normal(4, 4, seed=2), [0, 1, 2, 3, 3, 2, 0]
    ours = Distil(1.0)({}, {"z": z, "known": known(1, 1, 1, 1)}, batch(logits, y))
    expected = kl_div(logits.log_softmax(1), z.softmax(1)[y], reduction="batchmean")
    assert ours.item() == pytest.approx(expected.item())
    assert ours.item() > 0


def test_it_is_zero_where_the_student_says_what_the_teacher_says_up_to_a_constant() -> None:
    """I-26; adding a constant to a row of Z changes nothing."""
    z, y = normal(3, 3), [2, 0, 1, 2]
    logits = (z[y] + normal(4, 1, seed=3)).requires_grad_()
    everything = known(1, 1, 1)
    value = Distil(1.0)({}, {"z": z, "known": everything}, batch(logits, y))
    (gradient,) = torch.autograd.grad(value, logits)
    assert value.item() == pytest.approx(0.0, abs=1e-12)
    assert float(gradient.abs().max()) < 1e-12
    other = batch(normal(4, 3, seed=4), y)
    one, two = (Distil(1.0)({}, {"z": t, "known": everything}, other) for t in (z, z + 7.0))
    assert one.item() == pytest.approx(two.item())


def test_padding_does_not_count() -> None:
    logits, z, y, mask = normal(4, 3), normal(3, 3), [0, 1, 2, 1], torch.tensor([1.0, 0.0, 1.0, 1.0]).double()
    for term in (Distil(1.0), Reward(1.0)):
        whole = term({}, {"z": z, "known": known(1, 1, 1)}, batch(logits, y, mask))
        part = term({}, {"z": z, "known": known(1, 1, 1)}, batch(logits[mask > 0], [0, 2, 1]))
        assert whole.item() == pytest.approx(part.item())


def test_the_published_variant_is_a_reward() -> None:
    """PyTorch's kl_div given probabilities where it wants their logarithms: the same gradient, -Z_y / B in them."""
    logits, z, y = normal(5, 3).requires_grad_(), normal(3, 3, seed=2).softmax(1), [0, 1, 2, 2, 1]
    (ours,) = torch.autograd.grad(Reward(1.0)({}, {"z": z}, batch(logits, y)), logits)
    (theirs,) = torch.autograd.grad(kl_div(logits.softmax(1), z[y], reduction="batchmean"), logits)
    torch.testing.assert_close(ours, theirs)


# ---------------------------------------------------------------- eq. 2
def test_the_mean_is_over_those_who_hold_the_class() -> None:
    """Class 0: client 0 says 1 (3 examples), client 1 says 5 (1): mean 3, by examples 2.  Class 1: client 1 alone."""
    means = [torch.tensor([[1.0], [0.0]]), torch.tensor([[5.0], [7.0]])]
    counts = [torch.tensor([3, 0]), torch.tensor([1, 2])]
    alike, held = mean_by_class(means, counts, "clients")
    assert (alike.tolist(), held.tolist()) == ([[3.0], [7.0]], [True, True])
    assert mean_by_class(means, counts, "examples")[0].tolist() == [[2.0], [7.0]]


def test_a_class_nobody_reports_keeps_its_row_and_stays_unknown_if_it_was() -> None:
    old = Teacher(torch.tensor([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [0.0, 0.0, 0.0]]), torch.tensor([True, True, False]))
    said = ClassOutputs(torch.tensor([[4.0, 4.0, 4.0], [0.0] * 3, [0.0] * 3]), torch.tensor([2, 0, 0]))
    new = taught(old, [said], "clients")
    assert new.z.tolist() == [[4.0] * 3, [2.0] * 3, [0.0] * 3]
    assert new.known.tolist() == [True, True, False]


def test_what_a_client_says_are_its_trained_models_mean_logits(classes: Any) -> None:
    """In evaluation mode, with the model that it keeps."""
    world = classes(n=[5, 8], norm=True)
    play = world.play(FedDistill(local=SMALL), rounds=1)
    trainer = play.sim.executor.trainer
    means, counts = [], []
    for c in (0, 1):
        rows = world.device_data.train[c]
        _, logits = trainer.refer(world.device_data.x[rows], play.own(c))
        y = world.device_data.y[rows]
        counts.append(torch.bincount(y, minlength=3))
        means.append(torch.stack([logits[y == k].sum(0) / max(int((y == k).sum()), 1) for k in range(3)]))
    expected, held = mean_by_class(means, counts, "clients")
    torch.testing.assert_close(play.states[1].z, expected, rtol=0, atol=1e-12)
    assert torch.equal(play.states[1].known, held)


# ---------------------------------------------------------------- methods
def test_without_strength_clients_are_alone_or_fedavg(classes: Any, equal: Any) -> None:
    """I-26."""
    world = classes(n=[4, 7, 9], norm=True)
    distilled, alone = (world.play(a, 3) for a in (FedDistill(lam=0.0, local=SMALL), Independent(SMALL)))
    for c in range(3):
        equal(distilled.own(c), alone.own(c), atol=0.0)
    equal(world.play(FedDistillPlus(lam=0.0, local=SMALL), 3).params, world.play(FedAvg(SMALL), 3).params, atol=0.0)


def test_the_first_round_has_no_teacher_and_the_second_has(classes: Any, equal: Any) -> None:
    world = classes(n=[4, 7, 9])
    ours, plain = (world.play(a, 2).params for a in (FedDistillPlus(lam=5.0, local=SMALL), FedAvg(SMALL)))
    equal(ours[1], plain[1])
    with pytest.raises(AssertionError):
        equal(ours[2], plain[2], atol=1e-3)


def test_there_is_no_global_model_of_own_models(classes: Any) -> None:
    play = classes().play(FedDistill(local=SMALL), rounds=1)
    assert play.params == [None, None]
    assert not all(torch.equal(play.own(0)[n], play.own(1)[n]) for n in play.own(0))


def test_a_teacher_pulls_what_clients_say_together(classes: Any) -> None:
    """What it is for: with the teacher the clients' mean outputs lie nearer to each other than without."""
    world = classes(n=[12, 12, 12])
    spread = {}
    for lam in (0.0, 20.0):
        play = world.play(FedDistill(lam=lam, local=SgdConfig(0.05, local_steps=20, batch_size=None)), rounds=8)
        own = [play.own(c) for c in range(3)]
        trainer = play.sim.executor.trainer
        out = torch.stack([trainer.refer(world.device_data.x, w)[1].softmax(1) for w in own])
        spread[lam] = float(out.std(0).mean())
    assert spread[20.0] < 0.8 * spread[0.0]


def test_feddws_variant_by_hand(classes: Any) -> None:
    """Z starts one-hot; Z <- Z / 2 + pooled means of all uploads so far / 2: probabilities, so rows sum to one."""
    world = classes(n=[6, 9])
    play = world.play(FedDistillPlus(compat="feddw", local=SMALL), rounds=3)
    z = torch.eye(3, dtype=torch.float64)
    assert torch.equal(play.states[0].teacher.z, z)
    for state in play.states[1:]:
        z = 0.5 * z + 0.5 * state.sums / state.counts[:, None]
        torch.testing.assert_close(state.teacher.z, z, rtol=0, atol=1e-12)
        torch.testing.assert_close(z.sum(1), torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-12)
    assert float(play.states[3].counts.sum()) == 45.0
    assert play.states[0].teacher.known.all()


def test_feddws_variant_leaves_rows_of_unseen_classes_one_hot(classes: Any) -> None:
    import dataclasses

    base = classes(n=[4])
    population = dataclasses.replace(base.population, histograms=torch.tensor([[2, 2, 0]]))
    device_data = dataclasses.replace(base.device_data, y=torch.tensor([0, 1, 0, 1]))
    world = dataclasses.replace(base, device_data=device_data, population=population)
    play = world.play(FedDistillPlus(compat="feddw", local=SMALL), rounds=2)
    assert play.states[2].teacher.z[2].tolist() == [0.0, 0.0, 1.0]
    own = world.play(FedDistill(local=SMALL), rounds=1)
    assert own.states[1].known.tolist() == [True, True, False]


def test_a_matrix_and_counts_travel(classes: Any, spy: Any, floats: Any) -> None:
    """I-42: C^2 = 9 numbers each way and C counts up; the known rows are C bits.  FedDistill+ adds P = 43 each way."""
    for algorithm, models in ((FedDistill(local=SMALL), 0), (FedDistillPlus(local=SMALL), 1)):
        with spy() as messages:
            classes().play(algorithm, rounds=1, clients_per_round=2)
        assert [floats(m) for m in messages] == [43 * models + 9 + 3] * 4
