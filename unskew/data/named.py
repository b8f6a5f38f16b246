"""Data sets by name: their files, and how each is read into the plain layout (`unskew.data.arrays.LAYOUT`).

Nothing is unpickled or downloaded.  `digits` comes with scikit-learn and `heart` with unskew; the others are in a data
folder.  Some have natural clients: hospitals, phone users, mine fields, writers.  `digit_domains` and `digit_five` join
several sets, each a domain (`unskew.data.domains`).  Their images are standardised by constants of all domains
together, which keeps the differences between domains.
"""

import gzip
import importlib.util
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unskew.data import arrays, build, hub
from unskew.data.archives import archive_of, corrupt
from unskew.data.arrays import Arrays
from unskew.data.columns import listed
from unskew.data.domains import Part, join
from unskew.data.places import path_of
from unskew.data.preprocess import Preprocess
from unskew.errors import DataError
from unskew.files import user_path
from unskew.keys import Key
from unskew.tasks.targets import CLASS, NUMBER, SURVIVAL, TOKENS, Targets

PLAIN = ("{0}.npz", "{0}/{0}.npz", "{0}/train_1.npz")
NATURAL = ("{0}.npz", "federated/{0}.npz", "{0}/{0}.npz")
"""Places of a set's file in a data folder."""


def whole(path: Path) -> Arrays:
    """All arrays of an npz file."""
    with archive_of(path) as archive:
        return dict(archive)


def _plain(path: Path) -> Arrays:
    return arrays.batches(path.parent) if path.name == "train_1.npz" else arrays.npz(path)


@dataclass(frozen=True)
class Named:
    """A data set by name.

    Attributes:
        what: One line for `unskew list datasets`: its content and shape.
        origin: Its source.
        classes: Names of its classes, where its file has none.
        read: Reads its file into the plain layout.
        files: Places of the file in a data folder; empty if it is bundled, or joined from others.
        parts: Sets that it is joined from.
        clients: True if it comes with its clients.
        preprocess: Default preprocessing of its columns; None if the inputs are no columns.
        unseen: Clients with test rows only are unseen clients.
        targets: The form of its targets; classes 0 and 1 also suit a task that learns these numbers.
    """

    what: str
    origin: str
    classes: tuple[str, ...] | None = None
    read: Callable[[Path], Arrays] = _plain
    files: tuple[str, ...] = PLAIN
    parts: tuple[str, ...] = ()
    clients: bool = False
    preprocess: Preprocess | None = None
    unseen: bool = False
    targets: Targets = CLASS


def _natural(what: str, origin: str, read: Callable[[Path], Arrays], **more: Any) -> Named:
    return Named(what, origin, read=read, clients=True, **{"files": NATURAL, **more})


# ---------------------------------------------------------------- looked up
def places(name: str, root: Path) -> tuple[Path, ...]:
    """The candidate files in a data folder, in this order; the first that exists is read."""
    return tuple(root / file.format(name) for file in NAMED[name].files)


def arrays_of(name: str, data_dir: Path | str | None) -> Arrays:
    """Arrays of a set, read from the data folder, by default UNSKEW_DATA of the environment.

    Raises:
        DataError: If no file is found (every place is listed), or one is broken (its size and SHA-256 are shown).
    """
    of = NAMED[name]
    if not of.files and not of.parts:
        return of.read(Path())
    needed = [part for part in of.parts or (name,) if part != "printed" and NAMED[part].files]
    folder = data_dir if data_dir is not None else os.environ.get("UNSKEW_DATA")
    if not folder:
        raise _missing(name, (), needed)
    # UNSKEW_DATA is this machine's own: sets of these names may be read there, and nothing else that others name.
    root = path_of(folder) if data_dir is not None else user_path(folder)
    files = {part: Path() for part in of.parts}
    for part in needed:
        looked_for = places(part, root)
        files[part] = next((file for file in looked_for if file.is_file()), Path())
        if files[part] == Path():
            raise _missing(part, looked_for, [part])
    if not of.parts:
        return of.read(files[name])
    read = {part: None if part == "printed" else _domain(part, file) for part, file in files.items()}
    return join(read, Key(0) / name)


def _missing(name: str, looked_for: Sequence[Path], names: Sequence[str]) -> DataError:
    state = "is not bundled and no data folder is given; set --data-dir or UNSKEW_DATA to one"
    if looked_for:
        state = f"was not found; looked for {', '.join(str(file.absolute()) for file in looked_for)}"
    wanted = ", ".join(f"{places(one, Path())[0]} (from {NAMED[one].origin})" for one in names)
    fetched = f", or ask for hub:{name}, which downloads it" if name in hub.KNOWN else ""
    return DataError(f"{name} {state}; put there {wanted}{fetched}")


def _domain(name: str, file: Path) -> Part:
    """A set as one domain of several."""
    content = NAMED[name].read(file)
    if name == "digits":
        content["x_train"] = ((content["x_train"].astype(np.int64) * 255 + 8) // 16).astype(np.uint8)  # from 0..16
    rows = arrays.table(name, content, own=False)
    y = rows.y.astype(np.int64)
    rows = build.with_test_part(rows, y, build.TEST_FRACTION)
    x = rows.inputs
    assert x is not None
    return x[rows.train], y[rows.train], x[rows.test], y[rows.test]


# ---------------------------------------------------------------- read
def _digits(_: Path) -> Arrays:
    """Scikit-learn's, read from its file: to import `sklearn.datasets` takes seconds, as long as a small run."""
    spec = importlib.util.find_spec("sklearn")
    assert spec is not None
    assert spec.origin is not None
    rows = np.loadtxt(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", np.uint8, delimiter=",")
    return {"x_train": rows[:, :-1].reshape(-1, 8, 8), "y_train": rows[:, -1].astype(np.int64)}


def _imdb(path: Path) -> Arrays:
    try:
        raw = path.read_bytes()
        content = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
        for key, kind in (("x_train", str), ("y_train", int), ("x_test", str), ("y_test", int)):
            if not isinstance(content[key], list) or not all(type(v) is kind for v in content[key]):
                raise ValueError(f"{key} must be a list of {'texts' if kind is str else 'integers'}")
    except Exception as error:  # as of an archive
        raise corrupt(path, error) from error
    texts = {key: listed(content[key]) for key in ("x_train", "x_test")}
    return {**texts, **{key: np.array(content[key], np.int64) for key in ("y_train", "y_test")}}


def _laid_out(test: npt.NDArray[np.bool_] | None = None, **given: Any) -> Arrays:
    """Columns in the plain layout, cut by which rows are for testing, and lists of names."""
    rows: dict[str, Any] = {"train": slice(None)} if test is None else {"train": ~test, "test": test}
    names = {key: np.array([str(name) for name in given.pop(key)], np.str_) for key in arrays.NAMES if key in given}
    return {**names, **{f"{key}_{part}": of[chosen] for key, of in given.items() for part, chosen in rows.items()}}


def _heart(_: Path) -> Arrays:
    return arrays.npz(Path(__file__).parent / "bundled" / "heart.npz")


def _wisdm(path: Path) -> Arrays:
    file = whole(path)
    return _laid_out(
        x=file["x"],
        y=file["y"].astype(np.int64),
        client=file["user"].astype(np.int64) - 1,
        clients=[f"user {i}" for i in range(1, 37)],
        classes=file["activity"],
        features=file["feature"],
    )


def _tcga_brca(path: Path) -> Arrays:
    """Time in days and whether the patient died then, by region, with FLamby's test patients."""
    file = whole(path)
    return _laid_out(
        file["test"],
        x=file["x"].astype(np.float32),
        y=np.stack([file["time"], file["event"].astype(np.float32)], axis=1),
        client=file["region"].astype(np.int64),
        clients=file["region_name"],
        features=file["feature"],
    )


def _parkinsons(path: Path) -> Arrays:
    """The total score from the voice; the day of the recording, which gives it away, is left out."""
    file = whole(path)
    kept = file["feature"] != "test_time"
    return _laid_out(
        x=file["x"][:, kept],
        y=file["total"],
        client=file["subject"].astype(np.int64) - 1,
        clients=[f"patient {i}" for i in range(1, 43)],
        features=file["feature"][kept],
    )


_DIGITS = tuple("0123456789")

PASSAGE = 80
"""Characters of a passage; the task is to say the next one after each of them."""

LEAST_CHARACTERS = 1000
"""Characters a role must have to be a client."""


def _shakespeare(path: Path) -> Arrays:
    """Passages of 80 characters, and the character that follows each; roles with 1,000 characters or more."""
    book = json.loads(gzip.decompress(path.read_bytes()))
    texts = {f"{role['role']} in {role['play']}": "\n".join(role["text"]) for role in book["clients"]}
    texts = {role: text for role, text in texts.items() if len(text) >= LEAST_CHARACTERS}
    characters = sorted(set("".join(texts.values())))
    number = {character: i for i, character in enumerate(characters)}
    x, y, owner = [], [], []
    for client, text in enumerate(texts.values()):
        ids = np.array([number[character] for character in text], np.int64)
        for start in range(0, len(ids) - PASSAGE, PASSAGE):
            x.append(ids[start : start + PASSAGE])
            y.append(ids[start + 1 : start + PASSAGE + 1])
            owner.append(client)
    classes = [{" ": "space", "\n": "end of line"}.get(c, c) for c in characters]
    return _laid_out(x=np.stack(x), y=np.stack(y), client=np.array(owner, np.int64), clients=texts, classes=classes)


def _landmine(path: Path) -> Arrays:
    file = whole(path)
    field = file["field"].astype(np.int64)
    return _laid_out(
        x=file["x"],
        y=file["y"].astype(np.int64),
        client=field,
        domain=(field >= 15).astype(np.int64),
        clients=[f"field {i}" for i in range(29)],
        classes=("clutter", "mine"),
        domains=("foliage", "bare ground"),
    )


def _mnist_writers(path: Path) -> Arrays:
    """Every writer is a client; those of the test images are others, who come after training."""
    file = whole(path)
    beside = [place for root in path.parents[:2] for place in places("mnist", root)]
    images = whole(next((place for place in beside if place.is_file()), beside[0]))
    both = {
        key: np.concatenate([of[f"{key}_train"], of[f"{key}_test"]])
        for key, of in (("x", images), ("y", images), ("writer", file), ("hsf", file))
    }
    writers = np.concatenate([np.unique(file["writer_train"]), np.unique(file["writer_test"])])
    number = {int(writer): i for i, writer in enumerate(writers)}
    return _laid_out(
        np.arange(len(both["y"])) >= len(images["y_train"]),
        x=both["x"],
        y=both["y"].astype(np.int64),
        client=np.array([number[int(writer)] for writer in both["writer"]], np.int64),
        domain=(both["hsf"] == 4).astype(np.int64),
        clients=[f"writer {writer}" for writer in writers],
        classes=_DIGITS,
        domains=("employees", "students"),
    )


_FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_IMDB = ("imdb.json", "imdb.json.gz", "imdb/imdb.json", "imdb/imdb.json.gz")
_SHAKESPEARE = tuple(f"{folder}shakespeare.json.gz" for folder in ("", "federated/", "shakespeare/"))

NAMED: dict[str, Named] = {
    "digits": Named(
        "handwritten digits, 1,797; 1x8x8, 10 classes", "bundled with scikit-learn", _DIGITS, _digits, files=()
    ),
    "mnist": Named("handwritten digits; 1x28x28, 10 classes", "yann.lecun.com/exdb/mnist", _DIGITS),
    "fashion_mnist": Named("clothes; 1x28x28, 10 classes", "github.com/zalandoresearch/fashion-mnist", _FASHION),
    "emnist": Named("handwritten letters and digits; 1x28x28, 47 classes (balanced)", "nist.gov/itl (EMNIST)"),
    "usps": Named("digits on envelopes; 1x16x16, 10 classes", "hastie.su.domains/ElemStatLearn (zip code)", _DIGITS),
    "mnist_m": Named("MNIST on photographs; 3x32x32, 10 classes", "Ganin et al., JMLR 17, 2016", _DIGITS),
    "svhn": Named("house numbers; 3x32x32, 10 classes", "ufldl.stanford.edu/housenumbers", _DIGITS),
    "synth_digits": Named("printed digits in colour; 3x32x32, 10 classes", "Ganin and Lempitsky, ICML 2015", _DIGITS),
    "digit_domains": Named(
        "MNIST, USPS, MNIST-M, scikit-learn's digits, and digits drawn from fonts; 3x28x28, 10 classes, 5 domains",
        "mnist, usps, mnist_m; the rest is bundled",
        _DIGITS,
        files=(),
        parts=("mnist", "usps", "mnist_m", "digits", "printed"),
    ),
    "digit_five": Named(
        "MNIST, SVHN, USPS, SynthDigits, MNIST-M; 3x28x28, 10 classes, 5 domains",
        "the five sets, as in FedBN, ICLR 2021",
        _DIGITS,
        files=(),
        parts=("mnist", "svhn", "usps", "synth_digits", "mnist_m"),
    ),
    "cifar10": Named("small photographs; 3x32x32, 10 classes", "www.cs.toronto.edu/~kriz/cifar.html", _CIFAR10),
    "cifar100": Named("small photographs; 3x32x32, 100 classes", "www.cs.toronto.edu/~kriz/cifar.html"),
    "pacs": Named("objects in 4 domains; 3x64x64, 7 classes", "Li et al., ICCV 2017"),
    "imdb": Named(
        "film reviews; 200 tokens, 2 classes",
        "ai.stanford.edu/~amaas/data/sentiment",
        ("negative", "positive"),
        _imdb,
        _IMDB,
    ),
    "heart": _natural(
        "heart disease in 4 hospitals, 740 patients; 13 columns, 2 classes, 4 clients",
        "bundled; UCI Machine Learning Repository, rows and split of FLamby",
        _heart,
        files=(),
        preprocess=Preprocess(scale="site"),
    ),
    "wisdm": _natural(
        "what 36 people do, from the phone in the pocket; 43 columns, 6 classes, 36 clients",
        "wisdm.npz (WISDM v1.1, transformed)",
        _wisdm,
        preprocess=Preprocess(),
    ),
    "landmine": _natural(
        "mine or clutter in 29 fields of two kinds; 9 columns, 2 classes, 29 clients, 2 domains",
        "landmine.npz (Duke University)",
        _landmine,
        preprocess=Preprocess(),
    ),
    "tcga_brca": _natural(
        "survival with breast cancer in 6 regions, 1,088 patients; 39 columns, time and event, 6 clients",
        "tcga_brca.npz (The Cancer Genome Atlas; rows and split of FLamby)",
        _tcga_brca,
        preprocess=Preprocess("none"),
        targets=SURVIVAL,
    ),
    "parkinsons": _natural(
        "symptom score from the voice of 42 patients; 18 columns, a number, 42 clients",
        "parkinsons.npz (UCI Machine Learning Repository, data set 189)",
        _parkinsons,
        preprocess=Preprocess(),
        targets=NUMBER,
    ),
    "shakespeare": _natural(
        "what 150 roles of nine plays say, character by character; 80 tokens, 65 characters or fewer, 150 clients",
        "shakespeare.json.gz (tiny Shakespeare by role)",
        _shakespeare,
        files=_SHAKESPEARE,
        targets=TOKENS,
    ),
    "mnist_writers": _natural(
        "MNIST by writer: 539 train, 297 others come later; 1x28x28, 10 classes, 836 clients, 2 domains",
        "mnist_writers.npz (QMNIST) beside mnist.npz",
        _mnist_writers,
        unseen=True,
    ),
}
"""Data sets by name, the offline default first."""
