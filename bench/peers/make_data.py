"""Write the data and the first models that all contenders read: python make_data.py FOLDER CLIENTS SAMPLES.

Class means plus noise, in the shapes of MNIST and CIFAR-10; labels are uniform, so clients are alike.  Runs in unskew's
environment.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from network import network

TEST = 2000
# Scale of the class means against noise of 1: after ten rounds of ten clients the models are good, but not perfect.
SHAPES = {"mlp": ((1, 28, 28), 0.22), "cnn": ((3, 32, 32), 0.45)}


def make(folder: Path, clients: int, samples: int) -> None:
    """Write MODEL.npz (x, y, x_test, y_test) and MODEL-initial.npz (p0, p1, ...) for both models."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (model, (shape, scale)) in enumerate(SHAPES.items()):
        draws = np.random.default_rng([3, number])
        means = scale * draws.standard_normal((10, *shape), dtype=np.float32)
        n = clients * samples + TEST
        y = draws.integers(10, size=n)
        x = draws.standard_normal((n, *shape), dtype=np.float32)
        x += means[y]
        np.savez(folder / f"{model}.npz", x=x[:-TEST], y=y[:-TEST], x_test=x[-TEST:], y_test=y[-TEST:])
        with torch.random.fork_rng():
            torch.manual_seed(number)
            first = [p.detach().numpy() for p in network(model).parameters()]
        np.savez(folder / f"{model}-initial.npz", **{f"p{i}": p for i, p in enumerate(first)})


if __name__ == "__main__":
    make(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
