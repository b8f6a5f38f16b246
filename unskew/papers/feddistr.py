"""Reproductions of FedDistr: its published numbers, and ours beside them.

The method's page says what the paper leaves open, and our choices.

Error      the paper's utility loss: 1 - accuracy on test images of all labels, absolute, not relative to training in
           one place.  A method with one model has that model's error.  For FedDistr and Gaussian mixtures `error` is
           the mean over the clients' own classifiers, trained on data from others and on own images, and
           `error.server` is that of the server's classifier, trained only on data from the clients.
xi         average entanglement of five clients; the value reached with whole images is shown beside the one asked for.
           Base distributions are labels at `small`, CIFAR-100's subclasses at `paper`.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from unskew.papers.claims import Claim, decide, paired
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


def shown(history: History) -> dict[tuple[str, int], Embeddings]:
    """The info of FedDistr in its round, by label and seed."""
    every = {m: tables.last(history.record, m, Embeddings) for m in history.methods}
    return {(m, seed): info for m, of in every.items() for seed, info in of.items()}


# ---------------------------------------------------------------- error by overlap or clients (Figs. 4 and 8, Table 2)
@dataclass(frozen=True, eq=False)
class Level:
    """Results on one source at one value of the varied option.

    Attributes:
        at: The option of the split and its value, as in "xi 0".
        errors: Final errors, by name and seed; with SERVER behind it a name is that of the server's classifier.
        by_round: Errors after each round of the methods with many rounds.
        reached: The first round at which FedAvg was as good as FedDistr's clients, and as its server.
    """

    at: str
    errors: dict[str, Sequence[float]] = field(default_factory=dict)
    by_round: dict[str, Mapping[int, Sequence[float]]] = field(default_factory=dict)
    reached: dict[str, Sequence[int | None]] = field(default_factory=dict)


def overlap(draft: Draft) -> None:
    """FedDistr's one round, and rivals with one or many, at every value of one option of the split."""
    over, (x, y) = draft["over"], draft["axes"]
    for name, table in draft.on(draft["on"]).items():
        levels = [_level(draft, table, name, over, value) for value in draft[over]]
        draft.claims += slower_claims(name, levels) if draft.settings.get("slower") else ()
        places = range(1, len(levels) + 1)
        by_value = {m: percent(places, [level.errors[m] for level in levels]) for m in levels[0].errors if m != "alone"}
        if draft.curves:
            draft.figures.append(lines(f"{name} by {over}", by_value, (x, y)))
        draft.curves = draft.curves or by_value
        for level in levels if levels[0].by_round else ():
            rounds = max(map(max, level.by_round.values()))
            once = {m: {1: e, rounds: e} for m, e in level.errors.items() if m != "alone"}
            curves = {m: percent(by, list(by.values())) for m, by in {**once, **level.by_round}.items()}
            draft.figures.append(lines(f"{name}, {level.at}", curves, ("round", y)))


def _level(draft: Draft, ground: Mapping[str, Any], name: str, over: str, value: float) -> Level:
    """The reproduction's parts under one split, each in a run of its own, as rows and as a level."""
    level, where = Level(f"{over} {value:g}"), f"{name}, {over} {value:g}"
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
                data = sources.load(ground["task"]["data"], draft.request.data_dir)
                level.errors["ensemble"] = [voted(history, m, data, seed) for seed in ground["seeds"]]
                level.errors[m] = [1.0 - a for a in final(history, m, CLIENTS_ACCURACY)]
            elif final(history, m, CLIENTS_ACCURACY):
                level.errors.update(both_errors(history, m))
            else:
                accuracies = by_round(history, m, GLOBAL_ACCURACY)
                level.by_round[m] = {t: [1.0 - a for a in of] for t, of in accuracies.items()}
                level.errors[m] = level.by_round[m][max(accuracies)]
        _add_embeddings(draft, shown(history), where)
    for m, values in level.errors.items():
        paper = UTILITY_LOSS.get(m) if over == "xi" and (m != "moon" or value == 0.0) else None
        draft.add(m.removesuffix(SERVER), where, "error.server" if m.endswith(SERVER) else "error", values, paper)
        if m in level.by_round:
            draft.add(m, where, "error.first", level.by_round[m][1])
        if m in sent:
            draft.add(m, where, "bytes.total", [by[-1] for by in sent[m]])
    for whose, wanted in WHOSE.items() if {"fedavg"} & level.by_round.keys() and "feddistr" in level.errors else ():
        first = level.reached[whose] = reaching(level.by_round["fedavg"], level.errors[wanted])
        draft.add("fedavg", where, f"reached.to_{whose}", [float(t is not None) for t in first])
        there = [(t, by[t - 1]) for t, by in zip(first, sent["fedavg"], strict=True) if t is not None]
        if there:
            paper = printed.get("fedavg rounds") if whose == "clients" else None
            draft.add("fedavg", where, f"rounds.to_{whose}", [float(t) for t, _ in there], paper)
            draft.add("fedavg", where, f"bytes.to_{whose}", [b for _, b in there])
    add_realised(draft, history, where)
    return level


WHOSE = {"clients": "feddistr", "server": f"feddistr{SERVER}"}
"""Whose error FedAvg is to reach."""


def _add_embeddings(draft: Draft, infos: Mapping[tuple[str, int], Embeddings], where: str) -> None:
    for m in dict.fromkeys(m for m, _ in infos):
        mine = [info for (method, _), info in infos.items() if method == m]
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


def slower_claims(source: str, levels: Sequence[Level]) -> Iterable[Claim]:
    """Whether FedAvg takes more rounds until it is as good as FedDistr's clients where labels overlap less (Table 2).

    If it never was at the lower overlap, it takes at least one round more than were run, which refutes nothing.  If it
    never was at the higher one, the claim is undecided.
    """
    rounds = max(levels[0].by_round["fedavg"])
    for less, more in itertools.pairwise(levels):
        text = f"{source}: FedAvg needs more rounds at {less.at} than at {more.at}"
        first, then = (level.reached["clients"] for level in (less, more))
        if missed := sum(t is None for t in then):
            evidence = f"at {more.at} not reached within {rounds} rounds in {missed} of {len(then)} seeds"
            yield Claim(text, None, evidence)
            continue
        apart = [float((rounds + 1 if a is None else a) - b) for a, b in zip(first, then, strict=True) if b is not None]
        missed, unit = sum(t is None for t in first), "rounds"
        if missed:
            unit += f" (at least: not reached within {rounds} rounds in {missed} of {len(first)} seeds)"
        claim = decide(text, apart, unit, 1.0, "+.1f", counts=True)
        yield replace(claim, holds=None) if missed and claim.holds is False else claim


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
    copies, real = _copies(draft, infos, table)
    for m in methods:
        clients, server = both_errors(history, m).values()
        draft.add(m, where, "error", clients)
        draft.add(m, where, "error.server", server)
        if m in copies:
            draft.add(m, where, "closest", copies[m])
        epsilon = infos[m, table["seeds"][0]].privacy.epsilon
        if not isinstance(epsilon, str):
            draft.add(m, where, "epsilon", [epsilon] * len(table["seeds"]))
    if real:
        draft.add("real images", where, "closest", real)
    add_realised(draft, history, where)
    if not any(r.metric == "epsilon" for r in draft.rows):
        draft.request.notes.append("Epsilon needs the extra [dp], which is not installed here: sigma stands alone.")
    if "rivals" in draft.settings:
        _beside_rivals(draft, table, where)
    if PLAIN in copies:
        text = "without noise no image that is made is nearer to a private one than unseen real images are"
        draft.claims.append(decide(text, paired(copies[PLAIN], real), "distances of private images", 1.0))
    draft.curves = {
        who: percent(range(len(methods)), [draft.values(m, where, metric) for m in methods])
        for who, metric in {"clients": "error", "server": "error.server"}.items()
    }


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


def _copies(
    draft: Draft, infos: Mapping[tuple[str, int], Embeddings], ground: Mapping[str, Any]
) -> tuple[dict[str, list[float]], list[float]]:
    """Least distances of generated images, and of real ones, to private images, by label and seed.

    Images are generated anew: under noise clients do not report distances, which would reveal their images.  If the
    info has only coordinates of the embeddings, because there are many, nothing can be generated.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = sources.load(ground["task"]["data"], draft.request.data_dir)
    prior = ground["methods"]["feddistr"].get("prior", priors.BUILT_IN)
    maker = imagery.of(prior, device, data.input_shape, data.inputs.levels)
    private = as_tensor(data.x_train)
    copies: dict[str, list[float]] = {}
    real: list[float] = []
    for (label, seed), info in infos.items():
        if info.coordinates != "embedding":
            continue
        v = torch.tensor(info.embeddings)[list(info.kept)]
        key = Key(seed) / "feddistr" / "copies"
        images = maker.sample(v, draft["each"], key / "images").flatten(0, 1)
        copies.setdefault(label, []).append(nearest(images, private))
        if label == PLAIN:
            rows = torch.randperm(len(data.x_test), generator=(key / "real").generator())[: len(images)]
            real.append(nearest(data.x_test[rows], private))
    return copies, real


def nearest(images: Tensor, private: Tensor) -> float:
    """The least distance from an image to a private one, relative to the median distance between neighbouring private
    ones.

    >>> nearest(torch.tensor([[1.0], [9.0]]), torch.tensor([[0.0], [2.0], [4.0]]))
    0.5
    """
    x, own = images.flatten(1), private.flatten(1)
    among = torch.cdist(own, own).fill_diagonal_(torch.inf).amin(1).median()
    return float(torch.cdist(x, own).amin() / among)
