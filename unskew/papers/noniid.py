"""Comparisons on strong label skew (Dirichlet alpha 0.1) and on natural clients: the core's methods, every method at
its defaults, and twelve methods each at its best.

These tables are ours.  Every method has the same split, cohorts, initial model, local optimisation and rounds; server
learning rates are round numbers, chosen before the runs.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence

from scipy.stats import rankdata

from unskew import algorithms
from unskew.data.federated import to_manifest
from unskew.data.split import FromManifest
from unskew.decide.cells import queue, run
from unskew.decide.crew import Here
from unskew.decide.identity import about
from unskew.decide.sites import sites_of
from unskew.experiment import config
from unskew.files import write_atomically
from unskew.history import History
from unskew.papers.claims import LEVEL, Claim, Row, decide, every, paired
from unskew.papers.study import Draft, curves_of, percent, rows_of
from unskew.report.stats import CONFIDENCE


def clock(draft: Draft) -> None:
    """Compare methods by simulated time: accuracy when the first of them ends, and seconds until a target."""
    methods = ["fedavg", "fedbuff", "fedasync", "feddif"]
    history = draft.run("run", draft["experiment"], methods=methods)
    late = draft.run("deadline", draft["experiment"], draft["deadline"], methods=["fedavg"])
    timed = {m: [_by_time(history, m, s) for s in sorted(draft.seeds)] for m in methods}
    timed["fedavg, deadline"] = [_by_time(late, "fedavg", s) for s in sorted(draft.seeds)]
    end, target = min(max(c) for of in timed.values() for c in of), draft["target"]
    ends: dict[str, list[float]] = {}
    for name, seeds in timed.items():
        grid = [end * (k / 40) for k in range(41)]  # the last is the end to the bit
        values = [[of[max(t for t in of if t <= x)] for of in seeds] for x in grid]
        draft.curves, ends[name] = {**draft.curves, name: percent(grid, values)}, values[-1]
        draft.add(name, setting := history.summary["rows"][0]["setting"], "global.accuracy", ends[name])
        reached = [[t for t, v in of.items() if v >= target] for of in seeds]
        if all(reached):
            draft.add(name, setting, f"clock.to_{target:.0%}", [min(times) for times in reached])
    for name in [*ends][1:]:
        draft.above(f"{name} is above fedavg after {end:.0f} simulated seconds", ends[name], ends["fedavg"])


def _by_time(history: History, method: str, seed: int) -> dict[float, float]:
    """The global accuracy of one training by the simulated second at which its round ended."""
    spent = history.frame.curve(method, seed, "clock")
    accuracies = history.frame.curve(method, seed, "global.accuracy")
    return {sum(s for r, s in spent.items() if r <= t): value for t, value in accuracies.items()}


OWN = "personal.accuracy.mean"
MORE = ("feddistr", "fedpft", "fedmd", "ffalora", "fedsalora")
"""Methods that need more than a network and clients' rows: a prior of images, public data, adapters."""

REFERENCES = ("independent", "centralised")

TWELVE = (
    "fedavg", "fedprox", "fednova", "scaffold", "feddyn", "fedavgm", "fedadam", "feddw", "feddif", "ditto", "fedper",
    "hcct",
)  # fmt: skip
"""Methods of the fair comparison: corrections of drift, servers' optimisers, ours, and models of one's own."""


def tried() -> Sequence[str]:
    """Every method, without bounds and methods that need more settings."""
    return [name for name, entry in algorithms.TABLE.items() if entry.kind != "bound" and name not in MORE]


def defaults(draft: Draft) -> None:
    """Every method with its defaults, on the clients' own test examples: which end below FedAvg?"""
    draft.rows += rows_of(draft.run("run", {**draft.ground(), "methods": {m: {} for m in tried()}}), draft["metrics"])
    minus = (r for r in draft.rows if r.metric == f"{OWN}.minus_fedavg")
    gains = {r.method: r.seeds for r in minus if r.method not in REFERENCES}
    draft.claims.append(every("no method ends below FedAvg on clients' own test examples", gains, least=-LEVEL))


def tuned(draft: Draft) -> None:
    """Tune at equal budgets on validation rows, then compare on unread rows until the comparison is decided."""
    _tuned(draft, TWELVE)
    draft.claims += against_fedavg({(r.method, r.metric): r.seeds for r in draft.rows})


def ranked(draft: Draft) -> None:
    """Tune every method at equal budgets, and rank them on clients' own test examples under fresh seeds."""
    _tuned(draft, tried())
    own = {r.method: r.seeds for r in draft.rows if r.metric == OWN}
    for label, rank in ranks(own).items():
        draft.add(label, draft.rows[0].setting, "rank", rank)
    best = [r.method for r in sorted(draft.rows, key=lambda r: sum(r.seeds)) if r.metric == "rank"]
    shown = [r for r in draft.rows if r.metric in ("rank", OWN, "global.accuracy", "bytes.total")]
    draft.rows = sorted(shown, key=lambda r: best.index(r.method))
    draft.curves = {label: draft.curves[label] for label in best[:8] if label in draft.curves}
    gains = {m: paired(v, own["fedavg"]) for m, v in own.items() if m not in ("fedavg", *REFERENCES)}
    draft.claims.append(every("tuned, no method ends below fedavg on clients' own test examples", gains, least=-LEVEL))


def _tuned(draft: Draft, methods: Sequence[str]) -> None:
    """The methods' run at their best settings, and these as rows."""
    from unskew.decide.training import TrainingWork
    from unskew.decide.tuning.search import Budget, search
    from unskew.decide.tuning.space import ranges_of

    folder = draft.request.folder / "tuning"
    sites = sites_of(draft.experiment("tuned", {**draft.ground(), "methods": {m: {} for m in methods}}))
    folder.mkdir(parents=True, exist_ok=True)
    budget, note, until = Budget(draft["trials"]), draft.request.callback.note, draft.settings.get("until")
    with queue(folder / "trials.sqlite", about(sites, folder / "trials.sqlite")) as kept:
        plans = [search(sites, m, ranges_of(m), budget, note) for m in sites.experiment.methods]
        searches = run(plans, kept, Here(TrainingWork(sites, threads=1)))
    write_atomically(folder / "clients.json", json.dumps(to_manifest(sites.fed)))
    compared = dataclasses.replace(
        sites.experiment,
        methods=tuple(s.tuned for s in searches),
        split=FromManifest(str((folder / "clients.json").resolve())),
        val_fraction=0.0,
        seeds=tuple(draft.settings.get("fresh_seeds", (0,))),
        until=config.until_of({**until, "first": max(sites.experiment.seeds) + 1}) if until else None,
    )
    history = draft.complete(compared, "compared")
    draft.seconds += sum(t.seconds for s in searches for t in s.trials)
    draft.rows += rows_of(history, draft["metrics"])
    draft.curves = curves_of(history)
    for searched in searches:
        values = {} if searched.best is None else searched.trials[searched.best].values
        label, setting = searched.method.label, draft.rows[0].setting
        draft.rows += [Row(label, setting, name, None, v, None, "seeds", ()) for name, v in values.items()]


def ranks(values: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Each method's rank under each seed: 1 is the best, and equal ones share the mean of theirs."""
    by_seed = rankdata([[-v for v in seeds] for seeds in values.values()], axis=0)
    return dict(zip(values, by_seed.tolist(), strict=True))


def against_fedavg(values: Mapping[tuple[str, str], Sequence[float]]) -> list[Claim]:
    """The claims that methods end above FedAvg, from {(method, metric): values by seed} of a run until decided.

    Each is decided by a confidence sequence that is widened for their number (Bonferroni).
    """
    gains = {}
    for method in dict.fromkeys(m for m, _ in values if m != "fedavg"):
        # Ditto's global model is FedAvg's: what it is for are its clients' own.
        entry = algorithms.TABLE.get(method)
        names = (OWN, "global.accuracy") if entry and entry.kind == "personal" else ("global.accuracy", OWN)
        metric = next(n for n in names if (method, n) in values)
        gains[method] = paired(values[method, metric], values["fedavg", metric])
    wide = 1.0 - (1.0 - CONFIDENCE) / max(len(gains), 1)
    return [
        decide(f"{m}, tuned, ends above fedavg, tuned", gain, sequential=True, confidence=wide)
        for m, gain in gains.items()
    ]
