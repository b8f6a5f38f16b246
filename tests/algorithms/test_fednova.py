"""FedNova: the weights of gradients, and what dividing by them does."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unskew.algorithms.fednova import FedNova, FedNovaReply, responses, work
from unskew.algorithms.parts import steps_of
from unskew.errors import WireError
from unskew.local.optim import optimiser
from unskew.protocol import Layout, SgdConfig
from unskew.wrappers.base import wrap
from unskew.wrappers.robust import GeometricMedian, Median, MultiKrum, TrimmedMean

MOMENTUM = st.floats(0.0, 0.99)


@given(st.integers(1, 60), MOMENTUM)
def test_work_under_momentum_has_the_published_closed_form(tau: int, rho: float) -> None:
    """[tau - rho (1 - rho^tau) / (1 - rho)] / (1 - rho), and the recurrence cnt <- rho cnt + 1, a += cnt."""
    assert work(tau, momentum=rho) == pytest.approx((tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho), rel=1e-8)
    count = total = 0.0
    for _ in range(tau):
        count = rho * count + 1.0
        total += count
    assert work(tau, momentum=rho) == pytest.approx(total, rel=1e-9)


@given(st.integers(1, 12), MOMENTUM, st.floats(0.0, 5.0), st.integers(0, 1000))
def test_a_displacement_is_the_weighted_sum_of_gradients(tau: int, rho: float, mu: float, seed: int) -> None:
    """I-9, for momentum, pull and both: random gradients through the optimiser that clients use."""
    lr = 0.1
    gradients = torch.randn(tau, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    w = torch.zeros(3, dtype=torch.float64)
    update = optimiser(SgdConfig(lr=lr, momentum=rho), lr, w, lambda vector: [vector])
    for g in gradients:
        update(w, g + mu * w)
    a = torch.tensor(responses(tau, rho, lr * mu), dtype=torch.float64)
    torch.testing.assert_close(w, -lr * (a[:, None] * gradients).sum(0), rtol=1e-9, atol=1e-9)
    if mu == 0.0:
        assert a.tolist() == pytest.approx([(1 - rho ** (tau - j)) / (1 - rho) for j in range(tau)])


def test_what_is_sent_is_the_update_per_unit_of_work(springs: Any, spy: Any) -> None:
    """5 steps, momentum .5: [5 - .5 (1 - 1/32) / .5] / .5 = 8.0625.  The model itself moves by 8.0625 times d."""
    with spy() as messages:
        play = springs(m=[8.0]).play(FedNova(local=SgdConfig(lr=0.1, local_steps=5, momentum=0.5)), 1, codec=True)
    (up,) = [m for m in messages if hasattr(m, "norm")]
    assert float(up.delta["head.weight"]) * 8.0625 == pytest.approx(float(play.params[1]["head.weight"]))
    assert up.norm == pytest.approx(8.0625)
    assert up.n == 1


@pytest.mark.parametrize(
    "rule",
    [TrimmedMean(0.0), TrimmedMean(0.2), Median(), GeometricMedian(), MultiKrum(1)],
    ids=lambda rule: type(rule).__name__,
)
def test_where_clients_differ_in_work_alone_a_robust_mean_is_its_own_step(rule: Any, springs: Any, value: Any) -> None:
    """A slope that does not depend on w, g = -1: F_k = (w - m)^2 a / 2 with a = 1e-8 and m = 1e8, so g = a (w - m).

    At lr .5 client k takes n_k = 1, 1, 1, 4, 8 steps, so D_k = .5 n_k and d_k = .5 for all, whose centre is .5.
    Uniform: tau_eff = 15 / 5 = 3, w = 3 * .5 = 1.5.  By samples: tau_eff = (3 + 16 + 64) / 15 = 83 / 15, w = 83 / 30.
    A centre of D_k instead, divided by each client's work, would be 1.5 * 3 * mean(1 / n_k) = 1.5 * 3 * .675 = 3.04.
    """
    world = springs(m=[1e8] * 5, a=[1e-8] * 5, n=[1, 1, 1, 4, 8])
    local = SgdConfig(lr=0.5, local_epochs=1, batch_size=1)
    for weighting, w in (("uniform", 1.5), ("samples", 83 / 30)):
        method = FedNova(local=local, weighting=weighting)
        for played in (method, wrap(method, rule)):
            assert value(world.play(played, 1).params[1]) == pytest.approx(w, rel=1e-6)


@given(st.integers(1, 200), st.integers(1, 3), st.integers(1, 9), st.floats(0.0, 0.95), st.floats(0.0, 1.0))
def test_work_that_honest_clients_make_is_admitted(n: int, epochs: int, batch: int, rho: float, pull: float) -> None:
    """Up to the strongest pull under which gradient descent settles, eta mu = 2 (1 + rho)."""
    mu = 2.0 * (1.0 + rho) * pull
    nova = FedNova(mu=mu, local=SgdConfig(lr=1.0, local_epochs=epochs, batch_size=batch, momentum=rho))
    done = work(steps_of(nova.local, n), rho, mu)
    assert done <= nova.most(n)
    if done >= 1.0:
        nova.validate_reply("train", FedNovaReply({}, done, n), {}, Layout(()))


@pytest.mark.parametrize(("local_steps", "n", "norm"), [(None, 10, 6.1), (None, 1, 2.1), (4, 10**6, 4.1), (4, 1, 0.9)])
def test_work_that_no_client_can_make_is_refused(local_steps: int | None, n: int, norm: float) -> None:
    """Two epochs in batches of 4: 6 steps on 10 examples and 2 on 1; or 4 steps on however many."""
    epochs = None if local_steps else 2
    nova = FedNova(local=SgdConfig(local_epochs=epochs, local_steps=local_steps, batch_size=4))
    with pytest.raises(WireError, match=f"local work on {n} examples must be 1 to [0-9.]+ gradient steps, got {norm}"):
        nova.validate_reply("train", FedNovaReply({}, norm, n), {}, Layout(()))
