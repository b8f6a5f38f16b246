"""FedDW's published numbers, and ours beside them.

What the paper's released code did differently is on the method's page.  Its tables put two accuracies into
one column, which are told apart here:

    G    global.accuracy: the server's model on the global test set
    P    personal.accuracy.mean: each client's own model on its own test data, the mean over clients
    PG   personal_on_global.accuracy.mean: each client's own model on the global test set, the mean over clients

Published are G for methods with one global model and PG for the others; P stands in none of its tables.
"""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.torch
import torch
from torch import nn

from unskew import models
from unskew.api import History
from unskew.bench.feddw import measure
from unskew.data import sources
from unskew.data.dataset import Dataset
from unskew.experiment import config
from unskew.info import ClassRelations
from unskew.keys import Key
from unskew.papers.result import (
    Claim,
    Curve,
    Ended,
    Request,
    Result,
    Row,
    clock,
    curves_of,
    decide,
    ended,
    final,
    over_seeds,
)
from unskew.record import reader
from unskew.report import svg_file
from unskew.report.sections import class_relations as report

Kind = Literal["G", "P", "PG"]
ACCURACY: dict[Kind, str] = {
    "G": "global.accuracy",
    "P": "personal.accuracy.mean",
    "PG": "personal_on_global.accuracy.mean",
}

# ---------------------------------------------------------------- published
COLUMNS = tuple(itertools.product(("practical", "pathological"), ("mnist", "cifar10", "cifar100", "imdb")))

TABLE1: dict[str, tuple[float | None, ...]] = {
    "fedavg": (99.31, 63.44, 62.16, 83.33, 95.05, 48.36, 43.47, 71.09),
    "moon": (99.42, 64.33, 63.35, 81.14, 96.11, 54.01, 49.04, 80.28),
    "fedbabu": (99.51, 65.59, 63.49, 82.41, 96.78, 53.06, 50.12, 81.08),
    "feduv": (99.52, 65.05, 63.35, 68.22, 96.65, 54.97, 44.09, 55.12),
    "fedprox": (99.39, 64.74, 62.81, 73.12, 95.12, 51.39, 46.07, 66.84),
    "fedrep": (96.88, 52.42, 39.03, 74.64, 67.23, 28.05, 23.46, 54.13),
    "fedproto": (97.11, 45.52, 23.15, 70.69, 49.83, 27.64, 16.48, 53.85),
    "fedala": (99.02, 48.39, 41.97, 74.14, 79.16, 32.58, 28.16, 61.46),
    "perfedavg": (99.12, 64.23, 62.22, 79.76, 96.21, None, None, 63.45),
    "fedper": (96.55, 48.78, 36.87, 50.87, 64.89, 30.38, 22.82, 53.08),
    "local": (95.35, 42.38, 22.83, 63.18, 55.76, 25.75, 15.54, 51.11),
    "feddw": (99.52, 66.24, 63.53, 84.46, 96.66, 57.73, 50.21, 82.81),
}
"""Accuracy in percent, a column for each of COLUMNS; None where the paper's run crashed."""

PUBLISHED_AS: dict[str, Kind] = {
    method: "PG" if method in ("fedrep", "fedproto", "fedala", "fedper", "local") else "G" for method in TABLE1
}
"""What the paper's accuracy of a method is."""

TABLE2_COLUMNS = (
    "standard",
    "N=50",
    "N=100",
    "half the rounds",
    "more rounds",
    "resnet18",
    "shufflenet",
    "mobilenet_v2",
)  # fmt: skip
"""Ten clients, 50 rounds of 5 epochs; 50 and 100 clients; 25 of 10 and 125 of 2; three networks on CIFAR-100."""

TABLE2: dict[str, tuple[float | None, ...]] = {
    "fedavg": (63.4, 56.07, 51.41, 65.72, 66.09, 62.16, 50.41, 52.77),
    "moon": (64.33, 53.59, 49.59, 65.84, 65.76, 63.35, 50.87, 52.98),
    "fedbabu": (65.59, 56.12, 50.55, 66.89, 66.33, 63.49, 52.08, 53.05),
    "feduv": (65.05, 56.81, None, 66.81, 67.01, 63.35, 51.97, 53.13),
    "fedprox": (64.74, 55.87, 51.19, 65.84, 66.19, 62.81, 50.34, 50.52),
    "fedrep": (52.42, 38.66, 34.68, 45.84, 45.19, 39.03, 29.17, 41.66),
    "fedproto": (45.52, 37.15, 34.57, 44.52, 45.04, 23.15, 28.34, 30.43),
    "fedala": (48.39, 39.71, 35.87, 46.55, 47.54, 41.97, 34.17, 32.64),
    "perfedavg": (64.23, 55.23, 51.10, 63.55, 64.53, 62.22, 48.44, 49.11),
    "fedper": (48.78, 40.84, 36.78, 46.68, 47.74, 36.87, 35.22, 35.89),
    "local": (42.38, 28.13, 28.13, 40.68, 41.02, 22.83, 25.71, 27.94),
    "feddw": (66.24, 57.6, 51.73, 67.06, 67.21, 63.53, 51.92, 53.71),
}

TABLE3 = {
    "fedavg": 16.05,
    "moon": 18.93,
    "fedbabu": 15.67,
    "feduv": 17.18,
    "perfedavg": 19.17,
    "fedprox": 17.32,
    "feddw": 16.11,
}
"""Milliseconds of a client, ResNet-18 on CIFAR-100 on an RTX 4060; said to be of an epoch, in size of a batch."""

TABLE4: dict[str, tuple[float, float]] = {
    "fedavg": (43.47, 50.21),
    "feddistill_plus": (43.96, 47.26),
    "moon": (49.04, 52.81),
    "feduv": (44.09, 44.09),
    "fedprox": (46.07, 48.39),
}
"""CIFAR-100, pathological: accuracy in percent without and with the class-relation term."""


# ---------------------------------------------------------------- what is run
@dataclass(frozen=True)
class Setting:
    """How labels are divided (Dirichlet's alpha by class), and which share of the clients trains in a round."""

    alpha: float
    fraction: float


SETTINGS = {"practical": Setting(0.5, 1.0), "pathological": Setting(0.1, 0.5)}

CLIENTS = 10
MIN_SAMPLES = 10  # the released code lets clients be empty, and trains them on a borrowed example


@dataclass(frozen=True)
class Ground:
    """A data set, the network on it, and how long it is trained.

    Attributes:
        data, model, options: What is learned, by which network.
        rounds, epochs: Of communication, and of each client in each of them.
        batch, lr: Adam's.
        outer: beta of Per-FedAvg, which is plain SGD.
        mu: FedDW's.
        eval_every: Rounds between evaluations.
        train, test: How many images are drawn, once; None takes all, and of texts all are taken.
        augment: Of training images.
    """

    data: str
    model: str
    rounds: int
    epochs: int
    batch: int
    lr: float
    outer: float
    eval_every: int
    mu: float = 0.1
    options: Mapping[str, Any] = field(default_factory=dict)
    train: int | None = None
    test: int | None = None
    augment: str = "none"


_NECK = {"neck": [256, 128], "conv_bias": True}
_PUBLISHED: dict[str, Any] = {"epochs": 5, "lr": 1e-3, "outer": 1e-3, "eval_every": 1}
_SMALL: dict[str, Any] = {"batch": 32, "lr": 1e-3, "outer": 0.05, "train": 10_000, "test": 2_000}

GROUNDS: dict[str, dict[str, Ground]] = {
    # Steps are what the small sizes lack: batches of 32 give four times as many as the paper's 128.  On reviews the
    # paper's rate of 0.001 is too low for five rounds.  It was chosen on training reviews alone, a fifth of each
    # client's, left out of training: FedAvg, alpha 0.5, seed 100, which no reproduction has, ends at 52.5 %
    # of 1,000 with 0.001, 64.7 % with 0.005 and 50.0 % with 0.01.
    "small": {
        "mnist": Ground("mnist", "cnn_mnist", rounds=10, epochs=2, eval_every=5, **_SMALL),
        "cifar10": Ground("cifar10", "cnn_cifar10", rounds=10, epochs=2, eval_every=5, **_SMALL),
        "cifar100": Ground("cifar100", "cnn_cifar10", rounds=10, epochs=2, eval_every=5, mu=10.0, **_SMALL),
        "imdb": Ground(
            "imdb", "bilstm", rounds=5, epochs=1, batch=16, lr=5e-3, outer=0.05, eval_every=5, options={"length": 100}
        ),
    },
    "paper": {
        "mnist": Ground("mnist", "cnn_mnist", rounds=50, batch=128, **_PUBLISHED),
        "cifar10": Ground("cifar10", "cnn_cifar10", rounds=50, batch=128, augment="crop+flip", **_PUBLISHED),
        **{
            name: Ground(
                "cifar100", model, rounds=50, batch=128, mu=10.0, options=options, augment="crop+flip", **_PUBLISHED
            )
            for name, model, options in (
                ("cifar100", "resnet18", _NECK),
                ("shufflenet", "shufflenet", {}),
                ("mobilenet_v2", "mobilenet_v2", {}),
            )
        },
        "imdb": Ground("imdb", "bilstm", rounds=10, batch=512, **_PUBLISHED),
    },
}
FIVE = (0, 1, 2, 3, 4)


def _methods(ground: Ground, labels: Sequence[str]) -> list[dict[str, Any]]:
    """The methods with the constants of the paper's tables: FedALA without a start phase, FedRep's head for one epoch.

    That epoch is one of the ground's, unless it has no other for the body.
    """
    known: dict[str, dict[str, Any]] = {
        "fedavg": {},
        "moon": {"mu": 5.0, "temperature": 0.5},
        "fedbabu": {"weighting": "samples"},
        "feduv": {"lambda_v": 2.5, "lambda_u": 0.5},
        "fedprox": {"mu": 0.01},
        "fedrep": {"head_epochs": 1, "weighting": "samples", "local": {"local_epochs": max(1, ground.epochs - 1)}},
        "fedproto": {"lam": 1.0},
        "fedala": {"start_epochs": 1},
        "perfedavg": {
            "alpha": 0.01,
            "weighting": "samples",
            "local": {"optimizer": "sgd", "lr": ground.outer},
        },
        "fedper": {},
        "local": {"name": "independent"},
        "feddw": {"mu": ground.mu},
        "feddistill_plus": {},
    }
    return [{"name": label, **known[label], "label": label} for label in labels]


def _with_term(method: Mapping[str, Any], mu: float) -> dict[str, Any]:
    return {**method, "name": f"{method['name']}+dw", "label": f"{method['label']}+dw", "dw": {"mu": mu}}


def _task(request: Request, ground: Ground) -> dict[str, Any]:
    """The network, and the examples: those drawn, once, as a file of their own, or all of them where they lie."""
    made = {"model": ground.model, "model_options": dict(ground.options), "augment": ground.augment}
    if ground.train is None and ground.test is None:
        folder = {} if request.data_dir is None else {"data_dir": str(Path(request.data_dir).resolve())}
        return {**made, "data": ground.data, **folder}
    data = sources.load(ground.data, request.data_dir)
    file: Path = request.folder / "data" / f"{ground.data}.npz"
    file.parent.mkdir(parents=True, exist_ok=True)
    key = Key(0) / "feddw" / ground.data
    train = torch.randperm(len(data.y_train), generator=(key / "train").generator())[: ground.train]
    test = torch.randperm(len(data.y_test), generator=(key / "test").generator())[: ground.test]
    np.savez(
        file,
        x_train=data.x_train[train].numpy(),
        y_train=data.y_train[train].numpy(),
        x_test=data.x_test[test].numpy(),
        y_test=data.y_test[test].numpy(),
    )
    return {**made, "data": f"npz:{file.resolve()}"}


def _experiment(
    name: str,
    ground: Ground,
    task: Mapping[str, Any],
    setting: Setting | None,
    methods: Sequence[Mapping[str, Any]],
    seeds: Sequence[int],
    evaluate: Sequence[str] = ("global",),
    clients: int = CLIENTS,
) -> config.Experiment:
    """Methods on a ground; without a setting the labels are divided evenly and all clients train in every round."""
    split = {"name": "iid"} if setting is None else {"name": "dirichlet", "alpha": setting.alpha}
    raw: dict[str, Any] = {
        "name": name,
        "rounds": ground.rounds,
        "seeds": list(seeds),
        "eval_every": ground.eval_every,
        "evaluate": list(evaluate),
        "test_fraction": 0.1 if "personal" in evaluate else 0.0,
        "task": dict(task),
        "split": {**split, "num_clients": clients, "min_samples": MIN_SAMPLES},
        "fraction": 1.0 if setting is None else setting.fraction,
        "local": {"lr": ground.lr, "optimizer": "adam", "local_epochs": ground.epochs, "batch_size": ground.batch},
        "methods": [dict(m) for m in methods],
    }
    return config.parse(raw, name)


# ---------------------------------------------------------------- numbers of a run
def _share(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


Ends = Sequence[float] | str
"""A number after the last round, by seed, or that the method diverged, and when."""


def _ends(found: Ended, method: str, kind: Kind = "G") -> Ends:
    """An accuracy that the method has."""
    if method in found.diverged:
        return f"{method} {found.diverged[method]}"
    values = final(found.history, method, ACCURACY[kind])
    assert values is not None
    return values


def _over(text: str, ours: Ends, theirs: Ends, *form: Any) -> Claim:
    """The claim that one is above the other, undecided if one of them diverged."""
    apart = _minus(ours, theirs)
    return Claim(text, None, apart) if isinstance(apart, str) else decide(text, apart, *form)


def _bests(found: History, method: str, kind: Kind) -> tuple[float, ...]:
    """The highest of a run's accuracies on the test set, by seed; optimistic, for it is chosen on that set."""
    best: dict[int, float] = {}
    for r in found.rows:
        if (r["method"], r["name"]) == (method, ACCURACY[kind]) and "client" not in r:
            best[r["seed"]] = max(r["value"], best.get(r["seed"], 0.0))
    return tuple(best.values())


def _row(method: str, where: str, metric: str, values: Ends, paper: float | None = None) -> Row:
    """The values, or in their place that there are none."""
    if isinstance(values, str):
        return Row(method, where, metric, paper, None, None, "seeds", (), values.removeprefix(f"{method} "))
    return over_seeds(method, where, metric, values, paper)


def _accuracy_rows(found: Ended, method: str, where: str, paper: float | None) -> list[Row]:
    """A row for every kind of accuracy that the method has; the published number is beside the kind it is of.

    A method that diverged has one row, without a value.
    """
    published = PUBLISHED_AS.get(method, "G")
    if method in found.diverged:
        return [_row(method, where, f"{ACCURACY[published]} ({published})", _ends(found, method), _share(paper))]
    rows = []
    for kind, name in ACCURACY.items():
        values = final(found.history, method, name)
        if values is not None:
            rows.append(
                over_seeds(method, where, f"{name} ({kind})", values, _share(paper) if kind == published else None)
            )
    best = _bests(found.history, method, published)
    return [*rows, over_seeds(method, where, f"{ACCURACY[published]}.best ({published})", best)]


def _minus(these: Ends, those: Ends) -> list[float] | str:
    """Paired differences, seed by seed; why there are none if one of the two diverged."""
    if isinstance(these, str) or isinstance(those, str):
        return these if isinstance(these, str) else str(those)
    return [a - b for a, b in zip(these, those, strict=True)]


def _curve(name: str, x: Sequence[float], by_seed: Sequence[Sequence[float]]) -> Curve:
    table = np.asarray(by_seed)
    mean, low, high = (tuple(f(table, axis=0).tolist()) for f in (np.mean, np.min, np.max))
    return Curve(name, tuple(map(float, x)), mean, low, high)


# ---------------------------------------------------------------- Table I
TABLE1_PLANS: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    # Two seeds have one degree of freedom: an interval nine standard deviations wide to each side, and no verdict.
    "small": (("mnist", "cifar10", "imdb"), (0, 1, 2)),
    "paper": (("mnist", "cifar10", "cifar100", "imdb"), FIVE),
}
"""Grounds and seeds."""


def table1(request: Request) -> Result:
    """All twelve methods on each data set, practical and pathological."""
    names, seeds = TABLE1_PLANS[request.scale]
    grounds = {name: GROUNDS[request.scale][name] for name in names}
    rows: list[Row] = []
    claims: list[Claim] = []
    curves: tuple[Curve, ...] = ()
    seconds = 0.0
    for name, ground in grounds.items():
        task = _task(request, ground)
        methods = _methods(ground, tuple(TABLE1))
        for setting, how in SETTINGS.items():
            evaluate = ("global", "personal", "personal_on_global")
            experiment = _experiment(f"feddw-table1-{name}-{setting}", ground, task, how, methods, seeds, evaluate)
            found = ended(experiment, request.folder / f"{name}-{setting}", request.callback)
            seconds += found.history.summary["seconds"]
            at, where = COLUMNS.index((setting, name)), f"{name}, {setting}"
            for method, published in TABLE1.items():
                rows += _accuracy_rows(found, method, where, published[at])
            claims += _table1_claims(found, at, where)
            if (name, setting) == ("cifar10", "pathological"):
                curves = curves_of(found.history)
    sizes = "; ".join(
        f"{name}: {g.train or 'all'} examples, {g.model}, {g.rounds} rounds of {g.epochs} epochs, batch {g.batch}, "
        f"Adam {g.lr:g}"
        for name, g in grounds.items()
    )
    return Result(
        name=request.name,
        scale=request.scale,
        seconds=seconds,
        rows=tuple(rows),
        claims=tuple(claims),
        about=f"{CLIENTS} clients; practical: Dirichlet 0.5 by class, all take part; pathological: Dirichlet 0.1, half "
        f"of them in a round. {sizes}. G is the global model on the global test set, PG the clients' own models on it "
        "(their mean), P the clients' own models on their own test data, a tenth of what they hold. The paper prints G "
        "for methods with one model and PG for FedRep, FedProto, FedALA, FedPer and Local, in one column; its number "
        "is beside the kind it is of. Own models are what these methods' authors use: FedALA's mixture before it is "
        "trained, in FedPer and FedRep the common body under the client's head; the paper's code takes for FedALA and "
        "FedPer what local training has just left. FedALA has no start phase, FedRep an epoch for the "
        "head out of a round's (where a round has only one, beside it). FedBABU's G is before fine-tuning, its P and "
        "PG after. Local "
        "trains all clients in every round, also where half of the others rest. Per-FedAvg is plain SGD, "
        + ", ".join(f"{g.outer:g} on {name}" for name, g in grounds.items())
        + " (the paper: 0.001). Numbers are the last round's; `.best` is the best evaluation of a run, chosen on the "
        "test set; the paper does not say which it prints. Claims are those of the paper's table where FedDW's "
        "published mean is the higher. "
        + (
            "At this size there are three seeds where two were planned: two decide nothing, their interval is nine "
            "standard deviations wide to each side. To make room there are no more rounds than the fewest planned, and "
            "one evaluation between the first round and the last, on reviews none: to test every client's own model "
            "costs as much as some methods' training in a round or two. The learning rate on reviews is FedAvg's best "
            "of 0.001, 0.005 and 0.01 by held-out training reviews under another seed. "
            if request.scale == "small"
            else ""
        )
        + "The figure has G on CIFAR-10, pathological.",
        curves=curves,
        seeds=seeds,
    )


def _table1_claims(found: Ended, at: int, where: str) -> list[Claim]:
    """Those baselines that FedDW is published above, against its own G, which is its PG as well."""
    ours = TABLE1["feddw"][at]
    assert ours is not None
    claims = []
    for method, published in TABLE1.items():
        theirs, kind = published[at], PUBLISHED_AS[method]
        if theirs is not None and ours > theirs:
            text = f"feddw (G) ends above {method} ({kind}) on {where}"
            claims.append(_over(text, _ends(found, "feddw"), _ends(found, method, kind)))
    return claims


# ---------------------------------------------------------------- Table IV
COMPATIBILITY_PLANS: dict[str, tuple[tuple[str, tuple[int, ...], int], ...]] = {
    "small": (("cifar10", FIVE, 10), ("cifar100", (0, 1), 10)),
    "paper": (("cifar100", FIVE, 50),),
}
"""Ground, seeds and rounds."""


def compatibility(request: Request) -> Result:
    """Methods with and without the class-relation term, pathological."""
    rows: list[Row] = []
    claims: list[Claim] = []
    curves: tuple[Curve, ...] = ()
    helps: list[tuple[str, bytes]] = []
    seconds = 0.0
    plans = COMPATIBILITY_PLANS[request.scale]
    for name, seeds, rounds in plans:
        ground = replace(GROUNDS[request.scale][name], rounds=rounds)
        methods = [
            each for base in _methods(ground, tuple(TABLE4)) for each in (base, _with_term(base, ground.mu))
        ]  # fmt: skip
        where = f"{name}, pathological"
        experiment = _experiment(
            f"feddw-compatibility-{name}", ground, _task(request, ground), SETTINGS["pathological"], methods, seeds
        )
        found = ended(experiment, request.folder / name, request.callback)
        seconds += found.history.summary["seconds"]
        gained: dict[str, list[float]] = {}
        for base, (without, mixed) in TABLE4.items():
            comparable = name == "cifar100"
            rows += _accuracy_rows(found, base, where, without if comparable else None)
            rows += _accuracy_rows(found, f"{base}+dw", where, mixed if comparable else None)
            apart = _minus(_ends(found, f"{base}+dw"), _ends(found, base))
            if not isinstance(apart, str):
                gained[base] = apart
            published = _share(mixed - without) if comparable else None
            rows.append(_row(f"{base}+dw", where, "global.accuracy.minus_base (G)", apart, published))
            claims.append(_over(f"+dw helps {base} on {where}", _ends(found, f"{base}+dw"), _ends(found, base)))
        if gained:
            helps.append((f"{name}.svg", svg_file.document(report.help_chart(name, gained)).encode()))
        if not curves:
            curves = curves_of(found.history)
    return Result(
        name=request.name,
        scale=request.scale,
        seconds=seconds,
        rows=tuple(rows),
        claims=tuple(claims),
        about=f"{CLIENTS} clients, Dirichlet 0.1 by class, half of them in a round; "
        + "; ".join(f"{n}: {r} rounds, {len(s)} seeds, mu {GROUNDS[request.scale][n].mu:g}" for n, s, r in plans)
        + ". All numbers are G. With the term the classifier's bias is held at zero, without it it is trained: the "
        "difference is that of the whole method. FedDistill+ has the divergence as it is meant; the paper's was "
        'computed from probabilities in place of their logarithms (`compat = "feddw"`). Published is CIFAR-100 by '
        f"ResNet-18; its FedUV gains nothing from the term. Figures: accuracy by round on {plans[0][0]}, and what the "
        "term adds on each data set.",
        curves=curves,
        seeds=tuple(sorted({s for _, seeds, _ in plans for s in seeds})),
        figures=tuple(helps),
    )


# ---------------------------------------------------------------- Fig. 6
MU_PLANS: dict[str, tuple[tuple[float, ...], tuple[int, ...], int]] = {
    "small": ((0.0, 0.01, 0.1, 1.0, 10.0, 100.0), (0, 1, 2), 10),
    "paper": ((0.0, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0), FIVE, 50),
}
"""Strengths, seeds and rounds, on CIFAR-10."""


def mu(request: Request) -> Result:
    """Accuracy against the strength of the term."""
    strengths, seeds, rounds = MU_PLANS[request.scale]
    ground = replace(GROUNDS[request.scale]["cifar10"], rounds=rounds)
    task = _task(request, ground)
    methods = _methods(ground, ("fedavg",))
    methods += [{"name": "feddw", "label": f"feddw mu={m:g}", "mu": m} for m in strengths]
    chosen = f"feddw mu={ground.mu:g}"
    rows: list[Row] = []
    claims: list[Claim] = []
    curves: tuple[Curve, ...] = ()
    lines: dict[str, Mapping[float, Sequence[float]]] = {}
    seconds = 0.0
    for setting, how in SETTINGS.items():
        experiment = _experiment(f"feddw-mu-{setting}", ground, task, how, methods, seeds)
        found = ended(experiment, request.folder / setting, request.callback)
        seconds += found.history.summary["seconds"]
        ends = {m["label"]: _ends(found, m["label"]) for m in methods}
        curves = curves_of(found.history)
        for label in ends:
            rows += _accuracy_rows(found, label, f"cifar10, {setting}", None)
        by_mu = {m: ends[f"feddw mu={m:g}"] for m in strengths}
        line = {m: values for m, values in by_mu.items() if not isinstance(values, str)}
        lines |= {f"feddw, {setting}": line} if line else {}
        claims += [
            _over(f"{label} ends above fedavg (cifar10, {setting})", values, ends["fedavg"])
            for label, values in ends.items()
            if label != "fedavg"
        ]
        claims += [
            _over(f"{chosen} ends above {label} (cifar10, {setting})", ends[chosen], values)
            for label, values in ends.items()
            if label not in ("fedavg", chosen)
        ]
    return Result(
        name=request.name,
        scale=request.scale,
        seconds=seconds,
        rows=tuple(rows),
        claims=tuple(claims),
        about=f"CIFAR-10, {ground.train or 'all'} images, {CLIENTS} clients, {rounds} rounds of {ground.epochs} "
        "epochs; the last round's G. The term is a mean over the squared entries of a 10x10 matrix and at most mu / 5. "
        "At mu = 0 it is off, and the classifier's bias still held at zero. The paper shows Fig. 6 as a drawing, "
        "without numbers. Figures: accuracy by round on pathological data, and the last round's against mu.",
        curves=curves,
        seeds=seeds,
        figures=(("mu.svg", svg_file.document(report.mu_chart("mu", lines)).encode()),) if lines else (),
    )


# ---------------------------------------------------------------- Fig. 8, 5 and 4
CONSISTENCY_PLANS: dict[str, tuple[tuple[int, ...], int]] = {"small": (FIVE, 15), "paper": (FIVE, 50)}
"""Seeds and rounds, on CIFAR-10."""

# Trains as FedAvg does to the last bit, and shows SL and CR.
_WATCHED = {"name": "feddw", "label": "fedavg", "mu": 0.0, "bias": "keep"}

# The paper's mu moves little in as few steps as the small size has; what the term does shows at a hundred times that.
_STRONG = {"name": "feddw", "label": "feddw mu=10", "mu": 10.0}


def consistency(request: Request) -> Result:
    """How far class relations are from soft labels: FedAvg on even labels, FedAvg and FedDW on uneven ones."""
    seeds, rounds = CONSISTENCY_PLANS[request.scale]
    ground = replace(GROUNDS[request.scale]["cifar10"], rounds=rounds)
    task = _task(request, ground)
    runs = {
        "IID": (None, [_WATCHED]),
        "non-IID": (SETTINGS["pathological"], [_WATCHED, *_methods(ground, ("feddw",)), _STRONG]),
    }
    rows: list[Row] = []
    curves: list[Curve] = []
    last: dict[tuple[str, str], Ends] = {}
    shown: dict[str, tuple[Path, str]] = {}
    seconds = 0.0
    for setting, (how, methods) in runs.items():
        experiment = _experiment(f"feddw-consistency-{setting}", ground, task, how, methods, seeds)
        found = ended(experiment, request.folder / setting, request.callback)
        seconds += found.history.summary["seconds"]
        distances = _distances(found.folder) if found.history.rows else {}
        for method in (str(m["label"]) for m in methods):
            where = f"cifar10, {setting}"
            if method in found.diverged:
                last[method, setting] = _ends(found, method)
                rows += _accuracy_rows(found, method, where, None)
                continue
            by_seed = [distances[method, seed] for seed in seeds]
            last[method, setting] = [by[-1] for by in by_seed]
            shown[f"{method}, {setting}"] = (found.folder, method)
            rows.append(over_seeds(method, where, "sl_cr_distance.first", [by[0] for by in by_seed]))
            rows.append(_row(method, where, "sl_cr_distance.last", last[method, setting]))
            rows += _accuracy_rows(found, method, where, None)
            curves.append(_curve(f"{method}, {setting}", range(1, rounds + 1), by_seed))
    plain = last["fedavg", "non-IID"]
    return Result(
        name=request.name,
        scale=request.scale,
        seconds=seconds,
        rows=tuple(rows),
        claims=(
            _over(
                "uneven labels part class relations from soft labels: fedavg's distance ends greater on non-IID data "
                "than on IID data",
                plain,
                last["fedavg", "IID"],
                "in distance",
                1.0,
                3,
            ),
            *(
                _over(
                    f"on non-IID data {method}'s distance ends smaller than fedavg's",
                    plain,
                    last[method, "non-IID"],
                    "in distance",
                    1.0,
                    3,
                )
                for method in ("feddw", "feddw mu=10")
            ),
        ),
        about=f"CIFAR-10, {ground.train or 'all'} images, {CLIENTS} clients, {rounds} rounds of {ground.epochs} "
        "epochs. IID: even labels, all clients take part. Non-IID: Dirichlet 0.1 by class, half of them in a round. "
        f"||SL - CR|| is the Frobenius norm, at most {math.sqrt(20):.2f} for 10 classes; SL is what the round's local "
        "models predicted on average for examples of each class, CR the softmax of the products of the averaged "
        "classifier's rows. FedAvg is FedDW at mu = 0 with a bias, which trains the same and shows both matrices; "
        f"FedDW has mu {ground.mu:g}, and 10 beside it. Figures: the distance by round; both matrices in the first, "
        "middle and last round; as in Fig. 5, t-SNE "
        f"of the global models' features of test images with the classes' weights, of seed {seeds[0]}; and, as in "
        "Fig. 4, the length of each class's weights against its share, on non-IID data, of all seeds. All clients "
        "together hold as much of every class, so shares are of what the last round's half of them trained on.",
        curves=tuple(curves),
        axes=("round", "||SL - CR||"),
        seeds=seeds,
        figures=tuple(_consistency_figures(request, ground, task, shown, seeds[0])) if shown else (),
    )


def _distances(folder: Path) -> dict[tuple[str, int], list[float]]:
    """||SL - CR|| after each round, by method and seed."""
    record, distances = reader.read(folder), dict[tuple[str, int], list[float]]()
    for method in record.methods:
        for seed, _, info in reader.info_of(record, method, ClassRelations):
            distances.setdefault((method, seed), []).append(info.distance if info.distance is not None else math.nan)
    return distances


SHOWN = 600
"""Test images in a map of features."""


def _consistency_figures(
    request: Request, ground: Ground, task: Mapping[str, Any], shown: Mapping[str, tuple[Path, str]], seed: int
) -> list[tuple[str, bytes]]:
    """SL and CR of a method's first, middle and last round for each of `shown`, features on one map, and class norms.

    Args:
        request, ground, task: What was run.
        shown: What a panel is called -> the run's folder and its method.
        seed: Whose models and matrices are drawn.
    """
    data = sources.load(task["data"], request.data_dir)
    planes, charts = {}, {}
    for title, (folder, method) in shown.items():
        kept = {at: info for s, at, info in reader.info_of(reader.read(folder), method, ClassRelations) if s == seed}
        rounds = sorted(kept)
        drawn = dict.fromkeys((rounds[0], rounds[(len(rounds) - 1) // 2], rounds[-1]))
        name = "relations-" + re.sub(r"\W+", "-", title.lower())
        charts[name] = report.relations_chart(
            name, f"{title}, seed {seed}", [r for at in drawn if (r := report.relations(at, kept[at])) is not None]
        )
        features, weight = _features(ground, data, folder / "models" / f"{method}-seed{seed}.safetensors")
        planes[title] = report.plane(features, data.y_test[:SHOWN].numpy(), weight, Key(seed) / "features")
    charts["features"] = report.features_chart("features", planes)
    uneven = {title: of for title, of in shown.items() if title.endswith("non-IID")}
    if uneven:
        norms = {title: _norms(*of) for title, of in uneven.items()}
        charts["norms"] = report.norms_chart("norms", norms, "the last round’s training examples")
    return [(f"{name}.svg", svg_file.document(chart).encode()) for name, chart in charts.items()]


def _norms(folder: Path, method: str) -> list[report.Shared]:
    """By seed, the share of each class in what the last cohort trained on, and the length of its weights after that."""
    found: list[report.Shared] = []
    last = {seed: info for seed, _, info in reader.info_of(reader.read(folder), method, ClassRelations)}
    for info in last.values():
        counts = info.counts or ()
        found.append(([n / sum(counts) for n in counts], info.class_norms or ()))
    return found


def _features(ground: Ground, data: Dataset, file: Path) -> tuple[report.Floats, report.Floats]:
    """What the last layer gets of test images, (images, d), and its weight, (classes, d), in a model that was kept."""
    with Key(0).ambient():
        network = models.build(ground.model, data.input_shape, data.num_classes, **ground.options)
    network.load_state_dict(safetensors.torch.load(file.read_bytes()))
    network.eval()
    body, head = network.body, network.head
    assert isinstance(body, nn.Module)
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        return body(data.x_test[:SHOWN]).double().numpy(), head.weight.detach().double().numpy()


# ---------------------------------------------------------------- Table II
@dataclass(frozen=True)
class Scaled:
    """A column of Table II: its ground, how many clients, and rounds of how many epochs if not the ground's."""

    column: str
    ground: str = "cifar10"
    clients: int = CLIENTS
    work: tuple[int, int] | None = None


SCALE_PLANS: dict[str, tuple[tuple[str, ...], tuple[int, ...], tuple[Scaled, ...]]] = {
    "small": (
        ("fedavg", "moon", "fedbabu", "feddw"),
        (0, 1, 2),
        (
            Scaled("standard", work=(6, 2)),
            Scaled("N=50", clients=50, work=(6, 2)),
            Scaled("N=100", clients=100, work=(6, 2)),
            Scaled("half the rounds", work=(3, 4)),
            Scaled("more rounds", work=(12, 1)),
        ),
    ),
    "paper": (
        tuple(TABLE2),
        FIVE,
        (
            Scaled("standard"),
            Scaled("N=50", clients=50),
            Scaled("N=100", clients=100),
            Scaled("half the rounds", work=(25, 10)),
            Scaled("more rounds", work=(125, 2)),
            Scaled("resnet18", "cifar100"),
            Scaled("shufflenet", "shufflenet"),
            Scaled("mobilenet_v2", "mobilenet_v2"),
        ),
    ),
}
"""Methods, seeds and columns."""


def scale(request: Request) -> Result:
    """More clients, and the same work in fewer or more rounds; at `paper` scale also other networks."""
    labels, seeds, columns = SCALE_PLANS[request.scale]
    # Own models are made only where the paper's number is one of theirs.
    evaluate = ("global", "personal_on_global") if any(PUBLISHED_AS[m] == "PG" for m in labels) else ("global",)
    rows: list[Row] = []
    claims: list[Claim] = []
    ends: dict[tuple[str, str], Ends] = {}
    seconds = 0.0
    tasks = {name: _task(request, GROUNDS[request.scale][name]) for name in {plan.ground: None for plan in columns}}
    for plan in columns:
        ground = GROUNDS[request.scale][plan.ground]
        rounds, epochs = plan.work or (ground.rounds, ground.epochs)
        ground = replace(ground, rounds=rounds, epochs=epochs, eval_every=max(1, rounds // 3))
        task, name = tasks[plan.ground], plan.column.replace(" ", "-")
        methods, how = _methods(ground, labels), SETTINGS["practical"]
        experiment = _experiment(f"feddw-scale-{name}", ground, task, how, methods, seeds, evaluate, plan.clients)
        found = ended(experiment, request.folder / name, request.callback)
        seconds += found.history.summary["seconds"]
        where = f"{ground.data}, {plan.column}: {plan.clients} clients, {rounds} rounds of {epochs}, {ground.model}"
        at = TABLE2_COLUMNS.index(plan.column)
        for label in labels:
            rows += _accuracy_rows(found, label, where, TABLE2[label][at])
            ends[label, plan.column] = _ends(found, label, PUBLISHED_AS[label])
        for label in labels:
            theirs, ours = TABLE2[label][at], TABLE2["feddw"][at]
            assert ours is not None
            if theirs is not None and ours > theirs:
                text = f"feddw (G) ends above {label} ({PUBLISHED_AS[label]}) ({plan.column})"
                claims.append(_over(text, ends["feddw", plan.column], ends[label, plan.column]))
    for crowd in ("N=50", "N=100"):
        text = f"feddw loses accuracy from {CLIENTS} clients to {crowd}"
        claims.append(_over(text, ends["feddw", "standard"], ends["feddw", crowd]))
    return Result(
        name=request.name,
        scale=request.scale,
        seconds=seconds,
        rows=tuple(rows),
        claims=tuple(claims),
        about="Dirichlet 0.5 by class, all clients take part. The first three columns have the same rounds and images "
        "for 10, 50 and 100 clients; the next two spend the same number of epochs in fewer and in more rounds. "
        "Published: 50 rounds of 5, 25 of 10, 125 of 2, on all of CIFAR-10"
        + (", and three networks on CIFAR-100." if request.scale == "paper" else "; twelve methods and three networks "
           "are run at `paper` scale.")
        + " Accuracy is the last round's; claims are those of the paper's table where FedDW's published mean is the "
        "higher, and that more clients cost accuracy.",
        seeds=seeds,
    )  # fmt: skip


# ---------------------------------------------------------------- Table III
OVERHEAD_PLANS = {"small": 60, "paper": 240}
"""Epochs of each contender; ResNet-18, ShuffleNet and MobileNetV2 take a sixth of them."""


def overhead(request: Request) -> Result:
    """A client's local epoch under each method over one under FedAvg, in CPU time, as `unskew bench feddw` does it."""
    began, turns = clock(), OVERHEAD_PLANS[request.scale]
    measured = measure(turns, say=request.callback.note)
    by = {(r["case"], r["contender"]): r for r in measured}
    rows: list[Row] = []
    claims: list[Claim] = []
    for case in dict.fromkeys(r["case"] for r in measured):
        dw, again, soft = (by[case, who] for who in ("feddw", "fedavg again", "soft labels"))
        published = {m: ms / TABLE3["fedavg"] for m, ms in TABLE3.items()} if case.startswith("resnet18") else {}
        rows += [
            over_seeds(method, case, "cpu_time.ratio", [by[case, method]["ratio"]], published.get(method))
            for method in TABLE3
            if method != "fedavg" and (case, method) in by
        ]
        rows += [
            over_seeds("fedavg again", case, "cpu_time.ratio", [again["ratio"]]),
            over_seeds("soft-label pass alone", case, "cpu_time.ratio", [soft["ratio"]]),
        ]
        if "bar" in dw:
            claims.append(_overhead_claim(case, dw, again))
    return Result(
        name=request.name,
        scale=request.scale,
        seconds=clock() - began,
        rows=tuple(rows),
        claims=tuple(claims),
        about=f"CPU time of one thread, medians over {turns} turns (ResNet-18, ShuffleNet and MobileNetV2: "
        f"{max(1, turns // 6)}) of the ratio of two epochs of one turn; there are turns and no seeds. The batch is in "
        "the case's name. `fedavg again` is 1 by construction: how far "
        "it strays is the noise. `soft-label pass alone` is the forward pass for soft labels, once a round, over one "
        "epoch of FedAvg. Published, in milliseconds on an RTX 4060 (said to be of an epoch, in size of a batch): "
        + ", ".join(f"{m} {ms}" for m, ms in TABLE3.items())
        + f"; FedDW over FedAvg is {TABLE3['feddw'] / TABLE3['fedavg']:.3f}. The table's other methods are measured on "
        "ResNet-18 and the CNN for CIFAR-10, as a client's whole step: MOON against a model of an earlier round, "
        "Per-FedAvg with two batches for each one of the others, FedBABU without a step of the head. A claim holds if "
        "the median is within the bar, and does not hold otherwise; the middle half of the turns stands beside it.",
        seeds=(0,),
    )


def _overhead_claim(case: str, dw: Mapping[str, Any], again: Mapping[str, Any]) -> Claim:
    return Claim(
        f"an epoch of FedDW takes at most {dw['bar']:.2f} times FedAvg's ({case})",
        dw["met"],
        f"median {dw['ratio']:.3f}, middle half [{dw['low']:.3f}, {dw['high']:.3f}], of minima "
        f"{dw['ratio_of_minima']:.3f}, {dw['turns']} turns; FedAvg again {again['ratio']:.3f} "
        f"[{again['low']:.3f}, {again['high']:.3f}]",
    )
