"""What every contender is asked to do, and how it tells what it did.  Imported in all environments: NumPy only."""

import json
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Job:
    """One run of one contender: FedAvg, one local epoch of plain SGD.

    Attributes:
        model: "mlp" is 784-200-200-10 on 28x28, "cnn" two 5x5 convolutions and 1600-512-10 on 32x32x3.
        clients, samples: Client c holds rows c * samples to (c + 1) * samples.
        cohort: Clients per round, drawn without replacement.
        rounds: How many.
        batch, lr: Of the local SGD; no momentum, no decay.
        cores: How many this machine has.
        threads: PyTorch threads, where the contender trains in one process.
        slots: Clients that train at once, where the contender can be told.
        data: Folder with MODEL.npz and MODEL-initial.npz.
        out: Where the journal goes, and beside it the final model.
    """

    model: str
    clients: int
    samples: int
    cohort: int
    rounds: int
    batch: int
    lr: float
    cores: int
    threads: int
    slots: int
    data: str
    out: str

    @property
    def steps(self) -> int:
        """Local steps of the whole run."""
        return self.rounds * self.cohort * -(-self.samples // self.batch)

    def write(self, path: Path) -> None:
        """Save as JSON."""
        path.write_text(json.dumps(asdict(self)))

    @staticmethod
    def read(path: Path) -> "Job":
        """What `write` saved."""
        return Job(**json.loads(path.read_text()))


def training_data(job: Job) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (clients * samples, channels, height, width) float32 and labels int64."""
    with np.load(Path(job.data) / f"{job.model}.npz") as file:
        return file["x"], file["y"]


def initial(job: Job) -> list[np.ndarray]:
    """The model all contenders start from, in PyTorch's order and shapes."""
    with np.load(Path(job.data) / f"{job.model}-initial.npz") as file:
        return [file[f"p{i}"] for i in range(len(file.files))]


class Journal:
    """A file of JSON lines, each with the moment it was written; what a run that was cut off did stays known."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def mark(self, what: str, **more: Any) -> None:
        """`what` is over now.  The clock is the machine's, the same in all processes."""
        line = json.dumps({"what": what, "at": time.monotonic(), **more})
        with self._path.open("a") as file:
            file.write(line + "\n")

    def end(self, params: list[np.ndarray], steps: int, setting: str, *packages: str) -> None:
        """The last line: steps counted, setting in words, versions of the packages; the model goes to a file."""
        np.savez(self._path.with_suffix(".npz"), **{f"p{i}": p for i, p in enumerate(params)})
        self.mark("end", steps=steps, setting=setting, versions={name: version(name) for name in packages})
