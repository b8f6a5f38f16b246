"""Your own data: arrays in an npz file, divided over clients of unequal size.

Here they are 569 breast tumours of 30 measurements each (scikit-learn's `load_breast_cancer`).

python examples/own_data.py [ROUNDS]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

import unskew as us


def write(path: Path) -> None:
    x, y = load_breast_cancer(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.2, random_state=0, stratify=y)
    # Floats are taken as they are, so they are scaled here, by constants of the training part alone.
    mean, std = x_train.mean(0), x_train.std(0)
    np.savez(
        path,
        x_train=((x_train - mean) / std).astype(np.float32),
        y_train=y_train,
        x_test=((x_test - mean) / std).astype(np.float32),
        y_test=y_test,
    )


def main(rounds: int = 15) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tumours.npz"
        write(path)
        history = us.simulate(
            ["independent", "fedavg"],
            data=f"npz:{path}",
            model="logistic",
            split=us.Quantity(alpha=0.5, num_clients=10, min_samples=5),
            rounds=rounds,
            seeds=(0, 1, 2),
        )
    print(history)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
