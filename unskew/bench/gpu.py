"""How fast clients are trained on a CUDA device: stacked clients against the loop over clients that peers use.

Workloads A (pfl-research's CIFAR-10 cohort) and E (BlazeFL's) have the shapes of their papers with random numbers in
them, so their accuracy means nothing and their speed does.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from unskew import models
from unskew.algorithms.fedavg import FedAvg
from unskew.errors import ConfigError
from unskew.keys import Key
from unskew.local.data import DeviceData
from unskew.local.stacked.executor import Stacked
from unskew.local.trainer import LocalTrainer
from unskew.protocol import SgdConfig
from unskew.runtime.in_process import Population, Simulator
from unskew.task import make_task

# case: network, input, clients in a round, examples of each, batch, local epochs, momentum
CASES: dict[str, tuple[str, tuple[int, ...], int, int, int, int, float]] = {
    "W1/b50/c100": ("logistic", (1, 28, 28), 100, 500, 50, 1, 0.9),
    "W1/b50/c1000": ("logistic", (1, 28, 28), 1000, 500, 50, 1, 0.9),
    "W2/b50/c100": ("fcn", (1, 28, 28), 100, 500, 50, 1, 0.9),
    "W2/b50/c1000": ("fcn", (1, 28, 28), 1000, 500, 50, 1, 0.9),
    "W3/b50/c100": ("cnn_w3", (3, 32, 32), 100, 500, 50, 1, 0.9),
    "A/b10/c50": ("pfl_cnn", (3, 32, 32), 50, 50, 10, 1, 0.0),
    "E/b50/c100": ("torch_cnn", (3, 32, 32), 100, 500, 50, 5, 0.0),
}


def measure(device: torch.device, repeats: int = 5, say: Callable[[str], None] = print) -> list[dict[str, Any]]:
    """Rows of the benchmark's JSON: samples per second of stacked clients and their ratio to the loop.

    Raises:
        ConfigError: If the device is no CUDA device.
    """
    if device.type != "cuda":
        raise ConfigError(f"the stacked executor is measured on a CUDA device, got {device}")
    rows: list[dict[str, Any]] = []
    for case in CASES:
        loop, stacked, notes = _case(case, device, repeats)
        samples = CASES[case][2] * CASES[case][3] * CASES[case][5]
        for contender, times in (("stacked", stacked), ("loop", loop)):
            rows.append(
                {
                    "case": case,
                    "what": "samples_per_second",
                    "contender": contender,
                    "value": samples / min(times),
                    "unit": "1/s",
                    "ratio": min(loop) / min(times),
                    "against": "loop",
                    "ratio_of_medians": statistics.median(loop) / statistics.median(times),
                    "notes": list(notes),
                }
            )
        say(f"{case}: stacked {samples / min(stacked):,.0f}/s, {min(loop) / min(stacked):.1f} times the loop {notes}")
    return rows


def _case(case: str, device: torch.device, repeats: int) -> tuple[list[float], list[float], tuple[str, ...]]:
    model, shape, clients, n, batch, epochs, momentum = CASES[case]
    key = Key(0) / case
    x = torch.randn(clients * n, *shape, generator=(key / "x").generator())
    y = torch.randint(10, (clients * n,), generator=(key / "y").generator())
    rows = torch.split(torch.arange(clients * n), n)
    histograms = torch.stack([torch.bincount(y[r], minlength=10) for r in rows])
    device_data = DeviceData(
        x.to(device), y.to(device), tuple(r.to(device) for r in rows), tuple(r[:1].to(device) for r in rows)
    )
    task = make_task(lambda: models.build(model, shape, 10), 10)
    initial = {name: t.to(device) for name, t in task.init(key).items()}
    population = Population(histograms, task.layout, initial, task.init)
    config = SgdConfig(0.01, batch_size=batch, local_epochs=epochs, momentum=momentum)
    stacked = Stacked(LocalTrainer(task, device_data, device))
    sim = Simulator(FedAvg(config), population, stacked)
    state, t = sim.start(), 0

    def federated() -> None:
        nonlocal state, t
        t += 1
        state, _ = sim.round(state, t)

    network = task.module().to(device)

    def loop() -> None:
        for r in device_data.train:
            with torch.no_grad():
                for name, p in network.named_parameters():
                    p.copy_(initial[name])
            optimizer = torch.optim.SGD(network.parameters(), config.lr, momentum)
            for _ in range(epochs):
                for pick in torch.split(r[torch.randperm(n, device=device)], batch):
                    optimizer.zero_grad()
                    F.cross_entropy(network(device_data.x[pick]), device_data.y[pick]).backward()  # type: ignore[no-untyped-call]
                    optimizer.step()

    times: dict[Callable[[], None], list[float]] = {loop: [], federated: []}
    for repeat in range(repeats + 1):
        for once, found in times.items():
            torch.cuda.synchronize(device)
            began = time.perf_counter()
            once()
            torch.cuda.synchronize(device)
            if repeat:
                found.append(time.perf_counter() - began)
    return times[loop], times[federated], tuple(stacked.notes)
