"""Your own network: any function that builds a module which returns logits; what makes them is found by running it.

python examples/own_model.py [ROUNDS]
"""

import sys

from torch import nn

import unskew as us


def network(input_shape: tuple[int, ...], num_classes: int, *, width: int = 8) -> nn.Module:
    """Two convolutions and a linear layer; `width` can be set from outside."""
    channels, height, columns = input_shape
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.GroupNorm(2, width),  # not BatchNorm, whose statistics are what clients disagree about
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * (height // 2) * (columns // 2), num_classes),
    )


def main(rounds: int = 10) -> None:
    # The module's name is how a run folder says which network it was; in a package of yours it is "package.file".
    task = us.TaskConfig(data="digits", model=f"{__name__}:network", model_options={"width": 4})
    history = us.simulate(us.FedAvg(), task=task, split=us.Dirichlet(alpha=0.3, num_clients=10), rounds=rounds)
    print(history)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
