"""Clipping: no client moves the model further than a bound.

H. B. McMahan, D. Ramage, K. Talwar, L. Zhang, "Learning Differentially Private Recurrent Language Models", ICLR 2018,
section 2.3, flat clipping.

Notation   u_k  all parameters that client k uploads, as differences from the model that it was sent, in one vector
           S    the bound
Client     u_k <- u_k min(1, S / |u_k|)
Departures Statistics of normalisation layers are no part of u_k and stay as they are.  They may move a hundred times as
           far as the parameters, which would then hardly move.
           Clipping alone gives no privacy: that needs noise, too.
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt

from unskew.protocol import Me
from unskew.tree import Params, map_params, squared_norm
from unskew.wrappers.uploads import UploadWrapper


@dataclass(frozen=True)
class ClipNorm(UploadWrapper):
    """Bound on the L2 norm of the parameters in a client's reply, as an update.

    Attributes:
        norm: The bound, S.
    """

    norm: Annotated[float, Gt(0.0)] = 1.0

    def encode(self, me: Me, updates: Params, residual: Params | None) -> tuple[Params, Params]:
        """Scale updates down to the bound; smaller ones stay bit-identical."""
        moved = {key: t for key, t in updates.items() if key.partition("/")[2] not in me.layout.buffers}
        size = float(squared_norm(map_params(lambda t: t.double(), moved)).sqrt()) if moved else 0.0
        if size <= self.norm:
            return updates, {}
        return updates | {key: t * (self.norm / size) for key, t in moved.items()}, {}
