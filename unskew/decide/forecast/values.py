"""A forecast: bytes, seconds and memory of a run, and its JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from unskew.errors import ConfigError
from unskew.ledger import Direction
from unskew.units import human_bytes

TrafficCertainty = Literal["exact", "extrapolated", "estimated", "unknown"]
"""Certainty of the bytes.

exact         every round of every seed was driven in two ways, and both send the same
extrapolated  they do in the rounds driven; others are taken to be like these
estimated     they differ, so training decides what is sent
unknown       the plan could not be driven at all
"""
Place = Literal["main", "worker", "device"]
Phase = Literal["always", "training", "evaluation"]


@dataclass(frozen=True)
class MethodCost:
    """Costs of one method under one seed, the mean over seeds.

    Attributes:
        method: Its label.
        traffic: Certainty of the bytes.
        bytes: Bytes sent over the whole run, by direction; None if unknown.
        rounds_driven: Rounds driven without training, the fewest over seeds.
        training_s, server_s, evaluation_s: Time for all rounds, s; None if unknown.
    """

    method: str
    traffic: TrafficCertainty = "unknown"
    bytes: Mapping[Direction, float] | None = None
    rounds_driven: int = 0
    training_s: float | None = None
    server_s: float | None = None
    evaluation_s: float | None = None

    @property
    def seconds(self) -> float | None:
        """Time for all rounds, s; None if unknown."""
        parts = [s for s in (self.training_s, self.server_s, self.evaluation_s) if s is not None]
        return sum(parts) if len(parts) == 3 else None


@dataclass(frozen=True)
class MemoryPart:
    """A part of a run's memory.

    Attributes:
        what: Its name.
        bytes: Its size in one process, bytes.
        how: The arithmetic behind it.
        place: The main process, each of the workers, or the CUDA device.
        phase: Training or evaluation; they do not coincide, and the larger counts.
        remedy: How to reduce it.
    """

    what: str
    bytes: int
    how: str
    place: Place
    phase: Phase
    remedy: str = "use a smaller data set"


@dataclass(frozen=True)
class Forecast:
    """Costs of a run before it begins.

    Attributes:
        run: Its name.
        seeds: Number of seeds; the most, if a rule decides.
        rounds: Number of rounds.
        executor: Name of the executor that the rule chose.
        workers: Processes that train; 1 is the main process alone.
        costs: Costs of each method.
        parts: Parts of the memory of the method that needs most.
        reached: Peak bytes of this process so far, as reading data takes more than keeping them.
        limit: Bytes of memory for the run, including this process; None if unknown.
        device_limit: The same for the CUDA device.
        seconds: Time for the whole run, s; None if something was not timed.
        notes: What these numbers leave out.
        least: The fewest seeds after which the run may be decided; None if all are run.
        nodes: Machines over which processes are spread evenly; the main process is on one of them.
    """

    run: str
    seeds: int
    rounds: int
    executor: str
    workers: int
    costs: tuple[MethodCost, ...]
    parts: tuple[MemoryPart, ...]
    reached: int
    limit: int | None
    device_limit: int | None
    seconds: float | None
    notes: tuple[str, ...]
    least: int | None = None
    nodes: int = 1

    @property
    def least_seconds(self) -> float | None:
        """Time if decided after the fewest seeds, s; None if unknown, or if all are run."""
        return None if self.least is None or self.seconds is None else self.seconds * self.least / self.seeds

    @property
    def peak(self) -> int:
        """Peak of the main process, bytes."""
        return max(self.reached, self.peak_of("main"))

    @property
    def everything(self) -> int:
        """Peak of the main process and the workers on its machine together, bytes."""
        return self.peak_of("main") + -(-self.workers // self.nodes) * self.peak_of("worker")

    def peak_of(self, place: Place) -> int:
        """Peak of one process or of the device: permanent parts and the larger of the two phases, bytes."""
        always, training, evaluation = (
            sum(part.bytes for part in self.parts if (part.place, part.phase) == (place, phase))
            for phase in ("always", "training", "evaluation")
        )
        return always + max(training, evaluation)

    @property
    def too_large(self) -> str:
        """Why the run does not fit into memory, with the sum and a remedy; empty if it does."""
        for limit, needed, what in (
            (self.limit, self.everything, "memory"),
            (self.device_limit, self.peak_of("device"), "CUDA memory"),
        ):
            if limit is not None and needed > limit:
                parts = [p for p in self.parts if p.bytes and (p.place == "device") == (what == "CUDA memory")]
                sums = (f"{human_bytes(p.bytes)} {p.what}{' a worker' * (p.place == 'worker')}" for p in parts)
                largest = max(parts, key=lambda p: p.bytes * (p.what != NOW))
                return (
                    f"the run needs {human_bytes(needed)} of {what} ({' + '.join(sums)}), but {human_bytes(limit)} can "
                    f"be had; {largest.remedy}"
                )
        return ""

    def refuse(self) -> None:
        """Refuse a run that does not fit into memory.

        Raises:
            ConfigError: With the sum and a remedy.
        """
        if self.too_large:
            raise ConfigError(self.too_large)

    def to_json(self) -> dict[str, Any]:
        """The forecast as plan.json and `unskew plan --json` show it; bytes and seconds."""
        table = {name: value for name, value in asdict(self).items() if name not in ("costs", "parts", "reached")}
        limits = {"limit": table.pop("limit"), "device_limit": table.pop("device_limit")}
        peaks = {"peak": self.peak, "everything": self.everything, "device": self.peak_of("device")}
        return {
            **table,
            "least_seconds": self.least_seconds,
            "methods": [{**asdict(c), "seconds": c.seconds} for c in self.costs],
            "memory": {**peaks, **limits, "parts": [asdict(part) for part in self.parts]},
            "energy_j": None,  # nothing here measures power
        }


NOW = "so far"
"""Name of the memory that this process holds already."""
