"""Randomness by address.

A `Key` is a seed and a path, such as `Key(7) / "round" / 3 / "client" / 12 / "shuffle"`.  Draws with different
paths are independent; a draw with the same path is the same draw, whatever was drawn before it.  Nothing is consumed,
so there is no generator state to checkpoint and no order of calls to preserve.  Keys are the only source of
randomness in unskew.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Key:
    """An address in the tree of random draws."""

    seed: int
    path: tuple[int | str, ...] = ()

    def __truediv__(self, part: int | str) -> "Key":
        """The key one step further down the path."""
        return Key(self.seed, (*self.path, part))

    def number(self) -> int:
        """A 63-bit integer that depends on seed and path only (blake2b)."""
        # The type is part of the address: "1" and 1 are different places, and no part can imitate a separator.
        parts = [self.seed, *self.path]
        text = "".join(f"{'s' if isinstance(p, str) else 'i'}{len(str(p))}:{p}" for p in parts)
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1

    def generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        """A fresh PyTorch generator at this address."""
        return torch.Generator(device).manual_seed(self.number())

    def numpy(self) -> np.random.Generator:
        """A fresh NumPy generator at this address."""
        return np.random.default_rng(self.number())

    @contextmanager
    def ambient(self, device: torch.device | None = None) -> Iterator[None]:
        """Run code that draws from PyTorch's global generator (module initialisation, dropout) as if keyed.

        The global state is put back afterwards, so a user's own draws are not disturbed.
        """
        cuda = [device] if device is not None and device.type == "cuda" else []
        with torch.random.fork_rng(devices=cuda):
            # Not torch.manual_seed: it would seed every CUDA device, and only `cuda` is put back.
            torch.default_generator.manual_seed(self.number())
            for d in cuda:
                with torch.cuda.device(d):
                    torch.cuda.manual_seed(self.number())
            yield
