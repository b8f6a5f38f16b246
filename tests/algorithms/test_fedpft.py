"""One-shot by Gaussian mixtures of latents, on a prior that can be worked out by hand."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from recipe import bits
from toy_prior import HOLDINGS, clients, played, same_deployed, simulator, toy

from unskew import wire
from unskew.algorithms import feddistr, fedpft
from unskew.algorithms.fedpft import Components, Decode, FedPFT, Mixture, summary, unusable
from unskew.errors import DataError
from unskew.keys import Key
from unskew.local.stacked.executor import Stacked
from unskew.local.workers.executor import Workers
from unskew.local.workers.pool import Pool
from unskew.local.workers.recipe import WorkerSetup
from unskew.protocol import SgdConfig
from unskew.runtime.in_process import Simulator
from unskew.runtime.memory import Memory
from unskew.world.outage import Outage

FEDPFT = FedPFT(images=6, classifier=SgdConfig(0.02, local_steps=4, batch_size=16, optimizer="adam"))
GOOD = FedPFT(images=12, classifier=SgdConfig(0.02, local_steps=60, batch_size=16, optimizer="adam"))


@pytest.fixture(autouse=True)
def _toy() -> Iterator[None]:
    with toy():
        yield


def test_everybody_learns_labels_that_nobody_showed_them() -> None:
    sim, states, _ = played(GOOD)
    server_trainer = sim.population.server_trainer
    assert server_trainer is not None
    for model in (sim.algorithm.serve(states[-1], None), *sim.own_models(states[-1], range(4), 1).values()):
        assert float(server_trainer.evaluate(model, "test")[0].double().mean()) > 0.8


def test_components_are_means_and_variances_of_clusters() -> None:
    """Client 1 has 20 images of label 1, fewer than two clusters of twelve: one component, of all of them."""
    population, trainer = clients()
    found = summary(trainer.local(population.me(1, 1, Key(0)), 0), "toy", 3)
    z = 2 * trainer.device_data.x[trainer.device_data.train[1]].flatten(1) - 1
    assert (found.labels.tolist(), found.counts.tolist()) == ([1], [20])
    assert torch.allclose(found.means[0], z.mean(0), atol=1e-6)
    assert torch.allclose(found.variances[0], z.var(0, correction=0), atol=1e-6)


def test_every_image_of_a_client_is_in_one_component() -> None:
    _, states, _ = played(dataclasses.replace(FEDPFT, m=2))
    assert int(states[-1].components.counts.sum()) == sum(n for held in HOLDINGS for _, _, n in held)


def test_images_follow_the_components_by_their_sizes() -> None:
    """Label 0 has components at +.5 and -.5, three to one: of 400 images about 300 are bright."""
    population, trainer = clients()
    means = torch.stack([torch.full((16,), 0.5), torch.full((16,), -0.5), torch.zeros(16)])
    parts = Components(means, torch.zeros(3, 16), torch.tensor([0, 0, 2]), torch.tensor([30, 10, 5]))
    local = trainer.local(population.me(0, 1, Key(0)), 0)
    x, y = Decode("toy", 400, own=False).made(local, Mixture(parts, 3))
    assert torch.bincount(y, minlength=3).tolist() == [400, 0, 400]
    bright = x[y == 0].mean((1, 2, 3))
    assert set(bright.mul(4).round().tolist()) == {1.0, 3.0}
    assert int((bright > 0.5).sum()) == pytest.approx(300, abs=30)
    assert torch.allclose(x[y == 2], torch.full((400, 1, 4, 4), 0.5))


def test_what_is_done_to_images_for_the_prior_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the server trains nothing."""
    monkeypatch.setattr(feddistr, "_changes", lambda local, prior: "images are stretched")
    sim, states, _ = played(dataclasses.replace(FEDPFT, server_model=False))
    assert sim.algorithm.info(states[-1]).warnings == ("for the prior images are stretched",)


def test_later_rounds_rest_and_no_model_travels() -> None:
    _, states, traces = played(FEDPFT, rounds=2)
    assert [len(t.transfers) for t in traces] == [8, 0]  # a call, or an answer, without content weighs nothing
    assert {t.kind for t in traces[0].transfers} == {"control"}
    assert wire.encode(dataclasses.replace(states[2], warnings=())) == wire.encode(states[1])


def test_later_rounds_say_that_it_is_over_and_repeat_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedpft, "unusable", lambda replies, *_: {2: "no"})
    sim, states, _ = played(FEDPFT, rounds=3)
    info = [sim.algorithm.info(s) for s in states[1:]]
    assert [i.client for i in info[0].ignored] == [2]
    assert [f.ignored for f in info[1:]] == [(), ()]
    assert [f.warnings for f in info] == [(), (fedpft._OVER,), (fedpft._OVER,)]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"variances": -torch.ones(2, 4)}, "a variance is negative, NaN or infinite"),
        ({"variances": torch.ones(2, 5)}, "differ in shape"),
        ({"means": torch.full((2, 4), torch.nan)}, "means: an embedding is NaN"),
        ({"variances": torch.full((2, 4), torch.inf)}, "a variance is negative, NaN or infinite"),
        ({"variances": torch.full((2, 4), 1e6)}, "a spread of 2000, 20 times the median length of means"),
        ({"labels": torch.tensor([0, 9])}, "means: label 9 is outside"),
        ({"means": torch.full((2, 4), 1e6)}, "20 times the median"),
    ],
)
def test_useless_components_are_refused(change: dict[str, torch.Tensor], why: str) -> None:
    good = Components(torch.ones(2, 4), torch.ones(2, 4), torch.tensor([0, 1]), torch.tensor([3, 4]))
    found = unusable({0: good, 1: dataclasses.replace(good, **change), 2: good}, 3, None, 3)
    assert list(found) == [1]
    assert why in found[1]


def test_if_all_are_refused_nothing_is_distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedpft, "unusable", lambda replies, *_: {c: "no" for c in replies})
    sim, states, _ = played(FEDPFT)
    assert states[-1].components is None
    info = sim.algorithm.info(states[-1])
    assert len(info.ignored) == 4
    assert info.warnings == ("no client sent components of use",)


def sent(means: torch.Tensor, each: int = 1) -> Components:
    labels = torch.arange(len(means)) // each
    return Components(means, torch.ones_like(means), labels, torch.ones(len(means), dtype=torch.int64))


@pytest.mark.parametrize("lie", [torch.zeros(30, 4), torch.full((30, 4), 500.0), torch.full((30, 4), 1e-9)])
def test_a_liar_with_many_components_gets_no_honest_client_refused(lie: torch.Tensor) -> None:
    """Thirty means against two honest clients' two each: a median over all means would be the liar's."""
    honest = {0: sent(torch.ones(2, 4)), 1: sent(2 * torch.ones(2, 4))}
    assert set(unusable({**honest, 2: sent(lie, 10)}, 3, 4, 10)) <= {2}


def test_components_of_another_prior_are_refused_whoever_sends_them() -> None:
    wide = sent(torch.ones(2, 5))
    assert set(unusable({0: wide, 1: wide}, 3, 4, 3)) == {0, 1}
    assert "width 5, expected 4" in unusable({0: wide}, 3, 4, 3)[0]
    population, trainer = clients()
    with pytest.raises(DataError, match=r"components must have the 16 numbers of a latent of toy, got \(2, 5\)"):
        Decode("toy", 4, own=False).made(trainer.local(population.me(0, 1, Key(0)), 0), Mixture(wide, 3))


def test_codec_resume_and_seed() -> None:
    sim, states, _ = played(FEDPFT, rounds=2)
    coded, again, _ = played(FEDPFT, rounds=2, codec=True)
    _, other, _ = played(FEDPFT, rounds=2, seed=1)
    assert bits(sim, states[1]) == bits(coded, again[1])
    assert wire.encode(states[1]) != wire.encode(other[1])
    of, kept = wire.memory_type(FEDPFT), bits(sim, states[1])
    resumed: Simulator[Any] = simulator(FEDPFT)
    resumed.memory = Memory(1, {c: wire.decode(kept[f"client {c}"], of) for c in range(4)})
    state, _ = resumed.round(wire.decode(kept["state"], wire.state_type(FEDPFT)), 2)
    assert bits(resumed, state) == bits(sim, states[2])


def open_cell(index: int) -> WorkerSetup:
    population, trainer = clients()
    return WorkerSetup(FEDPFT, trainer, population.me)


def test_stacked_clients_and_workers_end_with_the_bits_of_the_sequential_executor() -> None:
    alone, states, traces = played(FEDPFT)
    population, trainer = clients()
    stacked: Simulator[Any] = Simulator(FEDPFT, population, Stacked(trainer))
    state, trace = stacked.round(stacked.start(), 1)
    assert bits(stacked, state) == bits(alone, states[-1])
    pool = Pool(open_cell, workers=2, model_bytes=1 << 12)
    try:
        many: Simulator[Any] = simulator(FEDPFT)
        many.clients.executor = Workers(pool, 0, FEDPFT)
        state, trace = many.round(many.start(), 1)
    finally:
        pool.close()
    assert bits(many, state) == bits(alone, states[-1])
    assert trace == traces[0]


def test_a_deployed_run_is_the_simulated_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same_deployed("fedpft", FEDPFT, tmp_path, monkeypatch)


def test_a_client_that_is_lost_later_uses_the_global_model() -> None:
    for seed in range(6):
        sim: Simulator[Any] = simulator(FEDPFT, seed=seed, outage=Outage(unreachable=0.3))
        state, trace = sim.round(sim.start(), 1)
        lost = {f.client for f in trace.failures if f.step == "learn"}
        if lost:
            break
    assert lost
    for c in lost:
        assert sim.own_models(state, [c], 1)[c] is state.params
