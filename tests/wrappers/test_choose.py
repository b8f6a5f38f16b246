"""Functions of one's own as settings: who takes part, weights in the mean, and learning rates."""

import math
from typing import Any

import pytest
import torch
from recipe import LOCAL, bits, rounds, simulator

import unskew as us
from unskew.algorithms import resolve
from unskew.algorithms.fedavg import ModelReply, average, mean_of, weights_of
from unskew.errors import ConfigError, ProtocolError
from unskew.ledger import SERVER, node


def run(method: Any, until: int = 2) -> tuple[list[set[int]], dict[str, bytes]]:
    """Who trained in each round, and the end."""
    sim = simulator("fedavg", "perceptron", method=method)
    done = list(rounds(sim, until))
    return [{row.src - node(0) for row in trace.transfers if row.src != SERVER} for *_, trace in done], bits(
        sim, done[-1][1]
    )


def test_whoever_is_chosen_trains() -> None:
    method = us.wrap(us.FedAvg(local=LOCAL), us.ChooseClients(lambda fed: {fed.round, 4}))
    assert run(method)[0] == [{1, 4}, {2, 4}]


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "feddif", "fedswap", "ditto+dw"])
def test_a_choice_by_the_usual_draw_changes_nothing(name: str) -> None:
    method = resolve(name)(local=LOCAL)
    assert run(us.wrap(method, us.ChooseClients(lambda fed: fed.sample())))[1] == run(method)[1]


def test_weights_of_zero_are_never_drawn() -> None:
    one = us.wrap(
        us.FedAvg(local=LOCAL), us.ChooseClients(lambda fed: fed.sample(2, [float(c > 3) for c in fed.clients]))
    )
    assert all(len(cohort) == 2 and min(cohort) > 3 for cohort in run(one)[0])


def test_one_choice_is_made_within_another() -> None:
    even = us.ChooseClients(lambda fed: [c for c in fed.clients if c % 2 == 0])
    first = us.ChooseClients(lambda fed: fed.sample()[:2])
    assert run(us.wrap(us.FedAvg(local=LOCAL), first, even))[0] == [{0, 2}] * 2


def test_a_choice_of_nobody_or_of_strangers_is_refused() -> None:
    for cohort in ((), (99,)):
        with pytest.raises(ProtocolError, match="choose must return some of"):
            run(us.wrap(us.FedAvg(local=LOCAL), us.ChooseClients(lambda fed, cohort=cohort: cohort)))  # type: ignore[misc]


def test_noise_that_is_accounted_for_even_draws_goes_with_no_choice() -> None:
    choose, noise = us.ChooseClients(lambda fed: fed.clients[:2]), us.CentralDP(clip=1.0)
    for order in ((choose, noise), (noise, choose)):
        with pytest.raises(ConfigError, match="uniform cohorts; leave ChooseClients out"):
            us.wrap(us.FedAvg(local=LOCAL, weighting="uniform"), *order)


def test_weights_are_a_function_of_the_number_of_examples() -> None:
    """Of 1 and 9 examples by root: 1 / 4 and 3 / 4."""
    assert weights_of([1, 9], math.sqrt) == [0.25, 0.75]
    a, b = {"w": torch.tensor([0.0])}, {"w": torch.tensor([4.0])}
    assert average([a, b], [1, 9], math.sqrt)["w"].item() == 3.0
    weight = mean_of("params", math.sqrt).weight
    assert callable(weight)
    assert weight(0, ModelReply(a, 9)) == 3.0


@pytest.mark.parametrize("name", ["fedavg", "fednova", "qfedavg", "ifca", "hcct", "fedbuff"])
def test_a_function_of_one_or_of_n_is_the_weighting_of_that_name(name: str) -> None:
    method = resolve(name)
    assert run(method(local=LOCAL, weighting=float))[1] == run(method(local=LOCAL, weighting="samples"))[1]
    assert run(method(local=LOCAL, weighting=lambda n: 1.0))[1] == run(method(local=LOCAL, weighting="uniform"))[1]


def test_simulate_takes_functions_as_settings() -> None:
    def ends(method: Any) -> float:
        history = us.simulate(method, data="digits", split=us.IID(4), rounds=2, progress=False)
        return history.value(history.methods[0], "global.accuracy")

    by_hand = us.FedAvg(us.SgdConfig(lr_schedule=lambda t: 0.5 ** (t - 1)), weighting=float)
    assert ends(by_hand) == ends(us.FedAvg(us.SgdConfig(lr_schedule=us.Exponential(0.5)))) != ends(us.FedAvg())
    assert us.SgdConfig(lr=2.0, step_schedule=lambda step: 1 / step).step_schedule(4) == 0.25
