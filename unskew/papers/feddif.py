"""FedDif's published numbers, and ours beside them.

P001 is S. Ahn et al., arXiv 2207.07493 (10 devices in a cell); P000 is the version of Neural Networks (100 clients, 15
models).  What the released code did differently from the text is on the method's page; presets `p000` and `p001` of the
method and of the channel are that code.
"""

import itertools
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.feddif import FedDif
from unskew.api import History
from unskew.data import sources
from unskew.data.assign import assign
from unskew.data.split import Dirichlet
from unskew.experiment import config
from unskew.forecast.dry_run import untrained_rounds
from unskew.info import DiffusionRound, Passes
from unskew.keys import Key
from unskew.papers.result import (
    Claim,
    Curve,
    Request,
    Result,
    Row,
    clock,
    curves_of,
    decide,
    interval,
    over_seeds,
    ran,
    rows_of,
)
from unskew.pricing import radio, summary, traffic
from unskew.pricing.presets import PRESETS
from unskew.server.distance import iid_distance, shares

ALPHA = {"hard": 0.3, "soft": 0.6, "IID": 100.0}
CLIENTS, MODELS = 100, 15
EPSILON = {"CIFAR-100": (0.02, 0.04, 0.08), "EMNIST": (0.04, 0.08, 0.12), "CIFAR-10": (0.12, 0.16, 0.18)}
"""P000, Table 1."""


def _histograms(setting: str, classes: int, per_class: int, clients: int, seed: int) -> Tensor:
    """Class counts of a split as FedDif's code draws it, (clients, classes) int64."""
    labels = np.repeat(np.arange(classes), per_class)
    alpha = ALPHA[setting] if setting in ALPHA else float(setting)
    split = Dirichlet(alpha, by="capped", num_clients=clients, min_samples=classes)
    held = assign(split, labels, classes, Key(seed) / "split")
    return torch.from_numpy(np.stack([np.bincount(labels[c], minlength=classes) for c in held]))


# ---------------------------------------------------------------- local-training iterations per round (P000, Table 3)
TABLE3: dict[tuple[str, str], tuple[int, int, float]] = {
    ("FedAvg", "hard"): (294, 294, 27430),
    ("FedAvg", "soft"): (291, 291, 27150),
    ("FedAvg", "IID"): (299, 299, 27897),
    ("FedDC", "hard"): (223, 223, 20806),
    ("FedDC", "soft"): (204, 204, 19033),
    ("FedDC", "IID"): (156, 156, 14555),
    ("FedSwap", "hard"): (45, 450, 23092),
    ("FedSwap", "soft"): (45, 450, 20993),
    ("FedSwap", "IID"): (38, 380, 19500),
    ("STC", "hard"): (295, 295, 27524),
    ("FedDif eps1", "hard"): (65, 579, 30043),
    ("FedDif eps1", "soft"): (62, 444, 23605),
    ("FedDif eps1", "IID"): (149, 149, 13902),
    ("FedDif eps2", "hard"): (62, 368, 20060),
    ("FedDif eps2", "soft"): (73, 362, 20293),
    ("FedDif eps2", "IID"): (150, 150, 13995),
    ("FedDif eps3", "hard"): (82, 328, 19127),
    ("FedDif eps3", "soft"): (89, 267, 16607),
    ("FedDif eps3", "IID"): (146, 146, 13622),
}
"""(method, setting) -> communication rounds T, iterations I, megabytes: all entries that are not N/A."""

ERRATUM = ("FedSwap", "soft")
"""Its printed cost is that of 450 iterations alone: the term of T is missing."""

NEAR = 0.15
"""Iterations per round of another draw of split and channel count as the paper's within this share of them."""


def iterations(request: Request) -> Result:
    """FedDif's auctions alone on labels like CIFAR-100's, as P000's code stops and as its text does."""
    began, seeds = clock(), tuple(range(3 if request.scale == "small" else 10))
    rounds = 100 if request.scale == "small" else 300
    channel = PRESETS["p000"].channel
    rows: list[Row] = []
    for setting, (level, epsilon) in itertools.product(ALPHA, enumerate(EPSILON["CIFAR-100"], 1)):
        name = f"FedDif eps{level}"
        rounds_then, passes, _ = TABLE3[name, setting]
        readings = {
            f"{name}, p000": (FedDif(preset="p000", epsilon=epsilon, drift=None), passes / rounds_then),
            f"{name}, paper": (FedDif(preset="paper", epsilon=epsilon, model_ratio=MODELS / CLIENTS, bits=40e6), None),
        }
        for label, (algorithm, published) in readings.items():
            values = []
            count = rounds if published is not None else rounds // 5
            for seed in seeds:
                histograms = _histograms(setting, 100, 500, CLIENTS, seed)
                info = [f for f, _ in untrained_rounds(algorithm, histograms, count, seed=seed, channel=channel)]
                values.append(float(np.mean([f.iterations or 0 for f in info])))
            rows.append(over_seeds(label, setting, "iterations_per_round", values, published))
            request.callback.note(f"{label}, {setting}: {np.mean(values):.2f} iterations per round")
    return Result(
        name=request.name,
        scale=request.scale,
        seconds=clock() - began,
        rows=tuple(rows),
        claims=tuple(_iteration_claims(rows)),
        about=f"{CLIENTS} clients, {MODELS} models, 100 classes of 500 labels, {rounds} rounds without training "
        f"(`paper`: {rounds // 5}). "
        "`p000` stops as the released code does: on mean efficiency, with bids valued at the degree of learning before "
        "the last move. `paper` stops each model at W <= epsilon, as the text says, where outage allows it to move.",
        seeds=seeds,
    )


def _iteration_claims(rows: Sequence[Row]) -> list[Claim]:
    claims = []
    for row in rows:
        if row.paper is None:
            continue
        off = [v / row.paper - 1.0 for v in row.seeds]
        claims.append(
            Claim(
                f"{row.method}, {row.setting}: iterations per round within {100 * NEAR:.0f} % of {row.paper:.2f}",
                max(map(abs, off)) <= NEAR,
                f"{row.ours:.2f}; {100 * min(off):+.1f} to {100 * max(off):+.1f} % over {len(off)} seeds",
            )
        )
    by = {(r.method, r.setting): r.seeds for r in rows}
    for setting in ("hard", "soft"):
        text, code = by["FedDif eps1, paper", setting], by["FedDif eps1, p000", setting]
        apart = [t - c for t, c in zip(text, code, strict=True)]
        claims.append(
            _above(f"the printed rule trains more often than the released one (eps1, {setting})", apart, "iterations")
        )
    return claims


def _above(text: str, differences: Sequence[float], unit: str) -> Claim:
    """As `decide`, for differences that are not accuracies."""
    found = interval(differences)
    if found is None:
        return Claim(text, None, f"{differences[0]:+.3g} {unit} in each of {len(differences)} seeds, no interval")
    mean, low, high = found
    holds = True if low > 0 else False if high < 0 else None
    return Claim(text, holds, f"{mean:+.3g} {unit}, 95 % interval [{low:+.3g}, {high:+.3g}], {len(differences)} seeds")


# ---------------------------------------------------------------- the cost formula (P000, Table 3)
def table3_formula(request: Request) -> Result:
    """3.11 * 15 * (T + I) MB against all published entries."""
    began = clock()
    rows, off = [], {}
    for (method, setting), (turns, passes, published) in TABLE3.items():
        ours = radio.table3_mb(turns, passes)
        off[method, setting] = abs(ours - published)
        rows.append(over_seeds(method, setting, "cost_mb", [ours], published))
    printed = [at for at in off if at != ERRATUM]
    worst = max(off[at] for at in printed)
    without_t = abs(3.11 * MODELS * TABLE3[ERRATUM][1] - TABLE3[ERRATUM][2])
    return Result(
        name=request.name,
        scale=request.scale,
        seconds=clock() - began,
        rows=tuple(rows),
        claims=(
            Claim(
                f"3.11 * 15 * (T + I) is the published cost to rounding in {len(printed)} of {len(off)} entries",
                worst <= 0.5,
                f"at most {worst:.2f} MB off",
            ),
            Claim(
                "FedSwap's entry for soft is 3.11 * 15 * I: its term of T is missing",
                without_t <= 0.5 < off[ERRATUM],
                f"{without_t:.2f} MB off without the term, {off[ERRATUM]:.0f} MB with it",
            ),
        ),
        about="P000, Table 3: T communication rounds, I local-training iterations, 15 models of 815,332 float32. The "
        "formula charges FedDC for one vector and STC for no compression.",
        seeds=(0,),
    )


# ---------------------------------------------------------------- sub-frames (P001, Table II)
FEDAVG_SUBFRAMES = 175_554 / 80
DIFFUSION_ROUNDS = 10.24


def subframes(request: Request) -> Result:
    """Sub-frames of a round of FedAvg with ten devices, and FedDif's beside it, in P001's cell."""
    began, seeds = clock(), tuple(range(5 if request.scale == "small" else 20))
    rounds, devices, preset = 80, 10, PRESETS["p001"]
    found: dict[str, list[float]] = {"FedAvg": [], "FedDif": []}
    hops: list[float] = []
    for seed in seeds:
        histograms = _histograms("1.0", 10, 5000, devices, seed)
        for name, algorithm in (("FedAvg", FedAvg()), ("FedDif", FedDif(preset="p001", epsilon=0.04))):
            record = list(untrained_rounds(algorithm, histograms, rounds, seed=seed, channel=preset.channel))
            rows = [row for _, trace in record for row in trace.transfers]
            info = {t: info for t, (info, _) in enumerate(record, 1)}
            training = traffic.training(name, seed, rows, info=info)
            costs = radio.price([training], preset.channel, preset.spectrum, preset.energy, "feddif_subframes")
            spent = [sum(c.subframes.values()) for c in costs if c.subframes is not None]
            found[name].append(float(np.mean(spent)))
            if name == "FedDif":
                hops.append(float(np.mean([(f.iterations or 1) - 1 for f in info.values()])))
        request.callback.note(f"seed {seed}: {found['FedAvg'][-1]:.0f} sub-frames per round of FedAvg")
    off = [v / FEDAVG_SUBFRAMES - 1.0 for v in found["FedAvg"]]
    return Result(
        name=request.name,
        scale=request.scale,
        seconds=clock() - began,
        rows=(
            over_seeds("FedAvg", "P001", "subframes_per_round", found["FedAvg"], FEDAVG_SUBFRAMES),
            over_seeds("FedDif", "P001, alpha 1, epsilon .04", "subframes_per_round", found["FedDif"]),
            over_seeds("FedDif", "P001, alpha 1, epsilon .04", "diffusion_rounds_per_round", hops, DIFFUSION_ROUNDS),
        ),
        claims=(
            Claim(
                "a round of FedAvg takes the published 2194 sub-frames within 5 %",
                max(map(abs, off)) <= 0.05,
                f"{100 * min(off):+.1f} to {100 * max(off):+.1f} % over {len(off)} seeds of {rounds} rounds",
            ),
        ),
        about="Ten devices, models of 40 Mbit, P001's cell and its count of resource blocks (1,484 in a sub-frame, 14 "
        "times what a 20 MHz carrier has). 2194 is Table II's 175,554 over 80 rounds; its rows for other methods do "
        "not say how many rounds they stand for. 10.24 is from the text.",
        seeds=seeds,
    )


# ---------------------------------------------------------------- IID distance by diffusion round (Lemma 2)
def iid_distances(request: Request) -> Result:
    """Each model's distance as its degree of learning is carried from hop to hop, and Lemma 2's closed form of it."""
    began, seeds, rounds = clock(), tuple(range(3)), 20 if request.scale == "small" else 300
    rows, curves, worst = [], [], 0.0
    for setting in ALPHA:
        carried: list[list[list[float]]] = []
        closed: list[list[list[float]]] = []
        for seed in seeds:
            histograms = _histograms(setting, 100, 500, CLIENTS, seed)
            algorithm = FedDif(preset="p000", epsilon=EPSILON["CIFAR-100"][0], drift=None)
            info = untrained_rounds(algorithm, histograms, rounds, seed=seed, channel=PRESETS["p000"].channel)
            pairs = [chain for f, _ in info for chain in _distances(f, histograms)]
            carried.append([a for a, _ in pairs])
            closed.append([b for _, b in pairs])
            worst = max([worst, *(abs(x - y) for a, b in pairs for x, y in zip(a, b, strict=True))])
        for name, chains in (("carried", carried), ("Lemma 2", closed)):
            by_hop = _mean_by_hop(chains)
            ends = [by[-1] for by in by_hop]
            rows += [
                over_seeds(name, setting, "iid_distance.first", [by[0] for by in by_hop]),
                over_seeds(name, setting, "iid_distance.last", ends),
            ]
            if name == "carried":
                curves.append(_curve(f"{setting}, carried from hop to hop", by_hop))
            else:
                curves.append(_curve(f"{setting}, Lemma 2", by_hop))
    return Result(
        name=request.name,
        scale=request.scale,
        seconds=clock() - began,
        rows=tuple(rows),
        claims=(
            Claim(
                "Lemma 2's closed form is the simulated distance to rounding",
                worst <= 1e-9,
                f"at most {worst:.1e} apart over {len(seeds)} seeds, {rounds} rounds, every model and hop",
            ),
        ),
        about="P000's auction, epsilon .02, 100 classes of 500 labels among 100 clients. A model that stays keeps its "
        "distance; the mean is over all models of a round.",
        curves=tuple(curves),
        axes=("diffusion round", "mean IID distance (L2)"),
        seeds=seeds,
    )


def _distances(info: Passes, histograms: Tensor) -> Iterable[tuple[list[float], list[float]]]:
    """(carried, closed form) of each model after each diffusion round, the first training being round 0."""
    assert isinstance(info, DiffusionRound)
    classes = histograms.shape[1]
    uniform = torch.full((classes,), 1.0 / classes, dtype=torch.float64)
    for m, start in enumerate(info.starts):
        h = histograms[start].double()
        psi, size, chain = shares(h), float(h.sum()), [start]
        carried, closed = [], []
        for hop in (None, *info.hops):
            to = next((v.dst for v in hop.moves if v.model == m), None) if hop else None
            if to is not None:
                own = histograms[to].double()
                psi, size = (size * psi + own) / (size + own.sum()), size + float(own.sum())
                chain.append(to)
            carried.append(float(iid_distance(psi, uniform)))
            held = histograms[chain].double()
            apart = (held - held.sum(1, keepdim=True) * uniform).sum(0)
            closed.append(float(apart.norm() / held.sum()))
        yield carried, closed


def _mean_by_hop(chains: Sequence[Sequence[Sequence[float]]]) -> list[list[float]]:
    """Mean over models and rounds at each hop, by seed; a round that has ended keeps its last distance."""
    longest = max(len(chain) for seed in chains for chain in seed)
    whole = [[[*chain, *[chain[-1]] * (longest - len(chain))] for chain in seed] for seed in chains]
    return [np.mean(seed, axis=0).tolist() for seed in whole]


def _curve(name: str, by_hop: Sequence[Sequence[float]]) -> Curve:
    table = np.asarray(by_hop)
    hops = tuple(float(k) for k in range(table.shape[1]))
    mean, low, high = (tuple(f(table, axis=0).tolist()) for f in (np.mean, np.min, np.max))
    return Curve(name, hops, mean, low, high)


# ---------------------------------------------------------------- accuracy and cost to FedAvg's peak (Tables 2 and 3)
TABLE2: dict[str, dict[str, tuple[float, float, float]]] = {
    "CIFAR-10": {
        "fedavg": (63.20, 67.50, 72.34),
        "feddc": (42.01, 71.35, 77.86),
        "fedswap": (77.20, 79.01, 80.49),
        "stc": (64.93, 65.51, 73.57),
        "feddif eps1": (72.38, 79.19, 77.83),
        "feddif eps2": (75.31, 78.90, 77.89),
        "feddif eps3": (75.61, 79.07, 77.17),
    }
}
"""Top-1 accuracy in percent, hard / soft / IID, after 300 rounds; CIFAR-10 is the data set that is at hand."""

METHODS = """
[[methods]]
name = "fedavg"
[[methods]]
name = "feddc"
divisor = "code"
[[methods]]
name = "fedswap"
[[methods]]
name = "tthf"
d2d_before_global = true
[[methods]]
name = "stc"
p_up = 0.01
p_down = 0.01
"""


@dataclass(frozen=True)
class Plan:
    """One data set of the comparison.

    Attributes:
        data, model: What is learned, by which network.
        like: The column of P000's tables whose thresholds are taken, and its published accuracies if it is the same.
        settings: Of ALPHA.
        rounds, seeds: Of each method.
        train: Training images among all clients, drawn once; None is all.
        drift: Strength of P000's regulariser for this network.
    """

    data: str
    model: str
    like: str
    settings: tuple[str, ...]
    rounds: int
    seeds: tuple[int, ...]
    train: int | None
    drift: float


FIVE = (0, 1, 2, 3, 4)
PLANS = {
    "small": (
        Plan("fashion_mnist", "fcn", "CIFAR-10", tuple(ALPHA), 60, (0, 1, 2), 20_000, 0.02),
        Plan("cifar10", "lenet", "CIFAR-10", ("hard",), 20, (0, 1), 30_000, 0.005),
    ),
    "paper": (
        Plan("fashion_mnist", "fcn", "CIFAR-10", tuple(ALPHA), 300, FIVE, None, 0.02),
        Plan("cifar10", "lenet", "CIFAR-10", tuple(ALPHA), 300, FIVE, None, 0.005),
    ),
}
TEST_IMAGES = 2_000


def accuracy(request: Request) -> Result:
    """FedDif at three thresholds and what it is compared with, on data that are at hand."""
    plans, seconds = PLANS[request.scale], 0.0
    rows: list[Row] = []
    claims: list[Claim] = []
    curves: list[Curve] = []
    for plan in plans:
        file = _cut(request, plan)
        for setting in plan.settings:
            folder = request.folder / f"{plan.data}-{setting}"
            found = ran(_experiment(plan, setting, file), folder, request.callback)
            seconds += found.summary["seconds"]
            where = f"{plan.data}, {setting}"
            rows += _accuracy_rows(found, traffic.read(folder), plan, setting, where)
            claims += _accuracy_claims(found, where)
            if setting == "hard" and plan is plans[0]:
                curves = list(curves_of(found))
    sizes = " and ".join(f"{p.data} ({p.train or 'all'} images, {p.rounds} rounds)" for p in plans)
    return Result(
        name=request.name,
        scale=request.scale,
        seconds=seconds,
        rows=tuple(rows),
        claims=tuple(claims),
        about=f"{CLIENTS} clients, {MODELS} of them begin a round, one local epoch, lr 0.1 x 0.998^t, no momentum: "
        f"{sizes}. FedDif is preset p000 with its drift regulariser and Table 1's thresholds for CIFAR-10, with as "
        "many classes. Accuracy is the last round's on test images. Published numbers are P000's Table 2: CIFAR-10, "
        "300 rounds, all images. `to_target` is what was spent until FedAvg's best accuracy on the test curve was "
        "reached, which is how the papers report it, over the seeds that got there; megabytes are what our wire "
        f"carried, sub-frames are priced in P001's cell. FedSwap's models go by the server, two transfers a leg; from "
        "device to device, which P000's formula counts, a round would send about half as much (156 of 300 models). "
        f"The figure is {plans[0].data}, hard.",
        curves=tuple(curves),
        seeds=tuple(sorted({s for p in plans for s in p.seeds})),
    )


def _cut(request: Request, plan: Plan) -> Path:
    """The plan's images as a file of their own: training images drawn once, and TEST_IMAGES of the test images."""
    data = sources.load(plan.data, request.data_dir)
    file: Path = request.folder / "data" / f"{plan.data}.npz"
    file.parent.mkdir(parents=True, exist_ok=True)
    key = Key(0) / "feddif" / plan.data
    train = torch.randperm(len(data.y_train), generator=(key / "train").generator())[: plan.train]
    test = torch.randperm(len(data.y_test), generator=(key / "test").generator())
    test = test[:TEST_IMAGES] if request.scale == "small" else test
    np.savez(
        file,
        x_train=data.x_train[train].numpy(),
        y_train=data.y_train[train].numpy(),
        x_test=data.x_test[test].numpy(),
        y_test=data.y_test[test].numpy(),
    )
    return file


def _experiment(plan: Plan, setting: str, file: Path) -> config.Experiment:
    raw: dict[str, Any] = {
        "name": f"feddif-{plan.data}-{setting}",
        "rounds": plan.rounds,
        "seeds": list(plan.seeds),
        "eval_every": 2,
        "evaluate": ["global"],
        "test_fraction": 0.0,
        "task": {"data": f"npz:{file.resolve()}", "model": plan.model},
        "split": {"name": "dirichlet", "by": "capped", "num_clients": CLIENTS, "alpha": ALPHA[setting]},
        "clients_per_round": MODELS,
        "world": {"channel": {"name": "radio", "d2d_height_offset": 23.5}},
        "local": {
            "lr": 0.1,
            "local_epochs": 1,
            "batch_size": 50,
            "weight_decay": 1e-3,
            "clip_norm": 10.0,
            "lr_schedule": {"name": "exponential", "decay": 0.998},
        },
        **tomllib.loads(METHODS),
    }
    raw["split"]["min_samples"] = 10
    raw["methods"] += [
        {
            "name": "feddif",
            "label": f"feddif eps{level}",
            "preset": "p000",
            "epsilon": epsilon,
            "drift": {"a": plan.drift},
        }
        for level, epsilon in enumerate(EPSILON[plan.like], 1)
    ]
    return config.parse(raw, raw["name"])


def _accuracy_rows(found: History, run: traffic.RecordedRun, plan: Plan, setting: str, where: str) -> list[Row]:
    published = TABLE2.get(plan.like, {}) if plan.data == "cifar10" else {}
    at = tuple(ALPHA).index(setting)
    paper = {(m, "global.accuracy"): values[at] / 100 for m, values in published.items()}
    metrics = ("global.accuracy", "global.accuracy.best", "bytes.total")
    rows = [replace(r, setting=where) for r in rows_of(found, metrics, paper)]
    preset = PRESETS["p001"]
    costs = radio.price(run.trainings, preset.channel, preset.spectrum, preset.energy, "honest")
    spent = summary.cost_summary(run, costs, summary.FEDAVG_PEAK).rows
    wanted = ("rounds", "megabytes", "subframes", "hz_s", "joules.transmit", "joules.compute")
    rows += [
        over_seeds(r["method"], where, r["metric"], r["seeds"])
        for r in spent
        if r["metric"].removeprefix("to_target.") in wanted and r["metric"].startswith("to_target.")
    ]
    first = summary.reached(run, summary.targets(run, summary.FEDAVG_PEAK))
    for method in dict.fromkeys(t.method for t in run.trainings):
        ends = {t.seed: (t, first[method, t.seed]) for t in run.trainings if t.method == method}
        passes = [_passes(one, end) for one, end in ends.values() if end is not None]
        if passes:
            rows.append(over_seeds(method, where, "to_target.iterations", passes))
    return rows


def _passes(one: traffic.Training, end: int) -> float:
    """Exchanges in which clients trained, up to a round: the paper's iterations."""
    assert one.work is not None
    upto = one.work.round <= end
    return float(len(np.unique(np.stack([one.work.round[upto], one.work.hop[upto]]), axis=1).T))


def _accuracy_claims(found: History, where: str) -> list[Claim]:
    apart = {r["method"]: r["seeds"] for r in found.summary["rows"] if r["metric"] == "global.accuracy.minus_fedavg"}
    return [decide(f"{method} ends above fedavg ({where})", values) for method, values in apart.items()]
