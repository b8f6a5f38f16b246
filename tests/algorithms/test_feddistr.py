"""FedDistr, on a prior that can be worked out by hand (tests/conformance/toy_prior.py).

The conformance suite's clients have four numbers an example, of which no prior can make an image; what it asks of every
method is asked here.
"""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recipe import bits
from toy_prior import HOLDINGS, NETWORKS, clients, played, same_deployed, simulator, toy

from unskew import wire
from unskew.algorithms import feddistr
from unskew.algorithms.feddistr import (
    EmbeddingNoise,
    FedDistr,
    Imagine,
    Prompts,
    balanced,
    jitter,
    nearest,
    noised,
    shown,
)
from unskew.errors import ConfigError, DataError, QuorumError
from unskew.experiment import config
from unskew.info import row
from unskew.keys import Key
from unskew.local.stacked.executor import Stacked
from unskew.local.trainer import LocalTrainer
from unskew.local.workers.executor import Workers
from unskew.local.workers.pool import Pool
from unskew.local.workers.recipe import WorkerSetup
from unskew.protocol import Me, SgdConfig, Step, step
from unskew.runtime.in_process import Simulator
from unskew.runtime.memory import Memory
from unskew.server import privacy
from unskew.tree import Params, leaves
from unskew.world.outage import Outage

QUICK = SgdConfig(0.02, local_steps=60, batch_size=16, optimizer="adam")
GOOD = FedDistr(steps=40, images=12, classifier=QUICK)
"""Good enough to learn something; what follows is for everything else."""

FEDDISTR = FedDistr(steps=4, images=4, classifier=dataclasses.replace(QUICK, local_steps=3))


@pytest.fixture(autouse=True)
def _toy() -> Iterator[None]:
    with toy():
        yield


def accuracy(sim: Simulator[Any], params: Any) -> float:
    server_trainer = sim.population.server_trainer
    assert server_trainer is not None
    return float(server_trainer.evaluate(params, "test")[0].double().mean())


# ---------------------------------------------------------------- what it is for
def test_everybody_learns_labels_that_nobody_showed_them() -> None:
    """Trained alone a client knows at most two of three labels; a model for nothing is right in one of three."""
    sim, states, _ = played(GOOD)
    assert accuracy(sim, sim.algorithm.serve(states[-1], None)) > 0.9
    for c, model in sim.own_models(states[-1], sim.population.clients, 1).items():
        assert accuracy(sim, model) > 0.8, f"client {c}"


def test_embeddings_are_the_means_of_clusters() -> None:
    """The toy's loss is least there.  By the oracle clusters are the styles, two of label 0 at client 0."""
    _, states, _ = played(dataclasses.replace(FEDDISTR, m="oracle", steps=150))
    uploads = states[-1].info.uploads
    assert uploads.labels.tolist() == [0, 0, 1, 1, 2, 2, 2]
    assert states[-1].info.owners == (0, 0, 1, 2, 2, 3, 3)
    assert uploads.counts.tolist() == [14, 9, 20, 11, 13, 17, 15]
    _, trainer = clients()
    x = 2 * trainer.device_data.x.flatten(1) - 1
    means = [part.mean(0) for part in torch.split(x, [14, 9, 20, 13, 11, 17, 15])]  # as they are held
    expected = torch.stack([means[i] for i in (0, 1, 2, 4, 3, 5, 6)])  # labels ascend
    assert torch.allclose(uploads.embeddings, expected, atol=0.05)


def test_what_two_clients_share_is_kept_once() -> None:
    """Labels 1 and 2 in style 0 are held twice: client 1 has more of the one, client 3 of the other.

    Clients 0 and 3 told two styles of a label apart, so half of that distance is the threshold.
    """
    _, states, _ = played(dataclasses.replace(FEDDISTR, m="oracle", steps=150))
    info = states[-1].info
    assert info.sets == ((0,), (1,), (2, 3), (4, 5), (6,))
    assert info.kept == (0, 1, 2, 5, 6)
    assert states[-1].prompts.labels.tolist() == [0, 0, 1, 2, 2]
    assert states[-1].prompts.counts.tolist() == [14, 9, 31, 30, 15]


@pytest.mark.seconds
def test_prediction_distance_finds_the_same_sets() -> None:
    one, other = (
        played(dataclasses.replace(FEDDISTR, m="oracle", steps=100, distance=d))[1][-1] for d in ("l2", "prediction")
    )
    assert one.info.sets == other.info.sets
    assert one.info.tau != other.info.tau


@pytest.mark.parametrize(
    ("m", "labels"),
    [
        ("auto", [0, 1, 2, 1, 2, 2]),
        (1, [0, 1, 1, 2, 2]),
        (2, [0, 0, 1, 1, 1, 1, 2, 2, 2, 2]),
        ("silhouette", None),
    ],
)
def test_clusters_of_a_label(m: Any, labels: list[int] | None) -> None:
    """auto: 23, 20, 13, 11 and 32 images are 1, 1, 1, 1 and 2 clusters."""
    _, states, _ = played(dataclasses.replace(FEDDISTR, m=m, steps=2))
    found = states[-1].info.uploads.labels.tolist()
    if labels is not None:
        assert sorted(found) == sorted(labels)
    else:
        assert set(found) == {0, 1, 2}


def test_fewer_images_than_clusters_are_as_many_clusters() -> None:
    _, states, _ = played(dataclasses.replace(FEDDISTR, m=50, steps=2))
    assert len(states[-1].info.uploads.labels) == sum(n for held in HOLDINGS for _, _, n in held)
    assert set(states[-1].info.uploads.counts.tolist()) == {1}


# ---------------------------------------------------------------- what travels
def test_no_model_travels_and_the_server_s_costs_nothing() -> None:
    with_model, without = (played(dataclasses.replace(FEDDISTR, server_model=own))[2][0] for own in (True, False))
    assert with_model.transfers == without.transfers
    assert {t.kind for t in with_model.transfers} == {"control"}
    assert len(with_model.transfers) == 4 * 4  # a call and embeddings, all embeddings and a word back, by client
    assert with_model.work == without.work
    assert {e.client for e in with_model.work} == {0, 1, 2, 3}


def test_without_a_server_model_there_is_none() -> None:
    sim, states, _ = played(dataclasses.replace(GOOD, server_model=False))
    assert sim.algorithm.serve(states[0], None) is None
    assert sim.algorithm.serve(states[1], None) is None
    assert len(sim.own_models(states[0], [0, 1], 0)) == 2
    assert accuracy(sim, sim.own_models(states[1], [1], 1)[1]) > 0.8


def test_the_server_cannot_train_without_a_device() -> None:
    population, trainer = clients()
    sim: Simulator[Any] = Simulator(
        FEDDISTR, dataclasses.replace(population, server_trainer=None), simulator(FEDDISTR).executor
    )
    with pytest.raises(ConfigError, match="this server has no device for local work of its own"):
        sim.round(sim.start(), 1)
    assert trainer.device_data.domains is not None


def test_what_is_done_to_images_for_the_prior_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the server trains nothing."""
    monkeypatch.setattr(feddistr, "_changes", lambda local, prior: "images are stretched")
    sim, states, _ = played(dataclasses.replace(FEDDISTR, server_model=False))
    assert sim.algorithm.info(states[-1]).warnings == ("for the prior images are stretched",)


def test_later_rounds_rest_and_say_so() -> None:
    sim, states, traces = played(FEDDISTR, rounds=3)
    assert [len(t.transfers) for t in traces] == [16, 0, 0]
    assert wire.encode(states[1].params) == wire.encode(states[3].params)
    assert sim.algorithm.info(states[2]).warnings == (feddistr._OVER,)
    assert not sim.algorithm.info(states[1]).warnings


# ---------------------------------------------------------------- what a hostile client can do
@dataclass(frozen=True)
class Hostile(FedDistr):
    """Client 1 sends what it should not."""

    what: str = "nan"

    @step
    def disentangle(
        self, me: Me, msg: feddistr.EmbeddingsRequest, memory: Params | None
    ) -> Step[tuple[Prompts, Params | None]]:
        prompts, memory = yield from super().disentangle(me, msg, memory)
        if me.id == 1:
            v, y, n = prompts.embeddings, prompts.labels, prompts.counts
            bad = {
                "nan": (v * torch.nan, y, n),
                "shape": (v[:, :5], y, n),
                "norm": (v * 1e5, y, n),
                "label": (v, y + 7, n),
            }
            prompts = Prompts(*bad[self.what])
        return prompts, memory


@pytest.mark.parametrize(
    ("what", "why"), [("nan", "NaN"), ("shape", "width 5"), ("norm", "times the median"), ("label", "label 8")]
)
def test_a_useless_upload_is_refused_and_recorded(what: str, why: str) -> None:
    algorithm = Hostile(**{f.name: getattr(FEDDISTR, f.name) for f in dataclasses.fields(FEDDISTR)}, what=what)
    sim: Simulator[Any] = simulator(algorithm)
    state, _ = sim.round(sim.start(), 1)
    (ignored,) = algorithm.info(state).ignored
    assert (ignored.client, ignored.step) == (1, "disentangle")
    assert why in ignored.reason
    assert 1 not in state.info.owners
    assert bool(state.prompts.embeddings.isfinite().all())


def test_if_all_are_refused_the_next_round_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    real = feddistr.faults
    monkeypatch.setattr(feddistr, "faults", lambda parts, *_: {c: "no" for c in parts})
    sim, states, _ = played(FEDDISTR)
    info = sim.algorithm.info(states[-1])
    assert info.warnings == ("no client sent an embedding of use",)
    assert len(info.ignored) == 4
    monkeypatch.setattr(feddistr, "faults", real)
    state, _ = sim.round(states[-1], 2)
    assert state.prompts is not None


# ---------------------------------------------------------------- conformance
@pytest.mark.parametrize("network", NETWORKS)
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(network: str) -> None:
    ends = []
    for seed in (5, 5, 6):
        sim, states, _ = played(FEDDISTR, network=network, seed=seed)
        ends.append(bits(sim, states[-1]))
    assert ends[0] == ends[1]
    assert ends[0] != ends[2]


def test_a_run_through_the_codec_is_the_same_run() -> None:
    (plain, one, here), (coded, two, there) = (played(FEDDISTR, codec=codec) for codec in (False, True))
    assert bits(plain, one[-1]) == bits(coded, two[-1])
    assert here[0].transfers == there[0].transfers


def test_a_resumed_run_is_the_straight_run() -> None:
    sim, states, _ = played(FEDDISTR, rounds=2)
    kept = bits(sim, states[1])
    of = wire.memory_type(FEDDISTR)
    resumed: Simulator[Any] = simulator(FEDDISTR)
    resumed.memory = Memory(1, {c: wire.decode(kept[f"client {c}"], of) for c in sim.population.clients})
    state, _ = resumed.round(wire.decode(kept["state"], wire.state_type(FEDDISTR)), 2)
    assert bits(resumed, state) == bits(sim, states[2])


@pytest.mark.parametrize("network", NETWORKS)
def test_stacked_clients_end_where_they_would_alone(network: str) -> None:
    population, trainer = clients(network)
    stacked: Simulator[Any] = Simulator(FEDDISTR, population, Stacked(trainer))
    alone, states, _ = played(FEDDISTR, network=network)
    state, _ = stacked.round(stacked.start(), 1)
    uploads = state.info.uploads
    assert torch.allclose(uploads.embeddings, states[-1].info.uploads.embeddings, atol=1e-5)
    assert state.info.sets == states[-1].info.sets
    for (_, a), (_, b) in zip(leaves(alone.memory.get(0)), leaves(stacked.memory.get(0)), strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-4)


def test_clusters_of_all_clients_are_inverted_in_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    real = feddistr.Disentangle.together

    def counting(self: Any, asked: Any) -> Any:
        calls.append(len(asked))
        return real(self, asked)

    monkeypatch.setattr(feddistr.Disentangle, "together", counting)
    population, trainer = clients()
    stacked: Simulator[Any] = Simulator(FEDDISTR, population, Stacked(trainer))
    stacked.round(stacked.start(), 1)
    assert calls == [4]


def open_cell(index: int) -> WorkerSetup:
    population, trainer = clients()
    return WorkerSetup(FEDDISTR, trainer, population.me)


def test_workers_end_with_the_bits_of_the_sequential_executor() -> None:
    alone, states, traces = played(FEDDISTR)
    pool = Pool(open_cell, workers=2, model_bytes=1 << 12)
    try:
        many: Simulator[Any] = simulator(FEDDISTR)
        many.clients.executor = Workers(pool, 0, FEDDISTR)
        state, trace = many.round(many.start(), 1)
    finally:
        pool.close()
    assert bits(many, state) == bits(alone, states[-1])
    assert trace == traces[0]


def test_a_deployed_run_is_the_simulated_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same_deployed("feddistr", FEDDISTR, tmp_path, monkeypatch)


@pytest.mark.parametrize("outage", [Outage(unreachable=0.4), Outage(late=0.4)], ids=str)
def test_lost_clients_are_survived_or_refused(outage: Outage) -> None:
    failures = 0
    for seed in range(5):
        sim: Simulator[Any] = simulator(dataclasses.replace(FEDDISTR, steps=5), seed=seed, outage=outage)
        try:
            state, trace = sim.round(sim.start(), 1)
        except QuorumError:
            failures += 1
            continue
        failures += len(trace.failures)
        models = sim.own_models(state, sim.population.clients, 1)
        assert len(models) == 4
    assert failures


def test_types_are_those_that_are_declared() -> None:
    sim, states, _ = played(FEDDISTR, rounds=2)
    of = wire.state_type(FEDDISTR)
    for state in states:
        assert wire.encode(wire.decode(wire.encode(state), of)) == wire.encode(state)
    assert config.method("unskew.algorithms.feddistr:FedDistr", {"m": 2, "dp": None}).algorithm == FedDistr(m=2)
    assert sim.memory.get(0) is not None


# ---------------------------------------------------------------- parts
@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), st.integers(0, 9))
def test_every_label_is_met_equally_often(labels: list[int], seed: int) -> None:
    y = torch.tensor(labels)
    rows = balanced(y, Key(seed))
    most = int(torch.bincount(y).max())
    assert all(int((y[rows] == c).sum()) == most for c in set(labels))
    for c in set(labels):
        times = torch.bincount(rows, minlength=len(y))[y == c]
        assert int(times.max() - times.min()) <= 1


def test_images_are_shared_out_over_the_embeddings_of_a_label() -> None:
    """Twelve of each label: label 0 has embeddings of 3 and of 1, so 9 and 3; label 2 one of 12.

    The toy's images are the embedding, so that of the second embedding is bright: three of label 0.
    """
    _, trainer = clients()
    me = clients()[0].me(0, 1, Key(0))
    v = torch.stack([torch.zeros(16), torch.full((16,), 0.8), torch.zeros(16)])
    sets = feddistr.EmbeddingSets(Prompts(v, torch.tensor([0, 0, 2]), torch.tensor([3, 1, 5])), 7)
    made = Imagine("toy", 12, None, None, own=False, compare=False)
    examples, closest = made(trainer.local(me, 0), sets)
    assert torch.bincount(examples.y, minlength=3).tolist() == [12, 0, 12]
    bright = examples.x.mean((1, 2, 3)) > 0.7
    assert examples.y[bright].tolist() == [0, 0, 0]
    unknown = dataclasses.replace(sets, prompts=dataclasses.replace(sets.prompts, counts=torch.zeros(3).long()))
    assert int((made(trainer.local(me, 0), unknown)[0].x.mean((1, 2, 3)) > 0.7).sum()) == 6
    assert closest is None
    many = feddistr.EmbeddingSets(Prompts(v[[0] * 12], torch.tensor([0] * 11 + [2]), torch.ones(12).long()), 7)
    # Eleven embeddings share twelve images: 12 / 11 is rounded up to 2 for each.
    labels = Imagine("toy", 12, None, None, own=False, compare=False).made(trainer.local(me, 0), many)[1]
    assert torch.bincount(labels, minlength=3).tolist() == [22, 0, 12]
    mixed, near = Imagine("toy", 12, None, None, own=True, compare=True)(trainer.local(me, 0), sets)
    assert torch.bincount(mixed.y, minlength=3).tolist() == [12 + 23, 0, 12]
    assert near is not None


def test_a_copy_shows() -> None:
    """Three own images 2 and 2 apart, 4 pixels each: an image on top of one is at distance 0."""
    own = torch.tensor([0.0, 1.0, 2.0]).reshape(3, 1, 1, 1).expand(3, 1, 2, 2)
    assert nearest(own[:1], own, Key(0)) == 0.0
    assert nearest(own[:1] + 0.5, own, Key(0)) == pytest.approx(0.5)
    assert nearest(own[:1] + 0.5, own[:1], Key(0)) is None
    assert nearest(own[:0], own, Key(0)) is None


@pytest.mark.parametrize(("place", "copy"), [(0, 0), (1023, 1024), (1024, 2500), (2499, 1)])
def test_a_copy_anywhere_shows(place: int, copy: int) -> None:
    """2,501 own images and 2,500 made ones, compared a thousand at a time; one of these is one of those."""
    own = torch.rand(2501, 1, 2, 3, generator=Key(1).generator()) + 100
    made = torch.rand(2500, 1, 2, 3, generator=Key(2).generator()) + 100
    away = nearest(made, own, Key(0))
    assert away is not None
    assert away > 0
    made[place] = own[copy]
    assert nearest(made, own, Key(0)) == 0.0


def test_own_images_that_are_all_the_same_are_no_yardstick_and_hide_no_copy() -> None:
    own = torch.ones(1500, 1, 2, 2)
    assert nearest(own[:3], own, Key(0)) == 0.0
    assert nearest(own[:3] + 1, own, Key(0)) is None


@given(st.integers(2, 40), st.integers(1, 40), st.integers(0, 9))
def test_images_compared_in_parts_are_all_compared(many: int, images: int, seed: int) -> None:
    own, made = (torch.rand(n, 3, generator=(Key(seed) / n / i).generator()) for i, n in enumerate((many, images)))
    apart = torch.cdist(own.double(), own.double()).fill_diagonal_(torch.inf).amin(1).median()
    with mock.patch.object(feddistr, "AT_ONCE", 7):
        assert torch.allclose(feddistr._to_next(made, own), torch.cdist(made.double(), own.double()).amin(1))
        if many <= 7:
            least = torch.cdist(made.double(), own.double()).amin()
            assert nearest(made, own, Key(seed)) == pytest.approx(float(least / apart))


def test_jitter_keeps_shapes_and_follows_its_generator() -> None:
    x = torch.rand(5, 3, 8, 8)
    one, two = (jitter(x, Key(1).generator()) for _ in range(2))
    assert one.shape == x.shape
    assert torch.equal(one, two)
    assert not torch.allclose(one, x, atol=0.01)
    flat = jitter(torch.ones(4, 1, 6, 6), Key(2).generator())  # only the light changes
    assert torch.allclose(flat, flat[:, :, :1, :1].expand_as(flat), atol=1e-6)
    assert bool(((flat > 0.79) & (flat < 1.21)).all())


def test_data_that_are_no_images_or_of_unknown_levels_are_refused() -> None:
    population, trainer = clients()
    dark = dataclasses.replace(trainer.device_data, x=trainer.device_data.x * 5 - 2)
    rows = dataclasses.replace(trainer.device_data, x=trainer.device_data.x.flatten(1))
    for device_data, why in ((dark, "it is not known what black and white are"), (rows, "a prior takes images")):
        sim: Simulator[Any] = Simulator(FEDDISTR, population, Stacked(LocalTrainer(trainer.task, device_data)))
        with pytest.raises(DataError, match=why):
            sim.round(sim.start(), 1)


def test_the_true_number_of_clusters_needs_domains() -> None:
    population, trainer = clients()
    device_data = dataclasses.replace(trainer.device_data, domains=None)
    sim: Simulator[Any] = Simulator(
        dataclasses.replace(FEDDISTR, m="oracle"), population, Stacked(LocalTrainer(trainer.task, device_data))
    )
    with pytest.raises(ConfigError, match='m = "oracle" needs data with domains'):
        sim.round(sim.start(), 1)


# ---------------------------------------------------------------- facts
def test_facts_are_plain_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    sim, states, _ = played(FEDDISTR)
    info = sim.algorithm.info(states[-1])
    assert json.loads(json.dumps(row(info), allow_nan=False))["type"] == "unskew.embeddings"
    number = len(info.labels)
    assert len(info.embeddings) == number == len(info.owners) == len(info.counts) == info.sent
    assert sorted(i for s in info.sets for i in s) == list(range(number))
    assert info.privacy.epsilon == "no guarantee"
    assert set(info.closest) == {0, 1, 2, 3}
    assert info.privacy.server
    assert info.privacy.clients
    monkeypatch.setattr(feddistr, "SHOWN", 12)
    small = sim.algorithm.info(states[-1])
    assert small.coordinates == "principal"
    assert sum(len(row) for row in small.embeddings) <= 12
    assert len(small.pairs) <= 12


def test_a_client_that_says_nonsense_of_its_copies_spoils_no_record() -> None:
    sim, states, _ = played(FEDDISTR)
    said = {
        0: feddistr.ClassifierReport(float("nan")),
        1: feddistr.ClassifierReport(float("inf")),
        2: feddistr.ClassifierReport(1.25),
    }
    info = dataclasses.replace(states[-1].info, learned=said)
    info = sim.algorithm.info(dataclasses.replace(states[-1], info=info))
    assert info.closest == {0: None, 1: None, 2: 1.25}


def test_principal_coordinates_keep_distances_where_they_can() -> None:
    """Points on a plane in 5000 dimensions: two coordinates say it all."""
    plane = torch.randn(2, 5000, generator=Key(0).generator())
    v = torch.randn(6, 2, generator=Key(1).generator()) @ plane
    found, kind = shown(v)
    assert kind == "principal"
    assert torch.allclose(torch.cdist(found, found), torch.cdist(v, v), rtol=1e-3, atol=1e-2)


# ---------------------------------------------------------------- noise
@pytest.fixture
def _accountant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy, "require", lambda: None)


@given(st.lists(st.floats(-50, 50), min_size=4, max_size=4), st.floats(0.1, 9))
def test_embeddings_are_clipped_round_their_start(values: list[float], clip: float) -> None:
    v, start = torch.tensor([values]), torch.tensor([1.0, -2.0, 0.0, 3.0])
    out = noised(v, start, clip, 0.0, Key(0))
    assert float((out - start).norm()) <= clip * (1 + 1e-5)
    if float((v - start).norm()) <= clip:
        assert torch.allclose(out, v, atol=1e-5)


@pytest.mark.usefixtures("_accountant")
def test_noise_has_the_size_it_should_and_counts_stay_at_home() -> None:
    """sigma 0.5 and R 2: standard deviation 1 on every number."""
    noise = EmbeddingNoise(clip=2.0, sigma=0.5)
    assert noise.std(3) == pytest.approx(1.0)
    drawn = noised(torch.zeros(400, 16), torch.zeros(16), 2.0, noise.std(3), Key(1))
    assert float(drawn.std()) == pytest.approx(1.0, abs=0.03)
    _, states, _ = played(dataclasses.replace(FEDDISTR, steps=2, dp=noise))
    assert set(states[-1].info.uploads.counts.tolist()) == {0}


NOISY = dataclasses.replace(FEDDISTR, steps=2, dp=EmbeddingNoise(clip=2.0, sigma=0.5))


def test_under_noise_no_field_of_a_reply_tells_more_than_it_may() -> None:
    """Every field there is: labels as they are, embeddings with noise, and nothing else of the data."""
    sim, states, _ = played(NOISY)
    _, plain, _ = played(dataclasses.replace(NOISY, dp=None))
    info, bare = states[-1].info, plain[-1].info
    assert [f.name for f in dataclasses.fields(Prompts)] == ["embeddings", "labels", "counts"]
    assert info.uploads.labels.tolist() == bare.uploads.labels.tolist()
    assert set(info.uploads.counts.tolist()) == {0}
    cut = noised(bare.uploads.embeddings, torch.zeros(16), 2.0, 0.0, Key(0))
    assert float((info.uploads.embeddings - cut).std()) == pytest.approx(1.0, abs=0.25)
    assert [f.name for f in dataclasses.fields(feddistr.ClassifierReport)] == ["closest"]
    assert [r.closest for r in info.learned.values()] == [None] * 4
    assert all(r.closest is not None for r in bare.learned.values())
    seen, open_ = (s.algorithm.info(e).privacy.server for s, e in ((sim, states[-1]), (simulator(FEDDISTR), plain[-1])))
    assert sim.algorithm.info(states[-1]).sigma == NOISY.dp.sigma
    assert "number of examples, losses and test results, without noise" in seen
    assert "how near" in open_
    assert "how near" not in seen


@pytest.mark.usefixtures("_accountant")
def test_what_noise_tells_is_for_as_many_embeddings_as_an_example_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, int, float]] = []
    monkeypatch.setattr(privacy, "epsilon", lambda *args: asked.append(args) or 3.0)
    monkeypatch.setattr(privacy, "noise_multiplier", lambda epsilon, releases, delta: 4.0 * releases)
    spent = dataclasses.replace(FEDDISTR, dp=EmbeddingNoise(sigma=0.5)).spent()
    assert asked == [(0.25, 3, 1e-5)]
    assert spent.epsilon == 3.0
    assert FedDistr(m=2, dp=EmbeddingNoise(clip=1.0, epsilon=1.0)).dp.std(2) == 16.0  # type: ignore[union-attr]


def test_sigma_needs_no_accountant_and_epsilon_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise ConfigError("it is not installed")

    monkeypatch.setattr(privacy, "require", absent)
    spent = dataclasses.replace(FEDDISTR, dp=EmbeddingNoise(sigma=0.37)).spent()
    assert spent.epsilon == "not worked out: it is not installed"
    with pytest.raises(ConfigError, match="it is not installed"):
        FedDistr(dp=EmbeddingNoise(epsilon=1.0))


def test_noise_by_the_accountant() -> None:
    pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")
    made = FedDistr(m=1, dp=EmbeddingNoise(epsilon=2.0))
    assert made.spent().epsilon == pytest.approx(2.0, rel=1e-3)


def test_settings_that_promise_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="dp needs either sigma or epsilon"):
        EmbeddingNoise()
    with pytest.raises(ConfigError, match="dp needs either sigma or epsilon"):
        EmbeddingNoise(sigma=1.0, epsilon=1.0)
    with pytest.raises(ConfigError, match="m must be at least 1, got 0"):
        FedDistr(m=0)
    with pytest.raises(ConfigError, match='m = "oracle" has none'):
        FedDistr(m="oracle", dp=EmbeddingNoise(sigma=1.0))
