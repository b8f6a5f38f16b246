"""Comparisons on strong label skew (Dirichlet alpha 0.1): the core's methods, and every method at its defaults.

These are no paper's tables, but the basis of the other reproductions.  Every method has the same split, cohorts,
initial model, local optimisation and rounds; server learning rates are round numbers, chosen before the kept runs.
"""

from collections.abc import Mapping, Sequence

from unskew import algorithms
from unskew.experiment import config
from unskew.papers.claims import Claim, decide, paired
from unskew.papers.result import Result, over_seeds
from unskew.papers.toolkit import Draft, ReproductionRequest, curves_of, drawn, experiment, rows_of

METRICS = (
    "global.accuracy",
    "global.accuracy.mean_last_fifth",
    "global.accuracy.best",
    "global.accuracy.minus_fedavg",
    "personal.accuracy.mean",
    "personal.accuracy.worst_decile",
    "bytes.total",
)


def digits(request: ReproductionRequest) -> Result:
    """Twenty clients on scikit-learn's digits."""
    return _compare(request)


def fashion_mnist(request: ReproductionRequest) -> Result:
    """Fifty clients on Fashion-MNIST."""
    return _compare(request)


OWN = "personal.accuracy.mean"
WITHOUT_IMAGES = tuple(name for name in algorithms.TABLE if name not in ("feddistr", "fedpft"))
"""Methods that need no prior of images."""


def defaults(request: ReproductionRequest) -> Result:
    """Every method as it comes, on the clients' own test examples: which end below FedAvg?"""
    draft = Draft.of(request)
    methods: dict[str, dict[str, object]] = {name: {} for name in WITHOUT_IMAGES if name not in config.BOUNDS}
    compared = experiment(request.name.replace("/", "-"), {**draft["experiment"], "methods": methods})
    history = draft.run(compared, "")
    draft.rows += rows_of(history, (OWN, "personal.accuracy.worst_decile", "global.accuracy", "bytes.total"))
    own = {r.method: r for r in draft.rows if r.metric == OWN}
    gains = {name: paired(r.seeds, own["fedavg"].seeds) for name, r in own.items() if name != "fedavg"}
    draft.rows += [over_seeds(n, own[n].setting, f"{OWN}.minus_fedavg", gain) for n, gain in gains.items()]
    draft.claims.append(none_below("no method ends below FedAvg on clients' own test examples", gains))
    return draft.result()


def none_below(text: str, gains: Mapping[str, Sequence[float]]) -> Claim:
    """Return the claim that no gain's 95 % interval lies below zero, with those that do, and a count of the others."""
    decided = {name: decide(name, gain) for name, gain in gains.items()}
    below = [f"{c.text} {c.evidence}" for c in decided.values() if c.holds is False and not c.level]
    above = sum(c.holds is True for c in decided.values())
    level = sum(c.level for c in decided.values())
    undecided = len(gains) - above - level - len(below)
    counts = f"of {len(gains)}, {above} above it, {undecided} undecided, {level} level, {len(below)} below"
    return Claim(text, not below, f"{counts}{': ' if below else ''}{'; '.join(below)}")


def _compare(request: ReproductionRequest) -> Result:
    draft = Draft.of(request)
    task = {"task": drawn(request, draft["experiment"]["task"]["data"], None)}
    compared = experiment(request.name.replace("/", "-"), draft["experiment"], task)
    # The run is the folder itself.
    history = draft.run(compared, "")
    draft.rows += rows_of(history, METRICS)
    seeds = {(r["method"], r["metric"]): r["seeds"] for r in history.summary["rows"]}
    for method in compared.methods:
        if method.kind != "bound" and method.name not in config.BOUNDS:
            gains = seeds[method.label, "global.accuracy.minus_fedavg"]
            draft.claims.append(decide(f"{method.label} ends above fedavg at alpha 0.1", gains))
    own = "personal.accuracy.mean"
    apart = paired(seeds["fedavg", own], seeds["independent", own])
    draft.claims.append(decide("on a client's own test data fedavg is above training alone", apart))
    draft.curves = curves_of(history)
    return draft.result()
