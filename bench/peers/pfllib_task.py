"""PFLlib: its own server and client of FedAvg, on data held in memory, which are not read again before each epoch."""

import os
import random
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import torch
from job import Job, Journal, initial, training_data
from network import fill, network, values
from torch import Tensor

# It is a repository without a package: its folder `system` is put where its modules expect to be.
sys.path.insert(0, str(Path(os.environ["PFLLIB"]) / "system"))
from flcore.clients import clientbase
from flcore.clients.clientavg import clientAVG
from flcore.servers import serverbase

OFF = ("random_join_ratio", "time_select", "auto_break", "dlg_eval", "learning_rate_decay")
ZERO = ("client_drop_rate", "train_slow_rate", "send_slow_rate", "num_new_clients", "fine_tuning_epoch_new")
UNUSED = ("dlg_gap", "top_cnt", "eval_gap", "batch_num_per_client")


def main(job: Job, journal: Journal) -> None:
    """Run it: the lines of its `FedAvg.train`, without the evaluations."""
    torch.set_num_threads(job.threads)
    np.random.seed()  # noqa: NPY002  PFLlib draws from the global generators
    random.seed()
    inputs, labels = training_data(job)
    examples: list[tuple[Tensor, Tensor]] = list(zip(torch.from_numpy(inputs), torch.from_numpy(labels), strict=True))
    journal.mark("loaded")

    def read(_dataset: str, c: int, is_train: bool = True, **_: object) -> list[tuple[Tensor, Tensor]]:
        return examples[c * job.samples : (c + 1) * job.samples] if is_train else []

    clientbase.read_client_data = serverbase.read_client_data = read
    net = network(job.model)
    fill(net, initial(job))
    settings = {"dataset": "", "algorithm": "FedAvg", "goal": "", "save_folder_name": "", "device": "cpu"}
    training = {
        "local_epochs": 1,
        "batch_size": job.batch,
        "local_learning_rate": job.lr,
        "learning_rate_decay_gamma": 1,
    }
    cohort = {"num_clients": job.clients, "join_ratio": job.cohort / job.clients, "time_threthold": 1e9}
    whole = {
        "model": net,
        "num_classes": 10,
        "global_rounds": job.rounds,
        **dict.fromkeys(OFF, False),
        **dict.fromkeys((*ZERO, *UNUSED), 0),
    }
    server = serverbase.Server(Namespace(**settings, **training, **cohort, **whole), 0)
    server.set_slow_clients()
    server.set_clients(clientAVG)
    torch.manual_seed(random.randrange(2**31))  # each of its clients has set it to 0
    steps = 0
    for _ in range(job.rounds):
        server.selected_clients = server.select_clients()
        server.send_models()
        for client in server.selected_clients:
            client.train()
            steps += job.samples // job.batch  # its loader leaves out a last batch that is not full
        server.receive_models()
        server.aggregate_parameters()
        journal.mark("round")
    journal.end(values(server.global_model), steps, f"1 process, {job.threads} threads", "torch", "numpy")
