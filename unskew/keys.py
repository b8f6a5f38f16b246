"""Randomness by address.

A `Key` is a seed and a path, such as `Key(7) / "round" / 3 / "client" / 12 / "shuffle"`.  Draws with different
paths are independent; a draw with the same path is the same draw, whatever was drawn before it.  Nothing is consumed,
so there is no generator state to checkpoint and no order of calls to preserve.  Keys are the only source of
randomness in unskew.
"""

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


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
        return int.from_bytes(hashlib.blake2b(self._address(), digest_size=8).digest(), "big") >> 1

    def _address(self) -> bytes:
        # The type is part of the address: "1" and 1 are different places, and no part can imitate a separator.
        parts = [self.seed, *self.path]
        return "".join(f"{'s' if isinstance(p, str) else 'i'}{len(str(p))}:{p}" for p in parts).encode()

    def generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        """A fresh PyTorch generator at this address."""
        return torch.Generator(device).manual_seed(self.number())

    def numpy(self) -> np.random.Generator:
        """A fresh NumPy generator at this address."""
        return np.random.default_rng(self.number())

    def bits(self, *shape: int) -> Tensor:
        """Whole numbers, uniform over all of int64, that only the seed's holder can tell from chance (SHAKE-256).

        For masks and noise that are to hide something: PyTorch's generator on the CPU heeds 32 bits of its seed, which
        can be tried one by one, and its numbers follow from earlier ones.
        """
        data = hashlib.shake_256(self._address()).digest(8 * math.prod(shape))
        return torch.from_numpy(np.frombuffer(data, dtype="<i8").astype(np.int64)).reshape(shape)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers, float64, made of `bits`."""
        middles = (self.bits(*shape) >> 12).double() + (2.0**51 + 0.5)  # of 2**52 equal parts of (0, 1)
        drawn: Tensor = torch.special.ndtri(middles / 2.0**52)
        return drawn

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
