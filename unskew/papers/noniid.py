"""Comparison of the core's methods on strong label skew (Dirichlet alpha 0.1).

This is no paper's table, but the basis of the other reproductions.  Every method has the same split, cohorts, initial
model, local optimisation and rounds; server learning rates are round numbers, chosen before the runs that are kept.
"""

from unskew.experiment import config
from unskew.papers.claims import decide, paired
from unskew.papers.result import Result
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
