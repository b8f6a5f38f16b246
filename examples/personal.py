"""One model for all, a model with a head of one's own (FedPer), or no federation at all?

Judged on each client's own test data; "worst tenth" is the mean of the tenth of the clients that fare worst.

python examples/personal.py [ROUNDS]
"""

import sys

import unskew as us


def main(rounds: int = 15) -> None:
    local = us.SgdConfig(lr=0.1, local_epochs=2)
    methods = {
        "alone": us.Independent(local),
        "FedAvg": us.FedAvg(local),
        "own head": us.FedAvg(local, personal=("head",)),  # the classification layer never leaves a client
    }
    history = us.simulate(methods, split=us.Pathological(classes_per_client=3, num_clients=20), rounds=rounds)
    print("method     own data   worst tenth   MB")
    for label in methods:
        own = history.value(label, "personal.accuracy.mean")
        worst = history.value(label, "personal.accuracy.worst_decile")
        megabytes = history.value(label, "bytes.total") / 1e6
        print(f"{label:9}  {100 * own:6.1f} %  {100 * worst:9.1f} %  {megabytes:5.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
