"""Accuracy of a final model on the common test set: python judge.py MODEL DATA.npz FINAL.npz prints one number.

One judge for all contenders; it refuses models whose shapes are not the network's.  Runs in unskew's environment.
"""

import sys

import numpy as np
import torch
from network import fill, network

if __name__ == "__main__":
    net = network(sys.argv[1])
    with np.load(sys.argv[3]) as file:
        params = [file[f"p{i}"] for i in range(len(file.files))]
    expected = [tuple(p.shape) for p in net.parameters()]
    if [p.shape for p in params] != expected:
        raise SystemExit(f"{sys.argv[3]}: expected {expected}, got {[p.shape for p in params]}")
    fill(net, params)
    with np.load(sys.argv[2]) as file, torch.no_grad():
        right = net(torch.from_numpy(file["x_test"])).argmax(1) == torch.from_numpy(file["y_test"])
    print(float(right.float().mean()))
