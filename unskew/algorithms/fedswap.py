"""FedSwap: local models move between clients several times before they are averaged.

T.-C. Chiu, Y.-Y. Shih, A.-C. Pang, C.-S. Wang, W. Weng, C.-T. Chou, "Semisupervised Distributed Learning With Non-IID
Data for AIoT Service Platform", IEEE Internet of Things Journal 2020, in the form in which FedDif compares with it.
Equation numbers are this file's.

Notation   w       global parameters and buffers
           M       clients of the round; as many models m_1 .. m_M travel among them
           L       legs, local trainings of each model between two averages
           pi_l    assignment of models in leg l: model j is trained on client pi_l(j)
Round      m_j <- w for all j                                                                        (1)
           leg l = 1 .. L: m_j <- LocalSGD(m_j; F_pi_l(j)), pi_1 in the clients' order, then pi_l drawn anew  (2)
           w <- sum_j omega_j m_j / sum_j omega_j                                                     (3)
Weights    omega_j is 1, or the examples of its last trainer, or all it has seen; with one leg FedAvg's are "samples".
Departures Only the abstract could be read.  The small shared data set of the original is left out.  Models are swapped
           after every local training (`local`), and averaged after every L-th (`legs`).
           A lost reply does not end the round: the previous holder still has the model, and it continues from there in
           the next leg.  A model that was never trained is left out of eq. 3.
           The optimiser starts afresh in each leg, and the learning rate falls by round, not by leg.
           By default models go by the server; FedDif's cost formula counts one transfer a leg: `route = "d2d"`, about
           half as much.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge

from unskew.algorithms.fedavg import ModelMessage
from unskew.algorithms.parts import OneModel
from unskew.keys import Key
from unskew.protocol import (
    Carried,
    Federation,
    Keep,
    Me,
    Plan,
    SampleCount,
    SgdConfig,
    Step,
    ask,
    collect,
    sgd,
    step,
)
from unskew.reduction import weighted_mean
from unskew.tree import Params

Permutation = Literal["uniform", "derangement", "pairing"]


@dataclass(frozen=True)
class FedSwapMessage:
    """A model sent to its next trainer, or its handle."""

    model: Carried


@dataclass(frozen=True)
class FedSwapReply:
    """A model after a leg, or its handle, and the number of examples of the client that trained it."""

    model: Carried
    n: SampleCount


@dataclass(frozen=True)
class FedSwap(OneModel):
    """Federated learning with swapped models.

    Attributes:
        legs: Number of local trainings of a model per round; 1 with weighting "samples" is FedAvg.
        permutation: "uniform" over all, so that models may stay.  Under "derangement" no model returns to the client
            that had it last.  Under "pairing" clients swap in pairs, and one may be left over.
        weighting: Weights of the models: "uniform", by "samples" of the last trainer, or by those "seen" in all legs.
        route: "server" sends each model up and down in every leg, "d2d" from client to client.
        local: The clients' optimisation in one leg.
    """

    legs: Annotated[int, Ge(1)] = 10
    permutation: Permutation = "uniform"
    weighting: Literal["uniform", "samples", "seen"] = "uniform"
    route: Literal["server", "d2d"] = "server"
    local: SgdConfig = SgdConfig()

    def init(self, params: Params, fed: Federation) -> ModelMessage:
        """Return the initial model."""
        return ModelMessage(params)

    def round(self, state: ModelMessage, fed: Federation) -> Plan[ModelMessage]:
        """Let as many models travel as there are clients; average them.

        Raises:
            QuorumError: If no leg of any model came back.
        """
        at = list(fed.sample())
        models: list[Carried] = [state.params for _ in at]
        last, seen = [0 for _ in at], [0 for _ in at]
        for leg in range(self.legs):
            if leg:
                at = [at[i] for i in permuted(self.permutation, len(at), fed.key / "swap" / leg)]
            needed = 1 if leg == self.legs - 1 and not any(seen) else 0
            replies = yield from ask(
                self.train, {c: FedSwapMessage(m) for c, m in zip(at, models, strict=True)}, needed
            )
            for j, client in enumerate(at):
                if client in replies:  # otherwise its previous holder still has the model
                    models[j], last[j] = replies[client].model, replies[client].n
                    seen[j] += last[j]
        trained = [j for j, n in enumerate(seen) if n]
        ends = [models[j] for j in trained]
        arrived: list[Any] = (yield from collect(ends, at_least=1)) if self.route == "d2d" else ends
        weights = {"uniform": [1] * len(at), "samples": last, "seen": seen}[self.weighting]
        came = [(model, float(weights[j])) for j, model in zip(trained, arrived, strict=True) if model is not None]
        return ModelMessage(weighted_mean([model for model, _ in came], [weight for _, weight in came]))

    @step
    def train(self, me: Me, msg: FedSwapMessage, memory: None) -> Step[tuple[FedSwapReply, None]]:
        """Train the received model; with "d2d" it stays here until it is sent on."""
        assert isinstance(msg.model, dict)  # a handle arrives as the model it stands for
        y = yield from sgd(msg.model, self.local)
        return FedSwapReply(Keep(y) if self.route == "d2d" else y, me.n), None


def permuted(permutation: Permutation, n: int, key: Key) -> list[int]:
    """Draw an order of 0 .. n - 1.

    "uniform" draws from all orders, "derangement" from those that leave nothing in its place (a single element has no
    such order and stays), "pairing" swaps neighbours of a drawn order.
    """
    order: list[int] = torch.randperm(n, generator=key.generator()).tolist()
    if permutation == "derangement" and n > 1:
        # About 1/e of all orders qualify: less than three draws on average.
        attempt = 0
        while any(i == j for i, j in enumerate(order)):
            attempt += 1
            order = torch.randperm(n, generator=(key / attempt).generator()).tolist()
    if permutation == "pairing":
        partner = list(range(n))
        for a, b in zip(order[::2], order[1::2], strict=False):
            partner[a], partner[b] = b, a
        return partner
    return order
