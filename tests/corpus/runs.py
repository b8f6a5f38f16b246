"""Runs: every method, wrapper, task, split and executor, and what else changes a run."""

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

import unskew as us

from . import adaptors
from .inputs import SITES, Case, base, draws, images, rows, table

FEW = us.SgdConfig(0.01, local_steps=2, batch_size=4, optimizer="adam")

OPTIONS: dict[str, Case] = {
    "fedswap": {"legs": 3},
    "tthf": {"cluster_size": 2, "gamma": 1, "d2d_before_global": True},
    "moon": {"mu": 5.0},
    "fedavg+clip_norm": {"clip_norm": us.ClipNorm(0.02)},
    "maxfl": {"warmup": 1},
    "maxfl_hcct": {"warmup": 1},
    "grouped": {"groups": ((0, 2), (1, 3, 4))},
    "ifca": {"clusters": 2},
    "flsc": {"clusters": 2},
    "cfl": {"eps1": 100.0, "eps2": 0.0, "after": 0},
    "feddif": {"epsilon": 0.01},
    "hcct": {"alpha": 0.5, "groups": 2},
    "hcct_e": {"alpha": 0.5, "groups": 2},
    "hcct_p": {"alpha": 0.5, "groups": 2},
    "ffalora": {"fixed": ("body",)},
    "fedsalora": {"personal": ("body",)},
    "oneshot": {"rounds_worth": 3},
    "fedala": {"start_epochs": 2},
    "feddistr": {"m": 1, "steps": 2, "images": 2, "batch_size": 2, "sampling_steps": 2, "classifier": FEW},
    "fedpft": {"m": 1, "images": 2, "classifier": FEW},
}
"""Settings at which a method does what it is for within two rounds."""

IMAGES = ("feddistr", "fedpft")
"""Methods that need images."""


def of_methods() -> dict[str, Case]:
    cases = {}
    for name in adaptors.names("methods"):
        more = {"data": images(), "model": "cnn_small"} if name in IMAGES else {"model": "mlp"}
        more |= {"public": 0.2} if name == "fedmd" else {}
        cases[f"method {name}"] = base(methods={name: adaptors.method(name, **OPTIONS.get(name, {}))}, **more)
    return cases


def of_wrappers() -> dict[str, Case]:
    cases = {}
    for name in adaptors.names("wrappers"):
        for method in ("fedavg", "scaffold")[: 2 if name in ("dw", "clip_norm", "top_k", "quantise") else 1]:
            cases[f"wrapper {method}+{name}"] = base(
                methods={name: adaptors.method(f"{method}+{name}", **OPTIONS.get(f"{method}+{name}", {}))}
            )
    return cases


def of_tasks() -> dict[str, Case]:
    x, y = rows()
    rng = draws(3)
    times = np.stack([rng.exponential(np.exp(-x[:, 0])) * 100, rng.random(len(x)) < 0.6], 1)
    tokens = rng.integers(0, 6, (48, 9))
    words = np.array(["alpha", "beta", "gamma", "delta"])
    texts = [" ".join(rng.choice(words, 6)) + (" ill" if k else " well") for k in y == 0]
    spread, iid = us.Quantity(alpha=5.0, num_clients=4, min_samples=6), us.IID(num_clients=4)
    number = (3 * x[:, 0] - x[:, 1] + 50).astype("float64")
    kinds: dict[str, Case] = {
        "classification": {},
        "binary": {"data": rows(2)},
        "regression": {"data": (x, number), "split": spread, "evaluate": ["global", "personal", "mae", "r2"]},
        "survival": {"data": (x, times), "split": spread},
        "next_token": {"data": (tokens[:, :-1], tokens[:, 1:]), "split": iid, "model": None},
        "token_classification": {
            "data": (tokens, np.where(np.arange(9) < 8, tokens > 2, -100)),
            "split": iid,
            "model": lambda _: lambda: nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 2)),
        },
        "multi_label": {"data": (x, (x[:, :3] > 0).astype(int)), "split": iid},
        "segmentation": {
            "data": (pixels := draws(4).normal(size=(48, 1, 6, 6)).astype("float32"), (pixels[:, 0] > 0).astype(int)),
            "split": iid,
            "model": lambda _: functools.partial(nn.Conv2d, 1, 2, 3, padding=1),
        },
        "ordinal": {"data": (x, y)},
    }
    cases = {f"task {kind}": base(**{"task": kind, **kinds[kind]}) for kind in adaptors.names("tasks")}
    counts = rng.poisson(np.exp(0.5 * x[:, 0] + 1))
    binned = us.TaskConfig(kind="regression", bins=3)
    weighted = us.TaskConfig(class_weights="balanced", headline="balanced_accuracy")
    many = ["global", "personal", "auroc", "macro_f1", "lowest_recall", "balanced_accuracy"]
    return cases | {
        "task regression, counts": base(data=(x, counts), task="regression", loss="poisson", split=spread),
        "task regression, huber": base(data=(x, number), task="regression", loss="huber", split=iid),
        "task regression, binned": base(data=(x, number), task=binned),
        "task classification, weighted": base(task=weighted),
        "task classification, every metric": base(evaluate=many),
        "task texts": base(data=(texts, y == 0), model=None, split=iid),
        "task images": base(data=images(), model="cnn_small"),
        "task images, batch norm": base(
            data=images(), model=None, task=us.TaskConfig(model="cnn_small", model_options={"norm": "batch"})
        ),
        "task images, augmented": base(
            data=images(), model=None, task=us.TaskConfig(model="cnn_small", augment="crop+flip")
        ),
    }


def of_splits() -> dict[str, Case]:
    x, y = rows()
    named = {name: (x[i::3], y[i::3]) for i, name in enumerate(SITES)}
    four = {"num_clients": 4, "min_samples": 4}
    splits: dict[str, Case] = {
        "iid": {"split": us.IID(4)},
        "dirichlet": {"split": us.Dirichlet(0.3, **four)},
        "dirichlet, capped": {"split": us.Dirichlet(0.3, "capped", **four)},
        "dirichlet, by client": {"split": us.Dirichlet(0.3, "client", **four)},
        "pathological": {"split": us.Pathological(2, **four)},
        "shards": {"split": us.Shards(2, **four)},
        "quantity": {"split": us.Quantity(0.5, **four)},
        "half_normal": {"split": us.HalfNormal(**four)},
        "group": {"data": with_domains, "split": us.ByGroup(2)},
        "entangled": {"split": us.Entangled(0.3, num_clients=3)},
        "entangled, dirichlet": {"data": with_domains, "split": us.Entangled(0.3, "dirichlet", **four)},
        "natural": {"data": named, "split": us.Natural()},
        "manifest": {"data": lambda here: f"npz:{here / 'a.npz'}", "split": from_manifest},
    }
    return {f"split {name}": base(**case) for name, case in splits.items()}


def with_domains(here: Path) -> str:
    x, y = rows()
    arrays = {"x_train": x[:60], "y_train": y[:60], "x_test": x[60:], "y_test": y[60:]}
    np.savez(here / "domains.npz", **arrays, domain_train=np.arange(60) % 2, domains=np.array(["old", "new"]))
    return f"npz:{here / 'domains.npz'}"


def from_manifest(here: Path) -> us.FromManifest:
    from unskew.data import to_manifest

    x, y = rows()
    np.savez(here / "a.npz", x_train=x[:60], y_train=y[:60], x_test=x[60:], y_test=y[60:])
    divided = us.federate(us.load(f"npz:{here / 'a.npz'}"), us.Dirichlet(0.3, num_clients=4), us.Key(5))
    (here / "split.json").write_text(json.dumps(to_manifest(divided)))
    return us.FromManifest(str(here / "split.json"))


def of_engines() -> dict[str, Case]:
    kinds: dict[str, Case] = {"sequential": {}, "stacked": {}, "workers": {"workers": 1}}
    cases = {f"executor {name}": base(runtime=us.Runtime(executor=name, **more)) for name, more in kinds.items()}
    both = {"FedAvg": us.FedAvg(), "SCAFFOLD": us.SCAFFOLD()}
    radio = us.World(channel=us.Radio())
    x, y = rows()
    named = {name: (x[i::3], y[i::3]) for i, name in enumerate(SITES)}
    cases |= {
        "cohorts of two": base(clients_per_round=2, rounds=3, methods=both),
        "cohorts of a half, codec": base(fraction=0.5, runtime=us.Runtime(executor="sequential", codec=True)),
        "outages": base(world=us.World(outage=us.Outage(unreachable=0.2, late=0.2)), rounds=4, methods=both),
        "radio": base(world=radio, methods={"feddif": us.FedDif(epsilon=0.01)}),
        "bounds, three seeds": base(bounds=True, seeds=[0, 1, 2]),
        "an unseen client": base(data=named, split=None, unseen=["Chur"]),
        "unseen clients": base(unseen=0.3, methods={"ditto": us.Ditto()}),
        "early stop": base(stop=us.Stop(patience=1), val_fraction=0.2, rounds=6, local=us.SgdConfig(lr=3.0)),
        "stop at megabytes": base(stop=us.Stop(megabytes=0.003), rounds=6),
        "best model kept": base(keep_models=us.KeepModels(every=1, best=True), val_fraction=0.2, rounds=3),
        "evaluated sometimes": base(rounds=3, eval_every=2, evaluate_clients=2, clients_per_round=2),
        "adam, cosine": base(
            local=us.SgdConfig(
                lr=0.01, optimizer="adam", lr_schedule=us.Scheduler("CosineAnnealingLR", {"T_max": 4}), local_steps=3
            )
        ),
        "lbfgs": base(local=us.SgdConfig(optimizer="lbfgs", local_steps=5)),
        "momentum, clipped": base(local=us.SgdConfig(lr=0.1, momentum=0.9, clip_norm=0.5, weight_decay=0.01)),
        "warm start": base(model=warm),
        "frozen body": base(model=frozen, methods=both),
        "stopped and resumed": base(methods={"SCAFFOLD": us.SCAFFOLD()}, rounds=3, stopped=1),
        "not stopped": base(methods={"SCAFFOLD": us.SCAFFOLD()}, rounds=3),
        "adaptive clip": base(
            methods={"private": us.wrap(us.FedAvg(), us.CentralDP(clip=0.5, adaptive=us.AdaptiveClip()))},
            clients_per_round=2,
        ),
        "file, two methods": {"toml": TOML},
    }
    for name in adaptors.names("attacks"):
        defended = {"plain": us.FedAvg(), "median": us.wrap(us.FedAvg(), us.Median())}
        kind: Case = {"data": images(), "model": "cnn_small"} if name == "backdoor" else {}
        attack = adaptors.attack(name, 0.0 if name == "honest" else 0.25)
        cases[f"attack {name}"] = base(methods=defended, world=us.World(attack=attack), **kind)
    return cases


TOML = """
name = "file"
rounds = 2
seeds = [0, 1]
task.data = "csv:table.csv"
task.model = "logistic"
task.preprocess = { scale = "agreed" }
task.data_options.target = "ill"
task.data_options.client = "site"
task.data_options.test = 0.25
task.data_options.leave_out = ["patient", "day", "part", "days", "died"]
split = { name = "natural" }
local = { lr = 0.1, batch_size = 8 }
runtime = { executor = "sequential" }
[[methods]]
name = "fedavg"
[[methods]]
name = "fedprox"
mu = 0.5
with = [{ name = "clip_norm", norm = 0.5 }]
"""


def warm(here: Path) -> Any:
    return us.simulate(**base(rounds=1, progress=False)).model("fedavg")


def frozen(here: Path) -> Any:
    import torch
    from torch import nn

    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(5, 6).requires_grad_(False), nn.ReLU(), nn.Linear(6, 3))


@functools.cache
def cases() -> dict[str, Case]:
    """All runs by name; what is a function is called with the run's folder."""
    return of_methods() | of_wrappers() | of_tasks() | of_splits() | of_engines()


def entry(name: str, here: Path) -> Case:
    """One run: fingerprint, traffic, headline, norm of the final state."""
    case = dict(cases()[name])
    if "toml" in case:
        table().to_csv(here / "table.csv", index=False)
        (here / "file.toml").write_text(case["toml"])
        code, _, said = adaptors.command("run", "file.toml", "--out", str(here / "run"), "--quiet", "--no-report")
        assert code == 0, said
        return measured(us.load_run(here / "run"))
    arguments = {key: value(here) if callable(value) else value for key, value in case.items()}
    stop = arguments.pop("stopped", None)
    if stop is None:
        return measured(us.simulate(**arguments, progress=False), name.startswith("method"))
    try:
        us.simulate(**arguments, progress=False, out=here / "run", callback=adaptors.stops_after(stop))
    except KeyboardInterrupt:
        return measured(us.resume(here / "run", progress=False))
    raise AssertionError("the run was not stopped")


def measured(history: us.History, clients: bool = False) -> Case:
    headline = history.headline
    results = {}
    for row in history.summary["rows"]:
        if row["metric"] in (headline.shared, headline.own):
            results[f"{row['method']} {row['metric']}"] = row["mean"]
    return {
        "fingerprint": history.summary["fingerprint"],
        "headline": headline.name,
        "norm": adaptors.state_norm(history, clients),
        "results": results,
        "traffic": adaptors.traffic(history),
    }
