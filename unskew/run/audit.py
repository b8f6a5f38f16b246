"""Audit of differential privacy: is the noise as large as the method's epsilon assumes?

An epsilon of Gaussian noise rests on three facts.  One client moves a release by at most the clipping norm, every
number of a release has noise of the claimed size, and no noise is used twice.  Here every client is a canary that
uploads far along a known random direction, so that all three can be measured.

Notation   C      clipping norm that the method claims;  z its noise multiplier
           V      what canaries send, of length 1 each and alike in a round, added up in a release
           u      what is released, over C: a client's upload (LocalDP), or the sum over a cohort (CentralDP)
Fit        u = c V + s Normal(0, I), by least squares in each part: all releases, each tensor, each release         (1)
           c is at least c - q s / |V|;  s is at most s sqrt(d / chi2(d)), d numbers less one                       (2)
Bound      s is to be at least z in every part, and c at most 1.  By (2) for all releases together the multiplier is at
           most s / c, and epsilon at least that of this multiplier.                                                 (3)
Repeats    Residuals u - c V are independent numbers: tested are the largest correlation of two releases, and the
           largest of releases with themselves moved by any number of places.                                        (4)
Errors     A true claim is called false with a probability of at most 1 - confidence: half of it is for (3), where half
           is for all releases together, and a quarter for each test of (4) (Bonferroni).
Not seen   Whether others can draw the same noise, what leaves a client beside its uploads, and cohorts.
"""

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import fft
from scipy.stats import chi2, norm

from unskew.errors import ConfigError
from unskew.experiment.config import Experiment, NamedMethod
from unskew.info import PrivacyBudget, whole
from unskew.keys import Key
from unskew.local.sequential import Sequential
from unskew.protocol import Ask, Federation, Me, Plan
from unskew.reduction import MeanOf, Reduced, Within
from unskew.run import setup as run_setup
from unskew.runtime.in_process import Simulator
from unskew.server import privacy
from unskew.tree import Params
from unskew.wrappers.base import StepTypes, Wrapped, Wrapper, through, wrap
from unskew.wrappers.central_dp import CentralDP
from unskew.wrappers.local_dp import LocalDP
from unskew.wrappers.uploads import UploadWrapper, differences, sent_model, uploads

FAR = 1e3  # length of a canary's update in clipping norms; without one, its length
LOOKED_AT = 4000, 300  # numbers of a release, and releases, whose residuals are compared with each other


@dataclass(frozen=True)
class Audit:
    """Measurements of a method's noise.

    Attributes:
        method: Its label.
        claimed: Epsilon that it reports, an upper bound; inf if it claims nothing.
        lower: Lower bound on its epsilon, from clip and noise.
        fault: What is not as claimed, such as noise that is used twice; None if nothing is.
        confidence: Probability that a true claim passes.
        clip: Length of an update, relative to the claimed clipping norm.
        noise: Standard deviation of the noise, relative to that norm.
    """

    method: str
    claimed: float
    lower: float
    fault: str | None
    confidence: float
    clip: float
    noise: float

    @property
    def holds(self) -> bool:
        """False if the claim is wrong, at the given confidence."""
        return math.isinf(self.claimed) or (self.lower <= self.claimed and self.fault is None)


# ---------------------------------------------------------------- canaries, and the ear beside the noise
@dataclass
class _Release:
    """Sums kept of a release: by tensor uu, uV, VV and the count of its numbers; and some of the numbers."""

    sums: dict[str, NDArray[np.float64]]
    u: NDArray[np.float64]
    v: NDArray[np.float64]


@dataclass
class _Log:
    """Key of directions, the last canary's upload, what was released, and the clipping norm that is claimed now."""

    key: Key
    sent: Params = field(default_factory=dict)
    releases: list[_Release] = field(default_factory=list)
    clip: float = 1.0

    def add(self, released: Params, canaries: int) -> None:
        """Add a release of so many canaries."""
        length, some = _length(self.sent), max(1, LOOKED_AT[0] // len(released))
        sums, kept = {}, []
        for name in sorted(released):
            u = released[name].double().flatten() / self.clip
            v = self.sent[name].double().flatten() * (canaries / length)
            sums[name] = np.array([float(u @ u), float(u @ v), float(v @ v), len(u)])
            kept.append(torch.stack([u[:some], v[:some]]))
        self.releases.append(_Release(sums, *torch.cat(kept, 1).numpy()))


def _length(updates: Params) -> float:
    return math.sqrt(sum(float(t.double().square().sum()) for t in updates.values()))


@dataclass(frozen=True)
class _Canaries(UploadWrapper):
    """Clients that upload far along a random direction, which is noted."""

    honest: ClassVar[bool] = False
    log: _Log
    length: float

    def encode(self, me: Me, updates: Params, residual: Params | None) -> tuple[Params, Params]:
        key = self.log.key / me.round
        drawn = {n: torch.randn(t.shape, generator=(key / n).generator()).to(t) for n, t in updates.items()}
        self.log.sent = {n: t * (self.length / _length(drawn)) for n, t in drawn.items()}
        return self.log.sent, {}


@dataclass(frozen=True)
class _Ear(Wrapper):
    """Hears what is released: outside LocalDP each client's upload, inside CentralDP each sum."""

    log: _Log
    local: bool
    adds_nothing = True
    one_by_one = True

    def applies_to(self, method: Any, name: str, types: StepTypes) -> bool:
        return False

    def round(self, method: Any, state: Any, fed: Federation) -> Plan[Any]:
        kinds: list[tuple[bool, bool]] = []

        def heard(to: Any, reductions: Any, client: int, reply: Any) -> Any:
            model = sent_model(to[client]) or {}
            if self.local:
                self.log.add(differences(uploads(type(reply)), reply, model), 1)
                return reply
            kinds.clear()
            self.log.sent = {}
            for i, linear in enumerate(reductions):
                part = reply
                while isinstance(linear, Within):
                    part, linear = linear.part(client, part), linear.reduction
                table = getattr(part, linear.of) if isinstance(linear.of, str) else linear.of(client, part)
                whole_model = any(u.path == (linear.of,) and u.kind == "model" for u in uploads(type(part)))
                self.log.sent |= {f"{i}/{n}": t - model[n] if whole_model else t for n, t in table.items()}
                kinds.append((isinstance(linear, MeanOf), whole_model))
            return reply

        def change_request(request: Any) -> Any:
            if not isinstance(request, Ask) or not request.reduce:
                return request
            hears = functools.partial(heard, request.to, request.reduce)
            return replace(request, reduce=(Within(request.reduce[0], hears), *request.reduce[1:]))

        def change_answer(request: Any, got: Any) -> Any:
            if self.local and isinstance(request, Ask) and not request.reduce:
                for client, reply in got.items():
                    heard(request.to, (), client, reply)
            if not self.local and isinstance(got, Reduced):
                model, m = sent_model(next(iter(request.to.values()))) or {}, len(request.to)
                released = {
                    f"{i}/{n}": t.double() * (m if mean else 1) - (m * model[n].double() if whole_model else 0.0)
                    for i, (table, (mean, whole_model)) in enumerate(zip(got.values, kinds, strict=True))
                    for n, t in table.items()
                }
                self.log.add(released, m)
            return got

        return (yield from through(method.round(state, fed), change_request, change_answer))


# ---------------------------------------------------------------- the measurements
class _Part(NamedTuple):
    """Fit of a part of the releases: c and s (eq. 1), the least c and the largest s (eq. 2)."""

    name: str
    clip: float
    noise: float
    least: float
    most: float


def _fit(name: str, sums: Iterable[NDArray[np.float64]], error: float) -> _Part:
    uu, uv, vv, n = (float(x) for x in np.sum([*sums], axis=0))
    c, left = uv / vv, max(0.0, uu - uv**2 / vv)
    most = math.sqrt(left / float(chi2.ppf(error, n - 1))) if n > 1 else math.inf
    return _Part(name, c, math.sqrt(left / max(1.0, n - 1)), c - float(norm.isf(error)) * most / math.sqrt(vv), most)


def _fits(releases: Sequence[_Release], error: float) -> list[_Part]:
    """Fit all releases together, each tensor, and each release."""
    each = error / 4 / (len(releases[0].sums) + len(releases))
    return [
        _fit("all releases", (t for r in releases for t in r.sums.values()), error / 4),
        *(_fit(name.partition("/")[2], (r.sums[name] for r in releases), each) for name in releases[0].sums),
        *(_fit(f"release {i}", r.sums.values(), each) for i, r in enumerate(releases, start=1)),
    ]


def _fault(parts: Sequence[_Part], claimed: float) -> str | None:
    """Say where noise is smaller than claimed, or that updates are longer than the clipping norm."""
    quiet = min(parts, key=lambda p: p.most)
    if quiet.most < claimed:
        return f"noise of {quiet.name} is {quiet.noise:.3g} clipping norms, and {claimed:.3g} are claimed"
    if parts[0].least > 1.001:  # float32 is rounded
        return f"updates are clipped at {parts[0].clip:.3g} times the clipping norm"
    return None


def _repeated(releases: Sequence[_Release], clip: float, error: float) -> str | None:
    """Say which of the tests (4) fails, each with this probability if the noise is as claimed."""
    left = np.stack([r.u - clip * r.v for r in releases[: LOOKED_AT[1]]])
    left /= np.sqrt((left**2).mean(1, keepdims=True)) + 1e-12
    rows, numbers = left.shape
    pairs = np.abs(np.triu(left @ left.T, 1)) / math.sqrt(numbers)
    if pairs.max() > norm.isf(error / (rows * max(1, rows - 1))):
        a, b = np.unravel_index(pairs.argmax(), pairs.shape)
        return f"releases {a + 1} and {b + 1} share noise"
    spectrum = np.abs(fft.rfft(left, 2 * numbers, axis=1)) ** 2
    places = np.arange(1, max(2, numbers - 500 // rows))  # with fewer products their sum is not normal yet
    moved = fft.irfft(spectrum.sum(0), 2 * numbers)[places] / np.sqrt(rows * (numbers - places))
    if np.abs(moved).max() > norm.isf(error / (2 * len(places))):
        return "numbers of one release share noise"
    return None


# ---------------------------------------------------------------- the attack
def taken_apart(method: NamedMethod) -> tuple[Any, list[Wrapper]]:
    """A method up to its noise on models (None without any), and the wrappers around it."""
    inside: Any = method.method
    around: list[Wrapper] = []
    while isinstance(inside, Wrapped) and not isinstance(inside.by, CentralDP | LocalDP):
        around.insert(0, inside.by)
        inside = inside.of
    return (inside if isinstance(inside, Wrapped) else None), around


def audit(experiment: Experiment, method: NamedMethod, runs: int | None = None, confidence: float = 0.99) -> Audit:
    """Measure the noise of a method with differential privacy, in runs of the experiment in which all clients are
    canaries.

    Args:
        experiment: The experiment; the runs have its first seed and the seeds after it.
        method: One of its methods.
        runs: Number of runs; more find more.  By default enough to measure c to 0.3 (standard error), at most 100.
        confidence: Probability that a true claim passes.

    Raises:
        ConfigError: If the method has no differential privacy of models.
    """
    inside, around = taken_apart(method)
    if inside is None:
        raise ConfigError(
            f'{method.label} has no noise to audit: add central_dp or local_dp, as in with = ["central_dp"]'
        )
    guard, log = inside.by, _Log(Key(experiment.seeds[0]) / "canary")
    canaries = _Canaries(log, FAR * guard.clip if math.isfinite(guard.clip) else FAR)
    ear = _Ear(log, isinstance(guard, LocalDP))
    audited = wrap(inside.of, canaries, *((guard, ear) if ear.local else (ear, guard)), *around)
    setup = run_setup.prepare(experiment)
    claims: list[PrivacyBudget] = []
    z = 0.0
    while len(claims) < (runs or 2):
        log.key, seed = log.key / len(claims), experiment.seeds[0] + len(claims)
        fed = run_setup.divide(experiment, setup.dataset, seed)
        run = run_setup.PreparedRun(experiment, setup, {seed: fed})
        trainer, population, train = run_setup.clients(run, method, seed)
        cohort = experiment.cohort(train.num_clients)
        sim: Simulator[Any] = Simulator(audited, population, Sequential(trainer), seed=seed, clients_per_round=cohort)
        state = sim.start()
        for t in range(1, experiment.rounds + 1):
            log.clip = whole(audited.info(state), PrivacyBudget).clip or 1.0
            state, _ = sim.round(state, t)
        claim = whole(audited.info(state), PrivacyBudget)
        claims.append(claim)
        if not log.releases:
            raise ConfigError(f"no round of {method.label} releases a model; let it train, and raise max_epsilon")
        z = 2 * claim.each.multiplier
        known = sum(float(sums[2]) for r in log.releases for sums in r.sums.values())
        runs = runs or min(100, math.ceil((z / 0.3) ** 2 / known))
    claim = max(claims, key=lambda c: c.privacy.bound)
    parts = _fits(log.releases, (1 - confidence) / 2)
    fault = (_repeated(log.releases, parts[0].clip, (1 - confidence) / 4) or _fault(parts, z)) if z else None
    clients, cohort = claim.each.sample if isinstance(claim.each.sample, tuple) else (1, 1)
    multiplier = parts[0].most / parts[0].least if parts[0].least > 0 else math.inf
    lower = 0.0 if math.isinf(multiplier) else math.inf  # less noise than 0.01 the accountant takes for none
    if 0.01 <= multiplier < math.inf:
        lower = privacy.cohort_epsilon(multiplier, clients, cohort, claim.releases, guard.delta)
    return Audit(method.label, claim.privacy.bound, lower, fault, confidence, *parts[0][1:3])
