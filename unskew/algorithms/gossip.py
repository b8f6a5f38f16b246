"""Gossip averaging (D-PSGD): no server; every client trains, and averages with its neighbours.

X. Lian, C. Zhang, H. Zhang, C.-J. Hsieh, W. Zhang, J. Liu, "Can Decentralized Algorithms Outperform Centralized
Algorithms? A Case Study for Decentralized Parallel Stochastic Gradient Descent", NeurIPS 2017, Algorithm 1.  Equation
numbers are this file's.

Notation   x_i  client i's own model, in its memory; the common initial model at first
           y_i  x_i after local training
           W    mixing matrix of the graph: symmetric, rows and columns sum to 1 (server/graphs.py)
Round      y_i = LocalSGD(x_i; F_i)
           together        x_i <- sum_j W_ij x_j + (y_i - x_i)                                       (1)
           train-then-mix  x_i <- sum_j W_ij y_j                                                     (2)
Wire       No model goes up or down; 2 e models from device to device for the e edges of the graph.  What the ledger
           records besides is control: a few hundred bytes per client that say who sends to whom.
Published  Eq. 1 with one step is Algorithm 1: the gradient is taken at x_i while the neighbours' models arrive.  The
           authors allow the other order, eq. 2, which is the default here: on a complete graph it is FedAvg with
           uniform weights, for every client, as long as all clients take part.
Means      Either order leaves the mean over clients where the mean of the y_i is.
Departures A round is as much local training as in any other method, not one step.  The graph joins the round's cohort
           in the order of client numbers; with all clients in it, it is the same in every round.  In eq. 1 buffers
           stay y_i's: a difference of variances may be negative.
Losses     A client that did not reply is left out on both sides of its links, and its neighbours keep that weight for
           their own models, which preserves the mean.  A client that trained but cannot be reached to mix stays at y_i
           while its neighbours include it: then the mean moves.  Absent clients keep their model.
"""

from dataclasses import dataclass
from typing import Literal

from unskew.algorithms.independent import NoServer, Nothing
from unskew.algorithms.parts import OwnModels
from unskew.keys import Key
from unskew.protocol import Carried, Federation, Keep, Me, Plan, SgdConfig, Step, ask, sgd, step
from unskew.server.graphs import Graph, Links, Mixing, Ring, links, mixed, mixing_matrix
from unskew.tree import Params


@dataclass(frozen=True)
class GossipReply:
    """A client's model, for its neighbours; it stays on the client until it is sent to one of them."""

    model: Carried


@dataclass(frozen=True)
class MixMessage:
    """The neighbours' models, and the client's own from the same moment (eq. 1); None if it has not changed since."""

    near: Links
    before: Carried | None


@dataclass(frozen=True)
class Gossip(NoServer, OwnModels):
    """Decentralised averaging over a graph.

    Attributes:
        graph: Graph of the clients.
        mixing: Weights of neighbours: "metropolis" or "laplacian".
        order: "train-then-mix" (eq. 2) or "together" (eq. 1).
        local: The clients' optimisation.
    """

    graph: Graph = Ring()
    mixing: Mixing = "metropolis"
    order: Literal["train-then-mix", "together"] = "train-then-mix"
    local: SgdConfig = SgdConfig()

    def round(self, state: Nothing, fed: Federation) -> Plan[Nothing]:
        """Train the cohort, then average with neighbours."""
        cohort = fed.sample()
        # The run's key, not the round's: the network stays where it is.
        w = mixing_matrix(self.graph(len(cohort), Key(fed.key.seed) / "graph"), self.mixing)
        shown = yield from ask(self.train, dict.fromkeys(cohort, state), at_least=0)
        models = {c: r.model for c, r in shown.items()}
        before = models if self.order == "together" else {}
        to = {c: MixMessage(near, before.get(c)) for c, near in links(w, cohort, models).items() if near.models}
        if to:
            yield from ask(self.mix, to, at_least=0)
        return state

    @step
    def train(self, me: Me, msg: Nothing, memory: Params | None) -> Step[tuple[GossipReply, Params | None]]:
        """Train this client's own model; offer the one that `order` asks for."""
        x = memory or me.initial
        y = yield from sgd(x, self.local)
        return GossipReply(Keep(x if self.order == "together" else y)), y

    @step
    def mix(self, me: Me, msg: MixMessage, memory: Params | None) -> tuple[Nothing, Params | None]:
        """Average with the neighbours (eq. 1, 2)."""
        y = memory or me.initial
        if msg.before is None:
            return Nothing(), mixed(y, msg.near)
        x = msg.before
        assert isinstance(x, dict)
        z = mixed(x, msg.near)
        return Nothing(), {n: t if n in me.layout.buffers else z[n] + (t - x[n]) for n, t in y.items()}
