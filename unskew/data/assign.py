"""Turns a split into indices: the training examples of each client.

Every label split draws a table of counts (clients, classes), repairs it where a client falls short of `min_samples`,
and deals the examples of each class, in random order, by that table.  One draw, no rejection: a split always ends,
every example belongs to exactly one client (to none beyond a client's `max_samples`), and the same key gives the same
split.

Departures Counts are rounded by largest remainder, so no example is left over or goes to a favoured last client.
           "Draw again until every client has enough" may never end; here examples move from the richest client.
"""

import heapq
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unskew import schema
from unskew.data import entanglement
from unskew.data.split import (
    IID,
    ByGroup,
    Dirichlet,
    Entangled,
    FromManifest,
    HalfNormal,
    Ints,
    Natural,
    OurSplit,
    OwnSplit,
    Pathological,
    Quantity,
    Shards,
    Split,
    TrainingExamples,
    record,
)
from unskew.errors import ConfigError, DataError, warn
from unskew.keys import Key, drawn_since, global_states, numpy_each
from unskew.words import counted

Floats = npt.NDArray[np.float64]


def assign(
    split: Split,
    labels: npt.NDArray[Any],
    num_classes: int,
    key: Key,
    domains: npt.NDArray[Any] | None = None,
    owners: npt.NDArray[Any] | None = None,
) -> tuple[Ints, ...]:
    """The examples of each client.

    Args:
        split: The split.
        labels: (N,) in 0 .. num_classes - 1.
        num_classes: Number of classes, those without an example included.
        key: Source of randomness; the same key gives the same split.
        domains: (N,) domain of each example, needed by `ByGroup` only.
        owners: (N,) client of each example, 0 .. clients - 1, needed by `Natural` only.

    Returns:
        Per client a sorted int64 index array.  Together they hold 0 .. N - 1 once each; `max_samples` may leave some
        out.

    Raises:
        ConfigError: If a field is out of its range.
        DataError: If the examples cannot be divided as asked; the arithmetic is in the message.
    """
    _check_settings(split)
    labels = np.asarray(labels, dtype=np.int64)
    n = len(labels)
    if isinstance(split, OwnSplit):
        mine = TrainingExamples(labels.copy(), num_classes, None if domains is None else domains.copy())
        return _own(split, mine, key)  # somebody's code may change what it is given, and these are the data's
    assert not isinstance(split, FromManifest), "a manifest has its own parts"
    if isinstance(split, ByGroup):
        clients = _by_group(split, key, domains)
    elif isinstance(split, Natural):
        clients = _by_owner(split, owners)
    else:
        if split.num_clients * split.min_samples > n:
            raise DataError(
                f"{split.num_clients} clients x at least {split.min_samples} examples = "
                f"{split.num_clients * split.min_samples}, but there are {n} examples; lower num_clients or min_samples"
            )
        clients = (
            _by_base(split, entanglement.bases_of(labels, domains, split.bases), key)
            if isinstance(split, Entangled)
            else _by_label(split, labels, num_classes, key)
        )
    if isinstance(split, ByGroup) and split.max_samples is not None:
        draws = numpy_each(key / "kept" / i for i in range(len(clients)))
        return tuple(
            np.sort(draw.permutation(held)[: split.max_samples]) for draw, held in zip(draws, clients, strict=True)
        )
    return clients


def _check_settings(split: Split) -> None:
    """Check the ranges written on the fields, for a split built in code rather than from a configuration."""
    name = record(split)["name"]
    settings = {key: _plain(value) for key, value in record(split).items() if key != "name" and value is not None}
    schema.build(type(split), settings, "split", name)
    if isinstance(split, ByGroup) and split.max_samples is not None and split.max_samples < split.min_samples:
        raise ConfigError(
            f"split.max_samples must be at least min_samples, {split.min_samples}, got {split.max_samples} (group)"
        )


def _own(split: OwnSplit, examples: TrainingExamples, key: Key) -> tuple[Ints, ...]:
    """The clients of a split that is not ours, if they are such."""
    name, n = record(split)["name"], len(examples.labels)
    before = global_states()
    assigned = split.assign(examples, key)
    for whose in drawn_since(before):
        warn(
            f"split {name!r} drew from {whose} global generator, so the same run again, and every machine of a "
            "deployment, has another split; draw from its key: (key / 'order').numpy().permutation(n)",
        )
    if isinstance(assigned, Mapping) or not isinstance(assigned, Iterable):
        raise DataError(
            f"split {name!r} must return a list of arrays of indices, one for each client, got "
            f"{type(assigned).__name__}"
        )
    clients = tuple(np.asarray(held) for held in assigned)
    for i, held in enumerate(clients):
        if held.ndim != 1 or held.dtype.kind not in "iu" or not held.size or held.min() < 0 or held.max() >= n:
            raise DataError(
                f"split {name!r} must give each client an array of at least one index in 0..{n - 1}, got "
                f"{held.dtype} of shape {held.shape} for client {i}"
            )
    if not clients or (split.num_clients is not None and len(clients) != split.num_clients):
        raise DataError(f"split {name!r} must make split.num_clients = {split.num_clients} clients, got {len(clients)}")
    if int(np.bincount(np.concatenate(clients)).max()) > 1:
        raise DataError(f"split {name!r} must give an example to one client at most and once, and gives one twice")
    return tuple(np.sort(held).astype(np.int64) for held in clients)


def _plain(value: Any) -> Any:
    """A setting as a file would write it."""
    if isinstance(value, np.generic):
        return value.item()
    return str(value) if isinstance(value, Path) else value


# From counts to indices


def _by_label(split: OurSplit, labels: Ints, num_classes: int, key: Key) -> tuple[Ints, ...]:
    """Draw counts (clients, pools), repair them, deal; a pool is a class, or everything where labels do not matter."""
    if isinstance(split, IID | Quantity | HalfNormal):
        pools = np.zeros_like(labels)
        counts = largest_remainder(_sizes(split, key / "sizes"), len(labels))[:, None]
        wanted, fixed = counts.astype(np.float64), False
    else:
        pools = labels
        counts, wanted = _label_counts(split, labels, num_classes, key)
        fixed = isinstance(split, Pathological)
    _repair(counts, wanted, split.min_samples, fixed)
    return _deal(counts, pools, key / "deal")


def _sizes(split: IID | Quantity | HalfNormal, key: Key) -> Floats:
    if isinstance(split, Quantity):
        return np.asarray(np.exp(log_dirichlet(split.alpha, (1, split.num_clients), key)[0]))
    if isinstance(split, HalfNormal):
        return np.asarray(np.abs(key.numpy().standard_normal(split.num_clients)))
    return np.ones(split.num_clients)


def _label_counts(split: Split, labels: Ints, num_classes: int, key: Key) -> tuple[Ints, Floats]:
    """Counts (clients, classes) whose columns sum to the class sizes, and the counts each client would like to have."""
    stock = np.bincount(labels, minlength=num_classes)
    match split:
        case Dirichlet(by="class"):
            shares = np.exp(log_dirichlet(split.alpha, (num_classes, split.num_clients), key / "shares")).T
            counts = np.stack([largest_remainder(shares[:, c], int(stock[c])) for c in range(num_classes)], axis=1)
            return counts, shares * stock
        case Dirichlet(by="capped"):
            return _capped(split, stock, key)
        case Dirichlet():
            return _mixtures(split, stock, key)
        case Shards():
            return _shards(split, labels, num_classes, key)
        case Pathological():
            held = _holders(split, stock, key / "classes")
            counts = np.stack([largest_remainder(held[:, c], int(stock[c])) for c in range(num_classes)], axis=1)
            return counts, held
    raise AssertionError(split)


def _by_base(split: Entangled, bases: Ints, key: Key) -> tuple[Ints, ...]:
    """Draw counts (clients, base distributions) of the wanted entanglement, repair them, deal."""
    stock = np.bincount(bases)
    shape = (len(stock), split.num_clients)
    if split.by == "blocks":
        owner = (key / "owners").numpy().permutation(len(stock)) % split.num_clients
        shares = entanglement.block_shares(split.xi, owner, split.num_clients)
    else:
        shares = entanglement.drawn_shares(
            split.xi, lambda alpha: np.exp(log_dirichlet(alpha, shape, key / "shares")).T
        )
    counts = entanglement.rounded(shares, stock, (key / "rounding").numpy().random(len(stock)))
    _repair(counts, shares * stock, split.min_samples, fixed=False)
    return _deal(counts, bases, key / "deal")


def _capped(split: Dirichlet, stock: Ints, key: Key) -> tuple[Ints, Floats]:
    log_shares = log_dirichlet(split.alpha, (len(stock), split.num_clients), key / "shares")
    counts = np.zeros((split.num_clients, len(stock)), np.int64)
    wanted = np.zeros(counts.shape)
    for c, n in enumerate(stock.tolist()):
        if not n:
            continue
        # While something is left, some client is below the mean.
        open_ = np.where(counts.sum(1) * split.num_clients < stock.sum(), log_shares[c], -np.inf)
        wanted[:, c] = np.exp(open_ - open_.max())
        counts[:, c] = largest_remainder(wanted[:, c], n)
    return counts, wanted


def _mixtures(split: Dirichlet, stock: Ints, key: Key) -> tuple[Ints, Floats]:
    sizes = largest_remainder(np.ones(split.num_clients), int(stock.sum()))
    mixture = log_dirichlet(split.alpha, (split.num_clients, len(stock)), key / "mixtures")
    counts = np.zeros((split.num_clients, len(stock)), np.int64)
    left = stock.copy()
    for i in (key / "order").numpy().permutation(split.num_clients):
        need = int(sizes[i])
        while need:  # each further turn uses up a class, so there are as many turns as classes at most
            share = np.where(left > 0, mixture[i], -np.inf)
            take = np.minimum(largest_remainder(np.exp(share - share.max()), need), left)
            counts[i] += take
            left -= take
            need -= int(take.sum())
    return counts, np.exp(mixture) * sizes[:, None]


def _shards(split: Shards, labels: Ints, num_classes: int, key: Key) -> tuple[Ints, Floats]:
    n, shards = len(labels), split.num_clients * split.shards_per_client
    if shards > n:
        raise DataError(
            f"{split.num_clients} clients x {split.shards_per_client} shards = {shards} shards, "
            f"but there are {n} examples; lower num_clients or shards_per_client"
        )
    owner = (key / "shards").numpy().permutation(shards) // split.shards_per_client
    owners = np.repeat(owner, largest_remainder(np.ones(shards), n))
    counts = np.zeros((split.num_clients, num_classes), np.int64)
    np.add.at(counts, (owners, np.sort(labels)), 1)
    return counts, counts.astype(np.float64)


def _holders(split: Pathological, stock: Ints, key: Key) -> Floats:
    """1 where a client holds a class, (clients, classes)."""
    present = np.flatnonzero(stock)
    k, rng = split.classes_per_client, key.numpy()
    if k > len(present):
        raise DataError(
            f"classes_per_client is {k}, but only {len(present)} classes have examples; lower classes_per_client"
        )
    if split.num_clients * k < len(present):
        raise DataError(
            f"{split.num_clients} clients x {k} classes = {split.num_clients * k} places, but {len(present)} classes "
            f"need one each; raise num_clients or classes_per_client"
        )
    held = np.zeros((split.num_clients, len(stock)))
    used = np.zeros(len(present))
    for row in held:
        chosen = np.argsort(used + rng.random(len(present)))[:k]
        used[chosen] += 1
        row[present[chosen]] = 1
    return held


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
                raise DataError(
                    f"client {i} can have only {sizes[i]} examples of its classes {allowed.tolist()}, {minimum} are "
                    f"needed; lower min_samples or num_clients, or raise classes_per_client"
                )
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

    Gamma(alpha) = Gamma(alpha + 1) U^(1 / alpha), kept as a logarithm: at small alpha every gamma of a row underflows
    to zero, and the quotient would be NaN.
    """
    rng = key.numpy()
    # Far below 1e-100 a draw has long been one-hot; the bound keeps log(U) / alpha finite.
    alpha = max(alpha, 1e-100)
    log_gamma = np.log(rng.standard_gamma(alpha + 1, shape)) + np.log1p(-rng.random(shape)) / alpha
    log_gamma -= log_gamma.max(1, keepdims=True)
    return np.asarray(log_gamma - np.log(np.exp(log_gamma).sum(1, keepdims=True)))


# Splits that do not look at labels


def _by_group(split: ByGroup, key: Key, domains: npt.NDArray[Any] | None) -> tuple[Ints, ...]:
    if domains is None:
        raise DataError("a split by group needs the domain of every example, and this data set has no domains")
    names, domains, sizes = np.unique(domains, return_inverse=True, return_counts=True)
    total = len(sizes) * split.clients_per_group
    if split.num_clients is not None and split.num_clients != total:
        raise DataError(
            f"{len(sizes)} domains x {split.clients_per_group} clients = {total} clients, but num_clients is "
            f"{split.num_clients}; leave it out or set it to {total}"
        )
    poorest = int(np.argmin(sizes))
    if sizes[poorest] < split.clients_per_group * split.min_samples:
        raise DataError(
            f"{split.clients_per_group} clients x at least {split.min_samples} examples = "
            f"{split.clients_per_group * split.min_samples}, but group {names[poorest]} has {sizes[poorest]} examples; "
            f"lower clients_per_group or min_samples"
        )
    counts = np.zeros((total, len(sizes)), np.int64)
    for g, size in enumerate(sizes):
        rows = slice(g * split.clients_per_group, (g + 1) * split.clients_per_group)
        counts[rows, g] = largest_remainder(np.ones(split.clients_per_group), int(size))
    return _deal(counts, domains, key / "deal")


def _by_owner(split: Natural, owners: npt.NDArray[Any] | None) -> tuple[Ints, ...]:
    if owners is None:
        raise DataError(
            "a natural split needs data that come with their clients, and these do not; name the column of clients, "
            "or choose another split"
        )
    sizes = np.bincount(owners)
    if split.num_clients is not None and split.num_clients != len(sizes):
        raise DataError(
            f"the data have {counted(len(sizes), 'client')}, but num_clients is {split.num_clients}; leave it out"
        )
    if sizes.min() < split.min_samples:
        poorest = int(sizes.argmin())
        raise DataError(
            f"client {poorest} has {sizes[poorest]} examples, at least {split.min_samples} are needed; leave the "
            "client out, or lower min_samples"
        )
    return tuple(np.split(np.argsort(owners, kind="stable"), sizes.cumsum()[:-1]))
