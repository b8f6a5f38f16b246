"""Memory of a run: a row for each part, with its arithmetic and how to reduce it."""

import itertools
import math

import torch

from unskew.data.rows import ByteImages
from unskew.decide.forecast.dry_run import DryRun, PreparedMethod, Requests
from unskew.decide.forecast.measure import outputs
from unskew.decide.forecast.values import NOW, MemoryPart, Place
from unskew.experiment.config import Experiment
from unskew.keys import Key
from unskew.local.executor import CellParts
from unskew.local.optim import HISTORY
from unskew.local.stacked.executor import Stacked
from unskew.local.trainer import LocalTrainer
from unskew.local.workers.memory import JOBS_IN_FLIGHT, MOST_CLIENTS, SLOTS, common_bytes, slot_bytes, written_bytes
from unskew.run.setup import Setup
from unskew.units import human_bytes

TRAINING, BATCHES, MESSAGES, MEMORY, EVALUATION, OWN, SHARED = (
    "training", "batches", "messages", "client memory", "evaluation", "worker's own", "shared",
)  # fmt: skip
# A forked worker's own pages beside what the arithmetic names: interpreter, allocator, library state; and all pages of
# an actor, which shares none: Python, PyTorch and Ray.
WORKER_BYTES = 40_000_000
ACTOR_BYTES = 320_000_000
VECTORS = {"sgd": 6, "lbfgs": 2 * HISTORY + 12}
OTHERS = 8
"""Vectors of a model's length that a training holds: model, gradient, optimiser."""


def memory_parts(
    experiment: Experiment, setup: Setup, prepared: PreparedMethod, driven: DryRun, now: int
) -> tuple[MemoryPart, ...]:
    """Parts of the memory of one method; this process already holds `now` bytes."""
    cuda, kind = setup.device.type == "cuda", setup.executor_kind
    inside: Place = "device" if cuda else "worker" if kind.processes else "main"
    store: Place = "device" if cuda else "main"
    data, model, layers = setup.dataset, model_bytes(setup), layer_outputs(setup)
    example = math.prod(data.input_shape) * data.x_train.dtype.itemsize
    as_bytes = isinstance(data.x_train, ByteImages)
    sizes = prepared.population.histograms.sum(1)
    largest, clients = int(sizes.max()), len(sizes)
    executor = kind.make(CellParts(prepared.trainer, prepared.method.method)) if kind.together else None
    stacked = executor if isinstance(executor, Stacked) else None

    # The training that takes most: bytes, examples in a batch, clients side by side.
    training, batch, width = 0, 1, 1
    for job in driven.samples.values():
        n = largest if job.examples is None else len(job.examples.rows)
        of_job = min(job.config.batch_size or n, n)
        side = 1
        if stacked is not None and job.examples is None:
            side = stacked.width(job, of_job, 1 if prepared.pooled else experiment.cohort(clients))
        chosen = job.config.optimizer
        vectors = VECTORS.get(chosen, OTHERS) + (chosen == "sgd" and job.config.momentum > 0)
        training, batch, width = max(
            (training, batch, width), (side * (vectors * model + 2 * sum(layers) * of_job), of_job, side)
        )
    frozen = sum(t.nbytes for t in setup.task.constants().values())
    copied = 2 * (width * batch if as_bytes or stacked is not None else largest)

    evaluation = driven.evaluation or Requests()
    chunk = min(LocalTrainer.CHUNK, max(evaluation.evaluated, default=0))
    if stacked is not None and evaluation.evaluated:
        chunk = stacked.examples_at_once(evaluation.evaluated)
    widest = max((a + b for a, b in itertools.pairwise([0, *layers])), default=0)
    gathered = chunk if as_bytes else min(evaluation.gathered, chunk)

    reachable = clients if experiment.rounds > len(driven.rounds) else len(driven.clients)
    remembered = int(driven.memory_per_client * (reachable + min(len(driven.clients), reachable)))
    each, in_flight = driven.client_bytes, driven.in_flight_bytes
    of_model = f"{human_bytes(model)} of model"
    rows = [
        (NOW, now, f"this process with its libraries and the data set ({human_bytes(data.nbytes)}), measured",
         "main", "always", "use a smaller data set"),
        (TRAINING, training + frozen, f"{width} at a time: model, gradient and optimiser, each {of_model}, and layer "
         f"outputs of a batch of {batch}", inside, "training",
         "lower local.batch_size, runtime.workers or the size of task.model"),
        (BATCHES, copied * example, f"{copied} examples x {human_bytes(example)}", inside, "training",
         "give the clients fewer examples (split.num_clients), or lower runtime.workers"),
        (MESSAGES, in_flight, "messages, replies and states of one round", store, "training",
         "lower clients_per_round or use a smaller task.model"),
        (EVALUATION, widest * chunk + gathered * example, f"layer outputs of {chunk} examples at once", inside,
         "evaluation", "leave personal_on_global out of evaluate, or use a smaller task.model"),
        (MEMORY, remembered, f"{human_bytes(driven.memory_per_client)} x {reachable} clients, and the round before",
         store, "always", "lower split.num_clients or take a method whose clients remember less"),
        ("data set", data.nbytes * cuda, "training and test examples", "device", "always", "use a smaller data set"),
    ]  # fmt: skip
    fewer = "lower runtime.workers or use a smaller task.model"
    if kind.processes and kind.apart:
        rows += [
            (OWN, ACTOR_BYTES + data.nbytes, "Python, PyTorch and Ray, and the data set", "worker", "always", fewer),
            (SHARED, JOBS_IN_FLIGHT * MOST_CLIENTS * each, f"{JOBS_IN_FLIGHT} jobs of {MOST_CLIENTS} clients",
             "worker", "always", fewer),
            (SHARED, data.nbytes + in_flight, "data set and messages in Ray's store", "main", "always", fewer),
        ]  # fmt: skip
    elif kind.processes:
        rows += [
            (OWN, WORKER_BYTES, "pages a worker does not share with the main process", "worker", "always", fewer),
            (SHARED, written_bytes(model, each), f"{SLOTS} slots of {human_bytes(slot_bytes(model))}, as far as they "
             "are filled", "worker", "always", fewer),
            (SHARED, min(common_bytes(model), in_flight), "what several clients are sent", "main", "always", fewer),
        ]  # fmt: skip
    return tuple(MemoryPart(*row) for row in rows if row[1])  # type: ignore[arg-type]


def model_bytes(setup: Setup) -> int:
    """Bytes of a model without frozen tensors."""
    return sum(t.nbytes for t in setup.task.init(Key(0)).values())


def layer_outputs(setup: Setup) -> list[int]:
    """Bytes of each layer's output for one example, in the order of the forward pass."""
    module = setup.task.module().eval()
    with torch.no_grad(), Key(0).ambient():
        return [n // 2 for n in outputs(lambda: module(setup.dataset.x_train[:2]))]


def device_limit(setup: Setup) -> int | None:
    """Free bytes on the CUDA device; None on a CPU."""
    return torch.cuda.mem_get_info(setup.device)[0] if setup.device.type == "cuda" else None
