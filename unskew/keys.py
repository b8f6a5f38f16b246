"""Randomness by address.

A `Key` is a seed and a path, such as `Key(7) / "round" / 3 / "client" / 12 / "shuffle"`.  Draws with different
paths are independent; a draw with the same path is the same draw, whatever was drawn before it.  Nothing is consumed,
so there is no generator state to checkpoint and no order of calls to preserve.  Keys are the only source of
randomness in unskew.
"""

import hashlib
import itertools
import math
import os
import random
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_turn = threading.RLock()


def in_turn() -> threading.RLock:
    """The lock for generators and settings that all threads of the process share.

    A run holds it from beginning to end: runs in several threads go one after the other, each as if it were alone.
    """
    return _turn


def _new_turn() -> None:
    global _turn
    _turn = threading.RLock()


os.register_at_fork(after_in_child=_new_turn)  # the thread that had it is not there any more


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

        For masks and noise that are to hide something.  PyTorch's generator will not do: it heeds 32 bits of its seed,
        which can be tried one by one, and its numbers follow from earlier ones.
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
        """Run code that draws from global generators (module initialisation, dropout, a transform) as if keyed.

        The global state is put back afterwards, so a user's own draws are not disturbed.  Other threads wait meanwhile
        (`in_turn`).
        """
        cuda = [device] if device is not None and device.type == "cuda" else []
        with in_turn(), torch.random.fork_rng(devices=cuda):
            others = np.random.get_state(), random.getstate()  # noqa: NPY002
            # Not torch.manual_seed: it would seed every CUDA device, and only `cuda` is put back.
            torch.default_generator.manual_seed(self.number())
            for d in cuda:
                with torch.cuda.device(d):
                    torch.cuda.manual_seed(self.number())
            np.random.seed(self.number() % 2**32)  # noqa: NPY002
            random.seed(self.number())
            try:
                yield
            finally:
                np.random.set_state(others[0])  # noqa: NPY002
                random.setstate(others[1])


def numpy_each(keys: Iterable[Key]) -> Iterator[np.random.Generator]:
    """Yield a generator with the draws of `key.numpy()` for each key in turn; it is the same one, seeded anew.

    Most of the time of making a generator is its seeding, which is done here for thousands of keys at once.
    """
    bits = np.random.PCG64(0)
    generator, fresh = np.random.Generator(bits), bits.state
    keys = iter(keys)
    while numbers := [key.number() for key in itertools.islice(keys, 4096)]:
        for high, low, sequence_high, sequence_low in _seeded(np.array(numbers, np.uint64)).tolist():
            # As PCG's `srandom` does, with 128 bits each of state and stream.
            inc = (sequence_high << 65 | sequence_low << 1 | 1) % 2**128
            state = ((inc + (high << 64 | low)) * 0x2360ED051FC65DA44385DF649FCCF645 + inc) % 2**128
            bits.state = {**fresh, "state": {"state": state, "inc": inc}}
            yield generator


def _seeded(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return `np.random.SeedSequence(n).generate_state(4, np.uint64)` of each number, (N, 4).

    NumPy guarantees that algorithm not to change (NEP 19; M. E. O'Neill, "Developing a seed_seq alternative").
    """

    constant = 0x43B0D7E5

    def hashed(words: npt.NDArray[np.uint32], multiplier: int) -> npt.NDArray[np.uint32]:
        nonlocal constant
        words = words ^ np.uint32(constant)
        constant = constant * multiplier % 2**32
        words = words * np.uint32(constant)
        return words ^ words >> np.uint32(16)

    none = np.zeros(len(numbers), np.uint32)
    entropy = (numbers.astype(np.uint32), (numbers >> np.uint64(32)).astype(np.uint32), none, none)
    pool = [hashed(words, 0x931E8875) for words in entropy]
    for source, target in itertools.permutations(range(4), 2):
        mixed = pool[target] * np.uint32(0xCA01F9DD) - hashed(pool[source], 0x931E8875) * np.uint32(0x4973F715)
        pool[target] = mixed ^ mixed >> np.uint32(16)
    constant = 0x8B51F9DD
    halves = [hashed(pool[i % 4], 0x58F38DED).astype(np.uint64) for i in range(8)]
    return np.stack([halves[i] | halves[i + 1] << np.uint64(32) for i in range(0, 8, 2)], axis=1)


def global_states() -> dict[str, Any]:
    """States of the generators that all code of a process shares, by whose they are; only looked at."""
    theirs: Any = np.random.get_state(legacy=False)  # noqa: NPY002, to see whether others draw from it
    plain = {k: v.tobytes() if isinstance(v, np.ndarray) else v for k, v in theirs["state"].items()}
    rest = {k: v for k, v in theirs.items() if k != "state"}
    return {
        "PyTorch's": torch.get_rng_state().numpy().tobytes(),
        "NumPy's": (plain, rest),
        "Python's": random.getstate(),
    }


def drawn_since(before: dict[str, Any]) -> list[str]:
    """List whose global generators have other states than `before`."""
    now = global_states()
    return [whose for whose, state in before.items() if now[whose] != state]
