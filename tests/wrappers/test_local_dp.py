"""Local differential privacy: a client's noise and budget, and who is accounted for or refused."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from recipe import LOCAL, simulator

import unskew as us
from unskew.algorithms import TABLE, resolve
from unskew.algorithms.fedavg import FedAvg, ModelMessage
from unskew.errors import ConfigError, DivergedError
from unskew.info import PrivacyBudget, whole
from unskew.protocol import Layout, Me, steps_of
from unskew.server import privacy
from unskew.wrappers.base import step_types, wrap
from unskew.wrappers.local_dp import uncovered

FEDAVG = FedAvg(local=LOCAL)


def me(private: int = 1, size: int = 2) -> Me:
    initial = {"w": torch.zeros(size)}
    return Me(0, 5, torch.tensor([5]), 1, us.Key(0), Layout(("w",)), initial, us.Key(private), us.Key(private))


def test_an_upload_is_clipped_before_it_gets_noise() -> None:
    """An update of (30, 40) is clipped to (.6, .8); z C = 1e-9 hardly moves it."""
    sent, left = us.LocalDP(clip=1.0, noise_multiplier=1e-9).encode(me(), {"0/w": torch.tensor([30.0, 40.0])}, None)
    torch.testing.assert_close(sent["0/w"], torch.tensor([0.6, 0.8]))
    assert left == {}


def test_the_noise_is_the_clients_own_and_has_standard_deviation_z_times_the_norm() -> None:
    """z = 3, C = .5: 1.5 on each of 40,000 numbers, up to four standard errors; another secret, other noise."""
    by, nothing = us.LocalDP(clip=0.5, noise_multiplier=3.0), {"0/w": torch.zeros(40_000)}
    one, other = (by.encode(me(secret), nothing, None)[0]["0/w"] for secret in (1, 2))
    assert float(one.std()) == pytest.approx(1.5, abs=4 * 1.5 / math.sqrt(80_000))
    assert abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) < 4 / math.sqrt(40_000)
    assert torch.equal(one, by.encode(me(1), nothing, None)[0]["0/w"])
    infinite, _ = by.encode(me(1), {"0/w": torch.full((40_000,), math.inf)}, None)
    assert torch.equal(infinite["0/w"], one)


def test_training_that_diverges_is_no_refusal_but_noise_on_nothing() -> None:
    """The server could choose a rate at which only some data diverge, and read off who refuses."""
    wild = FedAvg(local=replace(LOCAL, lr=1e30))
    sim = simulator("fedavg", "perceptron", method=wrap(wild, us.LocalDP(noise_multiplier=1.0)))
    before = sim.start()
    after, trace = sim.round(before, 1)
    assert not trace.failures
    moved = [t - sim.method.serve(before, None)[n] for n, t in sim.method.serve(after, None).items()]
    assert 0.0 < max(float(t.abs().max()) for t in moved) < 6.0
    with pytest.raises(DivergedError):
        simulator("fedavg", "perceptron", method=wild).round(before.of, 1)


def test_whole_numbers_get_noise_that_is_not_rounded_away() -> None:
    """Of a buffer of counts, two thirds were sent as they are, and told the norm of the whole update."""
    sent, _ = us.LocalDP(noise_multiplier=1.0).encode(me(), {"0/n": torch.zeros(4000, dtype=torch.int64)}, None)
    assert int((sent["0/n"] == 0).sum()) == 0
    assert float(sent["0/n"].std()) == pytest.approx(1.0, abs=0.05)


def test_each_upload_is_charged_to_the_clients_own_account_up_to_the_budget() -> None:
    budget = privacy.epsilon(3.0 / 2, 4, 1e-5)
    method = wrap(FEDAVG, us.LocalDP(noise_multiplier=3.0, max_epsilon=budget))
    (cost,) = method.spending("train", ModelMessage({}))
    assert (cost.multiplier, cost.mechanisms, cost.most) == (1.5, 1, 4)
    assert method.has_dp_noise
    assert method.uses_private_randomness
    with pytest.raises(ConfigError, match="does not allow one reply"):
        wrap(FEDAVG, us.LocalDP(noise_multiplier=0.1, max_epsilon=1.0))


def test_clients_without_budget_are_asked_no_more() -> None:
    budget = privacy.epsilon(3.0 / 2, 2, 1e-5)
    method = wrap(FEDAVG, us.LocalDP(noise_multiplier=3.0, max_epsilon=budget))
    sim = simulator("fedavg", "perceptron", method=method, clients_per_round=6)
    states = [sim.start()]
    for t in (1, 2, 3):
        states.append(sim.round(states[-1], t)[0])
    spent = [whole(sim.method.info(s), PrivacyBudget) for s in states]
    assert [i.releases for i in spent] == [0, 1, 2, 2]
    assert [bool(i.warnings) for i in spent] == [False, False, False, True]
    assert spent[2].privacy.epsilon == pytest.approx(budget, abs=1e-6)
    assert states[3].of is states[2].of


def test_compression_after_the_noise_is_covered_and_before_it_is_refused() -> None:
    """The places of the largest entries tell of the data; after noise they follow from what is noised."""
    wrap(FEDAVG, us.ClipNorm(1.0), us.LocalDP(), us.Median(), us.TopK(share=0.1), us.ClipNorm(1.0))
    with pytest.raises(ConfigError, match="sends names and code and counts without it"):
        wrap(FEDAVG, us.TopK(share=0.1), us.LocalDP())
    for order in ((us.DW(), us.LocalDP()), (us.LocalDP(), us.DW())):
        with pytest.raises(ConfigError, match="LocalDP adds noise to"):
            wrap(FEDAVG, *order)
    with pytest.raises(ConfigError, match="may let one client change"):
        wrap(FEDAVG, us.CentralDP(), us.Median())
    with pytest.raises(ConfigError, match="which is not a sum"):
        simulator("fedavg", "perceptron", method=wrap(FEDAVG, us.Median(), us.CentralDP())).start()


@pytest.mark.parametrize("name", TABLE)
def test_every_method_is_accounted_for_or_refused_before_any_work(name: str) -> None:
    """Accounted for: each step sends marked uploads and numbers of examples only, and its spending says so."""
    method = resolve(name)()
    try:
        private: Any = wrap(method, us.LocalDP())
    except ConfigError as refused:
        message = str(refused)
        assert "LocalDP" in message
        return
    for step, begin in steps_of(method).items():
        types = step_types(begin)
        assert types is not None
        assert not uncovered(types.reply, step)
        assert len(private.spending(step, None)) == private.by.applies_to(method, step, types)
