"""Advice on small made sites: what decides, what is kept to, and what comes out."""

import dataclasses
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import unskew as us
from unskew import api
from unskew.data.patients import by_patient, fewest_of_a_class
from unskew.decide.advice import Advice, advise_experiment, page
from unskew.decide.advice.check import SetAside, set_aside
from unskew.decide.advice.measure import AdviceWork, proposals
from unskew.decide.advice.page import write_advice
from unskew.decide.advice.race import ALONE, FEDAVG, POOLED, Candidate, Race, candidates, choose
from unskew.decide.cells import Queue, run
from unskew.decide.crew import Here
from unskew.decide.scores import Scores, difference, gain, together
from unskew.decide.sites import Clock, Constraints, Sites, sites_of
from unskew.decide.training import Training
from unskew.errors import DataError, DataWarning, DivergedError, QuorumError, RunError
from unskew.experiment import config
from unskew.experiment.config import Experiment, NamedMethod
from unskew.report.stats import Difference
from unskew.report.worth import Floats
from unskew.run.setup import InMemoryInputs, divide
from unskew.tasks.classification import CLASSIFICATION
from unskew.tasks.measure import ACCURACY, Measure
from unskew.tasks.odds import BINARY

Site = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
RACE = sys.modules[Candidate.__module__]  # `unskew.decide.advice.race` is the function
LOCAL = us.SgdConfig(lr=0.5, local_epochs=1, batch_size=16)


def made(n: int = 24, sites: int = 4, opposite: tuple[int, ...] = ()) -> dict[str, Site]:
    """Sites whose label is the sign of a sum; of those in `opposite` it is the other one."""
    draw = np.random.default_rng(0)
    out = {}
    for k in range(sites):
        x = draw.normal(size=(n, 6)).astype(np.float32)
        out[f"site {'ABCDEFGH'[k]}"] = (x, ((x.sum(1) > 0) ^ (k in opposite)).astype(np.int64))
    return out


FEDERATED = us.FedAvg(local=LOCAL)


def described(
    data: object, rounds: int = 2, methods: Any = FEDERATED, model: str = "logistic", task: Any = None, **settings: Any
) -> tuple[Experiment, InMemoryInputs]:
    return api.described(methods, {"rounds": rounds, **settings}, data=data, model=model, task=task)


OWNERS = torch.arange(76) // 19  # a fifth of 24 rows is for testing everywhere


def known(**columns: Tensor) -> Sites:
    """The made sites, with this known of their rows."""
    experiment, inputs = described(made())
    assert inputs.dataset is not None
    return sites_of(experiment, dataclasses.replace(inputs, dataset=dataclasses.replace(inputs.dataset, **columns)))


def advice(data: object, rounds: int = 2, seeds: int = 2, **limits: Any) -> Advice:
    experiment, inputs = described(data, rounds)
    return advise_experiment(experiment, math.inf, inputs=inputs, fresh_seeds=seeds, folds=1, **limits)


def played(plan: Any, sites: Sites) -> Any:
    """What a part of the plan of an advice comes to; its rounds do not count among those of the sites' advice."""
    counted = dict(sites.clock.counted)
    (result,) = run([plan], Queue(), Here(AdviceWork(sites)))
    sites.clock.counted = counted
    return result


@pytest.fixture(scope="module")
def simple() -> Iterator[Advice]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RACE, "RATES", (1.0,))
        yield advice(made())


@pytest.fixture
def one_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is tried at other local rates, which is two thirds of the work."""
    monkeypatch.setattr(RACE, "RATES", (1.0,))


# ---------------------------------------------------------------- what decides
def _with_labels(inputs: InMemoryInputs, tested: Tensor, turned: bool) -> InMemoryInputs:
    """The data with these rows for testing, at their sites; if turned, every label that is for testing is wrong."""
    data = inputs.dataset
    assert data is not None
    y = torch.where(tested & turned, 1 - data.y_train, data.y_train)
    y_test = 1 - data.y_test if turned else data.y_test
    return dataclasses.replace(inputs, dataset=dataclasses.replace(data, y_train=y, y_test=y_test, own_test=tested))


def test_corrupting_the_test_labels_changes_no_choice_and_every_result() -> None:
    experiment, inputs = described(made(sites=3, opposite=(2,)), rounds=1)
    fed = sites_of(experiment, inputs).fed
    tested = torch.isin(torch.arange(len(fed.dataset.y_train)), fed.clients.test.values)
    assert tested.any()
    a, b = (
        advise_experiment(experiment, math.inf, inputs=_with_labels(inputs, tested, turned), fresh_seeds=1, folds=1)
        for turned in (False, True)
    )
    assert {k: e.method for k, e in a.race.bounds.items()} == {k: e.method for k, e in b.race.bounds.items()}
    assert a.race.close == b.race.close
    assert a.race.chosen is not None
    assert b.race.chosen is not None
    assert a.race.chosen.method == b.race.chosen.method
    for one, other in zip(a.race.entries, b.race.entries, strict=True):
        assert one.method == other.method
        assert {t: s.values for t, s in one.scores.items()} == {t: s.values for t, s in other.scores.items()}
    for label in (ALONE, FEDAVG, POOLED):
        ours, theirs = (x.check.results[label][0].values for x in (a, b))
        assert all(ours[c] == pytest.approx(1 - theirs[c]) for c in ours)


def test_every_training_row_decides_in_one_fold_and_is_trained_on_in_the_others() -> None:
    sites = sites_of(*described(made()))
    parts = sites.fed.clients
    assert len(sites.folds) == 4
    for c in range(4):
        train, test = set(parts.train[c].tolist()), set(parts.test[c].tolist())
        assert test
        assert not train & test
        decides = [set(fold.clients.val[c].tolist()) for fold in sites.folds]
        assert sorted(itertools.chain(*decides)) == sorted(train)
        for fold, val in zip(sites.folds, decides, strict=True):
            assert set(fold.clients.train[c].tolist()) == train - val
            assert len(fold.clients.test[c]) == 0


def test_a_patient_decides_in_one_fold_with_all_rows() -> None:
    people = OWNERS * 76 + torch.arange(76) % 7
    sites = known(patients=people)
    for c in range(4):
        train, test = (set(people[part[c]].tolist()) for part in (sites.fed.clients.train, sites.fed.clients.test))
        decides = [set(people[fold.clients.val[c]].tolist()) for fold in sites.folds]
        assert sorted(itertools.chain(*decides)) == sorted(train)
        assert not train & test
        for fold, val in zip(sites.folds, decides, strict=True):
            assert set(people[fold.clients.train[c]].tolist()) == train - val
    trained = Training(config.method("fedavg", {}), sites, 1, 0, sites.fed)
    trained.go_on(1)
    scores = trained.scores(sites.fed.clients.test)
    assert scores.people
    assert len(scores.rows) == 4
    for c, (units, values) in scores.rows.items():
        assert len(units) == len(values)
        assert set(units.tolist()) == set(people[sites.fed.clients.test[c]].tolist())


def test_where_times_are_known_a_fold_decides_after_training_on_what_was_before_it() -> None:
    """The latest fold decides first; the earliest rows train only, so that of four folds three decide."""
    when = torch.from_numpy(np.random.default_rng(0).permutation(76) // 3)
    sites = known(when=when)
    assert len(sites.folds) == 3
    for c in range(4):
        assert when[sites.fed.clients.train[c]].max() < when[sites.fed.clients.test[c]].min()
        before = sites.fed.clients.train[c]
        for fold in sites.folds:
            train, val = fold.clients.train[c], fold.clients.val[c]
            assert len(train)
            assert len(val)
            assert sorted([*train.tolist(), *val.tolist()]) == before.tolist()
            assert when[train].max() < when[val].min()
            before = train


def test_sites_of_one_patient_each_are_refused() -> None:
    own_test = torch.arange(76) % 3 == 0
    people = 2 * OWNERS + own_test  # one trains, and one tests
    with pytest.raises(DataError, match="no site has rows to train on and others to choose by"):
        known(patients=people, own_test=own_test)


def test_a_site_of_one_row_trains_on_it_in_every_fold() -> None:
    x, y = made()["site A"]
    data = {**made(), "lone": (x[:1], y[:1])}
    with pytest.warns(DataWarning, match="lone has fewer than 5 training rows"):
        sites = sites_of(*described(data, test_fraction=0.3))
    lone = sites.names.index("lone")
    assert [len(fold.clients.train[lone]) for fold in sites.folds] == [1] * 4
    assert [len(fold.clients.val[lone]) for fold in sites.folds] == [0] * 4


def test_pooled_data_do_not_train_on_the_rows_that_decide() -> None:
    sites = sites_of(*described(made()))
    training = Training(config.method("centralised", {}), sites, 1, 0, sites.folds[1])
    assert int(training.sim.population.histograms.sum()) == int(sites.folds[1].clients.train.sizes.sum())


def test_rounds_that_lose_all_replies_end_no_training() -> None:
    """One site of four trains in a round, and half of all replies are late; if all are, that is said."""
    sites = sites_of(*described(made(), clients_per_round=1, world=us.World(outage=us.Outage(late=0.5))))
    training = Training(config.method("fedavg", {}), sites, 12, 0, sites.fed)
    training.go_on(12)
    assert training.at == 12
    assert 0 < training.up < training.sent / 2  # replies that came
    lost = sites_of(*described(made(), world=us.World(outage=us.Outage(late=1.0))))
    with pytest.raises(QuorumError, match="3 rounds in a row have no result"):
        Training(config.method("fedavg", {}), lost, 3, 0, lost.fed).go_on(3)


def test_the_folds_of_a_site_are_scored_as_one() -> None:
    """Rows (1, 0) in one fold and (1) in the other: two of three; a site that one fold lacks has the other's rows."""
    both = together([_scores([1, 0], [1]), _scores([1])], RIGHT)
    assert both.values == {0: pytest.approx(2 / 3), 1: 1.0}
    assert [len(both.rows[c][1]) for c in (0, 1)] == [3, 1]


def test_what_is_no_mean_over_rows_is_averaged_over_the_folds_that_have_it() -> None:
    assert together([Scores({0: 0.5}), Scores({0: 0.7, 1: 0.9})], AUROC).values == {0: pytest.approx(0.6), 1: 0.9}


@pytest.mark.usefixtures("one_rate")
def test_two_folds_train_twice_and_all_their_rows_decide() -> None:
    experiment, inputs = described(made(sites=3), rounds=1)
    of = advise_experiment(experiment, math.inf, inputs=inputs, fresh_seeds=1, folds=2)
    assert of.race.folds == 2
    fedavg = of.race.bounds[FEDAVG]
    decided = sum(len(fold.clients.val[0]) for fold in of.sites.folds[:2])
    assert len(fedavg.last.rows[0][1]) == decided


def test_final_seeds_are_new_and_those_of_the_recommended_file_are_new_again(simple: Advice) -> None:
    asked = simple.sites.experiment.seeds
    assert set(simple.check.seeds).isdisjoint(asked)
    assert set(simple.experiment().seeds).isdisjoint({*asked, *simple.check.seeds})


# ---------------------------------------------------------------- intervals
def _scores(*rows: Sequence[float] | Floats) -> Scores:
    each = {c: np.array(r) for c, r in enumerate(rows)}
    return Scores({c: float(v.mean()) for c, v in each.items()}, {c: (np.arange(len(v)), v) for c, v in each.items()})


RIGHT = CLASSIFICATION.headline


def test_a_difference_has_the_standard_error_of_its_rows() -> None:
    """Differences (1, 0) and (0, 0): mean .25; pooled variance (.25 + .25) / (4 - 2); two sites of two rows."""
    mean, error = difference(_scores([1, 0], [1, 1]), _scores([0, 0], [1, 1]), RIGHT)
    assert mean == pytest.approx(0.25)
    assert error == pytest.approx(math.sqrt(0.25 * (1 / 2 + 1 / 2) / 4))


def test_a_difference_turns_around_where_lower_is_better() -> None:
    error = Measure("mse", "MSE", "lower", high=None, percent=False)
    assert difference(_scores([1.0, 2.0]), _scores([2.0, 3.0]), error)[0] == pytest.approx(1.0)


def of_patients(scores: Scores, people: Any) -> Scores:
    """The scores of one site whose rows are these patients'."""
    return dataclasses.replace(scores, rows={0: (people, scores.rows[0][1])}, people=True)


def test_the_variance_of_a_mean_over_patients_of_several_sizes_is_the_jackknife_s() -> None:
    """Rows 1, 1, 1 | 0 | 0, 1: without one of the three patients the mean is 1/3, 4/5 or 3/4."""
    rows, people = np.array([1.0, 1, 1, 0, 0, 1]), np.array([4, 4, 4, 9, 2, 2])
    values = by_patient(rows, people)
    assert values.mean() == pytest.approx(rows.mean())
    assert values.var(ddof=1) / 3 == pytest.approx(2 * np.var([1 / 3, 4 / 5, 3 / 4]))
    assert by_patient(rows, np.arange(6)) == pytest.approx(rows)
    assert by_patient(rows, np.zeros(6, int)) == pytest.approx([2 / 3])


AUROC = BINARY.headline


def _ranked(scores: Sequence[float], y: Sequence[int]) -> Scores:
    """Scores of one site by AUROC, from the log odds that its model gives its rows."""
    outputs, labels = torch.tensor(scores)[:, None], torch.tensor(y)
    assert AUROC.whole is not None
    rows = AUROC.rows_of(outputs, labels)
    known = {} if rows is None else {0: (np.arange(len(y)), rows)}
    return Scores({0: AUROC.whole(outputs.numpy(), labels.numpy())}, known)


def test_a_site_s_auroc_has_delong_s_paired_interval_over_its_test_rows() -> None:
    """Ten rows of each class; positives at 4 and 2, negatives at 3 and 1: shares 1 and 1/2 of the other class below.

    The other model turns the positives round: both areas are .75.  Differences of the positives' shares are ∓1/2, of
    the negatives' 0: S = 10 * .25 / 9, variance S / 10.  A model alone has twice 10 * .0625 / 9 / 10.
    """
    y = [1, 1, 0, 0] * 5
    one, other = _ranked([4.0, 2.0, 3.0, 1.0] * 5, y), _ranked([2.0, 4.0, 3.0, 1.0] * 5, y)
    assert one.rows[0][1].mean() == pytest.approx(0.75)
    assert one.rows[0][1].var() / 20 == pytest.approx(2 * 0.0625 / 9)
    _, of_sites = gain([one] * 2, [other] * 2, AUROC)
    half = 1.959964 * math.sqrt(0.25 / 9)
    assert of_sites[0].low == pytest.approx(-half, abs=1e-6)
    assert of_sites[0].high == pytest.approx(half, abs=1e-6)
    _, still = gain([one] * 3, [other] * 3, AUROC)  # seeds that agree do not make it narrower
    assert still[0] == of_sites[0]


def test_the_chance_in_an_auroc_over_patients_has_their_degrees_of_freedom() -> None:
    """Twelve patients of two rows: DeLong's values by patient, variance over 11, and Student's t of 11 (Obuchowski)."""
    rng, y, people = np.random.default_rng(1), [0, 0, 1, 1] * 6, np.repeat(np.arange(12), 2)
    better, worse = (
        of_patients(_ranked((shift * np.array(y) + rng.normal(size=24)).tolist(), y), people) for shift in (1.0, 0.0)
    )
    _, of_sites = gain([better] * 2, [worse] * 2, AUROC)
    values = by_patient(better.rows[0][1] - worse.rows[0][1], people)
    half = 2.200985 * math.sqrt(values.var(ddof=1) / 12)
    assert of_sites[0].low == pytest.approx(of_sites[0].mean - half)


@pytest.mark.parametrize(("each", "known"), [(1, True), (20, False)])
def test_few_patients_of_a_class_leave_a_site_s_auroc_open_however_many_rows(each: int, known: bool) -> None:
    """80 rows of a site; as many patients, or four of twenty rows."""
    rng = np.random.default_rng(0)
    data = {s: (rng.normal(size=(200, 2)), (np.arange(200) % 2).astype(np.int64)) for s in ("a", "b")}
    experiment, inputs = described(data, 1, task="binary", test_fraction=0.4)
    assert inputs.dataset is not None
    assert inputs.dataset.owners is not None
    people = torch.arange(len(inputs.dataset.y_train)) // each + 1000 * inputs.dataset.owners
    sites = sites_of(
        experiment, dataclasses.replace(inputs, dataset=dataclasses.replace(inputs.dataset, patients=people))
    )
    training = Training(config.method("fedavg", {}), sites, 1, 0, sites.fed)
    training.go_on(1)
    assert bool(training.scores(sites.fed.clients.test).rows) == known


def test_patients_of_a_class_are_counted_or_those_with_an_event() -> None:
    """Three patients: one of class 0, and two of class 1."""
    people, labels = torch.tensor([1, 1, 2, 3]), torch.tensor([0, 0, 1, 1])
    assert (fewest_of_a_class(people, labels), fewest_of_a_class(people, labels, event=1)) == (1, 2)
    assert fewest_of_a_class(people, torch.zeros(4), event=1) == 0


# ---------------------------------------------------------------- groups
def test_groups_of_opposite_directions_and_the_site_that_agrees_least_are_proposed() -> None:
    side = np.array([1, -1, 1, -1, 1])
    cosines = np.where(np.equal.outer(side, side), 0.8, -0.8)
    np.fill_diagonal(cosines, 1.0)
    assert proposals(cosines)[0] == ((0, 2, 4), (1, 3))
    apart = np.full((6, 6), 0.5)
    apart[3, :] = apart[:, 3] = 0.1
    assert ((0, 1, 2, 4, 5), (3,)) in proposals(apart + np.diag(1 - apart.diagonal()))
    assert proposals(np.eye(2)) == ()


@pytest.mark.usefixtures("one_rate")
def test_hidden_groups_are_found_and_named() -> None:
    of = advice(made(n=100, opposite=(1, 3)), rounds=4, seeds=1)
    assert of.family == "groups"
    assert {frozenset(g) for g in of.groups} == {frozenset({0, 2}), frozenset({1, 3})}
    assert "site A and site C" in dict(of.sentences())["Who should train with whom?"]
    assert of.verdict != "alone"


def _entry(label: str, *rows: list[float], rate: float = 0.5) -> Candidate:
    return Candidate(config.method("fedavg", {"local": {"lr": rate}}, label), scores={1: _scores(*rows)})


def test_fedavg_is_chosen_unless_another_is_clearly_better(simple: Advice) -> None:
    """Of twenty rows FedAvg has ten.  All of four more: gap .2, error sqrt((.2 - .04) / 19) = .092, over 2 times.

    Three won and one lost: gap .1, error sqrt((.2 - .01) / 19) = .1.  Ditto is near the best, whatever its order.
    """
    fedavg = _entry(FEDAVG, [1.0] * 10 + [0.0] * 10)
    better, noisy = _entry("better", [1.0] * 14 + [0.0] * 6), _entry("noisy", [0.0] + [1.0] * 12 + [0.0] * 7)
    assert choose([noisy, fedavg], simple.sites) == (fedavg, ("noisy",))
    assert choose([noisy, fedavg, better], simple.sites)[0] is better
    assert choose([noisy], simple.sites)[0] is noisy
    assert choose([], simple.sites) == (None, ())


def test_groups_that_ifca_found_are_given_to_a_method_that_needs_no_luck(simple: Advice) -> None:
    sites = simple.sites
    here = Race(sites, 1, 1, Constraints(), lambda text: None)
    ifca = Candidate(config.method("ifca", {"clusters": 2}, "IFCA"))
    assert played(here.train([ifca], 1, 1), sites) == [ifca]
    groups = ifca.found
    here.entries = [ifca]
    played(here.given_groups(), sites)
    if len(groups) == 1:
        assert here.entries == [ifca]
        return
    twin = here.entries[1]
    assert set(twin.groups) == set(groups)
    assert twin.method.name == "grouped"
    assert ifca.out == f"its groups are those of {twin.method.label}"


def test_hcct_races_where_its_pilot_may_talk_and_is_out_where_it_lets_everybody_train_alone(simple: Advice) -> None:
    sites = simple.sites
    local: dict[str, Any] = {"lr": 0.5, "local_epochs": 1, "batch_size": 16}

    def racing(limits: Constraints) -> set[str]:
        return {e.method.name for e in candidates(sites, local, local, (), limits)}

    assert "hcct" in racing(Constraints()) & racing(Constraints(megabytes=1.0))
    assert "hcct" not in racing(Constraints(rounds=2))
    here = Race(sites, 1, 1, Constraints(), lambda text: None)
    alone, together = (  # with alpha 0 a merge costs more than it brings, with a large one everybody gains from all
        Candidate(config.method("hcct", {"local": local, "alpha": alpha}, "HCCT")) for alpha in (0.0, 1e9)
    )
    assert not played(here.train([alone], 1, 1), sites)
    assert alone.out == "it lets every site train by itself"
    assert played(here.train([together], 2, 2), sites)
    assert together.found == ((0, 1, 2, 3),)


# ---------------------------------------------------------------- limits and the budget
@pytest.mark.usefixtures("one_rate")
def test_one_round_is_one_round() -> None:
    of = advice(made(sites=3), rounds=3, seeds=1, max_rounds=1)
    assert of.race.rounds == 1
    assert all(max(e.scores, default=0) <= 1 for e in of.race.entries)
    recommended = of.experiment()
    assert recommended.rounds == 1
    alone = next(m for m in recommended.methods if m.label == ALONE)
    assert alone.options["local"]["local_epochs"] == 3


@pytest.mark.usefixtures("one_rate")
def test_no_method_sends_more_than_it_may(simple: Advice) -> None:
    assert simple.cost is not None
    cap = 0.8 * simple.cost["megabytes"]  # of two rounds
    of = advice(made(), rounds=4, seeds=1, max_megabytes=cap)
    assert of.cost is not None
    assert 0 < of.cost["megabytes"] <= cap
    assert of.experiment().stop.megabytes == cap
    assert of.experiment().rounds == of.cost["rounds"] < 4  # before, 4, and a run stops after a round too many
    assert of.check.training is not None
    check = dataclasses.replace(of.check, training=dataclasses.replace(of.check.training, ended=False))
    unhurried = dataclasses.replace(of, limits=Constraints(megabytes=2.5 * of.cost["megabytes"]), check=check)
    assert unhurried.experiment().rounds == 2 * of.cost["rounds"]


@pytest.mark.parametrize(
    ("raced", "lost", "chosen", "gained"),
    [
        (FEDAVG, (FEDAVG,), None, None),
        ("m", (FEDAVG, "m"), None, None),
        ("m", ("m",), FEDAVG, -0.2),  # FedAvg stands in
        ("m", (FEDAVG,), "m", -0.2),
        ("m", (FEDAVG,), "m", 0.0),  # the interval leaves it open by itself
    ],
)
def test_a_method_lost_under_a_fresh_seed_is_no_reason_to_train_alone(
    simple: Advice, raced: str, lost: tuple[str, ...], chosen: str | None, gained: float | None
) -> None:
    """One divergence is no interval below a point, neither of the race's choice nor of FedAvg."""
    aside = SetAside("m", None, None) if chosen == FEDAVG else None
    of_gain = None if gained is None else Difference(gained, gained - 0.1, gained + 0.1, "seeds")
    reason = dict.fromkeys(lost, "under seed 2, round 3, its loss is not finite")
    check = dataclasses.replace(
        simple.check, results={ALONE: simple.check.results[ALONE]}, by_site={}, training=None, lost=reason,
        gains={} if chosen is None or of_gain is None else {chosen: of_gain}, chosen=chosen, set_aside=aside,
    )  # fmt: skip
    race = dataclasses.replace(simple.race, chosen=_at(0.5, "fedavg", raced))
    of = dataclasses.replace(simple, race=race, check=check)
    assert of.verdict == "undecided"
    assert of.family == "one model"
    assert of.headline.startswith("Undecided: ")
    assert (f"{lost[0]} could not be trained {reason[lost[0]]}" in of.headline) == (gained != 0.0)
    assert "(local rate 0.5, 1 local epoch, 2 rounds)" in str(of)
    kept = dataclasses.replace(of, check=dataclasses.replace(check, lost={}))
    assert (kept.verdict == "alone") == (gained == -0.2)


@pytest.mark.usefixtures("undrawn")
def test_only_advice_on_the_same_experiment_and_data_is_replaced(simple: Advice, tmp_path: Path) -> None:
    """Data that are values have no name; their hash tells them apart."""
    asked, (_, other) = simple.sites.experiment, described(made(sites=3))
    (tmp_path / page.PAGE).write_text("somebody else's")
    with pytest.raises(RunError, match=r"\(advice\.html\), and no advice; choose another --out"):
        page.require_place(tmp_path, asked)
    write_advice(simple, tmp_path)
    page.require_place(tmp_path, dataclasses.replace(asked, rounds=9), simple.sites.setup.dataset)
    heart = dataclasses.replace(asked, task=dataclasses.replace(asked.task, data="heart"))
    for experiment, data in ((dataclasses.replace(asked, name="other"), None), (heart, None), (asked, other.dataset)):
        with pytest.raises(RunError, match=r"advised\.toml is advice on another experiment or other data"):
            page.require_place(tmp_path, experiment, data)


def test_a_rule_that_adds_seeds_is_that_of_the_recommended_experiment(simple: Advice) -> None:
    """It compares methods with FedAvg: where nothing else is recommended there are five seeds."""
    until = us.UntilDecided(until=3.0, most=10)
    ditto, fedavg = (config.method(name, {}, label) for name, label in (("ditto", "Ditto"), ("fedavg", FEDAVG)))
    asked = dataclasses.replace(simple.sites.experiment, methods=(fedavg, ditto), seeds=(0,), until=until)
    sites = dataclasses.replace(simple.sites, experiment=asked)

    def recommended(method: NamedMethod) -> Experiment:
        gain = {method.label: Difference(0.1, 0.05, 0.15, "seeds")}
        check = dataclasses.replace(simple.check, chosen=method.label, gains=gain)
        race = dataclasses.replace(simple.race, chosen=Candidate(method))
        return dataclasses.replace(simple, sites=sites, race=race, check=check).experiment()

    first = max(simple.check.seeds) + 1
    assert recommended(ditto).until == dataclasses.replace(until, first=first)
    assert recommended(ditto).seeds == tuple(range(first, first + 10))
    assert recommended(fedavg).seeds == tuple(range(first, first + 5))


def _seeds(share: float, n: int = 200) -> tuple[Scores, ...]:
    """Two seeds under which so many rows of each of two sites are right, the first ones."""
    rows = [1.0] * round(share * n) + [0.0] * (n - round(share * n))
    return (_scores(rows, rows),) * 2


@pytest.mark.parametrize(
    ("alone", "fedavg", "raced", "aside"),
    [
        (0.5, 0.7, 0.5, True),  # FedAvg is shown to gain, the choice is not
        (0.5, 0.7, 0.6, True),  # both gain, and the choice is worse than FedAvg
        (0.5, 0.45, 0.3, True),  # neither gains, and the choice is worse
        (0.5, 0.7, 0.7, False),
        (0.5, 0.6, 0.7, False),
        (0.5, 0.5, 0.5, False),
    ],
)
def test_a_choice_that_does_not_hold_up_beside_fedavg_is_set_aside(
    alone: float, fedavg: float, raced: float, aside: bool
) -> None:
    done = {ALONE: _seeds(alone), FEDAVG: _seeds(fedavg), "m": _seeds(raced)}
    assert (set_aside(done, "m", ACCURACY) is not None) == aside
    assert set_aside(done, FEDAVG, ACCURACY) is None
    assert set_aside({ALONE: done[ALONE], "m": done["m"]}, "m", ACCURACY) is None


def test_a_choice_that_cannot_be_trained_under_fresh_seeds_is_set_aside() -> None:
    aside = set_aside({ALONE: _seeds(0.5), FEDAVG: _seeds(0.7)}, "m", ACCURACY)
    assert aside == SetAside("m", None, None)


@pytest.mark.usefixtures("one_rate", "undrawn")
def test_fedavg_stands_in_for_a_choice_that_test_rows_do_not_bear_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice is FedAvgM of a rate that learns nothing; the answer, the file and the cost are FedAvg's then."""
    experiment, inputs = described(made(100), rounds=8)
    useless = _at(1e-6, "fedavgm", "slow")
    monkeypatch.setattr(RACE, "choose", lambda finished, sites: (useless, ("Ditto",)))
    of = advise_experiment(experiment, math.inf, inputs=inputs, fresh_seeds=3, folds=1)
    assert of.check.set_aside is not None
    assert of.check.training is not None
    assert of.check.chosen == FEDAVG
    assert {m.label for m in of.experiment().methods} == {ALONE, FEDAVG, POOLED}
    assert of.method.label in (ALONE, FEDAVG)
    wider, narrow = of.gain, of.check.gains[FEDAVG]
    assert narrow == gain(of.check.results[FEDAVG], of.check.results[ALONE], ACCURACY)[0]  # beside others, as drawn
    assert wider is not None
    assert wider.low is not None
    assert narrow.low is not None
    assert wider.low < narrow.low
    assert "slow, chosen on validation rows, did not hold up on test rows" in of.sentences()[0][1]
    assert "Ditto" not in dict(of.sentences())["Which method and settings?"]
    assert of.confidence == pytest.approx(0.975)
    assert of.to_json()["set_aside"]["label"] == "slow"


def _at(rate: float, name: str, label: str, *scores: Scores) -> Candidate:
    method = config.method(name, {"local": {**dataclasses.asdict(LOCAL), "lr": rate}}, label)
    return Candidate(method, scores=dict(zip((2, 5), scores, strict=False)))


# ---------------------------------------------------------------- work and time
def _slow(seconds: float, tick: float) -> Clock:
    """A clock that is this much later at each look."""
    ticks = itertools.count(0.0, tick)
    return Clock(seconds, lambda: next(ticks))


@pytest.mark.usefixtures("one_rate", "undrawn")
def test_advice_goes_on_where_its_time_ended(simple: Advice, tmp_path: Path) -> None:
    """Time ends in the race, and under the second fresh seed."""
    experiment, inputs = described(made())
    asked: dict[str, Any] = {"inputs": inputs, "fresh_seeds": 2, "folds": 1, "folder": tmp_path}
    for share in (0.3, 0.5):
        with pytest.raises(RunError, match="give it more minutes"):
            advise_experiment(experiment, clock=_slow(share * simple.sites.clock.rounds + 0.5, 1.0), **asked)
    of = advise_experiment(experiment, clock=_slow(0.9 * simple.sites.clock.rounds, 1.0), **asked)
    assert of.check.gains == simple.check.gains


def test_from_one_seed_there_is_no_verdict_on_joining_nor_on_a_site() -> None:
    of = advice(made(100), seeds=1)
    assert of.gain is not None
    assert of.gain.mean > 0.01
    assert of.verdict == "undecided"
    assert of.headline.endswith("; one seed is too few; give it two fresh seeds or more.")
    assert {g.verdict for g in of.by_site.values()} == {"open"}
    assert dict(of.sentences())["Which sites benefit?"].startswith("No verdict on any site: one seed is too few")


def test_a_rate_that_wins_at_first_and_fails_later_is_not_taken(
    simple: Advice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The highest rate is best halfway, and diverges in the last round: the answer rests on another."""
    go_on, scores = Training.go_on, Training.scores

    def fails(self: Training, rounds: int) -> None:
        go_on(self, rounds)
        if self.method.options["local"]["lr"] > 1 and self.at == self.rounds:
            raise DivergedError("its training loss is not finite")

    def best_first(self: Training, rows: Any) -> Scores:
        of = scores(self, rows)
        if self.method.options["local"]["lr"] > 1:
            return _scores(*[np.ones(len(v)) for _, v in of.rows.values()])
        return of

    monkeypatch.setattr(Training, "go_on", fails)
    monkeypatch.setattr(Training, "scores", best_first)
    here = Race(simple.sites, 2, 1, Constraints(), lambda text: None)
    played(here.train_bounds(dataclasses.asdict(LOCAL)), simple.sites)
    assert here.bounds.keys() == {ALONE, FEDAVG, POOLED}
    assert {e.method.options["local"]["lr"] for e in here.bounds.values()} <= {0.5, 0.158}


def test_where_fedavg_fails_at_every_rate_training_alone_is_not_advised(simple: Advice) -> None:
    worse = Difference(-0.2, -0.3, -0.1, "seeds")
    check = dataclasses.replace(simple.check, chosen="m", gains={"m": worse})
    of = dataclasses.replace(simple, check=check)
    assert of.verdict == "alone"
    race = dataclasses.replace(simple.race, lost={FEDAVG: "round 3, its loss is not finite"})
    of = dataclasses.replace(of, race=race)
    assert of.verdict == "undecided"
    assert "FedAvg could not be trained round 3, its loss is not finite" in of.headline
    within = dataclasses.replace(of, limits=Constraints(megabytes=1.0))  # what does not fit has not failed
    assert within.verdict == "alone"


@pytest.mark.usefixtures("one_rate")
def test_a_method_that_diverges_leaves_the_race_and_the_others_go_on() -> None:
    methods = {"FedAvg": us.FedAvg(local=LOCAL), "wild": us.FedProx(mu=0.3, local=dataclasses.replace(LOCAL, lr=1e38))}
    experiment, inputs = described(made(), methods=methods)
    of = advise_experiment(experiment, math.inf, inputs=inputs, fresh_seeds=1, folds=1)
    (wild,) = [e for e in of.race.entries if e.method.label == "wild"]
    assert wild.out
    assert of.race.chosen is not None


class Killed(BaseException):
    """A kill between two rounds."""


@pytest.mark.usefixtures("one_rate")
def test_advice_is_the_same_with_two_workers_and_where_it_was_killed(
    simple: Advice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment, inputs = described(made())
    asked: dict[str, Any] = {"inputs": inputs, "fresh_seeds": 2, "folds": 1}

    def table(of: Advice) -> dict[str, Any]:
        return {name: value for name, value in of.to_json().items() if name != "seconds"}

    assert table(advise_experiment(experiment, **asked, workers=2)) == table(simple)
    numbers, go_on = itertools.count(), Training.go_on

    def killed(self: Training, until: int) -> None:
        if next(numbers) == 12:
            raise Killed
        go_on(self, until)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "go_on", killed)
        with pytest.raises(Killed):
            advise_experiment(experiment, **asked, folder=tmp_path)
    rounds: list[int] = []
    monkeypatch.setattr(Training, "go_on", lambda self, until: rounds.append(until) or go_on(self, until))
    assert table(advise_experiment(experiment, **asked, folder=tmp_path)) == table(simple)
    assert len(rounds) > 0
    rounds.clear()
    assert table(advise_experiment(experiment, **asked, folder=tmp_path)) == table(simple)
    assert not rounds


# ---------------------------------------------------------------- what is refused
def test_sites_without_test_rows_are_refused(tiny: Callable[..., Experiment]) -> None:
    with pytest.raises(DataError, match="no site has test rows; raise test_fraction"):
        advise_experiment(tiny("test_fraction=0.0"))


@pytest.mark.parametrize("kind", ["binary", "survival"])
def test_test_rows_from_which_the_headline_cannot_be_measured_are_refused_beforehand(kind: str, tmp_path: Path) -> None:
    """AUROC of one class and concordance without an event are not defined; at one site of four they may be."""
    draw = np.random.default_rng(1)
    x_test = {name: draw.normal(size=(6, 6)).astype(np.float32) for name in made()}
    if kind == "binary":
        task, sites = us.TaskConfig(kind="binary"), made()
        tested = {name: (x, np.zeros(6, np.int64)) for name, x in x_test.items()}
        enough = (x_test["site A"], np.arange(6) % 2)
        label = "AUROC"
    else:
        task = us.TaskConfig(kind="survival")
        sites = {n: (x, np.stack([draw.exponential(size=24), np.arange(24) % 2], 1)) for n, (x, _) in made().items()}
        tested = {n: (x, np.stack([np.arange(1.0, 7.0), np.zeros(6)], 1)) for n, x in x_test.items()}
        enough = (x_test["site A"], np.stack([np.arange(1.0, 7.0), np.ones(6)], 1))
        label = "concordance index"
    says = f"no site has test rows from which {label} can be measured"
    with pytest.raises(DataError, match=says):
        us.advise(sites, test=tested, task=task, rounds=2, minutes=0.05, progress=False)
    out = tmp_path / "tuning"
    with pytest.raises(DataError, match=says):
        us.tune("fedavg", data=sites, test=tested, task=task, rounds=2, trials=1, out=out, progress=False)
    assert not out.exists()
    methods, settings = us.FedAvg(local=LOCAL), {"rounds": 2}
    experiment, inputs = api.described(methods, settings, data=sites, test={**tested, "site A": enough}, task=task)
    assert sites_of(experiment, inputs).fed.num_clients == 4


# ---------------------------------------------------------------- what comes out
@pytest.mark.usefixtures("one_rate")
def test_sites_that_come_later_are_the_unseen_ones_and_take_no_part() -> None:
    experiment, inputs = described(made(sites=3), rounds=1, unseen={"clients": ["site B"]})
    of = advise_experiment(experiment, math.inf, inputs=inputs, fresh_seeds=1, folds=1)
    assert [*of.unseen] == ["site B"]
    assert {of.sites.names[c] for c in of.by_site} == {"site A", "site C"}


@pytest.mark.usefixtures("undrawn")
def test_the_page_and_a_file_that_a_run_takes_are_written(simple: Advice, tmp_path: Path) -> None:
    written = write_advice(simple, tmp_path)
    text = written.read_text("utf-8")
    for question, _ in simple.sentences()[1:]:
        assert question in text
    assert "site D" in text
    recommended = config.load(tmp_path / page.EXPERIMENT)
    assert recommended.methods[0].label == simple.method.label
    assert {m.name for m in recommended.methods} >= {"independent", "centralised"}
    from unskew.run import loop

    outcome = loop.start(dataclasses.replace(recommended, seeds=recommended.seeds[:1], rounds=1), tmp_path / "run")
    assert (outcome.folder / "summary.json").exists()


@pytest.mark.usefixtures("undrawn", "one_rate")
def test_groups_of_sites_that_were_drawn_stay_those_sites_in_the_file(
    tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    of = advise_experiment(tiny("rounds=1"), fresh_seeds=1, folds=1)
    write_advice(of, tmp_path)
    recommended = config.load(tmp_path / page.EXPERIMENT)
    again = divide(recommended, of.sites.setup.dataset, 77)
    assert [t.tolist() for t in again.clients.test] == [t.tolist() for t in of.sites.fed.clients.test]


@pytest.mark.usefixtures("one_rate")
def test_models_that_are_worse_than_the_mean_make_no_site_better_off() -> None:
    """Targets near 1,000 and a rate at which nothing comes near: the answer is no *join*, however large the gain."""
    rng = np.random.default_rng(0)
    data = {}
    for site in ("Bern", "Chur"):
        x = rng.normal(size=(40, 3)).astype(np.float32)
        data[site] = (x, (1000 + x[:, 0]).astype(np.float32))
    task = us.TaskConfig(kind="regression", target_scale=False)
    experiment, inputs = described(data, methods=us.FedAvg(local=us.SgdConfig(lr=1e-5)), model="mlp", task=task)
    of = advise_experiment(experiment, math.inf, inputs=inputs, fresh_seeds=2, folds=1)
    label = of.check.chosen or ""
    gain = Difference(900.0, 800.0, 1000.0, "seeds")
    gains, by_site = {label: gain}, dict.fromkeys((0, 1), dataclasses.replace(gain, over=""))
    of = dataclasses.replace(of, check=dataclasses.replace(of.check, gains=gains, by_site={label: by_site}))
    assert of.verdict == "undecided"
    assert "models are no better than what training rows alone would always say" in of.headline
    assert of.useless == {0, 1}
    assert of.to_json()["no_better_than_constant"] == ["Bern", "Chur"]
    assert of.site_row(0)[-1] == "no better than a constant"


@pytest.mark.usefixtures("one_rate", "undrawn")
def test_advice_goes_by_the_headline_that_is_chosen_and_has_the_metrics_that_were_asked_for() -> None:
    task = us.TaskConfig(headline="macro_f1", class_weights="balanced")
    experiment, inputs = described(made(60, sites=2), task=task, evaluate=["global", "personal", "accuracy"])
    of = advise_experiment(experiment, math.inf, inputs=inputs, fresh_seeds=1, folds=1)
    assert of.sites.measure.name == "macro_f1"
    first = dict(of.sentences())["How good are they?"]
    alone = of.check.results[ALONE][0]
    assert f"on test rows: {ALONE} {100 * alone.mean:.1f} %" in first
    assert f"Mean accuracy on test rows: {ALONE} {100 * alone.asked['accuracy']:.1f} %, FedAvg " in first
    assert all(m.name != "macro_f1" for m in of.sites.setup.task.measures[2:])
    assert 'headline = "macro_f1"' in config.to_toml(of.experiment())


def test_a_site_is_no_better_than_a_constant_where_both_models_are_so(
    simple: Advice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ahead of it by 1, behind it by 1, or level: of site A the method is better, of site B it is alone."""
    ahead = ({0: -1.0, 1: 1.0, 2: 0.0, 3: -1.0}, {0: 1.0, 1: -1.0, 2: -1.0, 3: 1e-12})
    monkeypatch.setattr(Advice, "_over_constant", ahead)
    assert dataclasses.replace(simple).useless == {2, 3}


def test_a_site_without_test_rows_is_named_and_has_no_verdict(simple: Advice) -> None:
    judged = {label: {c: g for c, g in gains.items() if c < 3} for label, gains in _all_open(simple).items()}
    of = dataclasses.replace(simple, check=dataclasses.replace(simple.check, groups=(), by_site=judged))
    assert "undecided site A, site B and site C; not measurable site D" in dict(of.sentences())["Which sites benefit?"]
    assert of.to_json()["no_verdict"] == ["site D"]


def _all_open(of: Advice) -> dict[str, dict[int, Difference]]:
    return {of.check.chosen or "": {c: Difference(0.0, -0.1, 0.1, "seeds") for c in range(4)}}
