"""FedProx: FedAvg with a quadratic pull to the received model.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith, "Federated Optimization in Heterogeneous Networks",
MLSys 2020, eq. (2).

Notation   mu   strength of the pull
           n_k  training examples of client k
Local loss F_k(y) + mu/2 ||y - w||^2, with w the received model                                    (2)
Cohort     "uniform" draws clients uniformly and weights their models by n_k: common practice, and FedAvg's rule;
           "size" draws them in proportion to n_k and weights their models equally: the paper's rule (Algorithm 2).
Departures A cohort drawn by size has each client at most once.  Its plain mean is then slightly biased, and with full
           participation it is the uniform mean.  The server does not know sizes by itself: each client declares its
           own once, in a message that is counted like any other.
           Of `personal` tensors no client receives any: they are pulled to where they stood when the client began.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from unskew.algorithms.fedavg import FedAvg, FedAvgState, ModelMessage, ModelReply, Weighting
from unskew.algorithms.parts import SizeReply
from unskew.errors import ConfigError
from unskew.protocol import Aux, ClientId, Federation, Me, Plan, SgdConfig, Step, ask, step
from unskew.schema import Search
from unskew.server.optimise import Mean, ServerRule
from unskew.tree import Params

Sampling = Literal["uniform", "size"]


@dataclass(frozen=True)
class Proximal:
    """mu/2 ||w - anchor||^2 over trainable parameters (eq. 2); its gradient is mu (w - anchor)."""

    mu: float

    def __call__(self, params: Params, aux: Aux) -> Tensor:
        """A scalar."""
        return 0.5 * self.mu * torch.stack([(w - aux["anchor"][n]).square().sum() for n, w in params.items()]).sum()

    def gradient(self, params: Params, aux: Aux) -> Params:
        """mu (w - anchor)."""
        return {n: (w - aux["anchor"][n]).mul_(self.mu) for n, w in params.items()}


def FedProx(
    mu: Annotated[float, Ge(0.0), Search(0.001, 10)] = 0.1,
    local: SgdConfig = SgdConfig(),
    weighting: Weighting | None = None,
    personal: tuple[str, ...] = (),
    sampling: Sampling = "uniform",
    server: ServerRule = Mean(),
) -> "FedAvg | SizeSampled":
    """FedAvg whose clients are pulled towards the received model with strength `mu`; `mu = 0` is FedAvg.

    Args:
        mu: Strength of the pull.
        local: The clients' optimisation.
        weighting: Weights of the models; None follows `sampling`.
        personal: Tensors that stay with each client, as in FedAvg.
        sampling: "uniform" draws uniformly and weights by examples, "size" draws by examples and weights equally.
        server: Server rule, as in FedAvg.

    Raises:
        ConfigError: If size would count twice, in the draw and in the mean.
    """
    terms = (Proximal(mu),) if mu else ()
    if sampling == "uniform":
        return FedAvg(local, weighting or "samples", terms, personal, server=server)
    if weighting == "samples":
        raise ConfigError(
            "fedprox: sampling = 'size' already draws large clients more often, so weighting = 'samples' would count "
            "their size twice; leave weighting out"
        )
    return SizeSampled(FedAvg(local, "uniform", terms, personal, server=server))


# ---------------------------------------------------------------- the paper's cohort
@dataclass(frozen=True)
class SizeSampledState:
    """The server's state: FedAvg's, and the sizes declared so far, by client."""

    of: FedAvgState
    n: dict[int, int]

    @property
    def params(self) -> Params:
        """Return the model."""
        return self.of.params


@dataclass(frozen=True)
class SizeSampled:
    """FedAvg with a cohort drawn in proportion to the clients' sizes and averaged uniformly.

    Attributes:
        of: Method that the clients run.
    """

    of: FedAvg

    def init(self, params: Params, fed: Federation) -> SizeSampledState:
        """Return the initial model, without known sizes."""
        return SizeSampledState(self.of.init(params, fed), {})

    def round(self, state: SizeSampledState, fed: Federation) -> Plan[SizeSampledState]:
        """Ask for the sizes not yet known, draw the cohort by size, average uniformly."""
        unknown = [c for c in fed.clients if c not in state.n]
        declared = (yield from ask(self.declare, {c: None for c in unknown}, at_least=0)) if unknown else {}
        n = {**state.n, **{c: size.n for c, size in declared.items()}}
        cohort = fed.sample(weights=[float(n.get(c, 0)) for c in fed.clients])
        return SizeSampledState((yield from self.of.meet(cohort, state.of, fed, self.train)), n)

    @step
    def declare(self, me: Me, msg: None, memory: Params | None) -> tuple[SizeReply, Params | None]:
        """Say how many training examples this client has."""
        return SizeReply(me.n), memory

    @step
    def train(self, me: Me, msg: ModelMessage, memory: Params | None) -> Step[tuple[ModelReply, Params | None]]:
        """Train as a client of FedAvg does."""
        return (yield from self.of.train(me, msg, memory))

    @property
    def personalises(self) -> bool:
        """True if FedAvg's clients have tensors of their own."""
        return self.of.personalises

    def personalise(self, me: Me, params: Params, memory: Params | None) -> Step[Params]:
        """Return the personal model of FedAvg."""
        return (yield from self.of.personalise(me, params, memory))

    def serve(self, state: SizeSampledState, client: ClientId | None) -> Params | None:
        """Return the global model, as FedAvg serves it."""
        return self.of.serve(state.of, client)
