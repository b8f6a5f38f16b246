"""Reproductions of FedDW: its published numbers, and ours beside them.

The method's page says what the paper's released code did differently.  The paper's tables put two accuracies into
one column, which are distinguished here:

    G    global.accuracy: the server's model on the global test set
    P    personal.accuracy.mean: each client's own model on its own test data, the mean over clients
    PG   personal_on_global.accuracy.mean: each client's own model on the global test set, the mean over clients

The published accuracy is G for methods with one global model and PG for the others; P is in none of the tables.
"""

import itertools
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import altair as alt
import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from unskew import models
from unskew.algorithms.feddw import ClassRelation
from unskew.bench.feddw import measure
from unskew.data import sources
from unskew.data.dataset import Dataset
from unskew.history import History
from unskew.info import ClassRelations
from unskew.keys import Key
from unskew.papers.claims import Claim, decide, paired
from unskew.papers.result import Result, Row, over_seeds, plot
from unskew.papers.toolkit import (
    Draft,
    ReproductionRequest,
    bests,
    curves_of,
    fate,
    final,
    merged,
    percent,
    published,
    share,
)
from unskew.record import reader
from unskew.report import charts as drawing
from unskew.report.section import Chart
from unskew.report.sections import class_relations as report
from unskew.report.stats import Curve, curve
from unskew.report.tables import difference
from unskew.run.models import file_name, load_model
from unskew.tree import Params

Kind = Literal["G", "P", "PG"]
ACCURACY: dict[Kind, str] = {
    "G": "global.accuracy",
    "P": "personal.accuracy.mean",
    "PG": "personal_on_global.accuracy.mean",
}
TABLE1, TABLE2, TABLE3, TABLE4 = (published(f"feddw-table{n}") for n in (1, 2, 3, 4))
PUBLISHED_AS: dict[str, Kind] = {
    method: "PG" if method in ("fedrep", "fedproto", "fedala", "fedper", "local") else "G" for method in TABLE1
}
"""The kind of accuracy that the paper prints for each method."""


def with_term(ground: Mapping[str, Any], label: str) -> dict[str, Any]:
    """A method of a ground with FedDW's class-relation term, at FedDW's strength there."""
    method, mu = ground["methods"][label], ground["methods"]["feddw"]["mu"]
    return {**method, "name": f"{method.get('name', label)}+dw", "dw": {"mu": mu}}


# ---------------------------------------------------------------- numbers of a run
def ends(runs: History, method: str) -> tuple[float, ...]:
    """The global model's accuracy after the last round, by seed; none if the method diverged."""
    return final(runs, method, ACCURACY["G"])


def accuracy_rows(runs: History, method: str, where: str, paper: float | None = None) -> list[Row]:
    """A row for every kind of accuracy that the method has; the published percentage is beside its own kind.

    A method that diverged has one row, without a value.
    """
    kind_printed = PUBLISHED_AS.get(method, "G")
    if why := fate(runs, method):
        name = f"{ACCURACY[kind_printed]} ({kind_printed})"
        return [Row(method, where, name, share(paper), None, None, "seeds", (), why)]
    rows = []
    for kind, name in ACCURACY.items():
        if values := final(runs, method, name):
            published = share(paper) if kind == kind_printed else None
            rows.append(over_seeds(method, where, f"{name} ({kind})", values, published))
            if steadier := final(runs, method, f"{name}.mean_last_fifth"):
                rows.append(over_seeds(method, where, f"{name}.mean_last_fifth ({kind})", steadier))
    best = bests(runs, method, ACCURACY[kind_printed])
    return [*rows, over_seeds(method, where, f"{ACCURACY[kind_printed]}.best ({kind_printed})", best)]


def published_claims(
    draft: Draft, runs: History, labels: Sequence[str], column: Mapping[str, float], where: str
) -> None:
    """Add the claims that FedDW is above the methods with one global model that it is published above.

    That a global model is above personal ones on global data is no claim.

    Args:
        draft: The reproduction.
        runs: The column's run.
        labels: Methods that were run.
        column: A published column, by method; a run that crashed has no number.
        where: Name of the column in the claims.
    """
    for method in labels:
        if PUBLISHED_AS[method] == "G" and column["feddw"] > column.get(method, math.inf):
            text = f"feddw (G) ends above {method} (G) {where}"
            gain = share(column["feddw"] - column[method])
            draft.above(text, ends(runs, "feddw"), ends(runs, method), published=gain)


def _column(table: Mapping[str, Mapping[str, float]], name: str) -> dict[str, float]:
    return {method: cells[name] for method, cells in table.items() if name in cells}


def compared(
    draft: Draft,
    folder: str,
    where: str,
    *layers: Mapping[str, Any],
    methods: Sequence[str],
    printed: Mapping[str, float] | None = None,
) -> History:
    """The run of these methods; their accuracies become rows beside the printed percentages, the first run's curves."""
    runs = draft.run_survivors(folder, *layers, methods=methods)
    for label in methods:
        draft.rows += accuracy_rows(runs, label, where, (printed or {}).get(label))
    draft.curves = draft.curves or curves_of(runs)
    return runs


# ---------------------------------------------------------------- Table I
def table1(request: ReproductionRequest) -> Result:
    """All twelve methods on each data set, practical and pathological."""
    draft = Draft.of(request)
    methods, grounds = draft["compare"], draft.grounds(draft["compare_on"])
    curves: Mapping[str, Curve] = {}
    for name, setting in itertools.product(grounds, ("practical", "pathological")):
        where = f"{name}, {setting}"
        column, layers = _column(TABLE1, where), (grounds[name], draft["settings"][setting])
        runs = compared(draft, f"{name}-{setting}", where, *layers, methods=methods, printed=column)
        published_claims(draft, runs, methods, column, f"on {where}")
        if where == "cifar10, pathological":
            curves = curves_of(runs)
    draft.curves = curves
    draft.claims.append(average_claim(_ends(draft.rows), TABLE1))
    return draft.result()


Ends = Mapping[str, Mapping[str, Sequence[float]]]
"""The global model's last accuracy, by setting, method and seed."""


def _ends(rows: Sequence[Row]) -> Ends:
    settings = dict.fromkeys(r.setting for r in rows)
    metric = f"{ACCURACY['G']} (G)"
    return {at: {r.method: r.seeds for r in rows if (r.setting, r.metric) == (at, metric)} for at in settings}


def average_claim(at_end: Ends, table: Mapping[str, Mapping[str, float]]) -> Claim:
    """The text's "+3 % on average" where labels differ much: over pathological columns and others with one model."""
    apart, printed = list[list[float]](), list[float]()
    for where, ends in at_end.items():
        others = [m for m, kind in PUBLISHED_AS.items() if kind == "G" and m != "feddw"]
        if where.endswith("pathological"):
            apart += [paired(ends["feddw"], ends[m]) for m in others if ends.get(m)]
            printed += [table["feddw"][where] - table[m][where] for m in others if where in table[m]]
    text = "on average over pathological data and other methods with one model feddw ends above them"
    means = [statistics.fmean(of_seed) for of_seed in zip(*apart, strict=True)]
    return decide(text, means, published=share(statistics.fmean(printed) if printed else None))


def decline_claims(at_end: Ends) -> list[Claim]:
    """The claim that FedDW declines least from ten clients to more, against each method; Table II's beside it."""
    columns = {where.partition(":")[0].partition(", ")[2]: ends for where, ends in at_end.items()}
    claims = []
    for column, m in itertools.product(("N=50", "N=100"), columns.get("standard", ())):
        if m != "feddw" and PUBLISHED_AS[m] == "G":
            theirs, ours = (paired(columns["standard"][who], columns[column][who]) for who in (m, "feddw"))
            printed = [TABLE2[who]["standard"] - TABLE2[who][column] for who in (m, "feddw") if column in TABLE2[who]]
            gain = share(printed[0] - printed[1]) if len(printed) == 2 else None
            text = f"from 10 clients to {column} feddw declines less than {m}"
            claims.append(decide(text, paired(theirs, ours), published=gain))
    return claims


# ---------------------------------------------------------------- Table IV
def compatibility(request: ReproductionRequest) -> Result:
    """Methods with and without the class-relation term, pathological."""
    draft = Draft.of(request)
    for name, ground in draft.grounds(draft["compare_on"]).items():
        where = f"{name}, pathological"
        terms = {f"{label}+dw": with_term(ground, label) for label in TABLE4}
        labels = [label for base in TABLE4 for label in (base, f"{base}+dw")]
        layers = (ground, draft["settings"]["pathological"], {"methods": terms})
        runs = draft.run_survivors(name, *layers, methods=labels)
        gains: dict[str, list[float]] = {}
        for base, printed in TABLE4.items():
            paper: Mapping[str, float] = printed if name == "cifar100" else {}
            draft.rows += accuracy_rows(runs, base, where, paper.get("without"))
            draft.rows += accuracy_rows(runs, f"{base}+dw", where, paper.get("with"))
            ours, theirs = ends(runs, f"{base}+dw"), ends(runs, base)
            gain = share(paper["with"] - paper["without"]) if paper else None
            if apart := paired(ours, theirs):
                gains[base] = apart
                draft.add(f"{base}+dw", where, "global.accuracy.minus_base (G)", apart, gain)
            if base == "fedavg":  # with the term it is FedDW, whose gain on other data is in Table I
                gain = share(TABLE1["feddw"][where] - TABLE1["fedavg"][where])
            draft.above(f"+dw helps {base} on {where}", ours, theirs, published=gain)
        if gains:
            bars = [drawing.interval(m, difference(m, dict(enumerate(v))), 100.0) for m, v in gains.items()]
            forest = drawing.forest(bars, "accuracy with the term minus without it, points")
            draft.figures.append((f"{name}.svg", drawing.document(forest, f"What the term adds, {name}").encode()))
        draft.curves = draft.curves or curves_of(runs)
    return draft.result()


# ---------------------------------------------------------------- Table I's first line, with seeds enough
def gain(request: ReproductionRequest) -> Result:
    """FedDW and its variants above FedAvg, with so many seeds that half a point shows."""
    draft = Draft.of(request)
    (name,) = draft["compare_on"]
    ground = merged(draft.ground(name), {"methods": draft["methods"]})
    variants, later = draft["compare"], draft["compare_later"]
    for setting in draft["compare_in"]:
        where, layers = f"{name}, {setting}", (ground, draft["settings"][setting])
        printed = {m: TABLE1[m][where] for m in ("fedavg", "feddw")}
        together = ["fedavg", *variants]
        runs = compared(draft, setting, where, *layers, methods=together, printed=printed)
        at_end = {m: ends(runs, m) for m in together}
        for method in later:
            folder = f"{setting}-{file_name(method)}"
            at_end[method] = ends(compared(draft, folder, where, *layers, methods=[method]), method)
        theirs, difference = at_end["fedavg"], share(printed["feddw"] - printed["fedavg"])
        for method in (*variants, *later):
            ours = at_end[method]
            if apart := paired(ours, theirs):
                draft.add(method, where, "global.accuracy.minus_fedavg (G)", apart, difference)
            draft.above(f"{method} ends above fedavg ({where})", ours, theirs, published=difference)
    return draft.result()


# ---------------------------------------------------------------- Fig. 6
def mu(request: ReproductionRequest) -> Result:
    """Accuracy against the strength of the term."""
    draft = Draft.of(request)
    strengths = draft["strengths"]
    labels = {m: f"feddw mu={m:g}" for m in strengths}
    term = {"methods": {label: {"name": "feddw", "mu": m} for m, label in labels.items()}}
    lines: dict[str, Curve] = {}
    for (name, ground), setting in itertools.product(draft.grounds(draft["compare_on"]).items(), draft["compare_in"]):
        where = f"{name}, {setting}"
        published_for = labels.get(ground["methods"]["feddw"]["mu"])
        chosen = published_for or labels[max(strengths)]
        methods, layers = ["fedavg", *labels.values()], (ground, draft["settings"][setting], term)
        runs = compared(draft, f"{name}-{setting}", where, *layers, methods=methods)
        last = {label: ends(runs, label) for label in methods}
        line = {i: v for i, label in enumerate(labels.values()) if (v := last[label])}
        lines |= {where: percent(line, list(line.values()))} if line else {}
        gain = share(TABLE1["feddw"][where] - TABLE1["fedavg"][where])
        for label in labels.values():
            printed = gain if label == published_for else None
            draft.above(f"{label} ends above fedavg ({where})", last[label], last["fedavg"], published=printed)
        for label in labels.values():
            if label != chosen:
                draft.above(f"{chosen} ends above {label} ({where})", last[chosen], last[label])
    if lines:
        axis = f"weight of the term: {', '.join(f'{m:g}' for m in strengths)}"
        draft.figures.append(("mu.svg", plot("mu", request.scale, lines, (axis, "global test accuracy, %"))))
    return draft.result()


# ---------------------------------------------------------------- Fig. 8, 5 and 4
def consistency(request: ReproductionRequest) -> Result:
    """Distance of class relations from soft labels: FedAvg on even labels, FedAvg and FedDW on uneven ones."""
    draft = Draft.of(request)
    ground, settings = draft.ground("cifar10"), draft["settings"]
    arms = {
        "IID": (settings["even"], ["fedavg"]),
        "non-IID": (settings["pathological"], ["fedavg", "feddw", "feddw mu=10"]),
    }
    last: dict[tuple[str, str], Sequence[float]] = {}
    panels: dict[str, tuple[Path, str]] = {}
    curves = {}
    for setting, (layer, labels) in arms.items():
        runs, where = draft.run_survivors(setting, ground, layer, methods=labels), f"cifar10, {setting}"
        distances = _distances(runs.folder) if runs.rows else {}
        for method in labels:
            last[method, setting] = ()
            if not fate(runs, method):
                by_seed = [distances[method, seed] for seed in merged(ground, layer)["seeds"]]
                last[method, setting] = [by[-1] for by in by_seed]
                panels[f"{method}, {setting}"] = (runs.folder, method)
                draft.add(method, where, "sl_cr_distance.first", [by[0] for by in by_seed])
                draft.add(method, where, "sl_cr_distance.last", last[method, setting])
                by_round = list(zip(*by_seed, strict=True))
                curves[f"{method}, {setting}"] = curve(range(1, len(by_round) + 1), by_round, len(by_seed))
            draft.rows += accuracy_rows(runs, method, where)
    draft.curves = curves
    part = "uneven labels part class relations from soft labels: "
    text = f"{part}fedavg's distance ends greater on non-IID data than on IID data"
    plain, form = last["fedavg", "non-IID"], ("in distance", 1.0, "+.3f")
    draft.above(text, plain, last["fedavg", "IID"], *form)
    for method in ("feddw", "feddw mu=10"):
        text = f"on non-IID data {method}'s distance ends smaller than fedavg's"
        draft.above(text, plain, last[method, "non-IID"], *form)
    for method in ("fedavg", "feddw", "feddw mu=10"):
        text = f"on non-IID data the length of a class's weights grows with its share ({method}, Fig. 4)"
        panel = panels.get(f"{method}, non-IID")
        pairs = [report.correlation(*pair) for pair in class_norms(*panel)] if panel else []
        values = [r for r in pairs if r is not None]
        if values:
            draft.add(method, "cifar10, non-IID", "norm_share_correlation", values)
        draft.claims.append(decide(text, values, "correlation", 1.0))
    first_seed = ground["seeds"][0]
    draft.figures += consistency_figures(request, ground["task"], panels, first_seed) if panels else []
    return draft.result()


def _distances(folder: Path) -> dict[tuple[str, int], list[float]]:
    """||SL - CR|| after each round, by method and seed."""
    record, distances = reader.read(folder), dict[tuple[str, int], list[float]]()
    for method in record.methods:
        for seed, _, info in reader.info_of(record, method, ClassRelations):
            distances.setdefault((method, seed), []).append(info.distance if info.distance is not None else math.nan)
    return distances


SHOWN = 600
"""Test images in a map of features."""


def consistency_figures(
    request: ReproductionRequest, task: Mapping[str, Any], panels: Mapping[str, tuple[Path, str]], seed: int
) -> list[tuple[str, bytes]]:
    """SL and CR of a method's first, middle and last round for each of `panels`, features on one map, and class norms.

    Args:
        request, task: The reproduction and its task.
        panels: Title of a panel -> the run's folder and its method.
        seed: Seed whose models and matrices are drawn.
    """
    data = sources.load(task["data"], request.data_dir)
    planes, charts = {}, {}
    for title, (folder, method) in panels.items():
        infos = {at: info for s, at, info in reader.info_of(reader.read(folder), method, ClassRelations) if s == seed}
        name = "relations-" + re.sub(r"\W+", "-", title.lower())
        charts[name] = report.relations_chart(f"{title}, seed {seed}", report.first_middle_last(infos))
        features, weight = _features(task, data, folder / "models" / f"{method}-seed{seed}.safetensors")
        planes[title] = plane(features, data.y_test[:SHOWN].numpy(), weight, Key(seed) / "features")
    charts["features"] = features_chart(planes)
    uneven = {title: of for title, of in panels.items() if title.endswith("non-IID")}
    if uneven:
        norms = {title: class_norms(*of) for title, of in uneven.items()}
        charts["norms"] = report.norms_chart(norms, "last round’s training examples")
    return [(f"{name}.svg", drawing.file(chart)) for name, chart in charts.items()]


def class_norms(folder: Path, method: str) -> list[report.Shared]:
    """Return by seed the share of each class in the last cohort's training data, and the length of its weights then."""
    last = {seed: info for seed, _, info in reader.info_of(reader.read(folder), method, ClassRelations)}
    counts = {seed: info.counts or () for seed, info in last.items()}
    return [([n / sum(counts[s]) for n in counts[s]], info.class_norms or ()) for s, info in last.items()]


def _features(task: Mapping[str, Any], data: Dataset, file: Path) -> tuple[report.Floats, report.Floats]:
    """The last layer's input for test images, (images, d), and its weight, (classes, d), in a stored model."""
    with Key(0).ambient():
        network = models.build(task["model"], data.input_shape, data.num_classes, **task.get("model_options", {}))
    network.load_state_dict(safetensors.torch.load(file.read_bytes()))
    network.eval()
    body, head = network.body, network.head
    assert isinstance(body, nn.Module)
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        return body(data.x_test[:SHOWN]).double().numpy(), head.weight.detach().double().numpy()


def plane(
    features: report.Floats, labels: npt.NDArray[np.int64], weights: report.Floats, key: Key
) -> list[dict[str, Any]]:
    """Features and class weights laid out together by t-SNE, as rows of `features_chart`.

    Distances are those of directions (cosine): features and weights differ much in length, and a linear layer without
    bias looks at their angle.

    Args:
        features: Input of the last layer, (examples, dimensions); at least three examples.
        labels: Classes of the examples, (examples,).
        weights: Weight of the last layer, (classes, dimensions).
        key: Randomness of t-SNE.

    Returns:
        Rows of x, y, class and weight: true of a class's weight, which come last, in order.

    Raises:
        ValueError: If the shapes do not fit, or a number is not finite, as in a model that diverged.
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
    """Features in the plane, coloured by class, and each class's weight as its number (Fig. 5), a panel for each."""
    points = [{"panel": title, **row} for title, rows in planes.items() for row in rows]
    classes = list(dict.fromkeys(row["class"] for row in points if row["weight"]))
    base = alt.Chart(drawing.rows(points)).encode(
        x=drawing.bare("x"), y=drawing.bare("y"), color=drawing.by_name(drawing.colours(classes), "class")
    )
    marks = base.transform_filter("!datum.weight").mark_point(filled=True, size=14, opacity=0.6)
    bold: dict[str, Any] = {"fontSize": 16, "fontWeight": "bold", "stroke": drawing.PAGE, "strokeWidth": 0.4}
    numbers = base.transform_filter("datum.weight").mark_text(**bold).encode(text="class:N")
    drawn = drawing.faceted(alt.layer(marks, numbers), list(planes), 3, height=240)
    title = "Features with the weights of the classes"
    caption = "A mark is a test example where t-SNE puts it, a number the weight of that class."
    return Chart(title, caption, drawn, f"{title}: {', '.join(planes)}.", wide=len(planes) > 1)


# ---------------------------------------------------------------- the term's gradient
def gradient(request: ReproductionRequest) -> Result:
    """The term's gradient over cross-entropy's, by layer, while clients train in several rounds."""
    draft = Draft.of(request)
    ground = merged(draft.ground("cifar10"), draft["settings"]["pathological"])
    strengths, bound = draft["strengths"], draft["bound"]
    labels = {f"feddw mu={m:g}": m for m in strengths}
    methods = {"methods": {label: {"name": "feddw", "mu": m} for label, m in labels.items()}}
    data = sources.load(ground["task"]["data"], request.data_dir)
    measured: dict[str, dict[int, list[Mapping[str, Ratio]]]] = {label: {} for label in labels}
    for done in draft["rounds_before"]:
        folder = f"after-{done}"
        draft.run(folder, ground, methods, {"rounds": done, "eval_every": done}, methods=list(labels))
        for label in labels:
            measured[label][done + 1] = [
                _gradients_of(request.folder / folder, label, labels[label], seed, data, ground["local"])
                for seed in ground["seeds"]
            ]
            request.callback.note(f"{label}, round {done + 1}: measured")
    for label, rounds in measured.items():
        for at, seeds in rounds.items():
            where = f"round {at}"
            for kind in Ratio._fields:
                values = [getattr(layers[CLASSIFIER], kind) for layers in seeds]
                draft.add(label, where, f"gradient_ratio.classifier.{kind}", values)
            values = [max(r.step for name, r in layers.items() if name != CLASSIFIER) for layers in seeds]
            draft.add(label, where, "gradient_ratio.other_layers.largest", values)
    draft.claims += _gradient_claims(measured, bound)
    draft.curves = {
        f"{label}, {RATIO_WORDS[kind]}": curve(
            rounds,
            [[math.log10(getattr(layers[CLASSIFIER], kind)) for layers in seeds] for seeds in rounds.values()],
            len(next(iter(rounds.values()))),
        )
        for label, rounds in measured.items()
        for kind in Ratio._fields
    }
    return draft.result()


CLASSIFIER = "head.weight"


class Ratio(NamedTuple):
    """Norm of the term's gradient over that of cross-entropy's: the mean over steps, and of the sums over all steps."""

    step: float
    sum: float


RATIO_WORDS = {"step": "step by step", "sum": "summed over a round's steps"}


def _gradient_claims(measured: Mapping[str, Mapping[int, Sequence[Mapping[str, Ratio]]]], bound: float) -> list[Claim]:
    """Claims that the term stays below the bound in the classifier at the first strength, and is above it after."""
    claims = []
    for i, (label, rounds) in enumerate(measured.items()):
        by_seed = list(zip(*rounds.values(), strict=True))
        for kind, words in RATIO_WORDS.items():
            ratios = [[getattr(layers[CLASSIFIER], kind) for layers in seed] for seed in by_seed]
            # A ratio spreads by factors: the interval is that of the logarithms.
            beyond = [math.log10(max(*r, math.ulp(0.0)) / bound) for r in ratios]
            differences = beyond if i else [-d for d in beyond]
            side = "reaches more than" if i else "stays below"
            text = f"{label}: in the classifier its gradient {side} {100 * bound:g} % of cross-entropy's, {words}"
            claim = decide(text, differences, "decades from it", 1.0)
            most = ", ".join(f"{100 * max(r):.3g}" for r in ratios)
            claims.append(replace(claim, evidence=f"at most {most} % by seed: {claim.evidence}"))
    return claims


def _gradients_of(
    folder: Path, label: str, strength: float, seed: int, data: Dataset, local: Mapping[str, Any]
) -> Mapping[str, Ratio]:
    """Ratios by parameter, the mean over clients, from the model and the soft labels that a run ended with."""
    infos = {at: info for s, at, info in reader.info_of(reader.read(folder), label, ClassRelations) if s == seed}
    soft_labels = torch.tensor(infos[max(infos)].sl)
    ratios = []
    for i, rows in enumerate(reader.part_of(folder, "train", seed)[1]):
        network = load_model(folder, label, seed=seed)
        key = Key(seed) / "gradient" / i
        x, y = data.x_train[rows], data.y_train[rows]
        ratios.append(gradient_ratios(network, x, y, ClassRelation(strength, CLASSIFIER), soft_labels, local, key))
    return {
        name: Ratio(*(statistics.fmean(v) for v in zip(*(r[name] for r in ratios), strict=True))) for name in ratios[0]
    }


def gradient_ratios(
    network: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    term: ClassRelation,
    soft_labels: torch.Tensor,
    local: Mapping[str, Any],
    key: Key,
) -> dict[str, Ratio]:
    """The term's gradient over cross-entropy's, by parameter, while the network trains as a client of FedDW does.

    Args:
        network: Trained in place by Adam on the sum of both; its classifier's bias is left alone.
        x, y: Inputs and labels of one client.
        term, soft_labels: The term, and SL, (classes, classes).
        local: Its `lr`, `local_epochs` and `batch_size`.
        key: Key of the order of examples and of dropout.
    """
    named: Params = {name: p for name, p in network.named_parameters() if name != CLASSIFIER.replace("weight", "bias")}
    optimizer = torch.optim.Adam(named.values(), lr=local["lr"])
    steps: dict[str, list[float]] = {name: [] for name in named}
    sums = {name: [torch.zeros_like(p), torch.zeros_like(p)] for name, p in named.items()}
    network.train()
    with key.ambient():
        for _ in range(local["local_epochs"]):
            for rows in torch.split(torch.randperm(len(y)), local["batch_size"]):
                parameters = list(named.values())
                plain = torch.autograd.grad(cross_entropy(network(x[rows]), y[rows]), parameters)
                pull = torch.autograd.grad(
                    term(named, {"soft_labels": soft_labels}), parameters, materialize_grads=True
                )
                for (name, p), g, added in zip(named.items(), plain, pull, strict=True):
                    p.grad = g + added
                    steps[name].append(_over(added, g))
                    sums[name][0] += added
                    sums[name][1] += g
                optimizer.step()
    return {name: Ratio(statistics.fmean(steps[name]), _over(*sums[name])) for name in named}


def _over(term: torch.Tensor, plain: torch.Tensor) -> float:
    return float(term.norm() / plain.norm().clamp(min=torch.finfo(plain.dtype).tiny))


# ---------------------------------------------------------------- Table II
def scale(request: ReproductionRequest) -> Result:
    """More clients, and the same work in fewer or more rounds; at `paper` scale also other networks."""
    draft = Draft.of(request)
    methods, grounds = draft["compare"], draft.grounds(column["ground"] for column in draft["columns"].values())
    columns = {name: column for name, column in draft["columns"].items() if column["ground"] in grounds}
    for column, layer in columns.items():
        own = {key: value for key, value in layer.items() if key != "ground"}
        settings = merged(grounds[layer["ground"]], draft["settings"]["practical"], own)
        name = column.replace(" ", "-")
        where = _where(draft["grounds"][layer["ground"]]["task"]["data"], column, settings)
        printed = _column(TABLE2, column)
        runs = compared(draft, name, where, settings, methods=methods, printed=printed)
        published_claims(draft, runs, methods, printed, f"({column})")
    draft.claims += decline_claims(_ends(draft.rows))
    draft.curves = {}
    return draft.result()


def _where(data: str, column: str, settings: Mapping[str, Any]) -> str:
    clients, epochs = settings["split"]["num_clients"], settings["local"]["local_epochs"]
    return f"{data}, {column}: {clients} clients, {settings['rounds']} rounds of {epochs}, {settings['task']['model']}"


# ---------------------------------------------------------------- Table III
def overhead(request: ReproductionRequest) -> Result:
    """A client's local epoch under each method over one under FedAvg, in CPU time, as `unskew bench feddw` does it."""
    draft = Draft.of(request)
    measured = measure(draft["turns"], say=request.callback.note)
    by = {(r["case"], r["contender"]): r for r in measured}
    ms = {method: cells["ms"] for method, cells in TABLE3.items()}
    for case in dict.fromkeys(r["case"] for r in measured):
        paper = {m: t / ms["fedavg"] for m, t in ms.items()} if case.startswith("resnet18") else {}
        dw, again, soft = (by[case, who] for who in ("feddw", "fedavg again", "soft labels"))
        draft.rows += [
            over_seeds(method, case, "cpu_time.ratio", [by[case, method]["ratio"]], paper.get(method))
            for method in ms
            if method != "fedavg" and (case, method) in by
        ]
        draft.rows += [
            over_seeds("fedavg again", case, "cpu_time.ratio", [again["ratio"]]),
            over_seeds("soft-label pass alone", case, "cpu_time.ratio", [soft["ratio"]]),
        ]
        if "bar" in dw:
            draft.claims.append(_overhead_claim(case, dw, again))
    return draft.result()


def _overhead_claim(case: str, dw: Mapping[str, Any], again: Mapping[str, Any]) -> Claim:
    return Claim(
        f"an epoch of FedDW takes at most {dw['bar']:.2f} times FedAvg's ({case})",
        dw["met"],
        f"median {dw['ratio']:.3f}, middle half [{dw['low']:.3f}, {dw['high']:.3f}], of minima "
        f"{dw['ratio_of_minima']:.3f}, {dw['turns']} turns; FedAvg again {again['ratio']:.3f} "
        f"[{again['low']:.3f}, {again['high']:.3f}]",
    )
