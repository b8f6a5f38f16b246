"""Tests advice: on simulated sites whose truth is measured, and against a full comparison on natural suites.

Notation   W    a teacher, ten by four, standard normal: a row's scores are x W plus noise
           n    rows that a site trains on; it has as many for testing
A point is a hundredth of an accuracy, or of the larger of two AUROCs or squared errors.
"""

import dataclasses
import math
import statistics
import time
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
from unskew.decide.cells import CellWork, Plan, QueuedCell, queue, run
from unskew.decide.crew import Here
from unskew.decide.identity import about
from unskew.decide.runs import at_once
from unskew.decide.scores import Scores, gain
from unskew.decide.sites import Sites, sites_of
from unskew.decide.training import TrainingJob, TrainingWork, scores_of, trained, under_seeds
from unskew.experiment import config
from unskew.experiment.config import NamedMethod
from unskew.papers.claims import LEVEL, Claim, decide
from unskew.papers.study import Draft
from unskew.protocol import SgdConfig
from unskew.report.worth import bracket

ByLabel = dict[str, tuple[Scores, ...]]
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


def but_last(places: list[Place], change: Callable[[Place], Place]) -> list[Place]:
    """The sites with the last one changed."""
    return [*places[:-1], change(places[-1])]


RECIPES: dict[str, Callable[[Draw], list[Place]]] = {
    "alike": alike,
    "shifted": lambda draw: [replace(p, centre=draw.normal(size=COLUMNS)) for p in alike(draw)],
    "instruments": mixed,
    "opposite": lambda draw: [replace(p, w=p.w * (-1) ** k) for k, p in enumerate(alike(draw))],
    # the last has the opposite teacher, and half of all rows
    "one_wrong": lambda draw: but_last(of := alike(draw), lambda p: replace(p, w=-p.w, n=(len(of) - 1) * p.n)),
    "one_large": lambda draw: but_last(alike(draw), lambda p: replace(p, n=10 * p.n)),
    "related": related,
    "unrelated": lambda draw: [replace(p, w=teacher(draw), n=4 * p.n) for p in alike(draw)],
    "enough": lambda draw: [replace(p, n=400, noise=0.5) for p in alike(draw)],
    "chance": lambda draw: [replace(p, w=0 * p.w, noise=2.0) for p in alike(draw)],
}
"""Sites by what is the matter with them: inputs around another centre at each, a teacher of each site's own and many
rows, all the rows that it needs, labels that have nothing to do with inputs."""


@dataclass(frozen=True)
class Situation:
    """An answer and the truth, in points.

    Attributes:
        verdict: The answer.
        method: The method that the answer is about.
        gain: That method's true gain over local training; 0 without one.
        raced: True gain of the method that won the race, which test rows may overrule.
        fedavg: True gain of FedAvg.
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
        """True if it advises a method that gains nothing."""
        return self.verdict == "join" and self.gain <= 0

    @property
    def wrong_alone(self) -> bool:
        """True if it advises to train alone where a method gains a point or more."""
        return self.verdict == "alone" and self.best >= 1


def ask(recipe: str, seed: int, rounds: int, final_seeds: int, folds: int) -> Situation:
    """The advice on simulated sites drawn under a seed, and the truth."""
    draw = np.random.default_rng([seed, list(RECIPES).index(recipe)])
    kind, places = KINDS[seed % len(KINDS)], RECIPES[recipe](draw)
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
    methods |= {"Ditto": config.method("ditto", {"local": own}, "Ditto"), ALONE: advice.race.bounds[ALONE].method}
    sites = sites_of(*true)
    of_seeds = _played(sites, _under_seeds(sites, [*methods.values()], range(7, 7 + TRUE_SEEDS)))
    scores = {label: _mean(of_seeds[m.label]) for label, m in methods.items() if m.label in of_seeds}
    alone, sign = scores[ALONE], 100 if sites.measure.higher else -100
    gains = {
        label: sign * (score - alone) / (1.0 if sites.measure.percent else max(score, alone))
        for label, score in scores.items()
    }
    label = advice.check.chosen or ""
    raced = "" if advice.race.chosen is None else advice.race.chosen.method.label
    of_choice, of_raced, of_fedavg = (gains.get(one, 0.0) for one in (label, raced, FEDAVG))
    return Situation(advice.verdict, label, of_choice, of_raced, of_fedavg, max(gains.values()))


class Asking(CellWork):
    """The work of a cell: advice on a situation, and its truth."""

    def train(self, asked: Mapping[str, Any]) -> Any:
        """The situation, and the time it took, s."""
        began = time.monotonic()
        return {"situation": dataclasses.asdict(ask(**asked)), "seconds": time.monotonic() - began}


def situations(draft: Draft) -> None:
    """Ask for advice on simulated sites, and count wrong answers; an interrupted run is resumed."""
    size = {key: draft[key] for key in ("rounds", "final_seeds", "folds")}
    asked = [{"recipe": recipe, "seed": seed, **size} for seed in draft["seeds"] for recipe in RECIPES]
    draft.request.folder.mkdir(parents=True, exist_ok=True)

    def note(cell: QueuedCell, answer: Any) -> None:
        draft.request.callback.note(f"{cell.asked['recipe']} {cell.asked['seed']}: {answer['situation']}")

    with queue(draft.request.folder / "situations.sqlite") as kept:
        (answers,) = run([at_once([QueuedCell(of) for of in asked])], kept, Here(Asking()), ended=note)
    by_recipe: dict[str, list[Situation]] = {}
    for of, answer in zip(asked, answers, strict=True):
        by_recipe.setdefault(of["recipe"], []).append(Situation(**answer["situation"]))
        draft.seconds += answer["seconds"]
    for name, of_recipe in by_recipe.items():
        for what, value in COLUMNS_SHOWN.items():
            draft.add(name.replace("_", " "), "made sites", what, [float(value(o)) for o in of_recipe])
    outcomes = [o for of_recipe in by_recipe.values() for o in of_recipe]
    n, joins, alones = len(outcomes), sum(o.wrong_join for o in outcomes), sum(o.wrong_alone for o in outcomes)
    undecided = sum(o.verdict == "undecided" for o in outcomes)
    over = [o.raced - o.fedavg for o in outcomes]
    text, evidence = f"at most {100 * WRONG:g} % of answers are wrong", f"{joins} wrong join, {alones} wrong alone"
    draft.claims.append(Claim(text, joins + alones <= WRONG * n, f"of {n}: {evidence}, {undecided} undecided"))
    claim = decide("the race's choice is no worse than always FedAvg", [d / 100 for d in over], least=-LEVEL)
    gain = claim.evidence.partition(" over ")[0]
    evidence = f"over FedAvg {gain}; worse by a point or more in {sum(d <= -1 for d in over)} of {n}"
    draft.claims.append(replace(claim, evidence=evidence))


COLUMNS_SHOWN: dict[str, Callable[[Situation], float]] = {
    "join": lambda o: o.verdict == "join",
    "alone": lambda o: o.verdict == "alone",
    "wrong join": lambda o: o.wrong_join,
    "wrong alone": lambda o: o.wrong_alone,
    "true gain, points": lambda o: o.gain,
    "FedAvg's, points": lambda o: o.fedavg,
}
"""What is shown of a recipe's situations."""


def _played(sites: Sites, plan: Plan[ByLabel], file: Path | None = None) -> ByLabel:
    """Play a plan of trainings to its outcome; where it was stopped it goes on, if its outcomes are kept in a file."""
    with queue(file, "" if file is None else about(sites, file)) as kept:
        (result,) = run([plan], kept, Here(TrainingWork(sites)))
    return result


def _mean(of_seeds: Sequence[Scores]) -> float:
    return statistics.fmean(scores.mean for scores in of_seeds)


def _under_seeds(sites: Sites, methods: Sequence[NamedMethod], seeds: Sequence[int]) -> Plan[ByLabel]:
    """The plan of methods' scores on test rows under each seed, by label, without those that cannot be trained."""
    rounds = sites.experiment.rounds
    results = yield from under_seeds(sites, {m.label: TrainingJob(m, 0, rounds, rounds) for m in methods}, seeds)
    return {label: scores for label, of in results.items() if (scores := scores_of(of)) is not None}


# ---------------------------------------------------------------- natural suites
def natural(draft: Draft) -> None:
    """Ask for advice on five natural suites (resumed if interrupted), and compare it with a full comparison."""
    for name, table in draft.on(draft["grounds"]).items():
        began = time.monotonic()
        without = table.pop("without", ())
        methods = {label: of for label, of in draft["methods"].items() if label not in without}
        # Advice gets FedAvg alone: what races is its own choice.
        asked, compared = (draft.experiment(name, {**table, "methods": of})
                           for of in ({"FedAvg": {"name": "fedavg"}}, methods))  # fmt: skip
        advice = advise_experiment(
            asked, note=draft.request.callback.note, fresh_seeds=draft["final_seeds"], folds=draft["folds"],
            folder=draft.request.folder / name,
        )  # fmt: skip
        seeds, label, measure = advice.check.seeds, advice.method.label, advice.sites.measure
        plan = _at_best_rates(advice.sites, compared.methods, seeds)
        scores = _played(advice.sites, plan, draft.request.folder / name / "comparison.sqlite")
        draft.claims.append(_suite_claim(name, advice, scores))
        for m, of in {**scores, f"advice: {label}": advice.check.results[label]}.items():
            draft.add(m, name, measure.label, [s.mean for s in of])
        draft.seeds |= set(seeds)
        draft.seconds += time.monotonic() - began
    near = [c.holds for c in draft.claims]
    text = f"on {len(near)} of {len(near)} suites the choice is within one point of the best"
    every = True if all(near) else False if False in near else None
    draft.claims.insert(0, Claim(text, every, f"{sum(h is True for h in near)} of {len(near)}"))


def _suite_claim(name: str, advice: Advice, scores: ByLabel) -> Claim:
    """The claim that the choice is within a point of the best method: the interval must lie there."""
    measure, label = advice.sites.measure, advice.method.label
    means, chosen = {m: _mean(of) for m, of in scores.items()}, advice.check.results[label]
    best = measure.first(means)
    gap, _ = gain(scores[best], chosen, measure)
    low, high = (-math.inf, math.inf) if gap.low is None or gap.high is None else (gap.low, gap.high)
    return Claim(
        f"{name}: the choice is within one point of the best of {len(scores)} methods",
        True if high <= advice.margin else False if low > advice.margin else None,
        f"advice: {advice.verdict}, {label} {measure.with_unit(_mean(chosen))}; best: {best} "
        f"{measure.with_unit(means[best])}; difference {bracket(gap, measure)}",
    )


def _at_best_rates(sites: Sites, methods: Sequence[NamedMethod], seeds: Sequence[int]) -> Plan[ByLabel]:
    """The plan of methods' scores on test rows, each at the local rate that does best on one fold's validation rows."""
    rounds, seed = sites.experiment.rounds, sites.experiment.seeds[0] + FOLD_SEEDS
    rated = [
        config.method(m.name, {**m.options, "local": rated_local(m.options["local"], factor)}, m.label)
        for m in methods
        for factor in RATES
    ]
    tried = yield from trained(sites, [TrainingJob(m, seed, rounds, rounds, 0) for m in rated])
    best: dict[str, tuple[float, NamedMethod]] = {}
    for m, result in zip(rated, tried, strict=True):
        if result.scores is not None:
            score = result.scores.mean if sites.measure.higher else -result.scores.mean
            best[m.label] = max(best.get(m.label, (score, m)), (score, m), key=lambda of: of[0])
    return (yield from _under_seeds(sites, [m for _, m in best.values()], seeds))
