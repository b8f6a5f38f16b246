"""FedBuff: the server steps whenever a buffer of updates is full, and no client waits for another.

J. Nguyen, K. Malik, H. Zhan, A. Yousefpour, M. Rabbat, M. Malek, D. Huba, "Federated Learning with Buffered
Asynchronous Aggregation", AISTATS 2022, Algorithms 1 and 2.  Equation numbers are this file's.

Notation   w_t    global model after t steps of the server;  K  size of the buffer;  eta  server learning rate
           y_k    client k's model after local training from the w_s that it was sent
           tau_k  t - s, the steps that the server has made since: the staleness
Update     d_k = y_k - w_s                                                                                 (1)
Server     w_{t+1} = w_t + eta sum_k p_k d_k / sqrt(1 + tau_k),  over the K updates in the buffer          (2)
Statistics of normalisation layers travel as they are, b_k, and are mixed in: a sum of stale movements, or one times
           eta, may leave a variance below zero.  b_{t+1} = b_t + sum_k p_k (b_k - b_t) / sqrt(1 + tau_k)  (3)
Departures p_k, with the sum 1, may be by examples; the paper's are equal.  A round is as many steps as a cohort fills
           buffers, so that a round of any method trains about as much.  Clients are started after a step and not
           between two: until then they would be sent a model that is about to change.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Generic

from annotated_types import Ge, Gt

from unskew.algorithms.fedavg import ModelMessage, Weighting, weights_of
from unskew.algorithms.parts import OneModel
from unskew.protocol import (
    Arrived,
    AsTheyCome,
    ClientId,
    Federation,
    Me,
    Plan,
    R,
    SampleCount,
    SgdConfig,
    Step,
    UnderWay,
    Update,
    sgd,
    step,
)
from unskew.schema import Search
from unskew.tree import Params


@dataclass(frozen=True)
class UpdateReply:
    """Change that local training made to the received model, its statistics as they are, and the examples."""

    update: Update
    n: SampleCount


@dataclass(frozen=True)
class Flow(Generic[R]):
    """The server's state: the global model, the steps that led to it, and the clients under way."""

    params: Params
    steps: int = 0
    under_way: dict[ClientId, UnderWay[R]] = field(default_factory=dict)


@dataclass(frozen=True)
class FedBuff(OneModel):
    """Buffered asynchronous averaging; with a buffer for the whole cohort every client is waited for, as in FedAvg.

    Attributes:
        buffer: K, updates for a step of the server; None is the cohort's size, which is the number of clients at work.
        server_lr: eta.
        local: The clients' optimisation.
        weighting: p_k: "uniform" as published, "samples" by training examples.
    """

    buffer: Annotated[int, Ge(1)] | None = None
    server_lr: Annotated[float, Gt(0.0), Search(0.1, 2)] = 1.0
    local: SgdConfig = SgdConfig()
    weighting: Weighting = "uniform"
    as_they_come: ClassVar[bool] = True

    def init(self, params: Params, fed: Federation) -> Flow[UpdateReply]:
        """Return the initial model."""
        return Flow(params)

    def round(self, state: Flow[UpdateReply], fed: Federation) -> Plan[Flow[UpdateReply]]:
        """Fill the buffer and step (eq. 2, 3) until a cohort has replied."""
        size = min(self.buffer or fed.clients_per_round, fed.clients_per_round)
        for i in range(fed.clients_per_round // size):
            arrived = yield from next_replies(self.train, state, fed, i, size)
            buffer = [r for _, r in sorted(arrived.replies.items())]  # float addition is not associative
            p = weights_of([r.reply.n for r in buffer], self.weighting)
            fresh = [(1 + state.steps - r.stamp) ** -0.5 for r in buffer]
            new = dict(state.params)
            for r, share, s in zip(buffer, p, fresh, strict=True):
                for n, sent in r.reply.update.items():
                    statistic = n in fed.layout.buffers
                    moved = sent - state.params[n] if statistic else sent
                    new[n] = new[n] + (1.0 if statistic else self.server_lr) * share * s * moved
            state = Flow(new, state.steps + 1, arrived.under_way)
        return state

    @step
    def train(self, me: Me, msg: ModelMessage, memory: None) -> Step[tuple[UpdateReply, None]]:
        """Train from the received model and send the difference (eq. 1)."""
        y = yield from sgd(msg.params, self.local)
        return UpdateReply({n: t if n in me.layout.buffers else t - msg.params[n] for n, t in y.items()}, me.n), None


def next_replies(train: Callable[..., Any], state: Any, fed: Federation, i: int, first: int) -> Plan[Arrived[Any]]:
    """Keep a cohort at work, clients drawn for the round's step `i` among those that are free; wait for replies."""
    free = [float(c not in state.under_way) for c in fed.clients]
    drawn = replace(fed, key=fed.key / "step" / i) if i else fed  # at first the cohort of every method
    chosen = drawn.sample(fed.clients_per_round - len(state.under_way), free)
    to = dict.fromkeys((*chosen, *state.under_way), ModelMessage(state.params))
    arrived: Arrived[Any] = yield AsTheyCome(train.__name__, to, state.under_way, first, state.steps)
    return arrived
