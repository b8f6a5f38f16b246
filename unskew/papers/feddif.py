"""Reproductions of FedDif: its published numbers, and ours beside them.

P001 is S. Ahn et al., arXiv 2207.07493 (10 devices in a cell); P000 is the version of Neural Networks (100 clients, 15
models).  The method's page says where the released code differs from the text; presets `p000` and `p001` follow the
code.
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.feddif import FedDif
from unskew.data.split import Dirichlet, TrainingExamples, assign
from unskew.decide.forecast.dry_run import untrained_rounds
from unskew.history import History
from unskew.info import Passes
from unskew.keys import Key
from unskew.papers.claims import Row, over_seeds
from unskew.papers.study import Draft, compared, published
from unskew.pricing import radio, summary, traffic
from unskew.pricing.radio import PRESETS
from unskew.report.stats import curve
from unskew.runtime.round import Trace
from unskew.world.channel import Channel

EPSILON = published("feddif-table1")
TABLE3 = published("feddif-table3")


def histograms(alpha: float, classes: int, per_class: int, clients: int, seed: int) -> Tensor:
    """Class counts of a split drawn as in FedDif's code, (clients, classes) int64."""
    labels = np.repeat(np.arange(classes), per_class)
    split = Dirichlet(alpha, by="capped", num_clients=clients, min_samples=classes)
    rows = assign(split, TrainingExamples(labels, classes), Key(seed) / "split")
    return torch.from_numpy(np.stack([np.bincount(labels[r], minlength=classes) for r in rows]))


def auctions(
    draft: Draft, method: Any, labels: tuple[float, int, int], rounds: int, channel: Channel
) -> Iterator[list[tuple[Passes, Trace]]]:
    """Auctions without training under every seed; labels as for `histograms`."""
    for seed in draft["seeds"]:
        counts = histograms(*labels, draft["clients"], seed)
        yield list(untrained_rounds(method, counts, rounds, seed=seed, channel=channel))


def iterations_of(*asked: Any) -> list[float]:
    """Mean iterations of local training a round, by seed, of `auctions`."""
    return [float(np.mean([info.iterations or 0 for info, _ in record])) for record in auctions(*asked)]


# ---------------------------------------------------------------- local-training iterations per round (P000, Table 3)
def iterations(draft: Draft) -> None:
    """FedDif's auctions without training on labels like CIFAR-100's, stopped as in P000's code and as in its text.

    The rule of the code trains as often as published, that of the text more often.
    """
    metric = "iterations_per_round"
    rounds, channel, model_ratio = draft["rounds"], PRESETS["p000"].channel, draft["models"] / draft["clients"]
    for (setting, alpha), level in itertools.product(draft["alphas"].items(), EPSILON["CIFAR-100"]):
        epsilon, entry = EPSILON["CIFAR-100"][level], TABLE3[f"FedDif {level}"]
        released = FedDif(preset="p000", epsilon=epsilon, drift=None)
        text = FedDif(preset="paper", epsilon=epsilon, model_ratio=model_ratio, bits=40e6)
        printed = entry[f"{setting} I"] / entry[f"{setting} T"]
        for name, method, times, paper in (("p000", released, rounds, printed), ("paper", text, rounds // 5, None)):
            values = iterations_of(draft, method, (alpha, 100, 500), times, channel)
            draft.add(f"FedDif {level}, {name}", setting, metric, values, paper)
            draft.callback.note(f"FedDif {level}, {name}, {setting}: {np.mean(values):.2f} iterations per round")


# ---------------------------------------------------------------- sub-frames (P001, Table II)
def subframes(draft: Draft) -> None:
    """Sub-frames of a round of FedAvg with ten devices, and of FedDif, in P001's cell."""
    rounds, devices, preset = draft["rounds"], draft["clients"], PRESETS["p001"]
    paper = published("feddif-p001")
    # A round of FedAvg sends a model to each device and gets one back.
    rounds_then = paper["FedAvg"]["transmitted models"] / (2 * devices)
    per_round = paper["FedAvg"]["sub-frames"] / rounds_then
    variants = {name: FedDif(preset="p001", epsilon=0.04, **options) for name, options in draft["variants"].items()}
    for name, method in {"FedAvg": FedAvg(), **variants}.items():
        channel = replace(preset.channel, server="device" if "device" in name else "station")
        where, subframes, hops = "P001" if name == "FedAvg" else "P001, alpha 1, epsilon .04", [], []
        every = auctions(draft, method, (1.0, 10, 5000), rounds, channel)
        for seed, record in zip(draft["seeds"], every, strict=True):
            transfers = [row for _, trace in record for row in trace.transfers]
            training = traffic.training(name, seed, transfers, info={t: info for t, (info, _) in enumerate(record, 1)})
            costs = radio.price([training], replace(preset, channel=channel), "feddif_subframes")
            subframes.append(float(np.mean([c.whole("subframes") for c in costs])))
            hops.append(float(np.mean([(info.iterations or 1) - 1 for info, _ in record])))
        draft.add(name, where, "subframes_per_round", subframes, per_round if name == "FedAvg" else None)
        if name != "FedAvg":
            draft.add(name, where, "diffusion_rounds_per_round", hops, paper.get(name, {}).get("diffusion rounds"))
        draft.callback.note(f"{name}: {np.mean(subframes):.0f} sub-frames per round")


# ---------------------------------------------------------------- diffusion rounds (P001, Figs. 3 to 5)
def diffusion_rounds(draft: Draft) -> None:
    """Diffusion rounds of P001's auction, without training, by alpha, epsilon, gamma_min and the distance's metric."""
    base, printed = draft["base"], published("feddif-p001")["FedDif"]["diffusion rounds"]
    for option, values in draft["sweeps"].items():
        hops: dict[float | str, list[float]] = {}
        for value in values:
            own = {**base, option: value}
            alpha, underlay = own.pop("alpha"), own.pop("underlay")
            channel, method = replace(PRESETS["p001"].channel, underlay=underlay), FedDif(preset="p001", **own)
            means = iterations_of(draft, method, (alpha, 10, 5000), draft["rounds"], channel)
            hops[value] = [n - 1.0 for n in means]
            setting = f"{option} {value}" if isinstance(value, str) else f"{option} {value:g}"
            draft.add("FedDif", setting, "diffusion_rounds", hops[value], printed if value == base[option] else None)
        draft.curves = {**draft.curves, option: curve(range(len(values)), list(hops.values()), len(draft["seeds"]))}


# ---------------------------------------------------------------- accuracy and cost to FedAvg's peak (Tables 2 and 3)
def accuracy(draft: Draft) -> None:
    """Accuracy of FedDif at three thresholds and of its rivals, and their cost until FedAvg's peak."""
    for where, history in compared(draft).items():
        draft.rows += cost_rows(history, where)


SHOWN = ("rounds", "megabytes", "subframes", "hz_s", "joules.transmit", "joules.compute")
"""Costs to the target that are shown."""


def cost_rows(history: History, where: str) -> list[Row]:
    """Cost of each method until FedAvg's peak, over the seeds that reached it: in P001's cell, and by the formula.

    The formula counts models, 3.11 * 15 * (T + I) MB; bytes are what our wire carried, drift and all.
    """
    record, preset = traffic.read(history.folder), PRESETS["p001"]
    rows = []
    ledgers: dict[radio.Ledger, dict[str, str]] = {
        "measured": {name: name for name in SHOWN},
        "feddif_table3": {"megabytes": "formula_mb"},
    }
    for ledger, names in ledgers.items():
        costs = radio.price(record.trainings, preset, ledger)
        table = summary.cost_summary(record, costs, summary.FEDAVG_PEAK).rows
        reached = {(r["method"], r["metric"]): r["seeds"] for r in table}
        for method, (name, shown) in itertools.product(history.methods, names.items()):
            seeds = reached.get((method, f"to_target.{name}"), ())
            rows.append(over_seeds(method, where, f"to_target.{shown}", seeds))
    return rows
