"""Compares a deployed run with a simulated one of the same experiment."""

import math
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import safetensors.torch

from unskew.errors import ConfigError
from unskew.experiment.config import Experiment
from unskew.protocol import hook
from unskew.record.logs import CLOCK, require_none_diverged, rows
from unskew.run import models
from unskew.run.again import complete
from unskew.run.cell import Observer
from unskew.run.folder import read_json, require_done

TOLERANCE = 1e-5
"""Largest difference of a parameter or a metric that counts as equal; on one machine there is none at all."""


@dataclass(frozen=True)
class Parity:
    """One method's two runs, all seeds together.

    Attributes:
        method: Its label.
        max_abs_diff: Largest difference between final global models and between metrics; infinite if something is
            missing in one run.
        bytes_equal: True if the ledgers have the same transfers with the same bytes, row by row.
    """

    method: str
    max_abs_diff: float
    bytes_equal: bool

    @property
    def equal(self) -> bool:
        """True if the runs agree within the tolerance."""
        return self.max_abs_diff <= TOLERANCE and self.bytes_equal

    def to_json(self) -> dict[str, Any]:
        """What `fed try --check-parity --json` prints; infinity becomes null."""
        table = asdict(self)
        return table if math.isfinite(self.max_abs_diff) else {**table, "max_abs_diff": None}


def simulate(experiment: Experiment, folder: Path, callback: Observer | None = None) -> Path:
    """Simulate the same experiment in this process, one client after another; returns the run's folder."""
    alone = replace(experiment, runtime=replace(experiment.runtime, executor="sequential"), track=())
    done = complete(alone, folder, callback)
    require_none_diverged(done.summary.get("diverged", ()))  # as the run over a network, which it ends
    return done.folder


def comparable(experiment: Experiment) -> None:
    """Refuse an experiment that cannot be simulated with the same numbers, since clients draw secret noise."""
    labels = [m.label for m in experiment.methods if hook(m.method, "uses_private_randomness")]
    if labels:
        raise ConfigError(
            f"a deployed run of {', '.join(labels)} has noise that each client draws from a secret of its own, which "
            "no simulation can repeat; leave out --check-parity, or the noise"
        )


def compare(deployed: Path, simulated: Path) -> list[Parity]:
    """Compare two finished runs, method by method."""
    for folder in (deployed, simulated):
        require_done(folder)
    gaps = []
    for label in dict.fromkeys(cell["method"] for cell in read_json(deployed / "run.json")["cells"]):
        ours, theirs = (_metrics(run, label) | _models(run, label) for run in (deployed, simulated))
        gap = (
            max((_distance(ours[k], theirs[k]) for k in ours), default=0.0)
            if ours.keys() == theirs.keys()
            else math.inf
        )
        gaps.append(Parity(label, gap, _ledger(deployed, label) == _ledger(simulated, label)))
    return gaps


def _distance(a: Any, b: Any) -> float:
    """Largest difference between two numbers or tensors; infinite if their shapes differ."""
    if not hasattr(a, "shape"):
        return abs(float(a) - float(b))
    if a.shape != b.shape or a.dtype != b.dtype:
        return math.inf
    gap = float((a.double() - b.double()).abs().max()) if a.numel() else 0.0
    return gap if math.isfinite(gap) else math.inf


def _metrics(run: Path, method: str) -> dict[tuple[Any, ...], Any]:
    own = rows(run, "metrics", "method = ? AND name != ?", method, CLOCK)
    return {(r["seed"], r["round"], r["name"], r.get("client")): float(r["value"]) for r in own}


def _models(run: Path, method: str) -> dict[tuple[Any, ...], Any]:
    seeds = [cell["seed"] for cell in read_json(run / "run.json")["cells"] if cell["method"] == method]
    files = {seed: run / "models" / f"{models.stem(method, seed)}.safetensors" for seed in seeds}
    saved = {seed: safetensors.torch.load(file.read_bytes()) for seed, file in files.items() if file.exists()}
    return {(seed, name): tensor for seed, tensors in saved.items() for name, tensor in tensors.items()}


def _ledger(run: Path, method: str) -> Counter[tuple[Any, ...]]:
    """Every transfer; the order of the messages within an exchange does not matter."""
    own = rows(run, "transfers", "method = ?", method)
    return Counter((r["seed"], r["round"], r["hop"], r["src"], r["dst"], r["kind"], r["bytes"]) for r in own)
