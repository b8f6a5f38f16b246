"""Reproductions on data whose clients are really there, and FLamby's published numbers beside ours.

J. Ogier du Terrail et al., "FLamby: Datasets and Benchmarks for Cross-Silo Federated Learning in Realistic Healthcare
Settings", NeurIPS 2022; numbers of the results in its repository (owkin/FLamby, commit edacf54), a value for each of
five seeds.
"""

import math
import statistics
from collections.abc import Mapping, Sequence

import torch
from scipy import special
from torch import nn

from unskew.data.dataset import Dataset
from unskew.history import History
from unskew.papers.claims import Claim, decide, paired
from unskew.papers.result import Result, Row, over_seeds
from unskew.papers.toolkit import Draft, ReproductionRequest, experiment, published
from unskew.report.stats import CONFIDENCE
from unskew.run import setup as run_setup

HOSPITALS = ("Cleveland", "Hungary", "Switzerland", "Long Beach V.A.")
SEEDS = (42, 43, 44, 45, 46)
Sites = Sequence[Sequence[float]]
"""A number for each site and seed."""

FLAMBY = ("FedAvg", "FedProx", "Scaffold", "FedAdam", "FedYogi", "FedAdagrad")


# ---------------------------------------------------------------- FLamby
def flamby(name: str, clients: int) -> dict[str, list[list[float]]]:
    """FLamby's results: method -> for each client's test set, then the pooled one, the value of each seed."""
    columns = [*(f"client {k}" for k in range(clients)), "pooled"]
    table = published(f"natural-flamby-{name}")
    return {m: [[row[f"{test} seed {s}"] for s in SEEDS] for test in columns] for m, row in table.items()}


def mean_over_clients(by_client: Sequence[Sequence[float]]) -> list[float]:
    """The mean over clients of each seed."""
    return [statistics.fmean(of_seed) for of_seed in zip(*by_client, strict=True)]


def agreement(text: str, ours: Sequence[float], theirs: Sequence[float], factor: float = 100.0) -> Claim:
    """The claim that two means of independent seeds agree: Welch's 95 % interval of their difference has zero in it."""
    difference = statistics.fmean(ours) - statistics.fmean(theirs)
    parts = [(statistics.variance(v) / len(v), len(v)) for v in (ours, theirs)]
    total = sum(v for v, _ in parts)
    if total <= 0.0:
        return Claim(text, abs(difference) < 1e-6, f"{factor * difference:+.2f} points, no spread")
    freedom = total**2 / sum(v**2 / (n - 1) for v, n in parts)
    half = float(special.stdtrit(freedom, (1 + CONFIDENCE) / 2)) * math.sqrt(total)
    evidence = (
        f"{factor * statistics.fmean(ours):.2f} ± {factor * statistics.stdev(ours):.2f} against "
        f"{factor * statistics.fmean(theirs):.2f} ± {factor * statistics.stdev(theirs):.2f}: "
        f"{factor * difference:+.2f} ∓ {factor * half:.2f} at 95 %"
    )
    return Claim(text, abs(difference) <= half, evidence)


def of_sites(history: History, method: str, seeds: Sequence[int], sites: int) -> list[list[float]]:
    """The accuracy of each site's own model on its own test data: for each site the value of each seed."""
    by_seed = [history.of_clients(method, seed=s) for s in seeds]
    return [[of[k] for of in by_seed] for k in range(sites)]


def on_all_sites(model: nn.Module, data: Dataset) -> list[float]:
    """A model's accuracy on each site's own test data."""
    assert data.owners is not None
    assert data.own_test is not None
    assert isinstance(data.x_train, torch.Tensor)
    rows = [data.own_test & (data.owners == k) for k in range(len(data.client_names))]
    with torch.no_grad():
        return [float((model(data.x_train[r]).argmax(1) == data.y_train[r]).double().mean()) for r in rows]


def site_rows(method: str, setting: str, ours: Sites, theirs: Sites) -> list[Row]:
    """A row for the mean over hospitals and one for each, FLamby's beside ours; `theirs` may be empty."""
    means = mean_over_clients(theirs[: len(ours)]) if theirs else []
    rows = [over_seeds(method, setting, "mean accuracy", mean_over_clients(ours), _mean(means))]
    for k, name in enumerate(HOSPITALS):
        rows.append(over_seeds(method, setting, f"accuracy, {name}", ours[k], _mean(theirs[k]) if theirs else None))
    return rows


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def heart(request: ReproductionRequest) -> Result:
    """Four hospitals, by FLamby's protocol."""
    draft = Draft.of(request)
    theirs, base = flamby("heart", len(HOSPITALS)), draft["experiment"]
    seeds = base["seeds"]
    parts = ("federated", "alone", "pooled")
    histories = {part: draft.run(experiment(f"heart-{part}", base, draft[part]), part) for part in parts}
    data = run_setup.prepare(experiment("heart", base, draft["federated"])).dataset
    ours: dict[str, list[list[float]]] = {}
    for method in histories["federated"].methods:
        ours[method] = of_sites(histories["federated"], method, seeds, len(HOSPITALS))
    ours["alone"] = of_sites(histories["alone"], "alone", seeds, len(HOSPITALS))
    pooled = [on_all_sites(histories["pooled"].model("Pooled", seed=s), data) for s in seeds]
    ours["Pooled"] = [list(of_site) for of_site in zip(*pooled, strict=True)]
    for k, name in enumerate(HOSPITALS):
        crossed = [on_all_sites(histories["alone"].model("alone", k, s), data) for s in seeds]
        ours[f"{name}'s model"] = [list(of_site) for of_site in zip(*crossed, strict=True)]
        theirs[f"{name}'s model"] = theirs.pop(f"Local {k}")
    theirs["alone"] = [theirs[f"{name}'s model"][k] for k, name in enumerate(HOSPITALS)]
    protocol = ("Pooled", "alone", *FLAMBY, *(f"{name}'s model" for name in HOSPITALS))
    for method in protocol:
        draft.rows += site_rows(method, "FLamby's protocol", ours[method], theirs[method])
    for method in histories["federated"].methods:
        if method not in protocol:
            draft.rows += site_rows(method, "beside it", ours[method], [])
    draft.claims += heart_claims(ours, theirs, protocol)
    return draft.result(n=len(seeds))


def heart_claims(ours: Mapping[str, Sites], theirs: Mapping[str, Sites], protocol: Sequence[str]) -> list[Claim]:
    """The means agree with FLamby's; who is better off alone; and what the rate has to do with it."""
    claims = [
        agreement(
            f"{m}: the mean over hospitals is FLamby's",
            mean_over_clients(ours[m]),
            mean_over_clients(theirs[m][: len(HOSPITALS)]),
        )
        for m in protocol
    ]
    mean = {m: mean_over_clients(values) for m, values in ours.items()}
    claims.append(
        decide("Cleveland's model, trained alone, beats FedAvg in the mean (FLamby: .722 against .685)",
               paired(mean["Cleveland's model"], mean["FedAvg"]))
    )  # fmt: skip
    claims.append(
        decide("FedAvg at ten times FLamby's rate is better: its rate is what holds it back",
               paired(mean["FedAvg at .01"], mean["FedAvg"]))
    )  # fmt: skip
    for k, name in enumerate(HOSPITALS):
        claims.append(
            decide(f"{name} is better off alone than with FedAvg, both by FLamby's protocol",
                   paired(ours["alone"][k], ours["FedAvg"][k]))
        )  # fmt: skip
    for method in ("FedAvg", "Ditto", "HCCT", "FedDif", "FedDW", "Cyclic"):
        gain = paired(mean[f"{method} at .01"], mean["alone at .01"])
        claims.append(decide(f"{method} at .01 is worth it for the mean hospital against training alone", gain))
    return claims
