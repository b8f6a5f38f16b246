"""The audit: its bound by hand, and that it tells a true claim from a false one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import unskew as us
from unskew.errors import ConfigError
from unskew.experiment import config
from unskew.experiment.config import Experiment, Method
from unskew.report.audit_figure import document
from unskew.run.audit import Audit, audit, lower_bound, p_value


def experiment(rounds: int = 2, clients: int = 20) -> Experiment:
    return config.parse(
        {
            "rounds": rounds,
            "task": {"data": "digits", "model": "logistic"},
            "split": {"name": "iid", "num_clients": clients},
            "methods": [{"name": "fedavg", "local": {"local_steps": 1}}],
        }
    )


def attacked(by: Any, runs: int = 2, **options: Any) -> Audit:
    method = Method("private", "fedavg", {}, us.wrap(us.FedAvg(local=us.SgdConfig(local_steps=1)), by))
    return audit(experiment(**options), method, runs)


@dataclass(frozen=True)
class Broken(us.CentralDP):
    """Noise ten times too small for the epsilon that is claimed."""

    def sum_noise(self, cohort: int) -> float:
        return super().sum_noise(cohort) / 10


def test_all_of_ten_guesses_right_have_the_bound_that_follows_by_hand() -> None:
    """Without delta P(10 of 10) = q^10 = .05 at q = .7411, and epsilon = ln(q / (1 - q)) = 1.0516 (eq. 1)."""
    assert lower_bound(10, 10, 10, 0.0, 0.95) == pytest.approx(1.0516, abs=1e-3)
    assert lower_bound(10, 10, 5, 0.0, 0.95) == 0.0
    # delta = .001, two canaries, one guess that is right: 1/2 + 2 * 2 * .001 * P(B = 0) / 1 = .502 at epsilon 0.
    assert p_value(0.0, 1e-3, 2, 1, 1) == pytest.approx(0.502)
    assert lower_bound(10, 10, 10, 1e-2, 0.95) < lower_bound(10, 10, 10, 0.0, 0.95)


def test_a_claim_that_is_true_is_not_refuted_and_one_with_too_little_noise_is() -> None:
    """z = 20: epsilon .5 or so; noise of a tenth of it is z = 2, under which most coins are guessed."""
    true, false = attacked(us.CentralDP(noise_multiplier=20.0)), attacked(Broken(noise_multiplier=20.0))
    assert true.claimed == false.claimed < 1.0
    assert true.holds
    assert not false.holds, false


def test_more_noise_lowers_the_bound() -> None:
    bounds = [attacked(us.CentralDP(noise_multiplier=z)).lower for z in (0.0, 3.0, 30.0)]
    assert bounds[0] > bounds[1] > bounds[2]


def test_clients_noise_is_attacked_at_the_server_which_sees_each_upload() -> None:
    quiet, loud = (attacked(us.LocalDP(noise_multiplier=z)) for z in (0.1, 100.0))
    assert quiet.lower > 1.5 > loud.lower
    assert quiet.holds
    assert loud.holds


def test_a_method_without_privacy_is_refused() -> None:
    made = experiment()
    with pytest.raises(ConfigError, match="an audit needs"):
        audit(made, made.methods[0])


def test_the_figure_says_what_was_found(tmp_path: Path) -> None:
    found = Audit("private", 2.5, 1.25, 0.95, 1e-5, 40, 20, 18, ())
    text = document([found])
    assert "private at least 1.25, claimed 2.5" in text
    assert text.startswith("<svg")
