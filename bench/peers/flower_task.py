"""Flower's simulation on Ray: as many actors as there are slots, which share the cores as PyTorch threads."""

import functools
import logging

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from job import Job, Journal, initial, training_data
from network import fill, network, train, values
from torch import Tensor, nn


@functools.cache
def _kept(job: Job) -> tuple[nn.Module, Tensor, Tensor]:
    """Network and data, built once in each actor."""
    torch.set_num_threads(job.cores // job.slots)
    inputs, labels = training_data(job)
    return network(job.model), torch.from_numpy(inputs), torch.from_numpy(labels)


def _client(job: Job) -> ClientApp:
    app = ClientApp()

    @app.train()
    def fit(message: Message, context: Context) -> Message:
        net, x, y = _kept(job)
        fill(net, message.content["arrays"].to_numpy_ndarrays())
        c = int(context.node_config["partition-id"])
        rows = slice(c * job.samples, (c + 1) * job.samples)
        steps = train(net, x[rows], y[rows], job.batch, job.lr)
        metrics = MetricRecord({"num-examples": job.samples, "steps": steps})
        return Message(RecordDict({"arrays": ArrayRecord(values(net)), "metrics": metrics}), reply_to=message)

    return app


def _total(replies: list[RecordDict], _weight: str) -> MetricRecord:
    return MetricRecord({"steps": sum(int(r["metrics"]["steps"]) for r in replies)})


def main(job: Job, journal: Journal) -> None:
    """Run it."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    journal.mark("loaded")  # the actors load the data, in the first round
    server = ServerApp()

    def clock(t: int, _arrays: ArrayRecord) -> None:
        if t:
            journal.mark("round")

    @server.main()
    def serve(grid: Grid, _context: Context) -> None:
        strategy = FedAvg(
            fraction_train=job.cohort / job.clients,
            fraction_evaluate=0.0,
            min_train_nodes=job.cohort,
            min_available_nodes=job.clients,
            train_metrics_aggr_fn=_total,
        )
        result = strategy.start(grid, ArrayRecord(initial(job)), job.rounds, evaluate_fn=clock)
        steps = sum(int(m["steps"]) for m in result.train_metrics_clientapp.values())
        setting = f"{job.slots} Ray actors x {job.cores // job.slots} threads"
        journal.end(result.arrays.to_numpy_ndarrays(), steps, setting, "flwr", "ray", "torch", "numpy")

    backend = {
        "client_resources": {"num_cpus": job.cores // job.slots, "num_gpus": 0.0},
        "init_args": {"num_cpus": job.cores, "include_dashboard": False, "logging_level": logging.ERROR},
    }
    run_simulation(server, _client(job), job.clients, backend_config=backend)
