"""Advice on synthetic situations whose right kind of answer is known, and beside a full comparison (`unskew.advice`).

Notation   W    ten by four, standard normal: the class of x is argmax(x W), for x standard normal
           n    rows of a site, four tenths of them for testing
"""

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from unskew import api
from unskew.advice import Advice, advise_experiment
from unskew.advice.check import gain
from unskew.advice.race import FOLD_SEEDS, RATES, Impossible
from unskew.advice.training import Scores, Sites, Training
from unskew.algorithms.fedavg import FedAvg
from unskew.experiment import config
from unskew.experiment.config import Method
from unskew.files import write_atomically
from unskew.papers.claims import Claim
from unskew.papers.result import Result, over_seeds
from unskew.papers.toolkit import Draft, ReproductionRequest, drawn, merged
from unskew.protocol import SgdConfig
from unskew.report.worth import bracket

Floats = npt.NDArray[np.float64]
Site = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]
Draw = np.random.Generator

COLUMNS, CLASSES = 10, 4
LOCAL = SgdConfig(lr=0.1, local_epochs=2, batch_size=16)
RIGHT = 10
"""Number of the twelve answers that are to be right."""


@dataclass(frozen=True)
class Situation:
    """A situation.

    Attributes:
        name: What it is.
        answer: The right kind of answer.
        make: Draws its sites; the first argument is the teacher W.
        right: Says whether an answer is of that kind.
        limits: Limits of the federation.
    """

    name: str
    answer: str
    make: Callable[[Floats, Draw], list[Site]]
    right: Callable[[Advice], bool]
    limits: Mapping[str, Any]


# ---------------------------------------------------------------- sites
def site(w: Floats, draw: Draw, n: int) -> Site:
    """Rows labelled by a teacher."""
    x = draw.normal(size=(n, COLUMNS))
    return x.astype(np.float32), (x @ w).argmax(1)


def alike(sites: int, n: int) -> Callable[[Floats, Draw], list[Site]]:
    """Sites with one teacher."""
    return lambda w, draw: [site(w, draw, n) for _ in range(sites)]


def own_mixtures(w: Floats, draw: Draw) -> list[Site]:
    """Eight sites; classes overlap, and at each site another one is common: seven of ten rows."""
    centres = draw.normal(size=(CLASSES, COLUMNS)) / 4
    sites = []
    for k in range(8):
        shares = np.full(CLASSES, 0.1)
        shares[k % CLASSES] = 0.7
        y = draw.choice(CLASSES, size=100, p=shares)
        sites.append(((centres[y] + draw.normal(size=(100, COLUMNS))).astype(np.float32), y))
    return sites


def three_domains(w: Floats, draw: Draw) -> list[Site]:
    """Nine sites; instruments of three kinds mix the columns in three ways."""
    mixing = [np.linalg.qr(draw.normal(size=(COLUMNS, COLUMNS)))[0] for _ in range(3)]
    plain = [site(w, draw, 60) for _ in range(9)]
    return [((x @ mixing[k // 3]).astype(np.float32), y) for k, (x, y) in enumerate(plain)]


def opposite_halves(w: Floats, draw: Draw) -> list[Site]:
    """Eight sites; every second one has the classes in the opposite order."""
    plain = [site(w, draw, 80) for _ in range(8)]
    return [(x, y if k % 2 == 0 else CLASSES - 1 - y) for k, (x, y) in enumerate(plain)]


def one_turned(w: Floats, draw: Draw) -> list[Site]:
    """Seven sites, and one with half of all rows whose labels are all wrong."""
    x, y = site(w, draw, 420)
    return [*alike(7, 60)(w, draw), (x, (y + 1) % CLASSES)]


def one_random(w: Floats, draw: Draw) -> list[Site]:
    """Seven sites, and one whose labels have nothing to do with its rows."""
    x, y = site(w, draw, 60)
    return [*alike(7, 60)(w, draw), (x, draw.permutation(y))]


def one_large(w: Floats, draw: Draw) -> list[Site]:
    """Eight small sites and one that is twenty times as large."""
    return [*alike(8, 30)(w, draw), site(w, draw, 600)]


def all_different(w: Floats, draw: Draw) -> list[Site]:
    """Six large sites, each with a teacher of its own."""
    return [site(draw.normal(size=w.shape), draw, 400) for _ in range(6)]


def well_off(w: Floats, draw: Draw) -> list[Site]:
    """Four sites, each with all the rows that it needs: two classes that lie far apart."""
    sites = []
    for _ in range(4):
        y = draw.integers(0, 2, size=1200)
        x = draw.normal(size=(1200, COLUMNS)) + np.where(y[:, None] == 1, 1.0, -1.0)
        sites.append((x.astype(np.float32), y))
    return sites


# ---------------------------------------------------------------- the right kinds
def joins(of: Advice) -> bool:
    """Federate."""
    return of.verdict == "join"


def one_model(of: Advice) -> bool:
    """Federate, with one model for all."""
    return joins(of) and of.family == "one model"


def no_single_model(of: Advice) -> bool:
    """Models of one's own, groups, or local training."""
    return of.family != "one model"


def groups_within(kinds: Sequence[int]) -> Callable[[Advice], bool]:
    """Federate, and no group has sites of two kinds; or models of one's own."""

    def right(of: Advice) -> bool:
        pure = bool(of.groups) and all(len({kinds[c] for c in g}) == 1 for g in of.groups)
        return joins(of) and (pure or of.family == "own models")

    return right


def groups_are(kinds: Sequence[int]) -> Callable[[Advice], bool]:
    """Federate, in exactly these groups."""
    wanted = {frozenset(c for c, k in enumerate(kinds) if k == kind) for kind in kinds}
    return lambda of: joins(of) and {frozenset(g) for g in of.groups} == wanted


def keeps_off(site: int) -> Callable[[Advice], bool]:
    """Federate, and no other site trains with this one; or a median, which one site cannot move far."""

    def right(of: Advice) -> bool:
        with_it = [g for g in of.groups if site in g]
        return joins(of) and ("+median" in of.method.name or with_it == [(site,)])

    return right


def others_join(site: int) -> Callable[[Advice], bool]:
    """Federate, and this site is not said to gain."""
    return lambda of: joins(of) and of.by_site[site].verdict != "gains"


def trains_alone(of: Advice) -> bool:
    """Do not federate."""
    return of.verdict == "alone"


def within(rounds: int | None = None, megabytes: float | None = None) -> Callable[[Advice], bool]:
    """Federate, within limits."""

    def right(of: Advice) -> bool:
        cost = of.check.cost
        kept = cost is not None and (rounds is None or cost.rounds <= rounds)
        return joins(of) and kept and cost is not None and (megabytes is None or cost.megabytes <= megabytes)

    return right


FEW_MB = 0.015
"""About two rounds of FedAvg with eight sites."""

SITUATIONS = (
    Situation("alike sites", "join, one model", alike(8, 60), one_model, {}),
    Situation("classes in other shares", "no single model", own_mixtures, no_single_model, {}),
    Situation(
        "three kinds of instruments", "groups of one kind, or own models", three_domains,
        groups_within([k // 3 for k in range(9)]), {},
    ),
    Situation("two hidden groups", "exactly these groups", opposite_halves, groups_are([k % 2 for k in range(8)]), {}),
    Situation("one site's labels all wrong", "join without it", one_turned, keeps_off(7), {}),
    Situation("one site's labels random", "join, and it does not gain", one_random, others_join(7), {}),
    Situation("tiny sites", "join, one model", alike(20, 20), one_model, {}),
    Situation("one large site", "join", one_large, joins, {}),
    Situation("every site its own task", "train alone", all_different, trains_alone, {}),
    Situation("every site has enough", "train alone", well_off, trains_alone, {}),
    Situation("one round only", "join, in one round", alike(20, 30), within(rounds=1), {"max_rounds": 1}),
    Situation(
        "few bytes", f"join, within {1000 * FEW_MB:g} kB", alike(8, 60), within(megabytes=FEW_MB),
        {"max_megabytes": FEW_MB},
    ),
)  # fmt: skip


def ask(situation: Situation, seed: int, rounds: int, final_seeds: int, folds: int) -> Advice:
    """The advice on a situation, drawn under a seed."""
    draw = np.random.default_rng([seed, SITUATIONS.index(situation)])
    w = draw.normal(size=(COLUMNS, CLASSES))
    sites = {f"site {k}": rows for k, rows in enumerate(situation.make(w, draw))}
    settings = {"rounds": rounds, "test_fraction": 0.4, "seeds": [seed]}
    experiment, inputs = api.described(
        FedAvg(local=LOCAL), settings, data=sites, test=site(w, draw, 20), model="logistic"
    )
    return advise_experiment(
        experiment, float("inf"), inputs=inputs, most_seeds=final_seeds, most_folds=folds, **situation.limits
    )


def situations(request: ReproductionRequest) -> Result:
    """Ask for advice on the twelve synthetic situations, and count the answers of the right kind."""
    draft = Draft.of(request)
    seeds: list[int] = draft["seeds"]
    right: dict[str, list[bool]] = {}
    began = time.monotonic()
    for situation in SITUATIONS:
        answers = [ask(situation, seed, *(draft[key] for key in ("rounds", "final_seeds", "folds"))) for seed in seeds]
        right[situation.name] = [situation.right(of) for of in answers]
        request.callback.note(f"{situation.name}: {sum(right[situation.name])} of {len(seeds)} right")
        kinds = ", ".join(f"{of.verdict} ({of.family})" for of in answers)
        draft.rows.append(
            over_seeds(
                situation.name, "made sites", "accuracy of the answer", [float(r) for r in right[situation.name]]
            )
        )
        draft.claims.append(
            Claim(
                f"{situation.name}: {situation.answer}",
                sum(right[situation.name]) > len(seeds) / 2,
                f"{sum(right[situation.name])} of {len(seeds)} seeds right; {kinds}",
            )
        )
    by_seed = [sum(right[s.name][i] for s in SITUATIONS) for i in range(len(seeds))]
    draft.claims.insert(
        0,
        Claim(
            f"at least {RIGHT} of {len(SITUATIONS)} answers are of the right kind, under every seed",
            min(by_seed) >= RIGHT,
            f"{', '.join(map(str, by_seed))} of {len(SITUATIONS)} under seeds {', '.join(map(str, seeds))}",
        ),
    )
    draft.seeds |= set(seeds)
    draft.seconds = time.monotonic() - began
    return draft.result(n=len(seeds))


# ---------------------------------------------------------------- natural suites
def natural(request: ReproductionRequest) -> Result:
    """Ask for advice on five natural suites, and compare its choice with the best method of a full comparison.

    Each suite's outcome is kept in a file of the request's folder, so that a reproduction that was stopped goes on.
    """
    draft = Draft.of(request)
    request.folder.mkdir(parents=True, exist_ok=True)
    for name, suite in draft["suites"].items():
        methods = {label: of for label, of in draft["methods"].items() if label not in suite.get("without", ())}
        settings = merged(draft["experiment"], {"methods": methods}, suite)
        settings.pop("without", None)
        settings["task"] |= drawn(request, settings["task"]["data"], None)
        file, key = request.folder / f"{name}.json", repr((settings, draft["folds"], draft["final_seeds"]))
        outcome = json.loads(file.read_text()) if file.is_file() else {}
        if outcome.get("key") != key:
            outcome = {"key": key, **_suite(name, settings, draft, request.callback.note)}
            write_atomically(file, json.dumps(outcome))
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
    began = time.monotonic()
    compared = [{"name": label, **table, "label": label} for label, table in settings["methods"].items()]
    experiment = config.parse({**settings, "methods": compared, "name": name}, name)
    # Advice gets FedAvg alone: what races is its own choice.
    asked = config.parse({**settings, "methods": [{"name": "fedavg", "label": "FedAvg"}], "name": name}, name)
    advice = advise_experiment(
        asked, float("inf"), note=note, most_seeds=draft["final_seeds"], most_folds=draft["folds"]
    )
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
        "seconds": time.monotonic() - began,
    }


def at_best_rate(sites: Sites, method: Method, seeds: Sequence[int]) -> tuple[Scores, ...]:
    """A method's scores on test rows under each seed, at the local rate that does best on one fold's validation rows.

    Raises:
        ConfigError, DataError, DivergedError, ProtocolError, QuorumError: If it cannot be trained.
    """
    rounds, fold = sites.experiment.rounds, sites.folds[0]
    tried: dict[str, tuple[Method, float]] = {}
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
    scores = []
    for seed in seeds:
        training = Training(rated, sites, rounds, seed, sites.fed)
        training.go_on(rounds)
        scores.append(training.scores(sites.fed.clients.test))
    return tuple(scores)
