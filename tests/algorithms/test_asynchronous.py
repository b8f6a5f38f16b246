"""FedBuff and FedAsync by hand, on clients of different speed, and where they are FedAvg."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from recipe import LOCAL, simulator

import unskew as us
from unskew.keys import Key
from unskew.protocol import SgdConfig
from unskew.world.pace import Errand

ONE = SgdConfig(lr=0.5, local_steps=1, batch_size=None)
"""One step on all of a client's data; at springs y = w - .5 (w - m)."""

M = [4.0, -2.0, 8.0]


@dataclass(frozen=True)
class Given:
    """Three clients that train for 1, 1.5 and 4 seconds."""

    name: str = "given"

    def seconds(self, key: Key, errand: Errand) -> float:
        return (1.0, 1.5, 4.0)[errand.client]


def test_a_stale_update_counts_less(springs: Any, value: Any) -> None:
    """K = 1.  1 s: client 0 sends 2, w = 2.  1.5 s: client 1 sends -1, one step old: w = 2 - 1 / sqrt 2.

    2 s: client 0 sends .5 (4 - 2) = 1 from w = 2, one step old: w = 2.  These three steps are a round.
    """
    play = springs(m=M).play(us.FedBuff(buffer=1, local=ONE), 1, pace=Given())
    assert value(play.params[-1]) == pytest.approx(2.0)
    assert (play.states[-1].steps, play.traces[0].clock) == (3, 2.0)
    assert {c: (u.stamp, u.left_s) for c, u in play.states[-1].under_way.items()} == {1: (2, 1.0), 2: (0, 2.0)}


@pytest.mark.parametrize("eta", [1.0, 0.5])
def test_a_full_buffer_is_a_step(eta: float, springs: Any, value: Any) -> None:
    """K = 2, eta 1.  1.5 s: updates 2 and -1, w = .5.  3 s: 1.75 and -1.25 from there, w = .75.

    4 s: client 0 sends 1.625, and client 2 the 4 it made of w = 0, two steps old: w = .75 + (1.625 + 4 / sqrt 3) / 2.
    """
    play = springs(m=M).play(us.FedBuff(buffer=2, server_lr=eta, local=ONE), 3, pace=Given())
    assert [t.clock for t in play.traces] == [1.5, 1.5, 1.0]
    if eta == 1.0:
        assert [value(p) for p in play.params] == pytest.approx([0.0, 0.5, 0.75, 0.75 + (1.625 + 4 / 3**0.5) / 2])
    else:
        assert value(play.params[1]) == pytest.approx(0.25)


@pytest.mark.parametrize(("buffer", "eta"), [(1, 1.0), (6, 2.0)])
def test_no_variance_falls_below_zero(buffer: int, eta: float) -> None:
    """A stale fall of a variance counted in full after one like it, or a fresh one twice, went beyond it."""
    method = us.FedBuff(buffer=buffer, server_lr=eta, local=replace(LOCAL, local_epochs=8))
    sim = simulator("fedavg", "normalised", method=method, clients_per_round=6, pace=us.Devices(spread=1.5), seed=3)
    state = sim.start()
    for t in range(1, 9):
        state, _ = sim.round(state, t)
        assert all(bool((v > 0).all()) for n, v in state.params.items() if n.endswith("running_var"))


def test_a_stale_model_is_mixed_in_less(springs: Any, value: Any) -> None:
    """alpha = 1/2, s = 1 / (1 + tau).  1 s: y = 2, w = 1.  1.5 s: y = -1, one step old: w = .75 - .25 = .5.

    2 s: client 0's y = 1 + .5 (4 - 1) = 2.5, one step old: w = .375 + .625 = 1.
    """
    play = springs(m=M).play(us.FedAsync(alpha=0.5, a=1.0, rho=0.0, local=ONE), 1, pace=Given())
    assert value(play.params[-1]) == pytest.approx(1.0)
    assert play.traces[0].clock == 2.0


def test_the_pull_is_to_the_model_that_was_sent(springs: Any, value: Any) -> None:
    """rho = 1, two steps from 0: y = 2, then 2 - .5 ((2 - 4) + 2) = 2; without the pull 3."""
    two = SgdConfig(lr=0.5, local_steps=2, batch_size=None)
    for rho, y in ((1.0, 2.0), (0.0, 3.0)):
        play = springs(m=[4.0]).play(us.FedAsync(alpha=1.0, rho=rho, local=two), 1)
        assert value(play.params[-1]) == pytest.approx(y)


@pytest.mark.parametrize(
    ("staleness", "tau", "share"),
    [("constant", 9, 1.0), ("polynomial", 3, 0.5), ("hinge", 4, 1.0), ("hinge", 6, 0.5)],
)
def test_staleness_by_hand(staleness: Any, tau: int, share: float) -> None:
    """(1 + 3)^-1/2 and 1 / (.5 (6 - 4) + 1) are 1/2."""
    assert us.FedAsync(staleness=staleness, a=0.5, b=4).share(tau) == pytest.approx(share)


def test_with_a_buffer_for_the_cohort_it_is_fedavg_whatever_the_speeds(classes: Any, equal: Any) -> None:
    local = SgdConfig(lr=0.2, batch_size=4)
    buffered = us.FedBuff(local=local, weighting="samples")
    one = classes(n=(8, 5, 9)).play(buffered, 3, pace=Given(), clients_per_round=2)
    equal(one.params, classes(n=(8, 5, 9)).play(us.FedAvg(local), 3, clients_per_round=2).params)


def test_one_client_at_work_that_replaces_the_model_is_fedavg_with_cohorts_of_one(classes: Any, equal: Any) -> None:
    local = SgdConfig(lr=0.2, batch_size=4)
    one = classes().play(us.FedAsync(alpha=1.0, rho=0.0, local=local), 4, clients_per_round=1)
    equal(one.params, classes().play(us.FedAvg(local), 4, clients_per_round=1).params)


@pytest.mark.parametrize("method", [us.FedBuff(buffer=2), us.FedAsync()])
def test_wrappers_that_change_single_updates_go_with_them_and_others_are_refused(method: Any) -> None:
    us.check_method(us.wrap(method, us.ClipNorm(0.1)))
    for by in (us.TopK(), us.Quantise(), us.Median(), us.CentralDP(), us.LocalDP(), us.DPSGD(), us.SecureSum()):
        with pytest.raises(us.ConfigError, match=f"takes replies as they come; leave {type(by).__name__} out"):
            us.wrap(method, by)
