"""The cost of the network in a round: the same experiment deployed on this machine and simulated, with little training.

FedAvg on digits, each client one mini-batch step a round, so the time is that of sending a model to a client and back.
Rounds are timed by the run itself; the first, in which processes start and connections are made, is left out.
"""

import tempfile
from pathlib import Path

from unskew.bench.toolkit import BenchRow, Say, require_known, seconds_row
from unskew.deploy import parity, trial
from unskew.experiment import config
from unskew.experiment.config import Experiment
from unskew.record.logs import rows

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


def measure(clients: int = 2, rounds: int = 5, only: tuple[str, ...] = (), say: Say = print) -> list[BenchRow]:
    """Measure both sizes, as rows of the benchmark's JSON: seconds of a round, and times the simulator's.

    Args:
        clients: Number of clients, each a process.
        rounds: Number of rounds timed, after one that is not.
        only: Sizes of the model that are measured; all by default.
        say: Called with a line for each measurement.

    Raises:
        ConfigError: If a size in `only` is not measured, or Flower is not installed.
    """
    require_known(only, list(SIZES), "bench deploy")
    measured: list[BenchRow] = []
    for size, hidden in SIZES.items():
        if only and size not in only:
            continue
        chosen, case = experiment(hidden, clients, rounds + 1), f"{size}/{clients}"
        with tempfile.TemporaryDirectory(prefix="unskew-bench-") as place:
            deployed = trial.trial(chosen, clients, Path(place) / "deployed", say)
            simulated = parity.simulate(chosen, Path(place) / "simulated")
            (same,) = parity.compare(deployed, simulated)
            if not same.equal:
                raise AssertionError(f"{case}: deployed and simulated differ by {same.max_abs_diff:g}")
            ours, theirs = _seconds(deployed), _seconds(simulated)
            ratio = min(ours) / min(theirs)
            measured += [
                seconds_row(case, "exchange", ours, contender="unskew", ratio=ratio, against="simulator"),
                seconds_row(case, "exchange", theirs, contender="simulator"),
                {"case": case, "what": "framing", "value": _framing(deployed), "unit": "of payload"},
            ]
        say(f"{case}: {min(ours):.2f} s a round over the network, {min(theirs):.4f} s simulated")
    return measured


def _seconds(run: Path) -> list[float]:
    """Seconds of each round after the first."""
    return [r["value"] for r in rows(run, "metrics") if r["name"] == "seconds" and r["round"] > 1]


def _framing(run: Path) -> float:
    """Bytes around the payloads, relative to the payloads."""
    sent = list(rows(run, "network"))
    return float(sum(r["framing"] for r in sent) / sum(r["payload"] for r in sent))
