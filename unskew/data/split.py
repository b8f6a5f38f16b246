"""Splits: how a data set is divided over clients.

Every label split draws a table of counts (clients, classes), and repairs it where a client has fewer than
`min_samples`. The examples of each class are dealt at random by that table.  Every example belongs to exactly one
client (or none, beyond `max_samples`), and the same key gives the same split.

Sources    dirichlet     T. H. Hsu et al. 2019 (by client); M. Yurochkin et al. 2019 (by class)
           pathological  "quantity-based label skew" of Q. Li et al. 2022
           shards        H. B. McMahan et al. 2017
           entangled     FedDistr (unskew/data/entanglement.py)
Departures Counts are rounded by largest remainder, so no example is left over or goes to a favoured last client.
           Examples move from the richest client, where others draw again until every client has enough.
"""

import heapq
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le

from unskew import schema
from unskew.data import entanglement
from unskew.errors import ConfigError, DataError, warn
from unskew.keys import Key, drawn_since, global_states, numpy_each
from unskew.registry import Registry

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Clients = Sequence[Ints]
"""The examples of each client, as indices."""


@dataclass(frozen=True, eq=False)
class TrainingExamples:
    """The training examples to be divided.

    Attributes:
        labels: (n,) in 0 .. num_classes - 1.
        num_classes: Number of classes, also those without an example.
        domains: (n,) domain of each example; None if the data have none.
        owners: (n,) client of each example; None if the data name none.
    """

    labels: Ints
    num_classes: int
    domains: Ints | None = None
    owners: Ints | None = None


@dataclass(frozen=True)
class IID:
    """Equal parts at random; sizes differ by 1 at most."""

    num_clients: Annotated[int, Ge(1)] = 10
    min_samples: Annotated[int, Ge(1)] = 2

    def assign(self, examples: TrainingExamples, key: Key) -> Clients:
        """The examples of each client."""
        return _of_sizes(self, np.ones(self.num_clients), examples, key)


@dataclass(frozen=True)
class Dirichlet:
    """Label skew of strength alpha: 0.1 is strong, 100 nearly none.

    By "class", a Dirichlet(alpha) draw divides each class over the clients: labels and sizes differ.  By "capped", a
    client with its even share of all examples gets no more, so sizes differ little, as in FedDif's code.  By "client",
    sizes are equal.  Each client, in random order, draws the mixture of classes that it takes from what is left.  When
    a class is used up, its share goes to the client's other classes.
    """

    alpha: Annotated[float, Gt(0)] = 0.5
    by: Literal["class", "capped", "client"] = "class"
    num_clients: Annotated[int, Ge(1)] = 10
    min_samples: Annotated[int, Ge(1)] = 2

    def assign(self, examples: TrainingExamples, key: Key) -> Clients:
        """The examples of each client."""
        stock = np.bincount(examples.labels, minlength=examples.num_classes)
        counts, wanted = {"class": self._by_class, "capped": self._capped, "client": self._mixtures}[self.by](
            stock, key
        )
        return _dealt(self, counts, wanted, examples.labels, key)

    def _by_class(self, stock: Ints, key: Key) -> tuple[Ints, Floats]:
        shares = np.exp(log_dirichlet(self.alpha, (len(stock), self.num_clients), key / "shares")).T
        return _by_column(shares, stock), shares * stock

    def _capped(self, stock: Ints, key: Key) -> tuple[Ints, Floats]:
        log_shares = log_dirichlet(self.alpha, (len(stock), self.num_clients), key / "shares")
        counts = np.zeros((self.num_clients, len(stock)), np.int64)
        wanted = np.zeros(counts.shape)
        for c, n in enumerate(stock.tolist()):
            if not n:
                continue
            # While something is left, some client is below the mean.
            open_ = np.where(counts.sum(1) * self.num_clients < stock.sum(), log_shares[c], -np.inf)
            wanted[:, c] = np.exp(open_ - open_.max())
            counts[:, c] = largest_remainder(wanted[:, c], n)
        return counts, wanted

    def _mixtures(self, stock: Ints, key: Key) -> tuple[Ints, Floats]:
        sizes = largest_remainder(np.ones(self.num_clients), int(stock.sum()))
        mixture = log_dirichlet(self.alpha, (self.num_clients, len(stock)), key / "mixtures")
        counts = np.zeros((self.num_clients, len(stock)), np.int64)
        left = stock.copy()
        for i in (key / "order").numpy().permutation(self.num_clients):
            need = int(sizes[i])
            while need:  # each further turn uses up a class, so there are as many turns as classes at most
                share = np.where(left > 0, mixture[i], -np.inf)
                take = np.minimum(largest_remainder(np.exp(share - share.max()), need), left)
                counts[i] += take
                left -= take
                need -= int(take.sum())
        return counts, np.exp(mixture) * sizes[:, None]


@dataclass(frozen=True)
class Pathological:
    """Clients with at most `classes_per_client` classes; the clients that hold a class share it equally.

    Each client takes the classes least used so far, ties at random, so every class has a holder.
    """

    classes_per_client: Annotated[int, Ge(1)] = 2
    num_clients: Annotated[int, Ge(1)] = 10
    min_samples: Annotated[int, Ge(1)] = 2

    def assign(self, examples: TrainingExamples, key: Key) -> Clients:
        """The examples of each client."""
        stock = np.bincount(examples.labels, minlength=examples.num_classes)
        present, k, rng = np.flatnonzero(stock), self.classes_per_client, (key / "classes").numpy()
        if not k <= len(present) <= self.num_clients * k:
            way = "lower" if k > len(present) else "raise num_clients or"
            raise DataError(
                f"{len(present)} classes for {self.num_clients} clients with {k} each: {way} classes_per_client"
            )
        held = np.zeros((self.num_clients, len(stock)))
        used = np.zeros(len(present))
        for row in held:
            chosen = np.argsort(used + rng.random(len(present)))[:k]
            used[chosen] += 1
            row[present[chosen]] = 1
        return _dealt(self, _by_column(held, stock), held, examples.labels, key, fixed=True)


@dataclass(frozen=True)
class Shards:
    """Sorted by label, cut into equal shards, `shards_per_client` of them for each client at random."""

    shards_per_client: Annotated[int, Ge(1)] = 2
    num_clients: Annotated[int, Ge(1)] = 10
    min_samples: Annotated[int, Ge(1)] = 2

    def assign(self, examples: TrainingExamples, key: Key) -> Clients:
        """The examples of each client."""
        n, shards = len(examples.labels), self.num_clients * self.shards_per_client
        if shards > n:
            raise DataError(f"{shards} shards are asked for of {n} examples; lower num_clients or shards_per_client")
        owner = (key / "shards").numpy().permutation(shards) // self.shards_per_client
        owners = np.repeat(owner, largest_remainder(np.ones(shards), n))
        counts = np.zeros((self.num_clients, examples.num_classes), np.int64)
        np.add.at(counts, (owners, np.sort(examples.labels)), 1)
        return _dealt(self, counts, counts.astype(np.float64), examples.labels, key)


@dataclass(frozen=True)
class Quantity:
    """Sizes by a Dirichlet(alpha) draw, labels at random."""

    alpha: Annotated[float, Gt(0)] = 0.5
    num_clients: Annotated[int, Ge(1)] = 10
    min_samples: Annotated[int, Ge(1)] = 2

    def assign(self, examples: TrainingExamples, key: Key) -> Clients:
        """The examples of each client."""
        sizes = np.exp(log_dirichlet(self.alpha, (1, self.num_clients), key / "sizes")[0])
        return _of_sizes(self, sizes, examples, key)


@dataclass(frozen=True)
class HalfNormal:
    """Sizes in proportion to |N(0, 1)|, labels at random."""

    num_clients: Annotated[int, Ge(1)] = 10
    min_samples: Annotated[int, Ge(1)] = 2

    def assign(self, examples: TrainingExamples, key: Key) -> Clients:
        """The examples of each client."""
        return _of_sizes(self, np.abs((key / "sizes").numpy().standard_normal(self.num_clients)), examples, key)


@dataclass(frozen=True)
class ByGroup:
    """One domain per client: each domain is cut at random into `clients_per_group` equal parts.

    Clients are in the order of domains.  `num_clients` follows from the data; where given it must agree.  A client
    keeps at most `max_samples` at random, and a lower cap keeps a subset of these.
    """

    clients_per_group: Annotated[int, Ge(1)] = 1
    num_clients: int | None = None
    min_samples: Annotated[int, Ge(1)] = 2
    max_samples: Annotated[int, Ge(1)] | None = None

    def assign(self, examples: TrainingExamples, key: Key) -> Clients:
        """The examples of each client."""
        if self.max_samples is not None and self.max_samples < self.min_samples:
            raise ConfigError(f"split.max_samples must be at least min_samples, {self.min_samples}")
        if examples.domains is None:
            raise DataError("a split by group needs the domain of every example, and this data set has no domains")
        names, domains, sizes = np.unique(examples.domains, return_inverse=True, return_counts=True)
        k = self.clients_per_group
        if self.num_clients not in (None, len(sizes) * k):
            raise DataError(f"{len(sizes)} domains x {k} are not num_clients {self.num_clients}; leave it out")
        poorest = int(np.argmin(sizes))
        if sizes[poorest] < k * self.min_samples:
            raise DataError(
                f"group {names[poorest]} has {sizes[poorest]} examples, not {k} x {self.min_samples}; lower min_samples"
            )
        counts = np.zeros((len(sizes), k, len(sizes)), np.int64)
        for g, size in enumerate(sizes.tolist()):
            counts[g, :, g] = largest_remainder(np.ones(k), size)
        clients = _deal(counts.reshape(-1, len(sizes)), domains, key / "deal")
        if self.max_samples is None:
            return clients
        draws = numpy_each(key / "kept" / i for i in range(len(clients)))
        return [np.sort(draw.permutation(held)[: self.max_samples]) for draw, held in zip(draws, clients, strict=True)]


@dataclass(frozen=True)
class Entangled:
    """Clients whose mixtures of base distributions have average entanglement `xi` (unskew/data/entanglement.py).

    By "blocks" every client owns equally many base distributions, drawn at random, and the same small share of all
    others.  By "dirichlet" a Dirichlet draw divides each; its alpha is found by bisection.  Base distributions are
    "labels", "domains", or "both": labels in domains, if there are any.  As examples are whole, `xi` is reached only
    nearly; the manifest has the value.
    """

    xi: Annotated[float, Ge(0), Le(1)] = 0.057
    by: Literal["blocks", "dirichlet"] = "blocks"
    bases: Literal["labels", "domains", "both"] = "both"
    num_clients: Annotated[int, Ge(1)] = 5
    min_samples: Annotated[int, Ge(1)] = 2

    def assign(self, examples: TrainingExamples, key: Key) -> Clients:
        """The examples of each client."""
        bases = entanglement.bases_of(examples.labels, examples.domains, self.bases)
        stock = np.bincount(bases)
        shape = (len(stock), self.num_clients)
        if self.by == "blocks":
            owner = (key / "owners").numpy().permutation(len(stock)) % self.num_clients
            shares = entanglement.block_shares(self.xi, owner, self.num_clients)
        else:
            shares = entanglement.drawn_shares(
                self.xi, lambda alpha: np.exp(log_dirichlet(alpha, shape, key / "shares")).T
            )
        counts = entanglement.rounded(shares, stock, (key / "rounding").numpy().random(len(stock)))
        return _dealt(self, counts, shares * stock, bases, key)


@dataclass(frozen=True)
class Natural:
    """The clients of the data, each with its own examples, in the data's order.

    `num_clients` follows from the data; where given it must agree.
    """

    num_clients: int | None = None
    min_samples: Annotated[int, Ge(1)] = 1

    def assign(self, examples: TrainingExamples, key: Key) -> Clients:
        """The examples of each client."""
        if examples.owners is None:
            raise DataError("a natural split needs data with their clients; name their column, or choose another split")
        sizes = np.bincount(examples.owners)
        if self.num_clients not in (None, len(sizes)):
            raise DataError(f"the data have {len(sizes)} clients, not {self.num_clients}; leave num_clients out")
        if sizes.min() < self.min_samples:
            poorest = int(sizes.argmin())
            raise DataError(f"client {poorest} has {sizes[poorest]} examples, not {self.min_samples}; leave it out")
        return np.split(np.argsort(examples.owners, kind="stable"), sizes.cumsum()[:-1])


@dataclass(frozen=True)
class FromManifest:
    """The split in a manifest file (`unskew.data.federated.to_manifest`); {seed} in its path is the run's seed."""

    path: str
    num_clients: int | None = None
    min_samples: Annotated[int, Ge(1)] = 1


class OwnSplit(Protocol):
    """A split of your own: a frozen dataclass with this method; its other fields are settings.

    `num_clients` is None if it follows from the data.  `assign` gives each example at most once, and each client at
    least one.
    """

    @property
    def num_clients(self) -> int | None: ...  # noqa: D102
    def assign(self, examples: TrainingExamples, key: Key) -> Clients: ...  # noqa: D102


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

Split = OwnSplit | FromManifest

BY_LABEL = (Dirichlet, Pathological, Shards, Entangled)
"""Our splits that divide by class."""


SPLITS = Registry(
    "split",
    "unskew.splits",
    {name: f"{__name__}:{kind.__name__}" for name, kind in TABLE.items()},
    "a frozen dataclass with a field num_clients and a method assign(examples, key)",
    lambda one: (
        one is FromManifest
        or (
            inspect.isclass(one)
            and hasattr(one, "assign")
            and "num_clients" in getattr(one, "__dataclass_fields__", ())
        )
    ),
    about={name: (kind.__doc__ or "").partition("\n")[0] for name, kind in TABLE.items()},
)


def record(split: Split) -> dict[str, Any]:
    """The split as JSON: its name and its fields.

    >>> record(IID(num_clients=3))
    {'name': 'iid', 'num_clients': 3, 'min_samples': 2}
    """
    return {"name": SPLITS.name_of(type(split)), **{f.name: getattr(split, f.name) for f in fields(split)}}  # type: ignore[arg-type]


# ---------------------------------------------------------------- the draw
def assign(split: Split, examples: TrainingExamples, key: Key) -> tuple[Ints, ...]:
    """The examples of each client: a sorted int64 index array.

    Each index occurs once, unless `max_samples` leaves it out.  The same key gives the same split.

    Raises:
        ConfigError: If a field is out of its range.
        DataError: If the examples cannot be divided as asked; the message has the arithmetic.
    """
    name = record(split)["name"]
    plain = {key: of.item() if isinstance(of, np.generic) else of for key, of in vars(split).items() if of is not None}
    schema.build(type(split), plain, "split", name)  # of a split that was built in code
    assert not isinstance(split, FromManifest), "a manifest has its own parts"
    return tuple(split.assign(examples, key) if type(split) in TABLE.values() else _own(split, examples, key))


def _own(split: OwnSplit, examples: TrainingExamples, key: Key) -> tuple[Ints, ...]:
    """The clients of a split that is not ours, if they are such; its code may change what it is given."""
    name, n = record(split)["name"], len(examples.labels)
    domains = None if examples.domains is None else examples.domains.copy()
    before = global_states()
    assigned = split.assign(TrainingExamples(examples.labels.copy(), examples.num_classes, domains), key)
    for whose in drawn_since(before):
        warn(f"split {name!r} drew from {whose} global generator: the same run again has another split; use its key")
    if isinstance(assigned, Mapping) or not isinstance(assigned, Iterable):
        raise DataError(f"split {name!r} must return a list of arrays of indices, got {type(assigned).__name__}")
    clients = tuple(np.asarray(held) for held in assigned)
    if not clients or split.num_clients not in (None, len(clients)):
        raise DataError(f"split {name!r} must make split.num_clients = {split.num_clients} clients, got {len(clients)}")
    for i, held in enumerate(clients):
        if held.ndim != 1 or held.dtype.kind not in "iu" or not held.size or held.min() < 0 or held.max() >= n:
            raise DataError(f"split {name!r} must give client {i} indices in 0..{n - 1}, got {held.dtype} {held.shape}")
    if int(np.bincount(np.concatenate(clients)).max()) > 1:
        raise DataError(f"split {name!r} must give an example to one client at most, and gives one twice")
    return tuple(np.sort(held).astype(np.int64) for held in clients)


# ---------------------------------------------------------------- from counts to indices
def _of_sizes(split: IID | Quantity | HalfNormal, weights: Floats, examples: TrainingExamples, key: Key) -> Clients:
    """Clients of sizes in proportion to the weights, whatever the labels."""
    n = len(examples.labels)
    counts = largest_remainder(weights, n)[:, None]
    return _dealt(split, counts, counts.astype(np.float64), np.zeros(n, np.int64), key)


def _by_column(shares: Floats, stock: Ints) -> Ints:
    return np.stack([largest_remainder(shares[:, c], n) for c, n in enumerate(stock.tolist())], axis=1)


def _dealt(split: Any, counts: Ints, wanted: Floats, pools: Ints, key: Key, fixed: bool = False) -> Clients:
    """The clients of these counts (clients, pools), repaired; a pool is a class, or everything."""
    least = split.num_clients * split.min_samples
    if least > len(pools):
        who = f"{split.num_clients} clients x at least {split.min_samples} examples"
        raise DataError(f"{who} = {least}, but there are {len(pools)} examples; lower num_clients or min_samples")
    _repair(counts, wanted, split.min_samples, fixed)
    return _deal(counts, pools, key / "deal")


def _repair(counts: Ints, wanted: Floats, minimum: int, fixed: bool) -> None:
    """Move examples, in place, from the richest clients until every row holds `minimum`.

    The receiver takes the classes it wants most first; with `fixed` it takes only those.  Each move fills a receiver,
    brings a donor down to the minimum or empties it of these classes, so the number of moves is bounded by the table.
    """
    sizes = counts.sum(1)
    # Richest first, of equals the first; who has given is put back, so that only the sizes of today are on the heap.
    richest = [(-size, i) for i, size in enumerate(sizes.tolist()) if size > minimum]
    heapq.heapify(richest)
    for i in np.flatnonzero(sizes < minimum):
        allowed = np.flatnonzero(wanted[i] > 0) if fixed else np.arange(counts.shape[1])
        out_of_reach = []  # have none of the classes that this client takes
        while sizes[i] < minimum:
            while richest and not counts[richest[0][1], allowed].any():
                out_of_reach.append(heapq.heappop(richest))
            if not richest:
                raise DataError(f"client {i} can have only {sizes[i]} examples of its classes; lower min_samples")
            donor = heapq.heappop(richest)[1]
            spare = min(sizes[donor] - minimum, counts[donor, allowed].sum())
            move = min(int(minimum - sizes[i]), int(spare))
            order = allowed[np.lexsort((-counts[donor, allowed], -wanted[i, allowed]))]
            before = np.cumsum(counts[donor, order]) - counts[donor, order]
            take = np.clip(move - before, 0, counts[donor, order])
            counts[donor, order] -= take
            counts[i, order] += take
            sizes[donor] -= move
            sizes[i] += move
            if sizes[donor] > minimum:
                heapq.heappush(richest, (-int(sizes[donor]), donor))
        for one in out_of_reach:
            heapq.heappush(richest, one)


def _deal(counts: Ints, pools: Ints, key: Key) -> tuple[Ints, ...]:
    """Sorted indices per client: `counts[i, p]` examples of pool p for client i, drawn at random."""
    shuffled = key.numpy().permutation(len(pools))
    by_pool = shuffled[np.argsort(pools[shuffled], kind="stable")]
    clients = np.tile(np.arange(len(counts)), counts.shape[1])
    owner = np.repeat(clients, counts.T.reshape(-1))
    indices = by_pool[np.lexsort((by_pool, owner))].astype(np.int64)
    return tuple(np.split(indices, np.cumsum(counts.sum(1))[:-1]))


def largest_remainder(weights: Floats, total: int) -> Ints:
    """`total` in whole numbers in proportion to non-negative weights; earlier entries win ties.

    >>> largest_remainder(np.array([1.0, 1.0, 2.0]), 5)
    array([1, 1, 3])
    """
    if total == 0:
        return np.zeros(len(weights), np.int64)
    exact = weights / weights.sum() * total
    counts: Ints = np.floor(exact).astype(np.int64)
    short = total - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:short]] += 1
    return counts


def log_dirichlet(alpha: float, shape: tuple[int, int], key: Key) -> Floats:
    """Logarithms of `shape[0]` draws from a symmetric Dirichlet(alpha) of `shape[1]` entries.

    Gamma(alpha) = Gamma(alpha + 1) U^(1 / alpha), kept as a logarithm, since at small alpha the gammas underflow to
    zero.
    """
    rng = key.numpy()
    # Far below 1e-100 a draw has long been one-hot; the bound keeps log(U) / alpha finite.
    alpha = max(alpha, 1e-100)
    log_gamma = np.log(rng.standard_gamma(alpha + 1, shape)) + np.log1p(-rng.random(shape)) / alpha
    log_gamma -= log_gamma.max(1, keepdims=True)
    return np.asarray(log_gamma - np.log(np.exp(log_gamma).sum(1, keepdims=True)))
