"""Positions of the nodes of a cell.

The base station, node 0, stands at the origin; devices lie around it.  A device's place does not depend on the number
of devices or on which others take part.
"""

import math
from typing import Literal

import numpy as np
import numpy.typing as npt

from unskew.keys import Key

Array = npt.NDArray[np.float64]
Nodes = npt.NDArray[np.int64]

Law = Literal["radius", "area"]
Redeploy = Literal["never", "round", "hop"]


def place(key: Key, nodes: int, radius_m: float, inner: float, law: Law) -> Array:
    """Coordinates of the nodes, metres, (nodes, 2); the first is (0, 0).

    The angle is uniform.  Under "radius" the distance from the base station is uniform on [inner, 1] radius_m, as in
    FedDif's released code, which crowds devices in the middle.  Under "area" devices are uniform over that ring.
    """
    u = key.numpy().random((nodes - 1, 2))
    angle = 2.0 * math.pi * u[:, 0]
    if law == "radius":
        r = radius_m * (inner + (1.0 - inner) * u[:, 1])
    else:
        r = radius_m * np.sqrt(inner**2 + (1.0 - inner**2) * u[:, 1])
    return np.concatenate([np.zeros((1, 2)), np.stack([r * np.cos(angle), r * np.sin(angle)], axis=1)])


def epoch(key: Key, redeploy: Redeploy, round: int, hop: int) -> Key:
    """Key of the placement in this round and hop."""
    if redeploy == "never":
        return key
    return key / round if redeploy == "round" else key / round / hop
