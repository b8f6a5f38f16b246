"""Reproductions of FedDW: its published numbers, and ours beside them.

The method's page says where the paper's released code differs.  The paper's tables put two accuracies into one column.
G, for methods with a global model, is the server's model on the global test set (`global.accuracy`).  PG, for the
others, is each client's own model on it (`personal_on_global.accuracy.mean`).
"""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import altair as alt
import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from unskew.algorithms.feddw import ClassRelation
from unskew.bench.feddw import measure
from unskew.data import sources
from unskew.data.dataset import Dataset
from unskew.history import History
from unskew.info import ClassRelations
from unskew.keys import Key
from unskew.papers.claims import Claim, decide, paired
from unskew.papers.study import Draft, compared, published
from unskew.record import reader
from unskew.report import charts as drawing
from unskew.report.section import Chart
from unskew.report.sections import class_relations as report
from unskew.report.stats import curve
from unskew.report.tables import last, reported
from unskew.tree import Params

G = "global.accuracy"
TABLE3 = published("feddw-table3")


# ---------------------------------------------------------------- Tables I and II
def table1(draft: Draft) -> None:
    """All twelve methods on each data set, and the text's "+3 % on average" for pathological data.

    The average is over what is published: the paper's Per-FedAvg has no numbers on CIFAR.
    """
    compared(draft)
    rows = [r for r in draft.rows if r.metric == G and r.setting.endswith("pathological") and r.seeds]
    ours = {r.setting: r for r in rows if r.method == "feddw"}
    others = [r for r in rows if r.method in draft["one"] and r.paper is not None]
    pairs = [(ours[r.setting], r) for r in others if r.setting in ours]
    means = [statistics.fmean(of_seed) for of_seed in zip(*(paired(a.seeds, b.seeds) for a, b in pairs), strict=True)]
    printed = [a.paper - b.paper for a, b in pairs if a.paper is not None and b.paper is not None]
    text = "on average over pathological data and other methods with one model feddw ends above them"
    draft.claims.append(decide(text, means, published=statistics.fmean(printed) if printed else None))


def scale(draft: Draft) -> None:
    """More clients, and the same work in fewer or more rounds, and each method's decline from 10 clients to more.

    At `paper` scale also other networks.
    """
    compared(draft)
    standard = next((r.setting for r in draft.rows if ", standard:" in r.setting), "")
    few = {r.method: r for r in draft.rows if (r.setting, r.metric) == (standard, G)}
    for r in [r for r in draft.rows if r.metric == G and r.method in few and ", N=" in r.setting]:
        first = few[r.method]
        printed = None if first.paper is None or r.paper is None else first.paper - r.paper
        draft.add(r.method, r.setting, "accuracy.decline", paired(first.seeds, r.seeds), printed)
    draft.curves = {}


# ---------------------------------------------------------------- Fig. 8, 5 and 4
def consistency(draft: Draft) -> None:
    """Distance of class relations from soft labels: FedAvg on even labels, FedAvg and FedDW on uneven ones."""
    runs, curves = compared(draft), {}
    panels: dict[str, tuple[History, str]] = {}
    for where, history in runs.items():
        for method, by_seed in _distances(history).items():
            panels[name := f"{method}, {where.partition(', ')[2]}"] = history, method
            draft.add(method, where, "sl_cr_distance.first", [by[0] for by in by_seed])
            draft.add(method, where, "sl_cr_distance.last", [by[-1] for by in by_seed])
            by_round = list(zip(*by_seed, strict=True))
            curves[name] = curve(range(1, len(by_round) + 1), by_round, len(by_seed))
    draft.curves = curves
    norms = {title: class_norms(*panel) for title, panel in panels.items() if title.endswith("non-IID")}
    for title, pairs in norms.items():
        values = [r for pair in pairs if (r := report.correlation(*pair)) is not None]
        draft.add(panels[title][1], [*runs][-1], "norm_share_correlation", values)
    ground = draft.with_data(draft.tables(["cifar10"])["cifar10"])
    data = sources.load(ground["task"]["data"], draft.data_dir)
    draft.figures += consistency_figures(data, panels, ground["seeds"][0]) if panels else []
    draft.figures += [report.norms_chart(norms, "last round’s training examples")] if norms else []


def _distances(history: History) -> dict[str, list[list[float]]]:
    """||SL - CR|| after each round, by method and seed; of methods that did not diverge."""
    lost = {row["method"] for row in history.diverged}
    every = {m: reported(history.record, m, ClassRelations).values() for m in history.methods if m not in lost}
    return {
        m: [[math.nan if info.distance is None else info.distance for info in rounds.values()] for rounds in seeds]
        for m, seeds in every.items()
        if seeds
    }


SHOWN = 600
"""Test images in a map of features."""


def consistency_figures(data: Dataset, panels: Mapping[str, tuple[History, str]], seed: int) -> list[Chart]:
    """SL and CR of a method's first, middle and last round for each of `panels`, and features on one map.

    Args:
        data: The task's examples.
        panels: Title of a panel -> the run and its method.
        seed: Seed whose models and matrices are drawn.
    """
    planes, charts = {}, []
    for title, (history, method) in panels.items():
        infos = reported(history.record, method, ClassRelations)[seed]
        charts.append(report.relations_chart(f"{title}, seed {seed}", report.first_middle_last(infos)))
        network = history.model(method, seed=seed)
        body, head = network.body, network.head
        assert isinstance(body, nn.Module)
        assert isinstance(head, nn.Linear)
        with torch.no_grad():
            features, weight = body(data.x_test[:SHOWN]).double().numpy(), head.weight.double().numpy()
        planes[title] = plane(features, data.y_test[:SHOWN].numpy(), weight, Key(seed) / "features")
    return [*charts, features_chart(planes)]


def class_norms(history: History, method: str) -> list[report.Shared]:
    """The share of each class in the last cohort's training data, and the length of its weights, by seed."""
    infos = last(history.record, method, ClassRelations).values()
    every = [(info.counts or (), info.class_norms or ()) for info in infos]
    return [([n / sum(counts) for n in counts], norms) for counts, norms in every]


def plane(
    features: report.Floats, labels: npt.NDArray[np.int64], weights: report.Floats, key: Key
) -> list[dict[str, Any]]:
    """Features and class weights laid out together by t-SNE, as rows of `features_chart`.

    Distances are cosine, since features (examples, dimensions) and weights (classes, dimensions) differ much in length.
    Rows of weights come last, in the classes' order.
    """
    from sklearn.manifold import TSNE  # an import that no report needs

    both = np.concatenate([features, weights])
    tsne = TSNE(
        n_components=2, metric="cosine", init="pca", perplexity=min(30.0, (len(both) - 1) / 3),
        random_state=key.number() % 2**32,
    )  # fmt: skip
    of = [*map(int, labels), *range(len(weights))]
    return [
        {"x": float(x), "y": float(y), "class": str(c), "weight": i >= len(features)}
        for i, (c, (x, y)) in enumerate(zip(of, tsne.fit_transform(both), strict=True))
    ]


def features_chart(planes: Mapping[str, Sequence[Mapping[str, Any]]]) -> Chart:
    """Features in the plane, coloured by class, with the number of a class at its weight (Fig. 5); a panel for each."""
    points = [{"panel": title, **row} for title, rows in planes.items() for row in rows]
    classes = list(dict.fromkeys(row["class"] for row in points if row["weight"]))
    base = alt.Chart(drawing.rows(points)).encode(
        x=drawing.bare("x"), y=drawing.bare("y"), color=drawing.by_name(drawing.colours(classes), "class")
    )
    marks = base.transform_filter("!datum.weight").mark_point(filled=True, size=14, opacity=0.6)
    bold: dict[str, Any] = {"fontSize": 16, "fontWeight": "bold", "stroke": drawing.PAGE, "strokeWidth": 0.4}
    numbers = base.transform_filter("datum.weight").mark_text(**bold).encode(text=alt.Text("class:N"))
    drawn = drawing.faceted(alt.layer(marks, numbers), list(planes), 3, height=240)
    title = "Features with the weights of the classes"
    caption = "A mark is a test example where t-SNE puts it, a number the weight of that class."
    return Chart(title, caption, drawn, f"{title}: {', '.join(planes)}.", wide=len(planes) > 1)


# ---------------------------------------------------------------- the term's gradient
CLASSIFIER = "head.weight"
WORDS = {"step": "step by step", "sum": "summed over a round's steps"}


class Ratio(NamedTuple):
    """Norm of the term's gradient over that of cross-entropy: the mean over steps, and the ratio of sums over steps."""

    step: float
    sum: float


def gradient(draft: Draft) -> None:
    """The term's gradient over cross-entropy's in the classifier, where alone it has one, in several rounds."""
    curves = {}
    (ground,) = draft.on(draft["on"]).values()
    labels, bound = draft["compare"], draft["bound"]
    data = sources.load(ground["task"]["data"], draft.data_dir)
    rounds = [done + 1 for done in draft["rounds_before"]]
    for at in rounds:
        history = draft.run(f"after-{at - 1}", ground, {"rounds": at - 1, "eval_every": at - 1}, methods=labels)
        for label in labels:
            term = ClassRelation(ground["methods"][label]["mu"], CLASSIFIER)
            seeds = [_gradient_of(history, label, term, seed, data, ground["local"]) for seed in ground["seeds"]]
            for kind in WORDS:
                values = [getattr(ratio, kind) for ratio in seeds]
                draft.add(label, f"round {at}", f"gradient_ratio.classifier.{kind}", values)
            draft.callback.note(f"{label}, round {at}: measured")
    for (i, label), (kind, words) in itertools.product(enumerate(labels), WORDS.items()):
        by_round = [draft.values(label, f"round {at}", f"gradient_ratio.classifier.{kind}") for at in rounds]
        curves[f"{label}, {words}"] = curve(rounds, [[math.log10(r) for r in of] for of in by_round], len(by_round[0]))
        draft.claims.append(_bounded(label, words, list(zip(*by_round, strict=True)), bound, above=i > 0))
    draft.curves = curves


def _bounded(label: str, words: str, by_seed: Sequence[Sequence[float]], bound: float, above: bool) -> Claim:
    """The claim that the ratio stays below the bound in the classifier, or is above it in some round."""
    # A ratio spreads by factors: the interval is that of the logarithms.
    beyond = [math.log10(max(*r, math.ulp(0.0)) / bound) for r in by_seed]
    side = "reaches more than" if above else "stays below"
    text = f"{label}: in the classifier its gradient {side} {100 * bound:g} % of cross-entropy's, {words}"
    claim = decide(text, beyond if above else [-d for d in beyond], "powers of ten from it", 1.0)
    most = ", ".join(f"{100 * max(r):.3g}" for r in by_seed)
    return replace(claim, evidence=f"at most {most} % by seed: {claim.evidence}")


def _gradient_of(
    history: History, label: str, term: ClassRelation, seed: int, data: Dataset, local: Mapping[str, Any]
) -> Ratio:
    """The mean ratio over clients, from the model and the soft labels that a run ended with."""
    soft_labels = torch.tensor(last(history.record, label, ClassRelations)[seed].sl)
    ratios = []
    for i, rows in enumerate(reader.part_of(history.folder, "train", seed)[1]):
        network, key = history.model(label, seed=seed), Key(seed) / "gradient" / i
        ratios.append(gradient_ratio(network, data.x_train[rows], data.y_train[rows], term, soft_labels, local, key))
    return Ratio(*map(statistics.fmean, zip(*ratios, strict=True)))


def gradient_ratio(
    network: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    term: ClassRelation,
    soft_labels: torch.Tensor,
    local: Mapping[str, Any],
    key: Key,
) -> Ratio:
    """The term's gradient over cross-entropy's in the classifier, while the network trains as a client of FedDW does.

    Args:
        network: Trained in place by Adam on the sum of both; the classifier's bias is left out.
        x, y: Inputs and labels of one client.
        term, soft_labels: The term, and SL, (classes, classes).
        local: Its `lr`, `local_epochs` and `batch_size`.
        key: Key of the order of examples and of dropout.
    """
    named: Params = {name: p for name, p in network.named_parameters() if name != CLASSIFIER.replace("weight", "bias")}
    optimizer = torch.optim.Adam(named.values(), lr=local["lr"])
    pulls, plains = [], []
    network.train()
    with key.ambient():
        for _ in range(local["local_epochs"]):
            for rows in torch.split(torch.randperm(len(y)), local["batch_size"]):
                plain = torch.autograd.grad(cross_entropy(network(x[rows]), y[rows]), [*named.values()])
                (pull,) = torch.autograd.grad(term(named, {"soft_labels": soft_labels}), [named[CLASSIFIER]])
                for (name, p), g in zip(named.items(), plain, strict=True):
                    p.grad = g + pull if name == CLASSIFIER else g
                pulls.append(pull)
                plains.append(plain[[*named].index(CLASSIFIER)])
                optimizer.step()
    both = (torch.stack(of).sum(0) for of in (pulls, plains))
    return Ratio(statistics.fmean(map(_over, pulls, plains)), _over(*both))


def _over(term: torch.Tensor, plain: torch.Tensor) -> float:
    return float(term.norm() / plain.norm().clamp(min=torch.finfo(plain.dtype).tiny))


# ---------------------------------------------------------------- Table III
def overhead(draft: Draft) -> None:
    """CPU time of a client's local epoch under each method, relative to FedAvg (from `unskew bench feddw`)."""
    by = {(r["case"], r["contender"]): r for r in measure(draft["turns"], say=draft.callback.note)}
    ms = {method: cells["ms"] for method, cells in TABLE3.items()}
    for case in dict.fromkeys(case for case, _ in by):
        paper = {m: t / ms["fedavg"] for m, t in ms.items()} if case.startswith("resnet18") else {}
        others = {"fedavg again": "fedavg again", "soft labels": "soft-label pass alone"}
        for contender, label in {**{m: m for m in ms if m != "fedavg"}, **others}.items():
            if (case, contender) in by:
                draft.add(label, case, "cpu_time.ratio", [by[case, contender]["ratio"]], paper.get(contender))
        dw, again = by[case, "feddw"], by[case, "fedavg again"]
        if "bar" in dw:
            text = f"an epoch of FedDW takes at most {dw['bar']:.2f} times FedAvg's ({case})"
            evidence = (
                f"median {dw['ratio']:.3f}, middle half [{dw['low']:.3f}, {dw['high']:.3f}], of minima "
                f"{dw['ratio_of_minima']:.3f}, {dw['turns']} turns; FedAvg again {again['ratio']:.3f} "
                f"[{again['low']:.3f}, {again['high']:.3f}]"
            )
            draft.claims.append(Claim(text, dw["met"], evidence))
