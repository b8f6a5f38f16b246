"""A pretrained network, fine-tuned by clients that keep their data, and saved as any PyTorch module is.

Here it is trained beforehand on 150 digits; clients hold 1,250 others, and the last 397 are the global test set.

python examples/finetune_pretrained.py [ROUNDS]
"""

import sys
import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import unskew as us


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def pretrained(x: Tensor, y: Tensor) -> nn.Module:
    torch.manual_seed(0)
    model = network()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    return model


def main(rounds: int = 10) -> None:
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    history = us.simulate(
        {"FedAvg": us.FedAvg(us.SgdConfig(lr=0.3, local_epochs=2))},
        data=(x[150:1400], y[150:1400]),
        test=(x[1400:], y[1400:]),
        model=pretrained(x[:150], y[:150]),  # its weights are where every method and seed begins
        split=us.Dirichlet(alpha=0.3, num_clients=10),
        rounds=rounds,
    )
    tuned = history.model("FedAvg")  # a plain module; history.model("FedAvg", client=3) is client 3's
    with tempfile.TemporaryDirectory() as folder:
        torch.save(tuned.state_dict(), Path(folder) / "tuned.pt")
        again = network()
        again.load_state_dict(torch.load(Path(folder) / "tuned.pt", weights_only=True))
    right = (again(x[1400:]).argmax(1) == y[1400:]).float().mean().item()
    (_, before), *_, (_, after) = history.curve("FedAvg")
    print("loaded without unskew:", "the same" if abs(right - after) < 1e-6 else "another", "accuracy")
    print(f"before {100 * before:.1f} %, after {100 * after:.1f} %")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
