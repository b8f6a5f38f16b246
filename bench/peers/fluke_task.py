"""fluke: one process, its own FedAvg, clients and data loader; nothing is evaluated."""

import sys
import types
import warnings
from importlib.machinery import ModuleSpec

import numpy as np
import torch

# fluke imports data sets and networks of torchvision, whose operators cannot be loaded beside a CPU build of PyTorch.
for name in ("", ".datasets", ".datasets.utils", ".models", ".transforms"):
    stand_in = types.ModuleType("torchvision" + name)
    stand_in.__getattr__ = lambda part: type(part, (), {})
    stand_in.__spec__, stand_in.__file__ = ModuleSpec(stand_in.__name__, None), __file__
    sys.modules[stand_in.__name__] = stand_in

from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.server import Server
from fluke.utils import FederationObserver
from job import Job, Journal, initial, training_data
from network import fill, network, values
from torch import Tensor, nn


class Counted(nn.CrossEntropyLoss):
    """The loss, which a client calls once per step and nobody else."""

    steps = 0

    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        """Count, then the loss."""
        Counted.steps += 1
        return super().forward(logits, y)


class Clock(FederationObserver):
    """Marks the end of each round."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def end_round(self, round: int) -> None:
        """A round is over."""
        self._journal.mark("round")


class Federation(FedAVG):
    """Its evaluations and the last copies to clients left out, as nothing else evaluates."""

    def _compute_evaluation(self, *_: object) -> None:
        pass

    def finalize(self) -> None:
        """Nothing."""
        FlukeENV().close_cache()


def main(job: Job, journal: Journal) -> None:
    """Run it."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(job.threads)
    np.random.seed()  # noqa: NPY002  fluke draws from the global generators
    inputs, labels = training_data(job)
    x, y = torch.from_numpy(inputs), torch.from_numpy(labels)
    journal.mark("loaded")
    net = network(job.model)
    fill(net, initial(job))
    optimizer = OptimizerConfigurator(DDict(name="SGD", lr=job.lr), DDict(name="StepLR", step_size=1, gamma=1.0))

    def client(c: int) -> Client:
        rows = slice(c * job.samples, (c + 1) * job.samples)
        loader = FastDataLoader(x[rows], y[rows], num_labels=10, batch_size=job.batch, shuffle=True)
        return Client(c, loader, None, optimizer, Counted(), local_epochs=1)

    clients = [client(c) for c in range(job.clients)]
    server = Server(net, None, clients, weighted=True)
    federation = Federation(job.clients, None, DDict(), clients=clients, server=server)
    federation.set_callbacks(Clock(journal))
    federation.run(job.rounds, job.cohort / job.clients)
    journal.end(values(server.model), Counted.steps, f"1 process, {job.threads} threads", "fluke-fl", "torch", "numpy")
