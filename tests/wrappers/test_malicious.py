"""Malicious clients in a run: who attacks, what honest clients notice, what is measured, and what a defence does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from recipe import LOCAL, simulator

import unskew as us
from unskew.algorithms.fedavg import FedAvg
from unskew.errors import ConfigError
from unskew.experiment.config import Experiment
from unskew.keys import Key
from unskew.record.logs import rows as recorded
from unskew.run import attack, loop
from unskew.run import setup as run_setup
from unskew.tree import Params, map_params
from unskew.world.attack import ALIE, IPM, Attack, Backdoor, SignFlip
from unskew.wrappers.base import Wrapped, wrap
from unskew.wrappers.malicious import ColludingAttack, IndependentAttack, with_attack

Tiny = Callable[..., Experiment]
UNIFORM = FedAvg(local=LOCAL, weighting="uniform")


def moved(method: Any) -> Params:
    """How far a round moves the model."""
    sim = simulator("fedavg", "perceptron", method=method, clients_per_round=6)
    state, _ = sim.round(sim.start(), 1)
    model: Params = sim.method.serve(state, None)
    return map_params(torch.sub, model, sim.population.initial)


def test_if_everybody_flips_signs_the_model_goes_the_other_way() -> None:
    forged = moved(with_attack(UNIFORM, SignFlip(1.0), 6, Key(0)))
    torch.testing.assert_close(forged, {n: -t for n, t in moved(UNIFORM).items()}, rtol=1e-4, atol=1e-6)


def test_attackers_that_see_all_send_what_their_equation_says() -> None:
    """Three of six send -2 times the mean h of the other three: the mean is (3 h - 3 * 2 h) / 6 = -h / 2."""
    malicious = IPM(0.5).malicious(6, Key(0))

    class Only(Attack):
        uploads, fraction, name = True, 0.0, "only"

        def forge(self, update: Params, honest: Any, malicious: int, key: Key) -> Params:
            return {n: torch.zeros_like(t) for n, t in update.items()}

    half = moved(wrap(UNIFORM, IndependentAttack(Only(), malicious)))  # the mean of h and three zeros is h / 2
    forged = moved(with_attack(UNIFORM, IPM(0.5, epsilon=2.0), 6, Key(0)))
    torch.testing.assert_close(forged, {n: -t for n, t in half.items()}, rtol=1e-4, atol=1e-6)


def test_on_a_network_a_liar_goes_by_its_own_update_or_is_refused() -> None:
    assert isinstance(with_attack(UNIFORM, IPM(), 6, Key(0)).by, ColludingAttack)
    assert isinstance(with_attack(UNIFORM, IPM(), 6, Key(0), simulated=False).by, IndependentAttack)
    with pytest.raises(ConfigError, match="'ALIE' needs the replies of honest clients, which a client on a net"):
        with_attack(UNIFORM, ALIE(), 6, Key(0), simulated=False)


def test_a_lie_is_told_after_an_honest_client_would_have_clipped() -> None:
    clipped = moved(with_attack(wrap(UNIFORM, us.ClipNorm(1e-3)), SignFlip(1.0, scale=1e4), 6, Key(0)))
    assert float(torch.cat([t.flatten() for t in clipped.values()]).norm()) > 1.0


def test_a_median_stands_where_a_mean_falls() -> None:
    """Two of six send 100 times the opposite of what they learned."""
    honest = torch.cat([t.flatten() for t in moved(UNIFORM).values()])
    for method, follows in ((UNIFORM, False), (wrap(UNIFORM, us.TrimmedMean(0.34)), True)):
        lied = moved(with_attack(method, SignFlip(0.34, scale=100.0), 6, Key(0)))
        assert (float(honest @ torch.cat([t.flatten() for t in lied.values()])) > 0.0) is follows


# ---------------------------------------------------------------- in a run
def test_attackers_train_on_poisoned_examples_and_nothing_else_is_changed(tiny: Tiny) -> None:
    experiment = tiny("world.attack={name='label_flip', fraction=0.5}")
    setup = run_setup.prepare(experiment)
    fed = run_setup.divide(experiment, setup.dataset, 0)
    trainer, _, _ = run_setup.clients(run_setup.PreparedRun(experiment, setup, {0: fed}), experiment.methods[0], 0)
    lied = (trainer.device_data.y != setup.dataset.y_train).nonzero()[:, 0]
    malicious = experiment.world.attack.malicious(4, Key(0))
    of_malicious = torch.cat([fed.clients.train[c] for c in malicious])
    assert len(malicious) == 2
    assert set(lied.tolist()) <= set(of_malicious.tolist())
    assert torch.equal(trainer.device_data.y[of_malicious], 9 - setup.dataset.y_train[of_malicious])
    assert torch.equal(trainer.device_data.x, setup.dataset.x_train)
    assert list(attack.honest(experiment.world.attack, range(4), 4, 0)) == [c for c in range(4) if c not in malicious]


def test_a_backdoor_is_measured_and_attackers_are_not(tiny: Tiny, tmp_path: Path) -> None:
    """Three of four malicious clients that mark everything: the model takes nearly all marked examples for class 7."""
    of_world = "world.attack={name='backdoor', fraction=0.75, target=7, share=1.0, boost=2.0}"
    folder = loop.start(tiny("rounds=2", "local.local_epochs=3", of_world), tmp_path / "run").folder
    rows = list(recorded(folder, "metrics"))
    success = [row["value"] for row in rows if row["name"] == attack.ATTACK_SUCCESS]
    assert len(success) == 3
    assert success[-1] > 0.9
    honest = {row["client"] for row in rows if row["name"] == "personal.accuracy" and "client" in row}
    assert honest == set(range(4)) - Backdoor(0.75).malicious(4, Key(0))


def test_attackers_stand_outside_every_other_wrapper(tiny: Tiny) -> None:
    experiment = tiny("world.attack={name='sign_flip', fraction=0.5}", methods='[[methods]]\nname="fedavg+clip_norm"\n')
    method = run_setup.played(experiment, experiment.methods[0], 0, 4)
    assert isinstance(method, Wrapped)
    assert isinstance(method.by, IndependentAttack)
    assert isinstance(method.of.by, us.ClipNorm)
