"""Comparisons on strong label skew (Dirichlet alpha 0.1) and on natural clients: the core's methods, every method at
its defaults, and twelve methods each at its best.

These tables are ours.  Every method has the same split, cohorts, initial model, local optimisation and rounds; server
learning rates are round numbers, chosen before the runs.
"""

import dataclasses
import functools
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
from unskew.papers.claims import LEVEL, Claim, decide, paired
from unskew.papers.result import Result, Row
from unskew.papers.study import Draft, ReproductionRequest, curves_of, percent, rows_of
from unskew.report import stats
from unskew.report.stats import CONFIDENCE


def clock(request: ReproductionRequest) -> Result:
    """Compare methods by simulated time: accuracy when the first of them ends, and seconds until a target."""
    draft, methods = Draft.of(request), ["fedavg", "fedbuff", "fedasync", "feddif"]
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
    return draft.result()


def _by_time(history: History, method: str, seed: int) -> dict[float, float]:
    """The global accuracy of one training by the simulated second at which its round ended."""
    spent = history.frame.curve(method, seed, "clock")
    accuracies = history.frame.curve(method, seed, "global.accuracy")
    return {sum(s for r, s in spent.items() if r <= t): value for t, value in accuracies.items()}


OWN = "personal.accuracy.mean"
MORE = ("feddistr", "fedpft", "fedmd", "ffalora", "fedsalora")
"""Methods that need more than a network and clients' rows: a prior of images, public data, adapters."""

TWELVE = (
    "fedavg", "fedprox", "fednova", "scaffold", "feddyn", "fedavgm", "fedadam", "feddw", "feddif", "ditto", "fedper",
    "hcct",
)  # fmt: skip
"""Methods of the fair comparison: corrections of drift, servers' optimisers, ours, and models of one's own."""


def every() -> Sequence[str]:
    """Every method, without bounds and methods that need more settings."""
    return [name for name, entry in algorithms.TABLE.items() if entry.kind != "bound" and name not in MORE]


def defaults(request: ReproductionRequest) -> Result:
    """Every method with its defaults, on the clients' own test examples: which end below FedAvg?"""
    draft, methods = Draft.of(request), every()
    draft.rows += rows_of(draft.run("run", {**draft.ground(), "methods": {m: {} for m in methods}}), draft["metrics"])
    # Without the references, training alone and on pooled data.
    gains = {r.method: r.seeds for r in draft.rows if r.metric == f"{OWN}.minus_fedavg" and r.method in methods}
    draft.claims.append(none_below("no method ends below FedAvg on clients' own test examples", gains))
    return draft.result()


def tuned(request: ReproductionRequest) -> Result:
    """Tune at equal budgets on validation rows, then compare on unread rows until the comparison is decided."""
    draft = _tuned(request, TWELVE)
    draft.claims += against_fedavg({(r.method, r.metric): r.seeds for r in draft.rows})
    return draft.result()


def ranked(request: ReproductionRequest) -> Result:
    """Tune every method at equal budgets, and rank them on clients' own test examples under fresh seeds."""
    draft = _tuned(request, every())
    own = {r.method: r.seeds for r in draft.rows if r.metric == OWN}
    for label, rank in ranks(own).items():
        draft.add(label, draft.rows[0].setting, "rank", rank)
    best = [r.method for r in sorted(draft.rows, key=lambda r: sum(r.seeds)) if r.metric == "rank"]
    shown = [r for r in draft.rows if r.metric in ("rank", OWN, "global.accuracy", "bytes.total")]
    draft.rows = sorted(shown, key=lambda r: best.index(r.method))
    draft.curves = {label: draft.curves[label] for label in best[:8] if label in draft.curves}
    gains = {m: paired(v, own["fedavg"]) for m, v in own.items() if m != "fedavg"}
    draft.claims.append(none_below("tuned, no method ends below fedavg on clients' own test examples", gains))
    return draft.result()


def _tuned(request: ReproductionRequest, methods: Sequence[str]) -> Draft:
    """The methods' run at their best settings, and these as rows."""
    from unskew.decide.training import TrainingWork
    from unskew.decide.tuning.search import Budget, search
    from unskew.decide.tuning.space import ranges_of

    draft = Draft.of(request)
    folder = request.folder / "tuning"
    sites = sites_of(draft.experiment("tuned", {**draft.ground(), "methods": {m: {} for m in methods}}))
    folder.mkdir(parents=True, exist_ok=True)
    budget, note, until = Budget(draft["trials"]), request.callback.note, draft.settings.get("until")
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
    return draft


def ranks(values: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Each method's rank under each seed: 1 is the best, and equal ones share the mean of theirs."""
    by_seed = rankdata([[-v for v in seeds] for seeds in values.values()], axis=0)
    return dict(zip(values, by_seed.tolist(), strict=True))


def against_fedavg(values: Mapping[tuple[str, str], Sequence[float]]) -> list[Claim]:
    """The claims that methods end above FedAvg, from {(method, metric): values by seed} of a run until decided.

    A claim holds where its confidence sequence, corrected for the number of claims (Holm), excludes zero.  It is level
    where the sequence, widened for their number (Bonferroni), lies within LEVEL.
    """
    gains = {}
    for method in dict.fromkeys(m for m, _ in values if m != "fedavg"):
        # Ditto's global model is FedAvg's: what it is for are its clients' own.
        entry = algorithms.TABLE.get(method)
        names = (OWN, "global.accuracy") if entry and entry.kind == "personal" else ("global.accuracy", OWN)
        metric = next(n for n in names if (method, n) in values)
        gains[method] = paired(values[method, metric], values["fedavg", metric])
    looks = {m: functools.partial(stats.interval, gain, sequential=True) for m, gain in gains.items()}
    known, claims = {m: at for m, at in looks.items() if at() is not None}, []
    stand = stats.standing(known)
    for method, gain in gains.items():
        claim = decide(f"{method}, tuned, ends above fedavg, tuned", gain, sequential=True)
        wide = looks[method](1.0 - (1.0 - CONFIDENCE) / len(gains))
        level = method not in stand and wide is not None and -LEVEL < wide[0] <= 0 <= wide[1] < LEVEL
        holds = claim.holds if method in stand else False if level else None
        corrected = f", {'' if method in stand else 'not '}significant of {len(known)} methods (Holm)"
        evidence = claim.evidence + corrected * (method in known)
        claims.append(dataclasses.replace(claim, holds=holds, evidence=evidence, level=level))
    return claims


def none_below(text: str, gains: Mapping[str, Sequence[float]]) -> Claim:
    """The claim that no gain is below zero; the evidence lists those whose 95 % interval is.

    It does not hold if an interval is below zero when corrected for the number of gains (Holm), and holds if all gains
    are above zero or level.
    """
    claims = [decide(name, gain) for name, gain in gains.items()]
    below = [c for c in claims if c.holds is False and not c.level]
    above, level = sum(c.holds is True for c in claims), sum(c.level for c in claims)
    undecided = len(claims) - above - level - len(below)
    stand = stats.standing({name: functools.partial(stats.interval, gain) for name, gain in gains.items()})
    clear = sum(c.text in stand for c in below)
    counts = f"of {len(gains)}, {above} above it, {undecided} undecided, {level} level, {len(below)} below"
    if below:
        counts += (
            f", {clear} if corrected for {len(gains)} (Holm): {'; '.join(f'{c.text} {c.evidence}' for c in below)}"
        )
    return Claim(text, False if clear else None if below or undecided else True, counts)
