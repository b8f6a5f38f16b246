"""unskew: the simulator with its workers, every transfer counted and written to the record, as in a run."""

import secrets
import tempfile
from pathlib import Path

import torch
from job import Job, Journal, initial, training_data

from unskew import models
from unskew.algorithms.fedavg import FedAvg
from unskew.ledger import totals
from unskew.local.data import DeviceData
from unskew.local.trainer import LocalTrainer
from unskew.local.workers.executor import Workers
from unskew.local.workers.pool import Pool
from unskew.local.workers.worker import WorkerSetup
from unskew.protocol import SgdConfig
from unskew.record import database
from unskew.runtime.in_process import Population, Simulator
from unskew.tasks.task import make_task

NETWORKS = {"mlp": ("fcn", (1, 28, 28)), "cnn": ("cnn_w3", (3, 32, 32))}


def main(job: Job, journal: Journal) -> None:
    """Run it."""
    torch.set_num_threads(1)  # before the fork; each worker is one thread too
    inputs, labels = training_data(job)
    x, y = torch.from_numpy(inputs), torch.from_numpy(labels)
    journal.mark("loaded")
    name, shape = NETWORKS[job.model]
    task = make_task(lambda: models.build(name, shape, 10), 10)
    rows = tuple(torch.split(torch.arange(len(y)), job.samples))
    device_data = DeviceData(x, y, rows, tuple(torch.empty(0, dtype=torch.int64) for _ in rows))
    histograms = torch.stack([torch.bincount(y[r], minlength=10) for r in rows])
    first = dict(zip(task.layout.trainable, map(torch.from_numpy, initial(job)), strict=True))
    population = Population(histograms, task.layout, first, task.init)
    algorithm = FedAvg(SgdConfig(job.lr, batch_size=job.batch, local_epochs=1))
    size = sum(t.numel() * t.element_size() for t in first.values())
    trained = 0
    with tempfile.TemporaryDirectory() as folder:
        database.new(Path(folder) / database.FILE)
        record = database.Database(Path(folder), {})
        pool = Pool(lambda _: WorkerSetup(algorithm, LocalTrainer(task, device_data), population.me), job.cores, size)
        try:
            # Every run draws anew, as those of the others do.
            drawn = {"seed": secrets.randbits(31), "clients_per_round": job.cohort}
            sim = Simulator(algorithm, population, Workers(pool, 0, algorithm), **drawn)
            state = sim.start()
            for t in range(1, job.rounds + 1):
                state, trace = sim.round(state, t)
                cell = {"method": "fedavg", "seed": 0}
                record.add("transfers", ({**cell, **row._asdict()} for row in trace.transfers))
                record.show()
                journal.mark("round", bytes=totals(trace.transfers))
                # One optimisation is one epoch over n examples, as the row says.
                trained += sum(-(-n // job.batch) for n, _ in trace.losses)
        finally:
            pool.close()
            record.close()
    final = [t.numpy() for t in state.params.values()]
    journal.end(final, trained, f"{job.cores} workers x 1 thread", "torch", "numpy")
