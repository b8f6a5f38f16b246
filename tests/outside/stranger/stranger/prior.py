"""A prior without a network: an image is its own latent, and the noise is the one that leaves the embedding."""

from dataclasses import dataclass

import torch
from torch import Tensor

from unskew import priors
from unskew.keys import Key


@dataclass(frozen=True)
class Mirror:
    """Grey images of 4 x 4; the latent is 2 x - 1."""

    device: torch.device
    name: str = "mirror"
    width: int = 16
    latent_shape: tuple[int, int, int] = (1, 4, 4)
    image_shape: tuple[int, int, int] = (1, 4, 4)
    times: int = 10
    lr: float = 0.05
    at_once: int = 64

    def encode(self, images: Tensor) -> Tensor:
        return 2 * priors.fitted(images, self.image_shape).to(self.device) - 1

    def decode(self, latents: Tensor) -> Tensor:
        return ((latents + 1) / 2).clamp(0, 1)

    def start(self, noun: str | None = None) -> Tensor:
        return torch.zeros(self.width, device=self.device)

    def predict(self, latents: Tensor, embeddings: Tensor, times: Tensor) -> Tensor:
        left = self.left(times)
        return (latents - left.sqrt() * embeddings.reshape(-1, 1, *self.latent_shape)) / (1 - left).sqrt()

    def loss(self, latents: Tensor, embeddings: Tensor, times: Tensor, noise: Tensor) -> Tensor:
        left = self.left(times)
        noisy = left.sqrt() * latents + (1 - left).sqrt() * noise
        return (self.predict(noisy, embeddings, times) - noise).square().flatten(1).mean(1)

    def left(self, times: Tensor) -> Tensor:
        """Share of the signal's variance that is left."""
        return torch.linspace(0.9, 0.1, self.times, device=self.device)[times][:, None, None, None]

    def sample(
        self, embeddings: Tensor, count: int, key: Key, guidance: float | None = None, steps: int | None = None
    ) -> Tensor:
        noise = torch.stack([torch.randn(count, 16, generator=(key / k).generator()) for k in range(len(embeddings))])
        latents = embeddings[:, None].to(self.device) + 0.1 * noise.to(self.device)
        return self.decode(latents).reshape(len(embeddings), count, *self.image_shape)
