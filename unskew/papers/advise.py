"""Advice on made situations whose truth is measured, and beside a full comparison on natural suites.

Notation   W    a teacher, ten by four, standard normal: what a row's label follows from is x W plus noise
           n    rows that a site trains on; it has as many for testing
A point is a hundredth of an accuracy, or of the larger of two AUROCs or squared errors.
"""

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from unskew import api
from unskew.algorithms.fedavg import FedAvg
from unskew.decide.advice import advise_experiment
from unskew.decide.advice.race import ALONE, FEDAVG, FOLD_SEEDS, RATES
from unskew.decide.scores import Scores, gain
from unskew.decide.sites import Sites, sites_of
from unskew.decide.training import Impossible, Training
from unskew.experiment import config
from unskew.experiment.config import NamedMethod
from unskew.papers.claims import LEVEL, Claim, interval
from unskew.papers.result import Result, over_seeds
from unskew.papers.toolkit import Draft, ReproductionRequest, drawn, merged, once
from unskew.protocol import SgdConfig
from unskew.report.worth import bracket

Floats = npt.NDArray[np.float64]
Draw = np.random.Generator

COLUMNS, CLASSES = 10, 4
KINDS = ("classification", "binary", "classification", "regression")
TRUE_ROWS, TRUE_SEEDS = 2000, 2
"""Further rows of each site, and seeds, by which the truth is measured."""

WRONG = 0.05
"""Share of wrong answers that is allowed."""


# ---------------------------------------------------------------- made situations
@dataclass(frozen=True)
class Place:
    """A site whose rows can be drawn: its teacher, the rows it trains on, and what its inputs and labels are like."""

    w: Floats
    n: int
    noise: float
    centre: Floats | float = 0.0
    mixing: Floats | None = None

    def rows(self, draw: Draw, kind: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[Any]]:
        """Draw its rows: a class is the largest of four scores, or if the first is above 1; a number is the first."""
        x = draw.normal(size=(self.n, COLUMNS)) + self.centre
        scores = x @ self.w + self.noise * draw.normal(size=(self.n, CLASSES))
        y = {"classification": scores.argmax(1), "binary": (scores[:, 0] > 1).astype(np.int64)}.get(kind)
        inputs = x if self.mixing is None else x @ self.mixing
        return inputs.astype(np.float32), scores[:, 0].astype(np.float32) if y is None else y


def teacher(draw: Draw) -> Floats:
    """Draw W."""
    return draw.normal(size=(COLUMNS, CLASSES))


def alike(draw: Draw) -> list[Place]:
    """Four or five sites with one teacher: 15 to 80 rows each, and little noise or much."""
    place = Place(teacher(draw), int(np.exp(draw.uniform(*np.log((15, 80))))), draw.uniform(0.0, 4.0))
    return [place] * int(draw.integers(4, 6))


def shifted(draw: Draw) -> list[Place]:
    """One teacher, inputs around another centre at each site."""
    return [replace(p, centre=draw.normal(size=COLUMNS)) for p in alike(draw)]


def instruments(draw: Draw) -> list[Place]:
    """One teacher, instruments of two kinds that mix the columns in two ways."""
    mixing = [np.linalg.qr(draw.normal(size=(COLUMNS, COLUMNS)))[0] for _ in range(2)]
    return [replace(p, mixing=mixing[k % 2]) for k, p in enumerate(alike(draw))]


def opposite(draw: Draw) -> list[Place]:
    """Every second site has the opposite teacher."""
    return [replace(p, w=p.w * (-1) ** k) for k, p in enumerate(alike(draw))]


def one_wrong(draw: Draw) -> list[Place]:
    """One site has the opposite teacher, and half of all rows."""
    *others, last = alike(draw)
    return [*others, replace(last, w=-last.w, n=len(others) * last.n)]


def one_large(draw: Draw) -> list[Place]:
    """One site is ten times as large."""
    *others, last = alike(draw)
    return [*others, replace(last, n=10 * last.n)]


def related(draw: Draw) -> list[Place]:
    """Each site's teacher differs from a common one, by little or much."""
    apart = draw.uniform(0.1, 2.0)
    return [replace(p, w=p.w + apart * teacher(draw)) for p in alike(draw)]


def unrelated(draw: Draw) -> list[Place]:
    """Each site has a teacher of its own, and many rows."""
    return [replace(p, w=teacher(draw), n=4 * p.n) for p in alike(draw)]


def enough(draw: Draw) -> list[Place]:
    """One teacher, and each site has all the rows that it needs."""
    return [replace(p, n=400, noise=0.5) for p in alike(draw)]


def chance(draw: Draw) -> list[Place]:
    """Labels have nothing to do with inputs, at any site."""
    return [replace(p, w=0 * p.w, noise=2.0) for p in alike(draw)]


RECIPES = (alike, shifted, instruments, opposite, one_wrong, one_large, related, unrelated, enough, chance)


@dataclass(frozen=True)
class Situation:
    """An answer beside the truth, in points.

    Attributes:
        verdict: The answer.
        method: The method that the answer is about.
        gain: That method's true gain over local training; 0 without one.
        raced: That of the race's choice, which test rows may set aside.
        fedavg: FedAvg's.
        best: The greatest true gain of FedAvg, Ditto, the race's choice and the answer's method.
    """

    verdict: str
    method: str
    gain: float
    raced: float
    fedavg: float
    best: float

    @property
    def wrong_join(self) -> bool:
        """True if it says that sites should join, with a method that gains nothing."""
        return self.verdict == "join" and self.gain <= 0

    @property
    def wrong_alone(self) -> bool:
        """True if it says that sites should train alone, where a method gains a point or more."""
        return self.verdict == "alone" and self.best >= 1


def ask(recipe: Callable[[Draw], list[Place]], seed: int, rounds: int, final_seeds: int, folds: int) -> Situation:
    """The advice on a situation drawn under a seed, and the truth."""
    draw = np.random.default_rng([seed, RECIPES.index(recipe)])
    kind, places = KINDS[seed % len(KINDS)], recipe(draw)
    rate = float(f"{np.exp(draw.uniform(*np.log((0.02, 0.3)))) / (4 if kind == 'regression' else 1):.2g}")
    train, test, more = (
        {f"site {k}": replace(p, n=max(p.n, least)).rows(draw, kind) for k, p in enumerate(places)}
        for least in (0, 0, TRUE_ROWS)
    )
    settings = {"rounds": rounds, "seeds": [seed]}
    (experiment, inputs), true = (
        api.described(
            FedAvg(local=SgdConfig(lr=rate, local_epochs=1, batch_size=32)), settings,
            data=train, test=rows, model="logistic", task=kind,
        )
        for rows in (test, more)
    )  # fmt: skip
    advice = advise_experiment(experiment, float("inf"), inputs=inputs, fresh_seeds=final_seeds, folds=folds)
    own = advice.race.bounds[ALONE].method.options["local"]
    asked = [advice.check.answering(advice.race), advice.race.chosen, advice.race.bounds.get(FEDAVG)]
    methods = {e.method.label: e.method for e in asked if e is not None}
    methods |= {"Ditto": config.method("ditto", {"local": own}), ALONE: advice.race.bounds[ALONE].method}
    scores = {}
    sites = sites_of(*true)
    for label, method in methods.items():
        try:
            scores[label] = statistics.fmean(s.mean for s in under_seeds(sites, method, range(7, 7 + TRUE_SEEDS)))
        except Impossible:
            continue
    alone, sign = scores[ALONE], 100 if sites.measure.higher else -100
    gains = {
        label: sign * (score - alone) / (1.0 if sites.measure.percent else max(score, alone))
        for label, score in scores.items()
    }
    label = advice.check.chosen or ""
    raced = "" if advice.race.chosen is None else advice.race.chosen.method.label
    of_choice, of_raced, of_fedavg = (gains.get(one, 0.0) for one in (label, raced, FEDAVG))
    return Situation(advice.verdict, label, of_choice, of_raced, of_fedavg, max(gains.values()))


def situations(request: ReproductionRequest) -> Result:
    """Ask for advice on made situations, and count wrong answers.

    Each outcome is kept in a file of the request's folder, so that a reproduction that was stopped goes on.
    """
    draft = Draft.of(request)
    size = {key: draft[key] for key in ("rounds", "final_seeds", "folds")}
    by_recipe: dict[str, list[Situation]] = {recipe.__name__: [] for recipe in RECIPES}
    for seed in draft["seeds"]:
        for recipe in RECIPES:
            name = recipe.__name__
            kept = once(request.folder / f"{name}-{seed}.json", size, partial(_outcome, recipe, seed, size))
            by_recipe[name].append(Situation(**kept["outcome"]))
            draft.seconds += kept["seconds"]
            request.callback.note(f"{name} {seed}: {by_recipe[name][-1]}")
    outcomes = [o for of_recipe in by_recipe.values() for o in of_recipe]
    for name, of_recipe in by_recipe.items():
        columns: dict[str, list[float]] = {
            "join": [o.verdict == "join" for o in of_recipe],
            "alone": [o.verdict == "alone" for o in of_recipe],
            "wrong join": [o.wrong_join for o in of_recipe],
            "wrong alone": [o.wrong_alone for o in of_recipe],
            "true gain, points": [o.gain for o in of_recipe],
            "FedAvg's, points": [o.fedavg for o in of_recipe],
        }
        label = name.replace("_", " ")
        draft.rows += [over_seeds(label, "made sites", what, [float(v) for v in of]) for what, of in columns.items()]
    n = len(outcomes)
    wrong = {what: sum(getattr(o, f"wrong_{what}") for o in outcomes) for what in ("join", "alone")}
    undecided = sum(o.verdict == "undecided" for o in outcomes)
    over = [o.raced - o.fedavg for o in outcomes]
    ends = interval(over)
    over_fedavg = "not known" if ends is None else "{:+.2f} [{:+.2f}, {:+.2f}] points".format(*ends)
    draft.claims += [
        Claim(
            f"at most {100 * WRONG:g} % of answers are wrong",
            sum(wrong.values()) <= WRONG * n,
            f"of {n}: {wrong['join']} wrong join, {wrong['alone']} wrong alone, {undecided} undecided",
        ),
        Claim(
            "the race's choice is no worse than always FedAvg",
            ends is not None and ends[1] >= -100 * LEVEL,
            f"over FedAvg {over_fedavg}; worse by a point or more in {sum(d <= -1 for d in over)} of {n}",
        ),
    ]
    draft.seeds |= set(draft["seeds"])
    return draft.result(n=n)


def _outcome(recipe: Callable[[Draw], list[Place]], seed: int, size: Mapping[str, int]) -> dict[str, Any]:
    return {"outcome": dataclasses.asdict(ask(recipe, seed, **size))}


def under_seeds(sites: Sites, method: NamedMethod, seeds: Sequence[int]) -> tuple[Scores, ...]:
    """A method's scores on test rows under each seed.

    Raises:
        ConfigError, DataError, DivergedError, ProtocolError, QuorumError: If it cannot be trained.
    """
    scores = []
    for seed in seeds:
        training = Training(method, sites, sites.experiment.rounds, seed, sites.fed)
        training.go_on(sites.experiment.rounds)
        scores.append(training.scores(sites.fed.clients.test))
    return tuple(scores)


# ---------------------------------------------------------------- natural suites
def natural(request: ReproductionRequest) -> Result:
    """Ask for advice on five natural suites, and compare its choice with the best method of a full comparison.

    Each suite's outcome is kept in a file of the request's folder, so that a reproduction that was stopped goes on.
    """
    draft = Draft.of(request)
    for name, suite in draft["suites"].items():
        methods = {label: of for label, of in draft["methods"].items() if label not in suite.get("without", ())}
        settings = merged(draft["experiment"], {"methods": methods}, suite)
        settings.pop("without", None)
        settings["task"] |= drawn(request, settings["task"]["data"], None)
        key = {"run": repr((settings, draft["folds"], draft["final_seeds"]))}
        suite_of = partial(_suite, name, settings, draft, request.callback.note)
        outcome = once(request.folder / f"{name}.json", key, suite_of)
        draft.rows += [over_seeds(m, name, outcome["metric"], of) for m, of in outcome["values"].items()]
        draft.claims.append(Claim(**outcome["claim"]))
        draft.seeds |= set(outcome["seeds"])
        draft.seconds += outcome["seconds"]
    near = [c.holds for c in draft.claims]
    text = f"on {len(near)} of {len(near)} suites the choice is within one point of the best, or it says undecided"
    every = True if all(near) else False if False in near else None
    draft.claims.insert(0, Claim(text, every, f"{sum(h is True for h in near)} of {len(near)}"))
    return draft.result()


def _suite(name: str, settings: Mapping[str, Any], draft: Draft, note: Callable[[str], None]) -> dict[str, Any]:
    """The outcome for one suite: the value of each method and seed, and the claim."""
    compared = [{"name": label, **table, "label": label} for label, table in settings["methods"].items()]
    experiment = config.parse({**settings, "methods": compared, "name": name}, name)
    # Advice gets FedAvg alone: what races is its own choice.
    asked = config.parse({**settings, "methods": [{"name": "fedavg", "label": "FedAvg"}], "name": name}, name)
    advice = advise_experiment(asked, float("inf"), note=note, fresh_seeds=draft["final_seeds"], folds=draft["folds"])
    sites, seeds, measure = advice.sites, advice.check.seeds, advice.sites.measure
    label = advice.method.label
    scores: dict[str, tuple[Scores, ...]] = {}
    for method in experiment.methods:
        try:
            of_seeds = at_best_rate(sites, method, seeds)
        except Impossible as error:
            note(f"{name}: {method.label} is left out: {error}")
            continue
        scores[method.label] = of_seeds
        value = statistics.fmean(s.mean for s in of_seeds)
        note(f"{name}: {method.label} {measure.with_unit(value)} on test rows")
    means = {m: statistics.fmean(s.mean for s in of_seeds) for m, of_seeds in scores.items()}
    best = measure.first(means)
    chosen = advice.check.results[label]
    gap, _ = gain(scores[best], chosen, measure)
    near = gap.mean <= advice.margin
    reached = gap.low is not None and gap.low <= advice.margin
    is_undecided = advice.verdict == "undecided"
    theirs = statistics.fmean(s.mean for s in chosen)
    claim = Claim(
        f"{name}: the choice is within one point of the best of {len(scores)} methods, or it says undecided",
        True if near or is_undecided else None if reached else False,
        f"advice: {advice.verdict}, {label} {measure.with_unit(theirs)}; best: {best} "
        f"{measure.with_unit(means[best])}; difference {bracket(gap, measure)}",
    )
    values = {**{m: [s.mean for s in of] for m, of in scores.items()}, f"advice: {label}": [s.mean for s in chosen]}
    return {
        "metric": measure.label,
        "values": values,
        "claim": {"text": claim.text, "holds": claim.holds, "evidence": claim.evidence},
        "seeds": list(seeds),
    }


def at_best_rate(sites: Sites, method: NamedMethod, seeds: Sequence[int]) -> tuple[Scores, ...]:
    """A method's scores on test rows under each seed, at the local rate that does best on one fold's validation rows.

    Raises:
        ConfigError, DataError, DivergedError, ProtocolError, QuorumError: If it cannot be trained.
    """
    rounds, fold = sites.experiment.rounds, sites.folds[0]
    tried: dict[str, tuple[NamedMethod, float]] = {}
    failure: Exception | None = None
    for factor in RATES:
        local = method.options["local"]
        rated = config.method(
            method.name,
            {**method.options, "local": {**local, "lr": float(f"{factor * local['lr']:.3g}")}},
            method.label,
        )
        try:
            training = Training(rated, sites, rounds, sites.experiment.seeds[0] + FOLD_SEEDS, fold)
            training.go_on(rounds)
            tried[str(factor)] = (rated, training.scores(fold.clients.val).mean)
        except Impossible as error:
            failure = error
    if not tried:
        assert failure is not None
        raise failure
    rated, _ = tried[sites.measure.first({factor: value for factor, (_, value) in tried.items()})]
    return under_seeds(sites, rated, seeds)
