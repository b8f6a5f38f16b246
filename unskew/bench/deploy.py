"""What the network costs a round: the same experiment deployed on this machine and simulated, with hardly any training.

FedAvg on digits, each client one mini-batch step a round, so what is timed is the way of a model to a client and back.
Rounds are timed by the run itself; the first one is left out, in which processes start and connections are made.
"""

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unskew.bench.engine import require_known
from unskew.deploy import operate, parity
from unskew.experiment import config
from unskew.experiment.config import Experiment
from unskew.run.folder import rows

# Networks of 64 inputs and 10 classes: 75 h + 10 parameters with one hidden layer of h.
SIZES: dict[str, tuple[int, ...]] = {"10kB": (33,), "50MB": (3060, 4000)}


def experiment(hidden: tuple[int, ...], clients: int, rounds: int) -> Experiment:
    """One mini-batch step for each client in each round; the global test once, at the end."""
    return config.parse(
        {
            "name": "bench-deploy",
            "rounds": rounds,
            "task": {"data": "digits", "model": "mlp", "model_options": {"hidden": list(hidden)}},
            "split": {"name": "iid", "num_clients": clients},
            "local": {"lr": 0.01, "local_steps": 1, "batch_size": 8},
            "eval_every": rounds,
            "evaluate": ["global"],
            "runtime": {"executor": "sequential", "device": "cpu"},
            "methods": [{"name": "fedavg"}],
        }
    )


def measure(
    clients: int = 2, rounds: int = 5, only: tuple[str, ...] = (), say: Callable[[str], None] = print
) -> list[dict[str, Any]]:
    """Rows of the benchmark's JSON: seconds of a round over the network, and times the simulator's.

    Args:
        clients: Each a process.
        rounds: Timed, after one that is not.
        only: Sizes of the model; all by default.
        say: Gets a line for each measurement.

    Raises:
        ConfigError: If a size in `only` is not measured.
    """
    require_known(only, list(SIZES), "bench deploy")
    found = []
    for case, hidden in SIZES.items():
        if only and case not in only:
            continue
        chosen = experiment(hidden, clients, rounds + 1)
        with tempfile.TemporaryDirectory(prefix="unskew-bench-") as place:
            deployed = operate.local(chosen, clients, Path(place) / "deployed", say)
            simulated = parity.simulate(chosen, Path(place) / "simulated")
            (same,) = parity.compare(deployed, simulated)
            if not same.equal:
                raise AssertionError(
                    f"{case}: the deployed run differs from the simulated one by {same.max_abs_diff:g}"
                )
            ours, theirs = _seconds(deployed), _seconds(simulated)
            found += [
                {**_row(case, "round_over_network", ours), "ratio": min(ours) / min(theirs), "against": "simulator"},
                _row(case, "round_simulated", theirs),
                {"case": case, "what": "overhead", "value": min(ours) - min(theirs), "unit": "s"},
                {"case": case, "what": "framing", "value": _framing(deployed), "unit": "of payload"},
            ]
        say(f"{case}: {min(ours):.2f} s a round over the network, {min(theirs):.4f} s simulated")
    return found


def _seconds(run: Path) -> list[float]:
    """Seconds of each round after the first."""
    return [r["value"] for r in rows(run / "metrics.jsonl") if r["name"] == "seconds" and r["round"] > 1]


def _framing(run: Path) -> float:
    """Bytes that Flower's records put around the payloads, as a part of them."""
    sent = list(rows(run / "network.jsonl"))
    return float(sum(r["framing"] for r in sent) / sum(r["payload"] for r in sent))


def _row(case: str, what: str, seconds: list[float]) -> dict[str, Any]:
    row = {"case": case, "what": what, "value": min(seconds), "unit": "s"}
    return {**row, "median": statistics.median(seconds), "slowest": max(seconds)}
