"""FedDW: the term, the soft labels it pulls to, what noise on them costs, and that any method can take it."""

import dataclasses
import functools
import math
import re
import sys
from typing import Any

import pytest
import recipe
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unskew.algorithms import TABLE, resolve
from unskew.algorithms import feddw as module
from unskew.algorithms.feddw import (
    DW,
    ClassRelation,
    FedDW,
    LabelNoise,
    MuDecay,
    SoftLabels,
    add_soft_labels,
    fault,
    noised,
)
from unskew.errors import ConfigError
from unskew.experiment import config
from unskew.info import ClassRelations, Refused
from unskew.keys import Key
from unskew.ledger import SERVER
from unskew.local.sequential import Sequential
from unskew.local.trainer import LocalTrainer
from unskew.protocol import Sgd, SgdConfig
from unskew.runtime import in_process
from unskew.runtime.in_process import Simulator
from unskew.server import privacy
from unskew.world.pace import Outage
from unskew.wrappers.base import wrap

SMALL = SgdConfig(lr=0.1, local_epochs=2, batch_size=3)


def soft(sums: Any, counts: Any) -> SoftLabels:
    return SoftLabels(torch.tensor(sums), torch.tensor(counts))


# ---------------------------------------------------------------- eq. 11
def test_the_term_by_hand() -> None:
    """W = I: W W^T = I, rows softmax(1, 0) = (.73106, .26894).  SL = I: ||CR - SL||^2 = 4 * .26894^2 = .28932, / 4."""
    term = ClassRelation(10.0, "w")
    value = term({"w": torch.eye(2)}, {"soft_labels": torch.eye(2)})
    assert value.item() == pytest.approx(10 * 0.07233, rel=1e-4)


matrices = st.integers(2, 5).flatmap(
    lambda c: st.tuples(
        st.lists(st.lists(st.floats(-9, 9), min_size=3, max_size=3), min_size=c, max_size=c),
        st.lists(st.lists(st.floats(0, 1), min_size=c, max_size=c), min_size=c, max_size=c),
    )
)


@given(matrices)
def test_the_term_lies_between_zero_and_two_over_c(drawn: Any) -> None:
    """G8: two distributions are at most sqrt(2) apart, so C rows give at most 2 C / C^2."""
    weight, rows = (torch.tensor(part, dtype=torch.float64) for part in drawn)
    sl = (rows + 1e-9) / (rows + 1e-9).sum(1, keepdim=True)
    value = ClassRelation(1.0, "w")({"w": weight}, {"soft_labels": sl}).item()
    assert 0.0 <= value <= 2.0 / len(sl)


# ---------------------------------------------------------------- eq. 4, 7
def test_soft_labels_are_those_of_the_trained_models(classes: Any, spy: Any) -> None:
    """Eq. 4 and 7 from the models that the clients sent, in one pass of our own, for a cohort of three."""
    world = classes(n=[5, 8, 3, 6], norm=True)
    with spy() as messages:
        play = world.play(FedDW(local=SMALL), rounds=1, clients_per_round=3)
    replies = [m for m in messages if hasattr(m, "soft")]
    assert len(replies) == 3
    trainer = play.sim.executor.trainer
    sums, counts = torch.zeros(3, 3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    cohort = sorted(t.src - 1 for t in play.traces[0].transfers if t.dst == SERVER)
    for client, reply in zip(cohort, replies, strict=True):
        rows = world.device_data.train[client]
        _, logits = trainer.refer(world.device_data.x[rows], reply.of.params)
        for p, c in zip(logits.softmax(1), world.device_data.y[rows].tolist(), strict=True):
            sums[c] += p
            counts[c] += 1
    assert (counts > 0).all()
    torch.testing.assert_close(play.states[1].sl, sums / counts[:, None], rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"sl_history": "cumulative", "sl_momentum": 0.5}])
def test_a_class_nobody_holds_keeps_its_row_and_rows_sum_to_one(options: Any, classes: Any) -> None:
    """G8, DW-A1: class 2 is held by client 3 alone, cohorts of two."""
    world = classes(n=[4, 4, 4, 4]).labelled([[0, 1, 0, 1], [0, 0, 0, 1], [1, 0, 1, 1], [2, 2, 0, 1]])
    play = world.play(FedDW(local=SMALL, **options), rounds=6, clients_per_round=2)
    seen = kept = absent = 0
    for before, after, trace in zip(play.states, play.states[1:], play.traces, strict=False):
        torch.testing.assert_close(after.sl.sum(1), torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-12)
        present = any(t.src == 4 for t in trace.transfers)
        if not present:
            kept += torch.equal(after.sl[2], before.sl[2])
            absent += 1
        seen += present
    assert seen
    # Pooled over all rounds the class is held from its first upload on, and the mixing goes on.
    assert (kept < absent) if options else (kept == absent > 0)


def test_cumulative_history_pools_all_uploads(classes: Any) -> None:
    world = classes(n=[4, 6])
    play = world.play(FedDW(local=SMALL, sl_history="cumulative"), rounds=3)
    assert [int(s.totals.counts.sum()) for s in play.states] == [0, 10, 20, 30]
    last = play.states[3].totals
    torch.testing.assert_close(play.states[3].sl, last.sums / last.counts[:, None], rtol=0, atol=1e-12)
    current = world.play(FedDW(local=SMALL), rounds=3)
    assert [int(s.totals.counts.sum()) for s in current.states] == [0, 10, 10, 10]


def test_mu_falls_in_the_rounds_that_every_divides() -> None:
    """Rounds 1-8 have mu, 9-17 a tenth, 18-26 a hundredth, as in the released code."""
    dw = DW(1.0, mu_decay=MuDecay(9, 0.1))
    assert [dw.mu_at(t) for t in (1, 8, 9, 17, 18, 45)] == pytest.approx([1.0, 1.0, 0.1, 0.1, 0.01, 1e-5])
    assert DW(1.0).mu_at(1000) == 1.0


# ---------------------------------------------------------------- any method

METHODS = [n for n in TABLE if n not in ("feddw", "fedbuff", "fedasync") and n not in recipe.APART]


def half(first: int) -> list[Any]:
    """The methods, of which every second one waits for `make test-slow`."""
    return [pytest.param(n, marks=pytest.mark.slow if i % 2 != first else ()) for i, n in enumerate(METHODS)]


class Watching(LocalTrainer):
    """Writes down the optimisations that were asked for."""

    asked: list[Any]

    def answer(self, me: Any, index: int, request: object) -> Any:
        if isinstance(request, Sgd):
            self.asked.append((me, request))
        return super().answer(me, index, request)


@pytest.mark.parametrize("name", half(1))
@pytest.mark.seconds
def test_every_method_takes_the_term(name: str) -> None:
    """Options stay those of the method; the term is in every optimisation of the layer, the bias stays zero."""
    target = resolve(f"{name}+dw")
    options = method_options(target) | recipe.VARIANTS[name][1]
    method = target(**options, dw=DW(3.0))
    assert method == target(**options, dw=DW(3.0))
    assert hash(method) == hash(target(**options, dw=DW(3.0)))
    population, plain = recipe.world("perceptron", getattr(method, "pooled", False))
    trainer = Watching(plain.task, plain.device_data)
    trainer.asked = []
    sim = Simulator(method, population, Sequential(trainer))
    state = before = sim.start()
    for t in (1, 2):
        before, (state, _) = state, sim.round(state, t)
        assert relations_of(method, state).ignored == ()
    jobs = [(me.round, job) for me, job in trainer.asked if me.round <= 2]
    chosen = plain.task.layout.select
    own = [(t, job) for t, job in jobs if "2.weight" in chosen(job.config.trainable)]
    assert jobs
    assert sum("soft_labels" in job.aux for _, job in jobs) == len(own)
    assert all(job.terms[-1] == ClassRelation(3.0, "2.weight") for _, job in own)
    assert all(torch.equal(job.aux["soft_labels"], before.sl) for t, job in own if t == 2)
    assert all(not job.start["2.bias"].any() for _, job in jobs)
    assert all("2.bias" not in chosen(job.config.trainable) for _, job in jobs)
    assert state.totals.uploads > 0
    assert state.idle == (not own)
    for c in population.clients if name != "ccvr" else ():  # whose server fits a head with a bias to what it serves
        assert not sim.own_models(state, [c], 2)[c]["2.bias"].any()


def method_options(target: Any) -> dict[str, Any]:
    return {"local": recipe.LOCAL} if "local" in config.schema.parameters(target) else {}


def test_a_client_that_trains_twice_in_a_round_counts_once(classes: Any) -> None:
    """FedSwap trains ten legs a round on 4 clients of 8: the soft labels of 32 examples, not of 320."""
    play = classes().play(resolve("fedswap+dw")(local=SMALL), rounds=1)
    assert float(play.states[1].totals.counts.sum()) == 32.0


# ---------------------------------------------------------------- the bias
def test_the_bias_is_held_at_zero(classes: Any, springs: Any) -> None:
    """Also where clients keep their heads, whose first values are the common initial ones, and under weight decay."""
    world = classes(norm=True)
    assert world.population.initial["head.bias"].abs().max() > 0
    local = SgdConfig(0.1, local_epochs=2, batch_size=3, momentum=0.9, weight_decay=0.1)
    for method in (FedDW(local=local), FedDW(local=local, personal=("head",)), resolve("ifca+dw")(local=local)):
        play = world.play(method, rounds=2)
        for client in range(4):
            own = play.own(client)
            assert float(own["head.bias"].abs().max()) == 0.0
            assert float((own["bn.running_mean"]).abs().max()) > 0.0
            assert not torch.equal(own["fc.bias"], world.population.initial["fc.bias"])
    kept = world.play(FedDW(local=local, bias="keep"), rounds=1)
    assert float(kept.params[1]["head.bias"].abs().max()) > 0.0


# ---------------------------------------------------------------- uploads that cannot be right
GOOD = ([[1.5, 0.5], [0.25, 0.75]], [2.0, 1.0])


@pytest.mark.parametrize(
    ("sums", "counts", "why"),
    [
        ([[1.5, 0.5]], [2.0, 1.0], r"of shapes \(1, 2\) and \(2,\) instead of \(2, 2\) and \(2,\)"),
        (GOOD[0], [2.0], r"and \(1,\) instead"),
        ([[2, 0], [0, 1]], [2, 1], "int64 and torch.int64 instead of floating-point"),
        ([[2.5, -0.5], [0.25, 0.75]], [2.0, 1.0], "negative soft labels"),
        ([[-1.0, 0.0], [0.25, 0.75]], [-1.0, 1.0], "negative soft labels or counts"),
        ([[math.nan, 0.5], [0.25, 0.75]], [2.0, 1.0], "not finite"),
        (GOOD[0], [2.0, math.inf], "not finite"),
        ([[1.5, 0.5], [0.5, 0.75]], [2.0, 1.0], "class 1 sum to 1.25, for 1 examples"),
        ([[1.5, 0.5], [0.25, 0.75]], [0.0, 1.0], "class 0 sum to 2, for 0 examples"),
    ],
)
def test_an_upload_that_cannot_be_right_is_named(sums: Any, counts: Any, why: str) -> None:
    assert fault(soft(*GOOD), 2) is None
    said = fault(soft(sums, counts), 2)
    assert said is not None
    assert re.search(why, said), said
    noisy = why.startswith(("negative", "class"))  # noise makes such numbers of honest ones
    assert (fault(soft(sums, counts), 2, 0.5) is None) == noisy


def test_a_client_that_lies_is_left_out_and_recorded(classes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Client 1 sends minus its sums: the matrix is the others', its model counts, the round goes on."""
    world = classes()
    work = DW.work

    def lying(self: DW, of: Any, name: str, begin: Any, me: Any, msg: Any, memory: Any) -> Any:
        reply, kept = yield from work(self, of, name, begin, me, msg, memory)
        if me.id == 1:
            reply = dataclasses.replace(reply, soft=SoftLabels(-reply.soft.sums, reply.soft.counts))
        return reply, kept

    honest = world.play(FedDW(local=SMALL), rounds=1)
    monkeypatch.setattr(DW, "work", lying)
    play = world.play(FedDW(local=SMALL), rounds=2, codec=True)
    info = relations_of(play.sim.method, play.states[1])
    assert info.ignored == (Refused(1, "train", "negative soft labels or counts"),)
    assert info.warnings == ()
    assert play.states[1].totals.uploads == 3
    others = world.population.histograms[[0, 2, 3]].sum(0)
    assert play.states[1].totals.counts.tolist() == others.tolist()
    torch.testing.assert_close(play.params[1], honest.params[1])
    monkeypatch.setattr(module, "add_soft_labels", lambda sums, batch: sums + 1.0)
    nobody = world.play(FedDW(local=SMALL), rounds=1)
    assert torch.equal(nobody.states[1].sl, torch.eye(3, dtype=torch.float64))
    assert len(relations_of(nobody.sim.method, nobody.states[1]).ignored) == 4


# ---------------------------------------------------------------- info
def relations_of(method: Any, state: Any) -> ClassRelations:
    """What the term reports, beside what the method does."""
    *_, relations = method.info(state)
    assert isinstance(relations, ClassRelations)
    return relations


# ---------------------------------------------------------------- noise
class Accountant:
    """What dp-accounting offers, with an epsilon that is easily recognised."""

    @staticmethod
    def get_epsilon_gaussian(sigma: float, delta: float) -> float:
        return 10.0 / sigma

    @staticmethod
    def get_sigma_gaussian(epsilon: float, delta: float) -> float:
        return 10.0 / epsilon


@pytest.fixture
def accountant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", Accountant)
    for cached in (privacy.epsilon, privacy.noise_multiplier):
        monkeypatch.setattr(privacy, cached.__name__, functools.cache(cached.__wrapped__))


def test_an_example_moves_an_upload_by_at_most_the_sensitivity(classes: Any) -> None:
    """One row by probabilities, whose norm is at most 1, and one count by 1: sqrt(2) in all."""
    world = classes(n=[7])
    trainer = world.simulator(FedDW()).executor.trainer
    rows = world.device_data.train[0]
    _, logits = trainer.refer(world.device_data.x[rows], world.population.initial)

    def upload(keep: Tensor) -> Tensor:
        class Seen:
            y, mask = world.device_data.y[rows], keep

        Seen.logits = 50.0 * logits  # type: ignore[attr-defined]
        sums = add_soft_labels(torch.zeros(3, 3, dtype=torch.float64), Seen())  # type: ignore[arg-type]
        return torch.cat([sums.flatten(), torch.zeros(3, dtype=torch.float64).index_add(0, Seen.y, keep)])

    everybody = torch.ones(7, dtype=torch.float64)
    moves = [(upload(everybody) - upload(everybody - e)).norm().item() for e in torch.eye(7, dtype=torch.float64)]
    assert max(moves) <= math.sqrt(2.0) + 1e-12
    assert max(moves) > 1.3  # confident predictions come near it


@pytest.mark.usefixtures("accountant")
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "moon", "feddif"])
def test_training_on_an_example_moves_no_more_of_an_upload_under_noise(
    name: str, classes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two federations that differ by one of client 0's 40 examples; noise is asked for and not drawn.

    The model just trained says something else of the other 39 as well, and the two uploads are further apart than the
    sensitivity; of the model that was sent one row differs, by a distribution, and one count.
    """
    monkeypatch.setattr(module, "noised", lambda sent, sigma, key: sent)
    whole = classes(n=[40, 8])
    rows, y = whole.device_data.train, whole.device_data.y
    row = int(y[rows[0][-1]])
    histograms = whole.population.histograms.clone()
    histograms[0, row] -= 1
    device_data = dataclasses.replace(whole.device_data, train=(rows[0][:-1], *rows[1:]))
    population = dataclasses.replace(whole.population, histograms=histograms)
    fewer = dataclasses.replace(whole, device_data=device_data, population=population)
    local = SgdConfig(lr=5.0, local_epochs=3, batch_size=4)

    def apart(dp: LabelNoise | None) -> SoftLabels:
        """What moves in the first upload of client 0."""
        of = resolve(name)(local=local, **({"epsilon": 0.01} if name == "feddif" else {}))
        sent: list[SoftLabels] = []
        receive = in_process._InProcessRound.receive

        def watched(self: Any, exchange: Any, me: Any, result: Any) -> Any:
            if me.id == 0 and getattr(result.value[0], "soft", None) is not None:
                sent.append(result.value[0].soft)
            return receive(self, exchange, me, result)

        with monkeypatch.context() as patch:
            patch.setattr(in_process._InProcessRound, "receive", watched)
            for world in (whole, fewer):
                before = len(sent)
                world.play(wrap(of, DW(dp=dp)), rounds=1)
                del sent[before + 1 :]
        one, two = sent
        return SoftLabels(one.sums - two.sums, one.counts - two.counts)

    moved = apart(LabelNoise(noise_multiplier=1.0))
    assert moved.counts.tolist() == [float(c == row) for c in range(3)]
    assert moved.sums[row].sum().item() == pytest.approx(1.0)
    assert float(moved.sums[[c for c in range(3) if c != row]].abs().max()) < 1e-12
    assert torch.cat([moved.sums.flatten(), moved.counts]).norm().item() <= math.sqrt(2.0)
    trained = apart(None)
    assert torch.cat([trained.sums.flatten(), trained.counts]).norm().item() > 2.0


@pytest.mark.usefixtures("accountant")
def test_soft_labels_under_noise_are_those_of_the_models_that_were_sent(
    classes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eq. 4 and 7 by a pass of our own with the global model before the round, in the second round."""
    monkeypatch.setattr(module, "noised", lambda sent, sigma, key: sent)
    monkeypatch.setattr(LabelNoise, "sigma", 0.0)
    world = classes(n=[5, 8, 3], norm=True)
    play = world.play(FedDW(local=SMALL, dp=LabelNoise(noise_multiplier=1.0)), rounds=2)
    _, logits = play.sim.executor.trainer.refer(world.device_data.x, play.params[1])
    sums = torch.zeros(3, 3, dtype=torch.float64).index_add(0, world.device_data.y, logits.softmax(1))
    counts = torch.bincount(world.device_data.y, minlength=3)
    assert (counts > 0).all()
    torch.testing.assert_close(play.states[2].sl, sums / counts[:, None], rtol=0, atol=1e-12)


@pytest.mark.usefixtures("accountant")
@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("fedper", {}, "step 'train' of FedAvg sends none; leave dp out, or use fedavg"),
        ("fedavg", {"personal": ("norm",)}, "step 'train' of FedAvg sends none"),
        ("ifca", {}, "step 'train' of IFCA sends none"),
        ("fedproto", {}, "step 'train' of FedProto sends none"),
        ("independent", {}, "step 'train' of Independent sends none"),
    ],
)
def test_a_method_whose_clients_are_sent_no_whole_model_cannot_have_noise(
    name: str, options: Any, said: str, classes: Any
) -> None:
    """What clients keep depends on their data, and so does which of several models they take."""
    method = wrap(resolve(name)(local=SMALL, **options), DW(dp=LabelNoise(noise_multiplier=1.0)))
    with pytest.raises(ConfigError, match=f"clients that are sent one whole model, and {said}"):
        classes(norm=True).simulator(method).start()


@pytest.mark.usefixtures("accountant")
def test_a_model_that_never_left_its_client_is_none_that_was_sent(classes: Any) -> None:
    """TT-HF sends out a model once a round; after that clients go on with what they hold themselves."""
    method = wrap(resolve("tthf")(local=SMALL, cluster_size=2), DW(dp=LabelNoise(noise_multiplier=1.0)))
    with pytest.raises(ConfigError, match="step 'train' of TTHF sends none"):
        classes().play(method, rounds=1)


def test_noise_has_the_stated_spread_and_is_keyed() -> None:
    """1,010,000 draws of standard deviation 3: its estimate is off by less than 1 % but once in 10^40."""
    zero = SoftLabels(torch.zeros(1000, 1000), torch.zeros(10_000))
    one, two, other = (noised(zero, 3.0, Key(s)) for s in (1, 1, 2))
    assert float(torch.cat([one.sums.flatten(), one.counts]).std()) == pytest.approx(3.0, rel=0.01)
    assert torch.equal(one.sums, two.sums)
    assert not torch.equal(one.sums, other.sums)
    assert abs(float((one.sums[0] * one.counts[:1000]).mean())) < 1.5


@pytest.mark.usefixtures("accountant")
def test_what_was_asked_for_is_spent_even_if_it_never_arrived(classes: Any) -> None:
    """Four uploads of multiplier 2 are one of 2 / sqrt(4) = 1: epsilon 10 by the accountant above."""
    method = FedDW(local=SMALL, dp=LabelNoise(noise_multiplier=2.0))
    play = classes().play(method, rounds=4, outage=Outage(late=0.5), seed=3)
    assert sum(len(t.failures) for t in play.traces) > 0
    assert play.states[-1].asked == dict.fromkeys(range(4), 4)
    info = relations_of(method, play.states[-1])
    assert (info.privacy.epsilon, info.privacy.uploads, info.privacy.delta) == (10.0, 4, 1e-5)
    assert "standard deviation 2.828" in info.privacy.server
    assert "Its own models, and what the method sends besides, are not covered" in info.privacy.covers
    assert "given the models that it was sent" in info.privacy.covers
    assert relations_of(method, play.states[0]).privacy.epsilon == 0.0


@pytest.mark.usefixtures("accountant")
def test_a_budget_ends_the_uploads_and_not_the_training(classes: Any, spy: Any) -> None:
    method = FedDW(local=SMALL, dp=LabelNoise(epsilon=5.0, uploads=2))
    with spy() as messages:
        play = classes().play(method, rounds=4, codec=True)
    reports = [m.soft is not None for m in messages if hasattr(m, "soft")]
    assert reports == [True] * 8 + [False] * 8
    assert torch.equal(play.states[4].sl, play.states[2].sl)
    assert not torch.equal(play.params[4]["head.weight"], play.params[3]["head.weight"])
    info = relations_of(method, play.states[4])
    assert (info.privacy.epsilon, info.warnings) == (pytest.approx(5.0), ())
