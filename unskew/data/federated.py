"""A data set divided over clients, and the manifest that records the division."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unskew.data import preprocess, skew
from unskew.data.dataset import Dataset, refitted
from unskew.data.entanglement import Entanglement, bases_of, entanglement
from unskew.data.latest import latest
from unskew.data.manifest import PARTS, SCHEMA, Ragged, parts_of, read_manifest, sha256_of
from unskew.data.patients import Ints, most_frequent, proportional
from unskew.data.places import path_of
from unskew.data.split import BY_LABEL, IID, TABLE, FromManifest, Natural, Split, TrainingExamples, assign, record
from unskew.errors import ConfigError, DataError, did_you_mean, shown
from unskew.files import user_path
from unskew.keys import Key, numpy_each
from unskew.words import counted, some

TRAIN, VAL, TEST, NOWHERE = range(4)
"""The part that an example is in; earlier ones of a patient who comes again are in none."""


@dataclass(frozen=True, eq=False)
class ClientIndex:
    """One client's examples: sorted int64 indices into the *training* part, disjoint; `train` is not empty."""

    train: Tensor
    val: Tensor
    test: Tensor


@dataclass(frozen=True, eq=False)
class ClientIndices(Sequence[ClientIndex]):
    """Every client's examples, by client number."""

    train: Ragged
    val: Ragged
    test: Ragged

    @staticmethod
    def of(clients: Sequence[ClientIndex]) -> "ClientIndices":
        """The indices of these clients, packed."""
        return ClientIndices(*(Ragged.of([getattr(c, part) for c in clients]) for part in PARTS))

    def take(self, chosen: Ints) -> "ClientIndices":
        """The clients of these numbers, in this order."""
        return ClientIndices(*(getattr(self, part).take(chosen) for part in PARTS))

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of all parts; equal for equal divisions."""
        return sha256_of(self.train, self.val, self.test)

    def __len__(self) -> int:
        return len(self.train)

    def __getitem__(self, i: int) -> ClientIndex:  # type: ignore[override]  # nobody takes slices
        return ClientIndex(self.train[i], self.val[i], self.test[i])


@dataclass(frozen=True, eq=False)
class FederatedData:
    """A data set and its division among clients; the global test set is the data set's test part.

    Attributes:
        dataset: The examples.
        clients: Examples of each client, by client number.
        split: Name and fields of the split, as JSON.
        seed: Seed of the key that drew it.
        unseen: Clients that come after training, divided in the same way; None if there are none.
        names: Names of the clients where the data have none, such as the sites of a deployment.
        public: Training examples of the server, known to all clients, (m,) int64; None if there are none.
    """

    dataset: Dataset
    clients: ClientIndices
    split: Mapping[str, Any]
    seed: int
    unseen: "FederatedData | None" = None
    names: tuple[str, ...] = ()
    public: Tensor | None = None

    def __repr__(self) -> str:
        return f"<FederatedData of {shown(self.dataset.name)}: {split_label(self)}, seed {self.seed}>"

    @property
    def sha256(self) -> str:
        """SHA-256 of the clients' parts; equal for equal divisions."""
        return self.clients.sha256

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return len(self.clients)

    @cached_property
    def label_counts(self) -> Ints:
        """Training examples of each class at each client, (clients, classes)."""
        return self.counted(self.dataset.labels)

    def counted(self, labels: Tensor, kinds: int | None = None) -> Ints:
        """Counts by other labels than the data set's, (clients, kinds)."""
        train, kinds = self.clients.train, self.dataset.num_classes if kinds is None else kinds
        return skew.counts_of(train.values.numpy(), train.sizes, labels.numpy(), kinds)

    @property
    def test_counts(self) -> Ints:
        """Test examples of each class at each client, (clients, classes)."""
        test, data = self.clients.test, self.dataset
        return skew.counts_of(test.values.numpy(), test.sizes, data.labels.numpy(), data.num_classes)

    @property
    def test_patients(self) -> list[int] | None:
        """Patients among the test examples of each client; None where unknown."""
        patients = self.dataset.patients
        return None if patients is None else [len(set(patients[rows].tolist())) for rows in self.clients.test]

    @property
    def domains(self) -> list[int] | None:
        """The domain of each client, if each client's training examples are of one domain; else None."""
        return self._one_each(self.dataset.domains)

    @property
    def client_names(self) -> tuple[str, ...] | None:
        """A name per client; None if clients are numbers.

        They are the data's names, or for clients of one domain each its name, with a number if several share it.
        """
        owners = None if self.names else self._one_each(self.dataset.owners)
        if owners is not None and len(set(owners)) == len(owners):
            return tuple(self.dataset.client_names[owner] for owner in owners)
        domains = self.domains
        if self.names or domains is None:
            return self.names or None
        names = [self.dataset.domain_names[domain] for domain in domains]
        total, before = Counter(names), Counter[str]()
        numbered = []
        for name in names:
            before[name] += 1
            numbered.append(name if total[name] == 1 else f"{name} {before[name]}")
        return tuple(numbered)

    def _one_each(self, of_example: Tensor | None) -> list[int] | None:
        """The value that a client's training examples share, for each client; None if some client has several."""
        if of_example is None:
            return None
        train = self.clients.train
        if not train.sizes.all():
            return None
        values = of_example.numpy()[train.values.numpy()]
        first = values[train.bounds[:-1]]
        each: list[int] = first.tolist()
        return each if np.array_equal(values, np.repeat(first, train.sizes)) else None

    def entanglement(self, bases: str = "both") -> Entanglement:
        """Overlap of the clients' training parts; `bases` is as in `unskew.data.split.Entangled`.

        Raises:
            DataError: If domains are asked for and there are none.
        """
        domains = None if self.dataset.domains is None else self.dataset.domains.numpy()
        base = bases_of(self.dataset.labels.numpy(), domains, bases)
        return entanglement(self.counted(torch.from_numpy(base), int(base.max()) + 1))


def federate(
    dataset: Dataset,
    split: Split | None,
    key: Key,
    test_fraction: float = 0.2,
    val_fraction: float = 0.0,
    unseen: float | Sequence[str] = (),
    public: float | str = "",
) -> FederatedData:
    """Divide a data set over clients (its own, or 10 alike), and their examples into train, val and test.

    Of a client's n examples, round(test_fraction * n) are its test part, and round(val_fraction * (n - test)) its
    validation part, halves rounded up.  At least one stays for training, so a small client may have an empty part (n <=
    2 at 0.2).  With the data's own clients (`Natural`) each part has the same share of each class, or group.

    Own test examples (`Dataset.own_test`) are their clients' test parts.  Where times are known (`Dataset.when`), a
    part has the latest examples.  Where patients are known (`Dataset.patients`), shares are of patients, each in one
    part; a split divides patients by their commonest class.  Scales and vocabularies are fitted to the training rows
    again.

    Args:
        dataset: The examples.
        split: The division; its `min_samples` counts all three parts.  `FromManifest` has its own parts.
        key: Root of all draws.
        test_fraction, val_fraction: Shares of each client's examples, in [0, 1).
        unseen: Clients that come after training, beside those in `Dataset.never_train`: a share of the clients, or
            names (numbers without names).  The others are renumbered.
        public: The server's rows: a share of all clients' training rows, or the name of a client.

    Raises:
        ConfigError: If a fraction is not in [0, 1), or a field of the split is out of range.
        DataError: If the data cannot be divided as asked, or no client is left to train.
    """
    split = split or (IID() if dataset.owners is None else Natural())
    fed = _federate(dataset, split, key, test_fraction, val_fraction)
    if isinstance(split, Natural) and dataset.never_train:
        fed = _without(fed, numbers_of(fed, dataset.never_train))
    if unseen:
        if isinstance(unseen, float):
            count = max(1, math.floor(unseen * fed.num_clients + 0.5))
            apart = np.sort((key / "unseen").numpy().choice(fed.num_clients, count, replace=False))
        else:
            apart = numbers_of(fed, unseen)
        fed = _without(fed, apart)
    if public:
        fed = _with_public(fed, public, key / "public")
    return _refitted(fed)


def _with_public(fed: FederatedData, public: float | str, key: Key) -> FederatedData:
    """Set public rows aside: those of a client, or a share of what each trains on, of which it keeps one."""
    if isinstance(public, str):
        apart = numbers_of(fed, (public,), "public")
        clients, rows = _without(fed, apart).clients, fed.clients.train[int(apart[0])]
    else:
        train = fed.clients.train
        order = [torch.randperm(len(of), generator=(key / c).generator()) for c, of in enumerate(train)]
        stays = torch.cat([of >= min(math.floor(public * len(of) + 0.5), len(of) - 1) for of in order])
        rows = train.values[~stays].sort().values
        clients = ClientIndices(train.where(stays.numpy()), fed.clients.val, fed.clients.test)
    return replace(fed, clients=clients, public=rows)


def _refitted(fed: FederatedData) -> FederatedData:
    """The division with inputs that its own training rows prepare: a table's columns, and the words of texts."""
    texts = fed.dataset.inputs.kind == "texts" and fed.dataset.owners is not None  # of clients of the data's own
    if fed.dataset.raw is None and not texts:
        return fed

    def rows(each: FederatedData | None) -> Ints:
        parts = () if each is None else (each.clients.train.values, each.clients.val.values)
        return np.sort(np.concatenate([np.empty(0, np.int64), *(part.numpy() for part in parts)]))

    dataset = refitted(fed.dataset, rows(fed), rows(fed.unseen))
    later = None if fed.unseen is None else replace(fed.unseen, dataset=dataset)
    return replace(fed, dataset=dataset, unseen=later)


def _without(fed: FederatedData, apart: Ints) -> FederatedData:
    """Set the clients of these numbers aside, behind those that are set aside already."""
    if len(apart) == fed.num_clients:
        raise DataError(f"unseen has all {fed.num_clients} clients, and none is left to train; name fewer")
    stay = np.setdiff1d(np.arange(fed.num_clients), apart)
    known, later = fed.clients.take(stay), fed.clients.take(apart)
    if fed.unseen is not None:
        later = ClientIndices.of([*fed.unseen.clients, *later])
    return replace(fed, clients=known, unseen=replace(fed, clients=later, unseen=None))


def named_in(fed: FederatedData, groups: Sequence[Sequence[str]], role: str) -> dict[int, int]:
    """The index of the group that names each client; the first group, if empty, takes clients that no group names.

    Raises:
        DataError: If a client is in no group or in several, or does not exist.
    """
    named = [(c, i) for i, names in enumerate(groups) for c in numbers_of(fed, names, role).tolist()]
    if len(named) > len(dict(named)) or (groups and groups[0] and len(named) < fed.num_clients):
        raise DataError(f"{role} must name every client once, or in the first entry nobody: that is for the rest")
    return dict(named)


def numbers_of(fed: FederatedData, names: Sequence[str], role: str = "unseen") -> Ints:
    """The numbers of clients by their names, ascending; `role` is for messages."""
    known = {name: i for i, name in enumerate(fed.client_names or map(str, range(fed.num_clients)))}
    for name in names:
        if name not in known:
            raise DataError(f"{role}: there is no client {name!r}{did_you_mean(name, known)} (of {some(list(known))})")
    return np.array(sorted({known[name] for name in names}), np.int64)


def _federate(dataset: Dataset, split: Split, key: Key, test_fraction: float, val_fraction: float) -> FederatedData:
    """Divide a data set over clients that all train."""
    for name, value in (("test_fraction", test_fraction), ("val_fraction", val_fraction)):
        if not 0 <= value < 1:
            raise ConfigError(f"{name} must be in [0, 1), got {value}")
    if isinstance(split, FromManifest):
        fed = from_manifest(path_of(split.path.replace("{seed}", str(key.seed))), dataset)
        sizes = fed.clients.train.sizes + fed.clients.val.sizes + fed.clients.test.sizes
        if split.num_clients not in (None, len(sizes)) or sizes.min() < split.min_samples:
            raise DataError(f"{split.path} has {len(sizes)} clients with {sizes.min()} examples or more")
        both = fed.clients if fed.unseen is None else [*fed.clients, *fed.unseen.clients]
        held = [[getattr(client, part).numpy() for client in both] for part in PARTS]
        if dataset.owners is not None:  # whose patients may be at several
            held = [[np.concatenate(of)] for of in held]
        _check_together(dataset, [of for part in held for of in part], split.path)
        return fed
    if dataset.owners is not None and not isinstance(split, Natural):
        raise DataError(f"{dataset.name} comes with its clients, so it is not divided again: leave split out")
    if not dataset.targets.classes and dataset.num_classes < 2 and isinstance(split, BY_LABEL):
        way = ", or count targets in task.bins" if dataset.targets.name == "number" else ""
        raise DataError(f"split {record(split)['name']} divides by class, and targets are none; use iid{way}")
    shares = _shares(dataset, split, key / "split")
    # What papers divide is cut as they cut it, at random; a real client's few events are to be in every part.
    clients = cut(dataset, shares, key / "client", test_fraction, val_fraction, even=isinstance(split, Natural))
    return FederatedData(dataset, clients, record(split), key.seed)


def _shares(dataset: Dataset, split: Split, key: Key) -> tuple[Ints, ...]:
    """The examples of each client, ascending; all examples of a patient at one."""
    labels = dataset.labels.numpy()
    domains, owners, patients = (
        None if of is None else of.numpy() for of in (dataset.domains, dataset.owners, dataset.patients)
    )
    own = type(split) not in TABLE.values()
    if patients is None or own or isinstance(split, Natural):
        shares = assign(split, TrainingExamples(labels, dataset.num_classes, domains, owners), key)
        if own:
            _check_together(dataset, shares, f"split {record(split)['name']!r}")
        return shares
    codes, of_row = np.unique(patients, return_inverse=True)
    label, domain = (None if of is None else most_frequent(patients, of) for of in (labels, domains))
    assert label is not None
    try:
        of_patients = assign(split, TrainingExamples(label, dataset.num_classes, domain), key)
    except DataError as error:
        raise DataError(f"{error} (each of {len(codes):,} patients counts as an example)") from error
    client = np.full(len(codes), len(of_patients))
    for i, chosen in enumerate(of_patients):
        client[chosen] = i
    client = client[of_row]
    order = np.argsort(client, kind="stable")
    return tuple(np.split(order, np.bincount(client, minlength=len(of_patients)).cumsum()[: len(of_patients)])[:-1])


def _check_together(dataset: Dataset, parts: Sequence[Ints], where: str) -> None:
    """Refuse a division that has examples of one patient in several parts."""
    if dataset.patients is None:
        return
    part = np.repeat(np.arange(len(parts)), [len(held) for held in parts])
    rows = np.concatenate([np.empty(0, np.int64), *parts])
    _, first, of_row = np.unique(dataset.patients.numpy()[rows], return_index=True, return_inverse=True)
    other = np.flatnonzero(part != part[first[of_row]])
    if len(other):
        one = first[of_row[other[0]]]
        raise DataError(f"{where}: the examples {rows[one]} and {rows[other[0]]} are of one patient, and apart")


def cut(dataset: Dataset, held: Sequence[Ints], key: Key, test: float, val: float, even: bool = True) -> ClientIndices:
    """Each client's examples in train, val and test.

    Units are patients where known, else single examples.  A patient of several clients belongs to the one with most of
    the examples.  Where times are known a part has the latest examples, and earlier ones of its patients are left out.

    Args:
        dataset: The examples; those of `Dataset.own_test` are the only ones for testing.
        held: Each client's examples, ascending.
        key: Client i draws with `key / i / "parts"`.
        test: Share of a client's units for testing.
        val: Share of its other units for validation.
        even: Each class, or group, has the same share in each part.

    Raises:
        DataError: If a client has examples and none to train on.
    """
    rows, owner = np.concatenate(held), np.repeat(np.arange(len(held)), [len(of) for of in held])
    patients = None if dataset.patients is None else dataset.patients.numpy()
    unit = np.arange(len(rows)) if patients is None else np.unique(patients[rows], return_inverse=True)[1]
    part = np.full(len(rows), TRAIN)
    shares = [(TEST, test), (VAL, val)]
    if dataset.own_test is not None:
        part[dataset.own_test.numpy()[rows]] = TEST
        shares = shares[1:]
    if dataset.when is not None:
        bounds = np.cumsum([len(of) for of in held])[:-1]
        for mine in np.split(np.arange(len(rows)), bounds):
            for which, share in shares:
                left = mine[part[mine] == TRAIN]
                late, early = latest(dataset.when.numpy()[rows[left]], share, None if patients is None else unit[left])
                part[left] = np.where(late, which, np.where(early, TRAIN, NOWHERE))
    else:
        label = dataset.labels.numpy()[rows] if even else np.zeros(len(rows), np.int64)
        home = owner
        if patients is not None:
            home, label = most_frequent(unit, owner), most_frequent(unit, label)
        of_unit = np.full(len(home), TRAIN)
        of_unit[unit[part == TEST]] = TEST
        at = np.split(np.argsort(home, kind="stable"), np.bincount(home, minlength=len(held)).cumsum()[:-1])
        draws = numpy_each(key / i / "parts" for i in range(len(held)))
        left = np.concatenate([draw.permutation(units) for draw, units in zip(draws, at, strict=True)])
        left = left[of_unit[left] == TRAIN]
        for which, share in shares:
            chosen = proportional(home[left], label[left], share)
            of_unit[left[chosen]] = which
            left = left[~chosen]
        part = of_unit[unit]

    every = Ragged(torch.from_numpy(rows), np.bincount(owner, minlength=len(held)))
    clients = ClientIndices(*(every.where(part == which) for which in (TRAIN, VAL, TEST)))
    if dataset.when is not None:
        clients = apart(clients, patients)
    silent = np.flatnonzero((clients.train.sizes == 0) & (np.array([len(one) for one in held]) > 0))
    if len(silent):
        name = dataset.client_names[silent[0]] if len(dataset.client_names) == len(held) else silent[0]
        raise DataError(f"client {name} has none to train on: its examples, or its patients', all test; leave it out")
    return clients


def apart(clients: ClientIndices, patients: Ints | None) -> ClientIndices:
    """The clients without training or validation examples of patients who are in a later part at another client."""
    if patients is None:
        return clients
    train, val, test = (patients[getattr(clients, part).values.numpy()] for part in PARTS)
    kept = ~np.isin(train, np.concatenate([test, val]))
    return ClientIndices(clients.train.where(kept), clients.val.where(~np.isin(val, test)), clients.test)


def pooled(fed: FederatedData) -> FederatedData:
    """One client with every client's training and validation examples, for the centralised bound.

    Its test part is empty: the clients' test parts stay in `fed`.
    """
    train, val = (part.values.sort().values for part in (fed.clients.train, fed.clients.val))
    clients = ClientIndices.of([ClientIndex(train, val, torch.empty(0, dtype=torch.int64))])
    return replace(fed, clients=clients)


def to_manifest(fed: FederatedData) -> dict[str, Any]:
    """The division as JSON (schema 1): names, clients' examples and their hash, statistics of the training part."""
    counts, domains, later = fed.label_counts, fed.domains, fed.unseen
    stats: dict[str, Any] = asdict(skew.summary(counts)) | {"sizes": counts.sum(1).tolist()}
    stats |= {"label_counts": counts.tolist(), "test_counts": fed.test_counts.tolist()}
    if domains is not None:
        stats["domains"] = domains
    if (people := fed.test_patients) is not None:
        stats["test_patients"] = people
    if fed.split["name"] == "entangled" and "bases" in fed.split:
        both = fed.entanglement(fed.split["bases"])
        stats |= {"entanglement": both.average, "largest_entanglement": both.maximum}
    optional = {
        "preprocessing": preprocess.record(fed.dataset.inputs),
        "in_time": None if fed.dataset.when is None else True,
        "unseen": None if later is None else {
            "sha256": later.sha256,
            "client_names": later.client_names,
            "sizes": later.label_counts.sum(1).tolist(),
            "parts": parts_of(later.clients),
        },
    }  # fmt: skip
    return {
        "schema": SCHEMA,
        "dataset": fed.dataset.name,
        "dataset_sha256": fed.dataset.sha256,
        "n": len(fed.dataset.y_train),
        "split": dict(fed.split),
        "seed": fed.seed,
        "sha256": fed.sha256,
        "test_sha256": sha256_of(fed.clients.test),
        "classes": fed.dataset.classes,
        "counted": "classes" if fed.dataset.targets.classes else "groups",
        "client_names": fed.client_names,
        **{name: of for name, of in optional.items() if of is not None},
        "parts": parts_of(fed.clients),
        "stats": stats,
    }


def from_manifest(path: Path | str, dataset: Dataset) -> FederatedData:
    """The division in a manifest, for the data set it was made from; statistics are not read.

    Raises:
        DataError: If the manifest is broken (`read_manifest`) or belongs to other data; both hashes are shown.
    """
    manifest, clients, unseen = read_manifest(user_path(path))
    if (manifest.dataset_sha256, manifest.n) != (dataset.sha256, len(dataset.y_train)):
        raise DataError(f"the manifest {path} divides data of SHA-256 {manifest.dataset_sha256}, not {dataset.sha256}")
    fed = FederatedData(dataset, ClientIndices(*clients), manifest.split, manifest.seed)
    return replace(fed, unseen=replace(fed, clients=ClientIndices(*unseen))) if unseen else fed


def split_label(fed: FederatedData) -> str:
    """The split in words, as in `dirichlet(alpha=0.1), 20 clients`."""
    record = {k: v for k, v in fed.split.items() if k not in ("name", "num_clients", "min_samples") and v is not None}
    inner = ", ".join(f"{k}={v}" for k, v in record.items())
    name = f"{fed.split['name']}({inner})" if inner else f"{fed.split['name']}"
    later = "" if fed.unseen is None else f" and {fed.unseen.num_clients} unseen"
    return f"{name}, {counted(fed.num_clients, 'client')}{later}"
