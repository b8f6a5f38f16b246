"""Tasks with a class at each position: the next token, a class for each token of a text, or for each pixel.

Outputs are (batch, positions, classes).  Targets for fewer positions, (batch, fewer), are of the last ones, so one
network learns the next token from the character after a window and from every character in it.  A target of `IGNORED`
counts nowhere: an example's loss and accuracy are means over its other positions.

In segmentation the first class is the background.  The network returns (batch, classes, height, width), or for two
classes one logit a pixel, the second's; here outputs are (batch, height, width, classes).
"""

from dataclasses import replace

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from unskew.tasks.classification import named
from unskew.tasks.kind import TaskKind
from unskew.tasks.measure import ACCURACY, Measure
from unskew.tasks.targets import IGNORED, MAP, TOKENS


def _last(outputs: Tensor, y: Tensor) -> Tensor:
    return outputs[:, -y.shape[1] :]


def _mean(each: Tensor, y: Tensor) -> Tensor:
    """Mean over an example's positions that count, (n,), where the others are 0; where all count, to the last bit."""
    return each.flatten(1).mean(1) * (y[0].numel() / (y != IGNORED).flatten(1).sum(1)).to(each)


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """Mean over the positions that count of the negative log-likelihood, (batch,)."""
    logits = _last(outputs, y)
    each = F.cross_entropy(logits.flatten(0, -2), y.flatten(), reduction="none", ignore_index=IGNORED)
    return _mean(each.view(y.shape), y)


def accuracy(outputs: Tensor, y: Tensor) -> Tensor:
    """Share of counting positions where the likeliest token follows, (n,)."""
    right = (_last(outputs, y).argmax(-1) == y).to(outputs)
    return _mean(right, y).clamp(max=1.0)  # rounding


def dice(outputs: Tensor, y: Tensor) -> Tensor:
    """2 |A and B| / (|A| + |B|) of pixels found and pixels there, (n,): the mean over classes but the first.

    L. R. Dice, Ecology 26, 1945.  A class neither there nor found has 1.
    """
    classes, counts = outputs.shape[-1], (y != IGNORED)[..., None]
    found, there = (F.one_hot(of, classes).mul(counts).flatten(1, 2) for of in (outputs.argmax(-1), y.clamp(min=0)))
    both, sizes = (of.sum(1)[:, 1:].to(outputs) for of in (found * there, found + there))
    return (2 * both / sizes).where(sizes > 0, 1.0).mean(1)


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

SEGMENTATION = TaskKind(
    name="segmentation",
    targets=MAP,
    width=lambda num_classes: num_classes,
    losses={"cross_entropy": cross_entropy},
    measures=(
        Measure("dice", "Dice coefficient", percent=False, each=dice),
        Measure("pixel_accuracy", "pixel accuracy", each=accuracy),
    ),
    predict=lambda outputs, names: list(np.array(names)[outputs.argmax(-1).cpu().numpy()]),
    positions=True,
    maps=True,
)

TOKEN_CLASSIFICATION = replace(
    SEGMENTATION,
    name="token_classification",
    measures=(Measure("accuracy", ACCURACY.label, each=accuracy),),
    maps=False,
)
