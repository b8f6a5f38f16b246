"""Memory that a run will need: a sum whose parts are shown, and a refusal where it is more than there is."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from unskew.data.images import ByteImages
from unskew.decide.forecast.counts import DryRun, JobKind, RoundRequests
from unskew.decide.forecast.dry_run import PreparedMethod
from unskew.decide.forecast.measure import outputs
from unskew.decide.forecast.mock_executor import prior_of
from unskew.decide.forecast.prior_trial import working_bytes
from unskew.decide.forecast.values import Forecast, MemoryPart, Place
from unskew.errors import ConfigError
from unskew.experiment.config import Experiment
from unskew.keys import Key
from unskew.local import imagery
from unskew.local.executor import CellParts
from unskew.local.optim import HISTORY
from unskew.local.stacked.executor import Stacked
from unskew.local.trainer import LocalTrainer
from unskew.local.workers.memory import (
    JOBS_IN_FLIGHT,
    MOST_CLIENTS,
    SLOTS,
    common_bytes,
    slot_bytes,
    written_bytes,
)
from unskew.protocol import Sgd
from unskew.run.setup import Setup
from unskew.units import human_bytes

NOW, DATA, TRAINING, BATCHES, MESSAGES, MEMORY, EVALUATION, OWN, SHARED, PRIOR, IMAGES, SERVER = (
    "so far", "data set", "training", "batches", "messages", "client memory", "evaluation", "worker's own", "shared",
    "prior", "images", "server's training",
)  # fmt: skip
REMEDIES = {
    NOW: "use a smaller data set",
    DATA: "use a smaller data set",
    TRAINING: "lower local.batch_size, runtime.workers or the size of task.model, or take runtime.executor = "
    "'sequential'",
    BATCHES: "give the clients fewer examples (split.num_clients), or lower runtime.workers",
    MESSAGES: "lower clients_per_round or use a smaller task.model",
    MEMORY: "lower split.num_clients, use a smaller task.model or a method whose clients remember less",
    EVALUATION: "leave personal_on_global out of evaluate, or use a smaller task.model",
    OWN: "lower runtime.workers",
    SHARED: "lower runtime.workers or use a smaller task.model",
    PRIOR: "make fewer images, lower the inversion's batch_size, or use a smaller prior",
    IMAGES: "make fewer images",
    SERVER: "lower the server's batch_size or the size of task.model",
}
# A forked worker's own pages beside what the arithmetic names: interpreter, allocator, library state; and all pages of
# an actor, which shares none: Python, PyTorch and Ray.
WORKER_BYTES = 40_000_000
ACTOR_BYTES = 320_000_000


def refuse(forecast: Forecast) -> None:
    """Refuse a run that does not fit into memory.

    Raises:
        ConfigError: With the sum and what to change.
    """
    text = too_large(forecast)
    if text is not None:
        raise ConfigError(text)


def too_large(forecast: Forecast) -> str | None:
    """Explain why the run does not fit into memory, with the sum and the remedy; None if it does."""
    sides: tuple[tuple[int | None, int, tuple[Place, ...]], ...] = (
        (forecast.limit, forecast.everything, ("main", "worker")),
        (forecast.device_limit, forecast.peak_of("device"), ("device",)),
    )
    for limit, needed, places in sides:
        if limit is None or needed <= limit:
            continue
        parts = [s for s in forecast.parts if s.place in places and s.bytes]
        sums = " + ".join(f"{_times(forecast, s)}{human_bytes(s.bytes)} {s.what}" for s in parts)
        largest = max((s for s in parts if s.what != NOW), key=lambda s: s.bytes, default=parts[0])
        kind = (
            "CUDA memory" if places == ("device",) else "memory" + " on the node of the driver" * (forecast.nodes > 1)
        )
        return (
            f"the run needs {human_bytes(needed)} of {kind} ({sums}; training and evaluation do not add up), but "
            f"{human_bytes(limit)} can be had; {REMEDIES[largest.what]}"
        )
    return None


def _times(forecast: Forecast, part: MemoryPart) -> str:
    return f"{-(-forecast.workers // forecast.nodes)} x " if part.place == "worker" else ""


# ---------------------------------------------------------------- the parts
def memory_parts(
    experiment: Experiment,
    setup: Setup,
    prepared: PreparedMethod,
    observed: DryRun,
    tried: Callable[[JobKind], bool],
    now: int,
) -> tuple[MemoryPart, ...]:
    """Parts of the memory of one method.

    Args:
        experiment, setup: Parts of a run.
        prepared: The method under one seed.
        observed: Its dry run.
        tried: Says of a kind of prior call whether it could be tried.
        now: Bytes this process holds already.
    """
    inside: Place = "device" if setup.device.type == "cuda" else "worker" if setup.executor_kind.processes else "main"
    store: Place = "device" if setup.device.type == "cuda" else "main"
    data = setup.dataset
    example = math.prod(data.input_shape) * data.x_train.element_size()
    as_bytes = isinstance(data.x_train, ByteImages)
    largest = int(prepared.population.histograms.sum(1).max())
    layers = layer_outputs(setup)
    widest = max((a + b for a, b in itertools.pairwise([0, *layers])), default=0)
    clients = len(prepared.population.clients)
    reachable = clients if experiment.rounds > len(observed.rounds) else len(observed.clients)
    remembered = int(observed.memory_per_client * (reachable + min(len(observed.clients), reachable)))
    evaluation = observed.evaluation or RoundRequests()
    chunk = min(LocalTrainer.CHUNK, max(evaluation.eval_sizes, default=0))
    cell = CellParts(prepared.trainer, prepared.method.algorithm)
    executor = setup.executor_kind.make(cell) if setup.executor_kind.together else None
    stacked = executor if isinstance(executor, Stacked) else None
    if stacked is not None and evaluation.eval_sizes:
        chunk = stacked.examples_at_once(evaluation.eval_sizes)
    dataset = data.nbytes
    server_kinds = {kind for requests in observed.rounds for kind, _ in requests.server_jobs}
    client_kinds = {kind for requests in observed.rounds for kind, _ in requests.jobs}
    needs = {
        kind: _training_need(experiment, setup, prepared, job, stacked, layers)
        for kind, job in observed.sample_jobs.items()
    }
    training = max((need for kind, need in needs.items() if kind in client_kinds), default=_Need(0, "nobody trains", 1))
    side = training.width if stacked is not None else 1
    copied = 2 * side * training.batch if stacked is not None else 2 * largest
    batches = (
        f"2 x {side} x batch of {training.batch} examples"
        if side > 1
        else f"2 x {largest} examples of the largest client"
    )
    if as_bytes:
        copied, batches = _converted(observed, training.batch, side)
    gathered = chunk if as_bytes else min(evaluation.gathered_rows, chunk)  # a network's worth at a time
    parts = [
        MemoryPart(NOW, now, f"this process with its libraries and the data set ({human_bytes(dataset)}), measured",
                   "main", "always"),
        MemoryPart(TRAINING, training.bytes, training.how, inside, "training"),
        MemoryPart(BATCHES, copied * example, f"{batches} x {human_bytes(example)}", inside, "training"),
        MemoryPart(MESSAGES, observed.in_flight_bytes,
                   "messages, replies and states of one round, those shared counted once", store, "training"),
        MemoryPart(EVALUATION, widest * chunk + gathered * example,
                   f"{human_bytes(widest)} of layer outputs x {chunk} examples at once + {gathered} examples x "
                   f"{human_bytes(example)}", inside, "evaluation"),
    ]  # fmt: skip
    if remembered:
        how = f"{human_bytes(observed.memory_per_client)} x {reachable} clients, and the round before of those asked"
        parts.append(MemoryPart(MEMORY, remembered, how, store, "always"))
    if setup.device.type == "cuda":
        parts.append(MemoryPart(DATA, dataset, "training and test examples", "device", "always"))
    parts += _prior_parts(prepared, observed, tried, example, inside, together=stacked is not None)
    if inside == "worker":
        at_server = max((need for kind, need in needs.items() if kind in server_kinds), default=None)
        if at_server is not None:
            parts.append(MemoryPart(SERVER, at_server.bytes, at_server.how, "main", "training"))
        apart = setup.executor_kind.apart
        parts += _actor_parts(dataset, observed) if apart else _worker_parts(model_bytes(setup), observed)
    return tuple(parts)


def _converted(observed: DryRun, batch: int, side: int) -> tuple[int, str]:
    """Examples that are floats at once where the data stay bytes, a batch and its successor, and which they are."""
    at_once = 2 * side * batch, f"2 x {side} x batch of {batch} examples, as floats"
    for kind, n in (job for requests in observed.rounds for job in requests.jobs):
        if kind[0] == "fold":
            n = min(n, LocalTrainer.CHUNK)
        if kind[0] in ("fold", "run"):
            at_once = max(at_once, (n, f"{n} examples of a client, as floats"))
    return at_once


@dataclass(frozen=True, order=True)
class _Need:
    """Memory of an optimisation: bytes, their arithmetic, examples in a batch, clients side by side."""

    bytes: int
    how: str
    batch: int
    width: int = 1


def _training_need(
    experiment: Experiment,
    setup: Setup,
    prepared: PreparedMethod,
    job: Sgd,
    stacked: Stacked | None,
    layers: Sequence[int],
) -> _Need:
    """Memory of training the largest client, or as many as are trained side by side."""
    sizes = prepared.population.histograms.sum(1)
    largest = int(sizes.max()) if job.examples is None else len(job.examples.rows)
    batch = min(job.config.batch_size or largest, largest)
    vectors = (
        6 + {"sgd": int(job.config.momentum > 0), "adam": 2, "adamw": 2, "lbfgs": 2 * HISTORY + 6}[job.config.optimizer]
    )
    model, both = model_bytes(setup), sum(layers)
    how = (
        f"{vectors} x {human_bytes(model)} (model, gradient, optimiser) + 2 x {human_bytes(both)} of layer outputs x "
        f"batch of {batch}"
    )
    each = vectors * model + 2 * both * batch
    frozen = sum(t.nbytes for t in setup.task.constants().values())
    cohort = 1 if prepared.pooled else experiment.cohort(len(sizes))
    width = stacked.width(job, batch, cohort) if stacked is not None and job.examples is None else 1
    how = f"{width} clients side by side x ({how})" if width > 1 else how
    how += f" + {human_bytes(frozen)} of frozen tensors" * bool(frozen)
    return _Need(each * width + frozen, how, batch, width)


def _prior_parts(
    prepared: PreparedMethod,
    observed: DryRun,
    tried: Callable[[JobKind], bool],
    example: int,
    inside: Place,
    together: bool,
) -> list[MemoryPart]:
    """Memory of a prior's work, where it was tried, beside its weights, which are there already.

    `together` says whether clients that ask alike are answered at once.
    """
    parts = []
    apart = inside == "worker"  # else the server's work is done where the clients' is, one after the other
    for place in dict.fromkeys((inside, "main" if apart else inside)):
        here = (place == "main",) if apart else (False, True)
        asked = [(k, n, same) for b in observed.rounds for k, n, same, at_server in b.prior_calls if at_server in here]
        asked = [call for call in asked if tried(call[0])]
        needs = []
        for kind in dict.fromkeys(k for k, _, _ in asked):
            n = max(m for k, m, _ in asked if k == kind)
            if together and kind[1].what == "invert":
                n = max(
                    sum(m * times for (k, m, *_), times in b.prior_calls.items() if k == kind) for b in observed.rounds
                )
            real = prior_of(prepared.trainer, kind[1].source)
            working = working_bytes(kind[1], real, prepared.trainer.device_data.x[:1], n)
            images = 2 * n * example if kind[1].what in ("sample", "decode") else 0
            how = f"{human_bytes(working)} of layer outputs, to {kind[1].what} {n} by the prior {kind[1].source}"
            needs.append((working + images, how + (f", + 2 x {n} x {human_bytes(example)}" if images else "")))
        if needs:
            largest, how = max(needs)
            parts.append(MemoryPart(PRIOR, largest, how, place, "training"))
        if sizes := {same: n * example for _, n, same in asked if same is not None}:
            how = f"made, for who wants the same again, {human_bytes(imagery.CACHE_BYTES)} at most"
            parts.append(MemoryPart(IMAGES, min(sum(sizes.values()), imagery.CACHE_BYTES), how, place, "always"))
    return parts


def _worker_parts(model: int, observed: DryRun) -> list[MemoryPart]:
    """Memory of a worker beside its training: pages of its own, and the part of its slots that is ever written."""
    how = (
        f"{SLOTS} slots of {human_bytes(slot_bytes(model))}, as far as clients that are sent, remember "
        f"and answer {human_bytes(observed.client_bytes)} fill them"
    )
    common = min(common_bytes(model), observed.in_flight_bytes)
    return [
        MemoryPart(OWN, WORKER_BYTES, "pages a worker does not share with the main process", "worker", "always"),
        MemoryPart(SHARED, written_bytes(model, observed.client_bytes), how, "worker", "always"),
        MemoryPart(SHARED, common, "what several clients are sent, seen by all workers", "main", "always"),
    ]


def _actor_parts(dataset: int, observed: DryRun) -> list[MemoryPart]:
    """Memory of an actor on a cluster beside its training, and of the store that the driver fills."""
    own = f"Python, PyTorch and Ray ({human_bytes(ACTOR_BYTES)}), and the data set"
    jobs = f"{JOBS_IN_FLIGHT} jobs of up to {MOST_CLIENTS} clients of {human_bytes(observed.client_bytes)}"
    return [
        MemoryPart(OWN, ACTOR_BYTES + dataset, own, "worker", "always"),
        MemoryPart(SHARED, JOBS_IN_FLIGHT * MOST_CLIENTS * observed.client_bytes, jobs, "worker", "always"),
        MemoryPart(
            SHARED, dataset + observed.in_flight_bytes, "data set and messages in Ray's store", "main", "always"
        ),
    ]


def model_bytes(setup: Setup) -> int:
    """Bytes of a model, which is what the network has beside frozen tensors."""
    return sum(t.nbytes for t in setup.task.init(Key(0)).values())


def layer_outputs(setup: Setup) -> list[int]:
    """Bytes that each layer puts out for one example, in the order of the forward pass."""
    module = setup.task.module().eval()
    with torch.no_grad(), Key(0).ambient():
        return [n // 2 for n in outputs(lambda: module(setup.dataset.x_train[:2]))]


def device_limit(setup: Setup) -> int | None:
    """Bytes that are free on the CUDA device; None on a CPU."""
    return torch.cuda.mem_get_info(setup.device)[0] if setup.device.type == "cuda" else None
