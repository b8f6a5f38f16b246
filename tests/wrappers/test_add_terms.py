"""Terms of one's own around any method."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from recipe import LOCAL, bits, rounds, simulator

import unskew as us
from unskew.algorithms import resolve
from unskew.errors import ProtocolError
from unskew.protocol import Aux, Me, Run, Step, step
from unskew.tree import Params


@dataclass(frozen=True)
class Pull:
    mu: float = 0.5

    def __call__(self, params: Params, aux: Aux) -> torch.Tensor:
        return self.mu / 2 * torch.stack([(w - aux["anchor"][n]).square().sum() for n, w in params.items()]).sum()


def end(method: Any) -> dict[str, bytes]:
    sim = simulator("fedavg", "perceptron", method=method)
    *_, (_, state, _) = rounds(sim)
    return bits(sim, state)


def test_fedavg_with_terms_around_it_is_fedavg_with_terms_in_it() -> None:
    fedavg = us.FedAvg(local=LOCAL)
    assert end(us.wrap(fedavg, us.AddTerms((Pull(),)))) == end(us.FedAvg(local=LOCAL, terms=(Pull(),))) != end(fedavg)
    assert end(us.wrap(fedavg, us.AddTerms(()))) == end(fedavg)


@pytest.mark.parametrize("name", ["scaffold", "moon", "fedrep", "ditto", "fedprox+dw", "fedavg+local_dp"])
def test_terms_change_the_training_of_any_method(name: str) -> None:
    method = resolve(name)(local=LOCAL)
    assert end(us.wrap(method, us.AddTerms((Pull(),)))) != end(method)


@dataclass(frozen=True)
class OwnCode(us.FedAvg):
    """Trains by code of its own."""

    @step
    def train(self, me: Me, msg: Any, memory: Params | None) -> Step[tuple[Any, Params | None]]:
        yield Run(lambda local: None)
        return msg, memory


OwnCode.train.__annotations__.update(us.FedAvg.train.__annotations__)


def test_a_step_whose_training_no_term_can_join_is_refused() -> None:
    with pytest.raises(ProtocolError, match="step 'train' of OwnCode runs its own code; leave AddTerms out"):
        end(us.wrap(OwnCode(local=LOCAL), us.AddTerms((Pull(),))))
    with pytest.raises(ProtocolError, match="step 'train' of FedAvg with DPSGD runs its own code"):
        end(us.wrap(resolve("fedavg+dp_sgd")(local=LOCAL), us.AddTerms((Pull(),))))
