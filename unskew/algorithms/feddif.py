"""FedDif: models travel from client to client and train on classes they lack before they are averaged.

S. Ahn et al., "Communication-Efficient Diffusion Strategy for Performance Improvement of Federated Learning with
Non-IID Data": P001 is the version with a cell of 10 devices (arXiv 2207.07493), P000 the one with 100 clients and a
drift regulariser (Neural Networks).  Equation numbers are this file's; server/distance.py and server/auction.py have
the mathematics of the degree of learning and of the auction.

Notation   psi_m    degree of learning (DoL) of model m: class shares of the data it was trained on
           D_m      number of those examples
           W        IID distance of a DoL;  epsilon  the distance that is good enough
           gamma    expected spectral efficiency of a link, bit/s/Hz
           S        size of a model on the wire, bits
           M, N, k  models, clients, diffusion round
Round      M of N clients, drawn uniformly, train the global model: chains of length one
           diffusion round k, until no client gains:
           1  DoL broadcast   each holder sends D_m psi_m to all clients
           2  bids            each client tells the base station V[m] = W(psi_m) - W(psi_m with its own data),
                              0 for a model with W(psi_m) <= epsilon                                  (1)
           3  configuration   the station matches models and clients by V gamma / S
           4  transmission    the holder sends model and DoL to the winner, who trains it
           w <- sum_m D_m w_m / sum_m D_m                                                             (2)
What is    A DoL travels from client to client; the station moves it by its handle and sees bids, sizes and channel.
seen       What clients learn of each other is on the method's page.
Drift      P000's code, optional.  h_i: sum of client i's displacements so far; s_i: its estimate of its own gradient;
           s: the mean of all s_i.  With w_a the model on arrival and K local steps at rate eta,
           loss  + a / (2 r) ||h_i + w - w_a||^2 + <w, s - s_i>,  r = b C W(psi) / 2                   (3)
           then  h_i <- h_i + (w - w_a),  s_i <- s_i - s - (w - w_a) / (eta K)                        (4)
           round s <- s + 1/N sum (change of s_i),  w <- eq. 2 + 1/N sum_i h_i                        (5)
           The displacements along a chain add up to where it ended less where it began, so the station knows the last
           mean from the models it collects; changes of s_i travel as vectors of the model's size.
Departures A client trains on its own data only, as in the algorithm and the code (one equation says: on the data
           of the whole chain).  Only the model's tensors count in S, not some hundred bytes of header.  Moves that gain
           nothing are not made, whatever the matching says.  Bids on a model that stayed are not requested again.
           A hop limit ends a round in a world that loses every hop.  W in eq. 3 is kept above a floor: at psi = t the
           pull would be infinite.  K is ||a||_1 of fednova.py, which is K for plain SGD.  A reply that was lost never
           happened: its model is still with the client before, and eq. 4 is taken back.  Of matchings that are worth
           the same, as without a radio, SciPy's solver takes one, the same in every run.  The paper has no rule.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Gt
from jaxtyping import Float, Int64
from torch import Tensor

from unskew.algorithms.fednova import work
from unskew.algorithms.parts import OneModel, acknowledged, corrected
from unskew.algorithms.presets import presets
from unskew.errors import ConfigError, DataError, QuorumError, WireError
from unskew.info import DiffusionHop, DiffusionMove, DiffusionRound, Refused
from unskew.protocol import (
    Aux,
    Carried,
    ClientId,
    Exponential,
    Federation,
    Held,
    Keep,
    Layout,
    Me,
    Plan,
    SampleCount,
    SgdConfig,
    Step,
    ask,
    collect,
    fit,
    probe,
    sgd,
    step,
)
from unskew.reduction import weighted_mean
from unskew.server import auction
from unskew.server.auction import Feasibility
from unskew.server.distance import DistanceMetric, iid_distance, largest_distance, project, shares
from unskew.tree import Params, map_params, weighted_sum, zeros_like

DoL = Float[Tensor, "valuations classes"] | Held | Keep
"""D psi as counts, float32 (1, classes): eq. 1 of distance.py is then an addition, and exact below 2^24 examples.
Under valuation "lagged" a second row has the counts before the model's last move."""

EFFICIENCY = 8e6
"""Factor on an efficiency in 1/(Hz s) in the released code, before it is compared with epsilon."""

COSINE = 20
"""Number of diffusion rounds in P001's half cosine."""

StopRule = Literal["iid_distance", "efficiency", "decrement"]
Target = Literal["uniform", "pooled"] | tuple[float, ...]
TALLIES = 3  # number of times a client is asked for its part of the pooled shares


# ---------------------------------------------------------------- messages
@dataclass(frozen=True)
class SharedDrift:
    """Data sent with a model when drift is regularised.

    Attributes:
        s: Mean of the clients' gradient states.
        heard: Number of trainings of this client known to the station.
        target: Distribution that counts as IID, (classes,); None is uniform.
    """

    s: Params
    heard: int
    target: Tensor | None


@dataclass(frozen=True)
class FedDifMessage:
    """A model to be trained.

    Attributes:
        model: Its parameters.
        dol: Its degree of learning; None before its first training.
        hop: Diffusion round, 0 for the first training.
        drift: Inputs of eq. 3.
    """

    model: Carried
    dol: DoL | None
    hop: int
    drift: SharedDrift | None


@dataclass(frozen=True)
class FedDifReply:
    """A model that stays where it was trained, its degree of learning, the trainer's examples, its change of s_i."""

    model: Carried
    dol: DoL
    n: SampleCount
    ds: Carried | None


@dataclass(frozen=True)
class CallForBids:
    """Call for bids: the degrees of learning on offer, and the IID distribution, (classes,); None is uniform."""

    dols: tuple[DoL, ...]
    target: Tensor | None


@dataclass(frozen=True)
class Bids:
    """A client's bids on the models on offer, (models,) float64 (eq. 1)."""

    values: Float[Tensor, "models"]


@dataclass(frozen=True)
class Tally:
    """A masked sum of class counts, (classes,) int64, and its mask on the way back to the client that drew it."""

    counts: Int64[Tensor, "classes"] | Held | Keep | None
    mask: Int64[Tensor, "classes"] | Held | Keep | None


# ---------------------------------------------------------------- state and memory
@dataclass(frozen=True)
class DriftMeans:
    """Means over all N clients of the drifts h_i and of the gradient states s_i."""

    h: Params
    s: Params


@dataclass(frozen=True)
class FedDifState:
    """The station's state.

    Attributes:
        params: The model.
        target: Pooled class shares, once known, if they are the target.
        means: Means of the clients' drifts and gradient states, if drift is regularised.
        heard: Number of known trainings by client, if drift is regularised.
        info: Record of the last round.
    """

    params: Params
    target: Tensor | None
    means: DriftMeans | None
    heard: dict[int, int]
    info: DiffusionRound


@dataclass(frozen=True)
class ClientDrift:
    """A client's drift h_i and gradient state s_i."""

    h: Params
    s: Params


@dataclass(frozen=True)
class FedDifMemory:
    """A client's memory when drift is regularised: now, before its last training, and the number of that training."""

    now: ClientDrift
    before: ClientDrift
    trainings: int


@dataclass(frozen=True)
class Chain:
    """A model in transit: its holder, its DoL, and the number of examples it was trained on."""

    holder: ClientId
    model: Held
    dol: Held
    n: int


@dataclass
class ModelsInTransit:
    """A round's models in transit; exists only within the plan.

    Attributes:
        bits: S.
        pooled: Pooled class shares, if they are the target and known.
        s: Mean gradient state, if drift is regularised.
        heard: Number of known trainings by client.
        warnings, ignored, hops, starts: Parts of the round's info.
        chains: Chain of each model.
        changes: Changes of gradient states, still held by the trainers.
        values: Bids, (models, clients) float64; NaN where none was received.
        blocked: Clients that have had each model, (models, clients).
        efficiency: Diffusion efficiency of the moves decided on last, 1/(Hz s).
        exchanges: Exchanges with clients since the first training.
    """

    bits: float
    pooled: Tensor | None
    s: Params | None
    heard: dict[ClientId, int]
    warnings: list[str]
    ignored: list[Refused] = field(default_factory=list)
    hops: list[DiffusionHop] = field(default_factory=list)
    starts: tuple[ClientId, ...] = ()
    chains: list[Chain] = field(default_factory=list)
    changes: list[Held] = field(default_factory=list)
    values: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    blocked: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    efficiency: float = 0.0
    exchanges: int = 0

    def offer(self, client: ClientId, model: Carried, dol: DoL | None = None, hop: int = 0) -> FedDifMessage:
        """Return the message that sends a model to `client`."""
        shared = SharedDrift(self.s, self.heard.get(client, 0), self.pooled) if self.s is not None else None
        return FedDifMessage(model, dol, hop, shared)

    def learned(self, model: int, client: ClientId, reply: FedDifReply) -> None:
        """Record that `client` has trained the model, a new one if it has no chain yet."""
        before = self.chains[model].n if model < len(self.chains) else 0
        self.chains[model : model + 1] = [Chain(client, _held(reply.model), _held(reply.dol), before + reply.n)]
        self.heard[client] = self.heard.get(client, 0) + 1
        if reply.ds is not None:
            self.changes.append(_held(reply.ds))


# ---------------------------------------------------------------- mathematics
@dataclass(frozen=True)
class Drift:
    """Coefficients of eq. 3.

    Attributes:
        a: Strength; P000's code has .01 for CIFAR-100, .02 for EMNIST, .005 for CIFAR-10.
        b: Divisor of the strength, together with the number of classes and the IID distance.
        floor: Smallest W in r.
    """

    a: Annotated[float, Ge(0.0)] = 0.01
    b: Annotated[float, Gt(0.0)] = 0.1
    floor: Annotated[float, Gt(0.0)] = 1e-3


@dataclass(frozen=True)
class Regulariser:
    """Eq. 3 without the loss: `scale ||w - anchor||^2 + <w, correction>` with anchor w_a - h_i and scale a / (2 r)."""

    def __call__(self, params: Params, aux: Aux) -> Tensor:
        """A scalar."""
        pull = torch.stack([(params[n] - w).square().sum() for n, w in aux["anchor"].items()]).sum()
        turn = torch.stack([(params[n] * s).sum() for n, s in aux["correction"].items()]).sum()
        total: Tensor = aux["scale"] * pull + turn
        return total

    def gradient(self, params: Params, aux: Aux) -> Params:
        """2 scale (w - anchor) + correction."""
        twice, correction = 2.0 * aux["scale"], aux["correction"]
        return {n: (params[n] - w).mul_(twice).add_(correction[n]) for n, w in aux["anchor"].items()}


# ---------------------------------------------------------------- presets
Preset = Literal["paper", "p000", "p001"]

PRESETS: dict[str, Mapping[str, Any]] = {
    # The papers' text, base settings: FedDif's defaults, over a radio.
    "paper": {"gamma_min": 1.0},
    # What the code did that fits the tables of P000: 100 clients, 15 models, 300 rounds.
    "p000": {
        "stop": "efficiency",  # ends the round on mean efficiency, not on a model's distance
        "valuation": "lagged",  # a bid counts from the DoL before the last move
        "feasibility": "none",  # the code of this version tests no link
        "bits": 40e6,  # every model is charged 40 Mbit
        "model_ratio": 0.15,  # 15 models among 100 clients
        "drift": Drift(a=0.01, b=0.1),  # for CIFAR-100; EMNIST has a = .02, CIFAR-10 .005
        "local": SgdConfig(  # no momentum, although the paper says .9
            lr=0.1, lr_schedule=Exponential(0.998), batch_size=50, weight_decay=1e-3, clip_norm=10.0
        ),
    },
    # What the code did that fits the tables of P001: 10 clients, 10 models, 100 rounds.
    "p001": {
        # The text's rule fits the text's 10.24 diffusion rounds (ours 10.6); that of the code as it was released later,
        # "decrement", gives 7.8.
        "stop": "iid_distance",
        "valuation": "lagged",
        "feasibility": "qos",  # the outage test of this version is always passed
        "filtering": "after_matching",  # a model matched over a bad link loses its turn
        "gamma_min": 1.0,
        "bits": 40e6,
        "model_ratio": 1.0,
        "lr_within_round": "cosine",  # the k-th training of a round has .5 (1 + cos(pi k / 20)) of the rate
        "local": SgdConfig(lr=0.01, momentum=0.9, batch_size=16, weight_decay=5e-4),
    },
}


# ---------------------------------------------------------------- the method
@presets(PRESETS)
@dataclass(frozen=True)
class FedDif(OneModel):
    """Diffusion before aggregation.

    Attributes:
        local: The clients' optimisation.
        epsilon: Minimum tolerable IID distance; `stop` says what is compared with it.
        stop: "iid_distance" takes a model with W <= epsilon out of the auction (the papers).  "efficiency" ends the
            round when the mean efficiency over all models, times 8e6, is <= epsilon (code of P000).  "decrement"
            makes no move with a bid < epsilon (code of P001).
        valuation: "current" takes W(psi_m) in eq. 1 at the present DoL (the papers).  "lagged" takes it before the
            model's last move, as all released code does, which makes bids too high.
        feasibility: Rule for links that may carry a model: "outage" at most 5 % (the papers' rule), "qos" gamma >=
            gamma_min, both, or none.
        filtering: "weights" leaves infeasible links, and bids that `stop` forbids, out of the matching (the papers).
            "after_matching" drops such pairs afterwards, so that their models lose a turn (code of P001).
        gamma_min: Smallest tolerable spectral efficiency, bit/s/Hz; 0 accepts every link, as is right without a radio.
        metric: IID distance, see server/distance.py.
        target: Distribution that counts as IID: "uniform", "pooled" for the class shares of all clients' data, summed
            once under a mask so that no client sees another's, or given shares.
        model_ratio: M = ceil(model_ratio N); None is the cohort of the experiment.
        max_hops: Maximum number of diffusion rounds in a round; None is 2 N.
        retrain: A client may train a model again that has been elsewhere meanwhile (P001, "re-training").
        sigma: Standard deviation of the noise on the class shares that a trainer puts into a DoL.
        noise: Trainers whose shares are noised: only the "first" of a chain, or "every" one.
        bits: S in the efficiency; None is the size of the model's tensors.
        budget: Bandwidth for the moves of one diffusion round, Hz s; None is no limit.
        drift: Coefficients of P000's regulariser and aggregation of drift; None uses neither.
        lr_within_round: "cosine" multiplies the learning rate by (1 + cos(pi k / 20)) / 2 in diffusion round k.  It is
            held from k = 19 on, before it reaches 0 (P001).
        preset: Base settings: "paper" is the papers' text over a radio, None the text without demands on links.  "p000"
            and "p001" are the released code as it made the tables of the two papers.

    Raises:
        ConfigError: If a setting is out of range, or the target is not a distribution; or if the optimiser's
            displacement is not a sum of gradients, as `drift` needs.
    """

    needs: ClassVar[tuple[str, ...]] = ("groups",)

    local: SgdConfig = SgdConfig()
    epsilon: Annotated[float, Ge(0.0)] = 0.04
    stop: StopRule = "iid_distance"
    valuation: Literal["current", "lagged"] = "current"
    feasibility: Feasibility = "outage"
    filtering: Literal["weights", "after_matching"] = "weights"
    gamma_min: Annotated[float, Ge(0.0)] = 0.0
    metric: DistanceMetric = "l2"
    target: Target = "uniform"
    model_ratio: Annotated[float, Gt(0.0)] | None = None
    max_hops: Annotated[int, Ge(0)] | None = None
    retrain: bool = False
    sigma: Annotated[float, Ge(0.0)] = 0.0
    noise: Literal["first", "every"] = "first"
    bits: Annotated[float, Gt(0.0)] | None = None
    budget: Annotated[float, Gt(0.0)] | None = None
    drift: Drift | None = None
    lr_within_round: Literal["constant", "cosine"] = "constant"
    preset: Preset | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.target, tuple):
            if not all(0.0 <= p <= 1.0 for p in self.target) or abs(sum(self.target) - 1.0) > 1e-6:
                raise ConfigError(f"target must be class shares >= 0 that sum to 1, got {list(self.target)}")
            if self.metric == "kl" and 0.0 in self.target:
                raise ConfigError(
                    "metric 'kl' is infinite for every model trained on a class whose share in target is 0; use metric "
                    "'js', or give every class a share"
                )
        if self.metric == "kl" and self.target == "pooled" and self.sigma > 0.0:
            raise ConfigError(
                "metric 'kl' is infinite where noise gives a model a class that nobody has, got target 'pooled' and "
                f"sigma = {self.sigma:g}; use metric 'js'"
            )
        if self.drift is not None and (self.local.optimizer != "sgd" or self.local.nesterov):
            got = "nesterov" if self.local.optimizer == "sgd" else self.local.optimizer
            raise ConfigError(
                f"drift takes a client's displacement for a sum of gradients, which needs plain or heavy-ball SGD, got "
                f"{got}; leave drift out, or change local"
            )

    @property
    def uses_private_randomness(self) -> bool:
        """True if clients draw noise of their own; masks of sums leave no trace."""
        return self.sigma > 0.0

    # ------------------------------------------------------------------ the station
    def init(self, params: Params, fed: Federation) -> FedDifState:
        """Return the initial model.

        Raises:
            ConfigError: If there are fewer models than one or more than clients, one class, or another number of
                classes than `target` has.
        """
        self.models(fed)
        if fed.num_classes < 2:
            raise ConfigError(
                f"FedDif moves models towards classes they lack, got a task of {fed.num_classes} class; use fedavg"
            )
        if isinstance(self.target, tuple) and len(self.target) != fed.num_classes:
            raise ConfigError(f"target must have a share for each of {fed.num_classes} classes, got {len(self.target)}")
        names = corrected(fed.layout, self.local)
        zero = zeros_like({n: params[n] for n in names})
        means = DriftMeans(zero, zero) if self.drift is not None else None
        info = DiffusionRound(models=0, iterations=1, starts=(), hops=(), sizes=())
        return FedDifState(params, None, means, {}, info)

    def round(self, state: FedDifState, fed: Federation) -> Plan[FedDifState]:
        """Train M models, let them travel while any client gains, average them by their numbers of examples (eq. 2)."""
        way = yield from self.begin(state, fed)
        for hop in range(1, 1 + (2 * len(fed.clients) if self.max_hops is None else self.max_hops)):
            yield from self.gather(way, fed, hop)
            moves = yield from self.configure(way, hop)
            if not moves:
                break
            yield from self.transmit(way, hop, moves)
        return (yield from self.aggregate(state, way, fed))

    def begin(self, state: FedDifState, fed: Federation) -> Plan[ModelsInTransit]:
        """Run the first training of every model."""
        warnings, pooled = [], state.target
        if self.target == "pooled" and pooled is None:
            pooled, missing = yield from self.pool(fed)
            if pooled is None:
                warnings.append("the pooled class shares did not arrive: target is uniform until they do")
            elif missing:
                who = f"client{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
                warnings.append(f"the pooled class shares are without {who}, not heard in {TALLIES} tries")
        s = state.means.s if state.means is not None else None
        bits = self.bits or 8.0 * sum(t.numel() * t.element_size() for t in state.params.values())
        way = ModelsInTransit(bits, pooled, s, dict(state.heard), warnings)
        alike = FedDifMessage(state.params, None, 0, None)  # one message for all is counted once
        trainers = fed.sample(self.models(fed))
        first = yield from ask(self.train, {c: alike if s is None else way.offer(c, state.params) for c in trainers})
        for c, reply in first.items():
            way.learned(len(way.chains), c, reply)
        way.starts = tuple(first)
        way.values = torch.full((len(first), len(fed.clients)), torch.nan, dtype=torch.float64)
        way.blocked = torch.zeros(way.values.shape, dtype=torch.bool)
        way.blocked[range(len(first)), list(first)] = True
        return way

    def gather(self, way: ModelsInTransit, fed: Federation, hop: int) -> Plan[None]:
        """Steps 1 and 2: broadcast the DoL of models that have moved, and collect the bids."""
        # Bids remain valid as long as their model stays; clients that did not reply are asked again.
        offered = torch.nonzero((way.values.isnan() & ~way.blocked).any(dim=1)).flatten().tolist()
        if not offered:
            return
        call = CallForBids(tuple(way.chains[m].dol for m in offered), way.pooled)
        bids = yield from ask(self.bid, {c: call for c in fed.clients}, at_least=0)
        way.exchanges += 1
        table, refused = auction.bid_table(
            {c: b.values for c, b in bids.items()},
            len(offered),
            len(fed.clients),
            largest_distance(self.aim(way.pooled, fed.num_classes), self.metric),
        )
        way.values[offered] = torch.where(table.isnan(), way.values[offered], table)
        way.ignored += [Refused(c, "bid", f"diffusion round {hop}: {why}") for c, why in refused.items()]

    def configure(self, way: ModelsInTransit, hop: int) -> Plan[list[DiffusionMove]]:
        """Step 3: assign models to clients; nothing if the diffusion is over."""
        first = not way.hops
        if not bool(((way.values > 0) & ~way.blocked).any()):
            way.warnings += [_NOBODY_GAINS] if first else []
            return []
        gamma = (yield from probe(hop - 1)).double()
        if first and not bool(auction.feasible(_others(gamma), self.gamma_min, self.feasibility).any()):
            way.warnings.append(_nobody_sends(self.gamma_min, self.feasibility))
            return []
        links = gamma[[chain.holder for chain in way.chains]]
        pairs, weights = self.schedule(way.values, links, way.bits, way.blocked)
        if first and not pairs and self.budget is not None and bool((weights > 0).any()):
            way.warnings.append(f"budget = {self.budget:g} Hz s has no room for the best move: FedDif is FedAvg")
        way.efficiency = float(sum(weights[p] for p in pairs)) / len(way.chains)
        if self.stop == "efficiency" and EFFICIENCY * way.efficiency <= self.epsilon:
            return []
        return [
            DiffusionMove(m, way.chains[m].holder, c, float(way.values[m, c]), float(links[m, c])) for m, c in pairs
        ]

    def transmit(self, way: ModelsInTransit, hop: int, moves: Sequence[DiffusionMove]) -> Plan[None]:
        """Step 4: models go to their winners and are trained there."""
        to = {v.dst: way.offer(v.dst, way.chains[v.model].model, way.chains[v.model].dol, hop) for v in moves}
        done = yield from ask(self.train, to, at_least=0)
        way.exchanges += 1
        # A lost hop does no harm: the previous client still holds the model.
        arrived = tuple(v for v in moves if v.dst in done)
        for v in arrived:
            way.learned(v.model, v.dst, done[v.dst])
            way.blocked[v.model] &= not self.retrain
            way.values[v.model], way.blocked[v.model, v.dst] = torch.nan, True
        way.hops.append(DiffusionHop(hop, way.efficiency, arrived, way.exchanges))

    def aggregate(self, state: FedDifState, way: ModelsInTransit, fed: Federation) -> Plan[FedDifState]:
        """Average the models, weighted by examples (eq. 2), and the drifts (eq. 5).

        Raises:
            DataError: If no model has been trained on any examples.
            QuorumError: If no model trained on examples arrives; if drifts travel, if any model does not.
        """
        sizes = tuple(chain.n for chain in way.chains)
        if not any(sizes):
            raise DataError(
                f"round {fed.round}: none of the {len(sizes)} models met a training example; leave clients without "
                "data out of the split"
            )
        # Means over all clients (eq. 5) would be wrong for good without one of them.
        needed = None if way.changes else 1
        values = yield from collect([*(chain.model for chain in way.chains), *way.changes], needed)
        models, ds = values[: len(sizes)], values[len(sizes) :]
        came = [(w, float(n)) for w, n in zip(models, sizes, strict=True) if w is not None]
        if not any(n for _, n in came):
            raise QuorumError(f"round {fed.round}: none of the {len(sizes)} models with examples behind them arrived")
        params, means = weighted_mean([w for w, _ in came], [n for _, n in came]), state.means
        if means is not None:
            means = self.renewed(means, state.params, models, ds, len(fed.clients))
            params = {n: w + means.h[n] if n in means.h else w for n, w in params.items()}
        info = DiffusionRound(
            models=len(way.starts),
            iterations=1 + len(way.hops),
            starts=way.starts,
            hops=tuple(way.hops),
            sizes=sizes,
            ignored=tuple(way.ignored),
            warnings=tuple(way.warnings),
        )
        return FedDifState(params, way.pooled, means, way.heard if means is not None else {}, info)

    def schedule(
        self, values: Tensor, links: Tensor, bits: float, blocked: Tensor
    ) -> tuple[list[auction.Pair], Tensor]:
        """Assign models to clients, and return the weights of all moves.

        Args:
            values: Bids, (models, clients); NaN where none was received.
            links: gamma from each model's holder, (models, clients).
            bits: S.
            blocked: Clients that had the model, (models, clients).
        """
        fit_ = auction.feasible(links, self.gamma_min, self.feasibility)
        if self.stop == "decrement":
            fit_ = fit_ & (values >= self.epsilon)
        early = self.filtering == "weights"
        weights = auction.edge_weights(values, links, bits, blocked | ~fit_ if early else blocked)
        pairs = [p for p in auction.match(weights) if early or bool(fit_[p])]
        return auction.admit(pairs, weights, bits / links, self.budget), weights

    def renewed(
        self, means: DriftMeans, before: Params, models: Sequence[Params], ds: Sequence[Params], clients: int
    ) -> DriftMeans:
        """Return the means of h_i and s_i after a round (eq. 5)."""
        share = [1.0 / clients] * len(models)
        ended = weighted_sum([{n: w[n] for n in means.h} for w in models], share)
        h = {n: means.h[n] + (e - len(models) / clients * before[n]) for n, e in ended.items()}
        return DriftMeans(h, map_params(torch.add, means.s, weighted_sum(ds, [1.0 / clients] * len(ds))))

    def pool(self, fed: Federation) -> Plan[tuple[Tensor | None, tuple[ClientId, ...]]]:
        """Return the class shares of all clients' data, and the clients left out of them.

        The sum travels under a mask that only the first client can remove.  Clients that cannot be reached are left
        out permanently, since the difference to a later sum would be their counts.  There are no shares if the first
        client is lost before unmasking the sum, nor under "kl" if a client is missing: others may lack its classes.
        """
        turn = fed.round % len(fed.clients)
        owner, mask, counts = None, None, None
        missing = [*fed.clients[turn:], *fed.clients[:turn]]
        for _ in range(TALLIES):
            asked, missing = missing, []
            for c in asked:
                reply = (yield from ask(self.tally, {c: Tally(counts, None)}, at_least=0)).get(c)
                if reply is None:
                    missing.append(c)
                    continue
                counts = reply.counts
                if owner is None:
                    owner, mask = c, reply.mask
        left_out = tuple(sorted(missing))
        if owner is None or (left_out and self.metric == "kl"):
            return None, left_out
        last = (yield from ask(self.tally, {owner: Tally(counts, mask)}, at_least=0)).get(owner)
        total = last.counts if last is not None else None
        if not isinstance(total, Tensor) or total.shape != (fed.num_classes,) or not bool((total >= 0).all()):
            return None, left_out
        return shares(total.double()), left_out

    def models(self, fed: Federation) -> int:
        """Compute M.

        Raises:
            ConfigError: If that is less than one, or more than there are clients.
        """
        n = len(fed.clients)
        # 0.15 * 100 may be 15.000000000000002, but 15 models are meant.
        m = fed.clients_per_round if self.model_ratio is None else math.ceil(self.model_ratio * n - 1e-9)
        if not 1 <= m <= n:
            where = "clients_per_round" if self.model_ratio is None else f"model_ratio = {self.model_ratio:g}"
            raise ConfigError(
                f"FedDif needs between one model and one for each of the {n} clients, got {m} from {where}"
            )
        return m

    def aim(self, pooled: Tensor | None, classes: int) -> Tensor:
        """Return the distribution that counts as IID, (classes,) float64."""
        if isinstance(self.target, tuple):
            return torch.tensor(self.target, dtype=torch.float64)
        return torch.full((classes,), 1.0 / classes, dtype=torch.float64) if pooled is None else pooled.cpu()

    # ------------------------------------------------------------------ the clients
    @step
    def train(
        self, me: Me, msg: FedDifMessage, memory: FedDifMemory | None
    ) -> Step[tuple[FedDifReply, FedDifMemory | None]]:
        """Train a model on this client's data and update its degree of learning; both stay here."""
        assert isinstance(msg.model, dict)
        dol = self.learned(me, msg.dol)
        if me.n == 0:
            nothing = zeros_like(msg.drift.s) if msg.drift is not None else None
            kept = self.remembered(msg.drift, memory, None) if msg.drift is not None else memory
            return FedDifReply(Keep(msg.model), Keep(dol), 0, Keep(nothing) if nothing is not None else None), kept
        local = self.local_at(msg.hop)
        if msg.drift is None or self.drift is None:
            w = yield from sgd(msg.model, local)
            return FedDifReply(Keep(w), Keep(dol), me.n, None), memory
        own = self.own(msg.drift, memory)
        distance = iid_distance(shares(dol[0].double()), self.aim(msg.drift.target, len(me.histogram)), self.metric)
        r = 0.5 * self.drift.b * len(me.histogram) * max(float(distance), self.drift.floor)
        arrival = {n: msg.model[n] for n in own.h}
        done = yield from fit(
            msg.model,
            local,
            Regulariser(),
            anchor=map_params(torch.sub, arrival, own.h),
            correction=map_params(torch.sub, msg.drift.s, own.s),
            scale=next(iter(arrival.values())).new_tensor(self.drift.a / (2.0 * r)),
        )
        moved = {n: done.params[n] - w for n, w in arrival.items()}
        rate = done.lr * work(done.steps, local.momentum)
        s = {n: own.s[n] - msg.drift.s[n] - moved[n] / rate for n in moved}
        new = ClientDrift(map_params(torch.add, own.h, moved), s)
        reply = FedDifReply(Keep(done.params), Keep(dol), me.n, Keep(map_params(torch.sub, s, own.s)))
        return reply, self.remembered(msg.drift, memory, new)

    @step
    def bid(self, me: Me, msg: CallForBids, memory: FedDifMemory | None) -> tuple[Bids, FedDifMemory | None]:
        """Bid on each model: the gain from this client's data (eq. 1); no local work."""
        if me.n == 0:
            return Bids(torch.zeros(len(msg.dols), dtype=torch.float64)), memory
        # A degree of learning comes from another client: below 0 it would make this client's bids NaN.  It is
        # computed on the CPU, where the class counts are, and may arrive on the device that the client trains on.
        counts = torch.stack([d for d in msg.dols if isinstance(d, Tensor)]).cpu().double().clamp(min=0.0)
        # Rows: now, before the last move if bids are relative to that, and with this client's data.
        rows = torch.cat([counts, counts[:, :1] + me.histogram], dim=1)
        distance = iid_distance(shares(rows), self.aim(msg.target, len(me.histogram)), self.metric)
        values = auction.gain(distance[:, -2], distance[:, -1])
        if self.stop == "iid_distance":
            values = values.masked_fill(distance[:, 0] <= self.epsilon, 0.0)
        return Bids(values), memory

    @step
    def tally(self, me: Me, msg: Tally, memory: FedDifMemory | None) -> tuple[Tally, FedDifMemory | None]:
        """Add this client's class counts to a masked sum; the client that drew the mask removes it again."""
        if isinstance(msg.mask, Tensor) and isinstance(msg.counts, Tensor):
            return Tally(msg.counts - msg.mask, None), memory
        if isinstance(msg.counts, Tensor):
            return Tally(Keep(msg.counts.cpu() + me.histogram), None), memory
        # Sums of int64 wrap around, so under a mask drawn uniformly from all of them a sum reveals nothing.
        mask = (me.private / "mask").bits(*me.histogram.shape).to(me.histogram)
        return Tally(Keep(mask + me.histogram), Keep(mask)), memory

    def validate_reply(self, step: str, reply: FedDifReply | Bids | Tally, model: Params, layout: Layout) -> None:
        """Refuse a training without its change of s_i where drift is regularised: eq. 5 needs all of them."""
        if isinstance(reply, FedDifReply) and self.drift is not None and reply.ds is None:
            raise WireError("a reply must carry the change of the gradient state, got none")

    def learned(self, me: Me, dol: DoL | None) -> Tensor:
        """Return the degree of learning after training here."""
        own = me.histogram.double()
        if self.sigma > 0.0 and (dol is None or self.noise == "every"):
            # One draw for a client and run: drawn anew in every round, the noise would average out.
            draw = (me.private_fixed / "feddif" / "noise").normal(*own.shape).to(own)
            own = me.n * project(shares(own) + self.sigma * draw)
        before = dol[0].cpu().double().clamp(min=0.0) if isinstance(dol, Tensor) else None
        now = own if before is None else before + own
        rows = [now] if self.valuation == "current" else [now, now if before is None else before]
        return torch.stack(rows).float()

    def local_at(self, hop: int) -> SgdConfig:
        """Return the clients' optimisation in diffusion round `hop`."""
        if self.lr_within_round == "constant" or hop == 0:
            return self.local
        factor = 0.5 * (1.0 + math.cos(math.pi * min(hop, COSINE - 1) / COSINE))
        return dataclasses.replace(self.local, lr=factor * self.local.lr)

    def own(self, shared: SharedDrift, memory: FedDifMemory | None) -> ClientDrift:
        """Return this client's h_i and s_i as of the last training known to the station."""
        if memory is None:
            return ClientDrift(zeros_like(shared.s), zeros_like(shared.s))
        return acknowledged(memory.now, memory.before, memory.trainings, shared.heard)

    def remembered(self, shared: SharedDrift, memory: FedDifMemory | None, new: ClientDrift | None) -> FedDifMemory:
        """Return the memory after one more training."""
        own = self.own(shared, memory)
        return FedDifMemory(new or own, own, shared.heard + 1)

    def info(self, state: FedDifState) -> DiffusionRound:
        """Report the last round."""
        return state.info


_NOBODY_GAINS = (
    "no client would bring any model nearer to IID (they are near enough, or the clients' data are alike): "
    "FedDif is FedAvg in such a round"
)


def _nobody_sends(gamma_min: float, rule: Feasibility) -> str:
    return (
        f"no link can carry a model under gamma_min = {gamma_min:g} bit/s/Hz and feasibility {rule!r}: FedDif is "
        "FedAvg; lower gamma_min, or give the world a better channel"
    )


def _held(value: Carried | DoL) -> Held:
    assert isinstance(value, Held)
    return value


def _others(gamma: Tensor) -> Tensor:
    """Return gamma without links from a node to itself."""
    return gamma.masked_fill(torch.eye(len(gamma), dtype=torch.bool), 0.0)
