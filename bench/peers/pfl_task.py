"""pfl-research: one process, its own SGD, FedAvg and user sampler."""

import numpy as np
import torch
import torch.nn.functional as F
from job import Job, Journal, initial, training_data
from network import fill, network, values
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn


class Net(nn.Module):
    """The network with the two methods pfl calls."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers, self.steps = layers, 0

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Called once per training step, and nowhere else."""
        self.steps += 1
        return F.cross_entropy(self.layers(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        """pfl always evaluates its first iteration; this makes it free."""
        return {"examples": Weighted(len(y), 1)}


class Clock(TrainingProcessCallback):
    """Marks the end of each iteration."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """A round is over."""
        self._journal.mark("round")
        return False, Metrics()


def main(job: Job, journal: Journal) -> None:
    """Run it."""
    torch.set_num_threads(job.threads)
    np.random.seed(0)  # noqa: NPY002  pfl draws from the global generators
    inputs, labels = training_data(job)
    x, y = torch.from_numpy(inputs), torch.from_numpy(labels)
    journal.mark("loaded")
    net = Net(network(job.model))
    fill(net, initial(job))

    def user(c: int) -> PyTorchTensorDataset:
        order = c * job.samples + torch.randperm(job.samples)  # pfl does not shuffle
        return PyTorchTensorDataset((x[order], y[order]), user_id=str(c))

    users = FederatedDataset(user, get_user_sampler("minimize_reuse", list(range(job.clients))))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=job.rounds,
            evaluation_frequency=job.rounds + 1,
            train_cohort_size=job.cohort,
            val_cohort_size=None,
        ),
        SimulatedBackend(users, users),
        PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), 1.0)),
        NNTrainHyperParams(local_batch_size=job.batch, local_num_epochs=1, local_learning_rate=job.lr),
        NNEvalHyperParams(local_batch_size=job.samples),
        [Clock(journal)],
    )
    journal.end(values(net), net.steps, f"1 process, {job.threads} threads", "pfl", "torch", "numpy")
