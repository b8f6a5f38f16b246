"""Cyclic weight transfer: one model visits the clients in turn, and nothing is averaged.

K. Chang, N. Balachandar, C. Lam, D. Yi, J. Brown, A. Beers, B. Rosen, D. L. Rubin, J. Kalpathy-Cramer, "Distributed
Deep Learning Networks Among Institutions for Medical Imaging", Journal of the American Medical Informatics Association
25(8), 2018: "cyclical weight transfer".  Equation numbers are this file's.

Notation   w      the model
           c_1 .. c_M  clients of the round, in the order in which they are visited
Round      w <- LocalSGD(w; F_c_j) for j = 1 .. M, one after the other: a cycle                         (1)
           The paper trains for a few epochs at each institution (`local`) and repeats the cycle: 20 times one epoch
           did nearly as well as pooled data, single visits did worse.
Departures The optimiser starts afresh at each client, and the learning rate falls by round, a cycle.  The last model of
           a round goes to the server, which sends it to the first client of the next.  A client that is lost is passed
           over: its predecessor still has the model.  Clients visited last weigh most; by default each round draws the
           order anew, the paper's is `order = "fixed"`.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from unskew.algorithms.fedavg import ModelMessage
from unskew.algorithms.parts import OneModel
from unskew.protocol import Carried, ClientId, Federation, Keep, Me, Plan, SgdConfig, Step, ask, collect, sgd, step
from unskew.tree import Params


@dataclass(frozen=True)
class Visit:
    """The model on its way to or from a client, or its handle."""

    model: Carried


@dataclass(frozen=True)
class Cyclic(OneModel):
    """One model that visits the clients in turn.

    Attributes:
        order: "drawn" visits the clients of a round in an order drawn for it, "fixed" by their numbers.
        route: "d2d" hands the model from client to client, "server" sends it up and down at every visit.
        local: The clients' optimisation in one visit.
    """

    order: Literal["drawn", "fixed"] = "drawn"
    route: Literal["d2d", "server"] = "d2d"
    local: SgdConfig = SgdConfig()

    def init(self, params: Params, fed: Federation) -> ModelMessage:
        """Return the initial model."""
        return ModelMessage(params)

    def round(self, state: ModelMessage, fed: Federation) -> Plan[ModelMessage]:
        """Let the model visit every client of a cohort once (eq. 1).

        Raises:
            QuorumError: If no client came back with the model, or the last one's is gone.
        """
        model: Carried = state.params
        cohort = self.visited(fed)
        trained = False
        for client in cohort:
            needed = 1 if client == cohort[-1] and not trained else 0
            replies = yield from ask(self.train, {client: Visit(model)}, needed)
            if client in replies:  # otherwise its predecessor still has the model
                model, trained = replies[client].model, True
        if self.route == "d2d":
            (model,) = yield from collect([model])
        assert isinstance(model, dict)
        return ModelMessage(model)

    def visited(self, fed: Federation) -> list[ClientId]:
        """Return the clients of a round in the order in which they are visited."""
        cohort = list(fed.sample())
        if self.order == "fixed":
            return cohort
        drawn = torch.randperm(len(cohort), generator=(fed.key / "order").generator()).tolist()
        return [cohort[i] for i in drawn]

    @step
    def train(self, me: Me, msg: Visit, memory: None) -> Step[tuple[Visit, None]]:
        """Train the received model; with "d2d" it stays here until it is sent on."""
        assert isinstance(msg.model, dict)  # a handle arrives as the model it stands for
        w = yield from sgd(msg.model, self.local)
        return Visit(Keep(w) if self.route == "d2d" else w), None
