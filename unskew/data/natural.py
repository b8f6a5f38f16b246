"""Data sets whose clients are really there: hospitals, users of a phone, mine fields, writers.

`heart` comes with unskew.  The others are read from the data folder: NAME.npz in it, or in a folder `federated` of it.
"""

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Interval

from unskew.data.arrays import Arrays
from unskew.data.preprocess import Preprocess
from unskew.tasks.targets import CLASS, NUMBER, SURVIVAL, TOKENS, Targets

Read = Callable[[Path], Mapping[str, npt.NDArray[Any]]]
"""Reads the arrays of an npz file."""


@dataclass(frozen=True)
class NaturalSet:
    """A data set with its own clients.

    Attributes:
        what, shape: One line, for `unskew list datasets`.
        origin: Where it comes from.
        arrays: Brings the file's content into the plain layout (`unskew.data.arrays.LAYOUT`).
        preprocess: Done to its columns unless something else is asked for; None if the inputs are no columns.
        newcomers: Clients that have test rows only come after training, instead of being refused.
        targets: The form of its targets; classes may be numbers 0 and 1 to a task that learns those.
    """

    what: str
    shape: str
    origin: str
    arrays: Callable[[Read, Path], Arrays]
    preprocess: Preprocess | None = None
    newcomers: bool = False
    targets: Targets = CLASS


@dataclass(frozen=True)
class NaturalOptions:
    """The choice that a set without test rows of its own leaves.

    Attributes:
        test: Share of each client's rows that is set aside as its test rows; by default a fifth.
    """

    test: Annotated[float, Interval(gt=0.0, lt=1.0)] | None = None


def files_of(name: str, root: Path) -> tuple[Path, ...]:
    """The places where a set's file is looked for."""
    if name == "shakespeare":
        return tuple(folder / "shakespeare.json.gz" for folder in (root, root / "federated", root / name))
    if name == "heart":
        return (Path(__file__).parent / "bundled" / "heart.npz",)
    return (root / f"{name}.npz", root / "federated" / f"{name}.npz", root / name / f"{name}.npz")


def _words(names: Any) -> npt.NDArray[np.str_]:
    return np.array([str(name) for name in names], np.str_)


def _by_part(test: npt.NDArray[np.bool_], **columns: npt.NDArray[Any]) -> Arrays:
    """Columns of the plain layout, cut by which rows are for testing."""
    rows = {"train": ~test, "test": test}
    return {f"{key}_{part}": values[chosen] for key, values in columns.items() for part, chosen in rows.items()}


def _heart(read: Read, path: Path) -> Arrays:
    file = read(path)
    centre = file["centre"].astype(np.int64)
    return {
        **_by_part(file["test"], x=file["x"], y=file["y"].astype(np.int64), client=centre),
        "clients": _words(("Cleveland", "Hungary", "Switzerland", "Long Beach V.A.")),
        "classes": _words(("no disease", "disease")),
        "features": _words(file["feature"]),
    }


def _wisdm(read: Read, path: Path) -> Arrays:
    file = read(path)
    return {
        "x_train": file["x"],
        "y_train": file["y"].astype(np.int64),
        "client_train": file["user"].astype(np.int64) - 1,
        "clients": _words(f"user {i}" for i in range(1, 37)),
        "classes": _words(file["activity"]),
        "features": _words(file["feature"]),
    }


def _tcga_brca(read: Read, path: Path) -> Arrays:
    """Time in days and whether the patient died then, by region, with FLamby's test patients."""
    file = read(path)
    y = np.stack([file["time"], file["event"].astype(np.float32)], axis=1)
    region = file["region"].astype(np.int64)
    return {
        **_by_part(file["test"], x=file["x"].astype(np.float32), y=y, client=region),
        "clients": _words(file["region_name"]),
        "features": _words(file["feature"]),
    }


def _parkinsons(read: Read, path: Path) -> Arrays:
    """The total score from the voice; the day of the recording, which gives it away, is left out."""
    file = read(path)
    kept = file["feature"] != "test_time"
    return {
        "x_train": file["x"][:, kept],
        "y_train": file["total"],
        "client_train": file["subject"].astype(np.int64) - 1,
        "clients": _words(f"patient {i}" for i in range(1, 43)),
        "features": _words(file["feature"][kept]),
    }


PASSAGE = 80
"""Characters of a passage; the task is to say the next one after each of them."""

LEAST_CHARACTERS = 1000
"""Characters a role must have to be a client."""


def _shakespeare(read: Read, path: Path) -> Arrays:
    """Passages of 80 characters, and the character that follows each; roles with 1,000 characters or more."""
    book = json.loads(gzip.decompress(path.read_bytes()))
    roles = [role for role in book["clients"] if len("\n".join(role["text"])) >= LEAST_CHARACTERS]
    texts = ["\n".join(role["text"]) for role in roles]
    characters = sorted(set("".join(texts)))
    number = {character: i for i, character in enumerate(characters)}
    x, y, owner = [], [], []
    for client, text in enumerate(texts):
        ids = np.array([number[character] for character in text], np.int64)
        for start in range(0, len(ids) - PASSAGE, PASSAGE):
            x.append(ids[start : start + PASSAGE])
            y.append(ids[start + 1 : start + PASSAGE + 1])
            owner.append(client)
    return {
        "x_train": np.stack(x),
        "y_train": np.stack(y),
        "client_train": np.array(owner, np.int64),
        "clients": _words(f"{role['role']} in {role['play']}" for role in roles),
        "classes": _words({" ": "space", "\n": "end of line"}.get(c, c) for c in characters),
    }


def _landmine(read: Read, path: Path) -> Arrays:
    file = read(path)
    field = file["field"].astype(np.int64)
    return {
        "x_train": file["x"],
        "y_train": file["y"].astype(np.int64),
        "client_train": field,
        "clients": _words(f"field {i}" for i in range(29)),
        "classes": _words(("clutter", "mine")),
        "domain_train": (field >= 15).astype(np.int64),
        "domains": _words(("foliage", "bare ground")),
    }


def _mnist_writers(read: Read, path: Path) -> Arrays:
    """Every writer is a client; those of the test images are others, who come after training."""
    file = read(path)
    mnist = next(
        (
            place
            for place in (*files_of("mnist", path.parent), *files_of("mnist", path.parent.parent))
            if place.is_file()
        ),
        path.parent / "mnist.npz",
    )
    images = read(mnist)
    writers = np.concatenate([np.unique(file["writer_train"]), np.unique(file["writer_test"])])
    number = {int(writer): i for i, writer in enumerate(writers)}
    part: dict[str, Any] = {}
    for key in ("train", "test"):
        part[f"x_{key}"], part[f"y_{key}"] = images[f"x_{key}"], images[f"y_{key}"].astype(np.int64)
        part[f"client_{key}"] = np.array([number[int(writer)] for writer in file[f"writer_{key}"]], np.int64)
    return {
        **part,
        "clients": _words(f"writer {writer}" for writer in writers),
        "classes": _words(range(10)),
        "domain_train": (file["hsf_train"] == 4).astype(np.int64),
        "domain_test": (file["hsf_test"] == 4).astype(np.int64),
        "domains": _words(("employees", "students")),
    }


NATURAL: dict[str, NaturalSet] = {
    "heart": NaturalSet(
        "heart disease in 4 hospitals, 740 patients",
        "13 columns, 2 classes, 4 clients",
        "bundled; UCI Machine Learning Repository, rows and split of FLamby",
        _heart,
        Preprocess(scale="site"),
    ),
    "wisdm": NaturalSet(
        "what 36 people do, from the phone in the pocket",
        "43 columns, 6 classes, 36 clients",
        "wisdm.npz (WISDM v1.1, transformed)",
        _wisdm,
        Preprocess(),
    ),
    "landmine": NaturalSet(
        "mine or clutter in 29 fields of two kinds",
        "9 columns, 2 classes, 29 clients, 2 domains",
        "landmine.npz (Duke University)",
        _landmine,
        Preprocess(),
    ),
    "tcga_brca": NaturalSet(
        "survival with breast cancer in 6 regions, 1,088 patients",
        "39 columns, time and event, 6 clients",
        "tcga_brca.npz (The Cancer Genome Atlas; rows and split of FLamby)",
        _tcga_brca,
        Preprocess("none"),
        targets=SURVIVAL,
    ),
    "parkinsons": NaturalSet(
        "symptom score from the voice of 42 patients",
        "18 columns, a number, 42 clients",
        "parkinsons.npz (UCI Machine Learning Repository, data set 189)",
        _parkinsons,
        Preprocess(),
        targets=NUMBER,
    ),
    "shakespeare": NaturalSet(
        "what 150 roles of nine plays say, character by character",
        "80 tokens, 65 characters or fewer, 150 clients",
        "shakespeare.json.gz (tiny Shakespeare by role)",
        _shakespeare,
        targets=TOKENS,
    ),
    "mnist_writers": NaturalSet(
        "MNIST by writer: 539 train, 297 others come later",
        "1x28x28, 10 classes, 836 clients, 2 domains",
        "mnist_writers.npz (QMNIST) beside mnist.npz",
        _mnist_writers,
        newcomers=True,
    ),
}
"""Data sets with their own clients, the bundled one first."""
