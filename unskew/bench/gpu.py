"""Speed of training on a CUDA device: stacked clients against the loop over clients that peers use.

Workloads A (pfl-research's CIFAR-10 cohort) and E (BlazeFL's) have the shapes of their papers but random
numbers, so their accuracy is meaningless and their speed is not.
"""

from functools import partial

import torch
import torch.nn.functional as F

from unskew.algorithms.fedavg import FedAvg
from unskew.bench.toolkit import BenchRow, Rounds, Say, Workload, chosen, random_clients, speed_row, take_turns
from unskew.decide.forecast.measure import timed
from unskew.errors import ConfigError
from unskew.keys import Key
from unskew.local.stacked.executor import Stacked
from unskew.local.trainer import LocalTrainer
from unskew.protocol import SgdConfig

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


def measure(device: torch.device, repeats: int = 5, only: tuple[str, ...] = (), say: Say = print) -> list[BenchRow]:
    """Measure all cases, as rows of the benchmark's JSON: samples per second, and their ratio to the loop's.

    `only` names workloads or whole cases, such as A or W2/b50/c100.

    Raises:
        ConfigError: If the device is not a CUDA device, or one in `only` is not measured.
    """
    if device.type != "cuda":
        raise ConfigError(f"the stacked executor is measured on a CUDA device, got {device}")
    rows: list[BenchRow] = []
    for case in chosen(only, {case: [case.partition("/")[0]] for case in CASES}, "bench engine"):
        loop, stacked, notes = _case(case, device, repeats)
        samples = CASES[case][2] * CASES[case][3] * CASES[case][5]
        for contender, times in (("stacked", stacked), ("loop", loop)):
            rows.append({**speed_row(case, contender, samples, times, loop, "loop"), "notes": list(notes)})
        say(f"{case}: stacked {samples / min(stacked):,.0f}/s, {min(loop) / min(stacked):.1f} times the loop {notes}")
    return rows


def _case(case: str, device: torch.device, repeats: int) -> tuple[list[float], list[float], tuple[str, ...]]:
    model, shape, clients, n, batch, epochs, momentum = CASES[case]
    world = random_clients(Workload(model, shape, n), clients, Key(0) / case, device=device)
    data, initial = world.data, world.population.initial
    config = SgdConfig(0.01, batch_size=batch, local_epochs=epochs, momentum=momentum)
    stacked = Stacked(LocalTrainer(world.task, data, device))
    network = world.task.module().to(device)
    wait = partial(torch.cuda.synchronize, device)

    def loop() -> None:
        for r in data.train:
            with torch.no_grad():
                for name, p in network.named_parameters():
                    p.copy_(initial[name])
            optimizer = torch.optim.SGD(network.parameters(), config.lr, momentum)
            for _ in range(epochs):
                for pick in torch.split(r[torch.randperm(n, device=device)], batch):
                    optimizer.zero_grad()
                    F.cross_entropy(network(data.x[pick]), data.y[pick]).backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
        wait()

    rounds = Rounds(FedAvg(config), world.population, stacked, wait)
    times = take_turns({"loop": partial(timed, loop), "stacked": rounds}, repeats)
    return times["loop"], times["stacked"], tuple(stacked.notes)
