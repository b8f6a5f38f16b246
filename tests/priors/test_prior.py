"""Inversion, sampling and distances on a prior whose answers can be computed by hand, and what is let in.

`Point` believes that under the embedding v there is one latent, v itself.  Then the noise in z_t is
(z_t - sqrt(abar) v) / sqrt(1 - abar), the loss of a latent z is abar / (1 - abar) mean((z - v)^2), and every sample is
v.
"""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unskew.errors import DataError, DivergedError
from unskew.keys import Key
from unskew.priors import Prior, distances, fitted, how_fitted, invert
from unskew.priors.prior import checked_embeddings

SHAPE = (1, 2, 2)


@dataclass(frozen=True)
class Point(Prior):
    name: str = "point"
    width: int = 4
    latent_shape: tuple[int, int, int] = SHAPE
    image_shape: tuple[int, int, int] = SHAPE
    device: torch.device = torch.device("cpu")
    alpha_bar: Tensor = torch.linspace(0.9, 0.1, 10)
    at_once: int = 1000
    broken: bool = False

    def encode(self, images: Tensor) -> Tensor:
        return images

    def decode(self, latents: Tensor) -> Tensor:
        return latents

    def start(self, noun: str | None = None) -> Tensor:
        return torch.zeros(4)

    def denoised(self, z: Tensor, v: Tensor | None, times: Tensor) -> Tensor:
        a = self.alpha_bar[times][:, None, None, None]
        point = torch.zeros(len(z), *SHAPE) if v is None else v.reshape(-1, *SHAPE)
        return (z - a.sqrt() * point) / (1 - a).sqrt()

    def loss(self, latents: Tensor, embeddings: Tensor, times: Tensor, noise: Tensor) -> Tensor:
        return embeddings.sum(1) * torch.inf if self.broken else super().loss(latents, embeddings, times, noise)


POINT = Point()
KEY = Key(3)


def latents(n: int, seed: int, at: float = 0.0) -> Tensor:
    return at + torch.randn(n, *SHAPE, generator=torch.Generator().manual_seed(seed))


# ---------------------------------------------------------------- inversion
def test_an_embedding_moves_to_the_latent_of_its_cluster() -> None:
    """Each cluster holds one latent, several times; the loss abar / (1 - abar) mean((z - v)^2) is least there."""
    z = torch.tensor([[1.0, -2.0, 0.5, 3.0], [0.0, 1.0, -1.0, 2.0]])
    found = invert(POINT, [row.reshape(1, *SHAPE).repeat(5, 1, 1, 1) for row in z], KEY, steps=200)
    torch.testing.assert_close(found, z, atol=0.02, rtol=0)


def test_a_cluster_gets_the_same_alone_and_among_others() -> None:
    clusters = [latents(n, n, at) for n, at in ((1, 0), (7, 2), (30, -1))]
    together = invert(POINT, clusters, KEY, steps=20)
    for k, cluster in enumerate(clusters):
        alone = invert(POINT, [cluster], KEY, steps=20)
        torch.testing.assert_close(together[k], alone[0], atol=1e-5, rtol=1e-5)


def test_a_step_of_adam_is_the_learning_rate_against_the_gradients_sign() -> None:
    """One step from 0 towards z = (1, -1, 1, -1): Adam's first step is lr * sign of the gradient, up to eps."""
    z = torch.tensor([1.0, -1.0, 1.0, -1.0])
    found = invert(POINT, [z.reshape(1, *SHAPE)], KEY, steps=1, lr=0.25)
    torch.testing.assert_close(found[0], 0.25 * z, atol=1e-6, rtol=0)


def test_an_embedding_that_diverges_is_no_result() -> None:
    with pytest.raises(DivergedError, match="cluster 0 became NaN"):
        invert(Point(broken=True), [latents(2, 0)], KEY, steps=2)


# ---------------------------------------------------------------- sampling and distances
@pytest.mark.parametrize("guidance", [1.0, 2.5])
@pytest.mark.parametrize("steps", [1, 3, 10])
def test_samples_of_a_point_are_the_point_times_guidance(guidance: float, steps: int) -> None:
    """Under the empty prompt the point is 0, so e_null + w (e_v - e_null) is the noise of the point w v."""
    v = torch.tensor([[1.0, 2.0, -1.0, 0.5]])
    images = POINT.sample(v, 3, KEY, guidance, steps)
    assert images.shape == (1, 3, *SHAPE)
    torch.testing.assert_close(images, (guidance * v).reshape(1, 1, *SHAPE).expand(1, 3, *SHAPE), atol=1e-5, rtol=1e-5)


def test_the_predictions_distance_of_points_is_in_proportion_to_their_own() -> None:
    """Predictions differ by sqrt(abar / (1 - abar)) (v - v') at every probe: the distances' ratio is that of v - v'."""
    v = torch.tensor([[0.0, 0, 0, 0], [3, 4, 0, 0], [0, 0, 1, 0]])
    found = distances(POINT, v, KEY)
    assert torch.equal(found.diagonal(), torch.zeros(3))
    torch.testing.assert_close(found, found.T)
    torch.testing.assert_close(found / found[0, 2], torch.cdist(v, v))
    torch.testing.assert_close(distances(Point(at_once=1), v, KEY), found)


# ---------------------------------------------------------------- what is let in
@pytest.mark.parametrize(
    ("given_", "said"),
    [
        (torch.zeros(2, 3), r"width 4, got shape \(2, 3\)"),
        (torch.zeros(4), r"width 4, got shape \(4,\)"),
        (torch.tensor([[0.0] * 4, [0, 0, torch.nan, 0]]), "number 1 is NaN"),
        (torch.tensor([[torch.inf] * 4]), "number 0 is NaN or infinite"),
    ],
)
def test_an_embedding_that_is_none_is_refused(given_: Tensor, said: str) -> None:
    with pytest.raises(DataError, match=said):
        checked_embeddings(given_, 4)


def test_a_border_keeps_pixels_in_both_directions() -> None:
    x = torch.rand(2, 1, 28, 28)
    wide = fitted(x, (1, 32, 32))
    assert torch.equal(wide[:, :, 2:-2, 2:-2], x)
    assert float(wide.sum() - x.sum()) == pytest.approx(0, abs=1e-3)
    assert torch.equal(fitted(wide, (1, 28, 28)), x)


def test_colours_become_grey_by_luma_and_grey_becomes_three_channels() -> None:
    """Pure green has luma 0.587."""
    green = torch.zeros(1, 3, 32, 32)
    green[:, 1] = 1
    torch.testing.assert_close(fitted(green, (1, 32, 32)), torch.full((1, 1, 32, 32), 0.587))
    assert torch.equal(fitted(torch.full((1, 1, 8, 8), 0.5), (3, 8, 8)), torch.full((1, 3, 8, 8), 0.5))


@given(st.sampled_from([1, 3]), st.integers(4, 80), st.sampled_from([1, 3]), st.sampled_from([8, 28, 32, 64]))
def test_what_is_fitted_has_the_shape_and_lies_within_0_and_1(c: int, side: int, to_c: int, to: int) -> None:
    x = torch.rand(2, c, side, side, generator=torch.Generator().manual_seed(side))
    out = fitted(x, (to_c, to, to))
    assert out.shape == (2, to_c, to, to)
    assert 0 <= float(out.min()) <= float(out.max()) <= 1
    assert (how_fitted((c, side, side), (to_c, to, to)) is None) == ((c, side) == (to_c, to))


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (torch.zeros(4, 8, 8), r"shape \(N, C, H, W\), got \(4, 8, 8\)"),
        (torch.zeros(4, 2, 8, 8), r"\(1, H, W\) or \(3, H, W\)"),
        (torch.zeros(4, 1, 3, 8), "too small"),
        (torch.zeros(4, 1, 8, 17), "squeezed by more than half"),
        (torch.full((4, 1, 8, 8), 1.5), r"in \[1.5, 1.5\]; undo their standardisation"),
        (torch.full((4, 1, 8, 8), torch.nan), "must lie in"),
    ],
)
def test_images_that_make_no_sense_are_refused(images: Tensor, said: str) -> None:
    with pytest.raises(DataError, match=said):
        fitted(images, (1, 32, 32))
