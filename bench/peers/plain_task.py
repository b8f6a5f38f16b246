"""No framework: a careful user's loop over clients in plain PyTorch.  The floor that many frameworks are below."""

import numpy as np
import torch
from job import Job, Journal, initial, training_data
from network import fill, network, train


def main(job: Job, journal: Journal) -> None:
    """Run it."""
    torch.set_num_threads(job.threads)
    inputs, labels = training_data(job)
    x, y = torch.from_numpy(inputs), torch.from_numpy(labels)
    journal.mark("loaded")
    draws = np.random.default_rng(0)
    net, current, steps = network(job.model), initial(job), 0
    for _ in range(job.rounds):
        sums = [np.zeros_like(p) for p in current]
        for c in draws.choice(job.clients, job.cohort, replace=False):
            rows = slice(c * job.samples, (c + 1) * job.samples)
            fill(net, current)
            steps += train(net, x[rows], y[rows], job.batch, job.lr)
            for total, p in zip(sums, net.parameters(), strict=True):
                total += p.detach().numpy()
        current = [total / job.cohort for total in sums]
        journal.mark("round")
    journal.end(current, steps, f"1 process, {job.threads} threads", "torch", "numpy")
