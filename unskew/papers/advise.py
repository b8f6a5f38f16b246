"""Tests advice: on simulated sites whose truth is measured, and against a full comparison on natural suites.

Notation   W    a teacher, ten by four, standard normal: a row's scores are x W plus noise
           n    rows that a site trains on; it has as many for testing
A point is a hundredth of an accuracy, or of the larger of two AUROCs or squared errors.
"""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unskew import api
from unskew.algorithms.fedavg import FedAvg
from unskew.decide.advice import Advice, advise_experiment
from unskew.decide.advice.race import ALONE, FEDAVG, FOLD_SEEDS, RATES, rated_local
from unskew.decide.cells import Plan, queue, run
from unskew.decide.crew import Here
from unskew.decide.identity import about
from unskew.decide.scores import Scores, gain
from unskew.decide.sites import Sites, sites_of
from unskew.decide.training import TrainingJob, TrainingWork, scores_of, trained
from unskew.experiment import config
from unskew.experiment.config import NamedMethod
from unskew.papers.claims import LEVEL, Claim, decide
from unskew.papers.study import Draft
from unskew.protocol import SgdConfig
from unskew.report.worth import bracket

OfSeeds = tuple[Scores, ...]
Floats = npt.NDArray[np.float64]
Draw = np.random.Generator

COLUMNS, CLASSES = 10, 4
KINDS = ("classification", "binary", "classification", "regression")


# ---------------------------------------------------------------- made situations
@dataclass(frozen=True)
class Place:
    """A site whose rows can be drawn: its teacher, the rows it trains on, and the distribution of inputs and labels."""

    w: Floats
    n: int
    noise: float
    centre: Floats | float = 0.0
    mixing: Floats | None = None

    def rows(self, draw: Draw, kind: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[Any]]:
        """Draw its rows: a class is the largest of four scores, or the first being above 1; a number is the first
        score.
        """
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


def mixed(draw: Draw) -> list[Place]:
    """One teacher, and two kinds of instruments that mix the columns in different ways."""
    mixing = [np.linalg.qr(draw.normal(size=(COLUMNS, COLUMNS)))[0] for _ in range(2)]
    return [replace(p, mixing=mixing[k % 2]) for k, p in enumerate(alike(draw))]


def related(draw: Draw) -> list[Place]:
    """Each site's teacher differs from a common one, by little or much."""
    apart = draw.uniform(0.1, 2.0)
    return [replace(p, w=p.w + apart * teacher(draw)) for p in alike(draw)]


RECIPES: dict[str, Callable[[Draw], list[Place]]] = {
    "alike": alike,
    "shifted": lambda draw: [replace(p, centre=draw.normal(size=COLUMNS)) for p in alike(draw)],
    "instruments": mixed,
    "opposite": lambda draw: [replace(p, w=p.w * (-1) ** k) for k, p in enumerate(alike(draw))],
    # the last has the opposite teacher, and half of all rows
    "one_wrong": lambda draw: [
        *(others := alike(draw)[1:]),
        replace(others[0], w=-others[0].w, n=len(others) * others[0].n),
    ],
    "one_large": lambda draw: [*(rest := alike(draw)[1:]), replace(rest[0], n=10 * rest[0].n)],
    "related": related,
    "unrelated": lambda draw: [replace(p, w=teacher(draw), n=4 * p.n) for p in alike(draw)],
    "enough": lambda draw: [replace(p, n=400, noise=0.5) for p in alike(draw)],
    "chance": lambda draw: [replace(p, w=0 * p.w, noise=2.0) for p in alike(draw)],
}
"""Sites by what is the matter with them: inputs around another centre at each, a teacher of each site's own and many
rows, all the rows that it needs, labels that have nothing to do with inputs."""


def judged(verdict: str, gained: float, fedavg: float, best: float) -> dict[str, float]:
    """What is shown of an answer: a join is wrong that gains nothing, and training alone where a point is to be had.

    Args:
        verdict: The answer.
        gained, fedavg, best: True gains over training alone, points: of the method that it is about, of FedAvg, and
            the greatest.
    """
    return {
        "join": verdict == "join",
        "alone": verdict == "alone",
        "wrong join": verdict == "join" and gained <= 0,
        "wrong alone": verdict == "alone" and best >= 1,
        "true gain, points": gained,
        "FedAvg's, points": fedavg,
    }


def ask(draft: Draft, recipe: str, seed: int) -> tuple[dict[str, float], float]:
    """The advice on simulated sites drawn under a seed, as `judged`; trainings are kept in a folder of its own.

    Beside it, by how many points the race's choice, which test rows may overrule, is truly above FedAvg.
    """
    draw = np.random.default_rng([seed, list(RECIPES).index(recipe)])
    kind, places = KINDS[seed % len(KINDS)], RECIPES[recipe](draw)
    rate = float(f"{np.exp(draw.uniform(*np.log((0.02, 0.3)))) / (4 if kind == 'regression' else 1):.2g}")
    train, test, more = (
        {f"site {k}": replace(p, n=max(p.n, least)).rows(draw, kind) for k, p in enumerate(places)}
        for least in (0, 0, draft["true_rows"])
    )
    settings = {"rounds": draft["rounds"], "seeds": [seed]}
    (experiment, inputs), true = (
        api.described(
            FedAvg(local=SgdConfig(lr=rate, local_epochs=1, batch_size=32)), settings,
            data=train, test=rows, model="logistic", task=kind,
        )
        for rows in (test, more)
    )  # fmt: skip
    folder, sites = draft.folder / f"{recipe}-{seed}", sites_of(*true)
    advice = advise_experiment(
        experiment, inputs=inputs, fresh_seeds=draft["final_seeds"], folds=draft["folds"], folder=folder
    )
    race, alone = advice.race, advice.race.bounds[ALONE].method
    answer = None if advice.check.chosen is None else advice.check.answering(race)
    entries = {"answer": answer, "raced": race.chosen, "fedavg": race.bounds.get(FEDAVG)}
    methods = {role: entry.method for role, entry in entries.items() if entry is not None}
    methods |= {"alone": alone, "ditto": config.method("ditto", {"local": alone.options["local"]}, "Ditto")}
    plans = {role: scored(sites, m, draft["true_seeds"]) for role, m in methods.items()}
    scores = {role: mean(of_seeds) for role, of_seeds in play(sites, plans, folder / "truth.sqlite").items()}
    base, sign = scores["alone"], 100 if sites.measure.higher else -100
    gains = {
        role: sign * (score - base) / (1.0 if sites.measure.percent else max(score, base))
        for role, score in scores.items()
    }
    gained, raced, fedavg = (gains.get(role, 0.0) for role in entries)
    return judged(advice.verdict, gained, fedavg, max(gains.values())), raced - fedavg


def situations(draft: Draft) -> None:
    """Ask for advice on simulated sites, and count wrong answers; an interrupted run is resumed."""
    shown: dict[str, list[dict[str, float]]] = {recipe: [] for recipe in RECIPES}
    over = []
    for seed, recipe in itertools.product(draft["seeds"], RECIPES):
        answer, above = ask(draft, recipe, seed)
        draft.callback.note(f"{recipe} {seed}: {answer}")
        shown[recipe].append(answer)
        over.append(above)
    for recipe, answers in shown.items():
        for what in answers[0]:
            draft.add(recipe.replace("_", " "), "made sites", what, [float(a[what]) for a in answers])
    counts = Counter(what for answers in shown.values() for a in answers for what, is_so in a.items() if is_so is True)
    n, wrong = len(over), counts["wrong join"] + counts["wrong alone"]
    undecided = n - counts["join"] - counts["alone"]
    evidence = f"of {n}: {counts['wrong join']} wrong join, {counts['wrong alone']} wrong alone, {undecided} undecided"
    text = f"at most {100 * draft['wrong']:g} % of answers are wrong"
    draft.claims.append(Claim(text, wrong <= draft["wrong"] * n, evidence))
    claim = decide("the race's choice is no worse than always FedAvg", [d / 100 for d in over], least=-LEVEL)
    evidence = claim.evidence.replace("seeds", "situations")
    evidence += f"; worse by a point or more in {sum(d <= -1 for d in over)} of {n}"
    draft.claims.append(replace(claim, evidence=evidence))


# ---------------------------------------------------------------- natural suites
def natural(draft: Draft) -> None:
    """Ask for advice on five natural suites (resumed if interrupted), and compare it with a full comparison."""
    for name, table in draft.on(draft["grounds"]).items():
        without, folder = table.pop("without", ()), draft.folder / name
        compared = draft.experiment(name, table, methods=[m for m in table["methods"] if m not in without])
        # Advice gets FedAvg alone: what races is its own choice.
        asked = draft.experiment(name, table, methods=["FedAvg"])
        advice = advise_experiment(
            asked, note=draft.callback.note, fresh_seeds=draft["final_seeds"], folds=draft["folds"],
            folder=folder,
        )  # fmt: skip
        sites, check, label = advice.sites, advice.check, advice.method.label
        plans = {m.label: at_best_rate(sites, m, check.seeds) for m in compared.methods}
        scores = play(sites, plans, folder / "comparison.sqlite")
        draft.claims.append(suite_claim(name, advice, scores))
        for m, of_seeds in {**scores, f"advice: {label}": check.results[label]}.items():
            draft.add(m, name, sites.measure.label, [s.mean for s in of_seeds])
        draft.seeds |= set(check.seeds)
    near = [c.holds for c in draft.claims]
    text = f"on {len(near)} of {len(near)} suites the choice is within one point of the best"
    every = True if all(near) else False if False in near else None
    draft.claims.insert(0, Claim(text, every, f"{sum(h is True for h in near)} of {len(near)}"))


def suite_claim(name: str, advice: Advice, scores: Mapping[str, OfSeeds]) -> Claim:
    """The claim that the choice is within a point of the best method: the interval must lie there."""
    measure, chosen = advice.sites.measure, advice.check.results[advice.method.label]
    means = {label: mean(of_seeds) for label, of_seeds in scores.items()}
    best = measure.first(means)
    gap, _ = gain(scores[best], chosen, measure)
    low, high = (-math.inf, math.inf) if gap.low is None or gap.high is None else (gap.low, gap.high)
    return Claim(
        f"{name}: the choice is within one point of the best of {len(scores)} methods",
        True if high <= advice.margin else False if low > advice.margin else None,
        f"advice: {advice.verdict}, {advice.method.label} {measure.with_unit(mean(chosen))}; best: {best} "
        f"{measure.with_unit(means[best])}; difference {bracket(gap, measure)}",
    )


# ---------------------------------------------------------------- trainings
def play(sites: Sites, plans: Mapping[str, Plan[OfSeeds | None]], file: Path) -> dict[str, OfSeeds]:
    """Scores by label, without those that could not be had; a file keeps outcomes, so it goes on where it stopped."""
    with queue(file, about(sites, file)) as kept:
        results = run([*plans.values()], kept, Here(TrainingWork(sites)))
    return {label: scores for label, scores in zip(plans, results, strict=True) if scores is not None}


def mean(of_seeds: OfSeeds) -> float:
    """The mean over seeds and sites."""
    return statistics.fmean(scores.mean for scores in of_seeds)


def scored(sites: Sites, method: NamedMethod, seeds: Sequence[int]) -> Plan[OfSeeds | None]:
    """The plan of a method's scores on test rows under each seed; None if it cannot be trained."""
    rounds = sites.experiment.rounds
    return scores_of((yield from trained(sites, [TrainingJob(method, seed, rounds, rounds) for seed in seeds])))


def at_best_rate(sites: Sites, method: NamedMethod, seeds: Sequence[int]) -> Plan[OfSeeds | None]:
    """As `scored`, at the local rate that does best on one fold's validation rows."""
    rounds, seed, local = sites.experiment.rounds, sites.experiment.seeds[0] + FOLD_SEEDS, method.options["local"]
    rates = (rated_local(local, factor) for factor in RATES)
    rated = [config.method(method.name, {**method.options, "local": rate}, method.label) for rate in rates]
    tried = yield from trained(sites, [TrainingJob(m, seed, rounds, rounds, 0) for m in rated])
    known = [(t.scores.mean, m) for m, t in zip(rated, tried, strict=True) if t.scores is not None]
    if not known:
        return None
    _, best = (max if sites.measure.higher else min)(known, key=lambda pair: pair[0])
    return (yield from scored(sites, best, seeds))
