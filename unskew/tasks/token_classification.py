"""Token classification: one of several classes for each token of a text.

Outputs are (batch, tokens, classes).  A target of `IGNORED` counts nowhere.
"""

from dataclasses import replace

from unskew.tasks.measure import ACCURACY, Measure
from unskew.tasks.next_token import accuracy
from unskew.tasks.segmentation import SEGMENTATION

TOKEN_CLASSIFICATION = replace(
    SEGMENTATION,
    name="token_classification",
    measures=(Measure("accuracy", ACCURACY.label, each=accuracy),),
    maps=False,
)
