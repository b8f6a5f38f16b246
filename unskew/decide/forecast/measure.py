"""Times and sizes of one call, or of a batched one."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook


def outputs(forward: Callable[[], Any]) -> list[int]:
    """Bytes of each layer's output, in the order of calls."""
    sizes: list[int] = []

    def note(layer: nn.Module, _inputs: Any, out: Any) -> None:
        first = out[0] if isinstance(out, tuple) else out  # recurrent layers give their state, too
        if not any(layer.children()) and isinstance(first, Tensor):
            sizes.append(first.nbytes)

    handle = register_module_forward_hook(note)
    try:
        forward()
    finally:
        handle.remove()
    return sizes


def affine(once: Callable[[int], Any], most: int, budget_s: float) -> tuple[float, float]:
    """(seconds for one, seconds for each more) of a call for `n` at once, with n as large as the budget allows.

    Large n cost more for each, once layers' outputs no longer fit the processor's cache.
    """
    once(1)  # wakes the library
    one = timed(lambda: once(1))
    if one < budget_s:
        one = min(timed(lambda: once(1)) for _ in range(3))
    n, many = 1, one
    while n < most and many * (more := min(4 * n, most)) / n <= budget_s:
        n, many = more, timed(lambda n=more: once(n))  # type: ignore[misc]
    # One that cannot be batched is assumed to be no cheaper in a batch.
    return one, max(many - one, 0.0) / (n - 1) if n > 1 else one


def timed(once: Callable[[], object], clock: Callable[[], float] | None = None) -> float:
    """Seconds of one call, by `time.perf_counter` or another clock."""
    now = clock or time.perf_counter
    began = now()
    once()
    return now() - began


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let PyTorch use this many threads; use 1 before workers are forked."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
