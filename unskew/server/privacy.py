"""Privacy of uploads with Gaussian noise, by Google's accountant `dp-accounting` (extra [dp]).

Notation   z        noise multiplier: standard deviation of the noise over the L2 sensitivity of an upload
           T        number of uploads
           epsilon, delta   what all T together tell: of two neighbouring data sets no outcome is more probable under
                    one than e^epsilon times as under the other, but for delta
Sum        T Gaussian mechanisms of multiplier z are together exactly one of multiplier z / sqrt(T), also if each is
           chosen by earlier results, as long as its sensitivity is bounded whatever was chosen (1)
Cohorts    Noise of z times a bound C on the sum of a cohort's clipped updates is a Gaussian mechanism of multiplier
           z / 2 for neighbours in which one client's data are replaced by any others: the sum moves by up to 2 C (2).
           A cohort of M clients drawn uniformly out of N without replacement amplifies that (Y.-X. Wang, B. Balle, S.
           Kasiviswanathan, "Subsampled Renyi Differential Privacy and Analytical Moments Accountant", AISTATS 2019,
           theorem 27), towards everyone who does not know who was drawn.  Both bounds hold, with and without
           amplification, and the smaller is given.
Together   Trainings on the same clients compose.  Those of one seed draw the same cohort in a round.  Their sums of
           that round are one mechanism of multiplier (sum z^-2)^(-1/2), over the largest of their cohorts, which
           contains the others.  Cohorts of other seeds and rounds are drawn anew (4).  Noise that clients add
           themselves is drawn anew in each training: the mechanisms of the client with most of them, summed over
           trainings, bound every client's (5).
Examples   Noise of z times a bound C on the sum of a batch's clipped gradients is a Gaussian mechanism of multiplier z
           for neighbours in which one example is replaced by one that adds nothing: the sum moves by up to C.  A batch
           that has every example independently with probability q (Poisson) amplifies that (I. Mironov, K. Talwar, L.
           Zhang, "Renyi Differential Privacy of the Sampled Gaussian Mechanism", 2019) (3).  The smaller of both bounds
           is given.
Departures Clients' own noised uploads are not amplified: their server knows whom it asked.
"""

import functools
import importlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from unskew.errors import ConfigError


def require() -> Any:
    """Import the accountant.

    Raises:
        ConfigError: If it is not installed.
    """
    try:
        return importlib.import_module("dp_accounting")
    except ImportError:
        raise ConfigError(
            "differential privacy is accounted for by the package dp-accounting, which is not installed; "
            "pip install 'unskew[dp]', or leave dp out"
        ) from None


def check_delta(delta: float, n: int, what: str) -> None:
    """Refuse a delta so large that one of n clients or examples (`what`) could be given away as a whole.

    Raises:
        ConfigError: If it is not below 1 / n.
    """
    if delta * n >= 1.0:
        raise ConfigError(
            f"delta must be below one over the number of {what}, 1 / {n:,} = {1 / n:.3g}, got {delta:g}: it allows "
            "that one of them is given away as a whole"
        )


@functools.cache
def epsilon(noise_multiplier: float, releases: int, delta: float) -> float:
    """Compute the epsilon of T `releases` together under noise of this multiplier z > 0 (eq. 1); 0 for none.

    Raises:
        ConfigError: If the accountant is not installed.
    """
    if not releases:
        return 0.0
    return float(require().get_epsilon_gaussian(noise_multiplier / math.sqrt(releases), delta))


@functools.cache
def noise_multiplier(epsilon: float, releases: int, delta: float) -> float:
    """Compute the least noise multiplier at which T >= 1 `releases` cost at most `epsilon` (eq. 1).

    Raises:
        ConfigError: If the accountant is not installed.
    """
    return float(require().get_sigma_gaussian(epsilon, delta)) * math.sqrt(releases)


Sample = float | tuple[int, int]
"""What a mechanism is over: each of all with a probability, 1 for all, or (N, M), M of N drawn without replacement."""


@functools.cache
def composed_epsilon(mechanisms: tuple[tuple[tuple[float, Sample], int], ...], delta: float) -> float:
    """Compute the epsilon of Gaussian mechanisms together (eq. 1, 2, 3); 0 for none, inf without noise.

    Both bounds hold, with and without amplification by sampling, and the smaller is given.  Of each kind of mechanism
    there are the standard deviation over the sensitivity, the sample, and the number.

    Raises:
        ConfigError: If the accountant is not installed.
    """
    mechanisms = tuple(m for m in mechanisms if m[1])
    if not mechanisms:
        return 0.0
    if not all(z for (z, _), _ in mechanisms):
        return math.inf
    if len(mechanisms) == 1:
        (((z, _), n),) = mechanisms
        plain = epsilon(z, n, delta)
    else:
        plain = epsilon(sum(n / z**2 for (z, _), n in mechanisms) ** -0.5, 1, delta)
    if all(sample == 1.0 for (_, sample), _ in mechanisms):
        return plain
    total = [0.0] * len(ORDERS)
    for (z, sample), n in mechanisms:
        total = [t + n * r for t, r in zip(total, _renyi(z, sample), strict=True)]
    return min(plain, float(_rdp().compute_epsilon(ORDERS, total, delta)[0]))


def cohort_epsilon(noise_multiplier: float, clients: int, cohort: int, releases: int, delta: float) -> float:
    """Compute the epsilon of T noised sums over cohorts, M of N, for one client's data replaced by others (eq. 1, 2).

    Raises:
        ConfigError: If the accountant is not installed.
    """
    return composed_epsilon((((noise_multiplier / 2, _drawn(clients, cohort)), releases),), delta)


class NoisedSums(NamedTuple):
    """The noised sums of a training: its seed, z, N, the largest cohort M, a sum for each of T rounds, and delta."""

    seed: int
    noise_multiplier: float
    clients: int
    cohort: int
    releases: int
    delta: float


class ClientsNoise(NamedTuple):
    """The noise that clients add themselves in a training: what it covers, z, q, a client's mechanisms, and delta.

    z is relative to how far the covered data move the sum, q is 1 without sampling, and the mechanisms are those of the
    client with most.
    """

    covers: str
    noise_multiplier: float
    share: float
    releases: int
    delta: float


def together(trainings: Iterable[NoisedSums | ClientsNoise]) -> tuple[str, ...]:
    """Say what trainings on the same clients cost together (eq. 4, 5), if two or more noised ones released something.

    There is one text for noise on sums, and one for each thing that clients' own noise covers.

    Raises:
        ConfigError: If the accountant is not installed.
    """
    noised = [t for t in trainings if t.noise_multiplier and t.releases]
    sums = [t for t in noised if isinstance(t, NoisedSums)]
    of_clients: dict[str, list[ClientsNoise]] = {}
    for training in noised:
        if isinstance(training, ClientsNoise):
            of_clients.setdefault(training.covers, []).append(training)
    texts = []
    if len(sums) > 1:
        delta = min(t.delta for t in sums)
        texts.append(
            f"all {len(sums)} trainings with noise on their sums together: epsilon {together_epsilon(sums, delta):.4g} "
            f"at delta {delta:g} for one client's data, for whoever sees the models of all"
        )
    for covers, own in of_clients.items():
        delta = min(t.delta for t in own)
        mechanisms: Counter[tuple[float, float]] = Counter()
        for t in own:
            mechanisms[t.noise_multiplier, t.share] += t.releases
        if len(own) > 1:
            texts.append(
                f"all {len(own)} trainings with noise of the clients' own together: epsilon "
                f"{composed_epsilon(tuple(sorted(mechanisms.items())), delta):.4g} at most, at delta {delta:g}, for "
                f"{covers}, for whoever sees all that was sent"
            )
    return tuple(texts)


def together_epsilon(released: Sequence[NoisedSums], delta: float) -> float:
    """Compute the joint epsilon of noised trainings on the same clients (eq. 4), one client's data replaced by others.

    Raises:
        ConfigError: If the accountant is not installed.
    """
    rounds: Counter[tuple[float, Sample]] = Counter()
    for seed in {t.seed for t in released}:
        own = [t for t in released if t.seed == seed]
        for before, last in pairwise((0, *sorted({t.releases for t in own}))):
            at_once = [t for t in own if t.releases >= last]
            z = sum(t.noise_multiplier**-2 for t in at_once) ** -0.5
            sample = _drawn(max(t.clients for t in at_once), max(t.cohort for t in at_once))
            rounds[z / 2, sample] += last - before
    return composed_epsilon(tuple(rounds.items()), delta)


ORDERS = (*range(2, 25), 28, 32, 40, 48, 64)
"""Orders of Renyi divergence: each gives a bound that holds.  Those above 64 take a second, and win below .5."""


def _drawn(clients: int, cohort: int) -> Sample:
    return (clients, cohort) if cohort < clients else 1.0


@functools.cache
def _renyi(z: float, sample: Sample) -> tuple[float, ...]:
    """Compute the Renyi divergence of one mechanism by order, which composition adds up."""
    if sample == 1.0:
        return tuple(order / (2.0 * z**2) for order in ORDERS)
    dp, event = require(), require().GaussianDpEvent(z)
    if isinstance(sample, tuple):
        accountant = _rdp().RdpAccountant(ORDERS, dp.NeighboringRelation.REPLACE_ONE)
        accountant.compose(dp.SampledWithoutReplacementDpEvent(*sample, event))
    else:
        accountant = _rdp().RdpAccountant(ORDERS, dp.NeighboringRelation.REPLACE_SPECIAL)
        accountant.compose(dp.PoissonSampledDpEvent(sample, event))
    return tuple(float(r) for r in accountant._rdp)  # composing it anew for every round would take a tenth of a second


def _rdp() -> Any:
    require()
    return importlib.import_module("dp_accounting.rdp")
