"""Two methods on real handwritten digits whose labels twenty clients share unevenly.

python examples/quickstart.py [ROUNDS]
"""

import sys

import unskew as us


def main(rounds: int = 20) -> None:
    methods = {"FedAvg": us.FedAvg(), "SCAFFOLD": us.SCAFFOLD()}
    history = us.simulate(methods, data="digits", split=us.Dirichlet(alpha=0.1, num_clients=20), rounds=rounds)
    print(history)
    print("FedAvg by round:", " ".join(f"{accuracy:.2f}" for _, accuracy in history.curve("FedAvg")))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
