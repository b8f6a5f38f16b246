"""FedProx by somebody who has read the paper: ten lines with their imports, and unskew's own to the last bit.

What a method adds to the clients' loss is a value: a frozen dataclass called with the parameters, and with what the
step passed along; FedAvg passes the received model under the name `anchor`.

python examples/write_your_own.py [ROUNDS]
"""

import sys
from dataclasses import dataclass

from torch import Tensor

import unskew as us


@dataclass(frozen=True)
class Pull:
    mu: float

    def __call__(self, params: dict[str, Tensor], aux: dict) -> Tensor:
        return self.mu / 2 * sum((w - aux["anchor"][n]).square().sum() for n, w in params.items())


def my_fedprox(mu: float, local: us.SgdConfig) -> us.FedAvg:
    return us.FedAvg(local, terms=(Pull(mu),))


def main(rounds: int = 10) -> None:
    local = us.SgdConfig(lr=0.1, local_epochs=5)
    methods = {"FedAvg": us.FedAvg(local), "mine": my_fedprox(1.0, local), "unskew's": us.FedProx(1.0, local)}
    history = us.simulate(methods, split=us.Dirichlet(alpha=0.1, num_clients=10), rounds=rounds)
    print(history)
    loss = {label: history.curve(label, "global.loss") for label in methods}
    print("mine equals unskew's to the last bit:", loss["mine"] == loss["unskew's"])
    print("mine differs from FedAvg:", loss["mine"] != loss["FedAvg"])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
