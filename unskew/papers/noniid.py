"""Which of the core's methods differ where clients' labels disagree strongly (Dirichlet alpha 0.1).

No paper's table: the ground the other reproductions stand on.  Every method has the same split, cohorts, initial
model, local optimisation and rounds; server learning rates are round numbers, chosen before the runs that are kept.
"""

import json
import tomllib
from pathlib import Path
from typing import Any

from unskew.api import History
from unskew.experiment import config
from unskew.papers.result import Claim, Request, Result, curves_of, decide, ran, rows_of

METRICS = (
    "global.accuracy",
    "global.accuracy.mean_last_5",
    "global.accuracy.best",
    "global.accuracy.minus_fedavg",
    "personal.accuracy.mean",
    "personal.accuracy.worst_decile",
    "bytes.total",
)

METHODS = """
bounds = true

[[methods]]
name = "fedavg"
[[methods]]
name = "fedprox"
mu = 0.1
[[methods]]
name = "fednova"
[[methods]]
name = "scaffold"
[[methods]]
name = "fedavgm"
beta = 0.5
[[methods]]
name = "fedadagrad"
server_lr = 0.1
[[methods]]
name = "fedadam"
server_lr = 0.03
[[methods]]
name = "fedyogi"
server_lr = 0.03
"""

DIGITS = """
rounds = 30
seeds = [0, 1, 2, 3, 4, 5, 6, 7]
task = { data = "digits", model = "mlp" }
split = { name = "dirichlet", num_clients = 20, alpha = 0.1, min_samples = 10 }
clients_per_round = 10
local = { lr = 0.1, local_epochs = 5, batch_size = 32 }
"""

FASHION = """
rounds = 20
seeds = [0, 1, 2, 3, 4]
eval_every = 2
task = { data = "fashion_mnist", model = "fcn" }
split = { name = "dirichlet", num_clients = 50, alpha = 0.1, min_samples = 20 }
clients_per_round = 10
# A last batch of one or two images is a step of full length along their noise: with 48,001 images in batches of 50 the
# pooled bound lost up to 30 points in the last step of a round.
local = { lr = 0.05, local_epochs = 1, batch_size = 50, drop_last = true }
"""


def digits(request: Request) -> Result:
    """Twenty clients on 1,438 training digits of 8x8, a network of 4,810 parameters."""
    return _compare(request, DIGITS, "20 clients, 10 per round, 5 local epochs, MLP 64-64-10")


def fashion_mnist(request: Request) -> Result:
    """Fifty clients on Fashion-MNIST, FedDif's FCN 784-200-200-10."""
    return _compare(request, FASHION, "50 clients, 10 per round, 1 local epoch, FCN 784-200-200-10")


def _compare(request: Request, text: str, what: str) -> Result:
    raw: dict[str, Any] = {"name": request.name.replace("/", "-"), **tomllib.loads(text), **tomllib.loads(METHODS)}
    if request.scale == "paper":
        raw |= {"rounds": 5 * raw["rounds"], "seeds": list(range(10))}
    if request.data_dir is not None:
        raw["task"]["data_dir"] = str(Path(request.data_dir).resolve())
    experiment = config.parse(json.loads(json.dumps(raw)), request.name)
    found = ran(experiment, request.folder, request.callback)
    labels = [m.label for m in experiment.methods if m.kind != "bound" and m.name not in config.BOUNDS]
    return Result(
        name=request.name,
        scale=request.scale,
        seconds=found.summary["seconds"],
        rows=rows_of(found, METRICS),
        claims=tuple(_claims(found, labels)),
        about=f"{experiment.task.data}, Dirichlet alpha 0.1 by class, {what}, {experiment.rounds} rounds. "
        "Accuracy is the last round's, on the global test set, unless it says otherwise.",
        curves=curves_of(found),
        seeds=experiment.seeds,
    )


def _claims(found: History, labels: list[str]) -> list[Claim]:
    by = {(r["method"], r["metric"]): r["seeds"] for r in found.summary["rows"]}
    claims = [
        decide(f"{label} ends above fedavg at alpha 0.1", by[label, "global.accuracy.minus_fedavg"]) for label in labels
    ]
    alone, shared = by["independent", "personal.accuracy.mean"], by["fedavg", "personal.accuracy.mean"]
    apart = [s - a for s, a in zip(shared, alone, strict=True)]
    return [*claims, decide("on a client's own test data fedavg is above training alone", apart)]
