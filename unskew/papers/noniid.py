"""Comparisons on strong label skew (Dirichlet alpha 0.1) and on natural clients: the core's methods, every method at
its defaults, and twelve methods each at its best.

These tables are ours.  Every method has the same split, cohorts, initial model, local optimisation and rounds; server
learning rates are round numbers, chosen before the runs.
"""

from collections.abc import Sequence

from scipy.stats import rankdata

from unskew import algorithms
from unskew.decide.tuning import Budget, tune_experiment
from unskew.decide.tuning.page import EXPERIMENT
from unskew.decide.tuning.search import Searched
from unskew.experiment import config
from unskew.history import History
from unskew.papers.claims import LEVEL, Row, every, paired
from unskew.papers.study import Draft, curves_of, percent, rows_of
from unskew.report.stats import CONFIDENCE

OWN = "personal.accuracy.mean"
MORE = ("feddistr", "fedpft", "fedmd", "ffalora", "fedsalora")
"""Methods that need more than a network and clients' rows: a prior of images, public data, adapters."""

REFERENCES = ("independent", "centralised")


# ---------------------------------------------------------------- by simulated time
def clock(draft: Draft) -> None:
    """Compare methods by simulated time: accuracy when the first of them ends, and seconds until a target."""
    timed: dict[str, list[dict[float, float]]] = {}
    for part, methods in draft["compare"].items():
        history = draft.run(part, draft["experiment"], draft.settings.get(part, {}), methods=methods)
        timed |= {m: [_by_time(history, m, seed) for seed in history.record.seeds] for m in methods}
    end, setting = min(max(of) for seeds in timed.values() for of in seeds), history.summary["rows"][0]["setting"]
    grid = [end * (k / 40) for k in range(41)]  # the last is the end to the bit
    for name, seeds in timed.items():
        values = [[of[max(t for t in of if t <= x)] for of in seeds] for x in grid]
        draft.curves = {**draft.curves, name: percent(grid, values)}
        draft.add(name, setting, "global.accuracy", values[-1])
        reached = [[t for t, v in of.items() if v >= draft["target"]] for of in seeds]
        if all(reached):
            draft.add(name, setting, f"clock.to_{draft['target']:.0%}", [min(times) for times in reached])
        if name != "fedavg":
            text = f"{name} is above fedavg after {end:.0f} simulated seconds"
            draft.above(text, values[-1], draft.values("fedavg", setting, "global.accuracy"))


def _by_time(history: History, method: str, seed: int) -> dict[float, float]:
    """The global accuracy of one training by the simulated second at which its round ended."""
    spent = history.frame.curve(method, seed, "clock")
    accuracies = history.frame.curve(method, seed, "global.accuracy")
    return {sum(s for r, s in spent.items() if r <= t): value for t, value in accuracies.items()}


# ---------------------------------------------------------------- every method, and each at its best
def tried() -> Sequence[str]:
    """Every method, without bounds and methods that need more settings."""
    return [name for name, entry in algorithms.TABLE.items() if entry.kind != "bound" and name not in MORE]


def defaults(draft: Draft) -> None:
    """Every method with its defaults, on the clients' own test examples: which end below FedAvg?"""
    draft.rows += rows_of(draft.run("run", {**draft.ground(), "methods": {m: {} for m in tried()}}), draft["metrics"])
    none_below(draft, "no method ends below FedAvg on clients' own test examples")


def ranked(draft: Draft) -> None:
    """Tune every method at equal budgets, and rank them on clients' own test examples under fresh seeds."""
    _tuned(draft, tried())
    none_below(draft, "tuned, no method ends below fedavg on clients' own test examples")
    own = [r for r in draft.rows if r.metric == OWN and r.seeds]
    # 1 is the best, and equal ones share the mean of theirs
    ranks = rankdata([[-v for v in r.seeds] for r in own], axis=0).tolist()
    for r, rank in zip(own, ranks, strict=True):
        draft.add(r.method, r.setting, "rank", rank)
    best = [r.method for r in sorted(draft.rows, key=lambda r: sum(r.seeds)) if r.metric == "rank"]
    draft.rows.sort(key=lambda r: best.index(r.method))
    draft.curves = {label: draft.curves[label] for label in best[:8] if label in draft.curves}


def none_below(draft: Draft, text: str) -> None:
    """Add the claim that no method's own models end below FedAvg's by more than LEVEL."""
    own = {r.method: r.seeds for r in draft.rows if r.metric == OWN}
    gains = {m: paired(v, own["fedavg"]) for m, v in own.items() if m not in ("fedavg", *REFERENCES)}
    draft.claims.append(every(text, gains, least=-LEVEL))


def tuned(draft: Draft) -> None:
    """Tune at equal budgets on validation rows, then compare on unread rows until the comparison is decided.

    Each claim is decided by a confidence sequence that is widened for their number (Bonferroni).
    """
    searches = _tuned(draft, draft["compare"])
    rivals, setting = [m for m in draft["compare"] if m != "fedavg"], draft.rows[0].setting
    for s in searches:
        values = {} if s.best is None else s.trials[s.best].values
        draft.rows += [Row(s.method.label, setting, name, None, v, None, "seeds", ()) for name, v in values.items()]
    wide = 1.0 - (1.0 - CONFIDENCE) / len(rivals)
    for m in rivals:
        # Ditto's global model is FedAvg's: what it is for are its clients' own.
        metric = OWN if algorithms.TABLE[m].kind == "personal" else "global.accuracy"
        both = [draft.values(label, setting, metric) for label in (m, "fedavg")]
        draft.above(f"{m}, tuned, ends above fedavg, tuned", *both, sequential=True, confidence=wide)


def _tuned(draft: Draft, methods: Sequence[str]) -> Sequence[Searched]:
    """Tune the methods at equal budgets, and add the run that follows from it: the same clients under fresh seeds."""
    asked = draft.experiment("compared", {**draft.ground(), "methods": {m: {} for m in methods}})
    folder, note = draft.folder / "tuning", draft.callback.note
    searches = tune_experiment(asked, folder, Budget(draft["trials"]), 1, note).searches
    follows = config.parse({**config.read(folder / EXPERIMENT), "seeds": draft["fresh_seeds"]})
    history = draft.complete(follows, "compared")
    draft.seconds += sum(t.seconds for s in searches for t in s.trials)
    draft.rows += rows_of(history, draft["metrics"])
    draft.curves = curves_of(history)
    return searches
