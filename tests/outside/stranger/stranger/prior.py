"""A prior without a network: an image is its own latent, and the noise is the one that leaves the embedding."""

import torch
from torch import Tensor

from unskew import priors


class Mirror(priors.Prior):
    """Grey images of 4 x 4; the latent is 2 x - 1."""

    name, width, latent_shape, image_shape, lr = "mirror", 16, (1, 4, 4), (1, 4, 4), 0.05

    def __init__(self, device: torch.device) -> None:
        self.device, self.alpha_bar = device, torch.linspace(0.9, 0.1, 10, device=device)

    def encode(self, images: Tensor) -> Tensor:
        return 2 * priors.fitted(images, self.image_shape).to(self.device) - 1

    def decode(self, latents: Tensor) -> Tensor:
        return ((latents + 1) / 2).clamp(0, 1)

    def start(self, noun: str | None = None) -> Tensor:
        return torch.zeros(self.width, device=self.device)

    def denoised(self, z: Tensor, v: Tensor | None, times: Tensor) -> Tensor:
        left = self.alpha_bar[times][:, None, None, None]
        point = torch.zeros_like(z) if v is None else v.reshape(z.shape)
        return (z - left.sqrt() * point) / (1 - left).sqrt()
