"""Reproductions of HCCT: its published numbers, and ours beside them.

Y. Sun, M. Kountouris, J. Zhang, "How to Collaborate: Towards Maximizing the Generalization Performance in Cross-Silo
Federated Learning", IEEE Transactions on Mobile Computing, 2024.  The method's page says how the released code
differs from the text.

Error      1 - accuracy of a client's own model on its own test data, in the last round.  The published numbers are each
           client's best round on its test data, lower by up to a few points where training is noisy.
Division   redrawn for every seed, and kept as a manifest; every method of a seed has the same one.
"""

import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from unskew.data import sources
from unskew.data.dataset import Dataset
from unskew.data.federated import ClientIndex, ClientIndices, FederatedData, federate, to_manifest
from unskew.data.rows import as_tensor
from unskew.data.split import ByGroup, HalfNormal
from unskew.errors import DataError
from unskew.files import write_atomically
from unskew.history import History
from unskew.info import JudgedGroups
from unskew.keys import Key
from unskew.papers import study
from unskew.papers.claims import SAME, Claim, Row, decide, every, paired
from unskew.papers.study import Draft, Settings, curves_of, final, percent, published, write_npz
from unskew.record.reader import info_of
from unskew.report.tables import last

Floats = npt.NDArray[np.float64]
Clients = Sequence[ClientIndex]

TABLE2 = published("hcct-table2")
TABLE4, TABLE5 = ({method: {column: n / 100 for column, n in row.items()} for method, row in published(table).items()}
                  for table in ("hcct-table4", "hcct-table5"))  # fmt: skip
TABLE5_COLUMNS: dict[str, Callable[[Floats], Any]] = {"clients_std": np.std, "min": np.min, "max": np.max}
"""Columns beside the mean: the spread of errors over clients, the smallest and the largest."""
OWN = "personal.accuracy.mean"
BEST_GROUPS = published("hcct-text")["hcct"]["best number of groups"]


# ---------------------------------------------------------------- divisions of examples among clients, by a key
def domains(dataset: Dataset, key: Key, per_domain: int, train: int) -> Clients:
    """`per_domain` clients of each domain with `train` training examples each; all other examples are test data."""
    assert dataset.domains is not None
    held = int(torch.bincount(dataset.domains).min()) // per_domain
    split = ByGroup(per_domain, max_samples=held)
    return federate(dataset, split, key, test_fraction=(held - train) / held).clients


def half_normal(dataset: Dataset, key: Key, clients: int, train: float) -> Clients:
    """Sizes in proportion to |N(0, 1)|, labels at random; `train` is the share of training examples."""
    split = HalfNormal(clients, min_samples=math.ceil(2 / train))
    return federate(dataset, split, key, test_fraction=1.0 - train).clients


def shards(dataset: Dataset, key: Key, clients: int, train: float, test: float, count: int = 100) -> Clients:
    """The released code's division of CIFAR-10: shards of one class each, their numbers in proportion to |N(0, 1)|.

    Every client has at least one of `count` shards; the clients with most give some up if needed, where the released
    code fails.  Shards left over by rounding are not used.  `train` and `test` are shares of a client's examples, drawn
    at random; the rest is not used.
    """
    labels = dataset.y_train.numpy()
    by_class = [np.flatnonzero(labels == c) for c in range(dataset.num_classes)]
    pieces = [s for rows in by_class for s in np.array_split(rows, count // dataset.num_classes)]
    size = np.abs((key / "sizes").numpy().standard_normal(clients))
    numbers = shard_counts(size, len(pieces))
    order = (key / "shards").numpy().permutation(len(pieces))
    held = [np.concatenate([pieces[i] for i in of]) for of in np.split(order, np.cumsum(numbers))[:-1]]
    return tuple(_cut(rows, train, test, key / "client" / i) for i, rows in enumerate(held))


def shard_counts(size: Floats, count: int) -> npt.NDArray[np.int64]:
    """floor(count r_i), at least one, with r = size / sum; the largest give some up if needed.

    >>> shard_counts(np.array([0.001, 1.0, 2.0, 2.0]), 10)
    array([1, 1, 3, 3])
    """
    numbers: npt.NDArray[np.int64] = np.maximum(np.floor(count * size / size.sum()), 1).astype(np.int64)
    while numbers.sum() > count:
        numbers[int(np.argmax(numbers))] -= 1
    return numbers


def thirds(dataset: Dataset, key: Key, train: float, test: int) -> Clients:
    """Table II's three clients: a fifth and four fifths of the first five classes, and all of the last five.

    They train on the share `train` of all examples; each has `test` test examples of its classes from the rest.
    """
    labels = dataset.y_train.numpy()
    low = labels < 5
    halves = [(key / "half" / i).numpy().permutation(np.flatnonzero(of)) for i, of in enumerate((low, ~low))]
    (first, rest), (second, other) = (np.split(rows, [round(train * len(rows))]) for rows in halves)
    if min(len(rest) // 2, len(other)) < test:
        raise DataError(f"{test} test examples per client are more than are left after training on {train:g}")
    fifth, tests = len(first) // 5, (rest[:test], rest[test : 2 * test], other[:test])
    return tuple(map(_client, (first[:fifth], first[fifth:], second), tests))


DIVISIONS: dict[str, Callable[..., Clients]] = {of.__name__: of for of in (domains, half_normal, shards, thirds)}


def _cut(rows: npt.NDArray[np.int64], train: float, test: float, key: Key) -> ClientIndex:
    drawn = key.numpy().permutation(rows)
    n = min(max(round(train * len(rows)), 1), len(rows) - 1)
    return _client(drawn[:n], drawn[max(n, len(rows) - round(test * len(rows))) :])


def _client(train: npt.NDArray[np.int64], test: npt.NDArray[np.int64]) -> ClientIndex:
    nothing = np.zeros(0, np.int64)
    return ClientIndex(*(torch.from_numpy(np.sort(part)) for part in (train, nothing, test)))


def in_groups(data: Dataset, how: str, count: int, examples: int, key: Key) -> dict[str, npt.NDArray[Any]]:
    """A data set whose training examples are a random part of another's in `count` groups of equal size, its domains.

    Args:
        data: The other: images (N, C, H, W).
        how: "turned" turns group g's images by g quarters, as IFCA does; "relabelled" permutes the labels of each group
            but the first in a random way.
        count: Number of groups.
        examples: Number of examples of all groups together.
        key: Draws the examples, their groups and the labels.
    """
    drawn = (key / "examples").numpy().permutation(len(data.y_train))[: examples // count * count]
    group = np.arange(len(drawn)) % count
    x, y = as_tensor(data.x_train).numpy()[drawn], data.y_train.numpy()[drawn]
    for g in range(1, count):
        rows = group == g
        if how == "turned":
            x[rows] = np.rot90(x[rows], g, axes=(-2, -1))
        else:
            y[rows] = (key / "labels" / g).numpy().permutation(data.num_classes)[y[rows]]
    # Clients are tested on examples of their own; a global test part is there because a data set has one.
    test = {"x_test": data.x_test[:100].numpy(), "y_test": data.y_test[:100].numpy()}
    names = {"classes": np.array(data.classes), "domains": np.array([f"{how} {g}" for g in range(count)])}
    return {"x_train": x, "y_train": y, "domain_train": group, **test, **names}


# ---------------------------------------------------------------- runs
def divided(draft: Draft) -> dict[str, Settings]:
    """The settings of each run of `on`, with the division under each seed in a file.

    Runs that are `apart` have draws of their own.
    """
    out, folder = {}, draft.folder.resolve() / "data"
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in draft.on(draft["on"]).items():
        ground, _, setting = name.partition(", ")
        where, how, groups = setting or ground, dict(table.pop("divide")), table.pop("groups", None)
        data, divide = sources.load(table["task"]["data"], draft.data_dir), DIVISIONS[how.pop("by")]
        if groups is not None:
            arrays = in_groups(data, key=Key(0) / draft.name / name, **groups)
            table["task"] |= write_npz(folder / f"{ground}.npz", arrays)
            data = sources.load(table["task"]["data"])
        for seed in table.setdefault("seeds", draft["seeds"]):
            root = Key(seed) / draft.name
            clients = divide(data, root / where if draft.settings.get("apart") else root, **how)
            fed = FederatedData(data, ClientIndices.of(clients), {"name": draft.name}, seed)
            write_atomically(folder / f"{where}-{seed}.json", json.dumps(to_manifest(fed)))
        out[where] = {**table, "split": {"name": "manifest", "path": f"{folder}/{where}-{{seed}}.json"}}
    return out


def compared(draft: Draft) -> dict[str, History]:
    """The runs of `on`; errors and curves are added to the draft."""
    runs = study.compared(draft, divided(draft))
    for where, history in runs.items():
        add_errors(draft, where, client_errors(history))
        draft.curves = draft.curves or curves_of(history, OWN, errors=True)
    return runs


def client_errors(history: History) -> dict[str, list[Floats]]:
    """Error of each client in the last round, by method, one array for each seed."""
    out: dict[str, list[Floats]] = {}
    for method, seed in itertools.product(history.methods, history.record.seeds):
        if right := history.frame.clients(method, seed, "personal.accuracy"):
            out.setdefault(method, []).append(1.0 - np.array([*right.values()]))
    return out


def _means(errors: Iterable[Floats]) -> list[float]:
    return [float(e.mean()) for e in errors]


def add_errors(draft: Draft, setting: str, errors: Mapping[str, Sequence[Floats]], metric: str = "error") -> None:
    """Add a row for each method: the mean over clients and their spread (ddof 0), both averaged over seeds."""
    printed = draft.printed(setting)
    for method, of in errors.items():
        values, std = _means(of), float(np.mean([e.std() for e in of]))
        paper = printed.get((LIKE.get(method, method), metric))
        draft.rows.append(Row(method, setting, metric, paper, float(np.mean(values)), std, "clients", tuple(values)))


# ---------------------------------------------------------------- three clients, five patterns (Table II)
def table2(draft: Draft) -> None:
    """Three clients on CIFAR-10, the first two with the same classes, in five patterns of collaboration."""
    methods = draft["experiment"]["methods"]
    history, *other = study.compared(draft, divided(draft)).values()
    errors, apart = client_errors(history), client_errors(other[0]) if other else {}
    for pattern, printed in TABLE2.items():
        for where, k in ((f"client {k + 1}", k) for k in range(3)):
            for label, of in ((pattern, errors), (f"{pattern}, other seeds", apart)):
                if pattern in of:
                    draft.add(label, where, "error", [float(e[k]) for e in of[pattern]], printed[where] / 100)
        where, own = "mean over clients", errors.get(pattern, [])
        draft.add(pattern, where, "error", _means(own), printed[where] / 100)
        draft.add(pattern, where, "error.clients_std", [float(e.std()) for e in own], printed[f"{where} ±"] / 100)
    for client in range(3):
        steps: dict[str, list[float]] = {}
        for a, b in published_order(client, {m: of["groups"] for m, of in methods.items()}):
            of = apart if apart.keys() >= {a, b} else errors
            less, more = ([float(e[client]) for e in of.get(pattern, ())] for pattern in (a, b))
            steps[f"{b} above {a}"] = paired(more, less)
        draft.claims.append(every(f"client {client + 1}: the patterns are in the published order", steps))
    draft.curves = curves_of(history, OWN, errors=True)


def published_order(client: int, patterns: Mapping[str, Sequence[Sequence[int]]]) -> list[tuple[str, str]]:
    """Pairs of patterns of which the first has the smaller published error, by more than both spreads together.

    Patterns in which the client is alone are the same as Independent, and left out.
    """
    names = [p for p, groups in patterns.items() if p == "Independent" or [client] not in groups]
    error = {p: (TABLE2[p][f"client {client + 1}"], TABLE2[p][f"client {client + 1} ±"]) for p in names}
    pairs = itertools.permutations(names, 2)
    return [(a, b) for a, b in pairs if error[b][0] - error[a][0] > error[a][1] + error[b][1]]


# ---------------------------------------------------------------- nine methods on three tasks (Tables IV and V)
BY_PILOT, RELEASED = "hcct, alpha by pilot", ", released code"
LIKE = {BY_PILOT: "hcct", **{f"{row}{RELEASED}": row for row in ("global", "hcct", "hcct_e", "hcct_p")}}
"""Rows of ours, and the published row beside them."""


def table4(draft: Draft) -> None:
    """All nine methods with the settings of Table III, and HCCT with alpha by its pilot."""
    for name, history in compared(draft).items():
        for method, errors in client_errors(history).items():
            like = LIKE.get(method, method)
            if len(errors) > 1:
                over, std = float(np.std(_means(errors), ddof=1)), TABLE4.get(like, {}).get(f"{name} ±")
                draft.rows.append(Row(method, name, "error.seeds_std", std, over, None, "seeds", (over,)))
            best = [1.0 - v for v in final(history, method, f"{OWN}.best")]
            draft.add(method, name, "error.best", best)
            for metric, of in TABLE5_COLUMNS.items() if name == "Digit" else ():
                paper = TABLE5.get(like, {}).get(metric)
                draft.add(method, name, f"error.{metric}", [float(of(e)) for e in errors], paper)
        chosen = [info.alpha for info in last(history.record, BY_PILOT, JudgedGroups).values()]
        draft.add(BY_PILOT, name, "alpha", [alpha for alpha in chosen if alpha is not None])


# ---------------------------------------------------------------- a forced number of groups (Figs. 5 and 6)
def groups(draft: Draft) -> None:
    """Error and utility of HCCT by the number of groups, for clients of five domains."""
    least: dict[str, Sequence[float]] = {}
    for where, history in compared(draft).items():
        errors = {r.method: r.seeds for r in draft.rows if r.setting == where and r.seeds}
        utility = {name: of for name, of in _utilities(history).items() if name in errors}
        for name, of in utility.items():
            draft.add(name, where, "utility", of)
        draft.claims.append(placed(where, errors, utility))
        least[where] = min(errors.values(), key=fmean)  # one number for all seeds, not the luckiest of each
    if len(least) > 1:
        few, *_, many = least
        text = f"at its best number of groups {many} err less than {few.partition(' ')[0]}"
        draft.above(text, least[few], least[many])


def _utilities(history: History) -> dict[str, list[float]]:
    """Mean utility over clients and partitioned rounds, by method, a number for every seed."""
    out: dict[str, list[float]] = {}
    for method in history.record.reports(JudgedGroups):
        by_seed: dict[int, list[float]] = {seed: [] for seed in history.record.seeds}
        for seed, _, info in info_of(history.record, method, JudgedGroups):
            by_seed[seed] += [fmean(values)] if (values := [u for u in info.utility if u is not None]) else []
        out[method] = [fmean(means) for means in by_seed.values() if means]
    return out


def placed(where: str, errors: Mapping[str, Sequence[float]], utility: Mapping[str, Sequence[float]]) -> Claim:
    """The claim that the error is smallest where the utility is largest."""
    most, least = max(utility, key=lambda m: fmean(utility[m])), min(errors, key=lambda m: fmean(errors[m]))
    text = f"{where}: the error where the utility is largest is the smallest, within a point"
    claim = decide(text, paired(errors[most], errors[least]), within=SAME)
    peaks = f"utility is largest at {most}, error smallest at {least}, in the paper (20) both at {BEST_GROUPS:g}"
    return replace(claim, evidence=f"{peaks}; {claim.evidence}")


# ---------------------------------------------------------------- clients that come later (Fig. 3)
def arrivals(draft: Draft) -> None:
    """Some clients at first, and N_new more every few rounds: placed by benefit, kept single, or all in one group."""
    new, start, every, ways = (draft[name] for name in ("new", "start", "every", "ways"))
    ((where, table),) = divided(draft).items()
    arms = [(way, n) for way in ways for n in ((0, *new) if way == "hcct" else new)]
    plan = {"start": start, "every": every}
    methods = {f"{w}, {n}": {"name": "hcct", "alpha": ways[w], "arrivals": {**plan, "number": n}} for w, n in arms}
    errors = client_errors(draft.run(where, {**table, "methods": methods}))
    for way, n in arms:
        present, of = start + n * ((table["rounds"] - 1) // every), errors[f"{way}, {n}"]
        parts = {"error": slice(present)} if way == "hcct" else {}
        parts |= {"error.founders": slice(start)} | ({"error.arrivals": slice(start, present)} if n else {})
        for metric, clients in parts.items():
            add_errors(draft, f"{n} every {every} rounds", {way: [e[clients] for e in of]}, metric)
    after = [f"{n} every {every} rounds" for n in new]
    draft.curves = {w: percent(new, [draft.values(w, when, "error.arrivals") for when in after]) for w in ways}
