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
    mechanisms = tuple(((z, _drawn(sample)), n) for (z, sample), n in mechanisms if n)
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
    return composed_epsilon((((noise_multiplier / 2, (clients, cohort)), releases),), delta)


class Training(NamedTuple):
    """The noised releases of a training.

    Attributes:
        covers: What the noise covers.
        seed: The training's.
        multiplier: Standard deviation of the noise over the distance by which what is covered moves a release.
        sample: N and the largest cohort M of sums over cohorts.  Of noise that clients add themselves, q, 1 without
            sampling.
        releases: Number of sums, or of mechanisms of the client with most.
        delta: Probability that belongs to epsilon.
    """

    covers: str
    seed: int
    multiplier: float
    sample: Sample
    releases: int
    delta: float

    @property
    def of_sums(self) -> bool:
        """True if the noise is on sums over cohorts."""
        return isinstance(self.sample, tuple)


def together(trainings: Iterable[Training]) -> tuple[str, ...]:
    """Say what trainings on the same clients cost together (eq. 4, 5), if two or more noised ones released something.

    There is one text for noise on sums, and one for each thing that clients' own noise covers.

    Raises:
        ConfigError: If the accountant is not installed.
    """
    alike: dict[tuple[bool, str], list[Training]] = {}
    for t in trainings:
        if t.multiplier and t.releases:
            alike.setdefault((t.of_sums, t.covers), []).append(t)
    texts = []
    for (of_sums, covers), several in alike.items():
        if len(several) > 1:
            delta = min(t.delta for t in several)
            where, seen = (
                ("on their sums", "the models of all") if of_sums else ("of the clients' own", "all that was sent")
            )
            texts.append(
                f"all {len(several)} trainings with noise {where} together: epsilon "
                f"{together_epsilon(several, delta):.4g} at delta {delta:g} for {covers}, for whoever sees {seen}"
            )
    return tuple(texts)


def together_epsilon(trainings: Sequence[Training], delta: float) -> float:
    """Compute the joint epsilon of noised trainings on the same clients (eq. 4, 5).

    Raises:
        ConfigError: If the accountant is not installed.
    """
    draws: dict[Any, list[Training]] = {}
    for i, t in enumerate(trainings):  # those of one seed draw the same cohorts, and clients draw noise anew
        draws.setdefault(t.seed if t.of_sums else ("own", i), []).append(t)
    rounds: Counter[tuple[float, Sample]] = Counter()
    for own in draws.values():
        for before, last in pairwise((0, *sorted({t.releases for t in own}))):
            at_once = [t for t in own if t.releases >= last]
            z = sum(t.multiplier**-2 for t in at_once) ** -0.5
            rounds[z, max(t.sample for t in at_once)] += last - before
    return composed_epsilon(tuple(rounds.items()), delta)


ORDERS = (*range(2, 25), 28, 32, 40, 48, 64)
"""Orders of Renyi divergence: each gives a bound that holds.  Those above 64 take a second, and win below .5."""


def _drawn(sample: Sample) -> Sample:
    return 1.0 if isinstance(sample, tuple) and sample[0] <= sample[1] else sample


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
