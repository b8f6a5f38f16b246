"""Segmentation: one of several classes for each pixel of an image; the first is the background.

The network returns (batch, classes, height, width), or for two classes one logit a pixel, the second's; here outputs
are (batch, height, width, classes).  A target of `IGNORED` counts nowhere.
"""

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from unskew.tasks.kind import TaskKind
from unskew.tasks.measure import Measure
from unskew.tasks.next_token import accuracy, cross_entropy
from unskew.tasks.targets import IGNORED, MAP


def dice(outputs: Tensor, y: Tensor) -> Tensor:
    """2 |A and B| / (|A| + |B|) of pixels found and pixels there, (n,): the mean over classes but the first.

    L. R. Dice, Ecology 26, 1945.  A class neither there nor found has 1.
    """
    classes, counts = outputs.shape[-1], (y != IGNORED)[..., None]
    found, there = (F.one_hot(of, classes).mul(counts).flatten(1, 2) for of in (outputs.argmax(-1), y.clamp(min=0)))
    both, sizes = (of.sum(1)[:, 1:].to(outputs) for of in (found * there, found + there))
    return (2 * both / sizes).where(sizes > 0, 1.0).mean(1)


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
