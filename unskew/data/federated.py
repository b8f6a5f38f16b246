"""A data set divided over clients, and the manifest that records the division."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unskew.data import skew
from unskew.data.assign import assign, check_manifest_fits
from unskew.data.dataset import Dataset
from unskew.data.entanglement import Entanglement, bases_of, entanglement
from unskew.data.manifest import PARTS, SCHEMA, index_sha256, read_manifest
from unskew.data.split import BASES, FromManifest, Natural, Split, record
from unskew.errors import ConfigError, DataError
from unskew.keys import Key


@dataclass(frozen=True, eq=False)
class ClientIndex:
    """One client's examples: sorted int64 indices into the data set's *training* part, disjoint; train is not empty."""

    train: Tensor
    val: Tensor
    test: Tensor


@dataclass(frozen=True, eq=False)
class FederatedData:
    """A data set and its division among clients; the global test set is the data set's own test part.

    Attributes:
        dataset: The examples.
        clients: One index per client, by client number.
        split: Name and fields of the split, as JSON.
        seed: Seed of the key that drew it.
        sha256: SHA-256 of the indices (`index_sha256`); equal hashes mean equal divisions.
    """

    dataset: Dataset
    clients: tuple[ClientIndex, ...]
    split: Mapping[str, Any]
    seed: int
    sha256: str

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return len(self.clients)

    @property
    def label_counts(self) -> npt.NDArray[np.int64]:
        """Training examples of each class at each client, (clients, classes)."""
        trains = [c.train.numpy() for c in self.clients]
        return skew.label_counts(trains, self.dataset.y_train.numpy(), self.dataset.num_classes)

    @property
    def domains(self) -> list[int] | None:
        """The domain of each client, if all of a client's training examples are of one domain; None otherwise."""
        return self._one_each(self.dataset.domains)

    @property
    def client_names(self) -> tuple[str, ...] | None:
        """A name per client; None if the data name neither clients nor domains, so that clients are numbers.

        Clients that come with the data have the data's names; clients of one domain each are named after it, with a
        number if several share it.
        """
        owners = self._one_each(self.dataset.owners)
        if owners is not None and len(set(owners)) == len(owners):
            return tuple(self.dataset.client_names[owner] for owner in owners)
        domains = self.domains
        if domains is None:
            return None
        names = [self.dataset.domain_names[domain] for domain in domains]
        return tuple(
            name if names.count(name) == 1 else f"{name} {names[:i].count(name) + 1}" for i, name in enumerate(names)
        )

    def _one_each(self, of_example: Tensor | None) -> list[int] | None:
        """The value that a client's training examples share, for each client; None if some client has several."""
        if of_example is None:
            return None
        values = [set(of_example[c.train].tolist()) for c in self.clients]
        return [value.pop() for value in values] if all(len(value) == 1 for value in values) else None

    def entanglement(self, bases: str = "both") -> Entanglement:
        """Overlap of the clients' training parts; `bases` is as in `unskew.data.split.Entangled`.

        Raises:
            DataError: If domains are asked for and there are none.
        """
        domains = None if self.dataset.domains is None else self.dataset.domains.numpy()
        base = bases_of(self.dataset.y_train.numpy(), domains, bases)
        trains = [c.train.numpy() for c in self.clients]
        return entanglement(skew.label_counts(trains, base, int(base.max()) + 1))


def federate(
    dataset: Dataset, split: Split, key: Key, test_fraction: float = 0.2, val_fraction: float = 0.0
) -> FederatedData:
    """Divide a data set over clients, and each client's examples into train, val and test.

    A client's n examples are drawn at random under its own key: round(test_fraction * n) are its personal test set and
    round(val_fraction * (n - test)) its validation part, halves rounded up; at least one example stays for training.  A
    client too small for a share of one example has an empty part (n <= 2 at 0.2).  `split.min_samples` counts all three
    parts.  A manifest (`FromManifest`) brings its own parts, so the fractions do not apply to it.

    Raises:
        ConfigError: If a fraction is not in [0, 1), or a field of the split is out of range.
        DataError: If the data cannot be divided as asked, or come with their clients and another division is asked for.
    """
    for name, value in (("test_fraction", test_fraction), ("val_fraction", val_fraction)):
        if not 0 <= value < 1:
            raise ConfigError(f"{name} must be in [0, 1), got {value}")
    if isinstance(split, FromManifest):
        fed = from_manifest(Path(split.path), dataset)
        check_manifest_fits(split, tuple(torch.cat([c.train, c.val, c.test]).numpy() for c in fed.clients))
        return fed
    if dataset.owners is not None and not isinstance(split, Natural):
        raise DataError(
            f"{dataset.name} comes with its {len(dataset.client_names)} clients, so it is not divided again: leave "
            'split out (in a file: split.name = "natural"), or give the data without their clients'
        )
    domains, owners = (None if of is None else of.numpy() for of in (dataset.domains, dataset.owners))
    parts = assign(split, dataset.y_train.numpy(), dataset.num_classes, key / "split", domains, owners)
    clients = tuple(
        _cut(indices, key / "client" / i / "parts", test_fraction, val_fraction) for i, indices in enumerate(parts)
    )
    return FederatedData(dataset, clients, record(split), key.seed, _sha256(clients))


def _cut(indices: npt.NDArray[np.int64], key: Key, test_fraction: float, val_fraction: float) -> ClientIndex:
    n = len(indices)
    test = min(int(test_fraction * n + 0.5), n - 1)
    val = min(int(val_fraction * (n - test) + 0.5), n - test - 1)
    drawn = key.numpy().permutation(indices)
    train, middle, last = (
        torch.from_numpy(np.sort(part)) for part in (drawn[test + val :], drawn[test : test + val], drawn[:test])
    )
    return ClientIndex(train, middle, last)


def pooled(fed: FederatedData) -> FederatedData:
    """One client that holds every client's training and validation examples, for the centralised bound.

    Its test part is empty: the personal test sets stay out of training and with the original `fed`.
    """
    train = torch.cat([c.train for c in fed.clients]).sort().values
    val = torch.cat([c.val for c in fed.clients]).sort().values
    clients = (ClientIndex(train, val, torch.empty(0, dtype=torch.int64)),)
    return replace(fed, clients=clients, sha256=_sha256(clients))


def _lists(clients: tuple[ClientIndex, ...]) -> list[list[list[int]]]:
    return [[getattr(c, part).tolist() for part in PARTS] for c in clients]


def _sha256(clients: tuple[ClientIndex, ...]) -> str:
    return index_sha256(_lists(clients))


def to_manifest(fed: FederatedData) -> dict[str, Any]:
    """The division as JSON (schema 1): names, indices per client with their hash, statistics of the training parts."""
    counts = fed.label_counts
    measured = skew.summary(counts)
    reached: dict[str, Any] = {} if fed.domains is None else {"domains": fed.domains}
    if fed.split["name"] == "entangled" and (bases := fed.split.get("bases")) in BASES:
        both = fed.entanglement(bases)
        reached |= {"entanglement": both.average, "largest_entanglement": both.maximum}
    return {
        "schema": SCHEMA,
        "dataset": fed.dataset.name,
        "dataset_sha256": fed.dataset.sha256,
        "n": len(fed.dataset.y_train),
        "split": dict(fed.split),
        "seed": fed.seed,
        "sha256": fed.sha256,
        "classes": list(fed.dataset.classes),
        "client_names": None if fed.client_names is None else list(fed.client_names),
        "clients": [dict(zip(PARTS, parts, strict=True)) for parts in _lists(fed.clients)],
        "stats": {
            "sizes": counts.sum(1).tolist(),
            "label_counts": counts.tolist(),
            "iid_distance": measured.iid_distance,
            "js": measured.js,
            "effective_classes": measured.effective_classes,
            **reached,
        },
    }


def from_manifest(path: Path | str, dataset: Dataset) -> FederatedData:
    """The division a manifest records, for exactly the data set it was made from; its statistics are not read.

    Raises:
        DataError: If the manifest is broken (`read_manifest`) or belongs to other data; both hashes are shown.
    """
    manifest = read_manifest(Path(path))
    if manifest.dataset_sha256 != dataset.sha256:
        raise DataError(
            f"the manifest {path} divides {manifest.dataset} with SHA-256 {manifest.dataset_sha256}, "
            f"but {dataset.name} has {dataset.sha256}"
        )
    if manifest.n != len(dataset.y_train):
        raise DataError(f"the manifest {path} divides {manifest.n} samples, {dataset.name} has {len(dataset.y_train)}")
    clients = tuple(ClientIndex(*(torch.from_numpy(np.sort(part)) for part in parts)) for parts in manifest.clients)
    return FederatedData(dataset, clients, manifest.split, manifest.seed, _sha256(clients))
