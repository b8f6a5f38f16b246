"""A method of one's own with both halves new: signs with error feedback, after Karimireddy et al., ICML 2019.

A client sends one sign per weight and one scale per tensor, and remembers what the signs left out.  A table that is no
model says in its type what its tensors are.

python examples/new_server_rule.py [ROUNDS]
"""

import sys
from dataclasses import dataclass

import torch
from jaxtyping import Float32, Int8
from torch import Tensor

import unskew as us
from unskew.protocol import ClientId, Federation, Me, Plan, Step, ask, sgd, step
from unskew.reduction import weighted_mean
from unskew.tree import Params, map_params, zeros_like


@dataclass(frozen=True)
class Signs:
    sign: dict[str, Int8[Tensor, "..."]]  # in the model's shapes; the ledger weighs a quarter of a float32
    scale: dict[str, Float32[Tensor, ""]]


@dataclass(frozen=True)
class SignedFedAvg:
    server_lr: float = 1.0
    local: us.SgdConfig = us.SgdConfig(local_epochs=2)

    def init(self, params: Params, fed: Federation) -> Params:
        return params

    def round(self, state: Params, fed: Federation) -> Plan[Params]:
        replies = yield from ask(self.train, {c: state for c in fed.sample()})
        meant = [map_params(torch.mul, r.sign, r.scale) for r in replies.values()]
        return map_params(lambda w, d: w + self.server_lr * d, state, weighted_mean(meant, [1.0] * len(meant)))

    @step
    def train(self, me: Me, msg: Params, memory: Params | None) -> Step[tuple[Signs, Params | None]]:
        w = yield from sgd(msg, self.local)
        wanted = map_params(lambda new, old, e: new - old + e, w, msg, memory or zeros_like(msg))
        sign, scale = (map_params(f, wanted) for f in (lambda t: t.sign().to(torch.int8), lambda t: t.abs().mean()))
        return Signs(sign, scale), map_params(lambda t, s, a: t - s * a, wanted, sign, scale)

    def serve(self, state: Params, client: ClientId | None) -> Params:
        return state


def main(rounds: int = 15) -> None:
    methods = {"FedAvg": us.FedAvg(SignedFedAvg.local), "signs": SignedFedAvg()}
    history = us.simulate(methods, split=us.Dirichlet(alpha=0.3, num_clients=10), rounds=rounds)
    print(history)
    print(f"up: {history.value('signs', 'bytes.up') / history.value('FedAvg', 'bytes.up'):.2f} of FedAvg's bytes")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
