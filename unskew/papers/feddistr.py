"""Reproductions of FedDistr: its published numbers, and ours beside them.

The method's page says what the paper leaves open, and our choices.

Error      the paper's utility loss: 1 - accuracy on test images of all labels, absolute, not relative to training in
           one place.  A method with one model has that model's error.  For FedDistr and Gaussian mixtures `error` is
           the mean over the clients' own classifiers, trained on data from others and on own images, and
           `error.server` is that of the server's classifier, trained only on data from the clients.
xi         average entanglement of five clients; the value reached with whole images is shown beside the one asked for.
           Base distributions are labels at `small`, CIFAR-100's subclasses at `paper`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unskew import priors
from unskew.data import sources
from unskew.data.dataset import Dataset
from unskew.data.rows import as_tensor
from unskew.history import History
from unskew.info import Embeddings, ExampleBudget
from unskew.keys import Key
from unskew.local import imagery
from unskew.papers.result import lines
from unskew.papers.study import Draft, final, merged, percent, published
from unskew.report import tables
from unskew.run.folder import read_json
from unskew.server.alignment import purity

TABLE2 = published("feddistr-table2")
"""Table 2, by xi.  FedAvg's parameters are a ResNet-18 with 1,000 outputs, so what one client sends in one round;
FedDistr's are read as all clients' embeddings together."""

UTILITY_LOSS = {method: cells["utility loss"] / 100 for method, cells in published("feddistr-text").items()}


# ---------------------------------------------------------------- runs and their numbers
GLOBAL_ACCURACY, CLIENTS_ACCURACY = "global.accuracy", "personal_on_global.accuracy.mean"
SERVER = " (server)"
"""After a method's name: the classifier that its server trains."""


def at(
    draft: Draft, folder: str, ground: Mapping[str, Any], split: Mapping[str, Any], *layers: Mapping[str, Any]
) -> History:
    """The run of an experiment on a ground under one split, with the methods named in the layers' `compare`."""
    table = merged(ground, {"split": split}, *layers)
    methods = table.pop("compare")
    # Worker processes would each make the images that all clients have in common, and those are most of the work.
    imagines = any(table["methods"][m].get("name", m) in ("feddistr", "fedpft") for m in methods)
    if imagines and not torch.cuda.is_available():
        table["runtime"] = {"executor": "sequential", **table.get("runtime", {})}
    return draft.run(folder, table, methods=methods)


def both_errors(history: History, method: str) -> dict[str, tuple[float, ...]]:
    """The mean error over the clients' final models, and the server's error, by seed, under the method's names."""
    names = {method: CLIENTS_ACCURACY, f"{method}{SERVER}": GLOBAL_ACCURACY}
    return {name: tuple(1.0 - a for a in final(history, method, metric)) for name, metric in names.items()}


def by_round(history: History, method: str, metric: str) -> dict[int, list[float]]:
    """A metric after each round, by seed."""
    curves = [history.frame.curve(method, seed, metric) for seed in history.record.seeds]
    return {t: [curve[t] for curve in curves] for t in sorted(curves[0]) if t}


def voted(history: History, method: str, data: Dataset, seed: int) -> float:
    """Error of the clients' models as an ensemble on the test set: the class with the largest mean probability."""
    total = torch.zeros(len(data.y_test), data.num_classes)
    for client in range(len(history.record.partitions[seed].sizes)):
        network = history.model(method, client, seed)
        with torch.no_grad():
            total += torch.cat([network(x).softmax(1) for x in torch.split(as_tensor(data.x_test), 500)])
    return float((total.argmax(1) != data.y_test).double().mean())


def add_realised(draft: Draft, history: History, where: str) -> None:
    """Add the average entanglement reached with whole images."""
    seeds = read_json(history.folder / "partition.json")["seeds"]
    draft.add("split", where, "xi.realised", [float(fed["stats"]["entanglement"]) for fed in seeds.values()])


Shown = Mapping[str, Mapping[int, Embeddings]]


def shown(history: History) -> Shown:
    """The info of FedDistr in its round, by label and seed."""
    return {m: of for m in history.methods if (of := tables.last(history.record, m, Embeddings))}


# ---------------------------------------------------------------- error by overlap or clients (Figs. 4 and 8, Table 2)
Errors = dict[str, Mapping[int, Sequence[float]]]
"""Errors by round and seed; of what travels once, after that alone.  With SERVER behind it a name is the server's."""

WHOSE = {"clients": "feddistr", "server": f"feddistr{SERVER}"}
"""Whose error FedAvg is to reach."""


def overlap(draft: Draft) -> None:
    """FedDistr's one round, and rivals with one or many, at every value of one option of the split."""
    over, (x, y) = draft["over"], draft["axes"]
    for name, table in draft.on(draft["on"]).items():
        levels = {f"{over} {value:g}": _level(draft, table, name, over, value) for value in draft[over]}
        shown = [m for m in next(iter(levels.values())) if m != "alone"]
        ends = {m: [of[m][max(of[m])] for of in levels.values()] for m in shown}
        by_value = {m: percent(range(1, len(levels) + 1), of) for m, of in ends.items()}
        if draft.curves:
            draft.figures.append(lines(f"{name} by {over}", by_value, (x, y)))
        draft.curves = draft.curves or by_value
        for (at_value, errors), *end in zip(levels.items(), *ends.values(), strict=True):
            if (rounds := max(map(max, errors.values()))) > 1:
                by = {m: {**errors[m], rounds: last} for m, last in zip(shown, end, strict=True)}
                curves = {m: percent(of, [*of.values()]) for m, of in by.items()}
                draft.figures.append(lines(f"{name}, {at_value}", curves, ("round", y)))


def _level(draft: Draft, ground: Mapping[str, Any], name: str, over: str, value: float) -> Errors:
    """The reproduction's parts under one split, each in a run of its own: rows are added, errors returned."""
    where, errors = f"{name}, {over} {value:g}", Errors()
    sent: dict[str, Sequence[Sequence[float]]] = {}  # up to each round, by seed
    printed = TABLE2.get(f"{value:g}", {}) if over == "xi" else {}
    for part, layer in draft["parts"].items():
        history = at(draft, f"{name}-{over}-{value:g}-{part}", ground, {over: value}, layer)
        for m in history.methods:
            ways = [by_round(history, m, f"bytes.{way}").values() for way in ("down", "up")]
            sent[m] = np.add(*map(np.array, map(list, ways))).cumsum(0).T.tolist()
            if m == "fedavg":
                parameters = [float(read_json(history.folder / "run.json")["parameters"])] * len(history.record.seeds)
                draft.add(m, where, "numbers.once", parameters, TABLE2["0"]["fedavg parameters"])
            if m == "oneshot":
                # Of an ensemble nothing but the models has to travel: the voting is done at the server.
                sent["ensemble"] = [[b] for b in final(history, m, "bytes.up")]
            if m == "alone":
                data = sources.load(ground["task"]["data"], draft.data_dir)
                errors["ensemble"] = {1: [voted(history, m, data, seed) for seed in ground["seeds"]]}
                errors[m] = {1: [1.0 - a for a in final(history, m, CLIENTS_ACCURACY)]}
            elif final(history, m, CLIENTS_ACCURACY):
                errors |= {name: {1: of} for name, of in both_errors(history, m).items()}
            else:
                accuracies = by_round(history, m, GLOBAL_ACCURACY)
                errors[m] = {t: [1.0 - a for a in of] for t, of in accuracies.items()}
        _add_embeddings(draft, shown(history), where)
    for m, by in errors.items():
        paper = UTILITY_LOSS.get(m) if over == "xi" and (m != "moon" or value == 0.0) else None
        metric = "error.server" if m.endswith(SERVER) else "error"
        draft.add(m.removesuffix(SERVER), where, metric, by[max(by)], paper)
        if len(by) > 1:
            draft.add(m, where, "error.first", by[1])
        if m in sent:
            draft.add(m, where, "bytes.total", [of_seed[-1] for of_seed in sent[m]])
    for whose, wanted in WHOSE.items() if {"fedavg", "feddistr"} <= errors.keys() else ():
        first = reaching(errors["fedavg"], errors[wanted][1])
        draft.add("fedavg", where, f"reached.to_{whose}", [float(t is not None) for t in first])
        there = [(t, of_seed[t - 1]) for t, of_seed in zip(first, sent["fedavg"], strict=True) if t is not None]
        paper = printed.get("fedavg rounds") if whose == "clients" else None
        note = f"not reached in {first.count(None)} seeds" if None in first else ""
        draft.add("fedavg", where, f"rounds.to_{whose}", [float(t) for t, _ in there], paper, note)
        draft.add("fedavg", where, f"bytes.to_{whose}", [b for _, b in there], None, note)
    add_realised(draft, history, where)
    return errors


def _add_embeddings(draft: Draft, infos: Shown, where: str) -> None:
    for m, mine in ((m, [*of.values()]) for m, of in infos.items()):
        draft.add(m, where, "embeddings.sent", [float(info.sent) for info in mine])
        draft.add(m, where, "embeddings.kept", [float(len(info.kept)) for info in mine])
        pure = [purity(info.embeddings, info.labels)[0] for info in mine]
        if np.isfinite(pure).all():
            draft.add(m, where, "embeddings.purity", pure)
        if m == "feddistr":
            numbers = [float(info.width * info.sent) for info in mine]
            draft.add(m, where, "numbers.once", numbers, TABLE2["0"]["feddistr parameters"])


def reaching(errors: Mapping[int, Sequence[float]], wanted: Sequence[float]) -> list[int | None]:
    """The first round with at most the wanted error, by seed; None if there is none.

    >>> reaching({1: [0.5, 0.5], 2: [0.2, 0.3]}, [0.25, 0.25])
    [2, None]
    """
    return [
        # A mean over clients is rounded.
        next((t for t in sorted(errors) if errors[t][i] <= e + 1e-9), None)
        for i, e in enumerate(wanted)
    ]


# ---------------------------------------------------------------- noise on embeddings (Fig. 5)
PLAIN = "no noise"


def privacy(draft: Draft) -> None:
    """Error, epsilon and nearest copies, by noise on embeddings."""
    ((name, table),), xi = draft.on(draft["on"]).items(), draft["xi"]
    options = {**table["methods"]["feddistr"], "name": "feddistr"}
    noisy = {f"sigma {s:g}": {**options, "dp": {"clip": draft["clip"], "sigma": s}} for s in draft["sigmas"]}
    methods = {PLAIN: options, **noisy}
    history = at(draft, "runs", table, {"xi": xi}, {"methods": methods, "compare": list(methods)})
    where, infos = f"{name}, xi {xi:g}", shown(history)
    for m in methods:
        clients, server = both_errors(history, m).values()
        draft.add(m, where, "error", clients)
        draft.add(m, where, "error.server", server)
        epsilon = infos[m][table["seeds"][0]].privacy.epsilon
        if not isinstance(epsilon, str):
            draft.add(m, where, "epsilon", [epsilon] * len(table["seeds"]))
    _add_copies(draft, infos, table, where)
    add_realised(draft, history, where)
    if not any(r.metric == "epsilon" for r in draft.rows):
        draft.notes.append("Epsilon needs the extra [dp], which is not installed here: sigma stands alone.")
    if "rivals" in draft.settings:
        _beside_rivals(draft, table, where)


def _beside_rivals(draft: Draft, ground: Mapping[str, Any], where: str) -> None:
    """Add methods with noise of their own, and claims against FedDistr's server at the next larger epsilon."""
    spent = {r.method: r.seeds[0] for r in draft.rows if r.metric == "epsilon"}
    history = at(draft, "rivals", ground, {"xi": draft["xi"]}, draft["rivals"])
    for m in history.methods:
        theirs = [1.0 - a for a in final(history, m, GLOBAL_ACCURACY)]
        epsilons = [max(info.spent.values()) for info in tables.last(history.record, m, ExampleBudget).values()]
        draft.add(m, where, "error.server", theirs)
        draft.add(m, where, "epsilon", epsilons)
        if weaker := [label for label in spent if spent[label] >= max(epsilons)]:
            label = min(weaker, key=lambda label: spent[label])
            at_epsilon = f"at epsilon {spent[label]:,.0f} ({label})"
            text = f"{at_epsilon} FedDistr's server errs less than {m} at {max(epsilons):,.1f}"
            draft.above(text, theirs, draft.values(label, where, "error.server"))


def _add_copies(draft: Draft, infos: Shown, ground: Mapping[str, Any], where: str) -> None:
    """Add the least distances of generated images, and of real ones, to private images.

    Images are generated anew: under noise clients do not report distances, which would reveal their images.  If the
    info has only coordinates of the embeddings, because there are many, nothing can be generated.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = sources.load(ground["task"]["data"], draft.data_dir)
    prior = ground["methods"]["feddistr"].get("prior", priors.BUILT_IN)
    maker = imagery.of(prior, device, data.input_shape, data.inputs.levels)
    private, closest = as_tensor(data.x_train), dict[str, list[float]]()
    for label, seed, info in ((label, *at) for label, of in infos.items() for at in of.items()):
        if info.coordinates != "embedding":
            continue
        key = Key(seed) / "feddistr" / "copies"
        v = torch.tensor(info.embeddings)[list(info.kept)]
        images = maker.sample(v, draft["each"], key / "images").flatten(0, 1)
        closest.setdefault(label, []).append(nearest(images, private))
        if label == PLAIN:
            rows = torch.randperm(len(data.x_test), generator=(key / "real").generator())[: len(images)]
            closest.setdefault("real images", []).append(nearest(data.x_test[rows], private))
    for label, distances in closest.items():
        draft.add(label, where, "closest", distances)


def nearest(images: Tensor, private: Tensor) -> float:
    """The least distance from an image to a private one, relative to the median distance between neighbouring private
    ones.

    >>> nearest(torch.tensor([[1.0], [9.0]]), torch.tensor([[0.0], [2.0], [4.0]]))
    0.5
    """
    x, own = images.flatten(1), private.flatten(1)
    among = torch.cdist(own, own).fill_diagonal_(torch.inf).amin(1).median()
    return float(torch.cdist(x, own).amin() / among)
