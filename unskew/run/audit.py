"""Audit of differential privacy: what an attacker gets right about clients who would be easy to tell apart.

T. Steinke, M. Nasr, M. Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023, theorem 5.2; with the
canary clients of G. Andrew, P. Kairouz, S. Oh, A. Oprea, H. B. McMahan, V. Suriyakumar, "One-shot Empirical Privacy
Estimation for Federated Learning", ICLR 2024: random directions, which are nearly orthogonal to each other.

Notation   m      canaries: every client of every run;  v_i a random direction of the model's size, of length 1
           s_i    a fair coin, +1 or -1: the client uploads far along s_i v_i, and its update is clipped
           r      guesses: of the m / 2 canaries with the largest scores;  w of them are right
Attack     score_i = sum over rounds of <change of the model, v_i>, and the guess is its sign.  Under LocalDP the
           attacker is the server, and the change is that of the client's upload.
Bound      If an (epsilon, delta)-private mechanism were guessed w times out of r, that had a probability of at most
           P(B >= w) + 2 m delta max_i (1 / i) P(w - i <= B < w),  B binomial of r and 1 / (1 + e^-epsilon)          (1)
           The lower bound is the largest epsilon at which this is below 1 - confidence.
Why        Neighbours in which one client's data are replaced by any others are those of the claim, and s_i v_i in place
           of -s_i v_i is the farthest of them.  Several runs with coins of their own are one mechanism in which every
           coin is tossed once, so that their guesses add up.  Shadow models (LiRA) would need a hundred runs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge
from scipy.stats import binom
from torch import Tensor

from unskew.errors import ConfigError
from unskew.experiment.config import Experiment, Method
from unskew.info import PrivacyBudget, whole
from unskew.keys import Key
from unskew.local.sequential import Sequential
from unskew.protocol import Ask, Federation, Me, Plan
from unskew.reduction import Within
from unskew.run import setup as run_setup
from unskew.runtime.in_process import Simulator
from unskew.tree import Params
from unskew.wrappers.base import StepTypes, Wrapped, Wrapper, name_of, through, wrap
from unskew.wrappers.central_dp import CentralDP
from unskew.wrappers.local_dp import LocalDP
from unskew.wrappers.uploads import UploadWrapper, differences, sent_model, uploads

FAR = 1e3
"""Length of a canary's update in clipping norms; without one, its length."""


@dataclass(frozen=True)
class Audit:
    """Result of an attack on a method.

    Attributes:
        method: Its label.
        claimed: Epsilon that it reports, the upper bound; inf if it claims nothing.
        lower: Epsilon that it has at least, with this confidence.
        confidence: Probability that a true claim passes.
        delta: Probability that belongs to both.
        canaries, guesses, right: Number of coins, of guesses about them, and of guesses that are right.
        scores: Score times coin of each canary: above zero the attack is right.
    """

    method: str
    claimed: float
    lower: float
    confidence: float
    delta: float
    canaries: int
    guesses: int
    right: int
    scores: tuple[float, ...]

    @property
    def holds(self) -> bool:
        """False if the claim cannot be true, but for a probability of 1 - confidence."""
        return self.lower <= self.claimed


@dataclass(frozen=True)
class Canaries(UploadWrapper):
    """Clients that upload far along a random direction, forwards or backwards by a coin.

    Attributes:
        seed: Seed of directions and coins.
        length: Length of the update.
    """

    honest: ClassVar[bool] = False

    seed: Annotated[int, Ge(0)] = 0
    length: float = FAR

    def encode(self, me: Me, updates: Params, residual: Params | None) -> tuple[Params, Params]:
        """Replace the updates."""
        towards = direction(self.seed, me.id, updates)
        return {n: self.length * coin(self.seed, me.id) * t for n, t in towards.items()}, {}


def direction(seed: int, client: int, like: Params) -> Params:
    """Return a client's direction, of length 1, in the shapes of `like`."""
    key = Key(seed) / "canary" / client
    drawn = {n: torch.randn(t.shape, generator=(key / n).generator()) for n, t in like.items()}
    length = math.sqrt(sum(float(t.double().square().sum()) for t in drawn.values()))
    return {n: (t / length).to(like[n]) for n, t in drawn.items()}


def coin(seed: int, client: int) -> int:
    """Return a client's coin, 1 or -1."""
    return 1 - 2 * ((Key(seed) / "coin" / client).number() % 2)


@dataclass(frozen=True)
class _Overheard(Wrapper):
    """The server's ear: adds up what it scores of each upload."""

    seed: int
    scores: dict[int, float]
    adds_nothing = True

    def applies_to(self, method: Any, name: str, types: StepTypes) -> bool:
        return False

    def round(self, method: Any, state: Any, fed: Federation) -> Plan[Any]:
        def change_request(request: Any) -> Any:
            if not isinstance(request, Ask) or not request.reduce:
                return request

            def heard(client: int, reply: Any) -> Any:
                updates = differences(uploads(type(reply)), reply, sent_model(request.to[client]) or {})
                self.scores[client] = self.scores.get(client, 0.0) + along(self.seed, client, updates)
                return reply

            first, *others = request.reduce
            return Ask(request.step, request.to, request.at_least, request.timeout_s, (Within(first, heard), *others))

        return (yield from through(method.round(state, fed), change_request, lambda _, got: got))


def along(seed: int, client: int, updates: Params) -> float:
    """Return the inner product of updates and a client's direction."""
    towards = direction(seed, client, updates)
    return sum(float((t.double() * towards[n].double()).sum()) for n, t in updates.items())


# ---------------------------------------------------------------- the attack
def audit(experiment: Experiment, method: Method, runs: int = 4, confidence: float = 0.95) -> Audit:
    """Attack a method with differential privacy, in runs of the experiment in which every client is a canary.

    Args:
        experiment: The experiment; its first seed, and those after it, are the runs'.
        method: One of its methods.
        runs: Number of runs; more find more.
        confidence: Probability that a true claim passes.

    Raises:
        ConfigError: If the method has no differential privacy of models, or no global model.
    """
    inside, chain = _taken_apart(method)
    place = _place_of_guard(chain)
    if place is None:
        raise ConfigError(
            f"an audit needs a method with central_dp or local_dp, and {method.label} has neither; add one, as in "
            'with = ["central_dp"]'
        )
    guard: Any = chain[place]
    setup = run_setup.prepare(experiment)
    scores: list[float] = []
    spent: list[float] = []
    for seed in range(experiment.seeds[0], experiment.seeds[0] + runs):
        length = FAR * guard.clip if math.isfinite(guard.clip) else FAR
        algorithm = wrap(inside, *chain[:place], Canaries(seed, length), *chain[place:])
        of_run, claim = _attacked(experiment, method, setup, algorithm, seed, isinstance(guard, LocalDP))
        scores += of_run
        spent.append(claim)
    ranked = sorted(scores, key=abs, reverse=True)
    guesses = max(1, len(ranked) // 2)
    right = sum(score > 0.0 for score in ranked[:guesses])
    lower = lower_bound(len(scores), guesses, right, guard.delta, confidence)
    return Audit(method.label, max(spent), lower, confidence, guard.delta, len(scores), guesses, right, tuple(scores))


def attackable(method: Method) -> bool:
    """Return true if the method has noise on models, which `audit` attacks; that of DP-SGD is in the steps."""
    return _place_of_guard(_taken_apart(method)[1]) is not None


def _taken_apart(method: Method) -> tuple[Any, list[Wrapper]]:
    """The method inside all wrappers, and those, the innermost first."""
    chain: list[Wrapper] = []
    inside = method.algorithm
    while isinstance(inside, Wrapped):
        chain.insert(0, inside.by)
        inside = inside.of
    return inside, chain


def _place_of_guard(chain: Sequence[Wrapper]) -> int | None:
    return next((i for i, by in enumerate(chain) if isinstance(by, CentralDP | LocalDP)), None)


def _attacked(
    experiment: Experiment, method: Method, setup: run_setup.Setup, algorithm: Any, seed: int, local: bool
) -> tuple[list[float], float]:
    """Scores times coins of a run's clients, and the epsilon that it reports."""
    heard: dict[int, float] = {}
    if local:
        algorithm = wrap(algorithm, _Overheard(seed, heard))
    fed = run_setup.divide(experiment, setup.dataset, seed)
    trainer, population, train = run_setup.clients(experiment, method, setup, fed, seed)
    cohort = experiment.cohort(train.num_clients)
    sim: Simulator[Any] = Simulator(algorithm, population, Sequential(trainer), seed=seed, clients_per_round=cohort)
    state = sim.start()
    before = algorithm.serve(state, None)
    if before is None and not local:
        raise ConfigError(f"an audit looks at the global model, and {name_of(algorithm)} has none")
    change: dict[str, Tensor] = {}
    for t in range(1, experiment.rounds + 1):
        state, _ = sim.round(state, t)
    if not local:
        # The changes of all rounds add up to that from the first model to the last.
        change = {f"0/{n}": w - before[n] for n, w in algorithm.serve(state, None).items()}
    spent = whole(algorithm.info(state), PrivacyBudget).privacy.bound
    ids = sim.federation(1).clients
    scored = heard if local else {c: along(seed, c, change) for c in ids}
    return [coin(seed, c) * scored.get(c, 0.0) for c in ids], spent


# ---------------------------------------------------------------- the bound
def p_value(epsilon: float, delta: float, canaries: int, guesses: int, right: int) -> float:
    """Compute the greatest probability that so many guesses are right under (epsilon, delta)-privacy (eq. 1)."""
    q = 1.0 / (1.0 + math.exp(-epsilon))
    below, largest = 0.0, 0.0
    for i in range(1, right + 1):
        below += float(binom.pmf(right - i, guesses, q))
        largest = max(largest, below / i)
    return min(1.0, float(binom.sf(right - 1, guesses, q)) + 2 * canaries * delta * largest)


def lower_bound(canaries: int, guesses: int, right: int, delta: float, confidence: float) -> float:
    """Compute the largest epsilon that the guesses refute; 0 if they refute none."""
    low, high = 0.0, 50.0
    if p_value(low, delta, canaries, guesses, right) >= 1 - confidence:
        return 0.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if p_value(middle, delta, canaries, guesses, right) < 1 - confidence else (low, middle)
        )
    return low
