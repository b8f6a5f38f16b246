"""Splits by name and setting: how a data set is divided over clients.  `unskew.data.assign` draws them.

Sources    dirichlet     T. H. Hsu et al. 2019 (by client); M. Yurochkin et al. 2019 (by class)
           pathological  "quantity-based label skew" of Q. Li et al. 2022
           shards        H. B. McMahan et al. 2017
           entangled     FedDistr (unskew/data/entanglement.py)
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le

from unskew.keys import Key
from unskew.registry import Registry

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class IID:
    """Equal parts at random; sizes differ by 1 at most."""

    num_clients: Annotated[int, Ge(1)] = 10
    min_samples: Annotated[int, Ge(1)] = 2


@dataclass(frozen=True)
class Dirichlet:
    """Label skew of strength alpha: 0.1 is strong, 100 nearly none.

    By "class", each class is shared out over the clients by a Dirichlet(alpha) draw, so labels and sizes both differ.
    By "capped", the same class after class, but a client that has its even share of all examples gets nothing more, so
    sizes differ little; this is how FedDif's code divides its data, and much code of the same origin.
    By "client", sizes are equal and each client, in random order, draws the class mixture it takes from what is left;
    once a class is used up its share passes to the client's other classes, so the last clients follow theirs less.
    """

    alpha: Annotated[float, Gt(0)] = 0.5
    by: Literal["class", "capped", "client"] = "class"
    num_clients: Annotated[int, Ge(1)] = 10
    min_samples: Annotated[int, Ge(1)] = 2


@dataclass(frozen=True)
class Pathological:
    """Clients with at most `classes_per_client` classes; the clients that hold a class share it equally.

    Each client takes the classes least used so far, ties at random, so every class has a holder.
    """

    classes_per_client: Annotated[int, Ge(1)] = 2
    num_clients: Annotated[int, Ge(1)] = 10
    min_samples: Annotated[int, Ge(1)] = 2


@dataclass(frozen=True)
class Shards:
    """Sorted by label, cut into equal shards, `shards_per_client` of them for each client at random."""

    shards_per_client: Annotated[int, Ge(1)] = 2
    num_clients: Annotated[int, Ge(1)] = 10
    min_samples: Annotated[int, Ge(1)] = 2


@dataclass(frozen=True)
class Quantity:
    """Sizes by a Dirichlet(alpha) draw, labels at random."""

    alpha: Annotated[float, Gt(0)] = 0.5
    num_clients: Annotated[int, Ge(1)] = 10
    min_samples: Annotated[int, Ge(1)] = 2


@dataclass(frozen=True)
class HalfNormal:
    """Sizes in proportion to |N(0, 1)|, labels at random."""

    num_clients: Annotated[int, Ge(1)] = 10
    min_samples: Annotated[int, Ge(1)] = 2


@dataclass(frozen=True)
class ByGroup:
    """One domain per client: each that has examples is cut at random into `clients_per_group` equal parts.

    Clients are in order of their domain.  `num_clients` follows from the data; where given it must agree.  From a
    larger part a client keeps `max_samples` at random, and the rest is not used; a lower cap keeps a subset of these.
    """

    clients_per_group: Annotated[int, Ge(1)] = 1
    num_clients: int | None = None
    min_samples: Annotated[int, Ge(1)] = 2
    max_samples: Annotated[int, Ge(1)] | None = None


BASES = ("labels", "domains", "both")


@dataclass(frozen=True)
class Entangled:
    """Clients whose mixtures of base distributions have average entanglement `xi` (unskew/data/entanglement.py).

    By "blocks" every client owns equally many base distributions, drawn at random, and the same small share of all
    others; by "dirichlet" each is shared out by a Dirichlet draw whose alpha is found by bisection.  Base distributions
    are "labels", "domains", or "both": labels in domains where the data has domains, else labels.  The manifest has
    the value reached, which may differ: examples are whole, and a draw meets `xi` only nearly.
    """

    xi: Annotated[float, Ge(0), Le(1)] = 0.057
    by: Literal["blocks", "dirichlet"] = "blocks"
    bases: Literal["labels", "domains", "both"] = "both"
    num_clients: Annotated[int, Ge(1)] = 5
    min_samples: Annotated[int, Ge(1)] = 2


@dataclass(frozen=True)
class Natural:
    """The clients that the data come with: each holds its own examples.

    Clients are in the order of the data's client names.  `num_clients` follows from the data; where given it must
    agree.
    """

    num_clients: int | None = None
    min_samples: Annotated[int, Ge(1)] = 1


@dataclass(frozen=True)
class FromManifest:
    """The split that a manifest file records (`unskew.data.federated.to_manifest`)."""

    path: str
    num_clients: int | None = None
    min_samples: Annotated[int, Ge(1)] = 1


@dataclass(frozen=True, eq=False)
class TrainingExamples:
    """The training examples to be divided.

    Attributes:
        labels: (n,) in 0 .. num_classes - 1.
        num_classes: Number of classes, those without an example included.
        domains: (n,) domain of each example; None if the data have none.
    """

    labels: Ints
    num_classes: int
    domains: Ints | None = None


@runtime_checkable
class OwnSplit(Protocol):
    """A split that is not ours: a frozen dataclass with these; its other fields are settings."""

    @property
    def num_clients(self) -> int | None:
        """Number of clients; None if it follows from the data."""
        ...

    def assign(self, examples: TrainingExamples, key: Key) -> Sequence[Ints]:
        """The examples of each client, as indices; each example at most once, no client without any."""
        ...


TABLE = {
    "iid": IID,
    "dirichlet": Dirichlet,
    "pathological": Pathological,
    "shards": Shards,
    "quantity": Quantity,
    "half_normal": HalfNormal,
    "group": ByGroup,
    "entangled": Entangled,
    "natural": Natural,
    "manifest": FromManifest,
}
"""Our splits by the name a configuration uses."""

OurSplit = (
    IID | Dirichlet | Pathological | Shards | Quantity | HalfNormal | ByGroup | Entangled | Natural | FromManifest
)
Split = OurSplit | OwnSplit

BY_LABEL = (Dirichlet, Pathological, Shards, Entangled)
"""Our splits that divide by class."""


def _is_split(kind: Any) -> bool:
    return (
        inspect.isclass(kind)
        and is_dataclass(kind)
        and (kind in TABLE.values() or callable(getattr(kind, "assign", None)))
        and any(f.name == "num_clients" for f in fields(kind))
    )


SPLITS = Registry(
    "split",
    "unskew.splits",
    {name: f"{__name__}:{kind.__name__}" for name, kind in TABLE.items()},
    "a frozen dataclass with a field num_clients and a method assign(examples, key)",
    _is_split,
    about={name: (kind.__doc__ or "").partition("\n")[0] for name, kind in TABLE.items()},
)


def record(split: Split) -> dict[str, Any]:
    """The split as JSON: its name and its fields.

    >>> record(IID(num_clients=3))
    {'name': 'iid', 'num_clients': 3, 'min_samples': 2}
    """
    return {"name": SPLITS.name_of(type(split)), **{f.name: getattr(split, f.name) for f in fields(split)}}  # type: ignore[arg-type]
