"""One-shot by Gaussian mixtures of latents, on a prior that can be worked out by hand."""

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from toy_prior import clients, played, toy

from unskew.algorithms.fedpft import Components, Decode, FedPFT, Mixture, summary, unusable
from unskew.keys import Key
from unskew.protocol import SgdConfig

GOOD = FedPFT(images=12, classifier=SgdConfig(0.02, local_steps=60, batch_size=16, optimizer="adam"))


@pytest.fixture(autouse=True)
def _toy() -> Iterator[None]:
    with toy():
        yield


def test_everybody_learns_labels_that_nobody_showed_them() -> None:
    sim, states, _ = played(GOOD)
    server_trainer = sim.population.server_trainer
    assert server_trainer is not None
    for model in (sim.method.serve(states[-1], None), *sim.own_models(states[-1], range(4), 1).values()):
        assert float(server_trainer.evaluate(model, "test")[0].double().mean()) > 0.8


def test_components_are_means_and_variances_of_clusters() -> None:
    """Client 1 has 20 images of label 1, fewer than two clusters of twelve: one component, of all of them."""
    population, trainer = clients()
    found = summary(trainer.local(population.me(1, 1, Key(0)), 0), "toy", 3)
    z = 2 * trainer.device_data.x[trainer.device_data.train[1]].flatten(1) - 1
    assert (found.labels.tolist(), found.counts.tolist()) == ([1], [20])
    assert torch.allclose(found.means[0], z.mean(0), atol=1e-6)
    assert torch.allclose(found.variances[0], z.var(0, correction=0), atol=1e-6)


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


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"variances": -torch.ones(2, 4)}, "a variance is negative, NaN or infinite"),
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


def sent(means: torch.Tensor, each: int = 1) -> Components:
    labels = torch.arange(len(means)) // each
    return Components(means, torch.ones_like(means), labels, torch.ones(len(means), dtype=torch.int64))


@pytest.mark.parametrize("lie", [torch.zeros(30, 4), torch.full((30, 4), 500.0), torch.full((30, 4), 1e-9)])
def test_a_liar_with_many_components_gets_no_honest_client_refused(lie: torch.Tensor) -> None:
    """Thirty means against two honest clients' two each: a median over all means would be the liar's."""
    honest = {0: sent(torch.ones(2, 4)), 1: sent(2 * torch.ones(2, 4))}
    assert set(unusable({**honest, 2: sent(lie, 10)}, 3, 4, 10)) <= {2}
