"""Your own arrays and your own network: ten lines.

python examples/own_arrays_own_module.py [ROUNDS]
"""

import sys

from sklearn.datasets import load_digits
from torch import nn

import unskew as us


def main(rounds: int = 15) -> None:
    x, y = load_digits(return_X_y=True)  # any arrays or tensors; labels may be words
    network = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))  # any module
    split = us.Dirichlet(alpha=0.3, num_clients=10)
    methods = us.FedAvg(us.SgdConfig(lr=0.5, local_epochs=2))
    history = us.simulate(methods, data=(x / 16, y), model=network, split=split, rounds=rounds)
    print(history)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
