"""Terms of one's own around any method."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from recipe import LOCAL, bits, rounds, simulator

import unskew as us
from unskew.algorithms import resolve
from unskew.errors import ConfigError, ProtocolError
from unskew.experiment import from_python
from unskew.protocol import Aux, Me, Run, Step, step
from unskew.tree import Params


@dataclass(frozen=True)
class Pull:
    mu: float = 0.5

    def __call__(self, params: Params, aux: Aux) -> torch.Tensor:
        return self.mu / 2 * torch.stack([(w - aux["anchor"][n]).square().sum() for n, w in params.items()]).sum()


def end(algorithm: Any) -> dict[str, bytes]:
    sim = simulator("fedavg", "perceptron", algorithm=algorithm)
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


@pytest.mark.parametrize(
    ("wrong", "got", "example"),
    [
        (Pull(), "one Pull", r"Pull\(\.\.\.\)"),
        (Pull, "the class Pull", r"Pull\(\.\.\.\)"),
        ((Pull,), "the class Pull", r"Pull\(\.\.\.\)"),
        ((0.1,), "0.1 among them", "my_term"),
        (None, "None", "my_term"),
        (len, "one builtin_function_or_method", "my_term"),
    ],
)
def test_terms_that_are_no_tuple_are_refused_with_how_to_write_them(wrong: Any, got: str, example: str) -> None:
    sentence = rf"terms must be a tuple of terms, got {got}; write terms=\({example},\), with the comma$"
    with pytest.raises(ConfigError, match=rf"^FedAvg\.{sentence}"):
        us.FedAvg(terms=wrong)
    with pytest.raises(ConfigError, match=rf"^AddTerms\.{sentence}"):
        us.AddTerms(wrong)


@dataclass(frozen=True)
class OwnCode(us.FedAvg):
    """Trains by code of its own."""

    @step
    def train(self, me: Me, msg: Any, memory: Params | None) -> Step[tuple[Any, Params | None]]:
        yield Run(lambda local: None)
        return msg, memory


OwnCode.train.__annotations__.update(us.FedAvg.train.__annotations__)


def test_a_step_whose_training_no_term_can_join_is_refused() -> None:
    with pytest.raises(ProtocolError, match="step 'train' of OwnCode has code of its own instead; leave AddTerms out"):
        end(us.wrap(OwnCode(local=LOCAL), us.AddTerms((Pull(),))))
    with pytest.raises(ProtocolError, match="step 'train' of FedAvg with DPSGD has code of its own instead"):
        end(us.wrap(resolve("fedavg+dp_sgd")(local=LOCAL), us.AddTerms((Pull(),))))


def test_a_run_names_a_method_with_terms_and_keeps_it() -> None:
    made = from_python.method_of(us.wrap(us.SCAFFOLD(), us.AddTerms((Pull(),))))
    assert made.label == "SCAFFOLD+unskew.wrappers.terms:AddTerms"
