"""Rounds of every method with every option that the conformance suite tries: the numbers that come out."""

import functools
import json
import math
import sys
from pathlib import Path
from typing import Any

from torch import Tensor

sys.path.append(str(Path(__file__).parents[1] / "conformance"))

from recipe import CASES, simulator

from unskew import info
from unskew.tree import leaves

NORMALISED = ("norm", "fedbn", "released")
"""Words of cases that do something to normalisation; the others have a network without it."""


@functools.cache
def cases() -> dict[str, None]:
    # That score of the last layer divides by a sum that is zero but for rounding, so that processors disagree.
    return dict.fromkeys(name for name in CASES if name != "hcct_e, published")


def entry(name: str, here: Path) -> dict[str, Any]:
    """After three rounds, mostly of four clients: norms of state, memory and models, bytes, and what is reported."""
    network = "normalised" if any(word in name for word in NORMALISED) else "perceptron"
    everybody = {"clients_per_round": 6} if name.startswith("cfl") else {}  # it splits no cluster that is not complete
    sim = simulator(name, network, seed=3, **everybody)
    state, sent = sim.start(), 0
    for t in (1, 2, 3):
        state, trace = sim.round(state, t)
        sent += sum(x.bytes for x in trace.transfers)
    reports = sim.method.info(state) if hasattr(sim.method, "info") else ()
    reports = reports if isinstance(reports, tuple) else (reports,)
    clients = sim.population.clients
    return {
        "state": measured(state),
        "memory": measured({c: sim.memory.get(c) for c in clients}),
        "models": measured(sim.own_models(state, clients, 3)),
        "bytes": sent,
        "info": [json.loads(json.dumps(info.row(report)["info"])) for report in reports],
    }


def measured(tree: Any) -> list[float]:
    """Euclidean norms of all tensors, and of all tensors plus one, which knows their signs."""
    tensors = [t.double() for _, t in leaves(tree) if isinstance(t, Tensor)]
    return [math.sqrt(sum(float((t + shift).square().sum()) for t in tensors)) for shift in (0.0, 1.0)]
