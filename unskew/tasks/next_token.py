"""Next token: which one follows at each of the last positions of a sequence.

Outputs are (batch, positions, vocabulary); of targets for fewer positions than the network reads, (batch, fewer), the
last are meant, so that one network learns from the character after a window and from every character in it.
"""

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from unskew.tasks.classification import named
from unskew.tasks.kind import TaskKind
from unskew.tasks.measure import ACCURACY, Measure
from unskew.tasks.targets import TOKENS


def _last(outputs: Tensor, y: Tensor) -> Tensor:
    return outputs[:, -y.shape[1] :]


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """Mean over the positions of the negative log-likelihood, (batch,)."""
    logits = _last(outputs, y)
    each = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
    return each.view(y.shape).mean(1)


def accuracy(outputs: Tensor, y: Tensor) -> Tensor:
    """Share of the positions at which the likeliest token follows, (n,)."""
    return (_last(outputs, y).argmax(2) == y).to(outputs).mean(1)


def _exp(mean: float) -> float:
    return float(np.exp(mean))


NEXT_TOKEN = TaskKind(
    name="next_token",
    targets=TOKENS,
    width=lambda num_outputs: num_outputs,
    losses={"cross_entropy": cross_entropy},
    measures=(
        Measure("perplexity", "perplexity", "lower", 1.0, None, percent=False, each=cross_entropy, link=_exp),
        Measure("accuracy", ACCURACY.label, each=accuracy),
    ),
    predict=lambda outputs, names: named(outputs[:, -1].argmax(1), names),
    model="char_lstm",
    positions=True,
)
