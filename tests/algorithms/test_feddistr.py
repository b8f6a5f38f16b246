"""FedDistr, on a prior that can be worked out by hand (tests/conformance/toy_prior.py); what is asked of every
method is in tests/conformance/test_images.py.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toy_prior import clients, played, simulator, toy

from unskew.algorithms import feddistr
from unskew.algorithms.feddistr import (
    EmbeddingNoise,
    FedDistr,
    Imagine,
    Prompts,
    balanced,
    nearest,
    noised,
)
from unskew.keys import Key
from unskew.protocol import SgdConfig
from unskew.runtime.in_process import Simulator
from unskew.server import privacy

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
    assert accuracy(sim, sim.method.serve(states[-1], None)) > 0.9
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


# ---------------------------------------------------------------- what travels
def test_no_model_travels_and_the_server_s_costs_nothing() -> None:
    with_model, without = (played(dataclasses.replace(FEDDISTR, server_model=own))[2][0] for own in (True, False))
    assert with_model.transfers == without.transfers
    assert {t.kind for t in with_model.transfers} == {"control"}
    assert len(with_model.transfers) == 4 * 4  # a call and embeddings, all embeddings and a word back, by client
    assert with_model.work == without.work
    assert {e.client for e in with_model.work} == {0, 1, 2, 3}


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


def test_a_copy_is_at_no_distance_among_many_images_far_from_zero() -> None:
    """Of thirty images cdist takes the distance from products, 1e-9 off for pixels of 1,000: about 3e-5, not 0."""
    own = 1000 + torch.rand(30, 1, 16, 16, generator=Key(1).generator())
    assert [nearest(one, own, Key(0)) for one in own.split(1)] == [0.0] * 30


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
    seen, open_ = (s.method.info(e).privacy.server for s, e in ((sim, states[-1]), (simulator(FEDDISTR), plain[-1])))
    assert sim.method.info(states[-1]).sigma == NOISY.dp.sigma
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


def test_noise_by_the_accountant() -> None:
    pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")
    made = FedDistr(m=1, dp=EmbeddingNoise(epsilon=2.0))
    assert made.spent().epsilon == pytest.approx(2.0, rel=1e-3)
