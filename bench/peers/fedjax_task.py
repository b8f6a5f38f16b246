"""FedJAX: its jit backend, which compiles one step and calls it for batch after batch."""

import jax

jax.tree_map = jax.tree_util.tree_map  # FedJAX 0.0.17 was written before JAX took it away

import fedjax
import jax.numpy as jnp
import numpy as np
from job import Job, Journal, initial, training_data

Params = list[jax.Array]


def _mlp(params: Params, x: jax.Array) -> jax.Array:
    x = x.reshape(len(x), -1)
    for w, b in zip(params[0:4:2], params[1:4:2], strict=True):
        x = jax.nn.relu(x @ w.T + b)
    return x @ params[4].T + params[5]


def _cnn(params: Params, x: jax.Array) -> jax.Array:
    for w, b in zip(params[0:4:2], params[1:4:2], strict=True):
        x = jax.lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=("NCHW", "OIHW", "NCHW"))
        x = jax.nn.relu(x + b[:, None, None])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    x = jax.nn.relu(x.reshape(len(x), -1) @ params[4].T + params[5])
    return x @ params[6].T + params[7]


def main(job: Job, journal: Journal) -> None:
    """Run it."""
    x, y = training_data(job)
    journal.mark("loaded")
    steps = 0

    def count(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        nonlocal steps
        steps += 1
        return batch

    clients = {
        str(c).encode(): {
            "x": x[c * job.samples : (c + 1) * job.samples],
            "y": y[c * job.samples : (c + 1) * job.samples],
        }
        for c in range(job.clients)
    }
    data = fedjax.InMemoryFederatedData(clients, preprocess_batch=fedjax.BatchPreprocessor([count]))
    steps = 0  # making it has looked at every client once
    apply = {"mlp": _mlp, "cnn": _cnn}[job.model]

    def loss(params: Params, batch: dict[str, jax.Array], _rng: jax.Array) -> jax.Array:
        logged = jax.nn.log_softmax(apply(params, batch["x"]))
        return -jnp.take_along_axis(logged, batch["y"][:, None], 1).mean()

    fedjax.set_for_each_client_backend("jit")
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(job.lr),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=job.batch, num_epochs=1),
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(data, job.cohort, seed=0)
    state = algorithm.init([jnp.asarray(p) for p in initial(job)])
    for t in range(job.rounds):
        sampler.set_round_num(t)
        state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(state.params)
        journal.mark("round")
    final = [np.asarray(p) for p in state.params]
    journal.end(final, steps, "1 process, jit backend, XLA's own threads", "fedjax", "jax", "jaxlib", "numpy")
