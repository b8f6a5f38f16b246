"""CFA: average with neighbours, then train; no server.

S. Savazzi, M. Nicoli, V. Rampa, "Federated Learning With Cooperating Devices: A Consensus Approach for Massive IoT
Networks", IEEE Internet of Things Journal 2020.  Equation numbers are this file's.

Notation   W_k      device k's own model, in its memory; the common initial model at first
           N_k      its neighbours;  n_i training examples of device i
           alpha    alpha_ki = n_i / sum_{j in N_k} n_j
           epsilon  size of the step towards the neighbours, possibly decreasing over the rounds
Consensus  psi_k = W_k + epsilon_t sum_{i in N_k} alpha_ki (W_i - W_k)                               (1)
Training   W_k <- LocalSGD(psi_k; F_k)                                                               (2)
Wire       No model goes up or down; 2 e models from device to device for the e edges of the graph.  What the ledger
           records besides is control: a few hundred bytes per device, with its number of examples.
Means      Eq. 1 weights a neighbour by its data, so it is not symmetric and does not keep the mean over the network.
Departures Every device reads the neighbours' models from before the exchange.  The authors' programs go through the
           neighbours one by one and change the model in between.  They set epsilon to 1, which keeps nothing of the own
           model and lets two devices swap models forever; the default here is .5.  The graph joins the round's cohort
           in the order of client numbers; with all devices in it, it is the same graph in every round.  CFA-GE, which
           also exchanges gradients, is left out.
Losses     N_k are the neighbours that replied this round, with weights that sum to epsilon; without any, psi_k = W_k.
           A device that did not reply receives nothing either.  Absent devices keep their model.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Interval
from jaxtyping import Bool, Float
from torch import Tensor

from unskew.algorithms.independent import NoServer, Nothing
from unskew.algorithms.parts import OwnModels
from unskew.keys import Key
from unskew.protocol import (
    Carried,
    Constant,
    Federation,
    Keep,
    Me,
    Plan,
    SampleCount,
    Schedule,
    SgdConfig,
    Step,
    ask,
    sgd,
    step,
)
from unskew.schema import Search
from unskew.server.graphs import Graph, Links, Ring, links, mixed
from unskew.tree import Params


@dataclass(frozen=True)
class CFAReply:
    """A device's model, for its neighbours, and the examples behind it."""

    model: Carried
    n: SampleCount


@dataclass(frozen=True)
class CFA(NoServer, OwnModels):
    """Consensus-driven federated averaging.

    Attributes:
        graph: Graph of the devices.
        epsilon: Size of the step towards the neighbours' mean: 1 goes all the way.
        epsilon_schedule: Factor on `epsilon` by round.
        local: The devices' optimisation.
    """

    graph: Graph = Ring()
    epsilon: Annotated[float, Interval(gt=0.0, le=1.0), Search(0.05, 1)] = 0.5
    epsilon_schedule: Schedule = Constant()
    local: SgdConfig = SgdConfig()

    def round(self, state: Nothing, fed: Federation) -> Plan[Nothing]:
        """Average with neighbours, then train the cohort."""
        cohort = fed.sample()
        shown = yield from ask(self.show, dict.fromkeys(cohort, state), at_least=0)
        # The run's key, not the round's: the network stays where it is.
        a = self.graph(len(cohort), Key(fed.key.seed) / "graph")
        n = torch.tensor([float(shown[c].n) if c in shown else 0.0 for c in cohort], dtype=torch.float64)
        v = consensus(a, n, self.epsilon * self.epsilon_schedule(fed.round))
        near = links(v, cohort, {c: r.model for c, r in shown.items()})
        yield from ask(self.train, {c: near.get(c, Links((), ())) for c in cohort}, at_least=0)
        return state

    @step
    def show(self, me: Me, msg: Nothing, memory: Params | None) -> tuple[CFAReply, Params | None]:
        """Send this device's model to its neighbours."""
        return CFAReply(Keep(memory or me.initial), me.n), memory

    @step
    def train(self, me: Me, msg: Links, memory: Params | None) -> Step[tuple[Nothing, Params | None]]:
        """Average, then train (eq. 1, 2)."""
        psi = mixed(memory or me.initial, msg)
        return Nothing(), (yield from sgd(psi, self.local))


def consensus(a: Bool[Tensor, "n n"], n: Float[Tensor, " n"], epsilon: float) -> Float[Tensor, "n n"]:
    """Return the matrix V of eq. 1: psi = V W.

    Args:
        a: Adjacency.
        n: Training examples of each device; 0 for a device that did not reply and takes no part.
        epsilon: Step size, in (0, 1].

    Returns:
        Rows that sum to 1, without negative entries.

    >>> consensus(torch.tensor([[0, 1, 1], [1, 0, 1], [1, 1, 0]]).bool(), torch.tensor([1.0, 1.0, 3.0]), 0.5)[0]
    tensor([0.5000, 0.1250, 0.3750], dtype=torch.float64)
    """
    share = torch.where(a & (n > 0)[:, None], n.double()[None], 0.0)
    total = share.sum(1, keepdim=True)
    toward = epsilon * torch.where(total > 0, share / total, 0.0)
    return toward + torch.diag(1.0 - toward.sum(1))
