"""The data set on the device, each client's part of it, and the plan of its batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from unskew.data.batches import Augment, Batches, num_steps, plan
from unskew.data.rows import Rows
from unskew.keys import Key
from unskew.protocol import SgdConfig


@dataclass(frozen=True, eq=False)
class DeviceData:
    """The data set on the device, and each client's part of it.

    Attributes:
        x: All training inputs, (N, ...), in a form of `unskew.data.rows`.
        y: Their labels, (N,), or other targets, (N, ...).
        train: Row numbers of each client's training examples, (n,) int64.
        val: Row numbers kept aside from training, (m,) int64.
        augment: Applied to training batches only, with a keyed generator; None for no change.
        x_test, y_test: The global test set; None without.
        domains: Domain of each training example, (N,) int64; None without domains.
        levels: Black and the brightest value of the training part in each channel of images; None if unknown.
        weights: Weight of each training example in the training loss, (N,); None if all weigh the same.
        public: Inputs and labels, (m,), of the public rows (labels may be None); None without public rows.
    """

    x: Rows
    y: Tensor
    train: Sequence[Tensor]
    val: Sequence[Tensor]
    augment: Augment | None = None
    x_test: Rows | None = None
    y_test: Tensor | None = None
    domains: Tensor | None = None
    levels: tuple[tuple[float, float], ...] | None = None
    weights: Tensor | None = None
    public: tuple[Rows, Tensor | None] | None = None

    def weighted(self, losses: Tensor, rows: Tensor) -> Tensor:
        """The losses of training examples, each times its weight."""
        return losses if self.weights is None else losses * self.weights.index_select(0, rows)


def batches_of(config: SgdConfig, n: int, key: Key, min_batch: int) -> Batches:
    """Plan the batches of an optimisation with this key on a client's `n` training examples.

    Raises:
        DataError, ConfigError: As `unskew.data.batches.plan`.
    """
    return plan(n, key=key / "shuffle", **_sizes(config, min_batch))


def steps_of_job(config: SgdConfig, n: int, min_batch: int) -> int:
    """Count the mini-batch steps of an optimisation on `n` training examples, without planning them.

    Raises:
        DataError, ConfigError: As `unskew.data.batches.num_steps`.
    """
    return num_steps(n, **_sizes(config, min_batch))


def _sizes(c: SgdConfig, min_batch: int) -> dict[str, Any]:
    own = {"batch_size": c.batch_size, "epochs": c.epochs, "steps": c.steps, "drop_last": c.drop_last}
    return {**own, "min_batch": min_batch}
